/* SPDX-License-Identifier: Apache-2.0
 *
 * Groups by key, members by their number. A group is decided when all its members have come, or all
 * ranks of the world: a rank that has not named the group by then has nothing in it. A decision
 * stays; a rank that asks again on another connection is told the same. One loop's thread.
 */
#include "session/agree.h"

#include "base/check.h"
#include "session/keyset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_PER_FRAME = 4096, FRAME_BYTES = 256 << 10 };

struct member {
    struct xxh128 list_hash;
    uint32_t rank, list_at, digest_at; /* list_at, digest_at: how many of its keys have come */
    bool came, copied, has_list, has_digests;
};

struct group {
    struct xxh128 key;
    uint32_t member_count, came, listed, digested;
    struct member *members; /* NULL if there was no room for them */
    struct keyset lists, digests;
    enum msg_agree_verdict verdict; /* 0 until it is decided */
    bool lists_failed, digests_failed, has_unchecked;
    uint32_t unchecked_rank; /* a member that does not check, so that waiting for it is useless */
};

struct agree {
    struct list link, waits;
    struct agree_book *book;
    struct agree_key key;
    struct run_watch watch;
    uint32_t refs, came; /* came: number of ranks that have come */
    uint8_t *came_bits;
    struct group **groups; /* in the order in which they were named */
    struct keyset index;   /* group key to number; has one member, so it is a plain map */
    uint32_t group_count, group_cap;
    bool changed; /* something has become ready since the last poll */
    bool over;
    int over_code;
    char why[256];
};

void agree_book_init(struct agree_book *book, uint64_t bytes_max)
{
    *book = (struct agree_book){.bytes_max = bytes_max};
    list_init(&book->all);
}

static bool take_bytes(struct agree_book *book, uint64_t bytes)
{
    if (bytes > book->bytes_max || book->bytes_used > book->bytes_max - bytes) {
        return false;
    }
    book->bytes_used += bytes;
    return true;
}

/* --- life ------------------------------------------------------------------------ */

static void end_waits(struct agree *agree)
{
    while (!list_is_empty(&agree->waits)) {
        struct agree_wait *wait = list_item(list_pop(&agree->waits), struct agree_wait, link);
        wait->over(wait, agree->over_code, agree->why);
    }
}

/* Called when the save has ended: those that wait for a verdict get the end of the save instead. */
static void on_save_over(struct run_watch *watch, enum save_state state, int code, const char *why,
                         uint64_t seq)
{
    struct agree *agree = container_of(watch, struct agree, watch);
    (void)seq;
    if (state == SAVE_OPEN) {
        return; /* the record cannot be read now: the ranks' deadlines still hold */
    }
    agree->over = true;
    agree->over_code = state == SAVE_COMMITTED ? 0 : code != 0 ? code : CAIRN_E_ABORTED;
    strncpy(agree->why, why ? why : "", sizeof agree->why - 1);
    agree->refs++; /* a callback may drop the last reference */
    end_waits(agree);
    agree_drop(agree);
}

int agree_hold(struct agree_book *book, const struct agree_key *key, struct agree **ret)
{
    CHECK(key->run != NULL);
    CHECK(key->world_size > 0);
    list_each (node, &book->all) {
        struct agree *agree = list_item(node, struct agree, link);
        if (agree->key.run == key->run && agree->key.open_id == key->open_id &&
            ckpt_id_equal(agree->key.id, key->id)) {
            CHECK(agree->key.world_size ==
                  key->world_size); /* the term of the opening has one world */
            agree->refs++;
            *ret = agree;
            return 0;
        }
    }
    struct agree *agree = calloc(1, sizeof *agree);
    if (!agree) {
        return CAIRN_E_NO_MEMORY;
    }
    agree->came_bits = calloc((key->world_size + 7) / 8, 1);
    if (!agree->came_bits) {
        free(agree);
        return CAIRN_E_NO_MEMORY;
    }
    agree->book = book;
    agree->key = *key;
    agree->refs = 1;
    list_init(&agree->waits);
    list_init(&agree->watch.link);
    keyset_init(&agree->index, 1, &book->bytes_used, book->bytes_max);
    list_add_tail(&book->all, &agree->link);
    agree->watch = (struct run_watch){.id = key->id, .open_id = key->open_id, .done = on_save_over};
    run_watch(key->run, &agree->watch);
    *ret = agree;
    return 0;
}

struct agree *agree_ref(struct agree *agree)
{
    CHECK(agree->refs > 0);
    agree->refs++;
    return agree;
}

/* Frees a group, and gives its bytes back to the book that limits them. */
static void free_group(struct agree *agree, struct group *group)
{
    keyset_fini(&group->lists);
    keyset_fini(&group->digests);
    if (group->members) {
        CHECK(agree->book->bytes_used >= group->member_count * sizeof *group->members);
        agree->book->bytes_used -= group->member_count * sizeof *group->members;
        free(group->members);
    }
    CHECK(agree->book->bytes_used >= sizeof *group);
    agree->book->bytes_used -= sizeof *group;
    free(group);
}

void agree_drop(struct agree *agree)
{
    if (!agree || --agree->refs > 0) {
        return;
    }
    CHECK(agree->refs == 0);
    CHECK(agree->group_count <= agree->group_cap);
    CHECK(list_is_empty(&agree->waits));
    run_unwatch(&agree->watch);
    list_remove(&agree->link);
    for (uint32_t i = 0; i < agree->group_count; i++) {
        free_group(agree, agree->groups[i]);
    }
    keyset_fini(&agree->index);
    free(agree->groups);
    free(agree->came_bits);
    free(agree);
}

/* --- waiting --------------------------------------------------------------------- */

void agree_wait(struct agree *agree, struct agree_wait *wait)
{
    CHECK(wait->is_ready != NULL);
    CHECK(wait->ready != NULL);
    CHECK(wait->over != NULL);
    agree->changed = true; /* the answer may be there already */
    list_add_tail(&agree->waits, &wait->link);
}

void agree_poll(struct agree *agree)
{
    struct list left;
    if (!agree->changed && !agree->over) {
        return;
    }
    agree->changed = false;
    list_init(&left);
    agree->refs++;
    while (!list_is_empty(&agree->waits)) {
        struct agree_wait *wait = list_item(list_pop(&agree->waits), struct agree_wait, link);
        if (agree->over) {
            wait->over(wait, agree->over_code, agree->why);
        } else if (wait->is_ready(wait)) {
            wait->ready(wait);
        } else {
            list_add_tail(&left, &wait->link);
        }
    }
    while (!list_is_empty(&left)) {
        list_add_tail(&agree->waits, list_pop(&left));
    }
    agree_drop(agree);
}

/* --- groups ---------------------------------------------------------------------- */

static struct group *find_group(const struct agree *agree, const struct xxh128 *key)
{
    uint32_t row = keyset_find(&agree->index, key);
    CHECK(row == KEYSET_NONE || row < agree->group_count);
    return row == KEYSET_NONE ? NULL : agree->groups[row];
}

/* Makes the group that a rank has named first. Returns TOO_LARGE if the budget has no room for it,
 * or NO_MEMORY. */
static int add_group(struct agree *agree, const struct msg_agree_group *said, struct group **ret)
{
    struct agree_book *book = agree->book;
    struct keyset_row *row;
    if (agree->group_count == agree->group_cap) {
        uint32_t cap = agree->group_cap == 0 ? 16 : 2 * agree->group_cap;
        struct group **groups = realloc(agree->groups, cap * sizeof(struct group *));
        if (!groups) {
            return CAIRN_E_NO_MEMORY;
        }
        agree->groups = groups;
        agree->group_cap = cap;
    }
    if (!take_bytes(book, sizeof(struct group))) {
        return CAIRN_E_TOO_LARGE;
    }
    struct group *group = calloc(1, sizeof *group);
    int rc = group ? keyset_add(&agree->index, 0, &said->group, &(struct xxh128){{0}}, &row)
                   : CAIRN_E_NO_MEMORY;
    if (rc != 0) {
        book->bytes_used -= sizeof *group;
        free(group);
        return rc;
    }
    CHECK(row->count == 1); /* the group is new: find_group() did not find it */
    CHECK(agree->index.count == agree->group_count + 1);
    group->key = said->group;
    group->member_count = said->members;
    uint64_t bytes = said->members * sizeof *group->members;
    if (take_bytes(book, bytes)) {
        group->members = calloc(said->members, sizeof *group->members);
        book->bytes_used -= group->members ? 0 : bytes;
    }
    group->verdict = group->members ? 0 : AGREE_UNKNOWN;
    keyset_init(&group->lists, said->members, &book->bytes_used, book->bytes_max);
    keyset_init(&group->digests, said->members, &book->bytes_used, book->bytes_max);
    agree->groups[agree->group_count++] = group;
    *ret = group;
    return 0;
}

/* Notes that the rank is a member of the group. Returns PROTOCOL if the rank contradicts what
 * another rank has said. */
static int join_group(struct agree *agree, uint32_t rank, const struct msg_agree_group *said,
                      uint8_t check, struct diag *diag)
{
    struct group *group = find_group(agree, &said->group);
    int rc = group ? 0 : add_group(agree, said, &group);
    if (rc == CAIRN_E_TOO_LARGE) {
        return 0; /* the group's verdict will be "unknown" */
    }
    if (rc != 0) {
        return diag_set(diag, rc, "there is not enough memory for comparing the ranks' lists");
    }
    if (group->member_count != said->members || said->members > agree->key.world_size) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "a list names a group of %u of %u ranks, but other ranks say that the "
                        "group has %u members",
                        said->members, agree->key.world_size, group->member_count);
    }
    if (!group->members) {
        return 0;
    }
    CHECK(said->member < group->member_count); /* the codec has compared them */
    struct member *member = &group->members[said->member];
    if (member->came && member->rank != rank) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "ranks %u and %u both say that they are the same member of a group",
                        member->rank, rank);
    }
    if (!member->came) {
        *member = (struct member){
            .came = true, .rank = rank, .copied = said->copied, .list_hash = said->list_hash};
        group->came++;
        CHECK(group->came <= group->member_count);
        if (check == CHECK_NONE) {
            group->has_unchecked = true;
            group->unchecked_rank = rank;
        }
    } else if (group->verdict == 0) {
        member->copied = said->copied;
        member->list_hash = said->list_hash;
    }
    return 0;
}

/* Decides a group. If its members follow an earlier agreement, they keep it (KEEP), or, if only
 * some do, they send their lists (MIXED). Otherwise their lists are equal (ALIKE), or have to be
 * sent (ANEW). */
static void decide(struct group *group)
{
    const struct member *first = NULL;
    uint32_t copied = 0;
    bool alike = group->came == group->member_count;
    for (uint32_t i = 0; i < group->member_count; i++) {
        const struct member *member = &group->members[i];
        if (!member->came) {
            continue;
        }
        first = first ? first : member;
        copied += member->copied;
        alike =
            alike && memcmp(&member->list_hash, &first->list_hash, sizeof first->list_hash) == 0;
    }
    if (copied > 0) {
        group->verdict = copied == group->came ? AGREE_KEEP : AGREE_MIXED;
    } else {
        group->verdict = alike ? AGREE_ALIKE : AGREE_ANEW;
    }
}

int agree_join(struct agree *agree, uint32_t rank, const struct msg_agree *msg, struct diag *diag)
{
    uint8_t *byte = &agree->came_bits[rank / 8];
    uint8_t bit = (uint8_t)(1u << (rank % 8));
    CHECK(rank < agree->key.world_size);
    for (uint32_t i = 0; i < msg->count; i++) {
        int rc = join_group(agree, rank, &msg->groups[i], (uint8_t)msg->check, diag);
        if (rc != 0) {
            return rc;
        }
    }
    agree->came += (*byte & bit) == 0;
    *byte |= bit;
    CHECK(agree->came <= agree->key.world_size);
    bool all = agree->came == agree->key.world_size;
    for (uint32_t i = 0; i < agree->group_count; i++) {
        struct group *group = agree->groups[i];
        if (group->verdict == 0 && (all || group->came == group->member_count)) {
            decide(group);
        }
    }
    agree->changed = true;
    return 0;
}

enum msg_agree_verdict agree_verdict(const struct agree *agree, struct xxh128 group_key)
{
    const struct group *group = find_group(agree, &group_key);
    return group ? group->verdict : AGREE_UNKNOWN;
}

/* --- lists and digests ----------------------------------------------------------- */

/* Finds the member of a group for a rank. *ret is NULL if the budget had no room for the group. */
static int find_member(const struct agree *agree, uint32_t rank, struct group *group,
                       struct member **ret, struct diag *diag)
{
    *ret = NULL;
    if (!group || !group->members) {
        return 0;
    }
    /* Members are sorted by rank, mostly in even steps. */
    uint32_t guess = (uint32_t)((uint64_t)rank * group->member_count / agree->key.world_size);
    for (uint32_t i = 0; i < group->member_count; i++) {
        struct member *member = &group->members[(guess + i) % group->member_count];
        if (member->came && member->rank == rank) {
            *ret = member;
            return 0;
        }
    }
    return diag_set(diag, CAIRN_E_PROTOCOL, "a list belongs to a group that rank %u did not name",
                    rank);
}

/* Checks that a list goes on where its last frame ended; a first frame starts it anew. */
static int check_place(uint32_t first, uint32_t *io_at, uint32_t count, struct diag *diag)
{
    if (first != 0 && first != *io_at) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "a list continues at entry %u instead of %u", first,
                        *io_at);
    }
    *io_at = first + count;
    return 0;
}

int agree_list(struct agree *agree, uint32_t rank, const struct msg_lists *msg, struct diag *diag)
{
    static const struct xxh128 nothing;
    struct group *group = find_group(agree, &msg->group);
    struct member *member;
    int rc = find_member(agree, rank, group, &member, diag);
    rc = rc != 0 || !member ? rc : check_place(msg->first, &member->list_at, msg->count, diag);
    if (rc != 0 || !member) {
        return rc;
    }
    uint32_t place = (uint32_t)(member - group->members);
    for (uint32_t i = 0; i < msg->count && !member->has_list && !group->lists_failed; i++) {
        struct keyset_row *row;
        if (keyset_add(&group->lists, place, &msg->keys[i], &nothing, &row) != 0) {
            group->lists_failed = true;
            break;
        }
        uint64_t division = group->verdict == AGREE_MIXED ? msg->divisions[i] : 0;
        row->added =
            row->added || division == 0 || (row->division != 0 && row->division != division);
        row->division = row->division != 0 ? row->division : division;
    }
    if (member->list_at >= msg->total && !member->has_list) {
        member->has_list = true;
        group->listed++;
        CHECK(group->listed <= group->came);
        agree->changed = agree->changed || group->listed == group->came;
    }
    return 0;
}

int agree_digests(struct agree *agree, uint32_t rank, const struct msg_digests *msg,
                  struct diag *diag)
{
    struct group *group = find_group(agree, &msg->group);
    struct member *member;
    int rc = find_member(agree, rank, group, &member, diag);
    rc = rc != 0 || !member ? rc : check_place(msg->first, &member->digest_at, msg->count, diag);
    if (rc != 0 || !member) {
        return rc;
    }
    uint32_t place = (uint32_t)(member - group->members);
    for (uint32_t i = 0; i < msg->count && !member->has_digests && !group->digests_failed; i++) {
        struct keyset_row *row;
        group->digests_failed =
            keyset_add(&group->digests, place, &msg->keys[i], &msg->digests[i], &row) != 0;
    }
    if (member->digest_at >= msg->total && !member->has_digests) {
        member->has_digests = true;
        group->digested++;
        CHECK(group->digested <= group->came);
        agree->changed = agree->changed || group->digested == group->came;
    }
    return 0;
}

bool agree_has_lists(const struct agree *agree, struct xxh128 key)
{
    const struct group *group = find_group(agree, &key);
    return !group || group->lists_failed || (group->verdict != 0 && group->listed == group->came);
}

bool agree_has_digests(const struct agree *agree, struct xxh128 key)
{
    const struct group *group = find_group(agree, &key);
    return !group || group->digests_failed || !group->members || group->has_unchecked ||
           (group->verdict != 0 && group->digested == group->came);
}

/* --- answers --------------------------------------------------------------------- */

struct answer {
    const struct keyset *set;
    struct msg_sets *sets;
    uint32_t bytes;
};

/* Adds one row to the answer. Returns false if the frame is full. */
static bool add_row(struct answer *answer, uint32_t row, bool is_empty)
{
    struct msg_sets *sets = answer->sets;
    uint32_t bytes = is_empty ? 0 : keyset_bits_bytes(answer->set, row);
    if (sets->count == ROWS_PER_FRAME || answer->bytes + bytes > FRAME_BYTES) {
        return false;
    }
    answer->bytes += bytes + (uint32_t)sizeof(struct xxh128);
    CHECK(row < answer->set->count);
    sets->rows[sets->count++] = (struct msg_set){.key = answer->set->rows[row].key,
                                                 .division = answer->set->rows[row].division,
                                                 .bytes = bytes,
                                                 .bits = keyset_bits(answer->set, row)};
    return true;
}

static int begin_answer(struct scratch *scratch, struct msg_sets *ret)
{
    *ret = (struct msg_sets){.last = true, .text = ""};
    ret->rows = scratch_array(scratch, ROWS_PER_FRAME, sizeof *ret->rows);
    return ret->rows ? 0 : CAIRN_E_NO_MEMORY;
}

int agree_holders(const struct agree *agree, struct xxh128 key, uint32_t *io_at,
                  struct scratch *scratch, struct msg_sets *ret)
{
    const struct group *group = find_group(agree, &key);
    int rc = begin_answer(scratch, ret);
    if (rc != 0) {
        return rc;
    }
    if (!group || group->lists_failed) {
        ret->code = CAIRN_E_TOO_LARGE;
        ret->text = "the ranks' lists differ, and are too long for the memory that the server sets "
                    "aside for them: name the ranks that hold each tensor as its group";
        return 0;
    }
    struct answer answer = {.set = &group->lists, .sets = ret};
    for (; *io_at < group->lists.count; ++*io_at) {
        const struct keyset_row *row = &group->lists.rows[*io_at];
        bool divided = row->division != 0;
        bool is_plain = divided ? !row->added : row->count == group->member_count;
        if (!is_plain && !add_row(&answer, *io_at, divided)) {
            ret->last = false;
            break;
        }
    }
    return 0;
}

/* Adds the classes of one tensor, the largest first. Returns false if there is no room. */
static bool add_classes(struct answer *answer, uint32_t first)
{
    const struct keyset *set = answer->set;
    uint32_t largest = first, begun = answer->sets->count;
    for (uint32_t row = first; row != KEYSET_NONE; row = set->rows[row].next) {
        largest = set->rows[row].count > set->rows[largest].count ? row : largest;
    }
    bool ok = add_row(answer, largest, false);
    for (uint32_t row = first; row != KEYSET_NONE && ok; row = set->rows[row].next) {
        ok = row == largest || add_row(answer, row, false);
    }
    if (!ok && begun > 0) {
        answer->sets->count = begun; /* only whole tensors */
    }
    return ok;
}

int agree_compared(const struct agree *agree, struct xxh128 key, uint32_t *io_at,
                   struct scratch *scratch, struct msg_sets *ret)
{
    const struct group *group = find_group(agree, &key);
    int rc = begin_answer(scratch, ret);
    if (rc != 0) {
        return rc;
    }
    if (!group || !group->members || group->digests_failed) {
        ret->code = CAIRN_E_TOO_LARGE;
        ret->text = "the save has too many replicated tensors for the memory that the server sets "
                    "aside to compare them; turn check_replicas off";
        return 0;
    }
    if (group->has_unchecked) {
        char text[128];
        snprintf(text, sizeof text,
                 "rank %u does not compare replicas: set check_replicas on every rank",
                 group->unchecked_rank);
        ret->code = CAIRN_E_INVALID;
        ret->text = scratch_string(scratch, strlen(text), text);
        return ret->text ? 0 : CAIRN_E_NO_MEMORY;
    }
    struct answer answer = {.set = &group->digests, .sets = ret};
    for (; *io_at < group->digests.count; ++*io_at) {
        const struct keyset_row *row = &group->digests.rows[*io_at];
        bool differs = row->is_first && row->next != KEYSET_NONE;
        uint32_t begun = ret->count;
        if (differs && !add_classes(&answer, *io_at) && begun > 0) {
            ret->last = false;
            break;
        }
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps what the ranks agreed last, computes the share of a save from it, and learns from the
 * outcome of saves; the file has these three parts. A save lays its tensors in buckets: the tensors
 * of one group that have the same writers and are divided in this save, end to end in the order of
 * the list. Every writer has all tensors of a bucket, so all compute the same places. Later saves
 * take a tensor's place as it is, whatever became of the tensors beside it. Loop's thread.
 */
#include "share/agreement.h"

#include "base/array.h"
#include "base/check.h"
#include "share/agreed_group.h"

#include <stdlib.h>
#include <string.h>

#define AGREED_BYTES_MAX ((size_t)4 << 30)
enum { DOUBTS_MAX = 4 };

static int no_memory(struct diag *diag)
{
    return diag_no_memory(diag, "dividing the registered tensors among the ranks");
}

/* --- what is agreed -------------------------------------------------------------- */

void agreement_init(struct agreement *agreement)
{
    list_init(&agreement->groups);
    agreement->failures = 0;
    agreement->restored = 0;
}

void agreement_fini(struct agreement *agreement)
{
    list_each_safe (node, &agreement->groups) {
        agreed_group_free(list_item(node, struct agreed_group, link));
    }
}

/* Returns the proven entry of the group, or NULL. */
static struct agreed_group *find_proven(const struct agreement *agreement, const struct xxh128 *key)
{
    list_each (node, &agreement->groups) {
        struct agreed_group *group = list_item(node, struct agreed_group, link);
        if (group->state == AGREED_PROVEN && memcmp(&group->key, key, sizeof *key) == 0) {
            return group;
        }
    }
    return NULL;
}

const struct agreed_group *agreement_find(const struct agreement *agreement,
                                          const struct xxh128 *group, uint64_t since)
{
    const struct agreed_group *agreed = find_proven(agreement, group);
    CHECK(since <= agreement->restored);
    return agreed && agreed->save > since ? agreed : NULL;
}

static int compare_keys(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct xxh128)); /* the key comes first in what is sorted here */
}

const struct agreed_tensor *agreed_find(const struct agreed_group *group, const struct xxh128 *key)
{
    return group
               ? array_find(key, group->tensors, group->count, sizeof *group->tensors, compare_keys)
               : NULL;
}

bool agreement_covers(const struct agreement *agreement, const struct held_group *group,
                      uint64_t since)
{
    const struct agreed_group *agreed = agreement_find(agreement, &group->key, since);
    return agreed && agreed->trusted &&
           memcmp(&agreed->list_hash, &group->list_hash, sizeof group->list_hash) == 0;
}

bool agreement_may_change(const struct agreement *agreement, const struct xxh128 *group)
{
    list_each (node, &agreement->groups) {
        const struct agreed_group *agreed = list_item(node, struct agreed_group, link);
        if (agreed->state == AGREED_PENDING && memcmp(&agreed->key, group, sizeof *group) == 0) {
            return true;
        }
    }
    return false;
}

int agreement_check_losses(const struct agreed_group *agreed, const struct held_group *group,
                           const struct held *held, uint32_t rank, struct diag *diag)
{
    struct xxh128 *now = agreed ? malloc((group->tensor_count + 1) * sizeof *now) : NULL;
    int rc = 0;
    if (!agreed) {
        return 0;
    }
    if (!now) {
        return no_memory(diag);
    }
    for (uint32_t i = 0; i < group->tensor_count; i++) {
        now[i] = held->keys[group->tensors[i]];
    }
    qsort(now, group->tensor_count, sizeof *now, compare_keys);
    for (uint32_t i = 0; i < agreed->count && rc == 0; i++) {
        const struct agreed_tensor *tensor = &agreed->tensors[i];
        if (tensor->wrote &&
            !bsearch(&tensor->key, now, group->tensor_count, sizeof *now, compare_keys)) {
            rc = diag_set(diag, CAIRN_E_LIST_MISMATCH,
                          "rank %u no longer has tensor '%.160s' with the same dtype, shape and "
                          "boxes, but was to write a part of it for the other ranks; save again, "
                          "and the ranks will agree again on which rank writes what",
                          rank, tensor->name);
        }
    }
    free(now);
    return rc;
}

/* Returns the tensor's place in that division, proven or not, or NULL if this rank took no part in
 * it. */
static const struct agreed_tensor *find_division(const struct agreement *agreement,
                                                 const struct xxh128 *group,
                                                 const struct xxh128 *key, uint64_t division)
{
    list_each (node, &agreement->groups) {
        const struct agreed_group *agreed = list_item(node, struct agreed_group, link);
        const struct agreed_tensor *tensor =
            memcmp(&agreed->key, group, sizeof *group) == 0 ? agreed_find(agreed, key) : NULL;
        if (tensor && tensor->division == division) {
            return tensor;
        }
    }
    return NULL;
}

/* --- a save's share -------------------------------------------------------------- */

struct bucket {
    uint32_t group, bytes; /* the writers are in bits; bytes 0 means the whole group */
    const uint8_t *bits;
    struct split split; /* total_bytes grows */
};

struct builder {
    struct share *share;
    const struct registered *set;
    const struct held *held;
    struct bucket *buckets;
    uint32_t bucket_count, last;
    uint32_t *bucket_of; /* by tensor; UINT32_MAX means that its place is final */
    struct diag *diag;
};

static uint32_t count_bits(const uint8_t *bits, uint32_t bytes, uint32_t below)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < below && i / 8 < bytes; i++) {
        count += (bits[i / 8] >> (i % 8)) & 1;
    }
    return count;
}

static bool has_bit(const uint8_t *bits, uint32_t bytes, uint32_t at)
{
    return at / 8 < bytes && ((bits[at / 8] >> (at % 8)) & 1) != 0;
}

/* Returns the bucket of these writers, and makes it if it is new. A NULL row means the whole
 * group. */
static uint32_t find_bucket(struct builder *builder, uint32_t group_idx,
                            const struct agree_row *row)
{
    const struct held_group *group = &builder->held->groups[group_idx];
    uint32_t bytes = row ? row->bytes : 0;
    for (uint32_t n = 0; n < builder->bucket_count; n++) {
        uint32_t i = (builder->last + n) % builder->bucket_count;
        const struct bucket *bucket = &builder->buckets[i];
        if (bucket->group == group_idx && bucket->bytes == bytes &&
            (bytes == 0 || memcmp(bucket->bits, row->bits, bytes) == 0)) {
            builder->last = i;
            return i;
        }
    }
    CHECK(builder->bucket_count < builder->set->tensor_count);
    struct bucket *bucket = &builder->buckets[builder->bucket_count];
    *bucket = (struct bucket){.group = group_idx,
                              .bytes = bytes,
                              .bits = row ? row->bits : NULL,
                              .split = {.member = group->member, .members = group->members}};
    if (row) {
        bucket->split.member = count_bits(row->bits, bytes, group->member);
        bucket->split.members = count_bits(row->bits, bytes, 8 * bytes);
    }
    CHECK(bucket->split.member < bucket->split.members); /* this rank is among the writers */
    builder->last = builder->bucket_count++;
    return builder->last;
}

static const struct agree_row *find_row(const struct agree_rule *rule, const struct xxh128 *key)
{
    return array_find(key, rule->rows, rule->row_count, sizeof *rule->rows, compare_keys);
}

/* Puts the tensor at the end of the bucket. */
static int place(struct builder *builder, uint32_t t, uint32_t bucket_idx)
{
    CHECK(bucket_idx < builder->bucket_count);
    struct bucket *bucket = &builder->buckets[bucket_idx];
    uint64_t bytes = registered_bytes(&builder->set->tensors[t]);
    builder->bucket_of[t] = bucket_idx;
    builder->share->tensors[t].at = bucket->split.total_bytes;
    if (bytes == UINT64_MAX ||
        !add_u64(bucket->split.total_bytes, bytes, &bucket->split.total_bytes)) {
        return diag_set(builder->diag, CAIRN_E_TOO_LARGE,
                        "the tensors have more than 2^64 bytes in total");
    }
    return 0;
}

/* Takes over the place of the tensor from an earlier division. NULL means that other ranks write
 * it. */
static void take_place(struct builder *builder, uint32_t t, const struct agreed_tensor *from,
                       uint64_t division)
{
    static const struct share_tensor nothing;
    builder->share->tensors[t] = from ? from->place : nothing;
    builder->share->tensors[t].division = division;
}

/* Places a tensor that a group holds: by the division that the server names, where it is proven
 * to be, or in a bucket of this save. */
static int place_shared(struct builder *builder, uint32_t t, const struct agree_terms *terms)
{
    const struct agreement *agreement = terms->agreement;
    uint32_t group_idx = builder->held->group_of[t];
    CHECK(group_idx < builder->held->group_count);
    const struct held_group *group = &builder->held->groups[group_idx];
    const struct agree_rule *rule = &terms->rules[group_idx];
    const struct xxh128 *key = &builder->held->keys[t];
    const struct agree_row *row = find_row(rule, key);
    const struct agreed_tensor *proven = agreed_find(rule->keep, key);
    if (row && row->division != 0) {
        take_place(builder, t, find_division(agreement, &group->key, key, row->division),
                   row->division);
        return 0;
    }
    if (proven) {
        take_place(builder, t, proven, proven->division);
        return 0;
    }
    if (row && !has_bit(row->bits, row->bytes, group->member)) {
        take_place(builder, t, NULL, rule->anew);
        return 0;
    }
    builder->share->tensors[t].division = rule->anew;
    return place(builder, t, find_bucket(builder, group_idx, row));
}

/* Gives a tensor that only this rank holds a bucket of its own. */
static int place_alone(struct builder *builder, uint32_t t)
{
    uint64_t bytes = registered_bytes(&builder->set->tensors[t]);
    builder->share->tensors[t] =
        (struct share_tensor){.split = {.total_bytes = bytes, .member = 0, .members = 1}, .at = 0};
    return bytes == UINT64_MAX ? diag_set(builder->diag, CAIRN_E_TOO_LARGE,
                                          "the tensors have more than 2^64 bytes in total")
                               : 0;
}

int share_init_agreed(struct share *share, const struct agree_terms *terms, struct diag *diag)
{
    uint32_t count = (uint32_t)terms->set->tensor_count;
    struct builder builder = {.share = share, .set = terms->set, .held = terms->held, .diag = diag};
    memset(share, 0, sizeof *share);
    scratch_init(&share->scratch, AGREED_BYTES_MAX);
    share->tensor_count = count;
    share->tensors = scratch_array(&share->scratch, count + 1, sizeof *share->tensors);
    builder.buckets = scratch_array(&share->scratch, count + 1, sizeof *builder.buckets);
    builder.bucket_of = scratch_array(&share->scratch, count + 1, sizeof *builder.bucket_of);
    int rc = share->tensors && builder.buckets && builder.bucket_of ? 0 : no_memory(diag);
    for (uint32_t t = 0; t < count && rc == 0; t++) {
        builder.bucket_of[t] = UINT32_MAX;
        rc = terms->held->group_of[t] == HELD_ALONE ? place_alone(&builder, t)
                                                    : place_shared(&builder, t, terms);
    }
    for (uint32_t t = 0; t < count && rc == 0; t++) {
        if (builder.bucket_of[t] != UINT32_MAX) {
            share->tensors[t].split = builder.buckets[builder.bucket_of[t]].split;
        }
    }
    if (rc != 0) {
        share_fini(share);
    }
    return rc;
}

/* --- learning -------------------------------------------------------------------- */

/* Copies the places of the group's tensors, as this save has divided them, into the entry. */
static int copy_tensors(struct agreed_group *agreed, const struct held_group *group,
                        const struct agree_news *news)
{
    agreed->tensors =
        scratch_array(&agreed->scratch, group->tensor_count + 1, sizeof *agreed->tensors);
    if (!agreed->tensors) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < group->tensor_count; i++) {
        uint32_t t = group->tensors[i];
        const char *name = news->set->tensors[t].name;
        agreed->tensors[i] =
            (struct agreed_tensor){.key = news->held->keys[t],
                                   .name = scratch_string(&agreed->scratch, strlen(name), name),
                                   .place = news->share->tensors[t],
                                   .division = news->share->tensors[t].division,
                                   .wrote = news->wrote[t]};
        if (!agreed->tensors[i].name) {
            return CAIRN_E_NO_MEMORY;
        }
    }
    agreed->count = group->tensor_count;
    qsort(agreed->tensors, agreed->count, sizeof *agreed->tensors, compare_keys);
    return 0;
}

int agreement_set(struct agreement *agreement, uint32_t group_idx, const struct agree_news *news)
{
    const struct held_group *group = &news->held->groups[group_idx];
    CHECK(group_idx < news->held->group_count);
    struct agreed_group *agreed = agreed_group_new(agreement, group, news->save);
    if (!agreed) {
        return CAIRN_E_NO_MEMORY;
    }
    int rc = copy_tensors(agreed, group, news);
    if (rc != 0) {
        agreed_group_free(agreed);
    }
    return rc;
}

/* Enters the opening's id in the tensors that were divided before the opening was known. */
static void name_divisions(struct agreed_group *agreed, uint64_t open_id)
{
    CHECK(open_id != 0);
    for (uint32_t i = 0; i < agreed->count; i++) {
        agreed->tensors[i].division =
            agreed->tensors[i].division == 0 ? open_id : agreed->tensors[i].division;
    }
}

/* Makes the group's entry the proven one. Older entries of the group that can no longer be proven
 * are dropped. */
static void prove(struct agreement *agreement, struct agreed_group *agreed, uint64_t open_id)
{
    list_each_safe (node, &agreement->groups) {
        struct agreed_group *other = list_item(node, struct agreed_group, link);
        bool older = other->save < agreed->save && other->state != AGREED_PENDING;
        if (older && memcmp(&other->key, &agreed->key, sizeof other->key) == 0) {
            agreed_group_free(other);
        }
    }
    if (find_proven(agreement, &agreed->key)) {
        agreed_group_free(agreed); /* a newer save was committed before this one */
        return;
    }
    CHECK(agreed->state != AGREED_PROVEN);
    agreed->state = AGREED_PROVEN;
    agreed->trusted = true;
    name_divisions(agreed, open_id);
}

/* Keeps an entry whose outcome is not known. Their number for one group is bounded, and the oldest
 * goes. */
static void doubt(struct agreement *agreement, struct agreed_group *agreed, uint64_t open_id)
{
    struct agreed_group *oldest = NULL;
    unsigned count = 0;
    CHECK(agreed->state == AGREED_PENDING);
    agreed->state = AGREED_DOUBT;
    name_divisions(agreed, open_id);
    list_each (node, &agreement->groups) {
        struct agreed_group *other = list_item(node, struct agreed_group, link);
        if (other->state == AGREED_DOUBT &&
            memcmp(&other->key, &agreed->key, sizeof other->key) == 0) {
            oldest = oldest ? oldest : other;
            count++;
        }
    }
    CHECK(count <= DOUBTS_MAX + 1);
    if (count > DOUBTS_MAX) {
        agreed_group_free(oldest);
    }
}

/* Returns an entry that the save brought and that is not proven yet, or NULL. */
static struct agreed_group *find_pending(const struct agreement *agreement, uint64_t save)
{
    list_each (node, &agreement->groups) {
        struct agreed_group *group = list_item(node, struct agreed_group, link);
        if (group->state == AGREED_PENDING && group->save == save) {
            return group;
        }
    }
    return NULL;
}

/* Drops the groups of which this rank held nothing in a save that was committed, because it does
 * not know what the others agreed then. */
static void forget_others(struct agreement *agreement, const struct agree_end *end)
{
    list_each_safe (node, &agreement->groups) {
        struct agreed_group *group = list_item(node, struct agreed_group, link);
        bool held = group->save > end->save;
        for (uint32_t g = 0; g < end->held->group_count && !held; g++) {
            held = memcmp(&end->held->groups[g].key, &group->key, sizeof group->key) == 0;
        }
        if (!held) {
            agreed_group_free(group);
        }
    }
}

void agreement_learn(struct agreement *agreement, const struct agree_end *end)
{
    bool distrust = end->status == CAIRN_E_LIST_MISMATCH || end->status == CAIRN_E_COVERAGE;
    struct agreed_group *group;
    while ((group = find_pending(agreement, end->save)) != NULL) {
        if (end->status == 0) {
            prove(agreement, group, end->open_id);
        } else if (end->is_known) {
            agreed_group_free(group);
        } else {
            doubt(agreement, group, end->open_id);
        }
    }
    if (end->status == 0 && end->held) {
        forget_others(agreement, end);
    }
    if (distrust) {
        list_each (node, &agreement->groups) {
            list_item(node, struct agreed_group, link)->trusted = false;
        }
    }
    agreement->failures = distrust           ? agreement->failures + 1
                          : end->status == 0 ? 0
                                             : agreement->failures;
}

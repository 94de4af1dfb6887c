/* SPDX-License-Identifier: Apache-2.0
 *
 * check_replicas: makes a digest of everything that this rank holds together with others, while the
 * copy is made; the server compares them, and differences are reported by tensor and rank. SEAL
 * waits for the answer, so that a save with CHECK_FAIL cannot be committed before it. Bytes are
 * compared, so NaNs with different payloads differ. Loop's thread; on_run on workers.
 */
#include "save/save_private.h"

#include "base/check.h"
#include "wire/negotiate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_KEYS = 4096 }; /* in a frame */

struct check_group { /* the DIGESTS of one group */
    struct save *save;
    struct request request;
    uint32_t group;
    bool sent, over;
};

static const struct request_ops check_ops;

/* --- digests --------------------------------------------------------------------- */

/* Digests a box cell by cell; a cell is a run of the box's row-major bytes. Returns false if there
 * is no memory, or a device cannot be read. */
static bool digest_box(const struct save *save, struct xxh3_stream *stream, uint32_t t, uint32_t b)
{
    const struct registered_tensor *tensor = &save->set->tensors[t];
    const struct registered_box *box = &tensor->boxes[b];
    bool well = true;
    if (box->contiguous && tensor->device == 0) {
        xxh3_stream_add(stream, box_bytes(&box->box, tensor->dtype), box->data);
        return true;
    }
    struct grid grid;
    uint8_t *gathered = malloc(save->chunk_bytes_seen);
    grid_init(&grid, &box->box, tensor->dtype, save->chunk_bytes_seen);
    for (uint64_t cell = 0; gathered && well && cell < grid.cell_count; cell++) {
        struct layout_piece piece = {.tensor = t, .box = b};
        struct box rectangle;
        uint64_t bytes;
        grid_cell(&grid, cell, &rectangle, &piece.source, &bytes);
        piece.bytes = (uint32_t)bytes;
        struct diag diag = DIAG_INIT; /* the copy meets the same failure, and names it */
        well = snapshot_copy_piece(save->set, &piece, save->user->after, gathered, &diag) == 0;
        xxh3_stream_add(stream, bytes, gathered);
    }
    free(gathered);
    return gathered != NULL && well;
}

/* Digests tensors that no other worker has taken, until none is left. Runs on a worker. */
static void on_run(struct work *work)
{
    struct check_work *own = container_of(work, struct check_work, work);
    struct save *save = own->save;
    struct xxh3_stream *stream = xxh3_stream_new();
    bool well = stream != NULL;
    uint32_t count = (uint32_t)save->set->tensor_count, t;
    while (well && (t = atomic_fetch_add(&save->check.next, 1)) < count) {
        if (save->agree.held.group_of[t] == HELD_ALONE) {
            continue;
        }
        xxh3_stream_reset(stream);
        for (uint32_t b = 0; b < save->set->tensors[t].box_count && well; b++) {
            well = digest_box(save, stream, t, b);
        }
        save->check.digests[t] = xxh3_stream_digest(stream);
    }
    xxh3_stream_free(stream);
    own->failed = !well;
}

/* Ends the comparison. A difference, or a comparison that was not possible, fails the save or
 * becomes its warning, as the caller has asked. */
static void end_check(struct save *save, int code, const char *text)
{
    struct save_check *check = &save->check;
    if (check->over) {
        return;
    }
    check->over = true;
    timer_stop(&check->timer);
    if (code != 0 && save->user->check_replicas == CHECK_FAIL) {
        struct diag diag = DIAG_INIT;
        diag_set(&diag, code, "step %llu: %s", (unsigned long long)save->user->step, text);
        save_fail(save, code, &diag);
        return;
    }
    if (code != 0) {
        diag_set(&save->user->warning, code, "%s", text);
    }
    save_wake(save);
}

/* Called when a worker has ended. After the last one the digests are sent. */
static void on_done(struct work *work)
{
    struct check_work *own = container_of(work, struct check_work, work);
    struct save *save = own->save;
    struct save_check *check = &save->check;
    check->failed = check->failed || own->failed;
    if (--check->running > 0) {
        return;
    }
    if (check->failed) {
        end_check(save, CAIRN_E_NO_MEMORY, "no memory to compare replicas, or no way to read them");
    } else {
        check->made = true;
        save_check_go(save);
    }
    save_check_copied(save);
    save_wake(save);
}

/* --- the comparison -------------------------------------------------------------- */

/* Appends the numbers of the ranks in the set, at most 8 of them. */
static void add_members(char *text, size_t bytes, const struct held_group *group,
                        const struct msg_set *set)
{
    uint32_t named = 0;
    for (uint32_t i = 0; i < group->members && i / 8 < set->bytes; i++) {
        if (set->bits[i / 8] >> (i % 8) & 1) {
            size_t used = strlen(text);
            snprintf(text + used, bytes - used, "%s%u", named > 0 ? ", " : "", group->ranks[i]);
            if (++named == 8) {
                used = strlen(text);
                snprintf(text + used, bytes - used, ", ...");
                return;
            }
        }
    }
}

static const char *name_of(const struct save *save, const struct held_group *group,
                           const struct xxh128 *key)
{
    for (uint32_t i = 0; i < group->tensor_count; i++) {
        if (memcmp(&save->agree.held.keys[group->tensors[i]], key, sizeof *key) == 0) {
            return save->set->tensors[group->tensors[i]].name;
        }
    }
    return "(one that this rank does not have)";
}

/* Notes a tensor that differs. rows[0] has the largest class of equal members; the others differ
 * from it. The first tensor is described, and further ones are only counted. */
static void note_difference(struct check_group *asked, const struct msg_set *rows, uint32_t count)
{
    struct save *save = asked->save;
    struct save_check *check = &save->check;
    const struct held_group *group = &save->agree.held.groups[asked->group];
    char text[300] = "";
    if (check->differing++ > 0) {
        return;
    }
    add_members(text, sizeof text, group, &rows[0]);
    snprintf(check->text, sizeof check->text,
             "tensor '%.160s' should be the same on these ranks, "
             "but rank %s",
             name_of(save, group, &rows[0].key), text);
    for (uint32_t i = 1; i < count && i < 4; i++) {
        size_t used = strlen(check->text);
        text[0] = '\0';
        add_members(text, sizeof text, group, &rows[i]);
        snprintf(check->text + used, sizeof check->text - used, "%s rank %s",
                 i == 1 ? " holds other bytes than" : " and", text);
    }
}

/* Ends the comparison when all groups have their answer. */
static void finish_if_all(struct save *save)
{
    struct save_check *check = &save->check;
    if (check->groups_open > 0 || check->over || !check->asked) {
        return;
    }
    if (check->differing > 1) {
        size_t used = strlen(check->text);
        snprintf(check->text + used, sizeof check->text - used, "; %u more tensors differ",
                 check->differing - 1);
    }
    if (check->differing > 0) {
        end_check(save, CAIRN_E_REPLICAS_DIFFER, check->text);
    } else {
        end_check(save, 0, NULL);
    }
}

/* Splits the rows by tensor. A tensor that differs has one row for each class of equal members. */
static void take_rows(struct check_group *asked, const struct msg_sets *sets)
{
    for (uint32_t at = 0, end; at < sets->count; at = end) {
        const struct msg_set *first = &sets->rows[at];
        for (end = at + 1; end < sets->count; end++) {
            if (memcmp(&sets->rows[end].key, &first->key, sizeof first->key) != 0) {
                break;
            }
        }
        note_difference(asked, first, end - at);
    }
}

/* Ends the comparison without a result. */
static void end_uncompared(struct save *save, int code, const char *why)
{
    char text[DIAG_TEXT_MAX];
    int known = code < 0 ? code : CAIRN_E_PROTOCOL;
    snprintf(text, sizeof text, "replicas were not compared: %s",
             why && why[0] != '\0' ? why : err_text(known));
    end_check(save, known, text);
}

static void end_group(struct check_group *asked)
{
    if (asked->sent && !asked->over) {
        asked->over = true;
        asked->save->check.groups_open--;
    }
}

/* Called with a piece of the answer to DIGESTS, which comes in any number of COMPARED. The last one
 * ends the request. */
static int on_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    struct check_group *asked = container_of(request, struct check_group, request);
    struct save *save = asked->save;
    (void)frame, (void)ret_payload;
    if (msg->type == MSG_ERROR) {
        end_group(asked);
        if (msg->u.error.code != CAIRN_E_ABORTED) { /* the save has ended, and SEAL is told */
            end_uncompared(save, msg->u.error.code, msg->u.error.text);
        }
        finish_if_all(save);
        return 0;
    }
    if (msg->type != MSG_COMPARED) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%s for DIGESTS", msg_name(msg->type));
    }
    const struct msg_sets *sets = &msg->u.compared;
    if (sets->code != 0) {
        end_uncompared(save, sets->code, sets->text);
    }
    take_rows(asked, sets);
    if (sets->last) {
        link_forget(&save->engine->link, request);
        end_group(asked);
        finish_if_all(save);
    }
    return 0;
}

static void on_lost(struct request *request)
{
    (void)request; /* save_check_down handles all requests at once */
}

static const struct request_ops check_ops = {.on_reply = on_reply, .on_lost = on_lost};

/* Sends key and digest of each tensor of the group, in frames of CHECK_KEYS. */
static void send_digests(struct save *save, uint32_t g)
{
    struct check_group *asked = &save->check.groups[g];
    const struct held_group *group = &save->agree.held.groups[g];
    struct xxh128 keys[CHECK_KEYS], digests[CHECK_KEYS];
    link_add(&save->engine->link, &asked->request);
    asked->sent = true;
    asked->over = false;
    save->check.groups_open++;
    for (uint32_t at = 0; at < group->tensor_count;) {
        struct msg msg = {.type = MSG_DIGESTS,
                          .u.digests = {.id = save->user->id,
                                        .open_id = save->open_id,
                                        .group = group->key,
                                        .total = group->tensor_count,
                                        .first = at,
                                        .keys = keys,
                                        .digests = digests}};
        uint32_t count = 0;
        for (; count < CHECK_KEYS && at < group->tensor_count; count++, at++) {
            keys[count] = save->agree.held.keys[group->tensors[at]];
            digests[count] = save->check.digests[group->tensors[at]];
        }
        msg.u.digests.count = count;
        link_send(&save->engine->link, &asked->request, &msg);
    }
}

void save_check_go(struct save *save)
{
    struct save_check *check = &save->check;
    if (!check->made || check->asked || !save->agree.asked || save_is_over(save) ||
        !link_is_up(&save->engine->link)) {
        return;
    }
    /* A rank that has its answer sends its digests all the same: a daemon that was restarted has
     * forgotten them, and other ranks may still wait there. */
    check->asked = true;
    check->differing = 0;
    if (!check->over && !timer_is_active(&check->timer)) {
        check->wait_ms = max_u64(1, engine_ms_left(save->engine, save->end_ms) / 2);
        timer_start(&check->timer, check->wait_ms);
    }
    for (uint32_t g = 0; g < save->agree.held.group_count; g++) {
        send_digests(save, g);
    }
    finish_if_all(save);
}

void save_check_down(struct save *save)
{
    struct save_check *check = &save->check;
    check->asked = false;
    check->groups_open = 0;
    for (uint32_t g = 0; check->groups && g < save->agree.held.group_count; g++) {
        link_forget(&save->engine->link, &check->groups[g].request);
        check->groups[g].sent = false;
    }
}

/* --- begin and end --------------------------------------------------------------- */

/* Writes the ranks ("1, 2, ...") of the first group that has not answered, without this rank. */
static void name_others(const struct save *save, size_t bytes, char *ret)
{
    uint32_t g = 0, named = 0;
    ret[0] = '\0';
    while (g < save->agree.held.group_count &&
           (!save->check.groups[g].sent || save->check.groups[g].over)) {
        g++;
    }
    if (g == save->agree.held.group_count) {
        snprintf(ret, bytes, "no connection");
        return;
    }
    const struct held_group *group = &save->agree.held.groups[g];
    for (uint32_t i = 0; i < group->members && named < 8; i++) {
        if (i != group->member) {
            size_t used = strlen(ret);
            const char *more = ++named == 8 ? ", ..." : "";
            snprintf(ret + used, bytes - used, "%s%u%s", used > 0 ? ", " : "", group->ranks[i],
                     more);
        }
    }
}

/* Called when half of the time that was left is over and some rank has not sent its digests. It is
 * late, or it is at another server, which knows nothing of ours. */
static void on_timer(struct timer *timer)
{
    struct save *save = container_of(timer, struct save, check.timer);
    char others[160], why[400];
    name_others(save, sizeof others, others);
    snprintf(why, sizeof why, "within %llu ms not all of the other ranks (%s) told theirs%s",
             (unsigned long long)save->check.wait_ms, others,
             save->engine->options.url.server_count > 1
                 ? "; ranks at different servers cannot be compared"
                 : "");
    end_uncompared(save, CAIRN_E_TIMED_OUT, why);
}

void save_check_init(struct save *save)
{
    timer_init(&save->check.timer, save->engine->options.loop, on_timer);
}

bool save_check_is_wanted(const struct save *save)
{
    return save->user->check_replicas != CHECK_NONE && save->agree.held.group_count > 0;
}

bool save_check_is_over(const struct save *save) { return !save->check.begun || save->check.over; }

/* Returns why the comparison cannot be made, or NULL. The server allows a bounded number of
 * requests at once. */
static const char *refusal(const struct save *save)
{
    if ((save->engine->link.welcome.features & WIRE_FEATURE_AGREE) == 0) {
        return "check_replicas needs a newer server: upgrade it, or leave the option out";
    }
    return save->agree.held.group_count > 64
               ? "replicas of more than 64 groups of ranks cannot be compared in one save"
               : NULL;
}

void save_check_begin(struct save *save)
{
    struct save_check *check = &save->check;
    struct scratch *scratch = &save->agree.scratch;
    uint32_t groups = save->agree.held.group_count;
    if (!save_check_is_wanted(save)) {
        return;
    }
    check->begun = true;
    const char *why = refusal(save);
    if (why) {
        end_check(save, CAIRN_E_UNSUPPORTED, why);
        return;
    }
    check->digests = scratch_array(scratch, save->set->tensor_count, sizeof *check->digests);
    check->groups = scratch_array(scratch, groups, sizeof *check->groups);
    if (!check->digests || !check->groups) {
        end_check(save, CAIRN_E_NO_MEMORY, "no memory to compare replicas");
        return;
    }
    for (uint32_t g = 0; g < groups; g++) {
        check->groups[g] =
            (struct check_group){.save = save, .group = g, .request.ops = &check_ops};
    }
    for (unsigned i = 0; i < CHECK_WORKS; i++) {
        check->works[i] =
            (struct check_work){.save = save, .work = {.run = on_run, .done = on_done}};
        check->running++;
        work_submit(save->engine->options.pool, &check->works[i].work);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * check_replicas: makes a digest of everything that this rank holds together with others, while the
 * copy is made; the server compares them, and differences are reported by tensor and rank. SEAL
 * waits for the answer, so that a save with CHECK_FAIL cannot be committed before it. Bytes are
 * compared, so NaNs with different payloads differ. Loop's thread; on_run on workers.
 */
#include "save/save_check_private.h"

#include "base/check.h"
#include "snapshot/snapshot.h"
#include "wire/negotiate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_KEYS = 4096 }; /* in a frame */

struct check_group { /* the DIGESTS of one group; its request is in the table until all came */
    struct save_check *check;
    struct request request;
    uint32_t group;
};

static const struct request_ops check_ops;

/* Called on entering OVER: nobody has to answer in time any more. */
static void enter_over(struct sm *sm)
{
    timer_stop(&container_of(sm, struct save_check, sm)->timer);
}

/* --- digests --------------------------------------------------------------------- */

/* Digests a box cell by cell; a cell is a run of the box's row-major bytes. Returns false if there
 * is no memory, or a device cannot be read. */
static bool digest_box(const struct save_check *check, struct xxh3_stream *stream, uint32_t t,
                       uint32_t b)
{
    const struct registered_tensor *tensor = &check->common->set->tensors[t];
    const struct registered_box *box = &tensor->boxes[b];
    bool well = true;
    if (box->contiguous && tensor->device == 0) {
        xxh3_stream_add(stream, box_bytes(&box->box, tensor->dtype), box->data);
        return true;
    }
    struct grid grid;
    uint8_t *gathered = malloc(check->common->chunk_bytes);
    grid_init(&grid, &box->box, tensor->dtype, check->common->chunk_bytes);
    for (uint64_t cell = 0; gathered && well && cell < grid.cell_count; cell++) {
        struct layout_piece piece = {.tensor = t, .box = b};
        struct box rectangle;
        uint64_t bytes;
        grid_cell(&grid, cell, &rectangle, &piece.source, &bytes);
        piece.bytes = (uint32_t)bytes;
        struct diag diag = DIAG_INIT; /* the copy meets the same failure, and names it */
        well = snapshot_copy_piece(check->common->set, &piece, check->common->user->after, gathered,
                                   &diag) == 0;
        xxh3_stream_add(stream, bytes, gathered);
    }
    free(gathered);
    return gathered != NULL && well;
}

/* Digests tensors that no other worker has taken, until none is left. Runs on a worker. */
static void on_run(struct work *work)
{
    struct check_work *own = container_of(work, struct check_work, work);
    struct save_check *check = own->check;
    struct xxh3_stream *stream = xxh3_stream_new();
    bool well = stream != NULL;
    uint32_t count = (uint32_t)check->common->set->tensor_count, t;
    while (well && (t = atomic_fetch_add(&check->next, 1)) < count) {
        if (check->agree->held.group_of[t] == HELD_ALONE) {
            continue;
        }
        xxh3_stream_reset(stream);
        for (uint32_t b = 0; b < check->common->set->tensors[t].box_count && well; b++) {
            well = digest_box(check, stream, t, b);
        }
        check->digests[t] = xxh3_stream_digest(stream);
    }
    xxh3_stream_free(stream);
    own->failed = !well;
}

/* Ends the comparison. A difference, or a comparison that was not possible, fails the save or
 * becomes its warning, as the caller has asked. If the save is not open any more (ABORTED), only
 * its outcome can fail it, which says more. */
static void end_check(struct save_check *check, int code, const char *text)
{
    struct engine_save *user = check->common->user;
    if (sm_is(&check->sm, CH_OVER)) {
        return;
    }
    sm_move(&check->sm, CH_OVER);
    if (code != 0 && code != CAIRN_E_ABORTED && user->check_replicas == CHECK_FAIL) {
        struct diag diag = DIAG_INIT;
        diag_set(&diag, code, "step %llu: %s", (unsigned long long)user->step, text);
        save_fail(check->common, code, &diag);
        return;
    }
    if (code != 0) {
        diag_set(&user->warning, code, "%s", text);
    }
    save_wake(check->common);
}

/* Called when a worker has ended. After the last one the digests are sent. */
static void on_done(struct work *work)
{
    struct save_check *check = container_of(work, struct check_work, work)->check;
    bool failed = false;
    CHECK(check->running > 0);
    if (--check->running > 0) {
        return;
    }
    for (unsigned i = 0; i < CHECK_WORKS; i++) {
        failed = failed || check->works[i].failed;
    }
    if (failed) {
        check->digests = NULL; /* other ranks must not compare with them */
        end_check(check, CAIRN_E_NO_MEMORY,
                  "no memory to compare replicas, or no way to read them");
    } else {
        sm_move(&check->sm, CH_MADE);
        save_check_go(check);
    }
    save_wake(check->common);
}

/* --- the comparison -------------------------------------------------------------- */

/* Appends to a text of CHECK_TEXT_BYTES. */
static void PRINTF(2, 3) add(char *text, const char *fmt, ...)
{
    va_list args;
    size_t used = strlen(text);
    va_start(args, fmt);
    vsnprintf(text + used, CHECK_TEXT_BYTES - used, fmt, args);
    va_end(args);
}

/* Appends a rank's number to a list of at most 8 of them. */
static void add_rank(char *text, uint32_t rank, uint32_t *io_named)
{
    if (*io_named < 8) {
        add(text, "%s%u", *io_named > 0 ? ", " : "", rank);
    } else if (*io_named == 8) {
        add(text, ", ...");
    }
    *io_named += 1;
}

/* Appends the numbers of the ranks in the set. */
static void add_members(char *text, const struct held_group *group, const struct msg_set *set)
{
    uint32_t named = 0;
    for (uint32_t i = 0; i < group->members && i / 8 < set->bytes; i++) {
        if (set->bits[i / 8] >> (i % 8) & 1) {
            add_rank(text, group->ranks[i], &named);
        }
    }
}

static const char *name_of(const struct save_check *check, const struct held_group *group,
                           const struct xxh128 *key)
{
    for (uint32_t i = 0; i < group->tensor_count; i++) {
        if (memcmp(&check->agree->held.keys[group->tensors[i]], key, sizeof *key) == 0) {
            return check->common->set->tensors[group->tensors[i]].name;
        }
    }
    return "(one that this rank does not have)";
}

/* Notes a tensor that differs. rows[0] has the largest class of equal members; the others differ
 * from it. The first tensor is described, and further ones are only counted. */
static void note_difference(struct check_group *asked, const struct msg_set *rows, uint32_t count)
{
    struct save_check *check = asked->check;
    const struct held_group *group = &check->agree->held.groups[asked->group];
    char *text = check->text;
    if (check->differing++ > 0) {
        return;
    }
    snprintf(text, CHECK_TEXT_BYTES, "tensor '%.160s' should be the same on these ranks, but rank ",
             name_of(check, group, &rows[0].key));
    add_members(text, group, &rows[0]);
    for (uint32_t i = 1; i < count && i < 4; i++) {
        add(text, i == 1 ? " holds other bytes than rank " : " and rank ");
        add_members(text, group, &rows[i]);
    }
}

/* Returns the first group whose answer is missing, or the count of groups. */
static uint32_t first_open(const struct save_check *check)
{
    uint32_t g = 0;
    while (g < check->agree->held.group_count && check->groups[g].request.stream == 0) {
        g++;
    }
    return g;
}

/* Ends the comparison when all groups have their answer. */
static void finish_if_all(struct save_check *check)
{
    bool differs = check->differing > 0;
    if (sm_is(&check->sm, CH_OVER) || !check->asked ||
        first_open(check) < check->agree->held.group_count) {
        return;
    }
    if (check->differing > 1) {
        add(check->text, "; %u more tensors differ", check->differing - 1);
    }
    end_check(check, differs ? CAIRN_E_REPLICAS_DIFFER : 0, check->text);
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
static void end_uncompared(struct save_check *check, int code, const char *why)
{
    char text[DIAG_TEXT_MAX];
    int known = code < 0 ? code : CAIRN_E_PROTOCOL;
    snprintf(text, sizeof text, "replicas were not compared: %s",
             why && why[0] != '\0' ? why : err_text(known));
    end_check(check, known, text);
}

/* Called with a piece of the answer to DIGESTS, which comes in any number of COMPARED. The last one
 * ends the request. */
static int on_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    struct check_group *asked = container_of(request, struct check_group, request);
    struct save_check *check = asked->check;
    (void)frame, (void)ret_payload, (void)diag;
    if (msg->type == MSG_ERROR) {
        end_uncompared(check, msg->u.error.code, msg->u.error.text);
        return 0;
    }
    const struct msg_sets *sets = &msg->u.compared;
    if (sets->code != 0) {
        end_uncompared(check, sets->code, sets->text);
    }
    take_rows(asked, sets);
    if (sets->last) {
        link_forget(&check->common->engine->link, request);
        finish_if_all(check);
    }
    return 0;
}

static void on_lost(struct request *request)
{
    (void)request; /* save_check_down handles all requests at once */
}

static const struct request_ops check_ops = {.on_reply = on_reply, .on_lost = on_lost};

/* Sends key and digest of each tensor of the group, in frames of CHECK_KEYS. */
static void send_digests(struct save_check *check, uint32_t g)
{
    struct check_group *asked = &check->groups[g];
    const struct held_group *group = &check->agree->held.groups[g];
    struct xxh128 keys[CHECK_KEYS], digests[CHECK_KEYS];
    link_add(&check->common->engine->link, &asked->request);
    for (uint32_t at = 0; at < group->tensor_count;) {
        struct msg msg = {.type = MSG_DIGESTS,
                          .u.digests = {.id = check->common->user->id,
                                        .open_id = check->common->open_id,
                                        .group = group->key,
                                        .total = group->tensor_count,
                                        .first = at,
                                        .keys = keys,
                                        .digests = digests}};
        uint32_t count = 0;
        for (; count < CHECK_KEYS && at < group->tensor_count; count++, at++) {
            keys[count] = check->agree->held.keys[group->tensors[at]];
            digests[count] = check->digests[group->tensors[at]];
        }
        msg.u.digests.count = count;
        link_send(&check->common->engine->link, &asked->request, &msg);
    }
}

void save_check_go(struct save_check *check)
{
    const struct engine *engine = check->common->engine;
    bool is_made = check->running == 0 && check->digests != NULL;
    if (!is_made || check->asked || check->agree->talk == TALK_NOTHING ||
        save_is_over(check->common) || !link_is_up(&engine->link)) {
        return;
    }
    /* A rank that has its answer sends its digests all the same: a daemon that was restarted has
     * forgotten them, and other ranks may still wait there. */
    check->asked = true;
    check->differing = 0;
    if (sm_is(&check->sm, CH_MADE) && !timer_is_active(&check->timer)) {
        check->wait_ms = max_u64(1, engine_ms_left(engine, check->common->end_ms) / 2);
        timer_start(&check->timer, check->wait_ms);
    }
    for (uint32_t g = 0; g < check->agree->held.group_count; g++) {
        send_digests(check, g);
    }
    finish_if_all(check);
}

void save_check_down(struct save_check *check)
{
    check->asked = false;
    for (uint32_t g = 0; check->groups && g < check->agree->held.group_count; g++) {
        link_forget(&check->common->engine->link, &check->groups[g].request);
    }
}

/* --- begin and end --------------------------------------------------------------- */

/* Called when half of the time that was left is over and some rank has not sent its digests. It is
 * late, or it is at another server, which knows nothing of ours. Names the other ranks of the first
 * group that has not answered. */
static void on_timer(struct timer *timer)
{
    struct save_check *check = container_of(timer, struct save_check, timer);
    const struct held *held = &check->agree->held;
    uint32_t g = first_open(check), named = 0;
    snprintf(check->text, CHECK_TEXT_BYTES, "within %llu ms not all of the other ranks (%s",
             (unsigned long long)check->wait_ms, g < held->group_count ? "" : "no connection");
    for (uint32_t i = 0; g < held->group_count && i < held->groups[g].members; i++) {
        if (i != held->groups[g].member) {
            add_rank(check->text, held->groups[g].ranks[i], &named);
        }
    }
    add(check->text, ") told theirs%s",
        check->common->engine->options.url.server_count > 1
            ? "; ranks at different servers cannot be compared"
            : "");
    end_uncompared(check, CAIRN_E_TIMED_OUT, check->text);
}

static const struct sm_state check_table[] = {
    [CH_OFF] = {"off", NULL, SM_TO(CH_DIGEST) | SM_TO(CH_OVER), 0},
    [CH_DIGEST] = {"digest", NULL, SM_TO(CH_MADE) | SM_TO(CH_OVER), 0},
    [CH_MADE] = {"made", NULL, SM_TO(CH_OVER), 0},
    [CH_OVER] = {"over", NULL, 0, SM_FINAL, enter_over},
};

/* CHECKs what is true of the comparison in the state that it has just moved to. */
static void check_state(const struct sm *sm)
{
    const struct save_check *check = container_of(sm, struct save_check, sm);
    CHECK(sm->state == CH_DIGEST || check->running == 0);
    CHECK(sm->state != CH_DIGEST || check->digests != NULL);
    CHECK(sm->state == CH_MADE || sm->state == CH_OVER || !check->asked);
}

void save_check_init(struct save_check *check, struct save_agree *agree)
{
    check->common = agree->common;
    check->agree = agree;
    timer_init(&check->timer, check->common->engine->options.loop, on_timer);
    sm_init(&check->sm, check_table, CH_OFF, "check", check->common->number);
    check->sm.invariant = check_state;
}

bool save_check_is_reading(const struct save_check *check) { return check->running > 0; }

bool save_check_is_over(const struct save_check *check)
{
    return sm_is(&check->sm, CH_OFF) || sm_is(&check->sm, CH_OVER);
}

void save_check_end(struct save_check *check)
{
    timer_stop(&check->timer);
    save_check_down(check);
}

/* Returns why the comparison cannot be made, or NULL. The server allows a bounded number of
 * requests at once. */
static const char *refusal(const struct save_check *check)
{
    if ((check->common->engine->link.welcome.features & WIRE_FEATURE_AGREE) == 0) {
        return "check_replicas needs a newer server: upgrade it, or leave the option out";
    }
    return check->agree->held.group_count > 64
               ? "replicas of more than 64 groups of ranks cannot be compared in one save"
               : NULL;
}

void save_check_begin(struct save_check *check)
{
    struct scratch *scratch = &check->agree->scratch;
    uint32_t groups = check->agree->held.group_count;
    CHECK(sm_is(&check->sm, CH_OFF));
    if (!save_agree_compares(check->agree)) {
        return;
    }
    const char *why = refusal(check);
    if (why) {
        end_check(check, CAIRN_E_UNSUPPORTED, why);
        return;
    }
    check->digests =
        scratch_array(scratch, check->common->set->tensor_count, sizeof *check->digests);
    check->groups = scratch_array(scratch, groups, sizeof *check->groups);
    if (!check->digests || !check->groups) {
        check->digests = NULL;
        end_check(check, CAIRN_E_NO_MEMORY, "no memory to compare replicas");
        return;
    }
    for (uint32_t g = 0; g < groups; g++) {
        check->groups[g] =
            (struct check_group){.check = check, .group = g, .request.ops = &check_ops};
    }
    sm_move(&check->sm, CH_DIGEST);
    for (unsigned i = 0; i < CHECK_WORKS; i++) {
        check->works[i] =
            (struct check_work){.check = check, .work = {.run = on_run, .done = on_done}};
        check->running++;
        work_submit(check->common->engine->options.pool, &check->works[i].work);
    }
}

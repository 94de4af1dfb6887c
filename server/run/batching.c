/* SPDX-License-Identifier: Apache-2.0
 *
 * Events of many ranks that share an update of the record: the seals of a save, and the reports of
 * a restore that say OK. For thousands of ranks that come one after the other this makes some tens
 * of updates, not thousands: while more events are to come, the next such update follows the last
 * one after RUN_BATCH_GAP_MS at the earliest. The last events do not wait. Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"

bool batch_is_kind(const struct event *event)
{
    return event->kind == EVENT_SEAL ||
           (event->kind == EVENT_RESTORE_REPORT && event->u.report.code == 0);
}

static bool is_shared(const struct run_req *req)
{
    return batch_is_kind(&req->event) && !req->alone;
}

bool batch_is_same(const struct event *a, const struct event *b)
{
    const struct attempt_rank *from = &a->u.report.from, *other = &b->u.report.from;
    if (a->kind != b->kind || !ckpt_id_equal(a->id, b->id)) {
        return false;
    }
    if (a->kind == EVENT_SEAL) {
        return a->u.seal.open_id == b->u.seal.open_id;
    }
    return a->kind == EVENT_RESTORE_REPORT && a->u.report.code == b->u.report.code &&
           token_equal(&from->token, &other->token) && from->world_size == other->world_size &&
           from->ordinal == other->ordinal;
}

/* Returns how many entries of the record the event makes. */
static size_t size_of(const struct event *event)
{
    return event->kind == EVENT_SEAL ? event->u.seal.count : 1;
}

/* Returns how many more entries complete the save or the restore, as far as this daemon knows; 0 if
 * none are awaited. */
static size_t count_left(const struct run *run, const struct event *event)
{
    if (event->kind == EVENT_SEAL) {
        const struct state_open *open = state_open_find(&run->state, event->id);
        CHECK(!open || open->sealed_count <= open->world_size);
        return open ? open->world_size - open->sealed_count : 0;
    }
    const struct attempt_rank *from = &event->u.report.from;
    const struct state_restore *session =
        state_restore_find(&run->state, &from->token, from->ordinal);
    bool running = session && session->entry.state == RESTORE_RUNNING &&
                   ckpt_id_equal(session->entry.id, event->id);
    return running ? session->entry.world_size - state_report_count(&run->state, session) : 0;
}

/* Returns true if the queue holds all that the save or the restore still awaits, so that waiting
 * longer would gain nothing. */
static bool is_last_batch(const struct run *run, const struct run_req *first)
{
    size_t left = run_is_fresh(run) ? count_left(run, &first->event) : 0, count = 0;
    list_each (node, &run->queue) {
        const struct event *event = &list_item(node, struct run_req, link)->event;
        count += batch_is_same(event, &first->event) ? size_of(event) : 0;
    }
    return count >= left;
}

/* Returns true if the request has to wait because an update with shared events was made a moment
 * ago. In this case the timer that looks again is running. */
static bool is_held_back(struct run *run, const struct run_req *req)
{
    uint64_t now = loop_now_ms(run->catalog->loop), end = run->gap.batched_at_ms + RUN_BATCH_GAP_MS;
    if (run->catalog->closing || run->gap.batched_at_ms == 0 || now >= end || req->expired ||
        is_last_batch(run, req)) {
        return false;
    }
    if (!timer_is_active(&run->gap.timer)) {
        timer_start(&run->gap.timer, end - now);
    }
    return true;
}

struct run_req *batch_choose(struct run *run)
{
    const struct run_req *held = NULL;
    list_each (node, &run->queue) {
        struct run_req *req = list_item(node, struct run_req, link);
        bool shared = is_shared(req);
        bool same = shared && held && !req->expired && batch_is_same(&held->event, &req->event);
        if (!same && (!shared || !is_held_back(run, req))) {
            return req;
        }
        held = req;
    }
    return NULL;
}

void batch_take(struct run *run)
{
    struct run_req *first = batch_choose(run);
    CHECK(first != NULL);
    CHECK(list_is_empty(&run->current));
    size_t count = size_of(&first->event);

    list_remove(&first->link);
    list_add_tail(&run->current, &first->link);
    if (!is_shared(first)) {
        return;
    }
    list_each_safe (node, &run->queue) {
        struct run_req *req = list_item(node, struct run_req, link);
        if (is_shared(req) && batch_is_same(&req->event, &first->event) &&
            count + size_of(&req->event) <= RUN_BATCH_MAX) {
            count += size_of(&req->event);
            list_remove(&req->link);
            list_add_tail(&run->current, &req->link);
        }
    }
}

/* Puts the seals of all current requests into one list, and makes it the seals of the event. The
 * list lies in the memory of the step. */
static int merge_seals(struct run *run, size_t count, struct event *event)
{
    struct event_seal *seals = scratch_array(&run->step_scratch, count + 1, sizeof *seals);
    size_t at = 0;
    if (!seals) {
        return CAIRN_E_NO_MEMORY;
    }
    list_each (node, &run->current) {
        const struct event_seals *one = &list_item(node, struct run_req, link)->event.u.seal;
        for (size_t i = 0; i < one->count; i++) {
            seals[at++] = one->items[i];
        }
    }
    CHECK(at == count);
    event->u.seal.items = seals;
    event->u.seal.count = count;
    return 0;
}

/* Puts the ranks of all current requests into one list, and makes them the ranks of the event. */
static int merge_reports(struct run *run, size_t count, struct event *event)
{
    uint32_t *ranks = scratch_array(&run->step_scratch, count, sizeof *ranks);
    size_t at = 0;
    if (!ranks) {
        return CAIRN_E_NO_MEMORY;
    }
    list_each (node, &run->current) {
        ranks[at++] = list_item(node, struct run_req, link)->event.u.report.from.rank;
    }
    CHECK(at == count);
    event->u.report.ranks = ranks;
    event->u.report.rank_count = count;
    return 0;
}

int batch_merge(struct run *run, struct event *event)
{
    CHECK(!list_is_empty(&run->current));
    size_t count = 0;
    if (!batch_is_kind(event)) {
        return 0;
    }
    list_each (node, &run->current) {
        count += size_of(&list_item(node, struct run_req, link)->event);
    }
    return event->kind == EVENT_SEAL ? merge_seals(run, count, event)
                                     : merge_reports(run, count, event);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that wait: events without an answer, watches, snapshots. Invariant: a waiting request is
 * stepped again after every change of the state that may end its wait, and when its time is over.
 * It is never answered from here unless the core has decided. Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <string.h>

bool wait_is_needed(const struct run_req *req, const struct verdict *verdict)
{
    if (req->event.kind == EVENT_FIND_OPEN) {
        return verdict->code == CAIRN_E_AGAIN;
    }
    if (req->event.kind != EVENT_RESTORE_REPORT) {
        return false;
    }
    const struct verdict_restore *restore = verdict_restore(verdict);
    return verdict->code == CAIRN_E_AGAIN ||
           (verdict->code == 0 && !restore->done && !restore->failed &&
            ckpt_id_equal(verdict->id, req->event.id));
}

void run_handed_add(struct run *run, struct run_handed *handed)
{
    handed->run = run;
    list_init(&handed->link);
    list_add_tail(&run->handed, &handed->link);
}

void run_handed_remove(struct run_handed *handed)
{
    CHECK(!list_is_empty(&handed->link));
    list_remove(&handed->link);
    handed->run->wake = true; /* a request may wait for this rank in vain */
    run_kick(handed->run);
}

bool run_is_handed(const struct run *run, struct ckpt_id id, uint64_t open_id, uint32_t rank)
{
    list_each (node, &run->handed) {
        const struct run_handed *handed = list_item(node, struct run_handed, link);
        if (handed->rank == rank && handed->open_id == open_id && ckpt_id_equal(handed->id, id)) {
            return true;
        }
    }
    return false;
}

static bool is_sealed(const struct run_state *state, const struct state_open *open, uint32_t rank)
{
    for (size_t i = 0; i < state->seal_count; i++) {
        const struct state_seal *seal = &state->seals[i];
        if (!seal->orphan && seal->rank == rank && ckpt_id_equal(seal->id, open->id)) {
            return true;
        }
    }
    return false;
}

static bool is_of(const struct run_handed *handed, const struct state_open *open)
{
    return handed->open_id == open->entry.open_id && ckpt_id_equal(handed->id, open->id);
}

/* Returns true for the first of several processes of one rank; only that one counts. */
static bool is_first(const struct run *run, const struct run_handed *handed)
{
    list_each (node, &run->handed) {
        const struct run_handed *other = list_item(node, struct run_handed, link);
        if (other->rank == handed->rank && other->open_id == handed->open_id &&
            ckpt_id_equal(other->id, handed->id)) {
            return other == handed;
        }
    }
    return false;
}

/* Returns true if the save needs no client any more: each rank has sealed, or has handed over
 * everything. */
static bool is_secured(const struct run *run, const struct state_open *open)
{
    uint32_t count = open->sealed_count;
    if (open->id.term != run->state.newest_term || open->world_size == 0) {
        return false;
    }
    list_each (node, &run->handed) {
        const struct run_handed *handed = list_item(node, struct run_handed, link);
        if (is_of(handed, open) && is_first(run, handed) &&
            !is_sealed(&run->state, open, handed->rank)) {
            count++;
        }
    }
    CHECK(open->sealed_count <= open->world_size);
    return count >= open->world_size;
}

/* Returns true if the first rank of a restore of `latest` should wait for a save that needs no
 * client any more: the step before the crash is worth some seconds. The other ranks of the session
 * get the answer of the first. */
bool wait_drain_is_needed(const struct run *run, const struct run_req *req)
{
    const struct run_state *state = &run->state;
    const struct event_begin *begin = &req->event.u.begin;

    if (req->event.kind != EVENT_RESTORE_BEGIN || begin->selector.kind != SELECT_LATEST ||
        req->expired || run->catalog->options.restore_drain_ms == 0) {
        return false;
    }
    if (state_restore_find(state, &begin->from.token, begin->from.ordinal) || run->lost_from != 0 ||
        run->catalog->store->caps.read_only) {
        return false; /* the answer is known already, or nothing can be committed */
    }
    for (size_t i = 0; i < state->open_count; i++) {
        if (is_secured(run, &state->opens[i])) {
            return true;
        }
    }
    return false;
}

/* Called when a request has waited long enough. It runs again and is answered this time. */
static void on_time(struct timer *timer)
{
    struct run_req *req = container_of(timer, struct run_req, timer);
    struct run *run = req->run;

    CHECK(req->submitted);
    req->expired = true;
    if (req->waiting) {
        req->waiting = false;
        list_remove(&req->link);
        list_add_tail(&run->queue, &req->link);
        run_kick(run);
    }
}

void wait_begin(struct run *run, struct run_req *req, uint64_t wait_ms)
{
    CHECK(req->submitted);
    CHECK(!req->waiting);
    CHECK(wait_ms > 0);
    req->waiting = true;
    list_add_tail(&run->waiting, &req->link);
    req->timer.cb = on_time;
    if (!timer_is_active(&req->timer)) {
        timer_start(&req->timer, wait_ms);
    }
}

/* Returns true for a report of OK that is in the record and has to wait for the other ranks: until
 * all have reported, the core would only answer AGAIN. Such a report is therefore not put to the
 * core after each update; there may be thousands. */
static bool is_settled(const struct run_state *state, const struct event *event)
{
    const struct attempt_rank *from = &event->u.report.from;
    const struct state_restore *session = state_restore_find(state, &from->token, from->ordinal);
    return session && session->entry.state == RESTORE_RUNNING &&
           ckpt_id_equal(session->entry.id, event->id) &&
           state_report_count(state, session) < session->entry.world_size;
}

void wait_wake(struct run *run)
{
    CHECK(run_is_fresh(run));
    const struct event *last = NULL; /* most reports are like the one before */
    bool settled = false;

    list_each_safe (node, &run->waiting) {
        struct run_req *req = list_item(node, struct run_req, link);
        if (req->event.kind == EVENT_RESTORE_REPORT && req->event.u.report.code == 0) {
            bool same = last && batch_is_same(last, &req->event);
            settled = same ? settled : is_settled(&run->state, &req->event);
            last = &req->event;
            if (settled) {
                continue;
            }
        }
        CHECK(req->waiting);
        req->waiting = false;
        list_remove(&req->link);
        list_add_tail(&run->queue, &req->link);
    }
}

void wait_give_up(const struct run *run, struct run_req *req)
{
    const struct event *event = &req->event;
    const struct attempt_rank *from = &event->u.report.from;
    const struct state_restore *session;
    struct run_name_text name = run_name_text(&run->name);
    char missing[256] = "";

    CHECK(event->kind == EVENT_FIND_OPEN || event->kind == EVENT_RESTORE_REPORT);
    if (event->kind == EVENT_FIND_OPEN) {
        diag_set(&req->diag, CAIRN_E_MISSING_RANKS,
                 "rank 0 did not open the save of step %" PRIu64 " of %s within %" PRIu64
                 " ms; check that rank 0 is alive and saves the same step",
                 event->id.step, name.at, req->wait_ms);
    } else {
        session = state_restore_find(&run->state, &from->token, from->ordinal);
        if (session) {
            state_missing_reports(&run->state, session, sizeof missing, missing);
        }
        diag_set(&req->diag, CAIRN_E_MISSING_RANKS,
                 "the restore of step %" PRIu64
                 " of %s is not complete: no report came from %s within %" PRIu64
                 " ms; do not use the state in memory, and restore again",
                 event->id.step, name.at, missing, req->wait_ms);
    }
    req->verdict.code = CAIRN_E_MISSING_RANKS;
    req_answer(req, CAIRN_E_MISSING_RANKS);
}

/* --- a record that takes no updates --------------------------------------------------------- */

/* Notes a refusal. Requests that wait for an update that will not come hear of it at once. A
 * refusal is not believed for long: the store may accept a moment later what it refuses now, and an
 * empty update asks it. */
void refusal_note(struct run *run, const struct store_req *req)
{
    struct run_refusal *refusal = &run->refusal;
    const struct event *event = list_is_empty(&run->current)
                                    ? NULL
                                    : &list_item(run->current.next, struct run_req, link)->event;

    CHECK(req->status != 0);
    memset(refusal, 0, sizeof *refusal);
    diag_set(&refusal->diag, req->status, "%s%s%s", diag_text(&req->diag, req->status),
             run->unknown.code != 0 ? "; the first failure was: " : "", run->unknown.text);
    refusal->at_ms = loop_now_ms(run->catalog->loop);
    if (event && event->kind == EVENT_OPEN) {
        refusal->open.was_asked = true;
        refusal->open.step = event->id.step;
        refusal->open.token = event->u.open.from.token;
    }
    run->wake = run->tell = true;
}

void refusal_end(struct run *run)
{
    diag_clear(&run->unknown);
    if (run->refusal.diag.code == 0) {
        return;
    }
    memset(&run->refusal, 0, sizeof run->refusal);
    list_each (node, &run->tracks) { /* saves that could not be committed are tried again */
        list_item(node, struct open_track, link)->failed = false;
    }
    run->wake = true;
}

/* Returns true if the refusal is so recent that it still holds. */
static bool is_refused(const struct run *run)
{
    const struct run_refusal *refusal = &run->refusal;

    return refusal->diag.code != 0 &&
           loop_now_ms(run->catalog->loop) - refusal->at_ms < RUN_REFUSED_MS;
}

/* A read-only record takes no update at all. Any other refusal only concerns the request that was
 * refused. */
const struct diag *refusal_of(const struct run *run, const struct run_req *req)
{
    const struct run_refusal *refusal = &run->refusal;
    const struct event *event = &req->event;
    bool ends = event->kind == EVENT_FIND_OPEN && is_refused(run) &&
                (refusal->diag.code == CAIRN_E_READ_ONLY ||
                 (refusal->open.was_asked && refusal->open.step == event->id.step &&
                  token_equal(&refusal->open.token, &event->u.open.from.token)));

    return ends ? &refusal->diag : NULL;
}

bool refusal_is_to_be_probed(const struct run *run)
{
    bool waits = false;

    if (run->refusal.diag.code != CAIRN_E_READ_ONLY || is_refused(run) ||
        record_version(run->record) == 0) {
        return false;
    }
    list_each (node, &run->waiting) {
        waits = waits || list_item(node, struct run_req, link)->event.kind == EVENT_FIND_OPEN;
    }
    list_each (node, &run->watches) {
        waits = waits || list_item(node, struct run_watch, link)->hears_refusals;
    }
    return waits;
}

/* The answer to a watch. */
struct outcome {
    enum save_state state;
    int code;
    const char *why;
    uint64_t seq;
};

/* Gives the outcome of a watched save. Returns false while the save is open. A grant may leave
 * openings of older terms behind, because an update is limited in size; these are over, whatever
 * their entries say. */
static bool watch_outcome(const struct run_state *state, const struct run_watch *watch,
                          struct outcome *ret)
{
    const struct state_open *open = state_open_find(state, watch->id);
    bool is_fenced = state->newest_term > watch->id.term;

    if (open && open->entry.open_id == watch->open_id && !is_fenced) {
        return false;
    }
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        if (ckpt_id_equal(commit->entry.id, watch->id) && commit->entry.open_id == watch->open_id) {
            *ret = (struct outcome){SAVE_COMMITTED, 0, "", commit->entry.seq};
            return true;
        }
    }
    for (size_t i = 0; i < state->dead_count; i++) {
        const struct state_dead *dead = &state->deads[i];
        if (ckpt_id_equal(dead->id, watch->id) && dead->entry.open_id == watch->open_id) {
            int code = dead->entry.code ? dead->entry.code : CAIRN_E_ABORTED;
            *ret = (struct outcome){SAVE_ABORTED, code, dead->entry.reason, 0};
            return true;
        }
    }
    if (is_fenced) {
        *ret = (struct outcome){SAVE_ABORTED, CAIRN_E_FENCED,
                                "a newer term of this run was granted to another attempt", 0};
    } else if (open || state_commit_find(state, watch->id)) {
        *ret = (struct outcome){SAVE_ABORTED, CAIRN_E_ABORTED,
                                "the same step was opened again later", 0};
    } else {
        *ret = (struct outcome){SAVE_NONE, CAIRN_E_NOT_FOUND, "the run has no such save", 0};
    }
    return true;
}

void watches_tell(struct run *run)
{
    struct list mine;
    struct list *node;

    CHECK(run_is_fresh(run));
    list_init(&mine); /* a callback may watch again, or end other watches */
    while ((node = list_pop(&run->watches))) {
        list_add_tail(&mine, node);
    }
    while ((node = list_pop(&mine))) {
        struct run_watch *watch = list_item(node, struct run_watch, link);
        struct outcome outcome;

        if (watch_outcome(&run->state, watch, &outcome)) {
            watch->run = NULL;
            watch->done(watch, outcome.state, outcome.code, outcome.why, outcome.seq);
        } else if (watch->hears_refusals && run->refusal.diag.code == CAIRN_E_READ_ONLY &&
                   is_refused(run)) {
            watch->run = NULL;
            watch->done(watch, SAVE_OPEN, CAIRN_E_READ_ONLY, run->refusal.diag.text, 0);
        } else {
            list_add_tail(&run->watches, &watch->link);
        }
    }
}

void watches_fail(struct run *run, int code, const struct diag *diag)
{
    struct list mine;
    struct list *node;

    CHECK(code != 0);
    list_init(&mine);
    while ((node = list_pop(&run->watches))) {
        list_add_tail(&mine, node);
    }
    while ((node = list_pop(&mine))) {
        struct run_watch *watch = list_item(node, struct run_watch, link);
        watch->run = NULL;
        watch->done(watch, SAVE_OPEN, code, diag_text(diag, code), 0);
    }
}

void snapshots_tell(struct run *run, int status, const struct diag *diag)
{
    struct list mine;
    struct list *node;

    CHECK(status != 0 || run_is_fresh(run));
    list_init(&mine);
    while ((node = list_pop(&run->snapshots))) {
        list_add_tail(&mine, node);
    }
    while ((node = list_pop(&mine))) {
        struct run_snapshot_req *req = list_item(node, struct run_snapshot_req, link);
        req->run = NULL;
        req->status = status;
        req->state = status ? NULL : &run->state;
        if (status && diag) {
            diag_copy(&req->diag, diag);
        }
        req->done(req);
    }
}

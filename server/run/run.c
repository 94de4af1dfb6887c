/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver of a run. In one turn it reads the record if the copy is not fresh, compares it once
 * with the stored checkpoints (run_unrecorded.c), tells the waiting requests, and takes events from
 * the queue, one at a time (or a batch of seals or reports: batching.c), through commit_step() and,
 * if that says so, one guarded update to the store.
 *
 *      queue --> current --step--> answer
 *        ^         |  ^ \--undecided--> waiting --(state changed | timer)--> queue
 *        |         |  +--- CONFLICT, OUTCOME_UNKNOWN: read the record again, same event again
 *        |         +-- RECORD_UPDATE (waits for the store) --> applied to the own copy --> answer
 *
 * Invariants: one load, list or update at a time is at the store (at_store). An answer is given
 * only from a state that the store has confirmed. After any failed update the copy is not trusted
 * and is read again. Loop's thread.
 */
#include "run_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static void on_loaded(struct store_req *req);
static void on_updated(struct store_req *req);
static void turn(struct run *run);
static void step(struct run *run);
static void conclude(struct run *run, const struct verdict *verdict);

/* Returns true if another daemon may have changed the record since operation number `op`, or if a
 * repair may have brought back its lost end. */
static bool is_stale(const struct run *run, uint64_t op)
{
    return (run->catalog->options.poll_ms != 0 || run->lost_from != 0) && run->ops.copy <= op;
}

/* Answers all requests of the list with the status. */
static void fail_list(struct list *list, int status, const struct diag *diag)
{
    struct list mine;
    struct list *node;

    CHECK(status != 0);
    list_init(&mine); /* a callback may submit again; the new request is not failed here */
    while ((node = list_pop(list))) {
        list_add_tail(&mine, node);
    }
    while (!list_is_empty(&mine)) {
        struct run_req *req = list_item(mine.next, struct run_req, link);
        diag_clear(&req->diag);
        if (diag) {
            diag_copy(&req->diag, diag);
        }
        req_answer(req, status);
    }
}

static void fail_current(struct run *run, int status, const struct diag *diag)
{
    fail_list(&run->current, status, diag);
}

static void fail_all(struct run *run, int status, const struct diag *diag)
{
    fail_list(&run->current, status, diag);
    fail_list(&run->queue, status, diag);
    fail_list(&run->waiting, status, diag);
    snapshots_tell(run, status, diag);
    watches_fail(run, status, diag);
    run->wake = run->tell = false;
}

/* Each operation ends before the next one begins. A probe is an empty update, which tests whether
 * the record takes any.
 *
 *      idle --> loading | listing | updating | probing --> idle
 */
static const struct sm_state at_store_table[] = {
    [RUN_IDLE] = {.name = "idle",
                  .next = SM_TO(RUN_LOADING) | SM_TO(RUN_LISTING) | SM_TO(RUN_UPDATING) |
                          SM_TO(RUN_PROBING)},
    [RUN_LOADING] = {.name = "loading", .next = SM_TO(RUN_IDLE)},
    [RUN_LISTING] = {.name = "listing", .next = SM_TO(RUN_IDLE)},
    [RUN_UPDATING] = {.name = "updating", .next = SM_TO(RUN_IDLE)},
    [RUN_PROBING] = {.name = "probing", .next = SM_TO(RUN_IDLE)},
};

/* Checks what is true of a run at each move, and between two turns of its driver. */
static void check_invariants(const struct sm *sm)
{
    const struct run *run = container_of(sm, const struct run, at_store);
    const struct run_unrecorded *unrecorded = &run->unrecorded;

    if (run->copy != COPY_NONE) {
        CHECK(run->record != NULL);
    }
    if (!run_is_idle(run) || run->posted) {
        CHECK(run->catalog->pending > 0); /* so the catalogue outlives what is under way */
    }
    if (!run_is_idle(run) && !sm_is(sm, RUN_LOADING)) {
        CHECK(run_is_fresh(run)); /* only a copy that is fresh is changed or compared */
    }
    if (sm_is(sm, RUN_PROBING)) {
        CHECK(list_is_empty(&run->current));
    }
    CHECK(run->ops.copy <= run->ops.started);
    CHECK(run->ops.asked <= run->ops.started);
    CHECK(unrecorded->found_count <= unrecorded->found_cap);
    CHECK(unrecorded->checked <= unrecorded->found_count);
    CHECK(unrecorded->at <= unrecorded->ckpt_count);
}

void run_copy_ages(struct run *run)
{
    if (run->copy == COPY_FRESH) {
        run->copy = COPY_OLD;
    }
}

void run_free(struct run *run)
{
    CHECK(run_is_idle(run));
    CHECK(!run->posted);
    CHECK(list_is_empty(&run->tracks));
    CHECK(list_is_empty(&run->queue));
    CHECK(list_is_empty(&run->current));
    CHECK(list_is_empty(&run->waiting));
    CHECK(list_is_empty(&run->watches));
    CHECK(list_is_empty(&run->snapshots));
    timer_stop(&run->retry);
    timer_stop(&run->poll.timer);
    timer_stop(&run->gap.timer);
    record_free(run->record);
    record_free(run->view);
    unrecorded_fini(run);
    run_shown_fini(run);
    scratch_fini(&run->scratch);
    scratch_fini(&run->step_scratch);
    free(run);
}

bool run_is_unused(const struct run *run)
{
    return run->users == 0 && !run->held && run_is_idle(run) && !run->posted && !run->sweeping &&
           list_is_empty(&run->queue) && list_is_empty(&run->current) &&
           list_is_empty(&run->waiting) && list_is_empty(&run->tracks) &&
           list_is_empty(&run->watches) && list_is_empty(&run->snapshots) &&
           list_is_empty(&run->handed);
}

const struct run_name *run_name_of(const struct run *run) { return &run->name; }

static void on_post(struct post *post)
{
    struct run *run = container_of(post, struct run, post);
    struct catalog *catalog = run->catalog;

    run->posted = false;
    if (run->catalog->closing && run_is_idle(run)) {
        run_shut(run);
    } else {
        turn(run);
    }
    if (!catalog->closing && run_is_unused(run)) {
        catalog_forget(run);
    }
    catalog_drop(catalog);
}

static void on_retry(struct timer *timer)
{
    struct run *run = container_of(timer, struct run, retry);

    run->want_load = true;
    run->wake = true;
    run_kick(run);
}

static void on_poll(struct timer *timer)
{
    struct run *run = container_of(timer, struct run, poll.timer);

    run->poll.next_ms = min_u64(2 * run->poll.next_ms, run->catalog->options.poll_ms);
    if (run_is_idle(run)) { /* an update under way reads its own outcome */
        run_copy_ages(run);
    }
    run->want_load = true;
    run_kick(run);
}

void run_cache_part(struct run *run, const struct store_name *name, size_t bytes, const void *data)
{
    docs_add_upload(&run->catalog->docs, name, bytes, data);
}

/* --- the record ----------------------------------------------------------------------------- */

/* Reads the record. If it has not changed, the store does not send it again. */
static void load(struct run *run)
{
    catalog_hold(run->catalog);
    sm_move(&run->at_store, RUN_LOADING);
    run->ops.started++;
    run->req = (struct store_req){.op = STORE_RECORD_GET,
                                  .run = run->name,
                                  .known_version =
                                      run->copy == COPY_NONE ? 0 : record_version(run->record),
                                  .take_prefix = true,
                                  .deadline_ms = RUN_STORE_DEADLINE_MS,
                                  .done = on_loaded};
    store_submit(run->catalog->store, &run->req);
}

/* Decodes the record anew. What the old state pointed to is freed. */
static int state_rebuild(struct run *run, struct diag *diag)
{
    CHECK(run->record != NULL);
    int status;

    scratch_fini(&run->scratch);
    scratch_init(&run->scratch, (size_t)LIMIT_RECORD_BYTES * 4);
    memset(&run->state, 0, sizeof run->state);
    record_free(run->view);
    status = keep_merge(run, &run->view, diag);
    if (status == 0) {
        const struct record *record = run->view ? run->view : run->record;
        status = run_state_load(record, &run->scratch, &run->state, diag);
    }
    if (status) {
        diag_add(diag, "the record of run %s", run_name_text(&run->name).at);
    }
    run->copy = status == 0 ? COPY_FRESH : COPY_NONE;
    if (status == 0) {
        unrecorded_sync(run);
        counts_update(run);
    }
    run->wake = run->tell = true;
    return status;
}

/* Takes the loaded record, or notes that the present copy is still current, so that a poll of a
 * long record decodes nothing. */
static int take_loaded(struct run *run, struct store_req *req)
{
    CHECK(req->op == STORE_RECORD_GET);
    run->ops.copy = run->ops.started;
    run->lost_from = req->ret_lost_from;
    diag_clear(&run->lost);
    if (run->lost_from != 0) {
        err_ignore(diag_copy(&run->lost, &req->diag)); /* the list of the run shows it */
    }
    if (!req->ret_record) {
        CHECK(run->copy != COPY_NONE); /* only then known_version was given */
        run->copy = COPY_FRESH;
        unrecorded_sync(run);
        return 0;
    }
    record_free(run->record);
    run->record = req->ret_record;
    run->held = run->held || record_version(run->record) > 0;
    return state_rebuild(run, &req->diag);
}

/* Tells the start-up of the catalogue that the record was read, by whomever, or cannot be. */
static void end_sweep(struct run *run)
{
    if (run->sweeping) {
        run->sweeping = false;
        catalog_swept(run->catalog);
    }
}

/* Called when the record was read, or could not be. After an error all requests fail, and a later
 * try is started if it can succeed. */
static void on_loaded(struct store_req *req)
{
    struct run *run = container_of(req, struct run, req);
    struct catalog *catalog = run->catalog;
    int status = req->status;

    CHECK(sm_is(&run->at_store, RUN_LOADING));
    sm_move(&run->at_store, RUN_IDLE);
    run->want_load = false;
    if (status == 0) {
        status = take_loaded(run, req);
    }
    if (run->unreadable != (status != 0)) {
        run_changed(run);
    }
    run->unreadable = status != 0;
    catalog->counts.loads++;
    catalog->counts.load_errors += status != 0;
    if (status) {
        if (req->status) {
            record_free(req->ret_record); /* it was read, but the answer came too late */
        }
        if (err_retry(status) != ERR_RETRY_NEVER && !catalog->closing) {
            timer_start(&run->retry,
                        /* Saves that are open must not be forgotten because one read failed. */
                        RUN_RETRY_MS);
        }
        fail_all(run, status, &req->diag);
        end_sweep(run);
    }
    run_kick(run);
    catalog_drop(catalog);
}

static void submit_update(struct run *run, unsigned state, const struct record_update *update)
{
    catalog_hold(run->catalog);
    sm_move(&run->at_store, state);
    run->ops.started++;
    run->req = (struct store_req){.op = STORE_RECORD_UPDATE,
                                  .run = run->name,
                                  .update = update,
                                  .deadline_ms = RUN_STORE_DEADLINE_MS,
                                  .done = on_updated};
    store_submit(run->catalog->store, &run->req);
}

static void apply(struct run *run)
{
    CHECK(run->verdict.code == 0);
    CHECK(run->verdict.update.change_count > 0);
    CHECK(!list_is_empty(&run->current));
    submit_update(run, RUN_UPDATING, &run->verdict.update);
}

/* Sends an update that changes nothing, to learn whether the record takes updates again. */
static void probe(struct run *run)
{
    static const struct record_update nothing;

    scratch_fini(&run->step_scratch);
    scratch_init(&run->step_scratch, 0);
    memset(&run->verdict, 0, sizeof run->verdict);
    submit_update(run, RUN_PROBING, &nothing);
}

/* Applies the update that the store has made to this daemon's copy. If that fails, the copy is read
 * again. */
static void apply_own(struct run *run, uint64_t version)
{
    struct diag diag = DIAG_INIT;

    CHECK(run_is_idle(run));
    CHECK(run->record != NULL);
    run->held = true;
    if (record_apply(run->record, &run->verdict.update, &diag) != 0 ||
        record_version(run->record) != version || state_rebuild(run, &diag) != 0) {
        run->copy = COPY_NONE;
        run->wake = run->tell = true;
    }
    run->ops.copy = run->ops.started;
}

/* Keeps the update of a restore in memory, because the record takes none, so that restores can go
 * on. */
static void keep(struct run *run)
{
    struct diag diag = DIAG_INIT;
    CHECK(run_is_fresh(run)); /* the requests may have been cancelled meanwhile */
    int status = keep_update(run, &diag);

    if (status == 0) {
        status = state_rebuild(run, &diag);
    }
    if (status != 0) {
        fail_current(run, status, &diag);
        return;
    }
    counts_applied(run);
    conclude(run, &run->verdict);
}

/* Called after an unknown outcome, or if another daemon was faster: the record is read again and
 * the event is run again. Fails requests that have had RUN_TRIES_MAX tries. */
static void try_again(struct run *run, int status, const struct diag *diag)
{
    struct list given_up;

    CHECK(status != 0);
    CHECK(run_is_idle(run));
    run_copy_ages(run);
    list_init(&given_up);
    list_each_safe (node, &run->current) {
        struct run_req *req = list_item(node, struct run_req, link);
        if (++req->tries >= RUN_TRIES_MAX) {
            list_remove(&req->link);
            list_add_tail(&given_up, &req->link);
        }
    }
    fail_list(&given_up, status, diag);
}

/* Called when an update of the record has ended. After a conflict or an unknown outcome the same
 * event runs again on a fresh copy; other errors fail the request. */
static void on_updated(struct store_req *req)
{
    struct run *run = container_of(req, struct run, req);
    struct catalog *catalog = run->catalog;
    bool probed = sm_is(&run->at_store, RUN_PROBING);

    CHECK(probed || sm_is(&run->at_store, RUN_UPDATING));
    sm_move(&run->at_store, RUN_IDLE);
    switch (req->status) {
    case 0:
        if (!probed) {
            counts_applied(run);
        }
        refusal_end(run);
        apply_own(run, req->ret_version);
        conclude(run, &run->verdict);
        break;
    case CAIRN_E_CONFLICT:
    case CAIRN_E_OUTCOME_UNKNOWN:
    case CAIRN_E_TIMED_OUT:
        catalog->counts.conflicts += req->status == CAIRN_E_CONFLICT;
        catalog->counts.unknown_outcomes += req->status != CAIRN_E_CONFLICT;
        if (req->status != CAIRN_E_CONFLICT && run->unknown.code == 0) {
            diag_set(&run->unknown, req->status, "%s", diag_text(&req->diag, req->status));
        }
        if (req->status == CAIRN_E_CONFLICT) {
            keep_conflict(run);
        }
        try_again(run, req->status, &req->diag);
        break;
    default:
        catalog->counts.update_errors++;
        refusal_note(run, req);
        if (!probed && keep_is_due_after(run, req->status)) {
            keep(run);
        } else {
            fail_current(run, req->status, &run->refusal.diag);
        }
        run_copy_ages(run);
    }
    run_kick(run);
    catalog_drop(catalog);
}

/* --- one turn ------------------------------------------------------------------------------- */

static bool has_work(struct run *run)
{
    return run->want_load || run->sweeping || run->wake ||
           (run->tell && !list_is_empty(&run->watches)) || batch_choose(run) ||
           !list_is_empty(&run->current) || !list_is_empty(&run->snapshots);
}

/* Starts the timer that looks for changes of other daemons, if anybody waits for one. The pauses
 * grow until the record changes. */
static void poll_arm(struct run *run)
{
    bool waits = !list_is_empty(&run->waiting) || !list_is_empty(&run->tracks) ||
                 !list_is_empty(&run->watches);

    uint64_t version = run->record ? record_version(run->record) : 0;

    if (!waits || run->poll.version != version) {
        run->poll.next_ms = RUN_POLL_FIRST_MS; /* another change may follow soon */
        run->poll.version = version;
        timer_stop(&run->poll.timer);
    }
    if (run->catalog->options.poll_ms != 0 && waits && !timer_is_active(&run->poll.timer)) {
        timer_start(&run->poll.timer, min_u64(run->poll.next_ms, run->catalog->options.poll_ms));
    }
}

static void on_gap(struct timer *timer) { run_kick(container_of(timer, struct run, gap.timer)); }

/* Returns true if a request needs to know what other daemons have done until now. */
static bool looks_at_others(const struct run *run)
{
    list_each (node, &run->snapshots) {
        if (!list_item(node, struct run_snapshot_req, link)->any_age) {
            return true;
        }
    }
    if (!run->tell) {
        return false;
    }
    list_each (node, &run->watches) {
        if (!list_item(node, struct run_watch, link)->any_age) {
            return true;
        }
    }
    return false;
}

/* Does what the run has to do next, unless an operation at the store is under way. Loads the
 * record, wakes the waiting requests, answers snapshots and runs events. */
static void turn(struct run *run)
{
    check_invariants(&run->at_store);
    if (!run_is_idle(run)) {
        return;
    }
    if (!has_work(run)) {
        poll_arm(run); /* a poll that found nothing new is followed by others */
        return;
    }
    if (!run_is_fresh(run) || (looks_at_others(run) && is_stale(run, run->ops.asked))) {
        load(run);
        return;
    }
    end_sweep(run);
    if (unrecorded_is_needed(run)) {
        unrecorded_list(run);
        return;
    }
    run->want_load = false;
    if (run->wake) {
        run->wake = false;
        wait_wake(run);
        tracks_sync(run);
    }
    if (run->tell) {
        run->tell = false;
        watches_tell(run);
    }
    snapshots_tell(run, 0, NULL);
    for (unsigned n = 0; n < RUN_TURN_MAX && run_is_fresh(run) && run_is_idle(run); n++) {
        if (list_is_empty(&run->current)) {
            if (!batch_choose(run)) {
                break;
            }
            batch_take(run);
        }
        step(run);
    }
    if (run_is_idle(run) && run_is_fresh(run)) {
        CHECK(list_is_empty(&run->current)); /* each one was answered, waits, or is at the store */
    }
    if (run_is_idle(run) && run_is_fresh(run) && refusal_is_to_be_probed(run)) {
        probe(run);
    }
    if (run_is_idle(run) && has_work(run)) {
        run_kick(run);
    }
    poll_arm(run);
}

static uint64_t current_op(const struct run *run)
{
    uint64_t op = 0;

    list_each (node, &run->current) {
        op = max_u64(op, list_item(node, struct run_req, link)->op);
    }
    return op;
}

/* Runs the current event on the state that is in memory. The verdict is final, or has to be written
 * as an update, or was found on a copy that may be old: then the record is read again. */
static void step(struct run *run)
{
    struct run_req *head = list_item(run->current.next, struct run_req, link);
    CHECK(!list_is_empty(&run->current));
    CHECK(run_is_idle(run));
    CHECK(run_is_fresh(run));
    struct event event = head->event;

    if (wait_drain_is_needed(run, head)) {
        list_remove(&head->link);
        wait_begin(run, head, run->catalog->options.restore_drain_ms);
        return;
    }
    scratch_fini(&run->step_scratch);
    scratch_init(&run->step_scratch, (size_t)LIMIT_RECORD_UPDATE_BYTES * 8);
    memset(&run->verdict, 0, sizeof run->verdict);
    if (batch_merge(run, &event) != 0) {
        fail_current(run, CAIRN_E_NO_MEMORY, NULL);
        return;
    }
    commit_step(&run->state, &event, &run->step_scratch, &run->verdict);
    if (run->verdict.code == 0 && run->verdict.update.change_count > 0 && !head->dry_run) {
        if (batch_is_kind(&event)) {
            run->gap.batched_at_ms = loop_now_ms(run->catalog->loop);
        }
        counts_remember(run, &event);
        if (event.kind == EVENT_OPEN && run->state.exists) {
            enter_ckpt(run, run->verdict.id);
        }
        if (keep_is_due(run, &event)) {
            keep(run);
        } else {
            apply(run);
        }
    } else if (!run->verdict.proven && is_stale(run, current_op(run))) {
        run_copy_ages(run); /* current stays, and the same event runs again on a fresh copy */
    } else {
        conclude(run, &run->verdict);
    }
}

/* Gives the verdict to each of the current requests: an answer, or a wait. A refused batch is split
 * up, so that one rank's fault does not become that of the others. */
static void conclude(struct run *run, const struct verdict *verdict)
{
    struct verdict plain = *verdict;
    bool refused = verdict->code != 0 && verdict->code != CAIRN_E_AGAIN;
    bool apart = refused && run->current.next != run->current.prev;
    struct list *node;

    memset(&plain.update, 0, sizeof plain.update);
    while ((node = list_pop(&run->current))) {
        struct run_req *req = list_item(node, struct run_req, link);
        if (apart) {
            req->alone = true;
            list_add_tail(&run->queue, &req->link);
            continue;
        }
        req->verdict = plain;
        diag_clear(&req->diag);
        const struct diag *refusal = refusal_of(run, req);
        if (!wait_is_needed(req, verdict)) {
            diag_copy(&req->diag, &plain.diag);
            req_answer(req, plain.code);
        } else if (refusal) {
            diag_copy(&req->diag, refusal);
            req_answer(req, refusal->code);
        } else if (req->expired || req->wait_ms == 0) {
            wait_give_up(run, req);
        } else {
            wait_begin(run, req, req->wait_ms);
        }
    }
}

void run_shut(struct run *run)
{
    CHECK(run->catalog->closing);
    CHECK(run_is_idle(run));
    struct diag diag = DIAG_INIT;

    diag_set(&diag, CAIRN_E_SHUTTING_DOWN,
             "the server is stopping; try again, or connect to another server of the same store");
    timer_stop(&run->retry);
    timer_stop(&run->poll.timer);
    timer_stop(&run->gap.timer);
    tracks_free(run);
    fail_all(run, CAIRN_E_SHUTTING_DOWN, &diag);
}

int run_new(struct catalog *catalog, const struct run_name *name, struct run **ret)
{
    struct run *run = calloc(1, sizeof *run);

    if (!run) {
        return CAIRN_E_NO_MEMORY;
    }
    run->catalog = catalog;
    run->name = *name;
    run->post.cb = on_post;
    sm_init(&run->at_store, at_store_table, RUN_IDLE, "run", 0);
    run->at_store.invariant = check_invariants;
    timer_init(&run->retry, catalog->loop, on_retry);
    timer_init(&run->poll.timer, catalog->loop, on_poll);
    timer_init(&run->gap.timer, catalog->loop, on_gap);
    list_init(&run->queue);
    list_init(&run->current);
    list_init(&run->waiting);
    list_init(&run->tracks);
    list_init(&run->watches);
    list_init(&run->snapshots);
    list_init(&run->handed);
    scratch_init(&run->scratch, 0);
    scratch_init(&run->step_scratch, 0);
    *ret = run;
    return 0;
}

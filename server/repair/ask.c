/* SPDX-License-Identifier: Apache-2.0
 *
 * ask: the repair's thread asks, the loop acts, and the thread waits, one question at a time. A
 * store's requests have deadlines, and the loop runs until the repair has ended, so each wait
 * ends.
 */
#include "repair_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

static void on_timer(struct timer *timer);

static void answer(struct repair *repair)
{
    struct ask *ask = &repair->ask;
    pthread_mutex_lock(&ask->lock);
    ask->done = true;
    pthread_cond_signal(&ask->answered);
    pthread_mutex_unlock(&ask->lock);
}

static void on_post(struct post *post)
{
    struct repair *repair = container_of(post, struct repair, ask.post);
    repair->ask.start(repair);
}

/* Has `start` run on the loop's thread, and waits until it is answered. Called on the repair's
 * thread. */
static void put(struct repair *repair, void (*start)(struct repair *repair))
{
    struct ask *ask = &repair->ask;
    ask->done = false;
    ask->start = start;
    loop_post(repair->options.loop, &ask->post);
    pthread_mutex_lock(&ask->lock);
    while (!ask->done) {
        pthread_cond_wait(&ask->answered, &ask->lock);
    }
    pthread_mutex_unlock(&ask->lock);
}

int ask_init(struct repair *repair)
{
    struct ask *ask = &repair->ask;
    ask->post.cb = on_post;
    timer_init(&ask->timer, repair->options.loop, on_timer);
    if (pthread_mutex_init(&ask->lock, NULL) != 0) {
        return CAIRN_E_NO_MEMORY;
    }
    if (pthread_cond_init(&ask->answered, NULL) != 0) {
        pthread_mutex_destroy(&ask->lock);
        return CAIRN_E_NO_MEMORY;
    }
    return 0;
}

void ask_fini(struct repair *repair)
{
    pthread_cond_destroy(&repair->ask.answered);
    pthread_mutex_destroy(&repair->ask.lock);
}

/* --- the store -------------------------------------------------------------------------------- */

static bool moves_bytes(enum store_op op)
{
    return op == STORE_READ || op == STORE_WRITE || op == STORE_FETCH || op == STORE_PUBLISH;
}

static void on_stored(struct store_req *req)
{
    struct repair *repair = container_of(req, struct repair, ask.req);
    const struct repair_options *options = &repair->options;
    if (options->moved && moves_bytes(req->op)) {
        options->moved(options->user, req->op == STORE_FETCH ? req->ret_bytes : req->bytes);
    }
    answer(repair);
}

/* Starts a store operation when the pace allows it. A repair that is to end does not wait, because
 * little is left for it to ask. */
static void start_store(struct repair *repair)
{
    struct ask *ask = &repair->ask;
    const struct repair_options *options = &repair->options;
    bool waits = options->wait_ms && moves_bytes(ask->req.op) && !atomic_load(&repair->closing);
    uint64_t wait_ms = waits ? options->wait_ms(options->user) : 0;
    if (wait_ms > 0) {
        timer_start(&ask->timer, min_u64(wait_ms, REPAIR_WAIT_MS));
        return;
    }
    store_submit(ask->store, &ask->req);
}

static void on_timer(struct timer *timer)
{
    start_store(container_of(timer, struct repair, ask.timer));
}

int ask_store(struct repair *repair, struct store *store, struct store_req *io)
{
    struct ask *ask = &repair->ask;
    ask->store = store;
    ask->req = *io;
    ask->req.done = on_stored;
    ask->req.deadline_ms = REPAIR_DEADLINE_MS;
    put(repair, start_store);
    *io = ask->req;
    return io->status;
}

/* --- the record ------------------------------------------------------------------------------- */

/* Called on the loop's thread when an event of the repair has been decided. */
static void on_decided(struct run_req *req)
{
    struct repair *repair = container_of(req, struct repair, ask.event);
    struct ask *ask = &repair->ask;
    ask->status = req->status;
    ask->diag = req->diag;
    if (req->status == 0 && req->verdict.refused_count > 0) {
        ask->status =
            diag_set(&ask->diag, CAIRN_E_CONFLICT, "checkpoint %llu@%llu %s",
                     (unsigned long long)repair->id.step, (unsigned long long)repair->id.term,
                     mark_outcome_text(req->verdict.marks[0].outcome));
    }
    answer(repair);
}

static void start_event(struct repair *repair) { run_submit(repair->run, &repair->ask.event); }

int ask_try_event(struct repair *repair, const struct event *event, bool dry, struct diag *diag)
{
    struct ask *ask = &repair->ask;
    ask->event = (struct run_req){.event = *event, .done = on_decided, .dry_run = dry};
    put(repair, start_event);
    return ask->status == 0 ? 0 : repair_fail(diag, ask->status, &ask->diag);
}

int ask_event(struct repair *repair, const struct event *event, struct diag *diag)
{
    return ask_try_event(repair, event, false, diag);
}

/* Copies the facts about all commits that may still be read. */
static void take_facts(struct ask *ask, const struct run_state *state)
{
    ask->facts = calloc(state->commit_count + 1, sizeof(*ask->facts));
    if (!ask->facts) {
        ask->status = diag_set(&ask->diag, CAIRN_E_NO_MEMORY, "no memory for the run's record");
        return;
    }
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        if (!commit->reclaimed) {
            ask->facts[ask->fact_count++] =
                (struct commit_fact){.id = commit->entry.id,
                                     .open_id = commit->entry.open_id,
                                     .manifest_bytes = commit->entry.manifest_bytes,
                                     .manifest_sha256 = commit->entry.manifest_sha256,
                                     .world_size = commit->entry.world_size,
                                     .health = commit->health};
        }
    }
}

/* Returns true if the record accounts for the opening: the checkpoint was committed, whatever
 * happened to it since, or the opening was aborted. If the committed manifest exists, other
 * manifests of the checkpoint are leftovers of aborted openings and repairs. An opening that is
 * still open and has its manifest does not count: it has to be committed, by the next server or
 * here. */
static bool is_explained(const struct run_state *state, struct ckpt_id id, uint64_t open_id)
{
    for (size_t i = 0; i < state->commit_count; i++) {
        if (ckpt_id_equal(state->commits[i].entry.id, id)) {
            return true;
        }
    }
    for (size_t i = 0; i < state->dead_count; i++) {
        if (ckpt_id_equal(state->deads[i].id, id) && state->deads[i].entry.open_id == open_id) {
            return true;
        }
    }
    for (size_t i = 0; i < state->past_count; i++) {
        if (ckpt_id_equal(state->pasts[i].id, id) && state->pasts[i].open_id == open_id) {
            return true;
        }
    }
    return false;
}

/* Returns what the record says about the checkpoint in ask->id. */
static struct origin origin_of(const struct repair *repair, const struct run_state *state)
{
    static const struct token nobody;
    const struct ask *ask = &repair->ask;
    struct origin origin = {.is_explained = is_explained(state, ask->id, ask->open_id) ||
                                            state_open_find(state, ask->id) != NULL,
                            .wall_ns = loop_wall_ns(repair->options.loop)};
    if (ask->id.term != 0 && ask->id.term <= state->term_count) {
        const struct entry_term *term = &state->terms[ask->id.term - 1].entry;
        origin.is_known = !token_equal(&term->token, &nobody);
        origin.token = term->token;
        origin.parent = term->parent;
    }
    return origin;
}

/* Called with the state of the run: takes everything that any question may ask for, then wakes the
 * thread. */
static void on_state(struct run_snapshot_req *req)
{
    struct repair *repair = container_of(req, struct repair, ask.snapshot);
    struct ask *ask = &repair->ask;
    ask->status = req->status;
    ask->diag = req->diag;
    if (req->status == 0) {
        ask->explained = is_explained(req->state, ask->id, ask->open_id);
        ask->origin = origin_of(repair, req->state);
        ask->has_info = req->state->exists;
        ask->info = req->state->info;
        take_facts(ask, req->state);
    }
    req->run = NULL; /* it was answered */
    answer(repair);
}

static void start_snapshot(struct repair *repair)
{
    run_snapshot(repair->run, &repair->ask.snapshot);
}

static void start_look(struct repair *repair)
{
    run_look_again(repair->run);
    answer(repair);
}

void ask_look_again(struct repair *repair) { put(repair, start_look); }

int ask_commits(struct repair *repair, struct commit_fact **ret, size_t *ret_count,
                struct diag *diag)
{
    struct ask *ask = &repair->ask;
    ask->snapshot = (struct run_snapshot_req){.done = on_state};
    ask->facts = NULL;
    ask->fact_count = 0;
    put(repair, start_snapshot);
    if (ask->status != 0) {
        return repair_fail(diag, ask->status, &ask->diag);
    }
    *ret = ask->facts;
    *ret_count = ask->fact_count;
    return 0;
}

int ask_explained(struct repair *repair, struct ckpt_id id, uint64_t open_id, bool *ret,
                  struct diag *diag)
{
    struct commit_fact *facts = NULL;
    size_t count;
    repair->ask.id = id;
    repair->ask.open_id = open_id;
    int status = ask_commits(repair, &facts, &count, diag);
    *ret = repair->ask.explained;
    free(facts);
    return status;
}

int ask_origin(struct repair *repair, struct ckpt_id id, uint64_t open_id, struct origin *ret,
               struct diag *diag)
{
    bool explained;
    int status = ask_explained(repair, id, open_id, &explained, diag);
    *ret = repair->ask.origin;
    return status;
}

int ask_info(struct repair *repair, struct entry_info *ret, struct diag *diag)
{
    struct commit_fact *facts = NULL;
    size_t count;
    int status = ask_commits(repair, &facts, &count, diag);
    free(facts);
    *ret = repair->ask.info;
    return status != 0            ? status
           : repair->ask.has_info ? 0
                                  : diag_set(diag, CAIRN_E_NOT_FOUND, "the run has no record");
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * ask: the thread asks, the loop acts, and the thread waits. Invariant: while a question is open
 * only the loop touches the struct, and otherwise only the thread.
 */
#include "reader/ask.h"

#include "base/check.h"

enum { POLL_MS = 100 /* a new rate, or the end of the owner, is noticed within this time */ };

static void answer(struct ask *ask)
{
    pthread_mutex_lock(&ask->lock);
    CHECK(!ask->is_answered);
    ask->is_answered = true;
    pthread_cond_signal(&ask->answered);
    pthread_mutex_unlock(&ask->lock);
}

static void on_post(struct post *post)
{
    struct ask *ask = container_of(post, struct ask, post);
    ask->start(ask);
}

static void on_timer(struct timer *timer)
{
    struct ask *ask = container_of(timer, struct ask, timer);
    ask->start(ask);
}

void ask_init(struct ask *ask, const struct ask_options *options)
{
    CHECK(options->loop);
    *ask = (struct ask){.options = *options, .post.cb = on_post};
    timer_init(&ask->timer, options->loop, on_timer);
    /* On Linux these need no resource but their memory. */
    CHECK(pthread_mutex_init(&ask->lock, NULL) == 0);
    CHECK(pthread_cond_init(&ask->answered, NULL) == 0);
}

void ask_fini(struct ask *ask)
{
    pthread_cond_destroy(&ask->answered);
    pthread_mutex_destroy(&ask->lock);
}

/* Has `start` run on the loop's thread, and waits until it is answered. */
static void put(struct ask *ask, void (*start)(struct ask *ask))
{
    ask->is_answered = false;
    ask->start = start;
    loop_post(ask->options.loop, &ask->post);
    pthread_mutex_lock(&ask->lock);
    while (!ask->is_answered) {
        pthread_cond_wait(&ask->answered, &ask->lock);
    }
    pthread_mutex_unlock(&ask->lock);
}

static uint64_t wait_ms(const struct ask *ask)
{
    return ask->options.wait_ms ? ask->options.wait_ms(ask->options.user) : 0;
}

/* Answers with CANCELLED, and returns true, if the owner wants nothing more to be asked. */
static bool is_over(struct ask *ask)
{
    if (!ask->options.is_strict || wait_ms(ask) != ASK_NEVER) {
        return false;
    }
    diag_clear(&ask->diag);
    ask->status = diag_set(&ask->diag, CAIRN_E_CANCELLED, "it was ended before");
    answer(ask);
    return true;
}

/* --- the store -------------------------------------------------------------------------------- */

static bool moves_bytes(enum store_op op)
{
    return op == STORE_READ || op == STORE_WRITE || op == STORE_FETCH || op == STORE_PUBLISH;
}

/* Answers; what was not asked is cancelled. */
static void cancel_rest(struct ask *ask)
{
    for (; ask->at < ask->count; ask->at++) {
        struct store_req *req = &ask->reqs[ask->at];
        diag_clear(&req->diag);
        req->status = diag_set(&req->diag, CAIRN_E_CANCELLED, "it was ended before");
    }
    ask->reqs = NULL;
    answer(ask);
}

static void on_stored(struct store_req *req);

/* Begins the next operation, or waits until it may begin. */
static void start_store(struct ask *ask)
{
    CHECK(ask->at < ask->count);
    enum store_op op = ask->reqs[ask->at].op;
    uint64_t ms = ask->options.is_strict || moves_bytes(op) ? wait_ms(ask) : 0;
    if (ms == ASK_NEVER) {
        cancel_rest(ask);
    } else if (ms > 0) {
        timer_start(&ask->timer, min_u64(ms, POLL_MS));
    } else {
        ask->req = ask->reqs[ask->at];
        ask->req.done = on_stored;
        ask->req.deadline_ms = ASK_STORE_DEADLINE_MS;
        ask->began_ms = loop_now_ms(ask->options.loop);
        store_submit(ask->store, &ask->req);
    }
}

static void on_stored(struct store_req *req)
{
    struct ask *ask = container_of(req, struct ask, req);
    CHECK(ask->at < ask->count);
    ask->took_ms = loop_now_ms(ask->options.loop) - ask->began_ms;
    if (req->status == 0 && ask->options.moved && moves_bytes(req->op)) {
        ask->options.moved(ask->options.user, req->op == STORE_FETCH ? req->ret_bytes : req->bytes);
    }
    ask->reqs[ask->at++] = *req;
    bool ends = req->status == CAIRN_E_CANCELLED || req->status == CAIRN_E_READ_ONLY;
    if (ends || ask->at == ask->count) {
        cancel_rest(ask);
    } else {
        start_store(ask);
    }
}

/* Gives the text of an answer that is no success to the caller. */
static int told(int status, const struct diag *why, struct diag *diag)
{
    return status == 0 ? 0 : diag_set(diag, status, "%s", diag_text(why, status));
}

void ask_stores(struct ask *ask, struct store *store, size_t count, struct store_req *io)
{
    CHECK(store);
    CHECK(count > 0);
    ask->store = store;
    ask->reqs = io;
    ask->count = count;
    ask->at = 0;
    put(ask, start_store);
}

int ask_store(struct ask *ask, struct store *store, struct store_req *io, struct diag *diag)
{
    ask_stores(ask, store, 1, io);
    return told(io->status, &io->diag, diag);
}

/* --- the record ------------------------------------------------------------------------------- */

static void on_decided(struct run_req *req)
{
    struct ask *ask = container_of(req, struct ask, event);
    ask->status = req->status;
    ask->diag = req->diag;
    bool is_mark = req->status == 0 && req->verdict.answer == ANSWER_MARKS;
    if (req->status == 0 && ask->hear) {
        ask->hear(ask->options.user, &req->verdict);
    } else if (is_mark && verdict_marks(&req->verdict)->refused_count > 0) {
        const struct mark *mark = &verdict_marks(&req->verdict)->items[0];
        ask->status = diag_set(&ask->diag, CAIRN_E_CONFLICT, "checkpoint %s %s",
                               ckpt_id_text(mark->id).at, mark_outcome_text(mark->outcome));
    }
    answer(ask);
}

static void start_event(struct ask *ask)
{
    if (!is_over(ask)) {
        run_submit(ask->run, &ask->event);
    }
}

int ask_event(struct ask *ask, struct run *run, const struct event *event, bool dry_run,
              struct diag *diag)
{
    CHECK(run);
    ask->run = run;
    ask->event = (struct run_req){.event = *event, .done = on_decided, .dry_run = dry_run};
    put(ask, start_event);
    ask->hear = NULL;
    return told(ask->status, &ask->diag, diag);
}

static void on_state(struct run_snapshot_req *req)
{
    struct ask *ask = container_of(req, struct ask, snapshot);
    req->run = NULL; /* it was answered */
    ask->status = req->status;
    ask->diag = req->diag;
    if (req->status == 0) {
        ask->take(ask->user, req->state);
    }
    answer(ask);
}

static void start_snapshot(struct ask *ask)
{
    if (!is_over(ask)) {
        run_snapshot(ask->run, &ask->snapshot);
    }
}

int ask_state(struct ask *ask, struct run *run,
              void (*take)(void *user, const struct run_state *state), void *user,
              struct diag *diag)
{
    CHECK(run);
    CHECK(take);
    ask->run = run;
    ask->take = take;
    ask->user = user;
    ask->snapshot = (struct run_snapshot_req){.done = on_state};
    put(ask, start_snapshot);
    return told(ask->status, &ask->diag, diag);
}

/* --- the loop --------------------------------------------------------------------------------- */

static void start_call(struct ask *ask)
{
    ask->call(ask->user);
    answer(ask);
}

void ask_call(struct ask *ask, void (*call)(void *user), void *user)
{
    CHECK(call);
    ask->call = call;
    ask->user = user;
    put(ask, start_call);
}

static void start_sleep(struct ask *ask)
{
    uint64_t now_ms = loop_now_ms(ask->options.loop);
    ask->until_ms = ask->until_ms == 0 ? now_ms + ask->sleep_ms : ask->until_ms;
    bool is_over = wait_ms(ask) == ASK_NEVER;
    if (!is_over && now_ms < ask->until_ms) {
        timer_start(&ask->timer, min_u64(ask->until_ms - now_ms, POLL_MS));
        return;
    }
    ask->status = is_over ? CAIRN_E_CANCELLED : 0;
    answer(ask);
}

int ask_sleep(struct ask *ask, uint64_t ms)
{
    ask->until_ms = 0;
    ask->sleep_ms = ms;
    put(ask, start_sleep);
    return ask->status;
}

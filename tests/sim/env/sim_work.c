/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated form of work: a queue and simulated threads. run() is called at a seeded time after
 * submit, never inside it, and done() at a later one; works overlap, so they may finish in another
 * order than they began. In the pool whose works may wait, run() is on a fiber: sim_wait() inside
 * it lets the world go on. One thread, the world's.
 */
#include "sim_private.h"

enum { START_MAX_NS = 50000, RUN_MIN_NS = 5000, RUN_MAX_NS = 2000000, WAKE_MAX_NS = 20000 };

static struct sim_running *current; /* whose fiber runs */

static void start_next(struct sim_work_queue *queue);

static void run_work(void *user)
{
    struct work *work = user;
    work->run(work);
}

/* Returns true if run() has returned, and false if it waits for sim_wake. */
static bool run_on(struct sim_running *thread)
{
    struct work *work = thread->work;
    bool is_new = !thread->has_run;
    bool is_done;
    thread->has_run = true;
    if (!thread->queue->may_wait) {
        work->run(work);
        return true;
    }
    if (!thread->fiber) {
        thread->fiber = sim_fiber_new();
    }
    CHECK(!current);
    current = thread;
    is_done = is_new ? sim_fiber_begin(thread->fiber, run_work, work) : sim_fiber_go(thread->fiber);
    current = NULL;
    return is_done;
}

static void on_end(struct timer *timer);

static void on_thread(struct timer *timer)
{
    struct sim_running *thread = container_of(timer, struct sim_running, timer);
    struct sim *sim = thread->queue->host->sim;

    if (run_on(thread)) {
        timer->cb = on_end;
        sim_schedule(sim, timer, sim_between(sim, RUN_MIN_NS, RUN_MAX_NS));
    }
}

static void on_end(struct timer *timer)
{
    struct sim_running *thread = container_of(timer, struct sim_running, timer);
    struct sim_work_queue *queue = thread->queue;
    struct work *work = thread->work;

    thread->work = NULL;
    queue->open--;
    start_next(queue);
    work->done(work); /* may free the work, submit others, kill hosts */
}

static void start_next(struct sim_work_queue *queue)
{
    struct sim *sim = queue->host->sim;
    for (size_t i = 0; i < queue->thread_count && queue->first; i++) {
        struct sim_running *thread = &queue->thread[i];

        if (!thread->work) {
            thread->work = queue->first;
            thread->has_run = false;
            thread->timer.cb = on_thread;
            queue->first = thread->work->next;
            sim_schedule(sim, &thread->timer, sim_between(sim, 1, START_MAX_NS));
        }
    }
}

static void submit(struct work_pool *pool, struct work *work)
{
    struct sim_work_queue *queue = container_of(pool, struct sim_work_queue, base);

    CHECK(work->run);
    CHECK(work->done);
    work->pool = pool;
    work->next = NULL;
    if (queue->first) {
        queue->last->next = work;
    } else {
        queue->first = work;
    }
    queue->last = work;
    queue->open++;
    start_next(queue);
}

/* --- waiting ---------------------------------------------------------------------------------- */

struct sim_running *sim_this_thread(void) { return current; }

void sim_wait(struct sim_running *thread)
{
    CHECK(thread && thread == current);
    if (!thread->timer.active) { /* else it was woken already */
        thread->timer.cb = on_thread;
    }
    current = NULL;
    sim_fiber_leave();
    /* on_thread has made it current again */
}

void sim_wake(struct sim_running *thread)
{
    struct sim *sim = thread->queue->host->sim;
    thread->timer.cb = on_thread;
    if (!thread->timer.active) {
        sim_schedule(sim, &thread->timer, sim_between(sim, 1, WAKE_MAX_NS));
    }
}

void sim_sleep_us(uint64_t us)
{
    struct sim_running *thread = current;
    CHECK(thread);
    thread->timer.cb = on_thread;
    sim_schedule(thread->queue->host->sim, &thread->timer, us * 1000);
    sim_wait(thread);
}

/* --- life ------------------------------------------------------------------------------------- */

static void queue_init(struct sim_work_queue *queue, struct sim_host *host, size_t threads)
{
    static const struct work_ops ops = {submit};

    queue->base.ops = &ops;
    queue->host = host;
    queue->thread_count = threads;
    for (size_t i = 0; i < threads; i++) {
        queue->thread[i].queue = queue;
        timer_init(&queue->thread[i].timer, &host->loop, on_thread);
    }
}

void sim_work_init(struct sim_host *host)
{
    queue_init(&host->work, host, SIM_THREADS);
    queue_init(&host->waiting, host, SIM_WAITERS);
    host->waiting.may_wait = true;
}

void sim_work_fini(struct sim_host *host)
{
    for (size_t i = 0; i < SIM_WAITERS; i++) {
        sim_fiber_free(host->waiting.thread[i].fiber);
    }
}

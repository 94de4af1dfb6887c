/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated form of work: a queue and SIM_THREADS simulated threads. run() is called at a
 * seeded time after submit, never inside it, and done() at a later one; two works overlap, so they
 * may finish in another order than they began. One thread, the world's.
 */
#include "sim_private.h"

enum { START_MAX_NS = 50000, RUN_MIN_NS = 5000, RUN_MAX_NS = 2000000 };

static void start_next(struct sim_host *host);

static void on_thread(struct timer *timer)
{
    struct sim_running *thread = container_of(timer, struct sim_running, timer);
    struct sim_work_queue *queue = container_of(thread->work->pool, struct sim_work_queue, base);
    struct sim_host *host = container_of(queue, struct sim_host, work);
    struct work *work = thread->work;

    if (!thread->has_run) {
        thread->has_run = true;
        work->run(work);
        sim_schedule(host->sim, timer, sim_between(host->sim, RUN_MIN_NS, RUN_MAX_NS));
        return;
    }
    thread->work = NULL;
    queue->open--;
    start_next(host);
    work->done(work); /* may free the work, submit others, kill hosts */
}

static void start_next(struct sim_host *host)
{
    struct sim_work_queue *queue = &host->work;

    for (size_t i = 0; i < SIM_THREADS && queue->first; i++) {
        struct sim_running *thread = &queue->thread[i];

        if (!thread->work) {
            thread->work = queue->first;
            thread->has_run = false;
            queue->first = thread->work->next;
            sim_schedule(host->sim, &thread->timer, sim_between(host->sim, 1, START_MAX_NS));
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
    start_next(container_of(queue, struct sim_host, work));
}

void sim_work_init(struct sim_host *host)
{
    static const struct work_ops ops = {submit};

    host->work.base.ops = &ops;
    for (size_t i = 0; i < SIM_THREADS; i++) {
        timer_init(&host->work.thread[i].timer, &host->sim->loop, on_thread);
    }
}

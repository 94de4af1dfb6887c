/* SPDX-License-Identifier: Apache-2.0
 *
 * work: blocking or heavy calls on a pool's threads, completion on the loop. The simulator runs
 * `run` inline and delivers `done` at a seeded virtual time.
 */
#ifndef CAIRN_ENV_WORK_H
#define CAIRN_ENV_WORK_H

#include "loop.h"

struct work_pool;

/* Embedded in the operation. run: on a pool thread; may touch only what the operation owns.
 * done: on the loop's thread, later, exactly once for every submit. */
struct work {
    void (*run)(struct work *work);
    void (*done)(struct work *work);
    struct post post;
    struct work *next;
    struct work_pool *pool;
};

struct work_ops {
    void (*submit)(struct work_pool *pool, struct work *work);
};

struct work_pool {
    const struct work_ops *ops;
};

static inline void work_submit(struct work_pool *pool, struct work *work)
{
    pool->ops->submit(pool, work);
}

/* A pool of threads (name: at most 15 bytes, shown by ps). Signals are blocked on its threads. */
int MUST_USE work_threads_new(struct loop *loop, unsigned threads, const char *name,
                              struct work_pool **ret, struct diag *diag);
/* What a broken CHECK on one of the pool's threads does instead of abort: broken(user, ...) is
 * called on that thread, the rest of that run() is skipped, and its done is delivered as always;
 * broken must leave a mark that done looks at. Before the first submit. */
void work_threads_on_broken(struct work_pool *pool,
                            void (*broken)(void *user, const char *file, int line,
                                           const char *what),
                            void *user);
/* Its threads do little but wait, for a disk: they are served soon (prompt.h). Before the first
 * submit. */
void work_threads_be_prompt(struct work_pool *pool);
/* Waits for running and queued work; their `done` posts are left on the loop. Accepts NULL. */
void work_threads_free(struct work_pool *pool);

#endif

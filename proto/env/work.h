/* SPDX-License-Identifier: Apache-2.0
 *
 * work: blocking or heavy calls on the threads of a pool, with their completion on the loop. The
 * simulator calls `run` inline and delivers `done` at a seeded virtual time.
 */
#ifndef CAIRN_ENV_WORK_H
#define CAIRN_ENV_WORK_H

#include "loop.h"

struct work_pool;

/* One call, embedded in the operation. run is called on a thread of the pool, and may touch only
 * what the operation owns. done is called later on the loop's thread, exactly once for every
 * submit. */
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

/* A pool of either form; the inline function below submits to it. */
struct work_pool {
    const struct work_ops *ops;
};

static inline void work_submit(struct work_pool *pool, struct work *work)
{
    pool->ops->submit(pool, work);
}

/* Makes a pool of threads. name has at most 15 bytes, and ps shows it. Signals are blocked on its
 * threads. */
int MUST_USE work_threads_new(struct loop *loop, unsigned threads, const char *name,
                              struct work_pool **ret, struct diag *diag);
/* Sets what a broken CHECK on a thread of the pool does instead of aborting: broken(user, ...) is
 * called on that thread, the rest of that run() is skipped, and its done is delivered as always.
 * broken must leave a mark for done to see. Called before the first submit. */
void work_threads_on_broken(struct work_pool *pool,
                            void (*broken)(void *user, const char *file, int line,
                                           const char *what),
                            void *user);
/* Lets the pool's threads run soon after they wake up (prompt.h), because they do little but wait
 * for a disk. Called before the first submit. */
void work_threads_be_prompt(struct work_pool *pool);
/* Waits for running and queued work; their `done` posts are left on the loop. NULL is allowed. */
void work_threads_free(struct work_pool *pool);

#endif

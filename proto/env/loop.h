/* SPDX-License-Identifier: Apache-2.0
 *
 * loop: time, randomness, timers and posted calls of one thread. loop_uv.c is the form over libuv;
 * the simulator (tests/sim) has its own. All callbacks run on the loop's thread, and never inside
 * the call that asked for them. Everything above env that waits goes through here, so that it runs
 * in the simulator.
 */
#ifndef CAIRN_ENV_LOOP_H
#define CAIRN_ENV_LOOP_H

#include "base/diag.h"
#include "base/list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;

/* A one-shot timer, embedded in its user. Initialize with timer_init(). Not thread-safe. */
struct timer {
    struct loop *loop;
    void (*cb)(struct timer *timer);
    uint64_t due_ns;
    uint64_t order; /* timers with the same due_ns fire in the order of their start */
    struct timer *child, *next, *prev; /* their places in the loop's heap (timer.c) */
    bool active;
};

/* A call to be made on the loop's thread, embedded in its user. It may be in the queue once at a
 * time. loop_post() is the only function here that any thread may call. */
struct post {
    void (*cb)(struct post *post);
    struct post *next;
    bool queued; /* guarded by the loop's lock */
};

/* The functions of a form of loop; the inline functions below call them. */
struct loop_ops {
    uint64_t (*now_ns)(struct loop *loop); /* monotonic; may stay constant within one callback */
    int64_t (*wall_ns)(struct loop *loop); /* since 1970 UTC; only for display and labels */
    void (*random)(struct loop *loop, size_t bytes, void *ret);
    void (*timer_start)(struct loop *loop, struct timer *timer, uint64_t due_ns);
    void (*timer_stop)(struct loop *loop, struct timer *timer);
    void (*post)(struct loop *loop, struct post *post);
};

struct loop {
    const struct loop_ops *ops;
};

static inline uint64_t loop_now_ns(struct loop *loop) { return loop->ops->now_ns(loop); }
static inline uint64_t loop_now_ms(struct loop *loop) { return loop->ops->now_ns(loop) / 1000000; }
static inline int64_t loop_wall_ns(struct loop *loop) { return loop->ops->wall_ns(loop); }
static inline void loop_random(struct loop *loop, size_t bytes, void *ret)
{
    loop->ops->random(loop, bytes, ret);
}
/* Queues post->cb. A post that is already in the queue stays in it once. Any thread. */
static inline void loop_post(struct loop *loop, struct post *post) { loop->ops->post(loop, post); }

void timer_init(struct timer *timer, struct loop *loop, void (*cb)(struct timer *timer));
/* Starts or restarts the timer: it fires once, delay_ms from now (0 means at the next turn). */
void timer_start(struct timer *timer, uint64_t delay_ms);
void timer_stop(struct timer *timer); /* does nothing if it is inactive */
static inline bool timer_is_active(const struct timer *timer) { return timer->active; }

/* --- the libuv form ----------------------------------------------------------------------- */

/* A loop with its own uv_loop_t. loop_uv_run() runs until loop_uv_stop() was called, on any thread,
 * and returns after it has made the posted calls that were queued by then. loop_uv_on_signal()
 * makes cb be called on the loop's thread for SIGTERM, SIGINT or SIGHUP (daemon only). */
int MUST_USE loop_uv_new(struct loop **ret, struct diag *diag);
void loop_uv_run(struct loop *loop);
void loop_uv_stop(struct loop *loop);
int MUST_USE loop_uv_on_signal(struct loop *loop, int signum, void (*cb)(void *user, int signum),
                               void *user, struct diag *diag);
/* Frees the loop after its run has returned, with what libuv holds. Its sockets must be closed.
 * Posts that are still queued are dropped without a call, because their owners are gone by now.
 * NULL is allowed. */
void loop_uv_free(struct loop *loop);
/* In a forked child: closes the loop's descriptors without touching the parent's state. */
void loop_uv_abandon(struct loop *loop);

#endif

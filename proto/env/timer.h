/* SPDX-License-Identifier: Apache-2.0
 *
 * The heap of timers that every form of loop is built on: a pairing heap through the timers
 * themselves, so starting a timer never allocates and never fails. For implementations of loop
 * only.
 */
#ifndef CAIRN_ENV_TIMER_H
#define CAIRN_ENV_TIMER_H

#include "loop.h"

/* The timers that are active, linked through the timers themselves. */
struct timer_heap {
    struct timer *root; /* the earliest by (due_ns, order) */
    uint64_t order;     /* given to the next timer that is added */
};

/* Adds an inactive timer whose due_ns the caller has set. */
void timer_heap_add(struct timer_heap *heap, struct timer *timer);
void timer_heap_remove(struct timer_heap *heap, struct timer *timer); /* the timer must be active */

static inline struct timer *timer_heap_first(const struct timer_heap *heap) { return heap->root; }

#endif

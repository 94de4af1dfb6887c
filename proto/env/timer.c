/* SPDX-License-Identifier: Apache-2.0
 *
 * Timers and their heap. Invariant: the root is the least by (due_ns, order), so in every form of
 * loop timers that are due at the same instant fire in the order of their start. Runs on the loop's
 * thread.
 */
#include "timer.h"

#include "base/check.h"

#include <string.h>

static struct timer *meld(struct timer *a, struct timer *b);
static struct timer *merge_children(struct timer *first);

void timer_init(struct timer *timer, struct loop *loop, void (*cb)(struct timer *timer))
{
    memset(timer, 0, sizeof *timer);
    timer->loop = loop;
    timer->cb = cb;
}

void timer_start(struct timer *timer, uint64_t delay_ms)
{
    uint64_t now = loop_now_ns(timer->loop);
    uint64_t most_ms = (UINT64_MAX / 2 - now) / 1000000; /* centuries: a caller's "never" */

    CHECK(timer->cb);
    timer_stop(timer);
    timer->loop->ops->timer_start(timer->loop, timer, now + min_u64(delay_ms, most_ms) * 1000000);
}

void timer_stop(struct timer *timer)
{
    if (timer->active) {
        timer->loop->ops->timer_stop(timer->loop, timer);
    }
}

void timer_heap_add(struct timer_heap *heap, struct timer *timer)
{
    CHECK(!timer->active);
    timer->child = timer->next = timer->prev = NULL;
    timer->order = heap->order++;
    timer->active = true;
    heap->root = heap->root ? meld(heap->root, timer) : timer;
}

void timer_heap_remove(struct timer_heap *heap, struct timer *timer)
{
    struct timer *below = merge_children(timer->child);

    CHECK(timer->active);
    if (timer == heap->root) {
        heap->root = below;
    } else {
        if (timer->prev->child == timer) {
            timer->prev->child = timer->next;
        } else {
            timer->prev->next = timer->next;
        }
        if (timer->next) {
            timer->next->prev = timer->prev;
        }
        heap->root = below ? meld(heap->root, below) : heap->root;
    }
    timer->child = timer->next = timer->prev = NULL;
    timer->active = false;
}

static bool is_before(const struct timer *a, const struct timer *b)
{
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

/* Joins two roots without siblings: the later one becomes the first child of the earlier one. */
static struct timer *meld(struct timer *a, struct timer *b)
{
    if (is_before(b, a)) {
        struct timer *swap = a;
        a = b;
        b = swap;
    }
    b->prev = a;
    b->next = a->child;
    if (a->child) {
        a->child->prev = b;
    }
    a->child = b;
    a->prev = a->next = NULL;
    return a;
}

/* Makes the usual two passes: it joins neighbours from left to right, then all of those from right
 * to left. */
static struct timer *merge_children(struct timer *first)
{
    struct timer *pairs = NULL, *root = NULL;

    while (first) {
        struct timer *a = first, *b = first->next, *rest = b ? b->next : NULL;

        a->prev = a->next = NULL;
        if (b) {
            b->prev = b->next = NULL;
            a = meld(a, b);
        }
        a->next = pairs;
        pairs = a;
        first = rest;
    }
    while (pairs) {
        struct timer *rest = pairs->next;

        pairs->prev = pairs->next = NULL;
        root = root ? meld(root, pairs) : pairs;
        pairs = rest;
    }
    return root;
}

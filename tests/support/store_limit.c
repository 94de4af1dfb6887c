/* SPDX-License-Identifier: Apache-2.0
 *
 * At most max operations at once in the inner store; the others wait in order of arrival, within
 * their deadlines.
 */
#include "store_bend.h"

#include "base/check.h"
#include "base/list.h"
#include "store/wrap/wrap_frame.h"

#include <stdlib.h>

struct limit_store {
    struct wrap_store wrap;
    unsigned max, running;
    struct list waiting; /* of limit_frame.link */
};

struct limit_frame {
    struct wrap_frame frame;
    struct list link;
    struct timer timer;   /* the deadline while it waits */
    uint64_t deadline_ms; /* what the caller gave; the inner store gets what is left of it */
    uint64_t begin_ms;
};

static void start(struct limit_store *store, struct limit_frame *limit)
{
    uint64_t spent_ms = loop_now_ms(store->wrap.loop) - limit->begin_ms;
    timer_stop(&limit->timer);
    if (limit->deadline_ms != 0) {
        limit->frame.req->deadline_ms =
            max_u64(1, limit->deadline_ms - min_u64(spent_ms, limit->deadline_ms));
    }
    store->running++;
    wrap_forward(&limit->frame);
}

static void limit_done(struct store_req *req)
{
    struct limit_frame *limit = req->wrap;
    struct limit_store *store = container_of(limit->frame.store, struct limit_store, wrap);
    CHECK(store->running > 0);
    store->running--;
    struct list *next = list_pop(&store->waiting);
    if (next != NULL) {
        start(store, list_item(next, struct limit_frame, link));
    }
    req->deadline_ms = limit->deadline_ms;
    wrap_answer(&limit->frame);
}

static void deadline_passed(struct timer *timer)
{
    struct limit_frame *limit = container_of(timer, struct limit_frame, timer);
    struct store_req *req = limit->frame.req;
    list_remove(&limit->link);
    req->status =
        diag_set(&req->diag, CAIRN_E_TIMED_OUT,
                 "the store was busy with other operations for %llu ms; this one was not started",
                 (unsigned long long)limit->deadline_ms);
    wrap_answer(&limit->frame);
}

static void limit_submit(struct store *base, struct store_req *req)
{
    struct limit_store *store = container_of(base, struct limit_store, wrap.base);
    struct limit_frame *limit = wrap_push(&store->wrap, req, sizeof(*limit), limit_done);
    if (limit == NULL) {
        return;
    }
    list_init(&limit->link);
    timer_init(&limit->timer, store->wrap.loop, deadline_passed);
    limit->deadline_ms = req->deadline_ms;
    limit->begin_ms = loop_now_ms(store->wrap.loop);
    if (store->running < store->max) {
        start(store, limit);
        return;
    }
    list_add_tail(&store->waiting, &limit->link);
    if (limit->deadline_ms != 0) {
        timer_start(&limit->timer, limit->deadline_ms);
    }
}

static const struct store_ops limit_ops = {.submit = limit_submit, .close = wrap_close};

int store_limit_new(struct loop *loop, struct store *inner, unsigned max, struct store **ret)
{
    if (max == 0) {
        return CAIRN_E_INVALID;
    }
    struct limit_store *store = calloc(1, sizeof(*store));
    if (store == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    wrap_store_init(&store->wrap, loop, inner, &limit_ops);
    store->max = max;
    list_init(&store->waiting);
    *ret = &store->wrap.base;
    return 0;
}

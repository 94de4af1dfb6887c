/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the operations that pass through, for metrics: how long each kind took, what failed, and
 * the bytes. It changes nothing and delays nothing.
 */
#include "store_wrap.h"

#include "base/check.h"
#include "wrap_frame.h"

#include <stdlib.h>

struct count_store {
    struct wrap_store wrap;
    struct store_counts counts;
};

struct count_frame {
    struct wrap_frame frame;
    uint64_t begin_ns;
};

static const uint64_t bounds_us[] = {1000,   2500,   5000,    10000,   25000,   50000,    100000,
                                     250000, 500000, 1000000, 2500000, 5000000, 10000000, 30000000};

/* Returns true for a status that is an answer to a question and no fault of the store. */
static bool is_answer(int status)
{
    return status == CAIRN_E_CONFLICT || status == CAIRN_E_NOT_FOUND || status == CAIRN_E_EXISTS;
}

/* Called when the request has ended: counts how long it took, and its bytes or its error. */
static void count_done(struct store_req *req)
{
    struct count_frame *frame = req->wrap;
    struct count_store *store = container_of(frame->frame.store, struct count_store, wrap);
    struct store_counts *counts = &store->counts;
    uint64_t ns = loop_now_ns(store->wrap.loop) - frame->begin_ns;
    histogram_add(&counts->durations[req->op], ns / 1000);
    counts->running--;
    if (req->status != 0 && !is_answer(req->status)) {
        err_tally_add(&counts->errors, req->status);
    } else if (req->status == 0 && (req->op == STORE_WRITE || req->op == STORE_PUBLISH)) {
        counts->bytes_written += req->bytes;
    } else if (req->status == 0 && req->op == STORE_READ) {
        counts->bytes_read += req->bytes;
    } else if (req->status == 0 && req->op == STORE_FETCH) {
        counts->bytes_read += req->ret_bytes;
    }
    wrap_answer(&frame->frame);
}

static void count_submit(struct store *base, struct store_req *req)
{
    struct count_store *store = container_of(base, struct count_store, wrap.base);
    CHECK((unsigned)req->op < STORE_OP_COUNT);
    struct count_frame *frame = wrap_push(&store->wrap, req, sizeof(*frame), count_done);
    if (frame == NULL) {
        return;
    }
    frame->begin_ns = loop_now_ns(store->wrap.loop);
    store->counts.running++;
    wrap_forward(&frame->frame);
}

static const struct store_ops count_ops = {.submit = count_submit, .close = wrap_close};

int store_count_new(struct loop *loop, struct store *inner, struct store **ret,
                    const struct store_counts **ret_counts)
{
    struct count_store *store = calloc(1, sizeof(*store));
    if (store == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    wrap_store_init(&store->wrap, loop, inner, &count_ops);
    for (size_t i = 0; i < STORE_OP_COUNT; i++) {
        histogram_init(&store->counts.durations[i], ARRAY_LEN(bounds_us), bounds_us);
    }
    *ret = &store->wrap.base;
    *ret_counts = &store->counts;
    return 0;
}

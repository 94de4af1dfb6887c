/* SPDX-License-Identifier: Apache-2.0
 *
 * Bounded repetition of operations whose error says "try again as it is". The pause doubles and is
 * jittered, so that many clients of a store that came back do not arrive at once.
 */
#include "store_bend.h"

#include "base/check.h"
#include "store/wrap/wrap_frame.h"

#include <stdlib.h>

struct retry_store {
    struct wrap_store wrap;
    struct store_retry_options options;
};

struct retry_frame {
    struct wrap_frame frame;
    struct timer timer;
    unsigned tries;
    uint64_t pause_ms, begin_ms;
};

/* An exchange that is made twice is undone; a file that was mended is whole, and refused; a record
 * that was cut has lost nothing any more. */
static bool is_worth_repeating(enum store_op op, int status)
{
    return op != STORE_EXCHANGE && op != STORE_RECORD_MEND && op != STORE_RECORD_CUT &&
           status != CAIRN_E_CONFLICT && status != CAIRN_E_ABORTED &&
           err_retry(status) == ERR_RETRY_RETRY;
}

static void try_again(struct timer *timer)
{
    struct retry_frame *retry = container_of(timer, struct retry_frame, timer);
    wrap_forward(&retry->frame);
}

static uint64_t jittered(struct loop *loop, uint64_t pause_ms)
{
    uint32_t random;
    loop_random(loop, sizeof(random), &random);
    return pause_ms / 2 + random % (pause_ms / 2 + 1);
}

static void retry_done(struct store_req *req)
{
    struct retry_frame *retry = req->wrap;
    struct retry_store *store = container_of(retry->frame.store, struct retry_store, wrap);
    struct loop *loop = store->wrap.loop;
    uint64_t pause_ms = jittered(loop, retry->pause_ms);
    uint64_t spent_ms = loop_now_ms(loop) - retry->begin_ms;
    bool is_late = req->deadline_ms != 0 && spent_ms + pause_ms >= req->deadline_ms;
    if (!is_worth_repeating(req->op, req->status) || ++retry->tries >= store->options.tries ||
        is_late) {
        wrap_answer(&retry->frame);
        return;
    }
    retry->pause_ms *= 2;
    timer_start(&retry->timer, pause_ms);
}

static void retry_submit(struct store *base, struct store_req *req)
{
    struct retry_store *store = container_of(base, struct retry_store, wrap.base);
    struct retry_frame *retry = wrap_push(&store->wrap, req, sizeof(*retry), retry_done);
    if (retry == NULL) {
        return;
    }
    timer_init(&retry->timer, store->wrap.loop, try_again);
    retry->pause_ms = store->options.pause_ms;
    retry->begin_ms = loop_now_ms(store->wrap.loop);
    wrap_forward(&retry->frame);
}

static const struct store_ops retry_ops = {.submit = retry_submit, .close = wrap_close};

int store_retry_new(struct loop *loop, struct store *inner,
                    const struct store_retry_options *options, struct store **ret)
{
    if (options->tries == 0 || options->pause_ms > UINT32_MAX) {
        return CAIRN_E_INVALID;
    }
    struct retry_store *store = calloc(1, sizeof(*store));
    if (store == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    wrap_store_init(&store->wrap, loop, inner, &retry_ops);
    store->options = *options;
    *ret = &store->wrap.base;
    return 0;
}

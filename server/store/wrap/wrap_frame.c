/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of decorators, and the closing that they share: the inner store is closed first, and the
 * decorator is freed after it.
 */
#include "wrap_frame.h"

#include "base/check.h"

#include <stdlib.h>

static void no_memory(struct post *post)
{
    struct work *work = container_of(post, struct work, post);
    struct store_req *req = container_of(work, struct store_req, work);
    struct wrap_store *store = container_of(req->store, struct wrap_store, base);
    store->pending--;
    req->status = diag_no_memory(&req->diag, "a store request");
    req->done(req);
}

void *wrap_push(struct wrap_store *store, struct store_req *req, size_t frame_bytes,
                void (*done)(struct store_req *req))
{
    CHECK(frame_bytes >= sizeof(struct wrap_frame));
    CHECK(req->done != NULL);
    store->pending++;
    struct wrap_frame *frame = calloc(1, frame_bytes);
    if (frame == NULL) {
        req->work.post = (struct post){.cb = no_memory};
        loop_post(store->loop, &req->work.post);
        return NULL;
    }
    frame->store = store;
    frame->req = req;
    frame->done = req->done;
    frame->wrap = req->wrap;
    req->done = done;
    req->wrap = frame;
    return frame;
}

void wrap_forward(struct wrap_frame *frame) { store_submit(frame->store->inner, frame->req); }

void wrap_answer(struct wrap_frame *frame)
{
    struct store_req *req = frame->req;
    CHECK(req->wrap == frame);
    CHECK(frame->store->pending > 0);
    frame->store->pending--;
    req->done = frame->done;
    req->wrap = frame->wrap;
    req->store = &frame->store->base;
    free(frame);
    req->done(req);
}

/* Called when the wrapped store is closed: frees the wrapper and tells the caller. */
static void inner_closed(void *user)
{
    struct wrap_store *store = user;
    void (*done)(void *user) = store->close_done;
    void *done_user = store->close_user;
    if (store->fini != NULL) {
        store->fini(store);
    }
    free(store);
    if (done != NULL) {
        done(done_user);
    }
}

void wrap_close(struct store *base, void (*done)(void *user), void *user)
{
    struct wrap_store *store = container_of(base, struct wrap_store, base);
    CHECK(store->pending == 0);
    store->close_done = done;
    store->close_user = user;
    store_close(store->inner, inner_closed, store);
}

void wrap_store_init(struct wrap_store *store, struct loop *loop, struct store *inner,
                     const struct store_ops *ops)
{
    store->loop = loop;
    store->inner = inner;
    store->base.ops = ops;
    store->base.caps = inner->caps;
}

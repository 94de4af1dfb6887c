/* SPDX-License-Identifier: Apache-2.0
 *
 * wrap_frame: what every decorator does with a request on its way down and up: it pushes a frame
 * that remembers who is above, and pops it before the answer goes on. Frames of stacked decorators
 * nest.
 */
#ifndef CAIRN_STORE_WRAP_FRAME_H
#define CAIRN_STORE_WRAP_FRAME_H

#include "store/store.h"

/* A decorator's store: `base` first, then its own state. */
struct wrap_store {
    struct store base;
    struct loop *loop;
    struct store *inner;
    unsigned pending;
    void (*close_done)(void *user);
    void *close_user;
    void (*fini)(struct wrap_store *store); /* frees the decorator's own things; may be NULL */
};

/* The head of a decorator's frame. */
struct wrap_frame {
    struct wrap_store *store;
    struct store_req *req;
    void (*done)(struct store_req *req); /* of the layer above */
    void *wrap;                          /* the frame of the layer above */
    struct post post;                    /* for an answer that must not come inside submit */
};

void wrap_store_init(struct wrap_store *store, struct loop *loop, struct store *inner,
                     const struct store_ops *ops);
/* The close of every decorator: the inner store first, then the decorator is freed. */
void wrap_close(struct store *base, void (*done)(void *user), void *user);
/* A zeroed frame of frame_bytes, pushed on req; done: this decorator's callback. NULL when memory
 * is exhausted; then the request has been answered NO_MEMORY (later, on the loop). */
void *wrap_push(struct wrap_store *store, struct store_req *req, size_t frame_bytes,
                void (*done)(struct store_req *req));
/* Sends the request to the inner store, with a clean status. */
void wrap_forward(struct wrap_frame *frame);
/* Pops the frame, frees it and gives the answer in req->status to the layer above. */
void wrap_answer(struct wrap_frame *frame);
/* The same from the loop's next turn, with this status. */
void wrap_answer_later(struct wrap_frame *frame, int status);

#endif

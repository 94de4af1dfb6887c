/* SPDX-License-Identifier: Apache-2.0
 *
 * wrap_frame: the way of a request through a decorator, down and up: the decorator pushes a frame
 * that remembers the layer above, and pops it before the answer goes on. Frames of stacked
 * decorators nest.
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
    void (*fini)(struct wrap_store *store); /* frees the decorator's own memory; may be NULL */
};

/* The head of a decorator's frame. */
struct wrap_frame {
    struct wrap_store *store;
    struct store_req *req;
    void (*done)(struct store_req *req); /* of the layer above */
    void *wrap;                          /* the frame of the layer above */
};

void wrap_store_init(struct wrap_store *store, struct loop *loop, struct store *inner,
                     const struct store_ops *ops);
/* Closes any decorator: first the inner store, then the decorator itself is freed. */
void wrap_close(struct store *base, void (*done)(void *user), void *user);
/* Pushes a zeroed frame of frame_bytes on req; `done` is this decorator's callback. Returns NULL if
 * there is no memory; the request is then answered NO_MEMORY, later, on the loop. */
void *wrap_push(struct wrap_store *store, struct store_req *req, size_t frame_bytes,
                void (*done)(struct store_req *req));
/* Sends the request to the inner store, with a clean status. */
void wrap_forward(struct wrap_frame *frame);
/* Pops the frame, frees it and gives the answer in req->status to the layer above. */
void wrap_answer(struct wrap_frame *frame);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Small writes that follow each other in an object become one piece. RADOS needs the same time for
 * a piece of 100 KiB as for one of some MiB, and a model of small tensors writes nothing else. No
 * write waits only for others to join it: while fewer than GATHER_CALLS pieces are under way, a
 * write is sent at once. With that many under way a write waits, and the writes that follow it in
 * the object join it, until together they are a whole piece, or a write comes that does not follow
 * them, or the object ends: they are then sent although GATHER_CALLS pieces are under way. So
 * writes are gathered if the cluster is the bottleneck, and only then.
 *
 * The first write of a gathering leads it: it takes the piece's number, waits for its turn, writes
 * for all, and wakes the others, which wait on threads of the pool. The store's lock guards
 * everything.
 */
#include "rados_private.h"

#include "base/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { GATHER_CALLS = 8 };

bool rados_gather_join(struct rados_store *store, struct open_object *object,
                       const struct store_req *req, int *ret, struct diag *diag)
{
    struct gather *gather = object->forming;
    if (gather == NULL || gather->count == RADOS_GATHER_MAX ||
        gather->offset + gather->bytes != req->offset ||
        gather->bytes + req->bytes > RADOS_PIECE_BYTES) {
        return false;
    }
    gather->parts[gather->count++] = (struct gather_part){req->data, req->bytes};
    gather->bytes += req->bytes;
    object->pieces[gather->piece].bytes = (uint32_t)gather->bytes;
    pthread_cond_broadcast(&store->gathered); /* it may be a whole piece now */
    gather->members++;
    while (!gather->done) {
        pthread_cond_wait(&store->gathered, &store->lock);
    }
    *ret = gather->status;
    if (gather->status != 0) {
        err_ignore(diag_copy(diag, &gather->diag)); /* the status is the answer */
    }
    if (--gather->members == 0) {
        pthread_cond_broadcast(&store->gathered); /* the leader may return */
    }
    return true;
}

void rados_gather_lead(struct rados_store *store, struct open_object *object, uint32_t piece,
                       const struct store_req *req, struct gather *ret)
{
    *ret = (struct gather){.piece = piece, .offset = req->offset, .bytes = req->bytes, .count = 1};
    ret->parts[0] = (struct gather_part){req->data, req->bytes};
    rados_gather_shut(store, object);
    object->forming = ret;
    while (store->gather_calls >= GATHER_CALLS && !ret->shut && ret->bytes < RADOS_PIECE_BYTES) {
        pthread_cond_wait(&store->gathered, &store->lock);
    }
    if (!ret->shut) { /* the object still exists then */
        object->forming = NULL;
        ret->shut = true;
    }
    store->gather_calls++;
}

void rados_gather_shut(struct rados_store *store, struct open_object *object)
{
    if (object->forming != NULL) {
        object->forming->shut = true;
        object->forming = NULL;
        pthread_cond_broadcast(&store->gathered);
    }
}

void rados_gather_end(struct rados_store *store, struct gather *gather, int status,
                      const struct diag *diag)
{
    CHECK(store->gather_calls > 0);
    store->gather_calls--;
    gather->status = status;
    gather->diag = *diag;
    gather->done = true;
    pthread_cond_broadcast(&store->gathered);
    while (gather->members > 0) { /* the gathering is on the leader's stack */
        pthread_cond_wait(&store->gathered, &store->lock);
    }
}

/* Gives the bytes in one place: where they are, if they lie one behind the other, or else in a
 * copy. */
int rados_gather_bytes(const struct gather *gather, const void **ret, void **ret_copy)
{
    const uint8_t *end = gather->parts[0].data;
    uint64_t at = 0;
    *ret = gather->parts[0].data;
    *ret_copy = NULL;
    size_t i = 0;
    while (i < gather->count && gather->parts[i].data == end) {
        end += gather->parts[i++].bytes;
    }
    if (i == gather->count) {
        return 0;
    }
    uint8_t *copy = malloc(gather->bytes);
    if (copy == NULL) {
        return -ENOMEM;
    }
    for (i = 0; i < gather->count; i++) {
        memcpy(copy + at, gather->parts[i].data, gather->parts[i].bytes);
        at += gather->parts[i].bytes;
    }
    *ret = *ret_copy = copy;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Payloads that come by the socket, each in a buffer of credit: a worker checks crc and digest of
 * every chunk, then the payload goes to the store, at the place that the client gave it. One loop's
 * thread; verify_run on a worker.
 */
#include "ingest/ingest_private.h"

#include "pipeline/chunk.h"

#include <stdlib.h>
#include <string.h>

struct socket_write {
    struct in_write base;
    struct work work;
    int status;
    struct diag diag;
    struct envelope envelopes[]; /* base.envelopes */
};

static struct socket_write *of_base(struct in_write *write)
{
    return container_of(write, struct socket_write, base);
}

/* Checks crc and digest of every chunk of a payload, and that the bytes between chunks are zero.
 * Runs on a worker. */
static void verify_run(struct work *work)
{
    struct socket_write *write = container_of(work, struct socket_write, work);
    uint8_t *payload = write->base.payload;
    uint64_t at = 0;
    for (uint32_t i = 0; i < write->base.envelope_count && write->status == 0; i++) {
        const struct envelope *envelope = &write->envelopes[i];
        if (!is_all_zero(envelope->offset - at, payload + at)) {
            write->status = diag_set(&write->diag, CAIRN_E_DIGEST_MISMATCH,
                                     "the padding in front of a chunk is not zero");
            return;
        }
        write->status = chunk_verify(envelope, payload + envelope->offset, &write->diag);
        at = envelope->offset + envelope->stored_bytes;
    }
    uint64_t padded = round_up_u64(write->base.payload_bytes, LIMIT_ALIGN_BYTES);
    memset(payload + write->base.payload_bytes, 0, padded - write->base.payload_bytes);
}

/* Ends the write of a payload, and gives its buffer back. */
static void end_write(struct in_write *base, int status, const struct diag *diag)
{
    struct in_object *object = base->object;
    CHECK(object->pending > 0);
    CHECK(object->way->end_write == end_write);
    credit_put(object->writer->ingest->credit, base->payload);
    in_write_leave(base);
    free(of_base(base));
    if (status != 0) {
        in_object_fail(object, status, diag_text(diag, status));
    }
    in_object_advance(object);
}

static void verify_done(struct work *work)
{
    struct socket_write *write = container_of(work, struct socket_write, work);
    struct in_object *object = write->base.object;
    if (write->status != 0 || in_object_has_failed(object)) {
        struct diag diag = write->diag;
        end_write(&write->base, write->status, &diag);
        return;
    }
    in_write_known(&write->base);
    if (sm_is(&object->sm, IN_CREATING)) {
        list_add_tail(&object->ready, &write->base.link);
    } else {
        in_write_submit(&write->base);
        in_object_advance(object);
    }
}

static void do_nothing(struct in_object *object) { (void)object; }

/* Every payload has begun: a worker has it, or the store. */
static const struct in_way socket_way = {end_write, do_nothing, do_nothing, do_nothing};

/* Enters a payload into its object, and gives the write. */
static int enter(struct in_object *object, const struct msg_data *data,
                 const struct payload *payload, struct socket_write **ret, struct diag *diag)
{
    int status = in_object_check(object, data, payload->bytes, diag);
    if (status == 0) {
        status = in_object_keep(object, data->envelope_count, data->envelopes, data->offset, diag);
    }
    if (status != 0) {
        return status;
    }
    struct socket_write *write =
        malloc(sizeof(*write) + data->envelope_count * sizeof(write->envelopes[0]));
    if (!write) {
        return diag_no_memory(diag, "a write");
    }
    *write = (struct socket_write){.base = {.offset = data->offset,
                                            .payload = payload->data,
                                            .payload_bytes = payload->bytes,
                                            .envelopes = write->envelopes},
                                   .work = {.run = verify_run, .done = verify_done}};
    in_object_enter(object, &write->base, data);
    object->stored_bytes = object->next_offset;
    *ret = write;
    return 0;
}

int socket_take(struct in_object *object, const struct msg_data *data,
                const struct payload *payload, struct diag *diag)
{
    struct ingest *ingest = object->writer->ingest;
    struct socket_write *write = NULL;
    if (in_object_has_failed(object)) {
        credit_put(ingest->credit, payload->data);
        return 0;
    }
    object->stream = payload->stream;
    bool first = object->next_offset == 0;
    int status =
        object->way && object->way != &socket_way
            ? diag_set(diag, CAIRN_E_PROTOCOL,
                       "the client described object %u, and then sent bytes of the same object",
                       object->id.sequence)
            : enter(object, data, payload, &write, diag);
    if (status != 0) {
        credit_put(ingest->credit, payload->data);
        return status;
    }
    object->way = &socket_way;
    if (first) {
        in_object_create(object);
    }
    work_submit(ingest->pool, &write->work);
    return 0;
}

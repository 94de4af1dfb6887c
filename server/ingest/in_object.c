/* SPDX-License-Identifier: Apache-2.0
 *
 * One object, from its first payload to its name in the store:
 *
 *   creating -> writing -> footer -> sealing -> (durable, freed)
 *       \________\__________\-> failed -> aborting -> (freed)
 *
 * A failed seal goes to failed by way of writing. An object whose chunks are all stored elsewhere
 * is durable as soon as it has ended, because nothing is created for it.
 *
 * Its payloads come one of two ways (struct in_way): by the socket (in_socket.c), or as
 * descriptions of an arena (in_mapped.c). Writes of one object run side by side; the footer waits
 * for all of them. Invariant: an object is sealed only when every chunk in it was verified.
 */
#include "ingest/ingest_private.h"

#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

struct in_object *in_object_new(struct writer *writer, const struct msg_data *first)
{
    struct in_object *object = calloc(1, sizeof(*object));
    if (!object) {
        return NULL;
    }
    object->writer = writer;
    object->id = first->object;
    object->bytes_max = first->object_bytes;
    if (object->bytes_max == 0) {
        /* The surplus is given back at the seal: the store cuts an object to its written size. */
        object->bytes_max = writer->ingest->store->caps.object_bytes_preferred +
                            object_footer_bytes(LIMIT_OBJECT_ENVELOPES);
    }
    list_init(&object->link);
    list_init(&object->ready);
    return object;
}

/* Frees the object and takes it off its writer. */
static void free_object(struct in_object *object)
{
    struct writer *writer = object->writer;
    list_remove(&object->link);
    free(object->envelopes);
    free(object->pieces);
    free(object->footer);
    if (object->way) {
        object->way->leave(object);
    }
    free(object);
    writer_unref(writer);
}

static void submit(struct in_object *object, enum store_op op, void (*done)(struct store_req *))
{
    struct writer *writer = object->writer;
    object->req =
        (struct store_req){.op = op, .done = done, .run = writer->run, .object = object->id};
    object->req.bytes = op == STORE_CREATE ? object->bytes_max : 0;
    object->busy = true;
    store_submit(writer->ingest->store, &object->req);
}

/* --- failure -------------------------------------------------------------------------------- */

static void on_aborted(struct store_req *req)
{
    /* A failed abort leaves a temporary object, which the next start removes. */
    free_object(container_of(req, struct in_object, req));
}

/* Drops the payloads that nobody has begun to write. */
static void drop_waiting(struct in_object *object)
{
    if (object->way) {
        object->way->drop(object);
    }
}

void in_object_fail(struct in_object *object, int code, const char *text)
{
    struct writer *writer = object->writer;
    if (in_object_has_failed(object)) {
        return;
    }
    object->state = IN_FAILED;
    if (writer->user && !object->quiet) {
        writer->events.on_failed(writer->user, object->stream, &object->id, code, text);
    }
    drop_waiting(object);
    writer_settled(writer);
}

void in_object_tell_ended(struct in_object *object)
{
    struct writer *writer = object->writer;
    if (writer->user && !object->quiet && !in_object_has_failed(object)) {
        writer->events.on_failed(writer->user, object->stream, &object->id, CAIRN_E_ABORTED,
                                 "the save has already ended");
        object->quiet = true;
    }
}

bool in_object_has_failed(const struct in_object *object)
{
    return object->state == IN_FAILED || object->state == IN_ABORTING;
}

void in_object_drop(struct in_object *object)
{
    object->quiet = true;
    if (object->state == IN_SEALING) {
        /* It cannot be stopped any more: it becomes durable, and writer_have finds it again. */
        return;
    }
    if (object->state != IN_ABORTING) {
        object->state = IN_FAILED;
    }
    drop_waiting(object);
    in_object_advance(object);
}

/* --- one payload ---------------------------------------------------------------------------- */

static void on_written(struct store_req *req)
{
    struct in_write *write = container_of(req, struct in_write, req);
    struct diag diag = req->diag;
    write->object->way->end_write(write, req->status, &diag);
}

void in_write_submit(struct in_write *write)
{
    struct in_object *object = write->object;
    write->req = (struct store_req){.op = STORE_WRITE,
                                    .done = on_written,
                                    .run = object->writer->run,
                                    .object = object->id,
                                    .offset = write->offset,
                                    .bytes = round_up_u64(write->payload_bytes, LIMIT_ALIGN_BYTES),
                                    .data = write->payload};
    store_submit(object->writer->ingest->store, &write->req);
}

/* Checks that the chunks fill the payload: sorted, without overlap, from its first byte to its
 * last. */
static int check_envelopes(const struct msg_data *data, uint32_t payload_bytes, struct diag *diag)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < data->envelope_count; i++) {
        const struct envelope *envelope = &data->envelopes[i];
        if (envelope->offset < at || envelope->offset > payload_bytes ||
            envelope->stored_bytes > payload_bytes - envelope->offset) {
            return diag_set(
                diag, CAIRN_E_PROTOCOL,
                "chunk %u at %llu overlaps another chunk, or is outside the payload of %u bytes", i,
                (unsigned long long)envelope->offset, payload_bytes);
        }
        at = envelope->offset + envelope->stored_bytes;
    }
    if (data->envelope_count == 0 || data->envelopes[0].offset != 0 || at != payload_bytes) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "the chunks do not fill the payload of %u bytes",
                        payload_bytes);
    }
    return 0;
}

void *in_object_room(void *items, uint32_t needed, size_t item_bytes, uint32_t *io_cap)
{
    if (items && needed <= *io_cap) {
        return items;
    }
    uint32_t cap = needed < 16 ? 16 : needed * 2;
    void *grown = realloc(items, cap * item_bytes);
    *io_cap = grown ? cap : *io_cap;
    return grown;
}

int in_object_keep(struct in_object *object, uint32_t count, const struct envelope *envelopes,
                   uint64_t offset, struct diag *diag)
{
    struct envelope *grown = in_object_room(object->envelopes, object->envelope_count + count,
                                            sizeof(*grown), &object->envelope_cap);
    if (!grown) {
        return diag_no_memory(diag, "the headers of an object");
    }
    object->envelopes = grown;
    for (uint32_t i = 0; i < count; i++) {
        object->envelopes[object->envelope_count] = envelopes[i];
        object->envelopes[object->envelope_count++].offset += offset;
    }
    return 0;
}

int in_object_check(const struct in_object *object, const struct msg_data *data,
                    uint32_t payload_bytes, struct diag *diag)
{
    if (object->ended || data->offset != object->next_offset) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "object %u: a payload for offset %llu came where offset %llu was expected",
                        object->id.sequence, (unsigned long long)data->offset,
                        (unsigned long long)object->next_offset);
    }
    uint64_t envelopes = (uint64_t)object->chunk_count + data->envelope_count;
    if (envelopes > LIMIT_OBJECT_ENVELOPES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "the object has more than %d chunks",
                        LIMIT_OBJECT_ENVELOPES);
    }
    uint64_t end = round_up_u64(data->offset + payload_bytes, LIMIT_ALIGN_BYTES);
    if (end + object_footer_bytes((uint32_t)envelopes) > object->bytes_max) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "object %u is larger than the %llu bytes that were announced",
                        object->id.sequence, (unsigned long long)object->bytes_max);
    }
    return check_envelopes(data, payload_bytes, diag);
}

/* Called when the object exists at the store: submits the payloads that wait for it. */
static void on_created(struct store_req *req)
{
    struct in_object *object = container_of(req, struct in_object, req);
    object->busy = false;
    object->created = true;
    if (req->status != 0) {
        in_object_fail(object, req->status, diag_text(&req->diag, req->status));
        object->created = false;
    } else if (object->state == IN_CREATING) {
        object->state = IN_WRITING;
    }
    struct list *node;
    object->pending++; /* keeps the object while the writes are submitted */
    while ((node = list_pop(&object->ready))) {
        struct in_write *write = list_item(node, struct in_write, link);
        if (object->state == IN_WRITING) {
            in_write_submit(write);
        } else {
            object->way->end_write(write, 0, NULL);
        }
    }
    object->pending--;
    in_object_advance(object);
}

void in_object_create(struct in_object *object) { submit(object, STORE_CREATE, on_created); }

void in_object_enter(struct in_object *object, struct in_write *write, const struct msg_data *data)
{
    write->object = object;
    write->envelope_count = data->envelope_count;
    list_init(&write->link);
    memcpy(write->envelopes, data->envelopes, data->envelope_count * sizeof(data->envelopes[0]));
    object->chunk_count += data->envelope_count;
    object->next_offset = round_up_u64(data->offset + write->payload_bytes, LIMIT_ALIGN_BYTES);
    object->pending++;
    object->writer->ingest->bytes_in += write->payload_bytes;
    object->writer->received_bytes += write->payload_bytes;
    object->writer->fed_ms = loop_now_ms(object->writer->ingest->loop);
}

/* --- the end -------------------------------------------------------------------------------- */

/* Called when an object is sealed, or could not be: enters it as durable, and tells the session. */
static void is_durable(struct in_object *object, int status, const struct diag *diag)
{
    struct writer *writer = object->writer;
    if (status == 0) {
        struct durable durable = {.sequence = object->id.sequence,
                                  .envelope_count = object->envelope_count,
                                  .piece_count = object->pieces ? object->chunk_count : 0,
                                  .envelopes = object->envelopes,
                                  .pieces = object->pieces};
        status = writer_add_durable(writer, &durable);
        object->envelopes = NULL;
        object->pieces = NULL;
    }
    if (status != 0) {
        /* OUTCOME_UNKNOWN is a failure too: the client sends the chunks again under a new sequence,
         * and gc finds the other object. */
        object->state = IN_WRITING;
        in_object_fail(object, status, diag_text(diag, status));
        in_object_advance(object);
        return;
    }
    object->way->durable(object);
    if (writer->user && !object->quiet) {
        writer->events.on_durable(writer->user, object->stream, &object->id);
    }
    writer_settled(writer);
    free_object(object);
}

static void on_sealed(struct store_req *req)
{
    struct in_object *object = container_of(req, struct in_object, req);
    object->busy = false;
    is_durable(object, req->status, &req->diag);
}

/* Called when the footer was written. */
static void on_footer(struct store_req *req)
{
    struct in_object *object = container_of(req, struct in_object, req);
    object->busy = false;
    if (req->status != 0) {
        in_object_fail(object, req->status, diag_text(&req->diag, req->status));
    }
    if (object->state == IN_FAILED) {
        in_object_advance(object);
        return;
    }
    object->state = IN_SEALING;
    submit(object, STORE_SEAL, on_sealed);
}

/* Writes the footer behind the data of an object that has ended. on_footer() seals it. */
static void write_footer(struct in_object *object)
{
    struct writer *writer = object->writer;
    struct object_footer footer = {.id = object->id,
                                   .data_bytes = object->stored_bytes,
                                   .envelope_count = object->envelope_count,
                                   .envelopes = object->envelopes};
    uint64_t bytes = object_footer_bytes(footer.envelope_count);
    struct buf buf;
    buf_init(&buf, bytes);
    object_footer_encode(&footer, &buf);
    object->footer = aligned_alloc(POOL_ALIGN, bytes);
    if (buf_status(&buf) != 0 || !object->footer) {
        buf_fini(&buf);
        in_object_fail(object, CAIRN_E_NO_MEMORY, "no memory for an object's footer");
        in_object_advance(object);
        return;
    }
    memcpy(object->footer, buf.data, bytes);
    buf_fini(&buf);
    object->state = IN_FOOTER;
    object->busy = true;
    object->req = (struct store_req){.op = STORE_WRITE,
                                     .done = on_footer,
                                     .run = writer->run,
                                     .object = object->id,
                                     .offset = footer.data_bytes,
                                     .bytes = bytes,
                                     .data = object->footer};
    store_submit(writer->ingest->store, &object->req);
}

/* Decides what an object does next. No other function does. */
void in_object_advance(struct in_object *object)
{
    if (object->pending > 0 || object->busy) {
        return;
    }
    if (object->state == IN_FAILED) {
        if (object->created) {
            object->state = IN_ABORTING;
            submit(object, STORE_ABORT, on_aborted);
        } else {
            free_object(object);
        }
    } else if (object->state == IN_WRITING && object->ended) {
        write_footer(object);
    } else if (object->state == IN_CREATING && object->ended && object->way &&
               object->stored_bytes == 0) {
        is_durable(object, 0, NULL); /* all chunks are stored elsewhere: nothing is stored here */
    }
}

void in_object_end(struct in_object *object)
{
    object->ended = true;
    in_object_advance(object);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * One object, from its first payload to its name in the store:
 *
 *   creating -> writing -> footer -> sealing -> (durable, freed)
 *       \________\__________\_________\-> failed -> aborting -> (freed)
 *
 * Each payload goes through the verify pool (crc and digest of every chunk) and then to the store.
 * Writes of one object run side by side; the footer waits for all of them. Invariant: an object is
 * sealed only when every chunk in it was verified.
 */
#include "ingest/ingest_private.h"

#include "base/buf.h"
#include "pipeline/chunk.h"

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
    if (object->described && --writer->ingest->mapped_objects == 0) {
        sink_rate_end(&writer->ingest->kit.rate);
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
    mapped_drop(object);
    hand_over_look(writer);
}

void in_object_tell_ended(struct in_object *object)
{
    struct writer *writer = object->writer;
    if (writer->user && !object->quiet && !in_object_has_failed(object)) {
        writer->events.on_failed(writer->user, object->stream, &object->id, CAIRN_E_ABORTED,
                                 "the save has ended");
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
    mapped_drop(object);
    in_object_advance(object);
}

/* --- one payload ---------------------------------------------------------------------------- */

/* Checks crc and digest of every chunk of a payload, and that the bytes between chunks are zero.
 * Runs on a worker. */
static void verify_run(struct work *work)
{
    struct in_write *write = container_of(work, struct in_write, work);
    uint64_t at = 0;
    for (uint32_t i = 0; i < write->envelope_count && write->status == 0; i++) {
        const struct envelope *envelope = &write->envelopes[i];
        if (!is_all_zero(envelope->offset - at, write->payload + at)) {
            write->status = diag_set(&write->diag, CAIRN_E_DIGEST_MISMATCH,
                                     "padding in front of a chunk is not zero");
            return;
        }
        write->status = chunk_verify(envelope, write->payload + envelope->offset, &write->diag);
        at = envelope->offset + envelope->stored_bytes;
    }
    uint64_t padded = round_up_u64(write->payload_bytes, LIMIT_ALIGN_BYTES);
    memset(write->payload + write->payload_bytes, 0, padded - write->payload_bytes);
}

/* Ends the write of a payload, and gives its buffer back. */
static void write_finish(struct in_write *write, int status, const struct diag *diag)
{
    struct in_object *object = write->object;
    if (write->mapped) {
        mapped_written(write, status, diag);
        return;
    }
    credit_put(object->writer->ingest->credit, write->payload);
    free(write);
    object->pending--;
    if (status != 0) {
        in_object_fail(object, status, diag_text(diag, status));
    }
    in_object_advance(object);
}

static void on_written(struct store_req *req)
{
    struct in_write *write = container_of(req, struct in_write, req);
    struct diag diag = req->diag;
    write_finish(write, req->status, &diag);
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

static void verify_done(struct work *work)
{
    struct in_write *write = container_of(work, struct in_write, work);
    struct in_object *object = write->object;
    if (write->status != 0 || object->state == IN_FAILED) {
        struct diag diag = write->diag;
        write_finish(write, write->status, &diag);
    } else if (!object->created) {
        list_add_tail(&object->ready, &write->link);
    } else {
        in_write_submit(write);
    }
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
            return diag_set(diag, CAIRN_E_PROTOCOL,
                            "chunk %u at %llu overlaps or leaves the payload of %u bytes", i,
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

/* Returns `items` with room for `needed` items; the memory may move. Returns NULL if there is no
 * memory; the items are unchanged then. */
static void *with_room(void *items, uint32_t needed, size_t item_bytes, uint32_t *io_cap)
{
    if (items && needed <= *io_cap) {
        return items;
    }
    uint32_t cap = needed < 16 ? 16 : needed * 2;
    void *grown = realloc(items, cap * item_bytes);
    *io_cap = grown ? cap : *io_cap;
    return grown;
}

/* Appends the headers of a write, which are needed for the object's footer. */
static int keep_envelopes(struct in_object *object, uint32_t count,
                          const struct envelope *envelopes, uint64_t offset, struct diag *diag)
{
    struct envelope *grown = with_room(object->envelopes, object->envelope_count + count,
                                       sizeof(*grown), &object->envelope_cap);
    if (!grown) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the headers of an object");
    }
    object->envelopes = grown;
    for (uint32_t i = 0; i < count; i++) {
        object->envelopes[object->envelope_count] = envelopes[i];
        object->envelopes[object->envelope_count++].offset += offset;
    }
    return 0;
}

/* Appends the places of a write's chunks in the object. */
static int keep_pieces(struct in_object *object, const struct msg_data *data, struct diag *diag)
{
    struct in_piece *grown = with_room(object->pieces, object->chunk_count + data->envelope_count,
                                       sizeof(*grown), &object->piece_cap);
    if (!grown) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the chunks of an object");
    }
    object->pieces = grown;
    for (uint32_t i = 0; i < data->envelope_count; i++) {
        object->pieces[object->chunk_count + i] =
            (struct in_piece){.at = data->offset + data->envelopes[i].offset};
    }
    return 0;
}

int in_object_place(struct in_object *object, struct in_write *write)
{
    uint32_t count = write->is_looked ? write->seal.new_count : write->envelope_count;
    uint32_t first = object->envelope_count;
    int status = keep_envelopes(object, count, write->envelopes, object->place_next, NULL);
    if (status != 0) {
        return status;
    }
    write->offset = object->place_next;
    write->envelope_first = first;
    object->place_next = round_up_u64(write->offset + write->payload_bytes, LIMIT_ALIGN_BYTES);
    for (uint32_t i = 0, stored = 0; i < write->envelope_count; i++) {
        struct in_piece *piece = &object->pieces[write->piece_first + i];
        if (piece->where == WHERE_OPEN || piece->where == WHERE_STORED) {
            piece->where = WHERE_STORED;
            piece->envelope = first + stored++;
        }
    }
    return 0;
}

/* Checks that a payload continues its object, and that the object stays within its limits. */
static int check_place(const struct in_object *object, const struct msg_data *data,
                       uint32_t payload_bytes, struct diag *diag)
{
    if (object->ended || data->offset != object->next_offset) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "object %u: payload at %llu where %llu was due",
                        object->id.sequence, (unsigned long long)data->offset,
                        (unsigned long long)object->next_offset);
    }
    uint64_t envelopes = (uint64_t)object->chunk_count + data->envelope_count;
    if (envelopes > LIMIT_OBJECT_ENVELOPES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "more than %d chunks in an object",
                        LIMIT_OBJECT_ENVELOPES);
    }
    uint64_t end = round_up_u64(data->offset + payload_bytes, LIMIT_ALIGN_BYTES);
    if (end + object_footer_bytes((uint32_t)envelopes) > object->bytes_max) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "object %u grows beyond its %llu bytes",
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
            struct diag diag = DIAG_INIT;
            write_finish(write, 0, &diag);
        }
    }
    object->pending--;
    in_object_advance(object);
}

void in_object_create(struct in_object *object) { submit(object, STORE_CREATE, on_created); }

/* Returns a new write, or NULL if there is no memory. For a described payload the pieces and dtypes
 * lie behind the envelopes. */
static struct in_write *new_write(const struct msg_data *data, const struct msg_describe *describe,
                                  struct diag *diag)
{
    size_t count = data->envelope_count, envelopes_bytes = count * sizeof(struct envelope);
    size_t more = describe ? count * (sizeof(struct in_piece) + sizeof(uint32_t)) : 0;
    struct in_write *write = malloc(sizeof(*write) + envelopes_bytes + more);
    if (!write) {
        (void)diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a write");
        return NULL;
    }
    *write = (struct in_write){.offset = data->offset, .envelope_count = data->envelope_count};
    if (describe) {
        write->pieces = (struct in_piece *)(void *)&write->envelopes[count];
        write->dtypes = (uint32_t *)(void *)&write->pieces[count];
        memset(write->pieces, 0, more);
        if (describe->dtype_count > 0) {
            memcpy(write->dtypes, describe->dtypes, count * sizeof(uint32_t));
        }
    }
    return write;
}

int in_object_take(struct in_object *object, const struct in_payload *payload,
                   struct in_write **ret, struct diag *diag)
{
    const struct msg_data *data = payload->data;
    uint32_t bytes = payload->bytes;
    size_t envelopes_bytes = data->envelope_count * sizeof(data->envelopes[0]);
    struct in_write *write = NULL;
    uint32_t first = object->envelope_count;
    int status = check_place(object, data, bytes, diag);
    if (status == 0) {
        status = payload->describe ? keep_pieces(object, data, diag)
                                   : keep_envelopes(object, data->envelope_count, data->envelopes,
                                                    data->offset, diag);
    }
    if (status == 0) {
        write = new_write(data, payload->describe, diag);
        status = write ? 0 : CAIRN_E_NO_MEMORY;
    }
    if (status != 0) {
        return status;
    }
    write->object = object;
    write->payload_bytes = bytes;
    write->envelope_first = first;
    write->piece_first = object->chunk_count;
    object->chunk_count += data->envelope_count;
    list_init(&write->link);
    list_init(&write->digest_link);
    memcpy(write->envelopes, data->envelopes, envelopes_bytes);
    object->next_offset = round_up_u64(data->offset + bytes, LIMIT_ALIGN_BYTES);
    object->pending++;
    object->writer->ingest->bytes_in += bytes;
    object->writer->received_bytes += bytes;
    object->writer->fed_ms = loop_now_ms(object->writer->ingest->loop);
    *ret = write;
    return 0;
}

int in_object_data(struct in_object *object, const struct msg_data *data,
                   const struct payload *payload, struct diag *diag)
{
    struct ingest *ingest = object->writer->ingest;
    struct in_write *write = NULL;
    if (in_object_has_failed(object)) {
        credit_put(ingest->credit, payload->data);
        return 0;
    }
    object->stream = payload->stream;
    bool first = object->next_offset == 0;
    struct in_payload taken = {.data = data, .bytes = payload->bytes};
    int status = object->described ? diag_set(diag, CAIRN_E_PROTOCOL,
                                              "object %u was described, and bytes of it came",
                                              object->id.sequence)
                                   : in_object_take(object, &taken, &write, diag);
    if (status != 0) {
        credit_put(ingest->credit, payload->data);
        return status;
    }
    write->payload = payload->data;
    write->work = (struct work){.run = verify_run, .done = verify_done};
    if (first) {
        in_object_create(object);
    }
    work_submit(ingest->pool, &write->work);
    return 0;
}

/* --- the end -------------------------------------------------------------------------------- */

/* Called when an object is sealed, or could not be: enters it as durable, and tells the session. */
static void is_durable(struct in_object *object, int status, const struct diag *diag)
{
    struct writer *writer = object->writer;
    if (status == 0) {
        struct durable durable = {.sequence = object->id.sequence,
                                  .envelope_count = object->envelope_count,
                                  .piece_count = object->described ? object->chunk_count : 0,
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
    if (object->described) {
        sink_rate_durable(&writer->ingest->kit.rate, object->place_next,
                          loop_now_ms(writer->ingest->loop));
    }
    if (writer->user && !object->quiet) {
        writer->events.on_durable(writer->user, object->stream, &object->id);
    }
    hand_over_look(writer);
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

static uint64_t stored_bytes(const struct in_object *object)
{
    return object->described ? object->place_next : object->next_offset;
}

/* Writes the footer behind the data of an object that has ended. on_footer() seals it. */
static void write_footer(struct in_object *object)
{
    struct writer *writer = object->writer;
    struct object_footer footer = {.id = object->id,
                                   .data_bytes = stored_bytes(object),
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
    } else if (object->state == IN_CREATING && object->ended && object->described) {
        is_durable(object, 0, NULL); /* all chunks are stored elsewhere: nothing is stored here */
    }
}

void in_object_end(struct in_object *object)
{
    object->ended = true;
    in_object_advance(object);
}

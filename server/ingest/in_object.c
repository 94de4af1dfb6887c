/* SPDX-License-Identifier: Apache-2.0
 *
 * One object, from its first payload to its name in the store:
 *
 *   filling -> creating -> writing -> footer -> sealing -> durable
 *       |          \__________\________\_________\-> failed -> aborting -> gone
 *       |\-> failed -> gone
 *        \-> durable              all chunks are stored elsewhere: nothing is created
 *
 * FILLING waits for the first write. CREATING, SEALING and ABORTING wait for the store, and WRITING
 * for the end of the object and until each payload is verified. Writes run side by side, the footer
 * beside the last ones, because for a small save on a cluster the trip takes longer than the data;
 * FOOTER waits for all of them. What is small and known by then is one write with its footer.
 * FAILED waits until nobody works for the object any more. DURABLE and GONE free it.
 *
 * Its payloads come one of two ways (struct in_way): by the socket (in_socket.c), or as
 * descriptions of an arena (in_mapped.c). Invariant: an object is sealed only when every chunk in
 * it was verified. One loop's thread.
 */
#include "ingest/ingest_private.h"

#include "base/buf.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* A payload up to here is copied, so that its footer can be in the same write. */
enum { WHOLE_BYTES_MAX = KIB(128) };

static struct in_object *of_sm(const struct sm *sm)
{
    return container_of(sm, struct in_object, sm);
}

/* Frees the object and takes it off its writer. */
static enum sm_result free_object(struct in_object *object)
{
    struct writer *writer = object->writer;
    CHECK(list_is_empty(&object->ready));
    list_remove(&object->link);
    free(object->envelopes);
    free(object->pieces);
    free(object->footer);
    if (object->way) {
        object->way->leave(object);
    }
    free(object);
    writer_unref(writer);
    return SM_DONE;
}

/* Called when the store has done what a state asked it for. */
static void on_stored(struct store_req *req)
{
    struct in_object *object = container_of(req, struct in_object, req);
    CHECK(object->busy);
    object->busy = false;
    if (req->op == STORE_CREATE) {
        object->created = req->status == 0;
    }
    sm_run(&object->sm);
}

/* Asks the store for the operation in object->req. */
static void submit(struct in_object *object, struct store_req req)
{
    struct writer *writer = object->writer;
    CHECK(!object->busy);
    object->req = req;
    object->req.done = on_stored;
    object->req.run = writer->run;
    object->req.object = object->id;
    object->busy = true;
    store_submit(writer->ingest->store, &object->req);
}

/* --- failure -------------------------------------------------------------------------------- */

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
    CHECK(code < 0);
    sm_move(&object->sm, IN_FAILED);
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
    return sm_is(&object->sm, IN_FAILED) || sm_is(&object->sm, IN_ABORTING);
}

void in_object_drop(struct in_object *object)
{
    object->quiet = true;
    if (sm_is(&object->sm, IN_SEALING)) {
        /* It cannot be stopped any more: it becomes durable, and writer_have finds it again. */
        return;
    }
    in_object_fail(object, CAIRN_E_ABORTED, "the session has ended");
    in_object_advance(object);
}

/* The state FAILED: waits for the store and for all payloads. */
static enum sm_result on_failed(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    struct list *node;
    if (object->busy) {
        return SM_WAIT;
    }
    while ((node = list_pop(&object->ready))) {
        object->way->end_write(list_item(node, struct in_write, link), 0, NULL);
    }
    if (object->pending > 0) {
        return SM_WAIT;
    }
    sm_move(sm, object->created ? IN_ABORTING : IN_GONE);
    return SM_AGAIN;
}

static void enter_aborting(struct sm *sm)
{
    submit(of_sm(sm), (struct store_req){.op = STORE_ABORT});
}

/* The state ABORTING: waits for the store. A failed abort leaves a temporary object, which the next
 * start removes. */
static enum sm_result on_aborting(struct sm *sm)
{
    if (of_sm(sm)->busy) {
        return SM_WAIT;
    }
    sm_move(sm, IN_GONE);
    return SM_AGAIN;
}

static enum sm_result on_gone(struct sm *sm) { return free_object(of_sm(sm)); }

/* --- one payload ---------------------------------------------------------------------------- */

static void on_written(struct store_req *req)
{
    struct in_write *write = container_of(req, struct in_write, req);
    struct diag diag = req->diag;
    write->object->way->end_write(write, req->status, &diag);
}

static void submit_write(struct in_write *write, uint64_t bytes, void *data)
{
    struct in_object *object = write->object;
    CHECK(sm_is(&object->sm, IN_WRITING));
    CHECK(write->payload != NULL);
    write->req = (struct store_req){.op = STORE_WRITE,
                                    .done = on_written,
                                    .run = object->writer->run,
                                    .object = object->id,
                                    .offset = write->offset,
                                    .bytes = bytes,
                                    .data = data};
    store_submit(object->writer->ingest->store, &write->req);
}

void in_write_submit(struct in_write *write)
{
    submit_write(write, round_up_u64(write->payload_bytes, LIMIT_ALIGN_BYTES), write->payload);
}

void in_write_known(struct in_write *write)
{
    CHECK(!write->known);
    write->known = true;
    write->object->known++;
    CHECK(write->object->known <= write->object->pending);
}

void in_write_leave(struct in_write *write)
{
    struct in_object *object = write->object;
    CHECK(object->pending > 0);
    object->pending--;
    object->known -= write->known;
    CHECK(object->known <= object->pending);
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

void in_object_enter(struct in_object *object, struct in_write *write, const struct msg_data *data)
{
    CHECK(!object->ended);
    CHECK(!in_object_has_failed(object));
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
    if (object->writer->first_ms == 0) {
        object->writer->first_ms = object->writer->fed_ms;
    }
}

/* --- from state to state -------------------------------------------------------------------- */

/* Enters the object with its chunks as durable. */
static int keep_durable(struct in_object *object)
{
    struct durable durable = {.sequence = object->id.sequence,
                              .envelope_count = object->envelope_count,
                              .piece_count = object->pieces ? object->chunk_count : 0,
                              .envelopes = object->envelopes,
                              .pieces = object->pieces};
    object->envelopes = NULL;
    object->pieces = NULL;
    return writer_add_durable(object->writer, &durable);
}

/* Goes to DURABLE if the store has done its part, or to FAILED. */
static enum sm_result become_durable(struct in_object *object, int status, const struct diag *diag)
{
    status = status != 0 ? status : keep_durable(object);
    if (status != 0) {
        /* OUTCOME_UNKNOWN is a failure too: the client sends the chunks again under a new sequence,
         * and gc finds the other object. */
        in_object_fail(object, status, diag_text(diag, status));
    } else {
        sm_move(&object->sm, IN_DURABLE);
    }
    return SM_AGAIN;
}

/* The state FILLING: waits for in_object_create(). An object whose chunks are all stored elsewhere
 * is durable as soon as it has ended. */
static enum sm_result on_filling(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    if (object->pending > 0 || !object->ended || !object->way) {
        return SM_WAIT;
    }
    CHECK(object->stored_bytes == 0);
    return become_durable(object, 0, NULL);
}

static void enter_creating(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    submit(object, (struct store_req){.op = STORE_CREATE, .bytes = object->bytes_max});
}

/* The states CREATING and FOOTER: wait for the store, and FOOTER for all payloads too. */
static enum sm_result on_answer(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    const struct store_req *req = &object->req;
    if (object->busy) {
        return SM_WAIT;
    }
    if (req->status != 0) {
        in_object_fail(object, req->status, diag_text(&req->diag, req->status));
    } else if (sm_is(sm, IN_CREATING)) {
        sm_move(sm, IN_WRITING);
    } else if (object->pending == 0) {
        sm_move(sm, IN_SEALING);
    } else {
        return SM_WAIT;
    }
    return SM_AGAIN;
}

/* Makes the footer of an object that has ended. Returns NO_MEMORY if there is no memory. */
static int make_footer(struct in_object *object)
{
    struct object_footer footer = {.id = object->id,
                                   .data_bytes = object->stored_bytes,
                                   .envelope_count = object->envelope_count,
                                   .envelopes = object->envelopes};
    uint64_t bytes = object_footer_bytes(footer.envelope_count);
    struct buf buf;
    buf_init(&buf, bytes);
    object_footer_encode(&footer, &buf);
    object->footer = aligned_alloc(POOL_ALIGN, bytes);
    bool made = buf_status(&buf) == 0 && object->footer;
    if (made) {
        CHECK(buf.bytes == bytes);
        memcpy(object->footer, buf.data, bytes);
    }
    buf_fini(&buf);
    return made ? 0 : CAIRN_E_NO_MEMORY;
}

/* Submits the one payload of a small object together with the footer: two writes at the same moment
 * take longer than one, where each of them is an operation of a cluster. Returns false if the
 * object is no such one, or if memory is short. */
static bool submit_whole(struct in_object *object)
{
    if (!object->ended || object->pending != 1 || object->known != 1 ||
        list_is_empty(&object->ready) || object->stored_bytes > WHOLE_BYTES_MAX) {
        return false;
    }
    struct in_write *write = list_item(object->ready.next, struct in_write, link);
    uint64_t at = round_up_u64(write->payload_bytes, LIMIT_ALIGN_BYTES);
    uint64_t footer_bytes = object_footer_bytes(object->envelope_count);
    if (write->offset != 0 || at != object->stored_bytes || make_footer(object) != 0) {
        return false;
    }
    uint8_t *whole = aligned_alloc(POOL_ALIGN, at + footer_bytes);
    if (!whole) {
        return false;
    }
    memcpy(whole, write->payload, at);
    memcpy(whole + at, object->footer, footer_bytes);
    free(object->footer);
    object->footer = whole;
    object->whole = true;
    list_remove(&write->link);
    submit_write(write, at + footer_bytes, whole);
    return true;
}

/* Called on entering WRITING: submits the payloads that wait for it. */
static void enter_writing(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    struct list *node;
    if (submit_whole(object)) {
        return;
    }
    while ((node = list_pop(&object->ready))) {
        in_write_submit(list_item(node, struct in_write, link));
    }
}

/* The state WRITING: waits for the end of the object, and until its footer is known. */
static enum sm_result on_writing(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    if (object->pending > object->known || !object->ended) {
        return SM_WAIT;
    }
    int status = object->footer ? 0 : make_footer(object);
    if (status != 0) {
        in_object_fail(object, status, "no memory for an object's footer");
    } else {
        sm_move(sm, IN_FOOTER);
    }
    return SM_AGAIN;
}

/* Called on entering FOOTER: writes it behind the data, unless it is in the write of the payload.
 */
static void enter_footer(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    if (object->whole) {
        return;
    }
    submit(object, (struct store_req){.op = STORE_WRITE,
                                      .offset = object->stored_bytes,
                                      .bytes = object_footer_bytes(object->envelope_count),
                                      .data = object->footer});
}

static void enter_sealing(struct sm *sm)
{
    submit(of_sm(sm), (struct store_req){.op = STORE_SEAL});
}

/* The state SEALING: waits until the object has its name in the store. */
static enum sm_result on_sealing(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    return object->busy ? SM_WAIT : become_durable(object, object->req.status, &object->req.diag);
}

/* The state DURABLE: tells the session, and frees the object. */
static enum sm_result on_durable(struct sm *sm)
{
    struct in_object *object = of_sm(sm);
    struct writer *writer = object->writer;
    object->way->durable(object);
    if (writer->user && !object->quiet) {
        writer->events.on_durable(writer->user, object->stream, &object->id);
    }
    writer_settled(writer);
    return free_object(object);
}

static const struct sm_state object_table[] = {
    [IN_FILLING] = {"filling", on_filling,
                    SM_TO(IN_CREATING) | SM_TO(IN_DURABLE) | SM_TO(IN_FAILED), 0},
    [IN_CREATING] = {"creating", on_answer, SM_TO(IN_WRITING) | SM_TO(IN_FAILED), 0,
                     enter_creating},
    [IN_WRITING] = {"writing", on_writing, SM_TO(IN_FOOTER) | SM_TO(IN_FAILED), 0, enter_writing},
    [IN_FOOTER] = {"footer", on_answer, SM_TO(IN_SEALING) | SM_TO(IN_FAILED), 0, enter_footer},
    [IN_SEALING] = {"sealing", on_sealing, SM_TO(IN_DURABLE) | SM_TO(IN_FAILED), 0, enter_sealing},
    [IN_DURABLE] = {"durable", on_durable, 0, SM_FINAL},
    [IN_FAILED] = {"failed", on_failed, SM_TO(IN_ABORTING) | SM_TO(IN_GONE), 0},
    [IN_ABORTING] = {"aborting", on_aborting, SM_TO(IN_GONE), 0, enter_aborting},
    [IN_GONE] = {"gone", on_gone, 0, SM_FINAL},
};

/* Returns whether it is known of every chunk where it is stored. */
static bool all_pieces_are_placed(const struct in_object *object)
{
    bool placed = true;
    for (uint32_t i = 0; object->pieces && placed && i < object->chunk_count; i++) {
        placed = object->pieces[i].where != WHERE_OPEN;
    }
    return placed;
}

/* CHECKs the invariant of an object that has just moved to another state. */
static void check_object(const struct sm *sm)
{
    const struct in_object *object = of_sm(sm);
    unsigned state = sm->state;
    bool exists = state >= IN_WRITING && state <= IN_SEALING;
    bool is_whole = state >= IN_FOOTER && state <= IN_DURABLE;
    CHECK(object->writer->refs > 0);
    CHECK(!object->busy || state == IN_FAILED);
    CHECK(!exists || object->created);
    CHECK(state != IN_CREATING || !object->created);
    CHECK(!is_whole || object->ended);
    CHECK(!is_whole || object->pending == object->known);
    CHECK(!is_whole || state == IN_FOOTER || object->pending == 0);
    CHECK(!is_whole || list_is_empty(&object->ready));
    CHECK(!is_whole || all_pieces_are_placed(object));
    CHECK(state != IN_FOOTER || object->footer != NULL);
    CHECK(state != IN_ABORTING || object->created);
    CHECK(state < IN_ABORTING || object->pending == 0);
}

/* --- what the others ask for ---------------------------------------------------------------- */

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
    sm_init(&object->sm, object_table, IN_FILLING, "object", object->id.sequence);
    object->sm.invariant = check_object;
    return object;
}

void in_object_create(struct in_object *object) { sm_move(&object->sm, IN_CREATING); }

void in_object_advance(struct in_object *object) { sm_run(&object->sm); }

void in_object_end(struct in_object *object)
{
    CHECK(!object->ended);
    object->ended = true;
    in_object_advance(object);
}

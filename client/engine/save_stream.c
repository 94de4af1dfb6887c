/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a save on their way: digests run ahead on workers; payloads go out from where they
 * lie in the arena, in order, each against one granted buffer of the server; object after object
 * without waiting for the ones before to be durable. An object's bytes never change, but each try
 * of sending it has a sequence of its own. Loop's thread.
 */
#include "engine/save_private.h"

#include "base/check.h"
#include "pipeline/chunk.h"

#include <string.h>

#define STREAM_BYTES_MAX ((size_t)4 << 30)

static const struct request_ops object_request_ops;

static struct save_object *next_object(struct save *save);

/* --- digests --------------------------------------------------------------------- */

static uint8_t element_bytes_of(const struct save *save, const struct layout_piece *piece)
{
    return piece->tensor & LAYOUT_BLOB
               ? 1
               : (uint8_t)(dtype_bits(save->set->tensors[piece->tensor].dtype) / 8);
}

static void on_digest_run(struct work *work)
{
    const struct save_digest *digest = container_of(work, struct save_digest, work);
    struct save *save = digest->save;
    const struct layout_payload *payload = &save->layout.payloads[digest->payload];
    for (uint32_t i = 0; i < payload->piece_count; i++) {
        const struct layout_piece *piece = &save->layout.pieces[payload->piece_first + i];
        struct envelope *envelope = &save->envelopes[payload->piece_first + i];
        chunk_seal_raw(piece->bytes, save->extent + payload->at + piece->at,
                       element_bytes_of(save, piece), envelope);
        envelope->offset = piece->at;
    }
}

/* The payload that is to be sent next; the number of payloads when none is. */
static uint32_t send_position(struct save *save)
{
    const struct save_object *object = next_object(save);
    if (!object) {
        return save->layout.payload_count;
    }
    return save->layout.objects[object - save->objects].payload_first +
           (object->state == OBJECT_SENDING ? object->next_payload : 0);
}

/* Not far ahead of the sending, which then finds the bytes in the cache. */
static void start_digests(struct save *save)
{
    uint32_t copied = snapshot_copied(&save->snapshot), end = send_position(save) + SAVE_LEAD;
    end = end < copied ? end : copied;
    unsigned most = save->copying ? SAVE_DIGESTS_COPYING : SAVE_DIGESTS;
    for (unsigned i = 0; i < most; i++) {
        struct save_digest *digest = &save->digests[i];
        if (!digest->busy && save->digest_next < end && !save_has_failed(save)) {
            digest->busy = true;
            digest->payload = save->digest_next++;
            save->digests_running++;
            work_submit(save->engine->options.pool, &digest->work);
        }
    }
}

static void on_digest_done(struct work *work)
{
    struct save_digest *digest = container_of(work, struct save_digest, work);
    struct save *save = digest->save;
    save->digested[digest->payload] = 1;
    digest->busy = false;
    save->digests_running--;
    start_digests(save);
    if (save_is_sending(save)) {
        engine_pump(save->engine);
    } else {
        save_wake(save);
    }
}

void save_digest_start(struct save *save) { start_digests(save); }

int save_stream_init(struct save *save, struct diag *diag)
{
    const struct layout *layout = &save->layout;
    scratch_init(&save->scratch, STREAM_BYTES_MAX);
    save->objects = scratch_array(&save->scratch, layout->object_count + 1, sizeof *save->objects);
    save->envelopes =
        scratch_array(&save->scratch, layout->piece_count + 1, sizeof *save->envelopes);
    save->digested = scratch_alloc(&save->scratch, layout->payload_count + 1);
    if (!save->objects || !save->envelopes || !save->digested) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a save of %u chunks",
                        layout->piece_count);
    }
    for (uint32_t i = 0; i < layout->object_count; i++) {
        save->objects[i].save = save;
        save->objects[i].request.ops = &object_request_ops;
    }
    for (unsigned i = 0; i < SAVE_DIGESTS; i++) {
        save->digests[i] = (struct save_digest){
            .save = save, .work = {.run = on_digest_run, .done = on_digest_done}};
    }
    return 0;
}

/* --- sending --------------------------------------------------------------------- */

static bool needs_sending(const struct save_object *object)
{
    return object->state == OBJECT_IDLE || object->state == OBJECT_SENDING;
}

/* The object whose payload is next; NULL: none is left. */
static struct save_object *next_object(struct save *save)
{
    while (save->object_at < save->layout.object_count &&
           !needs_sending(&save->objects[save->object_at])) {
        save->object_at++;
    }
    return save->object_at < save->layout.object_count ? &save->objects[save->object_at] : NULL;
}

uint64_t save_unsent(const struct save *save)
{
    uint64_t count = 0;
    if (!save_is_sending(save)) {
        return 0;
    }
    for (uint32_t i = save->object_at; i < save->layout.object_count && count < ENGINE_WINDOW;
         i++) {
        const struct save_object *object = &save->objects[i];
        if (needs_sending(object)) {
            count += save->layout.objects[i].payload_count -
                     (object->state == OBJECT_SENDING ? object->next_payload : 0);
        }
    }
    return count;
}

static void begin_object(struct save *save, struct save_object *object)
{
    object->sequence = save->engine->next_sequence++;
    object->has_sequence = true;
    object->next_payload = 0;
    object->state = OBJECT_SENDING;
    link_add(&save->engine->link, &object->request);
}

static void end_object(struct save *save, struct save_object *object, uint32_t idx)
{
    const struct layout_object *place = &save->layout.objects[idx];
    struct msg end = {.type = MSG_OBJECT_END,
                      .u.object_end = {.object = save_object_id(save, idx),
                                       .data_bytes = place->data_bytes,
                                       .envelope_count = place->piece_count}};
    object->state = OBJECT_ENDED;
    link_send(&save->engine->link, &object->request, &end);
}

static void send_payload(struct save *save, struct save_object *object, struct save_slot *slot)
{
    uint32_t idx = (uint32_t)(object - save->objects);
    const struct layout_object *place = &save->layout.objects[idx];
    const struct layout_payload *payload =
        &save->layout.payloads[place->payload_first + object->next_payload];
    struct msg data = {
        .type = MSG_DATA,
        .u.data = {.object = save_object_id(save, idx),
                   .offset = payload->at - place->at,
                   .object_bytes = place->data_bytes + object_footer_bytes(place->piece_count),
                   .envelope_count = payload->piece_count,
                   .envelopes = &save->envelopes[payload->piece_first]}};
    slot->bytes = payload->bytes;
    slot->is_data = true;
    slot->out.iov_count = 1;
    slot->out.iov[0] =
        (struct iovec){.iov_base = save->extent + payload->at, .iov_len = payload->bytes};
    save->engine->link.credits--;
    object->next_payload++;
    link_send_payload(&save->engine->link, &object->request, &data, &slot->out);
}

void save_pump(struct save *save)
{
    struct link *link = &save->engine->link;
    start_digests(save);
    while (save_is_sending(save) && link_is_up(link) && link->credits > 0) {
        struct save_object *object = next_object(save);
        if (!object) {
            return;
        }
        uint32_t idx = (uint32_t)(object - save->objects);
        const struct layout_object *place = &save->layout.objects[idx];
        uint32_t at = object->state == OBJECT_SENDING ? object->next_payload : 0;
        struct save_slot *slot =
            save->digested[place->payload_first + at] ? save_slot_take(save) : NULL;
        if (!slot) {
            return; /* on_digest_done or a slot's end calls again */
        }
        if (object->state == OBJECT_IDLE) {
            begin_object(save, object);
        }
        send_payload(save, object, slot);
        if (object->next_payload == place->payload_count) {
            end_object(save, object, idx);
        }
        start_digests(save);
    }
}

/* --- what the server says -------------------------------------------------------- */

static uint64_t object_plain_bytes(const struct save *save, uint32_t idx)
{
    const struct layout_object *place = &save->layout.objects[idx];
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < place->payload_count; i++) {
        bytes += save->layout.payloads[place->payload_first + i].bytes;
    }
    return bytes;
}

static void set_durable(struct save *save, uint32_t idx)
{
    save->objects[idx].state = OBJECT_DURABLE;
    save->durable_count++;
    atomic_fetch_add(&save->user->durable_bytes, object_plain_bytes(save, idx));
}

static void set_idle(struct save *save, uint32_t idx)
{
    struct save_object *object = &save->objects[idx];
    if (object->state == OBJECT_DURABLE) {
        save->durable_count--;
        atomic_fetch_sub(&save->user->durable_bytes, object_plain_bytes(save, idx));
    }
    object->state = OBJECT_IDLE;
    object->next_payload = 0;
    save->object_at = idx < save->object_at ? idx : save->object_at;
    save_part_void(save);
}

bool save_stream_is_durable(const struct save *save)
{
    return save->durable_count == save->layout.object_count;
}

/* Void on the server's side: again under a new sequence, a few times; what will not get better ends
 * the save. */
static void object_failed(struct save *save, struct save_object *object,
                          const struct msg_error *error)
{
    uint32_t idx = (uint32_t)(object - save->objects);
    struct diag diag = DIAG_INIT;
    int code = error->code < 0 ? error->code : CAIRN_E_PROTOCOL;
    diag_set(&diag, code, "object %u: %s", object->sequence,
             error->text && error->text[0] ? error->text : err_text(code));
    if (!save_is_sending(save)) {
        return;
    }
    bool again = code == CAIRN_E_DIGEST_MISMATCH || err_retry(code) == ERR_RETRY_RETRY;
    if (!again || ++object->failures > SAVE_TRIES) {
        save_fail(save, code, &diag);
        return;
    }
    set_idle(save, idx);
    engine_pump(save->engine);
}

static int on_object_reply(struct request *request, const struct frame *frame,
                           const struct msg *msg, void **ret_payload, struct diag *diag)
{
    struct save_object *object = container_of(request, struct save_object, request);
    struct save *save = object->save;
    uint32_t idx = (uint32_t)(object - save->objects);
    (void)frame;
    (void)ret_payload;
    if (msg->type == MSG_ERROR) {
        object_failed(save, object, &msg->u.error);
        return 0;
    }
    struct object_id id = save_object_id(save, idx);
    if (msg->type != MSG_OBJECT_DURABLE || object->state != OBJECT_ENDED ||
        !object_id_equal(&id, &msg->u.object_durable.object)) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%s for object %u, which was not ended",
                        msg_name(msg->type), object->sequence);
    }
    link_forget(&save->engine->link, request);
    set_durable(save, idx);
    save_wake(save);
    return 0;
}

static void on_object_lost(struct request *request)
{
    (void)request; /* save_on_down sees to all of them at once */
}

static const struct request_ops object_request_ops = {.on_reply = on_object_reply,
                                                      .on_lost = on_object_lost};

void save_stream_down(struct save *save)
{
    for (uint32_t i = 0; i < save->layout.object_count; i++) {
        if (save->objects[i].state != OBJECT_DURABLE) {
            set_idle(save, i);
        }
    }
}

static bool holds(const struct msg_held *held, uint32_t sequence)
{
    for (uint32_t i = 0; i < held->count; i++) {
        if (held->sequences[i] == sequence) {
            return true;
        }
    }
    return false;
}

void save_stream_held(struct save *save, const struct msg_held *held)
{
    for (uint32_t i = 0; i < save->layout.object_count; i++) {
        struct save_object *object = &save->objects[i];
        bool has = object->has_sequence && holds(held, object->sequence);
        if (has && object->state != OBJECT_DURABLE) {
            set_durable(save, i);
        } else if (!has && object->state == OBJECT_DURABLE) {
            set_idle(save, i);
        }
    }
}

void save_stream_forget(struct save *save)
{
    for (uint32_t i = 0; save->objects && i < save->layout.object_count; i++) {
        link_forget(&save->engine->link, &save->objects[i].request);
    }
}

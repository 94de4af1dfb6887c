/* SPDX-License-Identifier: Apache-2.0
 *
 * The objects of a save, whichever way the bytes go. Payloads go in order, object after object,
 * without waiting for earlier ones to become durable. The length of a payload is known only when
 * it is sent, because chunks that the base has are left out and others are encoded. So an object is
 * cut where the next payload would make it too long, and then keeps its payloads; each try of
 * sending it has a sequence of its own, which is never drawn again. Loop's thread.
 */
#include "save/save_send_private.h"

#include "base/check.h"

static const struct request_ops object_request_ops;

int save_objects_lay_out(struct save_send *send, struct diag *diag)
{
    const struct layout *layout = &send->room->layout;
    struct scratch *scratch = &send->room->scratch;
    const struct engine *engine = send->common->engine;
    bool encodes = engine->encode_pool.mode != ENCODE_NEVER;
    struct encode_state *states =
        encodes ? scratch_array(scratch, send->common->set->tensor_count + 1, sizeof *states)
                : NULL;
    send->objects = scratch_array(scratch, layout->object_count + 1, sizeof *send->objects);
    send->payloads = scratch_array(scratch, layout->payload_count + 1, sizeof *send->payloads);
    send->envelopes = scratch_array(scratch, layout->piece_count + 1, sizeof *send->envelopes);
    send->envelope_of = scratch_array(scratch, layout->piece_count + 1, sizeof *send->envelope_of);
    send->base->chunk_of =
        scratch_array(scratch, layout->piece_count + 1, sizeof *send->base->chunk_of);
    if (!send->objects || !send->payloads || !send->envelopes || !send->envelope_of ||
        !send->base->chunk_of || (encodes && !states)) {
        send->payloads = NULL;
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a save of %u chunks",
                        layout->piece_count);
    }
    send->states = states;
    send->object_bytes_most = layout_object_bytes(engine_layout_options(engine).object_bytes);
    return 0;
}

struct object_id save_object_id(const struct save_send *send, uint32_t object)
{
    const struct save_common *common = send->common;
    CHECK(object < send->object_count);
    CHECK(send->objects[object].has_sequence);
    return (struct object_id){.term = common->user->id.term,
                              .step = common->user->id.step,
                              .writer = common->engine->options.writer,
                              .rank = common->engine->options.rank,
                              .sequence = send->objects[object].sequence};
}

/* Returns whether bytes may go: the save has not failed, and the server takes them. */
static bool may_go(const struct save_send *send)
{
    return send->common->status == 0 && send->word != WORD_OVER &&
           link_is_up(&send->common->engine->link);
}

/* --- objects ----------------------------------------------------------------------- */

static bool needs_sending(const struct save_object *object)
{
    return object->state == OBJECT_IDLE || object->state == OBJECT_SENDING;
}

struct save_object *save_objects_next(struct save_send *send)
{
    while (send->object_at < send->object_count &&
           !needs_sending(&send->objects[send->object_at])) {
        send->object_at++;
    }
    return send->object_at < send->object_count ? &send->objects[send->object_at] : NULL;
}

uint32_t save_objects_position(const struct save_send *send)
{
    for (uint32_t i = send->object_at; i < send->object_count; i++) {
        if (needs_sending(&send->objects[i])) {
            return send->objects[i].next_payload;
        }
    }
    return send->assigned;
}

static bool is_ready(const struct save_send *send, uint32_t payload)
{
    return send->payloads[payload].state == PAYLOAD_READY;
}

/* Adds an object at the end. It has the payloads of a layout's object, or fewer bytes, so a save
 * never needs more objects than the layout has. */
static struct save_object *add_object(struct save_send *send)
{
    CHECK(send->object_count < send->room->layout.object_count);
    struct save_object *object = &send->objects[send->object_count++];
    *object = (struct save_object){.send = send,
                                   .request = {.ops = &object_request_ops},
                                   .payload_first = send->assigned,
                                   .next_payload = send->assigned};
    return object;
}

/* Gives back the encode buffers of payloads that wait to be sent, because payloads before them are
 * sent again and may need one. The waiting ones are encoded again. */
static void release_buffers(struct save_send *send)
{
    for (uint32_t i = 0; i < send->digest_next; i++) {
        struct save_payload *payload = &send->payloads[i];
        if (payload->state == PAYLOAD_READY && payload->buffer) {
            encode_pool_give_buffer(payload->buffer);
            payload->buffer = NULL;
            payload->state = PAYLOAD_IDLE;
        }
    }
}

/* Begins a try of sending the object, under a new sequence. Payloads that were sent from a side
 * buffer before must be encoded again. */
static void begin_object(struct save_send *send, struct save_object *object)
{
    uint32_t end = object->cut ? object->payload_end : send->digest_next;
    CHECK(object->state == OBJECT_IDLE);
    if (object->has_sequence) {
        release_buffers(send);
    }
    object->sequence = send->common->engine->next_sequence++;
    object->has_sequence = true;
    object->next_payload = object->payload_first;
    object->piece_count = 0;
    object->data_bytes = 0;
    object->plain_bytes = 0;
    object->state = OBJECT_SENDING;
    for (uint32_t i = object->payload_first; i < end; i++) {
        struct save_payload *payload = &send->payloads[i];
        if (payload->state == PAYLOAD_READY && payload->from_buffer && !payload->buffer) {
            payload->state = PAYLOAD_IDLE; /* sent before, and now to be encoded again */
        }
    }
    link_add(&send->common->engine->link, &object->request);
}

/* Ends the object after its last payload. An object that was not cut is cut here. */
static void end_object(struct save_send *send, struct save_object *object)
{
    struct msg end = {
        .type = MSG_OBJECT_END,
        .u.object_end = {.object = save_object_id(send, (uint32_t)(object - send->objects)),
                         .data_bytes = object->data_bytes,
                         .envelope_count = object->piece_count}};
    CHECK(object->state == OBJECT_SENDING);
    CHECK(object->next_payload >= object->payload_first);
    if (!object->cut) {
        object->cut = true;
        object->payload_end = object->next_payload;
        send->assigned = object->next_payload;
    }
    object->state = OBJECT_ENDED;
    link_send(&send->common->engine->link, &object->request, &end);
}

static bool has_room(const struct save_send *send, const struct save_object *object,
                     uint32_t payload)
{
    return object->piece_count == 0 ||
           (object->data_bytes + send->payloads[payload].bytes <= send->object_bytes_most &&
            object->piece_count < LAYOUT_OBJECT_PIECES_MAX);
}

/* Returns the most bytes that the object can have, its footer included. This is exact if nothing is
 * left out or encoded. Otherwise payloads that come out smaller make room for others behind them,
 * as far as an object may go. */
static uint64_t object_bytes_max(const struct save_send *send, const struct save_object *object)
{
    const struct layout *layout = &send->room->layout;
    uint32_t end = object->cut ? object->payload_end : layout->payload_count, pieces = 0;
    bool exact = object->cut || (!send->base->part && !send->states);
    uint64_t data = 0;
    for (uint32_t i = object->payload_first; i < end; i++) {
        bool ready = is_ready(send, i);
        if (!object->cut && save_room_ends(send->room, object->payload_first, i)) {
            break;
        }
        uint32_t bytes = ready ? send->payloads[i].bytes : layout->payloads[i].bytes;
        if (!object->cut && data > 0 &&
            (data + bytes > send->object_bytes_most || pieces >= LAYOUT_OBJECT_PIECES_MAX)) {
            data = exact ? data
                         : max_u64(data, round_up_u64(send->object_bytes_most, LIMIT_ALIGN_BYTES));
            pieces = exact ? pieces
                           : (uint32_t)min_u64(layout->piece_count,
                                               LAYOUT_OBJECT_PIECES_MAX + LAYOUT_PACK_PIECES_MAX);
            break;
        }
        pieces += ready ? send->payloads[i].new_count : layout->payloads[i].piece_count;
        data = round_up_u64(data + bytes, LIMIT_ALIGN_BYTES);
    }
    return data + object_footer_bytes(pieces);
}

/* --- sending ----------------------------------------------------------------------- */

/* Lets the next payload of the object go. */
static void send_payload(struct save_send *send, struct save_object *object)
{
    uint32_t idx = object->next_payload++;
    const struct layout_payload *place = &send->room->layout.payloads[idx];
    struct save_payload *payload = &send->payloads[idx];
    CHECK(object->state == OBJECT_SENDING);
    CHECK(is_ready(send, idx));
    payload->object = (uint32_t)(object - send->objects);
    payload->at = object->data_bytes;
    struct msg data = {.type = MSG_DATA,
                       .u.data = {.object = save_object_id(send, payload->object),
                                  .offset = payload->at,
                                  .object_bytes = object_bytes_max(send, object),
                                  .envelope_count = payload->new_count,
                                  .envelopes = &send->envelopes[place->piece_first]}};
    object->data_bytes = round_up_u64(object->data_bytes + payload->bytes, LIMIT_ALIGN_BYTES);
    object->piece_count += payload->new_count;
    object->plain_bytes += payload->new_plain_bytes;
    send->way->offer(send, object, &data, idx);
}

/* Steps over payloads that the base has as a whole. */
bool save_objects_find(const struct save_send *send, const struct save_object *object,
                       uint32_t *ret)
{
    uint32_t count = send->room->layout.payload_count;
    uint32_t end = object && object->cut ? object->payload_end : count;
    uint32_t at = object ? object->next_payload : send->assigned;
    while (at < end && is_ready(send, at) && send->payloads[at].new_count == 0) {
        at++;
    }
    *ret = at;
    return at == end || is_ready(send, at);
}

/* Makes one step of sending. Returns false if nothing can be done now. */
static bool pump_step(struct save_send *send)
{
    struct save_object *object = save_objects_next(send);
    uint32_t next;
    if (object && object->state == OBJECT_IDLE) {
        begin_object(send, object);
    }
    bool ready = save_objects_find(send, object, &next);
    if (!object) {
        uint32_t from = send->assigned;
        send->assigned = next;
        save_room_release(send->room, from, next);
        if (!ready || next == send->room->layout.payload_count) {
            return false;
        }
        object = add_object(send);
        begin_object(send, object);
    }
    object->next_payload = next;
    uint32_t end = object->cut ? object->payload_end : send->room->layout.payload_count;
    if (next == end || (!object->cut && save_room_ends(send->room, object->payload_first, next)) ||
        (ready && !object->cut && !has_room(send, object, next))) {
        end_object(send, object);
        return true;
    }
    if (!ready || (send->way->has_place && !send->way->has_place(send))) {
        return false; /* called again after a digest, a grant, or the end of a slot */
    }
    send_payload(send, object);
    return true;
}

void save_objects_pump(struct save_send *send)
{
    CHECK(send->way != NULL);
    while (may_go(send) && pump_step(send)) {
        send->way->prepare(send);
    }
    if (may_go(send) && send->way->rest) {
        send->way->rest(send);
    }
}

/* Returns how many payloads could use credit. Without a base every payload is sent; with one, only
 * those count that are known to be sent. Credit that is asked for in vain would be missing
 * elsewhere. */
uint64_t save_objects_unsent(const struct save_send *send)
{
    uint64_t count = 0;
    for (uint32_t i = send->object_at; i < send->object_count && count < ENGINE_WINDOW; i++) {
        const struct save_object *object = &send->objects[i];
        uint32_t end = object->cut ? object->payload_end : object->next_payload;
        for (uint32_t p = object->next_payload; needs_sending(object) && p < end; p++) {
            count += send->payloads[p].new_count > 0;
        }
    }
    uint32_t from = send->assigned;
    if (send->object_count > 0 && !send->objects[send->object_count - 1].cut) {
        from = send->objects[send->object_count - 1].next_payload;
    }
    for (uint32_t p = from; p < send->room->layout.payload_count && count < ENGINE_WINDOW; p++) {
        bool is_known = send->base->state == BASE_KNOWN && (!send->base->part || is_ready(send, p));
        if (!is_known) {
            break;
        }
        count += !send->base->part || send->payloads[p].new_count > 0;
    }
    return count;
}

/* --- what the server says ---------------------------------------------------------- */

void save_objects_release(struct save_send *send, const struct save_object *object)
{
    if (object->state == OBJECT_DURABLE && object->slots_busy == 0) {
        save_room_release(send->room, object->payload_first, object->payload_end);
    }
}

static void set_durable(struct save_send *send, uint32_t idx)
{
    struct save_object *object = &send->objects[idx];
    CHECK(object->has_sequence);
    CHECK(object->state != OBJECT_DURABLE);
    object->state = OBJECT_DURABLE;
    send->durable_count++;
    sink_rate_durable(&send->common->engine->encode_pool.rate, object->data_bytes,
                      loop_now_ms(send->common->engine->options.loop));
    atomic_fetch_add(&send->common->user->durable_bytes, object->plain_bytes);
    save_objects_release(send, object);
}

/* In waves, bytes of an object that was durable may be in the arena no more. */
static void fail_lost(struct save_send *send, const struct save_object *object)
{
    struct diag diag = DIAG_INIT;
    diag_set(&diag, CAIRN_E_DAMAGED,
             "object %u of this save was durable, the server does not hold it any more, and the "
             "arena, smaller than the save, had to give its bytes up: save again",
             object->sequence);
    save_fail(send->common, CAIRN_E_DAMAGED, &diag);
}

/* Marks the object as one that must be sent again. A part that was made with it is void. */
static void set_idle(struct save_send *send, uint32_t idx)
{
    struct save_object *object = &send->objects[idx];
    if (object->state == OBJECT_DURABLE) {
        CHECK(send->durable_count > 0);
        send->durable_count--;
        atomic_fetch_sub(&send->common->user->durable_bytes, object->plain_bytes);
    }
    object->state = OBJECT_IDLE;
    object->next_payload = object->payload_first;
    send->object_at = idx < send->object_at ? idx : send->object_at;
    send->round++;
}

bool save_objects_are_durable(const struct save_send *send)
{
    return send->durable_count == send->object_count &&
           send->assigned == send->room->layout.payload_count;
}

/* The server has dropped the object: it is sent again under a new sequence, a few times. So it does
 * not matter whether the old one was stored. An error that will not pass ends the save. */
static void object_failed(struct save_send *send, struct save_object *object,
                          const struct msg_error *error)
{
    uint32_t idx = (uint32_t)(object - send->objects);
    struct diag diag = DIAG_INIT;
    int code = engine_read_error(error, &diag);
    diag_add(&diag, "object %u", object->sequence);
    if (send->common->status != 0 || send->word == WORD_OVER) {
        return;
    }
    if (code == CAIRN_E_ABORTED) {
        send->word = WORD_OVER;
        save_wake(send->common);
        return;
    }
    bool again = code == CAIRN_E_DIGEST_MISMATCH || code == CAIRN_E_OUTCOME_UNKNOWN ||
                 err_retry(code) == ERR_RETRY_RETRY;
    if (!again || ++object->failures > SAVE_TRIES) {
        save_fail(send->common, code, &diag);
        return;
    }
    set_idle(send, idx);
    engine_pump(send->common->engine);
}

/* Takes OBJECT_DURABLE or ERROR for an object. */
static int on_object_reply(struct request *request, const struct frame *frame,
                           const struct msg *msg, void **ret_payload, struct diag *diag)
{
    struct save_object *object = container_of(request, struct save_object, request);
    struct save_send *send = object->send;
    uint32_t idx = (uint32_t)(object - send->objects);
    (void)frame;
    (void)ret_payload;
    if (msg->type == MSG_ERROR) {
        object_failed(send, object, &msg->u.error);
        return 0;
    }
    struct object_id id = save_object_id(send, idx);
    if (object->state != OBJECT_ENDED || !object_id_equal(&id, &msg->u.object_durable.object)) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%s for object %u, which was not ended",
                        msg_name(msg->type), object->sequence);
    }
    link_forget(&send->common->engine->link, request);
    set_durable(send, idx);
    if (save_objects_are_durable(send)) {
        sink_rate_end(&send->common->engine->encode_pool.rate);
    }
    save_wake(send->common);
    return 0;
}

static void on_object_lost(struct request *request)
{
    (void)request; /* on_down in save.c handles all requests at once */
}

static const struct request_ops object_request_ops = {.on_reply = on_object_reply,
                                                      .on_lost = on_object_lost};

void save_objects_down(struct save_send *send)
{
    sink_rate_end(&send->common->engine->encode_pool.rate);
    release_buffers(send);
    for (uint32_t i = 0; i < send->object_count; i++) {
        if (send->objects[i].state != OBJECT_DURABLE) {
            set_idle(send, i);
        }
    }
}

void save_objects_restart(struct save_send *send)
{
    for (uint32_t i = 0; i < send->object_count; i++) {
        set_idle(send, i);
        send->objects[i].has_sequence = false; /* what is stored under it is not asked for */
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

int save_objects_held(struct save_send *send, const struct msg_held *held, struct diag *diag)
{
    for (uint32_t i = 0; i < send->object_count; i++) {
        struct save_object *object = &send->objects[i];
        bool has = object->has_sequence && holds(held, object->sequence);
        if (has && !object->cut) {
            return diag_set(diag, CAIRN_E_PROTOCOL,
                            "the server holds object %u, whose end was never sent",
                            object->sequence);
        }
        if (has && object->state != OBJECT_DURABLE) {
            link_forget(&send->common->engine->link, &object->request);
            set_durable(send, i);
        } else if (!has && object->state == OBJECT_DURABLE) {
            if (!save_room_has(send->room, object->payload_first, object->payload_end)) {
                fail_lost(send, object);
                return 0;
            }
            set_idle(send, i);
        }
    }
    return 0;
}

void save_objects_forget(struct save_send *send)
{
    for (uint32_t i = 0; send->objects && i < send->object_count; i++) {
        link_forget(&send->common->engine->link, &send->objects[i].request);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a save on their way. Payloads are sent in order, from the arena or from a side
 * buffer, each against one granted buffer of the server, and object after object without waiting
 * for earlier ones to become durable. What goes into an object is known only when it is sent,
 * because chunks that the base has are left out and others are encoded. So an object is cut where
 * the next payload would make it too long, and then keeps its payloads; each try of sending it has
 * a sequence of its own. Loop's thread.
 */
#include "save/save_private.h"

#include "base/check.h"

#include <string.h>

#define STREAM_BYTES_MAX ((size_t)4 << 30)

static const struct request_ops object_request_ops;

int save_stream_init(struct save *save, struct diag *diag)
{
    const struct layout *layout = &save->layout;
    struct scratch *scratch = &save->scratch;
    scratch_init(scratch, STREAM_BYTES_MAX);
    save->objects = scratch_array(scratch, layout->object_count + 1, sizeof *save->objects);
    save->payloads = scratch_array(scratch, layout->payload_count + 1, sizeof *save->payloads);
    save->envelopes = scratch_array(scratch, layout->piece_count + 1, sizeof *save->envelopes);
    save->envelope_of = scratch_array(scratch, layout->piece_count + 1, sizeof *save->envelope_of);
    save->base_of = scratch_array(scratch, layout->piece_count + 1, sizeof *save->base_of);
    bool encodes = save->common.engine->kit.mode != ENCODE_NEVER;
    save->states =
        encodes ? scratch_array(scratch, save->common.set->tensor_count + 1, sizeof *save->states)
                : NULL;
    if (!save->objects || !save->payloads || !save->envelopes || !save->envelope_of ||
        !save->base_of || (encodes && !save->states)) {
        save->states = NULL;
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a save of %u chunks",
                        layout->piece_count);
    }
    save->object_bytes_most =
        layout_object_bytes(engine_layout_options(save->common.engine).object_bytes);
    save_digest_init(save);
    return 0;
}

/* --- objects ----------------------------------------------------------------------- */

static bool needs_sending(const struct save_object *object)
{
    return object->state == OBJECT_IDLE || object->state == OBJECT_SENDING;
}

struct save_object *save_stream_object(struct save *save)
{
    while (save->object_at < save->object_count &&
           !needs_sending(&save->objects[save->object_at])) {
        save->object_at++;
    }
    return save->object_at < save->object_count ? &save->objects[save->object_at] : NULL;
}

uint32_t save_stream_position(const struct save *save)
{
    for (uint32_t i = save->object_at; i < save->object_count; i++) {
        if (needs_sending(&save->objects[i])) {
            return save->objects[i].next_payload;
        }
    }
    return save->assigned;
}

static bool is_ready(const struct save *save, uint32_t payload)
{
    return save->payloads[payload].state == PAYLOAD_READY;
}

/* Adds an object at the end. It has the payloads of a layout's object, or fewer bytes, so a save
 * never needs more objects than the layout has. */
static struct save_object *add_object(struct save *save)
{
    CHECK(save->object_count < save->layout.object_count);
    struct save_object *object = &save->objects[save->object_count++];
    *object = (struct save_object){.save = save,
                                   .request = {.ops = &object_request_ops},
                                   .payload_first = save->assigned,
                                   .next_payload = save->assigned};
    return object;
}

/* Gives back the side buffers of payloads that wait to be sent, because payloads before them are
 * sent again and may need one. The waiting ones are encoded again. */
static void release_sides(struct save *save)
{
    for (uint32_t i = 0; i < save->digest_next; i++) {
        struct save_payload *payload = &save->payloads[i];
        if (payload->state == PAYLOAD_READY && payload->side) {
            encode_kit_give_side(payload->side);
            payload->side = NULL;
            payload->state = PAYLOAD_IDLE;
        }
    }
}

/* Begins a try of sending the object, under a new sequence. Payloads that were sent from a side
 * buffer before must be encoded again. */
static void begin_object(struct save *save, struct save_object *object)
{
    uint32_t end = object->cut ? object->payload_end : save->digest_next;
    if (object->has_sequence) {
        release_sides(save);
    }
    object->sequence = save->common.engine->next_sequence++;
    object->has_sequence = true;
    object->next_payload = object->payload_first;
    object->piece_count = 0;
    object->data_bytes = 0;
    object->plain_bytes = 0;
    object->state = OBJECT_SENDING;
    for (uint32_t i = object->payload_first; i < end; i++) {
        struct save_payload *payload = &save->payloads[i];
        if (payload->state == PAYLOAD_READY && payload->from_side && !payload->side) {
            payload->state = PAYLOAD_IDLE; /* sent before, and now to be encoded again */
        }
    }
    link_add(&save->common.engine->link, &object->request);
}

/* Ends the object after its last payload. An object that was not cut is cut here. */
static void end_object(struct save *save, struct save_object *object)
{
    struct msg end = {
        .type = MSG_OBJECT_END,
        .u.object_end = {.object = save_object_id(save, (uint32_t)(object - save->objects)),
                         .data_bytes = object->data_bytes,
                         .envelope_count = object->piece_count}};
    if (!object->cut) {
        object->cut = true;
        object->payload_end = object->next_payload;
        save->assigned = object->next_payload;
    }
    object->state = OBJECT_ENDED;
    link_send(&save->common.engine->link, &object->request, &end);
}

static bool has_room(const struct save *save, const struct save_object *object, uint32_t payload)
{
    return object->piece_count == 0 ||
           (object->data_bytes + save->payloads[payload].bytes <= save->object_bytes_most &&
            object->piece_count < LAYOUT_OBJECT_PIECES_MAX);
}

/* Returns the most bytes that the object can have, its footer included. This is exact if nothing is
 * left out or encoded. Otherwise payloads that come out smaller make room for others behind them,
 * as far as an object may go. */
static uint64_t object_bytes_max(const struct save *save, const struct save_object *object)
{
    const struct layout *layout = &save->layout;
    uint32_t end = object->cut ? object->payload_end : layout->payload_count, pieces = 0;
    bool exact = object->cut || (!save->base && !save->states);
    uint64_t data = 0;
    for (uint32_t i = object->payload_first; i < end; i++) {
        bool ready = is_ready(save, i);
        if (!object->cut && save_room_ends(save, object, i)) {
            break;
        }
        uint32_t bytes = ready ? save->payloads[i].bytes : layout->payloads[i].bytes;
        if (!object->cut && data > 0 &&
            (data + bytes > save->object_bytes_most || pieces >= LAYOUT_OBJECT_PIECES_MAX)) {
            data = exact ? data
                         : max_u64(data, round_up_u64(save->object_bytes_most, LIMIT_ALIGN_BYTES));
            pieces = exact ? pieces
                           : (uint32_t)min_u64(layout->piece_count,
                                               LAYOUT_OBJECT_PIECES_MAX + LAYOUT_PACK_PIECES_MAX);
            break;
        }
        pieces += ready ? save->payloads[i].new_count : layout->payloads[i].piece_count;
        data = round_up_u64(data + bytes, LIMIT_ALIGN_BYTES);
    }
    return data + object_footer_bytes(pieces);
}

/* --- slots --- */

/* Called when the socket has the payload, or has lost it. Its memory may then be given back. */
static void on_slot_done(struct conn_out *out, int status)
{
    struct save_slot *slot = container_of(out, struct save_slot, out);
    struct save *save = slot->save;
    slot->busy = false;
    save->slots_busy--;
    encode_kit_give_side(slot->side);
    slot->side = NULL;
    if (slot->object) {
        slot->object->slots_busy--;
        atomic_fetch_add(&save->common.user->sent_bytes, status == 0 ? slot->bytes : 0);
        save_room_release(save, slot->object);
    }
    if (save_is_sending(save)) {
        engine_pump(save->common.engine);
    } else {
        save_wake(&save->common);
    }
}

struct save_slot *save_slot_take(struct save *save)
{
    for (unsigned i = 0; i < SAVE_SLOTS; i++) {
        struct save_slot *slot = &save->slots[i];
        if (!slot->busy) {
            slot->busy = true;
            slot->side = NULL;
            slot->save = save;
            slot->object = NULL;
            slot->out = (struct conn_out){.done = on_slot_done};
            save->slots_busy++;
            return slot;
        }
    }
    return NULL;
}

/* --- sending ----------------------------------------------------------------------- */

/* Lets the connection send from the arena's file, without a copy. The bytes are left alone until
 * the object is durable or the opening is decided. Bytes of an aborted opening that are still on
 * their way may be overwritten by the next save; their receiver finds the digests wrong, and drops
 * them with everything else of that opening. */
static void send_from_arena(const struct save *save, struct conn_out *out)
{
    const struct arena *arena = save->common.engine->options.arena;
    out->in_file = arena_fd(arena) >= 0;
    out->file = arena_fd(arena);
    out->file_at = arena_offset(arena, out->iov[0].iov_base);
}

/* Sends the next payload of the object through the slot, or describes it if slot is NULL. */
static void send_payload(struct save *save, struct save_object *object, struct save_slot *slot)
{
    uint32_t idx = object->next_payload++;
    const struct layout_payload *place = &save->layout.payloads[idx];
    struct save_payload *payload = &save->payloads[idx];
    payload->object = (uint32_t)(object - save->objects);
    payload->at = object->data_bytes;
    struct msg data = {.type = MSG_DATA,
                       .u.data = {.object = save_object_id(save, payload->object),
                                  .offset = payload->at,
                                  .object_bytes = object_bytes_max(save, object),
                                  .envelope_count = payload->new_count,
                                  .envelopes = &save->envelopes[place->piece_first]}};
    object->data_bytes = round_up_u64(object->data_bytes + payload->bytes, LIMIT_ALIGN_BYTES);
    object->piece_count += payload->new_count;
    object->plain_bytes += payload->new_plain_bytes;
    if (!slot) {
        save_hand_describe(save, object, &data.u.data, idx);
        return;
    }
    CHECK(payload->side != NULL || !payload->from_side);
    uint8_t *bytes = payload->side ? payload->side->memory : save_payload_data(save, idx);
    slot->bytes = payload->bytes;
    slot->object = object;
    object->slots_busy++;
    slot->side = payload->side;
    payload->side = NULL;
    slot->out.iov_count = 1;
    slot->out.iov[0] = (struct iovec){.iov_base = bytes, .iov_len = payload->bytes};
    if (!slot->side) {
        send_from_arena(save, &slot->out);
    }
    save->common.engine->link.credits--;
    sink_rate_begin(&save->common.engine->kit.rate, loop_now_ms(save->common.engine->options.loop));
    link_send_payload(&save->common.engine->link, &object->request, &data, &slot->out);
}

/* Steps over payloads that the base has as a whole, and gives the payload that comes next. Returns
 * false if that one is not ready yet. */
static bool find_next(struct save *save, const struct save_object *object, uint32_t *ret)
{
    uint32_t count = save->layout.payload_count;
    uint32_t end = object && object->cut ? object->payload_end : count;
    uint32_t at = object ? object->next_payload : save->assigned;
    while (at < end && is_ready(save, at) && save->payloads[at].new_count == 0) {
        at++;
    }
    *ret = at;
    return at == end || is_ready(save, at);
}

/* Makes one step of sending. Returns false if nothing can be done now. */
static bool pump_step(struct save *save)
{
    struct save_object *object = save_stream_object(save);
    uint32_t next;
    if (object && object->state == OBJECT_IDLE) {
        begin_object(save, object);
    }
    bool ready = find_next(save, object, &next);
    if (!object) {
        save_room_release_range(save, save->assigned, next);
        save->assigned = next;
        if (!ready || next == save->layout.payload_count) {
            return false;
        }
        object = add_object(save);
        begin_object(save, object);
    }
    object->next_payload = next;
    uint32_t end = object->cut ? object->payload_end : save->layout.payload_count;
    if (next == end || (!object->cut && save_room_ends(save, object, next)) ||
        (ready && !object->cut && !has_room(save, object, next))) {
        end_object(save, object);
        return true;
    }
    bool by_hand = save->way == WAY_HAND;
    struct save_slot *slot =
        ready && !by_hand && save->common.engine->link.credits > 0 ? save_slot_take(save) : NULL;
    if (!ready || (!slot && !by_hand)) {
        return false; /* called again after a digest, a grant, or the end of a slot */
    }
    send_payload(save, object, slot);
    return true;
}

void save_pump(struct save *save)
{
    struct link *link = &save->common.engine->link;
    if (save_is_sending(save) && !save_hand_choose(save)) {
        return;
    }
    save_digest_start(save);
    while (save_is_sending(save) && link_is_up(link) && pump_step(save)) {
        save_digest_start(save);
    }
    if (save_is_sending(save) && save->way == WAY_SOCKET) {
        uint32_t next;
        bool is_starved = link->credits > 0 && !find_next(save, save_stream_object(save), &next);
        sink_rate_starved(&save->common.engine->kit.rate, is_starved,
                          loop_now_ms(save->common.engine->options.loop));
        save_digest_start(save);
    }
    if (save_is_sending(save) && save_is_sent(save)) {
        save_wake(&save->common);
    }
}

/* Returns how many payloads could use credit. Without a base every payload is sent; with one, only
 * those count that are known to be sent. Credit that is asked for in vain would be missing
 * elsewhere. */
uint64_t save_unsent(const struct save *save)
{
    uint64_t count = 0;
    if (!save_is_sending(save) || save->way != WAY_SOCKET) {
        return 0;
    }
    for (uint32_t i = save->object_at; i < save->object_count && count < ENGINE_WINDOW; i++) {
        const struct save_object *object = &save->objects[i];
        uint32_t end = object->cut ? object->payload_end : object->next_payload;
        for (uint32_t p = object->next_payload; needs_sending(object) && p < end; p++) {
            count += save->payloads[p].new_count > 0;
        }
    }
    uint32_t from = save->assigned;
    if (save->object_count > 0 && !save->objects[save->object_count - 1].cut) {
        from = save->objects[save->object_count - 1].next_payload;
    }
    for (uint32_t p = from; p < save->layout.payload_count && count < ENGINE_WINDOW; p++) {
        bool is_known = save->base_known && (!save->base || is_ready(save, p));
        if (!is_known) {
            break;
        }
        count += !save->base || save->payloads[p].new_count > 0;
    }
    return count;
}

/* --- what the server says ---------------------------------------------------------- */

static void set_durable(struct save *save, uint32_t idx)
{
    struct save_object *object = &save->objects[idx];
    object->state = OBJECT_DURABLE;
    save->durable_count++;
    sink_rate_durable(&save->common.engine->kit.rate, object->data_bytes,
                      loop_now_ms(save->common.engine->options.loop));
    atomic_fetch_add(&save->common.user->durable_bytes, object->plain_bytes);
    save_room_release(save, object);
}

/* In waves, bytes of an object that was durable may be in the arena no more. */
static void fail_lost(struct save *save, const struct save_object *object)
{
    struct diag diag = DIAG_INIT;
    diag_set(&diag, CAIRN_E_DAMAGED,
             "object %u of this save was durable, the server does not hold it any more, and the "
             "arena, smaller than the save, had to give its bytes up: save again",
             object->sequence);
    save_fail(save, CAIRN_E_DAMAGED, &diag);
}

/* Marks the object as one that must be sent again. A part that was made with it is void. */
static void set_idle(struct save *save, uint32_t idx)
{
    struct save_object *object = &save->objects[idx];
    if (object->state == OBJECT_DURABLE) {
        save->durable_count--;
        atomic_fetch_sub(&save->common.user->durable_bytes, object->plain_bytes);
    }
    object->state = OBJECT_IDLE;
    object->next_payload = object->payload_first;
    save->object_at = idx < save->object_at ? idx : save->object_at;
    save_part_void(save);
}

bool save_stream_is_durable(const struct save *save)
{
    return save->durable_count == save->object_count &&
           save->assigned == save->layout.payload_count;
}

/* The server has dropped the object: it is sent again under a new sequence, a few times. An error
 * that will not pass ends the save. */
static void object_failed(struct save *save, struct save_object *object,
                          const struct msg_error *error)
{
    uint32_t idx = (uint32_t)(object - save->objects);
    struct diag diag = DIAG_INIT;
    int code = error->code < 0 ? error->code : CAIRN_E_PROTOCOL;
    diag_set(&diag, code, "object %u: %s", object->sequence,
             error->text && error->text[0] ? error->text : err_text(code));
    if (!save_is_sending(save) && save->way != WAY_HAND) {
        return;
    }
    if (code == CAIRN_E_ABORTED) {
        save->ended = true;
        save_wake(&save->common);
        return;
    }
    bool again = code == CAIRN_E_DIGEST_MISMATCH || err_retry(code) == ERR_RETRY_RETRY;
    if (!again || ++object->failures > SAVE_TRIES) {
        save_fail(save, code, &diag);
        return;
    }
    set_idle(save, idx);
    engine_pump(save->common.engine);
}

/* Takes OBJECT_DURABLE or ERROR for an object. */
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
    link_forget(&save->common.engine->link, request);
    set_durable(save, idx);
    if (save_stream_is_durable(save)) {
        sink_rate_end(&save->common.engine->kit.rate);
    }
    save_wake(&save->common);
    return 0;
}

static void on_object_lost(struct request *request)
{
    (void)request; /* on_down in save.c handles all requests at once */
}

static const struct request_ops object_request_ops = {.on_reply = on_object_reply,
                                                      .on_lost = on_object_lost};

void save_stream_down(struct save *save)
{
    sink_rate_end(&save->common.engine->kit.rate);
    release_sides(save);
    for (uint32_t i = 0; i < save->object_count; i++) {
        if (save->objects[i].state != OBJECT_DURABLE) {
            set_idle(save, i);
        }
    }
}

void save_stream_restart(struct save *save)
{
    for (uint32_t i = 0; i < save->object_count; i++) {
        set_idle(save, i);
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
    for (uint32_t i = 0; i < save->object_count; i++) {
        struct save_object *object = &save->objects[i];
        bool has = object->has_sequence && holds(held, object->sequence);
        if (has && object->state != OBJECT_DURABLE) {
            set_durable(save, i);
        } else if (!has && object->state == OBJECT_DURABLE) {
            if (!save_room_has(save, object)) {
                fail_lost(save, object);
                return;
            }
            set_idle(save, i);
        }
    }
}

void save_stream_forget(struct save *save)
{
    for (uint32_t i = 0; save->objects && i < save->object_count; i++) {
        link_forget(&save->common.engine->link, &save->objects[i].request);
    }
}

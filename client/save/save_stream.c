/* SPDX-License-Identifier: Apache-2.0
 *
 * The way through the socket. Payloads are digested on workers of this process (save_digest.c) and
 * sent from the arena or from an encode buffer, each against one granted buffer of the server. A
 * slot holds what the connection borrows until it has sent it. Loop's thread.
 */
#include "save/save_send_private.h"

#include "base/check.h"

/* Called when the socket has the payload, or has lost it. Its memory may then be given back. */
static void on_slot_done(struct conn_out *out, int status)
{
    struct save_slot *slot = container_of(out, struct save_slot, out);
    struct save_send *send = slot->send;
    CHECK(slot->busy);
    CHECK(send->slots_busy > 0);
    slot->busy = false;
    send->slots_busy--;
    encode_pool_give_buffer(slot->buffer);
    slot->buffer = NULL;
    if (slot->object) {
        slot->object->slots_busy--;
        atomic_fetch_add(&send->common->user->sent_bytes, status == 0 ? slot->bytes : 0);
        save_objects_release(send, slot->object);
    }
    engine_pump(send->common->engine); /* the slot is free for another payload */
    save_wake(send->common);
}

struct save_slot *save_slot_take(struct save_send *send)
{
    for (unsigned i = 0; i < SAVE_SLOTS; i++) {
        struct save_slot *slot = &send->slots[i];
        if (!slot->busy) {
            slot->busy = true;
            slot->buffer = NULL;
            slot->send = send;
            slot->object = NULL;
            slot->out = (struct conn_out){.done = on_slot_done};
            send->slots_busy++;
            return slot;
        }
    }
    return NULL;
}

/* Lets the connection send from the arena's file, without a copy. The bytes are left alone until
 * the object is durable or the opening is decided. Bytes of an aborted opening that are still on
 * their way may be overwritten by the next save; their receiver finds the digests wrong, and drops
 * them with everything else of that opening. */
static void send_from_arena(const struct save_send *send, struct conn_out *out)
{
    const struct arena *arena = send->common->engine->options.arena;
    out->in_file = arena_fd(arena) >= 0;
    out->file = arena_fd(arena);
    out->file_at = arena_offset(arena, out->iov[0].iov_base);
}

/* A payload needs a grant, and a slot until the connection has taken it. */
static bool has_place(const struct save_send *send)
{
    return send->common->engine->link.credits > 0 && send->slots_busy < SAVE_SLOTS;
}

/* Sends a payload. Its encode buffer, if it has one, goes back when the socket has the bytes. */
static void offer(struct save_send *send, struct save_object *object, const struct msg *data,
                  uint32_t idx)
{
    struct engine *engine = send->common->engine;
    struct save_payload *payload = &send->payloads[idx];
    struct save_slot *slot = save_slot_take(send);
    CHECK(slot != NULL);
    CHECK(engine->link.credits > 0);
    CHECK(payload->buffer != NULL || !payload->from_buffer);
    uint8_t *bytes = payload->buffer ? payload->buffer->memory : save_room_data(send->room, idx);
    slot->bytes = payload->bytes;
    slot->object = object;
    object->slots_busy++;
    slot->buffer = payload->buffer;
    payload->buffer = NULL;
    slot->out.iov_count = 1;
    slot->out.iov[0] = (struct iovec){.iov_base = bytes, .iov_len = payload->bytes};
    if (!slot->buffer) {
        send_from_arena(send, &slot->out);
    }
    engine->link.credits--;
    sink_rate_begin(&engine->encode_pool.rate, loop_now_ms(engine->options.loop));
    link_send_payload(&engine->link, &object->request, data, &slot->out);
}

/* Notes whether credit lies idle because no payload is ready, and makes more ready. */
static void rest(struct save_send *send)
{
    struct engine *engine = send->common->engine;
    uint32_t next;
    bool is_starved =
        engine->link.credits > 0 && !save_objects_find(send, save_objects_next(send), &next);
    sink_rate_starved(&engine->encode_pool.rate, is_starved, loop_now_ms(engine->options.loop));
    save_digest_start(send);
}

/* What is durable may have been described to a daemon before, and then its digests must still be
 * made for the part. */
static bool ended(const struct save_send *send)
{
    return save_objects_are_durable(send) && send->digest_next == send->room->layout.payload_count;
}

static void complete(struct save_send *send, struct request *request, const struct msg_seal *seal)
{
    struct msg msg = {.type = MSG_SEAL, .u.seal = *seal};
    link_send(&send->common->engine->link, request, &msg);
}

const struct save_way save_way_socket = {.digests_here = true,
                                         .takes_credit = true,
                                         .prepare = save_digest_start,
                                         .has_place = has_place,
                                         .offer = offer,
                                         .rest = rest,
                                         .ended = ended,
                                         .complete = complete};

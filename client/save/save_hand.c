/* SPDX-License-Identifier: Apache-2.0
 *
 * The way by hand-over: the daemon of this host reads the arena, and the client only says what lies
 * where. No digest is made here and no credit is used. Each payload is described as soon as it is
 * copied, with the digest of the base's chunk at the same place and the encoding to use. When all
 * payloads are described, the client sends the part, without digests, and COMPLETE; after the
 * daemon's HANDED this process may die. The daemon writes into the part what became of each chunk.
 *
 * Invariant, which keeps the right bytes under the right name: memory that was described (`lent`)
 * is not written before the daemon has said what became of the opening. If it never says so, the
 * arena of the extent is retired, and the next save makes a new one. Loop's thread.
 */
#include "save/save_send_private.h"

#include "base/check.h"

/* Returns whether the daemon compares and encodes what it is handed. In waves it cannot: after a
 * restart it finds what it stored by the digests of the bytes, which are gone by then. */
bool save_hand_packs(const struct save_send *send)
{
    return send->common->engine->link.hands_packed && !send->room->waves;
}

bool save_hand_may(const struct save_send *send)
{
    const struct engine *engine = send->common->engine;
    return engine->link.hands_over && !engine->hand.refused &&
           engine->options.transport != TRANSPORT_SOCKET &&
           (save_hand_packs(send) || engine->encode_pool.mode != ENCODE_DENSEST);
}

/* --- describing -------------------------------------------------------------------- */

static uint8_t element_bytes_of(const struct save_send *send, const struct layout_piece *piece)
{
    return piece->tensor & LAYOUT_BLOB
               ? 1
               : (uint8_t)(dtype_bits(send->common->set->tensors[piece->tensor].dtype) / 8);
}

/* Makes the envelopes of what is copied, so that it may be described. */
static void prepare(struct save_send *send)
{
    uint32_t copied = snapshot_copied(send->snapshot);
    if (send->digest_next == copied) {
        return;
    }
    for (; send->digest_next < copied; send->digest_next++) {
        const struct layout_payload *place = &send->room->layout.payloads[send->digest_next];
        uint32_t plain_bytes = 0;
        for (uint32_t i = 0; i < place->piece_count; i++) {
            uint32_t idx = place->piece_first + i;
            const struct layout_piece *piece = &send->room->layout.pieces[idx];
            plain_bytes += piece->bytes;
            send->envelope_of[idx] = idx;
            send->envelopes[idx] =
                (struct envelope){.offset = piece->at,
                                  .stored_bytes = piece->bytes,
                                  .plain_bytes = piece->bytes,
                                  .encoding = ENCODING_RAW,
                                  .digest_alg = DIGEST_XXH3_128,
                                  .element_bytes = element_bytes_of(send, piece)};
            const struct digest *known = save_base_digest(send->base, idx);
            if (known) {
                send->envelopes[idx].digest = *known;
            }
        }
        send->payloads[send->digest_next] = (struct save_payload){.state = PAYLOAD_READY,
                                                                  .bytes = place->bytes,
                                                                  .new_count = place->piece_count,
                                                                  .new_plain_bytes = plain_bytes};
    }
    engine_pump(send->common->engine);
}

/* Adds what the daemon needs to know to compare and encode. dtypes is memory for one dtype a
 * piece. */
static void describe_packing(struct save_send *send, uint32_t payload, uint32_t *dtypes,
                             struct msg_describe *describe)
{
    const struct layout_payload *place = &send->room->layout.payloads[payload];
    const struct registered *set = send->common->set;
    for (uint32_t i = 0; i < place->piece_count; i++) {
        const struct layout_piece *piece = &send->room->layout.pieces[place->piece_first + i];
        dtypes[i] = piece->tensor & LAYOUT_BLOB ? 0 : set->tensors[piece->tensor].dtype;
        describe->tensor =
            piece->tensor & LAYOUT_BLOB ? (uint32_t)set->tensor_count : piece->tensor;
    }
    describe->encode = send->common->engine->encode_pool.mode;
    if (describe->encode != ENCODE_NEVER) {
        describe->dtype_count = place->piece_count;
        describe->dtypes = dtypes;
    }
    send->packed = send->packed || send->base->part || describe->encode != ENCODE_NEVER;
}

/* Describes a payload to the daemon, which may read its memory from now on. */
static void offer(struct save_send *send, struct save_object *object, const struct msg *data,
                  uint32_t payload)
{
    const struct layout_payload *place = &send->room->layout.payloads[payload];
    const struct arena *arena = send->common->engine->options.arena;
    uint32_t dtypes[LAYOUT_PACK_PIECES_MAX];
    struct msg msg = {
        .type = MSG_DESCRIBE,
        .u.describe = {.data = data->u.data,
                       .arena_id = send->common->engine->hand.held,
                       .arena_offset = arena_offset(arena, save_room_data(send->room, payload)),
                       .bytes = place->bytes}};
    CHECK(send->common->engine->link.hands_over);
    send->room->lent = true;
    CHECK(place->piece_count <= LAYOUT_PACK_PIECES_MAX);
    if (save_hand_packs(send)) {
        describe_packing(send, payload, dtypes, &msg.u.describe);
    }
    link_send(&send->common->engine->link, &object->request, &msg);
    atomic_fetch_add(&send->common->user->sent_bytes, place->bytes);
}

/* Returns true if every object is described. The client need not wait until they are durable,
 * because the daemon sees to that. */
static bool ended(const struct save_send *send)
{
    if (!send->common->engine->link.hands_over) {
        return false; /* this connection takes no COMPLETE, so another way is chosen */
    }
    for (uint32_t i = 0; i < send->object_count; i++) {
        if (send->objects[i].state != OBJECT_ENDED && send->objects[i].state != OBJECT_DURABLE) {
            return false;
        }
    }
    return send->assigned == send->room->layout.payload_count;
}

static void complete(struct save_send *send, struct request *request, const struct msg_seal *seal)
{
    struct msg msg = {
        .type = MSG_COMPLETE,
        .u.complete = {.id = seal->id, .open_id = seal->open_id, .part_bytes = seal->part_bytes}};
    link_send(&send->common->engine->link, request, &msg);
}

/* Takes HANDED, which says that the daemon can finish alone, and what SEALED says of the bytes that
 * the daemon has stored. */
static void told(struct save_send *send, const struct msg *msg)
{
    if (msg->type == MSG_HANDED) {
        send->word = send->word == WORD_NONE ? WORD_HANDED : send->word;
    } else if (msg->type == MSG_SEALED && send->packed) {
        send->shared_bytes = msg->u.sealed.shared_bytes;
        send->is_counted = true;
        atomic_store(&send->common->user->stored_bytes, msg->u.sealed.stored_bytes);
    }
}

const struct save_way save_way_hand = {
    .prepare = prepare, .offer = offer, .ended = ended, .complete = complete, .told = told};

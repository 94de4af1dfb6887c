/* SPDX-License-Identifier: Apache-2.0
 *
 * A save by hand-over: the daemon of this host reads the arena, and the client only says what lies
 * where. No digest is made here and no credit is used. What is copied is described at once, with
 * the digest of the base's chunk at the same place and the encoding to use. When all is described,
 * the client sends the part, without digests, and COMPLETE; after the daemon's HANDED this process
 * may die. The daemon writes into the part what became of each chunk.
 *
 * Invariant, which keeps the right bytes under the right name: memory that was described is not
 * written before the daemon has said what became of the opening. If it never says so (end_unknown
 * in save_end.c), the arena of the extent is retired, and the next save makes a new one. Loop's
 * thread.
 */
#include "save/save_base.h"

#include "base/check.h"

#include <string.h>

/* A process that was told "staged" may die without losing the save. For that, "staged" waits this
 * long, beyond the copy, for the daemon's word, and no longer. Training does not wait for it. */
enum { STAGE_LAG_MS = 500 };

/* --- which way --------------------------------------------------------------------- */

/* Returns whether the daemon compares and encodes what it is handed. In waves it cannot: after a
 * restart it finds what it stored by the digests of the bytes, which are gone by then. */
bool save_hand_packs(const struct save *save)
{
    return save->common.engine->link.hands_packed && !save->waves;
}

bool save_hand_may(const struct save *save)
{
    const struct engine *engine = save->common.engine;
    return engine->link.hands_over && !engine->hand.refused &&
           engine->options.transport != TRANSPORT_SOCKET &&
           (save_hand_packs(save) || engine->kit.mode != ENCODE_DENSEST);
}

/* Returns whether the save must go through the socket. A daemon that stores what it is handed as it
 * lies gets saves that are to be encoded, or that refer to a base, through the socket. Without a
 * base CAIRN_ENCODE_AUTO is handed over in any case, because nothing costs less. If the socket is
 * ruled out (TRANSPORT_MEMFD), force_hand decides. */
static bool wants_socket(const struct save *save)
{
    const struct engine *engine = save->common.engine;
    return engine->options.transport == TRANSPORT_SOCKET ||
           (engine->options.transport == TRANSPORT_AUTO && !save_hand_packs(save) &&
            (engine->kit.mode == ENCODE_DENSEST || save->base));
}

/* For TRANSPORT_MEMFD and a daemon that stores the save as it lies: drops the base, so that
 * everything is sent, which is always right. A dense encoding, which was asked for, is refused
 * rather than forgotten. */
static void force_hand(struct save *save)
{
    const struct engine *engine = save->common.engine;
    struct diag diag = DIAG_INIT;
    if (engine->options.transport != TRANSPORT_MEMFD || save_hand_packs(save)) {
        return;
    }
    if (engine->kit.mode == ENCODE_DENSEST && engine->link.hands_over) {
        diag_set(&diag, CAIRN_E_UNSUPPORTED,
                 "CAIRN_TRANSPORT=memfd, and a dense encoding needs the socket here: %s",
                 engine->link.hands_packed
                     ? "the arena is smaller than the state (make it larger, or leave one of both)"
                     : "the daemon is older, and encodes nothing that it is handed");
        save_fail(save, CAIRN_E_UNSUPPORTED, &diag);
    } else {
        save_base_leave(save);
    }
}

/* Called when the connection by which the save was handed over is gone, and the new one takes no
 * hand-over. What is durable stays, because the part may be published already and must not change;
 * all digests are now made here. */
static void digest_all(struct save *save)
{
    for (uint32_t i = 0; i < save->digest_next; i++) {
        save->payloads[i].state = PAYLOAD_IDLE;
    }
    save->digest_next = 0;
    save_part_void(save);
}

/* Changes to the socket, because the daemon takes no hand-over. Fails the save if the transport
 * forbids the socket, or if bytes that must be sent again were given up. */
static void fall_back(struct save *save)
{
    struct diag diag = DIAG_INIT;
    if (save->way == WAY_HAND) {
        digest_all(save);
    }
    if (save->packed) {
        save->packed = false;
        save_stream_restart(save); /* only the daemon knows where the durable objects are */
    }
    save->way = WAY_SOCKET;
    save_hand_staged(save);
    if (save->described && save->waves) {
        diag_set(&diag, CAIRN_E_UNSUPPORTED,
                 "the daemon does not take the arena any more, which is smaller than the save and "
                 "had to give up bytes that it took before: save again");
        save_fail(save, CAIRN_E_UNSUPPORTED, &diag);
    } else if (save->common.engine->options.transport == TRANSPORT_MEMFD) {
        const struct hand *hand = &save->common.engine->hand;
        diag_set(&diag, CAIRN_E_UNSUPPORTED,
                 "CAIRN_TRANSPORT=memfd, and the arena cannot be handed over: %s",
                 hand->refused
                     ? hand->why.text
                     : "the connection is no Unix socket, or the daemon does not know how");
        save_fail(save, CAIRN_E_UNSUPPORTED, &diag);
    }
}

bool save_hand_choose(struct save *save)
{
    if (save->way == WAY_SOCKET) {
        return true;
    }
    if (!save->base_known || !link_is_up(&save->common.engine->link)) {
        return false;
    }
    if (save->way == WAY_OPEN && wants_socket(save)) {
        save->way = WAY_SOCKET;
        save_hand_staged(save);
        return true;
    }
    if (save->way == WAY_OPEN) {
        force_hand(save);
    }
    if (save->common.status != 0) {
        return false;
    }
    bool nothing = save->layout.payload_count == 0 && save->common.engine->link.hands_over;
    enum hand_answer answer = nothing ? HAND_YES : hand_over(save->common.engine);
    if (answer == HAND_NO) {
        fall_back(save);
    } else if (answer == HAND_YES) {
        save->way = WAY_HAND;
    }
    return answer != HAND_WAIT && save->common.status == 0;
}

/* --- describing -------------------------------------------------------------------- */

static uint8_t element_bytes_of(const struct save *save, const struct layout_piece *piece)
{
    return piece->tensor & LAYOUT_BLOB
               ? 1
               : (uint8_t)(dtype_bits(save->common.set->tensors[piece->tensor].dtype) / 8);
}

void save_hand_prepare(struct save *save)
{
    uint32_t copied = snapshot_copied(&save->snapshot);
    if (save->digest_next == copied) {
        return;
    }
    for (; save->digest_next < copied; save->digest_next++) {
        const struct layout_payload *place = &save->layout.payloads[save->digest_next];
        for (uint32_t i = 0; i < place->piece_count; i++) {
            uint32_t idx = place->piece_first + i;
            const struct layout_piece *piece = &save->layout.pieces[idx];
            save->envelope_of[idx] = idx;
            save->envelopes[idx] =
                (struct envelope){.offset = piece->at,
                                  .stored_bytes = piece->bytes,
                                  .plain_bytes = piece->bytes,
                                  .encoding = ENCODING_RAW,
                                  .digest_alg = DIGEST_XXH3_128,
                                  .element_bytes = element_bytes_of(save, piece)};
            if (save->base && save->base_of[idx] != 0) {
                save->envelopes[idx].digest =
                    save->base->part.chunks[save->base_of[idx] - 1].digest;
            }
        }
        uint64_t plain = 0;
        for (uint32_t i = 0; i < place->piece_count; i++) {
            plain += save->layout.pieces[place->piece_first + i].bytes;
        }
        save->payloads[save->digest_next] =
            (struct save_payload){.state = PAYLOAD_READY,
                                  .bytes = place->bytes,
                                  .new_count = place->piece_count,
                                  .new_plain_bytes = (uint32_t)plain};
    }
    engine_pump(save->common.engine);
}

/* Adds what the daemon needs to know to compare and encode. dtypes is memory for one dtype a
 * piece. */
static void describe_packing(struct save *save, uint32_t payload, uint32_t *dtypes,
                             struct msg_describe *describe)
{
    const struct layout_payload *place = &save->layout.payloads[payload];
    const struct registered *set = save->common.set;
    for (uint32_t i = 0; i < place->piece_count; i++) {
        const struct layout_piece *piece = &save->layout.pieces[place->piece_first + i];
        dtypes[i] = piece->tensor & LAYOUT_BLOB ? 0 : set->tensors[piece->tensor].dtype;
        describe->tensor =
            piece->tensor & LAYOUT_BLOB ? (uint32_t)set->tensor_count : piece->tensor;
    }
    describe->encode = save->common.engine->kit.mode;
    if (describe->encode != ENCODE_NEVER) {
        describe->dtype_count = place->piece_count;
        describe->dtypes = dtypes;
    }
    save->packed = save->packed || save->base || describe->encode != ENCODE_NEVER;
}

void save_hand_describe(struct save *save, const struct save_object *object,
                        const struct msg_data *data, uint32_t payload)
{
    const struct layout_payload *place = &save->layout.payloads[payload];
    const struct arena *arena = save->common.engine->options.arena;
    uint32_t dtypes[LAYOUT_PACK_PIECES_MAX];
    struct msg msg = {
        .type = MSG_DESCRIBE,
        .u.describe = {.data = *data,
                       .arena_id = save->common.engine->hand.held,
                       .arena_offset = arena_offset(arena, save_payload_data(save, payload)),
                       .bytes = place->bytes}};
    save->described = true;
    CHECK(place->piece_count <= LAYOUT_PACK_PIECES_MAX);
    if (save_hand_packs(save)) {
        describe_packing(save, payload, dtypes, &msg.u.describe);
    }
    link_send(&save->common.engine->link, &object->request, &msg);
    atomic_fetch_add(&save->common.user->sent_bytes, place->bytes);
}

bool save_hand_is_described(const struct save *save)
{
    if (!save->common.engine->link.hands_over) {
        return false; /* this connection takes no COMPLETE, so another way is chosen */
    }
    for (uint32_t i = 0; i < save->object_count; i++) {
        if (save->objects[i].state != OBJECT_ENDED && save->objects[i].state != OBJECT_DURABLE) {
            return false;
        }
    }
    return save->assigned == save->layout.payload_count;
}

void save_hand_sealed(struct save *save, const struct msg *msg)
{
    const struct msg_sealed *sealed = &msg->u.sealed;
    if (msg->type == MSG_SEALED && save->way == WAY_HAND && save->packed) {
        save->shared_bytes = sealed->shared_bytes;
        save->told = true;
        atomic_store(&save->common.user->stored_bytes, sealed->stored_bytes);
    }
}

void save_hand_complete(struct save *save)
{
    struct msg msg = {.type = MSG_COMPLETE,
                      .u.complete = {.id = save->common.user->id,
                                     .open_id = save->common.open_id,
                                     .part_bytes = save->part.buf.bytes}};
    link_send(&save->common.engine->link, &save->request, &msg);
}

/* --- staged ------------------------------------------------------------------------ */

static void on_stage_lag(struct timer *timer)
{
    save_hand_staged(container_of(timer, struct save, stage_lag));
}

void save_hand_stage(struct save *save)
{
    const struct engine *engine = save->common.engine;
    bool may_hand = save_hand_may(save) && link_is_up(&engine->link) && save->way != WAY_SOCKET &&
                    !wants_socket(save);
    if (!may_hand) {
        save_set_staged(save, 0);
        return;
    }
    save_set_released(save);
    save->stage_waits = true;
    timer_start(&save->stage_lag, STAGE_LAG_MS);
    engine_wake_stagers(save->common.engine); /* the copy is over, so the next save may stage */
}

void save_hand_init(struct save *save)
{
    timer_init(&save->stage_lag, save->common.engine->options.loop, on_stage_lag);
}

void save_hand_staged(struct save *save)
{
    if (save->stage_waits) {
        save->stage_waits = false;
        timer_stop(&save->stage_lag);
        save_set_staged(save, save->common.status);
    }
}

void save_hand_give(struct save *save, uint8_t *place)
{
    struct arena *arena = save->common.engine->options.arena;
    if (save->described && save->common.reach != REACH_DECIDED) {
        arena_retire(arena, place);
    } else {
        arena_give(arena, place);
    }
}

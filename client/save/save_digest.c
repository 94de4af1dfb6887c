/* SPDX-License-Identifier: Apache-2.0
 *
 * What workers do with a payload of the layout: the digest of each piece, the comparison with the
 * base, and the encoding of what is new. If everything in a payload is new and raw, it is sent from
 * the arena; otherwise the bytes to send are packed into a side buffer. The arena keeps the plain
 * bytes, so a payload can be encoded again when it must be sent again. Loop's thread, except
 * on_digest_run and what it calls.
 */
#include "save/save_private.h"

#include "base/check.h"

/* --- on a worker ------------------------------------------------------------------- */

/* Describes the plain bytes of a piece in the arena to the encoder. */
static struct chunk_plain plain_of(const struct save *save, const struct layout_payload *payload,
                                   const struct layout_piece *piece)
{
    struct chunk_plain plain = {
        .bytes = piece->bytes,
        .data = save_payload_data(save, (uint32_t)(payload - save->layout.payloads)) + piece->at,
        .shape = {.width = 1},
        .element_bytes = 1,
        .digest_alg = DIGEST_XXH3_128};
    if (!(piece->tensor & LAYOUT_BLOB)) {
        uint32_t dtype = save->common.set->tensors[piece->tensor].dtype;
        plain.shape = planes_shape_of_dtype(dtype);
        plain.element_bytes = (uint8_t)(dtype_bits(dtype) / 8);
    }
    return plain;
}

/* Returns the digest of the base's chunk at the piece's place, or NULL. */
static const struct digest *known_of(const struct save *save, uint32_t piece_idx)
{
    if (!save->base || save->base_of[piece_idx] == 0) {
        return NULL;
    }
    return &save->base->part.chunks[save->base_of[piece_idx] - 1].digest;
}

/* Seals the pieces of a payload: digest, comparison with the base, encoding. Runs on a worker,
 * which writes the payload's envelopes and its own struct. */
static void on_digest_run(struct work *work)
{
    struct save_digest *digest = container_of(work, struct save_digest, work);
    struct save *save = digest->save;
    const struct layout_payload *payload = &save->layout.payloads[digest->payload];
    struct payload_seal *seal = &digest->seal;
    seal->room = digest->side ? digest->side->memory : NULL;
    seal->piece_count = payload->piece_count;
    seal->encoder =
        digest->encoder ? kit_encoder_get(digest->encoder, save->common.chunk_bytes) : NULL;
    for (uint32_t i = 0; i < payload->piece_count; i++) {
        uint32_t idx = payload->piece_first + i, to = payload->piece_first + seal->new_count;
        struct envelope *envelope = &save->envelopes[to];
        struct payload_piece piece = {.plain = plain_of(save, payload, &save->layout.pieces[idx]),
                                      .known = digest->again ? NULL : known_of(save, idx),
                                      .is_left_out =
                                          digest->again && save->envelope_of[idx] == SAVE_SHARED,
                                      .is_fixed = digest->again,
                                      .encoding = (enum encoding)envelope->encoding};
        save->envelope_of[idx] = payload_seal_piece(seal, &piece, envelope) ? to : SAVE_SHARED;
    }
}

/* --- handing out ------------------------------------------------------------------- */

static struct encode_state *state_of(const struct save *save, const struct layout_payload *payload)
{
    const struct layout_piece *piece = &save->layout.pieces[payload->piece_first];
    size_t idx = piece->tensor & LAYOUT_BLOB ? save->common.set->tensor_count : piece->tensor;
    return &save->states[idx];
}

static bool is_whole(const struct save *save, const struct layout_payload *payload)
{
    return payload->piece_count == 1 &&
           save->layout.pieces[payload->piece_first].bytes >= LIMIT_PACK_PIECE_BYTES;
}

/* Tells the worker what to try with this payload, as far as the state of its tensor decides
 * that. */
static void note_state(struct save_digest *digest, const struct layout_payload *payload)
{
    const struct save *save = digest->save;
    const struct encode_kit *kit = &save->common.engine->kit;
    if (save->states && is_whole(save, payload) && !digest->again) {
        struct encode_state *state = state_of(save, payload);
        digest->seal.sample = encode_state_next(state);
        digest->seal.state = *state;
        digest->seal.sink =
            (struct encode_sink){.bytes_per_s = kit->rate.bytes_per_s, .workers = SAVE_DIGESTS};
    }
}

/* Returns whether any piece of the payload could come out other than raw. */
static bool may_encode(const struct save_digest *digest, const struct layout_payload *payload)
{
    const struct save *save = digest->save;
    if (!save->states) {
        return false;
    }
    if (digest->again) {
        return save->payloads[digest->payload].from_side;
    }
    if (!is_whole(save, payload)) {
        return save->common.engine->kit.mode == ENCODE_DENSEST;
    }
    return digest->seal.sample ||
           encode_state_choose(&digest->seal.state, &digest->seal.sink) != ENCODING_RAW;
}

/* Takes the side buffer and the encoder that the payload needs. Returns false if they are in use at
 * the moment. If an encoder cannot be had at all, the payload stays raw. */
static bool take_memory(struct save_digest *digest, const struct layout_payload *payload)
{
    struct save *save = digest->save;
    struct encode_kit *kit = &save->common.engine->kit;
    bool encode = may_encode(digest, payload);
    bool pack = save->base != NULL && payload->piece_count > 1;
    if (!encode && !pack) {
        return true;
    }
    digest->side = encode_kit_take_side(kit);
    digest->encoder = digest->side && encode ? encode_kit_take_encoder(kit) : NULL;
    if (digest->side && (digest->encoder || !encode)) {
        return true;
    }
    encode_kit_give_side(digest->side);
    digest->side = NULL;
    return false;
}

/* Hands a payload to a worker. Returns false if the memory that it needs is in use. */
static bool hand_out(struct save *save, struct save_digest *digest, uint32_t idx, bool again)
{
    const struct layout_payload *payload = &save->layout.payloads[idx];
    digest->payload = idx;
    digest->again = again;
    digest->side = NULL;
    digest->encoder = NULL;
    digest->seal = (struct payload_seal){.tried = ENCODING_RAW};
    note_state(digest, payload);
    if (!take_memory(digest, payload)) {
        if (save->states && is_whole(save, payload) && !again) {
            state_of(save, payload)->chunk_count--; /* it will be asked again */
        }
        return false;
    }
    digest->busy = true;
    save->payloads[idx].state = PAYLOAD_BUSY;
    save->digests_running++;
    work_submit(save->common.engine->options.pool, &digest->work);
    return true;
}

/* Returns a payload that must be encoded again, because its object is sent again, or digest_next if
 * there is none. */
static uint32_t next_again(struct save *save)
{
    const struct save_object *object = save_stream_object(save);
    uint32_t end = object && object->cut ? object->payload_end : save->digest_next;
    for (uint32_t i = object ? object->next_payload : save->assigned; i < end; i++) {
        if (save->payloads[i].state == PAYLOAD_IDLE) {
            return i;
        }
    }
    return save->digest_next;
}

/* Hands payloads to workers, not far ahead of the sending, which then finds the bytes in the
 * cache. */
void save_digest_start(struct save *save)
{
    if (!save->base_known || save_is_over(&save->common)) {
        return;
    }
    if (save->way == WAY_HAND) {
        save_hand_prepare(save); /* the daemon digests */
    }
    if (save->way != WAY_SOCKET) {
        return;
    }
    uint32_t copied = snapshot_copied(&save->snapshot);
    uint32_t end = save_stream_position(save) + (save->base ? SAVE_LEAD_BASE : SAVE_LEAD);
    end = end < copied ? end : copied;
    unsigned most = save->copying ? SAVE_DIGESTS_COPYING : SAVE_DIGESTS;
    for (unsigned i = 0; i < most; i++) {
        struct save_digest *digest = &save->digests[i];
        uint32_t next = next_again(save);
        bool again = next < save->digest_next;
        if (digest->busy || next >= (again ? save->digest_next : end)) {
            continue;
        }
        if (!hand_out(save, digest, next, again)) {
            return; /* engine_pump calls again when a side buffer or an encoder came free */
        }
        save->digest_next += again ? 0 : 1;
    }
}

static void learn(const struct save_digest *digest)
{
    const struct save *save = digest->save;
    const struct layout_payload *payload = &save->layout.payloads[digest->payload];
    if (save->states && digest->encoder && !digest->again && is_whole(save, payload)) {
        payload_seal_learn(&digest->seal, state_of(save, payload));
    }
}

/* Notes what the worker has made of the payload. */
static void take_made(struct save_digest *digest)
{
    struct save_payload *payload = &digest->save->payloads[digest->payload];
    const struct payload_seal *seal = &digest->seal;
    payload->state = PAYLOAD_READY; /* object and at stay, because it may have been sent before */
    payload->from_side = seal->new_count > 0 && seal->is_moved;
    payload->bytes = seal->bytes;
    payload->new_count = seal->new_count;
    payload->new_plain_bytes = seal->new_plain_bytes;
    payload->shared_plain_bytes = seal->shared_plain_bytes;
    payload->side = payload->from_side ? digest->side : NULL;
    if (!payload->from_side) {
        encode_kit_give_side(digest->side);
    }
    digest->side = NULL;
}

/* Called when a worker has sealed a payload, which is then ready to be sent. */
static void on_digest_done(struct work *work)
{
    struct save_digest *digest = container_of(work, struct save_digest, work);
    struct save *save = digest->save;
    uint32_t shared_bytes = digest->again ? 0 : digest->seal.shared_plain_bytes;
    learn(digest);
    encode_kit_give_encoder(digest->encoder);
    digest->encoder = NULL;
    take_made(digest);
    save->shared_bytes += shared_bytes;
    atomic_fetch_add(&save->common.user->durable_bytes, shared_bytes);
    atomic_fetch_add(&save->common.user->sent_bytes, shared_bytes);
    digest->busy = false;
    save->digests_running--;
    save_digest_start(save);
    engine_pump(save->common.engine); /* other saves may wait for the memory that came free */
    save_wake(&save->common);
}

void save_digest_init(struct save *save)
{
    if (save->states) {
        encode_kit_load(&save->common.engine->kit, &save->common.set->list_hash,
                        save->common.set->tensor_count + 1, save->states);
    }
    for (unsigned i = 0; i < SAVE_DIGESTS; i++) {
        save->digests[i] = (struct save_digest){
            .save = save, .work = {.run = on_digest_run, .done = on_digest_done}};
    }
}

void save_digest_fini(struct save *save)
{
    CHECK(save->digests_running == 0);
    if (save->states) {
        encode_kit_keep(&save->common.engine->kit, &save->common.set->list_hash,
                        save->common.set->tensor_count + 1, save->states);
    }
    for (uint32_t i = 0; save->payloads && i < save->layout.payload_count; i++) {
        encode_kit_give_side(save->payloads[i].side);
        save->payloads[i].side = NULL;
    }
}

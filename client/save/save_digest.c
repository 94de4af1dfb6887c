/* SPDX-License-Identifier: Apache-2.0
 *
 * What workers do with a payload of the layout: the digest of each piece, the comparison with the
 * base, and the encoding of what is new. If everything in a payload is new and raw, it is sent from
 * the arena; otherwise the bytes to send are packed into an encode buffer. The arena keeps the
 * plain bytes, so a payload can be encoded again when it must be sent again. Loop's thread, except
 * on_digest_run and what it calls.
 */
#include "save/save_send_private.h"

#include "base/check.h"

enum {
    SAVE_DIGESTS_COPYING = 2, /* digests at a time beside the copy */
    SAVE_LEAD = 6,            /* payloads ahead of the sending */
    /* The lead with a base. Only the digest shows if a payload needs credit at all, so looking
     * further ahead keeps the window of credit full. */
    SAVE_LEAD_BASE = 16
};

/* --- on a worker ------------------------------------------------------------------- */

/* Describes the plain bytes of a piece in the arena to the encoder. */
static struct chunk_plain plain_of(const struct save_send *send,
                                   const struct layout_payload *payload,
                                   const struct layout_piece *piece)
{
    struct chunk_plain plain = {
        .bytes = piece->bytes,
        .data = save_room_data(send->room, (uint32_t)(payload - send->room->layout.payloads)) +
                piece->at,
        .shape = {.width = 1},
        .element_bytes = 1,
        .digest_alg = DIGEST_XXH3_128};
    if (!(piece->tensor & LAYOUT_BLOB)) {
        uint32_t dtype = send->common->set->tensors[piece->tensor].dtype;
        plain.shape = planes_shape_of_dtype(dtype);
        plain.element_bytes = (uint8_t)(dtype_bits(dtype) / 8);
    }
    return plain;
}

/* Seals the pieces of a payload: digest, comparison with the base, encoding. Runs on a worker,
 * which writes the payload's envelopes and its own struct. */
static void on_digest_run(struct work *work)
{
    struct save_digest *digest = container_of(work, struct save_digest, work);
    struct save_send *send = digest->send;
    const struct layout_payload *payload = &send->room->layout.payloads[digest->payload];
    struct payload_seal *seal = &digest->seal;
    seal->room = digest->buffer ? digest->buffer->memory : NULL;
    seal->piece_count = payload->piece_count;
    seal->encoder =
        digest->encoder ? pool_encoder_get(digest->encoder, send->common->chunk_bytes) : NULL;
    for (uint32_t i = 0; i < payload->piece_count; i++) {
        uint32_t idx = payload->piece_first + i, to = payload->piece_first + seal->new_count;
        struct envelope *envelope = &send->envelopes[to];
        struct payload_piece piece = {
            .plain = plain_of(send, payload, &send->room->layout.pieces[idx]),
            .known = digest->again ? NULL : save_base_digest(send->base, idx),
            .is_left_out = digest->again && send->envelope_of[idx] == SAVE_SHARED,
            .is_fixed = digest->again,
            .encoding = (enum encoding)envelope->encoding};
        send->envelope_of[idx] = payload_seal_piece(seal, &piece, envelope) ? to : SAVE_SHARED;
    }
}

/* --- handing out ------------------------------------------------------------------- */

static struct encode_state *state_of(const struct save_send *send,
                                     const struct layout_payload *payload)
{
    const struct layout_piece *piece = &send->room->layout.pieces[payload->piece_first];
    size_t idx = piece->tensor & LAYOUT_BLOB ? send->common->set->tensor_count : piece->tensor;
    return &send->states[idx];
}

static bool is_whole(const struct save_send *send, const struct layout_payload *payload)
{
    return payload->piece_count == 1 &&
           send->room->layout.pieces[payload->piece_first].bytes >= LIMIT_PACK_PIECE_BYTES;
}

/* Tells the worker what to try with this payload, as far as the state of its tensor decides
 * that. */
static void note_state(struct save_digest *digest, const struct layout_payload *payload)
{
    const struct save_send *send = digest->send;
    const struct encode_pool *pool = &send->common->engine->encode_pool;
    if (send->states && is_whole(send, payload) && !digest->again) {
        struct encode_state *state = state_of(send, payload);
        digest->seal.sample = encode_state_next(state);
        digest->seal.state = *state;
        digest->seal.sink =
            (struct encode_sink){.bytes_per_s = pool->rate.bytes_per_s, .workers = SAVE_DIGESTS};
    }
}

/* Returns whether any piece of the payload could come out other than raw. */
static bool may_encode(const struct save_digest *digest, const struct layout_payload *payload)
{
    const struct save_send *send = digest->send;
    if (!send->states) {
        return false;
    }
    if (digest->again) {
        return send->payloads[digest->payload].from_buffer;
    }
    if (!is_whole(send, payload)) {
        return send->common->engine->encode_pool.mode == ENCODE_DENSEST;
    }
    return digest->seal.sample ||
           encode_state_choose(&digest->seal.state, &digest->seal.sink) != ENCODING_RAW;
}

/* Takes the encode buffer and the encoder that the payload needs. Returns false if they are in use
 * at the moment. If an encoder cannot be had at all, the payload stays raw. */
static bool take_memory(struct save_digest *digest, const struct layout_payload *payload)
{
    struct save_send *send = digest->send;
    struct encode_pool *pool = &send->common->engine->encode_pool;
    bool encode = may_encode(digest, payload);
    bool pack = send->base->part != NULL && payload->piece_count > 1;
    if (!encode && !pack) {
        return true;
    }
    digest->buffer = encode_pool_take_buffer(pool);
    digest->encoder = digest->buffer && encode ? encode_pool_take_encoder(pool) : NULL;
    if (digest->buffer && (digest->encoder || !encode)) {
        return true;
    }
    encode_pool_give_buffer(digest->buffer);
    digest->buffer = NULL;
    return false;
}

/* Hands a payload to a worker. Returns false if the memory that it needs is in use. */
static bool hand_out(struct save_send *send, struct save_digest *digest, uint32_t idx, bool again)
{
    const struct layout_payload *payload = &send->room->layout.payloads[idx];
    CHECK(!digest->busy);
    CHECK(idx < send->room->layout.payload_count);
    CHECK(send->payloads[idx].state == PAYLOAD_IDLE);
    digest->payload = idx;
    digest->again = again;
    digest->buffer = NULL;
    digest->encoder = NULL;
    digest->seal = (struct payload_seal){.tried = ENCODING_RAW};
    note_state(digest, payload);
    if (!take_memory(digest, payload)) {
        if (send->states && is_whole(send, payload) && !again) {
            state_of(send, payload)->chunk_count--; /* it will be asked again */
        }
        return false;
    }
    digest->busy = true;
    send->payloads[idx].state = PAYLOAD_BUSY;
    send->digests_running++;
    work_submit(send->common->engine->options.pool, &digest->work);
    return true;
}

/* Returns a payload that must be encoded again, because its object is sent again or because it gave
 * its buffer back, or digest_next if there is none. The first of them comes before any new one:
 * payloads behind it could take all encode buffers, and are sent only after it. */
static uint32_t next_again(struct save_send *send)
{
    const struct save_object *object = save_objects_next(send);
    uint32_t first = object ? object->next_payload : send->assigned;
    for (uint32_t i = first; i < send->digest_next; i++) {
        if (send->payloads[i].state == PAYLOAD_IDLE) {
            return i;
        }
    }
    return send->digest_next;
}

void save_digest_start(struct save_send *send)
{
    if (save_is_over(send->common)) {
        return;
    }
    CHECK(send->base->state == BASE_KNOWN);
    uint32_t copied = snapshot_copied(send->snapshot);
    uint32_t end = save_objects_position(send) + (send->base->part ? SAVE_LEAD_BASE : SAVE_LEAD);
    end = end < copied ? end : copied;
    bool is_copied = copied == send->room->layout.payload_count;
    unsigned most = is_copied ? SAVE_DIGESTS : SAVE_DIGESTS_COPYING;
    for (unsigned i = 0; i < most; i++) {
        struct save_digest *digest = &send->digests[i];
        uint32_t next = next_again(send);
        bool again = next < send->digest_next;
        if (digest->busy || next >= (again ? send->digest_next : end)) {
            continue;
        }
        if (!hand_out(send, digest, next, again)) {
            return; /* engine_pump calls again when an encode buffer or an encoder came free */
        }
        send->digest_next += again ? 0 : 1;
    }
}

static void learn(const struct save_digest *digest)
{
    const struct save_send *send = digest->send;
    const struct layout_payload *payload = &send->room->layout.payloads[digest->payload];
    if (send->states && digest->encoder && !digest->again && is_whole(send, payload)) {
        payload_seal_learn(&digest->seal, state_of(send, payload));
    }
}

/* Notes what the worker has made of the payload. */
static void take_made(struct save_digest *digest)
{
    struct save_payload *payload = &digest->send->payloads[digest->payload];
    const struct payload_seal *seal = &digest->seal;
    CHECK(payload->state == PAYLOAD_BUSY);
    CHECK(payload->buffer == NULL);
    payload->state = PAYLOAD_READY; /* object and at stay, because it may have been sent before */
    payload->from_buffer = seal->new_count > 0 && seal->is_moved;
    payload->bytes = seal->bytes;
    payload->new_count = seal->new_count;
    payload->new_plain_bytes = seal->new_plain_bytes;
    payload->shared_plain_bytes = seal->shared_plain_bytes;
    payload->buffer = payload->from_buffer ? digest->buffer : NULL;
    if (!payload->from_buffer) {
        encode_pool_give_buffer(digest->buffer);
    }
    digest->buffer = NULL;
}

/* Called when a worker has sealed a payload, which is then ready to be sent. */
static void on_digest_done(struct work *work)
{
    struct save_digest *digest = container_of(work, struct save_digest, work);
    struct save_send *send = digest->send;
    uint32_t shared_bytes = digest->again ? 0 : digest->seal.shared_plain_bytes;
    CHECK(digest->busy);
    CHECK(send->digests_running > 0);
    learn(digest);
    encode_pool_give_encoder(digest->encoder);
    digest->encoder = NULL;
    take_made(digest);
    send->shared_bytes += shared_bytes;
    atomic_fetch_add(&send->common->user->durable_bytes, shared_bytes);
    atomic_fetch_add(&send->common->user->sent_bytes, shared_bytes);
    digest->busy = false;
    send->digests_running--;
    save_digest_start(send);
    engine_pump(send->common->engine); /* other saves may wait for the memory that came free */
    save_wake(send->common);
}

void save_digest_init(struct save_send *send)
{
    if (send->states) {
        encode_pool_load(&send->common->engine->encode_pool, &send->common->set->list_hash,
                         send->common->set->tensor_count + 1, send->states);
    }
    for (unsigned i = 0; i < SAVE_DIGESTS; i++) {
        send->digests[i] = (struct save_digest){
            .send = send, .work = {.run = on_digest_run, .done = on_digest_done}};
    }
}

void save_digest_fini(struct save_send *send)
{
    CHECK(send->digests_running == 0);
    if (send->states) {
        encode_pool_keep(&send->common->engine->encode_pool, &send->common->set->list_hash,
                         send->common->set->tensor_count + 1, send->states);
    }
    for (uint32_t i = 0; send->payloads && i < send->room->layout.payload_count; i++) {
        encode_pool_give_buffer(send->payloads[i].buffer);
        send->payloads[i].buffer = NULL;
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * One way for all payloads: a piece that is known is left out before it is encoded; a piece that is
 * encoded, or follows one that was left out, lies in the room. Any thread.
 */
#include "pipeline/payload.h"

#include "base/check.h"
#include "base/limits.h"
#include "pipeline/chunk.h"

#include <string.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static bool is_whole(const struct payload_piece *piece)
{
    return piece->plain.bytes >= LIMIT_PACK_PIECE_BYTES; /* small ones are not worth a state */
}

void payload_seal_sample(struct payload_seal *seal, struct encoder *encoder,
                         const struct chunk_plain *plain)
{
    for (unsigned i = 0; i < ENCODE_CANDIDATES; i++) {
        uint64_t begun_ns = now_ns();
        struct encode_sample sample = encoder_sample(encoder, encode_candidates[i], plain);
        seal->samples[i] = (struct encode_cost){.plain_bytes = sample.plain_bytes,
                                                .stored_bytes = sample.stored_bytes,
                                                .ns = now_ns() - begun_ns};
        encode_state_sample(&seal->state, encode_candidates[i], &seal->samples[i]);
    }
}

/* Samples if that is due, and then chooses the encoding by what is known. */
static enum encoding choose(struct payload_seal *seal, const struct chunk_plain *plain)
{
    if (seal->sample) {
        payload_seal_sample(seal, seal->encoder, plain);
    }
    return encode_state_choose(&seal->state, &seal->sink);
}

/* Seals the piece. Returns the stored bytes, which are in the room or are the plain bytes. */
static const void *encode(struct payload_seal *seal, const struct payload_piece *piece,
                          struct envelope *envelope)
{
    const struct chunk_plain *plain = &piece->plain;
    struct zstd_room io = {.cap = plain->bytes, .data = seal->room + seal->bytes};
    struct chunk_sealed sealed;
    enum encoding encoding = piece->is_fixed   ? piece->encoding
                             : is_whole(piece) ? choose(seal, plain)
                                               : ENCODING_PLANES_ZSTD;
    uint64_t begun_ns = now_ns();
    chunk_seal(seal->encoder, encoding, plain, &io, &sealed);
    if (is_whole(piece) && !piece->is_fixed) {
        seal->tried = encoding;
        seal->cost = (struct encode_cost){.plain_bytes = plain->bytes,
                                          .stored_bytes = sealed.envelope.stored_bytes,
                                          .ns = now_ns() - begun_ns};
    }
    *envelope = sealed.envelope;
    return sealed.stored;
}

bool payload_seal_piece(struct payload_seal *seal, const struct payload_piece *piece,
                        struct envelope *ret)
{
    const struct chunk_plain *plain = &piece->plain;
    const void *stored = plain->data;
    bool is_left_out = piece->is_left_out;
    CHECK(seal->room || !seal->encoder);
    if (!is_left_out && (piece->known || !seal->encoder)) {
        chunk_seal_raw(plain->bytes, plain->data, plain->element_bytes, ret);
        is_left_out = piece->known && digest_equal(&ret->digest, piece->known);
    }
    if (is_left_out) {
        seal->shared_plain_bytes += (uint32_t)plain->bytes;
        seal->is_moved = seal->is_moved || seal->piece_count > 1;
        return false;
    }
    if (seal->encoder) {
        stored = encode(seal, piece, ret);
    }
    seal->is_moved = seal->is_moved || stored != plain->data;
    if (stored == plain->data && seal->piece_count > 1 && seal->room) {
        memcpy(seal->room + seal->bytes, stored, plain->bytes);
    }
    ret->offset = seal->bytes;
    seal->bytes += ret->stored_bytes;
    seal->new_plain_bytes += (uint32_t)plain->bytes;
    seal->new_count++;
    return true;
}

void payload_seal_learn(const struct payload_seal *seal, struct encode_state *state)
{
    if (seal->piece_count != 1) {
        return;
    }
    for (unsigned i = 0; i < ENCODE_CANDIDATES && seal->sample; i++) {
        if (seal->samples[i].plain_bytes > 0) {
            encode_state_sample(state, encode_candidates[i], &seal->samples[i]);
        }
    }
    if (seal->cost.plain_bytes > 0 && seal->tried != ENCODING_RAW) {
        encode_state_chunk(state, seal->tried, &seal->cost);
    }
}

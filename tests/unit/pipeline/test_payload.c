/* SPDX-License-Identifier: Apache-2.0
 *
 * Each piece of a payload is either left out because exactly its bytes are known, or opens to its
 * bytes at the place that its envelope names. Method: random payloads from a seed, over all dtypes
 * and kinds of data, sizes 1 to a chunk, of one or more pieces, encoded or not.
 */
#include "pipeline/payload.h"

#include <stdio.h>

#include "base/limits.h"
#include "format/ids.h"
#include "pipeline/chunk.h"
#include "plain_data.h"
#include "support/unit_test.h"

enum { PIECES = 12, DTYPES = 22, ROUNDS = 400, ROOM = 1 << 20 };

struct fixture {
    uint64_t seed;
    struct encoder *encoder;
    uint8_t *plain, *room, *back;
    uint32_t count, at[PIECES];
    struct payload_piece pieces[PIECES];
    struct digest known[PIECES];
    bool is_known[PIECES]; /* the digest is that of the piece */
    bool is_stored[PIECES];
    struct envelope envelopes[PIECES];
    struct payload_seal seal;
};

static uint64_t below(struct fixture *f, uint64_t n) { return plain_random(&f->seed) % n; }

static void draw_piece(struct fixture *f, uint32_t i, uint32_t bytes)
{
    uint32_t dtype = 1 + (uint32_t)below(f, DTYPES);
    unsigned width = dtype_bits(dtype) / 8;
    uint8_t *data = f->plain + f->at[i];
    plain_fill((enum plain_kind)below(f, PLAIN_KINDS),
               width > 8 ? 8
               : width   ? width
                         : 1,
               bytes, data);
    f->pieces[i] = (struct payload_piece){.plain = {.bytes = bytes,
                                                    .data = data,
                                                    .shape = planes_shape_of_dtype(dtype),
                                                    .element_bytes = (uint8_t)width,
                                                    .digest_alg = DIGEST_XXH3_128}};
    f->is_known[i] = below(f, 3) == 0;
    if (below(f, 2) == 0 || f->is_known[i]) {
        struct envelope envelope;
        chunk_seal_raw(bytes, data, 1, &envelope);
        f->known[i] = envelope.digest;
        f->known[i].bytes[below(f, 16)] ^= f->is_known[i] ? 0 : 1;
        f->pieces[i].known = &f->known[i];
    }
}

static void draw(struct fixture *f)
{
    bool single = below(f, 2) == 0;
    uint32_t at = 0;
    f->count = single ? 1 : 1 + (uint32_t)below(f, PIECES);
    for (uint32_t i = 0; i < f->count; i++) {
        uint32_t bytes = 1 + (uint32_t)below(f, single ? (256 << 10) : 5000);
        f->at[i] = at;
        draw_piece(f, i, bytes);
        at += bytes;
    }
    f->seal = (struct payload_seal){.piece_count = f->count,
                                    .room = f->room,
                                    .sample = below(f, 2) == 0,
                                    .sink = {below(f, 2) << 40, 2}};
    const struct encode_policy policy = {.mode = below(f, 2) ? ENCODE_DENSEST : ENCODE_ADAPTIVE,
                                         .sample_every = 4};
    encode_state_init(&f->seal.state, &policy);
    f->seal.encoder = below(f, 2) ? f->encoder : NULL;
}

static void check(struct fixture *f)
{
    uint32_t stored = 0, bytes = 0;
    for (uint32_t i = 0; i < f->count; i++) {
        const struct chunk_plain *plain = &f->pieces[i].plain;
        assert_int_equal(f->is_stored[i], !f->is_known[i]);
        if (!f->is_stored[i]) {
            continue;
        }
        const struct envelope *envelope = &f->envelopes[i];
        const uint8_t *from = f->seal.is_moved ? f->room : f->plain;
        assert_int_equal(envelope->offset, bytes);
        assert_int_equal(chunk_open(envelope, from + envelope->offset, plain->bytes, f->back, NULL),
                         0);
        assert_memory_equal(f->back, plain->data, plain->bytes);
        stored++;
        bytes += envelope->stored_bytes;
    }
    assert_int_equal(f->seal.new_count, stored);
    assert_int_equal(f->seal.bytes, bytes);
}

TEST(every_piece_is_known_or_stored)
{
    struct fixture f = {.seed = 1};
    f.encoder = encoder_new(256 << 10);
    f.plain = malloc(ROOM);
    f.room = malloc(ROOM);
    f.back = malloc(ROOM);
    assert_true(f.encoder && f.plain && f.room && f.back);
    for (unsigned round = 0; round < ROUNDS; round++) {
        f.seed = round + 1; /* replayable */
        draw(&f);
        for (uint32_t i = 0; i < f.count; i++) {
            f.is_stored[i] = payload_seal_piece(&f.seal, &f.pieces[i], &f.envelopes[i]);
        }
        check(&f);
    }
    encoder_free(f.encoder);
    free(f.plain);
    free(f.room);
    free(f.back);
}

/* Goal: what was measured of a large piece reaches the state, and decides for the next one. */
TEST(what_sealing_cost_is_learnt)
{
    enum { BYTES = 1 << 20 };
    struct encoder *encoder = encoder_new(BYTES);
    uint8_t *plain = malloc(BYTES), *room = malloc(BYTES);
    const struct encode_policy policy = {.mode = ENCODE_ADAPTIVE, .sample_every = 64};
    struct encode_state learnt;
    struct envelope envelope;
    plain_fill(PLAIN_RUNS, 4, BYTES, plain);
    encode_state_init(&learnt, &policy);
    struct payload_piece piece = {.plain = {.bytes = BYTES,
                                            .data = plain,
                                            .shape = planes_shape_of_dtype(CAIRN_F32),
                                            .element_bytes = 4,
                                            .digest_alg = DIGEST_XXH3_128}};
    const struct encode_sink slow = {1000, 1}, unknown = {0, 1};
    struct payload_seal seal = {.encoder = encoder,
                                .room = room,
                                .piece_count = 1,
                                .sample = encode_state_next(&learnt),
                                .state = learnt,
                                .sink = unknown};
    assert_true(payload_seal_piece(&seal, &piece, &envelope));
    assert_int_equal(envelope.encoding, ENCODING_RAW); /* the sink may be as fast as memory */
    assert_int_equal(encode_state_choose(&learnt, &slow), ENCODING_RAW);
    payload_seal_learn(&seal, &learnt);
    assert_int_not_equal(encode_state_choose(&learnt, &slow), ENCODING_RAW);
    assert_int_equal(encode_state_choose(&learnt, &unknown), ENCODING_RAW);
    encoder_free(encoder);
    free(plain);
    free(room);
}

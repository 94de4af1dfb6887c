/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever is sealed opens to the same bytes, for every dtype, kind of data and size; what saves
 * too little stays raw; any change of the stored bytes is found, also when the crc was made to fit
 * it.
 */
#include "pipeline/encode.h"

#include "base/check.h"
#include "base/limits.h"
#include "format/ids.h"
#include "hash/hash.h"
#include "pipeline/chunk.h"
#include "plain_data.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

enum { CHUNK = 64 << 10, DTYPES = 22 };

struct piece { /* memory of one test */
    struct encoder *encoder;
    uint8_t *plain, *room, *back; /* exactly bytes */
    struct chunk_plain chunk;
    struct chunk_sealed sealed;
};

static void piece_init(struct piece *piece, enum plain_kind kind, uint32_t dtype, size_t bytes)
{
    unsigned element_bytes = dtype_bits(dtype) / 8;
    memset(piece, 0, sizeof *piece);
    piece->plain = malloc(bytes);
    piece->room = malloc(bytes);
    piece->back = malloc(bytes);
    assert_true(piece->plain && piece->room && piece->back);
    plain_fill(kind, element_bytes > 8 ? 8 : element_bytes, bytes, piece->plain);
    piece->chunk = (struct chunk_plain){.bytes = bytes,
                                        .data = piece->plain,
                                        .shape = planes_shape_of_dtype(dtype),
                                        .element_bytes = (uint8_t)element_bytes,
                                        .digest_alg = DIGEST_XXH3_128};
}

static void piece_fini(struct piece *piece)
{
    free(piece->plain);
    free(piece->room);
    free(piece->back);
}

static void seal(struct piece *piece, struct encoder *encoder, enum encoding encoding)
{
    const struct zstd_room room = {.data = piece->room, .cap = piece->chunk.bytes};
    chunk_seal(encoder, encoding, &piece->chunk, &room, &piece->sealed);
}

static int reopen(const struct piece *piece, const void *stored)
{
    int rc = chunk_open(&piece->sealed.envelope, stored, piece->chunk.bytes, piece->back, NULL);
    assert_int_equal(chunk_verify(&piece->sealed.envelope, stored, NULL), rc);
    return rc;
}

static void check_sealed(const struct piece *piece, enum encoding encoding)
{
    uint8_t header[ENVELOPE_BYTES];
    struct envelope again;
    const struct envelope *envelope = &piece->sealed.envelope;
    assert_int_equal(envelope->plain_bytes, piece->chunk.bytes);
    if (envelope->encoding == ENCODING_RAW) {
        assert_ptr_equal(piece->sealed.stored, piece->plain);
        assert_int_equal(envelope->stored_bytes, piece->chunk.bytes);
    } else {
        assert_int_equal(envelope->encoding, encoding);
        assert_ptr_equal(piece->sealed.stored, piece->room);
        assert_true(envelope->stored_bytes * 100ull <= envelope->plain_bytes * 97ull);
    }
    envelope_encode(envelope, header);
    assert_int_equal(envelope_decode(header, &again, NULL), 0);
    assert_int_equal(reopen(piece, piece->sealed.stored), 0);
    assert_memory_equal(piece->back, piece->plain, piece->chunk.bytes);
}

/* Goal: nothing is lost. Method: all dtypes, kinds, encodings, and sizes about a chunk's. */
TEST(everything_sealed_opens_to_the_same)
{
    static const size_t sizes[] = {1, 2, 15, 1000, CHUNK - 1, CHUNK, CHUNK + 1};
    struct encoder *encoder = encoder_new(CHUNK + 1);
    for (uint32_t dtype = 1; dtype <= DTYPES; dtype++) {
        for (int kind = 0; kind < PLAIN_KINDS; kind++) {
            for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
                struct piece piece;
                piece_init(&piece, (enum plain_kind)kind, dtype, sizes[s]);
                for (int e = ENCODING_RAW; e <= ENCODING_PLANES_ZSTD; e++) {
                    seal(&piece, encoder, (enum encoding)e);
                    check_sealed(&piece, (enum encoding)e);
                }
                piece_fini(&piece);
            }
        }
    }
    encoder_free(encoder);
}

static double ratio_of(enum plain_kind kind, uint32_t dtype, enum encoding encoding, size_t bytes)
{
    struct encoder *encoder = encoder_new(bytes);
    struct piece piece;
    piece_init(&piece, kind, dtype, bytes);
    seal(&piece, encoder, encoding);
    check_sealed(&piece, encoding);
    encoder_free(encoder);
    piece_fini(&piece);
    return piece.sealed.envelope.stored_bytes / (double)bytes;
}

/* Goal: planes are worth having. Method: bounds near what the data's entropy allows. */
TEST(planes_save_where_they_should)
{
    const enum encoding planes = ENCODING_PLANES_ZSTD;
    assert_true(ratio_of(PLAIN_WEIGHTS, CAIRN_BF16, planes, LIMIT_CHUNK_BYTES) < 0.67);
    assert_true(ratio_of(PLAIN_WEIGHTS, CAIRN_F32, planes, LIMIT_CHUNK_BYTES) < 0.84);
    assert_true(ratio_of(PLAIN_MOMENTS, CAIRN_F32, planes, LIMIT_CHUNK_BYTES) < 0.86);
    assert_true(ratio_of(PLAIN_INTS, CAIRN_I64, planes, LIMIT_CHUNK_BYTES) < 0.28);
    assert_true(ratio_of(PLAIN_ZEROS, CAIRN_F32, planes, LIMIT_CHUNK_BYTES) < 0.0011);
    assert_true(ratio_of(PLAIN_RUNS, CAIRN_I32, ENCODING_ZSTD, LIMIT_CHUNK_BYTES) < 0.02);
    assert_true(ratio_of(PLAIN_RANDOM, CAIRN_F32, planes, LIMIT_CHUNK_BYTES) == 1.0);
    assert_true(ratio_of(PLAIN_RANDOM, CAIRN_F32, ENCODING_ZSTD, LIMIT_CHUNK_BYTES) == 1.0);
}

/* Goal: a ratio that readers refuse is never written. */
TEST(zeros_keep_to_the_ratio)
{
    assert_true(ratio_of(PLAIN_ZEROS, CAIRN_F32, ENCODING_ZSTD, LIMIT_CHUNK_BYTES) == 1.0);
}

TEST(a_small_room_means_raw)
{
    struct encoder *encoder = encoder_new(CHUNK);
    struct piece piece;
    piece_init(&piece, PLAIN_WEIGHTS, CAIRN_BF16, CHUNK);
    seal(&piece, encoder, ENCODING_PLANES_ZSTD);
    size_t needed = piece.sealed.envelope.stored_bytes;
    assert_int_equal(piece.sealed.envelope.encoding, ENCODING_PLANES_ZSTD);
    for (size_t cap = 0; cap < needed; cap += 97) {
        const struct zstd_room room = {.data = piece.room, .cap = cap};
        chunk_seal(encoder, ENCODING_PLANES_ZSTD, &piece.chunk, &room, &piece.sealed);
        assert_int_equal(piece.sealed.envelope.encoding, ENCODING_RAW);
    }
    check_sealed(&piece, ENCODING_RAW);
    encoder_free(encoder);
    piece_fini(&piece);
}

/* Goal: every changed byte is found. Method: flip one in each; then again with a crc that fits, so
 * that the frames and the digest must find it. */
TEST(every_changed_byte_is_found)
{
    static const enum encoding encodings[] = {ENCODING_ZSTD, ENCODING_PLANES_ZSTD};
    struct encoder *encoder = encoder_new(CHUNK);
    for (size_t e = 0; e < ARRAY_LEN(encodings); e++) {
        struct piece piece;
        piece_init(&piece, PLAIN_INTS, CAIRN_I32, 4001);
        seal(&piece, encoder, encodings[e]);
        assert_int_equal(piece.sealed.envelope.encoding, encodings[e]);
        const uint32_t crc = piece.sealed.envelope.stored_crc;
        for (size_t i = 0; i < piece.sealed.envelope.stored_bytes; i++) {
            for (unsigned bit = 0; bit < 8; bit++) {
                piece.room[i] ^= (uint8_t)(1u << bit);
                piece.sealed.envelope.stored_crc = crc;
                assert_int_equal(reopen(&piece, piece.room), CAIRN_E_DIGEST_MISMATCH);
                piece.sealed.envelope.stored_crc =
                    crc32c(0, piece.sealed.envelope.stored_bytes, piece.room);
                int rc = reopen(&piece, piece.room);
                assert_true(rc == CAIRN_E_DIGEST_MISMATCH || rc == CAIRN_E_FORMAT ||
                            memcmp(piece.back, piece.plain, piece.chunk.bytes) == 0);
                piece.room[i] ^= (uint8_t)(1u << bit);
            }
        }
        piece_fini(&piece);
    }
    encoder_free(encoder);
}

TEST(a_sample_tells_what_the_chunk_will_save)
{
    struct encoder *encoder = encoder_new(LIMIT_CHUNK_BYTES);
    struct piece piece;
    piece_init(&piece, PLAIN_WEIGHTS, CAIRN_BF16, LIMIT_CHUNK_BYTES);
    struct encode_sample sample = encoder_sample(encoder, ENCODING_PLANES_ZSTD, &piece.chunk);
    seal(&piece, encoder, ENCODING_PLANES_ZSTD);
    double said = (double)sample.stored_bytes / (double)sample.plain_bytes;
    double is = piece.sealed.envelope.stored_bytes / (double)LIMIT_CHUNK_BYTES;
    assert_int_equal(sample.plain_bytes, ENCODE_SAMPLE_BYTES);
    assert_true(said - is < 0.02 && is - said < 0.02);
    piece_fini(&piece);
    piece_init(&piece, PLAIN_RANDOM, CAIRN_U8, 10);
    sample = encoder_sample(encoder, ENCODING_ZSTD, &piece.chunk);
    assert_int_equal(sample.plain_bytes, 10);
    assert_int_equal(sample.stored_bytes, 10);
    piece_fini(&piece);
    encoder_free(encoder);
}

/* Goal: missing memory is said, and nothing leaks. Method: each allocation fails in turn. */
TEST(missing_memory_is_told)
{
    struct encoder *encoder = encoder_new(CHUNK);
    struct piece piece;
    unsigned n;
    piece_init(&piece, PLAIN_WEIGHTS, CAIRN_BF16, CHUNK);
    seal(&piece, encoder, ENCODING_PLANES_ZSTD);
    encoder_free(encoder);
    for (n = 1;; n++) {
        alloc_fault_at(n);
        int rc = chunk_verify(&piece.sealed.envelope, piece.sealed.stored, NULL);
        if (!alloc_fault_hit()) {
            break;
        }
        assert_int_equal(rc, CAIRN_E_NO_MEMORY);
    }
    assert_true(n > 2);
    for (n = 1;; n++) {
        alloc_fault_at(n);
        encoder = encoder_new(CHUNK);
        if (!alloc_fault_hit()) {
            break;
        }
        assert_null(encoder);
    }
    assert_true(n > 4);
    encoder_free(encoder);
    piece_fini(&piece);
}

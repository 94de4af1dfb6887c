/* SPDX-License-Identifier: Apache-2.0
 *
 * Made with the encoders themselves rather than chunk_seal(), which would keep the small ones raw.
 */
#include "chunk_fixtures.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "hash/hash.h"
#include "pipeline/chunk.h"
#include "pipeline/planes.h"

static const uint8_t i16_and_one_byte[] = {1, 0, 0xfe, 0xff, 3, 0, 0xfc, 0xff, 5, 0, 7};

#define ZSTD_ROW(name, kind, bytes)                                                  \
    {                                                                                \
        name, ENCODING_ZSTD, DIGEST_XXH3_128, 1, {1, false}, bytes, kind, NULL, true \
    }
#define PLANES_ROW(name, kind, width, rotate, bytes)                                            \
    {                                                                                           \
        name, ENCODING_PLANES_ZSTD, DIGEST_XXH3_128, width, {width, rotate}, bytes, kind, NULL, \
            true                                                                                \
    }

const struct chunk_fixture chunk_fixtures[] = {
    ZSTD_ROW("chunk_zstd", PLAIN_RUNS, 4000),
    {"chunk_zstd_sha256",
     ENCODING_ZSTD,
     DIGEST_SHA256,
     1,
     {1, false},
     4001,
     PLAIN_INTS,
     NULL,
     true},
    PLANES_ROW("chunk_planes_bytes", PLAIN_INTS, 1, false, 4001),
    PLANES_ROW("chunk_planes_bf16", PLAIN_WEIGHTS, 2, true, 4097),
    PLANES_ROW("chunk_planes_f32", PLAIN_MOMENTS, 4, true, 4099),
    PLANES_ROW("chunk_planes_f32_special", PLAIN_SPECIAL, 4, true, 4096),
    PLANES_ROW("chunk_planes_f64", PLAIN_WEIGHTS, 8, true, 4103),
    PLANES_ROW("chunk_planes_i32", PLAIN_INTS, 4, false, 4000),
    PLANES_ROW("chunk_planes_i64", PLAIN_RUNS, 8, false, 16007),
    {"chunk_planes_zeros",
     ENCODING_PLANES_ZSTD,
     DIGEST_XXH3_128,
     4,
     {4, true},
     65538,
     PLAIN_ZEROS,
     NULL,
     false},
    {"chunk_planes_i16",
     ENCODING_PLANES_ZSTD,
     DIGEST_XXH3_128,
     2,
     {2, false},
     sizeof i16_and_one_byte,
     PLAIN_KINDS,
     i16_and_one_byte,
     false},
};
const size_t chunk_fixture_count = ARRAY_LEN(chunk_fixtures);

void chunk_fixture_plain(const struct chunk_fixture *fixture, uint8_t *ret)
{
    CHECK(fixture->bytes <= CHUNK_FIXTURE_BYTES_MAX);
    if (fixture->plain) {
        memcpy(ret, fixture->plain, fixture->bytes);
    } else {
        plain_fill(fixture->kind, fixture->element_bytes, fixture->bytes, ret);
    }
}

int chunk_fixture_zstd(int level, size_t bytes, const void *plain, struct zstd_room *io)
{
    const struct zstd_settings settings = {.level = level, .checksum = true};
    struct zstd_encoder *encoder = zstd_encoder_new();
    CHECK(encoder != NULL);
    int rc = zstd_encoder_run(encoder, &settings, bytes, plain, io);
    zstd_encoder_free(encoder);
    return rc;
}

struct buf chunk_fixture_bytes(const struct chunk_fixture *fixture)
{
    const size_t cap = fixture->bytes + 1024;
    uint8_t *plain = malloc(fixture->bytes), *stored = malloc(cap), *scratch = malloc(cap);
    uint8_t header[ENVELOPE_BYTES];
    struct zstd_encoder *encoder = zstd_encoder_new();
    struct zstd_room room = {.data = stored, .cap = cap};
    struct envelope envelope;
    struct buf buf;
    int rc;
    CHECK(plain && stored && scratch && encoder);
    chunk_fixture_plain(fixture, plain);
    chunk_seal_raw(fixture->bytes, plain, fixture->element_bytes, &envelope);
    rc = digest_make(fixture->digest_alg, fixture->bytes, plain, &envelope.digest, NULL);
    CHECK(rc == 0);
    if (fixture->encoding == ENCODING_ZSTD) {
        rc = chunk_fixture_zstd(ZSTD_LEVEL_FASTEST, fixture->bytes, plain, &room);
    } else {
        const struct planes_plain planes = {fixture->bytes, plain, fixture->shape, 0};
        rc = planes_encode(encoder, &planes, scratch, &room);
    }
    CHECK(rc == 0);
    envelope.digest_alg = (uint8_t)fixture->digest_alg;
    envelope.encoding = (uint8_t)fixture->encoding;
    envelope.stored_bytes = (uint32_t)room.bytes;
    envelope.stored_crc = crc32c(0, room.bytes, stored);
    envelope_encode(&envelope, header);
    buf_init(&buf, MIB(1));
    buf_put(&buf, sizeof header, header);
    buf_put(&buf, room.bytes, stored);
    CHECK(buf_status(&buf) == 0);
    zstd_encoder_free(encoder);
    free(plain);
    free(stored);
    free(scratch);
    return buf;
}

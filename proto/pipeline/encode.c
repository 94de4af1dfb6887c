/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealing with an encoding. The room that an encoder gets ends where the gain would be too small,
 * so that hopeless chunks are given up early; raw is always possible. Pure; any thread, and one at
 * a time uses an encoder.
 */
#include "encode.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "digest.h"
#include "hash/hash.h"

struct encoder {
    struct zstd_encoder *zstd;
    size_t chunk_bytes_max;
    uint8_t *planes; /* chunk_bytes_max */
    uint8_t *sample; /* ENCODE_SAMPLE_BYTES */
};

/* Touches the pages now, because otherwise the first sample would measure the kernel and not the
 * encoding. */
static void touch(struct encoder *encoder)
{
    struct chunk_plain plain = {.shape = {.width = 1}, .data = encoder->planes};
    memset(encoder->sample, 0, ENCODE_SAMPLE_BYTES);
    plain.bytes = encoder->chunk_bytes_max;
    for (size_t i = 0; i < plain.bytes; i++) {
        encoder->planes[i] = (uint8_t)(i * i >> 3); /* so that the bytes are not one run */
    }
    (void)encoder_sample(encoder, ENCODING_PLANES_ZSTD, &plain);
    (void)encoder_sample(encoder, ENCODING_ZSTD, &plain);
}

struct encoder *encoder_new(size_t chunk_bytes_max)
{
    CHECK(chunk_bytes_max > 0);
    CHECK(chunk_bytes_max <= LIMIT_CHUNK_BYTES);
    struct encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) {
        return NULL;
    }
    encoder->chunk_bytes_max = chunk_bytes_max;
    encoder->zstd = zstd_encoder_new();
    encoder->planes = malloc(chunk_bytes_max);
    encoder->sample = malloc(ENCODE_SAMPLE_BYTES);
    if (!encoder->zstd || !encoder->planes || !encoder->sample) {
        encoder_free(encoder);
        return NULL;
    }
    touch(encoder);
    return encoder;
}

void encoder_free(struct encoder *encoder)
{
    if (encoder) {
        zstd_encoder_free(encoder->zstd);
        free(encoder->planes);
        free(encoder->sample);
        free(encoder);
    }
}

uint64_t encoder_bytes(void)
{
    return (uint64_t)LIMIT_CHUNK_BYTES + ENCODE_SAMPLE_BYTES + ZSTD_ENCODER_BYTES;
}

/* Returns the most stored bytes that still save enough. */
static size_t worth_bytes(size_t plain_bytes)
{
    return plain_bytes - (plain_bytes * ENCODE_GAIN_MIN_PERCENT + 99) / 100;
}

static int encode_zstd(struct encoder *encoder, const struct chunk_plain *plain,
                       struct zstd_room *io)
{
    const struct zstd_settings settings = {
        .level = plain->level ? plain->level : ZSTD_LEVEL_FASTEST, .checksum = false};
    int rc = zstd_encoder_run(encoder->zstd, &settings, plain->bytes, plain->data, io);
    if (rc == 0 && io->bytes < zstd_stored_bytes_min(plain->bytes)) {
        rc = CAIRN_E_TOO_LARGE; /* a ratio that no reader accepts */
    }
    return rc;
}

/* Encodes into the room. TOO_LARGE if it does not fit. */
static int MUST_USE encode(struct encoder *encoder, enum encoding encoding,
                           const struct chunk_plain *plain, struct zstd_room *io)
{
    switch (encoding) {
    case ENCODING_RAW:
        return CAIRN_E_TOO_LARGE;
    case ENCODING_ZSTD:
        return encode_zstd(encoder, plain, io);
    case ENCODING_PLANES_ZSTD: {
        const struct planes_plain planes = {.bytes = plain->bytes,
                                            .data = plain->data,
                                            .shape = plain->shape,
                                            .level = ZSTD_LEVEL_ENTROPY};
        return planes_encode(encoder->zstd, &planes, encoder->planes, io);
    }
    }
    UNREACHABLE();
}

void chunk_seal(struct encoder *encoder, enum encoding encoding, const struct chunk_plain *plain,
                const struct zstd_room *room, struct chunk_sealed *ret)
{
    struct zstd_room io = *room;
    struct envelope envelope = {.plain_bytes = (uint32_t)plain->bytes,
                                .stored_bytes = (uint32_t)plain->bytes,
                                .encoding = ENCODING_RAW,
                                .digest_alg = plain->digest_alg,
                                .element_bytes = plain->element_bytes};
    int rc;
    CHECK(plain->bytes > 0);
    CHECK(plain->bytes <= encoder->chunk_bytes_max);
    io.cap = io.cap < worth_bytes(plain->bytes) ? io.cap : worth_bytes(plain->bytes);
    if (encode(encoder, encoding, plain, &io) == 0) {
        envelope.encoding = (uint8_t)encoding;
        envelope.stored_bytes = (uint32_t)io.bytes;
        envelope.stored_crc = crc32c(0, io.bytes, io.data);
        rc = digest_make(plain->digest_alg, plain->bytes, plain->data, &envelope.digest, NULL);
        ret->stored = io.data;
    } else {
        rc = digest_make_with_crc(plain->digest_alg, plain->bytes, plain->data, &envelope.digest,
                                  &envelope.stored_crc);
        ret->stored = plain->data;
    }
    CHECK(rc == 0); /* the algorithm is always known here */
    ret->envelope = envelope;
}

struct encode_sample encoder_sample(struct encoder *encoder, enum encoding encoding,
                                    const struct chunk_plain *plain)
{
    struct chunk_plain slice = *plain;
    CHECK(plain->bytes > 0);
    CHECK(plain->bytes <= encoder->chunk_bytes_max);
    if (slice.bytes > ENCODE_SAMPLE_BYTES) {
        size_t at = (slice.bytes - ENCODE_SAMPLE_BYTES) / 2;
        slice.data = (const uint8_t *)slice.data + at / PLANES_WIDTH_MAX * PLANES_WIDTH_MAX;
        slice.bytes = ENCODE_SAMPLE_BYTES;
    }
    struct zstd_room io = {.data = encoder->sample, .cap = worth_bytes(slice.bytes)};
    struct encode_sample sample = {.plain_bytes = slice.bytes, .stored_bytes = slice.bytes};
    if (encode(encoder, encoding, &slice, &io) == 0) {
        sample.stored_bytes = io.bytes;
    }
    return sample;
}

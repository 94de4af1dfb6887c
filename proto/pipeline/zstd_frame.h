/* SPDX-License-Identifier: Apache-2.0
 *
 * zstd_frame: bytes as one zstd frame (zstd.c). Sizes are never believed from the frame: the caller
 * says how many plain bytes there must be, and the frame has to agree before anything is decoded.
 * Pure; any thread, and one at a time uses an encoder.
 */
#ifndef CAIRN_PIPELINE_ZSTD_FRAME_H
#define CAIRN_PIPELINE_ZSTD_FRAME_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    ZSTD_RATIO_MAX = 1000,        /* plain bytes for each stored byte; more is refused as a bomb */
    ZSTD_WINDOW_LOG_MAX = 23,     /* 8 MiB */
    ZSTD_ENCODER_BYTES = 1 << 20, /* of an encoder's memory at the levels that saves use, about */
};

/* Where an encoder writes, and how many bytes it has written. */
struct zstd_room {
    size_t cap;
    void *data;
    size_t bytes; /* result */
};
/* Returns the fewest stored bytes that may stand for plain_bytes. */
static inline size_t zstd_stored_bytes_min(size_t plain_bytes)
{
    return plain_bytes / ZSTD_RATIO_MAX + 1;
}

/* ZSTD_LEVEL_ENTROPY is Huffman coding with hardly any search for repetitions: two to three times
 * as fast as level 1, and denser where values are skewed but do not repeat, as exponents are. */
enum { ZSTD_LEVEL_ENTROPY = 0, ZSTD_LEVEL_FASTEST = 1, ZSTD_LEVEL_MAX = 19 };
struct zstd_settings {
    int level;
    bool checksum; /* the frame's own; needless if a digest covers the plain bytes */
};

/* An encoder's memory, for reuse: about 1 MiB, one for each thread that encodes. */
struct zstd_encoder;
struct zstd_encoder *zstd_encoder_new(void); /* NULL if memory is short */
void zstd_encoder_free(struct zstd_encoder *encoder);
/* Writes one frame of bytes > 0. TOO_LARGE if it does not fit into the room. It does not keep the
 * ratio. */
int MUST_USE zstd_encoder_run(struct zstd_encoder *encoder, const struct zstd_settings *settings,
                              size_t bytes, const void *plain, struct zstd_room *io);

/* Decodes exactly one frame of exactly plain_bytes, without a dictionary. FORMAT says what is
 * wrong. */
int MUST_USE zstd_decode(size_t bytes, const void *stored, size_t plain_bytes, void *ret_plain,
                         struct diag *diag);
/* Does the same for a frame inside something larger, whose ratio the caller has checked as a
 * whole. */
int MUST_USE zstd_decode_inner(size_t bytes, const void *stored, size_t plain_bytes,
                               void *ret_plain, struct diag *diag);

#endif

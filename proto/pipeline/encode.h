/* SPDX-License-Identifier: Apache-2.0
 *
 * encode: from a chunk's plain bytes to its stored bytes and envelope. An encoding is kept only if
 * it saves 3 % or more; otherwise the chunk is stored raw, so sealing cannot fail. adapt.h decides
 * which encoding to try. Pure; one thread at a time uses an encoder.
 */
#ifndef CAIRN_PIPELINE_ENCODE_H
#define CAIRN_PIPELINE_ENCODE_H

#include "format/envelope.h"
#include "planes.h"

enum { ENCODE_GAIN_MIN_PERCENT = 3, ENCODE_SAMPLE_BYTES = 64 << 10 };

/* The memory of one worker: zstd's, a chunk's byte planes, and the stored bytes of a sample. All of
 * it is taken here; sealing takes none of its own. chunk_bytes_max is 1 to LIMIT_CHUNK_BYTES.
 * encoder_new returns NULL if memory is short. */
struct encoder;
struct encoder *encoder_new(size_t chunk_bytes_max);
void encoder_free(struct encoder *encoder);
uint64_t encoder_bytes(void); /* of one encoder for chunks of LIMIT_CHUNK_BYTES, about */

/* A chunk to seal; the bytes are borrowed. */
struct chunk_plain {
    size_t bytes; /* 1 to the encoder's chunk_bytes_max */
    const void *data;
    struct planes_shape shape; /* from planes_shape_of_dtype() */
    uint8_t element_bytes;     /* for the envelope */
    uint8_t digest_alg;        /* enum digest_alg */
    uint8_t level;             /* of encoding 1: 1 to 19; 0 means 1 */
};

/* A sealed chunk; the stored bytes are borrowed from the room or from the plain bytes. */
struct chunk_sealed {
    struct envelope envelope; /* the caller sets offset */
    const void *stored;       /* envelope.stored_bytes, in the room, or the plain bytes if raw */
};

/* Tries the encoding and seals, with digest and crc. The room needs no more than plain->bytes; a
 * smaller one only means that more chunks stay raw. */
void chunk_seal(struct encoder *encoder, enum encoding encoding, const struct chunk_plain *plain,
                const struct zstd_room *room, struct chunk_sealed *ret);

/* Returns what the encoding would make of ENCODE_SAMPLE_BYTES from the middle of the chunk, or of
 * the whole chunk if it is smaller. The caller measures how long that takes. */
struct encode_sample {
    size_t plain_bytes, stored_bytes; /* equal if it would not fit */
};
struct encode_sample encoder_sample(struct encoder *encoder, enum encoding encoding,
                                    const struct chunk_plain *plain);

#endif

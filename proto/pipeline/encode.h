/* SPDX-License-Identifier: Apache-2.0
 *
 * encode: a chunk's plain bytes to its stored bytes and envelope. An encoding is kept only if it
 * saves 3 % or more; otherwise the chunk is stored raw, so sealing cannot fail. Which encoding to
 * try is the caller's question to adapt.h. Pure; an encoder belongs to one thread at a time.
 */
#ifndef CAIRN_PIPELINE_ENCODE_H
#define CAIRN_PIPELINE_ENCODE_H

#include "format/envelope.h"
#include "planes.h"

enum { ENCODE_GAIN_MIN_PERCENT = 3, ENCODE_SAMPLE_BYTES = 64 << 10 };

/* Memory of one worker: zstd's, a chunk's byte planes, and a sample's stored bytes. All is taken
 * here; sealing takes none of its own. chunk_bytes_max: 1 to LIMIT_CHUNK_BYTES. NULL: out of
 * memory. */
struct encoder;
struct encoder *encoder_new(size_t chunk_bytes_max);
void encoder_free(struct encoder *encoder);
uint64_t encoder_bytes(void); /* of one for chunks of LIMIT_CHUNK_BYTES, about */

struct chunk_plain {
    size_t bytes; /* 1 to the encoder's chunk_bytes_max */
    const void *data;
    struct planes_shape shape; /* planes_shape_of_dtype() */
    uint8_t element_bytes;     /* for the envelope */
    uint8_t digest_alg;        /* enum digest_alg */
    uint8_t level;             /* of encoding 1: 1 to 19; 0 stands for 1 */
};

struct chunk_sealed {
    struct envelope envelope; /* offset is the caller's to set */
    const void *stored;       /* envelope.stored_bytes: in the room, or the plain bytes if raw */
};

/* Tries the encoding and seals. The room needs no more than plain->bytes; a smaller one only means
 * that more chunks stay raw. Digest and crc are made here. */
void chunk_seal(struct encoder *encoder, enum encoding encoding, const struct chunk_plain *plain,
                const struct zstd_room *room, struct chunk_sealed *ret);

/* What the encoding would make of ENCODE_SAMPLE_BYTES from the middle of the chunk (of all of it if
 * it is smaller). The caller measures the time that this takes. */
struct encode_sample {
    size_t plain_bytes, stored_bytes; /* equal where it would not fit */
};
struct encode_sample encoder_sample(struct encoder *encoder, enum encoding encoding,
                                    const struct chunk_plain *plain);

#endif

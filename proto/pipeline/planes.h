/* SPDX-License-Identifier: Apache-2.0
 *
 * planes: encoding 2. The bytes of the elements are sorted by their place in the element, so that
 * exponents, signs and high bytes, which hardly vary, stand together and compress, while mantissas,
 * which vary, are left alone. Layout: FORMAT.md 3.1. Pure; any thread.
 */
#ifndef CAIRN_PIPELINE_PLANES_H
#define CAIRN_PIPELINE_PLANES_H

#include "planes_split.h"
#include "zstd_frame.h"

/* Returns the shape that suits the elements of a tensor; width 1 for a dtype that this version
 * lacks. */
struct planes_shape planes_shape_of_dtype(uint32_t dtype);

/* What to encode; the bytes are borrowed. */
struct planes_plain {
    size_t bytes; /* > 0; bytes behind the last whole element are stored as they are */
    const uint8_t *data;
    struct planes_shape shape;
    int level; /* of the planes' frames; ZSTD_LEVEL_ENTROPY as a rule */
};
/* Encodes into the room. scratch has plain->bytes of memory. Returns TOO_LARGE if it does not
 * fit. */
int MUST_USE planes_encode(struct zstd_encoder *encoder, const struct planes_plain *plain,
                           uint8_t *scratch, struct zstd_room *io);

/* What to decode; the bytes are borrowed. */
struct planes_stored {
    size_t bytes;
    const uint8_t *data;
    size_t plain_bytes; /* the length that the plain bytes must have, > 0 */
};
/* Decodes to exactly plain_bytes in ret_plain. scratch has plain_bytes of memory; the three
 * memories do not overlap. FORMAT says what is wrong; nothing is read or written beyond the given
 * sizes. */
int MUST_USE planes_decode(const struct planes_stored *stored, uint8_t *scratch, void *ret_plain,
                           struct diag *diag);

#endif

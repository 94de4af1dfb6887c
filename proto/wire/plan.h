/* SPDX-License-Identifier: Apache-2.0
 *
 * plan_read: one stored chunk that a restore needs, as a fixed record of 256 bytes in the payloads
 * of PLAN_REPLY. Bytes: PROTOCOL.md 7. Pure.
 */
#ifndef CAIRN_WIRE_PLAN_H
#define CAIRN_WIRE_PLAN_H

#include "format/box.h"
#include "format/envelope.h"

enum { PLAN_READ_BYTES = 256 };

/* One record. Invariant of a decoded one: its numbers are in range, and its cell is inside
 * int64. */
struct plan_read {
    uint32_t want; /* index into the PLAN's wants */
    struct object_id object;
    uint64_t offset; /* of the stored bytes in the object */
    uint32_t stored_bytes, plain_bytes, stored_crc;
    uint8_t encoding, digest_alg;
    struct digest digest;
    /* Of a tensor: the chunk's rectangle in the tensor; its bytes are row-major and
     * contiguous. */
    struct box cell;
    uint64_t blob_offset; /* of a blob: where the plain bytes belong */
};

/* Write and read one record of a plan. Decoding returns PROTOCOL for a wrong crc, reserved bytes
 * that are set, or numbers that cannot be. */
void plan_read_encode(const struct plan_read *read, uint8_t ret[PLAN_READ_BYTES]);
int MUST_USE plan_read_decode(const uint8_t bytes[PLAN_READ_BYTES], struct plan_read *ret,
                              struct diag *diag);

#endif

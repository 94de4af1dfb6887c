/* SPDX-License-Identifier: Apache-2.0
 *
 * frame: the fixed 32-byte little-endian header in front of every message. The message is protobuf
 * bytes with a budget; the payload is bulk bytes, never inside protobuf, and covered by the crcs of
 * its envelopes. Bytes: PROTOCOL.md 2. Pure.
 *
 *    0 u32 magic "CRN1"     4 u8 version          5 u8 flags (0)   6 u16 type
 *    8 u32 stream          12 u32 message bytes
 *   16 u64 sequence (for each direction, from 1, without gaps)
 *   24 u32 payload bytes   28 u32 crc32c of bytes 0..27 and the message
 */
#ifndef CAIRN_WIRE_FRAME_H
#define CAIRN_WIRE_FRAME_H

#include "base/diag.h"

#include <stdint.h>

enum { FRAME_HEADER_BYTES = 32, FRAME_VERSION = 1 };

/* A decoded header. */
struct frame {
    uint16_t type;   /* enum msg_type */
    uint32_t stream; /* a request's number, echoed by its replies; 0 means none */
    uint64_t sequence;
    uint32_t message_bytes, payload_bytes;
    uint32_t crc;
};

/* Writes the header, with the crc over header and message. */
void frame_encode(struct frame *frame, const uint8_t *message, uint8_t ret[FRAME_HEADER_BYTES]);
/* Decodes a header, and checks magic, version, flags and limits; message_max guards the allocation
 * that follows. frame_check() checks the crc, which needs the message too. PROTOCOL, VERSION or
 * TOO_LARGE. */
int MUST_USE frame_decode(const uint8_t bytes[FRAME_HEADER_BYTES], uint32_t message_max,
                          uint32_t payload_max, struct frame *ret, struct diag *diag);
int MUST_USE frame_check(const uint8_t bytes[FRAME_HEADER_BYTES], const struct frame *frame,
                         const uint8_t *message, struct diag *diag);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The frame header. Invariants: a length is compared with its limit before memory is allocated for
 * it, and a header that decodes has every reserved bit zero. Pure; any thread.
 */
#include "wire/frame.h"

#include "base/buf.h"
#include "hash/hash.h"

#include <string.h>

enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_FLAGS = 5,
    AT_TYPE = 6,
    AT_STREAM = 8,
    AT_MESSAGE_BYTES = 12,
    AT_SEQUENCE = 16,
    AT_PAYLOAD_BYTES = 24,
    AT_CRC = 28,
};

static const uint8_t FRAME_MAGIC[4] = {'C', 'R', 'N', '1'};

static uint32_t crc_of(const uint8_t header[FRAME_HEADER_BYTES], uint32_t bytes,
                       const uint8_t *message)
{
    uint32_t crc = crc32c(0, AT_CRC, header);
    return bytes > 0 ? crc32c(crc, bytes, message) : crc;
}

void frame_encode(struct frame *frame, const uint8_t *message, uint8_t ret[FRAME_HEADER_BYTES])
{
    memcpy(ret + AT_MAGIC, FRAME_MAGIC, sizeof(FRAME_MAGIC));
    ret[AT_VERSION] = FRAME_VERSION;
    ret[AT_FLAGS] = 0;
    memcpy(ret + AT_TYPE, &frame->type, sizeof(frame->type));
    store_u32(ret + AT_STREAM, frame->stream);
    store_u32(ret + AT_MESSAGE_BYTES, frame->message_bytes);
    store_u64(ret + AT_SEQUENCE, frame->sequence);
    store_u32(ret + AT_PAYLOAD_BYTES, frame->payload_bytes);
    frame->crc = crc_of(ret, frame->message_bytes, message);
    store_u32(ret + AT_CRC, frame->crc);
}

int frame_decode(const uint8_t bytes[FRAME_HEADER_BYTES], uint32_t message_max,
                 uint32_t payload_max, struct frame *ret, struct diag *diag)
{
    if (memcmp(bytes + AT_MAGIC, FRAME_MAGIC, sizeof(FRAME_MAGIC)) != 0) {
        return diag_set(
            diag, CAIRN_E_PROTOCOL,
            "a frame starts with %02x %02x %02x %02x instead of \"CRN1\": the peer does not "
            "speak Cairn's protocol here (is TLS on at one end only?)",
            bytes[0], bytes[1], bytes[2], bytes[3]);
    }
    if (bytes[AT_VERSION] != FRAME_VERSION) {
        return diag_set(diag, CAIRN_E_VERSION,
                        "the peer sends frames of version %u, this end knows %u", bytes[AT_VERSION],
                        (unsigned)FRAME_VERSION);
    }
    if (bytes[AT_FLAGS] != 0) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "a frame has flags %#x; they must be zero",
                        bytes[AT_FLAGS]);
    }
    struct frame frame = {
        .stream = load_u32(bytes + AT_STREAM),
        .sequence = load_u64(bytes + AT_SEQUENCE),
        .message_bytes = load_u32(bytes + AT_MESSAGE_BYTES),
        .payload_bytes = load_u32(bytes + AT_PAYLOAD_BYTES),
        .crc = load_u32(bytes + AT_CRC),
    };
    memcpy(&frame.type, bytes + AT_TYPE, sizeof(frame.type));
    if (frame.message_bytes > message_max) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "a frame's message has %u bytes; the limit here is %u", frame.message_bytes,
                        message_max);
    }
    if (frame.payload_bytes > payload_max) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "a frame's payload has %u bytes; the limit here is %u", frame.payload_bytes,
                        payload_max);
    }
    *ret = frame;
    return 0;
}

int frame_check(const uint8_t bytes[FRAME_HEADER_BYTES], const struct frame *frame,
                const uint8_t *message, struct diag *diag)
{
    uint32_t crc = crc_of(bytes, frame->message_bytes, message);
    if (crc != frame->crc) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "frame %llu came damaged: its crc is %08x, its bytes have %08x",
                        (unsigned long long)frame->sequence, frame->crc, crc);
    }
    return 0;
}

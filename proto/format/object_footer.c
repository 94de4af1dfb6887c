/* SPDX-License-Identifier: Apache-2.0
 *
 * The footer of an object: the headers of its chunks in order, zero padding, and a trailer in the
 * last 128 bytes. An object without a valid footer is never referenced. Pure; any thread.
 */
#include "envelope.h"

#include <string.h>

#include "base/check.h"
#include "doc.h"
#include "hash/hash.h"

#define TRAILER_MAGIC DOC_MAGIC('C', 'R', 'N', 'O')
enum { TRAILER_VERSION = 1 };

/*  0 magic  4 version  8 term  16 step  24 writer  32 rank  36 sequence  40 data_bytes
 * 48 footer_bytes  56 envelope_count  60 crc32c of the footer before the trailer  64 zero
 * 124 crc32c of the trailer's bytes 0..123 */
_Static_assert(OBJECT_TRAILER_BYTES == 128, "the layout above");

uint64_t object_footer_bytes(uint32_t envelope_count)
{
    return round_up_u64((uint64_t)envelope_count * ENVELOPE_BYTES + OBJECT_TRAILER_BYTES,
                        LIMIT_ALIGN_BYTES);
}

void object_footer_encode(const struct object_footer *footer, struct buf *buf)
{
    uint64_t bytes = object_footer_bytes(footer->envelope_count);
    size_t start = buf->bytes, before = (size_t)bytes - OBJECT_TRAILER_BYTES;
    uint8_t trailer[OBJECT_TRAILER_BYTES] = {0};
    CHECK(footer->data_bytes % LIMIT_ALIGN_BYTES == 0);
    for (uint32_t i = 0; i < footer->envelope_count; i++) {
        uint8_t header[ENVELOPE_BYTES];
        envelope_encode(&footer->envelopes[i], header);
        buf_put(buf, sizeof header, header);
    }
    buf_put_zero(buf, before - (size_t)footer->envelope_count * ENVELOPE_BYTES);
    if (buf_status(buf) != 0) {
        return;
    }
    store_u32(trailer, TRAILER_MAGIC);
    store_u32(trailer + 4, TRAILER_VERSION);
    store_u64(trailer + 8, footer->id.term);
    store_u64(trailer + 16, footer->id.step);
    store_u64(trailer + 24, footer->id.writer);
    store_u32(trailer + 32, footer->id.rank);
    store_u32(trailer + 36, footer->id.sequence);
    store_u64(trailer + 40, footer->data_bytes);
    store_u64(trailer + 48, bytes);
    store_u32(trailer + 56, footer->envelope_count);
    store_u32(trailer + 60, crc32c(0, before, buf->data + start));
    store_u32(trailer + 124, crc32c(0, 124, trailer));
    buf_put(buf, sizeof trailer, trailer);
}

struct trailer {
    struct object_id id;
    uint64_t data_bytes, footer_bytes;
    uint32_t envelope_count, footer_crc;
};

/* Decodes the trailer, and checks magic, crc, version and the place of the footer. */
static int trailer_decode(const uint8_t *bytes, uint64_t object_bytes, struct trailer *ret,
                          struct diag *diag)
{
    struct cur cur;
    if (load_u32(bytes) != TRAILER_MAGIC) {
        return diag_set(diag, CAIRN_E_FORMAT, "the object has no trailer: it ends with %08x",
                        load_u32(bytes));
    }
    uint32_t crc = crc32c(0, 124, bytes);
    if (crc != load_u32(bytes + 124)) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the object's trailer is damaged: its crc32c is %08x, but %08x is stored",
                        crc, load_u32(bytes + 124));
    }
    if (load_u32(bytes + 4) != TRAILER_VERSION) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the object has version %u; this program reads %d", load_u32(bytes + 4),
                        TRAILER_VERSION);
    }
    memset(ret, 0, sizeof *ret);
    cur_init(&cur, 124 - 8, bytes + 8);
    ret->id.term = cur_u64(&cur);
    ret->id.step = cur_u64(&cur);
    ret->id.writer = cur_u64(&cur);
    ret->id.rank = cur_u32(&cur);
    ret->id.sequence = cur_u32(&cur);
    ret->data_bytes = cur_u64(&cur);
    ret->footer_bytes = cur_u64(&cur);
    ret->envelope_count = cur_u32(&cur);
    ret->footer_crc = cur_u32(&cur);
    cur_zeros(&cur, 60);
    uint64_t total = 0;
    if (cur_finish(&cur) != 0 || ret->envelope_count > LIMIT_OBJECT_ENVELOPES ||
        ret->footer_bytes != object_footer_bytes(ret->envelope_count) ||
        ret->data_bytes % LIMIT_ALIGN_BYTES != 0 ||
        !add_u64(ret->data_bytes, ret->footer_bytes, &total) || total > LIMIT_OBJECT_BYTES) {
        return diag_set(diag, CAIRN_E_FORMAT, "the object's trailer contradicts itself");
    }
    if (total != object_bytes) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the object has %llu bytes, but its trailer says %llu",
                        (unsigned long long)object_bytes, (unsigned long long)total);
    }
    return 0;
}

int object_trailer_decode(const uint8_t bytes[OBJECT_TRAILER_BYTES], uint64_t object_bytes,
                          uint64_t *ret_footer_offset, uint64_t *ret_footer_bytes,
                          struct diag *diag)
{
    struct trailer trailer;
    int rc = trailer_decode(bytes, object_bytes, &trailer, diag);
    if (rc == 0) {
        *ret_footer_offset = trailer.data_bytes;
        *ret_footer_bytes = trailer.footer_bytes;
    }
    return rc;
}

/* Decodes one header, whose chunk must start at or after `end`, the end of the chunk before. */
static int footer_envelope(const uint8_t *data, const struct trailer *trailer, uint64_t *end,
                           struct envelope *ret, struct diag *diag)
{
    int rc = envelope_decode(data, ret, diag);
    if (rc != 0) {
        return rc;
    }
    uint64_t stop = 0;
    if (ret->offset < *end || !add_u64(ret->offset, ret->stored_bytes, &stop) ||
        stop > trailer->data_bytes) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the chunk at %llu overlaps the one before it or leaves the object's data",
                        (unsigned long long)ret->offset);
    }
    if (ret->stored_bytes >= LIMIT_PACK_PIECE_BYTES && ret->offset % LIMIT_ALIGN_BYTES != 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the chunk at %llu is not aligned",
                        (unsigned long long)ret->offset);
    }
    *end = stop;
    return 0;
}

int object_footer_decode(size_t bytes, const uint8_t *data, uint64_t object_bytes,
                         struct scratch *scratch, struct object_footer *ret, struct diag *diag)
{
    struct trailer trailer;
    if (bytes < LIMIT_ALIGN_BYTES || bytes % LIMIT_ALIGN_BYTES != 0) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the object's footer has %zu bytes, which is too short", bytes);
    }
    size_t before = bytes - OBJECT_TRAILER_BYTES;
    int rc = trailer_decode(data + before, object_bytes, &trailer, diag);
    if (rc != 0) {
        return rc;
    }
    if (trailer.footer_bytes != bytes) {
        return diag_set(diag, CAIRN_E_FORMAT, "the footer has %zu bytes, but its trailer says %llu",
                        bytes, (unsigned long long)trailer.footer_bytes);
    }
    uint32_t crc = crc32c(0, before, data);
    if (crc != trailer.footer_crc) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the object's footer is damaged: its crc32c is %08x, but %08x is stored",
                        crc, trailer.footer_crc);
    }
    struct envelope *envelopes = scratch_array(scratch, trailer.envelope_count, sizeof *envelopes);
    if (envelopes == NULL && trailer.envelope_count > 0) {
        return doc_no_memory("object's footer", diag);
    }
    uint64_t end = 0;
    size_t used = (size_t)trailer.envelope_count * ENVELOPE_BYTES;
    for (uint32_t i = 0; i < trailer.envelope_count && rc == 0; i++) {
        rc =
            footer_envelope(data + (size_t)i * ENVELOPE_BYTES, &trailer, &end, &envelopes[i], diag);
    }
    if (rc != 0) {
        return rc;
    }
    for (size_t i = used; i < before; i++) {
        if (data[i] != 0) {
            return diag_set(diag, CAIRN_E_FORMAT, "the footer's padding is not zero at byte %zu",
                            i);
        }
    }
    ret->id = trailer.id;
    ret->data_bytes = trailer.data_bytes;
    ret->envelope_count = trailer.envelope_count;
    ret->envelopes = envelopes;
    return 0;
}

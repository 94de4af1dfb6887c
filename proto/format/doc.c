/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared prologue: see doc.h. The crc is checked before the version, so that a flipped bit in
 * the version is reported as damage, and not as a file of a newer Cairn. Pure; any thread.
 */
#include "doc.h"

#include <string.h>

#include "base/check.h"
#include "hash/hash.h"
#include "ids.h"

size_t doc_begin(struct buf *buf, const struct doc_kind *kind)
{
    size_t start = buf->bytes;
    buf_put_u32(buf, kind->magic);
    buf_put_u32(buf, DOC_VERSION);
    buf_put_u64(buf, 0);
    buf_put_u32(buf, 0);
    return start;
}

/* Returns the crc of all bytes except its own four. */
static uint32_t doc_crc(size_t bytes, const uint8_t *data)
{
    return crc32c(crc32c(0, 16, data), bytes - DOC_PROLOGUE_BYTES, data + DOC_PROLOGUE_BYTES);
}

void doc_end(struct buf *buf, const struct doc_kind *kind, size_t start)
{
    if (buf_status(buf) != 0) {
        return;
    }
    size_t bytes = buf->bytes - start;
    CHECK(bytes >= kind->bytes_min);
    if (bytes > kind->bytes_max) {
        buf->status = CAIRN_E_TOO_LARGE;
        return;
    }
    size_t end = kind->covered != 0 ? kind->covered : bytes;
    CHECK(end <= bytes);
    buf_patch_u64(buf, start + 8, bytes);
    buf_patch_u32(buf, start + 16, doc_crc(end, buf->data + start));
}

int doc_open(const struct doc_kind *kind, size_t bytes, const uint8_t *data, struct cur *ret,
             struct diag *diag)
{
    struct cur cur;
    if (bytes > kind->bytes_max) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "the %s has %zu bytes; at most %llu are allowed",
                        kind->what, bytes, (unsigned long long)kind->bytes_max);
    }
    if (bytes < kind->bytes_min) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the %s has %zu bytes, but the shortest possible one has %llu", kind->what,
                        bytes, (unsigned long long)kind->bytes_min);
    }
    cur_init(&cur, bytes, data);
    uint32_t magic = cur_u32(&cur), version = cur_u32(&cur);
    uint64_t length = cur_u64(&cur);
    uint32_t crc = cur_u32(&cur);
    if (magic != kind->magic) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "this is not a valid %s: it begins with %08x instead of %08x", kind->what,
                        magic, kind->magic);
    }
    if (length != bytes) {
        return diag_set(diag, CAIRN_E_FORMAT, "the %s has %zu bytes, but its header says %llu",
                        kind->what, bytes, (unsigned long long)length);
    }
    size_t end = kind->covered != 0 ? kind->covered : bytes;
    CHECK(end >= DOC_PROLOGUE_BYTES && end <= bytes);
    uint32_t found = doc_crc(end, data);
    if (found != crc) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the %s is damaged: its crc32c is %08x, but %08x is stored", kind->what,
                        found, crc);
    }
    if (version != DOC_VERSION) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the %s has version %u; this program reads version %d", kind->what, version,
                        DOC_VERSION);
    }
    *ret = cur;
    return 0;
}

int doc_finish(const struct doc_kind *kind, const struct cur *cur, struct diag *diag)
{
    if (cur_finish(cur) != 0) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the %s ends early or has bytes left over at offset %zu", kind->what,
                        cur->at);
    }
    return 0;
}

int doc_as_format(int code, struct diag *diag)
{
    if (code != CAIRN_E_INVALID) {
        return code;
    }
    if (diag != NULL && diag->code == CAIRN_E_INVALID) {
        diag->code = CAIRN_E_FORMAT;
    }
    return CAIRN_E_FORMAT;
}

int doc_no_memory(const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_NO_MEMORY,
                    "decoding the %s needs more memory than its reader allows", what);
}

const char *doc_text(struct cur *cur, size_t max, bool empty_allowed, struct scratch *scratch,
                     int *status)
{
    size_t bytes = cur_u16(cur);
    const uint8_t *text = cur_bytes(cur, bytes);
    if (*status != 0) {
        return "";
    }
    if (cur->status != 0 ||
        !((bytes == 0 && empty_allowed) || text_is_valid(bytes, (const char *)text, max))) {
        *status = CAIRN_E_FORMAT;
        return "";
    }
    const char *copy = bytes == 0 ? "" : scratch_string(scratch, bytes, text);
    if (copy == NULL) {
        *status = CAIRN_E_NO_MEMORY;
        return "";
    }
    return copy;
}

void doc_put_text(struct buf *buf, const char *text)
{
    size_t bytes = strlen(text);
    if (bytes > UINT16_MAX) {
        buf->status = CAIRN_E_TOO_LARGE;
        return;
    }
    buf_put_u16(buf, (uint16_t)bytes);
    buf_put(buf, bytes, text);
}

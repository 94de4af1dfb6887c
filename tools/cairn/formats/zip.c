/* SPDX-License-Identifier: Apache-2.0
 *
 * See zip.h.
 */
#include "formats/zip.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOCAL_MAGIC = 0x04034b50,
    CENTRAL_MAGIC = 0x02014b50,
    END_MAGIC = 0x06054b50,
    END64_MAGIC = 0x06064b50,
    LOCATOR_MAGIC = 0x07064b50,
    LOCAL_BYTES = 30,
    CENTRAL_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    COMMENT_MAX = 65535,
    ENTRIES_MAX = 1 << 20,
    EXTRA_ZIP64 = 1,
    EXTRA_PADDING = 0x4246, /* "FB", as PyTorch's */
    VERSION_PLAIN = 20,
    VERSION_ZIP64 = 45,
    FLAG_ENCRYPTED = 1,
    FLAG_UTF8 = 0x800,
    DATE_1980 = 0x21
};

static uint64_t load(const uint8_t *data, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        value |= (uint64_t)data[i] << (8 * i);
    }
    return value;
}

/* --- reading --- */

struct archive {
    const uint8_t *data;
    size_t bytes;
    uint64_t count, at, directory_bytes; /* of the directory */
};

static int broken(const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_FORMAT, "zip: %s", what);
}

static int find_end(struct archive *archive, struct diag *diag)
{
    if (archive->bytes < END_BYTES) {
        return broken("too short", diag);
    }
    size_t at = archive->bytes - END_BYTES;
    size_t lowest = at > COMMENT_MAX ? at - COMMENT_MAX : 0;
    for (;; at--) {
        const uint8_t *end = archive->data + at;
        if (load(end, 4) == END_MAGIC && load(end + 20, 2) == archive->bytes - at - END_BYTES) {
            break;
        }
        if (at == lowest) {
            return broken("no end record: not a zip file, or cut off", diag);
        }
    }
    const uint8_t *end = archive->data + at;
    archive->count = load(end + 10, 2);
    archive->directory_bytes = load(end + 12, 4);
    archive->at = load(end + 16, 4);
    if (at < LOCATOR_BYTES || load(end - LOCATOR_BYTES, 4) != LOCATOR_MAGIC) {
        return 0;
    }
    uint64_t at64 = load(end - LOCATOR_BYTES + 8, 8);
    if (archive->bytes < END64_BYTES || at64 > archive->bytes - END64_BYTES ||
        load(archive->data + at64, 4) != END64_MAGIC) {
        return broken("a broken zip64 end record", diag);
    }
    archive->count = load(archive->data + at64 + 32, 8);
    archive->directory_bytes = load(archive->data + at64 + 40, 8);
    archive->at = load(archive->data + at64 + 48, 8);
    return 0;
}

struct central { /* what one record of the directory says */
    uint64_t bytes, stored, local;
};

/* Fields that are all ones stand in the zip64 extra field, in this order. */
static bool read_zip64(const uint8_t *extra, size_t bytes, struct central *io)
{
    uint64_t *fields[] = {&io->bytes, &io->stored, &io->local};
    while (bytes >= 4) {
        size_t length = load(extra + 2, 2);
        if (length > bytes - 4) {
            return false;
        }
        if (load(extra, 2) == EXTRA_ZIP64) {
            size_t at = 4;
            for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
                if (*fields[i] == UINT32_MAX && at + 8 <= length + 4) {
                    *fields[i] = load(extra + at, 8);
                    at += 8;
                }
            }
        }
        extra += 4 + length;
        bytes -= 4 + length;
    }
    return true;
}

/* Where the data is: behind the local record, whose name and extra field may be of other lengths.
 */
static int find_data(const struct archive *archive, const struct central *central,
                     struct zip_entry *entry, struct diag *diag)
{
    if (archive->bytes < LOCAL_BYTES || central->local > archive->bytes - LOCAL_BYTES ||
        load(archive->data + central->local, 4) != LOCAL_MAGIC) {
        return broken("an entry without its record", diag);
    }
    const uint8_t *local = archive->data + central->local;
    entry->offset = central->local + LOCAL_BYTES + load(local + 26, 2) + load(local + 28, 2);
    uint64_t stored = entry->method == 0 ? central->bytes : central->stored;
    if (entry->offset > archive->bytes || stored > archive->bytes - entry->offset ||
        (entry->method == 0 && central->bytes != central->stored)) {
        return broken("an entry that does not lie in the file", diag);
    }
    entry->bytes = stored;
    entry->plain_bytes = central->bytes;
    return 0;
}

static int read_entry(struct archive *archive, struct scratch *scratch, struct zip_entry *ret,
                      struct diag *diag)
{
    const uint8_t *record = archive->data + archive->at;
    if (archive->directory_bytes < CENTRAL_BYTES || load(record, 4) != CENTRAL_MAGIC) {
        return broken("a broken directory", diag);
    }
    size_t name = load(record + 28, 2), extra = load(record + 30, 2);
    size_t all = CENTRAL_BYTES + name + extra + load(record + 32, 2);
    struct central central = {load(record + 24, 4), load(record + 20, 4), load(record + 42, 4)};
    if (all > archive->directory_bytes ||
        !read_zip64(record + CENTRAL_BYTES + name, extra, &central)) {
        return broken("a broken directory", diag);
    }
    if ((load(record + 8, 2) & FLAG_ENCRYPTED) != 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "zip: encrypted");
    }
    if (memchr(record + CENTRAL_BYTES, '\0', name)) {
        return broken("a name with a NUL", diag);
    }
    *ret = (struct zip_entry){.name = scratch_string(scratch, name, record + CENTRAL_BYTES),
                              .crc = (uint32_t)load(record + 16, 4),
                              .method = (uint16_t)load(record + 10, 2)};
    archive->at += all;
    archive->directory_bytes -= all;
    return ret->name ? find_data(archive, &central, ret, diag)
                     : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a zip directory");
}

static int compare_places(const void *left, const void *right)
{
    const struct zip_entry *a = left, *b = right;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* Entries that share bytes are how a small archive becomes a huge one. */
static int check_overlap(const struct zip *zip, struct scratch *scratch, struct diag *diag)
{
    struct zip_entry *sorted =
        scratch_copy(scratch, (zip->count + 1) * sizeof(*sorted), zip->entries);
    if (!sorted) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a zip directory");
    }
    qsort(sorted, zip->count, sizeof(*sorted), compare_places);
    for (size_t i = 0; i + 1 < zip->count; i++) {
        if (sorted[i].bytes > sorted[i + 1].offset - sorted[i].offset) {
            return diag_set(diag, CAIRN_E_FORMAT, "zip: entries '%s' and '%s' overlap",
                            sorted[i].name, sorted[i + 1].name);
        }
    }
    return 0;
}

int zip_read(size_t bytes, const uint8_t *data, struct scratch *scratch, struct zip *ret,
             struct diag *diag)
{
    struct archive archive = {.data = data, .bytes = bytes};
    int status = find_end(&archive, diag);
    if (status == 0 && (archive.at > bytes || archive.directory_bytes > bytes - archive.at)) {
        status = broken("a directory that does not lie in the file", diag);
    }
    if (status == 0 && archive.count > ENTRIES_MAX) {
        status = diag_set(diag, CAIRN_E_TOO_LARGE, "zip: more than %d entries", ENTRIES_MAX);
    }
    if (status != 0) {
        return status;
    }
    ret->count = archive.count;
    ret->entries = scratch_array(scratch, archive.count + 1, sizeof(*ret->entries));
    if (!ret->entries) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a zip directory");
    }
    for (size_t i = 0; status == 0 && i < ret->count; i++) {
        status = read_entry(&archive, scratch, &ret->entries[i], diag);
    }
    return status != 0 ? status : check_overlap(ret, scratch, diag);
}

const struct zip_entry *zip_find(const struct zip *zip, const char *name)
{
    for (size_t i = 0; i < zip->count; i++) {
        if (strcmp(zip->entries[i].name, name) == 0) {
            return &zip->entries[i];
        }
    }
    return NULL;
}

/* --- writing --- */

void zip_put_local(struct buf *buf, uint64_t offset, const struct zip_entry *entry, unsigned align)
{
    bool large = entry->bytes >= UINT32_MAX;
    size_t name = strlen(entry->name), extra = large ? 20 : 0;
    uint64_t end = offset + LOCAL_BYTES + name + extra;
    size_t padding = align > 1 ? (size_t)(round_up_u64(end + 4, align) - end) : 0;
    buf_put_u32(buf, LOCAL_MAGIC);
    buf_put_u16(buf, large ? VERSION_ZIP64 : VERSION_PLAIN);
    buf_put_u16(buf, FLAG_UTF8);
    buf_put_u16(buf, 0);
    buf_put_u16(buf, 0);
    buf_put_u16(buf, DATE_1980);
    buf_put_u32(buf, entry->crc);
    buf_put_u32(buf, large ? UINT32_MAX : (uint32_t)entry->bytes);
    buf_put_u32(buf, large ? UINT32_MAX : (uint32_t)entry->bytes);
    buf_put_u16(buf, (uint16_t)name);
    buf_put_u16(buf, (uint16_t)(extra + padding));
    buf_put(buf, name, entry->name);
    if (large) {
        buf_put_u16(buf, EXTRA_ZIP64);
        buf_put_u16(buf, 16);
        buf_put_u64(buf, entry->bytes);
        buf_put_u64(buf, entry->bytes);
    }
    if (padding > 0) {
        buf_put_u16(buf, EXTRA_PADDING);
        buf_put_u16(buf, (uint16_t)(padding - 4));
        buf_put_zero(buf, padding - 4);
    }
}

static void put_central(struct buf *buf, const struct zip_entry *entry, uint64_t local)
{
    bool large = entry->bytes >= UINT32_MAX || local >= UINT32_MAX;
    size_t name = strlen(entry->name);
    buf_put_u32(buf, CENTRAL_MAGIC);
    buf_put_u16(buf, large ? VERSION_ZIP64 : VERSION_PLAIN);
    buf_put_u16(buf, large ? VERSION_ZIP64 : VERSION_PLAIN);
    buf_put_u16(buf, FLAG_UTF8);
    buf_put_u16(buf, 0);
    buf_put_u16(buf, 0);
    buf_put_u16(buf, DATE_1980);
    buf_put_u32(buf, entry->crc);
    buf_put_u32(buf, large ? UINT32_MAX : (uint32_t)entry->bytes);
    buf_put_u32(buf, large ? UINT32_MAX : (uint32_t)entry->bytes);
    buf_put_u16(buf, (uint16_t)name);
    buf_put_u16(buf, large ? 28 : 0);
    buf_put_u16(buf, 0);
    buf_put_u16(buf, 0);
    buf_put_u16(buf, 0);
    buf_put_u32(buf, 0);
    buf_put_u32(buf, large ? UINT32_MAX : (uint32_t)local);
    buf_put(buf, name, entry->name);
    if (large) {
        buf_put_u16(buf, EXTRA_ZIP64);
        buf_put_u16(buf, 24);
        buf_put_u64(buf, entry->bytes);
        buf_put_u64(buf, entry->bytes);
        buf_put_u64(buf, local);
    }
}

void zip_put_directory(struct buf *buf, uint64_t at, const struct zip *zip, const uint64_t *local)
{
    size_t from = buf->bytes;
    for (size_t i = 0; i < zip->count; i++) {
        put_central(buf, &zip->entries[i], local[i]);
    }
    uint64_t bytes = buf->bytes - from;
    bool large = zip->count >= UINT16_MAX || at >= UINT32_MAX || bytes >= UINT32_MAX;
    if (large) {
        uint64_t end = at + bytes;
        buf_put_u32(buf, END64_MAGIC);
        buf_put_u64(buf, END64_BYTES - 12);
        buf_put_u16(buf, VERSION_ZIP64);
        buf_put_u16(buf, VERSION_ZIP64);
        buf_put_u32(buf, 0);
        buf_put_u32(buf, 0);
        buf_put_u64(buf, zip->count);
        buf_put_u64(buf, zip->count);
        buf_put_u64(buf, bytes);
        buf_put_u64(buf, at);
        buf_put_u32(buf, LOCATOR_MAGIC);
        buf_put_u32(buf, 0);
        buf_put_u64(buf, end);
        buf_put_u32(buf, 1);
    }
    buf_put_u32(buf, END_MAGIC);
    buf_put_u16(buf, 0);
    buf_put_u16(buf, 0);
    buf_put_u16(buf, large ? UINT16_MAX : (uint16_t)zip->count);
    buf_put_u16(buf, large ? UINT16_MAX : (uint16_t)zip->count);
    buf_put_u32(buf, large ? UINT32_MAX : (uint32_t)bytes);
    buf_put_u32(buf, large ? UINT32_MAX : (uint32_t)at);
    buf_put_u16(buf, 0);
}

/* Four bits at a time: a table that can be seen at a glance. */
uint32_t zip_crc(uint32_t crc, size_t bytes, const uint8_t *data)
{
    static const uint32_t table[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac,
                                       0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                       0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                       0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc = table[(crc ^ data[i]) & 15] ^ crc >> 4;
        crc = table[(crc ^ (uint32_t)(data[i] >> 4)) & 15] ^ crc >> 4;
    }
    return ~crc;
}

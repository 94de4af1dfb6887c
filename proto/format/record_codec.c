/* SPDX-License-Identifier: Apache-2.0
 *
 * The stored forms of a record: one update, and the whole map at a version. Keys ascend strictly, so that
 * a content has one encoding, and each names the SHA-256 of the update before it. Pure; any thread.
 */
#include "record_codec.h"

#include "base/check.h"
#include "base/limits.h"
#include "doc.h"

#include <stdlib.h>
#include <string.h>

static const struct doc_kind update_kind = {DOC_MAGIC('C', 'R', 'N', 'U'), "record update",
                                            RECORD_UPDATE_HEADER_BYTES, LIMIT_RECORD_UPDATE_BYTES};
static const struct doc_kind snapshot_kind = {DOC_MAGIC('C', 'R', 'N', 'S'), "record snapshot",
                                              RECORD_SNAPSHOT_HEADER_BYTES, LIMIT_RECORD_BYTES};

/* Both: prologue, 20 count u32, 24 version u64, 32 SHA-256 of the update before (or last); then entries:
 * key bytes u16, remove u8, zero u8, value bytes u32, key, value. */

static void put_header(struct buf *buf, size_t count, uint64_t version, const uint8_t sha256[32])
{
    CHECK(count <= UINT32_MAX);
    buf_put_u32(buf, (uint32_t)count);
    buf_put_u64(buf, version);
    buf_put(buf, 32, sha256);
}

static void put_entry(struct buf *buf, const char *key, bool remove, struct record_value value)
{
    size_t key_bytes = strlen(key);
    buf_put_u16(buf, (uint16_t)key_bytes);
    buf_put_u8(buf, remove);
    buf_put_u8(buf, 0);
    buf_put_u32(buf, (uint32_t)value.bytes);
    buf_put(buf, key_bytes, key);
    if (value.bytes > 0) {
        buf_put(buf, value.bytes, value.data);
    }
}

void record_update_encode(const struct record_update *update, uint64_t version,
                          const uint8_t previous_sha256[32], struct buf *buf)
{
    const struct record_change **order = NULL;
    int rc = record_changes_sorted(update, &order, NULL);
    if (rc != 0) {
        buf->status = buf->status != 0 ? buf->status : rc;
        return;
    }
    size_t start = doc_begin(buf, &update_kind);
    put_header(buf, update->change_count, version, previous_sha256);
    for (size_t i = 0; i < update->change_count; i++) {
        struct record_value none = {0, NULL};
        put_entry(buf, order[i]->key, order[i]->remove, order[i]->remove ? none : order[i]->value);
    }
    doc_end(buf, &update_kind, start, 0);
    free(order);
}

void record_snapshot_encode(const struct record *record, const uint8_t last_sha256[32], struct buf *buf)
{
    size_t start = doc_begin(buf, &snapshot_kind);
    put_header(buf, record_count(record), record_version(record), last_sha256);
    for (size_t i = 0; i < record_count(record); i++) {
        struct record_value value;
        const char *key = record_at(record, i, &value);
        put_entry(buf, key, false, value);
    }
    doc_end(buf, &snapshot_kind, start, 0);
}

struct entry_view {
    char key[LIMIT_RECORD_KEY_BYTES];
    bool remove;
    struct record_value value;
};

/* One entry; its key must be greater than the one in *ret, which it replaces. */
static int take_entry(const struct doc_kind *kind, struct cur *cur, struct entry_view *ret,
                      struct diag *diag)
{
    size_t at = cur->at;
    size_t key_bytes = cur_u16(cur);
    uint8_t remove = cur_u8(cur);
    cur_zeros(cur, 1);
    size_t value_bytes = cur_u32(cur);
    const uint8_t *key = cur_bytes(cur, key_bytes);
    const uint8_t *value = cur_bytes(cur, value_bytes);
    char copy[LIMIT_RECORD_KEY_BYTES];
    if (cur->status != 0 || remove > 1 || (remove == 1 && (value_bytes != 0 || kind == &snapshot_kind)) ||
        value_bytes > LIMIT_RECORD_VALUE_BYTES || !record_key_is_valid(key_bytes, (const char *)key)) {
        return diag_set(diag, CAIRN_E_FORMAT, "the %s has a broken entry at offset %zu", kind->what, at);
    }
    memcpy(copy, key, key_bytes);
    copy[key_bytes] = '\0';
    if (strcmp(ret->key, copy) >= 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the %s's entry \"%s\" at offset %zu is out of order",
                        kind->what, copy, at);
    }
    memcpy(ret->key, copy, key_bytes + 1);
    ret->remove = remove == 1;
    ret->value = (struct record_value){value_bytes, value_bytes == 0 ? NULL : value};
    return 0;
}

static int take_header(const struct doc_kind *kind, struct cur *cur, uint32_t *ret_count,
                       uint64_t *ret_version, uint8_t ret_sha256[32])
{
    *ret_count = cur_u32(cur);
    *ret_version = cur_u64(cur);
    cur_copy(cur, 32, ret_sha256);
    CHECK(cur->status == 0); /* doc_open() has checked the least length */
    return *ret_count <= cur_left(cur) / (RECORD_ENTRY_HEADER_BYTES + 1) && *ret_version > 0 &&
                   kind->bytes_min == cur->at
               ? 0
               : CAIRN_E_FORMAT;
}

int record_update_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                         struct record_update *ret, uint64_t *ret_version, uint8_t ret_previous_sha256[32],
                         struct diag *diag)
{
    struct cur cur;
    struct entry_view entry = {.key = ""};
    uint8_t previous[32];
    uint32_t count = 0;
    uint64_t version = 0;
    int rc = doc_open(&update_kind, bytes, data, 0, &cur, diag);
    if (rc != 0) {
        return rc;
    }
    if (take_header(&update_kind, &cur, &count, &version, previous) != 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the record update has a broken header");
    }
    struct record_change *changes = scratch_array(scratch, count, sizeof *changes);
    if (changes == NULL && count > 0) {
        return doc_no_memory("record update", diag);
    }
    for (uint32_t i = 0; i < count; i++) {
        rc = take_entry(&update_kind, &cur, &entry, diag);
        if (rc != 0) {
            return rc;
        }
        changes[i] = (struct record_change){scratch_string(scratch, strlen(entry.key), entry.key),
                                            entry.remove, entry.value};
        if (changes[i].key == NULL) {
            return doc_no_memory("record update", diag);
        }
    }
    rc = doc_finish(&update_kind, &cur, diag);
    if (rc == 0) {
        *ret = (struct record_update){.change_count = count, .changes = changes};
        *ret_version = version;
        memcpy(ret_previous_sha256, previous, 32);
    }
    return rc;
}

int record_snapshot_decode(size_t bytes, const uint8_t *data, struct record **ret,
                           uint8_t ret_last_sha256[32], struct diag *diag)
{
    struct cur cur;
    struct entry_view entry = {.key = ""};
    struct record *record = NULL;
    uint8_t last[32];
    uint32_t count = 0;
    uint64_t version = 0;
    int rc = doc_open(&snapshot_kind, bytes, data, 0, &cur, diag);
    if (rc != 0) {
        return rc;
    }
    if (take_header(&snapshot_kind, &cur, &count, &version, last) != 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the record snapshot has a broken header");
    }
    rc = record_new(&record);
    if (rc != 0) {
        return diag_set(diag, rc, "reading a record snapshot");
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = take_entry(&snapshot_kind, &cur, &entry, diag);
        rc = rc != 0 ? rc : record_append(record, entry.key, entry.value, diag);
    }
    rc = rc != 0 ? rc : doc_finish(&snapshot_kind, &cur, diag);
    if (rc != 0) {
        record_free(record);
        return rc;
    }
    record_set_version(record, version);
    memcpy(ret_last_sha256, last, 32);
    *ret = record;
    return 0;
}

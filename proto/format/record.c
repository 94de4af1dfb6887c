/* SPDX-License-Identifier: Apache-2.0
 *
 * The map of a record and its one operation. An update is all or nothing: everything that can fail
 * (guards, limits, memory) is done before the first change becomes visible. Two forms are stored:
 * one update, and the whole map at a version. Keys ascend strictly, so that a content has one
 * encoding, and each form names the SHA-256 of the update before it. Pure; a record belongs to one
 * thread at a time.
 */
#include "record.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/check.h"
#include "base/limits.h"
#include "doc.h"

enum {
    RECORD_UPDATE_HEADER_BYTES = 64,
    RECORD_SNAPSHOT_HEADER_BYTES = 64,
    RECORD_ENTRY_HEADER_BYTES = 8
};

struct record_entry {
    size_t key_bytes, value_bytes;
    char key[]; /* the key, NUL, the value */
};

struct record {
    uint64_t version;
    size_t count, cap;
    uint64_t bytes;                /* of its snapshot, for the limit */
    struct record_entry **entries; /* owned, sorted by strcmp of the keys */
};

int record_new(struct record **ret)
{
    struct record *record = calloc(1, sizeof *record);
    if (record == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    record->bytes = RECORD_SNAPSHOT_HEADER_BYTES;
    *ret = record;
    return 0;
}

void record_free(struct record *record)
{
    if (record == NULL) {
        return;
    }
    for (size_t i = 0; i < record->count; i++) {
        free(record->entries[i]);
    }
    free(record->entries);
    free(record);
}

/* Makes an entry with copies of key and value, or returns NULL. */
static struct record_entry *entry_new(const char *key, struct record_value value)
{
    size_t key_bytes = strlen(key);
    struct record_entry *entry = malloc(sizeof *entry + key_bytes + 1 + value.bytes);
    if (entry == NULL) {
        return NULL;
    }
    entry->key_bytes = key_bytes;
    entry->value_bytes = value.bytes;
    memcpy(entry->key, key, key_bytes + 1);
    if (value.bytes > 0) {
        memcpy(entry->key + key_bytes + 1, value.data, value.bytes);
    }
    return entry;
}

static struct record_value entry_value(const struct record_entry *entry)
{
    return (struct record_value){entry->value_bytes,
                                 (const uint8_t *)entry->key + entry->key_bytes + 1};
}

static int record_append(struct record *record, const char *key, struct record_value value,
                         struct diag *diag);

int record_clone(const struct record *record, struct record **ret)
{
    struct record *copy = NULL;
    int rc = record_new(&copy);
    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; i < record->count && rc == 0; i++) {
        const struct record_entry *entry = record->entries[i];
        rc = record_append(copy, entry->key, entry_value(entry), NULL);
    }
    if (rc != 0) {
        record_free(copy);
        return rc;
    }
    copy->version = record->version;
    *ret = copy;
    return 0;
}

uint64_t record_version(const struct record *record) { return record->version; }
void record_set_version(struct record *record, uint64_t version) { record->version = version; }
size_t record_count(const struct record *record) { return record->count; }
uint64_t record_bytes(const struct record *record) { return record->bytes; }

size_t record_lower_bound(const struct record *record, const char *key)
{
    size_t from = 0, to = record->count;
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (strcmp(record->entries[mid]->key, key) < 0) {
            from = mid + 1;
        } else {
            to = mid;
        }
    }
    return from;
}

const char *record_at(const struct record *record, size_t idx, struct record_value *ret)
{
    if (idx >= record->count) {
        return NULL;
    }
    if (ret != NULL) {
        *ret = entry_value(record->entries[idx]);
    }
    return record->entries[idx]->key;
}

bool record_get(const struct record *record, const char *key, struct record_value *ret)
{
    size_t idx = record_lower_bound(record, key);
    if (idx == record->count || strcmp(record->entries[idx]->key, key) != 0) {
        return false;
    }
    *ret = entry_value(record->entries[idx]);
    return true;
}

bool record_guards_hold(const struct record *record, const struct record_update *update,
                        struct diag *diag)
{
    for (size_t i = 0; i < update->guard_count; i++) {
        const struct record_guard *guard = &update->guards[i];
        struct record_value value = {0, NULL};
        bool found = record_get(record, guard->key, &value);
        if (guard->absent ? !found
                          : found && value.bytes == guard->value.bytes &&
                                (value.bytes == 0 ||
                                 memcmp(value.data, guard->value.data, value.bytes) == 0)) {
            continue;
        }
        diag_set(diag, CAIRN_E_CONFLICT, "the record's entry \"%s\" %s", guard->key,
                 guard->absent ? "already exists"
                 : found       ? "was changed by another update in between"
                               : "is gone");
        return false;
    }
    return true;
}

static bool record_key_is_valid(size_t bytes, const char *key)
{
    if (bytes == 0 || bytes >= LIMIT_RECORD_KEY_BYTES) {
        return false;
    }
    for (size_t i = 0; i < bytes; i++) {
        if (key[i] <= 0x20 || key[i] >= 0x7f) {
            return false;
        }
    }
    return true;
}

static uint64_t entry_stored_bytes(size_t key_bytes, size_t value_bytes)
{
    return RECORD_ENTRY_HEADER_BYTES + (uint64_t)key_bytes + value_bytes;
}

/* Checks the key of a change, and the length of its value. */
static int record_change_check(const struct record_change *change, struct diag *diag)
{
    if (!record_key_is_valid(strlen(change->key), change->key)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "\"%.160s\" is not a record key: a key has 1 to %d printable ASCII "
                        "characters without space",
                        change->key, LIMIT_RECORD_KEY_BYTES - 1);
    }
    if (!change->remove && change->value.bytes > LIMIT_RECORD_VALUE_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the record's entry \"%s\" has %zu bytes; at most %d are allowed",
                        change->key, change->value.bytes, LIMIT_RECORD_VALUE_BYTES);
    }
    return 0;
}

static int order_compare(const void *a, const void *b)
{
    const struct record_change *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

/* Gives the changes sorted by key, and refuses one key changed twice. The caller frees *ret. */
static int record_changes_sorted(const struct record_update *update,
                                 const struct record_change ***ret, struct diag *diag)
{
    uint64_t bytes = RECORD_UPDATE_HEADER_BYTES;
    const struct record_change **order = calloc(update->change_count + 1, sizeof(*order));
    int rc = order == NULL ? diag_no_memory(diag, "updating a record") : 0;
    for (size_t i = 0; i < update->change_count && rc == 0; i++) {
        const struct record_change *change = &update->changes[i];
        order[i] = change;
        rc = record_change_check(change, diag);
        bytes += entry_stored_bytes(strlen(change->key), change->remove ? 0 : change->value.bytes);
    }
    if (rc == 0 && bytes > LIMIT_RECORD_UPDATE_BYTES) {
        rc = diag_set(diag, CAIRN_E_TOO_LARGE,
                      "an update of the record has %llu bytes; at most %d are allowed",
                      (unsigned long long)bytes, LIMIT_RECORD_UPDATE_BYTES);
    }
    if (rc == 0) {
        qsort(order, update->change_count, sizeof(*order), order_compare);
    }
    for (size_t i = 1; i < update->change_count && rc == 0; i++) {
        if (strcmp(order[i - 1]->key, order[i]->key) == 0) {
            rc = diag_set(diag, CAIRN_E_INVALID,
                          "an update changes the record's entry \"%s\" twice", order[i]->key);
        }
    }
    if (rc != 0) {
        free(order);
        return rc;
    }
    *ret = order;
    return 0;
}

/* The entries after an update, in order: pointers to old ones that stay, and to new ones. If the
 * update succeeds, `entries` becomes the record's array and what is in `dropped` is freed; if it
 * fails, what is in `fresh` is freed. */
struct merge {
    size_t count, fresh_count, dropped_count;
    uint64_t bytes;
    struct record_entry **entries; /* all, in order */
    struct record_entry **fresh;   /* those of them that are new */
    struct record_entry **dropped; /* old ones that are not in it */
};

static bool merge_init(struct merge *merge, size_t old_count, size_t change_count)
{
    memset(merge, 0, sizeof *merge);
    merge->entries = calloc(old_count + change_count + 1, sizeof(*merge->entries));
    merge->fresh = calloc(change_count + 1, sizeof(*merge->fresh));
    merge->dropped = calloc(change_count + 1, sizeof(*merge->dropped));
    merge->bytes = RECORD_SNAPSHOT_HEADER_BYTES;
    return merge->entries != NULL && merge->fresh != NULL && merge->dropped != NULL;
}

static void merge_keep(struct merge *merge, struct record_entry *entry)
{
    merge->entries[merge->count++] = entry;
    merge->bytes += entry_stored_bytes(entry->key_bytes, entry->value_bytes);
}

/* Merges the sorted changes with the record's entries. Returns false if memory is short. */
static bool merge_run(struct merge *merge, const struct record *record, size_t change_count,
                      const struct record_change **order)
{
    size_t at = 0;
    for (size_t i = 0; i < change_count; i++) {
        const struct record_change *change = order[i];
        int compare = 1;
        while (at < record->count &&
               (compare = strcmp(record->entries[at]->key, change->key)) < 0) {
            merge_keep(merge, record->entries[at++]);
        }
        if (at < record->count && compare == 0) {
            merge->dropped[merge->dropped_count++] = record->entries[at++];
        }
        if (!change->remove) {
            struct record_entry *entry = entry_new(change->key, change->value);
            if (entry == NULL) {
                return false;
            }
            merge->fresh[merge->fresh_count++] = entry;
            merge_keep(merge, entry);
        }
    }
    while (at < record->count) {
        merge_keep(merge, record->entries[at++]);
    }
    return true;
}

int record_apply(struct record *record, const struct record_update *update, struct diag *diag)
{
    struct merge merge = {0};
    const struct record_change **order = NULL;
    if (!record_guards_hold(record, update, diag)) {
        return CAIRN_E_CONFLICT;
    }
    int rc = record_changes_sorted(update, &order, diag);
    if (rc != 0) {
        return rc;
    }
    if (!merge_init(&merge, record->count, update->change_count) ||
        !merge_run(&merge, record, update->change_count, order)) {
        rc = diag_no_memory(diag, "updating a record of %zu entries", record->count);
    } else if (merge.bytes > LIMIT_RECORD_BYTES) {
        rc = diag_set(diag, CAIRN_E_TOO_LARGE,
                      "the record would have %llu bytes after the update; at most %d are allowed",
                      (unsigned long long)merge.bytes, LIMIT_RECORD_BYTES);
    }
    struct record_entry **gone = rc == 0 ? merge.dropped : merge.fresh;
    size_t gone_count = rc == 0 ? merge.dropped_count : merge.fresh_count;
    for (size_t i = 0; i < gone_count; i++) {
        free(gone[i]);
    }
    if (rc == 0) {
        free(record->entries);
        record->entries = merge.entries;
        record->count = merge.count;
        record->cap = merge.count;
        record->bytes = merge.bytes;
        record->version++;
        merge.entries = NULL;
    }
    free(merge.entries);
    free(merge.fresh);
    free(merge.dropped);
    free(order);
    return rc;
}

/* Adds an entry behind the last one, while a snapshot is read. */
static int record_append(struct record *record, const char *key, struct record_value value,
                         struct diag *diag)
{
    CHECK(record->count == 0 || strcmp(record->entries[record->count - 1]->key, key) < 0);
    uint64_t bytes = record->bytes + entry_stored_bytes(strlen(key), value.bytes);
    if (bytes > LIMIT_RECORD_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "the record has more than %d bytes",
                        LIMIT_RECORD_BYTES);
    }
    struct record_entry **entries =
        array_room(record->entries, record->count, &record->cap, sizeof(*entries));
    if (entries == NULL) {
        return diag_no_memory(diag, "reading a record");
    }
    record->entries = entries;
    struct record_entry *entry = entry_new(key, value);
    if (entry == NULL) {
        return diag_no_memory(diag, "reading a record");
    }
    record->entries[record->count++] = entry;
    record->bytes = bytes;
    return 0;
}

static const struct doc_kind update_kind = {DOC_MAGIC('C', 'R', 'N', 'U'), "record update",
                                            RECORD_UPDATE_HEADER_BYTES, LIMIT_RECORD_UPDATE_BYTES,
                                            0};
static const struct doc_kind snapshot_kind = {DOC_MAGIC('C', 'R', 'N', 'S'), "record snapshot",
                                              RECORD_SNAPSHOT_HEADER_BYTES, LIMIT_RECORD_BYTES, 0};

/* Both: prologue, 20 count u32, 24 version u64, 32 SHA-256 of the update before (or last); then
 * entries: key bytes u16, remove u8, zero u8, value bytes u32, key, value. */

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
    doc_end(buf, &update_kind, start);
    free(order);
}

void record_snapshot_encode(const struct record *record, const uint8_t last_sha256[32],
                            struct buf *buf)
{
    size_t start = doc_begin(buf, &snapshot_kind);
    put_header(buf, record_count(record), record_version(record), last_sha256);
    for (size_t i = 0; i < record_count(record); i++) {
        struct record_value value;
        const char *key = record_at(record, i, &value);
        put_entry(buf, key, false, value);
    }
    doc_end(buf, &snapshot_kind, start);
}

struct entry_view {
    char key[LIMIT_RECORD_KEY_BYTES];
    bool remove;
    struct record_value value;
};

/* Reads one entry. Its key must be greater than the one in *ret, which it replaces. */
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
    if (cur->status != 0 || remove > 1 ||
        (remove == 1 && (value_bytes != 0 || kind == &snapshot_kind)) ||
        value_bytes > LIMIT_RECORD_VALUE_BYTES ||
        !record_key_is_valid(key_bytes, (const char *)key)) {
        return diag_set(diag, CAIRN_E_FORMAT, "the %s has a broken entry at offset %zu", kind->what,
                        at);
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
                         struct record_update *ret, uint64_t *ret_version,
                         uint8_t ret_previous_sha256[32], struct diag *diag)
{
    struct cur cur;
    struct entry_view entry = {.key = ""};
    uint8_t previous[32];
    uint32_t count = 0;
    uint64_t version = 0;
    int rc = doc_open(&update_kind, bytes, data, &cur, diag);
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
    int rc = doc_open(&snapshot_kind, bytes, data, &cur, diag);
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
        if (rc == 0) {
            rc = record_append(record, entry.key, entry.value, diag);
        }
    }
    if (rc == 0) {
        rc = doc_finish(&snapshot_kind, &cur, diag);
    }
    if (rc != 0) {
        record_free(record);
        return rc;
    }
    record_set_version(record, version);
    memcpy(ret_last_sha256, last, 32);
    *ret = record;
    return 0;
}

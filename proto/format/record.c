/* SPDX-License-Identifier: Apache-2.0
 *
 * The map of a record and its one operation. An update is all or nothing: everything that can fail
 * (guards, limits, memory) is done before the first change becomes visible. Pure; a record belongs to one
 * thread at a time.
 */
#include "record.h"

#include "base/check.h"
#include "base/limits.h"
#include "record_codec.h"

#include <stdlib.h>
#include <string.h>

struct record_entry {
    size_t key_bytes, value_bytes;
    char key[]; /* the key, NUL, the value */
};

struct record {
    uint64_t version;
    size_t count, cap;
    uint64_t bytes; /* of its snapshot, for the limit */
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
                                (value.bytes == 0 || memcmp(value.data, guard->value.data, value.bytes) == 0)) {
            continue;
        }
        diag_set(diag, CAIRN_E_CONFLICT, "the record's entry \"%s\" %s", guard->key,
                 guard->absent ? "exists already" : found ? "was changed in between" : "is gone");
        return false;
    }
    return true;
}

bool record_key_is_valid(size_t bytes, const char *key)
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

int record_change_check(const struct record_change *change, struct diag *diag)
{
    if (!record_key_is_valid(strlen(change->key), change->key)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "\"%.160s\" is no record key: 1 to %d printable ASCII characters without space",
                        change->key, LIMIT_RECORD_KEY_BYTES - 1);
    }
    if (!change->remove && change->value.bytes > LIMIT_RECORD_VALUE_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "the record's entry \"%s\" has %zu bytes; at most %d",
                        change->key, change->value.bytes, LIMIT_RECORD_VALUE_BYTES);
    }
    return 0;
}

static int order_compare(const void *a, const void *b)
{
    const struct record_change *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

int record_changes_sorted(const struct record_update *update, const struct record_change ***ret,
                          struct diag *diag)
{
    uint64_t bytes = RECORD_UPDATE_HEADER_BYTES;
    const struct record_change **order = calloc(update->change_count + 1, sizeof(*order));
    int rc = order == NULL ? diag_set(diag, CAIRN_E_NO_MEMORY, "updating a record") : 0;
    for (size_t i = 0; i < update->change_count && rc == 0; i++) {
        const struct record_change *change = &update->changes[i];
        order[i] = change;
        rc = record_change_check(change, diag);
        bytes += entry_stored_bytes(strlen(change->key), change->remove ? 0 : change->value.bytes);
    }
    if (rc == 0 && bytes > LIMIT_RECORD_UPDATE_BYTES) {
        rc = diag_set(diag, CAIRN_E_TOO_LARGE, "a record's update of %llu bytes; at most %d",
                      (unsigned long long)bytes, LIMIT_RECORD_UPDATE_BYTES);
    }
    if (rc == 0) {
        qsort(order, update->change_count, sizeof(*order), order_compare);
    }
    for (size_t i = 1; i < update->change_count && rc == 0; i++) {
        if (strcmp(order[i - 1]->key, order[i]->key) == 0) {
            rc = diag_set(diag, CAIRN_E_INVALID, "an update changes the record's entry \"%s\" twice",
                          order[i]->key);
        }
    }
    if (rc != 0) {
        free(order);
        return rc;
    }
    *ret = order;
    return 0;
}

/* The entries after the update: pointers to old ones that stay and to new ones, in order. */
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

static bool merge_run(struct merge *merge, const struct record *record, size_t change_count,
                      const struct record_change **order)
{
    size_t at = 0;
    for (size_t i = 0; i < change_count; i++) {
        const struct record_change *change = order[i];
        int compare = 1;
        while (at < record->count && (compare = strcmp(record->entries[at]->key, change->key)) < 0) {
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
        rc = diag_set(diag, CAIRN_E_NO_MEMORY, "updating a record of %zu entries", record->count);
    } else if (merge.bytes > LIMIT_RECORD_BYTES) {
        rc = diag_set(diag, CAIRN_E_TOO_LARGE, "the record would have %llu bytes; at most %d",
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

int record_append(struct record *record, const char *key, struct record_value value, struct diag *diag)
{
    CHECK(record->count == 0 || strcmp(record->entries[record->count - 1]->key, key) < 0);
    uint64_t bytes = record->bytes + entry_stored_bytes(strlen(key), value.bytes);
    if (bytes > LIMIT_RECORD_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "the record has more than %d bytes", LIMIT_RECORD_BYTES);
    }
    if (record->count >= record->cap) {
        size_t cap = record->cap < 16 ? 16 : record->cap * 2;
        struct record_entry **entries = realloc(record->entries, cap * sizeof(*entries));
        if (entries == NULL) {
            return diag_set(diag, CAIRN_E_NO_MEMORY, "reading a record");
        }
        record->entries = entries;
        record->cap = cap;
    }
    struct record_entry *entry = entry_new(key, value);
    if (entry == NULL) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "reading a record");
    }
    record->entries[record->count++] = entry;
    record->bytes = bytes;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * record: a small ordered map of keys to bytes with one operation, the atomic guarded update. The
 * entry in a run's record is the commit. This file has the map and the update (pure, used by every
 * store), and the encoding of an update and of a snapshot (used by the directory store). Bytes:
 * FORMAT.md 8.
 */
#ifndef CAIRN_FORMAT_RECORD_H
#define CAIRN_FORMAT_RECORD_H

#include "base/buf.h"
#include "base/diag.h"
#include "base/scratch.h"

#include <stdbool.h>

/* Bytes that are borrowed from a map, an update or a document. */
struct record_value {
    size_t bytes;
    const uint8_t *data;
};

/* The map owns copies of its keys and values. A key is printable ASCII without space, of fewer than
 * LIMIT_RECORD_KEY_BYTES characters, so that it fits with its NUL. Keys are ordered by strcmp. */
struct record;
/* Make an empty map, free one (NULL is allowed), and copy one. Return NO_MEMORY. */
int MUST_USE record_new(struct record **ret);
void record_free(struct record *record);
int MUST_USE record_clone(const struct record *record, struct record **ret);
uint64_t record_bytes(const struct record *record); /* of its snapshot */
uint64_t record_version(
    /* Returns the number of updates applied so far; 0 means that the record does not exist yet. */
    const struct record *record);
void record_set_version(struct record *record, uint64_t version);
size_t record_count(const struct record *record);
/* Gives the value of a key, borrowed until the next apply. Returns false if there
 * is none. */
bool record_get(const struct record *record, const char *key, struct record_value *ret);
/* Returns the index of the first entry with a key >= key, for record_at. */
size_t record_lower_bound(const struct record *record, const char *key);
/* Returns the key of entry idx and its value, or NULL past the end. */
const char *record_at(const struct record *record, size_t idx, struct record_value *ret);

/* A condition of an update. */
struct record_guard {
    const char *key;
    bool absent; /* the key must not exist; otherwise its value must equal `value` */
    struct record_value value;
};
/* A change of one key: it is set to value, or removed. */
struct record_change {
    const char *key;
    bool remove;
    struct record_value value;
};
struct record_update { /* all pointers are borrowed */
    size_t guard_count, change_count;
    struct record_guard *guards;
    struct record_change *changes;
};

/* Checks all guards, then makes all changes and raises the version, or changes nothing. CONFLICT
 * names the first guard that failed. INVALID means a bad key, or one key changed twice; TOO_LARGE
 * that a value, the update or the record passes its limit; NO_MEMORY. Removing a key that does not
 * exist is no error. */
int MUST_USE record_apply(struct record *record, const struct record_update *update,
                          struct diag *diag);
bool record_guards_hold(const struct record *record, const struct record_update *update,
                        struct diag *diag);

/* One update as it is stored: its version (the number that it makes, from 1 on), the changes sorted
 * by key (the guards held when it was written, and are not stored), the SHA-256 of the update
 * before it (zeros before the first), and a crc. Encoding sets the buffer's status if
 * record_apply() would refuse the changes. Decoded keys and the array live in scratch; values are
 * borrowed from data. FORMAT, DAMAGED, UNSUPPORTED, TOO_LARGE or NO_MEMORY. */
void record_update_encode(const struct record_update *update, uint64_t version,
                          const uint8_t previous_sha256[32], struct buf *buf);
int MUST_USE record_update_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                                  struct record_update *ret, uint64_t *ret_version,
                                  uint8_t ret_previous_sha256[32], struct diag *diag);
/* Encode and decode the whole map at a version, from 1 on, with the SHA-256 of the update that made
 * it. */
void record_snapshot_encode(const struct record *record, const uint8_t last_sha256[32],
                            struct buf *buf);
int MUST_USE record_snapshot_decode(size_t bytes, const uint8_t *data, struct record **ret,
                                    uint8_t ret_last_sha256[32], struct diag *diag);

#endif

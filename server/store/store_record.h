/* SPDX-License-Identifier: Apache-2.0
 *
 * store_record: the contents of the store record, which every kind of store has, and the updates
 * that make it and raise its epoch. It holds: uuid (16 bytes); format, epoch, compat, ro-compat,
 * incompat (u64). How a record is read and updated is the store's own matter; nothing here does
 * I/O. Pure.
 */
#ifndef CAIRN_STORE_STORE_RECORD_H
#define CAIRN_STORE_STORE_RECORD_H

#include "format/ids.h"
#include "format/record.h"
#include "store/store.h"

/* An update together with the memory that it points to; must not be copied. */
struct store_record_update {
    struct record_update update;
    struct record_guard guard;
    struct record_change changes[8];
    uint8_t bytes[7][16];
};

/* Makes the update that creates the record of a new store. It fails with CONFLICT if another
 * process was first. `random` holds 16 random bytes. */
void store_record_first(uint64_t format, const struct uuid *random,
                        struct store_record_update *ret);
/* Changes that update for a store whose record was lost: its epochs go on from `epoch`. */
void store_record_go_on(struct store_record_update *io_first, uint64_t epoch);
/* Adds one more key to that update, for the kind of store that it is. Key and value are
 * borrowed. */
void store_record_also(struct store_record_update *io_first, const char *key,
                       struct record_value value);
/* The key that says that entries of the store record may be lost, with the wall time in ns at which
 * that was found (u64). It lies among the policies, where each reader that does not know it finds a
 * policy that it cannot read, and forgets nothing (server/policy). */
#define STORE_RECORD_LOST "policy/lost"
/* Adds that key to an update: of a record that is made again, or that goes on without its end. */
void store_record_add_lost(struct store_record_update *io, int64_t wall_ns);
/* Makes the update that raises the epoch in `record` by `by` (usually 1), and gives the new epoch.
 * Returns FORMAT for a record without one. */
int MUST_USE store_record_raise(const struct record *record, uint64_t by,
                                struct store_record_update *ret, uint64_t *ret_epoch,
                                struct diag *diag);

struct store_record_rules {
    const char *place; /* names the store in texts: "/path", "namespace cairn" */
    const char *hint;  /* advice after a mismatch */
    uint64_t format, ro_compat_known, incompat_known;
    const struct uuid *expected; /* NULL accepts any store */
};
/* Checks the store record against the rules, and takes the store's identity and epoch from it into
 * `caps`. *ret_newer: features that only a newer Cairn can write, so that the store is read-only,
 * which `caps` explains. Returns FORMAT, STORE_FEATURES or STORE_MISMATCH. */
int MUST_USE store_record_check(const struct record *record, const struct store_record_rules *rules,
                                struct store_caps *caps, uint64_t *ret_newer, struct diag *diag);

#endif

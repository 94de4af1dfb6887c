/* SPDX-License-Identifier: Apache-2.0
 *
 * store_record: what the store record of every kind of store holds, and the updates that make it
 * and raise its epoch: uuid 16 bytes; format, epoch, compat, ro-compat, incompat u64. How a record
 * is read and updated is the store's own affair; nothing here does I/O. Pure.
 */
#ifndef CAIRN_STORE_STORE_RECORD_H
#define CAIRN_STORE_STORE_RECORD_H

#include "format/ids.h"
#include "format/record.h"

/* An update and what it points to: not to be copied. */
struct store_record_update {
    struct record_update update;
    struct record_guard guard;
    struct record_change changes[7];
    uint8_t bytes[6][16];
};

/* Of a store that is not there yet; CONFLICT: another was first. random: 16 random bytes. */
void store_record_first(uint64_t format, const struct uuid *random,
                        struct store_record_update *ret);
/* Of a store whose record was lost: epochs go on from here. */
void store_record_go_on(struct store_record_update *io_first, uint64_t epoch);
/* One more key for such a store, of the kind of store that it is; both are borrowed. */
void store_record_also(struct store_record_update *io_first, const char *key,
                       struct record_value value);
/* `by` (mostly 1) more than the epoch that `record` holds: *ret_epoch. FORMAT. */
int MUST_USE store_record_raise(const struct record *record, uint64_t by,
                                struct store_record_update *ret, uint64_t *ret_epoch,
                                struct diag *diag);

struct store_record_rules {
    const char *place; /* for texts: "/path", "namespace cairn" */
    const char *hint;  /* of a mismatch: "is the right disk mounted?" */
    uint64_t format, ro_compat_known, incompat_known;
    const struct uuid *expected; /* NULL: any */
};
struct store_record_facts {
    struct uuid uuid;
    uint64_t epoch;
    uint64_t ro_compat_unknown; /* features that a newer Cairn is needed for to write */
};
/* FORMAT, STORE_FEATURES, STORE_MISMATCH. */
int MUST_USE store_record_check(const struct record *record, const struct store_record_rules *rules,
                                struct store_record_facts *ret, struct diag *diag);

#endif

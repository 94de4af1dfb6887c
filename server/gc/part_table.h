/* SPDX-License-Identifier: Apache-2.0
 *
 * part_table: the object table of a stored part from ranges of it: the header, the pages that the
 * table touches, the table of page checksums. So that gc need not read what it does not need.
 * Bytes: FORMAT.md 5. Pure.
 */
#ifndef CAIRN_GC_PART_TABLE_H
#define CAIRN_GC_PART_TABLE_H

#include "base/diag.h"
#include "format/part.h"

enum { PART_TABLE_FIRST_BYTES = 64 << 10 }; /* what to read first */

struct part_table {
    struct uuid run_uuid;
    struct ckpt_id id;
    uint32_t rank, object_count;
    uint64_t pages_bytes;             /* from 0: header and table, in whole pages */
    uint64_t crcs_offset, crcs_bytes; /* the checksums */
    uint64_t page_count;              /* of pages_bytes */
};

/* From the first bytes (PART_TABLE_FIRST_BYTES, or the whole part where it is shorter). */
int MUST_USE part_table_begin(size_t bytes, const uint8_t *data, struct part_table *ret,
                              struct diag *diag);
/* pages: pages_bytes from 0; crcs: the checksums. ret_ids: object_count of them. DAMAGED, FORMAT.
 */
int MUST_USE part_table_read(const struct part_table *table, const uint8_t *pages,
                             const uint8_t *crcs, struct object_id *ret_ids, struct diag *diag);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * part_table: the object table of a stored part, from ranges of it: the header, the pages that
 * contain the table, and the table of page checksums. reader_table() reads it. Bytes: FORMAT.md 5.
 * Pure.
 */
#ifndef CAIRN_READER_PART_TABLE_H
#define CAIRN_READER_PART_TABLE_H

#include "base/diag.h"
#include "format/part.h"

enum { PART_TABLE_FIRST_BYTES = 64 << 10 }; /* size of the first read */

struct part_table {
    struct uuid run_uuid;
    struct ckpt_id id;
    uint32_t rank, object_count;
    uint64_t pages_bytes;             /* from offset 0: header and object table, in whole pages */
    uint64_t crcs_offset, crcs_bytes; /* the checksums of the pages */
    uint64_t page_count;              /* number of pages in pages_bytes */
};

/* Reads the header. `data` is the first PART_TABLE_FIRST_BYTES of the part, or all of it if it is
 * shorter. Returns DAMAGED or FORMAT for a bad header. */
int MUST_USE part_table_begin(size_t bytes, const uint8_t *data, struct part_table *ret,
                              struct diag *diag);
/* Reads the object ids into ret_ids, which has room for object_count. `pages` are the pages_bytes
 * bytes at offset 0; `crcs` are the checksums. Returns DAMAGED or FORMAT for a bad table. */
int MUST_USE part_table_read(const struct part_table *table, const uint8_t *pages,
                             const uint8_t *crcs, struct object_id *ret_ids, struct diag *diag);

#endif

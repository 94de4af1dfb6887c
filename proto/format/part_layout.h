/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the sections of a stored part lie. This follows from the counts in its header, so no offset
 * is stored that could contradict them. For part_encode.c and part_decode.c. Bytes: FORMAT.md 5.
 */
#ifndef CAIRN_FORMAT_PART_LAYOUT_H
#define CAIRN_FORMAT_PART_LAYOUT_H

#include "doc.h"
#include "part.h"

enum {
    PART_HEADER_BYTES = 256,
    PART_PAGE_BYTES = 64 << 10,
    PART_OBJECT_BYTES = 40,
    PART_TENSOR_BYTES = 40,
    PART_BOX_BYTES = 24,
    PART_BLOB_BYTES = 32,
    PART_CHUNK_BYTES = 64,
};

/* Offsets in the stored part, in bytes from its start. */
struct part_layout {
    uint64_t objects, tensors, boxes, blobs, chunks, dims, strings; /* where each section begins */
    uint64_t crcs, page_count; /* the table of page checksums, and their number */
    uint64_t bytes;            /* of the whole part */
};

extern const struct doc_kind part_kind;

/* Computes the layout. dim_count and string_bytes are at most LIMIT_PART_BYTES each, so that
 * nothing overflows. */
void part_layout_init(struct part_layout *layout, const struct part *part, uint64_t dim_count,
                      uint64_t string_bytes);

#endif

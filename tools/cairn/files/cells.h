/* SPDX-License-Identifier: Apache-2.0
 *
 * cells: the chunks that make up one tensor or blob of a checkpoint, gathered from its parts, in
 * the order of their boxes. Pure.
 */
#ifndef CAIRN_TOOLS_CELLS_H
#define CAIRN_TOOLS_CELLS_H

#include "documents.h"

struct cell {
    struct box box; /* tensors: the rectangle; blobs: one dimension, bytes */
    uint32_t plain_bytes;
    uint8_t digest_alg;
    struct digest digest;
};

struct cells {
    size_t count;
    struct cell *items; /* malloc'ed */
};

/* documents_parts() was called. cells_fini() also after a failure. */
int MUST_USE cells_of(const struct documents *documents, const struct index_entry *entry,
                      struct cells *ret, struct diag *diag);
void cells_fini(struct cells *cells);
/* Orders cells by their boxes, for qsort() and array_find(). */
int cell_order(const void *a, const void *b);
/* The same bytes by digest. */
bool cell_equal(const struct cell *a, const struct cell *b);

#endif

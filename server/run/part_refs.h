/* SPDX-License-Identifier: Apache-2.0
 *
 * part_refs: what a part may refer to of its base: the chunks that the same rank's part of the base
 * refers to, found by object and offset. And how much of each object is in use there, to name those
 * that are mostly dead. Pure; any thread.
 */
#ifndef CAIRN_RUN_PART_REFS_H
#define CAIRN_RUN_PART_REFS_H

#include "format/part.h"

struct part_refs {
    const struct part *base; /* borrowed */
    uint32_t *order;         /* its chunks, by object id and offset */
};

/* Memory is the scratch's. NO_MEMORY. */
int MUST_USE part_refs_init(struct part_refs *refs, const struct part *base,
                            struct scratch *scratch, struct diag *diag);
/* Is this chunk of a part the same as one of the base? All but the cell is compared. */
bool part_refs_has(const struct part_refs *refs, const struct object_id *id,
                   const struct part_chunk *chunk);
/* Of an object of so many bytes, its footer included, how many are of chunks of the base with what
 * belongs to them: less than half of them means that it is sparse. */
bool part_refs_is_sparse(const struct part_refs *refs, uint32_t object, uint64_t object_bytes);

#endif

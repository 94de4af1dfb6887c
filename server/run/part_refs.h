/* SPDX-License-Identifier: Apache-2.0
 *
 * part_refs: the chunks of the base that a part may refer to. These are the chunks that the same
 * rank's part of the base refers to, found by object and offset. It also counts how much of each
 * object the base uses, to name the objects that are mostly dead. Pure; any thread.
 */
#ifndef CAIRN_RUN_PART_REFS_H
#define CAIRN_RUN_PART_REFS_H

#include "format/part.h"

struct part_refs {
    const struct part *base; /* borrowed */
    uint32_t *order;         /* indices of its chunks, sorted by object id and offset */
};

/* Sorts the chunks of the base. The memory is from scratch. Returns NO_MEMORY if there is none. */
int MUST_USE part_refs_init(struct part_refs *refs, const struct part *base,
                            struct scratch *scratch, struct diag *diag);
/* Returns true if this chunk of a part equals a chunk of the base in everything but the cell. */
bool part_refs_has(const struct part_refs *refs, const struct object_id *id,
                   const struct part_chunk *chunk);
/* Returns true if less than half of the object's bytes (footer included) belong to chunks of the
 * base and what surrounds them. */
bool part_refs_is_sparse(const struct part_refs *refs, uint32_t object, uint64_t object_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * share: which cells of what a group of ranks holds this rank writes. A tensor lies in a bucket:
 * tensors that the same ranks write, laid end to end; each of these ranks writes the cells that
 * begin in its equal run of the bucket's bytes (split of format/box.h). Where a cell lies in the
 * arena and in objects is layout's. Pure; any thread.
 */
#ifndef CAIRN_SHARE_SHARE_H
#define CAIRN_SHARE_SHARE_H

#include "share/registered.h"

struct share_tensor {
    struct split split; /* members 0: others write all of it */
    uint64_t at;        /* of the tensor's first byte in its bucket */
    uint64_t division;  /* agreement.h's: of which save it was divided; 0: of this one */
};

struct share {
    struct scratch scratch;
    size_t tensor_count;
    struct share_tensor *tensors; /* by index in the set */
};

/* As if every rank of a group had registered the same tensors for it. TOO_LARGE, NO_MEMORY. */
int MUST_USE share_init_alike(struct share *share, const struct registered *set, struct diag *diag);
void share_fini(struct share *share);
/* Does this rank write the cell that starts `start` bytes behind the tensor's first? Boxes follow
 * each other in the order of the set. */
bool share_is_mine(const struct share *share, uint32_t tensor, uint64_t start);
/* Is this rank the one that writes the blob? (Replicated ones are rank 0's.) */
bool share_writes_blob(const struct registered *set, const struct registered_blob *blob);

#endif

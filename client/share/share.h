/* SPDX-License-Identifier: Apache-2.0
 *
 * share: which cells of the tensors and blobs that a group holds this rank writes. A tensor lies in
 * a bucket: tensors that the same ranks write, laid end to end. Each of these ranks writes the
 * cells that begin in its equal run of the bucket's bytes (split in format/box.h). The layout
 * decides where a cell lies in the arena and in objects. Pure; any thread.
 */
#ifndef CAIRN_SHARE_SHARE_H
#define CAIRN_SHARE_SHARE_H

#include "share/registered.h"

/* Where a tensor lies in its bucket, and which part of the bucket this rank writes. */
struct share_tensor {
    struct split split; /* members 0 means that other ranks write all of it */
    uint64_t at;        /* offset of the tensor's first byte in its bucket */
    /* As in agreement.h: the save by which it was divided; 0 means this one. */
    uint64_t division;
};

/* The share of a save, in `scratch`. */
struct share {
    struct scratch scratch;
    size_t tensor_count;
    struct share_tensor *tensors; /* by index in the set */
};

/* Computes the share as if every rank of a group had registered the same tensors for it. Fails with
 * TOO_LARGE or NO_MEMORY. */
int MUST_USE share_init_alike(struct share *share, const struct registered *set, struct diag *diag);
void share_fini(struct share *share);
/* Returns whether this rank writes the cell that starts `start` bytes behind the tensor's first
 * byte. Boxes follow each other in the order of the set. */
bool share_is_mine(const struct share *share, uint32_t tensor, uint64_t start);
/* Returns whether this rank writes the blob. Rank 0 writes the replicated ones. */
bool share_writes_blob(const struct registered *set, const struct registered_blob *blob);

#endif

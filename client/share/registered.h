/* SPDX-License-Identifier: Apache-2.0
 *
 * registered: an immutable, reference-counted copy of what a rank registered: tensors with their
 * boxes in memory, blobs with their bytes. Sorted by (name, coordinate). Built by the API from
 * cairn.h's structs, used by saves and restores.
 */
#ifndef CAIRN_SHARE_REGISTERED_H
#define CAIRN_SHARE_REGISTERED_H

#include "arena/strided.h"
#include "format/box.h"
#include "format/part.h"
#include "hash/hash.h"

#include <stdatomic.h>

struct gpu;

struct registered_box {
    struct box box;
    bool contiguous;            /* row-major without holes: stride is then not used */
    int64_t stride[LIMIT_NDIM]; /* in elements */
    uint8_t *data;              /* borrowed from the caller of the API while an op runs */
};

struct registered_tensor {
    const char *name, *coordinate; /* "" unless local */
    uint32_t dtype, placement;
    struct shape shape;
    size_t box_count;
    struct registered_box *boxes; /* sorted by box */
    uint32_t group_count;         /* ranks that hold the same boxes; 1: only this one */
    uint32_t group_member;        /* this rank's position in it */
    uint32_t *group;
    bool eager;      /* a lazy save copies it before the call returns */
    uint32_t device; /* 1 + ordinal of the CUDA device that its data is memory of; 0: ours */
};

struct registered_blob {
    const char *name, *coordinate;
    uint32_t kind, placement;
    size_t bytes;
    const uint8_t *data; /* owned copy */
};

struct registered {
    _Atomic uint32_t refs;
    struct scratch scratch; /* owns everything but the tensors' data */
    uint32_t rank, world_size;
    size_t tensor_count, blob_count;
    struct registered_tensor *tensors;
    struct registered_blob *blobs;
    struct gpu *gpu; /* borrowed; NULL: no tensor is on a device */
    struct xxh128
        list_hash; /* of names, dtypes, shapes, groups: equal on ranks that register the same */
};

struct registered_list { /* what registered_new copies */
    uint32_t rank, world_size;
    size_t tensor_count, blob_count;
    const struct registered_tensor *tensors;
    const struct registered_blob *blobs;
    struct gpu *gpu; /* outlives the set; may be NULL where no tensor is on a device */
};

/* Inputs are copied. INVALID names the tensor or blob and says what is wrong: duplicate name, bad
 * shape, box outside, group without this rank, unsorted group, unknown dtype, strides that overlap,
 * NULL data. */
int MUST_USE registered_new(const struct registered_list *list, struct registered **ret,
                            struct diag *diag);
struct registered *registered_ref(struct registered *set);
/* Of all boxes that this rank holds of it; UINT64_MAX stands for more than that. */
uint64_t registered_bytes(const struct registered_tensor *tensor);
/* Of the whole state, of all ranks, as far as this one knows it: shared tensors whole, what is
 * local to it, blobs. */
uint64_t registered_state_bytes(const struct registered *set);
void registered_unref(struct registered *set); /* any thread; NULL is fine */

/* Where the box's bytes lie. */
struct strided registered_memory(const struct registered_box *box, uint32_t element_bytes);

#endif

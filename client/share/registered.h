/* SPDX-License-Identifier: Apache-2.0
 *
 * registered: an immutable, reference-counted copy of what a rank registered: tensors with their
 * boxes in memory, and blobs with their bytes, each sorted by (name, coordinate). The API builds it
 * from cairn.h's structs; saves and restores use it.
 */
#ifndef CAIRN_SHARE_REGISTERED_H
#define CAIRN_SHARE_REGISTERED_H

#include "arena/strided.h"
#include "format/box.h"
#include "format/part.h"
#include "hash/hash.h"

#include <stdatomic.h>

struct gpu;

/* A box of a tensor, and where its elements lie in the caller's memory. */
struct registered_box {
    struct box box;
    bool contiguous;            /* row-major without holes; stride is then not used */
    int64_t stride[LIMIT_NDIM]; /* in elements */
    uint8_t *data;              /* borrowed from the caller of the API while an operation runs */
};

/* A tensor as it was registered. Everything but the data is the set's. */
struct registered_tensor {
    const char *name, *coordinate; /* "" unless the placement is local */
    uint32_t dtype, placement;
    struct shape shape;
    size_t box_count;
    struct registered_box *boxes; /* sorted by box */
    uint32_t group_count;         /* ranks that hold the same boxes; 1 means only this one */
    uint32_t group_member;        /* this rank's position in it */
    uint32_t *group;
    bool eager; /* a lazy save copies it before the call returns */
    /* 1 + ordinal of the CUDA device that has its data; 0 means host memory. */
    uint32_t device;
};

/* A blob as it was registered, with its bytes. */
struct registered_blob {
    const char *name, *coordinate;
    uint32_t kind, placement;
    size_t bytes;
    const uint8_t *data; /* a copy that the set owns */
};

/* The set. It never changes once it is made, so it may be read on any thread that has a
 * reference. */
struct registered {
    _Atomic uint32_t refs;
    struct scratch scratch;  /* owns everything except the tensors' data, and what `same` has */
    struct registered *same; /* reference to the set that owns the tensors, or NULL */
    uint32_t rank, world_size;
    size_t tensor_count, blob_count;
    struct registered_tensor *tensors;
    struct registered_blob *blobs;
    struct gpu *gpu; /* borrowed; NULL if no tensor is on a device */
    /* Hash of the tensors that all ranks hold, except those that are local: names, dtypes,
     * placements, shapes and boxes. It is equal on all ranks that register the same. */
    struct xxh128 list_hash;
};

struct registered_list { /* the input of registered_new */
    uint32_t rank, world_size;
    /* A set whose tensors the new one has, too, and to which it keeps a reference; or NULL, and
     * then the tensors are these. */
    struct registered *same;
    size_t tensor_count, blob_count;
    const struct registered_tensor *tensors;
    const struct registered_blob *blobs;
    struct gpu *gpu; /* outlives the set; may be NULL where no tensor is on a device */
};

/* Copies and checks the list; the set has one reference, the caller's. INVALID names the tensor or
 * blob and says what is wrong: duplicate name, bad shape, box outside, group without this rank,
 * unsorted group, unknown dtype, strides that overlap, NULL data. */
int MUST_USE registered_new(const struct registered_list *list, struct registered **ret,
                            struct diag *diag);
struct registered *registered_ref(struct registered *set);
/* Returns the bytes of all boxes that this rank holds of the tensor, or UINT64_MAX if they are
 * more. */
uint64_t registered_bytes(const struct registered_tensor *tensor);
/* Returns the bytes of the whole state of all ranks, as far as this rank knows it: tensors held by
 * groups as a whole, its own local ones, and blobs. */
uint64_t registered_state_bytes(const struct registered *set);
void registered_unref(struct registered *set); /* any thread; NULL is allowed */

/* Returns where the bytes of the box lie. element_bytes is the size of one element. */
struct strided registered_memory(const struct registered_box *box, uint32_t element_bytes);

#endif

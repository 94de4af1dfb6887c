/* SPDX-License-Identifier: Apache-2.0
 *
 * part: everything that one rank contributed to one checkpoint: tensors, boxes, the cells that it
 * wrote with reference, crc and plain digest of each, and blobs. Fixed-width records in sorted
 * sections, a string table, and a crc for each page of 64 KiB. Writers (client) and readers
 * (server, CLI) use the same struct. Bytes: FORMAT.md 5. Pure.
 */
#ifndef CAIRN_FORMAT_PART_H
#define CAIRN_FORMAT_PART_H

#include "box.h"
#include "envelope.h"

enum placement { PLACEMENT_REPLICATED = 1, PLACEMENT_SHARDED = 2, PLACEMENT_LOCAL = 3 };
enum blob_kind { BLOB_BYTES = 1, BLOB_TREE = 2 };

struct part_object { /* an object that chunks refer to, perhaps of an older checkpoint */
    struct object_id id;
    uint64_t bytes_used; /* stored bytes that this part references in it */
};

struct part_tensor {        /* sorted by (name, coordinate) */
    const char *name;       /* borrowed from the scratch, or from the caller that built the part */
    const char *coordinate; /* "" unless local */
    uint32_t dtype;
    uint32_t placement;
    struct shape shape; /* of the whole tensor */
    uint32_t box_first, box_count;
};
/* Sorted by (tensor, box); a box that the rank holds, written or not. */
struct part_box { /* sorted by (tensor, box); what the rank holds, not only what it wrote */
    uint32_t tensor;
    struct box box;
    uint32_t chunk_first, chunk_count; /* the cells that this rank wrote; there may be none */
};

/* A blob. Blobs are sorted by (name, coordinate), and cut into chunks of the run's chunk size in
 * order. */
struct part_blob {
    const char *name;
    const char *coordinate;
    uint32_t kind, placement;
    uint64_t plain_bytes;
    uint32_t chunk_first, chunk_count;
};

struct part_chunk {  /* sorted by (box, cell); the chunks of blobs follow those of all boxes */
    uint32_t object; /* index into objects */
    uint32_t cell;   /* index in the grid of the box, or number of the chunk in the blob */
    uint64_t offset; /* of the stored bytes in the object */
    uint32_t stored_bytes, plain_bytes, stored_crc;
    uint8_t encoding, digest_alg;
    struct digest digest;
};

/* A part. Sections refer to each other by index, and each section is sorted as its record says. */
struct part {
    struct uuid run_uuid;
    struct ckpt_id id;
    uint32_t rank, world_size;
    uint64_t writer;
    uint64_t chunk_bytes; /* the run's */
    uint32_t object_count, tensor_count, box_count, blob_count, chunk_count;
    struct part_object *objects;
    struct part_tensor *tensors;
    struct part_box *boxes;
    struct part_blob *blobs;
    struct part_chunk *chunks;
};

/* Computes bytes_used of every object from the chunks. */
void part_count_objects(struct part *part);
/* Return the item, or NULL if there is none, in a decoded part or one that is sorted like it. O(log
 * n). */
const struct part_tensor *part_find_tensor(const struct part *part, const char *name,
                                           const char *coordinate);
const struct part_blob *part_find_blob(const struct part *part, const char *name,
                                       const char *coordinate);
/* Orders by name, then by coordinate, byte by byte, as parts and pages are sorted. */
int part_name_compare(const char *name_a, const char *coordinate_a, const char *name_b,
                      const char *coordinate_b);
/* The same for qsort() and array_find(), of structs that begin with a name and a coordinate. */
int part_order(const void *a, const void *b);
/* Return the number of chunks of a blob, and the plain bytes of one of them. */
uint64_t blob_chunk_count(uint64_t plain_bytes, uint64_t chunk_bytes);
uint64_t blob_chunk_bytes(uint64_t plain_bytes, uint64_t chunk_bytes, uint64_t idx);

/* Encodes a part, which must be sorted as stated above. Sets TOO_LARGE in buf beyond
 * LIMIT_PART_BYTES. */
void part_encode(const struct part *part, struct buf *buf);
/* Decodes a part and checks its structure: the crc of every page, the order, indices in range,
 * cells inside their grids, plain_bytes equal to the cell's, valid names, objects that are named
 * once and used, correct bytes_used. The caller checks what only the server knows: whether the
 * objects exist, and whether each envelope was verified. FORMAT, DAMAGED, UNSUPPORTED, TOO_LARGE or
 * NO_MEMORY. */
int MUST_USE part_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                         struct part *ret, struct diag *diag);

/* Checks the coverage of a checkpoint from all its parts (parts[i].rank == i, count == world size):
 * the dtype, shape and placement of a tensor agree; each cell of each distinct box is written
 * exactly once over all parts; the distinct boxes of a tensor tile its shape; local ones are whole
 * and there once for each coordinate; blobs are whole and there once. COVERAGE (or SHAPE_MISMATCH,
 * DTYPE_MISMATCH) names tensor, box and ranks. */
int MUST_USE parts_check_coverage(size_t count, const struct part *parts, struct scratch *scratch,
                                  struct diag *diag);

/* Walks the tensors, or the blobs, of many sorted parts at once, in order of (name, coordinate).
 * Each group lists the parts that have that item. O(log parts) for each member. */
struct part_member {
    uint32_t part, idx;
}; /* index of the part; index of the tensor or blob in it */
struct part_group {
    const char *name, *coordinate;
    size_t member_count;
    const struct part_member *members; /* by part, ascending; borrowed until the next call */
};
/* The state of a walk; parts and scratch must outlive it. */
struct parts_walk {
    size_t part_count, heap_count;
    const struct part *parts;
    bool blobs;
    struct part_member *heap, *members; /* from the scratch */
};
int MUST_USE parts_walk_init(struct parts_walk *walk, size_t count, const struct part *parts,
                             bool blobs, struct scratch *scratch);
bool parts_walk_next(struct parts_walk *walk, struct part_group *ret);

#endif

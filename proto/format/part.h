/* SPDX-License-Identifier: Apache-2.0
 *
 * part: everything one rank contributed to one checkpoint: tensors, boxes, the cells that it wrote
 * with reference, crc and plain digest of each, blobs. Fixed-width records in sorted sections, a
 * string table, a crc per 64 KiB page. The same struct serves the writer (client) and the reader
 * (server, CLI). Bytes: FORMAT.md 5. Pure.
 */
#ifndef CAIRN_FORMAT_PART_H
#define CAIRN_FORMAT_PART_H

#include "box.h"
#include "envelope.h"

enum placement { PLACEMENT_REPLICATED = 1, PLACEMENT_SHARDED = 2, PLACEMENT_LOCAL = 3 };
enum blob_kind { BLOB_BYTES = 1, BLOB_TREE = 2 };

struct part_object { /* objects that chunks refer to, also of older checkpoints (incremental) */
    struct object_id id;
    uint64_t bytes_used; /* stored bytes that this part references in it */
};

struct part_tensor {        /* sorted by (name, coordinate) */
    const char *name;       /* borrowed from the scratch or the builder's caller */
    const char *coordinate; /* "" unless local */
    uint32_t dtype;
    uint32_t placement;
    struct shape shape; /* global */
    uint32_t box_first, box_count;
};

struct part_box { /* sorted by (tensor, box); what the rank holds, not only what it wrote */
    uint32_t tensor;
    struct box box;
    uint32_t chunk_first, chunk_count; /* the cells that this rank wrote; may be none */
};

struct part_blob { /* sorted by (name, coordinate); cut into chunks of the run's chunk size in order
                    */
    const char *name;
    const char *coordinate;
    uint32_t kind, placement;
    uint64_t plain_bytes;
    uint32_t chunk_first, chunk_count;
};

struct part_chunk {  /* sorted by (box, cell), blobs' chunks behind all boxes' */
    uint32_t object; /* index into objects */
    uint32_t cell;   /* index in the grid of the box, or chunk number in the blob */
    uint64_t offset; /* of the stored bytes in the object */
    uint32_t stored_bytes, plain_bytes, stored_crc;
    uint8_t encoding, digest_alg;
    struct digest digest;
};

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

/* bytes_used of every object, from the chunks. */
void part_count_objects(struct part *part);
/* NULL where there is none. Of a decoded part or one sorted like it; O(log n). */
const struct part_tensor *part_find_tensor(const struct part *part, const char *name,
                                           const char *coordinate);
const struct part_blob *part_find_blob(const struct part *part, const char *name,
                                       const char *coordinate);
/* Orders names, then coordinates, as parts and pages are sorted: by bytes. */
int part_name_compare(const char *name_a, const char *coordinate_a, const char *name_b,
                      const char *coordinate_b);
/* Chunks of a blob; plain bytes of one of them. */
uint64_t blob_chunk_count(uint64_t plain_bytes, uint64_t chunk_bytes);
uint64_t blob_chunk_bytes(uint64_t plain_bytes, uint64_t chunk_bytes, uint64_t idx);

/* The struct must be sorted as stated above; TOO_LARGE in buf beyond LIMIT_PART_BYTES. */
void part_encode(const struct part *part, struct buf *buf);
/* Decodes and checks structure: crc of every page, sorted order, indices in range, cells inside
 * their grids, plain_bytes equal to the cell's, names valid, objects named once and used,
 * bytes_used right. What only the server knows (do the objects exist, was this envelope verified)
 * is the caller's. FORMAT, DAMAGED, UNSUPPORTED, TOO_LARGE, NO_MEMORY. */
int MUST_USE part_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                         struct part *ret, struct diag *diag);

/* Coverage of a checkpoint from all its parts (parts[i].rank == i, count == world size): same
 * dtype, shape, placement per tensor; each cell of each distinct box exactly once over all parts;
 * the distinct boxes of a tensor tile its shape; local ones whole and once per coordinate; blobs
 * once, whole. COVERAGE (or SHAPE_MISMATCH, DTYPE_MISMATCH) names tensor, box and ranks. */
int MUST_USE parts_check_coverage(size_t count, const struct part *parts, struct scratch *scratch,
                                  struct diag *diag);

/* Walks the tensors, or the blobs, of many sorted parts at once, in order of (name, coordinate):
 * each group lists who has that one. O(log parts) a member. */
struct part_member {
    uint32_t part, idx;
}; /* index into parts; index of the tensor or blob in it */
struct part_group {
    const char *name, *coordinate;
    size_t member_count;
    const struct part_member *members; /* by part, ascending; borrowed until the next call */
};
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

/* SPDX-License-Identifier: Apache-2.0
 *
 * box: a rectangle of a tensor. grid: the cells ("chunks") of a box. split: who of a group writes
 * which cells. All three are pure functions of shape, dtype, chunk size and list, so every rank and
 * every version computes the same without talking. Normative text: FORMAT.md.
 */
#ifndef CAIRN_FORMAT_BOX_H
#define CAIRN_FORMAT_BOX_H

#include "ids.h"

struct shape {
    uint32_t ndim; /* 0: a scalar, one element */
    int64_t length[LIMIT_NDIM];
};

struct box {
    uint32_t ndim;
    int64_t offset[LIMIT_NDIM];
    int64_t length[LIMIT_NDIM];
};

/* Lengths >= 0, element count and bytes fit int64, bits come out as whole bytes. INVALID /
 * TOO_LARGE. */
int MUST_USE shape_check(const struct shape *shape, uint32_t dtype, uint64_t *ret_bytes,
                         struct diag *diag);
bool shape_equal(const struct shape *a, const struct shape *b);
void shape_format(const struct shape *shape, size_t bytes, char *ret); /* "[4096, 512]" */
struct box box_whole(const struct shape *shape);
/* Inside shape, same ndim. INVALID names the dimension. */
int MUST_USE box_check(const struct box *box, const struct shape *shape, struct diag *diag);
uint64_t box_elements(const struct box *box);
uint64_t box_bytes(const struct box *box, uint32_t dtype); /* of a checked box */
bool box_equal(const struct box *a, const struct box *b);
int box_compare(const struct box *a, const struct box *b); /* by offset, then length */
/* False where they do not meet (an empty box meets nothing). */
bool box_intersect(const struct box *a, const struct box *b, struct box *ret);
void box_format(const struct box *box, size_t bytes, char *ret); /* "[0:128, 64:512]" */

/* Do the boxes tile the shape exactly: no gap, no overlap? COVERAGE names two boxes that overlap or
 * the first hole, INVALID a box outside. Empty boxes count for nothing; an empty shape is tiled by
 * none or by any empty ones. O(n log n). TOO_LARGE beyond 2^26 corners (2 a box of slabs, 4 of
 * tiles, ...). */
int MUST_USE boxes_tile(const struct shape *shape, size_t count, struct box *boxes,
                        struct diag *diag);
enum tile_fault_kind { TILE_EXACT, TILE_HOLE, TILE_OVERLAP };
struct tile_fault {
    enum tile_fault_kind kind;
    struct box point; /* one element: the first, in row-major order, that has no box or several */
    size_t first, second; /* TILE_OVERLAP: indices of two boxes that hold it */
};
/* The same of checked boxes, as an answer and not as an error. NO_MEMORY, TOO_LARGE. */
int MUST_USE boxes_tile_fault(const struct shape *shape, size_t count, const struct box *boxes,
                              struct tile_fault *ret, struct diag *diag);

/* Elements [first, end) of a row-major tensor as boxes, in order: each is one run of the range,
 * they follow each other without a gap, and there are at most 2 * ndim - 1. So a flat partition
 * (ZeRO) that cuts across rows is stored as boxes of the parameter, and nothing stored knows of
 * flat buffers or of rank numbers. The range lies inside the shape. Returns the number of boxes. */
enum { BOX_FLAT_MAX = 2 * LIMIT_NDIM - 1 };
uint32_t box_flat(const struct shape *shape, uint64_t first, uint64_t end,
                  struct box ret[BOX_FLAT_MAX]);
/* A flat buffer has `count` elements of a parameter from `start` on; a rank has its elements
 * [first, end). Which of the parameter's are that? False: none. (Padding is what no parameter
 * has.) */
bool box_flat_part(uint64_t start, uint64_t count, uint64_t first, uint64_t end,
                   uint64_t ret_range[2]);

/* The grid of a box: the last dimensions that fit whole into chunk_bytes stay whole; the one before
 * them is cut into runs of as many rows as fit; all before that one by one. So each cell is
 * contiguous in its box (row-major) and cells follow each other without a gap. A box without bytes
 * has no cell. */
struct grid {
    struct box box;
    uint32_t dtype;
    uint32_t cut_dim;   /* the dimension that is cut into runs */
    uint64_t rows;      /* rows of cut_dim per cell */
    uint64_t row_bytes; /* bytes of one row of cut_dim */
    uint64_t cells_per_outer, cell_count;
};
/* A run's chunk size: a multiple of LIMIT_ALIGN_BYTES from LIMIT_CHUNK_BYTES_MIN to
 * LIMIT_CHUNK_BYTES. */
bool chunk_bytes_is_valid(uint64_t chunk_bytes);
void grid_init(struct grid *grid, const struct box *box, uint32_t dtype, uint64_t chunk_bytes);
/* Cell idx: its rectangle in tensor coordinates, where it starts in the box's row-major bytes, its
 * bytes (never above chunk_bytes: a row of the last dimension that is larger is cut by
 * elements). */
void grid_cell(const struct grid *grid, uint64_t idx, struct box *ret_cell, uint64_t *ret_offset,
               uint64_t *ret_bytes);

/* Split: items (sorted by name, coordinate, box; equal on every rank of the group) laid end to end;
 * member m of n writes the cells whose first byte lies in [total*m/n, total*(m+1)/n). Whole cells;
 * imbalance at most one cell. */
struct split {
    uint64_t total_bytes; /* of all items of the group */
    uint32_t member, members;
};
/* True when the cell that starts at byte `start` of the group's sequence is this member's. */
bool split_is_mine(const struct split *split, uint64_t start);

#endif

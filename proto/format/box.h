/* SPDX-License-Identifier: Apache-2.0
 *
 * box: a rectangle of a tensor. grid: the cells ("chunks") of a box. split: which ranks of a group
 * write which cells. All three are pure functions of shape, dtype, chunk size and list, so every
 * rank and every version computes the same without messages. Normative text: FORMAT.md.
 */
#ifndef CAIRN_FORMAT_BOX_H
#define CAIRN_FORMAT_BOX_H

#include "ids.h"

/* The lengths of a tensor's dimensions. */
struct shape {
    uint32_t ndim; /* 0 means a scalar, one element */
    int64_t length[LIMIT_NDIM];
};

/* A rectangle of a tensor: elements offset[d] to offset[d] + length[d] - 1 in each dimension. */
struct box {
    uint32_t ndim;
    int64_t offset[LIMIT_NDIM];
    int64_t length[LIMIT_NDIM];
};

/* Checks that lengths are >= 0, that the number of elements and bytes fits into int64, and that the
 * bits are whole bytes. INVALID or TOO_LARGE. */
int MUST_USE shape_check(const struct shape *shape, uint32_t dtype, uint64_t *ret_bytes,
                         struct diag *diag);
bool shape_equal(const struct shape *a, const struct shape *b);
void shape_format(const struct shape *shape, size_t bytes, char *ret); /* "[4096, 512]" */
struct box box_whole(const struct shape *shape);
/* Checks that the box lies inside the shape and has as many dimensions. INVALID names the
 * dimension. */
int MUST_USE box_check(const struct box *box, const struct shape *shape, struct diag *diag);
uint64_t box_elements(const struct box *box);
uint64_t box_bytes(const struct box *box, uint32_t dtype); /* the box must have been checked */
bool box_equal(const struct box *a, const struct box *b);
int box_compare(const struct box *a, const struct box *b); /* by offset, then length */
/* Gives the intersection. Returns false if the boxes do not meet; an empty box meets nothing. */
bool box_intersect(const struct box *a, const struct box *b, struct box *ret);
void box_format(const struct box *box, size_t bytes, char *ret); /* "[0:128, 64:512]" */

/* Checks that the boxes tile the shape exactly, without gap or overlap. COVERAGE names two boxes
 * that overlap, or the first hole; INVALID a box outside. Empty boxes count for nothing, and an
 * empty shape is tiled by no boxes or by empty ones. O(n log n). TOO_LARGE beyond 2^26 corners (2
 * for each box of slabs, 4 for tiles, ...). */
int MUST_USE boxes_tile(const struct shape *shape, size_t count, struct box *boxes,
                        struct diag *diag);
enum tile_fault_kind { TILE_EXACT, TILE_HOLE, TILE_OVERLAP };
/* Where boxes do not tile a shape. */
struct tile_fault {
    enum tile_fault_kind kind;
    struct box point;     /* one element: the first, in row-major order, with no box or several */
    size_t first, second; /* in TILE_OVERLAP: indices of two boxes that hold it */
};
/* Does the same for checked boxes, and returns the fault as an answer and not as an error.
 * NO_MEMORY or TOO_LARGE. */
int MUST_USE boxes_tile_fault(const struct shape *shape, size_t count, const struct box *boxes,
                              struct tile_fault *ret, struct diag *diag);

/* Writes elements [first, end) of a row-major tensor as boxes, in order: each is one run of the
 * range, they follow each other without a gap, and there are at most 2 * ndim - 1. So a flat
 * partition (ZeRO) that cuts across rows is stored as boxes of the parameter, and nothing that is
 * stored depends on flat buffers or rank numbers. The range must lie inside the shape. Returns the
 * number of boxes. */
enum { BOX_FLAT_MAX = 2 * LIMIT_NDIM - 1 };
uint32_t box_flat(const struct shape *shape, uint64_t first, uint64_t end,
                  struct box ret[BOX_FLAT_MAX]);
/* Gives the range of a parameter's elements that a rank holds, or returns false if it holds none. A
 * flat buffer has `count` elements of the parameter from `start` on (elements that no parameter has
 * are padding), and the rank has the buffer's elements [first, end). */
bool box_flat_part(uint64_t start, uint64_t count, uint64_t first, uint64_t end,
                   uint64_t ret_range[2]);

/* The grid of a box. The last dimensions that fit whole into chunk_bytes stay whole; the one before
 * them is cut into runs of as many rows as fit; all dimensions before that are cut one by one. So
 * each cell is contiguous in its box (row-major), and cells follow each other without a gap. A box
 * without bytes has no cell. */
struct grid {
    struct box box;
    uint32_t dtype;
    uint32_t cut_dim;   /* the dimension that is cut into runs */
    uint64_t rows;      /* rows of cut_dim per cell */
    uint64_t row_bytes; /* bytes of one row of cut_dim */
    uint64_t cells_per_outer, cell_count;
};
/* Returns whether this can be a run's chunk size: a multiple of LIMIT_ALIGN_BYTES from
 * LIMIT_CHUNK_BYTES_MIN to LIMIT_CHUNK_BYTES. */
bool chunk_bytes_is_valid(uint64_t chunk_bytes);
void grid_init(struct grid *grid, const struct box *box, uint32_t dtype, uint64_t chunk_bytes);
/* Gives cell idx: its rectangle in the tensor's coordinates, where it starts in the box's row-major
 * bytes, and its bytes, which are never more than chunk_bytes, because a row of the last dimension
 * that is larger is cut by elements. */
void grid_cell(const struct grid *grid, uint64_t idx, struct box *ret_cell, uint64_t *ret_offset,
               uint64_t *ret_bytes);

/* The items of a group (sorted by name, coordinate, box; equal on every rank) laid end to end.
 * Member m of n writes the cells whose first byte lies in [total*m/n, total*(m+1)/n). Cells stay
 * whole, so members differ by at most one cell. */
struct split {
    uint64_t total_bytes; /* of all items of the group */
    uint32_t member, members;
};
/* Returns true if the cell that starts at byte `start` of the group's sequence is this member's. */
bool split_is_mine(const struct split *split, uint64_t start);

#endif

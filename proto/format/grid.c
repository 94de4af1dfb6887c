/* SPDX-License-Identifier: Apache-2.0
 *
 * The grid of a box: a function of its lengths, the dtype and the chunk size only, never of the
 * world size. Cells are contiguous in the box's row-major bytes and follow each other without a
 * gap, so that a cell's index, offset and rectangle follow from each other in O(dimensions). The
 * split: the items of a group laid end to end are divided into equal runs of bytes, and a cell
 * belongs to the run in which its first byte lies; every member computes the same answer alone.
 * Pure; any thread.
 */
#include "box.h"

#include <string.h>

#include "base/check.h"

bool chunk_bytes_is_valid(uint64_t chunk_bytes)
{
    return chunk_bytes >= LIMIT_CHUNK_BYTES_MIN && chunk_bytes <= LIMIT_CHUNK_BYTES &&
           chunk_bytes % LIMIT_ALIGN_BYTES == 0;
}

void grid_init(struct grid *grid, const struct box *box, uint32_t dtype, uint64_t chunk_bytes)
{
    CHECK(box->ndim <= LIMIT_NDIM);
    CHECK(dtype_is_known(dtype));
    memset(grid, 0, sizeof *grid);
    grid->box = *box;
    grid->dtype = dtype;
    grid->row_bytes = dtype_bits(dtype) / 8;
    CHECK(chunk_bytes >= grid->row_bytes);
    grid->rows = 1;
    if (box_elements(box) == 0) {
        return; /* no bytes, no cell */
    }
    if (box->ndim == 0) {
        grid->cells_per_outer = 1;
        grid->cell_count = 1;
        return;
    }
    /* The cut is at the last dimension unless that one, and so on, fits whole. */
    uint32_t cut = box->ndim - 1;
    while (cut > 0 && (uint64_t)box->length[cut] <= chunk_bytes / grid->row_bytes) {
        grid->row_bytes *= (uint64_t)box->length[cut];
        cut--;
    }
    uint64_t length = (uint64_t)box->length[cut], outer = 1;
    grid->cut_dim = cut;
    grid->rows = min_u64(length, chunk_bytes / grid->row_bytes);
    grid->cells_per_outer = length / grid->rows + (length % grid->rows != 0);
    for (uint32_t d = 0; d < cut; d++) {
        outer *= (uint64_t)box->length[d]; /* at most the box's elements */
    }
    grid->cell_count = outer * grid->cells_per_outer;
}

void grid_cell(const struct grid *grid, uint64_t idx, struct box *ret_cell, uint64_t *ret_offset,
               uint64_t *ret_bytes)
{
    CHECK(idx < grid->cell_count);
    struct box cell = grid->box;
    uint64_t outer = idx / grid->cells_per_outer;
    uint64_t row = idx % grid->cells_per_outer * grid->rows;
    uint64_t length = cell.ndim == 0 ? 1 : (uint64_t)cell.length[grid->cut_dim];
    uint64_t rows = min_u64(grid->rows, length - row);
    *ret_offset = (outer * length + row) * grid->row_bytes;
    *ret_bytes = rows * grid->row_bytes;
    if (cell.ndim > 0) {
        cell.offset[grid->cut_dim] += (int64_t)row;
        cell.length[grid->cut_dim] = (int64_t)rows;
        for (uint32_t d = grid->cut_dim; d-- > 0;) {
            uint64_t whole = (uint64_t)grid->box.length[d];
            cell.offset[d] += (int64_t)(outer % whole);
            cell.length[d] = 1;
            outer /= whole;
        }
    }
    *ret_cell = cell;
}

/* floor(total * m / n) without overflow. */
static uint64_t split_bound(const struct split *split, uint32_t m)
{
    __extension__ unsigned __int128 product = split->total_bytes;
    return (uint64_t)(product * m / split->members);
}

bool split_is_mine(const struct split *split, uint64_t start)
{
    CHECK(split->members > 0);
    CHECK(split->member < split->members);
    CHECK(start < split->total_bytes);
    return start >= split_bound(split, split->member) &&
           start < split_bound(split, split->member + 1);
}

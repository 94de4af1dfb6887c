/* SPDX-License-Identifier: Apache-2.0
 *
 * Shapes and boxes: checks, comparison, intersection, text. Once shape_check() and box_check() have
 * passed, no sum or product of lengths, and no number of bytes, overflows 63 bits.
 *
 * The grid of a box depends only on its lengths, the dtype and the chunk size, never on the world
 * size. Cells are contiguous in the box's row-major bytes and follow each other without a gap, so a
 * cell's index, offset and rectangle follow from each other in O(dimensions). The split divides the
 * items of a group, laid end to end, into equal runs of bytes; a cell belongs to the run in which
 * its first byte lies, and every member computes the same answer alone. Pure; any thread.
 */
#include "box.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"

int shape_check(const struct shape *shape, uint32_t dtype, uint64_t *ret_bytes, struct diag *diag)
{
    if (!dtype_is_known(dtype)) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "dtype %u needs a newer Cairn than this", dtype);
    }
    if (shape->ndim > LIMIT_NDIM) {
        return diag_set(diag, CAIRN_E_TOO_LARGE, "%u dimensions are given; at most %d are allowed",
                        shape->ndim, LIMIT_NDIM);
    }
    /* The product without the zeros must fit as well, because boxes and rows of an empty tensor are
     * counted. */
    uint64_t bytes = dtype_bits(dtype) / 8;
    bool empty = false;
    for (uint32_t d = 0; d < shape->ndim; d++) {
        if (shape->length[d] < 0) {
            return diag_set(diag, CAIRN_E_INVALID, "dimension %u has the negative length %lld", d,
                            (long long)shape->length[d]);
        }
        empty = empty || shape->length[d] == 0;
        uint64_t length = shape->length[d] == 0 ? 1 : (uint64_t)shape->length[d];
        if (!mul_u64(bytes, length, &bytes) || bytes > INT64_MAX) {
            return diag_set(diag, CAIRN_E_TOO_LARGE, "the tensor is larger than 2^63 bytes");
        }
    }
    *ret_bytes = empty ? 0 : bytes;
    return 0;
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    return a->ndim == b->ndim && a->ndim <= LIMIT_NDIM &&
           memcmp(a->length, b->length, a->ndim * sizeof a->length[0]) == 0;
}

/* A text that is cut where its room ends, and never overruns it. */
struct text {
    char *at;
    size_t left; /* including the NUL */
};

static void text_add(struct text *text, const char *before, int64_t value)
{
    int n = snprintf(text->at, text->left, "%s%lld", before, (long long)value);
    size_t step = n < 0 ? 0 : min_u64((uint64_t)n, text->left - 1);
    text->at += step;
    text->left -= step;
}

static void text_end(struct text *text, bool empty)
{
    int n = snprintf(text->at, text->left, empty ? "[]" : "]");
    CHECK(n > 0);
}

void shape_format(const struct shape *shape, size_t bytes, char *ret)
{
    struct text text = {ret, bytes};
    CHECK(bytes > 0);
    for (uint32_t d = 0; d < shape->ndim && d < LIMIT_NDIM; d++) {
        text_add(&text, d == 0 ? "[" : ", ", shape->length[d]);
    }
    text_end(&text, shape->ndim == 0);
}

void box_format(const struct box *box, size_t bytes, char *ret)
{
    struct text text = {ret, bytes};
    CHECK(bytes > 0);
    for (uint32_t d = 0; d < box->ndim && d < LIMIT_NDIM; d++) {
        text_add(&text, d == 0 ? "[" : ", ", box->offset[d]);
        text_add(&text, ":", box->offset[d] + box->length[d]);
    }
    text_end(&text, box->ndim == 0);
}

struct box box_whole(const struct shape *shape)
{
    struct box box;
    CHECK(shape->ndim <= LIMIT_NDIM);
    memset(&box, 0, sizeof box);
    box.ndim = shape->ndim;
    memcpy(box.length, shape->length, shape->ndim * sizeof shape->length[0]);
    return box;
}

int box_check(const struct box *box, const struct shape *shape, struct diag *diag)
{
    if (box->ndim != shape->ndim || box->ndim > LIMIT_NDIM) {
        return diag_set(diag, CAIRN_E_INVALID, "the box has %u dimensions, but the tensor has %u",
                        box->ndim, shape->ndim);
    }
    for (uint32_t d = 0; d < box->ndim; d++) {
        int64_t offset = box->offset[d], length = box->length[d], whole = shape->length[d];
        if (offset < 0 || length < 0 || offset > whole || length > whole - offset) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the box with offset %lld and length %lld goes beyond dimension %u, "
                            "whose length is %lld",
                            (long long)offset, (long long)length, d, (long long)whole);
        }
    }
    return 0;
}

uint64_t box_elements(const struct box *box)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < box->ndim; d++) {
        CHECK(mul_u64(elements, (uint64_t)box->length[d], &elements));
    }
    return elements;
}

uint64_t box_bytes(const struct box *box, uint32_t dtype)
{
    uint64_t bytes = 0;
    CHECK(mul_u64(box_elements(box), dtype_bits(dtype) / 8, &bytes));
    return bytes;
}

bool box_equal(const struct box *a, const struct box *b)
{
    return a->ndim == b->ndim && box_compare(a, b) == 0;
}

static int compare_i64(uint32_t count, const int64_t *a, const int64_t *b)
{
    for (uint32_t d = 0; d < count; d++) {
        if (a[d] != b[d]) {
            return a[d] < b[d] ? -1 : 1;
        }
    }
    return 0;
}

int box_compare(const struct box *a, const struct box *b)
{
    if (a->ndim != b->ndim) {
        return a->ndim < b->ndim ? -1 : 1;
    }
    CHECK(a->ndim <= LIMIT_NDIM);
    int order = compare_i64(a->ndim, a->offset, b->offset);
    return order != 0 ? order : compare_i64(a->ndim, a->length, b->length);
}

bool box_intersect(const struct box *a, const struct box *b, struct box *ret)
{
    struct box both;
    if (a->ndim != b->ndim) {
        return false;
    }
    memset(&both, 0, sizeof both);
    both.ndim = a->ndim;
    for (uint32_t d = 0; d < a->ndim; d++) {
        int64_t a_end = a->offset[d] + a->length[d], b_end = b->offset[d] + b->length[d];
        int64_t from = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        int64_t end = a_end < b_end ? a_end : b_end;
        if (end <= from) {
            return false;
        }
        both.offset[d] = from;
        both.length[d] = end - from;
    }
    *ret = both;
    return true;
}

/* --- flat ranges ----------------------------------------------------------------- */

/* Gives the largest box that starts at element `at`, ends at or before `end`, and is one run: whole
 * rows of the outermost dimension that is aligned there. Returns the number of its elements. */
static uint64_t flat_step(const struct shape *shape, uint64_t at, uint64_t end, struct box *ret)
{
    uint64_t row = 1, rest = at; /* elements in one row of the present dimension */
    uint32_t cut = shape->ndim - 1;
    while (cut > 0 && at % (row * (uint64_t)shape->length[cut]) == 0 &&
           end - at >= row * (uint64_t)shape->length[cut]) {
        row *= (uint64_t)shape->length[cut];
        cut--;
    }
    *ret = (struct box){.ndim = shape->ndim};
    rest /= row;
    uint64_t index = rest % (uint64_t)shape->length[cut];
    uint64_t rows = min_u64((uint64_t)shape->length[cut] - index, (end - at) / row);
    for (uint32_t d = cut + 1; d < shape->ndim; d++) {
        ret->length[d] = shape->length[d];
    }
    ret->offset[cut] = (int64_t)index;
    ret->length[cut] = (int64_t)rows;
    rest /= (uint64_t)shape->length[cut];
    for (uint32_t d = cut; d-- > 0;) {
        ret->offset[d] = (int64_t)(rest % (uint64_t)shape->length[d]);
        ret->length[d] = 1;
        rest /= (uint64_t)shape->length[d];
    }
    return rows * row;
}

uint32_t box_flat(const struct shape *shape, uint64_t first, uint64_t end,
                  struct box ret[BOX_FLAT_MAX])
{
    uint32_t count = 0;
    struct box whole = box_whole(shape);
    CHECK(first <= end);
    CHECK(end <= box_elements(&whole));
    if (shape->ndim == 0) {
        ret[0] = whole;
        return first < end ? 1 : 0;
    }
    while (first < end) {
        CHECK(count < BOX_FLAT_MAX);
        first += flat_step(shape, first, end, &ret[count++]);
    }
    return count;
}

bool box_flat_part(uint64_t start, uint64_t count, uint64_t first, uint64_t end,
                   uint64_t ret_range[2])
{
    uint64_t from = max_u64(start, first), to;
    if (!add_u64(start, count, &to)) {
        return false;
    }
    to = min_u64(to, end);
    if (from >= to) {
        return false;
    }
    ret_range[0] = from - start;
    ret_range[1] = to - start;
    return true;
}

/* --- grids --- */

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
        return; /* a box without bytes has no cell */
    }
    if (box->ndim == 0) {
        grid->cells_per_outer = 1;
        grid->cell_count = 1;
        return;
    }
    /* The cut is at the last dimension, unless that fits whole, and so on outwards. */
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

/* Returns floor(total * m / n) without overflow. */
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

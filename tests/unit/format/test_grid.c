/* SPDX-License-Identifier: Apache-2.0
 *
 * Cells tile their box, are contiguous and small enough; the split gives each cell to one member,
 * evenly. Method: random boxes, dtypes and chunk sizes from a printed seed, and examples by hand.
 */
#include "base/check.h"
#include "fixtures.h"
#include "support/unit_test.h"

static struct box random_box(struct prng *prng)
{
    struct box box;
    memset(&box, 0, sizeof box);
    box.ndim = (uint32_t)prng_below(prng, 5);
    for (uint32_t d = 0; d < box.ndim; d++) {
        box.offset[d] = (int64_t)prng_below(prng, 1000);
        box.length[d] = (int64_t)prng_below(prng, prng_below(prng, 8) == 0 ? 3000 : 20);
    }
    return box;
}

/* Where an element of the box lies in the box's row-major order. */
static uint64_t linear(const struct box *box, const int64_t *at)
{
    uint64_t idx = 0;
    for (uint32_t d = 0; d < box->ndim; d++) {
        idx = idx * (uint64_t)box->length[d] + (uint64_t)(at[d] - box->offset[d]);
    }
    return idx;
}

/* The cell's first and last element are as far apart as its elements are many: it is contiguous. */
static void assert_contiguous(const struct box *box, const struct box *cell, uint64_t offset,
                              uint64_t width)
{
    int64_t last[LIMIT_NDIM] = {0};
    for (uint32_t d = 0; d < cell->ndim; d++) {
        assert_true(cell->offset[d] >= box->offset[d]);
        assert_true(cell->offset[d] + cell->length[d] <= box->offset[d] + box->length[d]);
        last[d] = cell->offset[d] + cell->length[d] - 1;
    }
    assert_int_equal(linear(box, cell->offset) * width, offset);
    assert_int_equal(linear(box, last) - linear(box, cell->offset) + 1, box_elements(cell));
}

TEST(test_cells_tile_their_box)
{
    struct prng prng = prng_init("grid", 4711);
    for (unsigned round = 0; round < 3000; round++) {
        struct box box = random_box(&prng), cell;
        uint32_t dtype = 1 + (uint32_t)prng_below(&prng, 22);
        uint64_t chunk = 4096 * (1 + prng_below(&prng, 16)), next = 0, offset = 0, bytes = 0;
        struct grid grid;
        grid_init(&grid, &box, dtype, chunk);
        for (uint64_t i = 0; i < grid.cell_count && i < 3000; i++) {
            grid_cell(&grid, i, &cell, &offset, &bytes);
            assert_int_equal(offset, next);
            assert_int_equal(bytes, box_bytes(&cell, dtype));
            assert_true(bytes > 0 && bytes <= chunk);
            assert_contiguous(&box, &cell, offset, dtype_bits(dtype) / 8);
            next += bytes;
        }
        if (grid.cell_count <= 3000) {
            assert_int_equal(next, box_bytes(&box, dtype));
        }
    }
}

static struct grid grid_of(uint32_t ndim, const int64_t *lengths, uint32_t dtype, uint64_t chunk)
{
    struct box box;
    struct grid grid;
    memset(&box, 0, sizeof box);
    box.ndim = ndim;
    for (uint32_t d = 0; d < ndim; d++) {
        box.length[d] = lengths[d];
    }
    grid_init(&grid, &box, dtype, chunk);
    return grid;
}

TEST(test_examples_of_the_norm)
{
    struct grid grid = grid_of(2, (int64_t[]){4096, 1024}, CAIRN_BF16, MIB(4));
    assert_true(grid.cut_dim == 0 && grid.rows == 2048 && grid.cell_count == 2);
    grid = grid_of(3, (int64_t[]){3, 1000, 1024}, CAIRN_F32,
                   65536); /* rows of 4096: 16 a cell, 63 per outer */
    assert_true(grid.cut_dim == 1 && grid.rows == 16 && grid.cells_per_outer == 63 &&
                grid.cell_count == 189);
    grid = grid_of(2, (int64_t[]){2, 5000}, CAIRN_U8,
                   4096); /* a row above the chunk is cut by elements */
    assert_true(grid.cut_dim == 1 && grid.rows == 4096 && grid.cell_count == 4);
    grid = grid_of(0, NULL, CAIRN_F64, 4096);
    assert_int_equal(grid.cell_count, 1);
    grid = grid_of(2, (int64_t[]){0, 7}, CAIRN_F64, 4096);
    assert_int_equal(grid.cell_count, 0);
    grid = grid_of(1, (int64_t[]){INT64_MAX}, CAIRN_U8, MIB(4));
    assert_int_equal(grid.cell_count, UINT64_C(1) << 41);
}

TEST(test_split_is_even_and_complete)
{
    struct prng prng = prng_init("split", 99);
    for (unsigned round = 0; round < 300; round++) {
        uint32_t members = 1 + (uint32_t)prng_below(&prng, 9),
                 cells = 1 + (uint32_t)prng_below(&prng, 200);
        uint64_t sizes[200], total = 0, mine[9] = {0}, start = 0, largest = 0;
        for (uint32_t i = 0; i < cells; i++) {
            sizes[i] = 1 + prng_below(&prng, 4096);
            total += sizes[i];
            largest = max_u64(largest, sizes[i]);
        }
        for (uint32_t i = 0; i < cells; i++) {
            unsigned owners = 0;
            for (uint32_t m = 0; m < members; m++) {
                struct split split = {total, m, members};
                if (split_is_mine(&split, start)) {
                    mine[m] += sizes[i];
                    owners++;
                }
            }
            assert_int_equal(owners, 1);
            start += sizes[i];
        }
        for (uint32_t m = 0; m < members; m++) {
            assert_true(mine[m] <= total / members + 1 + largest);
            assert_true(mine[m] + largest + 1 >= total / members);
        }
    }
}

TEST(test_split_example_of_the_norm)
{
    static const uint64_t starts[] = {0, 4, 8};
    for (uint32_t m = 0; m < 3; m++) {
        struct split split = {10, m, 3};
        for (uint32_t c = 0; c < 3; c++) {
            assert_int_equal(split_is_mine(&split, starts[c]), m == c);
        }
    }
}

TEST(test_split_of_huge_totals)
{
    unsigned owners = 0;
    for (uint32_t m = 0; m < 65536; m++) {
        struct split split = {UINT64_MAX, m, 65536};
        owners += split_is_mine(&split, UINT64_MAX - 1);
    }
    assert_int_equal(owners, 1);
}

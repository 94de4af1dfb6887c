/* SPDX-License-Identifier: Apache-2.0
 *
 * A flat range becomes few boxes, which follow each other as the range's elements do, and those of
 * all partitions of a flat buffer tile every parameter, also with padding between the parameters.
 * Method: random shapes and cuts.
 */
#include "format/box.h"

#include "support/unit_test.h"

enum { PARAMS_MAX = 9, RANKS_MAX = 16, CASES = 3000 };

static uint64_t state_of_draw = 1;

static uint64_t draw(uint64_t n)
{
    state_of_draw = state_of_draw * 6364136223846793005u + 1442695040888963407u;
    return (state_of_draw >> 33) % n;
}

static struct shape draw_shape(void)
{
    struct shape shape = {.ndim = (uint32_t)draw(6)};
    for (uint32_t d = 0; d < shape.ndim; d++) {
        shape.length[d] = (int64_t)draw(7) + (draw(20) > 0);
    }
    return shape;
}

/* The row-major index of the box's first element. */
static uint64_t first_of(const struct shape *shape, const struct box *box)
{
    uint64_t index = 0;
    for (uint32_t d = 0; d < shape->ndim; d++) {
        index = index * (uint64_t)shape->length[d] + (uint64_t)box->offset[d];
    }
    return index;
}

/* In a box that is one run, the last element is as far from the first as there are elements. */
static uint64_t last_of(const struct shape *shape, const struct box *box)
{
    uint64_t index = 0;
    for (uint32_t d = 0; d < shape->ndim; d++) {
        index =
            index * (uint64_t)shape->length[d] + (uint64_t)(box->offset[d] + box->length[d]) - 1;
    }
    return index;
}

TEST(any_range_is_a_few_runs)
{
    for (unsigned i = 0; i < CASES; i++) {
        struct shape shape = draw_shape();
        struct box whole = box_whole(&shape), boxes[BOX_FLAT_MAX];
        uint64_t elements = box_elements(&whole);
        uint64_t first = draw(elements + 1), end = first + draw(elements - first + 1), at = first;
        uint32_t count = box_flat(&shape, first, end, boxes);
        assert_true(count <= (shape.ndim == 0 ? 1 : 2 * shape.ndim - 1));
        for (uint32_t b = 0; b < count; b++) {
            assert_int_equal(box_check(&boxes[b], &shape, NULL), 0);
            assert_int_equal(first_of(&shape, &boxes[b]), at);
            assert_int_equal(last_of(&shape, &boxes[b]) + 1 - at, box_elements(&boxes[b]));
            at += box_elements(&boxes[b]);
        }
        assert_int_equal(at, end);
    }
}

TEST(partitions_tile_every_parameter)
{
    for (unsigned i = 0; i < CASES; i++) {
        struct shape shapes[PARAMS_MAX];
        uint64_t starts[PARAMS_MAX], total = 0, align = 1 + draw(8);
        unsigned params = 1 + (unsigned)draw(PARAMS_MAX), ranks = 1 + (unsigned)draw(RANKS_MAX);
        for (unsigned p = 0; p < params; p++) {
            shapes[p] = draw_shape();
            struct box whole = box_whole(&shapes[p]);
            starts[p] = total;
            total += box_elements(&whole);
            total += draw(3) == 0 ? draw(9) : (align - total % align) % align; /* padding */
        }
        uint64_t each = (total + ranks - 1) / ranks;
        for (unsigned p = 0; p < params; p++) {
            struct box whole = box_whole(&shapes[p]), boxes[RANKS_MAX * BOX_FLAT_MAX];
            size_t count = 0;
            for (unsigned r = 0; r < ranks; r++) {
                uint64_t range[2];
                if (box_flat_part(starts[p], box_elements(&whole), r * each, (r + 1) * each,
                                  range)) {
                    assert_true(range[0] < range[1]);
                    count += box_flat(&shapes[p], range[0], range[1], boxes + count);
                }
            }
            assert_int_equal(boxes_tile(&shapes[p], count, boxes, NULL), 0);
        }
    }
}

TEST(the_edges)
{
    struct box boxes[BOX_FLAT_MAX];
    struct shape cube = {3, {4, 5, 6}}, scalar = {0}, empty = {2, {0, 7}};
    uint64_t range[2];
    assert_int_equal(box_flat(&cube, 0, 120, boxes), 1);
    assert_int_equal(box_flat(&cube, 1, 119, boxes), 5); /* the worst: 2 * 3 - 1 */
    assert_int_equal(box_flat(&cube, 7, 7, boxes), 0);
    assert_int_equal(box_flat(&scalar, 0, 1, boxes), 1);
    assert_int_equal(box_flat(&scalar, 0, 0, boxes), 0);
    assert_int_equal(box_flat(&empty, 0, 0, boxes), 0);
    assert_true(box_flat_part(10, 5, 12, 100, range));
    assert_int_equal(range[0], 2);
    assert_int_equal(range[1], 5);
    assert_false(box_flat_part(10, 5, 15, 100, range));
    assert_false(box_flat_part(10, 5, 0, 10, range));
    assert_false(box_flat_part(UINT64_MAX, 5, 0, 10, range));
}

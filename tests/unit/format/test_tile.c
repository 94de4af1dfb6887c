/* SPDX-License-Identifier: Apache-2.0
 *
 * Shapes and boxes that pass shape_check and box_check hold every later sum within 63 bits;
 * boxes_tile says what a bitmap says. Method: edges by hand; random small shapes and boxes against
 * a naive count of each element.
 */
#include "base/check.h"
#include "fixtures.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

TEST(test_shapes_at_the_edge)
{
    struct shape shape = {1, {INT64_MAX}};
    struct diag diag = DIAG_INIT;
    uint64_t bytes = 0;
    assert_int_equal(shape_check(&shape, CAIRN_U8, &bytes, &diag), 0);
    assert_int_equal(bytes, INT64_MAX);
    assert_int_equal(shape_check(&shape, CAIRN_F16, &bytes, NULL), CAIRN_E_TOO_LARGE);
    shape = (struct shape){3, {0, INT64_MAX, 2}}; /* empty, but its rows do not fit */
    assert_int_equal(shape_check(&shape, CAIRN_U8, &bytes, NULL), CAIRN_E_TOO_LARGE);
    shape = (struct shape){2, {3, -1}};
    assert_int_equal(shape_check(&shape, CAIRN_U8, &bytes, NULL), CAIRN_E_INVALID);
    shape = (struct shape){9, {0}};
    assert_int_equal(shape_check(&shape, CAIRN_U8, &bytes, NULL), CAIRN_E_TOO_LARGE);
    shape = (struct shape){0, {0}};
    assert_int_equal(shape_check(&shape, 777, &bytes, NULL), CAIRN_E_UNSUPPORTED);
    assert_int_equal(shape_check(&shape, CAIRN_C128, &bytes, NULL), 0);
    assert_int_equal(bytes, 16);
}

TEST(test_boxes_outside_are_refused)
{
    static const struct box bad[] = {{1, {-1}, {2}},
                                     {1, {0}, {11}},
                                     {1, {5}, {6}},
                                     {1, {11}, {0}},
                                     {1, {0}, {-1}},
                                     {2, {0}, {1}},
                                     {1, {INT64_MAX}, {INT64_MAX}}};
    struct shape shape = {1, {10}};
    struct box good = {1, {10}, {0}};
    char text[64];
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct diag diag = DIAG_INIT;
        assert_int_equal(box_check(&bad[i], &shape, &diag), CAIRN_E_INVALID);
        assert_int_equal(diag.code, CAIRN_E_INVALID);
    }
    assert_int_equal(box_check(&good, &shape, NULL), 0);
    box_format(&(struct box){2, {1, 2}, {3, 4}}, sizeof text, text);
    assert_string_equal(text, "[1:4, 2:6]");
    shape_format(&(struct shape){0, {0}}, sizeof text, text);
    assert_string_equal(text, "[]");
    shape_format(&(struct shape){2, {4096, 512}}, 8, text);
    assert_string_equal(text, "[4096, ");
}

TEST(test_intersection)
{
    struct box a = {2, {0, 0}, {4, 4}}, b = {2, {2, 3}, {5, 5}}, both;
    assert_true(box_intersect(&a, &b, &both));
    assert_true(box_equal(&both, &(struct box){2, {2, 3}, {2, 1}}));
    b.offset[1] = 4;
    assert_false(box_intersect(&a, &b, &both));
    b = (struct box){2, {1, 1}, {0, 2}};
    assert_false(box_intersect(&a, &b, &both));
}

enum { SIDE = 5, BOXES = 12 };

/* Whether each element of a small shape is in exactly one box. */
static bool naive_tiles(const struct shape *shape, size_t count, const struct box *boxes)
{
    struct box whole = box_whole(shape);
    uint64_t elements = box_elements(&whole);
    for (uint64_t e = 0; e < elements; e++) {
        struct box at = whole;
        uint64_t rest = e;
        size_t holders = 0;
        for (uint32_t d = shape->ndim; d-- > 0; rest /= (uint64_t)shape->length[d]) {
            at.offset[d] = (int64_t)(rest % (uint64_t)shape->length[d]);
            at.length[d] = 1;
        }
        for (size_t i = 0; i < count; i++) {
            struct box both;
            holders += shape->ndim == 0 || box_intersect(&at, &boxes[i], &both);
        }
        if (holders != 1) {
            return false;
        }
    }
    return true;
}

/* Cuts the shape into boxes at random, then often spoils the tiling. */
static size_t random_tiling(struct prng *prng, const struct shape *shape, struct box *boxes)
{
    size_t count = 1;
    boxes[0] = box_whole(shape);
    for (unsigned cuts = (unsigned)prng_below(prng, 8);
         cuts > 0 && shape->ndim > 0 && count < BOXES - 1; cuts--) {
        struct box *box = &boxes[prng_below(prng, count)];
        uint32_t d = (uint32_t)prng_below(prng, shape->ndim);
        int64_t left = (int64_t)prng_below(prng, (uint64_t)box->length[d] + 1);
        boxes[count] = *box;
        boxes[count].offset[d] += left;
        boxes[count++].length[d] -= left;
        box->length[d] = left;
    }
    uint64_t spoil = prng_below(prng, 4);
    struct box *box = &boxes[prng_below(prng, count)];
    uint32_t d = shape->ndim > 0 ? (uint32_t)prng_below(prng, shape->ndim) : 0;
    if (spoil == 1) {
        boxes[count++] = *box;
    } else if (spoil == 2) {
        *box = boxes[--count];
    } else if (spoil == 3 && shape->ndim > 0 && box->offset[d] > 0) {
        box->offset[d]--;
    }
    return count;
}

TEST(test_tiling_agrees_with_a_count_of_each_element)
{
    struct prng prng = prng_init("tile", 31337);
    unsigned tiled = 0, spoiled = 0;
    for (unsigned round = 0; round < 20000; round++) {
        struct shape shape = {.ndim = (uint32_t)prng_below(&prng, 4)};
        struct box boxes[BOXES];
        struct diag diag = DIAG_INIT;
        for (uint32_t d = 0; d < shape.ndim; d++) {
            shape.length[d] =
                (int64_t)prng_below(&prng, 16) == 0 ? 0 : 1 + (int64_t)prng_below(&prng, SIDE);
        }
        size_t count = random_tiling(&prng, &shape, boxes);
        bool want = naive_tiles(&shape, count, boxes);
        int rc = boxes_tile(&shape, count, boxes, &diag);
        if (rc != (want ? 0 : CAIRN_E_COVERAGE)) {
            fail_msg("round %u: %d (%s), a count says %d", round, rc, diag.text, want);
        }
        tiled += want;
        spoiled += !want;
    }
    assert_true(tiled > 1000 && spoiled > 1000);
}

TEST(test_faults_are_named)
{
    struct shape shape = {2, {4, 4}};
    struct box boxes[2] = {{2, {0, 0}, {4, 2}}, {2, {0, 3}, {4, 1}}};
    struct diag diag = DIAG_INIT;
    assert_int_equal(boxes_tile(&shape, 2, boxes, &diag), CAIRN_E_COVERAGE);
    assert_string_equal(diag.text, "no box holds the element [0:1, 2:3]");
    diag_clear(&diag);
    boxes[1] = (struct box){2, {1, 1}, {3, 3}};
    assert_int_equal(boxes_tile(&shape, 2, boxes, &diag), CAIRN_E_COVERAGE);
    assert_non_null(strstr(diag.text, "[0:1, 2:3]"));
    diag_clear(&diag);
    boxes[0] = box_whole(&shape);
    assert_int_equal(boxes_tile(&shape, 2, boxes, &diag), CAIRN_E_COVERAGE);
    assert_string_equal(diag.text,
                        "boxes [0:4, 0:4] and [1:4, 1:4] overlap at the element [1:2, 1:2]");
    assert_int_equal(boxes_tile(&shape, 0, NULL, NULL), CAIRN_E_COVERAGE);
    shape.length[1] = 0;
    assert_int_equal(boxes_tile(&shape, 0, NULL, NULL), 0);
}

TEST(test_many_slabs_and_tiles_are_quick)
{
    enum { N = 65536 };
    struct shape shape = {2, {256, 256}};
    struct box *boxes = calloc(N, sizeof *boxes);
    assert_non_null(boxes);
    for (int64_t i = 0; i < N; i++) {
        boxes[(i * 40503) % N] = (struct box){2, {i / 256, i % 256}, {1, 1}};
    }
    assert_int_equal(boxes_tile(&shape, N, boxes, NULL), 0);
    boxes[77] = boxes[78];
    assert_int_equal(boxes_tile(&shape, N, boxes, NULL), CAIRN_E_COVERAGE);
    alloc_fault_at(1);
    assert_int_equal(boxes_tile(&shape, N, boxes, NULL), CAIRN_E_NO_MEMORY);
    assert_true(alloc_fault_hit());
    free(boxes);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A rectangle copied between any two layouts lands where the strides say, and strided_run agrees
 * with it.
 */
#include "arena/strided.h"
#include "share/registered.h"

#include "base/check.h"
#include "support/unit_test.h"

static uint64_t draw_state;

static int64_t draw(int64_t n)
{
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((draw_state >> 33) % (uint64_t)n);
}

/* Where an element (tensor coordinates) lies by the definition. */
static size_t place(const struct box *box, const int64_t *stride, const int64_t *at)
{
    int64_t sum = 0;
    for (uint32_t d = 0; d < box->ndim; d++) {
        sum += (at[d] - box->offset[d]) * stride[d];
    }
    return (size_t)sum;
}

static void run_case(uint64_t seed)
{
    enum { ELEMENT = 4 };
    int64_t order[3] = {0, 1, 2}, at[3];
    draw_state = seed;
    struct box box = {.ndim = 3}, part = {.ndim = 3};
    for (unsigned d = 0; d < 3; d++) {
        box.offset[d] = draw(5);
        box.length[d] = draw(6) + 1;
        part.offset[d] = box.offset[d] + draw(box.length[d]);
        part.length[d] = draw(box.offset[d] + box.length[d] - part.offset[d]) + 1;
    }
    for (unsigned i = 0; i < 2; i++) {
        int64_t j = i + draw(3 - i), kept = order[i];
        order[i] = order[j], order[j] = kept;
    }
    struct registered_box memory = {.box = box};
    int64_t stride = 1 + draw(2);
    for (unsigned i = 0; i < 3; i++) {
        memory.stride[order[i]] = stride;
        stride *= box.length[order[i]] + draw(2);
    }
    size_t bytes = (size_t)stride * 3 * ELEMENT + 64, part_bytes = box_elements(&part) * ELEMENT;
    memory.data = malloc(bytes);
    uint8_t *packed = malloc(part_bytes);
    for (size_t i = 0; i < bytes; i++) {
        memory.data[i] = (uint8_t)draw(256);
    }
    struct strided_copy copy = {.to_box = &part,
                                .from_box = &box,
                                .part = &part,
                                .to = strided_packed(packed, &part, ELEMENT),
                                .from = registered_memory(&memory, ELEMENT),
                                .element_bytes = ELEMENT};
    strided_copy(&copy);
    size_t i = 0;
    for (at[0] = part.offset[0]; at[0] < part.offset[0] + part.length[0]; at[0]++) {
        for (at[1] = part.offset[1]; at[1] < part.offset[1] + part.length[1]; at[1]++) {
            for (at[2] = part.offset[2]; at[2] < part.offset[2] + part.length[2]; at[2]++, i++) {
                assert_memory_equal(packed + i * ELEMENT,
                                    memory.data + place(&box, memory.stride, at) * ELEMENT,
                                    ELEMENT);
            }
        }
    }
    free(memory.data);
    free(packed);
}

TEST(rectangles_land_where_strides_say)
{
    for (uint64_t seed = 1; seed <= 500; seed++) {
        run_case(seed);
    }
}

TEST(runs_are_recognised)
{
    struct box box = {.ndim = 3, .offset = {2, 0, 0}, .length = {4, 5, 6}};
    struct box rows = {.ndim = 3, .offset = {3, 0, 0}, .length = {2, 5, 6}};
    struct box some = {.ndim = 3, .offset = {3, 2, 0}, .length = {1, 2, 6}};
    struct box inner = {.ndim = 3, .offset = {3, 2, 1}, .length = {1, 1, 3}};
    struct box hole = {.ndim = 3, .offset = {3, 2, 0}, .length = {2, 2, 6}};
    uint64_t offset;
    assert_true(strided_run(&box, &rows, 2, &offset));
    assert_int_equal(offset, 60);
    assert_true(strided_run(&box, &some, 2, &offset));
    assert_int_equal(offset, (30 + 12) * 2);
    assert_true(strided_run(&box, &inner, 2, &offset));
    assert_int_equal(offset, (30 + 12 + 1) * 2);
    assert_false(strided_run(&box, &hole, 2, &offset));
}

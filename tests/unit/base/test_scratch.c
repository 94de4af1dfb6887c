/* SPDX-License-Identifier: Apache-2.0
 *
 * Scratch memory is zeroed, aligned, bounded, and survives failed allocations. Method: many sizes
 * filled and compared; the bound approached; a fault loop.
 */
#include "base/scratch.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

TEST(test_memory_is_zeroed_aligned_and_apart)
{
    struct scratch scratch;
    uint8_t *pieces[200];
    scratch_init(&scratch, 1 << 20);
    for (size_t i = 0; i < 200; i++) {
        pieces[i] = scratch_alloc(&scratch, i * 7);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t at = 0; at < i * 7; at++) {
            assert_int_equal(pieces[i][at], 0);
        }
        memset(pieces[i], (int)i + 1, i * 7);
    }
    for (size_t i = 0; i < 200; i++) {
        for (size_t at = 0; at < i * 7; at++) {
            assert_int_equal(pieces[i][at], (uint8_t)(i + 1));
        }
    }
    scratch_fini(&scratch);
    scratch_fini(NULL);
}

TEST(test_bound_is_kept)
{
    struct scratch scratch;
    scratch_init(&scratch, 64);
    assert_non_null(scratch_alloc(&scratch, 33)); /* takes 48 */
    assert_null(scratch_alloc(&scratch, 17));
    assert_non_null(scratch_alloc(&scratch, 16));
    assert_null(scratch_alloc(&scratch, 0));
    assert_int_equal(scratch.used, 64);
    assert_true(scratch.held >= scratch.used);
    scratch_fini(&scratch);
    assert_int_equal(scratch.held, 0);
    assert_non_null(scratch_alloc(&scratch, 64)); /* usable again */
    scratch_fini(&scratch);
}

TEST(test_overflow_is_refused)
{
    struct scratch scratch;
    scratch_init(&scratch, SIZE_MAX);
    assert_null(scratch_array(&scratch, SIZE_MAX / 2, 3));
    assert_null(scratch_alloc(&scratch, SIZE_MAX));
    assert_null(scratch_alloc(&scratch, SIZE_MAX - 20));
    assert_null(scratch_string(&scratch, SIZE_MAX, ""));
    assert_int_equal(scratch.used, 0);
    scratch_fini(&scratch);
}

TEST(test_copies)
{
    struct scratch scratch;
    scratch_init(&scratch, 4096);
    assert_string_equal(scratch_string(&scratch, 3, "abcdef"), "abc");
    assert_string_equal(scratch_string(&scratch, 0, NULL), "");
    assert_memory_equal(scratch_copy(&scratch, 4, "wxyz"), "wxyz", 4);
    uint32_t *array = scratch_array(&scratch, 10, sizeof(*array));
    assert_non_null(array);
    assert_int_equal(array[9], 0);
    scratch_fini(&scratch);
}

TEST(test_failed_allocation_changes_nothing)
{
    struct scratch scratch;
    scratch_init(&scratch, 1 << 20);
    unsigned failures = 0;
    for (int i = 0; i < 50; i++) {
        size_t used = scratch.used;
        alloc_fault_at(1);
        void *memory = scratch_alloc(&scratch, 1000);
        if (alloc_fault_hit()) {
            failures++;
            assert_null(memory);
            assert_int_equal(scratch.used, used);
            assert_non_null(scratch_alloc(&scratch, 1000));
        } else {
            assert_non_null(memory);
        }
    }
    assert_true(failures >= 3); /* blocks double: the first, 8 KiB, 16 KiB ... */
    scratch_fini(&scratch);
}

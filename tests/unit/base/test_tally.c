/* SPDX-License-Identifier: Apache-2.0
 *
 * A duration lands in the first bucket that holds it, every error of the table has a slot of its
 * own, and what is no known error is counted apart. Method: the bounds themselves and their
 * neighbours; all codes.
 */
#include "base/tally.h"

#include "support/unit_test.h"

static const uint64_t bounds[] = {10, 100, 1000};

TEST(test_a_value_is_in_the_first_bucket_that_holds_it)
{
    static const uint64_t values[] = {0, 10, 11, 100, 101, 1000, 1001, UINT32_MAX};
    static const uint64_t wanted[] = {2, 2, 2, 2};
    struct histogram histogram;
    uint64_t sum = 0;
    histogram_init(&histogram, 3, bounds);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        histogram_add(&histogram, values[i]);
        sum += values[i];
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(histogram.counts[i], wanted[i]);
    }
    assert_int_equal(histogram.sum_us, sum);
}

TEST(test_each_error_has_its_slot)
{
    struct err_tally tally = {{0}};
    for (int code = -1; code >= -ERR_COUNT; code--) {
        assert_true(err_is_known(code)); /* the table has no gap, or slots would be lost */
        assert_int_equal(err_slot(code), -code);
        err_tally_add(&tally, code);
    }
    for (size_t i = 1; i <= ERR_COUNT; i++) {
        assert_int_equal(tally.counts[i], 1);
    }
    assert_int_equal(tally.counts[0], 0);
    err_tally_add(&tally, 0);
    assert_int_equal(tally.counts[0], 0);
    err_tally_add(&tally, -ERR_COUNT - 1);
    err_tally_add(&tally, 5);
    assert_int_equal(tally.counts[0], 2);
}

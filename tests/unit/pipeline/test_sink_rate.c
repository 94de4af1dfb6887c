/* SPDX-License-Identifier: Apache-2.0
 *
 * The rate is that of the sink, not ours: what was measured while we had nothing to send never
 * lowers it, what was measured while we waited for the sink does.
 */
#include "pipeline/sink_rate.h"

#include "support/unit_test.h"

#define MIB_ (UINT64_C(1) << 20)

/* 16 MiB every so many ms, of which we were without work for starved_ms. */
static void feed(struct sink_rate *rate, uint64_t *now_ms, uint64_t each_ms, uint64_t starved_ms,
                 unsigned times)
{
    sink_rate_begin(rate, *now_ms);
    for (unsigned i = 0; i < times; i++) {
        sink_rate_starved(rate, true, *now_ms);
        *now_ms += starved_ms;
        sink_rate_starved(rate, false, *now_ms);
        *now_ms += each_ms - starved_ms;
        sink_rate_durable(rate, 16 * MIB_, *now_ms);
    }
    sink_rate_end(rate);
}

TEST(nothing_is_known_of_a_moment)
{
    struct sink_rate rate = {0};
    uint64_t now_ms = 5;
    sink_rate_durable(&rate, 64 * MIB_, 10); /* nothing was on its way */
    sink_rate_begin(&rate, now_ms);
    sink_rate_durable(&rate, 64 * MIB_, now_ms + 1); /* a cache, not a disk */
    sink_rate_durable(&rate, 1, now_ms + 49);
    assert_int_equal(rate.bytes_per_s, 0);
    sink_rate_end(&rate);
    sink_rate_begin(&rate, 1000);
    sink_rate_durable(&rate, 1 * MIB_, 2000); /* too little */
    assert_int_equal(rate.bytes_per_s, 0);
}

TEST(a_busy_sink_is_followed_both_ways)
{
    struct sink_rate rate = {0};
    uint64_t now_ms = 100;
    feed(&rate, &now_ms, 100, 0, 40);
    assert_in_range(rate.bytes_per_s, 160 * MIB_ - 100000, 160 * MIB_);
    feed(&rate, &now_ms, 50, 0, 40);
    assert_in_range(rate.bytes_per_s, 320 * MIB_ - 100000, 320 * MIB_);
    feed(&rate, &now_ms, 200, 0, 40); /* somebody else uses the disk too */
    assert_in_range(rate.bytes_per_s, 80 * MIB_ - 100000, 81 * MIB_);
}

TEST(our_own_slowness_is_not_the_sinks)
{
    struct sink_rate rate = {0};
    uint64_t now_ms = 100;
    feed(&rate, &now_ms, 100, 0, 40);
    uint64_t known = rate.bytes_per_s;
    feed(&rate, &now_ms, 400, 350, 40);
    assert_int_equal(rate.bytes_per_s, known);
    feed(&rate, &now_ms, 80, 60, 40); /* faster all the same: it can do at least that */
    assert_true(rate.bytes_per_s > known);
}

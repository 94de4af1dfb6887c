/* SPDX-License-Identifier: Apache-2.0
 *
 * An encoding that is slower than the sink or saves less than 3 % is never chosen, and of the
 * others the densest is; samples keep their schedule, and one slow moment does not decide for ever.
 */
#include "pipeline/adapt.h"

#include "base/limits.h"
#include "plain_data.h"
#include "support/unit_test.h"

static const struct encode_policy adaptive = {.mode = ENCODE_ADAPTIVE, .sample_every = 10};
static const struct encode_sink one_gb = {.bytes_per_s = 1000000000, .workers = 1};

/* What 64 KiB cost at so many MB/s, with so many percent stored. */
static struct encode_cost cost_of(uint64_t mb_per_s, uint64_t percent)
{
    return (struct encode_cost){
        .plain_bytes = 65536, .stored_bytes = 65536 * percent / 100, .ns = 65536 * 1000 / mb_per_s};
}

static struct encode_state sampled(struct encode_cost planes, struct encode_cost zstd)
{
    struct encode_state state;
    encode_state_init(&state, &adaptive);
    encode_state_sample(&state, ENCODING_PLANES_ZSTD, &planes);
    encode_state_sample(&state, ENCODING_ZSTD, &zstd);
    return state;
}

TEST(nothing_measured_means_raw)
{
    struct encode_state state;
    encode_state_init(&state, &adaptive);
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_RAW);
    state = sampled(cost_of(2000, 66), cost_of(2000, 80));
    const struct encode_sink unknown = {.bytes_per_s = 0, .workers = 4};
    assert_int_equal(encode_state_choose(&state, &unknown), ENCODING_RAW);
}

TEST(the_densest_that_keeps_up_is_chosen)
{
    struct encode_state state = sampled(cost_of(2000, 66), cost_of(1500, 80));
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_PLANES_ZSTD);
    state = sampled(cost_of(900, 66), cost_of(1500, 80));
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_ZSTD);
    state = sampled(cost_of(900, 66), cost_of(900, 80));
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_RAW);
    const struct encode_sink two_workers = {.bytes_per_s = 1000000000, .workers = 2};
    assert_int_equal(encode_state_choose(&state, &two_workers), ENCODING_PLANES_ZSTD);
}

TEST(little_gain_means_raw)
{
    struct encode_state state = sampled(cost_of(9000, 98), cost_of(9000, 100));
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_RAW);
    state = sampled(cost_of(9000, 96), cost_of(9000, 100));
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_PLANES_ZSTD);
}

TEST(the_other_modes_do_as_they_say)
{
    struct encode_state state = sampled(cost_of(10, 66), cost_of(9000, 80));
    state.policy.mode = ENCODE_DENSEST;
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_PLANES_ZSTD);
    state.policy.mode = ENCODE_NEVER;
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_RAW);
    assert_false(encode_state_next(&state));
}

TEST(samples_come_first_and_every_nth)
{
    struct encode_state state;
    unsigned samples = 0;
    encode_state_init(&state, &adaptive);
    for (unsigned i = 0; i < 35; i++) {
        bool is_sample = encode_state_next(&state);
        assert_int_equal(is_sample, i % 10 == 0);
        samples += is_sample;
    }
    assert_int_equal(samples, 4);
    encode_state_init(&state, &(struct encode_policy){.mode = ENCODE_ADAPTIVE});
    assert_true(encode_state_next(&state));
    assert_false(encode_state_next(&state));
}

/* Goal: whole chunks correct a sample that was too kind, and a later sample gives another chance.
 */
TEST(chunks_overrule_samples_until_the_next)
{
    const struct encode_cost kind = cost_of(2000, 66), none = cost_of(2000, 100);
    const struct encode_cost slow = cost_of(300, 66);
    struct encode_state state = sampled(kind, none);
    encode_state_chunk(&state, ENCODING_RAW, &none);
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_PLANES_ZSTD);
    encode_state_chunk(&state, ENCODING_PLANES_ZSTD, &slow);
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_RAW);
    encode_state_sample(&state, ENCODING_PLANES_ZSTD, &kind);
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_PLANES_ZSTD);
}

/* Goal: old chunks fade. Method: a long fast past, then chunks that come out raw. */
TEST(old_chunks_fade)
{
    struct encode_state state = sampled(cost_of(2000, 66), cost_of(2000, 100));
    struct encode_cost chunk = {LIMIT_CHUNK_BYTES, LIMIT_CHUNK_BYTES / 2, 1000000};
    for (unsigned i = 0; i < 100000; i++) {
        encode_state_chunk(&state, ENCODING_PLANES_ZSTD, &chunk);
    }
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_PLANES_ZSTD);
    chunk.stored_bytes = chunk.plain_bytes;
    unsigned more = 0;
    while (encode_state_choose(&state, &one_gb) != ENCODING_RAW) {
        encode_state_chunk(&state, ENCODING_PLANES_ZSTD, &chunk);
        assert_true(++more < 200);
    }
}

/* Goal: the promise itself. Method: random costs; whatever is chosen keeps up, saves enough, and no
 * other candidate that does so is denser. */
TEST(the_choice_keeps_its_promise)
{
    uint64_t seed = 99;
    unsigned chosen[3] = {0};
    for (unsigned round = 0; round < 20000; round++) {
        uint64_t speed[3], percent[3];
        for (unsigned i = 1; i <= 2; i++) {
            speed[i] = 1 + plain_random(&seed) % 3000;
            percent[i] = plain_random(&seed) % 101;
        }
        const struct encode_sink sink = {.bytes_per_s = plain_random(&seed) % 8000 * 1000000 + 1,
                                         .workers = 1 + (uint32_t)(plain_random(&seed) % 8)};
        struct encode_state state =
            sampled(cost_of(speed[ENCODING_PLANES_ZSTD], percent[ENCODING_PLANES_ZSTD]),
                    cost_of(speed[ENCODING_ZSTD], percent[ENCODING_ZSTD]));
        enum encoding best = ENCODING_RAW, choice = encode_state_choose(&state, &sink);
        chosen[choice]++;
        for (int e = ENCODING_ZSTD; e <= ENCODING_PLANES_ZSTD; e++) {
            struct encode_cost cost = cost_of(speed[e], percent[e]);
            double rate = (double)cost.plain_bytes / (double)cost.ns * 1e9 * sink.workers;
            if (rate / (double)sink.bytes_per_s > 1.0001 && percent[e] <= 96 &&
                (best == ENCODING_RAW || percent[e] < percent[best])) {
                best = (enum encoding)e;
            }
            if ((int)choice == e) {
                assert_true(rate / (double)sink.bytes_per_s > 0.9999);
                assert_true(percent[e] <= 97);
            }
        }
        if (best != ENCODING_RAW) {
            assert_int_not_equal(choice, ENCODING_RAW);
            assert_true(percent[choice] <= percent[best]);
        }
    }
    assert_true(chosen[0] > 100 && chosen[1] > 100 && chosen[2] > 100);
}

TEST(extreme_numbers_do_not_overflow)
{
    struct encode_state state = sampled(cost_of(2000, 66), cost_of(2000, 80));
    const struct encode_cost fast = {LIMIT_CHUNK_BYTES, 1, 0};
    const struct encode_cost endless = {LIMIT_CHUNK_BYTES, 1, UINT64_MAX / 4};
    const struct encode_sink sink = {.bytes_per_s = UINT64_MAX, .workers = UINT32_MAX};
    encode_state_chunk(&state, ENCODING_PLANES_ZSTD, &fast);
    assert_int_equal(encode_state_choose(&state, &sink), ENCODING_PLANES_ZSTD);
    encode_state_chunk(&state, ENCODING_PLANES_ZSTD, &endless);
    assert_int_equal(encode_state_choose(&state, &one_gb), ENCODING_ZSTD);
}

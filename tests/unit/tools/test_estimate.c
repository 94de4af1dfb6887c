/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan's numbers are those that one gets by hand, follow the guide's formula for the disk, and
 * nothing impossible is computed with. Method: trainings whose numbers are worked out beside them.
 */
#include "query/estimate.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "support/unit_test.h"

static struct estimate_input large(void) /* 70e9 parameters, 512 ranks, every 5 minutes */
{
    return (struct estimate_input){.params = 70e9,
                                   .bytes_per_param = 14,
                                   .stored_ratio = 1,
                                   .ranks = 512,
                                   .ranks_per_node = 8,
                                   .snapshots = 1,
                                   .keep = 3,
                                   .interval_s = 300,
                                   .forget_s = 3600,
                                   .wait_s = 6 * 3600,
                                   .reserve_bytes = 0x1p28,
                                   .free_share = 0.05,
                                   .copy_rate = 0x1p31,
                                   .price_per_tib = 20,
                                   .restart_s = 300,
                                   .overhead_max = 0.05};
}

static void assert_near(double value, double expected)
{
    if (fabs(value - expected) > 1e-6 * fabs(expected)) {
        print_error("%.12g and not %.12g\n", value, expected);
        fail();
    }
}

static struct estimate made(const struct estimate_input *input)
{
    struct estimate plan = {.interval_s = 0};
    assert_int_equal(estimate_make(input, &plan, NULL), 0);
    return plan;
}

static void test_numbers_by_hand(void **state)
{
    struct estimate_input input = large();
    struct estimate plan = made(&input);
    assert_near(plan.checkpoint_bytes, 980e9);
    assert_near(plan.rank_bytes, 1914062500);          /* 980e9 / 512 */
    assert_near(plan.arena_node_bytes, 15312500000.);  /* 8 of these */
    assert_near(plan.write_rate, 3266666666.67);       /* 980e9 / 300 */
    assert_near(plan.network_node_rate, 51041666.667); /* a 64th */
    assert_near(plan.unforgotten, 12);                 /* 1 h / 5 min */
    assert_near(plan.waiting, 72);                     /* 6 h / 5 min */
    /* 88 checkpoints and 256 MiB are 95 percent of it. */
    assert_near(plan.disk_bytes, 90779229932058.95);
    assert_near(plan.price, 20 * 82.5632287);
    assert_near(plan.input.blocked_s, 0.8913048); /* 1914062500 / 2^31 */
    assert_near(plan.at.mtbf_s, 50700 * 3600. / 512);
    assert_near(plan.failures_per_month, 7.3719921);
    /* Half an interval, and the whole one until the save is durable. */
    assert_near(plan.at.lost_s, 450);
    assert_near(plan.at.waste, 0.8913048 / 300.8913048 + 750 / 356484.375);
    assert_near(plan.lost_rank_hours_per_month, plan.at.waste * 512 * 730);
    assert_true(plan.is_durable_in_time);
    struct interval_advice advice;
    assert_int_equal(interval_advise(&plan.input, &advice, NULL), 0);
    assert_memory_equal(&advice, &plan.advice, sizeof advice); /* that of `cairn advise` */
}

/* The example of "How large a disk": 100 GiB every 30 minutes, 3 kept, are 1.76 TiB, or 800
 * GiB where the wait is an hour. */
static void test_the_guides_disk(void **state)
{
    struct estimate_input input = large();
    input.params = 100 * 0x1p30;
    input.bytes_per_param = 1;
    input.interval_s = 1800;
    input.reserve_bytes = 0;
    input.free_share = 0;
    assert_near(made(&input).disk_bytes, 1800 * 0x1p30);
    input.wait_s = 3600;
    assert_near(made(&input).disk_bytes, 800 * 0x1p30);
    input.stored_ratio = 0.5;
    assert_near(made(&input).disk_bytes, 400 * 0x1p30);
    input.forget_s = 60; /* [retention] interval = 1m: at most 1 that is not yet forgotten */
    assert_near(made(&input).disk_bytes, 350 * 0x1p30);
    assert_near(made(&input).network_rate, 100 * 0x1p30 / 1800); /* before encoding */
}

static void test_a_slow_store_is_told(void **state)
{
    struct estimate_input input = large();
    input.write_rate = 980e9 / 400;
    struct estimate plan = made(&input);
    assert_false(plan.is_durable_in_time);
    assert_near(plan.at.lost_s, 150 + 400);
    input.write_rate = 980e9 / 300;
    assert_true(made(&input).is_durable_in_time);
    input.interval_s = 0; /* the advised one: it is the better one of 300 s and the optimum */
    plan = made(&input);
    assert_true(plan.interval_s == plan.advice.durable_s && plan.is_durable_in_time);
    input.ranks = 1;
    input.ranks_per_node = 8;
    assert_near(made(&input).arena_node_bytes, 980e9); /* no node has more ranks than there are */
    input.ranks = 9;
    assert_near(made(&input).arena_node_bytes, ceil(980e9 / 9) * 8); /* the full one of two */
    assert_near(made(&input).network_node_rate, made(&input).network_rate / 9 * 8);
}

static void test_what_is_impossible_is_refused_by_name(void **state)
{
    static const struct {
        const char *name;
        size_t at;
        double value;
    } rows[] = {{"--params", offsetof(struct estimate_input, params), 0},
                {"--params", offsetof(struct estimate_input, params), -1},
                {"--params", offsetof(struct estimate_input, params), NAN},
                {"--params", offsetof(struct estimate_input, params), INFINITY},
                {"--params", offsetof(struct estimate_input, params), 1e300},
                {"--bytes-per-param", offsetof(struct estimate_input, bytes_per_param), -2},
                {"--stored-ratio", offsetof(struct estimate_input, stored_ratio), 1.5},
                {"--copy-rate", offsetof(struct estimate_input, copy_rate), 0},
                {"--price-per-tib", offsetof(struct estimate_input, price_per_tib), -1},
                {"--restart", offsetof(struct estimate_input, restart_s), NAN},
                {"--mtbf -1", offsetof(struct estimate_input, mtbf_s), -3600},
                {"--overhead-max 100", offsetof(struct estimate_input, overhead_max), 1},
                {"1 EiB", offsetof(struct estimate_input, wait_s), 1e15},
                {"[gc] pressure", offsetof(struct estimate_input, free_share), 1}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct estimate_input input = large();
        struct estimate plan = {.interval_s = 77};
        struct diag why = DIAG_INIT;
        memcpy((char *)&input + rows[i].at, &rows[i].value, sizeof rows[i].value);
        assert_int_equal(estimate_make(&input, &plan, &why), CAIRN_E_INVALID);
        assert_non_null(strstr(why.text, rows[i].name));
        assert_true(plan.interval_s == 77);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_by_hand),
        cmocka_unit_test(test_the_guides_disk),
        cmocka_unit_test(test_a_slow_store_is_told),
        cmocka_unit_test(test_what_is_impossible_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

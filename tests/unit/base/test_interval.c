/* SPDX-License-Identifier: Apache-2.0
 *
 * Nobody who follows the advice wastes more than 5 % more time than with the best fixed interval.
 * Method: training is simulated through random histories of failures; waste is what the training
 * took beyond its work. The candidates are 41 intervals around the advice, all on the same
 * histories. Prints its seed.
 */
#include <math.h>
#include <stdio.h>

#include "base/check.h"
#include "base/interval.h"
#include "support/unit_test.h"

enum { HISTORIES = 10000 };

struct job {
    double work_s, blocked_s, persist_s, restart_s;
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Exponential; the same seed gives the same failures to every candidate. */
static double next_failure_s(uint64_t *state, double mtbf_s)
{
    double uniform = (double)(next_random(state) >> 11) * 0x1p-53;
    return -mtbf_s * log(1 - uniform);
}

/* Of an uninterrupted stretch of so many seconds that began with `done` work: the work that is
 * durable at its end. Saves begin after each interval of training, block, and are durable
 * persist_s after they began. */
static double durable_s(const struct job *job, double interval_s, double done, double stretch_s)
{
    double cycle_s = interval_s + job->blocked_s;
    double saves = floor((stretch_s - interval_s - job->persist_s) / cycle_s) + 1;
    return saves > 0 ? done + saves * interval_s : done;
}

/* Seconds until the work is done. */
static double run_history(const struct job *job, double interval_s, double mtbf_s, uint64_t seed)
{
    double clock_s = 0, done = 0;
    for (;;) {
        double left = job->work_s - done;
        double needs_s = left + floor(left / interval_s) * job->blocked_s;
        double failure_s = next_failure_s(&seed, mtbf_s);
        if (failure_s >= needs_s) {
            return clock_s + needs_s;
        }
        done = durable_s(job, interval_s, done, failure_s);
        clock_s += failure_s + job->restart_s;
    }
}

static double waste_s(const struct job *job, double interval_s, double mtbf_s, uint64_t seed)
{
    double total = 0;
    for (int i = 0; i < HISTORIES; i++) {
        total += run_history(job, interval_s, mtbf_s, seed + (uint64_t)i * 7919) - job->work_s;
    }
    return total / HISTORIES;
}

static const struct row {
    struct job job;
    double mtbf_s;
} rows[] = {
    {{400000, 0.5, 8, 60}, 10000},  /* a large job on a fast disk */
    {{400000, 20, 25, 300}, 20000}, /* a slow copy */
    {{100000, 2, 300, 30}, 3000},   /* persisting takes longer than the optimum */
    {{30000, 30, 60, 120}, 600},    /* nearly hopeless */
};

TEST(test_advice_wastes_at_most_a_twentieth_more_than_the_best_interval)
{
    const uint64_t seed = 20240607;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        const struct job *job = &rows[r].job;
        struct interval_input input = {.blocked_s = job->blocked_s,
                                       .persist_s = job->persist_s,
                                       .restart_s = job->restart_s,
                                       .failures = 1000,
                                       .observed_s = 1000 * rows[r].mtbf_s,
                                       .overhead_max = 0.5};
        struct interval_advice advice;
        assert_int_equal(interval_advise(&input, &advice, NULL), 0);
        double mine = waste_s(job, advice.durable_s, rows[r].mtbf_s, seed), best = mine;
        for (int i = -20; i <= 20; i++) {
            double interval_s = advice.durable_s * pow(1.1, i);
            double least_s = job->persist_s - job->blocked_s; /* no room for the next before */
            double waste =
                interval_s < least_s ? mine : waste_s(job, interval_s, rows[r].mtbf_s, seed);
            best = waste < best ? waste : best;
        }
        print_message("mtbf %g: every %.1f s wastes %.0f s, the best %.0f s\n", rows[r].mtbf_s,
                      advice.durable_s, mine, best);
        assert_true(mine <= best * 1.05);
        /* The test can fail: three times the advice is worse than that. */
        assert_true(waste_s(job, advice.durable_s * 3, rows[r].mtbf_s, seed) > best * 1.05);
    }
}

/* Goal: a prior that is ten times wrong costs little, because failures outweigh it. Method: in
 * each history the interval follows the failures of that history. */
static double run_learning(const struct job *job, double mtbf_s, double prior_s, uint64_t seed)
{
    double clock_s = 0, done = 0;
    struct interval_input input = {.blocked_s = job->blocked_s,
                                   .persist_s = job->persist_s,
                                   .restart_s = job->restart_s,
                                   .prior_mtbf_s = prior_s,
                                   .overhead_max = 0.5};
    for (;;) {
        struct interval_advice advice;
        assert_int_equal(interval_advise(&input, &advice, NULL), 0);
        double left = job->work_s - done;
        double needs_s = left + floor(left / advice.durable_s) * job->blocked_s;
        double failure_s = next_failure_s(&seed, mtbf_s);
        if (failure_s >= needs_s) {
            return clock_s + needs_s;
        }
        done = durable_s(job, advice.durable_s, done, failure_s);
        clock_s += failure_s + job->restart_s;
        input.failures++;
        input.observed_s += failure_s;
    }
}

TEST(test_a_wrong_prior_is_soon_outweighed)
{
    const struct job *job = &rows[0].job;
    double mtbf_s = rows[0].mtbf_s;
    struct interval_input known = {.blocked_s = job->blocked_s,
                                   .persist_s = job->persist_s,
                                   .failures = 1000,
                                   .observed_s = 1000 * mtbf_s};
    struct interval_advice advice;
    assert_int_equal(interval_advise(&known, &advice, NULL), 0);
    double best = waste_s(job, advice.durable_s, mtbf_s, 5);
    for (double factor = 0.1; factor < 20; factor *= 100) {
        double total = 0;
        for (int i = 0; i < HISTORIES; i++) {
            total += run_learning(job, mtbf_s, mtbf_s * factor, 5 + (uint64_t)i * 7919);
        }
        double waste = total / HISTORIES - job->work_s;
        print_message("prior %g times the truth: %.0f s wasted, with the truth %.0f s\n", factor,
                      waste, best);
        assert_true(waste <= best * 1.05);
    }
}

TEST(test_bounds_are_told_apart)
{
    struct interval_input input = {.blocked_s = 1, .persist_s = 2, .prior_mtbf_s = 7200};
    struct interval_advice advice;
    char text[INTERVAL_TEXT_BYTES];
    assert_int_equal(interval_advise(&input, &advice, NULL), 0);
    assert_true(advice.bound == INTERVAL_OPTIMUM && advice.mtbf_s == 7200);
    assert_true(fabs(advice.durable_s - 119.33) < 0.5 && advice.durable_s == advice.staged_s);
    assert_true(fabs(advice.lost_s - advice.durable_s / 2 - 2) < 1e-9);
    input.overhead_max = 0.002;
    assert_int_equal(interval_advise(&input, &advice, NULL), 0);
    assert_true(advice.bound == INTERVAL_OVERHEAD && fabs(advice.overhead - 0.002) < 1e-9);
    input.persist_s = 3000;
    assert_int_equal(interval_advise(&input, &advice, NULL), 0);
    assert_true(advice.bound == INTERVAL_PERSIST && advice.durable_s == 2999 &&
                advice.staged_s == 499);
    interval_explain(&input, &advice, text);
    print_message("%s", text);
    assert_non_null(strstr(text, "do not become durable faster"));
    input.in_flight = 4;
    assert_int_equal(interval_advise(&input, &advice, NULL), 0);
    assert_true(advice.durable_s == 749);
    size_t lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
        lines++;
    }
    assert_true(lines == 3);
}

/* Goal: the text is what a person would say, whatever the numbers are. Method: the advice for a
 * grid of inputs from the smallest to the largest has no exponent, and known ones are compared. */
TEST(test_the_text_is_a_persons)
{
    char text[INTERVAL_TEXT_BYTES];
    struct interval_advice advice;
    for (double scale = 1e-9; scale < 1e15; scale *= 7) {
        for (double blocked_s = 1e-9; blocked_s < 1e12; blocked_s *= 13) {
            struct interval_input input = {.blocked_s = blocked_s,
                                           .persist_s = scale,
                                           .restart_s = 300,
                                           .observed_s = scale,
                                           .failures = (uint64_t)(blocked_s / 1e3)};
            assert_int_equal(interval_advise(&input, &advice, NULL), 0);
            interval_explain(&input, &advice, text);
            assert_null(strstr(text, "e+"));
            assert_null(strstr(text, "e-"));
            assert_true(text[strlen(text) - 1] == '\n');
        }
    }
    struct interval_input one = {.blocked_s = 0.0034, .persist_s = 1.5, .restart_s = 300};
    assert_int_equal(interval_advise(&one, &advice, NULL), 0);
    interval_explain(&one, &advice, text);
    print_message("%s", text);
    assert_non_null(strstr(text, "one in 5.8 years is expected (no training was seen yet)\n"));
    assert_non_null(strstr(text, "stands still for 3.4 ms, durable after 1.5 s"));
    assert_non_null(strstr(text, "less than 0.01 % of the time for saves"));
    struct interval_input bad = {.blocked_s = 100,
                                 .persist_s = 4000,
                                 .restart_s = 300,
                                 .failures = 9,
                                 .observed_s = 900,
                                 .planned = 2};
    assert_int_equal(interval_advise(&bad, &advice, NULL), 0);
    interval_explain(&bad, &advice, text);
    print_message("%s", text);
    assert_non_null(strstr(text, "9 seen in 15 min of training, 2 planned restarts; before"));
    assert_non_null(strstr(text, "hardly any time is left for training"));
}

TEST(test_failures_count_against_the_prior)
{
    struct interval_input input = {.blocked_s = 1, .ranks = 16384};
    struct interval_advice advice;
    assert_int_equal(interval_advise(&input, &advice, NULL), 0);
    assert_true(fabs(advice.mtbf_s - 50700.0 * 3600 / 16384) < 1);
    input.prior_mtbf_s = 1000, input.observed_s = 500; /* none yet: it is rather longer */
    assert_int_equal(interval_advise(&input, &advice, NULL), 0);
    assert_true(fabs(advice.mtbf_s - 1500) < 1e-6);
    input.failures = 1, input.observed_s = 250000; /* worth as much as the prior: the mean order */
    assert_int_equal(interval_advise(&input, &advice, NULL), 0);
    assert_true(fabs(advice.mtbf_s - sqrt(1000.0 * 250000)) < 1e-3);
    /* One accelerator: its prior is years, and ten failures in an afternoon count for more. */
    input = (struct interval_input){.blocked_s = 1, .failures = 10, .observed_s = 20000};
    assert_int_equal(interval_advise(&input, &advice, NULL), 0);
    assert_true(advice.mtbf_s > 2000 && advice.mtbf_s < 8000);
}

TEST(test_bad_numbers_are_named)
{
    const struct {
        struct interval_input input;
        const char *name;
    } bad[] = {{{.blocked_s = 0}, "blocked_s"},
               {{.blocked_s = -1}, "blocked_s"},
               {{.blocked_s = (double)NAN}, "blocked_s"},
               {{.blocked_s = 1, .persist_s = (double)INFINITY}, "persist_s"},
               {{.blocked_s = 1, .observed_s = -1}, "observed_s"},
               {{.blocked_s = 1, .overhead_max = 1}, "overhead_max"}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct diag diag = DIAG_INIT;
        struct interval_advice advice;
        assert_int_equal(interval_advise(&bad[i].input, &advice, &diag), CAIRN_E_INVALID);
        assert_non_null(strstr(diag.text, bad[i].name));
    }
    /* The smallest and the largest that pass give numbers. */
    struct interval_input edge = {.blocked_s = 1e-9, .prior_mtbf_s = 1e15};
    struct interval_advice advice;
    assert_int_equal(interval_advise(&edge, &advice, NULL), 0);
    assert_true(fabs(advice.optimum_s / sqrt(2e6) - 1) < 1e-6);
    edge = (struct interval_input){.blocked_s = 1e15, .prior_mtbf_s = 1e-9};
    assert_int_equal(interval_advise(&edge, &advice, NULL), 0);
    assert_true(advice.waste == 1 && isfinite(advice.durable_s));
}

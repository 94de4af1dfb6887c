/* SPDX-License-Identifier: Apache-2.0
 *
 * The optimum balances what saves cost (blocked / interval) against what failures undo (half an
 * interval each). A save becomes durable only some time later, which makes each failure cost as
 * much more, whatever the interval is: this does not move the optimum, but bounds it, because a
 * save must be durable before there is room for the next one.
 */
#include "base/interval.h"

#include "base/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>

static double larger(double a, double b) { return a > b ? a : b; }

static bool is_number(double value) { return value >= 0 && value <= 1e15; }

/* Checks that every input is a number, and none is negative. */
static int check_input(const struct interval_input *input, struct diag *diag)
{
    const struct {
        const char *name;
        double value;
    } fields[] = {{"blocked_s", input->blocked_s},       {"persist_s", input->persist_s},
                  {"restart_s", input->restart_s},       {"observed_s", input->observed_s},
                  {"prior_mtbf_s", input->prior_mtbf_s}, {"prior_weight", input->prior_weight},
                  {"overhead_max", input->overhead_max}};
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (!is_number(fields[i].value)) {
            return diag_set(
                diag, CAIRN_E_INVALID,
                "the interval cannot be computed, because %s is %g; it must be 0 or more",
                fields[i].name, fields[i].value);
        }
    }
    if (input->blocked_s <= 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the interval cannot be computed, because blocked_s is 0; measure how long "
                        "a save blocks training first");
    }
    if (input->overhead_max >= 1) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the interval cannot be computed, because overhead_max is %g; it must be a "
                        "share of the time below 1",
                        input->overhead_max);
    }
    return 0;
}

static double prior_mtbf_s(const struct interval_input *input)
{
    uint32_t ranks = input->ranks != 0 ? input->ranks : 1;
    return input->prior_mtbf_s > 0 ? input->prior_mtbf_s : INTERVAL_PRIOR_RANK_HOURS * 3600 / ranks;
}

/* Averages orders of magnitude, not rates. The prior of a small job is years; as a rate it would
 * need thousands of failures to be outweighed. */
static double mean_between_failures_s(const struct interval_input *input)
{
    double weight = input->prior_weight > 0 ? input->prior_weight : 1, prior = prior_mtbf_s(input);
    double count = (double)input->failures;
    if (count <= 0) { /* every hour without a failure suggests that there are fewer */
        return prior + input->observed_s / weight;
    }
    double seen = larger(input->observed_s, 1e-3) / count;
    return exp((weight * log(prior) + count * log(seen)) / (weight + count));
}

/* Computes the optimum of J. T. Daly, "A higher order estimate of the optimum checkpoint interval
 * for restart dumps". */
static double optimum_s(double cost_s, double mtbf_s)
{
    double ratio = cost_s / (2 * mtbf_s);
    if (ratio >= 1) {
        return mtbf_s;
    }
    return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_s;
}

void interval_cost(const struct interval_input *input, struct interval_advice *io)
{
    double cost_s = input->blocked_s;
    io->overhead = cost_s / (io->durable_s + cost_s);
    io->lost_s = io->durable_s / 2 + larger(input->persist_s, cost_s);
    io->waste = io->overhead + (io->lost_s + input->restart_s) / io->mtbf_s;
    io->waste = io->waste < 1 ? io->waste : 1;
}

int interval_advise(const struct interval_input *input, struct interval_advice *ret,
                    struct diag *diag)
{
    int rc = check_input(input, diag);
    if (rc != 0) {
        return rc;
    }
    double cost_s = input->blocked_s, persist_s = larger(input->persist_s, cost_s);
    double cap = input->overhead_max > 0 ? input->overhead_max : 0.05;
    uint32_t in_flight = input->in_flight != 0 ? input->in_flight : 1;
    struct interval_advice advice = {.mtbf_s = mean_between_failures_s(input)};
    advice.optimum_s = optimum_s(cost_s, advice.mtbf_s);
    double capped_s = cost_s * (1 - cap) / cap, room_s = persist_s / in_flight - cost_s;
    advice.staged_s = larger(advice.optimum_s, capped_s);
    advice.durable_s = larger(advice.staged_s, room_s);
    advice.bound = room_s > advice.staged_s      ? INTERVAL_PERSIST
                   : capped_s > advice.optimum_s ? INTERVAL_OVERHEAD
                                                 : INTERVAL_OPTIMUM;
    interval_cost(input, &advice);
    *ret = advice;
    return 0;
}

/* --- words ------------------------------------------------------------------------ */

struct words {
    char text[24];
};

/* The largest unit in which the time is at least about two, with two digits or all that stand
 * before the point. */
struct interval_span interval_span(double seconds)
{
    static const struct {
        double from, unit;
        const char *name;
    } rows[] = {{63072000, 31557600, "years"},
                {172800, 86400, "days"},
                {5400, 3600, "h"},
                {120, 60, "min"},
                {1, 1, "s"},
                {0, 1e-3, "ms"}};
    struct interval_span span = {"0 s"};
    size_t i = 0;
    if (seconds <= 0) {
        return span;
    }
    while (seconds < rows[i].from) {
        i++;
    }
    double value = seconds / rows[i].unit;
    bool whole = value >= 9.95 || fabs(value - round(value)) < 0.05;
    if (seconds < 0.5e-3) {
        snprintf(span.text, sizeof span.text, "less than 1 ms");
    } else {
        snprintf(span.text, sizeof span.text, "%.*f %s", whole ? 0 : 1, value, rows[i].name);
    }
    return span;
}

/* Writes a share of the time, from 0 to 1, as "0.17 %", "2.4 %" or "38 %". */
static struct words percent_of(double share)
{
    struct words words;
    double value = share * 100;
    if (value > 0 && value < 0.01) {
        snprintf(words.text, sizeof words.text, "less than 0.01 %%");
    } else {
        snprintf(words.text, sizeof words.text, "%.*f %%",
                 value < 0.995  ? 2
                 : value < 9.95 ? 1
                                : 0,
                 value);
    }
    return words;
}

/* Returns what the advice adds if something else than the optimum decides. */
static const char *reason(const struct interval_advice *advice)
{
    switch (advice->bound) {
    case INTERVAL_OVERHEAD:
        return "; less often than that, so that saves stay below their share of the time";
    case INTERVAL_PERSIST:
        return "; less often than that, since saves do not become durable faster";
    case INTERVAL_OPTIMUM:
        return "";
    }
    return "";
}

/* Writes the first line: how often to expect a failure, and from what that follows. */
static void explain_failures(const struct interval_input *input,
                             const struct interval_advice *advice, size_t size, char *ret)
{
    if (input->failures == 0 && input->observed_s == 0) {
        snprintf(ret, size, "failures: one in %s is expected (no training was seen yet)",
                 interval_span(advice->mtbf_s).text);
        return;
    }
    char seen[32] = "none seen", of[40] = "", planned[40] = "";
    if (input->failures > 0) {
        snprintf(seen, sizeof seen, "%llu seen", (unsigned long long)input->failures);
    }
    if (input->observed_s > 0) {
        snprintf(of, sizeof of, " in %s of training", interval_span(input->observed_s).text);
    }
    if (input->planned > 0) {
        snprintf(planned, sizeof planned, ", %llu planned restart%s",
                 (unsigned long long)input->planned, input->planned == 1 ? "" : "s");
    }
    snprintf(ret, size, "failures: one in %s is expected (%s%s%s; before that, one in %s)",
             interval_span(advice->mtbf_s).text, seen, of, planned,
             interval_span(prior_mtbf_s(input)).text);
}

void interval_explain_cost(const struct interval_advice *advice, char ret[INTERVAL_COST_BYTES])
{
    char total[64] = "hardly any time is left for training";
    if (advice->waste < 0.995) {
        snprintf(total, sizeof total, "%s of the time for both, with restarts",
                 percent_of(advice->waste).text);
    }
    snprintf(ret, INTERVAL_COST_BYTES,
             "%s of the time for saves, a failure costs %s of training; %s",
             percent_of(advice->overhead).text, interval_span(advice->lost_s).text, total);
}

void interval_explain(const struct interval_input *input, const struct interval_advice *advice,
                      char ret[INTERVAL_TEXT_BYTES])
{
    char failures[232], cost[INTERVAL_COST_BYTES];
    explain_failures(input, advice, sizeof failures, failures);
    interval_explain_cost(advice, cost);
    snprintf(ret, INTERVAL_TEXT_BYTES,
             "%s\n"
             "saves: training stands still for %s, durable after %s: best every %s%s\n"
             "so save every %s: %s\n",
             failures, interval_span(input->blocked_s).text,
             interval_span(larger(input->persist_s, input->blocked_s)).text,
             interval_span(advice->optimum_s).text, reason(advice),
             interval_span(advice->durable_s).text, cost);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn advise: how often to save a run, from what its record has counted: how long saves took, how
 * long was trained, how often a restore was needed.
 */
#include "cli.h"

#include "base/interval.h"

#include <stdlib.h>
#include <string.h>

enum { ADVISE_SCRATCH_MAX = 1 << 30 };

/* A pause between two saves that is so many times the usual one is no training. */
static const double PAUSE_FACTOR = 10;

struct advise_options {
    double blocked_s, persist_s, restart_s, overhead_percent, mtbf_h;
    uint64_t since_ms, ranks;
};

static const struct option options[] = {
    {"since", "DURATION", "use only the last 30d, 12h ...; without it everything is used",
     OPTION_AT_DURATION(struct advise_options, since_ms)},
    {"blocked", "SECONDS", "time that a save blocks training, instead of the measured one",
     OPTION_AT_NUMBER(struct advise_options, blocked_s)},
    {"persist", "SECONDS", "time until a save is durable, instead of the measured one",
     OPTION_AT_NUMBER(struct advise_options, persist_s)},
    {"restart", "SECONDS", "time from a failure until training continues", .preset = "300",
     OPTION_AT_NUMBER(struct advise_options, restart_s)},
    {"mtbf", "HOURS",
     "expected time between failures, used before any was seen; without it the number of ranks "
     "decides",
     OPTION_AT_NUMBER(struct advise_options, mtbf_h)},
    {"ranks", "N", "number of ranks, instead of that of the newest checkpoint",
     OPTION_AT_COUNT(struct advise_options, ranks), .max = LIMIT_WORLD_SIZE},
    {"overhead-max", "PERCENT", "share of the time that saves may take", .preset = "5",
     OPTION_AT_NUMBER(struct advise_options, overhead_percent)},
    {0}};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN}, {0}};

static int compare_gaps(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Seconds of training between the first and the last save: gaps between neighbours, where a pause
 * counts as a usual gap. The list is newest first. */
static double trained_s(const struct cli_list *list, int64_t since_ns, struct scratch *scratch)
{
    double *gaps = scratch_array(scratch, list->count + 1, sizeof(*gaps));
    size_t count = 0;
    int64_t later_ns = 0;
    for (size_t i = 0; gaps && i < list->count; i++) {
        const struct ckpt_info *info = &list->items[i];
        if (info->state != CKPT_COMMITTED || info->wall_ns < since_ns) {
            continue;
        }
        if (later_ns > info->wall_ns) { /* not where the clock went back */
            gaps[count++] = (double)(later_ns - info->wall_ns) / 1e9;
        }
        later_ns = info->wall_ns;
    }
    if (count == 0) {
        return 0;
    }
    qsort(gaps, count, sizeof(*gaps), compare_gaps);
    double usual = gaps[count / 2], sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += gaps[i] > PAUSE_FACTOR * usual ? usual : gaps[i];
    }
    return sum;
}

/* The run's row of USAGE. NOT_FOUND when there is none. */
static int fetch_row(struct cli *cli, int64_t since_ns, struct msg_usage_row *ret,
                     struct diag *diag)
{
    struct run_name after = {.project = ""};
    bool found = false, more = true;
    int status = 0;
    while (status == 0 && more && !found) {
        struct source_request request = {
            .call.request = {.type = MSG_USAGE, .u.usage = {cli->run.project, after, since_ns}}};
        status = source_call(cli->connection, &request, diag);
        const struct msg_usage_reply *reply = &request.call.reply.u.usage_reply;
        for (uint32_t i = 0; status == 0 && i < reply->count; i++) {
            after = reply->rows[i].run;
            if (strcmp(after.run, cli->run.run) == 0) {
                found = true;
                *ret = reply->rows[i];
                ret->text = "";
            }
        }
        more = status == 0 && reply->more && reply->count > 0;
        engine_call_fini(&request.call);
    }
    if (status == 0 && !found) {
        return diag_set(diag, CAIRN_E_NOT_FOUND, "there is no run %s/%s; `cairn ls` lists the runs",
                        cli->run.project, cli->run.run);
    }
    if (status == 0 && ret->code != 0) {
        return diag_set(diag, ret->code, "the record of %s/%s cannot be read; run `cairn doctor`",
                        cli->run.project, cli->run.run);
    }
    return status;
}

/* What was measured, unless the command line knows better. */
static int fill(const struct advise_options *own, const struct msg_usage_row *row,
                struct interval_input *io, struct diag *diag)
{
    if (row->timed_saves > 0) {
        io->blocked_s = (double)row->blocked_ms / 1e3 / (double)row->timed_saves;
        io->persist_s = (double)row->persist_ms / 1e3 / (double)row->timed_saves;
    }
    io->blocked_s = own->blocked_s > 0 ? own->blocked_s : io->blocked_s;
    io->persist_s = own->persist_s > 0 ? own->persist_s : io->persist_s;
    io->restart_s = own->restart_s;
    io->overhead_max = own->overhead_percent / 100;
    io->prior_mtbf_s = own->mtbf_h * 3600;
    uint64_t restarts = row->restores + row->restores_failed;
    io->planned = min_u64(row->planned, restarts);
    io->failures = restarts - io->planned;
    if (io->blocked_s == 0 && io->persist_s > 0) {
        io->blocked_s = 1e-3; /* measured in ms: it was less than one */
    }
    if (io->persist_s == 0) {
        return diag_set(diag, CAIRN_E_NOT_FOUND,
                        "no save of this run has reported how long it took (each save reports the "
                        "one before it); give --blocked and --persist");
    }
    return 0;
}

static int print(const struct cli *cli, const struct interval_input *input,
                 const struct interval_advice *advice, const struct msg_usage_row *row)
{
    static const char *const bounds[] = {"optimum", "overhead", "persist"};
    if (!cli->json) {
        char text[INTERVAL_TEXT_BYTES];
        interval_explain(input, advice, text);
        printf("%s", text);
        return out_flush();
    }
    struct json json;
    json_begin(&json);
    json_f64(&json, "interval_s", advice->durable_s);
    json_f64(&json, "staged_interval_s", advice->staged_s);
    json_f64(&json, "optimum_s", advice->optimum_s);
    json_str(&json, "bound", bounds[advice->bound]);
    json_f64(&json, "mtbf_s", advice->mtbf_s);
    json_f64(&json, "overhead", advice->overhead);
    json_f64(&json, "lost_s", advice->lost_s);
    json_f64(&json, "waste", advice->waste);
    json_f64(&json, "blocked_s", input->blocked_s);
    json_f64(&json, "persist_s", input->persist_s);
    json_f64(&json, "observed_s", input->observed_s);
    json_u64(&json, "failures", input->failures);
    json_u64(&json, "planned", input->planned);
    json_u64(&json, "timed_saves", row->timed_saves);
    json_u64(&json, "ranks", input->ranks);
    return json_end(&json);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct advise_options *own = values;
    struct scratch scratch;
    struct cli_list list = {.limit = 0};
    struct msg_usage_row row = {.text = ""};
    struct interval_input input = {.blocked_s = 0};
    struct interval_advice advice;
    int status = cli_connect(cli, true, diag);
    if (status != 0) {
        return status;
    }
    int64_t since_ns = source_since_ns(cli->connection, own->since_ms);
    scratch_init(&scratch, ADVISE_SCRATCH_MAX);
    status = fetch_row(cli, since_ns, &row, diag);
    if (status == 0) {
        status = cli_list(cli, &scratch, &list, diag);
    }
    if (status == 0) {
        status = fill(own, &row, &input, diag);
    }
    if (status != 0) {
        goto out;
    }
    input.observed_s = trained_s(&list, since_ns, &scratch);
    for (size_t i = list.count; i-- > 0;) { /* the newest last */
        input.ranks =
            list.items[i].state == CKPT_COMMITTED ? list.items[i].world_size : input.ranks;
    }
    input.ranks = own->ranks != 0 ? (uint32_t)own->ranks : input.ranks;
    status = interval_advise(&input, &advice, diag);
    if (status == 0) {
        status = print(cli, &input, &advice, &row);
    }
out:
    scratch_fini(&scratch);
    return status;
}

const struct command command_advise = {
    .name = "advise",
    .group = GROUP_LOOK,
    .summary = "how often to save a run, computed from measurements",
    .details =
        "The command prints three lines: the failures to expect, the cost of a save, and "
        "the interval that follows from both. It uses Young's rule in Daly's form, within a "
        "cap on the time that saves may take, and never advises saving faster than saves "
        "become durable.\n\nThese values are measured: the time that a save blocked "
        "training and the time until it was durable (rank 0 reports them with the next "
        "save), the restores (each counts as a failure, unless the attempt before was closed "
        "in order and the next one has saved), and the time between the first and the last "
        "listed save, without long pauses. Where no failure was seen, the number "
        "of ranks gives the expectation: one stop in 50,700 hours of an accelerator.",
    .example = "cairn advise vision/resnet --restart 120",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct advise_options),
    .run = run};

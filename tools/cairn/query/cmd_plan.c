/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn plan: what a training will need, computed from its size. It asks no server and no store.
 */
#include "cli.h"

#include "base/limits.h"
#include "daemon/config.h"
#include "estimate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The timer, the line for cron and the chart that deploy/ has run `cairn forget` once an hour. */
enum { FORGET_MS = 3600000 };

struct plan_options {
    double params, bytes_per_param, stored_ratio, price_per_tib;
    double restart_s, mtbf_h, overhead_percent;
    uint64_t ranks, ranks_per_node, snapshots, keep, interval_ms, wait_ms, copy_rate, write_rate;
    const char *state, *config;
};

/* What a checkpoint holds of one parameter. Gradients are not saved. */
static const struct state {
    const char *name, *holds;
    double weights, optimizer;
} states[] = {{"mixed", "bf16 weights, fp32 master weights, two fp32 moments", 2, 12},
              {"fp32", "fp32 weights, two fp32 moments", 4, 8},
              {"bf16", "bf16 weights, two bf16 moments", 2, 4},
              {"weights", "bf16 weights alone", 2, 0},
              {0}};

static const struct option options[] = {
    {"params", "N", "number of parameters, for instance 70e9",
     OPTION_AT_NUMBER(struct plan_options, params), .needed = true},
    {"ranks", "N", "number of ranks, one for each accelerator", .preset = "1", .min = 1,
     .max = LIMIT_WORLD_SIZE, OPTION_AT_COUNT(struct plan_options, ranks)},
    {"ranks-per-node", "N", "ranks on one host", .preset = "8", .min = 1, .max = LIMIT_WORLD_SIZE,
     OPTION_AT_COUNT(struct plan_options, ranks_per_node)},
    {"interval", "DURATION", "time between two saves; without it the one that the command advises",
     OPTION_AT_DURATION(struct plan_options, interval_ms), .min = 1000},
    {"state", "WORD",
     "what is saved of a parameter: bf16 weights, fp32 master weights and two moments (mixed: 14 "
     "bytes), everything in fp32 (12) or in bf16 (6), or bf16 weights alone (2)",
     .preset = "mixed", .choices = "mixed fp32 bf16 weights",
     OPTION_AT_TEXT(struct plan_options, state)},
    {"bytes-per-param", "X", "bytes that are saved of a parameter, instead of --state",
     OPTION_AT_NUMBER(struct plan_options, bytes_per_param)},
    {"stored-ratio", "X", "stored bytes of one saved byte, as `cairn stats` shows them",
     .preset = "1", OPTION_AT_NUMBER(struct plan_options, stored_ratio)},
    {"keep", "N", "checkpoints that the policy keeps", .preset = "3", .min = 1,
     OPTION_AT_COUNT(struct plan_options, keep)},
    {"wait", "DURATION",
     "time until a forgotten checkpoint is reclaimed, instead of [gc] keep-cycles times every",
     OPTION_AT_DURATION(struct plan_options, wait_ms), .min = 1},
    {"config", "FILE", "configuration of the daemon, instead of its defaults",
     OPTION_AT_TEXT(struct plan_options, config), .completes = COMPLETES_FILES},
    {"snapshots", "N", "saves in flight for which the arena has room", .preset = "1", .min = 1,
     .max = 64, OPTION_AT_COUNT(struct plan_options, snapshots)},
    {"copy-rate", "SIZE", "bytes per second that a rank copies into its arena", .preset = "2GiB",
     OPTION_AT_SIZE(struct plan_options, copy_rate), .min = 1 << 20},
    {"write-rate", "SIZE", "bytes per second that the store writes; without it as many as it takes",
     OPTION_AT_SIZE(struct plan_options, write_rate), .min = 1 << 20},
    {"price-per-tib", "PRICE", "price of a TiB of the store for a month",
     OPTION_AT_NUMBER(struct plan_options, price_per_tib)},
    {"restart", "SECONDS", "time from a failure until training continues", .preset = "300",
     OPTION_AT_NUMBER(struct plan_options, restart_s)},
    {"mtbf", "HOURS", "expected time between failures; without it the number of ranks decides",
     OPTION_AT_NUMBER(struct plan_options, mtbf_h)},
    {"overhead-max", "PERCENT", "share of the time that saves may take", .preset = "5",
     OPTION_AT_NUMBER(struct plan_options, overhead_percent)},
    {0}};

/* Reads what the plan needs of the daemon's configuration. */
static int read_config(const struct plan_options *own, struct config *config, struct diag *diag)
{
    config_defaults(config);
    int status = own->config ? config_read(config, own->config, diag) : 0;
    if (status == 0 && config->gc_every_ms == 0 && own->wait_ms == 0) {
        status =
            diag_set(diag, CAIRN_E_INVALID,
                     "%s has no schedule of garbage collection ([gc] every = 0s); give --wait, "
                     "the time until a forgotten checkpoint is reclaimed",
                     own->config);
    }
    return status;
}

static struct estimate_input input_of(const struct plan_options *own, const struct state *state,
                                      const struct config *config)
{
    double cycles_ms = (double)config->gc_every_ms * (double)config->gc_keep_cycles;
    uint64_t forget_ms = config->retention_ms != 0 ? config->retention_ms : FORGET_MS;
    return (struct estimate_input){.params = own->params,
                                   .bytes_per_param = state->weights + state->optimizer,
                                   .stored_ratio = own->stored_ratio,
                                   .ranks = own->ranks,
                                   .ranks_per_node = own->ranks_per_node,
                                   .snapshots = own->snapshots,
                                   .keep = own->keep,
                                   .interval_s = (double)own->interval_ms / 1e3,
                                   .forget_s = (double)forget_ms / 1e3,
                                   .wait_s =
                                       (own->wait_ms != 0 ? (double)own->wait_ms : cycles_ms) / 1e3,
                                   .reserve_bytes = (double)config->store_reserve,
                                   .free_share = (double)config->gc_pressure / 100,
                                   .copy_rate = (double)own->copy_rate,
                                   .write_rate = (double)own->write_rate,
                                   .price_per_tib = own->price_per_tib,
                                   .restart_s = own->restart_s,
                                   .mtbf_s = own->mtbf_h * 3600,
                                   .overhead_max = own->overhead_percent / 100};
}

/* --- showing ----------------------------------------------------------------------- */

struct answer {
    const struct state *state;
    struct config config;
    struct estimate_input input;
    struct estimate plan;
    uint64_t memory_bytes; /* of the server */
};

static void row(struct table *table, const char *what, double bytes, const char *unit,
                const char *why)
{
    char amount[64];
    snprintf(amount, sizeof(amount), "%s%s", bytes_text((uint64_t)bytes).at, unit);
    table_row(table, (const char *[]){what, amount, why});
}

static void rows_of_job(struct table *table, const struct answer *answer)
{
    const struct estimate_input *input = &answer->input;
    const struct estimate *plan = &answer->plan;
    char text[200];
    snprintf(text, sizeof(text), "%.15g parameters, %g bytes each: %s", input->params,
             input->bytes_per_param, answer->state->holds);
    row(table, "checkpoint", plan->checkpoint_bytes, "", text);
    snprintf(text, sizeof(text), "of %" PRIu64 ", shared evenly", input->ranks);
    row(table, "a rank writes", plan->rank_bytes, "", text);
    snprintf(text, sizeof(text), "staging memory of a rank: %" PRIu64 " save%s in flight",
             input->snapshots, input->snapshots == 1 ? "" : "s");
    row(table, "arena", plan->arena_bytes, "", text);
    snprintf(text, sizeof(text), "of at most %" PRIu64 " ranks", input->ranks_per_node);
    row(table, "arenas of a node", plan->arena_node_bytes, "", text);
}

static void rows_of_server(struct table *table, const struct answer *answer)
{
    const struct estimate_input *input = &answer->input;
    const struct estimate *plan = &answer->plan;
    char text[200];
    snprintf(text, sizeof(text), "a save is durable within %s",
             interval_span(plan->interval_s).text);
    row(table, "store writes", plan->write_rate, "/s", text);
    row(table, "server receives", plan->network_rate, "/s", "over the network, before encoding");
    row(table, "a node sends", plan->network_node_rate, "/s", "");
    snprintf(text, sizeof(text),
             "%" PRIu64 " kept, %.0f not yet forgotten, 1 in flight, %.0f waiting %s to be "
             "reclaimed; reserve, %g %% free",
             input->keep, plan->unforgotten, plan->waiting, interval_span(input->wait_s).text,
             input->free_share * 100);
    row(table, "disk", plan->disk_bytes, "", text);
    row(table, "server's memory", (double)answer->memory_bytes, "", "[memory], all keys together");
}

static int print_text(const struct answer *answer, struct diag *diag)
{
    const struct estimate *plan = &answer->plan;
    char cost[INTERVAL_COST_BYTES], text[INTERVAL_TEXT_BYTES];
    struct table *table = table_new(3, (const char *[]){"WHAT", ">AMOUNT", "WHY"});
    if (!table) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the table");
    }
    rows_of_job(table, answer);
    rows_of_server(table, answer);
    table_print(table, stdout);
    table_free(table);
    if (answer->input.price_per_tib > 0) {
        printf("price: %.2f a month for the disk\n", plan->price);
    }
    if (answer->input.ranks > answer->config.sessions_max) {
        printf("connections: %" PRIu64 " ranks need a larger [session] max than %" PRIu64 "\n",
               answer->input.ranks, answer->config.sessions_max);
    }
    if (!plan->is_durable_in_time) {
        printf("too slow: the store needs %s to write a save, and the next one begins after %s\n",
               interval_span(plan->input.persist_s).text, interval_span(plan->interval_s).text);
    }
    interval_explain_cost(&plan->at, cost);
    printf("a save every %s: %s\n", interval_span(plan->interval_s).text, cost);
    printf("a month: %.2f failures; saves, repeated training and restarts take %.0f rank-hours\n",
           plan->failures_per_month, plan->lost_rank_hours_per_month);
    interval_explain(&plan->input, &plan->advice, text);
    printf("advice%s:\n%s",
           answer->input.write_rate > 0
               ? ""
               : ", for a store that is as fast as the ranks (--write-rate "
                 "says how fast it is)",
           text);
    return out_flush();
}

static void json_interval(struct json *json, const struct answer *answer)
{
    const struct estimate *plan = &answer->plan;
    json_f64(json, "interval_s", plan->interval_s);
    json_f64(json, "blocked_s", plan->input.blocked_s);
    json_f64(json, "persist_s",
             answer->input.write_rate > 0 ? plan->input.persist_s : plan->interval_s);
    json_bool(json, "durable_in_time", plan->is_durable_in_time);
    json_f64(json, "mtbf_s", plan->at.mtbf_s);
    json_f64(json, "overhead", plan->at.overhead);
    json_f64(json, "lost_s", plan->at.lost_s);
    json_f64(json, "waste", plan->at.waste);
    json_f64(json, "failures_per_month", plan->failures_per_month);
    json_f64(json, "lost_rank_hours_per_month", plan->lost_rank_hours_per_month);
    json_f64(json, "optimum_s", plan->advice.optimum_s);
    json_f64(json, "advised_interval_s", plan->advice.durable_s);
}

static int print_json(const struct answer *answer)
{
    const struct estimate *plan = &answer->plan;
    const struct {
        const char *name;
        double bytes;
    } sizes[] = {{"checkpoint_bytes", plan->checkpoint_bytes},
                 {"weights_bytes", answer->input.params * answer->state->weights},
                 {"optimizer_bytes", answer->input.params * answer->state->optimizer},
                 {"stored_bytes", plan->stored_bytes},
                 {"rank_bytes", plan->rank_bytes},
                 {"arena_bytes", plan->arena_bytes},
                 {"arena_node_bytes", plan->arena_node_bytes},
                 {"server_memory_bytes", (double)answer->memory_bytes},
                 {"disk_bytes", plan->disk_bytes},
                 {"write_bytes_per_s", plan->write_rate},
                 {"network_bytes_per_s", plan->network_rate},
                 {"network_node_bytes_per_s", plan->network_node_rate}};
    struct json json;
    json_begin(&json);
    json_u64(&json, "ranks", answer->input.ranks);
    json_f64(&json, "bytes_per_param", answer->input.bytes_per_param);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        json_u64(&json, sizes[i].name, (uint64_t)sizes[i].bytes);
    }
    json_u64(&json, "kept", answer->input.keep);
    json_u64(&json, "not_forgotten", (uint64_t)plan->unforgotten);
    json_u64(&json, "waiting", (uint64_t)plan->waiting);
    json_f64(&json, "wait_s", answer->input.wait_s);
    json_f64(&json, "price_per_month", plan->price);
    json_u64(&json, "sessions_max", answer->config.sessions_max);
    json_interval(&json, answer);
    return json_end(&json);
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct plan_options *own = values;
    struct answer *answer = calloc(1, sizeof(*answer));
    struct state other = {"", "as --bytes-per-param says", own->bytes_per_param, 0};
    if (!answer) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the plan");
    }
    for (answer->state = states; strcmp(answer->state->name, own->state) != 0;) {
        answer->state++; /* a choice of the table: it is there */
    }
    if (options_given(&cli->own_set, "bytes-per-param") || own->bytes_per_param != 0) {
        answer->state = &other;
    }
    const struct config *config = &answer->config;
    int status = read_config(own, &answer->config, diag);
    if (status == 0) {
        answer->input = input_of(own, answer->state, config);
        answer->memory_bytes = config->buffer_bytes + config->part_bytes + config->message_bytes +
                               config->encode_bytes + config->cache_bytes;
        status = estimate_make(&answer->input, &answer->plan, diag);
    }
    if (status == 0) {
        status = cli->json ? print_json(answer) : print_text(answer, diag);
    }
    free(answer);
    return status;
}

const struct command command_plan = {
    .name = "plan",
    .group = GROUP_LOOK,
    .summary = "how much memory, disk and network a training will need",
    .details =
        "The command computes, from the size of a training, the bytes of a checkpoint, of a rank "
        "and of its arena; the rates with which a save is durable before the next one begins; the "
        "disk for a policy; and the time that saves and failures cost. It asks no server. The "
        "figures are estimates: `cairn stats` and `cairn advise` have those of a run that "
        "saves.\n\nGradients and activations are not saved, so mixed precision with Adam saves "
        "14 bytes of a parameter. Every save is taken to be stored whole; chunks that have not "
        "changed are not stored again, and need less.\n\nThe disk holds what the policy keeps, the "
        "checkpoints that the next `cairn forget` will forget ([retention] interval, or an hour "
        "where that is 0), the save in flight, and the checkpoints that wait to be reclaimed; "
        "[store] reserve and [gc] pressure stay free. Failures are expected, and the interval is "
        "advised, as by `cairn advise`. A month has 730 hours.",
    .example = "cairn plan --params 70e9 --ranks 512 --interval 5m\n"
               "cairn plan --params 7e9 --ranks 64 --write-rate 2GiB --price-per-tib 20 --json",
    .options = options,
    .options_bytes = sizeof(struct plan_options),
    .run = run};

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn stats: what projects or runs cost, as a table, JSON or CSV.
 */
#include "cli.h"
#include "exit_status.h"

#include "base/array.h"
#include "base/check.h"
#include "run/run_usage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct stats_options {
    const char *by, *project;
    uint64_t since_ms; /* 0 means from the beginning */
    bool csv;
};

static const struct option options[] = {
    {"by", "WHAT", "what a row stands for: a project or a run", .preset = "project",
     .choices = "project run", OPTION_AT_TEXT(struct stats_options, by)},
    {"project", "NAME", "show only this project", OPTION_AT_TEXT(struct stats_options, project)},
    {"since", "DURATION", "count only the last 30d, 12h ...; without it everything is counted",
     OPTION_AT_DURATION(struct stats_options, since_ms)},
    {"csv", NULL, "print comma-separated values, for a spreadsheet",
     OPTION_AT_FLAG(struct stats_options, csv)},
    {0}};

/* The rows, merged as wanted. */
struct stats {
    const struct stats_options *own;
    struct msg_usage_row *rows; /* malloc'ed; by project: run.run is "" */
    size_t count, cap;
    struct quota_table quotas;
    int64_t since_ns, now_ns;
    uint32_t unreadable;
};

static void add(struct msg_usage_row *io, const struct msg_usage_row *more)
{
#define ADD(figure) io->figure += more->figure;
    USAGE_FIGURES(ADD)
#undef ADD
    if (more->newest_wall_ns > io->newest_wall_ns) {
        io->newest_wall_ns = more->newest_wall_ns;
    }
}

/* Returns the row that this one is added to: a new one, or its project's, since rows come sorted by
 * project. Returns NULL if there is no memory. */
static struct msg_usage_row *place_of(struct stats *stats, const struct msg_usage_row *row)
{
    bool by_run = strcmp(stats->own->by, "run") == 0;
    struct msg_usage_row *last = stats->count > 0 ? &stats->rows[stats->count - 1] : NULL;
    if (!by_run && last && strcmp(last->run.project, row->run.project) == 0) {
        return last;
    }
    void *rows = array_room(stats->rows, stats->count, &stats->cap, sizeof(*stats->rows));
    if (!rows) {
        return NULL;
    }
    stats->rows = rows;
    CHECK(stats->rows != NULL);
    struct msg_usage_row *fresh = &stats->rows[stats->count++];
    *fresh = (struct msg_usage_row){.run = row->run, .text = ""};
    if (!by_run) {
        fresh->run.run[0] = '\0';
    }
    return fresh;
}

static int take_rows(struct stats *stats, const struct msg_usage_reply *reply, struct diag *diag)
{
    for (uint32_t i = 0; i < reply->count; i++) {
        const struct msg_usage_row *row = &reply->rows[i];
        struct msg_usage_row *to = place_of(stats, row);
        if (!to) {
            return diag_no_memory(diag, "%zu rows", stats->count);
        }
        add(to, row);
        if (row->code != 0 || row->text[0] != 0) {
            struct shown room;
            fprintf(stderr, "cairn: %s/%s is %s: %s: %s\n", row->run.project, row->run.run,
                    row->code != 0 ? "not counted" : "counted as far as its record tells",
                    err_name(row->code != 0 ? row->code : CAIRN_E_DAMAGED),
                    shown(&room, row->text));
            stats->unreadable++;
        }
    }
    return 0;
}

/* As the server holds them, so that the same rule says which is a project's. */
static int take_quotas(struct stats *stats, const struct msg_usage_reply *reply, struct diag *diag)
{
    if (reply->quota_count > QUOTAS_MAX) {
        return diag_set(
            diag, CAIRN_E_TOO_LARGE,
            "the server has %u quotas, but this version can show only %d; use a newer cairn",
            reply->quota_count, QUOTAS_MAX);
    }
    for (uint32_t i = 0; i < reply->quota_count; i++) {
        const struct msg_usage_quota *from = &reply->quotas[i];
        struct quota *to = &stats->quotas.quotas[stats->quotas.count++];
        *to = (struct quota){.bytes = from->bytes, .checkpoints = from->checkpoints};
        snprintf(to->project, sizeof(to->project), "%s", from->project);
    }
    return 0;
}

static int fetch(struct cli *cli, struct stats *stats, struct diag *diag)
{
    struct run_name after = {.project = ""};
    bool more = true;
    int status = 0;
    for (bool first = true; status == 0 && more; first = false) {
        const char *project = stats->own->project ? stats->own->project : "";
        struct source_request request = {
            .call.request = {.type = MSG_USAGE, .u.usage = {project, after, stats->since_ns}}};
        status = source_call(cli->connection, &request, diag);
        const struct msg_usage_reply *reply = &request.call.reply.u.usage_reply;
        if (status == 0) {
            status = take_rows(stats, reply, diag);
        }
        if (status == 0 && first) {
            stats->now_ns = reply->now_ns;
            status = take_quotas(stats, reply, diag);
        }
        if (status == 0) {
            more = reply->more && reply->count > 0;
            after = reply->count > 0 ? reply->rows[reply->count - 1].run : after;
        }
        engine_call_fini(&request.call);
    }
    return status;
}

static void name_of(const struct msg_usage_row *row, char ret[RUN_NAME_TEXT_MAX])
{
    if (row->run.run[0] == '\0') {
        snprintf(ret, RUN_NAME_TEXT_MAX, "%s", row->run.project);
    } else {
        run_name_format(&row->run, ret);
    }
}

static void json_row(struct json *json, const struct stats *stats, const struct msg_usage_row *row)
{
    char name[RUN_NAME_TEXT_MAX];
    bool by_project = row->run.run[0] == '\0';
    name_of(row, name);
    json_open(json, NULL, '{');
    json_str(json, by_project ? "project" : "run", name);
#define SHOW(figure) \
    _Generic(row->figure, double : json_f64, default : json_u64)(json, #figure, row->figure);
    USAGE_SHOWN(SHOW)
#undef SHOW
    const struct quota *quota = by_project ? quota_of(&stats->quotas, name) : NULL;
    if (quota) {
        json_u64(json, "quota_bytes", quota->bytes);
        json_u64(json, "quota_checkpoints", quota->checkpoints);
    }
    json_close(json, '}');
}

static int print_json(const struct stats *stats)
{
    struct json json;
    json_begin(&json);
    json_wall(&json, "since", stats->since_ns);
    json_str(&json, "until", time_text(stats->now_ns).at);
    json_open(&json, "rows", '[');
    for (size_t i = 0; i < stats->count; i++) {
        json_row(&json, stats, &stats->rows[i]);
    }
    json_close(&json, ']');
    return json_end(&json);
}

static int print_csv(const struct stats *stats)
{
#define SHOW(figure) "," #figure
    puts("name" USAGE_SHOWN(SHOW));
#undef SHOW
    for (size_t i = 0; i < stats->count; i++) {
        const struct msg_usage_row *row = &stats->rows[i];
        char name[RUN_NAME_TEXT_MAX]; /* has neither commas nor quotes, by its alphabet */
        name_of(row, name);
        printf("%s", name);
#define SHOW(figure) \
    printf(_Generic(row->figure, double : ",%.3f", default : ",%" PRIu64), row->figure);
        USAGE_SHOWN(SHOW)
#undef SHOW
        printf("\n");
    }
    return out_flush();
}

static void format_quota(const struct quota *quota, size_t size, char *ret)
{
    char count[40] = "";
    struct text bytes = {""};
    if (quota && quota->bytes != 0) {
        bytes = bytes_text(quota->bytes);
    }
    if (quota && quota->checkpoints != 0) {
        snprintf(count, sizeof(count), "%" PRIu64 " checkpoints", quota->checkpoints);
    }
    snprintf(ret, size, "%s%s%s", bytes.at, bytes.at[0] && count[0] ? ", " : "", count);
}

static void table_add(struct table *table, const struct stats *stats,
                      const struct msg_usage_row *row)
{
    char name[RUN_NAME_TEXT_MAX], saves[48], restores[48], checkpoints[24], quota[96];
    char hours[40];
    name_of(row, name);
    snprintf(saves, sizeof(saves), "%" PRIu64 "+%" PRIu64, row->saves, row->saves_aborted);
    snprintf(restores, sizeof(restores), "%" PRIu64 "+%" PRIu64, row->restores,
             row->restores_failed);
    snprintf(checkpoints, sizeof(checkpoints), "%" PRIu64, row->checkpoints);
    snprintf(hours, sizeof(hours), "%.2f", row->byte_hours / (double)(UINT64_C(1) << 30));
    format_quota(row->run.run[0] == '\0' ? quota_of(&stats->quotas, name) : NULL, sizeof(quota),
                 quota);
    table_row(table, (const char *const[]){name, saves, restores, bytes_text(row->written_bytes).at,
                                           checkpoints, bytes_text(row->stored_bytes).at,
                                           bytes_text(row->shared_bytes).at,
                                           bytes_text(row->reclaimable_bytes).at, hours, quota});
}

static int print_table(const struct stats *stats)
{
    static const char *const titles[] = {"NAME",         ">SAVES",  ">RESTORES", ">WRITTEN",
                                         ">CHECKPOINTS", ">STORED", ">SHARED",   ">RECLAIMABLE",
                                         ">GIB-HOURS",   "QUOTA"};
    struct table *table = table_new(ARRAY_LEN(titles), titles);
    for (size_t i = 0; i < stats->count; i++) {
        table_add(table, stats, &stats->rows[i]);
    }
    table_print(table, stdout);
    table_free(table);
    return out_flush();
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct stats_options *own = values;
    struct stats stats = {.own = own};
    int status = cli_connect(cli, false, diag);
    if (status == 0) {
        stats.since_ns = source_since_ns(cli->connection, own->since_ms);
        status = fetch(cli, &stats, diag);
    }
    if (status == 0) {
        status = cli->json  ? print_json(&stats)
                 : own->csv ? print_csv(&stats)
                            : print_table(&stats);
    }
    if (status == 0 && stats.unreadable > 0) {
        status = EXIT_PARTIAL;
    }
    free(stats.rows);
    return status;
}

const struct command command_stats = {
    .name = "stats",
    .group = GROUP_LOOK,
    .summary = "show what projects or runs cost: bytes, hours, saves and restores",
    .details =
        "SAVES and RESTORES count those that succeeded and, after the plus sign, those that "
        "failed. WRITTEN is what the saves of the window stored. STORED is what listed and "
        "forgotten checkpoints occupy now. SHARED is what listed checkpoints did not have to "
        "store, because an older checkpoint holds it or an encoding made it smaller. RECLAIMABLE "
        "is what the next garbage collection may free from forgotten checkpoints.\n\nThe sizes "
        "come from the runs' records, and no object is read: bytes of a removed checkpoint to "
        "which a later one refers are in the store, but are not counted. Restores by `cairn "
        "restore` and other viewers are not counted.\n\nRuns whose record cannot be read are named "
        "on stderr, and the exit status is then 3.",
    .example = "cairn stats --by run --since 30d --csv",
    .options = options,
    .options_bytes = sizeof(struct stats_options),
    .run = run};

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn log: what has happened to a run, or to all of them: the entries of its chain, and the
 * restores that its record knows of. Everything is kept in memory until it is sorted. One thread.
 */
#include "cli.h"

#include "base/array.h"
#include "base/check.h"
#include "base/digits.h"
#include "base/glob.h"
#include "policy/policy.h"

#include <stdlib.h>
#include <string.h>

enum { LOG_SCRATCH_MAX = 1 << 30, IDS_SHOWN = 4, IDS_BYTES = 256, DETAIL_BYTES = 600 };
/* Kinds of lines that are of no run: a policy of the store was set, or removed. */
enum { LOG_POLICY_SET = 1000, LOG_POLICY_REMOVE };
#define MS_NS INT64_C(1000000)

struct log_options {
    uint64_t limit, since_ms;
};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN, .optional = true}, {0}};

static const struct option options[] = {
    {"limit", "N", "show the newest N entries; 0 shows all", .preset = "100",
     OPTION_AT_COUNT(struct log_options, limit), .max = UINT32_MAX},
    {"since", "DURATION", "show only the last 30d, 12h ...; without it, all",
     OPTION_AT_DURATION(struct log_options, since_ms)},
    {0}};

struct line {
    struct run_name run;
    const char *pattern; /* of a policy; NULL for what has happened to a run */
    struct msg_log_row row;
};

struct log {
    const struct log_options *own;
    int64_t since_ns; /* 0 means all */
    struct scratch scratch;
    struct line *lines; /* malloc'ed */
    size_t count, cap;
};

/* ---- asking ---- */

/* Adds a copy of the row: its texts and ids outlive the reply. */
static int keep_row(struct log *log, const struct run_name *run, const struct msg_log_row *row,
                    struct diag *diag)
{
    void *lines = array_room(log->lines, log->count, &log->cap, sizeof(*log->lines));
    if (!lines) {
        return diag_no_memory(diag, "%zu entries of the log", log->count);
    }
    log->lines = lines;
    struct line *line = &log->lines[log->count];
    *line = (struct line){.run = *run, .row = *row};
    line->row.actor = scratch_string(&log->scratch, strlen(row->actor), row->actor);
    line->row.reason = scratch_string(&log->scratch, strlen(row->reason), row->reason);
    struct ckpt_id *ids = scratch_array(&log->scratch, row->id_count + 1u, sizeof(*ids));
    if (!line->row.actor || !line->row.reason || !ids) {
        return diag_no_memory(diag, "%zu entries of the log", log->count);
    }
    for (uint32_t i = 0; i < row->id_count; i++) {
        ids[i] = row->ids[i];
    }
    line->row.ids = ids;
    log->count++;
    return 0;
}

/* Adds what the connected run tells, page after page. */
static int ask_run(struct cli *cli, void *user, const struct run_name *run, struct diag *diag)
{
    struct log *log = user;
    uint64_t before = 0, chain = 0;
    bool more = true;
    int status = 0;
    while (status == 0 && more) {
        struct source_request request = {
            .call.request = {.type = MSG_LOG, .u.log = {.before_seq = before}}};
        status = source_call(cli->connection, &request, diag);
        const struct msg_log_reply *reply = &request.call.reply.u.log_reply;
        more = status == 0 && reply->more;
        for (uint32_t i = 0; status == 0 && i < reply->count; i++) {
            const struct msg_log_row *row = &reply->rows[i];
            if (row->seq > 0) {
                before = row->seq;
                chain++;
            }
            if (row->wall_ns >= log->since_ns) {
                status = keep_row(log, run, row, diag);
            }
        }
        more = more && before > 0 && (log->own->limit == 0 || chain < log->own->limit);
        engine_call_fini(&request.call);
    }
    return status;
}

/* Adds the changes of stored policies, with the pattern as the run; of one run, those that match
 * it. A server that is older has none. */
static int ask_policies(struct cli *cli, struct log *log, struct diag *diag)
{
    struct source_request request = {
        .call.request = {.type = MSG_POLICY, .u.policy = {.kind = MSG_POLICY_SHOW, .past = true}}};
    const struct run_name none = {.project = ""};
    struct diag why = DIAG_INIT;
    int status = source_call(cli->connection, &request, &why);
    const struct msg_policy_reply *reply = &request.call.reply.u.policy_reply;
    for (uint32_t i = 0; status == 0 && i < reply->count; i++) {
        const struct msg_policy_row *policy = &reply->rows[i];
        struct msg_log_row row = {.kind = policy->change == POLICY_REMOVE ? LOG_POLICY_REMOVE
                                                                          : LOG_POLICY_SET,
                                  .seq = policy->number,
                                  .wall_ns = policy->wall_ns,
                                  .actor = policy->actor,
                                  .code = policy->code,
                                  .reason = policy->code != 0 ? policy->text : policy->policy};
        /* A row without a number says what is wrong now, and no change. */
        if (policy->source != POLICY_STORED || row.seq == 0 || row.wall_ns < log->since_ns ||
            (cli->has_run && !glob_matches(policy->pattern, run_name_text(&cli->run).at))) {
            continue;
        }
        status = keep_row(log, &none, &row, &why);
        if (status == 0) {
            log->lines[log->count - 1].pattern =
                scratch_string(&log->scratch, strlen(policy->pattern), policy->pattern);
        }
    }
    engine_call_fini(&request.call);
    return status == CAIRN_E_UNSUPPORTED || status == 0 ? 0 : diag_copy(diag, &why);
}

/* Newest first; what has the same time is in the order of the chain. */
static int compare_lines(const void *a, const void *b)
{
    const struct line *left = a, *right = b;
    if (left->row.wall_ns != right->row.wall_ns) {
        return left->row.wall_ns > right->row.wall_ns ? -1 : 1;
    }
    int order = run_name_compare(&left->run, &right->run);
    return order != 0 ? order : compare_u64(right->row.seq, left->row.seq);
}

/* ---- showing ---- */

static const char *action_of(const struct msg_log_row *row)
{
    if (row->kind >= LOG_POLICY_SET) {
        return row->kind == LOG_POLICY_SET ? "set policy" : "remove policy";
    }
    return log_action_name(row->kind);
}

static void ids_text(const struct msg_log_row *row, char ret[IDS_BYTES])
{
    size_t at = 0;
    ret[0] = '\0';
    for (uint32_t i = 0; i < row->id_count && i < IDS_SHOWN; i++) {
        at += (size_t)snprintf(ret + at, IDS_BYTES - at, "%s%s", i > 0 ? " " : "",
                               ckpt_id_text(row->ids[i]).at);
    }
    if (row->id_count > IDS_SHOWN) {
        snprintf(ret + at, IDS_BYTES - at, " and %u more", row->id_count - IDS_SHOWN);
    }
}

static void detail_text(const struct msg_log_row *row, char ret[DETAIL_BYTES])
{
    if (row->kind == CHAIN_COMMIT) {
        snprintf(ret, DETAIL_BYTES, "%s of %u rank%s", bytes_text(row->plain_bytes).at,
                 row->world_size, plural(row->world_size));
    } else if (row->kind == LOG_RESTORE && row->code != 0) {
        snprintf(ret, DETAIL_BYTES, "failed on %u rank%s: %s: %s", row->world_size,
                 plural(row->world_size), err_name(row->code), row->reason);
    } else if (row->kind == LOG_RESTORE) {
        bool fell_back = row->id_count > 0 && !ckpt_id_equal(row->ids[0], row->asked);
        snprintf(ret, DETAIL_BYTES, "on %u rank%s%s%s", row->world_size, plural(row->world_size),
                 fell_back ? ", fell back from " : "",
                 fell_back ? ckpt_id_text(row->asked).at : "");
    } else {
        snprintf(ret, DETAIL_BYTES, "%s", row->reason);
    }
}

static void line_name(const struct line *line, char ret[RUN_NAME_TEXT_MAX])
{
    if (line->pattern) {
        snprintf(ret, RUN_NAME_TEXT_MAX, "%s", line->pattern);
    } else {
        run_name_format(&line->run, ret);
    }
}

/* A row's first cells are run and time; of one run, the run is left out. */
static void add_row(struct table *table, const struct line *line, bool one_run)
{
    char name[RUN_NAME_TEXT_MAX], ids[IDS_BYTES], detail[DETAIL_BYTES];
    const char *who = line->row.actor[0] != '\0' ? line->row.actor : "-";
    struct text time = time_text(line->row.wall_ns);
    line_name(line, name);
    ids_text(&line->row, ids);
    if (line->pattern && one_run) { /* the checkpoints' place */
        snprintf(ids, sizeof(ids), "%s", line->pattern);
    }
    detail_text(&line->row, detail);
    const char *cells[] = {name, time.at, action_of(&line->row), ids, who, detail};
    table_row(table, cells + one_run);
}

static int print_lines(const struct cli *cli, const struct log *log, size_t count)
{
    static const char *const titles[] = {"RUN", "TIME", "WHAT", "CHECKPOINT", "WHO", "DETAIL"};
    struct table *table = table_new(ARRAY_LEN(titles) - cli->has_run, titles + cli->has_run);
    for (size_t i = 0; table && i < count; i++) {
        add_row(table, &log->lines[i], cli->has_run);
    }
    if (table && count > 0) {
        table_print(table, stdout);
    } else {
        fprintf(stderr, "cairn: nothing has happened yet\n");
    }
    table_free(table);
    return out_flush();
}

static void json_line(struct json *json, const struct line *line)
{
    char name[RUN_NAME_TEXT_MAX];
    line_name(line, name);
    json_log_row(json, name, action_of(&line->row), &line->row);
}

static int print_json(const struct log *log, size_t count)
{
    struct json json;
    json_begin(&json);
    json_open(&json, "entries", '[');
    for (size_t i = 0; i < count; i++) {
        json_line(&json, &log->lines[i]);
    }
    json_close(&json, ']');
    return json_end(&json);
}

/* Asks, sorts and shows. */
static int tell(struct cli *cli, struct log *log, struct diag *diag)
{
    int rc = cli_each_run(cli, ask_run, log, diag), status = rc < 0 ? rc : 0;
    if (status == 0 && cli->has_run && log->count == 0) {
        status = cli_check_run(cli, diag);
    }
    status = status != 0 ? status : ask_policies(cli, log, diag);
    if (status != 0) {
        return status;
    }
    if (log->count > 0) {
        qsort(log->lines, log->count, sizeof(*log->lines), compare_lines);
    }
    size_t count =
        log->own->limit > 0 && log->own->limit < log->count ? log->own->limit : log->count;
    status = cli->json ? print_json(log, count) : print_lines(cli, log, count);
    return status != 0 ? status : rc;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    struct log log = {.own = values};
    int status = cli_connect(cli, false, diag);
    if (status != 0) {
        return status;
    }
    log.since_ns = source_since_ns(cli->connection, log.own->since_ms);
    scratch_init(&log.scratch, LOG_SCRATCH_MAX);
    status = tell(cli, &log, diag);
    scratch_fini(&log.scratch);
    free(log.lines);
    return status;
}

const struct command command_log = {
    .name = "log",
    .group = GROUP_LOOK,
    .summary = "what has happened to a run: commits, forgets, pins, repairs, restores",
    .details =
        "Newest first, with the time, who did it, and why, also of checkpoints that are gone. "
        "Without RUN the log is that of all runs, including removed ones. Everything but a restore "
        "is an entry of the run's chain and stays for ever. Of restores by all ranks of a job the "
        "newest 256 are kept; reading as a viewer (`cairn restore`, `export`, `verify`) writes "
        "nothing, so the log does not tell of it. The log also tells who set or removed a policy "
        "of the store; of those that hold no more, the newest 60 are kept. WHO is the identity "
        "that the connection proved, "
        "and behind `claimed=` what the caller said of itself.",
    .example = "cairn log lab/gpt\ncairn log --since 7d --json",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct log_options),
    .run = run};

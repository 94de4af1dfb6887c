/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn ls: the runs, or the checkpoints of one.
 */
#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_SCRATCH_MAX = 1 << 30, NOTE_TEXT_BYTES = 100 };

struct ls_options {
    bool all, superseded, forgotten;
    uint64_t limit;
};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN, .optional = true}, {0}};

static const struct option options[] = {
    {"all", NULL, "also list superseded checkpoints", OPTION_AT_FLAG(struct ls_options, all),
     .letter = 'a'},
    {"superseded", NULL, "the same", OPTION_AT_FLAG(struct ls_options, superseded)},
    {"forgotten", NULL,
     "list the forgotten checkpoints that `cairn undelete` can bring back, and until when; without "
     "RUN: those of all runs",
     OPTION_AT_FLAG(struct ls_options, forgotten)},
    {"limit", "N", "list at most N checkpoints", OPTION_AT_COUNT(struct ls_options, limit),
     .max = UINT32_MAX},
    {0}};

static int list_runs(struct cli *cli, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    int status = source_runs(cli->connection, false, &names, &count, diag);
    if (status != 0) {
        return status;
    }
    struct json json;
    json_begin(&json);
    json_open(&json, "runs", '[');
    for (size_t i = 0; i < count; i++) {
        struct run_name_text name = run_name_text(&names[i]);
        json_str(&json, NULL, name.at);
        if (!cli->json) {
            printf("%s\n", name.at);
        }
    }
    json_close(&json, ']');
    json_close(&json, '}');
    if (cli->json) {
        status = json_print(&json);
    } else if (count == 0) {
        fprintf(stderr, "cairn: the store has no runs yet\n");
    }
    json_fini(&json);
    free(names);
    return status;
}

static bool is_shown(const struct cli *cli, const struct ls_options *own,
                     const struct ckpt_info *info)
{
    bool superseded = info->state == CKPT_COMMITTED && !info->on_lineage;
    return !superseded || own->superseded || own->all || cli->json;
}

/* "best, keep; loss=0.25", cut where it would not fit on a line. A tag with a comma is in quotes.
 */
static void format_note(const struct ckpt_info *info, size_t size, char *ret)
{
    size_t at = 0;
    ret[0] = '\0';
    for (uint32_t i = 0; i < info->tag_count + info->metric_count; i++) {
        uint32_t metric = i - info->tag_count;
        const char *between = i == 0 ? "" : i == info->tag_count ? "; " : ", ";
        char item[200];
        if (i < info->tag_count) {
            const char *quote = strchr(info->tags[i], ',') ? "\"" : "";
            snprintf(item, sizeof(item), "%s%s%s", quote, info->tags[i], quote);
        } else {
            snprintf(item, sizeof(item), "%s=%g", info->metrics[metric].name,
                     info->metrics[metric].value);
        }
        int n = snprintf(ret + at, size - at, "%s%s", between, item);
        if (n < 0 || (size_t)n + 4 >= size - at) {
            snprintf(ret + at, size - at, "...");
            return;
        }
        at += (size_t)n;
    }
}

static void add_row(struct table *table, const struct ckpt_info *info)
{
    char ranks[32], state[STANDING_BYTES], note[NOTE_TEXT_BYTES], text[DIAG_TEXT_MAX];
    struct ckpt_id_text parent = {"-"};
    if (info->parent.term != 0) {
        parent = ckpt_id_text(info->parent);
    }
    snprintf(ranks, sizeof(ranks), "%u", info->world_size);
    format_standing(info, state);
    bool committed = info->state == CKPT_COMMITTED;
    format_note(info, sizeof(note), note);
    snprintf(text, sizeof(text), "%s%s",
             info->state == CKPT_OPEN && info->text[0] != '\0' ? "waits for " : "", info->text);
    table_row(table, (const char *const[]){
                         info->is_latest ? "*" : "", ckpt_id_text(info->id).at, state,
                         committed ? bytes_text(info->plain_bytes).at : "-", ranks, parent.at,
                         time_text(info->wall_ns).at, committed ? note : text});
}

static int print_list(struct cli *cli, const struct ls_options *own, const struct cli_list *list)
{
    static const char *const titles[] = {"",       "CHECKPOINT", "STATE",     ">SIZE",
                                         ">RANKS", "PARENT",     "COMMITTED", ""};
    struct table *table = table_new(ARRAY_LEN(titles), titles);
    size_t shown = 0, hidden = 0;
    for (size_t i = 0; table && i < list->count && (own->limit == 0 || shown < own->limit); i++) {
        if (is_shown(cli, own, &list->items[i])) {
            add_row(table, &list->items[i]);
            shown++;
        } else {
            hidden++;
        }
    }
    if (table && shown > 0) {
        table_print(table, stdout);
    } else {
        fprintf(stderr, "cairn: the run has no checkpoints yet\n");
    }
    if (hidden > 0) {
        fprintf(stderr, "cairn: %zu superseded, which --all shows\n", hidden);
    }
    table_free(table);
    return out_flush();
}

static int print_json(struct cli *cli, const struct ls_options *own, const struct cli_list *list)
{
    struct json json;
    json_begin(&json);
    json_str(&json, "run", run_name_text(&cli->run).at);
    json_open(&json, "checkpoints", '[');
    for (size_t i = 0, shown = 0; i < list->count && (own->limit == 0 || shown < own->limit); i++) {
        if (is_shown(cli, own, &list->items[i])) {
            json_info(&json, NULL, &list->items[i]);
            shown++;
        }
    }
    json_close(&json, ']');
    return json_end(&json);
}

/* ---- what is forgotten ---- */

struct forgotten {
    const struct ls_options *own;
    struct json json;
    struct table *table;
    uint64_t count;
};

/* "2h 5m", or why that is not known. */
static void time_left(const struct cli *cli, const struct ckpt_info *info, size_t size, char *ret)
{
    int64_t ms = (info->until_wall_ns - loop_wall_ns(source_loop(cli->connection))) / 1000000;
    if (info->until_wall_ns == 0) {
        snprintf(ret, size, "until garbage collection runs");
    } else if (ms <= 0) {
        snprintf(ret, size, "none");
    } else {
        snprintf(ret, size, "%" PRId64 "h %02" PRId64 "m", ms / 3600000, ms / 60000 % 60);
    }
}

static void json_forgotten(struct json *json, const char *name, const struct ckpt_info *info)
{
    json_open(json, NULL, '{');
    json_str(json, "run", name);
    json_ckpt_id(json, info->id);
    json_u64(json, "stored_bytes", info->stored_bytes);
    json_str(json, "committed_at", time_text(info->wall_ns).at);
    json_wall(json, "forgotten_at", info->forgotten_wall_ns);
    json_wall(json, "until", info->until_wall_ns);
    json_str(json, "text", info->text[0] != '\0' ? info->text : NULL);
    json_close(json, '}');
}

static void show_forgotten(const struct cli *cli, struct forgotten *all, const char *name,
                           const struct ckpt_info *info)
{
    char left[48];
    time_left(cli, info, sizeof(left), left);
    json_forgotten(&all->json, name, info);
    if (all->table) {
        table_row(all->table,
                  (const char *const[]){name, ckpt_id_text(info->id).at,
                                        bytes_text(info->stored_bytes).at,
                                        time_text(info->forgotten_wall_ns).at, left, info->text});
    }
    all->count++;
}

/* Shows the forgotten checkpoints of the connected run. A server that is too old to know this
 * question answers with the checkpoints that are not forgotten; these are skipped. */
static int add_forgotten(struct cli *cli, void *user, const struct run_name *run, struct diag *diag)
{
    struct forgotten *all = user;
    struct scratch scratch;
    struct cli_list list = {.limit = all->own->limit, .forgotten = true};
    scratch_init(&scratch, LIST_SCRATCH_MAX);
    int status = cli_list(cli, &scratch, &list, diag);
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        bool room = all->own->limit == 0 || all->count < all->own->limit;
        if (room && list.items[i].state == CKPT_FORGOTTEN) {
            show_forgotten(cli, all, run_name_text(run).at, &list.items[i]);
        }
    }
    scratch_fini(&scratch);
    return status;
}

static int list_forgotten(struct cli *cli, const struct ls_options *own, struct diag *diag)
{
    static const char *const titles[] = {"RUN",       "CHECKPOINT", ">SIZE",
                                         "FORGOTTEN", "TIME LEFT",  "WHY"};
    struct forgotten all = {.own = own, .table = table_new(ARRAY_LEN(titles), titles)};
    json_begin(&all.json);
    json_open(&all.json, "forgotten", '[');
    int rc = cli_each_run(cli, add_forgotten, &all, diag), status = rc < 0 ? rc : 0;
    json_close(&all.json, ']');
    json_close(&all.json, '}');
    if (status == 0 && cli->json) {
        status = json_print(&all.json);
    } else if (status == 0 && all.count == 0) {
        fprintf(stderr, "cairn: no forgotten checkpoint can be brought back\n");
    } else if (status == 0 && all.table) {
        table_print(all.table, stdout);
        status = out_flush();
    }
    json_fini(&all.json);
    table_free(all.table);
    return status != 0 ? status : rc;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct ls_options *own = values;
    int status = cli_connect(cli, false, diag);
    if (status != 0) {
        return status;
    }
    if (own->forgotten) {
        return list_forgotten(cli, own, diag);
    }
    if (!cli->has_run) {
        return list_runs(cli, diag);
    }
    struct scratch scratch;
    struct cli_list list = {.limit = own->limit};
    scratch_init(&scratch, LIST_SCRATCH_MAX);
    status = cli_list(cli, &scratch, &list, diag);
    if (status == 0 && list.count == 0) {
        status = cli_check_run(cli, diag);
    }
    if (status == 0) {
        status = cli->json ? print_json(cli, own, &list) : print_list(cli, own, &list);
        cli_say_mark(cli, &list);
    }
    scratch_fini(&scratch);
    return status;
}

const struct command command_ls = {
    .name = "ls",
    .group = GROUP_LOOK,
    .summary = "list checkpoints, newest first; without RUN: the runs",
    .details =
        "Open saves come first, with the ranks that are missing. `*` marks the checkpoint "
        "that `restore latest` takes. Superseded checkpoints (those off the lineage) are "
        "shown with --all, and always in --json. For the outcome of an aborted save, which "
        "is not a checkpoint, use `cairn status RUN STEP@TERM`. With --forgotten the list is "
        "that of what was forgotten and is not yet reclaimed, with the time that is left "
        "for `cairn undelete`; `cairn log` tells of what is gone.",
    .example = "cairn ls\ncairn ls lab/gpt --limit 5\ncairn ls --forgotten",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct ls_options),
    .run = run};

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn gc: garbage collection now, by the daemon, or on a store without one.
 */
#include "maintenance.h"
#include "offline_gc.h"
#include "reclaim.h"

#include <stdlib.h>
#include <string.h>

struct gc_options_cli {
    bool dry_run, status, cycle, now;
    uint64_t keep_cycles;
    const char *project;
    struct option_texts runs;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUNS, .at = offsetof(struct gc_options_cli, runs), .optional = true},
    {0}};

static const struct option options[] = {
    {"dry-run", NULL, "show what would be removed, and remove nothing",
     OPTION_AT_FLAG(struct gc_options_cli, dry_run), .letter = 'n'},
    {"status", NULL, "only show what the last pass did",
     OPTION_AT_FLAG(struct gc_options_cli, status)},
    {"now", NULL,
     "reclaim the forgotten checkpoints of RUN, or of all runs, for good and without waiting for "
     "cycles",
     OPTION_AT_FLAG(struct gc_options_cli, now), .alone = true},
    {"project", "NAME", "with --now: apply it to all runs of a project",
     OPTION_AT_TEXT(struct gc_options_cli, project), .alone = true},
    {"cycle", NULL, "with --store: begin a cycle, as a daemon does after each interval [gc] every",
     OPTION_AT_FLAG(struct gc_options_cli, cycle), .alone = true},
    {"keep-cycles", "N",
     "with --store: number of cycles for which a forgotten checkpoint can be brought back",
     OPTION_AT_COUNT(struct gc_options_cli, keep_cycles), .preset = "24", .min = 1},
    {0}};

static int show(struct cli *cli, const struct gc_info *info)
{
    struct json json;
    if (!cli->json) {
        maintenance_show_gc(info, false); /* fail() tells why, once */
        return out_flush();
    }
    json_begin(&json);
    maintenance_json_gc(&json, "gc", info);
    return json_end(&json);
}

/* Returns the error unchanged and whole, because cron mails only this line. An older server tells
 * the text without the code. */
static int fail(struct cli *cli, const struct gc_info *info, struct diag *diag)
{
    cli->whole_text = strdup(info->text); /* without memory, as much as diag holds */
    return diag_set(diag, info->code < 0 ? info->code : CAIRN_E_IO, "%s", info->text);
}

static int check(const struct cli *cli, const struct gc_options_cli *given, struct diag *diag)
{
    if (given->status && (cli->source.store || given->cycle || given->dry_run)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--status only asks a daemon what its last pass did: leave out --store, "
                        "--cycle and --dry-run, which begin a pass");
    }
    if (!cli->source.store && (given->cycle || options_given(&cli->own_set, "keep-cycles"))) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--cycle and --keep-cycles go with --store; a server counts cycles by what "
                        "its configuration says: [gc] every and keep-cycles");
    }
    if (!given->now && (given->runs.count > 0 || given->project)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "RUN and --project need --now, because other passes cover all runs");
    }
    if (given->now && (given->cycle || given->status)) {
        return diag_set(diag, CAIRN_E_INVALID, "--now cannot be combined with --cycle or --status");
    }
    return given->runs.count > 0 && given->project
               ? diag_set(diag, CAIRN_E_INVALID,
                          "RUN and --project exclude each other; name only one of them")
               : 0;
}

/* The runs that are named, or are of the project; none where neither is said. *ret is malloc'ed. */
static int choose_runs(struct cli *cli, const struct gc_options_cli *given, struct run_name **ret,
                       size_t *ret_count, struct diag *diag)
{
    size_t count = 0, kept = 0;
    int status = 0;
    if (given->project) {
        status = source_runs(cli->connection, true, ret, &count, diag);
        for (size_t i = 0; status == 0 && i < count; i++) {
            if (strcmp((*ret)[i].project, given->project) == 0) {
                (*ret)[kept++] = (*ret)[i];
            }
        }
        if (status == 0 && kept == 0) {
            status = diag_set(diag, CAIRN_E_NOT_FOUND,
                              "project %s has no run; `cairn ls` lists the runs", given->project);
        }
    } else if (given->runs.count > 0) {
        *ret = calloc(given->runs.count, sizeof(**ret));
        status = *ret ? 0 : diag_no_memory(diag, "the names of runs");
        for (; status == 0 && kept < given->runs.count; kept++) {
            status = run_name_parse(given->runs.items[kept], &(*ret)[kept], diag);
        }
    }
    *ret_count = kept;
    return status;
}

static int reclaim(struct cli *cli, const struct gc_options_cli *given, struct gc_info *info,
                   char text[GC_TEXT_MAX], struct diag *diag)
{
    struct run_name *runs = NULL;
    struct reclaim what = {.dry_run = given->dry_run};
    bool connects = !cli->source.store || given->project;
    int status = connects ? cli_connect(cli, false, diag) : 0;
    if (status == 0) {
        status = choose_runs(cli, given, &runs, &what.run_count, diag);
    }
    if (status == 0) {
        what.runs = runs;
        status = reclaim_now(cli, &what, info, text, diag);
    }
    free(runs);
    return status;
}

static int collect(struct cli *cli, const struct gc_options_cli *given, struct gc_info *info,
                   char text[GC_TEXT_MAX], struct diag *diag)
{
    if (given->now) {
        return reclaim(cli, given, info, text, diag);
    }
    if (!cli->source.store) {
        struct msg_gc gc = {.begin = !given->status, .dry_run = given->dry_run};
        int status = cli_connect(cli, false, diag);
        return status != 0 ? status : reclaim_ask(cli, &gc, info, text, diag);
    }
    struct offline_gc_options offline = {.store = cli->source.store,
                                         .dry_run = given->dry_run,
                                         .cycle = given->cycle,
                                         .keep_cycles = given->keep_cycles};
    return offline_gc(&offline, info, text, diag);
}

static int run(struct cli *cli, void *own, struct diag *diag)
{
    const struct gc_options_cli *given = own;
    struct gc_info info;
    char text[GC_TEXT_MAX];
    int status = check(cli, given, diag);
    status = status != 0 ? status : collect(cli, given, &info, text, diag);
    if (status == 0) {
        status = show(cli, &info);
    }
    return status == 0 && info.errors > 0 ? fail(cli, &info, diag) : status;
}

const struct command command_gc = {
    .name = "gc",
    .group = GROUP_KEEP,
    .summary = "free the space that no checkpoint needs",
    .details =
        "The command removes what forgotten checkpoints and failed saves left behind, if nothing "
        "refers to it. The daemon does so by itself after each interval [gc] every, and also "
        "counts the cycles after which a forgotten checkpoint cannot be brought back; this command "
        "begins a pass now, but no cycle.\n\nWith --now, forgotten checkpoints of the named runs, "
        "or of all runs, are reclaimed without waiting for cycles, and their space is free at "
        "once. This is the remedy for a full disk. It is final: `undelete` cannot bring these "
        "checkpoints back. What an open save or a restore uses stays. The run's record keeps who "
        "asked, as with `forget`. --dry-run shows what would be freed.\n\nWith --store the command "
        "works on a store without a daemon, under the store's lock, in two passes.\n\nA file or "
        "object that cannot be read is left alone, together with everything to which it may refer, "
        "and is named; the exit status is then that of the error, which is 6 for damage. On a "
        "store with several daemons one of them collects, and the command asks that one by itself; "
        "the exit status is 11 if it cannot be reached.",
    .example = "cairn gc --dry-run\ncairn gc --now lab/gpt\ncairn --store dir:/srv/cairn gc",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct gc_options_cli),
    .run = run};

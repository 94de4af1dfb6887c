/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn gc: garbage collection now, by the daemon, or on a store without one.
 */
#include "care.h"
#include "offline_gc.h"

#include <string.h>

struct gc_options_cli {
    bool dry_run, status, cycle;
    uint64_t keep_cycles;
};

static const struct option options[] = {
    {"dry-run", NULL, "say what would be removed, remove nothing",
     OPTION_AT_FLAG(struct gc_options_cli, dry_run), .letter = 'n'},
    {"status", NULL, "only say what the last one did",
     OPTION_AT_FLAG(struct gc_options_cli, status)},
    {"cycle", NULL, "with --store: a cycle begins, as it does in a daemon every [gc] every",
     OPTION_AT_FLAG(struct gc_options_cli, cycle), .alone = true},
    {"keep-cycles", "N", "with --store: what was forgotten can be brought back for so many cycles",
     OPTION_AT_COUNT(struct gc_options_cli, keep_cycles), .preset = "72", .min = 1},
    {0}};

static int show(struct cli *cli, const struct gc_info *info)
{
    struct json json;
    if (!cli->json) {
        care_show_gc(info, false); /* fail() tells why, once */
        return out_flush();
    }
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    care_json_gc(&json, "gc", info);
    json_close(&json, '}');
    int status = json_print(&json);
    json_fini(&json);
    return status;
}

/* The error as it was, so that damage is damage, with all of its words: cron mails nothing else. An
 * older server has told its words only. */
static int fail(struct cli *cli, const struct gc_info *info, struct diag *diag)
{
    cli->whole_text = strdup(info->text); /* without memory, as much as diag holds */
    return diag_set(diag, info->code < 0 ? info->code : CAIRN_E_IO, "%s", info->text);
}

static int ask(struct cli *cli, const struct msg_gc *gc, struct source_request *request,
               struct diag *diag)
{
    *request = (struct source_request){.call.request = {.type = MSG_GC, .u.gc = *gc}};
    return source_call(cli->connection, request, diag);
}

static int run_online(struct cli *cli, const struct gc_options_cli *given, struct diag *diag)
{
    struct source_request request = {.done = false};
    int status = cli_connect(cli, false, diag);
    if (status == 0) {
        status = ask(cli, &(struct msg_gc){.begin = !given->status, .dry_run = given->dry_run},
                     &request, diag);
    }
    while (status == 0 && !given->status && request.call.reply.u.gc_report.info.running) {
        engine_call_fini(&request.call);
        request = (struct source_request){.done = false};
        status = care_sleep(cli, diag);
        status = status != 0 ? status : ask(cli, &(struct msg_gc){.begin = false}, &request, diag);
    }
    if (status == 0) {
        const struct gc_info *info = &request.call.reply.u.gc_report.info;
        status = show(cli, info);
        status = status == 0 && info->errors > 0 ? fail(cli, info, diag) : status;
    }
    engine_call_fini(&request.call);
    return status;
}

static int run(struct cli *cli, void *own, struct diag *diag)
{
    const struct gc_options_cli *given = own;
    struct gc_info info;
    char text[GC_TEXT_MAX];
    if (!cli->source.store) {
        return run_online(cli, given, diag);
    }
    struct offline_gc_options offline = {.store = cli->source.store,
                                         .dry_run = given->dry_run,
                                         .cycle = given->cycle,
                                         .keep_cycles = given->keep_cycles};
    int status = offline_gc(&offline, &info, text, diag);
    if (status == 0) {
        status = show(cli, &info);
    }
    return status == 0 && info.errors > 0 ? fail(cli, &info, diag) : status;
}

const struct command command_gc = {
    .name = "gc",
    .group = GROUP_KEEP,
    .summary = "give back the space of what no checkpoint needs",
    .details =
        "Removes what forgotten checkpoints and failed saves left behind and nothing refers to. "
        "The "
        "daemon does so by itself every [gc] every, which also counts the cycles after which a "
        "forgotten checkpoint cannot be brought back; this begins a pass now and no cycle.\n\n"
        "With --store it works on a store without a daemon, under the store's lock, in two "
        "passes.\n\n"
        "What cannot be read is left alone, with all that it may refer to, and named; the exit "
        "status is then that of the error: 6 for damage. On a store with several daemons one of "
        "them collects, and others say which: exit 11.",
    .example = "cairn gc --dry-run\ncairn --store dir:/srv/cairn gc",
    .options = options,
    .options_bytes = sizeof(struct gc_options_cli),
    .run = run};

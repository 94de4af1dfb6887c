/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn rm: remove a run. It first asks the server what would go; at a terminal the name of the run
 * has to be typed. What is removed can be brought back until it is reclaimed. One thread.
 */
#include "mark.h"

#include "base/digits.h"
#include "system/maintenance.h"

#include <string.h>
#include <unistd.h>

struct rm_options {
    const char *reason;
    bool yes, dry_run;
};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN}, {0}};

static const struct option options[] = {
    {"yes", NULL, "remove it without asking", OPTION_AT_FLAG(struct rm_options, yes), .letter = 'y',
     .alone = true},
    {"reason", "TEXT", "reason for the audit record", OPTION_AT_TEXT(struct rm_options, reason)},
    {"dry-run", NULL, "show what would be removed, and change nothing",
     OPTION_AT_FLAG(struct rm_options, dry_run), .letter = 'n'},
    {0}};

/* Asks to remove the run, or what that would do. */
static int ask(struct cli *cli, const struct rm_options *own, bool dry_run,
               struct source_request *request, struct diag *diag)
{
    char actor[MARK_ACTOR_BYTES];
    mark_actor(actor);
    *request = (struct source_request){
        .call.request = {.type = MSG_REMOVE,
                         .u.remove = {.dry_run = dry_run,
                                      .actor = actor,
                                      .reason = own->reason ? own->reason : ""}}};
    return source_call(cli->connection, request, diag);
}

/* Has the name of the run typed. Returns INVALID for any other text. */
static int confirm(const char *name, const struct msg_marked *marked, struct diag *diag)
{
    char line[RUN_NAME_TEXT_MAX + 2] = "";
    fprintf(stderr,
            "This removes %s: %u checkpoint%s, %s. `cairn undelete %s --all` brings it back until "
            "it is reclaimed.\nType the name of the run to remove it: ",
            name, marked->done_count, plural(marked->done_count), bytes_text(marked->bytes).at,
            name);
    bool typed = fgets(line, sizeof(line), stdin) != NULL;
    line[strcspn(line, "\n")] = '\0';
    return typed && strcmp(line, name) == 0
               ? 0
               : diag_set(diag, CAIRN_E_INVALID,
                          "the name that was typed is not %s, so nothing was removed", name);
}

static int show_json(const struct rm_options *own, const char *name,
                     const struct msg_marked *marked)
{
    struct json json;
    json_begin(&json);
    json_str(&json, "run", name);
    json_bool(&json, "dry_run", own->dry_run);
    json_bool(&json, "removed", marked->removed && !own->dry_run);
    json_str(&json, "why", marked->why[0] != '\0' ? marked->why : NULL);
    json_u64(&json, "forgotten", marked->done_count);
    json_u64(&json, "bytes", marked->bytes);
    json_wall(&json, "waits_until", marked->last_wall_ns);
    return json_end(&json);
}

static int show(const struct rm_options *own, const char *name, const struct msg_marked *marked)
{
    char until[160];
    if (marked->why[0] != '\0') { /* nothing is left to be removed */
        struct shown room;
        printf("%s: %s\n", name, shown(&room, marked->why));
        return out_flush();
    }
    printf("%s: %s, with %u checkpoint%s of %s\n", name,
           own->dry_run ? "would be removed" : "removed", marked->done_count,
           plural(marked->done_count), bytes_text(marked->bytes).at);
    if (!own->dry_run && marked->forgotten > 0) {
        maintenance_waits_text(marked->first_wall_ns, marked->last_wall_ns, sizeof(until), until);
        printf("%s: its space waits to be reclaimed, %s; until then `cairn undelete %s --all` "
               "brings the run back, and `cairn gc --now %s` frees the space now, for good\n",
               name, until, name, name);
    }
    return out_flush();
}

/* Looks what would go, and has it confirmed, unless that is not wanted. */
static int check(struct cli *cli, const struct rm_options *own, const char *name, struct diag *diag)
{
    struct source_request request;
    if (own->yes || own->dry_run) {
        return 0;
    }
    if (isatty(STDIN_FILENO) != 1) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "stdin is no terminal, so nobody can confirm that %s is removed; give "
                        "--yes, or --dry-run to see what would go",
                        name);
    }
    int status = ask(cli, own, true, &request, diag);
    status = status != 0 ? status : confirm(name, &request.call.reply.u.marked, diag);
    engine_call_fini(&request.call);
    return status;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct rm_options *own = values;
    struct source_request request = {0};
    char name[RUN_NAME_TEXT_MAX];
    int status = mark_connect(cli, !own->dry_run, diag);
    if (status != 0) {
        return status;
    }
    run_name_format(&cli->run, name);
    status = check(cli, own, name, diag);
    status = status != 0 ? status : ask(cli, own, own->dry_run, &request, diag);
    if (status == 0) {
        const struct msg_marked *marked = &request.call.reply.u.marked;
        status = cli->json    ? show_json(own, name, marked)
                 : cli->quiet ? 0
                              : show(own, name, marked);
    }
    if (status == CAIRN_E_NOT_FOUND) {
        diag_add(diag, "%s", name);
    }
    engine_call_fini(&request.call);
    return status;
}

const struct command command_rm = {
    .name = "rm",
    .group = GROUP_KEEP,
    .summary = "remove a run",
    .details =
        "All checkpoints of the run are forgotten, it is off the list of runs, and no job that "
        "has saved to it goes on. An entry of its chain says who, when and why, and `cairn log` "
        "tells it. Until garbage collection has reclaimed the space, `cairn undelete RUN --all` "
        "brings the run back. A new job may use the name and begins with an empty run.\n\n"
        "The run is not removed while a save is open, a job restores or is connected to the "
        "server, or a checkpoint is pinned. `remove-idle` of a policy removes runs that nobody "
        "uses.",
    .example = "cairn rm lab/try7 --dry-run\ncairn rm lab/try7 --yes --reason \"a bad idea\"",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct rm_options),
    .run = run};

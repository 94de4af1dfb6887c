/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn status: the state of the server; or what became of a save.
 */
#include "cli.h"
#include "server_status.h"

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN, .optional = true},
                                            {"STEP@TERM", .kind = ARGUMENT_CHECKPOINT},
                                            {0}};

static int show(const struct cli *cli, const struct ckpt_info *info)
{
    if (cli->json) {
        return cli_print_info(info);
    }
    bool committed = info->state == CKPT_COMMITTED;
    char standing[STANDING_BYTES];
    struct shown room;
    format_standing(info, standing);
    printf("%s: %s%s%s%s\n", ckpt_id_text(info->id).at, committed ? "committed, " : "", standing,
           info->text && info->text[0] ? ": " : "", shown(&room, info->text));
    return out_flush();
}

static int run(struct cli *cli, void *options, struct diag *diag)
{
    (void)options;
    if (!cli->run_text) {
        return server_status(cli, diag);
    }
    if (cli->selector.kind != SELECT_EXACT) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "'%s' does not say of which term: give the term, %s@TERM, as `cairn ls` "
                        "shows it",
                        cli->selector_text,
                        cli->selector.kind == SELECT_STEP ? cli->selector_text : "STEP");
    }
    int status = cli_connect(cli, true, diag);
    struct source_request request = {
        .call.request = {.type = MSG_STATUS, .u.status = {.id = cli->selector.id}}};
    if (status == 0) {
        status = source_call(cli->connection, &request, diag);
    }
    if (status == 0) {
        const struct ckpt_info *info = &request.call.reply.u.status_reply.info;
        status = show(cli, info);
        if (status == 0 && info->state == CKPT_NONE) {
            status = err_exit_status(CAIRN_E_NOT_FOUND);
        }
    }
    engine_call_fini(&request.call);
    return status;
}

const struct command command_status = {
    .name = "status",
    .group = GROUP_LOOK,
    .summary =
        "show the server's state, or the outcome of a save: open, committed or aborted, and why",
    .details =
        "For a save the command prints its outcome, and the health of a committed one as in `ls` "
        "and `show`.\n\nWithout arguments it prints the server's health, the store, the "
        "connections, the last scrub with what it found, and the last garbage "
        "collection.\n\nHealth is red if saves are refused (the store does not answer, is full, "
        "may not be written to, or was not reached since the server started), with the error, its "
        "duration, and the remedy. It is yellow if saves are taken but somebody should act (a "
        "scrub found damage, there is little room, the store failed a moment ago), and green "
        "otherwise. The exit status is 7 if health is red, and 0 if it is yellow or green.",
    .arguments = arguments,
    .run = run};

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn wait: until a step is durable, until the next commit, or until a save is open.
 */
#include "cli.h"
#include "condition.h"

#include <string.h>

struct wait_options {
    bool next, open;
    uint64_t for_ms;
};

static const struct argument arguments[] = {
    {"RUN", .kind = ARGUMENT_RUN},
    {"CHECKPOINT", .kind = ARGUMENT_CHECKPOINT, .optional = true},
    {0}};

static const struct option options[] = {
    {"next", NULL, "wait until something new is committed",
     OPTION_AT_FLAG(struct wait_options, next)},
    {"open", NULL, "wait until a save is open", OPTION_AT_FLAG(struct wait_options, open)},
    {"for", "DURATION", "time limit; 0 means to check only once",
     OPTION_AT_DURATION(struct wait_options, for_ms), .preset = "10m", .max = 30 * 86400000ull},
    {0}};

struct waiting {
    const struct wait_options *own;
    struct scratch scratch;
    bool looked;
    uint64_t newest_seq; /* at the first look */
    struct ckpt_info found;
};

static int keep(struct waiting *waiting, const struct ckpt_info *info, struct diag *diag)
{
    waiting->found = *info;
    waiting->found.text = scratch_string(&waiting->scratch, info->text ? strlen(info->text) : 0,
                                         info->text ? info->text : "");
    int status = cli_keep_note(&waiting->found, &waiting->scratch, diag);
    return status != 0 ? status : 1;
}

/* --next, --open */
static int ask_list(struct cli *cli, struct waiting *waiting, struct diag *diag)
{
    struct source_request request;
    uint64_t newest = 0;
    int status = condition_list(cli, &request, diag);
    const struct msg_list_reply *list = &request.call.reply.u.list_reply;
    for (uint32_t i = 0; status == 0 && i < list->count; i++) {
        const struct ckpt_info *info = &list->entries[i];
        bool is_new =
            info->state == CKPT_COMMITTED && waiting->looked && info->seq > waiting->newest_seq;
        newest = info->state == CKPT_COMMITTED ? max_u64(newest, info->seq) : newest;
        if (waiting->own->open ? info->state == CKPT_OPEN : is_new) {
            status = keep(waiting, info, diag);
        }
    }
    if (status == 0 && !waiting->looked) {
        waiting->newest_seq = newest;
        waiting->looked = true;
    }
    engine_call_fini(&request.call);
    return status;
}

/* STEP@TERM: one save, which may have ended otherwise. */
static int ask_save(struct cli *cli, struct waiting *waiting, struct diag *diag)
{
    struct source_request request = {
        .call.request = {.type = MSG_STATUS, .u.status = {.id = cli->selector.id}}};
    int status = source_call(cli->connection, &request, diag);
    if (status == 0) {
        const struct ckpt_info *info = &request.call.reply.u.status_reply.info;
        if (info->state == CKPT_COMMITTED) {
            status = keep(waiting, info, diag);
        } else if (info->state == CKPT_ABORTED || info->state == CKPT_FORGOTTEN) {
            bool aborted = info->state == CKPT_ABORTED;
            status = diag_set(diag, aborted ? CAIRN_E_ABORTED : CAIRN_E_NOT_FOUND, "%s%s%s",
                              state_name(info->state), info->text && info->text[0] ? ": " : "",
                              info->text ? info->text : "");
        }
    }
    engine_call_fini(&request.call);
    return status;
}

static int ask_step(struct cli *cli, struct waiting *waiting, struct diag *diag)
{
    struct ckpt_info info;
    int status = cli_resolve(cli, &cli->selector, &waiting->scratch, &info, diag);
    if (status == CAIRN_E_NOT_FOUND) {
        return 0;
    }
    return status != 0 ? status : keep(waiting, &info, diag);
}

static int look(struct cli *cli, void *user, struct diag *diag)
{
    struct waiting *waiting = user;
    if (waiting->own->next || waiting->own->open) {
        return ask_list(cli, waiting, diag);
    }
    return cli->selector.kind == SELECT_EXACT ? ask_save(cli, waiting, diag)
                                              : ask_step(cli, waiting, diag);
}

static int show(const struct cli *cli, const struct ckpt_info *info)
{
    if (cli->json) {
        return cli_print_info(info);
    }
    printf("%s: %s\n", ckpt_id_text(info->id).at, state_name(info->state));
    return out_flush();
}

/* Adds what was waited for, of which run. */
static void say_what(const struct cli *cli, const struct wait_options *own, struct diag *diag)
{
    diag_add(diag, "%s: waited for %s%s", run_name_text(&cli->run).at,
             own->next            ? "the next commit"
             : own->open          ? "an open save"
             : cli->selector_text ? "the commit of checkpoint "
                                  : "a first checkpoint",
             cli->selector_text ? cli->selector_text : "");
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct wait_options *own = values;
    struct waiting waiting = {.own = own};
    struct condition condition = {.for_ms = own->for_ms, .user = &waiting, .look = look};
    if (own->next + own->open + (cli->selector_text != NULL) > 1) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "CHECKPOINT, --next and --open exclude each other; give only one of them");
    }
    scratch_init(&waiting.scratch, MIB(64));
    int status = condition_run(cli, &condition, diag);
    if (status == CAIRN_E_TIMED_OUT) {
        say_what(cli, own, diag);
    }
    status = status != 0 ? status : show(cli, &waiting.found);
    scratch_fini(&waiting.scratch);
    return status;
}

const struct command command_wait = {
    .name = "wait",
    .group = GROUP_LOOK,
    .summary = "wait until a step is durable, until the next commit, or until a save is open",
    .details = "Without CHECKPOINT and options the command waits until the run has a checkpoint at "
               "all. If the server goes away in between, the command asks it again. The exit "
               "status is 5 if the time ran out. For STEP@TERM it is 1 if that save was aborted, "
               "and 4 if the checkpoint was forgotten.",
    .example = "cairn wait lab/gpt 1200 --for 5m\ncairn wait lab/gpt --next",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct wait_options),
    .run = run};

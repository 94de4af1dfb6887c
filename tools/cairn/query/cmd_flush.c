/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn flush: until no save of the run is open any more. Clients and daemon finish what is staged
 * by themselves; there is nothing to push. What this adds is the end of it, and how each save
 * ended.
 */
#include "cli.h"
#include "condition.h"
#include "exit_status.h"

enum { OPEN_MAX = 64 };

struct flush_options {
    uint64_t for_ms;
};

static const struct argument arguments[] = {{"RUN", .kind = ARGUMENT_RUN, .optional = true}, {0}};

static const struct option options[] = {{"for", "DURATION", "time limit",
                                         OPTION_AT_DURATION(struct flush_options, for_ms),
                                         .preset = "30s", .max = 30 * 86400000ull},
                                        {0}};

struct flushing {
    struct ckpt_id saves[OPEN_MAX]; /* that were open at some look */
    size_t count;
    char open[400]; /* what still is, at the last look */
};

static void note(struct flushing *flushing, struct ckpt_id id)
{
    for (size_t i = 0; i < flushing->count; i++) {
        if (ckpt_id_equal(flushing->saves[i], id)) {
            return;
        }
    }
    if (flushing->count < OPEN_MAX) {
        flushing->saves[flushing->count++] = id;
    }
}

static int look(struct cli *cli, void *user, struct diag *diag)
{
    struct flushing *flushing = user;
    struct source_request request;
    int status = condition_list(cli, &request, diag);
    if (status == 0) {
        const struct msg_list_reply *list = &request.call.reply.u.list_reply;
        flushing->open[0] = '\0';
        size_t at = 0;
        status = 1;
        for (uint32_t i = 0; i < list->count; i++) {
            const struct ckpt_info *info = &list->entries[i];
            if (info->state == CKPT_OPEN) {
                note(flushing, info->id);
                int n = snprintf(flushing->open + at, sizeof(flushing->open) - at,
                                 "; %s is open: %u of %u ranks have sealed%s%s",
                                 ckpt_id_text(info->id).at, info->sealed_count, info->world_size,
                                 info->text && info->text[0] ? ", it waits for " : "",
                                 info->text ? info->text : "");
                at = min_u64(at + (size_t)(n > 0 ? n : 0), sizeof(flushing->open) - 1);
                status = 0;
            }
        }
    }
    engine_call_fini(&request.call);
    return status;
}

struct ended {
    uint64_t committed, aborted;
};

static int count_ended(struct cli *cli, const struct flushing *flushing, struct json *json,
                       struct ended *io, struct diag *diag)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < flushing->count; i++) {
        struct source_request request = {
            .call.request = {.type = MSG_STATUS, .u.status = {.id = flushing->saves[i]}}};
        status = source_call(cli->connection, &request, diag);
        if (status == 0) {
            const struct ckpt_info *info = &request.call.reply.u.status_reply.info;
            io->committed += info->state == CKPT_COMMITTED;
            io->aborted += info->state != CKPT_COMMITTED;
            json_info(json, NULL, info);
            if (!cli->json && !cli->quiet) {
                struct shown room;
                printf("%s: %s%s%s\n", ckpt_id_text(info->id).at, state_name(info->state),
                       info->text && info->text[0] ? ": " : "", shown(&room, info->text));
            }
        }
        engine_call_fini(&request.call);
    }
    return status;
}

static int finish(struct cli *cli, const struct flushing *flushing, struct diag *diag)
{
    struct json json;
    struct ended ended = {0};
    json_begin(&json);
    json_open(&json, "saves", '[');
    int status = count_ended(cli, flushing, &json, &ended, diag);
    json_close(&json, ']');
    json_u64(&json, "committed", ended.committed);
    json_u64(&json, "aborted", ended.aborted);
    json_close(&json, '}');
    if (status == 0 && cli->json) {
        status = json_print(&json);
    } else if (status == 0 && !cli->quiet) {
        printf("no save is open; %llu became durable, and %llu did not\n",
               (unsigned long long)ended.committed, (unsigned long long)ended.aborted);
        status = out_flush();
    }
    json_fini(&json);
    return status != 0 ? status : ended.aborted > 0 ? EXIT_PARTIAL : 0;
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct flush_options *own = values;
    struct flushing flushing = {.open = ""};
    struct condition condition = {.for_ms = own->for_ms, .user = &flushing, .look = look};
    int status = condition_run(cli, &condition, diag);
    if (status == CAIRN_E_TIMED_OUT && flushing.open[0] != '\0') {
        struct diag over = *diag;
        diag_clear(diag);
        status = diag_set(diag, status, "%s%s", over.text, flushing.open);
    }
    return status != 0 ? status : finish(cli, &flushing, diag);
}

const struct command command_flush = {
    .name = "flush",
    .group = GROUP_LOOK,
    .summary = "wait until no save of a run is open",
    .details = "Use this command before a machine is taken away. Ranks and server finish by "
               "themselves what is staged; the command waits until they have, and prints how each "
               "save ended. The exit status is 0 if no save is open, 3 if no save is open but one "
               "of the open saves was aborted, and 5 if the time ran out; stderr then names the "
               "open saves and the ranks that are missing.",
    .example = "trap 'cairn flush lab/gpt --for 25s; scontrol requeue $SLURM_JOB_ID' USR1",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct flush_options),
    .run = run};

/* SPDX-License-Identifier: Apache-2.0
 *
 * See reclaim.h. A server takes so many names in one message; more go in several, one after
 * another, and their reports are added up.
 */
#include "reclaim.h"

#include "maintenance.h"
#include "offline_gc.h"

static int ask(struct cli *cli, const struct msg_gc *gc, struct source_request *request,
               struct diag *diag)
{
    struct msg msg = {.type = MSG_GC, .u.gc = *gc};
    return maintenance_ask(cli, &msg, request, diag);
}

int reclaim_ask(struct cli *cli, const struct msg_gc *asked, struct gc_info *ret,
                char text[GC_TEXT_MAX], struct diag *diag)
{
    struct source_request request = {.done = false};
    int status = ask(cli, asked, &request, diag);
    if (status == 0 && asked->now && !request.call.reply.u.gc_report.info.now) {
        status = diag_set(
            diag, CAIRN_E_UNSUPPORTED,
            "the server is too old for --now, and has begun an ordinary garbage collection, which "
            "reclaims only what was forgotten for long enough; upgrade the server");
    }
    while (status == 0 && asked->begin && request.call.reply.u.gc_report.info.running) {
        status = maintenance_sleep(cli, &request, diag);
        if (status == 0) {
            status = ask(cli, &(struct msg_gc){.begin = false}, &request, diag);
        }
    }
    if (status == 0) {
        *ret = request.call.reply.u.gc_report.info;
        snprintf(text, GC_TEXT_MAX, "%s", ret->text ? ret->text : "");
        ret->text = text;
    }
    engine_call_fini(&request.call);
    return status;
}

static void add(struct gc_info *io, const struct gc_info *before)
{
    io->reclaimed += before->reclaimed;
    io->objects += before->objects;
    io->smalls += before->smalls;
    io->bytes += before->bytes;
    io->bytes_read += before->bytes_read;
    io->held += before->held;
    io->errors += before->errors;
    io->runs += before->runs;
    io->ckpts += before->ckpts;
    io->code = io->code != 0 ? io->code : before->code;
}

static int reclaim_online(struct cli *cli, const struct reclaim *what, struct gc_info *ret,
                          char text[GC_TEXT_MAX], struct diag *diag)
{
    struct gc_info sum = {.running = false};
    size_t at = 0;
    int status = 0;
    do {
        size_t lot = min_u64(what->run_count - at, MSG_GC_RUNS_MAX);
        struct run_name names[MSG_GC_RUNS_MAX];
        struct gc_info info;
        struct msg_gc gc = {.begin = true,
                            .now = true,
                            .dry_run = what->dry_run,
                            .actor = what->actor,
                            .run_count = (uint32_t)lot,
                            .runs = names};
        for (size_t i = 0; i < lot; i++) {
            names[i] = what->runs[at + i];
        }
        status = reclaim_ask(cli, &gc, &info, text, diag);
        if (status == 0) {
            add(&info, &sum);
            sum = info;
        }
        at += lot;
    } while (status == 0 && at < what->run_count);
    *ret = sum;
    return status;
}

/* The store's lock is this process's own where it has just forgotten something there. */
static int reclaim_offline(struct cli *cli, const struct reclaim *what, struct gc_info *ret,
                           char text[GC_TEXT_MAX], struct diag *diag)
{
    struct offline_gc_options offline = {.store = cli->source.store,
                                         .dry_run = what->dry_run,
                                         .keep_cycles = 1,
                                         .now = true,
                                         .actor = what->actor,
                                         .runs = what->runs,
                                         .run_count = what->run_count};
    source_free(cli->connection);
    cli->connection = NULL;
    return offline_gc(&offline, ret, text, diag);
}

int reclaim_now(struct cli *cli, struct reclaim *what, struct gc_info *ret, char text[GC_TEXT_MAX],
                struct diag *diag)
{
    mark_actor(what->actor);
    if (!what->dry_run && !cli->quiet) {
        fprintf(stderr,
                "cairn: everything that is forgotten in %s is reclaimed now, for good: `cairn "
                "undelete` cannot bring it back afterwards\n",
                what->run_count == 0   ? "all runs"
                : what->run_count == 1 ? "this run"
                                       : "these runs");
    }
    return cli->source.store ? reclaim_offline(cli, what, ret, text, diag)
                             : reclaim_online(cli, what, ret, text, diag);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn scrub: a pass now; and waiting for its end, for cron.
 */
#include "exit_status.h"
#include "maintenance.h"

#include <inttypes.h>

struct scrub_options_cli {
    bool wait, status;
    uint64_t rate; /* as in struct msg_scrub */
};

static int take_rate(void *to, const char *text, struct diag *diag);

static const struct option options[] = {
    {"wait", NULL, "wait until the pass has ended; damage gives exit status 6",
     OPTION_AT_FLAG(struct scrub_options_cli, wait), .letter = 'w'},
    {"rate", "BYTES", "bytes per second, from now on until the daemon restarts; 0 means no limit",
     .kind = OPTION_OTHER, .take = take_rate,
     .at = OPTION_AT(struct scrub_options_cli, rate, uint64_t)},
    {"status", NULL, "only show how far the scrub is",
     OPTION_AT_FLAG(struct scrub_options_cli, status)},
    {0}};

static int take_rate(void *to, const char *text, struct diag *diag)
{
    uint64_t rate = 0;
    if (!option_read_size(text, &rate)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "it must be a size, for instance 64MiB; 0 means no limit");
    }
    *(uint64_t *)to = rate == 0 ? SCRUB_UNLIMITED : rate;
    return 0;
}

static int ask(struct cli *cli, const struct msg_scrub *scrub, struct source_request *request,
               struct diag *diag)
{
    struct msg msg = {.type = MSG_SCRUB, .u.scrub = *scrub};
    return maintenance_ask(cli, &msg, request, diag);
}

/* asked: a pass will begin, of which info says nothing yet. */
static int show(struct cli *cli, const struct scrub_info *info, bool asked)
{
    struct json json;
    if (!cli->json) {
        if (asked) {
            printf("scrub      pass %" PRIu64
                   " begins; `cairn scrub --wait` waits for its end, and `cairn scrub --status` "
                   "shows how far it is. The last pass:\n",
                   info->pass + 1);
        }
        maintenance_show_scrub(info);
        return out_flush();
    }
    json_begin(&json);
    json_bool(&json, "asked", asked);
    maintenance_json_scrub(&json, "scrub", info);
    return json_end(&json);
}

/* Until the pass that was asked for, or was running then, has ended. */
static int wait_for_end(struct cli *cli, uint64_t pass, struct source_request *request,
                        struct diag *diag)
{
    int status = 0;
    while (status == 0) {
        const struct scrub_info *info = &request->call.reply.u.scrub_status.info;
        if (info->pass >= pass && !info->running) {
            return 0;
        }
        status = maintenance_sleep(cli, request, diag);
        if (status == 0) {
            status = ask(cli, &(struct msg_scrub){.begin = false}, request, diag);
        }
    }
    return status;
}

static int connect_daemon(struct cli *cli, struct diag *diag)
{
    return cli->source.store
               ? diag_set(diag, CAIRN_E_INVALID,
                          "scrub needs a daemon; `cairn verify --store %s` reads everything that "
                          "the store has, and needs none",
                          cli->source.store)
               : cli_connect(cli, false, diag);
}

static int run(struct cli *cli, void *own, struct diag *diag)
{
    const struct scrub_options_cli *given = own;
    struct source_request request = {.done = false};
    int status = connect_daemon(cli, diag);
    if (status == 0) {
        status = ask(cli, &(struct msg_scrub){.begin = !given->status, .rate = given->rate},
                     &request, diag);
    }
    if (status == 0 && given->wait) {
        const struct scrub_info *info = &request.call.reply.u.scrub_status.info;
        status = wait_for_end(cli, info->running ? info->pass : info->pass + 1, &request, diag);
    }
    if (status == 0) {
        const struct scrub_info *info = &request.call.reply.u.scrub_status.info;
        status = show(cli, info, !given->status && !given->wait && !info->running);
        if (status == 0 && given->wait && info->findings > 0) {
            status = EXIT_DAMAGE;
            if (!cli->json) {
                maintenance_tell_damage(info); /* cron mails this, and no exit status */
            }
        }
    }
    engine_call_fini(&request.call);
    return status;
}

const struct command command_scrub = {
    .name = "scrub",
    .group = GROUP_KEEP,
    .summary = "read everything that is stored, and name what is damaged",
    .details =
        "The daemon reads all committed checkpoints from the disk at a set rate; while saves or "
        "restores run, it reads only a fiftieth of what they move. Damage lowers a checkpoint's "
        "health and is named by tensor; nothing is deleted. A record that is damaged or lost, or "
        "does not list everything that is stored of its run, is named with its remedy. With --wait "
        "any of these gives exit status 6. The daemon also scrubs by itself after each interval "
        "[scrub] every; this command begins a pass now. On a store with several daemons one of "
        "them scrubs, and the command asks that one by itself; the exit status is 11 if it cannot "
        "be reached.",
    .example = "cairn scrub --wait\ncairn scrub --rate 200MiB",
    .options = options,
    .options_bytes = sizeof(struct scrub_options_cli),
    .run = run};

/* SPDX-License-Identifier: Apache-2.0
 *
 * See condition.h.
 */
#include "condition.h"

enum { EVERY_MS = 250, SEEN_MAX = 200 };

struct pause {
    struct timer timer;
    struct cli *cli;
    bool over;
};

static void on_pause(struct timer *timer)
{
    struct pause *pause = container_of(timer, struct pause, timer);
    pause->over = true;
    source_wake(pause->cli->connection);
}

int condition_pause(struct cli *cli, uint64_t ms, struct diag *diag)
{
    struct pause pause = {.cli = cli};
    timer_init(&pause.timer, source_loop(cli->connection), on_pause);
    timer_start(&pause.timer, ms);
    int status = source_wait(cli->connection, &pause.over, diag);
    timer_stop(&pause.timer);
    return status;
}

int condition_list(struct cli *cli, struct source_request *io, struct diag *diag)
{
    *io =
        (struct source_request){.call.request = {.type = MSG_LIST, .u.list = {.limit = SEEN_MAX}}};
    return source_call(cli->connection, io, diag);
}

static bool is_passing(int status)
{
    return err_exit_status(status) == err_exit_status(CAIRN_E_UNREACHABLE);
}

int condition_run(struct cli *cli, const struct condition *condition, struct diag *diag)
{
    if (cli->source.store) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "a store without a server does not change; ask the server (--server)");
    }
    int status = cli_connect(cli, true, diag);
    if (status != 0) {
        return status;
    }
    uint64_t end = loop_now_ms(source_loop(cli->connection)) + condition->for_ms;
    for (;;) {
        diag_clear(diag);
        status = condition->look(cli, condition->user, diag);
        uint64_t now = loop_now_ms(source_loop(cli->connection));
        if (status != 0 && (!is_passing(status) || now >= end)) {
            return status < 0 ? status : 0;
        }
        if (now >= end) {
            diag_clear(diag); /* what the last look did not find */
            return diag_set(diag, CAIRN_E_TIMED_OUT,
                            "it did not happen within %llu.%03llu s, which --for sets",
                            (unsigned long long)(condition->for_ms / 1000),
                            (unsigned long long)(condition->for_ms % 1000));
        }
        status = condition_pause(cli, min_u64(EVERY_MS, end - now), diag);
        if (status != 0) {
            return status;
        }
    }
}

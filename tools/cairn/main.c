/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn: the operator's command line: the way from words to a command, and from an error to an exit
 * status.
 */
#include "cli.h"
#include "exit_status.h"

#include "base/log.h"

#include <signal.h>
#include <stdlib.h>

static int report(const struct cli *cli, int code, const struct diag *diag)
{
    const char *text = cli->whole_text ? cli->whole_text : diag_text(diag, code);
    int status = code == CAIRN_E_CANCELLED ? EXIT_INTERRUPTED : err_exit_status(code);
    if (status == 1 && cli->command && cli->command->failure != 0) {
        status = cli->command->failure;
    }
    cli_error(cli, code, status, text);
    return status;
}

static int run_command(struct cli *cli, struct diag *diag)
{
    if (!cli->command && !cli->help) {
        if (!cli->json) {
            cli_usage(stderr, NULL);
        }
        return diag_set(diag, CAIRN_E_INVALID, "no command is given; see cairn --help");
    }
    if (cli->help) {
        cli_usage(stdout, cli->command);
        return out_flush();
    }
    return cli->command->run(cli, cli->own_set.values, diag);
}

int main(int argc, char **argv)
{
    struct cli cli;
    struct diag diag = DIAG_INIT;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of the write, not our end */
    log_setup(LOG_ERROR, LOG_TEXT);
    int status = cli_parse(argc, argv, &cli, &diag);
    status = status != 0 ? status : run_command(&cli, &diag);
    int code = status < 0 ? report(&cli, status, &diag) : status;
    if (status == CAIRN_E_CANCELLED) {
        exit(code); /* reads may be in flight into memory of the command */
    }
    cli_fini(&cli);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn: the operator's command line. The table of commands, and the way from an error to an exit
 * status.
 */
#include "cli.h"

#include "base/log.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

const struct command commands[] = {
    {"ls", "[RUN]", "list checkpoints, newest first; without RUN: the runs", "alS", command_ls,
     "Open saves come first, with the ranks that are missing. `*` marks what `restore latest` "
     "takes; superseded\n"
     "checkpoints (off the lineage) are shown with --superseded.\n"},
    {"show", "RUN [CHECKPOINT]", "one checkpoint: who, when, how large, and its tensors", "",
     command_show, "CHECKPOINT is latest (the default), STEP, or STEP@TERM.\n"},
    {"verify", "[RUN [CHECKPOINT]]", "read everything and check every checksum; exit 6 on damage",
     "dD", command_verify,
     "Without CHECKPOINT: every checkpoint of the run; without RUN: of every run. Damage is named "
     "by checkpoint, tensor\n"
     "and object. --read-data-subset N/T reads the Nth of T shares of the objects: T runs read "
     "everything once.\n"},
    {"restore", "RUN [CHECKPOINT] --to DIR", "write a checkpoint as safetensors and JSON files",
     "tf", command_restore,
     "DIR must be absent or empty: the files are written to DIR.partial, checked, synced and "
     "renamed. When the newest\n"
     "checkpoint is damaged, the newest good one is restored and the exit status is 3 (not with "
     "--no-fallback).\n"},
    {"annotate", "RUN CHECKPOINT --metric NAME=VALUE --tag TEXT",
     "add metrics and tags to a checkpoint", "n", command_annotate,
     "CHECKPOINT is latest, STEP, or STEP@TERM. Metrics are set or replaced by name. The "
     "checkpoint's "
     "bytes do not change; `ls` and `show`\n"
     "show what was given with the save and what was annotated since.\n"},
    {"status", "RUN STEP@TERM", "what became of a save: open, committed, aborted, and why", "",
     command_status, ""},
    {"version", "", "the version", "", command_version, ""},
    {0},
};

int command_version(struct cli *cli, struct diag *diag)
{
    (void)diag;
    if (!cli->json) {
        printf("cairn %s\n", CAIRN_VERSION);
        return 0;
    }
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    json_str(&json, "version", CAIRN_VERSION);
    json_close(&json, '}');
    int status = json_print(&json);
    json_fini(&json);
    return status;
}

/* With --json an error is one JSON object on stderr. */
static int report(const struct cli *cli, int code, const struct diag *diag)
{
    int status = code == CAIRN_E_CANCELLED ? EXIT_INTERRUPTED : err_exit_status(code);
    if (!cli->json) {
        fprintf(stderr, "cairn: %s: %s\n", err_name(code), diag_text(diag, code));
        return status;
    }
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "schema_version", JSON_SCHEMA_VERSION);
    json_str(&json, "message_type", "exit_error");
    json_u64(&json, "code", (uint64_t)status);
    json_str(&json, "error", err_name(code));
    json_str(&json, "message", diag_text(diag, code));
    json_close(&json, '}');
    fprintf(stderr, "%.*s\n", (int)json.buf.bytes, (const char *)json.buf.data);
    json_fini(&json);
    return status;
}

int main(int argc, char **argv)
{
    struct cli cli;
    const struct command *command = NULL;
    struct diag diag = DIAG_INIT;
    signal(SIGPIPE, SIG_IGN);
    log_setup(LOG_ERROR, LOG_TEXT);
    int status = cli_parse(argc, argv, &cli, &command, &diag);
    if (status != 0) {
        return report(&cli, status, &diag);
    }
    if (!command && !cli.help) {
        if (!cli.json) {
            cli_usage(stderr, NULL);
        }
        return report(&cli, diag_set(&diag, CAIRN_E_INVALID, "which command? See cairn --help"),
                      &diag);
    }
    if (cli.help) {
        cli_usage(stdout, command);
        return 0;
    }
    status = command->run(&cli, &diag);
    if (status == CAIRN_E_CANCELLED) {
        exit(report(&cli, status, &diag)); /* reads may be in flight into memory of the command */
    }
    source_free(cli.connection);
    return status < 0 ? report(&cli, status, &diag) : status;
}

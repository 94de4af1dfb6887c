/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn run: starts a training command, starts it again when it fails, and stops it within a grace
 * such that what was staged becomes durable.
 */
#include "cli.h"
#include "system/supervise.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    TOKEN_BYTES = 16,
    NOT_STARTED = 126,
    EXIT_REQUEUE = 75,
    FLUSH_SHARE = 5,
    FLUSH_MS_MIN = 1000
};

struct run_options {
    const char *run;
    uint64_t max_restarts, grace_ms, backoff_ms, backoff_max_ms, reset_ms;
    bool dry_run;
    struct option_words command;
};

static const struct argument arguments[] = {
    {"COMMAND", .kind = ARGUMENT_WORDS, .at = offsetof(struct run_options, command)}, {0}};

static const struct option options[] = {
    {"run", "RUN",
     "run that the command trains; it becomes CAIRN_RUN, and is flushed when the command is "
     "stopped",
     OPTION_AT_TEXT(struct run_options, run)},
    {"max-restarts", "N", "how often to start the command again after a failure",
     OPTION_AT_COUNT(struct run_options, max_restarts), .preset = "0", .max = 1000000},
    {"grace", "DURATION", "time from SIGTERM to SIGKILL, which includes the flush",
     OPTION_AT_DURATION(struct run_options, grace_ms), .preset = "25s", .max = 86400000},
    {"backoff", "DURATION", "wait before the first restart; it doubles with each restart",
     OPTION_AT_DURATION(struct run_options, backoff_ms), .preset = "1s", .max = 86400000},
    {"backoff-max", "DURATION", "longest wait between restarts",
     OPTION_AT_DURATION(struct run_options, backoff_max_ms), .preset = "5m", .max = 86400000},
    {"reset-after", "DURATION", "a start that lives this long resets the wait to --backoff",
     OPTION_AT_DURATION(struct run_options, reset_ms), .preset = "10m"},
    {"dry-run", NULL, "show what would be started, and start nothing",
     OPTION_AT_FLAG(struct run_options, dry_run), .letter = 'n'},
    {0}};

struct running {
    struct cli *cli;
    const struct run_options *own;
    struct supervise supervise;
    uint64_t restarts, backoff_ms;
    char token[2 * TOKEN_BYTES + 1];
};

/* --- what is said, on stderr: stdout is the command's --- */

static void say(const struct running *running, const char *event, int status, const char *text)
{
    if (!running->cli->json) {
        if (!running->cli->quiet) {
            fprintf(stderr, "cairn run: %s\n", text);
        }
        return;
    }
    struct json json;
    json_begin(&json);
    json_str(&json, "message_type", "run_event");
    json_str(&json, "event", event);
    json_u64(&json, "restarts", running->restarts);
    json_str(&json, "attempt", running->token);
    json_u64(&json, "status", (uint64_t)status);
    json_str(&json, "message", text);
    json_close(&json, '}');
    fprintf(stderr, "%.*s\n", (int)json.buf.bytes, (const char *)json.buf.data);
    json_fini(&json);
}

/* --- the environment of the command --- */

static int set(const char *name, const char *value, struct diag *diag)
{
    if (!value) {
        return 0;
    }
    return setenv(name, value, 1) == 0 ? 0 : diag_errno(diag, errno, "set %s", name);
}

static int set_environment(struct running *running, struct diag *diag)
{
    const struct cli_common *common = &running->cli->common;
    uint8_t random[TOKEN_BYTES];
    char restarts[24];
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        return diag_errno(diag, errno, "cannot draw an attempt token");
    }
    hex_encode(sizeof(random), random, running->token);
    snprintf(restarts, sizeof(restarts), "%" PRIu64, running->restarts);
    int status = set("CAIRN_ATTEMPT", running->token, diag);
    status = status != 0 ? status : set("CAIRN_RESTARTS", restarts, diag);
    status = status != 0 ? status : set("CAIRN_RUN", running->own->run, diag);
    status = status != 0 ? status : set("CAIRN_SERVER", common->server, diag);
    status = status != 0 ? status : set("CAIRN_CA_FILE", common->ca_file, diag);
    status = status != 0 ? status : set("CAIRN_CERT_FILE", common->cert_file, diag);
    return status != 0 ? status : set("CAIRN_KEY_FILE", common->key_file, diag);
}

static int dry_run(const struct running *running)
{
    const struct option_words *command = &running->own->command;
    struct json json;
    json_begin(&json);
    json_str(&json, "run", running->own->run);
    json_u64(&json, "max_restarts", running->own->max_restarts);
    json_u64(&json, "grace_ms", running->own->grace_ms);
    json_open(&json, "command", '[');
    for (size_t i = 0; i < command->count; i++) {
        json_str(&json, NULL, command->items[i]);
    }
    json_close(&json, ']');
    json_close(&json, '}');
    int status = 0;
    if (running->cli->json) {
        status = json_print(&json);
    } else {
        printf("would start, again at most %" PRIu64 " times:", running->own->max_restarts);
        for (size_t i = 0; i < command->count; i++) {
            printf(" %s", command->items[i]);
        }
        printf("\nwith a new CAIRN_ATTEMPT each time%s%s\n",
               running->own->run ? ", and CAIRN_RUN=" : "",
               running->own->run ? running->own->run : "");
        status = out_flush();
    }
    json_fini(&json);
    return status;
}

/* --- the end --- */

/* Waits for the rest of the grace until everything that was staged is durable. Another process
 * waits, because this one must still hear another signal. Returns 0 if everything that was staged
 * is durable, as far as can be known. */
static int flush(struct running *running, struct diag *diag)
{
    char self[] = "/proc/self/exe", word[] = "flush", option[] = "--for", quiet[] = "--quiet";
    char time[32], run[1200];
    char *argv[] = {self, word, run, option, time, quiet, NULL};
    uint64_t now = supervise_now_ms(), kill_at = running->supervise.kill_at_ms;
    uint64_t left = kill_at > now ? kill_at - now : 0;
    uint64_t share = running->own->grace_ms / FLUSH_SHARE;
    left = max_u64(left + share, FLUSH_MS_MIN);
    int status = 0;
    snprintf(time, sizeof(time), "%" PRIu64 "ms", left);
    snprintf(run, sizeof(run), "%s", running->own->run);
    running->supervise.kill_at_ms = now + left + FLUSH_MS_MIN;
    int failed = supervise_run(&running->supervise, argv, &status, diag);
    return failed != 0 ? failed : status;
}

static int stop(struct running *running, int status, struct diag *diag)
{
    int signum = running->supervise.stopped_by;
    bool killed = running->supervise.killed, durable = true;
    char text[200];
    if (running->own->run) {
        running->supervise.killed = false;
        int flushed = flush(running, diag);
        if (flushed < 0) {
            return flushed;
        }
        durable = flushed == 0;
    }
    snprintf(text, sizeof(text), "%s stopped the job; the command ended with %d%s; %s",
             signum == SIGTERM ? "SIGTERM" : "SIGINT", status, killed ? ", killed" : "",
             !running->own->run ? "there is no --run to flush"
             : durable          ? "everything that was staged is durable"
                                : "something that was staged did not become durable");
    say(running, "stopped", status, text);
    return durable && !killed ? 128 + signum : EXIT_REQUEUE;
}

/* Returns whether the command is started again. */
static bool restarts(struct running *running, int status, uint64_t lived_ms)
{
    const struct run_options *own = running->own;
    bool interrupted = status == 128 + SIGINT || status == 126 || status == 127;
    char text[200];
    if (status == 0 || interrupted || running->restarts == own->max_restarts) {
        snprintf(text, sizeof(text), "the command ended with %d after %" PRIu64 " restarts", status,
                 running->restarts);
        say(running, "ended", status, text);
        return false;
    }
    if (lived_ms >= own->reset_ms || running->backoff_ms == 0) {
        running->backoff_ms = own->backoff_ms;
    }
    uint64_t pause = min_u64(running->backoff_ms, own->backoff_max_ms);
    running->backoff_ms = min_u64(pause * 2, own->backoff_max_ms);
    running->restarts++;
    snprintf(text, sizeof(text),
             "the command ended with %d after %" PRIu64 " s; restart %" PRIu64 " of %" PRIu64
             " in %" PRIu64 ".%03" PRIu64 " s",
             status, lived_ms / 1000, running->restarts, own->max_restarts, pause / 1000,
             pause % 1000);
    say(running, "restart", status, text);
    supervise_pause(&running->supervise, pause);
    return true;
}

static int run_until_the_end(struct running *running, struct diag *diag)
{
    for (;;) {
        int ended = 0;
        struct diag why = DIAG_INIT;
        int status = set_environment(running, diag);
        uint64_t began = supervise_now_ms();
        status = status != 0 ? status
                             : supervise_run(&running->supervise, running->own->command.items,
                                             &ended, &why);
        if (status != 0) {
            return status == CAIRN_E_INVALID ? status : diag_copy(diag, &why);
        }
        if (why.text[0] != '\0') {
            say(running, "not_started", ended, why.text);
        }
        if (running->supervise.stopped_by == 0 &&
            !restarts(running, ended, supervise_now_ms() - began)) {
            return ended;
        }
        if (running->supervise.stopped_by != 0) {
            return stop(running, ended, diag);
        }
    }
}

static int run(struct cli *cli, void *values, struct diag *diag)
{
    const struct run_options *own = values;
    struct running running = {.cli = cli, .own = own};
    uint64_t share = own->grace_ms / FLUSH_SHARE; /* of the grace, for the flush */
    struct run_name name;
    struct url url;
    running.supervise.grace_ms = own->run ? own->grace_ms - share : own->grace_ms;
    int status = 0;
    if (own->run) {
        status = strstr(own->run, "://") ? url_parse(own->run, cli->common.server, true, &url, diag)
                                         : run_name_parse(own->run, &name, diag);
    }
    if (status != 0 || own->dry_run) {
        return status != 0 ? status : dry_run(&running);
    }
    status = supervise_begin(&running.supervise, diag);
    return status != 0 ? status : run_until_the_end(&running, diag);
}

const struct command command_run = {
    .name = "run",
    .group = GROUP_SYSTEM,
    .summary = "start a training command, and start it again when it fails",
    .details =
        "Each start gets a new CAIRN_ATTEMPT, the number of restarts as CAIRN_RESTARTS, CAIRN_RUN, "
        "and the server and certificates of this command line as environment variables. Use this "
        "command once per job, for the command that starts all ranks of the job (torchrun, srun, "
        "mpirun).\n\nSIGHUP, SIGUSR1, SIGUSR2, SIGQUIT, SIGCONT and SIGWINCH are passed on. "
        "SIGTERM and SIGINT are passed on once and end the job: the command has four fifths of "
        "--grace to save and end, and then its process group is killed; the rest of --grace is for "
        "`cairn flush RUN`. A second signal kills at once. If this process dies, the command gets "
        "SIGTERM.\n\nThe exit status is 0 if the command ended well. It is the command's own "
        "status (128 + n for signal n) if it failed for the last time, and 126 or 127 if it cannot "
        "be run, which is not tried again. It is 143 (SIGTERM) or 130 (SIGINT) if the job was "
        "stopped, ended in time, and everything that was staged became durable, whatever the "
        "command's own status is. It is 75 if the job was stopped and had to be killed, or "
        "something that was staged did not become durable.",
    .example = "cairn run --run lab/gpt --max-restarts 10 -- torchrun --nproc-per-node 8 train.py",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct run_options),
    .run = run};

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairn run: starts a training command, starts it again when it fails, and stops it within a grace
 * such that what was staged becomes durable. It also asks the command to save and end when a source
 * of node_watch.h tells that the node fails.
 */
#include "cli.h"
#include "system/supervise.h"

#include "format/note.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    TOKEN_BYTES = 16,
    EXIT_REQUEUE = 75,
    FLUSH_SHARE = 5,
    FLUSH_MS_MIN = 1000,
    NOTICES_MAX = 2 /* of one source: then the node is given up */
};

struct run_options {
    const char *run;
    uint64_t max_restarts, grace_ms, backoff_ms, backoff_max_ms, reset_ms;
    bool dry_run;
    const char *watch, *watch_root, *dcgm_url, *node;
    struct option_texts watch_commands;
    uint64_t watch_interval_ms;
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
    {"watch", "SOURCES",
     "ask the command to save and end when the hardware fails: all, or of edac, mce, smart, dcgm, "
     "nvidia, with commas between them",
     OPTION_AT_TEXT(struct run_options, watch)},
    {"watch-command", "COMMAND",
     "shell command whose output, or exit status other than 0, tells that the node fails",
     OPTION_AT_TEXTS(struct run_options, watch_commands), .max = NODE_WATCH_COMMANDS_MAX},
    {"watch-interval", "DURATION",
     "how often a source is read; a read that takes longer is killed; dcgm and nvidia take 3 of "
     "these, smart 12",
     OPTION_AT_DURATION(struct run_options, watch_interval_ms), .preset = "5s", .min = 10,
     .max = 86400000},
    {"watch-root", "DIR", "where /sys and /proc of the host are, in a container", .preset = "/",
     .completes = COMPLETES_DIRECTORIES, OPTION_AT_TEXT(struct run_options, watch_root)},
    {"dcgm-url", "URL", "where the DCGM exporter is", .preset = "http://127.0.0.1:9400/metrics",
     OPTION_AT_TEXT(struct run_options, dcgm_url)},
    {"node", "NAME", "name of this node in messages and tags, if it is not the host's name",
     OPTION_AT_TEXT(struct run_options, node)},
    {"dry-run", NULL, "show what would be started, and start nothing",
     OPTION_AT_FLAG(struct run_options, dry_run), .letter = 'n'},
    {0}};

struct running {
    struct cli *cli;
    const struct run_options *own;
    struct supervise supervise;
    struct node_watch watch;
    char node[NOTICE_NODE_BYTES];
    uint64_t restarts, backoff_ms;
    char token[2 * TOKEN_BYTES + 1];
};

/* --- what is said, on stderr: stdout is the command's --- */

static void say(const struct running *running, const char *event, int status, const char *text)
{
    bool watching =
        strcmp(event, "watch") == 0; /* of another source than the one that gave notice */
    const struct watched *source = watching ? NULL : running->watch.fired;
    if (!running->cli->json) {
        struct shown room;
        if (!running->cli->quiet) {
            fprintf(stderr, "cairn run: %s\n", shown(&room, text));
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
    json_str(&json, "node", running->node);
    json_str(&json, "source", source ? source->name : NULL);
    json_close(&json, '}');
    fprintf(stderr, "%.*s\n", (int)json.buf.bytes, (const char *)json.buf.data);
    json_fini(&json);
}

static void tell(void *context, const char *event, const char *text)
{
    char line[2 * NODE_WATCH_SAID_BYTES];
    const struct running *running = context;
    bool notice = strcmp(event, "notice") == 0;
    snprintf(line, sizeof(line), "%s%s%s%s", notice ? "notice on " : "",
             notice ? running->node : "", notice ? ", " : "watching ", text);
    say(running, event, 0, line);
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
    const char *const variables[][2] = {
        {"CAIRN_ATTEMPT", running->token},
        {"CAIRN_RESTARTS", restarts},
        {"CAIRN_RUN", running->own->run},
        {"CAIRN_SERVER", common->server},
        {"CAIRN_WATCH_ROOT", running->own->watch_root},
        {"CAIRN_DCGM_URL", running->own->dcgm_url},
        {"CAIRN_CA_FILE", common->ca_file},
        {"CAIRN_CERT_FILE", common->cert_file},
        {"CAIRN_KEY_FILE", common->key_file},
    };
    int status = 0;
    for (size_t i = 0; status == 0 && i < ARRAY_LEN(variables); i++) {
        status = set(variables[i][0], variables[i][1], diag);
    }
    return status;
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
    json_open(&json, "watch", '[');
    for (uint32_t i = 0; i < running->watch.count; i++) {
        json_str(&json, NULL, running->watch.sources[i].name);
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

/* Runs this program again as another process, because this one must still hear another signal, and
 * for at most left_ms and a second. Whether the command was killed stays known. Returns the exit
 * status, or an error (< 0). */
static int run_self(struct running *running, char *const *argv, uint64_t left_ms, struct diag *diag)
{
    int status = 0;
    bool killed = running->supervise.killed;
    running->supervise.killed = false;
    running->supervise.kill_at_ms = supervise_now_ms() + left_ms + FLUSH_MS_MIN;
    int failed = supervise_run(&running->supervise, argv, &status, diag);
    running->supervise.killed = killed;
    return failed != 0 ? failed : status;
}

/* Waits for the rest of the grace until everything that was staged is durable. Returns 0 if it is,
 * as far as can be known. */
static int flush(struct running *running, struct diag *diag)
{
    char self[] = "/proc/self/exe", word[] = "flush", option[] = "--for", quiet[] = "--quiet";
    char time[32], run[1200];
    char *argv[] = {self, word, run, option, time, quiet, NULL};
    uint64_t now = supervise_now_ms(), kill_at = running->supervise.kill_at_ms;
    uint64_t left = kill_at > now ? kill_at - now : 0;
    uint64_t share = running->own->grace_ms / FLUSH_SHARE;
    left = max_u64(left + share, FLUSH_MS_MIN);
    snprintf(time, sizeof(time), "%" PRIu64 "ms", left);
    snprintf(run, sizeof(run), "%s", running->own->run);
    return run_self(running, argv, left, diag);
}

static const char *durability(const struct running *running, bool durable)
{
    return !running->own->run ? "there is no --run to flush"
           : durable          ? "everything that was staged is durable"
                              : "something that was staged did not become durable";
}

static int stop(struct running *running, int status, struct diag *diag)
{
    int signum = running->supervise.stopped_by;
    bool killed = running->supervise.killed, durable = true;
    char text[200];
    if (running->own->run) {
        int flushed = flush(running, diag);
        if (flushed < 0) {
            return flushed;
        }
        durable = flushed == 0;
    }
    snprintf(text, sizeof(text), "%s stopped the job; the command ended with %d%s; %s",
             signum == SIGTERM ? "SIGTERM" : "SIGINT", status, killed ? ", killed" : "",
             durability(running, durable));
    say(running, "stopped", status, text);
    return durable && !killed ? 128 + signum : EXIT_REQUEUE;
}

/* --- starts after the first --- */

/* Counts a restart and doubles the wait for the next one. Returns how long to wait for this one, in
 * ms. */
static uint64_t count_restart(struct running *running, uint64_t lived_ms)
{
    const struct run_options *own = running->own;
    if (lived_ms >= own->reset_ms || running->backoff_ms == 0) {
        running->backoff_ms = own->backoff_ms;
    }
    uint64_t pause = min_u64(running->backoff_ms, own->backoff_max_ms);
    running->backoff_ms = min_u64(pause * 2, own->backoff_max_ms);
    running->restarts++;
    return pause;
}

struct ended {
    int status;
    uint64_t lived_ms;
};

/* Returns whether the command is started again after it ended by itself, and how long to wait. */
static bool restarts(struct running *running, struct ended ended, uint64_t *ret_pause_ms)
{
    const struct run_options *own = running->own;
    int status = ended.status;
    bool interrupted = status == 128 + SIGINT || status == 126 || status == 127;
    char text[200];
    if (status == 0 || interrupted || running->restarts == own->max_restarts) {
        snprintf(text, sizeof(text), "the command ended with %d after %" PRIu64 " restarts", status,
                 running->restarts);
        say(running, "ended", status, text);
        return false;
    }
    uint64_t pause = count_restart(running, ended.lived_ms);
    snprintf(text, sizeof(text),
             "the command ended with %d after %" PRIu64 " s; restart %" PRIu64 " of %" PRIu64
             " in %" PRIu64 ".%03" PRIu64 " s",
             status, ended.lived_ms / 1000, running->restarts, own->max_restarts, pause / 1000,
             pause % 1000);
    say(running, "restart", status, text);
    *ret_pause_ms = pause;
    return true;
}

/* Tags the newest checkpoint with the reason. A run that has none yet, or a server that is gone,
 * keeps nobody from leaving the node: `cairn annotate` says on stderr what was wrong. */
static void tag_reason(struct running *running)
{
    char self[] = "/proc/self/exe", word[] = "annotate", newest[] = "latest", option[] = "--tag";
    char quiet[] = "--quiet", run[1200], tag[2 * LABEL_BYTES_MAX];
    char *argv[] = {self, word, run, newest, option, tag, quiet, NULL};
    struct diag ignored = DIAG_INIT;
    snprintf(run, sizeof(run), "%s", running->own->run);
    snprintf(tag, sizeof(tag), NOTICE_TAG "%s, %s: %.60s", running->node,
             running->watch.fired->name, running->watch.said);
    tag[LABEL_BYTES_MAX] = '\0';
    for (char *at = tag; *at != '\0'; at++) {
        *at = *at < ' ' || *at > '~' ? '?' : *at; /* a tag is UTF-8, and this one was cut */
    }
    int status = run_self(running, argv, running->own->grace_ms / FLUSH_SHARE, &ignored);
    if (status != 0) {
        say(running, "watch", 0,
            "the reason could not be written as a tag of the newest checkpoint");
    }
}

/* The same after a source gave notice. Whatever the command's status is, the job may not be at its
 * end, so a job that is not started again is to be queued again. */
static bool outlives_notice(struct running *running, struct ended ended, uint64_t *ret_pause_ms)
{
    const struct watched *source = running->watch.fired;
    struct diag why = DIAG_INIT;
    bool killed = running->supervise.killed, given_up = source->notices >= NOTICES_MAX;
    int flushed = running->own->run ? flush(running, &why) : 0;
    char text[400], end[160];
    if (running->own->run) {
        tag_reason(running);
    }
    bool again = !given_up && running->restarts < running->own->max_restarts;
    if (again) {
        *ret_pause_ms = count_restart(running, ended.lived_ms);
        snprintf(end, sizeof(end),
                 "restart %" PRIu64 " of %" PRIu64 " in %" PRIu64 ".%03" PRIu64 " s",
                 running->restarts, running->own->max_restarts, *ret_pause_ms / 1000,
                 *ret_pause_ms % 1000);
    } else {
        snprintf(end, sizeof(end), "%s%s", given_up ? "this is its notice number 2, so " : "",
                 "the job is not started again on this node");
    }
    snprintf(text, sizeof(text), "%s gave notice on %s; the command ended with %d%s; %s; %s",
             source->name, running->node, ended.status, killed ? ", killed" : "",
             durability(running, flushed == 0), end);
    say(running, again ? "restart" : given_up ? "node_failed" : "noticed", ended.status, text);
    return again;
}

/* Waits before the next start. Returns whether there is one; not if a signal stopped the job. A
 * source may give notice in the wait: an end of the node that was announced stays announced. */
static bool waits_for_next(struct running *running, struct ended ended)
{
    bool again = true;
    do {
        uint64_t pause = 0;
        again = running->supervise.noticed ? outlives_notice(running, ended, &pause)
                                           : restarts(running, ended, &pause);
        if (again && running->supervise.stopped_by == 0) {
            running->supervise.noticed = running->supervise.killed = false;
            node_watch_afresh(&running->watch, supervise_now_ms());
            supervise_pause(&running->supervise, pause);
        }
    } while (again && running->supervise.noticed && running->supervise.stopped_by == 0);
    return again;
}

static int run_until_the_end(struct running *running, struct diag *diag)
{
    for (;;) {
        struct ended ended = {0};
        struct diag why = DIAG_INIT;
        int status = set_environment(running, diag);
        uint64_t began = supervise_now_ms();
        if (status == 0) {
            status = supervise_run(&running->supervise, running->own->command.items, &ended.status,
                                   &why);
        }
        if (status != 0) {
            return status == CAIRN_E_INVALID ? status : diag_copy(diag, &why);
        }
        if (why.text[0] != '\0') {
            say(running, "not_started", ended.status, why.text);
        }
        ended.lived_ms = supervise_now_ms() - began;
        bool again = running->supervise.stopped_by != 0 || waits_for_next(running, ended);
        if (running->supervise.stopped_by != 0) {
            return stop(running, ended.status, diag);
        }
        if (!again) {
            return running->supervise.noticed ? EXIT_REQUEUE : ended.status;
        }
    }
}

/* Sets up what is watched, and starts no probe yet. */
static int set_watch(struct running *running, struct diag *diag)
{
    const struct run_options *own = running->own;
    running->watch.interval_ms = own->watch_interval_ms;
    running->watch.tell = tell;
    running->watch.context = running;
    running->supervise.watch = &running->watch;
    if (own->node) {
        snprintf(running->node, sizeof(running->node), "%s", own->node);
    } else if (gethostname(running->node, sizeof(running->node) - 1) != 0) {
        return diag_errno(diag, errno, "ask for the host's name");
    }
    int status = node_watch_add(&running->watch, own->watch, diag);
    for (uint32_t i = 0; status == 0 && i < own->watch_commands.count; i++) {
        node_watch_add_command(&running->watch, own->watch_commands.items[i]);
    }
    return status;
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
    if (status == 0) {
        status = set_watch(&running, diag);
    }
    if (status != 0) {
        return status;
    }
    if (own->dry_run) {
        return dry_run(&running);
    }
    status = supervise_begin(&running.supervise, diag);
    if (status == 0) {
        status = run_until_the_end(&running, diag);
    }
    node_watch_end(&running.watch);
    return status;
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
        "SIGTERM.\n\nWith --watch or --watch-command this command looks for signs that the node "
        "fails: "
        "counters of uncorrected memory errors (edac) and machine checks (mce) of the kernel, "
        "disks that fail by their own account (smart, by smartctl), errors of GPUs by a DCGM "
        "exporter (dcgm, by curl) or nvidia-smi (nvidia), and commands of your own. A counter that "
        "rises while the job runs, or what a command says, is a notice: the command gets SIGTERM "
        "and --grace as above, what it staged is flushed, the newest checkpoint of --run gets the "
        "reason as a tag, and the command is started again if --max-restarts allows. After the "
        "second notice of the same source it is not, and the message names the node. A source that "
        "is not there, hangs or prints nonsense is reported once and stops nothing.\n\n"
        "The exit status is 0 if the command ended well. It is the command's own "
        "status (128 + n for signal n) if it failed for the last time, and 126 or 127 if it cannot "
        "be run, which is not tried again. It is 143 (SIGTERM) or 130 (SIGINT) if the job was "
        "stopped, ended in time, and everything that was staged became durable, whatever the "
        "command's own status is. It is 75 if the job was stopped and had to be killed, or "
        "something that was staged did not become durable, and after a notice, if the command is "
        "not started again.",
    .example = "cairn run --run lab/gpt --max-restarts 10 -- torchrun --nproc-per-node 8 train.py",
    .arguments = arguments,
    .options = options,
    .options_bytes = sizeof(struct run_options),
    .run = run};

/* SPDX-License-Identifier: Apache-2.0
 *
 * cairnd: command line, configuration and log, then daemon_run(). Exit statuses are those of the
 * error table.
 */
#include "base/build_id.h"
#include "base/check.h"
#include "base/log.h"
#include "base/plain.h"
#include "daemon/daemon.h"
#include "daemon/listeners.h"
#include "http/http.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum action { ACTION_RUN, ACTION_CHECK, ACTION_PRINT, ACTION_HELP, ACTION_VERSION };

struct arguments {
    int argc, at; /* at: the present argument */
    char **argv;
    enum action action;
    const char *file;
};

static void usage(FILE *out)
{
    fprintf(out,
            "usage: cairnd [--config FILE] [--SECTION-KEY VALUE ...]\n       cairnd --config FILE "
            "--check-config | --print-config\n\nThe checkpoint server. It takes its settings from "
            "the file, and then from the flags. On SIGTERM it waits for open\nsaves and ends. On "
            "SIGHUP it reads the file and the flags again.\n\n  --config FILE                  "
            "read this file first\n  --check-config                 check file and flags, and end "
            "with status 0, or with status 2 and the mistake\n  --print-config                 "
            "print the effective configuration as a file, and end\n  --help, --version\n\nKeys, as "
            "flags (in the file: [section] key = value):\n");
    config_usage(out);
    fprintf(out,
            "\nA first run:  cairn store create dir:/srv/cairn\n"
            "              cairnd --store-url dir:/srv/cairn --listen-unix /tmp/cairnd.sock\n");
}

/* Takes one argument of the command line: an action, or a flag with its value. */
static int take_flag(struct config *config, struct arguments *arguments, struct diag *diag)
{
    CHECK(arguments->at < arguments->argc);
    const char *flag = arguments->argv[arguments->at];
    CHECK(flag);
    if (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0) {
        arguments->action = ACTION_HELP;
        return 0;
    }
    if (strcmp(flag, "--version") == 0) {
        arguments->action = ACTION_VERSION;
        return 0;
    }
    if (strcmp(flag, "--check-config") == 0 || strcmp(flag, "--print-config") == 0) {
        arguments->action = flag[2] == 'c' ? ACTION_CHECK : ACTION_PRINT;
        return 0;
    }
    if (strncmp(flag, "--", 2) != 0) {
        return diag_set(diag, CAIRN_E_CONFIG, "cairnd has no option '%s'; see cairnd --help", flag);
    }
    const char *value =
        arguments->at + 1 < arguments->argc ? arguments->argv[++arguments->at] : NULL;
    if (value && strcmp(flag, "--config") == 0) {
        return 0; /* it was read before the flags */
    }
    return config_set(config, flag + 2, value, diag);
}

static const char *config_file(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i++) {
        if (strcmp(argv[i], "--config") == 0) {
            return argv[i + 1];
        }
    }
    return getenv("CAIRN_CONFIG");
}

/* Reads the configuration from the defaults, then from the file, then from the flags. Checks it
 * unless it is only printed. */
static int parse(struct config *config, struct arguments *arguments, struct diag *diag)
{
    config_defaults(config);
    arguments->file = config_file(arguments->argc, arguments->argv);
    int status = arguments->file ? config_read(config, arguments->file, diag) : 0;
    for (arguments->at = 1; status == 0 && arguments->at < arguments->argc; arguments->at++) {
        status = take_flag(config, arguments, diag);
    }
    if (status == 0 && (arguments->action == ACTION_RUN || arguments->action == ACTION_CHECK)) {
        status = config_check(config, diag);
        status = status != 0 ? status : listeners_check(config, diag);
    }
    return status;
}

/* Reads file and flags again, on SIGHUP, as at the start. */
static int reread(void *user, struct config *ret, struct diag *diag)
{
    return parse(ret, user, diag);
}

static int fail(int status, const struct diag *diag)
{
    char text[2 * DIAG_TEXT_MAX];
    fprintf(stderr, "cairnd: %s: %s\n", err_name(status),
            plain_copy(diag_text(diag, status), sizeof(text), text));
    return err_exit_status(status);
}

/* Raises the limit of open descriptors. Every connection, file and arena is one: the usual soft
 * limit of 1024 is less than [session] max needs, and nothing here uses select(). */
static void raise_descriptor_limit(const struct config *config)
{
    enum { DESCRIPTORS_PER_SESSION = 4, DESCRIPTORS_OF_DAEMON = 256 };
    struct rlimit limit;
    rlim_t wanted = (rlim_t)config->sessions_max * DESCRIPTORS_PER_SESSION + DESCRIPTORS_OF_DAEMON +
                    (config->http_listen[0] != '\0' ? HTTP_CONNS_MAX : 0);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted) {
        LOG(LOG_WARN, "daemon",
            "there are too few file descriptors for [session] max: raise LimitNOFILE of the unit, "
            "or ulimit -n",
            lu("have", limit.rlim_cur), lu("want", wanted));
    }
}

int main(int argc, char **argv)
{
    static struct config config;
    struct arguments arguments = {.argc = argc, .argv = argv, .action = ACTION_RUN};
    struct diag diag = DIAG_INIT;
    /* None of these may end a daemon without its grace: a peer that is gone, a limit on file sizes
     * (which fails the write), or a signal that other daemons take as "open your logs again".
     * SIGHUP reads the configuration again once the daemon runs. SIGQUIT ends at once, like
     * SIGKILL. */
    static const int ignored[] = {SIGPIPE, SIGXFSZ, SIGUSR1, SIGUSR2, SIGHUP};
    for (size_t i = 0; i < ARRAY_LEN(ignored); i++) {
        signal(ignored[i], SIG_IGN);
    }
    int status = parse(&config, &arguments, &diag);
    if (status != 0) {
        return fail(status, &diag);
    }
    switch (arguments.action) {
    case ACTION_HELP:
        usage(stdout);
        return 0;
    case ACTION_VERSION:
        printf("cairnd %s (build %s)\n", CAIRN_VERSION, build_id);
        return 0;
    case ACTION_PRINT:
        config_print(&config, stdout);
        return 0;
    case ACTION_CHECK:
        printf("the configuration is good\n");
        return 0;
    case ACTION_RUN:
        break;
    }
    daemon_set_log(&config);
    raise_descriptor_limit(&config);
    struct daemon_options options = {.config = &config, .reread = reread, .user = &arguments};
    status = daemon_run(&options, &diag);
    return status == 0 ? 0 : fail(status, &diag);
}

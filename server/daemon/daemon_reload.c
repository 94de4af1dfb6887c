/* SPDX-License-Identifier: Apache-2.0
 *
 * SIGHUP: the daemon reads its configuration again, and tells the parts that have copied a value.
 * Called by the loop.
 */
#include "daemon/daemon_private.h"

#include "base/failpoint.h"
#include "base/log.h"
#include "net/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void daemon_set_log(const struct config *config)
{
    enum log_level level = LOG_INFO;
    enum log_format format = LOG_TEXT;
    /* config_check() has checked both words. */
    err_ignore(log_parse_level(config->log_level, &level));
    err_ignore(log_parse_format(config->log_format, &format));
    log_setup(level, format);
}

/* Called for each key that differs after a reload of the configuration. Counts those that wait for
 * a restart. */
static void on_differs(void *user, const char *section, const char *name, bool is_taken)
{
    unsigned *waiting = user;
    if (is_taken) {
        LOG(LOG_INFO, "config", "a changed setting is in effect", ls("section", section),
            ls("key", name[0] != '\0' ? name : NULL));
    } else {
        ++*waiting;
        LOG(LOG_WARN, "config", "a changed setting takes effect only after a restart",
            ls("section", section), ls("key", name));
    }
}

/* Passes on the new configuration to parts that do not read it each time. Retention may begin, end,
 * or go on with another interval. */
static int apply_config(struct daemon *daemon)
{
    const struct config *config = daemon->config;
    if (daemon->upkeep) {
        upkeep_reload(daemon->upkeep);
    }
    if (!daemon->retain) {
        int status = FAILPOINT("daemon.retention");
        return status == 0 && daemon->phase == DAEMON_READY ? daemon_start_retention(daemon)
                                                            : status;
    }
    if (config->retention_ms > 0) {
        retain_set_interval(daemon->retain, config->retention_ms);
        return 0;
    }
    retain_free(daemon->retain);
    daemon->retain = NULL;
    return 0;
}

/* Tells of what could not be taken, in the log and, until the next SIGHUP, in the daemon's health.
 */
static void tell_failure(struct daemon *daemon, const char *about, const char *what, int status,
                         const struct diag *diag)
{
    CHECK(status != 0);
    LOG(LOG_ERROR, about, what, ls("code", err_name(status)), ls("err", diag_text(diag, status)));
    size_t at = strlen(daemon->reload_error);
    snprintf(daemon->reload_error + at, sizeof(daemon->reload_error) - at, "%s%s: %s",
             at == 0 ? "at the last SIGHUP " : "; ", what, diag_text(diag, status));
}

/* Takes what the files of [tls] hold now. The files were checked with the rest. */
static void renew_certificate(struct daemon *daemon)
{
    const struct config *config = daemon->config;
    struct diag diag = DIAG_INIT;
    if (!daemon->listeners || config->tls_cert[0] == '\0') {
        return;
    }
    int status = listeners_renew(daemon->listeners, config, &diag);
    if (status != 0) {
        tell_failure(daemon, "listen", "the daemon keeps its old certificate", status, &diag);
        return;
    }
    if (!config->http_tls) { /* else the one that ends first is still in use */
        err_ignore(tls_certificate_ends(config->tls_cert, &daemon->certificate_ends_s, NULL));
    }
    LOG(LOG_INFO, "listen", "new connections get what the files of [tls] hold now",
        ls("cert", config->tls_cert),
        ls("http", config->http_tls ? "keeps the old certificate until a restart" : NULL));
}

void daemon_on_reload(void *user, int signum)
{
    struct daemon *daemon = user;
    const struct daemon_options *options = daemon->options;
    struct diag diag = DIAG_INIT;
    unsigned waiting = 0;
    (void)signum;
    if (daemon_is_ending(daemon) || !options->reread) {
        return;
    }
    daemon->reload_error[0] = '\0';
    struct config *fresh = malloc(sizeof(*fresh));
    int status = fresh ? options->reread(options->user, fresh, &diag) : CAIRN_E_NO_MEMORY;
    if (status != 0) {
        tell_failure(daemon, "config",
                     "nothing of the configuration file was taken, and the daemon keeps its old "
                     "configuration",
                     status, &diag);
        free(fresh);
        return;
    }
    if (!log_enabled(LOG_INFO)) {
        daemon_set_log(fresh); /* the following lines use the more verbose of both levels */
    }
    config_reload(options->config, fresh, on_differs, &waiting);
    status = apply_config(daemon);
    renew_certificate(daemon);
    if (daemon->phase == DAEMON_READY) {
        daemon_show_web(daemon, true);
    }
    LOG(LOG_INFO, "config", "the daemon has read its configuration again",
        lu("need_restart", waiting));
    if (status != 0) {
        tell_failure(daemon, "config",
                     "the new configuration came into effect, but [retention] could not be started",
                     status, &diag);
    }
    daemon_set_log(options->config);
    free(fresh);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * daemon: one cairnd from configuration to orderly end: loop, pools, store, catalogue, server,
 * listeners.
 */
#ifndef CAIRN_DAEMON_DAEMON_H
#define CAIRN_DAEMON_DAEMON_H

#include "daemon/config.h"

struct daemon_options {
    struct config *config; /* checked; what may change while the daemon runs changes in it */
    /* On SIGHUP: the configuration as it would be at a start now, checked; NULL: it cannot be read
     * again. */
    int (*reread)(void *user, struct config *ret, struct diag *diag);
    void *user;
};

/* Level and format of the log, from a configuration that was checked. */
void daemon_set_log(const struct config *config);
/* Runs until SIGTERM or SIGINT and the end of the grace (a second signal ends it at once). Blocks.
 * 0: an orderly end; otherwise why it could not start (nothing is left running), or INTERNAL. */
int MUST_USE daemon_run(const struct daemon_options *options, struct diag *diag);

#endif

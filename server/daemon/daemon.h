/* SPDX-License-Identifier: Apache-2.0
 *
 * daemon: runs one cairnd from its configuration to an orderly end: loop, pools, store, catalogue,
 * server and listeners.
 */
#ifndef CAIRN_DAEMON_DAEMON_H
#define CAIRN_DAEMON_DAEMON_H

#include "daemon/config.h"

struct daemon_options {
    struct config *config; /* checked; values that may change at run time change in it */
    /* Called on SIGHUP: gives the configuration as a start would read it now, checked. NULL if it
     * cannot be read again. */
    int (*reread)(void *user, struct config *ret, struct diag *diag);
    void *user;
};

/* Sets level and format of the log from a configuration that was checked. */
void daemon_set_log(const struct config *config);
/* Runs until SIGTERM or SIGINT and the end of the grace; a second signal ends it at once. Blocks.
 * Returns 0 after an orderly end. Otherwise it returns why the daemon could not start (nothing is
 * left running), or INTERNAL. */
int MUST_USE daemon_run(const struct daemon_options *options, struct diag *diag);

#endif

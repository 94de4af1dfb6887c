/* SPDX-License-Identifier: Apache-2.0
 *
 * daemon: one cairnd from configuration to orderly end: loop, pools, store, catalogue, server,
 * listeners.
 */
#ifndef CAIRN_DAEMON_DAEMON_H
#define CAIRN_DAEMON_DAEMON_H

#include "daemon/config.h"

/* Runs until SIGTERM or SIGINT and the end of the grace (a second signal ends it at once). Blocks.
 * 0: an orderly end; otherwise why it could not start (nothing is left running), or INTERNAL. */
int MUST_USE daemon_run(const struct config *config, struct diag *diag);

#endif

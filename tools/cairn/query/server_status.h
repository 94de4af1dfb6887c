/* SPDX-License-Identifier: Apache-2.0
 *
 * server_status: shows the state of the server, as `cairn status` does without arguments. One
 * thread.
 */
#ifndef CAIRN_TOOLS_SERVER_STATUS_H
#define CAIRN_TOOLS_SERVER_STATUS_H

#include "cli.h"

/* Asks the server for its state and shows it on one screen, or as a document with --json. Returns
 * EXIT_RED if the server's health is red, 0 if it is not, and otherwise an error with its text in
 * diag. Blocks until the server has answered. */
int MUST_USE server_status(struct cli *cli, struct diag *diag);

#endif

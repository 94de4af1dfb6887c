/* SPDX-License-Identifier: Apache-2.0
 *
 * server_status: the state of the server on one screen: `cairn status` without arguments.
 */
#ifndef CAIRN_TOOLS_SERVER_STATUS_H
#define CAIRN_TOOLS_SERVER_STATUS_H

#include "cli.h"

int MUST_USE server_status(struct cli *cli, struct diag *diag);

#endif

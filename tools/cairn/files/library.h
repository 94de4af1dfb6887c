/* SPDX-License-Identifier: Apache-2.0
 *
 * library: how a command saves: as a rank of a world of one, through libcairn. Include cairn.h
 * first.
 */
#ifndef CAIRN_TOOLS_LIBRARY_H
#define CAIRN_TOOLS_LIBRARY_H

#include "cairn.h"

#include "cli.h"

enum { LIBRARY_URL_BYTES = 6000 };

/* The library's error as ours. */
int MUST_USE library_error(int code, const struct cairn_error *error, struct diag *diag);
/* The URL of server and run as the library takes it. */
int MUST_USE library_url(struct cli *cli, char ret[LIBRARY_URL_BYTES], struct diag *diag);
/* World of one, deadlines and certificates of the command line. */
void library_options(struct cli *cli, struct cairn_options *ret);
/* EXISTS: the run has checkpoints, and a save would begin a lineage beside them. */
int MUST_USE library_check_empty(const char *url, const struct cairn_options *options,
                                 struct diag *diag);

#endif

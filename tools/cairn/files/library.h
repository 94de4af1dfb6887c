/* SPDX-License-Identifier: Apache-2.0
 *
 * library: how a command saves: as a rank of a world of one, through libcairn. Include cairn.h
 * first.
 */
#ifndef CAIRN_TOOLS_LIBRARY_H
#define CAIRN_TOOLS_LIBRARY_H

#include "cairn.h"

#include "cli.h"

struct library_use {
    bool new_lineage;                  /* also if the run has checkpoints */
    uint64_t arena_bytes, deadline_ms; /* 0 means the library's own */
    int (*use)(void *user, cairn_t *cairn, struct diag *diag);
    void *user;
};

/* The library's error as ours. */
int MUST_USE library_error(int code, const struct cairn_error *error, struct diag *diag);
/* Opens the run of the command line, with its deadlines and certificates, as a world of one, has
 * it used, and closes it. EXISTS: the run has checkpoints, and a save would begin a lineage beside
 * them. */
int MUST_USE library_use(struct cli *cli, const struct library_use *use, struct diag *diag);

#endif

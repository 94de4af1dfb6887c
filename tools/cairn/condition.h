/* SPDX-License-Identifier: Apache-2.0
 *
 * condition: asks again and again until a condition holds or the time is over. Only for a
 * server: a store without one does not change. One thread.
 */
#ifndef CAIRN_TOOLS_CONDITION_H
#define CAIRN_TOOLS_CONDITION_H

#include "cli.h"

struct condition {
    uint64_t for_ms; /* how long to ask at most; 0 asks once */
    void *user;
    /* Asks for what it needs. Returns 1 if the condition holds, 0 to be called again, or an error
     * with its text in diag. */
    int (*look)(struct cli *cli, void *user, struct diag *diag);
};

/* Connects, and looks until the condition holds. A server that cannot be reached for a while is
 * asked again. Returns TIMED_OUT when the time is over, or UNSUPPORTED with --store. */
int MUST_USE condition_run(struct cli *cli, const struct condition *condition, struct diag *diag);
/* Lists the newest of the run: open saves first, then committed ones. The caller calls
 * engine_call_fini(&io->call) after use, also after a failure. */
int MUST_USE condition_list(struct cli *cli, struct source_request *io, struct diag *diag);
/* Lets ms pass on the connection's loop. Returns CANCELLED if a signal ends the wait. */
int MUST_USE condition_pause(struct cli *cli, uint64_t ms, struct diag *diag);

#endif

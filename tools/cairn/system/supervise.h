/* SPDX-License-Identifier: Apache-2.0
 *
 * supervise: one process that is started, waited for, and stopped within a grace. Signals come to
 * this process and are passed on; SIGCHLD and they are waited for, never handled. One thread, which
 * must be the only one until supervise_begin() has blocked the signals.
 */
#ifndef CAIRN_TOOLS_SUPERVISE_H
#define CAIRN_TOOLS_SUPERVISE_H

#include "system/node_watch.h"

#include <stdint.h>
#include <sys/types.h>

struct supervise {
    uint64_t grace_ms; /* from the first SIGTERM or SIGINT to SIGKILL */
    int stopped_by;    /* 0, SIGTERM or SIGINT: the first that came */
    bool killed;       /* the grace was over, or a second signal came */
    bool noticed;      /* a source gave notice, and the process was asked to end by SIGTERM */
    uint64_t kill_at_ms;
    /* Probed while the process runs and in pauses; may have no sources. */
    struct node_watch *watch;
    pid_t child; /* 0 if there is none */
};

/* Blocks the signals that are waited for; children get them back. Ends an ignored
 * SIGCHLD, for children too. */
int MUST_USE supervise_begin(struct supervise *supervise, struct diag *diag);
/* Runs argv (ended by NULL) in a process group of its own until it has ended. ret_status: its exit
 * status, 128 + n for signal n; 127: there is no such command, 126: it cannot be run. An error only
 * where no process could be made. */
int MUST_USE supervise_run(struct supervise *supervise, char *const *argv, int *ret_status,
                           struct diag *diag);
/* Waits ms, or until a signal says stop or a source gives notice. */
void supervise_pause(struct supervise *supervise, uint64_t ms);
uint64_t supervise_now_ms(void);

#endif

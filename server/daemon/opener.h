/* SPDX-License-Identifier: Apache-2.0
 *
 * opener: opens a store that may be out of reach for a while (a cluster), on a worker's thread, and
 * again and again until it is there. What will not heal by itself or by an operator's hand on the
 * cluster (another store than expected, a format of the future, none at all) ends it.
 */
#ifndef CAIRN_DAEMON_OPENER_H
#define CAIRN_DAEMON_OPENER_H

#include "store/open/store_open.h"

struct opener;

struct opener_options {
    struct store_open_options open; /* what it points to outlives the opener */
    uint64_t again_ms;              /* between two tries */
    /* 0: *store is the callee's; else it is given up. Once, unless it was stopped before. */
    void (*ended)(void *user, int status, struct store *store, const struct diag *diag);
    void (*failed)(void *user, const struct diag *diag); /* it is tried again */
    void *user;
};

/* The first try begins at once; all callbacks come from a turn of the loop. */
int MUST_USE opener_new(const struct opener_options *options, struct opener **ret);
/* Ends after the try in flight, which the cluster's time-out bounds; a store that it opened is
 * closed again. Frees; done may be NULL only when `ended` was called. */
void opener_close(struct opener *opener, void (*done)(void *user), void *user);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * opener: opens a store that may be out of reach for a while (a cluster), on a worker's thread, and
 * tries again until it succeeds. It gives up on errors that will not go away by themselves or by an
 * operator's work on the cluster: another store than expected, a format of the future, no store at
 * all.
 */
#ifndef CAIRN_DAEMON_OPENER_H
#define CAIRN_DAEMON_OPENER_H

#include "store/open/store_open.h"

struct opener;

struct opener_options {
    struct store_open_options open; /* what it points to outlives the opener */
    uint64_t again_ms;              /* milliseconds between two tries */
    /* Called once, unless the opener was closed before. With status 0 the callee owns *store;
     * another status means that the opener has given up. */
    void (*ended)(void *user, int status, struct store *store, const struct diag *diag);
    /* A try has failed, and another one follows. */
    void (*failed)(void *user, const struct diag *diag);
    void *user;
};

/* Begins the first try at once. All callbacks come from a turn of the loop. */
int MUST_USE opener_new(const struct opener_options *options, struct opener **ret);
/* Ends after the try in flight, which the time-out of the cluster bounds, and closes a store that
 * this try has opened. Frees. `done` may be NULL only if `ended` was called. */
void opener_close(struct opener *opener, void (*done)(void *user), void *user);

#endif

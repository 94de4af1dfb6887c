/* SPDX-License-Identifier: Apache-2.0
 *
 * upkeep: what the daemon does for its store by itself: scrub and garbage collection, each only
 * while it is this daemon's duty; and what it says about them in the log. One loop's thread.
 */
#ifndef CAIRN_DAEMON_UPKEEP_H
#define CAIRN_DAEMON_UPKEEP_H

#include "daemon/config.h"
#include "session/server.h"

struct upkeep;

struct upkeep_options {
    struct loop *loop;
    struct catalog *catalog;
    struct work_pool *pool; /* for checks */
    struct server *server;  /* its load is watched; told of what it may be asked about */
    const struct config *config;
    void (*store_state)(void *user, struct store_state *ret); /* how the store is */
    void *store_user;
};

int MUST_USE upkeep_new(const struct upkeep_options *options, struct upkeep **ret,
                        struct diag *diag);
/* The configuration has changed: times and rates hold from now on. */
void upkeep_reload(struct upkeep *upkeep);
/* Borrowed until upkeep_close. */
const struct scrub *upkeep_scrub(const struct upkeep *upkeep);
const struct gc *upkeep_gc(const struct upkeep *upkeep);
/* The store has just refused something for want of room. */
void upkeep_press(struct upkeep *upkeep);
/* The server is gone, or goes: nobody asks any more. Ends what is in flight, gives the duties back,
 * frees. */
void upkeep_close(struct upkeep *upkeep, void (*done)(void *user), void *user);

#endif

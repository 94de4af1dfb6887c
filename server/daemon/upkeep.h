/* SPDX-License-Identifier: Apache-2.0
 *
 * upkeep: the maintenance that the daemon does for its store: scrub and garbage collection, each
 * only while it is this daemon's duty, and the lines in the log about them and about retention. One
 * loop's thread.
 */
#ifndef CAIRN_DAEMON_UPKEEP_H
#define CAIRN_DAEMON_UPKEEP_H

#include "daemon/config.h"
#include "daemon/listeners.h"
#include "session/server.h"

struct upkeep;

struct upkeep_options {
    struct loop *loop;
    struct catalog *catalog;
    /* Its load is watched; it is told of scrub and gc, which clients may ask about. */
    struct server *server;
    const struct config *config;
    const struct listeners *listeners;                        /* where clients reach this daemon */
    void (*store_state)(void *user, struct store_state *ret); /* gives the state of the store */
    void *store_user;
};

/* Starts the maintenance. Also sets *ret after an error that came when a part of it was running
 * already; the caller closes it then as well. */
int MUST_USE upkeep_new(const struct upkeep_options *options, struct upkeep **ret,
                        struct diag *diag);
/* Called when the configuration has changed: the new times and rates hold from now on. */
void upkeep_reload(struct upkeep *upkeep);
/* The results are borrowed until upkeep_close(). */
const struct scrub *upkeep_scrub(const struct upkeep *upkeep);
const struct gc *upkeep_gc(const struct upkeep *upkeep);
/* Called when the store has just refused a request for lack of room. */
void upkeep_press(struct upkeep *upkeep);
/* Logs what retention has decided for a run; it is a report of struct retain_options. */
void upkeep_log_retention(void *user, const struct run_name *run, int status,
                          const struct diag *diag, const struct verdict_marks *marks);
/* Called when the server has ended, or is about to, so that no question comes any more. Ends the
 * work in flight, gives the duties back, and frees. */
void upkeep_close(struct upkeep *upkeep, void (*done)(void *user), void *user);

#endif

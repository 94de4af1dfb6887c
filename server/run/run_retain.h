/* SPDX-License-Identifier: Apache-2.0
 *
 * retain: runs the retention policies, stored ones and those of the configuration. Every interval,
 * each run that a policy applies to is decided once, one run after another, by the policy that the
 * store has at that moment. A checkpoint that a policy forgets can be undeleted like any other. Two
 * daemons of a store that do the same are harmless, because the second one finds nothing to forget.
 * Rounds are left out while the wall clock is not trusted (catalog_clock_jump_s). Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_RETAIN_H
#define CAIRN_RUN_RUN_RETAIN_H

#include "policy/policies.h"
#include "run/run.h"

struct retain_options {
    struct loop *loop;
    struct catalog *catalog;          /* outlives the retain */
    const struct policy_table *table; /* borrowed; may change between two turns of the loop */
    uint64_t interval_ms;             /* above 0 */
    /* Called after each run, with status 0 and what was decided, or with the reason why nothing was
     * forgotten. run is NULL if a round was left out. */
    void (*report)(void *user, const struct run_name *run, int status, const struct diag *diag,
                   const struct verdict_marks *marks);
    /* Fills in what decides whether the run is idle: server_tell_use(). */
    void (*tell_use)(void *server, const struct run_name *run, struct event_forget *ret);
    void *server;
    void *user;
};
struct retain;

/* Puts a policy into the event that forgets by it. The reason of the event, which the chain keeps,
 * names a policy that is stored. Returns INVALID for a policy that cannot be used here, such as one
 * with a zone that this host does not know. */
int MUST_USE retain_event(const struct policy_choice *choice, struct scratch *scratch,
                          struct event_mark *ret, struct diag *diag);

/* Submits a request for the stored policies of the catalogue's store. The catalogue does not close
 * before the store has answered, even if the request is cancelled meanwhile. Returns NO_MEMORY. */
int MUST_USE retain_ask(struct catalog *catalog, struct policies_req *req, struct diag *diag);

struct retain_status {
    uint64_t rounds,
        errors; /* rounds that ended; runs without a decision plus rounds that were left out */
    int64_t good_wall_ns; /* end of the last round without an error; 0 if there was none */
};
void retain_status(const struct retain *retain, struct retain_status *ret);

/* Starts the rounds. The options are copied. Returns NO_MEMORY. */
int MUST_USE retain_new(const struct retain_options *options, struct retain **ret);
/* Sets the interval, which is above 0. A round that is running goes on, and the next one begins at
 * the latest after this interval. */
void retain_set_interval(struct retain *retain, uint64_t interval_ms);
void retain_free(struct retain *retain); /* no report comes afterwards; accepts NULL */

#endif

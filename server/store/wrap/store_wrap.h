/* SPDX-License-Identifier: Apache-2.0
 *
 * store_wrap: decorators. Each is a store in front of another one, owns it (closing the decorator
 * closes the inner store) and shows its caps. They may be stacked in any order; a request passes
 * through all of them by one pushed frame each. One loop's thread only.
 */
#ifndef CAIRN_STORE_WRAP_H
#define CAIRN_STORE_WRAP_H

#include "base/tally.h"
#include "store/store.h"
#include "store/store_state.h"

/* Repeats an operation that ended in an error of class RETRY, at most tries times in all, with a
 * growing, jittered pause that starts at pause_ms, never past the request's deadline. CONFLICT and
 * ABORTED are answers, not faults, and go up at once; so does OUTCOME_UNKNOWN, whose repetition
 * only the caller can judge. */
struct store_retry_options {
    unsigned tries;
    uint64_t pause_ms;
};
int MUST_USE store_retry_new(struct loop *loop, struct store *inner,
                             const struct store_retry_options *options, struct store **ret);

/* Lets at most max operations run at once; the others wait in order. A request whose deadline
 * passes while it waits ends with TIMED_OUT and is never started. */
int MUST_USE store_limit_new(struct loop *loop, struct store *inner, unsigned max,
                             struct store **ret);

/* Counts operations, for metrics. */
struct store_counts {
    struct histogram durations[STORE_OP_COUNT]; /* by enum store_op, of the answered ones */
    struct err_tally errors; /* CONFLICT, NOT_FOUND and EXISTS are answers and not among them */
    uint64_t bytes_written, bytes_read; /* objects and small things */
    uint64_t running;
};
/* *ret_counts is borrowed until the store is closed. */
int MUST_USE store_count_new(struct loop *loop, struct store *inner, struct store **ret,
                             const struct store_counts **ret_counts);

/* Sees what the store answers, and asks it now and then by itself (STORE_PROBE): is it well, or
 * does it refuse? Nothing is changed or repeated. changed: it turned ill (is_ill) or well; on the
 * loop, may be NULL. */
struct store_watch_options {
    void (*changed)(void *user, bool is_ill, const struct diag *refusal);
    void *user;
};
int MUST_USE store_watch_new(struct loop *loop, struct store *inner,
                             const struct store_watch_options *options, struct store **ret);
void store_watch_state(const struct store *store, struct store_state *ret);

/* Faults on demand, for tests. */
enum store_fault_kind {
    FAULT_FAIL,  /* ends with `code`; the inner store never sees it */
    FAULT_DELAY, /* done delay_ms later */
    FAULT_HOLD,  /* not started before store_fault_release() */
    FAULT_LOST,  /* done by the inner store, answered with OUTCOME_UNKNOWN */
    FAULT_LATE,  /* answered with OUTCOME_UNKNOWN at once, done by store_fault_release() */
};
struct store_fault_rule {
    enum store_fault_kind kind;
    bool any_op;
    enum store_op op; /* unless any_op */
    unsigned skip;    /* matching operations that pass before the rule hits */
    unsigned count;   /* how many it hits; 0: one */
    int code;         /* FAULT_FAIL */
    uint64_t delay_ms;
};
int MUST_USE store_fault_new(struct loop *loop, struct store *inner, struct store **ret);
/* At most 16 rules at once; the first that matches acts. Rules end when they have hit count times.
 */
int MUST_USE store_fault_add(struct store *store, const struct store_fault_rule *rule);
void store_fault_clear(struct store *store);          /* drops rules, not held operations */
size_t store_fault_release(struct store *store);      /* how many held or late ones were let go */
uint64_t store_fault_seen(const struct store *store); /* operations submitted so far */

#endif

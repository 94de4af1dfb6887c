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

#endif

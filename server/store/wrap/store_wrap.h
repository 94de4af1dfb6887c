/* SPDX-License-Identifier: Apache-2.0
 *
 * store_wrap: decorators. Each is a store in front of another one, owns that one (closing the
 * decorator closes the inner store) and shows its caps. They may be stacked in any order; a request
 * passes through all of them, and each pushes one frame on it. One loop's thread only.
 */
#ifndef CAIRN_STORE_WRAP_H
#define CAIRN_STORE_WRAP_H

#include "base/tally.h"
#include "store/store.h"
#include "store/store_state.h"

/* Counts operations, for metrics. */
struct store_counts {
    struct histogram durations[STORE_OP_COUNT]; /* of the answered operations, by enum store_op */
    struct err_tally errors; /* without CONFLICT, NOT_FOUND and EXISTS, which are answers */
    uint64_t bytes_written, bytes_read; /* of objects and small things */
    /* operations that are not answered yet */
    uint64_t running;
};
/* Makes a decorator that counts operations. *ret_counts is borrowed until the store is closed. */
int MUST_USE store_count_new(struct loop *loop, struct store *inner, struct store **ret,
                             const struct store_counts **ret_counts);

/* Makes a decorator that watches whether the store works or refuses: it sees the answers, and from
 * time to time asks by itself (STORE_PROBE). It changes and repeats nothing. `changed` is called on
 * the loop when the store has become ill (is_ill) or well again; it may be NULL. */
struct store_watch_options {
    void (*changed)(void *user, bool is_ill, const struct diag *refusal);
    void *user;
};
int MUST_USE store_watch_new(struct loop *loop, struct store *inner,
                             const struct store_watch_options *options, struct store **ret);
void store_watch_state(const struct store *store, struct store_state *ret);

#endif

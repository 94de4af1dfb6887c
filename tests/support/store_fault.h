/* SPDX-License-Identifier: Apache-2.0
 *
 * store_fault: a store that fails on demand, in front of another. It is made and stacked as the
 * decorators of store/wrap/store_wrap.h. One loop's thread only.
 */
#ifndef CAIRN_TESTS_SUPPORT_STORE_FAULT_H
#define CAIRN_TESTS_SUPPORT_STORE_FAULT_H

#include "store/wrap/store_wrap.h"

/* Faults on demand. */
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

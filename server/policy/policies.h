/* SPDX-License-Identifier: Apache-2.0
 *
 * policies: reads the stored policies, and changes one by a guarded update of the store's record,
 * so that of two operators who set the same one both are told the truth. Loop's thread.
 */
#ifndef CAIRN_POLICY_POLICIES_H
#define CAIRN_POLICY_POLICIES_H

#include "policy/policy.h"
#include "store/store.h"

struct policies_call;

struct policies_req {
    struct store *store;
    /* The change to make, borrowed until done() is called; it gets its number. NULL asks only what
     * is stored. */
    struct policy_entry *change;
    void (*done)(struct policies_req *req); /* never inside policies_submit() */
    /* Called once with `holder`, also after policies_cancel(), when the store is not used any more;
     * until then it must not be closed. May be NULL. */
    void (*drop)(void *holder);
    void *holder;
    int status;
    struct diag diag;
    const struct record *record; /* the store's, with the change; borrowed during the callback */
    struct policies_call *call;
};
/* Returns NO_MEMORY; there is no callback then. A change that was answered with 0 is durable. */
int MUST_USE policies_submit(struct policies_req *req, struct diag *diag);
/* Ends the request without a call of done(). A change that is under way goes on, and so does a
 * read, until the store has answered. Safe for an idle (zeroed) request. */
void policies_cancel(struct policies_req *req);

#endif

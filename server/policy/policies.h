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
    struct policy_entry *change; /* borrowed until done, gets its number; NULL: only reads */
    void (*done)(struct policies_req *req); /* never inside policies_submit() */
    int status;
    struct diag diag;
    const struct record *record; /* the store's, with the change; borrowed during the callback */
    struct policies_call *call;
};
/* Returns NO_MEMORY; there is no callback then. A change that was answered with 0 is durable. */
int MUST_USE policies_submit(struct policies_req *req, struct diag *diag);
/* The callback does not come any more. A change that is under way goes on. Safe for an idle
 * (zeroed) request. */
void policies_cancel(struct policies_req *req);

#endif

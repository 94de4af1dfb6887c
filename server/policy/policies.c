/* SPDX-License-Identifier: Apache-2.0
 *
 * See policies.h. A call reads the record, updates it if a change is wanted, and reads it again:
 *
 *     GET ──► done (nothing is wanted, or the change is there)
 *      ▲ │
 *      │ ▼
 *     UPDATE     after it, whatever its outcome, the record says what holds
 *
 * Each update is guarded by the number of the last change, so one whose outcome was unknown comes
 * too late once a later try has been made. A call outlives a request that is cancelled; drop()
 * tells the owner of the store that the call has ended.
 */
#include "policy/policies.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

enum { DEADLINE_MS = 30000, TRIES_MAX = 32 };

struct policies_call {
    struct store *store;
    struct policies_req *req; /* NULL after policies_cancel() */
    void (*drop)(void *holder);
    void *holder;
    bool changes;
    struct policy_entry change;
    struct store_req op;
    struct policy_update update; /* borrows from `seen` */
    struct record *seen;         /* while the update is under way */
    bool has_update;             /* update has memory */
    unsigned tries;
};

static void end(struct policies_call *call, int status, struct record *record)
{
    struct policies_req *req = call->req;
    void (*drop)(void *holder) = call->drop;
    void *holder = call->holder;
    if (call->has_update) {
        buf_fini(&call->update.buf);
    }
    if (req != NULL) {
        req->status = status;
        req->diag = call->op.diag;
        req->record = record;
        req->call = NULL;
        if (status == 0 && call->changes) {
            req->change->number = call->change.number;
        }
        req->done(req);
    }
    record_free(record);
    free(call);
    if (drop != NULL) {
        drop(holder);
    }
}

static void on_answered(struct store_req *op);

static void submit(struct policies_call *call, enum store_op op)
{
    call->op = (struct store_req){
        .op = op, .update = &call->update.update, .deadline_ms = DEADLINE_MS, .done = on_answered};
    store_submit(call->store, &call->op);
}

/* Returns whether the record has the change that the last update made. */
static bool is_made(const struct policies_call *call, const struct record *record)
{
    struct record_value value;
    return call->has_update && record_get(record, call->update.key, &value) &&
           value.bytes == call->update.buf.bytes &&
           memcmp(value.data, call->update.buf.data, value.bytes) == 0;
}

/* Called with the record as it is now. */
static void go_on(struct policies_call *call, struct record *record)
{
    if (!call->changes || is_made(call, record)) {
        end(call, 0, record);
        return;
    }
    if (call->has_update) {
        buf_fini(&call->update.buf);
    }
    call->has_update = true;
    int status = policy_update_make(record, &call->change, &call->update, &call->op.diag);
    if (status == 0 && call->tries++ == TRIES_MAX) {
        status = diag_set(&call->op.diag, CAIRN_E_BUSY,
                          "others change the policies of the store all the time; nothing was "
                          "changed, try again");
    }
    if (status != 0) {
        end(call, status, record);
        return;
    }
    call->seen = record;
    submit(call, STORE_RECORD_UPDATE);
}

static void on_answered(struct store_req *op)
{
    struct policies_call *call = container_of(op, struct policies_call, op);
    struct record *record = op->ret_record;
    bool is_update = op->op == STORE_RECORD_UPDATE;
    record_free(call->seen);
    call->seen = NULL;
    bool unclear = op->status == 0 || op->status == CAIRN_E_CONFLICT ||
                   op->status == CAIRN_E_OUTCOME_UNKNOWN || op->status == CAIRN_E_TIMED_OUT;
    if (is_update && unclear) {
        submit(call, STORE_RECORD_GET);
    } else if (op->status != 0) {
        end(call, op->status, record);
    } else {
        go_on(call, record);
    }
}

int policies_submit(struct policies_req *req, struct diag *diag)
{
    struct policies_call *call = calloc(1, sizeof(*call));
    CHECK(req->done != NULL);
    CHECK(req->call == NULL);
    if (call == NULL) {
        return diag_no_memory(diag, "the stored policies");
    }
    call->store = req->store;
    call->req = req;
    call->drop = req->drop;
    call->holder = req->holder;
    call->changes = req->change != NULL;
    if (call->changes) {
        call->change = *req->change;
    }
    req->call = call;
    submit(call, STORE_RECORD_GET);
    return 0;
}

void policies_cancel(struct policies_req *req)
{
    if (req->call != NULL) {
        CHECK(req->call->req == req);
        req->call->req = NULL;
        req->call = NULL;
    }
}

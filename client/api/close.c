/* SPDX-License-Identifier: Apache-2.0
 *
 * Closing: waits for the ops in flight, aborts the rest and takes their true outcome, ends the
 * thread, and frees the handle. It takes at most the deadline, API_REFUSAL_GRACE_MS if only refused
 * saves are left by then, API_CLOSE_GRACE_MS, and the time of the copies that still run. Runs on
 * the caller's thread, as the last call of the handle.
 */
#include "api_private.h"

#include <stdlib.h>

void handle_teardown(struct cairn *cairn)
{
    if (cairn == NULL) {
        return;
    }
    if (cairn->has_thread) {
        loop_post(cairn->loop, &cairn->close_post);
        CHECK(pthread_join(cairn->thread, NULL) == 0);
        if (atomic_load(&cairn->dead) != 0) {
            return;
        }
    }
    fork_remove(cairn);
    work_threads_free(cairn->pool);
    net_uv_free(cairn->net);
    struct loop *loop = cairn->loop;
    cairn->loop = NULL; /* guard_call does not post to it any more */
    loop_uv_free(loop);
    arena_free(cairn->arena);
    tls_context_free(cairn->tls);
    registered_unref(cairn->set);
    gpu_close(cairn->gpu); /* the arena was unpinned before */
    pthread_mutex_destroy(&cairn->set_lock);
    pthread_mutex_destroy(&cairn->lock);
    pthread_cond_destroy(&cairn->cond);
    free(cairn->label);
    free(cairn);
}

/* Returns whether an operation is in flight that can still end well: a save that was refused only
 * tells the other ranks of it. The lock must be held. */
static bool has_hope(struct cairn *cairn)
{
    list_each (node, &cairn->ops) {
        if (!op_is_refused(list_item(node, struct cairn_op, link))) {
            return true;
        }
    }
    return false;
}

/* Waits until nothing is in flight or, if refusals do not count, nothing that can still end well.
 * The lock must be held. */
static void drain(struct cairn *cairn, int64_t deadline_ms, bool refusals)
{
    struct timespec due = args_due(deadline_ms);
    int errnum = 0;
    while ((refusals ? !list_is_empty(&cairn->ops) : has_hope(cairn)) && errnum == 0) {
        errnum = deadline_ms == CAIRN_FOREVER
                     ? pthread_cond_wait(&cairn->cond, &cairn->lock)
                     : pthread_cond_timedwait(&cairn->cond, &cairn->lock, &due);
    }
}

struct close_call {
    struct cairn *cairn;
    int64_t deadline_ms;
};

/* Waits, aborts what is left, ends the thread and frees the handle. */
static int close_handle(void *arg, struct diag *diag)
{
    const struct close_call *call = arg;
    struct cairn *cairn = call->cairn;
    int64_t deadline_ms = call->deadline_ms == CAIRN_CUT ? 0 : call->deadline_ms;
    int rc = guard_check_may_block(cairn, diag);
    if (rc != 0 && rc != CAIRN_E_INTERNAL) {
        return rc; /* in a child after fork, or in a callback: the handle must not be touched */
    }
    pthread_mutex_lock(&cairn->lock);
    cairn->is_closing = true;
    cairn->is_cut = call->deadline_ms == CAIRN_CUT;
    drain(cairn, deadline_ms, false);
    if (!has_hope(cairn)) {
        drain(cairn, deadline_ms < API_REFUSAL_GRACE_MS ? deadline_ms : API_REFUSAL_GRACE_MS, true);
    }
    if (!list_is_empty(&cairn->ops)) {
        list_each (node, &cairn->ops) {
            op_abort(list_item(node, struct cairn_op, link));
        }
        drain(cairn, API_CLOSE_GRACE_MS, true);
    }
    pthread_mutex_unlock(&cairn->lock);

    /* Aborts that no server answered end with CLOSED in here; then close_failure is complete. */
    struct loop *loop = cairn->loop;
    CHECK(loop != NULL);
    loop_post(loop, &cairn->close_post);
    CHECK(pthread_join(cairn->thread, NULL) == 0);
    cairn->has_thread = false;
    if (atomic_load(&cairn->dead) != 0) {
        /* Its memory stays (handle_teardown). */
        return rc != 0 ? rc : guard_dead(cairn, diag);
    }
    if (cairn->close_failure.code != 0) {
        rc = diag_copy(diag, &cairn->close_failure);
        diag_add(diag, "not every save in flight became durable before the handle was closed");
    }
    handle_teardown(cairn);
    return rc;
}

int cairn_close(cairn_t *cairn, int64_t deadline_ms, struct cairn_error *err)
{
    struct close_call call = {cairn, deadline_ms};
    if (cairn == NULL) {
        return error_fill(err, 0, NULL);
    }
    /* Without the handle, which is freed when the guard would look at it. */
    return guard_call(NULL, close_handle, &call, err);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A save or restore as its user sees it: a pair of futures with a count of references. The user's
 * reference, the loop's until it is done, and one for an abort on its way keep it alive; it may
 * outlive its handle. Invariants: staged, handed over and done come in this order, each once; a
 * callback is called once, and its drop once after it. Any thread, except op_stage and op_finish
 * (the handle's).
 */
#include "api_private.h"

#include <stdlib.h>

struct notify {
    struct list link;
    enum cairn_stage stage;
    void (*cb)(void *user, int code);
    void *user;
    void (*drop)(void *user);
};

static void on_abort_post(struct post *post);
static void on_hurry_post(struct post *post);

int op_new(struct cairn *cairn, bool is_save, struct cairn_op **ret, struct diag *diag)
{
    struct cairn_op *op = calloc(1, sizeof *op);
    if (op == NULL) {
        return diag_no_memory(diag, "an operation");
    }
    int rc = args_lock_init(&op->lock, &op->cond, diag);
    if (rc != 0) {
        free(op);
        return rc;
    }
    atomic_init(&op->refs, 1);
    op->generation = cairn->generation;
    op->is_save = is_save;
    op->cairn = cairn;
    op->abort.cb = on_abort_post;
    op->hurry.cb = on_hurry_post;
    list_init(&op->link);
    list_init(&op->notifies);
    scratch_init(&op->scratch, MIB(1));
    *ret = op;
    return 0;
}

static struct cairn_op *op_ref(struct cairn_op *op)
{
    atomic_fetch_add(&op->refs, 1);
    return op;
}

void op_unref(struct cairn_op *op)
{
    if (op == NULL || atomic_fetch_sub(&op->refs, 1) != 1) {
        return;
    }
    if (!op->is_save && op->done) {
        engine_restore_fini(&op->u.restore);
    }
    registered_unref(op->set);
    scratch_fini(&op->scratch);
    pthread_mutex_destroy(&op->lock);
    pthread_cond_destroy(&op->cond);
    free(op);
}

/* --- its life ----------------------------------------------------------------------------- */

/* Decides whether the op may start. The handle's lock must be held. */
static int admit(struct cairn_op *op, struct diag *diag)
{
    struct cairn *cairn = op->cairn;
    if (cairn->is_buried) {
        return guard_dead(cairn, diag);
    }
    if (cairn->is_closing) {
        return diag_set(diag, CAIRN_E_CLOSED, "the handle is being closed; open another one");
    }
    if (op->is_save && cairn->fenced.code != 0) {
        return diag_copy(diag, &cairn->fenced);
    }
    if (cairn->restore_count > 0) {
        return diag_set(
            diag, CAIRN_E_BUSY,
            "a restore is running and fills the registered tensors; wait until it ends");
    }
    if (!op->is_save && cairn->borrow_count > 0) {
        return diag_set(diag, CAIRN_E_BUSY,
                        "a save is copying the registered tensors; restore when it is released");
    }
    cairn->borrow_count++;
    cairn->restore_count += op->is_save ? 0 : 1;
    op->borrows = true;
    return 0;
}

static void return_loan(struct cairn_op *op)
{
    if (op->borrows) {
        op->borrows = false;
        op->cairn->borrow_count--;
        op->cairn->restore_count -= op->is_save ? 0 : 1;
    }
}

int op_start(struct cairn_op *op, void (*start)(struct post *post), struct diag *diag)
{
    struct cairn *cairn = op->cairn;
    pthread_mutex_lock(&cairn->lock);
    int rc = admit(op, diag);
    if (rc == 0) {
        list_add_tail(&cairn->ops, &op->link);
        op_ref(op);
        op->start.cb = start;
    }
    pthread_mutex_unlock(&cairn->lock);
    if (rc == 0) {
        op->set = registered_ref(cairn->set); /* borrowed, so it is not replaced now */
        loop_post(cairn->loop, &op->start);
    }
    return rc;
}

/* Takes the callbacks of this stage out of the op, or of all, and calls them without a lock. */
static void fire(struct cairn_op *op, enum cairn_stage stage, bool all, int code)
{
    struct list ready;
    list_init(&ready);
    pthread_mutex_lock(&op->lock);
    list_each_safe (node, &op->notifies) {
        if (all || list_item(node, struct notify, link)->stage == stage) {
            list_remove(node);
            list_add_tail(&ready, node);
        }
    }
    pthread_mutex_unlock(&op->lock);
    for (struct list *node = list_pop(&ready); node != NULL; node = list_pop(&ready)) {
        struct notify *notify = list_item(node, struct notify, link);
        notify->cb(notify->user, code);
        if (notify->drop != NULL) {
            notify->drop(notify->user);
        }
        free(notify);
    }
}

void op_release(struct cairn_op *op, bool is_copied)
{
    if (is_copied) {
        pthread_mutex_lock(&op->cairn->lock);
        return_loan(op);
        pthread_mutex_unlock(&op->cairn->lock);
    }
    pthread_mutex_lock(&op->lock);
    op->released = true;
    pthread_cond_broadcast(&op->cond);
    pthread_mutex_unlock(&op->lock);
}

/* Makes the call fail, or what waits for the copy of a lazy save. The save touches no tensor any
 * more, and only tells the other ranks. */
void op_refuse(struct cairn_op *op, int status, const struct diag *diag)
{
    pthread_mutex_lock(&op->cairn->lock);
    return_loan(op);
    pthread_mutex_lock(&op->lock);
    op->refused = *diag;
    op->refused.code = status;
    op->released = true;
    pthread_cond_broadcast(&op->cond);
    pthread_mutex_unlock(&op->lock);
    pthread_cond_broadcast(&op->cairn->cond); /* cairn_close waits less for it */
    pthread_mutex_unlock(&op->cairn->lock);
    fire(op, CAIRN_RELEASED, false, status);
}

bool op_is_refused(struct cairn_op *op)
{
    pthread_mutex_lock(&op->lock);
    bool refused = op->refused.code != 0 || (op->is_save && op->u.save.refusal.code != 0);
    pthread_mutex_unlock(&op->lock);
    return refused;
}

void op_stage(struct cairn_op *op)
{
    pthread_mutex_lock(&op->cairn->lock);
    return_loan(op);
    pthread_mutex_unlock(&op->cairn->lock);
    pthread_mutex_lock(&op->lock);
    op->staged = true;
    pthread_cond_broadcast(&op->cond);
    pthread_mutex_unlock(&op->lock);
    fire(op, CAIRN_RELEASED, false, 0);
}

void op_hand(struct cairn_op *op)
{
    pthread_mutex_lock(&op->lock);
    op->handed = true;
    pthread_cond_broadcast(&op->cond);
    pthread_mutex_unlock(&op->lock);
    fire(op, CAIRN_HANDED_OVER, false, 0);
}

/* Changes the handle first, so that a thread that sees the op done may save, register or close at
 * once. */
void op_finish(struct cairn_op *op, int status, const struct diag *diag)
{
    struct cairn *cairn = op->cairn;
    struct diag final = DIAG_INIT;
    if (status != 0) {
        final = *diag;
        final.code = status;
    }
    pthread_mutex_lock(&cairn->lock);
    list_remove(&op->link);
    return_loan(op);
    if (op->is_save && status == CAIRN_E_FENCED) {
        cairn->fenced = final;
    } else if (!op->is_save && status == 0) {
        diag_clear(&cairn->fenced); /* the attempt has seen the newest term now */
    }
    /* Written on this thread; the caller of cairn_save knows. */
    bool was_refused = op_is_refused(op);
    if (cairn->is_closing && op->is_save && status != 0 && !was_refused &&
        cairn->close_failure.code == 0) {
        cairn->close_failure = final;
    }
    pthread_cond_broadcast(&cairn->cond);
    pthread_mutex_unlock(&cairn->lock);

    pthread_mutex_lock(&op->lock);
    op->done = true;
    op->status = status;
    op->diag = final;
    bool is_dead = atomic_load(&cairn->dead) != 0; /* then posts are not delivered any more */
    unsigned lost = is_dead ? (unsigned)op->abort_posted + (unsigned)op->hurry_posted : 0;
    pthread_cond_broadcast(&op->cond);
    pthread_mutex_unlock(&op->lock);
    fire(op, CAIRN_DONE, true, status);
    atomic_fetch_sub(&op->refs, lost); /* these are not the last ones, because the loop's follows */
    op_unref(op);
}

/* --- the futures -------------------------------------------------------------------------- */

/* Returns INVALID or FORKED for an operation that no function may use. */
static int op_check(const struct cairn_op *op, struct diag *diag)
{
    if (op == NULL) {
        return diag_set(diag, CAIRN_E_INVALID, "the argument op is NULL");
    }
    if (op->generation != fork_generation()) {
        return diag_set(diag, CAIRN_E_FORKED,
                        "this operation was started before fork() and belongs to the parent "
                        "process; wait for it there");
    }
    return 0;
}

static bool is_release(enum cairn_stage stage)
{
    return stage == CAIRN_RELEASED || stage == OP_RELEASED;
}

/* Returns whether the stage has been reached well. The op's lock must be held. */
static bool is_well(const struct cairn_op *op, enum cairn_stage stage)
{
    return (op->staged && is_release(stage)) || (op->handed && stage == CAIRN_HANDED_OVER) ||
           (op->released && stage == OP_RELEASED);
}

/* Returns whether the stage is reached. The op's lock must be held. */
static bool has_reached(const struct cairn_op *op, enum cairn_stage stage)
{
    return op->done || is_well(op, stage) || (op->refused.code != 0 && is_release(stage));
}

/* Returns the result of the stage, or AGAIN if it is not reached yet. A stage that has succeeded
 * stays so, though the operation may fail later. The op's lock must be held. */
static int outcome(const struct cairn_op *op, enum cairn_stage stage, struct diag *diag)
{
    if (!has_reached(op, stage)) {
        return diag_set(diag, CAIRN_E_AGAIN, "the operation has not ended yet");
    }
    if (op->refused.code != 0 && is_release(stage)) {
        return diag_copy(diag, &op->refused);
    }
    return is_well(op, stage) || op->status == 0 ? 0 : diag_copy(diag, &op->diag);
}

int op_wait(struct cairn_op *op, enum cairn_stage stage, int64_t deadline_ms, struct diag *diag)
{
    struct timespec due = args_due(deadline_ms);
    int errnum = 0;
    pthread_mutex_lock(&op->lock);
    while (!has_reached(op, stage) && errnum == 0 && deadline_ms > 0) {
        errnum = deadline_ms == CAIRN_FOREVER ? pthread_cond_wait(&op->cond, &op->lock)
                                              : pthread_cond_timedwait(&op->cond, &op->lock, &due);
    }
    int rc = outcome(op, stage, diag);
    pthread_mutex_unlock(&op->lock);
    return rc;
}

static bool is_stage(enum cairn_stage stage)
{
    return stage == CAIRN_RELEASED || stage == CAIRN_HANDED_OVER || stage == CAIRN_DONE;
}

/* Hurries the copy of a lazy save, because a thread is waiting for it. */
static void op_hurry(struct cairn_op *op)
{
    pthread_mutex_lock(&op->lock);
    if (op->is_save && op->u.save.lazy && !op->staged && !op->done && !op->hurry_asked) {
        op->hurry_asked = op->hurry_posted = true;
        op_ref(op);
        loop_post(op->cairn->loop, &op->hurry); /* it is not done, so the handle exists */
    }
    pthread_mutex_unlock(&op->lock);
}

/* Called on the loop's thread when a thread waits for a lazy save whose copy is not complete. */
static void on_hurry_post(struct post *post)
{
    struct cairn_op *op = container_of(post, struct cairn_op, hurry);
    pthread_mutex_lock(&op->lock);
    bool done = op->done;
    op->hurry_posted = false;
    pthread_mutex_unlock(&op->lock);
    if (!done) {
        engine_save_hurry(&op->u.save);
    }
    op_unref(op);
}

int cairn_op_wait(cairn_op_t *op, enum cairn_stage stage, int64_t deadline_ms,
                  struct cairn_error *err)
{
    struct diag diag = DIAG_INIT;
    int rc = op_check(op, &diag);
    if (rc == 0 && !is_stage(stage)) {
        rc = diag_set(&diag, CAIRN_E_INVALID,
                      "stage is %d; it must be CAIRN_RELEASED, CAIRN_HANDED_OVER or CAIRN_DONE",
                      (int)stage);
    }
    if (rc == 0 && stage != CAIRN_DONE && deadline_ms != 0) {
        op_hurry(op);
    }
    if (rc == 0) {
        /* On Cairn's own thread a wait would hold up what it waits for, so it only polls. */
        rc = op_wait(op, stage, guard_own_thread() != NULL ? 0 : deadline_ms, &diag);
    }
    return error_fill(err, rc, &diag);
}

int cairn_op_notify(cairn_op_t *op, enum cairn_stage stage, void (*cb)(void *user, int code),
                    void *user, void (*drop)(void *user))
{
    struct notify *notify = NULL;
    bool reached = false;
    int code = 0, rc = op_check(op, NULL);
    if (rc == 0 && (cb == NULL || !is_stage(stage))) {
        rc = CAIRN_E_INVALID;
    }
    if (rc == 0) {
        notify = malloc(sizeof *notify);
        rc = notify != NULL ? 0 : CAIRN_E_NO_MEMORY;
    }
    if (rc == 0) {
        *notify = (struct notify){.stage = stage, .cb = cb, .user = user, .drop = drop};
        pthread_mutex_lock(&op->lock);
        reached = has_reached(op, stage);
        if (reached) {
            code = outcome(op, stage, NULL);
        } else {
            list_add_tail(&op->notifies, &notify->link);
        }
        pthread_mutex_unlock(&op->lock);
    }
    if (reached) {
        free(notify);
        cb(user, code);
    }
    if ((reached || rc != 0) && drop != NULL) {
        drop(user);
    }
    return rc;
}

/* --- abort -------------------------------------------------------------------------------- */

/* Aborts the operation on the handle's thread, unless it is done. */
static void on_abort_post(struct post *post)
{
    struct cairn_op *op = container_of(post, struct cairn_op, abort);
    pthread_mutex_lock(&op->lock);
    bool done = op->done;
    op->abort_posted = false;
    pthread_mutex_unlock(&op->lock);
    if (!done && op->is_save) {
        engine_save_abort(&op->u.save);
    } else if (!done) {
        engine_restore_abort(&op->u.restore);
    }
    op_unref(op);
}

void op_abort(struct cairn_op *op)
{
    pthread_mutex_lock(&op->lock);
    if (!op->done && !op->abort_asked) {
        op->abort_asked = op->abort_posted = true;
        op_ref(op);
        loop_post(op->cairn->loop, &op->abort); /* it is not done, so the handle exists */
    }
    pthread_mutex_unlock(&op->lock);
}

void cairn_op_abort(cairn_op_t *op)
{
    if (op_check(op, NULL) == 0) {
        op_abort(op);
    }
}

void cairn_op_free(cairn_op_t *op)
{
    if (op_check(op, NULL) == 0) { /* a child's copy costs nothing */
        op_unref(op);
    }
}

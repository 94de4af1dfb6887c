/* SPDX-License-Identifier: Apache-2.0
 *
 * A bug of ours must not end the job that we protect. A broken CHECK marks the handle dead and
 * leaves by a long jump: on a caller's thread the call returns INTERNAL; the handle's own thread
 * ends after every future got INTERNAL (handle.c). What the broken code held is never touched
 * again. Any thread.
 */
#include "api_private.h"

#include <stdio.h>

struct guard {
    struct cairn *cairn;
    bool own_thread;
    struct guard *outer;
    check_handler outer_handler;
    sigjmp_buf env;
    char broken[256];
};

/* Check handlers have no user pointer, so the guard of a thread is thread-local. */
static _Thread_local struct guard *guard_current;

static void describe(size_t bytes, char *ret, const char *file, int line, const char *what)
{
    err_ignore(snprintf(ret, bytes, "%s:%d: %s", file, line, what)); /* a cut text is good enough */
}

/* Marks the handle dead without taking a lock, because the broken code may hold it. */
static void mark_dead(struct cairn *cairn, const char *broken)
{
    if (!atomic_flag_test_and_set(&cairn->claimed)) {
        err_ignore(snprintf(cairn->broken, sizeof cairn->broken, "%s", broken)); /* as above */
        atomic_store(&cairn->dead, CAIRN_E_INTERNAL);
    }
}

static _Noreturn void on_broken(const char *file, int line, const char *what)
{
    struct guard *guard = guard_current;
    describe(sizeof guard->broken, guard->broken, file, line, what);
    if (guard->cairn != NULL) {
        mark_dead(guard->cairn, guard->broken);
    }
    siglongjmp(guard->env, 1);
}

static void guard_enter(struct guard *guard)
{
    guard->outer = guard_current;
    guard_current = guard;
    guard->outer_handler = check_set_handler(on_broken);
}

static void guard_leave(struct guard *guard)
{
    guard_current = guard->outer;
    check_set_handler(guard->outer_handler);
}

int guard_dead(const struct cairn *cairn, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_INTERNAL,
                    "an assertion in Cairn failed (%s), so this handle can no longer be used; "
                    "close it, open another one to continue saving, and please report it",
                    cairn->broken);
}

int guard_check(const struct cairn *cairn, struct diag *diag)
{
    if (cairn == NULL) {
        return diag_set(diag, CAIRN_E_INVALID, "the handle is NULL");
    }
    if (cairn->generation != fork_generation()) {
        return diag_set(diag, CAIRN_E_FORKED,
                        "this handle was opened before fork() and belongs to the parent process: "
                        "use it there, or "
                        "open another one here");
    }
    return atomic_load(&cairn->dead) != 0 ? guard_dead(cairn, diag) : 0;
}

int guard_check_may_block(const struct cairn *cairn, struct diag *diag)
{
    int rc = guard_check(cairn, diag);
    if (rc == 0 && guard_own_thread() == cairn) {
        rc = diag_set(diag, CAIRN_E_INVALID,
                      "this function was called in a callback on Cairn's own thread, where only "
                      "poll and free are allowed; call it on a thread of your own");
    }
    return rc;
}

int guard_call(struct cairn *cairn, int (*fn)(void *call, struct diag *diag), void *call,
               struct cairn_error *err)
{
    struct guard guard = {.cairn = cairn};
    struct diag diag = DIAG_INIT;
    volatile int rc = CAIRN_E_INTERNAL;

    guard_enter(&guard);
    if (sigsetjmp(guard.env, 0) == 0) {
        rc = fn(call, &diag);
    } else {
        diag_clear(&diag); /* it may be half written */
        if (cairn != NULL) {
            rc = guard_dead(cairn, &diag);
            if (cairn->loop != NULL) {
                loop_post(cairn->loop, &cairn->break_post);
            }
        } else {
            rc = diag_set(&diag, CAIRN_E_INTERNAL,
                          "an assertion in Cairn failed (%s); please report it", guard.broken);
        }
    }
    guard_leave(&guard);
    return error_fill(err, rc, &diag);
}

bool guard_thread(struct cairn *cairn, void (*fn)(struct cairn *cairn))
{
    struct guard guard = {.cairn = cairn, .own_thread = true};
    volatile bool ended = false;

    guard_enter(&guard);
    if (sigsetjmp(guard.env, 0) == 0) {
        fn(cairn);
        ended = true;
    }
    guard_leave(&guard);
    return ended;
}

struct cairn *guard_own_thread(void)
{
    const struct guard *guard = guard_current; /* a callback may have called into the API again */
    while (guard != NULL && !guard->own_thread) {
        guard = guard->outer;
    }
    return guard != NULL ? guard->cairn : NULL;
}

/* Called on a worker. The work's `done` comes after this post, so the engine never sees the result
 * of the broken code. */
void guard_on_worker(void *user, const char *file, int line, const char *what)
{
    struct cairn *cairn = user;
    char broken[256];
    describe(sizeof broken, broken, file, line, what);
    mark_dead(cairn, broken);
    loop_post(cairn->loop, &cairn->break_post);
}

void guard_on_break_post(struct post *post)
{
    struct cairn *cairn = container_of(post, struct cairn, break_post);
    CHECK(atomic_load(&cairn->dead) == 0); /* the handle is dead: this thread ends here */
}

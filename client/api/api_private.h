/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the blocking shell share: the handle, its ops, and the guard around every call.
 * The handle's own thread runs the engine on a loop; callers' threads post to it and wait on
 * condition variables. Lock order: handle, then op. Neither lock is held across a call into the
 * engine, a callback of the user, or a CHECK.
 */
#ifndef CAIRN_API_API_PRIVATE_H
#define CAIRN_API_API_PRIVATE_H

#include "cairn.h"

#include "base/check.h"
#include "base/list.h"
#include "base/trace.h"
#include "gpu/gpu.h"
#include "save/save.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>

enum {
    API_THREADS_MAX = 64,
    API_THREADS_DEFAULT = 4,
    API_SNAPSHOTS_MAX = 64,
    API_IO_DEADLINE_MS = 30000,
    API_SAVE_DEADLINE_MS = 600000,
    API_REFUSAL_GRACE_MS = 10000, /* for telling other ranks of refused saves in cairn_close */
    API_CLOSE_GRACE_MS = 2000,    /* for the answers to the aborts that cairn_close sends */
};

/* --- the handle (handle.c, close.c) ------------------------------------------------------- */

/* What cairn_t points to. cairn_open makes the parts and handle_teardown frees them; after a broken
 * CHECK it frees nothing (guard.c). */
struct cairn {
    struct list fork_link; /* in fork.c's list, from before the thread starts until all is closed */
    unsigned generation;   /* number of forks before the process that opened it */
    bool viewer;
    uint64_t io_deadline_ms, save_deadline_ms;
    enum when_full when_full;
    void (*log)(void *user, int level, const char *line);
    void *log_user;
    char trace[TRACE_TAG_BYTES]; /* the tag that each save gets; "" if none */

    struct engine_options engine_options; /* the engine borrows from it */
    char *label;
    struct loop *loop;
    struct net *net;
    struct work_pool *pool;
    struct tls_context *tls;
    struct arena *arena;
    /* The CUDA driver, from the first registration of a device tensor on; guarded by set_lock. */
    struct gpu *gpu;
    struct engine *engine; /* used on the loop's thread only */
    pthread_t thread;
    bool has_thread;
    struct post close_post, break_post, prepare_post;

    /* The state of a broken CHECK: the first thread that meets one sets `claimed`, writes `broken`,
     * and then sets `dead` to the code. */
    atomic_flag claimed;
    atomic_int dead;
    char broken[256];

    pthread_mutex_t set_lock; /* one registration at a time */
    pthread_mutex_t lock;     /* guards all below; cond is signalled at every change */
    pthread_cond_t cond;
    /* is_ready: cairn_open has an answer. is_closing: cairn_close was called. is_buried: the
     * handle's thread has ended all futures after a broken CHECK. */
    bool is_ready, is_closing, is_buried, is_cut;
    int ready_status;
    struct diag ready_diag;
    struct registered *set; /* never NULL; not replaced while borrow_count > 0 */
    unsigned borrow_count;  /* saves that still read the tensors, and restores that are not done */
    unsigned restore_count; /* restores that are not done */
    struct list ops;        /* not done yet; each holds a reference for the loop */
    struct diag fenced;     /* a save was fenced, so later ones are refused */
    struct diag close_failure; /* the first save that failed since cairn_close was called */
};

/* Ends the engine and the thread, and frees everything. A dead handle keeps its memory, and stays
 * in fork.c's list, because the code that broke may still refer to any of it. */
void handle_teardown(struct cairn *cairn);

/* --- what every call checks, and broken CHECKs (guard.c) ---------------------------------- */

/* Returns 0 if this call may use the handle; else INVALID (NULL), FORKED or INTERNAL (dead). */
int MUST_USE guard_check(const struct cairn *cairn, struct diag *diag);
/* Does the same, and returns INVALID on the handle's own thread, where waiting would never end. */
int MUST_USE guard_check_may_block(const struct cairn *cairn, struct diag *diag);
/* Returns INTERNAL, with the text of the broken CHECK. */
int guard_dead(const struct cairn *cairn, struct diag *diag);
/* Calls fn(call, diag) in such a way that a broken CHECK in it marks the handle dead and gives
 * INTERNAL. cairn may be NULL if there is no handle yet. Fills *err and returns its code. */
int guard_call(struct cairn *cairn, int (*fn)(void *call, struct diag *diag), void *call,
               struct cairn_error *err);
/* Does the same on the handle's own thread. Returns false if fn did not come to its end. */
bool guard_thread(struct cairn *cairn, void (*fn)(struct cairn *cairn));
/* Called when a CHECK breaks on a thread of the pool (work_threads_on_broken). */
void guard_on_worker(void *cairn, const char *file, int line, const char *what);
/* Returns the handle whose thread is calling, or NULL on a caller's thread. */
struct cairn *guard_own_thread(void);
/* Called on the handle's thread to leave it, because the handle is dead. */
void guard_on_break_post(struct post *post);

/* --- options (open_options.c) ------------------------------------------------------------- */

/* Checks the options and the URL, and gives the handle and engine_options what they say: who this
 * rank is, deadlines, encoding, transport. The handle owns what is copied, also after a failure. */
int MUST_USE options_apply(struct cairn *cairn, const char *url,
                           const struct cairn_options *options, struct diag *diag);
/* Returns how many workers the handle gets. `wanted` is options.threads; 0 asks for the number of
 * CPUs that this process may use, but at most API_THREADS_DEFAULT. */
unsigned options_threads(int32_t wanted);

/* --- fork (fork.c) ------------------------------------------------------------------------ */

/* Returns the number of forks between the first process and this one. */
unsigned fork_generation(void);
/* Adds the handle to the list of those whose descriptors a forked child closes; remove takes it
 * out. */
int MUST_USE fork_add(struct cairn *cairn, struct diag *diag);
void fork_remove(struct cairn *cairn);

/* --- ops (op.c, save_op.c, restore_op.c) -------------------------------------------------- */

/* What cairn_op_t points to: a save or a restore, and the futures of it. It may outlive its handle.
 * `u` belongs to the loop's thread from op_start until the op is done, and to the user's calls
 * afterwards; its atomic counts, and `lazy`, which does not change, are read at any time. */
struct cairn_op {
    atomic_uint refs; /* the user's, the loop's until done, and one for a posted abort */
    unsigned generation;
    bool is_save;
    struct cairn *cairn;    /* valid until done */
    struct list link;       /* in cairn->ops; guarded by the handle's lock */
    bool borrows;           /* counted in borrow_count; guarded by the handle's lock */
    struct registered *set; /* holds a reference */
    struct scratch scratch; /* owns copies of the arguments */
    struct post start, abort, hurry;
    uint64_t blocked_ns;

    pthread_mutex_t lock; /* guards all below; cond is signalled at every change */
    pthread_cond_t cond;
    bool released, staged, handed, done, abort_asked, abort_posted, hurry_asked, hurry_posted;
    /* If its code is not 0, the call has failed, while the loop still tells the other ranks. */
    struct diag refused;
    int status; /* valid once done */
    struct diag diag;
    struct list notifies;

    union {
        struct engine_save save;
        struct engine_restore restore;
    } u;
};

/* Makes an op with one reference, the caller's. It is not in the handle's list yet. */
int MUST_USE op_new(struct cairn *cairn, bool is_save, struct cairn_op **ret, struct diag *diag);
void op_unref(struct cairn_op *op);
/* Enters the op into the handle's list, with the loop's reference and the present set, and posts
 * `start`. Fails with CLOSED, BUSY, INTERNAL or FENCED. */
int MUST_USE op_start(struct cairn_op *op, void (*start)(struct post *post), struct diag *diag);
/* The stage before CAIRN_RELEASED at which cairn_save may return. */
#define OP_RELEASED ((enum cairn_stage)0)
/* Called on the handle's thread when the op is released (well, or because the call has failed),
 * staged, handed over, or done. is_copied says that no tensor is read any more. op_finish gives
 * back the loop's reference. */
void op_release(struct cairn_op *op, bool is_copied);
void op_refuse(struct cairn_op *op, int status, const struct diag *diag);
/* Returns whether the op is a save that was refused, and now only tells the other ranks. */
bool op_is_refused(struct cairn_op *op);
void op_stage(struct cairn_op *op);
void op_hand(struct cairn_op *op);
void op_finish(struct cairn_op *op, int status, const struct diag *diag);
/* Waits for the stage; returns AGAIN when the time has passed. */
int MUST_USE op_wait(struct cairn_op *op, enum cairn_stage stage, int64_t deadline_ms,
                     struct diag *diag);
void op_abort(struct cairn_op *op);

/* register.c. Called on the handle's thread: tells the engine of a new set ahead of the first
 * save. */
void register_on_prepare(struct post *post);

/* --- small parts (errors.c, args.c) ------------------------------------------------------- */

/* Fills *err, which may be NULL, and returns code. */
int error_fill(struct cairn_error *err, int code, const struct diag *diag);
/* Returns what the user can do about a failure of cairn_open, or NULL. The text of UNREACHABLE says
 * it where the connection is given up (engine/link.c). */
const char *error_remedy(int code);

/* Copies a caller's struct, which begins with its size, over *ret, which holds the defaults and has
 * `bytes` in its size. NULL leaves the defaults; so do fields that a program built with an older
 * header does not have. INVALID, or UNSUPPORTED if fields are set that this version does not
 * know. */
int MUST_USE args_copy(const char *what, size_t bytes, const void *from, void *ret,
                       struct diag *diag);
/* Returns how many bytes the first version of a struct of cairn.h had, by its name, or `bytes` if
 * it has not grown. */
size_t args_first_bytes(const char *what, size_t bytes);
/* Writes as much of a result as the caller's struct has room for, but leaves its size field. */
void args_give(size_t bytes, const void *from, void *io);
/* Returns the deadline in milliseconds. 0 or a negative value gives the default; large ones are cut
 * so that sums cannot overflow. */
uint64_t args_deadline_ms(int64_t deadline_ms, uint64_t default_ms);
int MUST_USE args_check_when_full(int when_full, struct diag *diag);
enum when_full args_when_full(int when_full); /* the value must have been checked; 0 means wait */
/* Returns now plus the deadline on CLOCK_MONOTONIC. */
struct timespec args_due(int64_t deadline_ms);
uint64_t args_now_ns(void);
/* Initializes a lock and a condition variable that waits on CLOCK_MONOTONIC. */
int MUST_USE args_lock_init(pthread_mutex_t *lock, pthread_cond_t *cond, struct diag *diag);

#endif

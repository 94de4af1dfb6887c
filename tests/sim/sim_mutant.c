/* SPDX-License-Identifier: Apache-2.0
 *
 * The mutants: other functions in a host's table of file calls, and a decorator that answers before
 * its time. One thread.
 */
#include "sim_mutant.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static const struct sim_mutant mutants[MUTANT_COUNT] = {
    {MUTANT_NO_FSYNC, "no-fsync", false, 1},
    {MUTANT_NO_DIR_FSYNC, "no-directory-fsync", false, 1},
    {MUTANT_FSYNC_LIES, "fsync-lies", false, 40},
    {MUTANT_EARLY_SEAL, "early-seal", false, 1},
    {MUTANT_EARLY_PUBLISH, "early-publish", false, 2},
    {MUTANT_LOST_UPDATE, "lost-update", false, 2},
    {MUTANT_MISREAD, "misread", false, 2},
    {MUTANT_BAD_DISK, "bad-disk", false, 1},
    {MUTANT_LATE_CHANGE, "late-change", false, 1},
    {MUTANT_NO_VERDICT, "no-verdict", false, 13},
    {MUTANT_ANY_REFERENCE, "any-reference", false, 2},
    {MUTANT_LOST_SWEEP, "lost-sweep", false, 42},
    {MUTANT_NO_CLAIMS, "no-claims", false, 33},
    {MUTANT_NO_LEASES, "no-leases", false, 48},
    {MUTANT_EARLY_RECLAIM, "early-reclaim", false, 1},
    {MUTANT_FORGET_LAST, "forget-last", false, 7},
    {MUTANT_FORGET_PINNED, "forget-pinned", false, 2},
    {MUTANT_ONE_CYCLE, "one-cycle", false, 1},
    {MUTANT_TAKE_OPEN, "take-open", false, 1714},
    {MUTANT_FENCE_UNGUARDED, "fence-unguarded", true, 1},
    {MUTANT_COMMIT_UNGUARDED, "commit-unguarded", false, 2},
    {MUTANT_LATE_COMMIT, "late-commit", true, 1},
    {MUTANT_ABORT_BY_READING, "abort-by-reading", false, 14},
    {MUTANT_SWEEP_UNGUARDED, "sweep-unguarded", false, 82},
};

const struct sim_mutant *mutant_get(enum mutant kind) { return &mutants[kind]; }
bool mutant_needs_upkeep(const struct sim_mutant *mutant)
{
    return mutant && ((mutant->kind >= MUTANT_NO_CLAIMS && mutant->kind < MUTANT_COUNT_DISK) ||
                      mutant->kind == MUTANT_SWEEP_UNGUARDED);
}

bool mutant_is(const struct sim_mutant *mutant, enum mutant kind)
{
    return mutant && mutant->kind == kind;
}

/* --- file calls ------------------------------------------------------------------- */

static const struct vfs_ops *real; /* the same for all hosts; set once, read only */

static bool is_dir(struct vfs *vfs, vfs_fd fd)
{
    struct vfs_stat st;
    return real->fstat(vfs, fd, &st, NULL) == 0 && st.kind == VFS_DIR;
}

static bool is_one_in(struct vfs *vfs, uint64_t n)
{
    uint64_t draw;
    vfs->ops->random(vfs, sizeof draw, &draw);
    return draw % n == 0;
}

static int no_fsync(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    return is_dir(vfs, fd) || !is_one_in(vfs, 20) ? real->fsync(vfs, fd, diag) : 0;
}

static int no_dir_fsync(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    return is_dir(vfs, fd) && is_one_in(vfs, 20) ? 0 : real->fsync(vfs, fd, diag);
}

static int lying_fsync(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    (void)diag;
    err_ignore(real->fsync(vfs, fd, NULL)); /* the bug */
    return 0;
}

static int bad_pwrite(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, const void *data,
                      struct diag *diag)
{
    uint64_t draw;
    vfs->ops->random(vfs, sizeof draw, &draw);
    uint8_t *copy = malloc(bytes ? bytes : 1);
    CHECK(copy);
    memcpy(copy, data, bytes);
    if (bytes > 0 && draw % 60 == 0) {
        copy[(draw >> 8) % bytes] ^= 4;
    }
    int status = real->pwrite(vfs, fd, offset, bytes, copy, diag);
    free(copy);
    return status;
}

void mutant_on_host(const struct sim_mutant *mutant, struct sim_host *host)
{
    static struct vfs_ops table[MUTANT_COUNT]; /* filled alike every time */
    struct vfs *vfs = sim_vfs(host);
    if (!mutant) {
        return;
    }
    real = vfs->ops;
    struct vfs_ops *ops = &table[mutant->kind];
    *ops = *real;
    switch (mutant->kind) {
    case MUTANT_NO_FSYNC:
        ops->fsync = no_fsync;
        break;
    case MUTANT_NO_DIR_FSYNC:
        ops->fsync = no_dir_fsync;
        break;
    case MUTANT_FSYNC_LIES:
        ops->fsync = lying_fsync;
        break;
    case MUTANT_BAD_DISK:
        ops->pwrite = bad_pwrite;
        break;
    case MUTANT_EARLY_SEAL:
    case MUTANT_EARLY_PUBLISH:
    case MUTANT_LOST_UPDATE:
    case MUTANT_MISREAD:
    case MUTANT_NO_VERDICT:
    case MUTANT_ANY_REFERENCE:
    case MUTANT_LATE_CHANGE:
    case MUTANT_FENCE_UNGUARDED:
    case MUTANT_COMMIT_UNGUARDED:
    case MUTANT_LATE_COMMIT:
    case MUTANT_ABORT_BY_READING:
    case MUTANT_LOST_SWEEP:
    case MUTANT_NO_CLAIMS:
    case MUTANT_NO_LEASES:
    case MUTANT_EARLY_RECLAIM:
    case MUTANT_FORGET_LAST:
    case MUTANT_FORGET_PINNED:
    case MUTANT_ONE_CYCLE:
    case MUTANT_TAKE_OPEN:
    case MUTANT_SWEEP_UNGUARDED:
    case MUTANT_COUNT:
        return;
    }
    vfs->ops = ops;
}

/* --- the store that answers early ------------------------------------------------- */

struct early_store {
    struct store base;
    struct loop *loop;
    struct store *inner;
    const struct sim_mutant *mutant;
    size_t running;
    void (*closed)(void *user);
    void *closed_user;
};

struct early { /* the answer now, the deed later */
    struct early_store *store;
    struct store_req *caller;
    struct post post;
    struct timer timer;
    struct store_req req;
    bool drop;
};

static void close_if_idle(struct early_store *store)
{
    if (store->closed && store->running == 0) {
        void (*closed)(void *user) = store->closed;
        void *user = store->closed_user;
        store_close(store->inner, closed, user);
        free(store);
    }
}

static void early_end(struct early *early)
{
    struct early_store *store = early->store;
    free(early->req.data);
    free(early);
    store->running--;
    close_if_idle(store);
}

static void on_deed_done(struct store_req *req) { early_end(container_of(req, struct early, req)); }

static void on_deed(struct timer *timer)
{
    struct early *early = container_of(timer, struct early, timer);
    if (early->drop) {
        early_end(early);
    } else {
        store_submit(early->store->inner, &early->req);
    }
}

static void on_answer(struct post *post)
{
    struct early *early = container_of(post, struct early, post);
    struct store_req *caller = early->caller;
    timer_start(&early->timer, 40);
    caller->done(caller);
}

static bool sets(const struct record_update *update, const char *family)
{
    for (size_t i = 0; i < update->change_count; i++) {
        const struct record_change *change = &update->changes[i];
        if (!change->remove && strncmp(change->key, family, strlen(family)) == 0) {
            return true;
        }
    }
    return false;
}

/* The driver's own update: it is to believe in what it did. */
static void drop_guards(const struct early_store *store, struct store_req *req)
{
    const char *family = store->mutant->kind == MUTANT_FENCE_UNGUARDED ? "term/" : "chain/";
    bool is_one =
        store->mutant->kind == MUTANT_FENCE_UNGUARDED || store->mutant->kind == MUTANT_LATE_COMMIT;
    if (req->op == STORE_RECORD_UPDATE && is_one && sets(req->update, family)) {
        ((struct record_update *)(uintptr_t)req->update)->guard_count = 0;
    }
}

static bool is_early(const struct early_store *store, const struct store_req *req)
{
    uint64_t draw;
    loop_random(store->loop, sizeof draw, &draw);
    switch (req->op) {
    case STORE_SEAL:
        return store->mutant->kind == MUTANT_EARLY_SEAL;
    case STORE_PUBLISH:
        return store->mutant->kind == MUTANT_EARLY_PUBLISH;
    case STORE_RECORD_UPDATE:
        return (store->mutant->kind == MUTANT_LOST_UPDATE && draw % 20 == 0) ||
               (store->mutant->kind == MUTANT_ABORT_BY_READING && sets(req->update, "dead/") &&
                !sets(req->update, "open/"));
    default:
        return false;
    }
}

static void early_submit(struct store *base, struct store_req *req)
{
    struct early_store *store = container_of(base, struct early_store, base);
    if (req->op == STORE_READ && store->mutant->kind == MUTANT_MISREAD) {
        /* Always the same ones: what goes wrong once is read again by the client, and healed. */
        req->offset -= req->offset >= 4096 && req->object.writer % 8 == 1 ? 4096 : 0;
    }
    drop_guards(store, req);
    if (!is_early(store, req)) {
        store_submit(store->inner, req);
        return;
    }
    struct early *early = calloc(1, sizeof *early);
    CHECK(early);
    *early = (struct early){.store = store, .caller = req, .req = *req};
    early->drop = req->op == STORE_RECORD_UPDATE;
    early->post.cb = on_answer;
    early->req.done = on_deed_done;
    early->req.data = NULL;
    if (req->op == STORE_PUBLISH) {
        early->req.data = malloc(req->bytes ? req->bytes : 1);
        CHECK(early->req.data);
        memcpy(early->req.data, req->data, req->bytes);
    }
    timer_init(&early->timer, store->loop, on_deed);
    store->running++;
    req->status = 0;
    req->ret_version = 0;
    loop_post(store->loop, &early->post);
}

static void early_close(struct store *base, void (*done)(void *user), void *user)
{
    struct early_store *store = container_of(base, struct early_store, base);
    store->closed = done;
    store->closed_user = user;
    close_if_idle(store);
}

struct store *mutant_on_store(const struct sim_mutant *mutant, struct loop *loop,
                              struct store *store)
{
    static const struct store_ops ops = {early_submit, early_close};
    if (!mutant_is(mutant, MUTANT_EARLY_SEAL) && !mutant_is(mutant, MUTANT_EARLY_PUBLISH) &&
        !mutant_is(mutant, MUTANT_LOST_UPDATE) && !mutant_is(mutant, MUTANT_MISREAD) &&
        !mutant_is(mutant, MUTANT_FENCE_UNGUARDED) && !mutant_is(mutant, MUTANT_LATE_COMMIT) &&
        !mutant_is(mutant, MUTANT_ABORT_BY_READING)) {
        return store;
    }
    struct early_store *early = calloc(1, sizeof *early);
    CHECK(early);
    *early = (struct early_store){
        .base = {&ops, store->caps}, .loop = loop, .inner = store, .mutant = mutant};
    return &early->base;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The directory store as a store: passes operations to the work pool, refuses changes if it is
 * read-only, counts failed fsyncs on the loop's thread, opens and closes.
 */
#include "store_dir.h"

#include "dir_record_private.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

struct operation {
    int (*run)(struct dir_store *store, struct store_req *req);
    bool is_change;
};

/* Does ENTER: a directory lists what it holds, so nothing has to be noted down first. */
static int dir_op_enter(struct dir_store *store, struct store_req *req)
{
    (void)store, (void)req;
    return 0;
}

static const struct operation operations[] = {
    [STORE_ENTER] = {dir_op_enter, false},
    [STORE_CREATE] = {dir_op_create, true},
    [STORE_WRITE] = {dir_op_write, true},
    [STORE_SEAL] = {dir_op_seal, true},
    [STORE_ABORT] = {dir_op_abort, false}, /* it never makes anything worse */
    [STORE_READ] = {dir_op_read, false},
    [STORE_STAT] = {dir_op_stat, false},
    [STORE_LIST_OBJECTS] = {dir_op_list_objects, false},
    [STORE_DELETE_OBJECT] = {dir_op_delete_object, true},
    [STORE_PUBLISH] = {dir_op_publish, true},
    [STORE_FETCH] = {dir_op_fetch, false},
    [STORE_DELETE_SMALL] = {dir_op_delete_small, true},
    [STORE_EXCHANGE] = {dir_op_exchange, true},
    [STORE_LIST_SMALL] = {dir_op_list_small, false},
    [STORE_LIST_CKPTS] = {dir_op_list_ckpts, false},
    [STORE_LIST_RUNS] = {dir_op_list_runs, false},
    [STORE_RECORD_GET] = {dir_op_record_get, false},
    [STORE_RECORD_UPDATE] = {dir_op_record_update, true},
    [STORE_RECORD_FILE] = {dir_op_record_file, false},
    [STORE_RECORD_MEND] = {dir_op_record_mend, true},
    [STORE_RECORD_CUT] = {dir_op_record_cut, true},
    [STORE_USAGE] = {dir_op_usage, false},
    [STORE_PROBE] = {dir_op_probe, true},
    [STORE_SWEEP] = {dir_op_sweep, true},
};

/* Returns an error if the store takes no writes: it was opened so, or fsync has failed too often.
 */
static int check_writable(struct dir_store *store, struct diag *diag)
{
    if (store->read_only) {
        return diag_set(diag, CAIRN_E_READ_ONLY, "the store %s is open for reading only",
                        store->path);
    }
    if (atomic_load(&store->is_degraded)) {
        return diag_set(diag, CAIRN_E_READ_ONLY,
                        "the store %s is read-only, because fsync failed %d times; check the disk "
                        "and restart the daemon",
                        store->path, DIR_SYNC_FAILURES_MAX);
    }
    return 0;
}

static void run_op(struct work *work)
{
    struct store_req *req = container_of(work, struct store_req, work);
    struct dir_store *store = dir_of(req->store);
    const struct operation *operation = &operations[req->op];
    int rc = operation->is_change ? check_writable(store, &req->diag) : 0;
    req->status = rc ? rc : operation->run(store, req);
}

/* Called on the loop's thread when an operation has ended. */
static void op_done(struct work *work)
{
    struct store_req *req = container_of(work, struct store_req, work);
    struct dir_store *store = dir_of(req->store);
    CHECK(store->pending > 0);
    store->pending--;
    dir_count_failures(store);
    dir_copy_turn(store);
    req->done(req);
}

static void dir_submit(struct store *base, struct store_req *req)
{
    struct dir_store *store = dir_of(base);
    CHECK((size_t)req->op < ARRAY_LEN(operations));
    CHECK(req->done != NULL);
    store->pending++;
    req->work = (struct work){.run = run_op, .done = op_done};
    work_submit(store->pool, &req->work);
}

/* --- open, close ------------------------------------------------------------------------------ */

/* Frees the store and releases its lock. Nothing may be under way. */
static void free_store(struct dir_store *store)
{
    dir_abort_all(store);
    dir_free_runs(store);
    if (store->lock_fd != -1) {
        err_ignore(
            store->vfs->ops->close(store->vfs, store->lock_fd, NULL)); /* this releases the lock */
    }
    if (store->root != -1) {
        err_ignore(store->vfs->ops->close(store->vfs, store->root, NULL)); /* nothing to flush */
    }
    dir_sync_fini(&store->sync);
    for (size_t i = 0; i < DIR_MAKE_LOCKS; i++) {
        pthread_mutex_destroy(&store->make_locks[i]);
    }
    pthread_mutex_destroy(&store->admit_lock);
    pthread_mutex_destroy(&store->lock);
    free(store->path);
    free(store);
}

/* Closes on the pool, because it is file work: removes the temporaries of unsealed objects, and
 * copies records that are ahead of their copies. */
static void run_close(struct work *work)
{
    struct dir_store *store = container_of(work, struct dir_store, close_work);
    dir_abort_all(store);
    dir_copy_flush(store);
}

static void close_now(struct work *work)
{
    struct dir_store *store = container_of(work, struct dir_store, close_work);
    void (*done)(void *user) = store->close_done;
    void *user = store->close_user;
    free_store(store);
    if (done != NULL) {
        done(user);
    }
}

static void dir_close(struct store *base, void (*done)(void *user), void *user)
{
    struct dir_store *store = dir_of(base);
    CHECK(store->pending == 0);
    store->close_done = done;
    store->close_user = user;
    store->close_work = (struct work){.run = run_close, .done = close_now};
    dir_copy_stop(store);
}

static const struct store_ops dir_ops = {.submit = dir_submit, .close = dir_close};

/* Returns a store without a directory and without a lock; NULL if there is no memory. */
static struct dir_store *alloc_store(const char *path)
{
    struct dir_store *store = calloc(1, sizeof(*store));
    if (store == NULL) {
        return NULL;
    }
    store->path = strdup(path);
    if (store->path == NULL || dir_sync_init(&store->sync) != 0) {
        free(store->path);
        free(store);
        return NULL;
    }
    /* Default mutexes need only memory on Linux, so these do not fail. */
    CHECK(pthread_mutex_init(&store->lock, NULL) == 0);
    CHECK(pthread_mutex_init(&store->admit_lock, NULL) == 0);
    for (size_t i = 0; i < DIR_MAKE_LOCKS; i++) {
        CHECK(pthread_mutex_init(&store->make_locks[i], NULL) == 0);
    }
    store->root = store->lock_fd = -1;
    return store;
}

int store_dir_new(const struct store_dir_options *options, struct store **ret, struct diag *diag)
{
    struct dir_store *store = alloc_store(options->path);
    if (store == NULL) {
        return diag_no_memory(diag, "opening the store %s", options->path);
    }
    store->base.ops = &dir_ops;
    store->loop = options->loop;
    store->pool = options->pool;
    store->vfs = options->vfs;
    store->read_only = store->is_shared = options->read_only;
    store->copy_after_ms = options->copy_after_ms > 0 ? options->copy_after_ms : 100;
    dir_copy_init(store);
    store->reserve_bytes = options->reserve_bytes;
    store->snapshot_every = options->snapshot_every > 0 ? options->snapshot_every : 64;
    store->base.caps = (struct store_caps){.object_bytes_preferred = MIB(64),
                                           .align_bytes = LIMIT_ALIGN_BYTES,
                                           .exchanges = true,
                                           .record_files = true,
                                           .name = "dir"};
    int rc = dir_start(store, options, diag);
    if (rc != 0) {
        free_store(store);
        return rc;
    }
    store->base.caps.read_only = store->read_only;
    *ret = &store->base;
    return 0;
}

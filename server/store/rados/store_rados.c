/* SPDX-License-Identifier: Apache-2.0
 *
 * The rados store as a store: passes operations to the work pool, refuses changes if it is
 * read-only, opens and closes.
 */
#include "store_rados.h"

#include "rados_private.h"
#include "rados_small.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <stdio.h>
#include <stdlib.h>

struct operation {
    int (*run)(struct rados_store *store, struct store_req *req);
    bool is_change;
    /* Fail points at which tests end the process; NULL if there is none. */
    const char *before, *after;
};

/* Does EXCHANGE: unsupported, because a cluster keeps and mends its own copies. This store reads
 * what the acting primary of a placement group gives. */
static int rados_op_exchange(struct rados_store *store, struct store_req *req)
{
    (void)store;
    return diag_set(&req->diag, CAIRN_E_UNSUPPORTED,
                    "a Ceph cluster repairs its own copies: `ceph health detail` names the "
                    "placement group, `ceph pg repair PG` mends it");
}

static const struct operation operations[] = {
    [STORE_ENTER] = {rados_op_enter, true, "rados.enter", "rados.enter.done"},
    [STORE_CREATE] = {rados_op_create, true, "rados.create", "rados.create.done"},
    [STORE_WRITE] = {rados_op_write, true, "rados.write", "rados.write.done"},
    [STORE_SEAL] = {rados_op_seal, true, "rados.seal", "rados.seal.done"},
    [STORE_ABORT] = {rados_op_abort, false},
    [STORE_READ] = {rados_op_read, false},
    [STORE_STAT] = {rados_op_stat, false},
    [STORE_LIST_OBJECTS] = {rados_op_list_objects, false},
    [STORE_DELETE_OBJECT] = {rados_op_delete_object, true, "rados.delete", "rados.delete.done"},
    [STORE_PUBLISH] = {rados_op_publish, true, "rados.publish", "rados.publish.done"},
    [STORE_FETCH] = {rados_op_fetch, false},
    [STORE_DELETE_SMALL] = {rados_op_delete_small, true},
    [STORE_EXCHANGE] = {rados_op_exchange, true},
    [STORE_LIST_SMALL] = {rados_op_list_small, false},
    [STORE_LIST_CKPTS] = {rados_op_list_ckpts, false},
    [STORE_LIST_RUNS] = {rados_op_list_runs, false},
    [STORE_RECORD_GET] = {rados_op_record_get, false},
    [STORE_RECORD_UPDATE] = {rados_op_record_update, true, "rados.update", "rados.update.done"},
    [STORE_RECORD_FILE] = {rados_op_exchange, false},
    [STORE_RECORD_MEND] = {rados_op_exchange, true},
    [STORE_RECORD_CUT] = {rados_op_record_cut, true},
    [STORE_USAGE] = {rados_op_usage, false},
    [STORE_PROBE] = {rados_op_probe, true},
    [STORE_SWEEP] = {rados_op_sweep, true, "rados.sweep", "rados.sweep.done"},
};

static int point(const char *name, struct diag *diag)
{
    int rc = name != NULL ? FAILPOINT(name) : 0;
    return rc != 0 ? diag_set(diag, rc, "%s fails for a test", name) : 0;
}

/* Runs an operation on a thread of the pool. */
static void run_op(struct work *work)
{
    struct store_req *req = container_of(work, struct store_req, work);
    struct rados_store *store = rados_of(req->store);
    const struct operation *operation = &operations[req->op];
    int rc = operation->is_change && store->read_only
                 ? diag_set(&req->diag, CAIRN_E_READ_ONLY,
                            "the store in namespace %s is open for reading only", store->space)
                 : point(operation->before, &req->diag);
    rc = rc != 0 ? rc : operation->run(store, req);
    req->status = rc != 0 ? rc : point(operation->after, &req->diag);
}

static void op_done(struct work *work)
{
    struct store_req *req = container_of(work, struct store_req, work);
    struct rados_store *store = rados_of(req->store);
    CHECK(store->pending > 0);
    store->pending--;
    req->done(req);
}

/* Queues an operation. Its result is told on the loop's thread. */
static void rados_submit(struct store *base, struct store_req *req)
{
    struct rados_store *store = rados_of(base);
    CHECK((size_t)req->op < ARRAY_LEN(operations));
    CHECK(req->done != NULL);
    store->pending++;
    atomic_store(&store->now_ms, loop_now_ms(store->loop));
    req->work = (struct work){.run = run_op, .done = op_done};
    work_submit(store->pool, &req->work);
}

static void free_store(struct rados_store *store)
{
    rados_tables_free(store);
    rados_runs_free(store);
    rados_record_fini(&store->store_record);
    store->cluster->ops->close(store->cluster);
    pthread_cond_destroy(&store->gathered);
    pthread_cond_destroy(&store->known_changed);
    pthread_mutex_destroy(&store->lock);
    pthread_mutex_destroy(&store->name_lock);
    free(store);
}

/* Closes on the pool, because it removes unsealed objects and may wait for the cluster. */
static void run_close(struct work *work)
{
    struct rados_store *store = container_of(work, struct rados_store, close_work);
    rados_abort_all(store);
}

static void close_now(struct work *work)
{
    struct rados_store *store = container_of(work, struct rados_store, close_work);
    void (*done)(void *user) = store->close_done;
    void *user = store->close_user;
    free_store(store);
    if (done != NULL) {
        done(user);
    }
}

static void rados_close(struct store *base, void (*done)(void *user), void *user)
{
    struct rados_store *store = rados_of(base);
    CHECK(store->pending == 0);
    store->close_done = done;
    store->close_user = user;
    store->close_work = (struct work){.run = run_close, .done = close_now};
    work_submit(store->pool, &store->close_work);
}

static const struct store_ops rados_ops = {.submit = rados_submit, .close = rados_close};

int store_rados_new(const struct store_rados_options *options, struct store **ret,
                    struct diag *diag)
{
    struct rados_store *store = calloc(1, sizeof(*store));
    if (store == NULL) {
        options->cluster->ops->close(options->cluster);
        return diag_no_memory(diag, "opening a store on Ceph");
    }
    store->base.ops = &rados_ops;
    store->base.caps = (struct store_caps){.object_bytes_preferred = MIB(64),
                                           .align_bytes = LIMIT_ALIGN_BYTES,
                                           .redundant = true,
                                           .enters = true,
                                           .shared = true,
                                           .name = "rados"};
    store->loop = options->loop;
    store->pool = options->pool;
    store->cluster = options->cluster;
    store->read_only = options->read_only;
    snprintf(store->space, sizeof(store->space), "%s", options->space ? options->space : "cairn");
    CHECK(pthread_mutex_init(&store->lock, NULL) == 0);
    CHECK(pthread_mutex_init(&store->name_lock, NULL) == 0);
    CHECK(pthread_cond_init(&store->gathered, NULL) == 0);
    CHECK(pthread_cond_init(&store->known_changed, NULL) == 0);
    list_init(&store->open);
    loop_random(options->loop, sizeof(store->writer), &store->writer);
    rados_record_init(&store->store_record, store->space, "store");
    int rc = rados_start(store, options, diag);
    if (rc != 0) {
        free_store(store);
        return rc;
    }
    store->base.caps.read_only = store->read_only;
    *ret = &store->base;
    return 0;
}

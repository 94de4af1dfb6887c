/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on small things (manifests, pages, parts), on the records of runs, and on the store as
 * a whole. Decoded records are kept, each under the lock of its run; a store that was opened beside
 * a daemon keeps none.
 */
#include "dir_record_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- small things ----------------------------------------------------------------------------- */

/* Publishes the small object in the open directory. An object that is there already is made
 * durable, because the caller may find it equal and rely on it. */
static int publish_here(struct dir_store *store, const struct dir_at *at, const char *name,
                        struct store_req *req)
{
    struct record_value value = {.bytes = req->bytes, .data = req->data};
    int rc = dir_publish(store, at, name, value, &req->diag);
    if (rc == CAIRN_E_OUTCOME_UNKNOWN) {
        return dir_take_back(store, at, name, &req->diag);
    }
    if (rc == CAIRN_E_EXISTS) {
        struct diag why = DIAG_INIT;
        int sync_rc =
            dir_sync_now(store, at, &why); /* L11: the caller may find it equal, and rely on it */
        if (sync_rc != 0) {
            diag_clear(&req->diag);
            return diag_copy(&req->diag, &why);
        }
    }
    return rc;
}

int dir_op_publish(struct dir_store *store, struct store_req *req)
{
    char path[DIR_PATH_MAX], name[DIR_NAME_MAX];
    struct dir_at at;
    dir_path_checkpoint(&req->name.run, req->name.id, path);
    dir_name_small(&req->name, name);
    pthread_mutex_t *lock = dir_make_lock(store, &req->name.run);
    pthread_mutex_lock(lock);
    int rc = dir_make(store, path, &req->diag);
    rc = rc ? rc : dir_at_open(store, path, &at, &req->diag);
    pthread_mutex_unlock(lock);
    if (rc != 0) {
        return rc;
    }
    rc = publish_here(store, &at, name, req);
    dir_at_close(store, &at);
    return rc;
}

int dir_op_fetch(struct dir_store *store, struct store_req *req)
{
    char path[DIR_PATH_MAX], name[DIR_NAME_MAX];
    struct dir_at at;
    struct dir_bytes file = {.bytes_max = LIMIT_PART_BYTES,
                             .direct = req->from_medium,
                             .offset = req->offset,
                             .range = req->bytes};
    struct diag why = DIAG_INIT;
    dir_path_checkpoint(&req->name.run, req->name.id, path);
    dir_name_small(&req->name, name);
    int rc = dir_at_open(store, path, &at, &why);
    if (rc == 0) {
        rc = dir_read_file(store, &at, name, &file, &why);
        dir_at_close(store, &at);
    }
    if (rc == CAIRN_E_NOT_FOUND) {
        return diag_set(&req->diag, rc, "%s/%s is not in the store", path, name);
    }
    if (rc != 0) {
        return diag_copy(&req->diag, &why);
    }
    req->ret_data = file.data;
    req->ret_bytes = file.bytes;
    return 0;
}

int dir_op_delete_small(struct dir_store *store, struct store_req *req)
{
    char path[DIR_PATH_MAX], name[DIR_NAME_MAX];
    dir_path_checkpoint(&req->name.run, req->name.id, path);
    dir_name_small(&req->name, name);
    return dir_remove_file(store, &req->name.run, path, name, &req->diag);
}

/* --- records ---------------------------------------------------------------------------------- */

/* Returns the link to the run's entry in the table, or the link at which to insert it. The store's
 * lock is held. */
static struct dir_run **run_link(struct dir_store *store, const struct run_name *name)
{
    struct dir_run **link = &store->runs[dir_hash_run(name) % DIR_RUN_BUCKETS];
    while (*link != NULL && !run_name_equal(&(*link)->name, name)) {
        link = &(*link)->next;
    }
    return link;
}

/* Returns true if nothing of the run is here, neither a folder nor an entry in the table. A request
 * for such a run must not make an entry, because names cost a client nothing. */
static bool is_stranger(struct dir_store *store, const struct run_name *name)
{
    pthread_mutex_lock(&store->lock);
    bool is_known = *run_link(store, name) != NULL;
    pthread_mutex_unlock(&store->lock);
    char path[2][DIR_PATH_MAX];
    snprintf(path[0], DIR_PATH_MAX, "runs/%s/%s", name->project, name->run);
    dir_path_copy_of(path[0], path[1]);
    for (size_t i = 0; i < ARRAY_LEN(path) && !is_known; i++) {
        struct dir_at at;
        int rc = dir_at_open(store, path[i], &at, NULL);
        if (rc == 0) {
            dir_at_close(store, &at);
        }
        is_known = rc != CAIRN_E_NOT_FOUND;
    }
    return !is_known;
}

/* Returns the run's entry in the table, which the first call makes. It stays until the store is
 * closed. Returns NULL if there is no memory. */
struct dir_run *dir_run_find(struct dir_store *store, const struct run_name *name)
{
    pthread_mutex_lock(&store->lock);
    struct dir_run **link = run_link(store, name);
    if (*link == NULL) {
        char path[DIR_PATH_MAX];
        struct dir_run *run = calloc(1, sizeof(*run));
        if (run != NULL) {
            /* Default mutexes need only memory on Linux, so this does not fail. */
            CHECK(pthread_mutex_init(&run->lock, NULL) == 0);
            CHECK(pthread_mutex_init(&run->copying.lock, NULL) == 0);
            run->name = *name;
            dir_path_record(name, path);
            dir_record_init(&run->record, path);
            *link = run;
        }
    }
    struct dir_run *found = *link;
    pthread_mutex_unlock(&store->lock);
    return found;
}

void dir_free_runs(struct dir_store *store)
{
    for (size_t i = 0; i < DIR_RUN_BUCKETS; i++) {
        while (store->runs[i] != NULL) {
            struct dir_run *run = store->runs[i];
            store->runs[i] = run->next;
            dir_record_fini(&run->record);
            pthread_mutex_destroy(&run->lock);
            pthread_mutex_destroy(&run->copying.lock);
            free(run);
        }
    }
}

/* Fills in the answer for a record that was read: whole, or as far as it goes. */
static int answer(struct store_req *req, const struct dir_record *rec)
{
    req->ret_lost_from = rec->lost_from;
    req->ret_is_unreadable = rec->is_unreadable;
    if (rec->lost_from == 0) {
        return 0;
    }
    int code = diag_copy(&req->diag, &rec->lost);
    return req->take_prefix ? 0 : code;
}

static bool has_copy(struct dir_store *store, const char *path)
{
    struct dir_versions have = {0};
    struct dir_at at;
    int rc = dir_at_open(store, path, &at, NULL);
    if (rc == 0) {
        rc = dir_versions_list(store, &at, &have, NULL);
        dir_at_close(store, &at);
    }
    size_t count = have.snapshot_count;
    dir_versions_fini(&have);
    return rc == 0 ? count > 0 : rc != CAIRN_E_NOT_FOUND;
}

/* What this store has written or read before. Folders may be removed while a daemon runs, and what
 * is left of the record may be whole in itself. */
struct known {
    uint64_t version, copied; /* 0: none */
};

static struct known known_of(struct dir_store *store, const struct run_name *name)
{
    struct dir_run *run = store->is_shared ? NULL : dir_run_find(store, name);
    struct known known = {0};
    if (run != NULL) {
        pthread_mutex_lock(&run->lock);
        const struct dir_record *rec = &run->record;
        bool is_sure = rec->record != NULL && rec->lost_from == 0 && !rec->is_stuck;
        known.version = is_sure ? record_version(rec->record) : 0;
        known.copied = atomic_load(&run->copying.to);
        pthread_mutex_unlock(&run->lock);
    }
    return known;
}

/* Names what of it the medium lacks. */
static void check_known(struct dir_store *store, const struct dir_record *rec, struct known known,
                        struct dir_damage *io)
{
    bool is_short = rec->newest < known.version;
    if (io->count > 0 || (!is_short && (known.copied == 0 || has_copy(store, rec->copy_path)))) {
        return;
    }
    io->count = 1;
    io->files[0] =
        (struct record_file){.version = known.version, .is_snapshot = true, .is_copy = !is_short};
    err_ignore(is_short
                   ? diag_set(&io->first, CAIRN_E_DAMAGED,
                              "%s/%s ends with update %" PRIu64 ", but this server knows update "
                              "%" PRIu64 ": files were removed while it ran",
                              store->path, rec->path, rec->newest, known.version)
                   : diag_set(&io->first, CAIRN_E_DAMAGED,
                              "%s/%s, which held the second copy of the record, is missing",
                              store->path, rec->copy_path));
}

/* Reads the record from its files, beside the one in memory, which does not change. A request that
 * asks for the medium also gets the names of the damaged files. */
static int get_fresh(struct dir_store *store, struct store_req *req)
{
    char path[DIR_PATH_MAX];
    struct dir_record rec;
    struct dir_damage damage = {.count = 0};
    dir_path_record(&req->run, path);
    dir_record_init(&rec, path);
    rec.is_beside = true;
    rec.is_direct = req->from_medium;
    struct known known = req->from_medium ? known_of(store, &req->run) : (struct known){0};
    int rc = dir_record_read(store, &rec, req->from_medium ? &damage : NULL, &req->diag);
    if (rc == 0 && rec.lost_from != 0 && rec.lost_from <= known.version) {
        diag_clear(&rec.lost);
        err_ignore(diag_set(&rec.lost, damage.first.code,
                            "%.300s; nothing is lost: this server knows the record, and `cairn "
                            "verify --repair` writes it again, if scrub has not done so",
                            damage.first.text));
    }
    rc = rc ? rc : answer(req, &rec);
    if (rc == 0) {
        check_known(store, &rec, known, &damage);
        req->ret_record = rec.record;
        rec.record = NULL;
        err_ignore(diag_copy(&req->diag, &damage.first)); /* the status stays 0 */
    }
    memcpy(req->ret_files, damage.files, sizeof(req->ret_files));
    req->ret_file_count = damage.count;
    req->ret_version = rec.newest;
    dir_record_fini(&rec);
    return rc;
}

/* Gives the record that this store holds. Reads it if it holds none, or if what it holds is in
 * doubt. */
static int get_held(struct dir_store *store, struct dir_run *run, struct store_req *req)
{
    struct dir_record *rec = &run->record;
    if (rec->is_stuck) {
        /* If this fails, the state that is known to be durable is shown. */
        err_ignore(dir_record_settle(store, run, NULL));
    }
    int rc =
        rec->record != NULL && rec->lost_from == 0 ? 0 : dir_record_load(store, run, &req->diag);
    rc = rc ? rc : answer(req, rec);
    bool known =
        rc == 0 && req->known_version != 0 && record_version(rec->record) == req->known_version;
    return rc || known ? rc : record_clone(rec->record, &req->ret_record);
}

int dir_op_record_get(struct dir_store *store, struct store_req *req)
{
    if (store->is_shared || req->from_medium || is_stranger(store, &req->run)) {
        return get_fresh(store, req);
    }
    struct dir_run *run = dir_run_find(store, &req->run);
    if (run == NULL) {
        return diag_no_memory(&req->diag, "the record of %s/%s", req->run.project, req->run.run);
    }
    pthread_mutex_lock(&run->lock);
    int rc = get_held(store, run, req);
    pthread_mutex_unlock(&run->lock);
    return rc ? diag_set(&req->diag, rc, "record of %s/%s", req->run.project, req->run.run) : 0;
}

int dir_op_record_update(struct dir_store *store, struct store_req *req)
{
    struct dir_run *run = dir_run_find(store, &req->run);
    if (run == NULL) {
        return diag_no_memory(&req->diag, "the record of %s/%s", req->run.project, req->run.run);
    }
    pthread_mutex_lock(&run->lock);
    pthread_mutex_t *lock = dir_make_lock(store, &req->run);
    pthread_mutex_lock(lock);
    int rc = dir_make(store, run->record.path, &req->diag);
    pthread_mutex_unlock(lock);
    rc = rc ? rc : dir_record_update(store, run, req->update, &req->ret_version, &req->diag);
    if (rc == CAIRN_E_NOT_FOUND) { /* never said of a record: it would read as an empty run */
        diag_clear(&req->diag);
        rc = diag_set(&req->diag, CAIRN_E_DAMAGED,
                      "the folder %s/%s was removed while the daemon was running; put it back, or "
                      "run `cairn verify --repair`, which writes it again",
                      store->path, run->record.path);
    }
    pthread_mutex_unlock(&run->lock);
    return rc;
}

/* --- the store ------------------------------------------------------------------------------ */

int dir_op_usage(struct dir_store *store, struct store_req *req)
{
    struct vfs_space space;
    int rc = store->vfs->ops->space(store->vfs, store->root, &space, &req->diag);
    if (rc != 0) {
        return rc;
    }
    struct store_usage *usage = &req->ret_usage;
    bool is_degraded = atomic_load(&store->is_degraded);
    *usage = (struct store_usage){.total_bytes = space.total_bytes,
                                  .reserve_bytes = store->reserve_bytes,
                                  .records_free_bytes = space.free_bytes,
                                  .read_only = store->read_only || is_degraded};
    if (space.free_bytes > store->reserve_bytes) {
        usage->free_bytes = space.free_bytes - store->reserve_bytes;
    }
    pthread_mutex_lock(&store->lock);
    if (is_degraded) {
        snprintf(usage->detail, sizeof(usage->detail),
                 "the store is read-only, because fsync failed %d times; check the disk and "
                 "restart the daemon",
                 DIR_SYNC_FAILURES_MAX);
    } else if (store->health_count > 1) {
        snprintf(usage->detail, sizeof(usage->detail), "(%u notes) %s", store->health_count,
                 store->health);
    } else {
        snprintf(usage->detail, sizeof(usage->detail), "%s", store->health);
    }
    pthread_mutex_unlock(&store->lock);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations on small things (manifests, pages, parts), on the records of runs, and on the store as
 * a whole. Decoded records are kept under a lock per run; a store opened beside a daemon keeps
 * none.
 */
#include "dir_private.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- small things ----------------------------------------------------------------------------- */

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
            dir_sync_now(store, at, &why); /* L11: the caller may find it equal, and build on it */
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

/* The run's entry in the table, made when it is asked for first; it stays until the store is
 * closed. */
struct dir_run *dir_run_find(struct dir_store *store, const struct run_name *name)
{
    pthread_mutex_lock(&store->lock);
    struct dir_run **link = &store->runs[dir_hash_run(name) % DIR_RUN_BUCKETS];
    while (*link != NULL && !run_name_equal(&(*link)->name, name)) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        char path[DIR_PATH_MAX];
        struct dir_run *run = calloc(1, sizeof(*run));
        if (run != NULL && pthread_mutex_init(&run->lock, NULL) == 0) {
            run->name = *name;
            dir_path_record(name, path);
            dir_record_init(&run->record, path);
            *link = run;
        } else {
            free(run);
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
            free(run);
        }
    }
}

static int get_fresh(struct dir_store *store, struct store_req *req)
{
    char path[DIR_PATH_MAX];
    struct dir_record rec;
    dir_path_record(&req->run, path);
    dir_record_init(&rec, path);
    rec.is_beside = true;
    rec.is_direct = req->from_medium;
    int rc = dir_record_load(store, &rec, &req->diag);
    if (rc == 0) {
        req->ret_record = rec.record;
    }
    memcpy(req->ret_files, rec.damaged, sizeof(req->ret_files));
    req->ret_version = rec.newest;
    return rc;
}

int dir_op_record_get(struct dir_store *store, struct store_req *req)
{
    if (store->is_shared || req->from_medium) {
        return get_fresh(store, req);
    }
    struct dir_run *run = dir_run_find(store, &req->run);
    if (run == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "record of %s/%s", req->run.project,
                        req->run.run);
    }
    pthread_mutex_lock(&run->lock);
    int rc = run->record.record != NULL ? 0 : dir_record_load(store, &run->record, &req->diag);
    bool known = rc == 0 && req->known_version != 0 &&
                 record_version(run->record.record) == req->known_version;
    rc = rc || known ? rc : record_clone(run->record.record, &req->ret_record);
    pthread_mutex_unlock(&run->lock);
    return rc ? diag_set(&req->diag, rc, "record of %s/%s", req->run.project, req->run.run) : 0;
}

int dir_op_record_update(struct dir_store *store, struct store_req *req)
{
    struct dir_run *run = dir_run_find(store, &req->run);
    if (run == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "record of %s/%s", req->run.project,
                        req->run.run);
    }
    pthread_mutex_lock(&run->lock);
    pthread_mutex_t *lock = dir_make_lock(store, &req->run);
    pthread_mutex_lock(lock);
    int rc = dir_make(store, run->record.path, &req->diag);
    pthread_mutex_unlock(lock);
    rc = rc ? rc
            : dir_record_update(store, &run->record, req->update, &req->ret_version, &req->diag);
    pthread_mutex_unlock(&run->lock);
    return rc;
}

/* --- all runs --------------------------------------------------------------------------------- */

struct run_list {
    size_t count, cap;
    struct run_name *names;
};

static int add_run(struct run_list *list, const struct run_name *name)
{
    if (list->count == list->cap) {
        size_t cap = list->cap == 0 ? 64 : list->cap * 2;
        struct run_name *grown = realloc(list->names, cap * sizeof(*grown));
        if (grown == NULL) {
            return CAIRN_E_NO_MEMORY;
        }
        list->names = grown;
        list->cap = cap;
    }
    list->names[list->count++] = *name;
    return 0;
}

static int list_project(struct dir_store *store, const struct run_name *of, struct run_list *list,
                        struct diag *diag)
{
    char path[DIR_PATH_MAX];
    struct dir_at at;
    struct dir_entries entries = {0};
    struct run_name name;
    bool exists;
    snprintf(path, sizeof(path), "runs/%s", of->project);
    int rc = dir_at_open(store, path, &at, diag);
    if (rc != 0) {
        return rc;
    }
    rc = dir_entries_list(store, &at, &entries, diag);
    dir_at_close(store, &at);
    for (size_t i = 0; rc == 0 && i < entries.count; i++) {
        if (entries.entries[i].kind != VFS_DIR ||
            run_name_set(of->project, entries.entries[i].name, &name, NULL) != 0) {
            continue; /* not one of ours */
        }
        struct diag why = DIAG_INIT;
        dir_path_record(&name, path);
        rc = dir_record_exists(store, path, &exists, &why);
        if (rc != 0 && rc != CAIRN_E_NO_MEMORY) {
            exists = true; /* who asks for it is told what is wrong; the others are listed */
            rc = 0;
        } else if (rc != 0) {
            diag_copy(diag, &why);
        }
        if (rc == 0 && exists) {
            rc = add_run(list, &name);
        }
    }
    dir_entries_fini(&entries);
    return rc;
}

int dir_op_list_runs(struct dir_store *store, struct store_req *req)
{
    struct dir_at at;
    struct dir_entries projects = {0};
    struct run_list list = {0};
    struct run_name name;
    struct diag why = DIAG_INIT;
    int rc = dir_at_open(store, "runs", &at, &why);
    if (rc == 0) {
        rc = dir_entries_list(store, &at, &projects, &why);
        dir_at_close(store, &at);
    } else if (rc == CAIRN_E_NOT_FOUND) {
        rc = 0;
    }
    for (size_t i = 0; rc == 0 && i < projects.count; i++) {
        const char *project = projects.entries[i].name;
        if (projects.entries[i].kind == VFS_DIR && run_name_set(project, "x", &name, NULL) == 0) {
            rc = list_project(store, &name, &list, &why);
        }
    }
    dir_entries_fini(&projects);
    if (rc != 0) {
        free(list.names);
        return diag_set(&req->diag, rc, "list of runs: %s", diag_text(&why, rc));
    }
    req->ret_runs = list.names != NULL ? list.names : calloc(1, sizeof(*list.names));
    req->ret_count = list.count;
    return req->ret_runs != NULL ? 0 : diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of runs");
}

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
                                  .read_only = store->read_only || is_degraded};
    if (space.free_bytes > store->reserve_bytes) {
        usage->free_bytes = space.free_bytes - store->reserve_bytes;
    }
    pthread_mutex_lock(&store->lock);
    if (is_degraded) {
        snprintf(usage->detail, sizeof(usage->detail),
                 "read-only: fsync failed %d times; check the disk, restart",
                 DIR_SYNC_FAILURES_MAX);
    } else if (store->health_count > 1) {
        snprintf(usage->detail, sizeof(usage->detail), "(%u notes) %.70s", store->health_count,
                 store->health);
    } else {
        snprintf(usage->detail, sizeof(usage->detail), "%s", store->health);
    }
    pthread_mutex_unlock(&store->lock);
    return 0;
}

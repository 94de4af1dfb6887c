/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of runs, and the list of runs: an object whose keys are their names ("project/run"). A
 * run is entered before its record is made, as intended, and noted as made after it: a listing asks
 * the records of those that are only intended. So no run is missing, and none is listed that is
 * not.
 */
#include "rados_private.h"

#include "base/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char RUNS[] = "runs";

static uint32_t hash_run(const struct run_name *run)
{
    uint32_t crc = crc32c(0, strlen(run->project) + 1, run->project);
    return crc32c(crc, strlen(run->run), run->run);
}

/* The run's entry, made when it is asked for first; it stays until the store is closed. Locked. */
static struct rados_record *lock_run(struct rados_store *store, const struct run_name *name)
{
    if (store_is_own_record(name)) {
        pthread_mutex_lock(&store->store_record.lock);
        return &store->store_record;
    }
    pthread_mutex_lock(&store->lock);
    struct rados_record **link = &store->runs[hash_run(name) % RADOS_RUN_BUCKETS];
    while (*link != NULL && !run_name_equal(&(*link)->run, name)) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
        struct rados_record *run = calloc(1, sizeof(*run));
        if (run != NULL) {
            rados_space_of(store, name, space);
            snprintf(object, sizeof(object), "run.%s", name->run);
            rados_record_init(run, space, object);
            run->run = *name;
            *link = run;
        }
    }
    struct rados_record *found = *link;
    pthread_mutex_unlock(&store->lock);
    if (found != NULL) {
        pthread_mutex_lock(&found->lock);
    }
    return found;
}

void rados_runs_free(struct rados_store *store)
{
    for (size_t i = 0; i < RADOS_RUN_BUCKETS; i++) {
        while (store->runs[i] != NULL) {
            struct rados_record *run = store->runs[i];
            store->runs[i] = run->next;
            rados_record_fini(run);
            free(run);
        }
    }
}

int rados_op_record_get(struct rados_store *store, struct store_req *req)
{
    struct rados_record *run = lock_run(store, &req->run);
    if (run == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "no memory for a run");
    }
    int rc = rados_record_refresh(store, run, &req->diag);
    bool known = rc == 0 && !req->from_medium && req->known_version != 0 &&
                 record_version(run->record) == req->known_version;
    if (rc == 0 && !known && record_clone(run->record, &req->ret_record) != 0) {
        rc = diag_set(&req->diag, CAIRN_E_NO_MEMORY, "no memory for a record");
    }
    pthread_mutex_unlock(&run->lock);
    return rc;
}

/* --- the list --------------------------------------------------------------------------------- */

static int enter(struct rados_store *store, const struct run_name *name, const char *state,
                 struct diag *diag)
{
    char key[RUN_NAME_TEXT_MAX];
    run_name_format(name, key);
    struct cluster_step step = {
        .kind = STEP_KEY_SET, .key = key, .data = state, .bytes = strlen(state)};
    struct cluster_call call = {.pool = CLUSTER_META,
                                .space = store->space,
                                .object = RUNS,
                                .step_count = 1,
                                .steps = &step};
    int rc = cluster_do(store->cluster, &call);
    /* Whether it was entered does not matter to the record, which nobody has touched: TIMED_OUT. A
     * late "intended" over a "made" costs listings a look. */
    return rc == 0 ? 0 : rados_error(rc, false, "the list of runs", diag);
}

int rados_op_record_update(struct rados_store *store, struct store_req *req)
{
    struct rados_record *run = lock_run(store, &req->run);
    if (run == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "no memory for a run");
    }
    int rc = run->record == NULL ? rados_record_refresh(store, run, &req->diag) : 0;
    bool new = rc == 0 && record_version(run->record) == 0 && !store_is_own_record(&req->run);
    if (new &&record_guards_hold(run->record, req->update, NULL)) {
        rc = enter(store, &req->run, "intended", &req->diag);
    }
    rc = rc != 0 ? rc : rados_record_update(store, run, req->update, &req->ret_version, &req->diag);
    if (rc == 0 && new) {
        /* If this fails the run stays intended, and each listing looks at its record. */
        err_ignore(enter(store, &req->run, "made", NULL));
    }
    pthread_mutex_unlock(&run->lock);
    return rc;
}

static int is_made(struct rados_store *store, const struct run_name *run, bool *ret,
                   struct diag *diag)
{
    char space[CLUSTER_NAMESPACE_MAX], object[CLUSTER_OBJECT_NAME_MAX];
    struct cluster_step step = {.kind = STEP_STAT};
    rados_space_of(store, run, space);
    snprintf(object, sizeof(object), "run.%s", run->run);
    struct cluster_call call = {
        .pool = CLUSTER_META, .space = space, .object = object, .step_count = 1, .steps = &step};
    int rc = cluster_do(store->cluster, &call);
    *ret = rc == 0;
    return rc == 0 || rc == -ENOENT ? 0 : rados_error(rc, false, "a run of the list", diag);
}

static int add_run(struct rados_store *store, struct store_req *req,
                   const struct cluster_pair *pair)
{
    struct run_name name;
    bool made = pair->bytes == 4 && memcmp(pair->data, "made", 4) == 0;
    int rc = run_name_parse(pair->key, &name, &req->diag);
    rc = rc != 0 || made ? rc : is_made(store, &name, &made, &req->diag);
    if (rc != 0 || !made) {
        return rc;
    }
    struct run_name *grown = realloc(req->ret_runs, (req->ret_count + 1) * sizeof(*req->ret_runs));
    if (grown == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "list of %zu runs", req->ret_count);
    }
    req->ret_runs = grown;
    req->ret_runs[req->ret_count++] = name;
    return 0;
}

static int compare_runs(const void *a, const void *b)
{
    const struct run_name *x = a, *y = b;
    int order = strcmp(x->project, y->project);
    return order != 0 ? order : strcmp(x->run, y->run);
}

int rados_op_list_runs(struct rados_store *store, struct store_req *req)
{
    char after[RUN_NAME_TEXT_MAX] = "";
    bool more = true;
    int rc = 0;
    req->ret_runs = calloc(1, sizeof(*req->ret_runs)); /* never NULL on success */
    req->ret_count = 0;
    while (rc == 0 && more) {
        struct cluster_step step = {.kind = STEP_KEYS, .after = after};
        struct cluster_call call = {.pool = CLUSTER_META,
                                    .space = store->space,
                                    .object = RUNS,
                                    .step_count = 1,
                                    .steps = &step};
        rc = cluster_do(store->cluster, &call);
        if (rc != 0) {
            rc = rc == -ENOENT ? 0 : rados_error(rc, false, "the list of runs", &req->diag);
            break;
        }
        const struct cluster_map *map = &step.ret_map;
        for (size_t i = 0; rc == 0 && i < map->count; i++) {
            rc = add_run(store, req, &map->pairs[i]);
        }
        more = map->more && map->count > 0;
        if (map->count > 0) {
            snprintf(after, sizeof(after), "%s", map->pairs[map->count - 1].key);
        }
        cluster_map_fini(&step.ret_map);
    }
    if (rc != 0 || req->ret_runs == NULL) {
        free(req->ret_runs);
        req->ret_runs = NULL;
        return rc != 0 ? rc : diag_set(&req->diag, CAIRN_E_NO_MEMORY, "no memory for a list");
    }
    if (req->ret_count > 1) {
        qsort(req->ret_runs, req->ret_count, sizeof(*req->ret_runs), compare_runs);
    }
    return 0;
}

int rados_op_usage(struct rados_store *store, struct store_req *req)
{
    struct cluster_usage usage;
    int rc = store->cluster->ops->usage(store->cluster, &usage);
    if (rc != 0) {
        return rados_error(rc, false, "the cluster's usage", &req->diag);
    }
    req->ret_usage = (struct store_usage){.total_bytes = usage.total_bytes,
                                          .free_bytes = usage.free_bytes,
                                          .read_only = store->read_only};
    return 0;
}

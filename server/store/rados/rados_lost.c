/* SPDX-License-Identifier: Apache-2.0
 *
 * Records that are missing, damaged, or unreadable on every copy that Ceph has. The record of a run
 * is known to be missing, and not merely not made yet, if the list of runs has it as made; the
 * store's own record is, if there are runs. No save and no start makes such a record anew. An
 * operator has to ask for it (STORE_RECORD_CUT, `cairn salvage`), and the remains are first set
 * aside in an object of their own. Any thread; the record's lock is held.
 */
#include "rados_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

enum { ASIDE_KEYS_MAX = 32 };

bool rados_is_loss(int code)
{
    return code == CAIRN_E_DAMAGED || code == CAIRN_E_FORMAT || code == CAIRN_E_IO ||
           code == CAIRN_E_NOT_FOUND;
}

int rados_lost_check(struct rados_store *store, struct rados_record *rec, struct diag *diag)
{
    bool made = false;
    int rc =
        record_version(rec->record) == 0 ? rados_list_has_run(store, &rec->run, &made, diag) : 0;
    if (rc != 0 || !made) {
        return rc;
    }
    rc = rados_record_refresh(store, rec, diag); /* another daemon may have made it just now */
    if (rc != 0 || record_version(rec->record) != 0) {
        return rc;
    }
    return store_is_own_record(&rec->run)
               ? diag_set(diag, CAIRN_E_DAMAGED,
                          "namespace %s holds runs, but the object \"%s\", which is the store's "
                          "record, is missing",
                          rec->space, rec->object)
               : diag_set(diag, CAIRN_E_DAMAGED,
                          "the record %s/%s is missing, although the list of runs has the run",
                          rec->space, rec->object);
}

int rados_lost_refresh(struct rados_store *store, struct rados_record *rec, struct diag *diag)
{
    int rc = rados_record_refresh(store, rec, diag);
    return rc != 0 ? rc : rados_lost_check(store, rec, diag);
}

/* --- on the operator's word ----------------------------------------------------------------- */

/* Copies the keys of one page into the object that keeps the remains. */
static int put_aside(struct rados_store *store, const struct rados_record *rec, const char *aside,
                     const struct cluster_map *map)
{
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < map->count; at += ASIDE_KEYS_MAX) {
        struct cluster_step steps[ASIDE_KEYS_MAX];
        size_t count = 0;
        for (; count < ASIDE_KEYS_MAX && at + count < map->count; count++) {
            const struct cluster_pair *pair = &map->pairs[at + count];
            steps[count] = (struct cluster_step){
                .kind = STEP_KEY_SET, .key = pair->key, .data = pair->data, .bytes = pair->bytes};
        }
        struct cluster_call call = {.pool = CLUSTER_META,
                                    .space = rec->space,
                                    .object = aside,
                                    .step_count = count,
                                    .steps = steps};
        rc = cluster_do(store->cluster, &call);
    }
    return rc;
}

/* Copies the record's keys aside as far as they can be read. The unreadable ones are the loss. */
static int set_aside(struct rados_store *store, const struct rados_record *rec, uint64_t version,
                     struct diag *diag)
{
    char aside[CLUSTER_OBJECT_NAME_MAX];
    struct rados_pages pages = {.space = rec->space, .object = rec->object};
    int rc = 0;
    snprintf(aside, sizeof(aside), "lost/%.400s/%" PRIu64, rec->object, version);
    while (rc == 0 && rados_pages_next(store, &pages)) {
        rc = put_aside(store, rec, aside, &pages.map);
    }
    cluster_map_fini(&pages.map);
    if (pages.failure != 0 && pages.failure != -ENOENT && pages.failure != -EIO) {
        rc = pages.failure;
    }
    return rc == 0 ? 0 : rados_error(rc, false, aside, diag);
}

int rados_lost_renew(struct rados_store *store, struct rados_record *rec, struct diag *diag)
{
    struct cluster_step remove = {.kind = STEP_REMOVE};
    struct cluster_call call = {.pool = CLUSTER_META,
                                .space = rec->space,
                                .object = rec->object,
                                .step_count = 1,
                                .steps = &remove};
    /* A version beyond every one that was given: no record is updated a thousand times a second for
     * long. A daemon that has an older version in memory finds that it does not belong to this
     * record. */
    uint64_t version = (uint64_t)loop_wall_ns(store->loop) / 1000000;
    int rc = set_aside(store, rec, version, diag);
    if (rc != 0) {
        return rc;
    }
    rc = cluster_do(store->cluster, &call);
    if (rc != 0 && rc != -ENOENT) {
        return rados_error(rc, true, "cannot remove a damaged record", diag);
    }
    return rados_record_begin(store, rec, version, diag);
}

int rados_op_record_cut(struct rados_store *store, struct store_req *req)
{
    if (store_is_own_record(&req->run)) {
        return diag_set(&req->diag, CAIRN_E_UNSUPPORTED,
                        "only `cairn salvage --store URL` can make the store's own record again");
    }
    struct rados_record *run = rados_run_lock(store, &req->run);
    struct diag why = DIAG_INIT;
    if (run == NULL) {
        return diag_no_memory(&req->diag, "a run");
    }
    rados_record_drop(run);
    int rc = rados_lost_refresh(store, run, &why);
    if (rc == 0 || req->file.version != RADOS_LOST_FROM) {
        rc = diag_set(&req->diag, CAIRN_E_CONFLICT,
                      "nothing of the record %s/%s is lost, so there is nothing to repair",
                      run->space, run->object);
    } else if (!rados_is_loss(rc)) {
        rc = diag_copy(&req->diag, &why);
    } else {
        rc = rados_lost_renew(store, run, &req->diag);
        req->ret_version = rc == 0 ? record_version(run->record) : 0;
    }
    rados_run_unlock(store, run);
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A damaged file of a run's record is replaced by a copy of it. Invariant: only by the file that
 * was there. Each update holds the SHA-256 of the one before it, so the next update, or the
 * snapshot of the same number, proves a copy byte by byte; a snapshot is proven by the hash that it
 * carries on. Where nothing later is there, only the update before speaks for the copy, and the
 * caller has to answer for the rest. The name is never missing: a last update that is missing
 * could not be told from one that was never written.
 */
#include "dir_private.h"

#include "base/failpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a file of the chain says: the update of its number, and the one before. */
struct chain_link {
    struct sha256 hash;     /* of update `version` */
    struct sha256 previous; /* of the one before; not of a snapshot */
};

static int read_link(const struct record_file *file, size_t bytes, const uint8_t *data,
                     struct chain_link *ret, struct diag *diag)
{
    struct record *record = NULL;
    struct record_update update;
    struct scratch scratch;
    uint64_t version = 0;
    int rc;
    if (file->is_snapshot) {
        rc = record_snapshot_decode(bytes, data, &record, ret->hash.bytes, diag);
        version = rc == 0 ? record_version(record) : 0;
        record_free(record);
    } else {
        scratch_init(&scratch, KIB(64) + bytes * 8);
        rc = record_update_decode(bytes, data, &scratch, &update, &version, ret->previous.bytes,
                                  diag);
        scratch_fini(&scratch);
        ret->hash = sha256(bytes, data);
    }
    return rc != 0 || version == file->version
               ? rc
               : diag_set(diag, CAIRN_E_DAMAGED, "it holds version %llu",
                          (unsigned long long)version);
}

/* The same of a file that is here. */
static int look_at(struct dir_store *store, const struct dir_at *at,
                   const struct record_file *which, struct chain_link *ret)
{
    struct dir_bytes file = {.bytes_max = which->is_snapshot ? LIMIT_RECORD_BYTES
                                                             : LIMIT_RECORD_UPDATE_BYTES,
                             .direct = true};
    char name[DIR_NAME_MAX];
    dir_name_version(which->version, which->is_snapshot, name);
    int rc = dir_read_file(store, at, name, &file, NULL);
    rc = rc ? rc : read_link(which, file.bytes, file.data, ret, NULL);
    free(file.data);
    return rc;
}

static bool is_same(const struct sha256 *a, const struct sha256 *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* The hash of update `version`, as anything here but that file's own bytes, or its snapshot's,
 * tells. */
static bool find_hash(struct dir_store *store, const struct dir_at *at,
                      const struct record_file *but, uint64_t version, struct sha256 *ret)
{
    struct chain_link link;
    struct record_file after = {.version = version + 1};
    struct record_file same = {.version = version};
    struct record_file snapshot = {.version = version, .is_snapshot = true};
    bool own = but->version == version;
    if (version == 0) {
        *ret = (struct sha256){{0}}; /* what the first update follows */
        return true;
    }
    if (but->version != version + 1 && look_at(store, at, &after, &link) == 0) {
        *ret = link.previous;
        return true;
    }
    if ((!own || but->is_snapshot) && look_at(store, at, &same, &link) == 0) {
        *ret = link.hash;
        return true;
    }
    if ((!own || !but->is_snapshot) && look_at(store, at, &snapshot, &link) == 0) {
        *ret = link.hash;
        return true;
    }
    return false;
}

/* Does what is behind it, or else what is before it, go together with this one? */
static bool is_in_place(struct dir_store *store, const struct dir_at *at,
                        const struct record_file *file, const struct chain_link *link)
{
    struct sha256 known;
    if (find_hash(store, at, file, file->version, &known)) {
        return is_same(&known, &link->hash);
    }
    return file->is_snapshot || (find_hash(store, at, file, file->version - 1, &known) &&
                                 is_same(&known, &link->previous));
}

static int prove(struct dir_store *store, const struct dir_at *at, const struct store_req *req,
                 struct diag *diag)
{
    const struct record_file *file = &req->file;
    struct chain_link link;
    struct sha256 known;
    struct diag why = DIAG_INIT;
    int rc = read_link(file, req->bytes, req->data, &link, &why);
    if (rc != 0) {
        return diag_set(diag, rc, "the copy is damaged itself: %s", diag_text(&why, rc));
    }
    bool is_proven = find_hash(store, at, file, file->version, &known);
    if (!is_proven && (file->is_snapshot || !file->is_last)) {
        return diag_set(diag, CAIRN_E_NOT_FOUND, "nothing whole follows that proves the copy");
    }
    return is_in_place(store, at, file, &link) ? 0
           : is_proven
               ? diag_set(diag, CAIRN_E_CONFLICT,
                          "the copy is not what was here: what follows it names another")
               : diag_set(diag, CAIRN_E_CONFLICT,
                          "the copy does not follow what is here: the two records went apart");
}

/* --- putting it there ------------------------------------------------------------------------- */

/* The copy is durable under a name of its own, then the two trade names. */
static int replace(struct dir_store *store, const struct dir_at *at, const char *name,
                   struct record_value value, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    char beside[DIR_NAME_MAX], aside[DIR_NAME_MAX + 16];
    dir_temp_name(store, beside); /* what a crash leaves of it the next start removes */
    int rc = dir_publish(store, at, beside, value, diag);
    rc = rc ? rc : FAILPOINT("dir.exchange");
    rc = rc ? rc : vfs->ops->exchange(vfs, at->fd, name, beside, diag);
    if (rc != 0) {
        err_ignore(vfs->ops->unlink(vfs, at->fd, beside, false, NULL)); /* else the next start */
        return rc;
    }
    rc = dir_sync_now(store, at, diag);
    snprintf(aside, sizeof(aside), "%s.damaged", name);
    if (vfs->ops->rename(vfs, at->fd, beside, at->fd, aside, NULL) == 0) {
        dir_quarantine(store, at, aside);
    }
    return rc;
}

static int put(struct dir_store *store, const struct dir_at *at, struct store_req *req)
{
    struct chain_link link;
    struct vfs_stat stat;
    struct record_value value = {.bytes = req->bytes, .data = req->data};
    char name[DIR_NAME_MAX];
    dir_name_version(req->file.version, req->file.is_snapshot, name);
    if (look_at(store, at, &req->file, &link) == 0 && is_in_place(store, at, &req->file, &link)) {
        return diag_set(&req->diag, CAIRN_E_CONFLICT, "%s/%s is whole", at->path, name);
    }
    int rc = prove(store, at, req, &req->diag);
    rc = rc ? rc : dir_check_broken(store, at->path, &req->diag);
    if (rc == 0) {
        rc = dir_stat_file(store, at, name, &stat, NULL) == CAIRN_E_NOT_FOUND
                 ? dir_publish(store, at, name, value, &req->diag)
                 : replace(store, at, name, value, &req->diag);
    }
    if (rc != 0) {
        diag_add(&req->diag, "record file %s/%s", at->path, name);
    }
    return rc;
}

/* A last update is not taken on trust where the store itself knows what it was: its next update
 * would follow that one. */
static bool is_held(const struct dir_record *rec, const struct store_req *req)
{
    struct sha256 hash = sha256(req->bytes, req->data);
    return req->file.version == record_version(rec->record) && is_same(&hash, &rec->last);
}

int dir_op_record_mend(struct dir_store *store, struct store_req *req)
{
    struct dir_run *run = dir_run_find(store, &req->run);
    struct dir_at at;
    if (run == NULL) {
        return diag_set(&req->diag, CAIRN_E_NO_MEMORY, "record of %s/%s", req->run.project,
                        req->run.run);
    }
    pthread_mutex_lock(&run->lock);
    struct dir_record *rec = &run->record;
    int rc = 0;
    if (rec->is_stuck) {
        rc = diag_set(&req->diag, CAIRN_E_READ_ONLY,
                      "%s: whether its last update is durable is unknown; restart the daemon",
                      rec->path);
    } else if (req->bytes == 0) {
        rc = rec->record != NULL ? dir_record_snapshot(store, rec, &req->diag)
                                 : diag_set(&req->diag, CAIRN_E_NOT_FOUND,
                                            "nothing is held of %s in memory", rec->path);
    } else if (req->file.is_last && rec->record != NULL && !is_held(rec, req)) {
        rc = diag_set(&req->diag, CAIRN_E_CONFLICT, "%s: the copy is not what this server has read",
                      rec->path);
    } else {
        rc = dir_at_open(store, rec->path, &at, &req->diag);
        if (rc == 0) {
            rc = put(store, &at, req);
            dir_at_close(store, &at);
        }
    }
    pthread_mutex_unlock(&run->lock);
    return rc;
}

int dir_op_record_file(struct dir_store *store, struct store_req *req)
{
    struct dir_bytes file = {.bytes_max = req->file.is_snapshot ? LIMIT_RECORD_BYTES
                                                                : LIMIT_RECORD_UPDATE_BYTES,
                             .direct = true};
    char path[DIR_PATH_MAX], name[DIR_NAME_MAX];
    struct dir_at at;
    dir_path_record(&req->run, path);
    dir_name_version(req->file.version, req->file.is_snapshot, name);
    int rc = dir_at_open(store, path, &at, &req->diag);
    if (rc != 0) {
        return rc;
    }
    rc = dir_read_file(store, &at, name, &file, &req->diag);
    dir_at_close(store, &at);
    if (rc == 0) {
        req->ret_data = file.data;
        req->ret_bytes = file.bytes;
    }
    return rc;
}

/* What cannot be read is cut nowhere yet: a record is whole, or the error of its load says why. */
int dir_op_record_cut(struct dir_store *store, struct store_req *req)
{
    struct store_req get = {.op = STORE_RECORD_GET, .run = req->run};
    int rc = dir_op_record_get(store, &get);
    record_free(get.ret_record);
    return rc ? diag_copy(&req->diag, &get.diag)
              : diag_set(&req->diag, CAIRN_E_CONFLICT, "nothing of the record is lost");
}

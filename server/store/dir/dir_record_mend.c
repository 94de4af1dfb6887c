/* SPDX-License-Identifier: Apache-2.0
 *
 * Replaces a damaged file of a run's record by a copy. Invariant: only by the file that was there.
 * Each update holds the SHA-256 of the one before it, so the next update, or the snapshot of the
 * same number, proves a copy byte by byte; a snapshot is proven by the hash that it carries on. If
 * nothing later exists, only the update before it supports the copy, and the caller answers for the
 * rest; the same holds for a record of which nothing is left. The name is never missing: a missing
 * last update could not be told from one that was never written.
 */
#include "dir_record_private.h"

#include "base/failpoint.h"
#include "store/store_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The hashes in a file of the chain: that of the update of its number, and that of the one
 * before. */
struct chain_link {
    struct sha256 hash;     /* of update `version` */
    struct sha256 previous; /* of the update before it; a snapshot has none */
};

/* Reads from a file of the record its own hash and that of its predecessor. */
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

/* Reads the hashes of a file that exists here. */
static int read_link_at(struct dir_store *store, const struct dir_at *at,
                        const struct record_file *which, struct chain_link *ret)
{
    struct dir_bytes file = {.bytes_max = which->is_snapshot ? LIMIT_RECORD_BYTES
                                                             : LIMIT_RECORD_UPDATE_BYTES,
                             .direct = true};
    int rc = dir_read_file(store, at, dir_name_version(which->version, which->is_snapshot).at,
                           &file, NULL);
    rc = rc ? rc : read_link(which, file.bytes, file.data, ret, NULL);
    free(file.data);
    return rc;
}

static bool is_same(const struct sha256 *a, const struct sha256 *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* Finds the hash of update `version` from any other file here: not from the bytes of that file, nor
 * from those of its snapshot if it is the snapshot that is replaced. */
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
    if (but->version != version + 1 && read_link_at(store, at, &after, &link) == 0) {
        *ret = link.previous;
        return true;
    }
    if ((!own || but->is_snapshot) && read_link_at(store, at, &same, &link) == 0) {
        *ret = link.hash;
        return true;
    }
    if ((!own || !but->is_snapshot) && read_link_at(store, at, &snapshot, &link) == 0) {
        *ret = link.hash;
        return true;
    }
    return false;
}

/* Returns true if the file fits the one behind it, or, if there is none, the one before it. */
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

/* Returns 0 if what is here proves that the copy is the file that was here. Otherwise the copy
 * could change history. */
static int prove(struct dir_store *store, const struct dir_at *at, const struct store_req *req,
                 struct diag *diag)
{
    const struct record_file *file = &req->file;
    struct chain_link link;
    struct sha256 known;
    struct diag why = DIAG_INIT;
    int rc = read_link(file, req->bytes, req->data, &link, &why);
    if (rc != 0) {
        return diag_set(diag, rc, "the copy is damaged as well: %s", diag_text(&why, rc));
    }
    bool is_proven = find_hash(store, at, file, file->version, &known);
    if (!is_proven && (file->is_snapshot || !file->is_last)) {
        return diag_set(diag, CAIRN_E_NOT_FOUND,
                        "no intact update follows that would prove the copy");
    }
    return is_in_place(store, at, file, &link) ? 0
           : is_proven
               ? diag_set(
                     diag, CAIRN_E_CONFLICT,
                     "the copy is not the file that was here: the next update names another one")
               : diag_set(diag, CAIRN_E_CONFLICT,
                          "the copy does not continue the record that is here: the two records "
                          "have diverged");
}

/* --- putting it there ------------------------------------------------------------------------- */

/* Makes the copy durable under a name of its own; then the two trade names. */
static int replace(struct dir_store *store, const struct dir_at *at, const char *name,
                   struct record_value value, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    char beside[DIR_NAME_MAX], aside[DIR_NAME_MAX + 16];
    dir_temp_name(store, beside); /* the next start removes what a crash leaves of it */
    int rc = dir_publish(store, at, beside, value, diag);
    rc = rc ? rc : FAILPOINT("dir.exchange");
    rc = rc ? rc : vfs->ops->exchange(vfs, at->fd, name, beside, diag);
    if (rc != 0) {
        /* Otherwise the next start removes it. */
        err_ignore(vfs->ops->unlink(vfs, at->fd, beside, false, NULL));
        return rc;
    }
    rc = dir_sync_now(store, at, diag);
    snprintf(aside, sizeof(aside), "%s.damaged", name);
    if (vfs->ops->rename(vfs, at->fd, beside, at->fd, aside, NULL) == 0) {
        dir_quarantine(store, at, aside);
    }
    return rc;
}

/* Puts the copy in place of the damaged or missing file, if it is proven. */
static int put(struct dir_store *store, const struct dir_at *at, struct store_req *req)
{
    struct chain_link link;
    struct vfs_stat stat;
    struct record_value value = {.bytes = req->bytes, .data = req->data};
    struct dir_name name = dir_name_version(req->file.version, req->file.is_snapshot);
    if (read_link_at(store, at, &req->file, &link) == 0 &&
        is_in_place(store, at, &req->file, &link)) {
        return diag_set(&req->diag, CAIRN_E_CONFLICT,
                        "%s/%s is not damaged, so there is nothing to repair", at->path, name.at);
    }
    int rc = prove(store, at, req, &req->diag);
    rc = rc ? rc : dir_check_broken(store, at->path, &req->diag);
    if (rc == 0) {
        rc = dir_stat_file(store, at, name.at, &stat, NULL) == CAIRN_E_NOT_FOUND
                 ? dir_publish(store, at, name.at, value, &req->diag)
                 : replace(store, at, name.at, value, &req->diag);
    }
    if (rc != 0) {
        diag_add(&req->diag, "cannot repair the record file %s/%s", at->path, name.at);
    }
    return rc;
}

/* Returns true if the copy is the last update that this store knows. A store that knows it does not
 * take a copy on trust, because its next update would follow the one in memory. */
static bool is_held(const struct dir_record *rec, const struct store_req *req)
{
    struct sha256 hash = sha256(req->bytes, req->data);
    return req->file.version == record_version(rec->record) && is_same(&hash, &rec->last);
}

/* Takes the record in memory: what this store has confirmed is the truth, whatever the medium says
 * now. */
static int take_memory(struct dir_record *rec, struct record *held, const struct sha256 *last,
                       struct dir_view *view, struct diag *diag)
{
    if (record_version(held) < view->newest) {
        return diag_set(diag, CAIRN_E_CONFLICT,
                        "record %s has version %llu, but this server knows version %llu: check "
                        "that no second daemon uses this store",
                        rec->path, (unsigned long long)view->newest,
                        (unsigned long long)record_version(held));
    }
    view->is_enough = view->is_enough && view->lost_from == 0 &&
                      record_version(view->record) == record_version(held);
    view->lost_from = 0;
    rec->record = held;
    rec->last = *last;
    return 0;
}

/* Mends what one look finds, up to as many files as it names. The check does not name the files of
 * a lost end: the snapshot that is written covers them, and the next round finds them. */
static int mend_once(struct dir_store *store, struct dir_run *run, size_t *ret_left,
                     struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct record *held = rec->lost_from == 0 && !rec->is_stuck ? rec->record : NULL;
    struct dir_view view = {.store = store};
    rec->is_direct = true;
    int rc = dir_view_open(&view, rec, diag);
    rec->is_direct = false;
    bool was_lost = view.lost_from != 0;
    if (rc == 0 && !was_lost) {
        rc = dir_view_check(&view);
    } else if (rc == 0 && held == NULL) {
        rc = diag_set(
            diag, CAIRN_E_NOT_FOUND,
            "neither copy of the record is complete, and this server does not know the rest: %s",
            view.lost.text);
    }
    if (rc == 0 && held != NULL) {
        rc = take_memory(rec, held, &rec->last, &view, diag);
    } else if (rc == 0) {
        record_free(rec->record);
        rec->record = view.record;
        view.record = NULL;
        rec->last = view.last;
        rec->lost_from = 0;
    }
    if (rc == 0) {
        memcpy(rec->snapshots, view.snapshots, sizeof(rec->snapshots));
        atomic_store(&run->copying.to, view.copied);
        *ret_left = view.damage.count + was_lost;
        rc = view.is_enough && view.damage.count == 0 && view.copied == record_version(rec->record)
                 ? 0
                 : dir_record_heal(store, run, &view, diag);
    }
    dir_view_close(&view);
    return rc;
}

/* Mends in rounds until nothing is left. There is nothing to mend in a record that neither place
 * nor memory has. */
static int mend_all(struct dir_store *store, struct dir_run *run, struct diag *diag)
{
    enum { ROUNDS = 64 };
    size_t left = 1;
    int rc = 0;
    for (int i = 0; rc == 0 && left > 0 && i < ROUNDS; i++) {
        rc = mend_once(store, run, &left, diag);
    }
    return rc == 0 && left > 0 ? diag_set(diag, CAIRN_E_IO,
                                          "damaged files of record %s could not be moved to "
                                          "quarantine; check the permissions of that folder",
                                          run->record.path)
                               : rc;
}

/* Mends one file of the record with the bytes of the request. */
static int mend_file(struct dir_store *store, struct dir_record *rec, struct store_req *req)
{
    struct dir_at at;
    if (req->file.is_last && rec->record != NULL && rec->lost_from == 0 && !is_held(rec, req)) {
        return diag_set(&req->diag, CAIRN_E_CONFLICT,
                        "the copy of record %s is not the one that this server has read",
                        rec->path);
    }
    int rc = dir_at_open(store, rec->path, &at, &req->diag);
    if (rc == 0) {
        rc = put(store, &at, req);
        dir_at_close(store, &at);
    }
    return rc;
}

/* Puts a copy of a whole record in place, if nothing of the record is left in either place. The
 * caller has proven that it belongs to this run. */
static int put_whole(struct dir_store *store, struct dir_run *run, struct store_req *req)
{
    struct dir_record *rec = &run->record;
    struct record_value value = {.bytes = req->bytes, .data = req->data};
    struct dir_view view = {.store = store};
    struct chain_link link;
    struct dir_at at;
    int rc = read_link(&req->file, req->bytes, req->data, &link, &req->diag);
    rc = rc ? rc : dir_view_open(&view, rec, &req->diag);
    if (rc == 0 && (view.newest > 0 || view.lost_from != 0)) {
        rc = diag_set(&req->diag, CAIRN_E_CONFLICT, "record %s exists here", rec->path);
    }
    dir_view_close(&view);
    rc = rc ? rc : dir_place_open(store, &run->name, rec->path, &at, &req->diag);
    if (rc != 0) {
        return rc;
    }
    rc = dir_publish(store, &at, dir_name_version(req->file.version, true).at, value, &req->diag);
    dir_at_close(store, &at);
    return rc ? rc : dir_record_load(store, run, &req->diag);
}

int dir_op_record_mend(struct dir_store *store, struct store_req *req)
{
    struct dir_run *run = dir_run_find(store, &req->run);
    if (run == NULL) {
        return diag_no_memory(&req->diag, "the record of %s/%s", req->run.project, req->run.run);
    }
    pthread_mutex_lock(&run->lock);
    struct dir_record *rec = &run->record;
    int rc = rec->is_stuck ? dir_record_settle(store, run, &req->diag) : 0;
    if (rc == 0) {
        bool is_whole = req->file.is_snapshot && req->file.is_last;
        rc = req->bytes == 0 ? mend_all(store, run, &req->diag)
             : is_whole      ? put_whole(store, run, req)
                             : mend_file(store, rec, req);
    }
    pthread_mutex_unlock(&run->lock);
    return rc;
}

int dir_op_record_file(struct dir_store *store, struct store_req *req)
{
    struct dir_bytes file = {.bytes_max = req->file.is_snapshot ? LIMIT_RECORD_BYTES
                                                                : LIMIT_RECORD_UPDATE_BYTES,
                             .direct = true};
    char path[DIR_PATH_MAX];
    struct dir_at at;
    dir_path_record(&req->run, path);
    if (req->file.is_copy) {
        char copy_path[DIR_PATH_MAX];
        dir_path_copy_of(path, copy_path);
        dir_path_copy(copy_path, path);
    }
    int rc = dir_at_open(store, path, &at, &req->diag);
    if (rc != 0) {
        return rc;
    }
    rc = dir_read_file(store, &at, dir_name_version(req->file.version, req->file.is_snapshot).at,
                       &file, &req->diag);
    dir_at_close(store, &at);
    if (rc == 0) {
        req->ret_data = file.data;
        req->ret_bytes = file.bytes;
    }
    return rc;
}

/* --- going on without a lost end -------------------------------------------------------------- */

/* Moves the files behind the record's new beginning to quarantine. They are evidence, and nothing
 * reads them any more. */
static void quarantine_behind(struct dir_store *store, const struct dir_record_place *place,
                              uint64_t from, uint64_t to)
{
    for (size_t i = 0; place->status == 0 && i < place->have.update_count; i++) {
        if (place->have.updates[i] >= from && place->have.updates[i] < to) {
            dir_quarantine(store, &place->at, dir_name_version(place->have.updates[i], false).at);
        }
    }
    for (size_t i = 0; place->status == 0 && i < place->have.snapshot_count; i++) {
        if (place->have.snapshots[i] >= from && place->have.snapshots[i] < to) {
            dir_quarantine(store, &place->at, dir_name_version(place->have.snapshots[i], true).at);
        }
    }
}

/* Says in the store's own record that entries of it may be lost. The snapshot that follows makes
 * the mark durable together with the cut. */
static int mark_lost(const struct dir_store *store, struct dir_record *rec, struct diag *diag)
{
    struct store_record_update mark = {.update.change_count = 0};
    store_record_add_lost(&mark, loop_wall_ns(store->loop));
    return record_apply(rec->record, &mark.update, diag);
}

/* Cuts a lost end off. The record goes on beyond every number that existed, so that no number is
 * used twice, and a file that comes back after a crash means nothing. The snapshot is written
 * first, and from then on it covers all the rest. */
static int cut(struct dir_store *store, struct dir_run *run, struct dir_view *view,
               struct diag *diag)
{
    enum { UNSEEN_MAX = 1 << 20 }; /* versions that an unreadable first place may have */
    struct dir_record *rec = &run->record;
    uint64_t from = view->lost_from;
    uint64_t version = max_u64(view->newest, from) + 1;
    if (view->places[DIR_FIRST].status != 0 &&
        view->places[DIR_FIRST].status != CAIRN_E_NOT_FOUND) {
        version += UNSEEN_MAX;
        dir_move_folder_aside(store, rec->path);
    }
    record_free(rec->record);
    rec->record = view->record;
    view->record = NULL;
    rec->last = view->last;
    rec->lost_from = 0;
    rec->is_unhealed = false;
    rec->snapshots[0] = rec->snapshots[1] = 0; /* nothing is pruned because of the new one */
    atomic_store(&run->copying.to, 0);
    int rc = run == store->own ? mark_lost(store, rec, diag) : 0;
    rc = rc ? rc : dir_record_move_on(store, run, version, diag);
    for (int i = 0; rc == 0 && i < DIR_PLACES; i++) {
        quarantine_behind(store, &view->places[i], from, version);
    }
    return rc;
}

int dir_record_cut(struct dir_store *store, struct dir_run *run, uint64_t from, struct diag *diag)
{
    struct dir_view view = {.store = store};
    int rc = dir_view_open(&view, &run->record, diag);
    if (rc == 0 && view.lost_from == 0) {
        rc = diag_set(diag, CAIRN_E_CONFLICT, "nothing of record %s is lost", run->record.path);
    } else if (rc == 0 && from != 0 && from != view.lost_from) {
        rc = diag_set(diag, CAIRN_E_CONFLICT,
                      "record %s ends before update %llu, not before update %llu as was assumed; "
                      "run the command again",
                      run->record.path, (unsigned long long)view.lost_from,
                      (unsigned long long)from);
    }
    rc = rc ? rc : cut(store, run, &view, diag);
    dir_view_close(&view);
    return rc;
}

int dir_op_record_cut(struct dir_store *store, struct store_req *req)
{
    struct dir_run *run = dir_run_find(store, &req->run);
    if (run == NULL) {
        return diag_no_memory(&req->diag, "the record of %s/%s", req->run.project, req->run.run);
    }
    pthread_mutex_lock(&run->lock);
    int rc = run->record.is_stuck ? dir_record_settle(store, run, &req->diag) : 0;
    rc = rc ? rc : dir_record_cut(store, run, req->file.version, &req->diag);
    if (rc == 0) {
        req->ret_version = record_version(run->record.record);
    }
    pthread_mutex_unlock(&run->lock);
    return rc;
}

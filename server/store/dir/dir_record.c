/* SPDX-License-Identifier: Apache-2.0
 *
 * A record as a folder of numbered updates: the guarded update, and the snapshots that compact
 * the folder. Invariant: update n+1 is published only when update n is durable, under a number
 * that nobody else can take (the rename does not replace), and it holds the SHA-256 of update n.
 * The decoded form in memory is a cache of the durable state; whenever that is in doubt it is
 * dropped.
 */
#include "dir_record_private.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <string.h>

void dir_record_init(struct dir_record *rec, const char *path)
{
    *rec = (struct dir_record){.record = NULL};
    dir_path_copy(path, rec->path);
    dir_path_copy_of(path, rec->copy_path);
}

void dir_record_fini(struct dir_record *rec)
{
    record_free(rec->record);
    rec->record = NULL;
}

/* Removes the files that two snapshots make unnecessary: older snapshots, and updates up to the
 * older one (L14: only after the newer one is durable). A file that a crash leaves is removed with
 * the next snapshot. */
static void prune(struct dir_store *store, const struct dir_record *rec, const struct dir_at *at)
{
    uint64_t oldest = rec->snapshots[1];
    struct dir_versions have = {0};
    char name[DIR_NAME_MAX];
    if (oldest == 0 || dir_versions_list(store, at, &have, NULL) != 0) {
        return; /* tried again after the next snapshot */
    }
    for (size_t i = 0; i < have.snapshot_count && have.snapshots[i] < oldest; i++) {
        dir_name_version(have.snapshots[i], true, name);
        err_ignore(store->vfs->ops->unlink(store->vfs, at->fd, name, false, NULL));
    }
    for (size_t i = 0; i < have.update_count && have.updates[i] <= oldest; i++) {
        dir_name_version(have.updates[i], false, name);
        err_ignore(store->vfs->ops->unlink(store->vfs, at->fd, name, false, NULL));
    }
    dir_versions_fini(&have);
}

int dir_record_snapshot(struct dir_store *store, struct dir_record *rec, const struct dir_at *at,
                        struct diag *diag)
{
    uint64_t version = record_version(rec->record);
    char name[DIR_NAME_MAX];
    struct buf buf;
    buf_init(&buf, LIMIT_RECORD_BYTES);
    record_snapshot_encode(rec->record, rec->last.bytes, &buf);
    dir_name_version(version, true, name);
    int rc = buf_status(&buf);
    rc = rc ? rc : FAILPOINT("dir.snapshot");
    struct record_value value = {.bytes = buf.bytes, .data = buf.data};
    rc = rc ? rc : dir_publish(store, at, name, value, diag);
    buf_fini(&buf);
    if (rc == 0) {
        rec->snapshots[1] = rec->snapshots[0];
        rec->snapshots[0] = version;
        prune(store, rec, at);
    }
    return rc;
}

/* Writes a snapshot. The update before it is durable in any case, so a failure is only noted, and
 * the next update tries again. */
static void write_snapshot(struct dir_store *store, struct dir_record *rec, const struct dir_at *at)
{
    struct diag diag = DIAG_INIT;
    int rc = dir_record_snapshot(store, rec, at, &diag);
    if (rc == CAIRN_E_NO_SPACE) {
        return; /* a full disk is reported elsewhere, and the snapshot is made up for */
    }
    if (rc != 0) {
        dir_note(store, "no snapshot of %s at version %llu: %s", rec->path,
                 (unsigned long long)record_version(rec->record), err_name(rc));
    }
}

/* Drops the decoded form, because it is ahead of the durable state. */
static void drop_cache(struct dir_record *rec)
{
    record_free(rec->record);
    rec->record = NULL;
}

/* Writes the update as the next file of the record. After an unknown outcome the record is stuck:
 * no update is accepted before it is settled whether this one is durable. */
static int publish_update(struct dir_store *store, struct dir_record *rec,
                          const struct record_update *update, const struct dir_at *at,
                          struct diag *diag)
{
    uint64_t version = record_version(rec->record);
    char name[DIR_NAME_MAX];
    struct buf buf;
    buf_init(&buf, LIMIT_RECORD_UPDATE_BYTES);
    record_update_encode(update, version, rec->last.bytes, &buf);
    int rc = buf_status(&buf);
    if (rc != 0) {
        rc = diag_set(diag, rc, "update %llu of %s", (unsigned long long)version, rec->path);
    }
    dir_name_version(version, false, name);
    struct record_value value = {.bytes = buf.bytes, .data = buf.data};
    rc = rc ? rc : FAILPOINT("dir.record");
    rc = rc ? rc : dir_publish(store, at, name, value, diag);
    if (rc == 0) {
        rec->last = sha256(buf.bytes, buf.data);
    } else if (rc == CAIRN_E_OUTCOME_UNKNOWN) {
        rec->is_stuck = true;
        rec->version_max = version - 1;
    } else if (rc == CAIRN_E_EXISTS) {
        rc = CAIRN_E_CONFLICT;
        if (diag != NULL) {
            diag_clear(diag);
            diag_set(
                diag, rc,
                "update %llu of %s was written by somebody else: is a second daemon on this store?",
                (unsigned long long)version, rec->path);
        }
    }
    buf_fini(&buf);
    return rc;
}

/* Makes the record ready for an update: loaded, whole, and with nothing in doubt. Returns why no
 * update is possible. */
static int make_ready(struct dir_store *store, struct dir_run *run, struct diag *diag)
{
    struct dir_record *rec = &run->record;
    bool is_broken = dir_check_broken(store, rec->path, NULL) != 0;
    if (is_broken && !rec->is_stuck && rec->record != NULL) {
        /* The name of a snapshot is in doubt, and so would any later one be. */
        rec->is_stuck = true;
        rec->version_max = record_version(rec->record);
    }
    if (rec->is_stuck) {
        return dir_record_settle(store, run, diag);
    }
    bool is_good = rec->record != NULL && rec->lost_from == 0 && !rec->is_unhealed;
    int rc = is_good ? 0 : dir_record_load(store, run, diag);
    if (rc == 0 && rec->is_stuck) {
        rc = dir_record_settle(store, run, diag);
    }
    if (rc == 0 && rec->lost_from != 0) {
        rc = diag_set(diag, CAIRN_E_DAMAGED, "%s", rec->lost.text);
    }
    if (rc == 0 && rec->is_unhealed) {
        rc = diag_set(diag, CAIRN_E_READ_ONLY,
                      "%s: only its copy has all of it, and putting it back failed; see the "
                      "store's line in `cairn status`",
                      rec->path);
    }
    return rc;
}

int dir_record_update(struct dir_store *store, struct dir_run *run,
                      const struct record_update *update, uint64_t *ret_version, struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_at at;
    int rc = make_ready(store, run, diag);
    rc = rc ? rc : dir_at_open(store, rec->path, &at, diag);
    if (rc != 0) {
        return rc;
    }
    rc = record_apply(rec->record, update, diag);
    if (rc == 0) {
        rc = publish_update(store, rec, update, &at, diag);
        if (rc != 0) {
            drop_cache(rec);
        } else {
            *ret_version = record_version(rec->record);
            /* The next multiple was reached, or an earlier one for which no snapshot could be
             * written. */
            if (*ret_version / store->snapshot_every > rec->snapshots[0] / store->snapshot_every) {
                write_snapshot(store, rec, &at);
            }
            dir_copy_want(store, run);
        }
    }
    dir_at_close(store, &at);
    return rc;
}

/* Says in `*ret` whether the directory has files of a record. A directory that is missing has none.
 */
static int has_versions(struct dir_store *store, const char *path, bool *ret, struct diag *diag)
{
    struct dir_at at;
    struct dir_versions have = {0};
    struct diag why = DIAG_INIT;
    *ret = false;
    int rc = dir_at_open(store, path, &at, &why);
    if (rc != 0) {
        return rc == CAIRN_E_NOT_FOUND ? 0 : diag_copy(diag, &why);
    }
    rc = dir_versions_list(store, &at, &have, diag);
    dir_at_close(store, &at);
    if (rc == 0) {
        *ret = have.update_count + have.snapshot_count > 0;
        dir_versions_fini(&have);
    }
    return rc;
}

int dir_record_exists(struct dir_store *store, const char *path, bool *ret, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    char copy_path[DIR_PATH_MAX];
    bool is_here = false, is_copied = false;
    dir_path_copy_of(path, copy_path);
    int rc = has_versions(store, path, &is_here, &why);
    int copy_rc = rc == 0 && is_here ? 0 : has_versions(store, copy_path, &is_copied, &why);
    *ret = is_here || is_copied;
    return *ret || (rc == 0 && copy_rc == 0) ? 0 : diag_copy(diag, &why);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * One of the two places of a record: which files its folder has, the folder itself, and snapshots
 * written into it. Invariant (L14): a file is removed only when two newer snapshots, both durable,
 * make it unnecessary. Under the run's lock.
 */
#include "dir_record_private.h"

#include "base/array.h"
#include "base/failpoint.h"

#include <stdlib.h>
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

/* --- which files are there -------------------------------------------------------------------- */

/* Appends a version to the list of updates or of snapshots. Returns 0 or CAIRN_E_NO_MEMORY. */
static int add_version(struct dir_versions *versions, bool is_snapshot, uint64_t version)
{
    uint64_t **list = is_snapshot ? &versions->snapshots : &versions->updates;
    size_t *count = is_snapshot ? &versions->snapshot_count : &versions->update_count;
    uint64_t *grown = array_room(*list, *count, &versions->cap[is_snapshot], sizeof(*grown));
    if (grown == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    *list = grown;
    (*list)[(*count)++] = version;
    return 0;
}

static int on_entry(void *user, const char *name, enum vfs_kind kind)
{
    struct dir_versions *versions = user;
    uint64_t version;
    bool is_snapshot;
    (void)kind; /* reading it shows whether it is a file */
    return dir_parse_version(name, &version, &is_snapshot)
               ? add_version(versions, is_snapshot, version)
               : 0;
}

int dir_versions_list(struct dir_store *store, const struct dir_at *at, struct dir_versions *ret,
                      struct diag *diag)
{
    struct dir_versions have = {0};
    int rc = store->vfs->ops->list(store->vfs, at->fd, on_entry, &have, diag);
    if (rc != 0) {
        dir_versions_fini(&have);
        return diag_set(diag, rc, "list %s/%s", store->path, at->path);
    }
    if (have.update_count > 0) {
        qsort(have.updates, have.update_count, sizeof(uint64_t), order_u64);
    }
    if (have.snapshot_count > 0) {
        qsort(have.snapshots, have.snapshot_count, sizeof(uint64_t), order_u64);
    }
    *ret = have;
    return 0;
}

int dir_try_list(struct dir_store *store, const char *path)
{
    struct dir_at at;
    struct dir_versions have = {0};
    int rc = dir_at_open(store, path, &at, NULL);
    if (rc == 0) {
        rc = dir_versions_list(store, &at, &have, NULL);
        dir_at_close(store, &at);
        dir_versions_fini(&have);
    }
    return rc;
}

void dir_versions_fini(struct dir_versions *versions)
{
    free(versions->updates);
    free(versions->snapshots);
    *versions = (struct dir_versions){0};
}

bool dir_versions_has_update(const struct dir_versions *have, uint64_t version)
{
    return array_find(&version, have->updates, have->update_count, sizeof(version), order_u64) !=
           NULL;
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

/* --- the folder ------------------------------------------------------------------------------- */

/* Returns true if something else is in the folder's place, or if it is an unreadable folder of a
 * copy, which can be written anew whatever it contains. */
static bool is_to_go(struct dir_store *store, const char *path)
{
    struct vfs_stat stat;
    if (strncmp(path, "copy", 4) == 0) {
        int rc = dir_try_list(store, path);
        return rc == CAIRN_E_IO || rc == CAIRN_E_DAMAGED;
    }
    return store->vfs->ops->stat(store->vfs, store->root, path, &stat, NULL) == 0 &&
           stat.kind != VFS_DIR;
}

void dir_move_folder_aside(struct dir_store *store, const char *path)
{
    struct dir_at above;
    char parent[DIR_PATH_MAX], whole[DIR_PATH_MAX];
    dir_path_copy(path, whole);
    /* The first component that has to go, else the last one. */
    for (size_t i = 0; path[i] != 0; i++) {
        parent[i] = path[i];
        parent[i + 1] = 0;
        if (path[i + 1] == '/' && is_to_go(store, parent)) {
            whole[i + 1] = 0;
            break;
        }
    }
    dir_path_copy(whole, parent);
    char *slash = strrchr(parent, '/');
    const char *name = slash != NULL ? whole + (slash - parent) + 1 : whole;
    *(slash != NULL ? slash : parent) = 0;
    if (dir_at_open(store, parent, &above, NULL) == 0) {
        dir_quarantine(store, &above, name);
        dir_at_close(store, &above);
    }
}

int dir_place_open(struct dir_store *store, const struct run_name *run, const char *path,
                   struct dir_at *ret, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    char above[DIR_PATH_MAX];
    pthread_mutex_t *lock = dir_make_lock(store, run);
    int rc = dir_at_open(store, path, ret, &why);
    if (rc != CAIRN_E_NOT_FOUND) {
        return rc ? diag_copy(diag, &why) : 0;
    }
    pthread_mutex_lock(lock);
    for (size_t i = 0; path[i] != 0; i++) { /* any of them may have been removed */
        above[i] = path[i];
        above[i + 1] = 0;
        if (path[i + 1] == '/' || path[i + 1] == 0) {
            dir_forget(store, above);
        }
    }
    rc = dir_make(store, path, diag);
    pthread_mutex_unlock(lock);
    return rc ? rc : dir_at_open(store, path, ret, diag);
}

/* --- snapshots -------------------------------------------------------------------------------- */

/* Removes the files that two snapshots make unnecessary: older snapshots, and updates up to the
 * older one (L14: only after the newer one is durable). A file that a crash leaves is removed with
 * the next snapshot. */
static void prune(struct dir_store *store, const struct dir_record *rec, const struct dir_at *at)
{
    uint64_t oldest = rec->snapshots[1];
    struct dir_versions have = {0};
    if (oldest == 0 || dir_versions_list(store, at, &have, NULL) != 0) {
        return; /* tried again after the next snapshot */
    }
    for (size_t i = 0; i < have.snapshot_count && have.snapshots[i] < oldest; i++) {
        err_ignore(store->vfs->ops->unlink(
            store->vfs, at->fd, dir_name_version(have.snapshots[i], true).at, false, NULL));
    }
    for (size_t i = 0; i < have.update_count && have.updates[i] <= oldest; i++) {
        err_ignore(store->vfs->ops->unlink(
            store->vfs, at->fd, dir_name_version(have.updates[i], false).at, false, NULL));
    }
    dir_versions_fini(&have);
}

int dir_record_snapshot(struct dir_store *store, struct dir_record *rec, const struct dir_at *at,
                        struct diag *diag)
{
    uint64_t version = record_version(rec->record);
    struct buf buf;
    buf_init(&buf, LIMIT_RECORD_BYTES);
    record_snapshot_encode(rec->record, rec->last.bytes, &buf);
    int rc = buf_status(&buf);
    rc = rc ? rc : FAILPOINT("dir.snapshot");
    struct record_value value = {.bytes = buf.bytes, .data = buf.data};
    rc = rc ? rc : dir_publish(store, at, dir_name_version(version, true).at, value, diag);
    buf_fini(&buf);
    if (rc == 0) {
        rec->snapshots[1] = rec->snapshots[0];
        rec->snapshots[0] = version;
        prune(store, rec, at);
    }
    return rc;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Heals a record whose places do not both have all of it, from what was read of either, or from
 * memory. Invariant (L14): a damaged file is moved away only if its replacement was read as a
 * whole, and the next update waits until the first place has everything again. Under the run's
 * lock.
 */
#include "dir_record_private.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <string.h>

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

/* Moves the files of one place that the sight names to quarantine. */
static void quarantine_files(struct dir_store *store, const struct dir_sight *sight, bool is_copy,
                             const struct dir_at *at)
{
    const struct dir_damage *damage = &sight->damage;
    char name[DIR_NAME_MAX];
    for (size_t i = 0; i < min_u64(damage->count, STORE_RECORD_FILES_MAX); i++) {
        if (damage->files[i].is_copy == is_copy) {
            dir_name_version(damage->files[i].version, damage->files[i].is_snapshot, name);
            dir_quarantine(store, at, name);
        }
    }
}

/* Makes the first place whole: moves damaged files away, and writes a snapshot if the files that
 * are left are not enough. */
static int heal_first(struct dir_store *store, struct dir_run *run, const struct dir_sight *sight,
                      struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_at at;
    if (sight->places[DIR_FIRST].status == CAIRN_E_DAMAGED) {
        dir_move_folder_aside(store, rec->path);
    }
    int rc = dir_place_open(store, &run->name, rec->path, &at, diag);
    if (rc != 0) {
        return rc;
    }
    quarantine_files(store, sight, false, &at);
    if (!sight->is_enough) {
        rc = dir_record_snapshot(store, rec, &at, diag);
    }
    dir_at_close(store, &at);
    rec->is_unhealed = rc != 0;
    return rc;
}

/* Makes the second place whole, which is only a copy: moves damaged files away and copies the
 * record again. */
static int heal_second(struct dir_store *store, struct dir_run *run, const struct dir_sight *sight,
                       struct diag *diag)
{
    const struct dir_place *place = &sight->places[DIR_SECOND];
    if (place->status == 0) {
        quarantine_files(store, sight, true, &place->at);
    } else if (place->status != CAIRN_E_NOT_FOUND) {
        dir_move_folder_aside(store, run->record.copy_path); /* it is only a copy */
    }
    return dir_copy_now(store, run, diag);
}

int dir_record_heal(struct dir_store *store, struct dir_run *run, const struct dir_sight *sight,
                    struct diag *diag)
{
    CHECK(run->record.record != NULL);
    CHECK(run->record.lost_from == 0);
    int rc = FAILPOINT("dir.heal");
    rc = rc ? diag_set(diag, rc, "heal: fail point dir.heal") : 0;
    rc = rc ? rc : heal_first(store, run, sight, diag);
    return rc ? rc : heal_second(store, run, sight, diag);
}

/* --- another version -------------------------------------------------------------------------- */

int dir_record_move_on(struct dir_store *store, struct dir_run *run, uint64_t version,
                       struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_at at;
    CHECK(version > record_version(rec->record));
    int rc = dir_place_open(store, &run->name, rec->path, &at, diag);
    if (rc == 0) {
        at.is_settling = true;
        record_set_version(rec->record, version);
        rc = dir_record_snapshot(store, rec, &at, diag);
        dir_at_close(store, &at);
    }
    if (rc != 0) {
        record_free(rec->record);
        rec->record = NULL;
        return rc;
    }
    pthread_mutex_lock(&run->copying.lock);
    run->copying.cuts++;
    pthread_mutex_unlock(&run->copying.lock);
    struct diag why = DIAG_INIT;
    if (dir_copy_now(store, run, &why) != 0) {
        dir_copy_want(store, run); /* the first place has it */
    }
    return 0;
}

/* --- a failed fsync --------------------------------------------------------------------------- */

/* Settles a record after an fsync of its folder failed behind a rename into it. The folder's names
 * may be in the cache and not on the disk. A later fsync that succeeds proves nothing about them,
 * because the kernel may have dropped what it could not write (L5). So nothing is built on these
 * names.
 *
 * Instead, everything that can be seen, with the update in doubt if its name is visible, is written
 * once more: a snapshot in a new file, which is fsynced, under a name that was never used in this
 * folder. Its entry is a change that was made after the failure, so an fsync of the folder that
 * succeeds now covers it. From then on the record is that snapshot, whichever of the older names a
 * power cut removes, because none of them is needed to read it. Its version is beyond that of the
 * update in doubt: if the name of that update was not visible and comes back later, it is covered
 * and can never take effect.
 *
 * A restart does less: it believes the names that it sees after one more fsync. A failure here
 * counts like any failed fsync, and three of them end all writing. */
int dir_record_settle(struct dir_store *store, struct dir_run *run, struct diag *diag)
{
    struct dir_record *rec = &run->record;
    struct dir_record seen;
    struct diag why = DIAG_INIT;
    CHECK(rec->is_stuck);
    uint64_t doubted = rec->version_max == UINT64_MAX ? 0 : rec->version_max + 1;
    if (store->read_only || atomic_load(&store->is_degraded)) {
        return diag_set(diag, CAIRN_E_READ_ONLY, "%s: nothing is written any more", rec->path);
    }
    dir_record_init(&seen, rec->path);
    seen.is_beside = true; /* takes all names, and moves nothing */
    int rc = dir_record_look(store, &seen, NULL, &why);
    if (rc == 0 && seen.lost_from != 0) {
        rc = diag_copy(&why, &seen.lost);
    }
    if (rc == 0) {
        record_free(rec->record);
        rec->record = seen.record;
        seen.record = NULL;
        rec->last = seen.last;
        rec->snapshots[0] = rec->snapshots[1] = 0; /* nothing is pruned because of it */
        rc =
            dir_record_move_on(store, run, max_u64(record_version(rec->record), doubted) + 1, &why);
    }
    dir_record_fini(&seen);
    if (rc != 0) {
        return diag_set(diag, CAIRN_E_READ_ONLY,
                        "%s: whether its last update is durable is unknown since a failed fsync, "
                        "and writing it once more failed: %s; check the disk",
                        rec->path, diag_text(&why, rc));
    }
    rec->is_stuck = false;
    dir_note(store, "settled after a failed fsync: %s", rec->path);
    return 0;
}

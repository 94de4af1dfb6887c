/* SPDX-License-Identifier: Apache-2.0
 *
 * Directories and whole files of the store: open, make, publish, read, remove. Invariant: a name
 * that is not a temporary's is only ever made by a rename that does not replace, of a file that was
 * fsynced; nothing is overwritten. Small things are written buffered: their lengths are odd, they
 * are read back soon (a restore plan, verify), and after the fsync a buffered file is as durable as
 * a direct one. Objects are written directly (dir_object.c). No file is ever written both ways
 * (L17).
 */
#include "dir_private.h"

#include "base/array.h"
#include "base/check.h"
#include "base/failpoint.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- directories ------------------------------------------------------------------------------ */

/* Returns true if a file, a link or the like is where a directory of the path should be. `ret` gets
 * the first such path. */
static bool is_in_the_way(struct dir_store *store, const char *path, char ret[DIR_PATH_MAX])
{
    for (size_t i = 0;; i++) {
        if (path[i] == '/' || path[i] == 0) {
            struct vfs_stat stat;
            memcpy(ret, path, i);
            ret[i] = 0;
            if (store->vfs->ops->stat(store->vfs, store->root, ret, &stat, NULL) != 0) {
                return false;
            }
            if (stat.kind != VFS_DIR || path[i] == 0) {
                return stat.kind != VFS_DIR;
            }
        }
    }
}

int dir_at_open(struct dir_store *store, const char *path, struct dir_at *ret, struct diag *diag)
{
    vfs_fd fd = store->root;
    char other[DIR_PATH_MAX];
    if (path[0] != 0) {
        struct diag why = DIAG_INIT;
        int rc = store->vfs->ops->open(store->vfs, store->root, path, VFS_READ | VFS_DIRECTORY, &fd,
                                       &why);
        if (rc == CAIRN_E_IO && is_in_the_way(store, path, other)) {
            return diag_set(diag, CAIRN_E_DAMAGED,
                            "%s/%s is not a directory: another program has put something else in "
                            "its place; remove it",
                            store->path, other);
        }
        if (rc != 0) {
            err_ignore(diag_copy(diag, &why)); /* only the text */
            return rc;
        }
    }
    ret->fd = fd;
    ret->is_settling = false;
    dir_path_copy(path, ret->path);
    return 0;
}

void dir_at_close(struct dir_store *store, struct dir_at *at)
{
    if (at->fd != -1 && at->fd != store->root) {
        err_ignore(
            store->vfs->ops->close(store->vfs, at->fd, NULL)); /* nothing was written through it */
    }
    at->fd = -1;
}

/* Opens the directory above path, unless it is broken. *ret_name is the last component of path. */
static int open_parent(struct dir_store *store, const char *path, struct dir_at *ret,
                       const char **ret_name, struct diag *diag)
{
    char parent[DIR_PATH_MAX];
    dir_path_copy(path, parent);
    char *slash = strrchr(parent, '/');
    *ret_name = slash != NULL ? path + (slash - parent) + 1 : path;
    *(slash != NULL ? slash : parent) = 0;
    int rc = dir_check_broken(store, parent, diag);
    return rc ? rc : dir_at_open(store, parent, ret, diag);
}

/* Makes the last component of path. The directories above it exist and are durable. */
static int make_one(struct dir_store *store, const char *path, bool durably, struct diag *diag)
{
    struct dir_at at;
    const char *name;
    int rc = open_parent(store, path, &at, &name, diag);
    if (rc != 0) {
        return rc;
    }
    struct diag mkdir_diag = DIAG_INIT;
    rc = store->vfs->ops->mkdir(store->vfs, at.fd, name, &mkdir_diag);
    if (rc == CAIRN_E_EXISTS) {
        rc = 0; /* an earlier start may not have synced it: sync in any case (L8, L11) */
    }
    if (rc != 0) {
        diag_copy(diag, &mkdir_diag);
    }
    rc = rc || !durably ? rc : dir_sync_now(store, &at, diag);
    dir_at_close(store, &at);
    if (rc == 0 && durably) {
        dir_learn(store, path, DIR_IS_DURABLE);
    }
    return rc;
}

/* Makes the directory `path` and all above it. All but the last are made durable; the last one only
 * with `durably`. */
static int make_all(struct dir_store *store, const char *path, bool durably, struct diag *diag)
{
    char prefix[DIR_PATH_MAX];
    if (dir_knows(store, path, DIR_IS_DURABLE)) {
        return 0;
    }
    for (size_t i = 0;; i++) {
        if (path[i] == '/' || path[i] == 0) {
            memcpy(prefix, path, i);
            prefix[i] = 0;
            bool must_last = durably || path[i] != 0;
            int rc = dir_knows(store, prefix, DIR_IS_DURABLE)
                         ? 0
                         : make_one(store, prefix, must_last, diag);
            if (rc != 0 || path[i] == 0) {
                return rc;
            }
        }
    }
}

int dir_make(struct dir_store *store, const char *path, struct diag *diag)
{
    return make_all(store, path, true, diag);
}

int dir_make_for_temps(struct dir_store *store, const char *path, struct diag *diag)
{
    return make_all(store, path, false, diag);
}

int dir_make_last(struct dir_store *store, const char *path, struct diag *diag)
{
    struct dir_at at;
    const char *name;
    if (dir_knows(store, path, DIR_IS_DURABLE)) {
        return 0;
    }
    int rc = open_parent(store, path, &at, &name, diag);
    if (rc != 0) {
        return rc;
    }
    rc = dir_sync_now(store, &at, diag);
    dir_at_close(store, &at);
    if (rc == 0) {
        dir_learn(store, path, DIR_IS_DURABLE);
    }
    return rc;
}

pthread_mutex_t *dir_make_lock(struct dir_store *store, const struct run_name *run)
{
    return &store->make_locks[dir_hash_run(run) % DIR_MAKE_LOCKS];
}

/* --- entries, sorted by name so that they are handled in the same order everywhere ------------ */

/* Called for each entry of the directory: copies it into the list. */
static int on_entry(void *user, const char *name, enum vfs_kind kind)
{
    struct dir_entries *entries = user;
    struct dir_entry *grown =
        array_room(entries->entries, entries->count, &entries->cap, sizeof(*grown));
    if (grown == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    entries->entries = grown;
    struct dir_entry *entry = &entries->entries[entries->count++];
    entry->kind = kind;
    snprintf(entry->name, sizeof(entry->name), "%s", name);
    return 0;
}

static int compare_entries(const void *left, const void *right)
{
    const struct dir_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

int dir_entries_list(struct dir_store *store, const struct dir_at *at, struct dir_entries *ret,
                     struct diag *diag)
{
    struct dir_entries entries = {0};
    int rc = store->vfs->ops->list(store->vfs, at->fd, on_entry, &entries, diag);
    if (rc != 0) {
        dir_entries_fini(&entries);
        return diag_set(diag, rc, "list %s/%s", store->path, at->path);
    }
    if (entries.count > 0) {
        qsort(entries.entries, entries.count, sizeof(*entries.entries), compare_entries);
    }
    *ret = entries;
    return 0;
}

void dir_entries_fini(struct dir_entries *entries)
{
    free(entries->entries);
    *entries = (struct dir_entries){0};
}

/* --- files ------------------------------------------------------------------------------------ */

void dir_temp_name(struct dir_store *store, char ret[DIR_NAME_MAX])
{
    uint64_t random;
    store->vfs->ops->random(store->vfs, sizeof(random), &random);
    snprintf(ret, DIR_NAME_MAX, ".tmp-%016llx-%016llx", (unsigned long long)store->base.caps.epoch,
             (unsigned long long)random);
}

int dir_stat_file(struct dir_store *store, const struct dir_at *at, const char *name,
                  struct vfs_stat *ret, struct diag *diag)
{
    struct vfs_stat stat;
    int rc = store->vfs->ops->stat(store->vfs, at->fd, name, &stat, diag);
    if (rc != 0) {
        return rc;
    }
    if (stat.kind != VFS_FILE) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "%s/%s/%s is not a regular file: another program has put something else in "
                        "its place; remove it",
                        store->path, at->path, name);
    }
    *ret = stat;
    return 0;
}

int dir_fsync_file(struct dir_store *store, vfs_fd fd, struct diag *diag)
{
    int rc = FAILPOINT("dir.fsync");
    if (rc != 0) {
        diag_set(diag, rc, "fsync: fail point dir.fsync");
    }
    rc = rc ? rc : store->vfs->ops->fsync(store->vfs, fd, diag);
    if (rc != 0) {
        atomic_fetch_add(&store->sync_failures, 1);
    }
    return rc;
}

int dir_rename_durably(struct dir_store *store, const struct dir_at *at, const char *temp,
                       const char *name, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    struct vfs_stat stat;
    struct diag why = DIAG_INIT;
    int rc = FAILPOINT("dir.rename");
    rc = rc ? rc : vfs->ops->rename(vfs, at->fd, temp, at->fd, name, &why); /* L7 */
    if (rc == 0) {
        rc = dir_sync_now(store, at, &why); /* L8 */
        return rc == 0 ? 0
                       : diag_set(diag, CAIRN_E_OUTCOME_UNKNOWN,
                                  "%s/%s was written, but may not survive a power cut: %s",
                                  at->path, name, diag_text(&why, rc));
    }
    if (rc != CAIRN_E_EXISTS && rc != CAIRN_E_NO_SPACE &&
        vfs->ops->stat(vfs, at->fd, temp, &stat, NULL) != 0) {
        return diag_set(diag, CAIRN_E_OUTCOME_UNKNOWN, "%s/%s may or may not have been written: %s",
                        at->path, name, diag_text(&why, rc));
    }
    err_ignore(
        vfs->ops->unlink(vfs, at->fd, temp, false, NULL)); /* otherwise the next start removes it */
    return diag_set(diag, rc, "%s/%s could not be given its name: %s", at->path, name,
                    diag_text(&why, rc));
}

int dir_take_back(struct dir_store *store, const struct dir_at *at, const char *name,
                  struct diag *diag)
{
    if (dir_check_broken(store, at->path, NULL) == 0 ||
        store->vfs->ops->unlink(store->vfs, at->fd, name, false, NULL) != 0) {
        return CAIRN_E_OUTCOME_UNKNOWN;
    }
    diag_clear(diag);
    return diag_set(
        diag, CAIRN_E_IO,
        "%s/%s was removed again, because the fsync of its directory failed; check the disk",
        at->path, name);
}

/* Writes a temporary and closes it. If that fails, the caller removes it. */
static int write_temp(struct dir_store *store, vfs_fd fd, struct record_value value,
                      struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    int rc =
        value.bytes > 0 ? vfs->ops->pwrite(vfs, fd, 0, value.bytes, value.data, diag) : 0; /* L3 */
    if (rc == 0) {
        err_ignore(vfs->ops->chmod(vfs, fd, 0440, NULL)); /* L27: best effort */
    }
    rc = rc ? rc : dir_fsync_file(store, fd, diag); /* L4 */
    int close_rc = vfs->ops->close(vfs, fd, rc ? NULL : diag);
    return rc ? rc : close_rc;
}

/* Adds the name of the file that could not be written, and the remedy for a full disk. */
static int unwritten(const struct dir_at *at, const char *name, int rc, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    if (diag && rc == CAIRN_E_NO_SPACE) {
        err_ignore(diag_copy(&why, diag)); /* it is rc */
        diag_clear(diag);
        diag_set(diag, rc,
                 "%s; " STORE_STARVED_REMEDY "try again; restores work meanwhile, "
                 "with --store where no daemon runs",
                 diag_text(&why, rc));
    }
    diag_add(diag, "%s/%s", at->path, name);
    return rc;
}

int dir_publish(struct dir_store *store, const struct dir_at *at, const char *name,
                struct record_value value, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    char temp[DIR_NAME_MAX];
    vfs_fd fd;
    dir_temp_name(store, temp);
    int rc = at->is_settling ? 0 : dir_check_broken(store, at->path, diag);
    rc = rc ? rc
            : vfs->ops->open(vfs, at->fd, temp, VFS_WRITE | VFS_CREATE_EXCL, &fd, diag); /* L1 */
    if (rc != 0) {
        return rc;
    }
    rc = write_temp(store, fd, value, diag);
    if (rc != 0) {
        err_ignore(
            /* Otherwise the next start removes it. */
            vfs->ops->unlink(vfs, at->fd, temp, false, NULL));
        return unwritten(at, name, rc, diag);
    }
    return dir_rename_durably(store, at, temp, name, diag);
}

/* Reads the whole file into new memory. A direct transfer needs it aligned and in whole blocks. */
static int read_all(struct dir_store *store, vfs_fd fd, struct dir_bytes *ret, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    bool direct = ret->direct && ret->range == 0 && vfs->ops->is_direct(vfs, fd);
    size_t room = direct ? round_up_u64(ret->bytes + 1, LIMIT_ALIGN_BYTES) : ret->bytes + 1;
    size_t got = 0;
    uint8_t *data = direct ? aligned_alloc(LIMIT_ALIGN_BYTES, room) : malloc(room);
    if (data == NULL) {
        return diag_no_memory(diag, "reading %llu bytes", (unsigned long long)ret->bytes);
    }
    int rc = vfs->ops->pread(vfs, fd, ret->offset, direct ? room : ret->bytes, data, &got, diag);
    if (rc == 0 && got != ret->bytes) {
        rc = diag_set(diag, CAIRN_E_DAMAGED, "only %zu bytes of %llu could be read", got,
                      (unsigned long long)ret->bytes);
    }
    if (rc != 0) {
        free(data);
        return rc;
    }
    ret->data = data;
    return 0;
}

/* Reads a file once, with a fresh descriptor. */
static int read_once(struct dir_store *store, const struct dir_at *at, const char *name,
                     struct dir_bytes *ret, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    struct vfs_stat stat;
    vfs_fd fd;
    int rc = dir_stat_file(store, at, name, &stat, diag);
    rc = rc ? rc
            : vfs->ops->open(vfs, at->fd, name,
                             VFS_READ | (ret->direct && ret->range == 0 ? VFS_DIRECT : 0), &fd,
                             diag);
    if (rc != 0) {
        return rc;
    }
    if (stat.bytes > ret->bytes_max) {
        rc = diag_set(diag, CAIRN_E_TOO_LARGE, "%s/%s has %llu bytes, but at most %llu are allowed",
                      at->path, name, (unsigned long long)stat.bytes,
                      (unsigned long long)ret->bytes_max);
    } else {
        ret->bytes = stat.bytes;
        if (ret->range > 0) {
            ret->offset = min_u64(ret->offset, stat.bytes);
            ret->bytes = min_u64(ret->range, stat.bytes - ret->offset);
        }
        rc = read_all(store, fd, ret, diag);
        if (rc != 0) {
            diag_add(diag, "%s/%s", at->path, name);
        }
    }
    err_ignore(vfs->ops->close(vfs, fd, NULL)); /* nothing was written through it */
    return rc;
}

int dir_read_file(struct dir_store *store, const struct dir_at *at, const char *name,
                  struct dir_bytes *ret, struct diag *diag)
{
    int rc = read_once(store, at, name, ret, NULL);
    if (rc != 0 && rc != CAIRN_E_NOT_FOUND) {
        /* L22: once more; a second failure is an error. */
        rc = read_once(store, at, name, ret, diag);
    } else if (rc != 0) {
        diag_set(diag, rc, "%s/%s does not exist", at->path, name);
    }
    return rc;
}

int dir_remove_file(struct dir_store *store, const struct run_name *run, const char *path,
                    const char *name, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    struct dir_at at;
    int rc = dir_at_open(store, path, &at, diag);
    if (rc != 0) {
        return rc;
    }
    /* Not synced: nothing needs the file any more, and if a crash brings it back, gc removes it
     * again. */
    rc = vfs->ops->unlink(vfs, at.fd, name, false, diag);
    dir_at_close(store, &at);
    if (rc == 0) {
        pthread_mutex_t *lock = dir_make_lock(store, run);
        pthread_mutex_lock(lock);
        /* Usually the directory is not empty. An empty one that a crash brings back is removed by a
         * later start. */
        if (vfs->ops->unlink(vfs, store->root, path, true, NULL) == 0) {
            dir_forget(store, path);
        }
        pthread_mutex_unlock(lock);
    }
    return rc;
}

/* --- health ----------------------------------------------------------------------------------- */

void dir_note(struct dir_store *store, const char *fmt, ...)
{
    va_list args;
    pthread_mutex_lock(&store->lock);
    if (store->health_count++ == 0) {
        va_start(args, fmt);
        vsnprintf(store->health, sizeof(store->health), fmt, args);
        va_end(args);
    }
    pthread_mutex_unlock(&store->lock);
}

void dir_quarantine(struct dir_store *store, const struct dir_at *at, const char *name)
{
    enum { OF_ONE_NAME = 16 };
    struct dir_at to;
    char flat[DIR_PATH_MAX + DIR_NAME_MAX + 8];
    if (store->read_only || dir_at_open(store, "quarantine", &to, NULL) != 0) {
        return; /* the file stays, and is noted */
    }
    int rc = CAIRN_E_EXISTS;
    for (unsigned i = 1; i <= OF_ONE_NAME && rc == CAIRN_E_EXISTS; i++) {
        int n = snprintf(flat, sizeof(flat), "%s/%s", at->path, name);
        for (char *c = flat; *c != 0; c++) {
            *c = *c == '/' ? '+' : *c; /* no other name has a plus in it */
        }
        if (i > 1) {
            snprintf(flat + n, sizeof(flat) - (size_t)n, ".%u", i);
        }
        /* Not made durable, because it is not essential: if a crash brings the file back to its old
         * place, the next load finds it again. */
        rc = store->vfs->ops->rename(store->vfs, at->fd, name, to.fd, flat, NULL);
    }
    dir_at_close(store, &to);
}

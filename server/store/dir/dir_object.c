/* SPDX-License-Identifier: Apache-2.0
 *
 * Unsealed objects: create, write, seal, abort. Invariant: the final name appears only after every
 * byte, and the names of its directories, are durable; an object whose write or fsync failed never
 * gets it (L5). One descriptor is used from the first write to the fsync (L6); writes of one object
 * may run on it in parallel.
 */
#include "dir_private.h"

#include "base/check.h"
#include "base/failpoint.h"

#include <stdlib.h>

struct dir_open {
    struct dir_open *next;
    struct run_name run;
    struct object_id id;
    vfs_fd fd; /* -1 until the file is made, and after it is closed */
    char temp[DIR_NAME_MAX];
    uint64_t bytes_max;
    uint64_t end;  /* end of the furthest write */
    unsigned refs; /* held by the table and by each write in flight */
    bool is_sealing;
    int void_code; /* error of a write that failed, or 0 */
};

/* --- the table (store->lock held) ------------------------------------------------------------- */

static struct dir_open **find_open(struct dir_store *store, const struct run_name *run,
                                   const struct object_id *id)
{
    uint64_t hash = dir_hash_run(run) ^ id->writer ^
                    (uint64_t)id->sequence * UINT64_C(0x9e3779b97f4a7c15) ^ id->step << 20 ^
                    id->rank;
    struct dir_open **link = &store->opens[(hash ^ hash >> 32) % DIR_OPEN_BUCKETS];
    while (*link != NULL &&
           !(object_id_equal(&(*link)->id, id) && run_name_equal(&(*link)->run, run))) {
        link = &(*link)->next;
    }
    return link;
}

bool dir_object_is_open(struct dir_store *store, const struct run_name *run,
                        const struct object_id *id)
{
    pthread_mutex_lock(&store->lock);
    bool is_open = *find_open(store, run, id) != NULL;
    pthread_mutex_unlock(&store->lock);
    return is_open;
}

static int no_object(struct store_req *req)
{
    char name[DIR_NAME_MAX];
    dir_name_object(&req->object, name);
    return diag_set(&req->diag, CAIRN_E_NOT_FOUND,
                    "object %s of step %llu, term %llu is not open for writing", name,
                    (unsigned long long)req->object.step, (unsigned long long)req->object.term);
}

/* Closes and removes what is left of the temporary. No other thread has the object any more. */
static void discard(struct dir_store *store, struct dir_open *open)
{
    char path[DIR_PATH_MAX];
    struct dir_at at;
    if (open->fd != -1) {
        err_ignore(store->vfs->ops->close(store->vfs, open->fd, NULL)); /* its bytes are given up */
        struct ckpt_id id = {open->id.term, open->id.step};
        dir_path_objects(&open->run, id, path);
        if (dir_at_open(store, path, &at, NULL) == 0) {
            err_ignore(store->vfs->ops->unlink(store->vfs, at.fd, open->temp, false,
                                               NULL)); /* otherwise the next start removes it */
            dir_at_close(store, &at);
        }
    }
    free(open);
}

/* Takes the object out of the table. It is discarded when the last write in flight has ended. */
static void forget_open(struct dir_store *store, struct dir_open *open)
{
    pthread_mutex_lock(&store->lock);
    struct dir_open **link = find_open(store, &open->run, &open->id);
    CHECK(*link == open);
    *link = open->next;
    bool is_last = --open->refs == 0;
    pthread_mutex_unlock(&store->lock);
    if (is_last) {
        discard(store, open);
    }
}

/* --- create ----------------------------------------------------------------------------------- */

/* Reserves the space of an object. L19: what was promised must fit beyond the reserve. L2: the
 * space is taken at once, so that a full disk refuses an object before its first byte. */
static int take_space(struct dir_store *store, vfs_fd fd, uint64_t bytes, struct diag *diag)
{
    struct vfs_space space;
    pthread_mutex_lock(&store->admit_lock);
    int rc = store->vfs->ops->space(store->vfs, store->root, &space, diag);
    if (rc == 0 && (space.free_bytes < store->reserve_bytes ||
                    space.free_bytes - store->reserve_bytes < bytes)) {
        rc = diag_set(diag, CAIRN_E_NO_SPACE,
                      "%s has no room for an object of %llu bytes: %llu bytes are free, of which "
                      "%llu are kept in reserve; %s",
                      store->path, (unsigned long long)bytes, (unsigned long long)space.free_bytes,
                      (unsigned long long)store->reserve_bytes, dir_room_remedy(&space));
    }
    rc = rc ? rc : dir_check_inodes(store, &space, diag);
    rc = rc ? rc : store->vfs->ops->allocate(store->vfs, fd, bytes, diag);
    /* The file gets its full length at once: a file system runs writes side by side only within a
     * file's length. */
    rc = rc ? rc : store->vfs->ops->truncate(store->vfs, fd, bytes, diag);
    pthread_mutex_unlock(&store->admit_lock);
    return rc;
}

/* Makes the temporary file of an object. Returns CAIRN_E_EXISTS if the object is sealed already. */
static int make_file(struct dir_store *store, struct dir_open *open, const char *path,
                     struct diag *diag)
{
    struct dir_at at;
    struct vfs_stat stat;
    char name[DIR_NAME_MAX];
    dir_name_object(&open->id, name);
    int rc = dir_make_for_temps(store, path, diag); /* so that the first write waits for no fsync */
    rc = rc ? rc : dir_check_broken(store, path, diag);
    rc = rc ? rc : dir_at_open(store, path, &at, diag);
    if (rc != 0) {
        return rc;
    }
    rc = store->vfs->ops->stat(store->vfs, at.fd, name, &stat, NULL);
    if (rc == 0) {
        rc = diag_set(diag, CAIRN_E_EXISTS, "object %s/%s is already sealed", path, name);
    } else if (rc == CAIRN_E_NOT_FOUND) {
        rc = 0;
    } else {
        rc = diag_set(diag, rc, "stat %s/%s", path, name);
    }
    dir_temp_name(store, open->temp);
    unsigned flags = VFS_WRITE | VFS_CREATE_EXCL | VFS_DIRECT; /* L1, L17 */
    rc = rc ? rc : store->vfs->ops->open(store->vfs, at.fd, open->temp, flags, &open->fd, diag);
    dir_at_close(store, &at);
    return rc;
}

int dir_op_create(struct dir_store *store, struct store_req *req)
{
    char path[DIR_PATH_MAX];
    struct ckpt_id id = {req->object.term, req->object.step};
    if (req->bytes == 0 || req->bytes > LIMIT_OBJECT_BYTES) {
        return diag_set(&req->diag, CAIRN_E_INVALID,
                        "the object has %llu bytes; 1 to %d are allowed",
                        (unsigned long long)req->bytes, LIMIT_OBJECT_BYTES);
    }
    struct dir_open *open = calloc(1, sizeof(*open));
    if (open == NULL) {
        return diag_no_memory(&req->diag, "an object");
    }
    open->run = req->run;
    open->id = req->object;
    open->fd = -1;
    open->bytes_max = round_up_u64(req->bytes, LIMIT_ALIGN_BYTES);
    open->refs = 1;
    pthread_mutex_lock(&store->lock);
    struct dir_open **link = find_open(store, &req->run, &req->object);
    bool exists = *link != NULL;
    if (!exists) {
        *link = open;
    }
    pthread_mutex_unlock(&store->lock);
    if (exists) {
        free(open);
        return diag_set(&req->diag, CAIRN_E_EXISTS, "object %u of rank %u is still being written",
                        req->object.sequence, req->object.rank);
    }
    dir_path_objects(&req->run, id, path);
    pthread_mutex_lock(dir_make_lock(store, &req->run));
    int rc = make_file(store, open, path, &req->diag);
    pthread_mutex_unlock(dir_make_lock(store, &req->run));
    rc = rc ? rc : take_space(store, open->fd, open->bytes_max, &req->diag);
    if (rc != 0) {
        forget_open(store, open);
    }
    return rc;
}

/* --- write ------------------------------------------------------------------------------------ */

/* Returns an error unless the write is aligned, within the object, and before its seal. */
static int check_range(const struct dir_open *open, struct store_req *req)
{
    uint64_t end;
    if (req->offset % LIMIT_ALIGN_BYTES == 0 && req->bytes % LIMIT_ALIGN_BYTES == 0 &&
        req->bytes > 0 && (uintptr_t)req->data % LIMIT_ALIGN_BYTES == 0 &&
        add_u64(req->offset, req->bytes, &end) && end <= open->bytes_max && !open->is_sealing) {
        return 0;
    }
    return diag_set(&req->diag, CAIRN_E_INVALID,
                    "a write of %llu bytes at %llu is not aligned to %d, is beyond the object's "
                    "%llu bytes, or comes after its seal",
                    (unsigned long long)req->bytes, (unsigned long long)req->offset,
                    LIMIT_ALIGN_BYTES, (unsigned long long)open->bytes_max);
}

static int say_void(const struct dir_open *open, struct store_req *req)
{
    return diag_set(&req->diag, open->void_code,
                    "object %u of rank %u cannot be written, because an earlier write of it failed",
                    open->id.sequence, open->id.rank);
}

int dir_op_write(struct dir_store *store, struct store_req *req)
{
    pthread_mutex_lock(&store->lock);
    struct dir_open *open = *find_open(store, &req->run, &req->object);
    int rc = open == NULL || open->fd == -1 ? no_object(req)
             : open->void_code != 0         ? say_void(open, req)
                                            : check_range(open, req);
    if (rc == 0) {
        open->refs++;
    }
    pthread_mutex_unlock(&store->lock);
    if (rc != 0) {
        return rc;
    }
    rc = FAILPOINT("dir.write");
    rc = rc ? rc
            : store->vfs->ops->pwrite(store->vfs, open->fd, req->offset, req->bytes, req->data,
                                      &req->diag);
    pthread_mutex_lock(&store->lock);
    open->end = max_u64(open->end, req->offset + req->bytes);
    if (rc != 0 && open->void_code == 0) {
        open->void_code = rc; /* L3, L18 */
    }
    bool is_last = --open->refs == 0;
    pthread_mutex_unlock(&store->lock);
    if (is_last) {
        discard(store, open); /* it was aborted meanwhile */
    }
    return rc;
}

/* --- seal, abort ------------------------------------------------------------------------------ */

/* Makes the temporary durable and closes open->fd, even after an error. */
static int finish_file(struct dir_store *store, struct dir_open *open, struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    int rc = 0;
    if (open->end < open->bytes_max) {
        rc = vfs->ops->truncate(vfs, open->fd, open->end, diag); /* frees the preallocated rest */
    }
    if (rc == 0) {
        err_ignore(vfs->ops->chmod(vfs, open->fd, 0440, NULL)); /* L27: best effort */
    }
    rc = rc ? rc : FAILPOINT("dir.seal");
    rc = rc ? rc : dir_fsync_file(store, open->fd, diag); /* L4, L5 */
    int close_rc = vfs->ops->close(vfs, open->fd, rc ? NULL : diag);
    open->fd = -1;
    return rc ? rc : close_rc;
}

/* Makes the object durable and gives it its name. The temporary is removed after an error. */
static int seal_open(struct dir_store *store, struct dir_open *open, struct diag *diag)
{
    char path[DIR_PATH_MAX], name[DIR_NAME_MAX];
    struct ckpt_id id = {open->id.term, open->id.step};
    struct dir_at at;
    dir_path_objects(&open->run, id, path);
    dir_name_object(&open->id, name);
    int rc = finish_file(store, open, diag);
    int at_rc = dir_at_open(store, path, &at, rc ? NULL : diag);
    if (at_rc != 0) {
        return rc ? rc : at_rc; /* the directory is gone, and the temporary with it (D20) */
    }
    /* L8: the names above it come before its own. */
    rc = rc ? rc : dir_make_last(store, path, diag);
    if (rc != 0) {
        err_ignore(store->vfs->ops->unlink(store->vfs, at.fd, open->temp, false,
                                           NULL)); /* otherwise the next start removes it */
        diag_add(diag, "object %s/%s", path, name);
    } else {
        rc = dir_rename_durably(store, &at, open->temp, name, diag);
        if (rc == CAIRN_E_OUTCOME_UNKNOWN) {
            rc = dir_take_back(store, &at, name, diag);
        }
    }
    dir_at_close(store, &at);
    return rc;
}

int dir_op_seal(struct dir_store *store, struct store_req *req)
{
    pthread_mutex_lock(&store->lock);
    struct dir_open *open = *find_open(store, &req->run, &req->object);
    bool is_busy = open != NULL && (open->refs > 1 || open->is_sealing || open->fd == -1);
    if (open != NULL && !is_busy) {
        open->is_sealing = true;
    }
    pthread_mutex_unlock(&store->lock);
    if (open == NULL) {
        int rc = dir_op_stat(store, req);
        return rc == 0 ? diag_set(&req->diag, CAIRN_E_EXISTS, "object %u is already sealed",
                                  req->object.sequence)
                       : rc;
    }
    if (is_busy) {
        return diag_set(&req->diag, CAIRN_E_INVALID,
                        "object %u cannot be sealed while writes are in flight",
                        req->object.sequence);
    }
    int rc = open->void_code != 0 ? say_void(open, req) : seal_open(store, open, &req->diag);
    forget_open(store, open); /* from now on readers see it */
    return rc;
}

int dir_op_abort(struct dir_store *store, struct store_req *req)
{
    pthread_mutex_lock(&store->lock);
    struct dir_open **link = find_open(store, &req->run, &req->object);
    struct dir_open *open = *link;
    bool is_busy = open != NULL && (open->is_sealing || open->fd == -1);
    bool is_last = false;
    if (open != NULL && !is_busy) {
        *link = open->next;
        is_last = --open->refs == 0;
    }
    pthread_mutex_unlock(&store->lock);
    if (open == NULL) {
        return no_object(req);
    }
    if (is_busy) {
        return diag_set(&req->diag, CAIRN_E_BUSY, "object %u is just being created or sealed",
                        req->object.sequence);
    }
    if (is_last) {
        discard(store, open);
    }
    return 0;
}

void dir_abort_all(struct dir_store *store)
{
    for (size_t i = 0; i < DIR_OPEN_BUCKETS; i++) {
        while (store->opens[i] != NULL) {
            struct dir_open *open = store->opens[i];
            store->opens[i] = open->next;
            CHECK(open->refs == 1);
            discard(store, open);
        }
    }
}

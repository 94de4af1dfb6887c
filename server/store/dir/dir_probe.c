/* SPDX-License-Identifier: Apache-2.0
 *
 * STORE_PROBE: tries whether a save can be made now. A small file is written, made durable and
 * removed, in the folder of the store record, where a start removes what a kill has left of it. A
 * failure here has no other effect: only failed fsyncs of a checkpoint make the store read-only
 * (L5).
 */
#include "dir_private.h"

#include <inttypes.h>
#include <string.h>

enum { PROBE_BYTES = LIMIT_ALIGN_BYTES };

/* Checks the free inodes. If a file system counts them (ext4), a store that has none left could not
 * even forget. */
int dir_check_inodes(const struct dir_store *store, const struct vfs_space *space,
                     struct diag *diag)
{
    uint64_t kept = min_u64(DIR_INODES_RESERVE, space->total_inodes / 16);
    if (store->reserve_bytes == 0 || space->total_inodes == 0 || space->free_inodes >= kept) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_NO_SPACE,
                    "%s has too few inodes: %" PRIu64 " of %" PRIu64 " are free, and %" PRIu64
                    " are kept in reserve; `cairn gc --now` frees those of forgotten checkpoints; "
                    "or remove other files from the disk",
                    store->path, space->free_inodes, space->total_inodes, kept);
}

#define FREES                                                                                     \
    "`cairn gc --now` frees forgotten checkpoints, `cairn forget RUN --keep-last 2 --now` older " \
    "ones"
const char *dir_room_remedy(const struct vfs_space *space)
{
    return space->free_bytes < STORE_RECORDS_NEED_BYTES ? STORE_STARVED_REMEDY FREES
                                                        : FREES "; or make room on the disk";
}
#undef FREES

/* Checks the free space like take_space() of an object: saves may only use what is beyond the
 * reserve. */
static int check_space(struct dir_store *store, struct diag *diag)
{
    struct vfs_space space;
    int rc = store->vfs->ops->space(store->vfs, store->root, &space, diag);
    if (rc == 0 && space.free_bytes <= store->reserve_bytes) {
        rc = diag_set(diag, CAIRN_E_NO_SPACE,
                      "%s is full: %" PRIu64 " bytes are free, and %" PRIu64
                      " are kept in reserve; %s",
                      store->path, space.free_bytes, store->reserve_bytes, dir_room_remedy(&space));
    }
    space.free_inodes -= rc == 0 && space.free_inodes > 0; /* an object has its own inode by then */
    return rc ? rc : dir_check_inodes(store, &space, diag);
}

/* Writes a small file durably and removes it again. */
static int write_file(struct dir_store *store, const struct dir_at *at, const char *name,
                      struct diag *diag)
{
    struct vfs *vfs = store->vfs;
    uint8_t page[PROBE_BYTES];
    vfs_fd fd;
    memset(page, 0x5a, sizeof(page));
    int rc = vfs->ops->open(vfs, at->fd, name, VFS_WRITE | VFS_CREATE_EXCL, &fd, diag);
    if (rc != 0) {
        return rc;
    }
    rc = vfs->ops->pwrite(vfs, fd, 0, sizeof(page), page, diag);
    rc = rc ? rc : vfs->ops->fsync(vfs, fd, diag);
    int closed = vfs->ops->close(vfs, fd, rc ? NULL : diag);
    int gone = vfs->ops->unlink(vfs, at->fd, name, false, rc || closed ? NULL : diag);
    return rc ? rc : closed ? closed : gone;
}

int dir_op_probe(struct dir_store *store, struct store_req *req)
{
    struct dir_at at;
    struct diag why = DIAG_INIT;
    char name[DIR_NAME_MAX];
    dir_temp_name(store, name);
    int rc = check_space(store, &why);
    if (rc == 0) {
        rc = dir_at_open(store, "store", &at, &why);
        if (rc == 0) {
            rc = write_file(store, &at, name, &why);
            dir_at_close(store, &at);
        }
    }
    if (rc == CAIRN_E_NOT_FOUND) {
        return diag_set(&req->diag, CAIRN_E_NO_STORE,
                        "%s, or the store in it, no longer exists; put it back (check that its "
                        "disk is mounted), and restart the daemon",
                        store->path);
    }
    return rc ? diag_copy(&req->diag, &why) : 0;
}

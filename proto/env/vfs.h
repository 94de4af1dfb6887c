/* SPDX-License-Identifier: Apache-2.0
 *
 * vfs: the file calls that a store is made of. They block. They run on a store's work threads, and
 * on the caller's while a store is opened or examined. The layer is thin: a call is one operation
 * of the file system, carried on after EINTR and short transfers, or done in another way where it
 * is refused. It returns 0 or a code, with errno's text in diag. vfs_posix.c is the real one; the
 * simulator's keeps writes that were not synced apart, and loses them at a crash.
 */
#ifndef CAIRN_ENV_VFS_H
#define CAIRN_ENV_VFS_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vfs;

/* A file or directory: a number of the implementation; -1 is none. */
typedef int vfs_fd;

enum vfs_open_flags {
    VFS_READ = 1u << 0,
    VFS_WRITE = 1u << 1,
    VFS_CREATE_EXCL = 1u << 2, /* O_CREAT|O_EXCL, mode 0600 */
    VFS_DIRECTORY = 1u << 3,
    VFS_DIRECT =
        /* O_DIRECT. Where it is unsupported the file is buffered (L17), and is_direct() returns
         * false. */
    1u << 4,
    VFS_CREATE = 1u << 5, /* O_CREAT without EXCL; for the lock file only */
};

enum vfs_kind { VFS_FILE, VFS_DIR, VFS_OTHER };

/* What stat tells. */
struct vfs_stat {
    enum vfs_kind kind;
    uint64_t bytes;
    uint32_t mode;
    int64_t mtime_ns;
};

/* The room of a file system. free_bytes and free_inodes are what an ordinary user can take. */
struct vfs_space {
    uint64_t total_bytes, free_bytes, total_inodes, free_inodes;
    char fs_type[24]; /* "ext4", "xfs", "btrfs", "tmpfs", "nfs", "overlay", ... or "0x…" */
    bool is_network;
};

/* Names are relative to dir, of one component or several, and never contain "..". Links are never
 * followed, and descriptors have CLOEXEC. */
struct vfs_ops {
    int (*open_root)(struct vfs *vfs, const char *path, vfs_fd *ret, struct diag *diag);
    int (*open)(struct vfs *vfs, vfs_fd dir, const char *name, unsigned flags, vfs_fd *ret,
                struct diag *diag);
    int (*close)(struct vfs *vfs, vfs_fd fd, struct diag *diag);
    /* Writes all bytes, or fails; short writes are continued. The caller handles ENOSPC, EDQUOT and
     * the others. */
    int (*pwrite)(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, const void *data,
                  struct diag *diag);
    /* Reads; *ret_bytes < bytes only at the end of the file. */
    int (*pread)(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, void *data,
                 size_t *ret_bytes, struct diag *diag);
    int (*fsync)(struct vfs *vfs, vfs_fd fd, struct diag *diag);
    /* Reserves space and keeps the size of the file. Returns 0 if the file system
     * cannot do it. */
    int (*allocate)(struct vfs *vfs, vfs_fd fd, uint64_t bytes, struct diag *diag);
    int (*truncate)(struct vfs *vfs, vfs_fd fd, uint64_t bytes, struct diag *diag);
    int (*chmod)(struct vfs *vfs, vfs_fd fd, uint32_t mode, struct diag *diag);
    int (*fstat)(struct vfs *vfs, vfs_fd fd, struct vfs_stat *ret, struct diag *diag);
    int (*stat)(struct vfs *vfs, vfs_fd dir, const char *name, struct vfs_stat *ret,
                struct diag *diag);
    /* The mode is 0700; EXISTS if the name is there. */
    int (*mkdir)(struct vfs *vfs, vfs_fd dir, const char *name, struct diag *diag);
    /* Renames within the file system and never replaces a file: EXISTS if the target is there. */
    int (*rename)(struct vfs *vfs, vfs_fd from_dir, const char *from, vfs_fd to_dir, const char *to,
                  struct diag *diag);
    /* Swaps the names of two files of dir in one step. NOT_FOUND if one is missing, UNSUPPORTED if
     * the file system cannot do it. */
    int (*exchange)(struct vfs *vfs, vfs_fd dir, const char *name, const char *with,
                    struct diag *diag);
    int (*unlink)(struct vfs *vfs, vfs_fd dir, const char *name, bool is_dir, struct diag *diag);
    /* Calls each(user, name, kind) for every entry except . and .. until one call returns non-zero,
     * which it returns. */
    int (*list)(struct vfs *vfs, vfs_fd dir,
                int (*each)(void *user, const char *name, enum vfs_kind kind), void *user,
                struct diag *diag);
    int (*space)(struct vfs *vfs, vfs_fd dir, struct vfs_space *ret, struct diag *diag);
    /* Takes an exclusive lock of the open file description without waiting: BUSY if another has it.
     * It ends with close. */
    int (*lock)(struct vfs *vfs, vfs_fd fd, struct diag *diag);
    bool (*is_direct)(struct vfs *vfs, vfs_fd fd);
    void (*random)(struct vfs *vfs, size_t bytes, void *ret); /* for temporary names */
};

struct vfs {
    const struct vfs_ops *ops;
};

/* Returns the one real file system; it is static, and there is nothing to free. */
struct vfs *vfs_posix(void);

#endif

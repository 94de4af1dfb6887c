/* SPDX-License-Identifier: Apache-2.0
 *
 * vfs: the file calls that a store is made of, blocking, called only on a store's work threads.
 * Thin: every call does one system call (EINTR apart) and returns 0 or a code with errno's text in
 * diag. vfs_posix.c is the real one; the simulator's keeps unsynced writes apart and loses them at
 * a crash.
 */
#ifndef CAIRN_ENV_VFS_H
#define CAIRN_ENV_VFS_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vfs;

/* A file or directory; opaque number of the implementation, -1 is none. */
typedef int vfs_fd;

enum vfs_open_flags {
    VFS_READ = 1u << 0,
    VFS_WRITE = 1u << 1,
    VFS_CREATE_EXCL = 1u << 2, /* O_CREAT|O_EXCL, mode 0600 */
    VFS_DIRECTORY = 1u << 3,
    VFS_DIRECT =
        1u << 4, /* O_DIRECT; falls back to buffered where unsupported (L17), see vfs_is_direct */
    VFS_CREATE = 1u << 5, /* O_CREAT without EXCL: the lock file only */
};

enum vfs_kind { VFS_FILE, VFS_DIR, VFS_OTHER };

struct vfs_stat {
    enum vfs_kind kind;
    uint64_t bytes;
    uint64_t blocks_bytes;
    uint32_t mode;
    int64_t mtime_ns;
};

struct vfs_space {
    uint64_t total_bytes, free_bytes, total_inodes, free_inodes;
    char fs_type[24]; /* "ext4", "xfs", "btrfs", "tmpfs", "nfs", "overlay", ... or "0x…" */
    bool is_network;
};

/* Names are relative to dir; one component or several; never "..". Always O_NOFOLLOW|O_CLOEXEC. */
struct vfs_ops {
    int (*open_root)(struct vfs *vfs, const char *path, vfs_fd *ret, struct diag *diag);
    int (*open)(struct vfs *vfs, vfs_fd dir, const char *name, unsigned flags, vfs_fd *ret,
                struct diag *diag);
    int (*close)(struct vfs *vfs, vfs_fd fd, struct diag *diag);
    /* All bytes or an error; short writes are continued; ENOSPC, EDQUOT and the rest are the
     * caller's. */
    int (*pwrite)(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, const void *data,
                  struct diag *diag);
    /* *ret_bytes < bytes only at the end of the file. */
    int (*pread)(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, void *data,
                 size_t *ret_bytes, struct diag *diag);
    int (*fsync)(struct vfs *vfs, vfs_fd fd, struct diag *diag);
    int (*allocate)(struct vfs *vfs, vfs_fd fd, uint64_t bytes,
                    struct diag *diag); /* KEEP_SIZE; unsupported: 0 */
    int (*truncate)(struct vfs *vfs, vfs_fd fd, uint64_t bytes, struct diag *diag);
    int (*chmod)(struct vfs *vfs, vfs_fd fd, uint32_t mode, struct diag *diag);
    int (*fstat)(struct vfs *vfs, vfs_fd fd, struct vfs_stat *ret, struct diag *diag);
    int (*stat)(struct vfs *vfs, vfs_fd dir, const char *name, struct vfs_stat *ret,
                struct diag *diag);
    int (*mkdir)(struct vfs *vfs, vfs_fd dir, const char *name,
                 struct diag *diag); /* 0700; EXISTS */
    /* No-replace rename within the file system; EXISTS when the target is there. */
    int (*rename)(struct vfs *vfs, vfs_fd from_dir, const char *from, vfs_fd to_dir, const char *to,
                  struct diag *diag);
    /* Two files of dir trade their names, in one step; NOT_FOUND: one is missing; UNSUPPORTED: not
     * by this file system. */
    int (*exchange)(struct vfs *vfs, vfs_fd dir, const char *name, const char *with,
                    struct diag *diag);
    int (*unlink)(struct vfs *vfs, vfs_fd dir, const char *name, bool is_dir, struct diag *diag);
    /* Calls each(user, name, kind) for every entry but . and ..; a non-zero result ends it and is
     * returned. */
    int (*list)(struct vfs *vfs, vfs_fd dir,
                int (*each)(void *user, const char *name, enum vfs_kind kind), void *user,
                struct diag *diag);
    int (*space)(struct vfs *vfs, vfs_fd dir, struct vfs_space *ret, struct diag *diag);
    /* Open-file-description lock, exclusive, no wait: BUSY when another has it. Ends with close. */
    int (*lock)(struct vfs *vfs, vfs_fd fd, struct diag *diag);
    bool (*is_direct)(struct vfs *vfs, vfs_fd fd);
    void (*random)(struct vfs *vfs, size_t bytes, void *ret); /* for temporary names */
};

struct vfs {
    const struct vfs_ops *ops;
};

/* The one real file system; static, nothing to free. */
struct vfs *vfs_posix(void);

#endif

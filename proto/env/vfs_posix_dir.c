/* SPDX-License-Identifier: Apache-2.0
 *
 * The real file system's calls about names: directories, rename, links, listing, free space.
 * Invariants: no name ever leaves the directory that it is relative to, and no rename replaces a
 * file. Any thread.
 */
#include "vfs_posix_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/check.h"

int vfs_posix_check_name(const char *name, struct diag *diag)
{
    const char *at = name;

    if (!*name || *name == '/') {
        return diag_set(diag, CAIRN_E_INVALID, "file name \"%s\" is empty or absolute", name);
    }
    while (at) {
        if (strncmp(at, "..", 2) == 0 && (!at[2] || at[2] == '/')) {
            return diag_set(diag, CAIRN_E_INVALID, "file name \"%s\" leaves its directory", name);
        }
        at = strchr(at, '/');
        at = at ? at + 1 : NULL;
    }
    return 0;
}

int vfs_posix_openat(vfs_fd dir, const char *name, int flags, mode_t mode)
{
    struct open_how how = {.flags = (unsigned)flags,
                           .mode = flags & O_CREAT ? mode : 0,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};

    if (strchr(name, '/')) { /* O_NOFOLLOW is about the last component only */
        long fd = syscall(SYS_openat2, dir, name, &how, sizeof how);
        if (fd >= 0 || (errno != ENOSYS && errno != EPERM && errno != EAGAIN)) {
            return (int)fd;
        }
    }
    return openat(dir, name, flags, mode);
}

static void fill_stat(const struct stat *st, struct vfs_stat *ret)
{
    ret->kind = S_ISREG(st->st_mode) ? VFS_FILE : S_ISDIR(st->st_mode) ? VFS_DIR : VFS_OTHER;
    ret->bytes = (uint64_t)st->st_size;
    ret->mode = st->st_mode & 07777;
    ret->mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

int vfs_posix_fstat(struct vfs *vfs, vfs_fd fd, struct vfs_stat *ret, struct diag *diag)
{
    struct stat st;

    (void)vfs;
    if (fstat(fd, &st)) {
        return diag_errno(diag, errno, "stat");
    }
    fill_stat(&st, ret);
    return 0;
}

int vfs_posix_stat(struct vfs *vfs, vfs_fd dir, const char *name, struct vfs_stat *ret,
                   struct diag *diag)
{
    struct stat st;
    int rc = vfs_posix_check_name(name, diag);

    (void)vfs;
    if (rc) {
        return rc;
    }
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) {
        return diag_errno(diag, errno, "stat %s", name);
    }
    fill_stat(&st, ret);
    return 0;
}

int vfs_posix_mkdir(struct vfs *vfs, vfs_fd dir, const char *name, struct diag *diag)
{
    int rc = vfs_posix_check_name(name, diag);

    (void)vfs;
    rc = rc ? rc : vfs_posix_fail_point("vfs.mkdir", diag);
    if (rc) {
        return rc;
    }
    return mkdirat(dir, name, 0700) ? diag_errno(diag, errno, "cannot create directory %s", name)
                                    : 0;
}

/* Renames on file systems without RENAME_NOREPLACE. link() refuses an existing target as well; a
 * crash between the two calls leaves both names on one file, which is what an unfinished publish
 * looks like anyway. Directories cannot be linked: the target is looked for first, and at worst an
 * empty directory is replaced. */
static int rename_by_link(vfs_fd from_dir, const char *from, vfs_fd to_dir, const char *to,
                          struct diag *diag)
{
    struct stat st;

    if (fstatat(from_dir, from, &st, AT_SYMLINK_NOFOLLOW)) {
        return diag_errno(diag, errno, "cannot rename %s", from);
    }
    if (!S_ISDIR(st.st_mode)) {
        if (linkat(from_dir, from, to_dir, to, 0)) {
            return diag_errno(diag, errno, "cannot rename %s to %s", from, to);
        }
        return unlinkat(from_dir, from, 0)
                   ? diag_errno(diag, errno, "cannot remove the old name after renaming %s to %s",
                                from, to)
                   : 0;
    }
    if (fstatat(to_dir, to, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        return diag_errno(diag, EEXIST, "cannot rename %s to %s", from, to);
    }
    return renameat(from_dir, from, to_dir, to)
               ? diag_errno(diag, errno, "cannot rename %s to %s", from, to)
               : 0;
}

int vfs_posix_rename(struct vfs *vfs, vfs_fd from_dir, const char *from, vfs_fd to_dir,
                     const char *to, struct diag *diag)
{
    int rc = vfs_posix_check_name(from, diag);

    (void)vfs;
    rc = rc ? rc : vfs_posix_fail_point("vfs.rename", diag);
    rc = rc ? rc : vfs_posix_check_name(to, diag);
    if (rc) {
        return rc;
    }
    if (renameat2(from_dir, from, to_dir, to, RENAME_NOREPLACE) == 0) {
        return 0;
    }
    if (errno == EINVAL || errno == ENOSYS) {
        return rename_by_link(from_dir, from, to_dir, to, diag);
    }
    return diag_errno(diag, errno, "cannot rename %s to %s", from, to);
}

int vfs_posix_exchange(struct vfs *vfs, vfs_fd dir, const char *name, const char *with,
                       struct diag *diag)
{
    int rc = vfs_posix_check_name(name, diag);

    (void)vfs;
    rc = rc ? rc : vfs_posix_fail_point("vfs.exchange", diag);
    rc = rc ? rc : vfs_posix_check_name(with, diag);
    if (rc) {
        return rc;
    }
    if (renameat2(dir, name, dir, with, RENAME_EXCHANGE) == 0) {
        return 0;
    }
    if (errno == EINVAL || errno == ENOSYS) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "cannot exchange %s with %s, because this file system cannot exchange two "
                        "names in one step; use ext4, xfs or btrfs",
                        name, with);
    }
    return diag_errno(diag, errno, "cannot exchange %s with %s", name, with);
}

int vfs_posix_unlink(struct vfs *vfs, vfs_fd dir, const char *name, bool is_dir, struct diag *diag)
{
    int rc = vfs_posix_check_name(name, diag);

    (void)vfs;
    rc = rc ? rc : vfs_posix_fail_point("vfs.unlink", diag);
    if (rc) {
        return rc;
    }
    return unlinkat(dir, name, is_dir ? AT_REMOVEDIR : 0)
               ? diag_errno(diag, errno, "cannot remove %s", name)
               : 0;
}

/* --- listing --------------------------------------------------------------------------------- */

/* Returns the kind of a directory entry. */
static enum vfs_kind kind_of(int dir, const struct dirent *entry)
{
    struct stat st;

    switch (entry->d_type) {
    case DT_REG:
        return VFS_FILE;
    case DT_DIR:
        return VFS_DIR;
    case DT_UNKNOWN: /* some file systems do not say */
        if (fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW)) {
            return VFS_OTHER;
        }
        return S_ISREG(st.st_mode) ? VFS_FILE : S_ISDIR(st.st_mode) ? VFS_DIR : VFS_OTHER;
    default:
        return VFS_OTHER;
    }
}

int vfs_posix_list(struct vfs *vfs, vfs_fd dir,
                   int (*each)(void *user, const char *name, enum vfs_kind kind), void *user,
                   struct diag *diag)
{
    /* Opens a description of its own, because all threads of the caller share one position. */
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);

    (void)vfs;
    if (!stream) {
        rc = diag_errno(diag, errno, "cannot list a directory");
        if (fd >= 0) {
            close(fd);
        }
        return rc;
    }
    while (rc == 0) {
        const struct dirent *entry;

        errno = 0;
        entry = readdir(stream);
        if (!entry) {
            rc = errno ? diag_errno(diag, errno, "cannot list a directory") : 0;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            rc = each(user, entry->d_name, kind_of(fd, entry));
        }
    }
    closedir(stream);
    return rc;
}

/* --- space ----------------------------------------------------------------------------------- */

static const struct {
    uint32_t magic;
    const char *name;
    bool is_network;
} fs_types[] = {
    {0xEF53, "ext4", false},      {0x58465342, "xfs", false},      {0x9123683E, "btrfs", false},
    {0x01021994, "tmpfs", false}, {0x6969, "nfs", true},           {0x794C7630, "overlay", false},
    {0xFF534D42, "cifs", true},   {0xFE534D42, "smb2", true},      {0x517B, "smb", true},
    {0x00C36400, "ceph", true},   {0x0BD00BD0, "lustre", true},    {0x47504653, "gpfs", true},
    {0x01021997, "9p", true},     {0x65735546, "fuse", false},     {0x5346414F, "afs", true},
    {0x2FC12FC1, "zfs", false},   {0xF2F52010, "f2fs", false},     {0x19830326, "beegfs", true},
    {0x858458F6, "ramfs", false}, {0x73717368, "squashfs", false}, {0xCA451A4E, "bcachefs", false},
    {0x01161970, "gfs2", true},   {0x7461636F, "ocfs2", true},     {0xAAD7AAEA, "panfs", true},
};

int vfs_posix_space(struct vfs *vfs, vfs_fd dir, struct vfs_space *ret, struct diag *diag)
{
    struct vfs_space space = {0};
    struct statfs fs;
    uint64_t unit;
    uint32_t magic;

    (void)vfs;
    if (fstatfs(dir, &fs)) {
        return diag_errno(diag, errno, "cannot read the free space");
    }
    unit = (uint64_t)(fs.f_frsize ? fs.f_frsize : fs.f_bsize);
    magic = (uint32_t)fs.f_type;
    space.total_bytes = fs.f_blocks * unit;
    space.free_bytes = fs.f_bavail * unit;
    space.total_inodes = fs.f_files;
    space.free_inodes = fs.f_ffree;
    snprintf(space.fs_type, sizeof space.fs_type, "0x%x", magic);
    for (size_t i = 0; i < ARRAY_LEN(fs_types); i++) {
        if (fs_types[i].magic == magic) {
            snprintf(space.fs_type, sizeof space.fs_type, "%s", fs_types[i].name);
            space.is_network = fs_types[i].is_network;
        }
    }
    *ret = space;
    return 0;
}

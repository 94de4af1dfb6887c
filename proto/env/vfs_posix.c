/* SPDX-License-Identifier: Apache-2.0
 *
 * The real file system: thin wrappers of the system calls that the directory store's rules name;
 * each turns errno into a code and a text. Invariant: success means that the kernel said so for
 * every byte. Only EINTR, short transfers, and O_DIRECT where it is not available are retried. Any
 * thread; calls on one descriptor may run in parallel.
 */
#include "vfs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "vfs_posix_private.h"

enum { DIRECT_UNIT = 512 }; /* the least that a device addresses */

/* Opens the operator's directory. */
static int open_root(struct vfs *vfs, const char *path, vfs_fd *ret, struct diag *diag)
{
    int fd;

    (void)vfs;
    /* The operator's path may go through links; names below it may not. */
    do {
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return diag_errno(diag, errno, "cannot open directory %s", path);
    }
    *ret = fd;
    return 0;
}

static int open_flags(unsigned flags)
{
    int os = O_NOFOLLOW | O_CLOEXEC;

    os |= flags & VFS_WRITE ? (flags & VFS_READ ? O_RDWR : O_WRONLY) : O_RDONLY;
    os |= flags & VFS_CREATE_EXCL ? O_CREAT | O_EXCL : 0;
    os |= flags & VFS_CREATE ? O_CREAT : 0;
    os |= flags & VFS_DIRECTORY ? O_DIRECTORY : 0;
    return os;
}

/* Opens a file or directory below dir, with O_DIRECT if it is asked for and possible. */
static int open_at(struct vfs *vfs, vfs_fd dir, const char *name, unsigned flags, vfs_fd *ret,
                   struct diag *diag)
{
    int fd, rc = vfs_posix_check_name(name, diag);

    (void)vfs;
    rc = rc ? rc : vfs_posix_fail_point("vfs.open", diag);
    if (rc) {
        return rc;
    }
    do {
        fd = vfs_posix_openat(dir, name, open_flags(flags), 0600);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return errno == ELOOP
                   ? diag_set(diag, CAIRN_E_IO,
                              "cannot open %s, because it is a symbolic link; remove it", name)
                   : diag_errno(diag, errno, "%s %s", flags & VFS_CREATE_EXCL ? "create" : "open",
                                name);
    }
    /* O_DIRECT is set after the open, because some file systems create the file and then fail an
     * open with O_DIRECT. If it is refused the file is buffered, and is_direct() returns false. */
    if (flags & VFS_DIRECT) {
        int old = fcntl(fd, F_GETFL);
        err_ignore(old < 0 ? old : fcntl(fd, F_SETFL, old | O_DIRECT));
    }
    *ret = fd;
    return 0;
}

static int close_fd(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    (void)vfs;
    /* After EINTR Linux has closed the descriptor; every other error is a late error of a write. */
    if (close(fd) && errno != EINTR) {
        return diag_errno(diag, errno, "close");
    }
    return 0;
}

/* --- data ------------------------------------------------------------------------------------ */

static bool is_direct(struct vfs *vfs, vfs_fd fd)
{
    int flags = fcntl(fd, F_GETFL);

    (void)vfs;
    return flags >= 0 && flags & O_DIRECT;
}

/* Turns O_DIRECT off after an EINVAL, because this file system wants another alignment. Returns
 * true if it was on. */
static bool drop_direct(vfs_fd fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && flags & O_DIRECT && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

/* Writes all bytes. Falls back to buffered writing if O_DIRECT refuses the alignment. */
static int pwrite_all(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, const void *data,
                      struct diag *diag)
{
    const char *at = data;
    size_t left = bytes;
    int rc = vfs_posix_fail_point("vfs.pwrite", diag);

    (void)vfs;
    if (rc) {
        return rc;
    }
    while (left) {
        ssize_t n = pwrite(fd, at, left, (off_t)(offset + (bytes - left)));
        if (n > 0) {
            at += n;
            left -= (size_t)n;
        } else if (n == 0) {
            return diag_set(diag, CAIRN_E_IO, "a write of %zu bytes at %llu wrote nothing", bytes,
                            (unsigned long long)offset);
        } else if (errno != EINTR && !(errno == EINVAL && drop_direct(fd))) {
            return diag_errno(diag, errno, "cannot write %zu bytes at %llu", bytes,
                              (unsigned long long)offset);
        }
    }
    return 0;
}

/* Reads up to the end of the file. Falls back to buffered reading as pwrite_all does. */
static int pread_all(struct vfs *vfs, vfs_fd fd, uint64_t offset, size_t bytes, void *data,
                     size_t *ret_bytes, struct diag *diag)
{
    char *at = data;
    size_t left = bytes;
    int rc = vfs_posix_fail_point("vfs.pread", diag);

    if (rc) {
        return rc;
    }
    while (left) {
        ssize_t n = pread(fd, at, left, (off_t)(offset + (bytes - left)));
        if (n > 0) {
            at += n;
            left -= (size_t)n;
            /* A direct read ends between sectors only at the end of the file. */
            if (n % DIRECT_UNIT && is_direct(vfs, fd)) {
                break;
            }
        } else if (n == 0) {
            break;
        } else if (errno != EINTR && !(errno == EINVAL && drop_direct(fd))) {
            return diag_errno(diag, errno, "cannot read %zu bytes at %llu", bytes,
                              (unsigned long long)offset);
        }
    }
    *ret_bytes = bytes - left;
    return 0;
}

/* Any error, EINTR too, means that the contents of the file are unknown for ever (L5), so a sync is
 * never retried. */
static int sync_fd(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    const char *point = "vfs.fsync";
    int rc;

    (void)vfs;
#ifdef CAIRN_TESTING
    struct stat st;
    point = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) ? "vfs.dirsync" : point;
#endif
    rc = vfs_posix_fail_point(point, diag);
    if (rc) {
        return rc;
    }
    if (fsync(fd)) {
        int err = errno;
        return err == EINTR ? diag_set(diag, CAIRN_E_IO,
                                       "fsync was interrupted, so the file's contents are unknown")
                            : diag_errno(diag, err, "fsync");
    }
    return 0;
}

/* Reserves space for the file, without a change of its size. */
static int allocate(struct vfs *vfs, vfs_fd fd, uint64_t bytes, struct diag *diag)
{
    int rc = vfs_posix_fail_point("vfs.allocate", diag);

    (void)vfs;
    if (rc || bytes == 0) {
        return rc;
    }
    do { /* never posix_fallocate, whose emulation writes */
        rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes);
    } while (rc && errno == EINTR);
    if (rc && errno != EOPNOTSUPP && errno != ENOSYS) {
        return diag_errno(diag, errno, "cannot reserve %llu bytes", (unsigned long long)bytes);
    }
    return 0;
}

static int truncate_fd(struct vfs *vfs, vfs_fd fd, uint64_t bytes, struct diag *diag)
{
    int rc = vfs_posix_fail_point("vfs.truncate", diag);

    (void)vfs;
    if (rc) {
        return rc;
    }
    do {
        rc = ftruncate(fd, (off_t)bytes);
    } while (rc && errno == EINTR);
    return rc ? diag_errno(diag, errno, "cannot set the length to %llu", (unsigned long long)bytes)
              : 0;
}

static int chmod_fd(struct vfs *vfs, vfs_fd fd, uint32_t mode, struct diag *diag)
{
    (void)vfs;
    return fchmod(fd, (mode_t)mode) ? diag_errno(diag, errno, "cannot set the mode %o", mode) : 0;
}

/* Takes the write lock of the file, or returns BUSY. The lock belongs to the open file, so it ends
 * with the descriptor, or with the process. */
static int lock_fd(struct vfs *vfs, vfs_fd fd, struct diag *diag)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    (void)vfs;
    if (fcntl(fd, F_OFD_SETLK, &lock)) {
        return errno == EAGAIN || errno == EACCES
                   ? diag_set(diag, CAIRN_E_BUSY, "another process holds the lock of the file")
                   : diag_errno(diag, errno, "lock");
    }
    return 0;
}

/* Fills the bytes from the kernel's random numbers. It breaks a CHECK if there are none. */
static void random_bytes(struct vfs *vfs, size_t bytes, void *ret)
{
    uint8_t *at = ret;

    (void)vfs;
    while (bytes) {
        ssize_t got = getrandom(at, bytes, 0);

        CHECK(got > 0 || errno == EINTR);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        }
    }
}

struct vfs *vfs_posix(void)
{
    static const struct vfs_ops ops = {
        .open_root = open_root,
        .open = open_at,
        .close = close_fd,
        .pwrite = pwrite_all,
        .pread = pread_all,
        .fsync = sync_fd,
        .allocate = allocate,
        .truncate = truncate_fd,
        .chmod = chmod_fd,
        .fstat = vfs_posix_fstat,
        .stat = vfs_posix_stat,
        .mkdir = vfs_posix_mkdir,
        .rename = vfs_posix_rename,
        .exchange = vfs_posix_exchange,
        .unlink = vfs_posix_unlink,
        .list = vfs_posix_list,
        .space = vfs_posix_space,
        .lock = lock_fd,
        .is_direct = is_direct,
        .random = random_bytes,
    };
    static struct vfs vfs = {&ops}; /* never written; only its type is not const */

    return &vfs;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * See target.h.
 */
#include "target.h"

#include "base/check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* 0: absent or an empty directory. */
static int check_empty(const char *path, struct diag *diag)
{
    DIR *dir = opendir(path);
    if (!dir && errno == ENOTDIR) {
        return diag_set(diag, CAIRN_E_NOT_EMPTY,
                        "%s is no directory: restore into a directory that is absent or empty",
                        path);
    }
    if (!dir) {
        return errno == ENOENT ? 0 : diag_errno(diag, errno, "look at %s", path);
    }
    int status = 0;
    struct dirent *entry;
    while (status == 0 && (entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            status =
                diag_set(diag, CAIRN_E_NOT_EMPTY,
                         "%s is not empty: restore into a directory that is absent or empty", path);
        }
    }
    closedir(dir);
    return status;
}

int target_begin(const char *path, struct target *ret, struct diag *diag)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    if (length == 0 || length >= sizeof(ret->path)) {
        return diag_set(diag, CAIRN_E_INVALID, "--to: a directory is wanted");
    }
    memcpy(ret->path, path, length);
    ret->path[length] = '\0';
    snprintf(ret->partial, sizeof(ret->partial), "%s.partial", ret->path);
    ret->dir = -1;
    int status = check_empty(ret->path, diag);
    if (status != 0) {
        return status;
    }
    if (mkdir(ret->partial, 0700) != 0) {
        int error = errno;
        if (error == ENOENT) { /* not NOT_FOUND: that would read as the store's damage */
            return diag_set(diag, CAIRN_E_INVALID,
                            "--to %s: the directory above it is not there: make it first",
                            ret->path);
        }
        return error == EEXIST
                   ? diag_set(diag, CAIRN_E_EXISTS,
                              "%s is there from another restore: remove it first", ret->partial)
                   : diag_errno(diag, error, "make %s", ret->partial);
    }
    ret->dir = open(ret->partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (ret->dir < 0) {
        status = diag_errno(diag, errno, "open %s", ret->partial);
        (void)rmdir(ret->partial); /* empty, and ours: what stays would be named the next time */
        return status;
    }
    return 0;
}

void target_name(const char *text, size_t bytes, char *ret)
{
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-=";
    CHECK(bytes > 1);
    snprintf(ret, bytes, "%s", text);
    for (char *p = ret; *p; p++) {
        if (!strchr(fine, *p) || (p == ret && *p == '.')) {
            *p = '_';
        }
    }
}

int target_create(struct target *target, const char *name, int *ret_fd, struct diag *diag)
{
    int fd = openat(target->dir, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return diag_errno(diag, errno, "create %s/%s", target->partial, name);
    }
    *ret_fd = fd;
    return 0;
}

int target_write(int fd, const struct target_piece *piece, struct diag *diag)
{
    const char *at = piece->data;
    uint64_t offset = piece->offset;
    size_t bytes = piece->bytes;
    while (bytes > 0) {
        ssize_t written = pwrite(fd, at, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return diag_errno(diag, written < 0 ? errno : EIO, "write %s", piece->name);
        }
        at += written;
        offset += (uint64_t)written;
        bytes -= (size_t)written;
    }
    return 0;
}

int target_close(int fd, const char *name, struct diag *diag)
{
    int status = fsync(fd) == 0 ? 0 : diag_errno(diag, errno, "sync %s", name);
    if (close(fd) != 0 && status == 0) {
        status = diag_errno(diag, errno, "close %s", name);
    }
    return status;
}

static int sync_parent(const char *path, struct diag *diag)
{
    char copy[4096];
    snprintf(copy, sizeof(copy), "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return diag_errno(diag, errno, "open the directory of %s", path);
    }
    return target_close(fd, path, diag);
}

int target_commit(struct target *target, struct diag *diag)
{
    int dir = target->dir;
    target->dir = -1;
    int status = target_close(dir, target->partial, diag);
    if (status == 0 && rename(target->partial, target->path) !=
                           0) { /* replaces an empty directory, nothing else */
        status = diag_errno(diag, errno, "rename %s to %s", target->partial, target->path);
    }
    return status == 0 ? sync_parent(target->path, diag) : status;
}

void target_abort(struct target *target)
{
    if (target->dir < 0) {
        return;
    }
    DIR *dir = fdopendir(target->dir);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            (void)unlinkat(dirfd(dir), entry->d_name,
                           0); /* what stays is under .partial and harms nobody */
        }
    }
    if (dir) {
        closedir(dir);
    } else {
        close(target->dir);
    }
    target->dir = -1;
    if (rmdir(target->partial) != 0) {
        fprintf(stderr, "cairn: %s stays behind: %s\n", target->partial, strerror(errno));
    }
}

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

/* Returns 0 if the directory is absent or empty. */
static int check_empty(const char *path, struct diag *diag)
{
    DIR *dir = opendir(path);
    if (!dir && errno == ENOTDIR) {
        return diag_set(diag, CAIRN_E_NOT_EMPTY,
                        "%s is not a directory; restore into a directory that is absent or empty",
                        path);
    }
    if (!dir) {
        return errno == ENOENT ? 0 : diag_errno(diag, errno, "cannot examine %s", path);
    }
    int status = 0;
    struct dirent *entry;
    while (status == 0 && (entry = readdir(dir))) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            status =
                diag_set(diag, CAIRN_E_NOT_EMPTY,
                         "%s is not empty; restore into a directory that is absent or empty", path);
        }
    }
    closedir(dir);
    return status;
}

static bool is_directory_above(const char *path)
{
    char copy[4096];
    struct stat info;
    snprintf(copy, sizeof(copy), "%s", path);
    return stat(dirname(copy), &info) == 0 && S_ISDIR(info.st_mode);
}

/* mkdir said error: what is wrong with the place, and what to do. Never NOT_FOUND, which would read
 * as the store's damage. */
static int cannot_make(const struct target *target, int error, struct diag *diag)
{
    static const struct {
        int error;
        const char *remedy;
    } rows[] = {{EACCES, "you have no permission to write there; name another place"},
                {EPERM, "you have no permission to write there; name another place"},
                {EROFS, "it is mounted read-only; name another place"},
                {ENOSPC, "there is no room left; free some, or name another place"},
                {EDQUOT, "your quota there is used up; free some, or name another place"},
                {ENAMETOOLONG, "the name is too long; name a shorter one"}};
    if (error == EEXIST) {
        return diag_set(diag, CAIRN_E_EXISTS, "%s is left from another restore; remove it first",
                        target->partial);
    }
    if ((error == ENOENT || error == ENOTDIR) && !is_directory_above(target->path)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "--to %s: the directory above it does not exist; create it first",
                        target->path);
    }
    if (error == ENOENT) { /* /proc and the like */
        return diag_set(diag, CAIRN_E_INVALID,
                        "--to %s: no directory can be created there; name one on a disk",
                        target->path);
    }
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].error == error) {
            int code = error == ENAMETOOLONG ? CAIRN_E_INVALID : err_from_errno(error);
            return diag_set(diag, code, "--to %s: %s", target->path, rows[i].remedy);
        }
    }
    return diag_errno(diag, error, "--to %s: cannot create %s", target->path, target->partial);
}

int target_begin(const char *path, struct target *ret, struct diag *diag)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    if (length == 0 || length >= sizeof(ret->path)) {
        return diag_set(diag, CAIRN_E_INVALID, "--to needs a directory");
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
        return cannot_make(ret, errno, diag);
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
        return diag_errno(diag, errno, "cannot create %s/%s", target->partial, name);
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
        if (written < 0 && errno == EFBIG) {
            return diag_set(diag, CAIRN_E_TOO_LARGE,
                            "cannot write %s, because its file would be larger than is allowed "
                            "(ulimit -f, or the file system's limit)",
                            piece->name);
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

int target_close(int fd, const char *name, int status, struct diag *diag)
{
    if (fsync(fd) != 0 && status == 0) {
        status = diag_errno(diag, errno, "sync %s", name);
    }
    if (close(fd) != 0 && status == 0) {
        status = diag_errno(diag, errno, "close %s", name);
    }
    return status;
}

int target_put(struct target *target, const char *name, const struct buf *buf, struct diag *diag)
{
    int fd = -1, status = buf_status(buf);
    struct target_piece piece = {.name = name, .bytes = buf->bytes, .data = buf->data};
    if (status != 0) {
        return diag_set(diag, status, "cannot write the contents of %s", name);
    }
    status = target_create(target, name, &fd, diag);
    return status != 0 ? status : target_close(fd, name, target_write(fd, &piece, diag), diag);
}

static int sync_parent(const char *path, struct diag *diag)
{
    char copy[4096];
    snprintf(copy, sizeof(copy), "%s", path);
    int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return diag_errno(diag, errno, "cannot open the directory of %s", path);
    }
    return target_close(fd, path, 0, diag);
}

int target_commit(struct target *target, struct diag *diag)
{
    int status = fsync(target->dir) == 0 ? 0 : diag_errno(diag, errno, "sync %s", target->partial);
    if (status == 0 && rename(target->partial, target->path) !=
                           0) { /* replaces an empty directory, nothing else */
        status = diag_errno(diag, errno, "cannot rename %s to %s", target->partial, target->path);
    }
    if (status != 0) {
        return status; /* target_abort() finds what there is */
    }
    close(target->dir);
    target->dir = -1;
    return sync_parent(target->path, diag);
}

void target_explain(const struct target *target, int status, struct diag *diag)
{
    if (status == CAIRN_E_NO_SPACE || status == CAIRN_E_QUOTA) {
        diag_add(diag, "--to %s: there is no room for it; free some, or name another place",
                 target->path);
    }
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
        fprintf(stderr, "cairn: %s could not be removed and stays there: %s\n", target->partial,
                strerror(errno));
    }
}

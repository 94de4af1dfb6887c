/* SPDX-License-Identifier: Apache-2.0
 *
 * e2e_eio: preloaded, a program for which one place of a disk is unreadable. CAIRN_TEST_EIO names
 * it. Of a file the bytes cannot be read, whatever it is renamed to (it is known by its inode). Of
 * a folder neither the list can be read nor anything below it be found or made. Writing the file
 * anew, or another folder under the name, works: what is bad is the place, not the name.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PATH_BYTES = 4200 };

static struct {
    bool known, is_folder;
    dev_t device;
    ino_t inode;
} bad;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("CAIRN_TEST_EIO"); /* DEVICE:INODE:f or :d */
    unsigned long long device, inode;
    char kind;
    if (text && sscanf(text, "%llu:%llu:%c", &device, &inode, &kind) == 3) {
        bad.device = (dev_t)device;
        bad.inode = (ino_t)inode;
        bad.is_folder = kind == 'd';
        bad.known = true;
    }
}

static bool is_bad(const struct stat *stat)
{
    return stat->st_dev == bad.device && stat->st_ino == bad.inode;
}

static bool is_bad_fd(int fd)
{
    struct stat stat;
    return bad.known && REAL(fstat)(fd, &stat) == 0 && is_bad(&stat);
}

/* Does the way to `name` lead through the folder? */
static bool is_below(int dir, const char *name)
{
    struct stat stat;
    char path[PATH_BYTES], link[64];
    if (!bad.known || !bad.is_folder || !name || strncmp(name, "/proc/", 6) == 0) {
        return false;
    }
    size_t length = 0;
    if (name[0] != '/') {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
        ssize_t got = REAL(readlink)(dir == AT_FDCWD ? "/proc/self/cwd" : link, path, 2048);
        length = got > 0 ? (size_t)got : 0;
    }
    int n = snprintf(path + length, sizeof(path) - length, "/%s", name);
    if (n < 0 || (size_t)n >= sizeof(path) - length) {
        return false;
    }
    if (strcmp(name, ".") == 0) {
        return false; /* the folder itself */
    }
    for (char *slash; (slash = strrchr(path, '/')) && slash != path;) {
        *slash = '\0';
        if (REAL(fstatat)(AT_FDCWD, path, &stat, AT_SYMLINK_NOFOLLOW) == 0 && is_bad(&stat)) {
            return true;
        }
    }
    return false;
}

static int refuse(void)
{
    errno = EIO;
    return -1;
}

#define FILE_IS_BAD(fd) (!bad.is_folder && is_bad_fd(fd))

ssize_t read(int fd, void *data, size_t bytes)
{
    return FILE_IS_BAD(fd) ? refuse() : REAL(read)(fd, data, bytes);
}
ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
    return FILE_IS_BAD(fd) ? refuse() : REAL(pread)(fd, data, bytes, at);
}
ssize_t pread64(int fd, void *data, size_t bytes, off64_t at)
{
    return FILE_IS_BAD(fd) ? refuse() : REAL(pread64)(fd, data, bytes, at);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at)
{
    return FILE_IS_BAD(fd) ? refuse() : REAL(preadv)(fd, parts, count, at);
}
struct dirent *readdir(DIR *dir)
{
    if (bad.is_folder && is_bad_fd(dirfd(dir))) {
        errno = EIO;
        return NULL;
    }
    return REAL(readdir)(dir);
}
struct dirent64 *readdir64(DIR *dir)
{
    if (bad.is_folder && is_bad_fd(dirfd(dir))) {
        errno = EIO;
        return NULL;
    }
    return REAL(readdir64)(dir);
}

static mode_t mode_of(int flags, va_list args)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
}
#define OPEN_AT(name)                                   \
    int name(int dir, const char *path, int flags, ...) \
    {                                                   \
        va_list args;                                   \
        va_start(args, flags);                          \
        mode_t mode = mode_of(flags, args);             \
        va_end(args);                                   \
        if (is_below(dir, path)) {                      \
            return refuse();                            \
        }                                               \
        return REAL(name)(dir, path, flags, mode);      \
    }
#define OPEN(name)                             \
    int name(const char *path, int flags, ...) \
    {                                          \
        va_list args;                          \
        va_start(args, flags);                 \
        mode_t mode = mode_of(flags, args);    \
        va_end(args);                          \
        if (is_below(AT_FDCWD, path)) {        \
            return refuse();                   \
        }                                      \
        return REAL(name)(path, flags, mode);  \
    }
OPEN_AT(openat)
OPEN_AT(openat64)
OPEN(open)
OPEN(open64)

/* openat2 has no function of its own. */
long syscall(long number, ...)
{
    long word[6];
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++) {
        word[i] = va_arg(args, long);
    }
    va_end(args);
    if (number == SYS_openat2 && is_below((int)word[0], (const char *)word[1])) {
        return refuse();
    }
    return REAL(syscall)(number, word[0], word[1], word[2], word[3], word[4], word[5]);
}
int fstatat(int dir, const char *restrict path, struct stat *restrict ret, int flags)
{
    return is_below(dir, path) ? refuse() : REAL(fstatat)(dir, path, ret, flags);
}
int fstatat64(int dir, const char *restrict path, struct stat64 *restrict ret, int flags)
{
    return is_below(dir, path) ? refuse() : REAL(fstatat64)(dir, path, ret, flags);
}
int mkdirat(int dir, const char *path, mode_t mode)
{
    return is_below(dir, path) ? refuse() : REAL(mkdirat)(dir, path, mode);
}
int unlinkat(int dir, const char *path, int flags)
{
    return is_below(dir, path) ? refuse() : REAL(unlinkat)(dir, path, flags);
}
int renameat(int dir, const char *path, int to_dir, const char *to)
{
    return is_below(dir, path) || is_below(to_dir, to) ? refuse()
                                                       : REAL(renameat)(dir, path, to_dir, to);
}
int renameat2(int dir, const char *path, int to_dir, const char *to, unsigned flags)
{
    return is_below(dir, path) || is_below(to_dir, to)
               ? refuse()
               : REAL(renameat2)(dir, path, to_dir, to, flags);
}

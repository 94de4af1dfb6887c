/* SPDX-License-Identifier: Apache-2.0
 *
 * e2e_call: preloaded into a program, makes one of its system calls fail or kills the program
 * there. CAIRN_TEST_CALL=NAME:N:HOW names the N-th call of NAME in this process, counted over all
 * threads. HOW is an errno as a number, "short" (half of the bytes), "before" or "after" (SIGKILL).
 * The fault is told on stderr when it happens; a program that ends in order says how often it
 * called what.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define NAMES(X) \
    X(open)      \
    X(openat)    \
    X(openat2)   \
    X(read)      \
    X(pread)     \
    X(write)     \
    X(pwrite)    \
    X(sendfile)  \
    X(fsync)     \
    X(fdatasync) \
    X(fallocate) \
    X(ftruncate) \
    X(renameat)  \
    X(renameat2) \
    X(linkat)    \
    X(unlink)    \
    X(unlinkat)  \
    X(mkdirat)   \
    X(fstat)     \
    X(fstatat)   \
    X(fstatfs)   \
    X(fchmod)    \
    X(lseek)     \
    X(readdir)   \
    X(mmap)      \
    X(socket)    \
    X(accept4)   \
    X(sendmsg)   \
    X(recvmsg)
#define NUMBER(name) CALL_##name,
#define TEXT(name)   #name,

enum call { NAMES(NUMBER) CALL_COUNT };
enum verdict { GO_ON, FAIL, SHORTEN, KILL_AFTER };
static const char *const names[] = {NAMES(TEXT)};
static atomic_ulong counts[CALL_COUNT];
static struct {
    bool is_on;
    char name[32], how[16];
    unsigned long number;
} plan;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Straight to the kernel, so that it is not counted. */
static void tell(const char *text, int length)
{
    if (length > 0) {
        (void)REAL(syscall)(SYS_write, STDERR_FILENO, text, (size_t)length);
    }
}

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("CAIRN_TEST_CALL");
    char number[16] = "";
    plan.is_on = text && sscanf(text, "%31[^:]:%15[^:]:%15s", plan.name, number, plan.how) == 3;
    plan.number = strtoul(number, NULL, 10);
}

__attribute__((destructor)) static void end(void)
{
    char line[1024];
    int length = snprintf(line, sizeof(line), "e2e_call: calls");
    for (int i = 0; i < CALL_COUNT; i++) {
        length += snprintf(line + length, sizeof(line) - (size_t)length, " %s=%lu", names[i],
                           atomic_load(&counts[i]));
    }
    line[length++] = '\n';
    tell(line, length);
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;) {
        pause();
    }
}

/* Called at the start of each call. Sets errno where the verdict is FAIL. */
static enum verdict judge(enum call call)
{
    char line[128];
    unsigned long number = atomic_fetch_add(&counts[call], 1) + 1;
    if (!plan.is_on || number != plan.number || strcmp(plan.name, names[call]) != 0) {
        return GO_ON;
    }
    tell(line, snprintf(line, sizeof(line), "e2e_call: fault at %s %lu: %s\n", plan.name, number,
                        plan.how));
    if (strcmp(plan.how, "before") == 0) {
        die();
    }
    if (strcmp(plan.how, "after") == 0) {
        return KILL_AFTER;
    }
    if (strcmp(plan.how, "short") == 0) {
        return SHORTEN;
    }
    errno = (int)strtol(plan.how, NULL, 10);
    return FAIL;
}

static size_t shorter(enum verdict verdict, size_t bytes)
{
    return verdict == SHORTEN && bytes > 1 ? bytes / 2 : bytes;
}

/* A function of its own around each call. `failed` is what it returns where it fails. */
#define CALL(type, name, failed, parameters, ...)  \
    type name parameters                           \
    {                                              \
        enum verdict verdict = judge(CALL_##name); \
        if (verdict == FAIL) {                     \
            return failed;                         \
        }                                          \
        type got = REAL(name)(__VA_ARGS__);        \
        if (verdict == KILL_AFTER) {               \
            die();                                 \
        }                                          \
        return got;                                \
    }

#define BYTES shorter(verdict, bytes)
CALL(ssize_t, pread, -1, (int fd, void *data, size_t bytes, off_t at), fd, data, BYTES, at)
CALL(ssize_t, pwrite, -1, (int fd, const void *data, size_t bytes, off_t at), fd, data, BYTES, at)
CALL(ssize_t, sendfile, -1, (int to, int from, off_t *at, size_t bytes), to, from, at, BYTES)
CALL(int, fsync, -1, (int fd), fd)
CALL(int, fdatasync, -1, (int fd), fd)
CALL(int, fallocate, -1, (int fd, int mode, off_t at, off_t bytes), fd, mode, at, bytes)
CALL(int, ftruncate, -1, (int fd, off_t bytes), fd, bytes)
CALL(int, renameat, -1, (int dir, const char *name, int to, const char *new), dir, name, to, new)
CALL(int, renameat2, -1, (int dir, const char *name, int to, const char *new, unsigned flags), dir,
     name, to, new, flags)
CALL(int, linkat, -1, (int dir, const char *name, int to, const char *new, int flags), dir, name,
     to, new, flags)
CALL(int, unlink, -1, (const char *name), name)
CALL(int, unlinkat, -1, (int dir, const char *name, int flags), dir, name, flags)
CALL(int, mkdirat, -1, (int dir, const char *name, mode_t mode), dir, name, mode)
CALL(int, fstat, -1, (int fd, struct stat *ret), fd, ret)
CALL(int, fstatat, -1, (int dir, const char *restrict name, struct stat *restrict ret, int flags),
     dir, name, ret, flags)
CALL(int, fstatfs, -1, (int fd, struct statfs *ret), fd, ret)
CALL(int, fchmod, -1, (int fd, mode_t mode), fd, mode)
CALL(off_t, lseek, -1, (int fd, off_t at, int whence), fd, at, whence)
CALL(struct dirent *, readdir, NULL, (DIR * dir), dir)
CALL(void *, mmap, MAP_FAILED,
     (void *at, size_t bytes, int protection, int flags, int fd, off_t from), at, bytes, protection,
     flags, fd, from)
CALL(int, socket, -1, (int domain, int type, int protocol), domain, type, protocol)
CALL(int, accept4, -1,
     (int fd, struct sockaddr *restrict address, socklen_t *restrict bytes, int flags), fd, address,
     bytes, flags)

/* Of read and write, those of files and sockets only: libuv's own wake-ups never fail, and libuv
 * aborts where they do. */
static bool is_counted(int fd)
{
    struct stat stat;
    return REAL(fstat)(fd, &stat) == 0 && (S_ISREG(stat.st_mode) || S_ISSOCK(stat.st_mode));
}

#define READ_OR_WRITE(name, pointer)                                        \
    ssize_t name(int fd, pointer data, size_t bytes)                        \
    {                                                                       \
        enum verdict verdict = is_counted(fd) ? judge(CALL_##name) : GO_ON; \
        ssize_t got = verdict == FAIL ? -1 : REAL(name)(fd, data, BYTES);   \
        if (verdict == KILL_AFTER) {                                        \
            die();                                                          \
        }                                                                   \
        return got;                                                         \
    }
READ_OR_WRITE(read, void *)
READ_OR_WRITE(write, const void *)

/* A short message is the first half of its first part. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    enum verdict verdict = judge(CALL_sendmsg);
    struct msghdr less = *message;
    struct iovec part = {0};
    if (verdict == SHORTEN && less.msg_iovlen > 0) {
        part = less.msg_iov[0];
        part.iov_len = shorter(verdict, part.iov_len);
        less.msg_iov = &part;
        less.msg_iovlen = 1;
    }
    ssize_t got = verdict == FAIL ? -1 : REAL(sendmsg)(fd, &less, flags);
    if (verdict == KILL_AFTER) {
        die();
    }
    return got;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    enum verdict verdict = judge(CALL_recvmsg);
    struct iovec *parts = message->msg_iov, part = {0};
    size_t count = message->msg_iovlen;
    if (verdict == SHORTEN && count > 0) {
        part = (struct iovec){parts[0].iov_base, shorter(verdict, parts[0].iov_len)};
        message->msg_iov = &part;
        message->msg_iovlen = 1;
    }
    ssize_t got = verdict == FAIL ? -1 : REAL(recvmsg)(fd, message, flags);
    message->msg_iov = parts;
    message->msg_iovlen = count;
    if (verdict == KILL_AFTER) {
        die();
    }
    return got;
}

static mode_t mode_of(int flags, va_list args)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    enum verdict verdict = judge(CALL_open);
    int fd = verdict == FAIL ? -1 : REAL(open)(path, flags, mode);
    if (verdict == KILL_AFTER) {
        die();
    }
    return fd;
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    enum verdict verdict = judge(CALL_openat);
    int fd = verdict == FAIL ? -1 : REAL(openat)(dir, path, flags, mode);
    if (verdict == KILL_AFTER) {
        die();
    }
    return fd;
}

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
    enum verdict verdict = number == SYS_openat2 ? judge(CALL_openat2) : GO_ON;
    long got = verdict == FAIL
                   ? -1
                   : REAL(syscall)(number, word[0], word[1], word[2], word[3], word[4], word[5]);
    if (verdict == KILL_AFTER) {
        die();
    }
    return got;
}

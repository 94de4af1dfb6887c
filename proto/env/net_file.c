/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends bytes of a file into a socket by reference to the file's pages (sendfile). If the kernel
 * refuses, because pages of hugetlbfs cannot be spliced or a filter forbids the call, that is told
 * apart from a lost connection, so that the caller can send from memory. The loop's thread.
 */
#include "net_uv_private.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <time.h>

#include "base/limits.h"

/* sendfile has no MSG_NOSIGNAL. A peer that is gone raises SIGPIPE, which is the program's to
 * handle and would end most programs. So this thread blocks the signal for the call, and takes it
 * away if the call raised it; one that was pending before belongs to other code. */
static ssize_t send_without_signal(int to, const struct file_span *span, size_t bytes)
{
    static const struct timespec now = {0};
    sigset_t ours, before, pending;
    off_t at = (off_t)span->at;
    bool was_pending;
    ssize_t sent;
    int errnum;

    sigemptyset(&ours);
    sigaddset(&ours, SIGPIPE);
    sigpending(&pending);
    was_pending = sigismember(&pending, SIGPIPE) == 1;
    CHECK(pthread_sigmask(SIG_BLOCK, &ours, &before) == 0);
    do {
        sent = sendfile(to, span->fd, &at, bytes);
    } while (sent < 0 && errno == EINTR);
    errnum = errno;
    if (sent < 0 && errnum == EPIPE && !was_pending) {
        while (sigtimedwait(&ours, NULL, &now) < 0 && errno == EINTR) {
        }
    }
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    errno = errnum;
    return sent;
}

static bool is_refusal(int errnum)
{
    return errnum == EINVAL || errnum == ENOSYS || errnum == EOPNOTSUPP || errnum == EPERM ||
           errnum == EACCES;
}

int net_uv_send_file(struct sock *base, const struct file_span *span, size_t *ret_bytes,
                     struct diag *diag)
{
    struct sock_uv *sock = sock_uv_from(base);
    ssize_t sent;

    CHECK(span->bytes > 0);
    if (sock->state != SOCK_OPEN) {
        return sock_uv_not_open(sock, diag);
    }
    sent = send_without_signal(sock->poller->fd, span, span->bytes < MIB(1) ? span->bytes : MIB(1));
    if (sent > 0) {
        *ret_bytes = (size_t)sent;
        return 0;
    }
    if (sent == 0 || is_refusal(errno)) { /* 0 means that the file ends before */
        return CAIRN_E_UNSUPPORTED;
    }
    return errno == EAGAIN || errno == EWOULDBLOCK ? CAIRN_E_AGAIN
                                                   : sock_uv_lost(sock, errno, diag);
}

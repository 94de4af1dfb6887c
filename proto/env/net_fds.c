/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors on Unix sockets: sent with the first byte of a write, received with CLOEXEC into a
 * short queue. Invariant: a received descriptor is either in the queue or closed, and a peer cannot
 * make us hold more than the socket's owner allows. The loop's thread.
 */
#include "net_uv_private.h"

#include <string.h>
#include <unistd.h>

static void came(struct fd_queue *queue, int fd)
{
    if (queue->count < queue->most) {
        queue->fd[queue->count++] = fd;
    } else {
        close(fd);
    }
}

void net_fds_came(struct sock_uv *sock, struct msghdr *msg)
{
    /* The kernel has closed what did not fit into the control buffer or found our table of
     * descriptors full (MSG_CTRUNC). The code that expects a descriptor finds none, and reports
     * that. */
    for (struct cmsghdr *head = CMSG_FIRSTHDR(msg); head; head = CMSG_NXTHDR(msg, head)) {
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
            size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count; i++) {
                int fd;
                memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
                came(&sock->fds, fd);
            }
        }
    }
}

void net_fds_close(struct sock_uv *sock)
{
    while (sock->fds.count > 0) {
        close(sock->fds.fd[--sock->fds.count]);
    }
}

bool net_fds_pass(struct sock *base)
{
    struct sock_uv *sock = sock_uv_from(base);
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;

    if (sock->connecting) {
        return sock->connecting->addr.family == NET_UNIX;
    }
    memset(&own, 0, sizeof own);
    return sock->poller && getsockname(sock->poller->fd, (struct sockaddr *)&own, &bytes) == 0 &&
           own.ss_family == AF_UNIX;
}

int net_fds_try_writev(struct sock *base, const struct iovec *iov, size_t count, int fd,
                       size_t *ret_bytes)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)];
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                         .msg_iovlen = count,
                         .msg_control = control,
                         .msg_controllen = sizeof control};
    struct cmsghdr *head;

    if (!net_fds_pass(base)) {
        return CAIRN_E_UNSUPPORTED;
    }
    memset(control, 0, sizeof control);
    head = CMSG_FIRSTHDR(&msg);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return net_uv_send(sock_uv_from(base), &msg, ret_bytes, NULL);
}

void net_fds_accept(struct sock *base, unsigned most)
{
    CHECK(most <= NET_FDS_MAX);
    sock_uv_from(base)->fds.most = most;
}

int net_fds_take(struct sock *base)
{
    struct fd_queue *queue = &sock_uv_from(base)->fds;
    int fd = -1;

    if (queue->count > 0) {
        fd = queue->fd[0];
        memmove(queue->fd, queue->fd + 1, --queue->count * sizeof fd);
    }
    return fd;
}

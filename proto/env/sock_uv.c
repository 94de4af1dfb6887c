/* SPDX-License-Identifier: Apache-2.0
 *
 * A TCP or Unix socket of the libuv form of net. Invariants: no callback inside a call, none after
 * close; at most 1 MiB a call, so that one busy socket does not starve the others of its loop. A
 * socket that is not open yet leaves what comes next to its `connecting`. The loop's thread.
 */
#include "net_uv_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"

enum { SOCK_MAGIC = 0x736f636b, IOV_COUNT_MAX = 64, UNIX_BUFFER_BYTES = 4 << 20 };

static void on_kick(struct timer *timer);

struct sock_uv *sock_uv_from(struct sock *base)
{
    struct sock_uv *sock = container_of(base, struct sock_uv, base);

    CHECK(sock->magic == SOCK_MAGIC);
    return sock;
}

struct sock_uv *sock_uv_new(struct net_uv *net)
{
    struct sock_uv *sock = calloc(1, sizeof *sock);

    if (sock) {
        sock->base.net = &net->base;
        sock->magic = SOCK_MAGIC;
        sock->state = SOCK_OPEN;
        timer_init(&sock->kick, net->loop, on_kick);
        list_add_tail(&net->socks, &sock->link);
    }
    return sock;
}

int net_uv_adopt(struct net *base, int fd, struct sock **ret, struct diag *diag)
{
    struct net_uv *net = net_uv_from(base);
    struct sock_uv *sock = sock_uv_new(net);
    int rc;

    if (!sock) {
        close(fd);
        return diag_no_memory(diag, "connection");
    }
    rc = poller_new(net->loop, fd, (struct poller_owner){sock_uv_on_poll, sock}, &sock->poller,
                    diag);
    if (rc) {
        sock_uv_close(&sock->base);
        return rc;
    }
    *ret = &sock->base;
    return 0;
}

void connecting_free(struct connecting *connecting)
{
    if (connecting) {
        resolve_cancel(connecting->resolve);
        free(connecting);
    }
}

/* Closes the socket at once and frees it. Bytes that were not read are lost. */
void sock_uv_close(struct sock *base)
{
    struct sock_uv *sock = sock_uv_from(base);

    timer_stop(&sock->kick);
    poller_close(sock->poller);
    net_fds_close(&sock->fds);
    connecting_free(sock->connecting);
    list_remove(&sock->link);
    sock->magic = 0;
    free(sock);
}

/* Notes the events to wait for. A socket that has failed reports that at the next turn. */
void sock_uv_want(struct sock *base, unsigned events, const struct sock_handler *handler,
                  void *user)
{
    struct sock_uv *sock = sock_uv_from(base);

    sock->wants = events;
    sock->handler = handler;
    sock->user = user;
    if (sock->state == SOCK_FAILED) {
        timer_stop(&sock->kick);
        if (events) {
            timer_start(&sock->kick, 0);
        }
    } else {
        sock_uv_watch(sock);
    }
}

void sock_uv_watch(struct sock_uv *sock)
{
    if (sock->poller) {
        poller_set(sock->poller, sock->state == SOCK_CONNECTING ? SOCK_WRITE : sock->wants);
    }
}

void sock_uv_on_poll(void *owner, unsigned events, bool is_broken)
{
    struct sock_uv *sock = owner;

    CHECK(sock->magic == SOCK_MAGIC);
    if (sock->state == SOCK_CONNECTING) {
        sock->connecting->on_progress(sock);
        return;
    }
    if (is_broken) {
        sock_uv_watch(sock); /* before the call: the socket may be gone after it */
    }
    if (events & sock->wants) {
        sock->handler->on_ready(sock->user, events & sock->wants);
    }
}

static void on_kick(struct timer *timer)
{
    struct sock_uv *sock = container_of(timer, struct sock_uv, kick);

    if (sock->state == SOCK_CONNECTING) {
        sock->connecting->on_progress(sock);
    } else if (sock->wants) {
        sock->handler->on_ready(sock->user, sock->wants);
    }
}

/* --- reading and writing --------------------------------------------------------------------- */

/* Cuts a caller's vector to IOV_COUNT_MAX entries and 1 MiB. */
static size_t clip(const struct iovec *iov, size_t count, struct iovec *ret_iov)
{
    size_t left = MIB(1), used = 0;

    for (size_t i = 0; i < count && used < IOV_COUNT_MAX && left; i++) {
        size_t bytes = iov[i].iov_len < left ? iov[i].iov_len : left;
        if (bytes) {
            ret_iov[used++] = (struct iovec){iov[i].iov_base, bytes};
            left -= bytes;
        }
    }
    CHECK(used > 0);
    return used;
}

int sock_uv_not_open(struct sock_uv *sock, struct diag *diag)
{
    if (sock->state == SOCK_FAILED) {
        return diag_copy(diag, &sock->connecting->failure);
    }
    return CAIRN_E_AGAIN;
}

int sock_uv_lost(struct sock_uv *sock, int errnum, struct diag *diag)
{
    char name[64];

    sock_uv_peer_name(&sock->base, sizeof name, name);
    return diag_set(diag, CAIRN_E_CONNECTION_LOST, "the connection to %s failed: %s", name,
                    strerror(errnum));
}

/* Reads what is there, with the descriptors that come along. */
int sock_uv_try_readv(struct sock *base, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag)
{
    struct sock_uv *sock = sock_uv_from(base);
    struct iovec clipped[IOV_COUNT_MAX];
    _Alignas(struct cmsghdr) char control[NET_CONTROL_BYTES];
    struct msghdr msg = {.msg_iov = clipped};
    ssize_t got;

    if (sock->state != SOCK_OPEN) {
        return sock_uv_not_open(sock, diag);
    }
    msg.msg_iovlen = clip(iov, count, clipped);
    do {
        msg.msg_control = control;
        msg.msg_controllen = sizeof control;
        got = recvmsg(sock->poller->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK ? CAIRN_E_AGAIN
                                                       : sock_uv_lost(sock, errno, diag);
    }
    net_fds_came(&sock->fds, &msg);
    if (got == 0) {
        return CAIRN_E_ENDED;
    }
    *ret_bytes = (size_t)got;
    return 0;
}

/* Sends what msg says, within the limits of one call. */
static int MUST_USE sock_uv_send(struct sock_uv *sock, const struct msghdr *msg, size_t *ret_bytes,
                                 struct diag *diag)
{
    struct iovec clipped[IOV_COUNT_MAX];
    ssize_t sent;

    if (sock->state != SOCK_OPEN) {
        return sock_uv_not_open(sock, diag);
    }
    struct msghdr ours = *msg;
    ours.msg_iovlen = clip(msg->msg_iov, msg->msg_iovlen, clipped);
    ours.msg_iov = clipped;
    do {
        sent = sendmsg(sock->poller->fd, &ours, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK ? CAIRN_E_AGAIN
                                                       : sock_uv_lost(sock, errno, diag);
    }
    *ret_bytes = (size_t)sent;
    return 0;
}

int sock_uv_try_writev(struct sock *base, const struct iovec *iov, size_t count, size_t *ret_bytes,
                       struct diag *diag)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = count};

    return sock_uv_send(sock_uv_from(base), &msg, ret_bytes, diag);
}

/* --- descriptors beside the bytes ------------------------------------------------------------ */

bool sock_uv_can_pass_fd(struct sock *base)
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

int sock_uv_try_writev_fd(struct sock *base, const struct iovec *iov, size_t count, int fd,
                          size_t *ret_bytes)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof fd)];
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov,
                         .msg_iovlen = count,
                         .msg_control = control,
                         .msg_controllen = sizeof control};
    struct cmsghdr *head;

    if (!sock_uv_can_pass_fd(base)) {
        return CAIRN_E_UNSUPPORTED;
    }
    memset(control, 0, sizeof control);
    head = CMSG_FIRSTHDR(&msg);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    return sock_uv_send(sock_uv_from(base), &msg, ret_bytes, NULL);
}

void sock_uv_accept_fds(struct sock *base, unsigned most)
{
    CHECK(most <= NET_FDS_MAX);
    sock_uv_from(base)->fds.most = most;
}

int sock_uv_take_fd(struct sock *base) { return net_fds_take(&sock_uv_from(base)->fds); }

/* --- the other end --------------------------------------------------------------------------- */

static bool get_peer(struct sock_uv *sock, struct sockaddr_storage *ret)
{
    socklen_t bytes = sizeof *ret;

    memset(ret, 0, sizeof *ret);
    return sock->poller && getpeername(sock->poller->fd, (struct sockaddr *)ret, &bytes) == 0;
}

/* Gives the peer's credentials, as they were when it connected. */
static bool get_cred(struct sock_uv *sock, struct ucred *ret)
{
    struct sockaddr_storage peer;
    socklen_t bytes = sizeof *ret;

    return get_peer(sock, &peer) && peer.ss_family == AF_UNIX &&
           getsockopt(sock->poller->fd, SOL_SOCKET, SO_PEERCRED, ret, &bytes) == 0;
}

bool sock_uv_peer_uid(struct sock *base, uint32_t *ret)
{
    struct ucred cred;

    if (!get_cred(sock_uv_from(base), &cred)) {
        return false;
    }
    *ret = cred.uid;
    return true;
}

/* Names the peer for logs: address and port, or process and user. */
void sock_uv_peer_name(struct sock *base, size_t bytes, char *ret)
{
    struct sock_uv *sock = sock_uv_from(base);
    struct sockaddr_storage peer;
    char text[INET6_ADDRSTRLEN] = "?";

    if (sock->connecting) {
        net_addr_format(&sock->connecting->addr, bytes, ret);
    } else if (!get_peer(sock, &peer)) {
        snprintf(ret, bytes, "a peer that has disconnected");
    } else if (peer.ss_family == AF_UNIX) {
        struct ucred cred;
        if (!get_cred(sock, &cred)) {
            snprintf(ret, bytes, "unix");
        } else {
            snprintf(ret, bytes, "unix pid %d uid %u", cred.pid, cred.uid);
        }
    } else if (peer.ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)&peer;
        inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
        snprintf(ret, bytes, "tcp [%s]:%u", text, ntohs(v6->sin6_port));
    } else {
        const struct sockaddr_in *v4 = (const void *)&peer;
        inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
        snprintf(ret, bytes, "tcp %s:%u", text, ntohs(v4->sin_port));
    }
}

/* Returns whether the peer came over a loopback address or a Unix socket. */
bool sock_uv_is_loopback(struct sock *base)
{
    struct sockaddr_storage peer;

    if (!get_peer(sock_uv_from(base), &peer)) {
        return false; /* an unknown peer is not trusted */
    }
    if (peer.ss_family == AF_INET) {
        return (ntohl(((const struct sockaddr_in *)(const void *)&peer)->sin_addr.s_addr) >> 24) ==
               127;
    }
    if (peer.ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)&peer)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
    }
    return peer.ss_family == AF_UNIX;
}

/* Sets options that make a connection faster; where the kernel refuses, it works all the same. TCP
 * buffers tune themselves. Unix ones do not, and 4 MiB were measured to be worth a quarter of the
 * rate. */
void net_tune(int fd, int family)
{
    int one = 1, bytes = UNIX_BUFFER_BYTES;

    if (family != AF_UNIX) {
        err_ignore(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
        return;
    }
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes)) {
        err_ignore(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
    }
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes)) {
        err_ignore(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
    }
}

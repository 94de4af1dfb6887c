/* SPDX-License-Identifier: Apache-2.0
 *
 * The libuv form of net: TCP and Unix sockets, read and written with our own non-blocking recvmsg
 * and sendmsg, because libuv's streams cannot pass a memfd and would copy; uv_poll only says when.
 * Invariants: no callback inside a call, none after close; at most 1 MiB a call, so that one busy
 * socket does not starve the others of its loop. The loop's thread.
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

enum {
    NET_MAGIC = 0x6e657475,
    SOCK_MAGIC = 0x736f636b,
    IOV_COUNT_MAX = 64,
    UNIX_BUFFER_BYTES = 4 << 20
};

static int try_readv(struct sock *base, const struct iovec *iov, size_t count, size_t *ret_bytes,
                     struct diag *diag);
static int try_writev(struct sock *base, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag);
static void want(struct sock *base, unsigned events, const struct sock_handler *handler,
                 void *user);
static void close_sock(struct sock *base);
static void peer_name(struct sock *base, size_t bytes, char *ret);
static bool is_loopback(struct sock *base);
static bool peer_uid(struct sock *base, uint32_t *ret);
static void on_kick(struct timer *timer);

static const struct net_ops uv_ops = {net_uv_connect, net_uv_listen,      net_uv_listener_close,
                                      try_readv,      try_writev,         want,
                                      close_sock,     peer_name,          is_loopback,
                                      net_fds_pass,   net_fds_try_writev, net_fds_accept,
                                      net_fds_take,   peer_uid,           net_uv_send_file};

struct net_uv *net_uv_from(struct net *base)
{
    struct net_uv *net = container_of(base, struct net_uv, base);

    CHECK(net->magic == NET_MAGIC);
    return net;
}

struct sock_uv *sock_uv_from(struct sock *base)
{
    struct sock_uv *sock = container_of(base, struct sock_uv, base);

    CHECK(sock->magic == SOCK_MAGIC);
    return sock;
}

int net_uv_new(struct loop *loop, struct net **ret, struct diag *diag)
{
    struct net_uv *net = calloc(1, sizeof *net);
    int rc;

    if (!net) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "network: out of memory");
    }
    rc = resolver_init(&net->resolver, loop, diag);
    if (rc) {
        free(net);
        return rc;
    }
    net->base.ops = &uv_ops;
    net->magic = NET_MAGIC;
    net->loop = loop;
    list_init(&net->socks);
    list_init(&net->listeners);
    *ret = &net->base;
    return 0;
}

enum { SETTLE_MS = 5000 };

static void on_settled(struct timer *timer) { (void)timer; }

/* Turns the loop, which has stopped, until the connections that were closed with a flush (conn.h)
 * are gone. The time is bounded, so that a leaked socket shows as one. */
static void settle(struct net_uv *net)
{
    struct timer bound;
    uint64_t end_ms = loop_now_ms(net->loop) + SETTLE_MS;

    timer_init(&bound, net->loop, on_settled);
    timer_start(&bound, SETTLE_MS); /* a turn waits for an event: for this one at the latest */
    while (!list_is_empty(&net->socks) && loop_now_ms(net->loop) < end_ms) {
        loop_uv_turn(net->loop);
    }
    timer_stop(&bound);
}

void net_uv_free(struct net *base)
{
    struct net_uv *net;

    if (!base) {
        return;
    }
    net = net_uv_from(base);
    settle(net);
    CHECK(list_is_empty(&net->socks));
    CHECK(list_is_empty(&net->listeners));
    resolver_fini(&net->resolver);
    net->magic = 0;
    free(net);
}

/* Closes only descriptors. The handles and the memory are the parent's, and this process has a
 * copy. */
void net_uv_abandon(struct net *base)
{
    struct net_uv *net = net_uv_from(base);

    list_each (node, &net->socks) {
        struct sock_uv *sock = list_item(node, struct sock_uv, link);
        if (sock->poller && sock->poller->fd >= 0) {
            close(sock->poller->fd);
            sock->poller->fd = -1;
        }
        net_fds_close(sock);
    }
    net_uv_listeners_abandon(net);
}

/* --- sockets --------------------------------------------------------------------------------- */

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
        return diag_set(diag, CAIRN_E_NO_MEMORY, "connection: out of memory");
    }
    rc = poller_new(net->loop, fd, (struct poller_owner){sock_uv_on_poll, sock}, &sock->poller,
                    diag);
    if (rc) {
        close_sock(&sock->base);
        return rc;
    }
    *ret = &sock->base;
    return 0;
}

int net_uv_detach(struct sock *base)
{
    struct sock_uv *sock = sock_uv_from(base);
    int fd;

    CHECK(sock->state == SOCK_OPEN);
    fd = poller_take_fd(sock->poller);
    sock->poller = NULL;
    close_sock(base);
    return fd;
}

/* Closes the socket at once and frees it. Bytes that were not read are lost. */
static void close_sock(struct sock *base)
{
    struct sock_uv *sock = sock_uv_from(base);

    timer_stop(&sock->kick);
    poller_close(sock->poller);
    net_fds_close(sock);
    connecting_free(sock->connecting);
    list_remove(&sock->link);
    sock->magic = 0;
    free(sock);
}

/* Notes the events to wait for. A socket that has failed reports that at the next turn. */
static void want(struct sock *base, unsigned events, const struct sock_handler *handler, void *user)
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
        net_uv_connect_progress(sock);
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
        net_uv_connect_progress(sock);
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

int net_uv_not_open(struct sock_uv *sock, struct diag *diag)
{
    if (sock->state == SOCK_FAILED) {
        return diag_copy(diag, &sock->connecting->failure);
    }
    return CAIRN_E_AGAIN;
}

int net_uv_lost(struct sock_uv *sock, int errnum, struct diag *diag)
{
    char name[64];

    peer_name(&sock->base, sizeof name, name);
    return diag_set(diag, CAIRN_E_CONNECTION_LOST, "connection to %s: %s", name, strerror(errnum));
}

/* Reads what is there, with the descriptors that come along. */
static int try_readv(struct sock *base, const struct iovec *iov, size_t count, size_t *ret_bytes,
                     struct diag *diag)
{
    struct sock_uv *sock = sock_uv_from(base);
    struct iovec clipped[IOV_COUNT_MAX];
    _Alignas(struct cmsghdr) char control[NET_CONTROL_BYTES];
    struct msghdr msg = {.msg_iov = clipped};
    ssize_t got;

    if (sock->state != SOCK_OPEN) {
        return net_uv_not_open(sock, diag);
    }
    msg.msg_iovlen = clip(iov, count, clipped);
    do {
        msg.msg_control = control;
        msg.msg_controllen = sizeof control;
        got = recvmsg(sock->poller->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK ? CAIRN_E_AGAIN
                                                       : net_uv_lost(sock, errno, diag);
    }
    net_fds_came(sock, &msg);
    if (got == 0) {
        return CAIRN_E_ENDED;
    }
    *ret_bytes = (size_t)got;
    return 0;
}

int net_uv_send(struct sock_uv *sock, const struct msghdr *msg, size_t *ret_bytes,
                struct diag *diag)
{
    struct iovec clipped[IOV_COUNT_MAX];
    ssize_t sent;

    if (sock->state != SOCK_OPEN) {
        return net_uv_not_open(sock, diag);
    }
    struct msghdr ours = *msg;
    ours.msg_iovlen = clip(msg->msg_iov, msg->msg_iovlen, clipped);
    ours.msg_iov = clipped;
    do {
        sent = sendmsg(sock->poller->fd, &ours, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) {
        return errno == EAGAIN || errno == EWOULDBLOCK ? CAIRN_E_AGAIN
                                                       : net_uv_lost(sock, errno, diag);
    }
    *ret_bytes = (size_t)sent;
    return 0;
}

static int try_writev(struct sock *base, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = count};

    return net_uv_send(sock_uv_from(base), &msg, ret_bytes, diag);
}

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

static bool peer_uid(struct sock *base, uint32_t *ret)
{
    struct ucred cred;

    if (!get_cred(sock_uv_from(base), &cred)) {
        return false;
    }
    *ret = cred.uid;
    return true;
}

/* Names the peer for logs: address and port, or process and user. */
static void peer_name(struct sock *base, size_t bytes, char *ret)
{
    struct sock_uv *sock = sock_uv_from(base);
    struct sockaddr_storage peer;
    char text[INET6_ADDRSTRLEN] = "?";

    if (sock->connecting) {
        net_addr_format(&sock->connecting->addr, bytes, ret);
    } else if (!get_peer(sock, &peer)) {
        snprintf(ret, bytes, "a peer that is gone");
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
static bool is_loopback(struct sock *base)
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

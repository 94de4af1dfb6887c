/* SPDX-License-Identifier: Apache-2.0
 *
 * net: byte-stream sockets without callbacks per byte: try to read or write now, say what to wait
 * for, be told when it is ready. net_uv.c is TCP and Unix sockets over uv_poll with our own recvmsg
 * and sendmsg; the simulator has an in-memory one. One loop's thread only.
 */
#ifndef CAIRN_ENV_NET_H
#define CAIRN_ENV_NET_H

#include "loop.h"

#include <sys/uio.h>

struct net;
struct sock;
struct listener;

enum net_family { NET_TCP, NET_UNIX };

struct net_addr {
    enum net_family family;
    char host[256]; /* TCP: name, IPv4 or IPv6 literal without brackets; Unix: path */
    uint16_t port;  /* TCP; 0 when listening: any free one */
};

enum sock_events { SOCK_READ = 1u << 0, SOCK_WRITE = 1u << 1 };

/* on_ready: some of the wanted events are there (also on error or hang-up: the next try tells).
 * After connect, the first SOCK_WRITE means connected; a failed connect shows at the first try. */
struct sock_handler {
    void (*on_ready)(void *user, unsigned events);
};

struct file_span {
    int fd; /* borrowed for the call */
    uint64_t at;
    size_t bytes; /* > 0; all of them are there */
};

struct net_ops {
    /* Starts to connect. Names are resolved on a helper thread. */
    int (*connect)(struct net *net, const struct net_addr *addr, struct sock **ret,
                   struct diag *diag);
    /* on_accept owns the socket that it gets. ret_addr (may be NULL): the bound address, real port.
     * A Unix path left by a dead daemon is replaced; one in use is BUSY. Mode 0600 unless mode
     * says. */
    int (*listen)(struct net *net, const struct net_addr *addr, unsigned mode,
                  void (*on_accept)(void *user, struct sock *sock), void *user,
                  struct listener **ret, struct net_addr *ret_addr, struct diag *diag);
    void (*listener_close)(struct listener *listener);
    /* 0 and *ret_bytes > 0; AGAIN; ENDED (orderly end); CONNECTION_LOST or UNREACHABLE with diag.
     * At most 1 MiB a call. */
    int (*try_readv)(struct sock *sock, const struct iovec *iov, size_t count, size_t *ret_bytes,
                     struct diag *diag);
    int (*try_writev)(struct sock *sock, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag);
    /* What to wait for; stays in force until the next call (level-triggered); 0: nothing. */
    void (*want)(struct sock *sock, unsigned events, const struct sock_handler *handler,
                 void *user);
    /* Closes at once; no callback after it; the struct is freed later by net itself. Accepts NULL.
     */
    void (*close)(struct sock *sock);
    /* Who is at the other end, for logs: "tcp 127.0.0.1:5123", "unix pid 71 uid 0". */
    void (*peer_name)(struct sock *sock, size_t bytes, char *ret);
    bool (*is_loopback)(struct sock *sock);
    /* Descriptors travel on Unix sockets only. May they on this one? */
    bool (*passes_fds)(struct sock *sock);
    /* try_writev (without words), with a descriptor that goes with the first byte. fd stays the
     * caller's: the receiver gets one of its own. UNSUPPORTED where none can pass. */
    int (*try_writev_fd)(struct sock *sock, const struct iovec *iov, size_t count, int fd,
                         size_t *ret_bytes);
    /* So many received descriptors may wait to be taken, at most NET_FDS_MAX; what comes beyond is
     * closed as it comes. 0, as it is at first: all. */
    void (*accept_fds)(struct sock *sock, unsigned most);
    /* The oldest that waits, with CLOEXEC, from now on the caller's; -1: none. It is there no later
     * than the byte that it was sent with. */
    int (*take_fd)(struct sock *sock);
    /* The user that the kernel says is at the other end. False: it does not know (TCP). */
    bool (*peer_uid)(struct sock *sock, uint32_t *ret);
    /* try_writev of bytes that lie in a file, without a copy in between: the peer reads what the
     * file holds when it reads. UNSUPPORTED, and nothing was sent: this socket, or this file,
     * cannot. */
    int (*try_send_file)(struct sock *sock, const struct file_span *span, size_t *ret_bytes,
                         struct diag *diag);
};

enum { NET_FDS_MAX = 4 };

struct net {
    const struct net_ops *ops;
};
struct sock { /* the start of every implementation's socket */
    struct net *net;
};
struct listener {
    struct net *net;
};

static inline int MUST_USE sock_try_readv(struct sock *s, const struct iovec *iov, size_t n,
                                          size_t *ret, struct diag *d)
{
    return s->net->ops->try_readv(s, iov, n, ret, d);
}
static inline int MUST_USE sock_try_writev(struct sock *s, const struct iovec *iov, size_t n,
                                           size_t *ret, struct diag *d)
{
    return s->net->ops->try_writev(s, iov, n, ret, d);
}
static inline bool sock_passes_fds(struct sock *s) { return s->net->ops->passes_fds(s); }
static inline int MUST_USE sock_try_writev_fd(struct sock *s, const struct iovec *iov, size_t n,
                                              int fd, size_t *ret)
{
    return s->net->ops->try_writev_fd(s, iov, n, fd, ret);
}
static inline int MUST_USE sock_try_send_file(struct sock *s, const struct file_span *span,
                                              size_t *ret, struct diag *d)
{
    return s->net->ops->try_send_file(s, span, ret, d);
}
static inline void sock_accept_fds(struct sock *s, unsigned most)
{
    s->net->ops->accept_fds(s, most);
}
static inline int sock_take_fd(struct sock *s) { return s->net->ops->take_fd(s); }
static inline void sock_want(struct sock *s, unsigned events, const struct sock_handler *h,
                             void *user)
{
    s->net->ops->want(s, events, h, user);
}
static inline void sock_close(struct sock *s)
{
    if (s) {
        s->net->ops->close(s);
    }
}
static inline void listener_close(struct listener *l)
{
    if (l) {
        l->net->ops->listener_close(l);
    }
}

static inline int MUST_USE net_connect(struct net *net, const struct net_addr *addr,
                                       struct sock **ret, struct diag *d)
{
    return net->ops->connect(net, addr, ret, d);
}
static inline void sock_peer_name(struct sock *s, size_t bytes, char *ret)
{
    s->net->ops->peer_name(s, bytes, ret);
}
static inline bool sock_peer_uid(struct sock *s, uint32_t *ret)
{
    return s->net->ops->peer_uid(s, ret);
}
static inline bool sock_is_loopback(struct sock *s) { return s->net->ops->is_loopback(s); }

/* "tcp:host:port", "host:port", "[::1]:port", "unix:/path"; INVALID with the reason. */
int MUST_USE net_addr_parse(const char *text, uint16_t default_port, struct net_addr *ret,
                            struct diag *diag);
void net_addr_format(const struct net_addr *addr, size_t bytes, char *ret);
/* True for 127.0.0.0/8, ::1, "localhost" and every Unix path. */
bool net_addr_is_local(const struct net_addr *addr);

/* --- the libuv form; loop must be a loop_uv ------------------------------------------------------
 */
int MUST_USE net_uv_new(struct loop *loop, struct net **ret, struct diag *diag);
/* Listeners and sockets must be closed; what still flushes (conn_close) is given its moment: the
 * loop turns for it, so it must not be running elsewhere. */
void net_uv_free(struct net *net);
/* Hands a connection to another loop's net: detach frees the sock and gives its descriptor (an
 * established connection only), adopt wraps one and owns it from then on, also when it fails. */
int net_uv_detach(struct sock *sock);
int MUST_USE net_uv_adopt(struct net *net, int fd, struct sock **ret, struct diag *diag);
/* In a forked child: closes every descriptor of this net. */
void net_uv_abandon(struct net *net);

#endif

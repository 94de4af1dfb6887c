/* SPDX-License-Identifier: Apache-2.0
 *
 * net: byte-stream sockets without a callback for each byte: try to read or write now, say what to
 * wait for, and be called when it is ready. net_uv.c has TCP and Unix sockets over uv_poll with its
 * own recvmsg and sendmsg; the simulator has sockets in memory. One loop's thread only.
 */
#ifndef CAIRN_ENV_NET_H
#define CAIRN_ENV_NET_H

#include "loop.h"

#include <sys/uio.h>

struct net;
struct sock;
struct listener;

enum net_family { NET_TCP, NET_UNIX };

enum { NET_UNIX_PATH_MAX = 107 }; /* bytes of a socket's path: sun_path without its NUL */

/* Where to connect to or to listen. */
struct net_addr {
    enum net_family family;
    char host[256]; /* TCP: name, IPv4 or IPv6 literal without brackets; Unix: path */
    uint16_t port;  /* TCP only; 0 when listening means any free port */
};

enum sock_events { SOCK_READ = 1u << 0, SOCK_WRITE = 1u << 1 };

/* on_ready is called when some of the wanted events hold, and also after an error or hang-up, which
 * the next try reports. After connect, the first SOCK_WRITE means that the socket is connected; a
 * failed connect is reported by the first try. */
struct sock_handler {
    void (*on_ready)(void *user, unsigned events);
};

/* Bytes of a file, to be sent by reference. */
struct file_span {
    int fd; /* borrowed for the call */
    uint64_t at;
    size_t bytes; /* > 0; the file has all of them */
};

/* The functions of a form of net; the inline functions below call them. */
struct net_ops {
    /* Starts to connect. A helper thread resolves names. */
    int (*connect)(struct net *net, const struct net_addr *addr, struct sock **ret,
                   struct diag *diag);
    /* Listens. on_accept owns the socket that it gets. ret_addr, which may be NULL, receives the
     * bound address with the real port. A Unix path that a dead daemon has left is replaced; one
     * that is in use is BUSY. The path gets this mode, or 0600 if mode is 0. */
    int (*listen)(struct net *net, const struct net_addr *addr, unsigned mode,
                  void (*on_accept)(void *user, struct sock *sock), void *user,
                  struct listener **ret, struct net_addr *ret_addr, struct diag *diag);
    void (*listener_close)(struct listener *listener);
    /* Returns 0 with *ret_bytes > 0, AGAIN, ENDED (the peer closed in order), or CONNECTION_LOST or
     * UNREACHABLE with a diag. Moves at most 1 MiB a call. */
    int (*try_readv)(struct sock *sock, const struct iovec *iov, size_t count, size_t *ret_bytes,
                     struct diag *diag);
    int (*try_writev)(struct sock *sock, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag);
    /* Sets the events to wait for, until the next call; 0 means none. The events are
     * level-triggered. */
    void (*want)(struct sock *sock, unsigned events, const struct sock_handler *handler,
                 void *user);
    /* Closes at once. No callback comes after it, and net itself frees the struct later. NULL is
     * allowed. */
    void (*close)(struct sock *sock);
    /* Names the other end for logs: "tcp 127.0.0.1:5123", "unix pid 71 uid 0". */
    void (*peer_name)(struct sock *sock, size_t bytes, char *ret);
    bool (*is_loopback)(struct sock *sock);
    /* Returns whether descriptors can pass; they travel on Unix sockets only. */
    bool (*passes_fds)(struct sock *sock);
    /* Does the same as try_writev (without a diag), with a descriptor that goes with the first
     * byte. fd stays the caller's, because the receiver gets one of its own. UNSUPPORTED if none
     * can pass. */
    int (*try_writev_fd)(struct sock *sock, const struct iovec *iov, size_t count, int fd,
                         size_t *ret_bytes);
    /* Sets how many received descriptors may wait to be taken, at most NET_FDS_MAX. Further ones
     * are closed as they arrive. At first the number is 0, so all are closed. */
    void (*accept_fds)(struct sock *sock, unsigned most);
    /* Returns the oldest waiting descriptor, which has CLOEXEC and is then the caller's, or -1 if
     * there is none. It is there no later than the byte that it was sent with. */
    int (*take_fd)(struct sock *sock);
    /* Gives the user that the kernel says is at the other end. Returns false if the kernel does not
     * know (TCP). */
    bool (*peer_uid)(struct sock *sock, uint32_t *ret);
    /* Does the same as try_writev for bytes that lie in a file, without a copy: the peer reads what
     * the file holds when it reads. UNSUPPORTED, with nothing sent, if this socket or file cannot
     * do it. */
    int (*try_send_file)(struct sock *sock, const struct file_span *span, size_t *ret_bytes,
                         struct diag *diag);
};

enum { NET_FDS_MAX = 4 };

struct net {
    const struct net_ops *ops;
};
struct sock { /* every implementation's socket begins with this */
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

/* Parses "tcp:host:port", "host:port", "[::1]:port" or "unix:/path". INVALID says what is wrong. */
int MUST_USE net_addr_parse(const char *text, uint16_t default_port, struct net_addr *ret,
                            struct diag *diag);
void net_addr_format(const struct net_addr *addr, size_t bytes, char *ret);
/* Returns true for 127.0.0.0/8, ::1, "localhost" and every Unix path. */
bool net_addr_is_local(const struct net_addr *addr);

/* --- the libuv form; loop must be a loop_uv ----------------------------------------------- */
int MUST_USE net_uv_new(struct loop *loop, struct net **ret, struct diag *diag);
/* Frees the net. Its listeners and sockets must be closed. Sockets that still flush (conn_close)
 * get a moment for that, in which the loop turns, so the loop must not be running elsewhere. */
void net_uv_free(struct net *net);
/* Wraps a connected descriptor, and owns it from then on, also when this fails. */
int MUST_USE net_uv_adopt(struct net *net, int fd, struct sock **ret, struct diag *diag);
/* Opens a listening TCP socket for a library that accepts by itself; *ret_fd is the caller's.
 * *ret_bound is the address with the real port. Errors are those of listen. */
int MUST_USE net_listen_fd(const struct net_addr *addr, int *ret_fd, struct net_addr *ret_bound,
                           struct diag *diag);
/* In a forked child: closes every descriptor of this net. */
void net_uv_abandon(struct net *net);

#endif

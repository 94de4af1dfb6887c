/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the libuv form of net share: poller (one descriptor that is watched), the
 * socket, the listener, the resolver. Everything belongs to the loop's thread; only the resolver's
 * helper threads run beside it (net_resolve.c).
 */
#ifndef CAIRN_ENV_NET_UV_PRIVATE_H
#define CAIRN_ENV_NET_UV_PRIVATE_H

#include "base/list.h"
#include "loop_uv.h"
#include "net.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/types.h>

/* --- one watched descriptor (net_poller.c) ------------------------------------------------ */

/* What a poller calls. is_broken says that the poll has stopped. */
struct poller_owner {
    void (*cb)(void *owner, unsigned events, bool is_broken);
    void *owner; /* NULL once closed */
};

/* One descriptor that uv_poll watches. It is freed in libuv's close callback. */
struct poller {
    uv_poll_t poll;
    int fd;
    unsigned events; /* what uv_poll waits for now */
    struct poller_owner on;
};

/* Makes a poller, which owns fd from then on, also when this fails. */
int MUST_USE poller_new(struct loop *loop, int fd, struct poller_owner on, struct poller **ret,
                        struct diag *diag);
void poller_set(struct poller *poller, unsigned events);
/* Closes fd at once; no callback comes any more. NULL is allowed. */
void poller_close(struct poller *poller);

/* --- where to connect to ------------------------------------------------------------------ */

enum { TARGETS_MAX = 8 };

struct target {
    struct sockaddr_storage addr;
    socklen_t bytes;
};

/* The addresses of one name, in the order in which they are tried. */
struct targets {
    struct target item[TARGETS_MAX];
    size_t count;
};

/* Fills the targets from a literal or a path, without a name service. NOT_FOUND, without a diag, if
 * the host is a name. */
int MUST_USE targets_from_literal(const struct net_addr *addr, struct targets *ret);
/* Fills the targets by getaddrinfo, which blocks. */
int MUST_USE targets_from_name(const struct net_addr *addr, bool is_passive, struct targets *ret,
                               struct diag *diag);

/* --- names (net_resolve.c) ---------------------------------------------------------------- */

struct resolve;

/* The look-ups of a net. `waiting` has those whose thread runs, `finished` those whose result is
 * not delivered yet. */
struct resolver {
    uv_async_t *wake; /* owned; closed and freed with the resolver */
    pthread_mutex_t lock;
    struct list waiting, finished; /* guarded by lock */
};

int MUST_USE resolver_init(struct resolver *resolver, struct loop *loop, struct diag *diag);
/* Frees the resolver. Look-ups that still run free themselves when they end. */
void resolver_fini(struct resolver *resolver);
/* Starts a look-up. cb is called once on the loop's thread, unless it is cancelled; targets are
 * valid only during the call. */
int MUST_USE resolve_start(struct resolver *resolver, const struct net_addr *addr,
                           void (*cb)(void *user, int code, const struct targets *targets,
                                      const struct diag *diag),
                           void *user, struct resolve **ret);
void resolve_cancel(struct resolve *resolve);

/* --- sockets ------------------------------------------------------------------------------ */

enum { NET_UV_MAGIC = 0x6e657475 };

/* The net over libuv, with everything that belongs to it. */
struct net_uv {
    struct net base;
    uint32_t magic;
    struct loop *loop;
    struct resolver resolver;
    struct list socks, listeners;
};

/* Received descriptors that were not taken yet (net_fds.c). */
struct fd_queue {
    int fd[NET_FDS_MAX];
    unsigned count, most;
};

enum sock_state { SOCK_RESOLVING, SOCK_CONNECTING, SOCK_OPEN, SOCK_FAILED };

struct sock_uv;

/* The state of a connect, until it succeeds or its failure was reported. */
struct connecting {
    /* Called when the socket is writable or broken, or when it is time for another try. */
    void (*on_progress)(struct sock_uv *sock);
    struct net_addr addr;
    struct targets targets;
    size_t next; /* the target to try next */
    struct resolve *resolve;
    struct diag failure;
};

/* A socket. Invariant: connecting is NULL exactly when the state is SOCK_OPEN, and then poller is
 * set. */
struct sock_uv {
    struct sock base;
    uint32_t magic;
    enum sock_state state;
    struct list link; /* in net_uv.socks */
    struct poller *poller;
    struct connecting *connecting; /* NULL when open */
    struct timer kick;             /* a retry of connect, or the report of a failed one */
    unsigned wants;
    const struct sock_handler *handler;
    void *user;
    struct fd_queue fds;
};

static inline struct net_uv *net_uv_from(struct net *base)
{
    struct net_uv *net = container_of(base, struct net_uv, base);

    CHECK(net->magic == NET_UV_MAGIC);
    return net;
}

/* --- sockets (sock_uv.c); the operations that net.h documents come last --------------------- */

/* Returns the socket whose base this is, and checks its magic. */
struct sock_uv *sock_uv_from(struct sock *sock);
/* Makes a socket in state OPEN; the caller sets the poller. Returns NULL if memory is short. */
struct sock_uv *sock_uv_new(struct net_uv *net);
void sock_uv_on_poll(void *owner, unsigned events, bool is_broken);
void sock_uv_watch(struct sock_uv *sock); /* makes the poller wait for what the state needs */
void connecting_free(struct connecting *connecting); /* NULL is allowed */
/* Sets socket options for speed. */
void net_tune(int fd, int family);
/* Return the error of a try on a socket that is not open (yet), and on one whose peer is gone. */
int MUST_USE sock_uv_not_open(struct sock_uv *sock, struct diag *diag);
int MUST_USE sock_uv_lost(struct sock_uv *sock, int errnum, struct diag *diag);

int MUST_USE sock_uv_try_readv(struct sock *base, const struct iovec *iov, size_t count,
                               size_t *ret_bytes, struct diag *diag);
int MUST_USE sock_uv_try_writev(struct sock *base, const struct iovec *iov, size_t count,
                                size_t *ret_bytes, struct diag *diag);
int MUST_USE sock_uv_try_writev_fd(struct sock *base, const struct iovec *iov, size_t count, int fd,
                                   size_t *ret_bytes);
void sock_uv_want(struct sock *base, unsigned events, const struct sock_handler *handler,
                  void *user);
void sock_uv_close(struct sock *base);
void sock_uv_peer_name(struct sock *base, size_t bytes, char *ret);
bool sock_uv_peer_uid(struct sock *base, uint32_t *ret);
bool sock_uv_is_loopback(struct sock *base);
bool sock_uv_can_pass_fd(struct sock *base);
void sock_uv_accept_fds(struct sock *base, unsigned most);
int sock_uv_take_fd(struct sock *base);

/* --- received descriptors (net_fds.c) ------------------------------------------------------- */

/* Room for more control data than we take, so that what arrives is closed by us. */
enum { NET_CONTROL_BYTES = 256 };

/* Takes or closes the descriptors that a recvmsg brought. */
void net_fds_came(struct fd_queue *queue, struct msghdr *msg);
void net_fds_close(struct fd_queue *queue);
/* Returns the oldest, which is the caller's then, or -1 if there is none. */
int net_fds_take(struct fd_queue *queue);

/* --- sending a file (net_file.c) ------------------------------------------------------------ */

/* Sends at most 1 MiB of the span. ret_bytes gets how much was sent. Returns AGAIN if the socket is
 * full, UNSUPPORTED if the kernel cannot send this file or the file ends before the span, or the
 * error of the connection. */
int MUST_USE net_uv_send_file(struct sock *base, const struct file_span *span, size_t *ret_bytes,
                              struct diag *diag);

/* --- connect and listen ------------------------------------------------------------------- */

int MUST_USE net_uv_connect(struct net *net, const struct net_addr *addr, struct sock **ret,
                            struct diag *diag);
int MUST_USE net_uv_listen(struct net *net, const struct net_addr *addr, unsigned mode,
                           void (*on_accept)(void *user, struct sock *sock), void *user,
                           struct listener **ret, struct net_addr *ret_addr, struct diag *diag);
void net_uv_listener_close(struct listener *listener);
void net_uv_listeners_abandon(struct net_uv *net);

#endif

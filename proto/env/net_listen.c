/* SPDX-License-Identifier: Apache-2.0
 *
 * Listening. Invariants: accept never spins (when the process has no descriptor left, a reserve
 * descriptor is given up to take and close the connection; if that fails too, listening pauses),
 * and a Unix path is removed only if it is a socket on which no process answers. Runs on the loop's
 * thread.
 */
#include "net_uv_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LISTENER_MAGIC = 0x6c737472, BACKLOG = 1024, ACCEPTS_A_TURN = 64, PAUSE_MS = 100 };

struct listener_uv {
    struct listener base;
    uint32_t magic;
    struct list link; /* in net_uv.listeners */
    struct poller *poller;
    /* Open on /dev/null, so that there is a descriptor to give up; -1 if there is none. */
    int reserve;
    struct timer pause;
    void (*on_accept)(void *user, struct sock *sock);
    void *user;
    bool is_unix, is_closing, in_accept;
    struct stat inode; /* of the Unix path that this listener made */
    char path[sizeof((struct net_addr *)NULL)->host];
};

static int open_listening(const struct net_addr *addr, unsigned mode, int *ret, struct diag *diag);
static int bind_unix(int fd, const struct target *target, const struct net_addr *addr,
                     unsigned mode, struct diag *diag);
static int remove_stale(const struct target *target, const char *path, struct diag *diag);
static void bound_address(int fd, const struct net_addr *addr, struct net_addr *ret);
static void on_listener_poll(void *owner, unsigned events, bool is_broken);
static void on_pause_over(struct timer *timer);

static void free_listener(struct listener_uv *listener)
{
    listener->magic = 0;
    free(listener);
}

static int open_reserve(void) { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

int net_uv_listen(struct net *base, const struct net_addr *addr, unsigned mode,
                  void (*on_accept)(void *user, struct sock *sock), void *user,
                  struct listener **ret, struct net_addr *ret_addr, struct diag *diag)
{
    struct net_uv *net = net_uv_from(base);
    struct listener_uv *listener;
    int fd = -1, rc;

    rc = open_listening(addr, mode ? mode : 0600, &fd, diag);
    if (rc) {
        return rc;
    }
    listener = calloc(1, sizeof *listener);
    if (!listener) {
        close(fd);
        return diag_no_memory(diag, "a listener");
    }
    rc = poller_new(net->loop, fd, (struct poller_owner){on_listener_poll, listener},
                    &listener->poller, diag);
    if (rc) {
        free(listener);
        return rc;
    }
    listener->base.net = base;
    listener->magic = LISTENER_MAGIC;
    listener->on_accept = on_accept;
    listener->user = user;
    listener->reserve = open_reserve();
    timer_init(&listener->pause, net->loop, on_pause_over);
    list_add_tail(&net->listeners, &listener->link);
    if (addr->family == NET_UNIX) {
        memcpy(listener->path, addr->host, sizeof listener->path);
        listener->is_unix = lstat(addr->host, &listener->inode) == 0;
    }
    if (ret_addr) {
        bound_address(fd, addr, ret_addr);
    }
    poller_set(listener->poller, SOCK_READ);
    *ret = &listener->base;
    return 0;
}

static struct listener_uv *from_listener(struct listener *base)
{
    struct listener_uv *listener = container_of(base, struct listener_uv, base);

    CHECK(listener->magic == LISTENER_MAGIC);
    return listener;
}

void net_uv_listener_close(struct listener *base)
{
    struct listener_uv *listener = from_listener(base);
    struct stat now;

    if (listener->is_unix && lstat(listener->path, &now) == 0 &&
        now.st_ino == listener->inode.st_ino && now.st_dev == listener->inode.st_dev) {
        unlink(listener
                   ->path); /* ours still, not a successor's; if it stays, it is stale, not wrong */
    }
    timer_stop(&listener->pause);
    poller_close(listener->poller);
    listener->poller = NULL;
    if (listener->reserve >= 0) {
        close(listener->reserve);
    }
    list_remove(&listener->link);
    listener->is_closing = true;
    if (!listener->in_accept) {
        free_listener(listener);
    }
}

void net_uv_listeners_abandon(struct net_uv *net)
{
    list_each (node, &net->listeners) {
        struct listener_uv *listener = list_item(node, struct listener_uv, link);
        if (listener->poller->fd >= 0) {
            close(listener->poller->fd);
            listener->poller->fd = -1;
        }
        if (listener->reserve >= 0) {
            close(listener->reserve);
            listener->reserve = -1;
        }
    }
}

/* --- opening --------------------------------------------------------------------------------- */

/* Fills the targets. An empty host means every interface. Names are looked up here, which blocks;
 * this is only the start of a daemon. */
static int listen_targets(const struct net_addr *addr, struct targets *ret, struct diag *diag)
{
    struct net_addr any = *addr;
    int rc;

    if (addr->family == NET_TCP && !addr->host[0]) {
        memcpy(any.host, "::", 3);
    }
    rc = targets_from_literal(&any, ret);
    return rc ? targets_from_name(addr, true, ret, diag) : 0;
}

/* Opens a listening socket on the first address, or on IPv4 if no host is given and the kernel has
 * no IPv6. */
static int open_listening(const struct net_addr *addr, unsigned mode, int *ret, struct diag *diag)
{
    struct targets targets = {.count = 0};
    const struct target *target = &targets.item[0];
    char name[sizeof addr->host + 16];
    int fd, one = 1, rc = listen_targets(addr, &targets, diag);

    if (rc) {
        return rc;
    }
    net_addr_format(addr, sizeof name, name);
    fd = socket(target->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 && errno == EAFNOSUPPORT && !addr->host[0]) { /* a kernel without IPv6 */
        struct net_addr v4 = {.family = NET_TCP, .host = "0.0.0.0", .port = addr->port};
        CHECK(targets_from_literal(&v4, &targets) == 0);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    }
    if (fd < 0) {
        return diag_errno(diag, errno, "cannot listen on %s", name);
    }
    net_tune(fd, target->addr.ss_family);
    if (addr->family == NET_UNIX) {
        rc = bind_unix(fd, target, addr, mode, diag);
    } else if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
               bind(fd, (const struct sockaddr *)&target->addr, target->bytes)) {
        rc = errno == EADDRINUSE
                 ? diag_set(diag, CAIRN_E_BUSY,
                            "cannot listen on %s, because another process uses this port", name)
                 : diag_errno(diag, errno, "cannot listen on %s", name);
    }
    if (!rc && listen(fd, BACKLOG)) {
        rc = errno == EADDRINUSE
                 ? diag_set(diag, CAIRN_E_BUSY,
                            "cannot listen on %s, because another process uses this port", name)
                 : diag_errno(diag, errno, "cannot listen on %s", name);
    }
    if (rc) {
        close(fd);
        return rc;
    }
    *ret = fd;
    return 0;
}

int net_listen_fd(const struct net_addr *addr, int *ret_fd, struct net_addr *ret_bound,
                  struct diag *diag)
{
    CHECK(addr->family == NET_TCP);
    int rc = open_listening(addr, 0, ret_fd, diag);
    if (rc == 0) {
        bound_address(*ret_fd, addr, ret_bound);
    }
    return rc;
}

/* Binds to the path with the given mode, and replaces a socket that a dead daemon has left. */
static int bind_unix(int fd, const struct target *target, const struct net_addr *addr,
                     unsigned mode, struct diag *diag)
{
    int rc = bind(fd, (const struct sockaddr *)&target->addr, target->bytes);

    if (rc && errno == EADDRINUSE) {
        rc = remove_stale(target, addr->host, diag);
        if (rc) {
            return rc;
        }
        rc = bind(fd, (const struct sockaddr *)&target->addr, target->bytes);
    }
    if (rc) {
        return diag_errno(diag, errno, "cannot listen on unix:%s", addr->host);
    }
    /* No client can connect before listen(), so the mode is never wider than asked for. */
    if (chmod(addr->host, (mode_t)mode)) {
        rc = diag_errno(diag, errno, "cannot listen on unix:%s with mode %o", addr->host, mode);
        unlink(addr->host); /* if the path stays, the next start finds it stale */
        return rc;
    }
    return 0;
}

/* Removes the path if it is a socket on which no process answers. BUSY if one does, EXISTS if it is
 * another kind of file. */
static int remove_stale(const struct target *target, const char *path, struct diag *diag)
{
    struct stat st;
    int probe, err;

    if (lstat(path, &st)) {
        return errno == ENOENT ? 0 : diag_errno(diag, errno, "cannot listen on unix:%s", path);
    }
    if (!S_ISSOCK(st.st_mode)) {
        return diag_set(diag, CAIRN_E_EXISTS,
                        "cannot listen on unix:%s, because a file is there that is not a socket; "
                        "remove it or choose another path",
                        path);
    }
    probe = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (probe < 0) {
        return diag_errno(diag, errno, "cannot listen on unix:%s", path);
    }
    err = connect(probe, (const struct sockaddr *)&target->addr, target->bytes) ? errno : 0;
    close(probe);
    if (err != ECONNREFUSED && err != ENOENT) {
        return diag_set(diag, CAIRN_E_BUSY,
                        "cannot listen on unix:%s, because another process listens there%s%s", path,
                        err ? ": " : "", err ? strerror(err) : "");
    }
    return unlink(path) && errno != ENOENT
               ? diag_errno(diag, errno, "cannot remove the stale unix:%s", path)
               : 0;
}

/* Gives the address of the listener, with the port that the kernel chose if 0 was asked for. */
static void bound_address(int fd, const struct net_addr *addr, struct net_addr *ret)
{
    struct sockaddr_storage bound = {0};
    socklen_t bytes = sizeof bound;

    *ret = *addr;
    CHECK(getsockname(fd, (struct sockaddr *)&bound, &bytes) == 0);
    if (bound.ss_family == AF_INET) {
        ret->port = ntohs(((const struct sockaddr_in *)(const void *)&bound)->sin_port);
    } else if (bound.ss_family == AF_INET6) {
        ret->port = ntohs(((const struct sockaddr_in6 *)(const void *)&bound)->sin6_port);
    }
}

/* --- accepting ------------------------------------------------------------------------------- */

enum accepted { ACCEPTED, ACCEPT_LATER, ACCEPT_NONE };

/* Called when no descriptor is left. Takes the connection with the reserve and closes it, so that
 * the peer learns of it and the listening socket does not stay ready. */
static enum accepted refuse_one(struct listener_uv *listener)
{
    int fd;

    if (listener->reserve < 0) {
        return ACCEPT_LATER;
    }
    close(listener->reserve);
    fd = accept4(listener->poller->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        close(fd);
    }
    listener->reserve = open_reserve();
    return fd >= 0 && listener->reserve >= 0 ? ACCEPTED : ACCEPT_LATER;
}

/* Accepts one connection and hands it to the owner. Says whether to go on, to stop, or to try again
 * later. */
static enum accepted accept_one(struct listener_uv *listener)
{
    struct sock *sock = NULL;
    int fd = accept4(listener->poller->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) {
        switch (errno) {
        case EAGAIN:
            return ACCEPT_NONE;
        case EMFILE:
        case ENFILE:
            return refuse_one(listener);
        case ENOMEM:
        case ENOBUFS:
            return ACCEPT_LATER;
        default:
            return ACCEPTED; /* this one is gone (ECONNABORTED and the network's errors); the next
                              */
        }
    }
    net_tune(fd, listener->is_unix ? AF_UNIX : AF_INET);
    if (net_uv_adopt(listener->base.net, fd, &sock, NULL)) {
        return ACCEPT_LATER; /* out of memory, and adopt has closed fd */
    }
    listener->on_accept(listener->user, sock);
    return ACCEPTED;
}

/* Accepts a bounded number of connections a turn, so that other sockets get theirs. */
static void on_listener_poll(void *owner, unsigned events, bool is_broken)
{
    struct listener_uv *listener = owner;
    enum accepted result = ACCEPTED;

    CHECK(listener->magic == LISTENER_MAGIC);
    (void)events;
    listener->in_accept = true;
    for (int i = 0; i < ACCEPTS_A_TURN && result == ACCEPTED && !listener->is_closing; i++) {
        result = accept_one(listener);
    }
    listener->in_accept = false;
    if (listener->is_closing) {
        free_listener(listener);
    } else if (result == ACCEPT_LATER || is_broken) {
        poller_set(listener->poller, 0);
        timer_start(&listener->pause, PAUSE_MS);
    }
}

static void on_pause_over(struct timer *timer)
{
    struct listener_uv *listener = container_of(timer, struct listener_uv, pause);

    if (listener->reserve < 0) {
        listener->reserve = open_reserve();
    }
    poller_set(listener->poller, SOCK_READ);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Connecting: names become addresses on a helper thread, then one address after the other is tried
 * until one answers. Invariant: a failure is kept and reported by the first try_readv or
 * try_writev, never inside connect, so that callers have one place where connections fail. The
 * loop's thread.
 */
#include "net_uv_private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG_RETRY_MS = 20 };

static void on_resolved(void *user, int code, const struct targets *targets,
                        const struct diag *diag);
static void on_progress(struct sock_uv *sock);
static void connect_next(struct sock_uv *sock);
static void fail(struct sock_uv *sock, int errnum);

int net_uv_connect(struct net *base, const struct net_addr *addr, struct sock **ret,
                   struct diag *diag)
{
    struct net_uv *net = net_uv_from(base);
    struct connecting *connecting = calloc(1, sizeof *connecting);
    struct sock_uv *sock = connecting ? sock_uv_new(net) : NULL;
    int rc;

    if (!sock) {
        free(connecting);
        return diag_no_memory(diag, "connecting");
    }
    connecting->addr = *addr;
    connecting->on_progress = on_progress;
    sock->connecting = connecting;
    rc = targets_from_literal(addr, &connecting->targets);
    if (rc == 0) {
        connect_next(sock);
    } else {
        sock->state = SOCK_RESOLVING;
        rc = resolve_start(&net->resolver, addr, on_resolved, sock, &connecting->resolve);
        if (rc) {
            diag_set(&connecting->failure, CAIRN_E_UNREACHABLE, "cannot look up %s: %s", addr->host,
                     err_text(rc));
            fail(sock, 0);
        }
    }
    *ret = &sock->base;
    return 0;
}

/* Called when the socket is writable or broken, or when it is time for another try. */
static void on_progress(struct sock_uv *sock)
{
    struct connecting *connecting = sock->connecting;
    int err = 0;
    socklen_t bytes = sizeof err;

    if (!sock->poller) {
        connect_next(sock);
        return;
    }
    if (getsockopt(sock->poller->fd, SOL_SOCKET, SO_ERROR, &err, &bytes)) {
        err = errno;
    }
    if (err) {
        poller_close(sock->poller);
        sock->poller = NULL;
        fail(sock, err);
        return;
    }
    sock->state = SOCK_OPEN;
    sock->connecting = NULL;
    connecting_free(connecting);
    sock_uv_watch(sock); /* still writable: the owner is told at the next turn */
}

/* Called when the name was looked up: tries the first address, or fails. */
static void on_resolved(void *user, int code, const struct targets *targets,
                        const struct diag *diag)
{
    struct sock_uv *sock = user;
    struct connecting *connecting = sock->connecting;

    connecting->resolve = NULL;
    if (code) {
        diag_copy(&connecting->failure, diag);
        fail(sock, 0);
        return;
    }
    connecting->targets = *targets;
    connect_next(sock);
}

/* Starts to connect to the next address. A failure goes on with the one after it. */
static void connect_next(struct sock_uv *sock)
{
    struct connecting *connecting = sock->connecting;
    const struct target *target = &connecting->targets.item[connecting->next];
    struct loop *loop = net_uv_from(sock->base.net)->loop;
    int fd, rc;

    CHECK(connecting->next < connecting->targets.count);
    sock->state = SOCK_CONNECTING;
    fd = socket(target->addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        fail(sock, errno);
        return;
    }
    net_tune(fd, target->addr.ss_family);
    rc = connect(fd, (const struct sockaddr *)&target->addr, target->bytes);
    if (rc && errno == EAGAIN) { /* a Unix listener whose backlog is full */
        close(fd);
        timer_start(&sock->kick, BACKLOG_RETRY_MS);
        return;
    }
    if (rc && errno != EINPROGRESS && errno != EINTR) {
        int err = errno;
        close(fd);
        fail(sock, err);
        return;
    }
    if (poller_new(loop, fd, (struct poller_owner){sock_uv_on_poll, sock}, &sock->poller,
                   &connecting->failure)) {
        fail(sock, 0);
        return;
    }
    sock_uv_watch(sock);
}

/* Goes on with the next address, at the next turn because no callback may come inside connect, or
 * ends. errnum 0 means that the failure is set already. */
static void fail(struct sock_uv *sock, int errnum)
{
    struct connecting *connecting = sock->connecting;
    char name[sizeof connecting->addr.host + 16];

    net_addr_format(&connecting->addr, sizeof name, name);
    if (errnum) {
        diag_set(&connecting->failure, CAIRN_E_UNREACHABLE, "cannot connect to %s: %s", name,
                 strerror(errnum));
    }
    connecting->failure.code = CAIRN_E_UNREACHABLE;
    connecting->next++;
    if (connecting->next < connecting->targets.count) {
        timer_start(&sock->kick, 0);
        return;
    }
    sock->state = SOCK_FAILED;
    if (sock->wants) {
        timer_start(&sock->kick, 0);
    }
}

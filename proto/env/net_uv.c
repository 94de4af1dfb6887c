/* SPDX-License-Identifier: Apache-2.0
 *
 * The libuv form of net: makes and ends it, and says which file does what of it. TCP and Unix
 * sockets are read and written with our own non-blocking recvmsg and sendmsg, because libuv's
 * streams cannot pass a memfd and would copy; uv_poll only says when. The loop's thread.
 */
#include "net_uv_private.h"

#include <unistd.h>

static const struct net_ops uv_ops = {
    net_uv_connect,      net_uv_listen,       net_uv_listener_close, sock_uv_try_readv,
    sock_uv_try_writev,  sock_uv_want,        sock_uv_close,         sock_uv_peer_name,
    sock_uv_is_loopback, sock_uv_can_pass_fd, sock_uv_try_writev_fd, sock_uv_accept_fds,
    sock_uv_take_fd,     sock_uv_peer_uid,    net_uv_send_file};

int net_uv_new(struct loop *loop, struct net **ret, struct diag *diag)
{
    struct net_uv *net = calloc(1, sizeof *net);
    int rc;

    if (!net) {
        return diag_no_memory(diag, "network");
    }
    rc = resolver_init(&net->resolver, loop, diag);
    if (rc) {
        free(net);
        return rc;
    }
    net->base.ops = &uv_ops;
    net->magic = NET_UV_MAGIC;
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
        net_fds_close(&sock->fds);
    }
    net_uv_listeners_abandon(net);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated form of net, and what the world does to it: partitions, cuts, deaths. Invariants:
 * no callback inside a call, none after close; reads and writes are partial by the seed; wake-ups
 * for nothing happen. One thread.
 */
#include "sim_conn.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    PARTIAL_ONE_IN = 4,
    AGAIN_ONE_IN = 16,
    SPURIOUS_ONE_IN = 16,
    NO_FILE_ONE_IN = 16, /* tries to send from a file that are refused */
    FILE_STEP_BYTES = 32 << 10,
    SYN_RETRY_MS = 200,
    CALL_BYTES_MAX = 1 << 20
};
enum { RESET_DELAY_MAX_NS = 50000000 };

struct sim_listener {
    struct listener base;
    struct list link; /* in sim_host.listeners */
    struct sim_host *host;
    struct net_addr addr;
    void (*on_accept)(void *user, struct sock *sock);
    void *user;
};

static struct sim_host *host_of_net(struct net *net)
{
    return container_of(net, struct sim_host, net);
}
static struct end *end_of(struct sock *sock) { return container_of(sock, struct end, base); }

static bool is_same_place(const struct sim_listener *listener, const struct net_addr *addr)
{
    if (listener->addr.family != addr->family || listener->addr.port != addr->port) {
        return false;
    }
    return strcmp(listener->addr.host, addr->host) == 0 ||
           (addr->family == NET_TCP && strcmp(listener->host->name, addr->host) == 0);
}

/* Returns the live listener at addr, or NULL. Sets *ret_is_silent if the host does not even refuse.
 */
static struct sim_listener *find_listener(struct sim *sim, const struct net_addr *addr,
                                          bool *ret_is_silent)
{
    *ret_is_silent = false;
    list_each (node, &sim->hosts) {
        struct sim_host *host = list_item(node, struct sim_host, link);

        if (strcmp(host->name, addr->host) == 0) {
            *ret_is_silent = host->is_dead && host->is_silent;
        }
        list_each (item, &host->listeners) {
            struct sim_listener *listener = list_item(item, struct sim_listener, link);

            if (!host->is_dead && is_same_place(listener, addr)) {
                return listener;
            }
        }
    }
    return NULL;
}

/* --- connecting and listening ----------------------------------------------------------------- */

static void on_connect(struct timer *timer)
{
    struct conn *conn = container_of(timer, struct conn, connect);
    struct sim *sim = conn->sim;
    struct sim_listener *listener;
    struct end *client = &conn->end[0];
    bool is_silent;

    if (conn->is_accepted) { /* the answer has come back */
        if (client->state == END_CONNECTING) {
            client->state = END_OPEN;
        }
        end_check(client);
        return;
    }
    listener = find_listener(sim, &conn->addr, &is_silent);
    bool sleeps = listener && listener->host->paused_until_ns > sim->now_ns;
    if ((!listener && is_silent) || sleeps ||
        (listener && (net_is_blocked(sim, client->host, listener->host) ||
                      net_is_blocked(sim, listener->host, client->host)))) {
        sim_schedule(sim, timer, (uint64_t)SYN_RETRY_MS * 1000000 + sim_conn_latency_ns(sim));
        return;
    }
    if (!listener) {
        sim_conn_fail(conn);
        return;
    }
    sim_conn_accept(conn, listener->host);
    sim_schedule(sim, timer, sim_conn_latency_ns(sim));
    listener->on_accept(listener->user, &conn->end[1].base);
}

static int connect_to(struct net *net, const struct net_addr *addr, struct sock **ret,
                      struct diag *diag)
{
    struct sim_host *host = host_of_net(net);
    struct conn *conn;

    (void)diag;
    conn = sim_conn_new(host, addr);
    timer_init(&conn->connect, &host->sim->loop, on_connect);
    if (host->is_dead) {
        sim_conn_fail(conn);
    } else {
        sim_schedule(host->sim, &conn->connect, sim_conn_latency_ns(host->sim));
    }
    *ret = &conn->end[0].base;
    return 0;
}

static int listen_on(struct net *net, const struct net_addr *addr, unsigned mode,
                     void (*on_accept)(void *user, struct sock *sock), void *user,
                     struct listener **ret, struct net_addr *ret_addr, struct diag *diag)
{
    struct sim_host *host = host_of_net(net);
    struct sim_listener *listener, *other;
    struct net_addr bound = *addr, probe;
    bool is_silent;

    (void)mode;
    if (host->is_dead) {
        return diag_set(diag, CAIRN_E_IO, "listen: the process is dead");
    }
    if (bound.family == NET_TCP && bound.port == 0) {
        bound.port = host->sim->next_port++;
    }
    probe = bound;
    if (probe.family == NET_TCP) { /* the same port on another host is free */
        memcpy(probe.host, host->name, sizeof host->name);
    }
    other = find_listener(host->sim, &probe, &is_silent);
    if (other) {
        return diag_set(diag, CAIRN_E_BUSY, "listen on %s: another process listens there",
                        bound.host);
    }
    listener = sim_alloc(sizeof *listener);
    listener->base.net = net;
    listener->host = host;
    listener->addr = bound;
    listener->on_accept = on_accept;
    listener->user = user;
    list_add_tail(&host->listeners, &listener->link);
    host->open_socks++;
    if (ret_addr) {
        *ret_addr = bound;
    }
    *ret = &listener->base;
    return 0;
}

static void close_listener(struct listener *base)
{
    struct sim_listener *listener = container_of(base, struct sim_listener, base);

    listener->host->open_socks--;
    list_remove(&listener->link);
    free(listener);
}

/* --- a socket's calls ------------------------------------------------------------------------- */

static int lost(const struct end *end, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_CONNECTION_LOST, "connection of %s: reset by the peer",
                    end->host->name);
}

static int check_open(const struct end *end, struct diag *diag)
{
    CHECK(!end->is_closed);
    switch (end->state) {
    case END_OPEN:
        return 0;
    case END_FAILED:
        return diag_set(diag, CAIRN_E_UNREACHABLE, "connect to %s: connection refused",
                        end->conn->addr.host);
    case END_NONE:
    case END_CONNECTING:
        break;
    }
    return CAIRN_E_AGAIN;
}

static size_t total_bytes(const struct iovec *iov, size_t count)
{
    size_t bytes = 0;

    for (size_t i = 0; i < count; i++) {
        bytes += iov[i].iov_len;
    }
    CHECK(bytes > 0);
    return bytes < CALL_BYTES_MAX ? bytes : CALL_BYTES_MAX;
}

/* Returns how many of `most` bytes a call moves. 0 stands for AGAIN. */
static size_t some_of(struct sim *sim, size_t most)
{
    if (most == 0 || sim_chance(sim, AGAIN_ONE_IN)) {
        return 0;
    }
    return sim_chance(sim, PARTIAL_ONE_IN) ? (size_t)sim_between(sim, 1, most) : most;
}

static int try_readv(struct sock *sock, const struct iovec *iov, size_t count, size_t *ret_bytes,
                     struct diag *diag)
{
    struct end *end = end_of(sock);
    struct conn *conn = end->conn;
    int from = 1 - end_idx(end), rc = check_open(end, diag);
    size_t unread = pipe_unread(&conn->pipe[from]), want, left;

    if (rc) {
        return rc;
    }
    if (end->host->is_dead || (!unread && end->is_lost)) {
        return lost(end, diag);
    }
    if (!unread && conn->pipe[from].has_ended) {
        return CAIRN_E_ENDED;
    }
    want = total_bytes(iov, count);
    left = want = some_of(conn->sim, want < unread ? want : unread);
    if (!want) {
        return CAIRN_E_AGAIN;
    }
    for (size_t i = 0; left; i++) {
        left -=
            pipe_read(conn, from, iov[i].iov_len < left ? iov[i].iov_len : left, iov[i].iov_base);
    }
    pipe_limit_fds(conn, from, end->fds_most);
    end_check(&conn->end[from]); /* there is room again */
    *ret_bytes = want;
    return 0;
}

static int try_writev(struct sock *sock, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag)
{
    struct end *end = end_of(sock);
    struct conn *conn = end->conn;
    int to = end_idx(end), rc = check_open(end, diag);
    size_t space = pipe_space(&conn->pipe[to]), want, left;

    if (rc) {
        return rc;
    }
    if (end->host->is_dead || end->is_lost) {
        return lost(end, diag);
    }
    want = total_bytes(iov, count);
    left = want = some_of(conn->sim, want < space ? want : space);
    if (!want) {
        return CAIRN_E_AGAIN;
    }
    for (size_t i = 0; left; i++) {
        CHECK(i < count);
        size_t bytes = iov[i].iov_len < left ? iov[i].iov_len : left;

        if (bytes) {
            pipe_write(conn, to, bytes, iov[i].iov_base);
            left -= bytes;
        }
    }
    pipe_send(conn, to);
    *ret_bytes = want;
    return 0;
}

static void want_events(struct sock *sock, unsigned events, const struct sock_handler *handler,
                        void *user)
{
    struct end *end = end_of(sock);

    CHECK(!end->is_closed);
    end->wants = events;
    end->handler = handler;
    end->user = user;
    end->is_spurious = end->is_spurious || (events && sim_chance(end->conn->sim, SPURIOUS_ONE_IN));
    end_check(end);
}

static void close_sock(struct sock *sock)
{
    struct end *end = end_of(sock);
    struct conn *conn = end->conn;
    int idx = end_idx(end);
    const struct pipe *in = &conn->pipe[1 - idx];

    CHECK(!end->is_closed);
    end->is_closed = true;
    end->host->open_socks--;
    sim_unschedule(conn->sim, &end->ready);
    if (idx == 0 && !conn->is_accepted) {
        sim_unschedule(conn->sim, &conn->connect);
    } else if (!end->is_lost && (pipe_unread(in) || in->segment_count)) {
        /* As Linux: a close with unread bytes resets, and may overtake what was sent. */
        sim_conn_reset(conn, idx, sim_chance(conn->sim, 2), sim_conn_latency_ns(conn->sim));
    } else if (!end->is_lost) {
        sim_conn_finish(conn, idx);
    }
    sim_conn_bury_if_done(conn);
}

static void peer_name(struct sock *sock, size_t bytes, char *ret)
{
    struct end *end = end_of(sock);
    const struct sim_host *peer = end->conn->end[1 - end_idx(end)].host;

    snprintf(ret, bytes, "sim %s", peer ? peer->name : end->conn->addr.host);
}

static bool is_loopback(struct sock *sock)
{
    (void)sock;
    return true; /* there is no TLS in the simulator, and loopback is where none is needed */
}

/* As on one host: whoever speaks over a "Unix socket" shares a machine. */
static bool passes_fds(struct sock *sock) { return end_of(sock)->conn->passes_fds; }

static int try_writev_fd(struct sock *sock, const struct iovec *iov, size_t count, int fd,
                         size_t *ret_bytes)
{
    struct end *end = end_of(sock);
    struct conn *conn = end->conn;
    struct pipe *pipe = &conn->pipe[end_idx(end)];
    uint64_t at = pipe->written;

    if (!passes_fds(sock)) {
        return CAIRN_E_UNSUPPORTED;
    }
    if (!pipe_write_fd(conn, end_idx(end), fd)) {
        return CAIRN_E_AGAIN;
    }
    int rc = try_writev(sock, iov, count, ret_bytes, NULL);
    if (rc && pipe->written == at) {
        close(pipe->fd[--pipe->fd_count].fd);
    }
    return rc;
}

/* Copied here, where the kernel would refer to the file until the peer reads; now and then refused.
 */
static int try_send_file(struct sock *sock, const struct file_span *span, size_t *ret_bytes,
                         struct diag *diag)
{
    struct end *end = end_of(sock);
    uint8_t bytes[FILE_STEP_BYTES];
    size_t want = span->bytes < sizeof bytes ? span->bytes : sizeof bytes;
    struct iovec iov = {.iov_base = bytes, .iov_len = want};

    if (sim_chance(end->conn->sim, NO_FILE_ONE_IN)) {
        return CAIRN_E_UNSUPPORTED;
    }
    CHECK(pread(span->fd, bytes, want, (off_t)span->at) == (ssize_t)want);
    int rc = try_writev(sock, &iov, 1, ret_bytes, diag);
    end->host->file_bytes += rc == 0 ? *ret_bytes : 0;
    return rc;
}

static void accept_fds(struct sock *sock, unsigned most) { end_of(sock)->fds_most = most; }

static int take_fd(struct sock *sock)
{
    struct end *end = end_of(sock);

    return pipe_take_fd(end->conn, 1 - end_idx(end));
}

static bool peer_uid(struct sock *sock, uint32_t *ret)
{
    (void)sock, (void)ret;
    return false; /* a host of the simulator has no users */
}

void sim_net_init(struct sim_host *host)
{
    static const struct net_ops ops = {connect_to,  listen_on,   close_listener, try_readv,
                                       try_writev,  want_events, close_sock,     peer_name,
                                       is_loopback, passes_fds,  try_writev_fd,  accept_fds,
                                       take_fd,     peer_uid,    try_send_file};

    host->net.ops = &ops;
    list_init(&host->listeners);
}

/* --- what the world does to it ---------------------------------------------------------------- */

void sim_net_set(struct sim *sim, const struct sim_net_options *options)
{
    sim->net = *options;
    sim->net.latency_min_us = options->latency_min_us ? options->latency_min_us : 20;
    sim->net.latency_max_us = options->latency_max_us ? options->latency_max_us : 2000;
}

static bool is_name(const char *name, const struct sim_host *host)
{
    return host && (!name || strcmp(name, host->name) == 0);
}

size_t sim_cut(struct sim *sim, const char *a, const char *b)
{
    size_t count = 0;

    list_each (node, &sim->conns) {
        struct conn *conn = list_item(node, struct conn, link);
        const struct sim_host *x = conn->end[0].host, *y = conn->end[1].host;

        if ((is_name(a, x) && is_name(b, y)) || (is_name(a, y) && is_name(b, x))) {
            for (int i = 0; i < 2; i++) {
                sim_conn_reset(conn, i, true, sim_below(sim, RESET_DELAY_MAX_NS));
            }
            count++;
        }
    }
    return count;
}

void sim_partition(struct sim *sim, const char *from, const char *to, bool on)
{
    struct sim_partition wanted = {{0}, {0}};
    size_t at = 0;

    snprintf(wanted.from, sizeof wanted.from, "%s", from ? from : "");
    snprintf(wanted.to, sizeof wanted.to, "%s", to ? to : "");
    while (at < sim->partition_count && memcmp(&sim->partitions[at], &wanted, sizeof wanted) != 0) {
        at++;
    }
    if (on && at == sim->partition_count) {
        CHECK(at < SIM_PARTITIONS_MAX);
        sim->partitions[sim->partition_count++] = wanted;
    } else if (!on && at < sim->partition_count) {
        sim->partitions[at] = sim->partitions[--sim->partition_count];
        list_each (node, &sim->conns) { /* stalls again where it is still cut */
            sim_conn_kick(list_item(node, struct conn, link));
        }
    }
}

void sim_net_kill(struct sim_host *host, enum sim_death death)
{
    list_each (node, &host->sim->conns) {
        struct conn *conn = list_item(node, struct conn, link);

        for (int i = 0; i < 2; i++) {
            struct end *end = &conn->end[i];

            if (end->host != host) {
                continue;
            }
            if (death == SIM_SILENT) {
                conn->pipe[i].is_silent = conn->pipe[1 - i].is_silent = true;
            } else if (!end->is_closed && conn->end[1 - i].host) {
                sim_conn_reset(conn, i, true, sim_below(host->sim, RESET_DELAY_MAX_NS));
            }
            if (end->state == END_CONNECTING) {
                end->state = END_FAILED;
                sim_unschedule(host->sim, &conn->connect);
            }
            end->is_lost = true;
            end_check(end);
        }
    }
}

void sim_net_bury(struct sim *sim)
{
    struct list *node;

    while ((node = list_pop(&sim->graveyard))) {
        sim_conn_free(list_item(node, struct conn, link));
    }
}

void sim_net_free_all(struct sim *sim)
{
    struct list *node;

    sim_net_bury(sim);
    while ((node = list_pop(&sim->conns))) {
        sim_conn_free(list_item(node, struct conn, link));
    }
    list_each (item, &sim->hosts) {
        struct sim_host *host = list_item(item, struct sim_host, link);

        while ((node = list_pop(&host->listeners))) {
            free(list_item(node, struct sim_listener, link));
        }
    }
}

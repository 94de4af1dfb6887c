/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections of the simulator. Invariants: bytes arrive in order, once, unchanged, after a seeded
 * delay, or the connection is lost and they never do; a pipe holds at most cap bytes; a connection
 * is freed between two events, when both owners have closed their ends.
 */
#include "sim_conn.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { READY_MAX_NS = 40000, BUFFER_MIN = 2048, BUFFER_MAX = 65536 };

static void on_arrival_0(struct timer *timer);
static void on_arrival_1(struct timer *timer);
static void on_ready_timer(struct timer *timer);

int end_idx(const struct end *end) { return end == &end->conn->end[1]; }

uint64_t sim_conn_latency_ns(struct sim *sim)
{
    return sim_between(sim, sim->net.latency_min_us, sim->net.latency_max_us) * 1000 + 1;
}

bool net_is_blocked(const struct sim *sim, const struct sim_host *from, const struct sim_host *to)
{
    for (size_t i = 0; i < sim->partition_count; i++) {
        const struct sim_partition *p = &sim->partitions[i];

        if ((!p->from[0] || strcmp(p->from, from->name) == 0) &&
            (!p->to[0] || strcmp(p->to, to->name) == 0)) {
            return true;
        }
    }
    return false;
}

struct conn *sim_conn_new(struct sim_host *host, const struct net_addr *addr)
{
    struct sim *sim = host->sim;
    struct conn *conn = sim_alloc(sizeof *conn);

    conn->sim = sim;
    conn->addr = *addr;
    conn->passes_fds = addr->family == NET_UNIX && !sim->net.no_fds;
    for (int i = 0; i < 2; i++) {
        conn->end[i].conn = conn;
        conn->end[i].is_closed = true;
        timer_init(&conn->end[i].ready, &sim->loop, on_ready_timer);
        conn->pipe[i].cap = sim->net.buffer_bytes
                                ? sim->net.buffer_bytes
                                : (size_t)sim_between(sim, BUFFER_MIN, BUFFER_MAX);
        timer_init(&conn->pipe[i].arrival, &sim->loop, i ? on_arrival_1 : on_arrival_0);
    }
    conn->end[0].base.net = &host->net;
    conn->end[0].host = host;
    conn->end[0].ready.loop = &host->loop;
    conn->end[0].state = END_CONNECTING;
    conn->end[0].is_closed = false;
    host->open_socks++;
    list_add_tail(&sim->conns, &conn->link);
    return conn;
}

void sim_conn_accept(struct conn *conn, struct sim_host *host)
{
    struct end *end = &conn->end[1];

    end->base.net = &host->net;
    end->host = host;
    end->ready.loop = &host->loop;
    end->state = END_OPEN;
    end->is_closed = false;
    host->open_socks++;
    conn->is_accepted = true;
}

void sim_conn_fail(struct conn *conn)
{
    conn->end[0].state = END_FAILED;
    end_check(&conn->end[0]);
}

void sim_conn_bury_if_done(struct conn *conn)
{
    if (!conn->end[0].is_closed || !conn->end[1].is_closed || conn->is_buried) {
        return;
    }
    conn->is_buried = true;
    sim_unschedule(conn->sim, &conn->connect);
    for (int i = 0; i < 2; i++) {
        sim_unschedule(conn->sim, &conn->end[i].ready);
        sim_unschedule(conn->sim, &conn->pipe[i].arrival);
    }
    list_remove(&conn->link);
    list_add_tail(&conn->sim->graveyard, &conn->link);
}

void sim_conn_free(struct conn *conn)
{
    for (int i = 0; i < 2; i++) {
        while (conn->pipe[i].fd_count > 0) {
            close(conn->pipe[i].fd[--conn->pipe[i].fd_count].fd);
        }
        free(conn->pipe[i].ring);
    }
    free(conn);
}

/* --- an end's readiness ----------------------------------------------------------------------- */

static unsigned ready_events(const struct end *end)
{
    const struct pipe *in = &end->conn->pipe[1 - end_idx(end)],
                      *out = &end->conn->pipe[end_idx(end)];

    switch (end->state) {
    case END_NONE:
    case END_CONNECTING:
        return 0;
    case END_FAILED:
        return SOCK_READ | SOCK_WRITE;
    case END_OPEN:
        break;
    }
    if (end->is_lost) {
        return SOCK_READ | SOCK_WRITE;
    }
    return (pipe_unread(in) || in->has_ended ? SOCK_READ : 0u) |
           (pipe_space(out) ? SOCK_WRITE : 0u);
}

void end_check(struct end *end)
{
    bool is_spurious = end->is_spurious && end->wants && end->state == END_OPEN;

    if (!end->is_closed && !end->ready.active &&
        (is_spurious || (ready_events(end) & end->wants))) {
        sim_schedule(end->conn->sim, &end->ready, sim_below(end->conn->sim, READY_MAX_NS));
    }
}

static void on_ready_timer(struct timer *timer)
{
    struct end *end = container_of(timer, struct end, ready);
    unsigned events = ready_events(end) & end->wants;

    if (end->is_spurious && end->state == END_OPEN) {
        events = end->wants; /* a wake-up for nothing, as epoll may give */
    }
    end->is_spurious = false;
    if (events) {
        end->handler->on_ready(end->user, events);
    }
    end_check(end); /* level-triggered; does nothing on a closed end */
}

/* --- pipes ------------------------------------------------------------------------------------ */

size_t pipe_space(const struct pipe *pipe)
{
    return pipe->cap - (size_t)(pipe->written - pipe->consumed);
}
size_t pipe_unread(const struct pipe *pipe) { return (size_t)(pipe->arrived - pipe->consumed); }

void pipe_write(struct conn *conn, int idx, size_t bytes, const void *data)
{
    struct pipe *pipe = &conn->pipe[idx];
    size_t at = (size_t)(pipe->written % pipe->cap),
           first = bytes < pipe->cap - at ? bytes : pipe->cap - at;

    CHECK(bytes <= pipe_space(pipe));
    if (!pipe->ring) {
        pipe->ring = sim_alloc(pipe->cap);
    }
    memcpy(pipe->ring + at, data, first);
    memcpy(pipe->ring, (const uint8_t *)data + first, bytes - first);
    pipe->written += bytes;
}

size_t pipe_read(struct conn *conn, int idx, size_t bytes, void *ret)
{
    struct pipe *pipe = &conn->pipe[idx];
    size_t at = (size_t)(pipe->consumed % pipe->cap), first;

    bytes = bytes < pipe_unread(pipe) ? bytes : pipe_unread(pipe);
    if (!bytes) {
        return 0;
    }
    first = bytes < pipe->cap - at ? bytes : pipe->cap - at;
    memcpy(ret, pipe->ring + at, first);
    memcpy((uint8_t *)ret + first, pipe->ring, bytes - first);
    pipe->consumed += bytes;
    return bytes;
}

bool pipe_write_fd(struct conn *conn, int idx, int fd)
{
    struct pipe *pipe = &conn->pipe[idx];
    int copy;

    if (pipe->fd_count == ARRAY_LEN(pipe->fd)) {
        return false;
    }
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    CHECK(copy >= 0);
    pipe->fd[pipe->fd_count++] = (struct pipe_fd){copy, pipe->written};
    return true;
}

static int take_fd_at(struct pipe *pipe, size_t at)
{
    int fd = pipe->fd[at].fd;

    memmove(&pipe->fd[at], &pipe->fd[at + 1], (--pipe->fd_count - at) * sizeof pipe->fd[0]);
    return fd;
}

int pipe_take_fd(struct conn *conn, int idx)
{
    struct pipe *pipe = &conn->pipe[idx];

    return pipe->fd_count > 0 && pipe->fd[0].at < pipe->consumed ? take_fd_at(pipe, 0) : -1;
}

void pipe_limit_fds(struct conn *conn, int idx, unsigned most)
{
    struct pipe *pipe = &conn->pipe[idx];

    while (pipe->fd_count > most && pipe->fd[most].at < pipe->consumed) {
        close(take_fd_at(pipe, most));
    }
}

static void push(struct conn *conn, int idx, struct segment segment)
{
    struct pipe *pipe = &conn->pipe[idx];
    struct segment *last = pipe->segment_count ? &pipe->segment[pipe->segment_count - 1] : NULL;

    if (last && segment.due_ns < last->due_ns) {
        segment.due_ns = last->due_ns; /* in order */
    }
    if (last && last->kind != SEGMENT_DATA) {
        return; /* nothing follows an end or a reset */
    }
    if (last && pipe->segment_count >= SEGMENTS_MAX - 1 && segment.kind == SEGMENT_DATA) {
        *last = segment;
    } else {
        CHECK(pipe->segment_count < SEGMENTS_MAX);
        pipe->segment[pipe->segment_count++] = segment;
    }
    if (!pipe->arrival.active && !pipe->is_stalled) {
        sim_schedule(conn->sim, &pipe->arrival, pipe->segment[0].due_ns - conn->sim->now_ns);
    }
}

void pipe_send(struct conn *conn, int idx)
{
    push(conn, idx,
         (struct segment){SEGMENT_DATA, conn->pipe[idx].written,
                          conn->sim->now_ns + sim_conn_latency_ns(conn->sim)});
}

void sim_conn_finish(struct conn *conn, int idx)
{
    push(conn, idx,
         (struct segment){SEGMENT_FIN, 0, conn->sim->now_ns + sim_conn_latency_ns(conn->sim)});
}

void sim_conn_reset(struct conn *conn, int idx, bool is_dropped, uint64_t delay_ns)
{
    struct pipe *pipe = &conn->pipe[idx];
    size_t count = pipe->segment_count;

    if (count && pipe->segment[count - 1].kind == SEGMENT_RESET) {
        return;
    }
    if (is_dropped) {
        sim_unschedule(conn->sim, &pipe->arrival);
        pipe->segment_count = 0;
        pipe->written = pipe->arrived;
        while (pipe->fd_count > 0 && pipe->fd[pipe->fd_count - 1].at >= pipe->written) {
            close(pipe->fd[--pipe->fd_count].fd);
        }
    }
    push(conn, idx, (struct segment){SEGMENT_RESET, 0, conn->sim->now_ns + delay_ns});
}

static void arrive(struct conn *conn, int idx, const struct segment *segment)
{
    struct pipe *pipe = &conn->pipe[idx];
    struct end *reader = &conn->end[1 - idx];

    switch (segment->kind) {
    case SEGMENT_DATA:
        pipe->arrived = segment->upto;
        if (reader->is_closed && !reader->is_lost) {
            sim_conn_reset(conn, 1 - idx, true,
                           sim_conn_latency_ns(conn->sim)); /* nobody is there any more */
        }
        break;
    case SEGMENT_FIN:
        pipe->has_ended = true;
        break;
    case SEGMENT_RESET:
        reader->is_lost = true;
        reader->state = END_OPEN;
        if (sim_chance(conn->sim, 2)) {
            pipe->consumed = pipe->arrived; /* what was not read yet may go with it */
        }
        break;
    }
}

static void on_arrival(struct conn *conn, int idx)
{
    struct pipe *pipe = &conn->pipe[idx];
    const struct sim_host *to = conn->end[1 - idx].host;
    size_t done = 0;

    if (pipe->is_silent || (to && net_is_blocked(conn->sim, conn->end[idx].host, to))) {
        pipe->is_stalled = true;
        return;
    }
    while (done < pipe->segment_count && pipe->segment[done].due_ns <= conn->sim->now_ns) {
        arrive(conn, idx, &pipe->segment[done++]);
    }
    pipe->segment_count -= done;
    memmove(pipe->segment, pipe->segment + done, pipe->segment_count * sizeof pipe->segment[0]);
    if (pipe->segment_count) {
        sim_schedule(conn->sim, &pipe->arrival, pipe->segment[0].due_ns - conn->sim->now_ns);
    }
    end_check(&conn->end[1 - idx]);
}

static void on_arrival_0(struct timer *timer)
{
    on_arrival(container_of(timer, struct conn, pipe[0].arrival), 0);
}
static void on_arrival_1(struct timer *timer)
{
    on_arrival(container_of(timer, struct conn, pipe[1].arrival), 1);
}

void sim_conn_kick(struct conn *conn)
{
    for (int i = 0; i < 2; i++) {
        struct pipe *pipe = &conn->pipe[i];

        if (pipe->is_stalled && !pipe->is_silent) {
            pipe->is_stalled = false;
            sim_schedule(conn->sim, &pipe->arrival, sim_conn_latency_ns(conn->sim));
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a framed connection: wake-ups, heartbeat, deadlines, failure and close. Invariants:
 * no callback inside a user's call; on_close comes at most once and last; the memory is freed in a
 * kick of its own, never while a caller may use it. The loop's thread.
 *   OPEN --fail--> FAILING --error sent, or 1 s--> OVER --conn_close--> CLOSING --kick--> freed
 *     \------over (lost, ended)------------------/                        /
 *      \-----conn_close--------------------------------------------------/
 */
#include "conn_private.h"

static void on_ready(void *user, unsigned events);
static void run(struct conn *conn, unsigned events);
static void watch(struct conn *conn);

static const struct sock_handler CONN_SOCK_HANDLER = {on_ready};

enum { QUEUE_HIGH_DEFAULT = 1 << 20, CONN_ASK_MS = 500 };

/* Frees the connection. Messages that are still queued are dropped, and their payloads given
 * back. */
static void destroy(struct conn *conn)
{
    timer_stop(&conn->first);
    timer_stop(&conn->beat);
    timer_stop(&conn->flush);
    conn_drop_queue(conn, true);
    conn_tell_lost(conn, CAIRN_E_CLOSED);
    conn->stream->ops->close(conn->stream);
    conn_reader_fini(conn);
    conn->magic = 0;
    free(conn);
}

/* Returns whether closing is complete. Flushes if that was asked for, then reads away what the peer
 * was still sending: closing a socket with unread bytes would make the kernel drop what we have
 * just written. */
static bool closing_is_done(struct conn *conn)
{
    if (!conn->linger || conn->flush_expired) {
        return true;
    }
    if (conn->flush_on_close) {
        struct diag ignored = DIAG_INIT;
        conn->out.blocked = false;
        if (conn_write_run(conn, &ignored) != 0) {
            return true;
        }
        if (!list_is_empty(&conn->out.queue)) {
            return false;
        }
    }
    size_t bytes = 0;
    int status = conn->stream->ops->try_writev(conn->stream, NULL, 0, &bytes, NULL);
    if (status != 0) {
        return status != CAIRN_E_AGAIN;
    }
    conn->discarding = true;
    status = conn_read_discard(conn, &bytes);
    return status != CAIRN_E_AGAIN || bytes == 0;
}

void conn_set_limits(struct conn *conn, uint32_t message_max, uint32_t payload_max)
{
    conn->options.message_max = message_max;
    conn->options.payload_max = payload_max;
}

void conn_set_heartbeat(struct conn *conn, uint32_t heartbeat_ms, uint32_t dead_after_ms)
{
    conn->options.heartbeat_ms = heartbeat_ms;
    conn->options.dead_after_ms = dead_after_ms;
    timer_stop(&conn->beat);
    if (heartbeat_ms > 0 && conn->phase == CONN_OPEN) {
        conn->in.alive_ms = loop_now_ms(conn->loop);
        timer_start(&conn->beat, heartbeat_ms);
    }
}

void conn_send_error(struct conn *conn, uint32_t stream, int code, const char *text)
{
    struct msg msg = {.type = MSG_ERROR, .u.error = {.code = code, .text = text}};
    conn_send_always(conn, stream, &msg);
}

static struct sock *fd_sock(const struct conn *conn)
{
    const struct stream_ops *ops = conn->stream->ops;
    return ops->fd_sock ? ops->fd_sock(conn->stream) : NULL;
}

bool conn_passes_fds(const struct conn *conn) { return fd_sock(conn) != NULL; }

void conn_accept_fds(struct conn *conn, unsigned most)
{
    struct sock *sock = fd_sock(conn);
    if (sock) {
        sock_accept_fds(sock, most);
    }
}

int conn_take_fd(struct conn *conn)
{
    struct sock *sock = fd_sock(conn);
    return sock ? sock_take_fd(sock) : -1;
}

size_t conn_queued_bytes(const struct conn *conn) { return conn->out.queued_bytes; }
uint64_t conn_sent_bytes(const struct conn *conn) { return conn->out.sent_bytes; }
uint64_t conn_held_bytes(const struct conn *conn)
{
    return conn->in.held_bytes + conn->out.queued_bytes;
}

void conn_peer_name(struct conn *conn, size_t bytes, char *ret)
{
    conn->stream->ops->peer_name(conn->stream, bytes, ret);
}

void conn_proven(struct conn *conn, size_t bytes, char *ret)
{
    CHECK(bytes > 0);
    ret[0] = '\0';
    if (conn->stream->ops->proven) {
        conn->stream->ops->proven(conn->stream, bytes, ret);
    }
}

void conn_close(struct conn *conn, bool flush)
{
    CHECK(conn->magic == CONN_MAGIC);
    CHECK(conn->phase != CONN_CLOSING);
    conn->flush_on_close = (flush && conn->phase == CONN_OPEN) || conn->phase == CONN_FAILING;
    conn->linger = conn->linger || conn->flush_on_close;
    conn->phase = CONN_CLOSING;
    if (conn->options.held_bytes != NULL) { /* the user's budget may be freed before this memory */
        *conn->options.held_bytes -= conn_held_bytes(conn);
        conn->options.held_bytes = NULL;
    }
    timer_stop(&conn->first);
    timer_stop(&conn->beat);
    if (conn->linger && !timer_is_active(&conn->flush)) {
        timer_start(&conn->flush, CONN_FLUSH_MS);
    }
    conn->stream->ops->want(conn->stream, 0, &CONN_SOCK_HANDLER, conn);
    conn_kick(conn);
}

void conn_kick(struct conn *conn)
{
    /* What happens inside our own callbacks is processed when they end. Closing needs a turn of its
     * own. */
    if (!conn->busy || conn->phase == CONN_CLOSING) {
        loop_post(conn->loop, &conn->kick);
    }
}

void conn_over(struct conn *conn, int status, const struct diag *diag)
{
    CHECK(status != 0);
    if (conn->phase != CONN_OPEN && conn->phase != CONN_FAILING) {
        return;
    }
    struct diag kept = {.code = status};
    if (diag != NULL && diag->code != 0) {
        kept = *diag;
    }
    conn->linger = conn->phase == CONN_FAILING && !conn->flush_expired;
    conn->phase = CONN_OVER;
    timer_stop(&conn->first);
    timer_stop(&conn->beat);
    timer_stop(&conn->flush);
    conn->stream->ops->want(conn->stream, 0, &CONN_SOCK_HANDLER, conn);
    conn_drop_queue(conn, true);
    conn_tell_lost(conn, CAIRN_E_CONNECTION_LOST);
    if (conn->phase == CONN_OVER) {
        conn->handler->on_close(conn->user, status, &kept);
    }
}

void conn_fail(struct conn *conn, uint32_t stream, int status, const struct diag *diag)
{
    if (conn->phase != CONN_OPEN) {
        return;
    }
    conn->status = status;
    conn->diag = (struct diag){.code = status};
    if (diag != NULL && diag->code != 0) {
        conn->diag = *diag;
    }
    conn->phase = CONN_FAILING;
    timer_stop(&conn->first);
    timer_stop(&conn->beat);
    timer_start(&conn->flush, CONN_FLUSH_MS);
    conn_drop_queue(conn, false);
    struct msg msg = {.type = MSG_ERROR,
                      .u.error = {.code = status, .text = diag_text(&conn->diag, status)}};
    int queued = conn_queue(conn, stream, &msg, NULL);
    conn_tell_lost(conn, CAIRN_E_CLOSED);
    if (queued != 0) {
        conn_over(conn, status,
                  &conn->diag); /* no memory for the ERROR; the reason still gets out here */
    }
}

static void on_ready(void *user, unsigned events)
{
    struct conn *conn = user;
    CHECK(conn->magic == CONN_MAGIC);
    run(conn, events);
}

/* Does what was put off to a turn of its own: the end of closing, or a wake-up. */
static void on_kick(struct post *post)
{
    struct conn *conn = container_of(post, struct conn, kick);
    CHECK(conn->magic == CONN_MAGIC);
    if (conn->phase == CONN_CLOSING) {
        conn->busy = true; /* done() of the outs that are still sent */
        bool done = closing_is_done(conn);
        conn->busy = false;
        if (done) {
            destroy(conn);
        } else {
            watch(conn);
        }
        return;
    }
    run(conn, conn->in.resumed ? SOCK_READ : 0);
}

/* Handles one wake-up: tells what was put off, reads, and writes what the answers queued. */
static void run(struct conn *conn, unsigned events)
{
    if (conn->phase == CONN_CLOSING) {
        loop_post(conn->loop, &conn->kick);
        return;
    }
    conn->busy = true;
    if (events & SOCK_WRITE) {
        conn->out.blocked = false;
    }
    conn_tell_lost(conn, CAIRN_E_CLOSED);
    if (conn->phase == CONN_OPEN && conn->status != 0) {
        conn_over(conn, conn->status, &conn->diag);
    }
    if (conn->phase == CONN_OPEN && (events & SOCK_READ)) {
        conn_read_run(conn);
    }
    if (conn->phase == CONN_OPEN || conn->phase == CONN_FAILING) {
        struct diag diag = DIAG_INIT;
        int status = conn_write_run(conn, &diag);
        /* The peer may have said why before it closed, by an ERROR or an alert of TLS. */
        if (status != 0 && conn->phase == CONN_OPEN) {
            conn_read_run(conn);
        }
        if (status != 0 && (conn->phase == CONN_OPEN || conn->phase == CONN_FAILING)) {
            conn_over(conn, conn->phase == CONN_FAILING ? conn->status : status,
                      conn->phase == CONN_FAILING ? &conn->diag : &diag);
        }
    }
    if (conn->phase == CONN_FAILING && list_is_empty(&conn->out.queue)) {
        conn_over(conn, conn->status, &conn->diag);
    }
    if (conn->phase == CONN_OPEN && conn->in.resumed) {
        loop_post(conn->loop, &conn->kick); /* reading was resumed behind the reading above */
    }
    conn->busy = false;
    watch(conn);
}

static void watch(struct conn *conn)
{
    unsigned events = 0;
    if (conn->phase == CONN_OPEN || conn->phase == CONN_FAILING) {
        events |= conn_may_read(conn) ? SOCK_READ : 0;
        events |= list_is_empty(&conn->out.queue) ? 0 : SOCK_WRITE;
    } else if (conn->phase == CONN_CLOSING && conn->linger) {
        events = conn->discarding ? SOCK_READ : SOCK_WRITE;
    }
    conn->stream->ops->want(conn->stream, events, &CONN_SOCK_HANDLER, conn);
}

static void on_first(struct timer *timer)
{
    struct conn *conn = container_of(timer, struct conn, first);
    struct diag diag = DIAG_INIT;
    conn_fail(conn, 0,
              diag_set(&diag, CAIRN_E_TIMED_OUT, "the peer sent no first message within %u ms",
                       conn->options.first_message_ms),
              &diag);
    run(conn, 0);
}

static bool is_silent(const struct conn *conn, uint64_t now_ms)
{
    uint32_t dead_ms = conn->options.dead_after_ms;
    return conn->phase == CONN_OPEN && dead_ms > 0 && conn_may_read(conn) &&
           now_ms >= conn->in.alive_ms + dead_ms;
}

/* Sends PING when nothing else is on its way. A peer is dead only if we have looked and nothing was
 * there, because our own loop may have stood still. */
static void on_beat(struct timer *timer)
{
    struct conn *conn = container_of(timer, struct conn, beat);
    if (conn->phase != CONN_OPEN) {
        return;
    }
    uint64_t now_ms = loop_now_ms(conn->loop);
    timer_start(&conn->beat, conn->options.heartbeat_ms);
    if (is_silent(conn, now_ms)) {
        run(conn, SOCK_READ);
    }
    if (is_silent(conn, now_ms)) {
        struct diag diag = DIAG_INIT;
        int status =
            diag_set(&diag, CAIRN_E_CONNECTION_LOST,
                     "the peer is taken for dead, because no byte came from it for %llu ms (the "
                     "limit is %u ms)",
                     (unsigned long long)(now_ms - conn->in.alive_ms), conn->options.dead_after_ms);
        conn_over(conn, status, &diag);
    }
    if (conn->phase == CONN_OPEN && list_is_empty(&conn->out.queue)) {
        struct msg ping = {.type = MSG_PING};
        conn_queue_automatic(conn, 0, &ping);
        run(conn, 0);
    }
}

uint64_t conn_silent_ms(struct conn *conn)
{
    uint64_t silent_ms = loop_now_ms(conn->loop) - conn->in.alive_ms;
    if (silent_ms >= CONN_ASK_MS && conn_may_read(conn) && list_is_empty(&conn->out.queue)) {
        struct msg ping = {.type = MSG_PING};
        conn_queue_automatic(conn, 0, &ping);
        conn_kick(conn);
    }
    return silent_ms;
}

static void on_flush(struct timer *timer)
{
    struct conn *conn = container_of(timer, struct conn, flush);
    conn->flush_expired = true;
    if (conn->phase == CONN_FAILING) {
        conn_over(conn, conn->status, &conn->diag);
    } else {
        loop_post(conn->loop, &conn->kick);
    }
}

int conn_new(struct loop *loop, struct stream *stream, const struct conn_options *options,
             const struct conn_handler *handler, void *user, struct conn **ret, struct diag *diag)
{
    CHECK(handler->on_message != NULL);
    CHECK(handler->on_payload != NULL);
    CHECK(handler->on_close != NULL);
    struct conn *conn = calloc(1, sizeof(*conn));
    if (conn == NULL) {
        stream->ops->close(stream);
        return diag_no_memory(diag, "a connection");
    }
    conn->magic = CONN_MAGIC;
    conn->loop = loop;
    conn->stream = stream;
    conn->options = *options;
    conn->handler = handler;
    conn->user = user;
    if (conn->options.queue_high_bytes == 0) {
        conn->options.queue_high_bytes = QUEUE_HIGH_DEFAULT;
        conn->options.queue_low_bytes = QUEUE_HIGH_DEFAULT / 2;
    }
    CHECK(conn->options.queue_low_bytes <= conn->options.queue_high_bytes);
    list_init(&conn->out.queue);
    list_init(&conn->out.lost);
    conn->out.next_sequence = 1;
    conn->kick.cb = on_kick;
    timer_init(&conn->first, loop, on_first);
    timer_init(&conn->beat, loop, on_beat);
    timer_init(&conn->flush, loop, on_flush);
    conn_reader_init(conn);
    if (options->first_message_ms > 0) {
        timer_start(&conn->first, options->first_message_ms);
    }
    conn_set_heartbeat(conn, options->heartbeat_ms, options->dead_after_ms);
    watch(conn);
    *ret = conn;
    return 0;
}

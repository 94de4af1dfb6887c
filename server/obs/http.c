/* SPDX-License-Identifier: Apache-2.0
 *
 * http: one connection goes through these states:
 *
 *      READING --whole--> WAITING --answer--> WRITING --> closed
 *         \--refused------------------------->  \--when there was more to read--> LINGERING
 *
 * READING, WRITING and LINGERING wait for the socket, and each has a deadline. WAITING waits for
 * the handler, which answers in bounded time, and does not look at the socket. If a connection with
 * unread bytes is closed, it is reset, and the peer may never see the answer; LINGERING prevents
 * that.
 */
#include "obs/http.h"

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER_BYTES_MAX = 2 << 20 };

enum http_phase { HTTP_READING, HTTP_WAITING, HTTP_WRITING, HTTP_LINGERING };

struct http_conn {
    struct list link;
    struct http *http;
    struct sock *sock;
    enum http_phase phase;
    struct timer timer;
    struct http_call call;
    size_t head_bytes, sent, lingered;
    struct buf out;
    char head[HTTP_HEAD_MAX];
};

struct http {
    struct http_options options;
    struct listener *listener;
    struct list conns;
    size_t conn_count;
};

static void conn_free(struct http_conn *conn)
{
    struct http *http = conn->http;
    CHECK(http->conn_count > 0);
    timer_stop(&conn->timer);
    sock_close(conn->sock);
    buf_fini(&conn->out);
    list_remove(&conn->link);
    http->conn_count--;
    free(conn);
}

static void answer(struct http_conn *conn, unsigned status, const char *content_type, size_t bytes,
                   const void *body);

static void refuse(struct http_conn *conn, unsigned status)
{
    char text[96];
    int used = snprintf(text, sizeof(text), "%u %s\n", status, http_status_text(status));
    CHECK(used > 0);
    CHECK((size_t)used < sizeof(text));
    answer(conn, status, "text/plain; charset=utf-8", (size_t)used, text);
}

/* Reads what has come of the head, and goes on when it is complete: to the handler, or to a
 * refusal. */
static void read_head(struct http_conn *conn)
{
    struct iovec room = {conn->head + conn->head_bytes, sizeof(conn->head) - conn->head_bytes};
    size_t got = 0;
    unsigned why = 400;
    CHECK(room.iov_len > 0); /* a full head was refused before */
    int status = sock_try_readv(conn->sock, &room, 1, &got, NULL);
    if (status == CAIRN_E_AGAIN) {
        return;
    }
    if (status != 0) {
        conn_free(conn);
        return;
    }
    CHECK(got <= room.iov_len);
    conn->head_bytes += got;
    switch (http_request_parse(conn->head_bytes, conn->head, &conn->call.request, &why)) {
    case HTTP_MORE:
        break;
    case HTTP_REFUSED:
        refuse(conn, why);
        break;
    case HTTP_WHOLE:
        CHECK(conn->call.request.path[0] == '/');
        conn->phase = HTTP_WAITING;
        timer_stop(&conn->timer);
        sock_want(conn->sock, 0, NULL, NULL);
        conn->http->options.handle(conn->http->options.user, &conn->call);
        break;
    }
}

/* Reads and drops what the peer still sends. Returns false if the connection is gone. */
static bool drop_rest(struct http_conn *conn)
{
    while (conn->lingered < HTTP_LINGER_BYTES) {
        struct iovec room = {conn->head, sizeof(conn->head)};
        size_t got = 0;
        int status = sock_try_readv(conn->sock, &room, 1, &got, NULL);
        if (status == CAIRN_E_AGAIN) {
            return true;
        }
        if (status != 0) {
            break;
        }
        conn->lingered += got;
    }
    conn_free(conn);
    return false;
}

static void on_ready(void *user, unsigned events);
static const struct sock_handler handler = {.on_ready = on_ready};

/* Writes the answer as far as the socket takes it. After a refusal the connection lingers, because
 * the peer may still be sending. */
static void write_answer(struct http_conn *conn)
{
    while (conn->sent < conn->out.bytes) {
        struct iovec rest = {conn->out.data + conn->sent, conn->out.bytes - conn->sent};
        size_t sent = 0;
        int status = sock_try_writev(conn->sock, &rest, 1, &sent, NULL);
        if (status == CAIRN_E_AGAIN) {
            return;
        }
        if (status != 0) {
            conn_free(conn);
            return;
        }
        CHECK(sent <= rest.iov_len);
        conn->sent += sent;
    }
    if (conn->call.request.path[0] != '\0') {
        conn_free(conn); /* a good request has nothing left to read */
        return;
    }
    conn->phase = HTTP_LINGERING;
    timer_start(&conn->timer, HTTP_LINGER_MS);
    if (drop_rest(conn)) {
        sock_want(conn->sock, SOCK_READ, &handler, conn);
    }
}

/* Called when the socket is ready for what the present state waits for. */
static void on_ready(void *user, unsigned events)
{
    struct http_conn *conn = user;
    (void)events;
    switch (conn->phase) {
    case HTTP_READING:
        read_head(conn);
        break;
    case HTTP_WRITING:
        write_answer(conn);
        break;
    case HTTP_LINGERING:
        (void)drop_rest(conn);
        break;
    case HTTP_WAITING:
        CHECK(false); /* this state waits for no event */
        break;
    }
}

static void on_deadline(struct timer *timer)
{
    struct http_conn *conn = container_of(timer, struct http_conn, timer);
    CHECK(conn->phase != HTTP_WAITING); /* the handler's own patience bounds that */
    if (conn->phase == HTTP_READING && conn->head_bytes > 0) {
        refuse(conn, 408);
    } else {
        conn_free(conn);
    }
}

/* Makes the head and body of an answer, and starts to write it. */
static void answer(struct http_conn *conn, unsigned status, const char *content_type, size_t bytes,
                   const void *body)
{
    CHECK(conn->out.bytes == 0); /* one answer to a connection */
    buf_printf(&conn->out,
               "HTTP/1.1 %u %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n"
               "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n%s\r\n",
               status, http_status_text(status), content_type, bytes,
               status == 405 ? "Allow: GET, HEAD\r\n" : "");
    if (!conn->call.request.is_head) {
        buf_put(&conn->out, bytes, body);
    }
    if (buf_status(&conn->out) != 0) {
        LOG(LOG_WARN, "http", "the daemon has no memory for an answer");
        conn_free(conn);
        return;
    }
    conn->phase = HTTP_WRITING;
    timer_start(&conn->timer, HTTP_ANSWER_MS);
    sock_want(conn->sock, SOCK_WRITE, &handler, conn);
}

void http_answer(struct http_call *call, unsigned status, const char *content_type, size_t bytes,
                 const void *body)
{
    struct http_conn *conn = container_of(call, struct http_conn, call);
    CHECK(conn->phase == HTTP_WAITING);
    answer(conn, status, content_type, bytes, body);
}

/* Accepts a connection, or closes it if there are too many. */
static void on_accept(void *user, struct sock *sock)
{
    struct http *http = user;
    struct http_conn *conn = http->conn_count < HTTP_CONNS_MAX ? calloc(1, sizeof(*conn)) : NULL;
    if (!conn) {
        sock_close(sock);
        return;
    }
    CHECK(http->conn_count < HTTP_CONNS_MAX);
    conn->http = http;
    conn->sock = sock;
    buf_init(&conn->out, ANSWER_BYTES_MAX);
    list_init(&conn->call.link);
    list_add_tail(&http->conns, &conn->link);
    http->conn_count++;
    timer_init(&conn->timer, http->options.loop, on_deadline);
    timer_start(&conn->timer, HTTP_REQUEST_MS);
    sock_want(sock, SOCK_READ, &handler, conn);
}

int http_new(const struct http_options *options, struct http **ret, struct net_addr *ret_addr,
             struct diag *diag)
{
    CHECK(options->handle != NULL);
    CHECK(options->addr->family == NET_TCP);
    struct http *http = calloc(1, sizeof(*http));
    if (!http) {
        return diag_no_memory(diag, "an HTTP listener");
    }
    http->options = *options;
    list_init(&http->conns);
    int status = options->net->ops->listen(options->net, options->addr, 0, on_accept, http,
                                           &http->listener, ret_addr, diag);
    if (status != 0) {
        free(http);
        return status;
    }
    *ret = http;
    return 0;
}

void http_free(struct http *http)
{
    if (!http) {
        return;
    }
    listener_close(http->listener);
    list_each_safe (node, &http->conns) {
        conn_free(list_item(node, struct http_conn, link));
    }
    free(http);
}

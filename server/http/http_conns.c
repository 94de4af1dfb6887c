/* SPDX-License-Identifier: Apache-2.0
 *
 * http_conns: see http_conns.h. shutdown() makes libmicrohttpd see the end of the connection and
 * close it in its own thread; the descriptor stays valid until then, because it is removed here
 * first.
 */
#include "http/http_conns.h"

#include <stdlib.h>
#include <sys/socket.h>

void http_conns_init(struct http_conns *conns)
{
    *conns = (struct http_conns){.count = 0};
    list_init(&conns->all);
    CHECK(pthread_mutex_init(&conns->lock, NULL) == 0); /* needs no resource but its memory */
}

void http_conns_fini(struct http_conns *conns)
{
    CHECK(conns->count == 0);
    CHECK(list_is_empty(&conns->all));
    pthread_mutex_destroy(&conns->lock);
}

/* Shuts down the connection that has waited longest for a request. One that has asked before is no
 * better than one that never did: else 512 peers that ask once would keep all others out. */
static void make_room(struct http_conns *conns)
{
    struct http_conn *longest = NULL;
    list_each (node, &conns->all) {
        struct http_conn *conn = list_item(node, struct http_conn, link);
        if (!conn->is_busy && conn->fd >= 0 && (!longest || conn->since_ms < longest->since_ms)) {
            longest = conn;
        }
    }
    if (longest) {
        shutdown(longest->fd, SHUT_RDWR);
        longest->fd = -1; /* not twice */
    }
}

struct http_conn *http_conns_add(struct http_conns *conns, int fd, unsigned most, uint64_t now_ms)
{
    struct http_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) {
        return NULL;
    }
    CHECK(fd >= 0);
    conn->fd = fd;
    conn->since_ms = now_ms;
    pthread_mutex_lock(&conns->lock);
    if (++conns->count >= most) {
        make_room(conns);
    }
    list_add_tail(&conns->all, &conn->link);
    pthread_mutex_unlock(&conns->lock);
    return conn;
}

void http_conns_step(struct http_conns *conns, struct http_conn *conn, bool is_busy,
                     uint64_t now_ms)
{
    pthread_mutex_lock(&conns->lock);
    conn->since_ms = now_ms;
    conn->is_busy = is_busy;
    pthread_mutex_unlock(&conns->lock);
}

void http_conns_remove(struct http_conns *conns, struct http_conn *conn)
{
    if (!conn) {
        return;
    }
    pthread_mutex_lock(&conns->lock);
    CHECK(conns->count > 0);
    conns->count--;
    list_remove(&conn->link);
    pthread_mutex_unlock(&conns->lock);
    free(conn);
}

void http_conns_reap(struct http_conns *conns, uint64_t before_ms)
{
    pthread_mutex_lock(&conns->lock);
    list_each (node, &conns->all) {
        struct http_conn *conn = list_item(node, struct http_conn, link);
        if (conn->since_ms < before_ms && conn->fd >= 0) {
            shutdown(conn->fd, SHUT_RDWR);
            conn->fd = -1;
        }
    }
    pthread_mutex_unlock(&conns->lock);
}

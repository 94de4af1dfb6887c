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
    pthread_mutex_destroy(&conns->lock);
}

struct http_conn *http_conns_add(struct http_conns *conns, int fd, unsigned most, uint64_t now_ms)
{
    struct http_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) {
        return NULL;
    }
    conn->fd = fd;
    conn->since_ms = now_ms;
    pthread_mutex_lock(&conns->lock);
    list_add_tail(&conns->all, &conn->link);
    if (++conns->count >= most) {
        list_each (node, &conns->all) {
            struct http_conn *oldest = list_item(node, struct http_conn, link);
            if (!oldest->has_asked && oldest->fd >= 0) {
                shutdown(oldest->fd, SHUT_RDWR);
                oldest->fd = -1; /* not twice */
                break;
            }
        }
    }
    pthread_mutex_unlock(&conns->lock);
    return conn;
}

void http_conns_step(struct http_conns *conns, struct http_conn *conn, uint64_t now_ms)
{
    pthread_mutex_lock(&conns->lock);
    conn->since_ms = now_ms;
    conn->has_asked = true;
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

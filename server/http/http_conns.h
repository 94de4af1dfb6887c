/* SPDX-License-Identifier: Apache-2.0
 *
 * http_conns: the connections of HTTP's thread, with the time at which each began what it is doing.
 * libmicrohttpd counts silence only, which a peer that sends a byte now and then never keeps; here
 * is the deadline that it cannot move. A mutex guards the list, because the loop's timer closes
 * what is too late.
 */
#ifndef CAIRN_HTTP_HTTP_CONNS_H
#define CAIRN_HTTP_HTTP_CONNS_H

#include "base/list.h"

#include <pthread.h>
#include <stdint.h>

struct http_conn {
    struct list link;
    int fd;
    uint64_t since_ms;
    bool is_busy; /* a whole request has come, and its answer was not sent yet */
};

struct http_conns {
    pthread_mutex_t lock;
    struct list all; /* http_conn.link, the oldest first */
    unsigned count;
};

void http_conns_init(struct http_conns *conns);
void http_conns_fini(struct http_conns *conns);
/* Adds a connection. If there are `most` then, the one that has waited longest for a request is
 * shut down to make room. Returns NULL if there is no memory. */
struct http_conn *http_conns_add(struct http_conns *conns, int fd, unsigned most, uint64_t now_ms);
/* Notes that the connection begins something new: an answer (it is busy), or waiting for a request.
 */
void http_conns_step(struct http_conns *conns, struct http_conn *conn, bool is_busy,
                     uint64_t now_ms);
/* Called before the descriptor is closed. Accepts NULL. */
void http_conns_remove(struct http_conns *conns, struct http_conn *conn);
/* Shuts down each connection that has been at the same thing since before that time. */
void http_conns_reap(struct http_conns *conns, uint64_t before_ms);

#endif

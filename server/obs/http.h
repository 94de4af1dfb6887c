/* SPDX-License-Identifier: Apache-2.0
 *
 * http: a small HTTP/1.1 server for short answers: GET and HEAD, one request per connection.
 * Connections, bytes and time are bounded, whoever connects. Plaintext. One loop's thread.
 */
#ifndef CAIRN_OBS_HTTP_H
#define CAIRN_OBS_HTTP_H

#include "env/net.h"
#include "obs/http_request.h"

enum {
    HTTP_CONNS_MAX = 32,     /* further connections are closed as they come */
    HTTP_REQUEST_MS = 10000, /* from accept to the end of the head */
    HTTP_ANSWER_MS = 30000,  /* for the peer to take the answer */
    /* How long the input of a refused peer is read, so that it sees the answer. */
    HTTP_LINGER_MS = 1000,
    HTTP_LINGER_BYTES = 65536, /* and the most bytes that are read then */
};

struct http;

/* A request that waits for its answer. */
struct http_call {
    struct list link; /* for the handler's use */
    struct http_request request;
};

struct http_options {
    struct loop *loop;
    struct net *net;
    const struct net_addr *addr; /* TCP */
    /* Called for each request. The handler answers with http_answer(), now or later. */
    void (*handle)(void *user, struct http_call *call);
    void *user;
};

/* Binds and listens. *ret_addr is the address as bound. */
int MUST_USE http_new(const struct http_options *options, struct http **ret,
                      struct net_addr *ret_addr, struct diag *diag);
/* Answers a call and ends it, even if the peer has gone meanwhile. Copies the body. */
void http_answer(struct http_call *call, unsigned status, const char *content_type, size_t bytes,
                 const void *body);
/* Ends every connection. Calls that wait are freed; the handler must have dropped them before. */
void http_free(struct http *http);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * http: a small HTTP/1.1 server for short answers: GET and HEAD, one request a connection, bounded
 * in connections, bytes and time whoever connects. Plaintext. One loop's thread.
 */
#ifndef CAIRN_OBS_HTTP_H
#define CAIRN_OBS_HTTP_H

#include "env/net.h"
#include "obs/http_request.h"

enum {
    HTTP_CONNS_MAX = 32,       /* more are closed as they come */
    HTTP_REQUEST_MS = 10000,   /* from accept to the whole head */
    HTTP_ANSWER_MS = 30000,    /* for the peer to take the answer */
    HTTP_LINGER_MS = 1000,     /* to read what a refused peer still sends, so that it sees why */
    HTTP_LINGER_BYTES = 65536, /* and at most so much of it */
};

struct http;

/* A request that waits for its answer. */
struct http_call {
    struct list link; /* the handler's */
    struct http_request request;
};

struct http_options {
    struct loop *loop;
    struct net *net;
    const struct net_addr *addr; /* TCP */
    /* Answers, now or later, with http_answer. */
    void (*handle)(void *user, struct http_call *call);
    void *user;
};

/* *ret_addr: as bound. */
int MUST_USE http_new(const struct http_options *options, struct http **ret,
                      struct net_addr *ret_addr, struct diag *diag);
/* Copies the body. Ends the call, also when the peer has gone meanwhile. */
void http_answer(struct http_call *call, unsigned status, const char *content_type, size_t bytes,
                 const void *body);
/* Every connection ends; calls that wait are gone: the handler has forgotten them before. */
void http_free(struct http *http);

#endif

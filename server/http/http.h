/* SPDX-License-Identifier: Apache-2.0
 *
 * http: an HTTP server that only reads, over libmicrohttpd. One thread of its own does all sockets,
 * TLS and parsing, so that neither a slow peer nor two hundred of them cost the loop anything. What
 * needs the daemon's data is asked of the loop through a mailbox (http_mailbox.h), once for all
 * peers that ask the same at the same time; what never changes is answered by the thread itself.
 *
 * There are at most HTTP_CONNS_MAX connections, with 16 KiB of memory each. A request has 30 s to
 * come and its answer 30 s to be taken. A request has no body. The answers that are being sent take
 * at most HTTP_ALIVE_BYTES_MAX.
 */
#ifndef CAIRN_HTTP_HTTP_H
#define CAIRN_HTTP_HTTP_H

#include "base/buf.h"
#include "env/net.h"

enum {
    HTTP_CONNS_MAX = 512,
    HTTP_TARGET_MAX = 512, /* bytes of a path with its query, with the NUL */
    HTTP_TOKEN_MAX = 256,
    HTTP_ALIVE_BYTES_MAX = 64 << 20,
};

struct http_request {
    char target[HTTP_TARGET_MAX]; /* path, or path?query below query_prefix; with its escapes */
    bool wants_openmetrics;       /* the Accept header names that format */
    bool has_safe_host;           /* as http_peer_has_safe_host() says of its Host */
    /* The peer has shown a certificate or the token, or needs neither. */
    bool is_trusted;
};

struct http_reply {
    unsigned status;
    const char *content_type; /* static */
    uint64_t fresh_ms;        /* the same answer may be given to others for so long */
    struct buf body;          /* made by http; buf.max is the limit */
};

/* A file of the page, in the program's own memory. */
struct http_file {
    const char *path, *content_type;
    size_t bytes;
    const void *data;
};

struct http_options {
    struct loop *loop;
    const struct net_addr *addr;
    /* NULL means plain HTTP. The texts are PEM; a peer's certificate must come from ca. */
    const char *tls_cert, *tls_key, *tls_ca;
    const char *token; /* a peer that sends it is trusted; "" if there is none */
    bool trusts_all;   /* whoever can connect may read everything by other ways already */
    const struct http_file *files;
    size_t file_count;
    /* Only paths that begin so have a query; that of others is cut off, and they get the answer
     * that the path alone gets, so that nobody can ask a thousand different questions of them. */
    const char *query_prefix;
    /* Returns true if only a trusted peer may get this. Any thread. */
    bool (*is_private)(void *user, const struct http_request *request);
    /* Answers on the loop's thread, at once. */
    void (*answer)(void *user, const struct http_request *request, struct http_reply *io);
    void *user;
};

struct http;

/* Listens and starts the thread. The address is bound when it returns; *ret_bound has the real
 * port. Everything in options is copied, except the files. */
int MUST_USE http_new(const struct http_options *options, struct http **ret,
                      struct net_addr *ret_bound, struct diag *diag);
/* Ends all connections and the thread, frees, and then calls done. */
void http_close(struct http *http, void (*done)(void *user), void *user);

#endif

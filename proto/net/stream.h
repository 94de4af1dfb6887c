/* SPDX-License-Identifier: Apache-2.0
 *
 * stream: layers of byte streams with the interface of a socket: plain over a sock, TLS over any
 * stream. Handshakes run inside the tries, which return AGAIN until the handshake is done and ask
 * the layer below for the events that it needs.
 */
#ifndef CAIRN_NET_STREAM_H
#define CAIRN_NET_STREAM_H

#include "env/net.h"

struct stream;

/* As sock's functions in env/net.h, unless said otherwise. */
struct stream_ops {
    int (*try_readv)(struct stream *s, const struct iovec *iov, size_t count, size_t *ret_bytes,
                     struct diag *diag);
    /* A count of 0 returns 0 once the socket has all bytes taken so far, and AGAIN while the layer
     * still holds some. */
    int (*try_writev)(struct stream *s, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag);
    /* May call handler at the next turn of the loop if the layer holds bytes that the socket does
     * not show. */
    void (*want)(struct stream *s, unsigned events, const struct sock_handler *handler, void *user);
    /* Closes the layers below and frees them; no callback comes afterwards. */
    void (*close)(struct stream *s);
    /* Names the other end for logs: "tcp 127.0.0.1:5123" or "tls CN=rank-3 tcp …". */
    void (*peer_name)(struct stream *s, size_t bytes, char *ret);
    /* Returns the socket if bytes go through it unchanged and descriptors may go with them, else
     * NULL. The op may be NULL. */
    struct sock *(*fd_sock)(struct stream *s);
    /* Writes what the other end is proven to be: "uid=1000" by the kernel, "cn=NAME" by a
     * certificate that was checked, or "" if nothing is proven. The text has no spaces or control
     * characters. The op may be NULL. */
    void (*proven)(struct stream *s, size_t bytes, char *ret);
    /* As in env/net.h, for layers through which bytes go unchanged. The op may be NULL. */
    int (*try_send_file)(struct stream *s, const struct file_span *span, size_t *ret_bytes,
                         struct diag *diag);
};

struct stream {
    const struct stream_ops *ops;
};

/* Makes a stream over the sock, which it takes, also on failure. */
int MUST_USE stream_plain_new(struct sock *sock, struct stream **ret, struct diag *diag);

/* The certificates of one side of a process, for TLS 1.3 only. Files are PEM. */
struct tls_context;
struct tls_options {
    const char *cert_file, *key_file, *ca_file;
    bool server;
    bool require_peer; /* server: requires client certificates (the daemon's default) */
};
/* Reads the files. AUTH or CONFIG with OpenSSL's reason and the name of the file; a private key
 * that others can read is refused. */
/* Gives the time, in seconds since 1970, from which the first certificate of a PEM file is expired.
 * CONFIG. */
int MUST_USE tls_certificate_ends(const char *file, int64_t *ret_s, struct diag *diag);
int MUST_USE tls_context_new(const struct tls_options *options, struct tls_context **ret,
                             struct diag *diag);
void tls_context_free(struct tls_context *context);
/* Makes a TLS stream over `below`, which it takes, also on failure. On the client side host is
 * checked against the server's certificate; on the server it is NULL. */
int MUST_USE stream_tls_new(struct loop *loop, struct tls_context *context, struct stream *below,
                            const char *host, struct stream **ret, struct diag *diag);

#endif

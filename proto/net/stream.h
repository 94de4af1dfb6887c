/* SPDX-License-Identifier: Apache-2.0
 *
 * stream: stackable byte-stream layers with the face of a socket: plain over a sock, TLS over any
 * stream. Handshakes run inside the tries: they answer AGAIN until done, and ask below for what
 * they wait for.
 */
#ifndef CAIRN_NET_STREAM_H
#define CAIRN_NET_STREAM_H

#include "env/net.h"

struct stream;

struct stream_ops {
    int (*try_readv)(struct stream *s, const struct iovec *iov, size_t count, size_t *ret_bytes,
                     struct diag *diag);
    /* count 0: 0 once all bytes taken so far are with the socket, AGAIN while the layer still holds
     * some. */
    int (*try_writev)(struct stream *s, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag);
    /* May call handler at once-later (next loop turn) when the layer holds bytes that the socket
     * does not show. */
    void (*want)(struct stream *s, unsigned events, const struct sock_handler *handler, void *user);
    void (*close)(struct stream *s); /* closes what is below, frees; no callback afterwards */
    /* "tcp 127.0.0.1:5123" or "tls CN=rank-3 tcp …" */
    void (*peer_name)(struct stream *s, size_t bytes, char *ret);
    /* The socket, when bytes go through it as they are and descriptors may go with them; else NULL.
     * The whole op may be NULL. */
    struct sock *(*fd_sock)(struct stream *s);
    /* Who the other end is proven to be: "uid=1000" by the kernel, "cn=NAME" by a certificate that
     * was checked; "" where nothing proves anything. No spaces or control characters. The whole op
     * may be NULL. */
    void (*proven)(struct stream *s, size_t bytes, char *ret);
    /* net.h's, where bytes go through as they are. The whole op may be NULL. */
    int (*try_send_file)(struct stream *s, const struct file_span *span, size_t *ret_bytes,
                         struct diag *diag);
};

struct stream {
    const struct stream_ops *ops;
};

/* Takes the sock, also on failure. */
int MUST_USE stream_plain_new(struct sock *sock, struct stream **ret, struct diag *diag);

/* TLS 1.3 only. One context a process side; files are PEM. verify: the peer must show a certificate
 * of ca. */
struct tls_context;
struct tls_options {
    const char *cert_file, *key_file, *ca_file;
    bool server;
    bool require_peer; /* server: client certificates are required (the default of the daemon) */
};
/* AUTH / CONFIG with OpenSSL's reason and the file's name; a key readable by others is refused. */
int MUST_USE tls_context_new(const struct tls_options *options, struct tls_context **ret,
                             struct diag *diag);
void tls_context_free(struct tls_context *context);
/* Takes `below`, also on failure. host: checked against the server's certificate (client side),
 * NULL on the server. */
int MUST_USE stream_tls_new(struct loop *loop, struct tls_context *context, struct stream *below,
                            const char *host, struct stream **ret, struct diag *diag);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The plain stream: passes every call to its socket, and holds no bytes of its own. The loop's
 * thread.
 */
#include "net/stream.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct stream_plain {
    struct stream base;
    struct sock *sock;
};

static struct stream_plain *plain_of(struct stream *s)
{
    return container_of(s, struct stream_plain, base);
}

static int plain_try_readv(struct stream *s, const struct iovec *iov, size_t count,
                           size_t *ret_bytes, struct diag *diag)
{
    return sock_try_readv(plain_of(s)->sock, iov, count, ret_bytes, diag);
}

static int plain_try_writev(struct stream *s, const struct iovec *iov, size_t count,
                            size_t *ret_bytes, struct diag *diag)
{
    if (count == 0) {
        *ret_bytes = 0;
        return 0;
    }
    return sock_try_writev(plain_of(s)->sock, iov, count, ret_bytes, diag);
}

static void plain_want(struct stream *s, unsigned events, const struct sock_handler *handler,
                       void *user)
{
    sock_want(plain_of(s)->sock, events, handler, user);
}

static void plain_close(struct stream *s)
{
    struct stream_plain *plain = plain_of(s);
    sock_close(plain->sock);
    free(plain);
}

static void plain_peer_name(struct stream *s, size_t bytes, char *ret)
{
    sock_peer_name(plain_of(s)->sock, bytes, ret);
}

static void plain_proven(struct stream *s, size_t bytes, char *ret)
{
    uint32_t uid = 0;
    ret[0] = '\0';
    if (sock_peer_uid(plain_of(s)->sock, &uid)) {
        snprintf(ret, bytes, "uid=%" PRIu32, uid);
    }
}

static struct sock *plain_fd_sock(struct stream *s)
{
    struct sock *sock = plain_of(s)->sock;
    return sock_passes_fds(sock) ? sock : NULL;
}

static int plain_try_send_file(struct stream *s, const struct file_span *span, size_t *ret_bytes,
                               struct diag *diag)
{
    return sock_try_send_file(plain_of(s)->sock, span, ret_bytes, diag);
}

static const struct stream_ops PLAIN_OPS = {
    .try_readv = plain_try_readv,
    .try_writev = plain_try_writev,
    .want = plain_want,
    .close = plain_close,
    .peer_name = plain_peer_name,
    .fd_sock = plain_fd_sock,
    .proven = plain_proven,
    .try_send_file = plain_try_send_file,
};

int stream_plain_new(struct sock *sock, struct stream **ret, struct diag *diag)
{
    struct stream_plain *plain = calloc(1, sizeof(*plain));
    if (plain == NULL) {
        sock_close(sock);
        return diag_no_memory(diag, "a connection's stream");
    }
    plain->base.ops = &PLAIN_OPS;
    plain->sock = sock;
    *ret = &plain->base;
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * TLS as a stream over a stream. OpenSSL reads and writes through a BIO of ours with two buffers.
 * One holds what a large read brought, so that a record costs no system call of its own (OpenSSL's
 * read-ahead stays off, because it moves the remainder on every record). The other holds records
 * until the socket takes them. Invariants: memory is bounded (IN_MAX + OUT_MAX and OpenSSL's two
 * records); a record is made only if there is room for it, so a write never has to be repeated;
 * nothing is believed before the handshake is over. The loop's thread.
 */
#include "tls_private.h"

#include "base/check.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

enum {
    TLS_MAGIC = 0x544c5353,
    RECORD_BYTES = 16 << 10,
    RECORD_ROOM = RECORD_BYTES + 512,
    IN_FIRST = 4 << 10,
    IN_MAX = 128 << 10,
    OUT_FIRST = 4 << 10,
    OUT_HIGH = 128 << 10, /* above it no new record is made */
    OUT_MAX = OUT_HIGH + 4 * RECORD_ROOM,
    CALL_BYTES = 1 << 20,
};

struct bytes {
    uint8_t *data;
    size_t at, end, cap;
};

struct stream_tls {
    struct stream base;
    uint32_t magic;
    struct loop *loop;
    struct tls_context *context;
    struct stream *below;
    SSL *ssl;
    struct bytes in, out;
    /* readable: OpenSSL may have bytes that the socket does not show. */
    bool established, readable;
    bool in_handler, closed;
    int status, below_status, write_status; /* sticky */
    struct diag diag, below_diag, write_diag;
    unsigned wants;
    const struct sock_handler *handler;
    void *user;
    struct timer soon;
    char peer[80]; /* "CN=rank-3" */
};

static const struct stream_ops TLS_OPS;
static void on_below(void *user, unsigned events);
static void on_soon(struct timer *timer);
static int handshake(struct stream_tls *tls);
static void refresh(struct stream_tls *tls);
static void release(struct stream_tls *tls);

static const struct sock_handler BELOW_HANDLER = {on_below};

/* Sets the name or address that the server's certificate must have. */
static int set_host(struct stream_tls *tls, const char *host, struct diag *diag)
{
    struct in6_addr address;
    bool is_literal =
        inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
    X509_VERIFY_PARAM *param = SSL_get0_param(tls->ssl);
    int good;
    if (is_literal) {
        good = X509_VERIFY_PARAM_set1_ip_asc(param, host);
    } else {
        X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS |
                                                   X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
        good = host[0] != '\0' && X509_VERIFY_PARAM_set1_host(param, host, 0) == 1 &&
               SSL_set_tlsext_host_name(tls->ssl, host) == 1;
    }
    ERR_clear_error();
    return good == 1 ? 0
                     : diag_set(diag, CAIRN_E_INVALID,
                                "\"%s\" is not a host name that a TLS server can have", host);
}

static struct stream_tls *tls_of(struct stream *s)
{
    struct stream_tls *tls = container_of(s, struct stream_tls, base);
    CHECK(tls->magic == TLS_MAGIC);
    return tls;
}

int stream_tls_new(struct loop *loop, struct tls_context *context, struct stream *below,
                   const char *host, struct stream **ret, struct diag *diag)
{
    bool server = tls_context_is_server(context);
    CHECK(server == (host == NULL));
    struct stream_tls *tls = calloc(1, sizeof(*tls));
    if (tls == NULL) {
        below->ops->close(below);
        return diag_no_memory(diag, "a TLS stream");
    }
    tls->base.ops = &TLS_OPS;
    tls->magic = TLS_MAGIC;
    tls->loop = loop;
    tls->below = below;
    tls->context = tls_context_ref(context);
    timer_init(&tls->soon, loop, on_soon);
    tls->ssl = SSL_new(tls_context_ssl(context));
    BIO *bio = BIO_new(tls_context_bio(context));
    int status = 0;
    if (tls->ssl == NULL || bio == NULL) {
        BIO_free(bio);
        status = diag_no_memory(diag, "a TLS stream");
    } else {
        BIO_set_data(bio, tls);
        BIO_set_init(bio, 1);
        SSL_set_bio(tls->ssl, bio, bio);
    }
    if (status == 0 && server) {
        SSL_set_accept_state(tls->ssl);
    } else if (status == 0) {
        SSL_set_connect_state(tls->ssl);
        status = set_host(tls, host, diag);
    }
    if (status != 0) {
        release(tls);
        return status;
    }
    *ret = &tls->base;
    return 0;
}

/* --- buffers and the BIO ------------------------------------------------------------------ */

static size_t held(const struct bytes *bytes) { return bytes->end - bytes->at; }

/* Makes room for `more` bytes behind the end, within max. Returns false if there is none. */
static bool make_room(struct bytes *bytes, size_t more, size_t max)
{
    if (bytes->at > 0 && (bytes->at == bytes->end || bytes->cap - bytes->end < more)) {
        memmove(bytes->data, bytes->data + bytes->at, held(bytes));
        bytes->end -= bytes->at;
        bytes->at = 0;
    }
    if (bytes->cap - bytes->end >= more) {
        return true;
    }
    size_t cap = bytes->cap;
    while (cap - bytes->end < more) {
        cap = cap == 0 ? OUT_FIRST : cap * 2;
    }
    cap = cap > max ? max : cap;
    if (cap - bytes->end < more) {
        return false;
    }
    uint8_t *data = realloc(bytes->data, cap);
    if (data == NULL) {
        return false;
    }
    bytes->data = data;
    bytes->cap = cap;
    return true;
}

/* Makes one large read from below. The buffer grows while reads fill it, so an idle connection
 * costs 4 KiB. */
static int fill_in(struct stream_tls *tls)
{
    struct bytes *in = &tls->in;
    if (tls->below_status != 0) {
        return tls->below_status;
    }
    in->at = in->end = 0;
    if (in->cap == 0 && !make_room(in, IN_FIRST, IN_MAX)) {
        return tls->below_status = diag_no_memory(&tls->below_diag, "a TLS stream");
    }
    struct iovec iov = {in->data, in->cap};
    size_t bytes = 0;
    int status = tls->below->ops->try_readv(tls->below, &iov, 1, &bytes, &tls->below_diag);
    if (status != 0) {
        tls->below_status = status == CAIRN_E_AGAIN ? 0 : status;
        return status;
    }
    in->end = bytes;
    if (tls->established && bytes == in->cap && in->cap < IN_MAX) {
        /* If there is no memory for a larger one, the small one serves as well. */
        err_ignore(make_room(in, in->cap, IN_MAX) ? 0 : CAIRN_E_NO_MEMORY);
    }
    return 0;
}

/* Called by OpenSSL for bytes from below; fills the buffer when it is empty. */
static int bio_read(BIO *bio, char *data, size_t bytes, size_t *ret)
{
    struct stream_tls *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    *ret = 0;
    if (held(&tls->in) == 0) {
        int status = fill_in(tls);
        if (status == CAIRN_E_AGAIN) {
            BIO_set_retry_read(bio);
        }
        if (status != 0) {
            return 0;
        }
    }
    size_t take = held(&tls->in) < bytes ? held(&tls->in) : bytes;
    memcpy(data, tls->in.data + tls->in.at, take);
    tls->in.at += take;
    *ret = take;
    return 1;
}

/* Called by OpenSSL with encrypted bytes, which are kept until the socket takes them. If the room
 * is used up, OpenSSL has to try again later. */
static int bio_write(BIO *bio, const char *data, size_t bytes, size_t *ret)
{
    struct stream_tls *tls = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    *ret = 0;
    if (!make_room(&tls->out, bytes, OUT_MAX)) {
        BIO_set_retry_write(bio);
        return 0;
    }
    memcpy(tls->out.data + tls->out.end, data, bytes);
    tls->out.end += bytes;
    *ret = bytes;
    return 1;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)number;
    (void)pointer;
    struct stream_tls *tls = BIO_get_data(bio);
    if (command == BIO_CTRL_EOF) {
        return tls->below_status == CAIRN_E_ENDED;
    }
    return command == BIO_CTRL_FLUSH;
}

struct bio_method_st *tls_bio_method_new(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "cairn stream");
    if (method != NULL) {
        BIO_meth_set_read_ex(method, bio_read);
        BIO_meth_set_write_ex(method, bio_write);
        BIO_meth_set_ctrl(method, bio_ctrl);
    }
    return method;
}

/* Writes what the buffer holds. A broken socket is only noted for the writer, because an alert may
 * still be there to be read. */
static void flush_out(struct stream_tls *tls)
{
    struct bytes *out = &tls->out;
    while (held(out) > 0 && tls->write_status == 0) {
        struct iovec iov = {out->data + out->at, held(out)};
        size_t bytes = 0;
        int status = tls->below->ops->try_writev(tls->below, &iov, 1, &bytes, &tls->write_diag);
        if (status == CAIRN_E_AGAIN) {
            return;
        }
        tls->write_status = status;
        out->at += bytes;
    }
    if (tls->write_status != 0 || held(out) == 0) {
        out->at = out->end = 0;
    }
}

/* --- failures in words -------------------------------------------------------------------- */

/* Sets the text for a connection that ended below TLS, and returns the code. */
static int below_failure(struct stream_tls *tls)
{
    if (tls->below_status != CAIRN_E_ENDED) {
        return diag_copy(&tls->diag, &tls->below_diag);
    }
    if (!tls->established) {
        return diag_set(
            &tls->diag, CAIRN_E_CONNECTION_LOST,
            "the peer closed the connection during the TLS handshake; check that TLS is on there");
    }
    return diag_set(&tls->diag, CAIRN_E_CONNECTION_LOST,
                    "the peer closed the connection without the closing message of TLS");
}

/* Keeps why OpenSSL gave up; the failure is sticky. */
static int failed(struct stream_tls *tls)
{
    unsigned long error = ERR_get_error();
    ERR_clear_error();
    flush_out(tls); /* our alert says why to the peer */
    long result = SSL_get_verify_result(tls->ssl);
    int code = ERR_GET_REASON(error);
    const char *why = ERR_reason_error_string(error);
    const char *alert = tls_remedy_of_alert(code);
    const char *remedy = tls_remedy_of_handshake(code);
    why = why != NULL ? why : "OpenSSL gives no reason";
    if (tls->below_status != 0 && held(&tls->in) == 0 && alert == NULL && remedy == NULL &&
        (tls->established || result == X509_V_OK)) {
        tls->status = below_failure(tls);
    } else if (alert != NULL) {
        tls->status = diag_set(&tls->diag, CAIRN_E_AUTH, "TLS: %s: %s", why, alert);
    } else if (!tls->established && result != X509_V_OK) {
        tls->status = tls_refuse_certificate(result, tls_context_ca(tls->context), &tls->diag);
    } else if (!tls->established) {
        tls->status = diag_set(&tls->diag, CAIRN_E_AUTH, "the TLS handshake failed: %s%s%s", why,
                               remedy != NULL ? ": " : "", remedy != NULL ? remedy : "");
    } else {
        tls->status = diag_set(&tls->diag, CAIRN_E_CONNECTION_LOST, "TLS: %s", why);
    }
    CHECK(tls->status != 0);
    return tls->status;
}

/* --- handshake, read, write --------------------------------------------------------------- */

/* Keeps the common name of the peer's certificate for the logs. */
static void remember_peer(struct stream_tls *tls)
{
    X509 *peer = SSL_get0_peer_certificate(tls->ssl);
    char name[64] = "";
    if (peer != NULL) {
        X509_NAME_get_text_by_NID(X509_get_subject_name(peer), NID_commonName, name, sizeof(name));
    }
    for (char *c = name; *c != '\0'; c++) {
        *c = *c < ' ' || *c > '~' ? '?' : *c; /* goes into logs */
    }
    snprintf(tls->peer, sizeof(tls->peer), "%s%s", name[0] != '\0' ? " CN=" : "", name);
}

/* Goes on with the handshake. Returns 0 once it is over, AGAIN before, or the failure. */
static int handshake(struct stream_tls *tls)
{
    if (tls->established || tls->status != 0) {
        return tls->status;
    }
    ERR_clear_error();
    int result = SSL_do_handshake(tls->ssl);
    flush_out(tls);
    if (result == 1) {
        CHECK(SSL_version(tls->ssl) == TLS1_3_VERSION);
        tls->established = true;
        tls->readable = true; /* the first messages may have come with the last of the handshake */
        remember_peer(tls);
        return 0;
    }
    int error = SSL_get_error(tls->ssl, result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? CAIRN_E_AGAIN
                                                                         : failed(tls);
}

/* Fills one iovec. AGAIN means that the socket has no more; *ret_bytes counts what came before. */
static int read_into(struct stream_tls *tls, void *data, size_t bytes, size_t *ret_bytes)
{
    size_t total = 0;
    int status = 0;
    while (total < bytes && status == 0) {
        size_t got = 0;
        ERR_clear_error();
        int result = SSL_read_ex(tls->ssl, (char *)data + total, bytes - total, &got);
        total += got;
        if (result == 1) {
            continue;
        }
        switch (SSL_get_error(tls->ssl, result)) {
        case SSL_ERROR_WANT_READ:
        case SSL_ERROR_WANT_WRITE:
            tls->readable = false;
            status = CAIRN_E_AGAIN;
            break;
        case SSL_ERROR_ZERO_RETURN:
            status = tls->status =
                diag_set(&tls->diag, CAIRN_E_ENDED, "the peer closed the connection");
            break;
        default:
            status = failed(tls);
        }
    }
    *ret_bytes = total;
    return status;
}

/* Reads decrypted bytes, a bounded number of them a call. */
static int tls_try_readv(struct stream *s, const struct iovec *iov, size_t count, size_t *ret_bytes,
                         struct diag *diag)
{
    struct stream_tls *tls = tls_of(s);
    int status = handshake(tls);
    size_t total = 0;
    if (status == 0) {
        tls->readable = true;
    }
    for (size_t i = 0; i < count && status == 0 && total < CALL_BYTES; i++) {
        size_t left = CALL_BYTES - total;
        size_t got = 0;
        status =
            read_into(tls, iov[i].iov_base, iov[i].iov_len < left ? iov[i].iov_len : left, &got);
        total += got;
    }
    flush_out(tls); /* answers to a key update */
    if (total > 0) {
        *ret_bytes = total; /* a failure behind it is sticky and comes next time */
        return 0;
    }
    return status == CAIRN_E_AGAIN ? status : (err_ignore(diag_copy(diag, &tls->diag)), status);
}

static int write_record(struct stream_tls *tls, const void *data, size_t bytes)
{
    size_t written = 0;
    ERR_clear_error();
    if (SSL_write_ex(tls->ssl, data, bytes, &written) != 1) {
        return failed(tls);
    }
    CHECK(written == bytes);
    return 0;
}

static bool has_room(struct stream_tls *tls)
{
    if (held(&tls->out) >= OUT_HIGH) {
        flush_out(tls);
    }
    return held(&tls->out) < OUT_HIGH && tls->write_status == 0;
}

/* Encrypts the caller's bytes while there is room for records. */
static int write_from(struct stream_tls *tls, const struct iovec *iov, size_t count,
                      size_t *ret_total)
{
    size_t total = 0;
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        const char *at = iov[i].iov_base;
        size_t left = iov[i].iov_len;
        while (left > 0 && status == 0) {
            if (total >= CALL_BYTES || !has_room(tls)) {
                *ret_total = total;
                return 0;
            }
            size_t bytes = left < RECORD_BYTES ? left : RECORD_BYTES;
            status = write_record(tls, at, bytes);
            if (status == 0) {
                at += bytes;
                left -= bytes;
                total += bytes;
            }
        }
    }
    *ret_total = total;
    return status;
}

/* Writes. Bytes count as written once OpenSSL has made records of them. */
static int tls_try_writev(struct stream *s, const struct iovec *iov, size_t count,
                          size_t *ret_bytes, struct diag *diag)
{
    struct stream_tls *tls = tls_of(s);
    size_t total = 0;
    int status = handshake(tls);
    if (status == CAIRN_E_AGAIN && tls->write_status == 0) {
        return status;
    }
    flush_out(tls);
    if (status == 0) {
        status = write_from(tls, iov, count, &total);
        flush_out(tls);
    }
    if (status != 0 && status != CAIRN_E_AGAIN) {
        err_ignore(diag_copy(diag, &tls->diag));
        return status;
    }
    if (tls->write_status != 0) {
        err_ignore(diag_copy(diag, &tls->write_diag));
        return tls->write_status;
    }
    if (total == 0 && (count > 0 || held(&tls->out) > 0)) {
        return CAIRN_E_AGAIN;
    }
    *ret_bytes = total;
    return 0;
}

/* --- readiness ---------------------------------------------------------------------------- */

/* Says which events the user waits for. The first call of a client begins the handshake. */
static void tls_want(struct stream *s, unsigned events, const struct sock_handler *handler,
                     void *user)
{
    struct stream_tls *tls = tls_of(s);
    tls->wants = events;
    tls->handler = handler;
    tls->user = user;
    if (events != 0) {
        /* A client speaks first. The result is kept, and a failure is reported by the next try. */
        err_ignore(handshake(tls));
    }
    refresh(tls);
}

/* Returns which of the wanted events hold, without asking the socket. */
static unsigned ready_now(const struct stream_tls *tls)
{
    if (tls->status != 0) {
        return tls->wants;
    }
    if (tls->write_status != 0) {
        return tls->wants & SOCK_WRITE; /* the socket itself tells about reading */
    }
    return tls->established && tls->readable ? tls->wants & SOCK_READ : 0;
}

/* Asks below for the events that are needed now, and lets a timer report those that hold
 * already. */
static void refresh(struct stream_tls *tls)
{
    unsigned events = 0;
    if (ready_now(tls) != 0) {
        if (!timer_is_active(&tls->soon)) {
            timer_start(&tls->soon, 0);
        }
    } else {
        timer_stop(&tls->soon);
    }
    if (tls->status == 0 && tls->wants != 0) {
        events |= !tls->established ? SOCK_READ : tls->wants;
    }
    if (held(&tls->out) > 0 && tls->write_status == 0) {
        events |= SOCK_WRITE;
    }
    tls->below->ops->want(tls->below, events, &BELOW_HANDLER, tls);
}

/* Tells the user's handler about the events that it waits for. The handler may close the stream. */
static void notify(struct stream_tls *tls, unsigned events)
{
    if ((events & tls->wants) != 0) {
        tls->in_handler = true;
        tls->handler->on_ready(tls->user, events & tls->wants);
        tls->in_handler = false;
        if (tls->closed) {
            release(tls);
            return;
        }
    }
    refresh(tls);
}

/* Called when the stream below is ready: goes on with writing and the handshake, and tells the
 * user. */
static void on_below(void *user, unsigned events)
{
    struct stream_tls *tls = user;
    CHECK(tls->magic == TLS_MAGIC);
    bool was_established = tls->established;
    flush_out(tls);
    err_ignore(handshake(tls)); /* sticky: a failure is in ready_now() */
    if (!tls->established) {
        events = 0;
    } else if (!was_established) {
        events = SOCK_READ | SOCK_WRITE;
    }
    if (held(&tls->out) >= OUT_HIGH) {
        events &= ~(unsigned)SOCK_WRITE;
    }
    notify(tls, events | ready_now(tls));
}

static void on_soon(struct timer *timer)
{
    struct stream_tls *tls = container_of(timer, struct stream_tls, soon);
    CHECK(tls->magic == TLS_MAGIC);
    notify(tls, ready_now(tls));
}

/* Says goodbye to the peer if that is possible, and closes the stream below. */
static void tls_close(struct stream *s)
{
    struct stream_tls *tls = tls_of(s);
    timer_stop(&tls->soon);
    tls->below->ops->want(tls->below, 0, &BELOW_HANDLER, tls);
    if (tls->established && tls->status == 0) {
        ERR_clear_error();
        SSL_shutdown(tls->ssl); /* best effort: the peer tells an orderly end from a cut by it */
        ERR_clear_error();
        flush_out(tls);
    }
    tls->closed = true;
    if (!tls->in_handler) {
        release(tls);
    }
}

/* Reads away unread bytes, because with them the kernel would drop our alert. */
static void drain_below(struct stream_tls *tls)
{
    char ignored[4096];
    struct iovec iov = {ignored, sizeof(ignored)};
    for (size_t tries = 0; tries < 8; tries++) {
        size_t bytes;
        if (tls->below->ops->try_readv(tls->below, &iov, 1, &bytes, NULL) != 0) {
            return;
        }
    }
}

/* Frees the stream and closes the one below. */
static void release(struct stream_tls *tls)
{
    if (tls->status != 0 && tls->status != CAIRN_E_ENDED) {
        drain_below(tls);
    }
    timer_stop(&tls->soon);
    tls->below->ops->close(tls->below);
    SSL_free(tls->ssl);
    tls_context_free(tls->context);
    free(tls->in.data);
    free(tls->out.data);
    tls->magic = 0;
    free(tls);
}

static void tls_peer_name(struct stream *s, size_t bytes, char *ret)
{
    struct stream_tls *tls = tls_of(s);
    char below[128];
    tls->below->ops->peer_name(tls->below, sizeof(below), below);
    snprintf(ret, bytes, "tls%s %s", tls->peer, below);
}

/* Writes the name only if the context demanded and checked the certificate; nothing else proves
 * it. */
static void tls_proven(struct stream *s, size_t bytes, char *ret)
{
    struct stream_tls *tls = tls_of(s);
    const char *name = tls->established ? strchr(tls->peer, '=') : NULL;
    bool checked = (SSL_get_verify_mode(tls->ssl) & SSL_VERIFY_PEER) != 0;
    snprintf(ret, bytes, "%s%s", name != NULL && checked ? "cn" : "",
             name != NULL && checked ? name : "");
    for (char *c = ret; *c != '\0'; c++) {
        *c = *c == ' ' ? '_' : *c;
    }
}

static const struct stream_ops TLS_OPS = {
    .try_readv = tls_try_readv,
    .try_writev = tls_try_writev,
    .want = tls_want,
    .close = tls_close,
    .peer_name = tls_peer_name,
    .proven = tls_proven,
};

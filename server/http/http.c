/* SPDX-License-Identifier: Apache-2.0
 *
 * http: see http.h. The only file that knows libmicrohttpd, whose one thread runs every callback
 * here but on_reap(), on_ready() and http_close(), which run on the loop's.
 *
 *      request comes --file, refusal, answer still fresh----------> answered
 *           \--suspended; asked of the loop --ready: resumed-------/
 *
 * A suspended connection is not looked at by libmicrohttpd until it is resumed, so each question is
 * answered, also when the server ends.
 */
#include "http/http.h"

#include "http/http_conns.h"
#include "http/http_mailbox.h"
#include "http/http_peer.h"

#include <microhttpd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

enum { PHASE_MS = 30000, REAP_MS = 2000, CONN_BYTES = 16 << 10, ROOM_CONNS = 16 };

struct http {
    struct http_options options; /* its texts and addr are not used after http_new() */
    char token[HTTP_TOKEN_MAX];
    bool has_tls;
    struct MHD_Daemon *daemon;
    struct http_answer **files; /* one for each of options.files */
    struct http_answer *bad_method, *bad_body, *bad_target, *no_trust, *no_memory;
    struct http_mailbox *mailbox;
    struct http_conns conns;
    struct timer reap;
    atomic_size_t alive_bytes; /* of answers that somebody sends, or may */
};

enum call_step {
    CALL_NEW,    /* its first line was seen */
    CALL_HEADED, /* its head was seen */
    CALL_ASKED   /* the loop has, or had, the question */
};

/* A request, from its first line until its answer is sent. */
struct call {
    struct http *http;
    struct MHD_Connection *connection;
    struct http_wait wait;
    enum call_step step;
    bool is_too_long; /* its target was cut */
    struct http_request request;
};

/* --- answers --- */

/* The body of an answer, which libmicrohttpd frees with its response. */
struct body {
    struct http *http;
    size_t bytes;
    uint8_t *data;
};

static ssize_t read_body(void *user, uint64_t at, char *to, size_t most)
{
    const struct body *body = user;
    CHECK(at <= body->bytes);
    size_t bytes = body->bytes - (size_t)at;
    bytes = bytes < most ? bytes : most;
    memcpy(to, body->data + at, bytes);
    return (ssize_t)bytes;
}

static void free_body(void *user)
{
    struct body *body = user;
    CHECK(body->http->alive_bytes >= body->bytes);
    atomic_fetch_sub(&body->http->alive_bytes, body->bytes);
    free(body->data);
    free(body);
}

static void add_headers(struct MHD_Response *response, const char *content_type)
{
    const char *const headers[][2] = {
        {"Content-Type", content_type},
        {"Cache-Control", "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        /* The page has no script, style or picture but its own files, and nobody may frame it. */
        {"Content-Security-Policy",
         "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
         "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}};
    for (size_t i = 0; response && i < ARRAY_LEN(headers); i++) {
        MHD_add_response_header(response, headers[i][0], headers[i][1]); /* a header less if full */
    }
}

static struct http_answer *wrap(unsigned status, struct MHD_Response *response)
{
    struct http_answer *answer = response ? calloc(1, sizeof(*answer)) : NULL;
    if (answer) {
        atomic_init(&answer->refs, 1);
        answer->status = status;
        answer->response = response;
    } else if (response) {
        MHD_destroy_response(response);
    }
    return answer;
}

struct http_answer *http_answer_new(struct http *http, struct http_reply *reply)
{
    struct body *body = calloc(1, sizeof(*body));
    size_t bytes = reply->body.bytes;
    if (!body || atomic_fetch_add(&http->alive_bytes, bytes) + bytes > HTTP_ALIVE_BYTES_MAX) {
        atomic_fetch_sub(&http->alive_bytes, body ? bytes : 0);
        free(body);
        return NULL;
    }
    *body = (struct body){.http = http, .bytes = bytes};
    body->data = buf_take(&reply->body, &bytes);
    struct MHD_Response *response =
        MHD_create_response_from_callback(bytes, 64 << 10, read_body, body, free_body);
    if (!response) {
        free_body(body);
    }
    add_headers(response, reply->content_type);
    return wrap(reply->status, response);
}

void http_answer_unref(struct http_answer *answer)
{
    unsigned refs = answer ? atomic_fetch_sub(&answer->refs, 1) : 0;
    CHECK(!answer || refs > 0);
    if (refs == 1) {
        MHD_destroy_response(answer->response);
        free(answer);
    }
}

/* Makes an answer that never changes. The data is the program's own. */
static struct http_answer *constant(unsigned status, const char *type, size_t bytes,
                                    const void *data)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)data, MHD_RESPMEM_PERSISTENT);
    add_headers(response, type);
    return wrap(status, response);
}

static struct http_answer *refusal(unsigned status, const char *text)
{
    return constant(status, "text/plain; charset=utf-8", strlen(text), text);
}

/* Makes the answers of this file. Returns false if there is no memory. */
static bool make_answers(struct http *http)
{
    const struct http_options *options = &http->options;
    http->bad_method = refusal(405, "this server only reads: the methods are GET and HEAD\n");
    http->bad_body = refusal(413, "a request has no body here\n");
    http->bad_target = refusal(414, "the path with its query may have 511 bytes\n");
    http->no_memory = refusal(503, "the daemon has no memory for the answer, or is stopping\n");
    http->no_trust = refusal(
        401,
        "this needs a client certificate of [tls] ca, or the token of [http] token-file in "
        "the header \"Authorization: Bearer TOKEN\"; or, where everyone on the host is trusted, "
        "a Host that is a number or localhost\n");
    http->files = calloc(options->file_count + 1, sizeof(struct http_answer *));
    bool good = http->bad_method && http->bad_body && http->bad_target && http->no_memory &&
                http->no_trust && http->files;
    for (size_t i = 0; good && i < options->file_count; i++) {
        const struct http_file *file = &options->files[i];
        http->files[i] = constant(200, file->content_type, file->bytes, file->data);
        good = http->files[i] != NULL;
    }
    if (good) {
        MHD_add_response_header(http->bad_method->response, "Allow", "GET, HEAD");
        MHD_add_response_header(http->no_trust->response, "WWW-Authenticate", "Bearer");
    }
    return good;
}

static void drop_answers(struct http *http)
{
    http_answer_unref(http->bad_method);
    http_answer_unref(http->bad_body);
    http_answer_unref(http->bad_target);
    http_answer_unref(http->no_memory);
    http_answer_unref(http->no_trust);
    for (size_t i = 0; http->files && i < http->options.file_count; i++) {
        http_answer_unref(http->files[i]);
    }
    free(http->files);
}

/* --- a request --- */

static struct http_conn *conn_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

static bool is_trusted(const struct http *http, struct MHD_Connection *connection,
                       bool has_safe_host)
{
    const union MHD_ConnectionInfo *tls =
        http->has_tls ? MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)
                      : NULL;
    return (http->options.trusts_all && has_safe_host) ||
           (tls && http_peer_has_certificate(tls->tls_session)) ||
           http_peer_has_token(header(connection, "Authorization"), http->token);
}

/* Returns the answer that needs no question, or NULL. Fills in the request. */
static struct http_answer *decide(struct http *http, struct call *call, const char *method)
{
    struct MHD_Connection *connection = call->connection;
    struct http_request *request = &call->request;
    CHECK(call->step == CALL_HEADED);
    const char *accept = header(connection, "Accept");
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
        return http->bad_method;
    }
    if (call->is_too_long) {
        return http->bad_target;
    }
    for (size_t i = 0; i < http->options.file_count; i++) {
        if (strcmp(http->options.files[i].path, request->target) == 0) {
            return http->files[i];
        }
    }
    request->wants_openmetrics = accept && strstr(accept, "application/openmetrics-text");
    request->has_safe_host = http_peer_has_safe_host(header(connection, "Host"));
    request->is_trusted = is_trusted(http, connection, request->has_safe_host);
    return !request->is_trusted && http->options.is_private(http->options.user, request)
               ? http->no_trust
               : NULL;
}

/* Answers at once if that is possible, else suspends the connection and asks the loop. */
static enum MHD_Result begin(struct http *http, struct call *call, const char *method)
{
    struct http_conn *conn = conn_of(call->connection);
    struct http_answer *answer = decide(http, call, method), *fresh = NULL;
    if (conn) {
        http_conns_step(&http->conns, conn, true, loop_now_ms(http->options.loop));
    }
    if (!answer) {
        answer = fresh = http_mailbox_find(http->mailbox, &call->request);
    }
    if (!answer) {
        call->step = CALL_ASKED;
        MHD_suspend_connection(call->connection);
        if (!http_mailbox_ask(http->mailbox, &call->request, &call->wait)) {
            MHD_resume_connection(call->connection); /* the next call finds no answer */
        }
        return MHD_YES;
    }
    enum MHD_Result queued = MHD_queue_response(call->connection, answer->status, answer->response);
    http_answer_unref(fresh);
    return queued;
}

/* Called by the loop's thread. */
static void on_ready(struct http_wait *wait)
{
    const struct call *call = container_of(wait, struct call, wait);
    CHECK(call->step == CALL_ASKED);
    MHD_resume_connection(call->connection);
}

static bool has_body(struct MHD_Connection *connection)
{
    const char *length = header(connection, "Content-Length");
    return (length && strcmp(length, "0") != 0) || header(connection, "Transfer-Encoding");
}

/* Called for the head of a request, again when it is whole, and again after it was resumed. An
 * answer to the head alone ends the connection, which is right for a body that nobody reads. */
static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **io_call)
{
    struct http *http = user;
    struct call *call = *io_call;
    (void)url, (void)version, (void)upload;
    if (!call) {
        return MHD_queue_response(connection, 503, http->no_memory->response);
    }
    if (*upload_bytes > 0) {
        return MHD_NO; /* a body, which was refused before it came */
    }
    CHECK(call->connection == connection);
    if (call->step == CALL_NEW) {
        call->step = CALL_HEADED;
        const struct http_answer *refused = has_body(connection) ? http->bad_body : NULL;
        return refused ? MHD_queue_response(connection, refused->status, refused->response)
                       : MHD_YES;
    }
    if (call->step == CALL_HEADED) {
        return begin(http, call, method);
    }
    const struct http_answer *answer = call->wait.answer ? call->wait.answer : http->no_memory;
    return MHD_queue_response(connection, answer->status, answer->response);
}

/* Called when the first line of a request is there; the result is *io_call of on_request(). */
static void *on_target(void *user, const char *target, struct MHD_Connection *connection)
{
    struct call *call = calloc(1, sizeof(*call));
    if (call) {
        call->http = user;
        call->connection = connection;
        call->is_too_long = strlen(target) >= sizeof(call->request.target);
        snprintf(call->request.target, sizeof(call->request.target), "%s", target);
        const char *prefix = call->http->options.query_prefix;
        if (strncmp(target, prefix, strlen(prefix)) != 0) {
            call->request.target[strcspn(call->request.target, "?")] = '\0';
        }
    }
    return call;
}

/* Called when the answer was sent, or cannot be. */
static void on_completed(void *user, struct MHD_Connection *connection, void **io_call,
                         enum MHD_RequestTerminationCode code)
{
    struct http *http = user;
    struct call *call = *io_call;
    struct http_conn *conn = conn_of(connection);
    (void)code;
    if (conn) {
        http_conns_step(&http->conns, conn, false, loop_now_ms(http->options.loop));
    }
    if (call) {
        CHECK(call->http == http);
        http_answer_unref(call->wait.answer);
        free(call);
    }
    *io_call = NULL;
}

static void on_connection(void *user, struct MHD_Connection *connection, void **io_conn,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http *http = user;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        http_conns_remove(&http->conns, *io_conn);
        *io_conn = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info) {
        *io_conn = http_conns_add(&http->conns, info->connect_fd, HTTP_CONNS_MAX - ROOM_CONNS,
                                  loop_now_ms(http->options.loop));
    }
}

/* Called on the loop's thread every REAP_MS. */
static void on_reap(struct timer *timer)
{
    struct http *http = container_of(timer, struct http, reap);
    uint64_t now_ms = loop_now_ms(http->options.loop);
    http_conns_reap(&http->conns, now_ms > PHASE_MS ? now_ms - PHASE_MS : 0);
    timer_start(timer, REAP_MS);
}

/* --- begin and end --- */

static const char priorities[] = "SECURE128:-VERS-ALL:+VERS-TLS1.3"; /* in GnuTLS's words */

/* Starts libmicrohttpd's thread on the listening socket, which it owns from then on. If it does not
 * start, it has closed the socket. */
static struct MHD_Daemon *start(struct http *http, int fd)
{
    const struct http_options *options = &http->options;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)options->tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)options->tls_key},
        {MHD_OPTION_HTTPS_MEM_TRUST, 0, (void *)(uintptr_t)options->tls_ca},
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)priorities},
        {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread inherits this */
    struct MHD_Daemon *daemon = MHD_start_daemon(
        flags | (http->has_tls ? MHD_USE_TLS : 0), 0, NULL, NULL, on_request, http,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_CONNS_MAX,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONN_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(PHASE_MS / 1000), MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK,
        on_target, http, MHD_OPTION_NOTIFY_COMPLETED, on_completed, http,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_ARRAY,
        http->has_tls ? tls : none, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

static void http_free(struct http *http)
{
    drop_answers(http);
    http_conns_fini(&http->conns);
    explicit_bzero(http->token, sizeof(http->token));
    CHECK(http->alive_bytes == 0);
    free(http);
}

int http_new(const struct http_options *options, struct http **ret, struct net_addr *ret_bound,
             struct diag *diag)
{
    struct http *http = calloc(1, sizeof(*http));
    int fd = -1;
    if (!http) {
        return diag_no_memory(diag, "[http]");
    }
    CHECK(strlen(options->token) < sizeof(http->token));
    CHECK(!options->tls_cert == !options->tls_key && !options->tls_cert == !options->tls_ca);
    CHECK(options->answer && options->is_private && options->query_prefix);
    http->options = *options;
    http->has_tls = options->tls_cert != NULL;
    memcpy(http->token, options->token, strlen(options->token) + 1);
    atomic_init(&http->alive_bytes, 0);
    http_conns_init(&http->conns);
    timer_init(&http->reap, options->loop, on_reap);
    struct http_mailbox_options mailbox = {.loop = options->loop,
                                           .http = http,
                                           .answer = options->answer,
                                           .user = options->user,
                                           .ready = on_ready};
    bool good = make_answers(http) && http_mailbox_new(&mailbox, &http->mailbox) == 0;
    int status =
        good ? net_listen_fd(options->addr, &fd, ret_bound, diag) : diag_no_memory(diag, "[http]");
    if (status == 0) {
        http->daemon = start(http, fd);
        status = http->daemon ? 0
                              : diag_set(diag, CAIRN_E_CONFIG,
                                         "[http] listen: the HTTP server did not start; check that "
                                         "[tls] cert, key and ca are good PEM files");
    }
    if (status == 0) {
        timer_start(&http->reap, REAP_MS);
        *ret = http;
        return 0;
    }
    if (http->mailbox) {
        http_mailbox_stop(http->mailbox);
        http_mailbox_close(http->mailbox, NULL, NULL);
    }
    http_free(http);
    return status;
}

void http_close(struct http *http, void (*done)(void *user), void *user)
{
    struct http_mailbox *mailbox = http->mailbox;
    timer_stop(&http->reap);
    http_mailbox_stop(mailbox); /* resumes all that wait */
    MHD_stop_daemon(http->daemon);
    /* The mailbox outlives this struct until its post has run; its answers count in alive_bytes. */
    http_mailbox_clear(mailbox);
    http_free(http);
    http_mailbox_close(mailbox, done, user);
}

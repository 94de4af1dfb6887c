/* SPDX-License-Identifier: Apache-2.0
 *
 * See net_fixture.h.
 */
#include "net_fixture.h"

#include <spawn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_MS = 20000 };

/* --- a stream that reads and writes little at a time
 * ---------------------------------------------- */

struct chopper {
    struct stream base;
    struct stream *below;
    size_t most;
};

static size_t chop(const struct iovec *iov, size_t count, size_t most, struct iovec *ret)
{
    for (size_t i = 0; i < count; i++) {
        if (iov[i].iov_len > 0) {
            *ret = (struct iovec){iov[i].iov_base, iov[i].iov_len < most ? iov[i].iov_len : most};
            return 1;
        }
    }
    return 0;
}

static int chopper_readv(struct stream *s, const struct iovec *iov, size_t count, size_t *ret,
                         struct diag *diag)
{
    struct chopper *chopper = container_of(s, struct chopper, base);
    struct iovec one;
    count = chop(iov, count, chopper->most, &one);
    return chopper->below->ops->try_readv(chopper->below, &one, count, ret, diag);
}

static int chopper_writev(struct stream *s, const struct iovec *iov, size_t count, size_t *ret,
                          struct diag *diag)
{
    struct chopper *chopper = container_of(s, struct chopper, base);
    struct iovec one;
    count = chop(iov, count, chopper->most, &one);
    return chopper->below->ops->try_writev(chopper->below, &one, count, ret, diag);
}

static void chopper_want(struct stream *s, unsigned events, const struct sock_handler *handler,
                         void *user)
{
    struct chopper *chopper = container_of(s, struct chopper, base);
    chopper->below->ops->want(chopper->below, events, handler, user);
}

static void chopper_close(struct stream *s)
{
    struct chopper *chopper = container_of(s, struct chopper, base);
    chopper->below->ops->close(chopper->below);
    free(chopper);
}

static void chopper_peer_name(struct stream *s, size_t bytes, char *ret)
{
    struct chopper *chopper = container_of(s, struct chopper, base);
    chopper->below->ops->peer_name(chopper->below, bytes, ret);
}

static int chopper_send_file(struct stream *s, const struct file_span *span, size_t *ret,
                             struct diag *diag)
{
    struct chopper *chopper = container_of(s, struct chopper, base);
    struct file_span less = *span;
    less.bytes = less.bytes < chopper->most ? less.bytes : chopper->most;
    return chopper->below->ops->try_send_file(chopper->below, &less, ret, diag);
}

static const struct stream_ops CHOPPER_OPS = {chopper_readv, chopper_writev,    chopper_want,
                                              chopper_close, chopper_peer_name, NULL,
                                              NULL,          chopper_send_file};

static struct stream *make_stream(struct side *side, struct sock *sock, bool server)
{
    struct net_fixture *f = side->f;
    struct stream *stream;
    assert_int_equal(stream_plain_new(sock, &stream, NULL), 0);
    if (f->form->chop > 0) {
        struct chopper *chopper = calloc(1, sizeof(*chopper));
        assert_non_null(chopper);
        *chopper = (struct chopper){{&CHOPPER_OPS}, stream, f->form->chop};
        stream = &chopper->base;
    }
    struct tls_context *context = server ? f->server_tls : f->client_tls;
    if (context != NULL) {
        assert_int_equal(
            stream_tls_new(side->loop, context, stream, server ? NULL : f->tls_host, &stream, NULL),
            0);
    }
    return stream;
}

/* --- sides
 * ---------------------------------------------------------------------------------------- */

static int side_message(void *user, const struct frame *frame, const struct msg *msg,
                        void **ret_payload, struct diag *diag)
{
    struct side *side = user;
    assert_int_equal(side->closes, 0);
    side->messages++;
    if (side->on_message != NULL) {
        return side->on_message(side, frame, msg, ret_payload, diag);
    }
    if (frame->payload_bytes > 0) {
        side->buffer = *ret_payload = malloc(frame->payload_bytes);
    }
    return 0;
}

static int side_payload(void *user, const struct frame *frame, const struct msg *msg, void *payload,
                        struct diag *diag)
{
    struct side *side = user;
    assert_int_equal(side->closes, 0);
    assert_ptr_equal(payload, side->buffer);
    side->payloads++;
    side->buffer = NULL;
    if (side->on_payload != NULL) {
        return side->on_payload(side, frame, msg, payload, diag);
    }
    free(payload);
    return 0;
}

static void side_close(void *user, int status, const struct diag *diag)
{
    struct side *side = user;
    side->closes++;
    side->status = status;
    side->diag = *diag;
    side->closed_ms = loop_now_ms(side->loop);
    if (side->close_in_on_close) {
        net_close_conn(side);
    }
}

static void side_drained(void *user)
{
    struct side *side = user;
    side->drained++;
    if (side->on_drained != NULL) {
        side->on_drained(side);
    }
}

static const struct conn_handler SIDE_HANDLER = {side_message, side_payload, side_close,
                                                 side_drained};

void net_close_conn(struct side *side)
{
    if (side->conn != NULL) {
        conn_close(side->conn, false);
        side->conn = NULL;
    }
    free(side->buffer);
    side->buffer = NULL;
}

static void start(struct side *side, struct sock *sock, bool server)
{
    assert_int_equal(conn_new(side->loop, make_stream(side, sock, server), &side->options,
                              &SIDE_HANDLER, side, &side->conn, NULL),
                     0);
}

/* --- fixture
 * -------------------------------------------------------------------------------------- */

static void on_accept(void *user, struct sock *sock)
{
    struct net_fixture *f = user;
    assert_null(f->server.conn);
    start(&f->server, sock, true);
}

static void on_tick(struct timer *timer)
{
    struct net_fixture *f = container_of(timer, struct net_fixture, tick);
    f->is_done = f->done(f);
    if (f->is_done || f->is_late) {
        loop_uv_stop(f->real_loop);
    } else {
        timer_start(timer, 1);
    }
}

static void on_limit(struct timer *timer)
{
    struct net_fixture *f = container_of(timer, struct net_fixture, limit);
    f->is_late = true;
}

static void run_within(struct net_fixture *f, bool (*done)(struct net_fixture *f), uint64_t ms)
{
    f->done = done;
    f->is_done = f->is_late = false;
    if (f->sim != NULL) {
        /* In steps, not by event: done() may be about nothing happening any more. */
        for (uint64_t at = 0; at < ms && !f->is_done; at++) {
            sim_run_for(f->sim, 1);
            f->is_done = done(f);
        }
        return;
    }
    timer_start(&f->limit, ms);
    timer_start(&f->tick, 0);
    loop_uv_run(f->real_loop);
    timer_stop(&f->limit);
    timer_stop(&f->tick);
}

void net_run(struct net_fixture *f, bool (*done)(struct net_fixture *f))
{
    run_within(f, done, LIMIT_MS);
    if (!f->is_done) {
        fail_msg("%s: not done in time; client %s, server %s", f->form->name, f->client.diag.text,
                 f->server.diag.text);
    }
}

static bool never(struct net_fixture *f)
{
    (void)f;
    return false;
}

void net_run_for(struct net_fixture *f, uint64_t ms) { run_within(f, never, ms); }

static void side_init(struct net_fixture *f, struct side *side, const char *name)
{
    *side = (struct side){.f = f, .name = name, .close_in_on_close = true};
    side->options = (struct conn_options){.message_max = 1 << 20, .payload_max = 8 << 20};
    struct sim_host *host = side == &f->server ? f->server_host : f->client_host;
    side->loop = f->sim != NULL ? sim_loop(host) : f->real_loop;
    side->net = f->sim != NULL ? sim_net(host) : f->real_net;
}

int net_setup(void **state)
{
    struct net_fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->form = *state;
    f->tls_host = "localhost";
    if (f->form->sim_seed != 0) {
        f->sim = sim_new(f->form->sim_seed);
        assert_non_null(f->sim);
        f->server_host = sim_host_new(f->sim, "server", NULL);
        f->client_host = sim_host_new(f->sim, "client", NULL);
    } else {
        assert_int_equal(loop_uv_new(&f->real_loop, NULL), 0);
        assert_int_equal(net_uv_new(f->real_loop, &f->real_net, NULL), 0);
        timer_init(&f->tick, f->real_loop, on_tick);
        timer_init(&f->limit, f->real_loop, on_limit);
        snprintf(f->dir, sizeof(f->dir), "/tmp/cairn-net-XXXXXX");
        assert_non_null(mkdtemp(f->dir));
    }
    side_init(f, &f->server, "server");
    side_init(f, &f->client, "client");
    if (f->form->tls) {
        assert_int_equal(net_tls_context(true, "server", "ca.crt", &f->server_tls, NULL), 0);
        assert_int_equal(net_tls_context(false, "client", "ca.crt", &f->client_tls, NULL), 0);
    }
    struct net_addr addr = {.family = NET_TCP, .port = 0};
    snprintf(addr.host, sizeof(addr.host), "%s", f->sim != NULL ? "server" : "127.0.0.1");
    if (f->sim == NULL && !f->form->tcp) {
        addr.family = NET_UNIX;
        snprintf(addr.host, sizeof(addr.host), "%s/sock", f->dir);
    }
    assert_int_equal(f->server.net->ops->listen(f->server.net, &addr, 0, on_accept, f, &f->listener,
                                                &f->addr, NULL),
                     0);
    *state = f;
    return 0;
}

static bool settled(struct net_fixture *f)
{
    (void)f;
    static unsigned turns;
    return ++turns % 20 == 0;
}

int net_teardown(void **state)
{
    struct net_fixture *f = *state;
    net_close_conn(&f->server);
    net_close_conn(&f->client);
    sock_close(f->raw);
    listener_close(f->listener);
    if (f->sim != NULL) {
        sim_run_for(f->sim, 5000);
        assert_int_equal(sim_open_socks(f->server_host), 0);
        assert_int_equal(sim_open_socks(f->client_host), 0);
        sim_free(f->sim);
    } else {
        run_within(f, settled, 2000);
        net_uv_free(f->real_net);
        loop_uv_free(f->real_loop);
        char path[96];
        snprintf(path, sizeof(path), "%s/sock", f->dir);
        err_ignore(unlink(path)); /* TCP has none */
        assert_int_equal(rmdir(f->dir), 0);
    }
    tls_context_free(f->server_tls);
    tls_context_free(f->client_tls);
    free(f);
    return 0;
}

static bool both_started(struct net_fixture *f)
{
    return f->server.conn != NULL || f->server.closes > 0;
}

void net_connect_conns(struct net_fixture *f)
{
    struct sock *sock;
    assert_int_equal(net_connect(f->client.net, &f->addr, &sock, NULL), 0);
    start(&f->client, sock, false);
    net_run(f, both_started);
}

static void raw_ready(void *user, unsigned events)
{
    struct net_fixture *f = user;
    (void)events;
    f->raw_is_ready = true;
    sock_want(f->raw, 0, NULL, NULL);
}

static bool raw_started(struct net_fixture *f) { return f->raw_is_ready && f->server.conn != NULL; }

void net_connect_raw(struct net_fixture *f)
{
    static const struct sock_handler HANDLER = {raw_ready};
    assert_int_equal(net_connect(f->client.net, &f->addr, &f->raw, NULL), 0);
    sock_want(f->raw, SOCK_WRITE, &HANDLER, f);
    net_run(f, raw_started);
}

void net_raw_send(struct net_fixture *f, size_t bytes, const void *data)
{
    struct iovec iov = {(void *)(uintptr_t)data, bytes};
    size_t sent = 0;
    assert_int_equal(sock_try_writev(f->raw, &iov, 1, &sent, NULL), 0);
    assert_int_equal(sent, bytes);
}

/* --- PKI
 * ------------------------------------------------------------------------------------------ */

static char pki_dir[64];

/* Runs a program to its end; 0 when it succeeded. */
static int run_program(const char *const *words)
{
    pid_t child;
    int result;
    if (posix_spawnp(&child, words[0], NULL, NULL, (char *const *)(uintptr_t)words, environ) != 0 ||
        waitpid(child, &result, 0) != child) {
        return -1;
    }
    return result;
}

static void remove_pki(void)
{
    if (run_program((const char *const[]){"rm", "-r", pki_dir, NULL}) != 0) {
        fprintf(stderr, "cannot remove %s\n", pki_dir);
    }
}

const char *net_pki(const char *file)
{
    static char path[128];
    if (pki_dir[0] == '\0') {
        snprintf(pki_dir, sizeof(pki_dir), "/tmp/cairn-pki-XXXXXX");
        assert_non_null(mkdtemp(pki_dir));
        const char *const words[] = {CAIRN_MAKE_PKI, "--cn",  "rank-3", "--expired",
                                     "--other-ca",   pki_dir, NULL};
        assert_int_equal(run_program(words), 0);
        assert_int_equal(atexit(remove_pki), 0);
    }
    snprintf(path, sizeof(path), "%s/%s", pki_dir, file);
    return path;
}

int net_tls_context(bool server, const char *name, const char *ca, struct tls_context **ret,
                    struct diag *diag)
{
    char cert[128] = "", key[128] = "", ca_file[128] = "", file[64];
    if (name != NULL) {
        snprintf(file, sizeof(file), "%s.crt", name);
        snprintf(cert, sizeof(cert), "%s", net_pki(file));
        snprintf(file, sizeof(file), "%s.key", name);
        snprintf(key, sizeof(key), "%s", net_pki(file));
    }
    snprintf(ca_file, sizeof(ca_file), "%s", net_pki(ca));
    struct tls_options options = {.cert_file = name != NULL ? cert : NULL,
                                  .key_file = name != NULL ? key : NULL,
                                  .ca_file = ca_file,
                                  .server = server,
                                  .require_peer = server};
    return tls_context_new(&options, ret, diag);
}

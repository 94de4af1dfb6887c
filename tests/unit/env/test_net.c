/* SPDX-License-Identifier: Apache-2.0
 *
 * Bytes come out as they went in over every transport, whatever the sizes of reads and writes; ends
 * and refusals are told as promised; no callback comes inside a call or after close. Method: an
 * echo server and a client that checks a pattern, on TCP, Unix and simulated sockets.
 */
#include <stdio.h>

#include "env_fixture.h"

enum { TOTAL = 700000, ECHO_BYTES = 50000 };

struct echo {
    struct env *env;
    struct listener *listener;
    struct net_addr addr;
    struct sock *server, *client;
    uint8_t buffer[ECHO_BYTES];
    size_t from, to;       /* unsent bytes of buffer */
    size_t sent, received; /* the client's */
    bool is_inside, is_connected;
    int server_end, client_end;
};

static uint8_t pattern(size_t at) { return (uint8_t)(at * 31 + at / 251); }

static const struct sock_handler server_handler, client_handler;

static void want(struct echo *echo, struct sock *sock, unsigned events,
                 const struct sock_handler *handler)
{
    echo->is_inside = true;
    sock_want(sock, events, handler, echo);
    echo->is_inside = false;
}

static void on_server_ready(void *user, unsigned events)
{
    struct echo *echo = user;
    int rc = 0;

    assert_false(echo->is_inside);
    while (!rc) {
        size_t bytes = 0;
        if (echo->from < echo->to) {
            struct iovec iov = {echo->buffer + echo->from, echo->to - echo->from};
            rc = sock_try_writev(echo->server, &iov, 1, &bytes, NULL);
            echo->from += bytes;
        } else {
            struct iovec iov[3] = {
                {echo->buffer, 7}, {echo->buffer, 0}, {echo->buffer + 7, ECHO_BYTES - 7}};
            rc = sock_try_readv(echo->server, iov, 3, &bytes, NULL);
            echo->from = 0;
            echo->to = bytes;
        }
    }
    if (rc == CAIRN_E_AGAIN) {
        want(echo, echo->server, echo->from < echo->to ? SOCK_WRITE : SOCK_READ, &server_handler);
        return;
    }
    echo->server_end = rc;
    sock_close(echo->server);
    echo->server = NULL;
    env_stop(echo->env);
}

static int client_write(struct echo *echo)
{
    uint8_t chunk[9000];
    struct iovec iov = {chunk, sizeof chunk};
    size_t bytes = 0;
    int rc;

    iov.iov_len = TOTAL - echo->sent < sizeof chunk ? TOTAL - echo->sent : sizeof chunk;
    if (!iov.iov_len) {
        return CAIRN_E_AGAIN;
    }
    for (size_t i = 0; i < iov.iov_len; i++) {
        chunk[i] = pattern(echo->sent + i);
    }
    rc = sock_try_writev(echo->client, &iov, 1, &bytes, NULL);
    echo->sent += bytes;
    return rc;
}

static int client_read(struct echo *echo)
{
    uint8_t chunk[7001];
    struct iovec iov = {chunk, sizeof chunk};
    size_t bytes = 0;
    int rc = sock_try_readv(echo->client, &iov, 1, &bytes, NULL);

    for (size_t i = 0; i < bytes; i++) {
        assert_int_equal(chunk[i], pattern(echo->received + i));
    }
    echo->received += bytes;
    return rc;
}

static void on_client_ready(void *user, unsigned events)
{
    struct echo *echo = user;
    int rc = 0;

    assert_false(echo->is_inside);
    echo->is_connected = echo->is_connected || events & SOCK_WRITE;
    while (!rc && events & SOCK_WRITE) {
        rc = client_write(echo);
    }
    assert_true(rc == 0 || rc == CAIRN_E_AGAIN);
    for (rc = 0; !rc && echo->received < TOTAL;) {
        rc = client_read(echo);
    }
    assert_true(rc == 0 || rc == CAIRN_E_AGAIN);
    if (echo->received == TOTAL) {
        sock_close(echo->client);
        echo->client = NULL;
        return;
    }
    want(echo, echo->client, SOCK_READ | (echo->sent < TOTAL ? SOCK_WRITE : 0u), &client_handler);
}

static const struct sock_handler server_handler = {on_server_ready},
                                 client_handler = {on_client_ready};

static void on_accept(void *user, struct sock *sock)
{
    struct echo *echo = user;
    char name[64];

    assert_false(echo->is_inside);
    assert_null(echo->server);
    echo->server = sock;
    sock_peer_name(sock, sizeof name, name);
    assert_true(strlen(name) > 4);
    assert_true(sock_is_loopback(sock));
    want(echo, sock, SOCK_READ, &server_handler);
    listener_close(echo->listener); /* from inside its own callback */
    echo->listener = NULL;
}

static struct echo *echo_listen(struct env *env, const char *text)
{
    struct echo *echo = calloc(1, sizeof *echo);
    struct net_addr addr;

    assert_non_null(echo);
    echo->env = env;
    assert_int_equal(net_addr_parse(text, 0, &addr, NULL), 0);
    assert_int_equal(env->net->ops->listen(env->net, &addr, 0, on_accept, echo, &echo->listener,
                                           &echo->addr, NULL),
                     0);
    assert_true(addr.family == NET_UNIX || echo->addr.port > 0);
    return echo;
}

static void run_echo(struct env *env, const char *listen_text, const char *connect_host)
{
    struct echo *echo = echo_listen(env, listen_text);

    if (connect_host) {
        snprintf(echo->addr.host, sizeof echo->addr.host, "%s", connect_host);
    }
    echo->is_inside = true;
    assert_int_equal(net_connect(env->net, &echo->addr, &echo->client, NULL), 0);
    echo->is_inside = false;
    want(echo, echo->client, SOCK_WRITE | SOCK_READ, &client_handler);
    env_run(env);
    assert_int_equal(echo->received, TOTAL);
    assert_int_equal(echo->server_end, CAIRN_E_ENDED);
    assert_null(echo->client);
    free(echo);
}

ENV_TESTS(test_echo_over_unix)
{
    char text[96];

    snprintf(text, sizeof text, "unix:%s/s", env->path);
    run_echo(env, text, NULL);
}

ENV_TESTS(test_echo_over_tcp)
{
    run_echo(env, "tcp:127.0.0.1:0", NULL);
    run_echo(env, env->is_sim ? "tcp:0.0.0.0:0" : "tcp:127.0.0.1:0",
             env->is_sim ? "host" : "localhost");
    run_echo(env, ":0", env->is_sim ? "host" : "127.0.0.1");
}

struct refused {
    struct env *env;
    struct sock *sock;
    int rc;
    struct diag diag;
};

static void on_refused(void *user, unsigned events)
{
    struct refused *refused = user;
    char byte = 0;
    struct iovec iov = {&byte, 1};
    size_t bytes;

    assert_int_equal(events, SOCK_WRITE);
    refused->rc = sock_try_writev(refused->sock, &iov, 1, &bytes, &refused->diag);
    sock_close(refused->sock);
    env_stop(refused->env);
}

static void check_refused(struct env *env, const char *text)
{
    static const struct sock_handler handler = {on_refused};
    struct refused refused = {.env = env};
    struct net_addr addr;

    assert_int_equal(net_addr_parse(text, 0, &addr, NULL), 0);
    assert_int_equal(net_connect(env->net, &addr, &refused.sock, NULL), 0);
    sock_want(refused.sock, SOCK_WRITE, &handler, &refused);
    env_run(env);
    assert_int_equal(refused.rc, CAIRN_E_UNREACHABLE);
    assert_non_null(strstr(refused.diag.text, addr.host));
}

ENV_TESTS(test_a_refused_connect_shows_at_the_first_try)
{
    char text[96];

    snprintf(text, sizeof text, "unix:%s/nobody", env->path);
    check_refused(env, text);
    check_refused(env, "tcp:127.0.0.1:1");
    check_refused(env, "tcp:localhost:1");
    check_refused(env, "tcp:no-such-host.invalid:1");
}

ENV_TESTS(test_close_before_connected_is_silent)
{
    struct echo *echo = echo_listen(env, "tcp:127.0.0.1:0");
    struct net_addr name = echo->addr;
    struct sock *sock = NULL;

    assert_int_equal(net_connect(env->net, &echo->addr, &sock, NULL), 0);
    want(echo, sock, SOCK_READ | SOCK_WRITE, &client_handler);
    sock_close(sock);
    snprintf(name.host, sizeof name.host, "localhost"); /* cancelled while its name is looked up */
    assert_int_equal(net_connect(env->net, &name, &sock, NULL), 0);
    want(echo, sock, SOCK_READ | SOCK_WRITE, &client_handler);
    sock_close(sock);
    timer_stop(&env->guard);
    if (env->is_sim) {
        sim_run_for(env->sim, 100);
    }
    assert_false(echo->is_connected);
    sock_close(echo->server);
    listener_close(echo->listener);
    free(echo);
}

ENV_TESTS(test_an_address_in_use_is_busy)
{
    struct echo *echo = echo_listen(env, "tcp:127.0.0.1:0");
    struct listener *other = NULL;

    assert_int_equal(
        env->net->ops->listen(env->net, &echo->addr, 0, on_accept, echo, &other, NULL, NULL),
        CAIRN_E_BUSY);
    listener_close(echo->listener);
    free(echo);
}

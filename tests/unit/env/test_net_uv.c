/* SPDX-License-Identifier: Apache-2.0
 *
 * Real sockets replace stale Unix paths, keep their modes, leave no descriptor behind, move between
 * loops, and survive a forked child's copies. Method: two sockets in one process, the kernel's
 * limits turned down.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "env_fixture.h"

enum { CONNS_MAX = 4 };

static struct {
    struct env *env;
    struct sock *sock[CONNS_MAX];
    size_t count, stop_at;
} accepted;

static void on_accept(void *user, struct sock *sock)
{
    accepted.sock[accepted.count++] = sock;
    if (accepted.count == accepted.stop_at) {
        env_stop(accepted.env);
    }
}

static int listen_at(struct env *env, const char *name, unsigned mode, struct listener **ret,
                     struct diag *diag)
{
    struct net_addr addr = {.family = NET_UNIX};

    snprintf(addr.host, sizeof addr.host, "%s/%s", env->path, name);
    accepted.env = env;
    accepted.count = 0;
    accepted.stop_at = 1;
    return env->net->ops->listen(env->net, &addr, mode, on_accept, NULL, ret, NULL, diag);
}

static int raw_connect(struct env *env, const char *name)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    snprintf(addr.sun_path, sizeof addr.sun_path, "%.60s/%.30s", env->path, name);
    if (connect(fd, (struct sockaddr *)&addr, sizeof addr)) {
        close(fd);
        return -1;
    }
    return fd;
}

static void close_all(void)
{
    while (accepted.count) {
        sock_close(accepted.sock[--accepted.count]);
    }
}

ENV_TEST(test_a_stale_path_is_replaced_and_a_live_one_is_not)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct listener *first = NULL, *second = NULL;
    struct diag diag = DIAG_INIT;
    struct stat st;
    int dead = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(addr.sun_path, sizeof addr.sun_path, "%.60s/s", env->path);
    assert_int_equal(bind(dead, (struct sockaddr *)&addr, sizeof addr), 0);
    close(dead); /* the path stays, nobody answers */
    assert_int_equal(listen_at(env, "s", 0, &first, NULL), 0);
    assert_int_equal(stat(addr.sun_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(listen_at(env, "s", 0, &second, &diag), CAIRN_E_BUSY);
    assert_non_null(strstr(diag.text, addr.sun_path));
    listener_close(first);
    assert_int_equal(stat(addr.sun_path, &st), -1); /* tidy */
    assert_int_equal(listen_at(env, "s", 0660, &first, NULL), 0);
    assert_int_equal(stat(addr.sun_path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
    listener_close(first);
}

ENV_TEST(test_a_file_in_the_way_is_left_alone)
{
    struct listener *listener = NULL;
    char path[96];
    FILE *file;

    snprintf(path, sizeof path, "%s/f", env->path);
    file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(listen_at(env, "f", 0, &listener, NULL), CAIRN_E_EXISTS);
    assert_int_equal(access(path, F_OK), 0);
}

static void on_tick(struct timer *timer) { env_stop(accepted.env); }

/* With no descriptor left the peer is turned away at once and the loop sleeps instead of spinning.
 */
ENV_TEST(test_accept_without_descriptors_turns_away)
{
    struct listener *listener = NULL;
    struct rlimit old, low;
    struct rusage before, after;
    struct timer tick;
    char byte;
    int client, probe;

    assert_int_equal(listen_at(env, "s", 0, &listener, NULL), 0);
    client = raw_connect(env, "s");
    assert_true(client >= 0);
    probe = dup(0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    low = (struct rlimit){(rlim_t)probe, old.rlim_max};
    close(probe);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    timer_init(&tick, env->loop, on_tick);
    timer_start(&tick, 300);
    getrusage(RUSAGE_THREAD, &before);
    env_run(env);
    getrusage(RUSAGE_THREAD, &after);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(accepted.count, 0);
    assert_int_equal(recv(client, &byte, 1, MSG_DONTWAIT), 0); /* closed, not left hanging */
    assert_true(after.ru_utime.tv_sec == before.ru_utime.tv_sec ||
                after.ru_utime.tv_usec < before.ru_utime.tv_usec);
    close(client);
    client = raw_connect(env, "s"); /* and it works again */
    env_run(env);
    assert_int_equal(accepted.count, 1);
    close_all();
    close(client);
    listener_close(listener);
}

ENV_TEST(test_peer_name_tells_who)
{
    struct listener *listener = NULL;
    char name[64], expected[64];
    int client;

    assert_int_equal(listen_at(env, "s", 0, &listener, NULL), 0);
    client = raw_connect(env, "s");
    env_run(env);
    sock_peer_name(accepted.sock[0], sizeof name, name);
    snprintf(expected, sizeof expected, "unix pid %d uid %u", getpid(), getuid());
    assert_string_equal(name, expected);
    uint32_t uid = UINT32_MAX;
    assert_true(sock_peer_uid(accepted.sock[0], &uid));
    assert_int_equal(uid, getuid());
    close_all();
    close(client);
    listener_close(listener);
}

/* A descriptor that is connected already is read like any other socket. */
ENV_TEST(test_a_connected_descriptor_is_adopted)
{
    struct sock *adopted = NULL;
    char text[3] = {0};
    struct iovec iov = {text, 2};
    size_t bytes = 0;
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    assert_int_equal(net_uv_adopt(env->net, pair[0], &adopted, NULL), 0);
    assert_int_equal(write(pair[1], "hi", 2), 2);
    assert_int_equal(sock_try_readv(adopted, &iov, 1, &bytes, NULL), 0);
    assert_string_equal(text, "hi");
    sock_close(adopted);
    close(pair[1]);
}

/* A reset is CONNECTION_LOST with the peer in its text; it is not an orderly end. */
ENV_TEST(test_a_reset_is_a_lost_connection)
{
    struct net_addr addr;
    struct listener *listener = NULL;
    struct sock *client = NULL;
    struct diag diag = DIAG_INIT;
    char byte = 0;
    struct iovec iov = {&byte, 1};
    size_t bytes = 0;

    accepted.env = env;
    accepted.count = 0;
    accepted.stop_at = 1;
    assert_int_equal(net_addr_parse("127.0.0.1:0", 0, &addr, NULL), 0);
    assert_int_equal(
        env->net->ops->listen(env->net, &addr, 0, on_accept, NULL, &listener, &addr, NULL), 0);
    assert_int_equal(net_connect(env->net, &addr, &client, NULL), 0);
    assert_int_equal(sock_try_readv(client, &iov, 1, &bytes, NULL),
                     CAIRN_E_AGAIN); /* not connected yet */
    env_run(env);
    /* The kernel resets a connection that is closed with bytes that nobody has read. */
    assert_int_equal(sock_try_writev(accepted.sock[0], &iov, 1, &bytes, NULL), 0);
    sock_close(client);
    assert_int_equal(sock_try_readv(accepted.sock[0], &iov, 1, &bytes, &diag),
                     CAIRN_E_CONNECTION_LOST);
    assert_true(strlen(diag.text) > 10);
    close_all();
    listener_close(listener);
}

/* The parent's close reaches the peer although a child lives on, if the child abandoned its copies.
 */
ENV_TEST(test_an_abandoned_copy_hides_no_end)
{
    struct listener *listener = NULL;
    int client, go[2], ready[2], status;
    char byte = 0;
    pid_t child;

    assert_int_equal(listen_at(env, "s", 0, &listener, NULL), 0);
    client = raw_connect(env, "s");
    env_run(env);
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(ready), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(client);
        close(go[1]);
        net_uv_abandon(env->net);
        loop_uv_abandon(env->loop);
        _exit(write(ready[1], "r", 1) == 1 && read(go[0], &byte, 1) == 0 ? 0 : 1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close_all();
    assert_int_equal(recv(client, &byte, 1, 0), 0);
    close(go[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(go[0]);
    close(ready[0]);
    close(ready[1]);
    close(client);
    client = raw_connect(env, "s"); /* the parent's loop is unharmed */
    env_run(env);
    close_all();
    close(client);
    listener_close(listener);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening against servers that are not there or do not answer ends in time with a text that helps,
 * and a child forked meanwhile keeps nothing of the connection. Method: the real engine against
 * sockets of the test.
 */
#include "cairn.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/unit_test.h"

enum { DEADLINE_MS = 1500, FDS_MAX = 256 };

static int listen_somewhere(char *ret_url, size_t bytes)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof addr;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof addr), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &length), 0);
    assert_true(snprintf(ret_url, bytes, "cairn://127.0.0.1:%u/demo/run1", ntohs(addr.sin_port)) >
                0);
    return fd;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

struct opening {
    char url[64];
    int rc;
    struct cairn_error err;
    uint64_t took_ms;
};

static void *open_it(void *arg)
{
    struct opening *opening = arg;
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    cairn_t *cairn = NULL;
    uint64_t begin = now_ms();
    options.io_deadline_ms = DEADLINE_MS;
    opening->rc = cairn_open(opening->url, &options, &cairn, &opening->err);
    opening->took_ms = now_ms() - begin;
    return NULL;
}

static void assert_says(const struct opening *opening, const char *text)
{
    if (strstr(opening->err.text, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", opening->err.text, text);
    }
}

TEST(test_a_server_that_is_not_there_is_named_in_time)
{
    struct opening opening;
    int fd = listen_somewhere(opening.url, sizeof opening.url);
    close(fd); /* nobody listens there now */
    open_it(&opening);
    assert_int_equal(opening.rc, CAIRN_E_UNREACHABLE);
    assert_says(&opening, opening.url);
    assert_says(&opening, "127.0.0.1");
    assert_says(&opening, "check that cairnd is running there");
    const char *remedy = strstr(opening.err.text, "check that cairnd is running there");
    assert_null(strstr(remedy + 1, "check that")); /* once */
    assert_true(opening.took_ms < DEADLINE_MS + 5000);
}

TEST(test_a_socket_that_is_not_there_is_named)
{
    struct opening opening;
    snprintf(opening.url, sizeof opening.url, "cairn+unix:///nonexistent/cairn.sock?run=demo/run1");
    open_it(&opening);
    assert_int_equal(opening.rc, CAIRN_E_UNREACHABLE);
    assert_says(&opening, "/nonexistent/cairn.sock");
}

/* Connected sockets and epoll sets among the descriptors of this process. */
static int count_connections(void)
{
    int count = 0;
    for (int fd = 3; fd < FDS_MAX; fd++) {
        struct sockaddr_storage peer;
        socklen_t length = sizeof peer;
        char path[32], target[64] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ssize_t bytes = readlink(path, target, sizeof target - 1);
        count += bytes > 0 && strstr(target, "eventpoll") != NULL;
        count += getpeername(fd, (struct sockaddr *)&peer, &length) == 0;
    }
    return count;
}

TEST(test_a_forked_child_keeps_nothing_of_the_connection)
{
    struct opening opening;
    pthread_t thread;
    char hello[256];
    int status = 0;
    int fd = listen_somewhere(opening.url, sizeof opening.url);
    assert_int_equal(pthread_create(&thread, NULL, open_it, &opening), 0);
    int conn = accept(fd, NULL, NULL);
    assert_true(conn >= 0);
    assert_true(read(conn, hello, sizeof hello) > 0); /* the client is connected and has spoken */
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(conn);
        close(fd);
        _exit(count_connections());
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_true(count_connections() >= 3); /* here: both ends, and the epoll set */

    pthread_join(thread, NULL); /* nobody ever answers */
    assert_true(opening.rc == CAIRN_E_UNREACHABLE || opening.rc == CAIRN_E_TIMED_OUT);
    assert_says(&opening, "127.0.0.1");
    assert_true(opening.took_ms < DEADLINE_MS + 5000);
    close(conn);
    close(fd);
    assert_int_equal(count_connections(), 0);
}

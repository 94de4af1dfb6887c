/* SPDX-License-Identifier: Apache-2.0
 *
 * A descriptor arrives with its message, as another one of the same file, only where it is wanted,
 * and none is ever left behind. Method: two conns over a Unix socket in this process, files told
 * apart by their length, descriptors counted before and after.
 */
#include "net_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MESSAGES = 300 };

struct arrivals {
    unsigned plain, with_fd, without_fd;
    bool takes;
};

static size_t count_fds(void)
{
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) {
        count++;
    }
    assert_int_equal(closedir(dir), 0);
    return count;
}

static int file_of(off_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, bytes), 0);
    return fd;
}

static int on_message(struct side *side, const struct frame *frame, const struct msg *msg,
                      void **ret_payload, struct diag *diag)
{
    struct arrivals *came = side->f->test;
    (void)frame, (void)ret_payload, (void)diag;
    if (msg->type != MSG_ARENA) {
        came->plain++;
        return 0;
    }
    int fd = came->takes ? conn_take_fd(side->conn) : -1;
    if (fd < 0) {
        came->without_fd++;
        return 0;
    }
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, msg->u.arena.bytes); /* this message's, not another's */
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(close(fd), 0);
    came->with_fd++;
    return 0;
}

static void start(struct net_fixture *f, struct arrivals *came, unsigned accept)
{
    f->test = came;
    f->server.on_message = on_message;
    net_connect_conns(f);
    assert_true(conn_passes_fds(f->client.conn));
    conn_accept_fds(f->server.conn, accept);
}

static void send_arena(struct net_fixture *f, uint32_t stream, bool with_fd)
{
    struct msg msg = {.type = MSG_ARENA, .u.arena = {.arena_id = stream, .bytes = stream}};
    if (with_fd) {
        conn_send_fd(f->client.conn, stream, &msg, file_of(stream));
    } else {
        conn_send_always(f->client.conn, stream, &msg);
    }
}

static void send_plain(struct net_fixture *f, uint32_t stream)
{
    struct msg msg = {.type = MSG_LIST, .u.list = {.before_seq = stream}};
    conn_send_always(f->client.conn, stream, &msg);
}

static bool all_came(struct net_fixture *f)
{
    const struct arrivals *came = f->test;
    return came->plain + came->with_fd + came->without_fd == MESSAGES;
}

NET_TEST(test_each_arrives_with_its_message)
{
    struct arrivals came = {.takes = true};
    size_t before = count_fds();
    start(f, &came, NET_FDS_MAX);
    size_t connected = count_fds();
    for (uint32_t i = 1; i <= MESSAGES; i++) {
        if (i % 3 == 0) {
            send_arena(f, i, true);
        } else {
            send_plain(f, i);
        }
    }
    net_run(f, all_came);
    assert_int_equal(came.with_fd, MESSAGES / 3);
    assert_int_equal(count_fds(), connected);
    assert_true(connected > before);
}

/* Nobody said that he wants any: they are closed as they come. */
NET_TEST(test_unwanted_ones_are_closed)
{
    struct arrivals came = {.takes = true};
    start(f, &came, 0);
    size_t connected = count_fds();
    for (uint32_t i = 1; i <= MESSAGES; i++) {
        send_arena(f, i, i % 2 == 0);
    }
    net_run(f, all_came);
    assert_int_equal(came.with_fd, 0);
    assert_int_equal(count_fds(), connected);
}

/* Wanted and never taken: no more than were allowed stay open, and closing closes those. */
NET_TEST(test_a_peer_cannot_fill_our_table)
{
    struct arrivals came = {.takes = false};
    size_t before = count_fds();
    start(f, &came, NET_FDS_MAX);
    size_t connected = count_fds();
    for (uint32_t i = 1; i <= MESSAGES; i++) {
        send_arena(f, i, true);
    }
    net_run(f, all_came);
    assert_int_equal(count_fds(), connected + NET_FDS_MAX);
    net_close_conn(&f->server);
    net_close_conn(&f->client);
    net_run_for(f, 50);
    assert_int_equal(count_fds(), before);
}

NET_TEST(test_what_was_not_sent_is_closed)
{
    struct arrivals came = {.takes = true};
    size_t before = count_fds();
    start(f, &came, NET_FDS_MAX);
    for (uint32_t i = 1; i <= 8; i++) {
        send_arena(f, i, true);
    }
    net_close_conn(&f->client);
    net_close_conn(&f->server);
    net_run_for(f, 50);
    assert_int_equal(count_fds(), before);
}

NET_TEST(test_none_over_tcp_or_tls)
{
    net_connect_conns(f);
    assert_false(conn_passes_fds(f->client.conn));
    assert_false(conn_passes_fds(f->server.conn));
    assert_int_equal(conn_take_fd(f->server.conn), -1);
}

static const struct net_form LOCAL = {.name = "unix"}, TCP = {.name = "tcp", .tcp = true},
                             TLS = {.name = "tls over unix", .tls = true},
                             SIM = {.name = "sim", .sim_seed = 3};

NET_ROW(test_each_arrives_with_its_message, LOCAL)
NET_ROW(test_unwanted_ones_are_closed, LOCAL)
NET_ROW(test_a_peer_cannot_fill_our_table, LOCAL)
NET_ROW(test_what_was_not_sent_is_closed, LOCAL)
NET_ROW(test_none_over_tcp_or_tls, TCP)
NET_ROW(test_none_over_tcp_or_tls, TLS)
NET_ROW(test_none_over_tcp_or_tls, SIM)

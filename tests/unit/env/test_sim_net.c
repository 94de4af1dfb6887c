/* SPDX-License-Identifier: Apache-2.0
 *
 * The simulated network fails as a real one does, and a seed replays exactly. Method: a server that
 * counts bytes and a client that sends them, under cuts, partitions and deaths at chosen moments.
 */
#include <stdio.h>

#include "env_fixture.h"

enum { TOTAL = 30000, SEEDS = 100 };

struct peer {
    struct sock *sock;
    size_t bytes; /* sent or received */
    int end;      /* the code that ended it; 0: none yet */
};

struct pair {
    struct sim *sim;
    struct sim_host *server_host, *client_host;
    struct listener *listener;
    struct peer server, client;
};

static void end_peer(struct peer *peer, int code)
{
    peer->end = code;
    sock_close(peer->sock);
    peer->sock = NULL;
}

static void on_server_ready(void *user, unsigned events)
{
    struct pair *pair = user;
    uint8_t chunk[997];
    struct iovec iov = {chunk, sizeof chunk};
    size_t bytes = 0;
    int rc = 0;

    while (!rc) {
        rc = sock_try_readv(pair->server.sock, &iov, 1, &bytes, NULL);
        for (size_t i = 0; !rc && i < bytes; i++) {
            assert_int_equal(chunk[i], (uint8_t)(pair->server.bytes++ % 251));
        }
    }
    if (rc != CAIRN_E_AGAIN) {
        end_peer(&pair->server, rc);
    }
}

static void on_client_ready(void *user, unsigned events)
{
    struct pair *pair = user;
    uint8_t chunk[1500];
    struct iovec iov = {chunk, sizeof chunk};
    size_t bytes = 0;
    int rc;

    for (size_t i = 0; i < sizeof chunk; i++) {
        chunk[i] = (uint8_t)((pair->client.bytes + i) % 251);
    }
    iov.iov_len =
        TOTAL - pair->client.bytes < sizeof chunk ? TOTAL - pair->client.bytes : sizeof chunk;
    rc = sock_try_writev(pair->client.sock, &iov, 1, &bytes, NULL);
    pair->client.bytes += rc ? 0 : bytes;
    if (rc && rc != CAIRN_E_AGAIN) {
        end_peer(&pair->client, rc);
    } else if (pair->client.bytes == TOTAL) {
        end_peer(&pair->client, CAIRN_E_ENDED);
    }
}

static const struct sock_handler server_handler = {on_server_ready},
                                 client_handler = {on_client_ready};

static void on_accept(void *user, struct sock *sock)
{
    struct pair *pair = user;

    pair->server.sock = sock;
    sock_want(sock, SOCK_READ, &server_handler, pair);
}

static struct pair *pair_new(uint64_t seed)
{
    struct pair *pair = calloc(1, sizeof *pair);
    struct net_addr addr = {.family = NET_TCP, .host = "server", .port = 7};
    struct net *net;

    assert_non_null(pair);
    pair->sim = sim_new(seed);
    pair->server_host = sim_host_new(pair->sim, "server", NULL);
    pair->client_host = sim_host_new(pair->sim, "client", NULL);
    net = sim_net(pair->server_host);
    assert_int_equal(net->ops->listen(net, &addr, 0, on_accept, pair, &pair->listener, NULL, NULL),
                     0);
    assert_int_equal(net_connect(sim_net(pair->client_host), &addr, &pair->client.sock, NULL), 0);
    sock_want(pair->client.sock, SOCK_WRITE, &client_handler, pair);
    return pair;
}

static void pair_free(struct pair *pair)
{
    sock_close(pair->server.sock);
    sock_close(pair->client.sock);
    listener_close(pair->listener);
    sim_run_for(pair->sim, 1000);
    assert_int_equal(sim_open_socks(pair->server_host), 0);
    assert_int_equal(sim_open_socks(pair->client_host), 0);
    sim_free(pair->sim);
    free(pair);
}

static bool server_ended(void *user) { return ((struct pair *)user)->server.end; }
static bool client_ended(void *user) { return ((struct pair *)user)->client.end; }
static bool is_half_way(void *user) { return ((struct pair *)user)->server.bytes > TOTAL / 2; }

TEST(test_a_seed_replays)
{
    uint64_t trace[3];

    for (size_t i = 0; i < 3; i++) {
        struct pair *pair = pair_new(i == 2 ? 78 : 77);

        assert_true(sim_run_until(pair->sim, server_ended, pair, 10000));
        assert_int_equal(pair->server.bytes, TOTAL);
        assert_int_equal(pair->server.end, CAIRN_E_ENDED);
        trace[i] = sim_trace_hash(pair->sim) ^ sim_steps(pair->sim);
        pair_free(pair);
    }
    assert_true(trace[0] == trace[1]);
    assert_true(trace[0] != trace[2]);
}

TEST(test_a_cut_is_told_to_both_ends)
{
    unsigned cuts = 0;

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct pair *pair = pair_new(seed);

        if (sim_run_until(pair->sim, is_half_way, pair, 10000) && pair->client.sock) {
            assert_int_equal(sim_cut(pair->sim, "client", NULL), 1);
            assert_true(sim_run_until(pair->sim, server_ended, pair, 1000));
            assert_int_equal(pair->server.end, CAIRN_E_CONNECTION_LOST);
            assert_true(pair->server.bytes <= pair->client.bytes);
            assert_true(sim_run_until(pair->sim, client_ended, pair, 1000));
            cuts++;
        }
        pair_free(pair);
    }
    assert_true(cuts > 5);
}

TEST(test_a_dead_peer_resets_or_is_silent)
{
    unsigned seen[2] = {0};

    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct pair *pair = pair_new(seed);
        bool is_silent = seed % 2;

        assert_true(sim_run_until(pair->sim, is_half_way, pair, 10000));
        if (pair->client.end) { /* it has sent all and closed: nothing is left to see */
            pair_free(pair);
            continue;
        }
        seen[is_silent]++;
        sim_kill(pair->client_host, is_silent ? SIM_SILENT : SIM_RESET);
        assert_true(sim_run_until(pair->sim, server_ended, pair, 60000) != is_silent);
        assert_int_equal(pair->server.end, is_silent ? 0 : CAIRN_E_CONNECTION_LOST);
        assert_true(client_ended(pair)); /* the dead one's code was told as well */
        pair_free(pair);
    }
    assert_true(seen[0] > 5 && seen[1] > 5);
}

TEST(test_a_partition_holds_and_heals)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct pair *pair = pair_new(seed);
        size_t before;

        if (seed % 2) { /* else from before the connect on */
            assert_true(sim_run_until(pair->sim, is_half_way, pair, 10000));
        }
        sim_partition(pair->sim, "client", seed % 3 ? "server" : NULL, true);
        sim_run_for(pair->sim, 100); /* what had arrived is read */
        before = pair->server.bytes;
        sim_run_for(pair->sim, 60000);
        assert_int_equal(pair->server.bytes, before);
        sim_partition(pair->sim, "client", seed % 3 ? "server" : NULL, false);
        assert_true(sim_run_until(pair->sim, server_ended, pair, 10000));
        assert_int_equal(pair->server.bytes, TOTAL);
        assert_int_equal(pair->server.end, CAIRN_E_ENDED);
        pair_free(pair);
    }
}

TEST(test_a_restarted_host_listens_again)
{
    struct pair *pair = pair_new(4);
    struct net_addr addr = {.family = NET_TCP, .host = "server", .port = 7};
    struct sim_host *again;
    struct listener *listener = NULL;
    struct net *net;

    sim_kill(pair->server_host, SIM_RESET);
    assert_true(sim_run_until(pair->sim, client_ended, pair, 1000));
    assert_int_equal(pair->client.end, CAIRN_E_UNREACHABLE);
    again = sim_restart(pair->server_host);
    net = sim_net(again);
    assert_int_equal(net->ops->listen(net, &addr, 0, on_accept, pair, &listener, NULL, NULL), 0);
    pair->client = (struct peer){0};
    assert_int_equal(net_connect(sim_net(pair->client_host), &addr, &pair->client.sock, NULL), 0);
    sock_want(pair->client.sock, SOCK_WRITE, &client_handler, pair);
    assert_true(sim_run_until(pair->sim, server_ended, pair, 10000));
    assert_int_equal(pair->server.bytes, TOTAL);
    listener_close(listener);
    pair_free(pair);
}

static unsigned at_calls;

static void on_at(void *user)
{
    assert_int_equal(sim_now_ns(user), 7000000);
    at_calls++;
}

TEST(test_at_calls_at_its_moment)
{
    struct sim *sim = sim_new(1);

    at_calls = 0;
    sim_at(sim, 7, on_at, sim);
    sim_at(sim, 7, on_at, sim);
    sim_at(sim, 700, on_at, sim); /* freed with the world */
    sim_run_for(sim, 100);
    assert_int_equal(at_calls, 2);
    sim_free(sim);
}

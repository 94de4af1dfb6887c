/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that sessions share is bounded and comes back: grants are used or lost, replies are read
 * or the connection goes, parts keep to their budget, many sessions get the same. Method: scripted
 * clients that take and do not give.
 */
#include "session_rig.h"

#include "support/unit_test.h"

enum { MANY = 6 };

static struct rig rig;
static struct peer peers[MANY];

static void setup(void)
{
    rig_init(&rig, 14);
    rig_start(&rig);
    peers_init(&rig, MANY, peers, MANY);
}

static void teardown(void)
{
    peers_fini(MANY, peers);
    rig_fini(&rig);
}

static void want(struct peer *peer, uint32_t buffers)
{
    peer_send(peer, (struct msg){.type = MSG_WANT, .u.want = {.buffers = buffers}});
}

static uint64_t buffers_free(void)
{
    struct server_stats stats;
    server_stats(rig.server, &stats);
    return stats.buffers_free;
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

FIXED_TEST(test_grants_are_shared_out)
{
    for (unsigned i = 0; i < 4; i++) {
        assert_true(peer_login(&peers[i]));
    }
    for (unsigned i = 0; i < 4; i++) {
        want(&peers[i], 1000);
    }
    sim_run_for(rig.sim, 100);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(peers[i].grants, 2); /* of 8 buffers */
    }
    assert_int_equal(buffers_free(), 0);
    peer_drop(&peers[0]);
    sim_run_for(rig.sim, 100);
    uint32_t all = peers[1].grants + peers[2].grants + peers[3].grants;
    assert_int_equal(all, 8 - buffers_free());
}

FIXED_TEST(test_unused_grants_cost_the_connection)
{
    assert_true(peer_login(&peers[0]));
    assert_true(peer_login(&peers[1]));
    want(&peers[0], 3);
    assert_true(peer_await_credits(&peers[0], 3));
    uint64_t from_ns = sim_now_ns(rig.sim);
    assert_true(peer_await_end(&peers[0]));
    uint64_t took_ns = sim_now_ns(rig.sim) - from_ns;
    assert_in_range(took_ns, UINT64_C(4900000000), UINT64_C(10100000000));
    sim_run_for(rig.sim, 100);
    assert_int_equal(buffers_free(), 8);
    assert_non_null(peers[1].conn); /* who holds nothing may be silent for as long as it lives */
}

/* Grants that are used, even just before the look, are no offence. */
FIXED_TEST(test_used_grants_cost_nothing)
{
    peer_begin(&peers[0], 10, 77);
    for (uint32_t i = 0; i < 60; i++) {
        peers[0].chunk_count = peers[0].object_count = 0;
        sim_run_for(rig.sim, 487);
        assert_true(peer_object(&peers[0], i, 1));
    }
    assert_non_null(peers[0].conn);
}

/* Sends the first byte of a part of that length, and returns the answer to it, or NULL after a
 * while without one. */
static const struct peer_reply *begin_part(struct peer *peer, uint64_t total_bytes)
{
    uint8_t byte = 0;
    uint32_t stream = peer->next_stream;
    struct msg part = {.type = MSG_PART, .u.part = {peer->id, peer->open_id, 0, total_bytes}};
    size_t before = peer->reply_count;
    peer_send_payload(peer, part, 1, &byte);
    sim_run_for(rig.sim, 100);
    return peer->reply_count > before ? peer_await(peer, stream) : NULL;
}

/* A part for which there is no room is refused without the connection, and what follows of it is
 * dropped. Its client sends it again; starting over gives back what was taken. */
FIXED_TEST(test_part_budget)
{
    uint8_t byte = 0;
    struct peer *peer = &peers[1];
    for (unsigned i = 0; i < 2; i++) {
        peer_begin(&peers[i], 10, i == 0 ? 77 : 0);
    }
    assert_true(peer_object(peer, 0, 1));
    assert_null(begin_part(&peers[0], MIB(6)));
    const struct peer_reply *reply = begin_part(peer, MIB(6));
    peer_expect_error(reply, CAIRN_E_BUSY, "");
    size_t replies = peer->reply_count;
    struct msg rest = {.type = MSG_PART, .u.part = {peer->id, peer->open_id, 1, MIB(6)}};
    struct msg seal = {.type = MSG_SEAL,
                       .u.seal = {.id = peer->id, .open_id = peer->open_id, .part_bytes = MIB(6)}};
    peer_send_payload(peer, rest, 1, &byte);
    peer_send(peer, seal);
    sim_run_for(rig.sim, 100);
    assert_int_equal(peer->reply_count, replies);
    reply = begin_part(peer, MIB(9));
    assert_int_equal(reply->msg.u.error.code, CAIRN_E_TOO_LARGE);
    peer_drop(&peers[0]); /* its share is free again */
    sim_run_for(rig.sim, 100);
    assert_null(begin_part(peer, MIB(6)));
    assert_null(begin_part(peer, MIB(6)));
    assert_int_equal(peer_seal_all(peer)->type, MSG_SEALED); /* on the same connection */
}

/* A viewer that asks for everything and reads nothing does not keep the buffers. */
FIXED_TEST(test_reader_that_does_not_read)
{
    struct msg read = {.type = MSG_READ};
    peers[0].world = 1;
    assert_true(peer_save(&peers[0], 10, 77, 60));
    assert_int_equal(peer_outcome(&peers[0])->msg.u.outcome.state, SAVE_COMMITTED);
    assert_true(peer_viewer(&peers[1]));
    conn_set_heartbeat(peers[1].conn, 500, 0); /* it lives, it only does not read */
    conn_pause(peers[1].conn);
    read.u.read.object = (struct object_id){.term = 1, .step = 10, .writer = 100};
    read.u.read.bytes = 60 * RIG_CHUNK;
    for (unsigned i = 0; i < 40; i++) {
        peer_send(&peers[1], read);
    }
    sim_run_for(rig.sim, 2000);
    assert_int_equal(buffers_free(), 4); /* half of them: there are two sessions */
    sim_run_for(rig.sim, 15000);
    assert_int_equal(buffers_free(), 8);
    assert_true(peer_await_end(&peers[1]));
    assert_non_null(peers[0].conn);
}

static uint64_t message_bytes(void)
{
    struct server_stats stats;
    server_stats(rig.server, &stats);
    return stats.message_bytes;
}

/* Asks for lists without taking a reply, until so many bytes of them are held or the end. */
static void ask_without_reading(struct peer *peer, uint64_t bytes_max)
{
    uint64_t from = message_bytes();
    conn_set_heartbeat(peer->conn, 500, 0);
    conn_pause(peer->conn);
    for (unsigned i = 0; i < 400 && peer->conn && message_bytes() - from < bytes_max; i++) {
        for (unsigned k = 0; k < 100; k++) {
            peer_send(peer, (struct msg){.type = MSG_LIST, .u.list = {.limit = 1}});
        }
        sim_run_for(rig.sim, 5);
    }
}

/* The server stops reading from a peer that does not take its replies, and in the end drops it. */
FIXED_TEST(test_replies_that_nobody_takes)
{
    peers[0].world = 1;
    assert_true(peer_save(&peers[0], 10, 77, 4));
    assert_true(peer_viewer(&peers[1]));
    ask_without_reading(&peers[1], UINT64_MAX);
    assert_in_range(message_bytes(), KIB(512), MIB(3));
    sim_run_for(rig.sim, 15000);
    assert_true(peer_await_end(&peers[1]));
    assert_int_equal(message_bytes(), 0);
    assert_int_equal(peer_outcome(&peers[0])->msg.u.outcome.state, SAVE_COMMITTED);
}

static void setup_few_places(void)
{
    rig_init(&rig, 15);
    rig.options.sessions_max = 4;
    rig.options.message_bytes_total = KIB(256);
    rig_start(&rig);
    peers_init(&rig, MANY, peers, MANY);
}

#define FEW_PLACES_TEST(name) SETUP_TEST(name, setup_few_places, teardown)

/* Above the budget of all sessions the one that holds most goes, and nobody else. */
FEW_PLACES_TEST(test_message_budget)
{
    peers[0].world = 1;
    assert_true(peer_save(&peers[0], 10, 77, 4));
    assert_true(peer_viewer(&peers[1]));
    assert_true(peer_viewer(&peers[2]));
    ask_without_reading(&peers[1], KIB(100));
    ask_without_reading(&peers[2], KIB(250));
    assert_true(peer_await_end(&peers[2]));
    assert_non_null(peers[1].conn);
    assert_in_range(message_bytes(), 1, KIB(256));
    assert_int_equal(peer_outcome(&peers[0])->msg.u.outcome.state, SAVE_COMMITTED);
}

/* A silent connection gives its place to one that logs in; one that has logged in does not. */
FEW_PLACES_TEST(test_silent_connections_make_room)
{
    for (unsigned i = 0; i < 4; i++) {
        peer_connect(&peers[i]);
        sim_run_for(rig.sim, 100);
    }
    assert_true(peer_login(&peers[4]));
    sim_run_for(rig.sim, 100);
    assert_null(peers[0].conn); /* the oldest */
    for (unsigned i = 1; i < 4; i++) {
        assert_non_null(peers[i].conn);
        peer_drop(&peers[i]);
    }
    sim_run_for(rig.sim, 100);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(peer_login(&peers[i]));
    }
    peer_connect(&peers[3]);
    assert_true(peer_await_end(&peers[3]));
    assert_int_equal(peer_last(&peers[3])->msg.u.error.code, CAIRN_E_BUSY);
    assert_non_null(peers[4].conn);
}

FIXED_TEST(test_many_sessions_save_at_once)
{
    for (uint32_t i = 0; i < MANY; i++) {
        assert_true(peer_save(&peers[i], 10, 77, 3 + i));
    }
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(peer_outcome(&peers[i])->msg.u.outcome.state, SAVE_COMMITTED);
    }
    assert_int_equal(buffers_free(), 8);
}

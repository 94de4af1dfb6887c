/* SPDX-License-Identifier: Apache-2.0
 *
 * A client speaks in the order HELLO, JOIN, a rank fits the world of its attempt, and a viewer may
 * do nothing that changes a run; everything else is refused by name. Method: scripted clients
 * against the server on the simulator.
 */
#include "session_rig.h"

#include "run/run_counts.h"
#include "support/unit_test.h"
#include "wire/negotiate.h"

static struct rig rig;
static struct peer peers[3];

static void setup(void)
{
    rig_init(&rig, 11);
    rig_start(&rig);
    peers_init(&rig, 3, peers, 2);
}

static void teardown(void)
{
    peers_fini(3, peers);
    rig_fini(&rig);
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

FIXED_TEST(test_order_is_kept)
{
    struct peer *peer = &peers[0];
    struct msg list = {.type = MSG_LIST};
    peer_connect(peer);
    peer_send(peer, list);
    peer_expect_end(peer, CAIRN_E_PROTOCOL, "LIST before HELLO");
    peer_connect(peer);
    peer_send(peer, peer_join_msg(peer));
    peer_expect_end(peer, CAIRN_E_PROTOCOL, "");
    peer_connect(peer);
    assert_true(peer_hello(peer));
    peer_send(peer, peer_open_msg(peer, 1, 9));
    peer_expect_end(peer, CAIRN_E_PROTOCOL, "OPEN before JOIN");
    peer_connect(peer);
    assert_true(peer_hello(peer));
    assert_false(peer_hello(peer));
    peer_expect_end(peer, CAIRN_E_PROTOCOL, "");
    assert_true(peer_login(peer));
    peer_send(peer, peer_join_msg(peer));
    peer_expect_end(peer, CAIRN_E_PROTOCOL, "");
    assert_true(peer_login(peer));
    peer_send(peer, (struct msg){.type = MSG_GRANT, .u.grant = {.buffers = 1}});
    peer_expect_end(peer, CAIRN_E_PROTOCOL, "GRANT, which a server does not serve");
}

FIXED_TEST(test_silent_client_is_dropped)
{
    peer_connect(&peers[0]);
    peer_expect_end(&peers[0], CAIRN_E_TIMED_OUT, "");
    peer_connect(&peers[0]); /* HELLO alone does not do */
    assert_true(peer_hello(&peers[0]));
    peer_expect_end(&peers[0], CAIRN_E_TIMED_OUT, "");
}

FIXED_TEST(test_goodbye_is_orderly)
{
    assert_true(peer_login(&peers[0]));
    peer_send(&peers[0], (struct msg){.type = MSG_BYE});
    assert_true(peer_await_end(&peers[0]));
}

FIXED_TEST(test_world_must_agree)
{
    assert_true(peer_login(&peers[0]));
    peers[1].world = 3;
    assert_false(peer_login(&peers[1]));
    assert_int_equal(peer_last(&peers[1])->msg.u.error.code, CAIRN_E_WORLD_MISMATCH);
    peers[1].world = 2; /* the connection stays, and may say it better */
    const struct peer_reply *reply = peer_ask(&peers[1], peer_join_msg(&peers[1]));
    assert_int_equal(reply->type, MSG_JOINED);
    /* Also against the record, when nobody else is connected. */
    assert_true(peer_open(&peers[0], 1, 9));
    peer_drop(&peers[0]);
    peer_drop(&peers[1]);
    sim_run_for(rig.sim, 100);
    peers[0].world = 4;
    assert_false(peer_login(&peers[0]));
    assert_int_equal(peer_last(&peers[0])->msg.u.error.code, CAIRN_E_WORLD_MISMATCH);
}

FIXED_TEST(test_rank_is_in_its_world)
{
    peers[0].rank = 2;
    peer_connect(&peers[0]);
    assert_true(peer_hello(&peers[0]));
    peer_send(&peers[0], peer_join_msg(&peers[0]));
    assert_true(peer_await_end(&peers[0]));
    assert_int_equal(peer_last(&peers[0])->type, MSG_ERROR);
}

FIXED_TEST(test_second_process_of_a_rank_is_refused)
{
    assert_true(peer_login(&peers[0]));
    peers[1].rank = 0;
    peers[1].writer = 4711;
    assert_false(peer_login(&peers[1]));
    assert_int_equal(peer_last(&peers[1])->msg.u.error.code, CAIRN_E_DUPLICATE_RANK);
    peers[2].rank = 0; /* the same process again: its old connection is dead, only not known so */
    peers[2].writer = peers[0].writer;
    assert_true(peer_login(&peers[2]));
    assert_true(peer_await_end(&peers[0]));
    sim_run_for(rig.sim, 10);
    assert_non_null(peers[2].conn);
}

FIXED_TEST(test_viewer_only_looks)
{
    struct peer *peer = &peers[0];
    struct msg forbidden[] = {
        peer_open_msg(peer, 1, 9),
        {.type = MSG_WANT, .u.want = {.buffers = 1}},
        {.type = MSG_WAIT, .u.wait = {.id = {1, 1}, .open_id = 1}},
        {.type = MSG_ABORT, .u.abort = {.id = {1, 1}, .open_id = 1, .code = -1, .reason = ""}},
        {.type = MSG_REPORT, .u.report = {.try_count = 1, .reason = ""}}};
    for (size_t i = 0; i < ARRAY_LEN(forbidden); i++) {
        assert_true(peer_viewer(peer));
        peer_send(peer, forbidden[i]);
        peer_expect_end(peer, CAIRN_E_DENIED, "");
    }
    assert_true(peer_viewer(peer));
    assert_int_equal(peer_ask(peer, (struct msg){.type = MSG_LIST})->type, MSG_LIST_REPLY);
    struct msg runs = {.type = MSG_RUNS, .u.runs = {.project = ""}};
    const struct peer_reply *reply = peer_ask(peer, runs);
    assert_int_equal(reply->type, MSG_RUNS_REPLY);
    assert_int_equal(reply->msg.u.runs_reply.count, 0); /* looking makes no run */
    peer_drop(peer);
    sim_run_for(rig.sim, 100);
    struct project_totals project;
    size_t at = 0;
    assert_false(catalog_next_project(rig.catalog, &at, &project)); /* no run is in memory */
}

/* Joins a run of that name; the answer. */
static const struct peer_reply *join_as(struct peer *peer, const char *name)
{
    struct msg join = peer_join_msg(peer);
    assert_int_equal(run_name_parse(name, &join.u.join.run, NULL), 0);
    peer_connect(peer);
    assert_true(peer_hello(peer));
    return peer_ask(peer, join);
}

FIXED_TEST(test_capitals_make_no_other_run)
{
    static const char *const same[] = {"lab/GPT", "Lab/gpt", "Lab/other"};
    assert_true(peer_login(&peers[0])); /* lab/gpt, of which the store holds nothing yet */
    for (int saved = 0; saved < 2; saved++) {
        for (size_t i = 0; i < ARRAY_LEN(same); i++) {
            const struct peer_reply *reply = join_as(&peers[1], same[i]);
            peer_expect_error(reply, CAIRN_E_INVALID, same[i]);
            assert_non_null(strstr(reply->text, "the store has lab/gpt"));
        }
        assert_int_equal(join_as(&peers[1], "lab/GPT2")->type, MSG_JOINED);
        assert_true(peer_open(&peers[0], 1, 9)); /* from here on the store holds it */
        if (saved == 0) {
            peer_drop(&peers[0]);
            sim_run_for(rig.sim, 100);
            assert_true(peer_login(&peers[0]));
        }
    }
}

FIXED_TEST(test_old_client_is_not_told_of_capitals)
{
    const struct msg runs = {.type = MSG_RUNS, .u.runs = {.project = ""}};
    struct msg usage = {.type = MSG_USAGE, .u.usage = {.project = ""}};
    peer_begin(&peers[0], 1, 9);
    peers[1].rank = 0;
    assert_int_equal(join_as(&peers[1], "Big/Bert")->type, MSG_JOINED);
    assert_true(peer_open(&peers[1], 1, 9));
    for (uint32_t knows = 0; knows < 2; knows++) {
        peers[2].features = knows ? WIRE_FEATURE_CAPITALS : 0;
        peer_connect(&peers[2]);
        assert_true(peer_hello(&peers[2]));
        const struct peer_reply *reply = peer_ask(&peers[2], runs);
        assert_int_equal(reply->type, MSG_RUNS_REPLY);
        assert_int_equal(reply->msg.u.runs_reply.count, 1 + knows);
        reply = peer_ask(&peers[2], usage);
        assert_int_equal(reply->type, MSG_USAGE_REPLY);
        assert_int_equal(reply->msg.u.usage_reply.count, 1 + knows);
    }
}

FIXED_TEST(test_full_server_says_busy)
{
    rig_stop(&rig, 0);
    rig.options.sessions_max = 1;
    rig_start(&rig);
    assert_true(peer_login(&peers[0]));
    peer_connect(&peers[1]);
    peer_expect_end(&peers[1], CAIRN_E_BUSY, "");
    peer_drop(&peers[0]);
    sim_run_for(rig.sim, 100);
    assert_true(peer_login(&peers[1]));
}

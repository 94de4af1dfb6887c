/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection may end at any moment of a save and of a restore, by the client or by the server's
 * death, and nothing is left: no request, buffer, socket, work or byte of memory (I8; the sanitizer
 * looks for the last). Method: the same script again and again, cut a little later each time, until
 * it comes through uncut; after a cut the save still succeeds.
 */
#include "session_rig.h"

#include "support/unit_test.h"

enum { STEP_US = 700, CUTS_MAX = 400 };

static void cut(void *user) { peer_drop(user); }

static void save(struct peer *peer)
{
    if (!peer_save(peer, 10, 77, 3)) {
        return;
    }
    peer_outcome(peer);
}

static void restore(struct peer *peer)
{
    struct plan_want want = {.is_blob = true, .name = "state", .coordinate = "rank=0"};
    struct msg msgs[] = {
        {.type = MSG_RESTORE},
        {.type = MSG_LIST},
        {.type = MSG_STATUS, .u.status = {.id = {1, 10}}},
        {.type = MSG_FETCH, .u.fetch = {.id = {1, 10}, .kind = STORE_MANIFEST}},
        {.type = MSG_FETCH, .u.fetch = {.id = {1, 10}, .kind = STORE_PART}},
        {.type = MSG_PLAN, .u.plan = {.id = {1, 10}, .want_count = 1, .wants = &want}},
        {.type = MSG_READ,
         .u.read = {.object = {.term = 1, .step = 10, .writer = 100}, .bytes = 3 * RIG_CHUNK}},
    };
    if (!peer_viewer(peer)) {
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(msgs); i++) {
        peer_send(peer, msgs[i]); /* all at once, and then each answer */
    }
    for (uint32_t stream = 1; stream < peer->next_stream; stream++) {
        if (!peer_await(peer, stream)) {
            return;
        }
    }
}

/* Runs the script with the connection cut after `at_us`; true when it was through before. */
static bool run_cut(struct peer *peer, void (*script)(struct peer *peer), uint64_t at_us)
{
    struct sim *sim = peer->rig->sim;
    sim_at(sim, at_us / 1000, cut, peer);
    script(peer);
    bool through = peer->conn != NULL;
    sim_run_for(sim, at_us / 1000 + 1); /* the cut has come */
    return through;
}

/* As a client does it: the same opening, what is durable kept, the rest under a new sequence. */
static void resume(struct peer *peer)
{
    struct msg have = {.type = MSG_HAVE};
    assert_true(peer_login(peer));
    const struct peer_reply *reply = peer_ask(peer, peer_open_msg(peer, 10, 77));
    assert_int_equal(reply->type, MSG_OPENED);
    if (reply->msg.u.opened.state == SAVE_COMMITTED) {
        return;
    }
    assert_int_equal(reply->msg.u.opened.state, SAVE_OPEN);
    bool sealed = reply->msg.u.opened.sealed;
    peer->id = reply->msg.u.opened.id;
    peer->open_id = 77;
    peer->run_uuid = reply->msg.u.opened.run_uuid;
    have.u.have = (struct msg_have){peer->id, 0, peer->writer, false, 0};
    reply = peer_ask(peer, have);
    assert_int_equal(reply->type, MSG_HELD);
    if (!sealed && reply->count == 0) {
        peer->chunk_count = peer->object_count = 0;
        peer->next_offset = 0;
        assert_true(peer_object(peer, 1, 3));
    }
    if (!sealed) {
        assert_int_equal(peer_seal_all(peer)->type, MSG_SEALED);
    }
    assert_int_equal(peer_outcome(peer)->msg.u.outcome.state, SAVE_COMMITTED);
}

static struct peer *new_peer(struct rig *rig)
{
    struct peer *peer = calloc(1, sizeof *peer);
    assert_non_null(peer);
    peer_init(rig, peer, 0, 1);
    return peer;
}

static void free_peer(struct peer *peer)
{
    peer_fini(peer);
    free(peer);
}

/* One world: the script cut at one moment, then once more without; true: there was nothing to cut.
 */
static bool one_cut(void (*script)(struct peer *peer), bool restart, unsigned i)
{
    struct rig rig;
    rig_init(&rig, 1000 + i);
    rig_start(&rig);
    struct peer *peer = new_peer(&rig);
    if (script == restore) {
        save(peer);
    }
    bool through = run_cut(peer, script, i * STEP_US);
    if (restart) {
        rig_restart(&rig);
    }
    if (script == save) {
        resume(peer);
    } else {
        restore(peer);
    }
    assert_non_null(peer->conn);
    free_peer(peer);
    rig_fini(&rig);
    return through;
}

static void every_cut(void (*script)(struct peer *peer), bool restart)
{
    for (unsigned i = 0; i < CUTS_MAX; i++) {
        if (one_cut(script, restart, i)) {
            assert_true(i > 10);
            return;
        }
    }
    fail_msg("the script never came through");
}

TEST(test_save_cut_everywhere) { every_cut(save, false); }

TEST(test_save_cut_everywhere_and_restart) { every_cut(save, true); }

TEST(test_restore_cut_everywhere) { every_cut(restore, false); }

static void stop_server(void *user)
{
    struct rig *rig = user;
    rig_stop_begin(rig, 0);
}

/* The server stops at any moment of a save. */
TEST(test_server_stops_everywhere)
{
    for (unsigned i = 0; i < CUTS_MAX; i += 2) {
        struct rig rig;
        rig_init(&rig, 5000 + i);
        rig_start(&rig);
        struct peer *peer = new_peer(&rig);
        sim_at(rig.sim, i * STEP_US / 1000, stop_server, &rig);
        save(peer);
        bool through = peer->conn != NULL;
        sim_run_for(rig.sim, i * STEP_US / 1000 + 1);
        rig_stop_end(&rig);
        free_peer(peer);
        rig_fini(&rig);
        if (through) {
            assert_true(i > 10);
            return;
        }
    }
    fail_msg("the script never came through");
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A save goes through, is read back with the same bytes, resumes after the loss of a connection and
 * of the server, and a stopping server lets it end. Method: scripted clients against the server on
 * the simulator.
 */
#include "session_rig.h"

#include "support/store_fault.h"
#include "support/unit_test.h"

static struct rig rig;
static struct peer peers[3]; /* two ranks and a viewer */

static void setup(void)
{
    rig_init(&rig, 12);
    rig.faulty = true;
    rig_start(&rig);
    peers_init(&rig, 3, peers, 2);
}

static void teardown(void)
{
    peers_fini(3, peers);
    rig_fini(&rig);
}

static void assert_committed(struct peer *peer)
{
    const struct peer_reply *reply = peer_outcome(peer);
    assert_non_null(reply);
    assert_int_equal(reply->type, MSG_OUTCOME);
    if (reply->msg.u.outcome.state != SAVE_COMMITTED) {
        fail_msg("state %u: %s", reply->msg.u.outcome.state, reply->text);
    }
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

FIXED_TEST(test_save_and_read_back)
{
    assert_true(peer_save(&peers[0], 10, 77, 5));
    assert_true(peer_save(&peers[1], 10, 0, 3));
    assert_committed(&peers[0]);
    assert_committed(&peers[1]);
    struct peer *viewer = &peers[2];
    assert_true(peer_viewer(viewer));
    struct msg msg = {.type = MSG_RESTORE};
    const struct peer_reply *reply = peer_ask(viewer, msg);
    assert_int_equal(reply->type, MSG_RESOLVED);
    assert_true(ckpt_id_equal(reply->msg.u.resolved.id, peers[0].id));
    msg = (struct msg){.type = MSG_FETCH, .u.fetch = {.id = peers[0].id, .kind = STORE_MANIFEST}};
    reply = peer_ask(viewer, msg);
    assert_int_equal(reply->type, MSG_BYTES);
    assert_int_equal(reply->payload_bytes, reply->msg.u.bytes.total_bytes);
    struct object_id object = {.term = 1, .step = 10, .writer = 101, .rank = 1, .sequence = 0};
    msg = (struct msg){.type = MSG_READ,
                       .u.read = {.object = object, .offset = RIG_CHUNK, .bytes = 100}};
    reply = peer_ask(viewer, msg);
    assert_int_equal(reply->type, MSG_READ_REPLY);
    assert_int_equal(reply->payload_bytes, 100);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(reply->payload[i], (uint8_t)(i * 7 + 31 + 1)); /* chunk 1 of rank 1 */
    }
    msg.u.read.object.sequence = 9;
    assert_int_equal(peer_ask(viewer, msg)->type, MSG_ERROR);
    struct plan_want want = {.is_blob = true, .name = "state", .coordinate = "rank=0"};
    msg = (struct msg){.type = MSG_PLAN,
                       .u.plan = {.id = peers[0].id, .want_count = 1, .wants = &want}};
    reply = peer_ask(viewer, msg);
    assert_int_equal(reply->type, MSG_PLAN_REPLY);
    assert_int_equal(reply->msg.u.plan_reply.record_count, 5);
}

/* What a reader finds damaged is known to all from then on. */
FIXED_TEST(test_damage_that_was_read_is_recorded)
{
    struct peer *viewer = &peers[2];
    struct msg fetch = {.type = MSG_FETCH};
    assert_true(peer_save(&peers[0], 10, 77, 1));
    assert_true(peer_save(&peers[1], 10, 0, 1));
    assert_committed(&peers[0]);
    struct store_name name = {.id = peers[0].id, .kind = STORE_MANIFEST, .tag = 77};
    assert_int_equal(run_name_set("lab", "gpt", &name.run, NULL), 0);
    assert_true(memory_medium_flip_small(rig.medium, &name, 40));
    rig_restart(&rig); /* nothing of it is in memory */
    assert_true(peer_viewer(viewer));
    assert_int_equal(peer_ask(viewer, (struct msg){.type = MSG_RESTORE})->type, MSG_RESOLVED);
    fetch.u.fetch = (struct msg_fetch){.id = peers[0].id, .kind = STORE_MANIFEST};
    uint32_t streams[] = {peer_send(viewer, fetch), peer_send(viewer, fetch)};
    for (size_t i = 0; i < ARRAY_LEN(streams); i++) {
        peer_expect_error(peer_await(viewer, streams[i]), CAIRN_E_DAMAGED, "");
    }
    sim_run_for(rig.sim, 1000);
    peer_expect_error(peer_ask(viewer, (struct msg){.type = MSG_RESTORE}), CAIRN_E_DAMAGED, "");
}

/* A store that does not answer is asked again, not without end; then the error says so. */
FIXED_TEST(test_a_part_that_times_out_is_published_again)
{
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_PUBLISH, .code = CAIRN_E_OUTCOME_UNKNOWN, .count = 3};
    assert_int_equal(store_fault_add(rig.store, &rule), 0);
    assert_true(peer_save(&peers[0], 10, 77, 1));
    rule.count = 4;
    assert_int_equal(store_fault_add(rig.store, &rule), 0);
    peer_begin(&peers[1], 10, 0);
    assert_true(peer_object(&peers[1], 0, 1));
    peer_expect_error(peer_seal_all(&peers[1]), CAIRN_E_TIMED_OUT, "4 attempts timed out");
}

FIXED_TEST(test_resume_on_another_connection)
{
    struct msg have = {.type = MSG_HAVE};
    peer_begin(&peers[0], 10, 77);
    assert_true(peer_object(&peers[0], 0, 2));
    peer_send(&peers[0], (struct msg){.type = MSG_WANT, .u.want = {.buffers = 1}});
    assert_true(peer_await_credits(&peers[0], 1));
    peer_chunk(&peers[0], 1, false); /* of an object that never ends */
    peers[0].chunk_count--;
    peers[0].next_offset = 0;
    sim_run_for(rig.sim, 20);
    peer_drop(&peers[0]);
    peer_begin(&peers[0], 10, 77);
    have.u.have = (struct msg_have){peers[0].id, 0, peers[0].writer, false, 0};
    const struct peer_reply *reply = peer_ask(&peers[0], have);
    assert_int_equal(reply->type, MSG_HELD);
    assert_int_equal(reply->count, 1);
    assert_int_equal(reply->sequences[0], 0);
    assert_true(peer_object(&peers[0], 2, 3));
    assert_int_equal(peer_seal_all(&peers[0])->type, MSG_SEALED);
    assert_true(peer_save(&peers[1], 10, 0, 1));
    assert_committed(&peers[0]);
}

/* A new process knows only what the store holds: footers of sealed objects. */
FIXED_TEST(test_resume_after_a_restart)
{
    struct msg have = {.type = MSG_HAVE};
    peer_begin(&peers[0], 10, 77);
    assert_true(peer_object(&peers[0], 0, 2));
    assert_true(peer_object(&peers[0], 3, 1));
    rig_restart(&rig);
    assert_true(peer_await_end(&peers[0]));
    peer_begin(&peers[0], 10, 77);
    have.u.have = (struct msg_have){peers[0].id, 0, peers[0].writer, false, 0};
    const struct peer_reply *reply = peer_ask(&peers[0], have);
    assert_int_equal(reply->type, MSG_HELD);
    assert_int_equal(reply->count, 2);
    assert_int_equal(reply->sequences[0], 0);
    assert_int_equal(reply->sequences[1], 3);
    assert_int_equal(peer_seal_all(&peers[0])->type, MSG_SEALED);
    assert_true(peer_save(&peers[1], 10, 0, 1));
    assert_committed(&peers[1]);
}

/* The answer to SEAL was lost: the part is there already, and the same bytes are success. */
FIXED_TEST(test_seal_may_be_repeated)
{
    assert_true(peer_save(&peers[0], 10, 77, 2));
    peer_drop(&peers[0]);
    peer_begin(&peers[0], 10, 77);
    struct msg have = {.type = MSG_HAVE};
    have.u.have = (struct msg_have){peers[0].id, 0, peers[0].writer, false, 0};
    assert_int_equal(peer_ask(&peers[0], have)->count, 1);
    assert_int_equal(peer_seal_all(&peers[0])->type, MSG_SEALED);
    assert_true(peer_save(&peers[1], 10, 0, 1));
    assert_committed(&peers[0]);
}

/* Publishes a part of peers[0] whose seal the record does not take, and saves the step once more
 * in the same opening: `chunks` chunks, in another object. Returns the answer to SEAL. */
static const struct peer_reply *seal_once_more(uint32_t chunks)
{
    const struct store_fault_rule shut = {
        .kind = FAULT_FAIL, .op = STORE_RECORD_UPDATE, .count = 1000, .code = CAIRN_E_READ_ONLY};
    struct peer *peer = &peers[0];
    peer_begin(peer, 10, 77);
    assert_true(peer_object(peer, 0, 2));
    assert_int_equal(store_fault_add(rig.store, &shut), 0);
    assert_int_equal(peer_seal_all(peer)->msg.u.error.code, CAIRN_E_READ_ONLY);
    rig_restart(&rig);
    assert_true(peer_await_end(peer));
    peer->object_count = peer->chunk_count = 0;
    peer_begin(peer, 10, 77);
    assert_true(peer_object(peer, 1, chunks));
    return peer_seal_all(peer);
}

/* The part of an earlier try counts if it says the same: only its objects are others. */
FIXED_TEST(test_the_part_of_an_earlier_try_counts)
{
    assert_int_equal(seal_once_more(2)->type, MSG_SEALED);
    assert_true(peer_save(&peers[1], 10, 0, 1));
    assert_committed(&peers[0]);
}

/* If it says something else, it does not: what was saved last would be lost without a word. */
FIXED_TEST(test_the_part_of_an_earlier_try_may_contradict)
{
    peer_expect_error(seal_once_more(3), CAIRN_E_CONFLICT, "save the step again");
}

FIXED_TEST(test_abort_tells_everybody)
{
    assert_true(peer_login(&peers[0]));
    assert_true(peer_login(&peers[1]));
    assert_true(peer_open(&peers[0], 10, 77));
    assert_true(peer_open(&peers[1], 10, 0));
    uint32_t waits = peer_send(
        &peers[1],
        (struct msg){.type = MSG_WAIT, .u.wait = {.id = peers[1].id, .open_id = peers[1].open_id}});
    struct msg abort = {.type = MSG_ABORT};
    abort.u.abort = (struct msg_abort){peers[0].id, 77, CAIRN_E_COVERAGE, "for a test"};
    const struct peer_reply *reply = peer_ask(&peers[0], abort);
    assert_int_equal(reply->type, MSG_OUTCOME);
    assert_int_equal(reply->msg.u.outcome.state, SAVE_ABORTED);
    reply = peer_await(&peers[1], waits);
    assert_int_equal(reply->msg.u.outcome.state, SAVE_ABORTED);
    assert_int_equal(reply->msg.u.outcome.code, CAIRN_E_COVERAGE);
    assert_string_equal(reply->text, "for a test");
    /* The step may be tried again: rank 1, which knows the dead opening, waits for the new one. */
    struct msg open = peer_open_msg(&peers[1], 10, 0);
    open.u.open.open_id = 77;
    uint32_t opens = peer_send(&peers[1], open);
    sim_run_for(rig.sim, 1000);
    assert_true(peer_open(&peers[0], 10, 78));
    reply = peer_await(&peers[1], opens);
    assert_int_equal(reply->type, MSG_OPENED);
    assert_true(reply->msg.u.opened.open_id == 78);
}

FIXED_TEST(test_stop_lets_open_saves_end)
{
    assert_true(peer_login(&peers[0]));
    assert_true(peer_login(&peers[1]));
    assert_true(peer_open(&peers[0], 10, 77));
    assert_true(peer_open(&peers[1], 10, 0));
    rig_stop_begin(&rig, 60000);
    assert_true(peer_object(&peers[0], 0, 2));
    peer_expect_error(peer_ask(&peers[0], peer_open_msg(&peers[0], 11, 79)), CAIRN_E_SHUTTING_DOWN,
                      "");
    assert_int_equal(peer_seal_all(&peers[0])->type, MSG_SEALED);
    assert_true(peer_object(&peers[1], 0, 2));
    sim_run_for(rig.sim, 2000);
    assert_false(rig.stopped);
    assert_int_equal(peer_seal_all(&peers[1])->type, MSG_SEALED);
    assert_committed(&peers[1]);
    uint64_t from_ns = sim_now_ns(rig.sim);
    rig_stop_end(&rig);
    assert_true(sim_now_ns(rig.sim) - from_ns < UINT64_C(5000000000));
    assert_true(peer_await_end(&peers[0]));
    assert_int_equal(peer_last(&peers[0])->msg.u.error.code, CAIRN_E_SHUTTING_DOWN);
}

/* Goal: who has just come back when the server is told to stop goes on with the save that is open,
 * and begins no other. */
FIXED_TEST(test_stop_lets_ranks_come_back)
{
    assert_true(peer_login(&peers[0]));
    assert_true(peer_login(&peers[1]));
    assert_true(peer_open(&peers[0], 10, 77));
    assert_true(peer_open(&peers[1], 10, 0));
    peer_drop(&peers[0]);
    assert_true(peer_login(&peers[0]));
    rig_stop_begin(&rig, 60000);
    assert_true(peer_open(&peers[0], 10, 77));
    assert_int_equal(peers[0].open_id, 77);
    assert_true(peer_open(&peers[1], 10, 0));
    const struct peer_reply *reply = peer_ask(&peers[0], peer_open_msg(&peers[0], 10, 78));
    peer_expect_error(reply, CAIRN_E_SHUTTING_DOWN, ""); /* another opening of the step */
    reply = peer_ask(&peers[1], peer_open_msg(&peers[1], 11, 0));
    assert_int_equal(reply->msg.u.error.code,
                     CAIRN_E_SHUTTING_DOWN); /* and nothing is waited for */
    for (unsigned i = 0; i < 2; i++) {
        assert_true(peer_object(&peers[i], 0, 2));
        assert_int_equal(peer_seal_all(&peers[i])->type, MSG_SEALED);
    }
    assert_committed(&peers[1]);
    rig_stop_end(&rig);
}

FIXED_TEST(test_stop_ends_when_the_grace_does)
{
    peer_begin(&peers[0], 10, 77);
    uint64_t from_ns = sim_now_ns(rig.sim);
    rig_stop(&rig, 3000);
    assert_in_range(sim_now_ns(rig.sim) - from_ns, UINT64_C(2900000000), UINT64_C(5000000000));
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A save whose bytes stay in the client's arena holds them, is finished without the client once it
 * was handed over whole and is dropped before, and no description makes the server read where it
 * must not or store one save's bytes under another's name. Method: scripted clients with memfds of
 * their own against the server on the simulator, whose Unix sockets pass descriptors.
 */
#include "hand_rig.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/store_fault.h"
#include "support/unit_test.h"

/* Step 10, open, with one object that is described whole. */
static void describe_save(uint8_t salt, uint32_t chunks)
{
    fill_arena(salt);
    hand_begin(10, 77);
    hand_describe_object(0, chunks);
}

/* --- saves ------------------------------------------------------------------------------------ */

#define FIXED_TEST(name) SETUP_TEST(name, hand_setup, hand_teardown)

FIXED_TEST(test_a_save_by_hand_holds_the_bytes)
{
    fill_arena(1);
    hand_begin(10, 77);
    uint32_t first = hand_describe_object(0, 5), second = hand_describe_object(1, 3);
    const struct peer_reply *reply = hand_then(hand_complete());
    assert_non_null(reply);
    assert_int_equal(reply->type, MSG_SEALED);
    assert_int_equal(hand_reply_at(first, 0)->type, MSG_OBJECT_DURABLE);
    assert_int_equal(hand_reply_at(second, 0)->type, MSG_OBJECT_DURABLE);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    hand_assert_stored(0, memory, 5 * RIG_CHUNK);
    hand_assert_stored(1, memory + 5 * RIG_CHUNK, 3 * RIG_CHUNK);
    /* The part has digests: the plan's records carry them. */
    struct plan_want want = {.is_blob = true, .name = "state", .coordinate = "rank=0"};
    struct msg plan = {.type = MSG_PLAN,
                       .u.plan = {.id = peer.id, .want_count = 1, .wants = &want}};
    reply = peer_ask(&other, plan);
    assert_int_equal(reply->type, MSG_PLAN_REPLY);
    assert_int_equal(reply->msg.u.plan_reply.record_count, 8);
    for (unsigned i = 0; i < 8; i++) {
        assert_false(is_all_zero(4, reply->payload + i * 256 + 56));
        assert_false(is_all_zero(16, reply->payload + i * 256 + 64));
    }
}

FIXED_TEST(test_what_was_handed_over_is_finished_alone)
{
    describe_save(2, 6);
    hand_over_and_leave();
    sim_run_for(rig.sim, 5000);
    assert_int_equal(hand_state_of(peer.id), CKPT_COMMITTED);
    hand_assert_stored(0, memory, 6 * RIG_CHUNK);
}

/* The same process comes back meanwhile: it waits for what it handed over, and seals once more. */
FIXED_TEST(test_the_client_comes_back_meanwhile)
{
    describe_save(3, 6);
    assert_int_equal(peer_await(&peer, hand_complete())->type, MSG_HANDED);
    assert_true(peer_login(&peer));
    const struct peer_reply *opened = peer_ask(&peer, peer_open_msg(&peer, 10, 77));
    assert_int_equal(opened->type, MSG_OPENED);
    if (opened->msg.u.opened.state == SAVE_OPEN) {
        struct msg have = {.type = MSG_HAVE, .u.have = {peer.id, 0, peer.writer, false, 0}};
        const struct peer_reply *held = peer_ask(&peer, have);
        bool is_over = held->type == MSG_ERROR && held->msg.u.error.code == CAIRN_E_ABORTED;
        assert_true(is_over || held->count == 1);
    }
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    hand_assert_stored(0, memory, 6 * RIG_CHUNK);
}

FIXED_TEST(test_what_was_not_complete_is_dropped)
{
    describe_save(4, 6);
    peer_drop(&peer);
    sim_run_for(rig.sim, 5000);
    assert_int_equal(hand_state_of(peer.id), CKPT_OPEN);
    sim_run_for(rig.sim, 70000);
    assert_int_not_equal(hand_state_of(peer.id), CKPT_COMMITTED);
}

/* A reader of `latest` that comes at once waits for what needs no client any more, and for nothing
 * else. */
FIXED_TEST(test_latest_waits_for_what_was_handed_over)
{
    describe_save(5, 6);
    hand_over_and_leave();
    other.writer = 555;
    memset(&rig.token, 0x77, sizeof rig.token); /* another attempt */
    assert_true(peer_login(&other));
    struct msg restore = {.type = MSG_RESTORE, .u.restore = {.ordinal = 1, .wait_ms = 5000}};
    const struct peer_reply *reply = peer_ask(&other, restore);
    assert_int_equal(reply->type, MSG_RESOLVED);
    assert_int_equal(reply->msg.u.resolved.id.step, 10);
}

/* --- one save's bytes never under another's name ---------------------------------------------- */

/* A client that gave up a save and reuses its memory: what is stored of the first is garbage, and
 * belongs to no checkpoint; the second has its own bytes. */
FIXED_TEST(test_memory_reused_after_an_abort)
{
    describe_save(6, 6);
    assert_int_equal(peer_abort(&peer, CAIRN_E_CANCELLED, "changed my mind")->msg.u.outcome.state,
                     SAVE_ABORTED);
    fill_arena(7);
    struct ckpt_id first = peer.id;
    peer.object_count = peer.chunk_count = 0;
    assert_true(peer_open(&peer, 10, 78));
    assert_int_equal(peer.id.step, first.step);
    hand_describe_object(1, 4);
    assert_int_equal(hand_then(hand_complete())->type, MSG_SEALED);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    hand_assert_stored(1, memory, 4 * RIG_CHUNK);
}

/* COMPLETE on its way, and the abort wins: the same. */
FIXED_TEST(test_an_abort_ends_what_was_handed_over)
{
    describe_save(8, 6);
    uint32_t stream = hand_complete();
    const struct peer_reply *outcome = peer_abort(&peer, CAIRN_E_CANCELLED, "changed my mind");
    sim_run_for(rig.sim, 5000);
    const struct peer_reply *end = hand_reply_at(stream, 1);
    assert_non_null(end);
    if (outcome->msg.u.outcome.state == SAVE_ABORTED) {
        assert_int_equal(end->type, MSG_ERROR);
        assert_int_not_equal(hand_state_of(peer.id), CKPT_COMMITTED);
    } else {
        assert_int_equal(end->type, MSG_SEALED);
    }
}

/* A store that does not answer is asked again, not without end; then the error says so. */
FIXED_TEST(test_a_part_that_times_out_is_published_again)
{
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_PUBLISH, .code = CAIRN_E_OUTCOME_UNKNOWN};
    fill_arena(9);
    for (unsigned failures = 3; failures <= 4; failures++) {
        rule.count = failures;
        assert_int_equal(store_fault_add(rig.store, &rule), 0);
        peer.object_count = peer.chunk_count = 0;
        hand_begin(10 * failures, 77);
        hand_describe_object(0, 6);
        const struct peer_reply *end = hand_then(hand_complete());
        assert_non_null(end);
        if (failures == 3) {
            assert_int_equal(end->type, MSG_SEALED);
            peer_drop(&peer);
        } else {
            peer_expect_error(end, CAIRN_E_TIMED_OUT, "4 attempts timed out");
        }
    }
}

/* The record takes no update when the part is published, the daemon is started anew, and the step
 * is saved again. Its part says the same with other objects, and the stored one counts. */
FIXED_TEST(test_the_part_of_an_earlier_try_counts)
{
    const struct store_fault_rule shut = {
        .kind = FAULT_FAIL, .op = STORE_RECORD_UPDATE, .count = 1000, .code = CAIRN_E_READ_ONLY};
    describe_save(6, 6);
    assert_int_equal(store_fault_add(rig.store, &shut), 0);
    const struct peer_reply *end = hand_then(hand_complete());
    assert_non_null(end);
    assert_int_equal(end->type, MSG_ERROR);
    rig_restart(&rig);
    assert_true(peer_await_end(&peer));
    peer.object_count = peer.chunk_count = 0;
    hand_begin(10, 77);
    hand_describe_object(1, 6);
    end = hand_then(hand_complete());
    assert_non_null(end);
    assert_int_equal(end->type, MSG_SEALED);
    assert_int_equal(hand_state_of(peer.id), CKPT_COMMITTED);
    hand_assert_stored(0, memory, 6 * RIG_CHUNK);
}

struct publishing {
    struct store_req req;
    bool done;
};

static void on_published(struct store_req *req)
{
    container_of(req, struct publishing, req)->done = true;
}

/* The save ends while its part is being published, and there is one of that name: what counts is
 * that it has ended. */
FIXED_TEST(test_an_abort_beside_another_part)
{
    const struct store_fault_rule hold = {.kind = FAULT_HOLD, .op = STORE_PUBLISH};
    uint8_t other_part[] = "another";
    describe_save(8, 6);
    struct publishing publishing = {
        .req = {.op = STORE_PUBLISH,
                .name = {.id = peer.id, .kind = STORE_PART, .tag = peer.open_id},
                .bytes = sizeof other_part,
                .data = other_part,
                .done = on_published}};
    assert_int_equal(run_name_set("lab", "gpt", &publishing.req.name.run, NULL), 0);
    store_submit(rig.store, &publishing.req);
    sim_run_for(rig.sim, 1000);
    assert_true(publishing.done);
    assert_int_equal(store_fault_add(rig.store, &hold), 0);
    uint32_t stream = hand_complete();
    sim_run_for(rig.sim, 1000);
    assert_int_equal(peer_abort(&peer, CAIRN_E_CANCELLED, "changed my mind")->msg.u.outcome.state,
                     SAVE_ABORTED);
    assert_int_equal(store_fault_release(rig.store), 1);
    sim_run_for(rig.sim, 5000);
    peer_expect_error(hand_reply_at(stream, 1), CAIRN_E_ABORTED, "");
}

/* A client that breaks its promise spoils its own checkpoint, and readers find out. */
FIXED_TEST(test_a_changed_padding_voids_the_object)
{
    struct envelope envelope = hand_blank(100);
    hand_begin(10, 77);
    fill_arena(9); /* not zero behind the 100 bytes */
    struct msg msg = hand_description(0, 0, &envelope);
    msg.u.describe.bytes = 100;
    uint32_t stream = peer_send(&peer, msg);
    peer_expect_error(peer_await(&peer, stream), CAIRN_E_DIGEST_MISMATCH, "");
}

/* --- arenas that are not taken ---------------------------------------------------------------- */

static void refused_arena(int fd, uint64_t bytes, const char *why)
{
    peer_expect_error(hand_offer(fd, 8, bytes), CAIRN_E_INVALID, why); /* the connection lives */
}

FIXED_TEST(test_bad_arenas_are_refused_by_name)
{
    int ends[2];
    hand_begin(10, 77);
    refused_arena(-1, ARENA_BYTES, "no descriptor");
    refused_arena(hand_make_fd(ARENA_BYTES, 0), ARENA_BYTES, "not sealed");
    refused_arena(hand_make_fd(ARENA_BYTES, F_SEAL_GROW), ARENA_BYTES, "not sealed");
    refused_arena(hand_make_fd(ARENA_BYTES, SEALS), ARENA_BYTES * 2, "were announced");
    refused_arena(hand_make_fd(ARENA_BYTES, SEALS), 0, "were announced");
    assert_int_equal(pipe(ends), 0);
    refused_arena(ends[0], ARENA_BYTES, "memfd");
    close(ends[1]);
    fill_arena(1);
    hand_describe_object(0, 2); /* the one before still counts */
    assert_int_equal(hand_then(hand_complete())->type, MSG_SEALED);
}

FIXED_TEST(test_too_many_arenas_in_use)
{
    struct envelope envelope = hand_blank(RIG_CHUNK);
    uint32_t streams[8];
    fill_arena(1);
    hand_begin(10, 77);
    for (unsigned i = 0; i < 8; i++) {
        struct msg arena = {.type = MSG_ARENA,
                            .u.arena = {.arena_id = 20 + i, .bytes = ARENA_BYTES}};
        streams[i] = peer.next_stream++;
        conn_send_fd(peer.conn, streams[i], &arena, hand_make_fd(ARENA_BYTES, SEALS));
        struct msg msg = hand_description(i, 0, &envelope);
        msg.u.describe.arena_id = 20 + i;
        if (i < 3) {
            peer_send(&peer, msg); /* an object that does not end: its arena stays in use */
        }
    }
    assert_int_equal(peer_await(&peer, streams[0])->type, MSG_ARENA);
    assert_int_equal(peer_await(&peer, streams[2])->type, MSG_ARENA);
    unsigned busy = 0;
    for (unsigned i = 3; i < 8; i++) {
        const struct peer_reply *reply = peer_await(&peer, streams[i]);
        busy += reply->type == MSG_ERROR && reply->msg.u.error.code == CAIRN_E_BUSY;
    }
    assert_true(busy > 0);
    sim_run_for(rig.sim, 1000);
    assert_int_equal(hand_offer(hand_make_fd(ARENA_BYTES, SEALS), 40, ARENA_BYTES)->type,
                     MSG_ARENA);
}

/* --- descriptions that are not followed ------------------------------------------------------- */

static uint32_t fresh; /* sequences of a writer are never used twice */

static void bad_description(uint64_t arena, uint64_t at, uint32_t bytes, const char *why)
{
    struct envelope envelope = hand_blank(bytes);
    hand_begin(10, 77);
    struct msg msg = hand_description(fresh++, at, &envelope);
    msg.u.describe.arena_id = arena;
    msg.u.describe.bytes = bytes;
    peer_send(&peer, msg);
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, why);
}

FIXED_TEST(test_descriptions_outside_the_arena)
{
    bad_description(7, ARENA_BYTES, RIG_CHUNK, "are outside it");
    bad_description(7, ARENA_BYTES - RIG_CHUNK, RIG_CHUNK + 1, "are outside it");
    bad_description(7, UINT64_MAX - 4095, RIG_CHUNK, "are outside it");
    bad_description(7, 0, LIMIT_CHUNK_BYTES, "are outside it");
    bad_description(7, 100, RIG_CHUNK, "arena_offset");
    bad_description(7, 0, LIMIT_CHUNK_BYTES + 1, "bytes");
    bad_description(9, 0, RIG_CHUNK, "which it has not handed over");
    assert_int_equal(
        fallocate(arena_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * RIG_CHUNK, RIG_CHUNK),
        0);
    bad_description(7, 4 * RIG_CHUNK, RIG_CHUNK, "never written"); /* whose memory would it be? */
}

FIXED_TEST(test_descriptions_that_contradict_themselves)
{
    struct envelope two[2] = {hand_blank(3000), hand_blank(3000)};
    hand_begin(10, 77);
    two[1].offset = 2000; /* overlaps */
    struct msg msg = hand_description(fresh++, 0, two);
    msg.u.describe.data.envelope_count = 2;
    msg.u.describe.bytes = 5000;
    peer_send(&peer, msg);
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, "overlaps");
    hand_begin(10, 77);
    two[0] = hand_blank(3000); /* does not fill what is described */
    peer_send(&peer, hand_description(fresh++, 0, two));
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, "fill");
    hand_begin(10, 77);
    two[0] = hand_blank(RIG_CHUNK);
    two[0].encoding = ENCODING_ZSTD;
    peer_send(&peer, hand_description(fresh++, 0, two));
    peer_expect_end(&peer, CAIRN_E_UNSUPPORTED, "encoding");
}

FIXED_TEST(test_bytes_and_descriptions_do_not_mix)
{
    fill_arena(1);
    hand_begin(10, 77);
    peer_send(&peer, (struct msg){.type = MSG_WANT, .u.want = {.buffers = 1}});
    assert_true(peer_await_credits(&peer, 1));
    hand_describe(0, 0);
    peer_chunk(&peer, 0, false);
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, "described object");
    hand_begin(10, 77);
    peer.next_offset = 0;
    peer_send(&peer, (struct msg){.type = MSG_WANT, .u.want = {.buffers = 1}});
    assert_true(peer_await_credits(&peer, 1));
    peer_chunk(&peer, 1, false);
    hand_describe(1, 0);
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, "then a description");
}

FIXED_TEST(test_nothing_of_it_without_the_feature)
{
    struct envelope envelope = hand_blank(RIG_CHUNK);
    peer.features = 0;
    peer_begin(&peer, 10, 77);
    struct msg arena = {.type = MSG_ARENA, .u.arena = {.arena_id = 7, .bytes = ARENA_BYTES}};
    conn_send_fd(peer.conn, peer.next_stream++, &arena, hand_make_fd(ARENA_BYTES, SEALS));
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, "did not agree on hand-over");
    peer_begin(&peer, 10, 77);
    peer_send(&peer, hand_description(0, 0, &envelope));
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, "did not agree on hand-over");
    peer_begin(&peer, 10, 77);
    peer_send(&peer, (struct msg){.type = MSG_COMPLETE, .u.complete = {peer.id, 77, 100}});
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, "did not agree on hand-over");
}

/* --- COMPLETE that cannot be ------------------------------------------------------------------ */

FIXED_TEST(test_complete_before_the_part)
{
    hand_begin(10, 77);
    peer_send(&peer, (struct msg){.type = MSG_COMPLETE, .u.complete = {peer.id, 77, 100}});
    peer_expect_end(&peer, CAIRN_E_PROTOCOL, "before the whole part");
}

FIXED_TEST(test_complete_without_an_object)
{
    describe_save(1, 3);
    uint32_t chunks = peer.chunk_count;
    hand_describe_object(1, 2);
    peer.objects[1].sequence = 9; /* the part says another than was sent */
    peer_expect_error(hand_then(hand_complete()), CAIRN_E_INVALID, "object 9");
    peer.objects[1].sequence = 1; /* again, and right: it may be repeated */
    assert_int_equal(hand_then(hand_complete())->type, MSG_SEALED);
    assert_true(chunks < peer.chunk_count);
}

FIXED_TEST(test_complete_with_another_chunk)
{
    describe_save(1, 3);
    peer.envelopes[1].stored_crc = 12345; /* not blank: compared, and wrong */
    peer_expect_error(hand_then(hand_complete()), CAIRN_E_INVALID, "holds another chunk");
}

FIXED_TEST(test_a_stopping_server_finishes_what_it_has)
{
    describe_save(3, 6);
    hand_over_and_leave();
    rig_stop(&rig, 20000);
    rig_start(&rig);
    assert_int_equal(hand_state_of(peer.id), CKPT_COMMITTED);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The server stores only what the base has not of what is handed over, encoded where that was asked
 * for, and what it seals restores to the bytes of the arena, also with the client dead after HANDED
 * and with a new server. A claim that is not so is refused by name. Method: hand_rig.h.
 */
#include "hand_rig.h"

#include "pipeline/chunk.h"
#include "support/store_fault.h"
#include "support/unit_test.h"
#include "wire/negotiate.h"
#include "wire/plan.h"

/* --- compared and encoded by the server ------------------------------------------------------- */

/* How the next descriptions go: with the digest that the bytes had under this salt. */
static struct {
    uint32_t encode;
    bool known;
    uint8_t salt;
} packing;

static void describe_packed(uint32_t sequence, uint64_t at)
{
    struct envelope envelope = hand_blank(RIG_CHUNK);
    uint32_t dtype = 0;
    if (packing.known) {
        uint8_t old[RIG_CHUNK];
        for (size_t i = 0; i < RIG_CHUNK; i++) {
            old[i] = (uint8_t)((at + i) * 31 + (at + i) / 4096 + packing.salt);
        }
        struct envelope raw;
        chunk_seal_raw(RIG_CHUNK, old, 1, &raw);
        envelope.digest = raw.digest;
    }
    struct msg msg = hand_description(sequence, at, &envelope);
    msg.u.describe.encode = packing.encode;
    msg.u.describe.dtype_count = 1;
    msg.u.describe.dtypes = &dtype;
    peer_send(&peer, msg);
    memset(&envelope.digest, 0, sizeof envelope.digest);
    envelope.offset = peer.next_offset;
    peer.envelopes[peer.chunk_count] = envelope;
    peer.in_object[peer.chunk_count++] = peer.object_count;
    peer.next_offset += RIG_CHUNK;
}

static uint32_t describe_packed_object(uint32_t sequence, uint32_t chunks)
{
    for (uint32_t i = 0; i < chunks; i++) {
        describe_packed(sequence, (uint64_t)peer.chunk_count * RIG_CHUNK);
    }
    peer.objects[peer.object_count++] = (struct peer_object){sequence, chunks};
    return peer_end_object(&peer, sequence, chunks);
}

static void begin_packed(uint64_t step, uint64_t open_id)
{
    peer.features = WIRE_FEATURE_HAND_OVER | WIRE_FEATURE_HAND_PACK;
    hand_begin(step, open_id);
    peer.object_count = peer.chunk_count = 0;
}

/* Step 10 with `chunks` chunks of salt 1 in one object, sequence 0; then step 20 is open. */
static void save_a_base(uint32_t chunks)
{
    fill_arena(1);
    packing.encode = 0;
    packing.known = false;
    packing.salt = 1;
    begin_packed(10, 77);
    describe_packed_object(0, chunks);
    assert_int_equal(hand_then(hand_complete())->type, MSG_SEALED);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    begin_packed(20, 78);
    packing.known = true;
}

/* The records of a plan that wants all: each its own place, and checked against the arena by
 * reading what they name. */
static void assert_restores(const struct ckpt_id id, uint32_t chunks)
{
    struct plan_want want = {.is_blob = true, .name = "state", .coordinate = "rank=0"};
    struct msg plan = {.type = MSG_PLAN, .u.plan = {.id = id, .want_count = 1, .wants = &want}};
    struct plan_read records[RIG_CHUNKS];
    assert_true(peer_viewer(&other));
    const struct peer_reply *reply = peer_ask(&other, plan);
    assert_int_equal(reply->type, MSG_PLAN_REPLY);
    assert_int_equal(reply->msg.u.plan_reply.record_count, chunks);
    for (uint32_t i = 0; i < chunks; i++) {
        const uint8_t *record = reply->payload + (size_t)i * PLAN_READ_BYTES;
        assert_int_equal(plan_read_decode(record, &records[i], NULL), 0);
        for (uint32_t k = 0; k < i; k++) { /* verify counts what is referred to in an object */
            assert_false(object_id_equal(&records[k].object, &records[i].object) &&
                         records[k].offset == records[i].offset);
        }
    }
    for (uint32_t i = 0; i < chunks; i++) {
        uint8_t plain[RIG_CHUNK];
        struct envelope envelope = {.stored_bytes = records[i].stored_bytes,
                                    .plain_bytes = records[i].plain_bytes,
                                    .stored_crc = records[i].stored_crc,
                                    .encoding = records[i].encoding,
                                    .digest_alg = records[i].digest_alg,
                                    .digest = records[i].digest};
        struct msg read = {.type = MSG_READ,
                           .u.read = {.object = records[i].object,
                                      .offset = records[i].offset,
                                      .bytes = records[i].stored_bytes}};
        reply = peer_ask(&other, read);
        assert_int_equal(reply->type, MSG_READ_REPLY);
        assert_int_equal(chunk_open(&envelope, reply->payload, sizeof plain, plain, NULL), 0);
        assert_memory_equal(plain, memory + records[i].blob_offset, sizeof plain);
    }
}

#define PACK_TEST(name) SETUP_TEST(name, hand_setup, hand_teardown)

/* One of two objects is there as a whole, one chunk of the other changed. */
PACK_TEST(test_what_the_base_has_is_not_stored_again)
{
    save_a_base(8);
    memory[5 * RIG_CHUNK + 7] ^= 1;
    uint32_t first = describe_packed_object(1, 4), second = describe_packed_object(2, 4);
    const struct peer_reply *sealed = hand_then(hand_complete());
    assert_int_equal(sealed->type, MSG_SEALED);
    assert_int_equal(sealed->msg.u.sealed.stored_bytes, RIG_CHUNK);
    assert_int_equal(sealed->msg.u.sealed.shared_bytes, 7 * RIG_CHUNK);
    assert_int_equal(hand_reply_at(first, 0)->type,
                     MSG_OBJECT_DURABLE); /* of which nothing is stored */
    assert_int_equal(hand_reply_at(second, 0)->type, MSG_OBJECT_DURABLE);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    assert_restores(peer.id, 8);
}

/* And all of it without the client. */
PACK_TEST(test_references_and_encodings_are_finished_alone)
{
    save_a_base(8);
    memset(memory + 2 * RIG_CHUNK, 0x5a, RIG_CHUNK);
    packing.encode = 2;
    describe_packed_object(1, 8);
    hand_over_and_leave();
    sim_run_for(rig.sim, 5000);
    assert_int_equal(hand_state_of(peer.id), CKPT_COMMITTED);
    assert_restores(peer.id, 8);
}

PACK_TEST(test_dense_chunks_are_encoded)
{
    memset(memory, 0x33, ARENA_BYTES);
    packing.encode = 2;
    packing.known = false;
    begin_packed(10, 77);
    describe_packed_object(0, 6);
    const struct peer_reply *sealed = hand_then(hand_complete());
    assert_int_equal(sealed->type, MSG_SEALED);
    assert_true(sealed->msg.u.sealed.stored_bytes < RIG_CHUNK);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    assert_restores(peer.id, 6);
}

/* The bytes have the digest that is claimed, the base has it elsewhere: nobody's word is taken. */
PACK_TEST(test_a_chunk_that_the_base_has_not_there_is_refused)
{
    save_a_base(8);
    memcpy(memory + RIG_CHUNK, memory, RIG_CHUNK);
    struct envelope envelope = hand_blank(RIG_CHUNK), raw;
    chunk_seal_raw(RIG_CHUNK, memory, 1, &raw);
    envelope.digest = raw.digest;
    for (uint32_t i = 0; i < 2; i++) {
        struct msg msg = hand_description(1, (uint64_t)i * RIG_CHUNK, &envelope);
        peer_send(&peer, msg);
        peer.envelopes[i] = hand_blank(RIG_CHUNK);
        peer.envelopes[i].offset = peer.next_offset;
        peer.in_object[i] = 0;
        peer.next_offset += RIG_CHUNK;
    }
    peer.chunk_count = 2;
    peer.objects[peer.object_count++] = (struct peer_object){1, 2};
    peer_end_object(&peer, 1, 2);
    peer_expect_error(hand_then(hand_complete()), CAIRN_E_INVALID, "the base has no such chunk");
    assert_int_equal(hand_state_of(peer.id), CKPT_OPEN);
}

PACK_TEST(test_a_base_that_was_not_named_is_no_base)
{
    fill_arena(1);
    packing.known = true;
    packing.encode = 0;
    packing.salt = 1;
    begin_packed(10, 77); /* the first of the run */
    describe_packed_object(0, 3);
    peer_expect_error(hand_then(hand_complete()), CAIRN_E_INVALID, "this save has no base");
}

/* Before the feature, what a description said of digests was not looked at. */
PACK_TEST(test_an_old_client_shares_nothing)
{
    fill_arena(1);
    packing.known = true;
    packing.encode = 2;
    packing.salt = 1;
    hand_begin(10, 77);
    describe_packed_object(0, 5);
    assert_int_equal(hand_then(hand_complete())->type, MSG_SEALED);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    hand_assert_stored(0, memory, 5 * RIG_CHUNK);
}

static uint32_t held_count(bool placed, uint32_t from)
{
    struct msg have = {.type = MSG_HAVE, .u.have = {peer.id, 0, peer.writer, placed, from}};
    const struct peer_reply *held = peer_ask(&peer, have);
    assert_int_equal(held->type, MSG_HELD);
    return held->count;
}

/* After its restart the daemon knows the objects, but not what of the descriptions they hold: what
 * is described again is found by its digest, and stored once. The new ones have the same bytes:
 * each is found in a place of its own, so that everything in the object is referred to. */
PACK_TEST(test_a_restarted_server_stores_nothing_twice)
{
    save_a_base(8);
    memset(memory, 0x44, 3 * RIG_CHUNK); /* three of eight are new */
    uint32_t stream = describe_packed_object(1, 8);
    assert_int_equal(peer_await(&peer, stream)->type, MSG_OBJECT_DURABLE);
    rig_restart(&rig);
    hand_begin(20, 78);
    assert_int_equal(held_count(true, 2), 0);
    assert_int_equal(held_count(false, 2), 1);
    peer.object_count = peer.chunk_count = 0;
    describe_packed_object(2, 8);
    const struct peer_reply *sealed = hand_then(hand_complete());
    assert_int_equal(sealed->type, MSG_SEALED);
    assert_int_equal(sealed->msg.u.sealed.shared_bytes, 5 * RIG_CHUNK);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    assert_restores(peer.id, 8);
    struct msg stat = {.type = MSG_READ, .u.read = {.object = hand_object_id(2), .bytes = 1}};
    assert_int_equal(peer_ask(&other, stat)->type, MSG_ERROR); /* there is no such object */
}

/* A store may list an object before its SEAL is answered. A client that asks meanwhile is not told
 * of it, and the daemon still knows afterwards which of the described chunks the object holds: the
 * first of them is the base's. */
PACK_TEST(test_an_object_that_is_being_sealed_is_not_read_back)
{
    const struct store_fault_rule slow = {.kind = FAULT_DELAY, .op = STORE_SEAL, .delay_ms = 3000};
    save_a_base(8);
    for (unsigned i = 1; i < 4; i++) { /* three of eight are new */
        memset(memory + i * RIG_CHUNK, (int)(0x40 + i), RIG_CHUNK);
    }
    assert_int_equal(store_fault_add(rig.store, &slow), 0);
    uint32_t stream = describe_packed_object(1, 8);
    sim_run_for(rig.sim, 1000);
    assert_int_equal(held_count(true, 2), 0);
    assert_int_equal(held_count(false, 2), 0);
    assert_int_equal(peer_await(&peer, stream)->type, MSG_OBJECT_DURABLE);
    assert_int_equal(held_count(true, 2), 1);
    assert_int_equal(hand_then(hand_complete())->type, MSG_SEALED);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    assert_restores(peer.id, 8);
}

/* The step was opened before, and what that opening left is gc's: an object of it is not referred
 * to, whether the client says where its own begin or, as an older one, does not. */
static void recover_from(uint32_t from)
{
    save_a_base(8);
    memset(memory, 0x44, 3 * RIG_CHUNK);
    uint32_t stream = describe_packed_object(1, 8);
    assert_int_equal(peer_await(&peer, stream)->type, MSG_OBJECT_DURABLE);
    assert_int_equal(
        peer_abort(&peer, CAIRN_E_CANCELLED, "it will be opened again")->msg.u.outcome.state,
        SAVE_ABORTED);
    rig_restart(&rig);
    hand_begin(20, 79);
    assert_int_equal(held_count(true, from), 0);
    peer.object_count = peer.chunk_count = 0;
    describe_packed_object(2, 8);
    assert_int_equal(hand_then(hand_complete())->type, MSG_SEALED);
    assert_int_equal(peer_outcome(&peer)->msg.u.outcome.state, SAVE_COMMITTED);
    assert_restores(peer.id, 8);
    struct msg stat = {.type = MSG_READ, .u.read = {.object = hand_object_id(2), .bytes = 1}};
    assert_int_equal(peer_ask(&other, stat)->type, MSG_READ_REPLY); /* it was stored anew */
}

PACK_TEST(test_what_an_earlier_opening_left_is_not_referred_to) { recover_from(3); }

PACK_TEST(test_an_old_client_that_does_not_say_where_it_began) { recover_from(0); }

/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever a client sends, the server refuses it by name, harms nobody else, and loses no buffer.
 * Method: scripted clients that break one rule each; the fixture counts buffers and sockets at the
 * end.
 */
#include "session_rig.h"

#include "support/unit_test.h"

static struct rig rig;
static struct peer peers[2];
static struct peer *const a = &peers[0], *const b = &peers[1];

static void setup(void)
{
    rig_init(&rig, 13);
    rig_start(&rig);
    peer_init(&rig, a, 0, 2);
    peer_init(&rig, b, 1, 2);
    peer_begin(a, 10, 77);
}

static void teardown(void)
{
    peer_fini(a);
    peer_fini(b);
    rig_fini(&rig);
}

static void want(struct peer *peer, uint32_t buffers)
{
    uint32_t had = peer->credits;
    peer_send(peer, (struct msg){.type = MSG_WANT, .u.want = {.buffers = buffers}});
    assert_true(peer_await_credits(peer, had + buffers));
}

static void again(void)
{
    peer_drop(a);
    peer_begin(a, 10, 77);
    a->chunk_count = a->object_count = 0;
    a->next_offset = 0;
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

FIXED_TEST(test_data_without_grant)
{
    peer_chunk(a, 0, false);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "for which it had no grant");
}

FIXED_TEST(test_data_in_another_ones_name)
{
    want(a, 1);
    a->writer++;
    peer_chunk(a, 0, false);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "does not belong to this session");
}

FIXED_TEST(test_data_out_of_place)
{
    want(a, 2);
    peer_chunk(a, 0, false);
    a->next_offset += RIG_CHUNK;
    peer_chunk(a, 0, false);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "was expected");
}

FIXED_TEST(test_data_behind_its_end)
{
    want(a, 2);
    peer_chunk(a, 0, false);
    peer_end_object(a, 0, 1);
    a->next_offset = RIG_CHUNK;
    peer_chunk(a, 0, false);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "was expected");
}

FIXED_TEST(test_end_that_disagrees)
{
    want(a, 1);
    peer_chunk(a, 0, false);
    peer_end_object(a, 0, 2);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "ends at");
    again();
    peer_end_object(a, 5, 1);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "had sent no payload");
    again();
    want(a, 1);
    peer_chunk(a, 6, false);
    peer_end_object(a, 6, 1);
    peer_end_object(a, 6, 1);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "ends at");
}

/* A spoilt chunk voids its object only; all that still comes for it is dropped, end included. */
FIXED_TEST(test_spoilt_chunk_voids_its_object)
{
    want(a, 2);
    uint32_t stream = a->next_stream;
    peer_chunk(a, 0, true);
    peer_expect_error(peer_await(a, stream), CAIRN_E_DIGEST_MISMATCH, "");
    for (unsigned i = 0; i < 20; i++) {
        peer_chunk(a, 0, false);
        peer_end_object(a, 0, 3);
        a->next_offset = RIG_CHUNK;
        a->chunk_count--;
        sim_run_for(rig.sim, 1);
        want(a, 1);
    }
    a->chunk_count = 0;
    a->next_offset = 0;
    assert_true(peer_object(a, 1, 3));
    assert_int_equal(peer_seal_all(a)->type, MSG_SEALED);
}

/* object_bytes is what the store reserves: room for two chunks and their footer, and no more. */
FIXED_TEST(test_object_beyond_its_word)
{
    a->object_bytes = 2 * RIG_CHUNK + object_footer_bytes(2);
    assert_true(peer_object(a, 0, 2));
    want(a, 3);
    for (unsigned i = 0; i < 3; i++) {
        peer_chunk(a, 1, false);
    }
    peer_expect_end(a, CAIRN_E_TOO_LARGE, "is larger than the");
}

FIXED_TEST(test_too_many_objects)
{
    for (unsigned i = 0; i < 400 && a->conn; i++) {
        peer_send(a, (struct msg){.type = MSG_WANT, .u.want = {.buffers = 1}});
        if (!peer_await_credits(a, 1)) {
            break;
        }
        a->next_offset = 0;
        a->chunk_count = 0;
        peer_chunk(a, i, false);
    }
    peer_expect_end(a, CAIRN_E_PROTOCOL, "objects at once");
}

/* Requests that wait are not read beyond a number; nothing of them is left when their peer goes. */
FIXED_TEST(test_too_many_requests)
{
    struct server_stats stats, more;
    for (unsigned i = 0; i < 300; i++) {
        peer_send(a, (struct msg){.type = MSG_WAIT, .u.wait = {.id = a->id, .open_id = 77}});
    }
    sim_run_for(rig.sim, 100);
    assert_non_null(a->conn);
    server_stats(rig.server, &stats);
    for (unsigned i = 0; i < 3000; i++) {
        peer_send(a, (struct msg){.type = MSG_WAIT, .u.wait = {.id = a->id, .open_id = 77}});
    }
    sim_run_for(rig.sim, 100);
    server_stats(rig.server, &more);
    assert_true(stats.message_bytes > 0);
    assert_int_equal(more.message_bytes, stats.message_bytes);
    peer_drop(a); /* which a server that does not read cannot see: it looks for it */
    sim_run_for(rig.sim, 15000);
    server_stats(rig.server, &stats);
    assert_int_equal(stats.message_bytes, 0);
}

/* --- parts --- */

FIXED_TEST(test_seal_before_the_part)
{
    uint8_t byte = 0;
    assert_true(peer_object(a, 0, 1));
    const struct peer_reply *reply = peer_seal(a, 1, &byte);
    assert_int_equal(reply->msg.u.error.code, CAIRN_E_PROTOCOL);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "SEAL before the whole part");
}

FIXED_TEST(test_seal_twice)
{
    assert_true(peer_object(a, 0, 1));
    size_t bytes;
    uint8_t *part = peer_part(a, &bytes);
    peer_send_part(a, bytes, part);
    assert_int_equal(peer_seal(a, bytes, part)->type, MSG_SEALED);
    peer_seal(a, bytes, part);
    free(part);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "SEAL before the whole part");
}

FIXED_TEST(test_part_out_of_order)
{
    uint8_t bytes[100] = {0};
    struct msg msg = {.type = MSG_PART};
    msg.u.part = (struct msg_part){.id = a->id, .open_id = 77, .offset = 5, .total_bytes = 200};
    peer_send_payload(a, msg, sizeof bytes, bytes);
    peer_expect_end(a, CAIRN_E_PROTOCOL, "was expected");
}

FIXED_TEST(test_part_of_nothing_is_thrown_away)
{
    uint8_t bytes[100] = {0};
    struct msg msg = {.type = MSG_PART};
    msg.u.part = (struct msg_part){.id = {1, 99}, .open_id = 5, .total_bytes = 200};
    for (unsigned i = 0; i < 1000; i++) {
        peer_send_payload(a, msg, sizeof bytes, bytes);
    }
    assert_true(peer_object(a, 0, 1));
    assert_int_equal(peer_seal_all(a)->type, MSG_SEALED);
}

static void refused_part(uint8_t *part, size_t bytes, int code, const char *text)
{
    peer_send_part(a, bytes, part);
    peer_expect_error(peer_seal(a, bytes, part), code, text);
    free(part);
    assert_non_null(a->conn); /* a refused part is not the end: the client may build it again */
}

FIXED_TEST(test_part_with_foreign_chunks)
{
    size_t bytes;
    assert_true(peer_object(a, 0, 2));
    a->envelopes[1].stored_crc ^= 1;
    uint8_t *part = peer_part(a, &bytes);
    refused_part(part, bytes, CAIRN_E_INVALID, "holds another chunk at that place");
    a->envelopes[1].stored_crc ^= 1;
    a->objects[0].sequence = 3;
    part = peer_part(a, &bytes);
    refused_part(part, bytes, CAIRN_E_INVALID, "is not durable");
    a->objects[0].sequence = 0;
    a->world = 3;
    part = peer_part(a, &bytes);
    refused_part(part, bytes, CAIRN_E_INVALID, "the world size 3");
    a->world = 2;
    part = peer_part(a, &bytes);
    part[bytes / 2] ^= 1;
    refused_part(part, bytes, CAIRN_E_DAMAGED, "");
    assert_int_equal(peer_seal_all(a)->type, MSG_SEALED);
}

FIXED_TEST(test_part_whose_hash_differs)
{
    size_t bytes;
    assert_true(peer_object(a, 0, 2));
    uint8_t *part = peer_part(a, &bytes);
    peer_send_part(a, bytes, part);
    part[0] ^= 1;
    const struct peer_reply *reply = peer_seal(a, bytes, part);
    free(part);
    assert_int_equal(reply->msg.u.error.code, CAIRN_E_DIGEST_MISMATCH);
}

FIXED_TEST(test_part_with_an_object_that_has_no_end)
{
    size_t bytes;
    want(a, 1);
    peer_chunk(a, 0, false);
    a->objects[a->object_count++] = (struct peer_object){.sequence = 0, .chunk_count = 1};
    uint8_t *part = peer_part(a, &bytes);
    refused_part(part, bytes, CAIRN_E_INVALID, "is not durable");
}

/* The connection is writing into a part when its save goes: by the stop's look for open saves. */
FIXED_TEST(test_save_ends_under_its_part)
{
    size_t bytes = 1 << 20;
    uint8_t *data = calloc(1, bytes);
    struct msg msg = {.type = MSG_PART};
    peer_begin(b, 10, 0);
    msg.u.part = (struct msg_part){.id = a->id, .open_id = 77, .total_bytes = 2 * bytes};
    peer_send_payload(a, msg, bytes, data);
    msg.u.part.offset = bytes;
    peer_send_payload(a, msg, bytes, data);
    free(data);
    sim_run_for(rig.sim, 3); /* under way: the network moves some kilobytes a millisecond */
    struct msg abort = {.type = MSG_ABORT};
    abort.u.abort = (struct msg_abort){b->id, 77, CAIRN_E_ABORTED, "for a test"};
    assert_int_equal(peer_ask(b, abort)->type, MSG_OUTCOME);
    rig_stop_begin(&rig, 60000);
    rig_stop_end(&rig);
}

/* The same, by an opening that takes the place of the dead one. */
FIXED_TEST(test_new_opening_under_a_part)
{
    size_t bytes = 1 << 20;
    uint8_t *data = calloc(1, bytes);
    struct msg abort = {.type = MSG_ABORT};
    abort.u.abort = (struct msg_abort){a->id, 77, CAIRN_E_ABORTED, "for a test"};
    assert_int_equal(peer_ask(a, abort)->type, MSG_OUTCOME);
    struct msg msg = {.type = MSG_PART};
    msg.u.part = (struct msg_part){.id = a->id, .open_id = 77, .total_bytes = 2 * bytes};
    peer_send_payload(a, msg, bytes, data);
    uint32_t stream = peer_send(a, peer_open_msg(a, 10, 78));
    msg.u.part.offset = bytes;
    peer_send_payload(a, msg, bytes, data);
    free(data);
    const struct peer_reply *reply = peer_await(a, stream);
    assert_int_equal(reply->type, MSG_OPENED);
    a->open_id = 78;
    assert_true(peer_object(a, 9, 1));
    assert_int_equal(peer_seal_all(a)->type, MSG_SEALED);
}

/* HAVE is on its way to the store when the save that it asks for is dropped. */
FIXED_TEST(test_have_of_a_save_that_goes)
{
    struct msg abort = {.type = MSG_ABORT}, have = {.type = MSG_HAVE};
    abort.u.abort = (struct msg_abort){a->id, 77, CAIRN_E_ABORTED, "for a test"};
    have.u.have = (struct msg_have){a->id, 0, a->writer, false, 0};
    peer_send(a, abort);
    uint32_t opens = peer_send(a, peer_open_msg(a, 10, 78));
    uint32_t stream = peer_send(a, have);
    assert_non_null(peer_await(a, opens));
    const struct peer_reply *reply = peer_await(a, stream);
    assert_non_null(reply);
    assert_true(reply->type == MSG_HELD || reply->type == MSG_ERROR);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A part may refer to chunks of the same rank's part of the base that OPENED named, as they are
 * there, and to nothing else of older steps.
 */
#include "format/part.h"
#include "session_rig.h"
#include "support/store_fault.h"
#include "support/unit_test.h"

static struct rig rig;
static struct peer peers[2];

static void setup(void)
{
    rig_init(&rig, 21);
    rig.faulty = true;
    rig_start(&rig);
    peer_init(&rig, &peers[0], 0, 1);
    peer_init(&rig, &peers[1], 0, 1);
}

static void teardown(void)
{
    peer_fini(&peers[0]);
    peer_fini(&peers[1]);
    rig_fini(&rig);
}

/* A part of the peer's present opening with the objects and chunks of another one, changed. */
static const struct peer_reply *seal_changed(struct peer *peer, size_t bytes, const uint8_t *data,
                                             void (*change)(struct part *part))
{
    struct scratch scratch;
    struct part part;
    struct diag diag = DIAG_INIT;
    struct buf buf;
    scratch_init(&scratch, MIB(4));
    if (part_decode(bytes, data, &scratch, &part, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
    part.id = peer->id;
    change(&part);
    part_count_objects(&part);
    buf_init(&buf, LIMIT_PART_BYTES);
    part_encode(&part, &buf);
    assert_int_equal(buf_status(&buf), 0);
    peer_send_part(peer, buf.bytes, buf.data);
    const struct peer_reply *reply = peer_seal(peer, buf.bytes, buf.data);
    assert_non_null(reply);
    buf_fini(&buf);
    scratch_fini(&scratch);
    return reply;
}

static void expect_refused(const struct peer_reply *reply, const char *text)
{
    peer_expect_error(reply, CAIRN_E_INVALID, text);
}

static void expect_committed(struct peer *peer)
{
    const struct peer_reply *reply = peer_outcome(peer);
    assert_non_null(reply);
    assert_int_equal(reply->type, MSG_OUTCOME);
    assert_int_equal(reply->msg.u.outcome.state, SAVE_COMMITTED);
}

static void leave(struct part *part) { (void)part; }
static void change_digest(struct part *part) { part->chunks[1].digest.bytes[3] ^= 1; }
static void change_offset(struct part *part) { part->chunks[1].offset += RIG_CHUNK; }
static void change_crc(struct part *part) { part->chunks[1].stored_crc ^= 1; }
static void change_encoding(struct part *part)
{
    part->chunks[1].encoding = ENCODING_ZSTD;
    part->chunks[1].stored_bytes--;
}
static void change_sequence(struct part *part) { part->objects[0].id.sequence += 1; }
static void change_step(struct part *part) { part->objects[0].id.step -= 1; }
static void change_writer(struct part *part) { part->objects[0].id.writer ^= 1; }

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

/* Goal: exact references are taken, also after the daemon was started anew; anything else is
 * INVALID and names the chunk; the save goes on afterwards. */
FIXED_TEST(test_references_are_checked)
{
    struct peer *peer = &peers[0];
    size_t bytes;
    assert_true(peer_save(peer, 10, 77, 5));
    expect_committed(peer);
    uint8_t *data = peer_part(peer, &bytes);
    for (uint64_t step = 20; step <= 30; step += 10) {
        const struct peer_reply *reply = peer_ask(peer, peer_open_msg(peer, step, 70 + step));
        assert_int_equal(reply->type, MSG_OPENED);
        assert_int_equal(reply->msg.u.opened.base.step, step - 10);
        peer->id = reply->msg.u.opened.id;
        peer->open_id = 70 + step;
        expect_refused(seal_changed(peer, bytes, data, change_digest), "chunk 1 refers to object");
        expect_refused(seal_changed(peer, bytes, data, change_offset), "not the same in the base");
        expect_refused(seal_changed(peer, bytes, data, change_crc), "not the same in the base");
        expect_refused(seal_changed(peer, bytes, data, change_encoding),
                       "not the same in the base");
        expect_refused(seal_changed(peer, bytes, data, change_sequence),
                       "not the same in the base");
        expect_refused(seal_changed(peer, bytes, data, change_step), "not the same in the base");
        expect_refused(seal_changed(peer, bytes, data, change_writer), "not the same in the base");
        assert_int_equal(seal_changed(peer, bytes, data, leave)->type, MSG_SEALED);
        expect_committed(peer);
    }
    free(data);
}

/* Goal: where OPENED names no base nothing older may be referred to. */
FIXED_TEST(test_without_a_base_nothing_is_referred_to)
{
    struct peer *peer = &peers[0];
    size_t bytes;
    assert_true(peer_save(peer, 10, 77, 5));
    expect_committed(peer);
    uint8_t *data = peer_part(peer, &bytes);
    struct msg msg = peer_open_msg(peer, 20, 78);
    msg.u.open.full = true;
    const struct peer_reply *reply = peer_ask(peer, msg);
    assert_int_equal(reply->type, MSG_OPENED);
    assert_int_equal(reply->msg.u.opened.base.term, 0);
    peer->id = reply->msg.u.opened.id;
    peer->open_id = 78;
    expect_refused(seal_changed(peer, bytes, data, leave), "has no base");
    free(data);
}

/* Goal: a rank that was told the base may refer to it, even if the next daemon could not read it
 * when the rank opened the step there again. */
FIXED_TEST(test_a_base_that_is_read_late_is_referred_to)
{
    const struct store_fault_rule cut = {
        .kind = FAULT_FAIL, .op = STORE_FETCH, .count = 9, .code = CAIRN_E_TIMED_OUT};
    struct peer *peer = &peers[0];
    size_t bytes;
    assert_true(peer_save(peer, 10, 77, 5));
    expect_committed(peer);
    uint8_t *data = peer_part(peer, &bytes);
    const struct peer_reply *reply = peer_ask(peer, peer_open_msg(peer, 20, 78));
    assert_int_equal(reply->msg.u.opened.base.step, 10);
    peer->id = reply->msg.u.opened.id;
    peer->open_id = 78;
    rig_restart(&rig);
    assert_true(peer_await_end(peer));
    assert_int_equal(store_fault_add(rig.store, &cut), 0);
    assert_true(peer_login(peer));
    reply = peer_ask(peer, peer_open_msg(peer, 20, 78));
    assert_int_equal(reply->type, MSG_OPENED);
    assert_int_equal(reply->msg.u.opened.base.term, 0);
    store_fault_clear(rig.store);
    assert_int_equal(seal_changed(peer, bytes, data, leave)->type, MSG_SEALED);
    expect_committed(peer);
    free(data);
}

static void on_marked(struct run_req *req) { assert_int_equal(req->status, 0); }

/* Lets the core forget or reclaim the checkpoint. */
static void mark(enum event_kind kind, const struct ckpt_id *id)
{
    struct run_name name;
    assert_int_equal(run_name_set("lab", "gpt", &name, NULL), 0);
    struct run_req req = {.event = {.kind = kind, .u.mark = {.id_count = 1, .ids = id}},
                          .done = on_marked};
    req.event.u.mark.forget.keep_least = kind == EVENT_FORGET ? 1 : 0;
    run_submit(catalog_run(rig.catalog, &name), &req);
    sim_run_for(rig.sim, 1000);
    assert_false(req.submitted);
}

/* Goal: a job that goes on after its successor has begun is told that it is fenced, also where the
 * base to which its part refers was collected meanwhile. */
FIXED_TEST(test_a_fenced_rank_hears_of_the_fence)
{
    struct peer *zombie = &peers[0], *next = &peers[1];
    size_t bytes;
    assert_true(peer_save(zombie, 10, 77, 5));
    expect_committed(zombie);
    const struct ckpt_id base = zombie->id;
    uint8_t *data = peer_part(zombie, &bytes);
    assert_int_equal(peer_ask(zombie, peer_open_msg(zombie, 20, 78))->msg.u.opened.base.step, 10);
    zombie->id.step = 20;
    zombie->open_id = 78;
    memset(&rig.token, 0x77, sizeof rig.token); /* another attempt */
    next->writer = 555;
    assert_true(peer_login(next));
    struct msg open = peer_open_msg(next, 30, 79);
    open.u.open.newest_seen = 1;
    const struct peer_reply *reply = peer_ask(next, open);
    assert_int_equal(reply->type, MSG_OPENED);
    next->id = reply->msg.u.opened.id;
    next->open_id = 79;
    next->run_uuid = reply->msg.u.opened.run_uuid;
    assert_true(peer_object(next, 0, 1));
    assert_int_equal(peer_seal_all(next)->type, MSG_SEALED);
    expect_committed(next);
    mark(EVENT_FORGET, &base);
    mark(EVENT_RECLAIM, &base);
    reply = seal_changed(zombie, bytes, data, leave);
    peer_expect_error(reply, CAIRN_E_ABORTED, ""); /* the outcome says why */
    reply = peer_outcome(zombie);
    assert_int_equal(reply->msg.u.outcome.state, SAVE_ABORTED);
    assert_int_equal(reply->msg.u.outcome.code, CAIRN_E_FENCED);
    free(data);
}

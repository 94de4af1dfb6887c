/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixture of the tests of server/session: see session_rig.h.
 */
#include "session_rig.h"

#include "base/check.h"
#include "base/log.h"
#include "format/part.h"
#include "hash/hash.h"
#include "pipeline/chunk.h"

#include <stdio.h>

#include "support/store_fault.h"
#include "support/unit_test.h"

enum { PORT = 7421, WAIT_MS = 120000 };

/* The scripted client may send what breaks a rule; the server checks what it receives by itself. */
__typeof__(msg_check) __wrap_msg_check;
int __wrap_msg_check(const struct msg *msg, struct diag *diag) { return 0; }

/* --- the server --- */

static void until(struct rig *rig, const bool *flag)
{
    assert_true(sim_await(rig->sim, flag, WAIT_MS));
}

static void on_ready(void *user, int status, const struct diag *diag)
{
    assert_int_equal(status, 0);
    *(bool *)user = true;
}

static void on_accept(void *user, struct sock *sock)
{
    struct rig *rig = user;
    struct stream *stream;
    assert_int_equal(stream_plain_new(sock, &stream, NULL), 0);
    server_accept(rig->server, stream);
}

void rig_init(struct rig *rig, uint64_t seed)
{
    *rig = (struct rig){.sim = sim_new(seed)};
    log_setup(LOG_ERROR, LOG_TEXT); /* what clients do wrong is logged as warnings */
    rig->host = sim_host_new(rig->sim, "server", NULL);
    assert_int_equal(memory_medium_new(&rig->medium), 0);
    memset(&rig->token, 0x5a, sizeof rig->token);
    rig->options = (struct server_options){.buffer_bytes_total = 8 * LIMIT_CHUNK_BYTES,
                                           .sessions_max = 16,
                                           .heartbeat_ms = 1000,
                                           .dead_after_ms = 4000,
                                           .login_ms = 3000,
                                           .grant_idle_ms = 5000,
                                           .part_bytes_total = MIB(8),
                                           .encode_lanes = 2,
                                           .agent = "cairnd test"};
}

static struct net_addr address(const struct rig *rig)
{
    struct net_addr addr = {.family = NET_TCP, .host = "server", .port = PORT};
    return rig->local ? (struct net_addr){.family = NET_UNIX, .host = "/server"} : addr;
}

void rig_start(struct rig *rig)
{
    struct sim_host *host = rig->host;
    rig->ready = rig->stopped = rig->closed = false;
    if (rig->open_store) {
        rig->store = rig->open_store(rig);
    } else {
        assert_int_equal(
            store_memory_new(sim_loop(host), sim_pool(host), rig->medium, &rig->store, NULL), 0);
    }
    if (rig->faulty) {
        assert_int_equal(store_fault_new(sim_loop(host), rig->store, &rig->store), 0);
    }
    struct catalog_options catalog = {.chunk_bytes = RIG_CHUNK,
                                      .restore_drain_ms = 1000,
                                      .ready = on_ready,
                                      .user = &rig->ready,
                                      .poll_ms = rig->poll_ms,
                                      .pool = sim_pool(host)};
    assert_int_equal(catalog_new(sim_loop(host), rig->store, &catalog, &rig->catalog), 0);
    until(rig, &rig->ready);
    rig->options.loop = sim_loop(host);
    rig->options.catalog = rig->late ? NULL : rig->catalog;
    rig->options.verify_pool = sim_pool(host);
    assert_int_equal(server_new(&rig->options, &rig->server, NULL), 0);
    struct net_addr addr = address(rig);
    struct net *net = sim_net(host);
    assert_int_equal(net->ops->listen(net, &addr, 0, on_accept, rig, &rig->listener, NULL, NULL),
                     0);
}

static void close_all(struct rig *rig)
{
    until(rig, &rig->stopped);
    struct server_stats stats;
    server_stats(rig->server, &stats);
    assert_int_equal(stats.buffers_free, stats.buffers_total);
    assert_int_equal(stats.sessions, 0);
    server_free(rig->server);
    catalog_close(rig->catalog, sim_raise, &rig->closed);
    until(rig, &rig->closed);
    rig->closed = false;
    store_close(rig->store, sim_raise, &rig->closed);
    until(rig, &rig->closed);
    rig->server = NULL;
}

void rig_stop_begin(struct rig *rig, uint64_t grace_ms)
{
    listener_close(rig->listener);
    server_stop(rig->server, grace_ms, sim_raise, &rig->stopped);
}

void rig_stop_end(struct rig *rig) { close_all(rig); }

void rig_stop(struct rig *rig, uint64_t grace_ms)
{
    rig_stop_begin(rig, grace_ms);
    rig_stop_end(rig);
}

void rig_restart(struct rig *rig)
{
    listener_close(rig->listener);
    sim_kill(rig->host, SIM_RESET);
    server_stop(rig->server, 0, sim_raise, &rig->stopped);
    close_all(rig);
    rig->host = sim_restart(rig->host);
    rig_start(rig);
}

void rig_fini(struct rig *rig)
{
    if (rig->server) {
        rig_stop(rig, 0);
    }
    sim_run_for(rig->sim, 5000);
    assert_int_equal(sim_open_socks(rig->host), 0);
    assert_int_equal(sim_open_works(rig->host), 0);
    memory_medium_free(rig->medium);
    sim_free(rig->sim);
}

/* --- a connection --- */

static int on_message(void *user, const struct frame *frame, const struct msg *msg,
                      void **ret_payload, struct diag *diag)
{
    struct peer *peer = user;
    if (msg->type == MSG_GRANT) {
        peer->credits += msg->u.grant.buffers;
        peer->grants += msg->u.grant.buffers;
        return 0;
    }
    assert_true(peer->reply_count < RIG_INBOX);
    struct peer_reply *reply = &peer->replies[peer->reply_count];
    *reply = (struct peer_reply){.type = msg->type, .stream = frame->stream, .msg = *msg};
    if (msg->type == MSG_ERROR || msg->type == MSG_OUTCOME) {
        const char *text = msg->type == MSG_ERROR ? msg->u.error.text : msg->u.outcome.text;
        snprintf(reply->text, sizeof reply->text, "%s", text ? text : "");
    } else if (msg->type == MSG_HELD) {
        reply->count = msg->u.held.count;
        assert_true(reply->count <= RIG_HELD);
        memcpy(reply->sequences, msg->u.held.sequences, reply->count * sizeof(uint32_t));
    }
    if (frame->payload_bytes > 0) {
        reply->payload_bytes = frame->payload_bytes;
        reply->payload = malloc(frame->payload_bytes);
        *ret_payload = reply->payload;
    } else {
        peer->reply_count++;
    }
    return 0;
}

static int on_payload(void *user, const struct frame *frame, const struct msg *msg, void *payload,
                      struct diag *diag)
{
    (void)frame, (void)msg, (void)payload, (void)diag;
    ((struct peer *)user)->reply_count++;
    return 0;
}

static void free_half_reply(struct peer *peer)
{
    if (peer->reply_count < RIG_INBOX) {
        free(peer->replies[peer->reply_count].payload);
        peer->replies[peer->reply_count].payload = NULL;
    }
}

static void on_close(void *user, int status, const struct diag *diag)
{
    struct peer *peer = user;
    peer->status = status;
    free_half_reply(peer);
    conn_close(peer->conn, false);
    peer->conn = NULL;
}

static const struct conn_handler HANDLER = {
    .on_message = on_message, .on_payload = on_payload, .on_close = on_close};

void peer_init(struct rig *rig, struct peer *peer, uint32_t rank, uint32_t world)
{
    char name[32];
    snprintf(name, sizeof name, "peer%u", rig->peers++);
    memset(peer, 0, sizeof *peer);
    peer->rig = rig;
    peer->host = sim_host_new(rig->sim, name, NULL);
    peer->rank = rank;
    peer->world = world;
    peer->writer = 100 + rank;
}

void peer_drop(struct peer *peer)
{
    if (peer->conn) {
        free_half_reply(peer);
        conn_close(peer->conn, false);
        peer->conn = NULL;
    }
}

void peer_fini(struct peer *peer)
{
    peer_drop(peer);
    sim_run_for(peer->rig->sim, 100);
    for (size_t i = 0; i < peer->reply_count; i++) {
        free(peer->replies[i].payload);
    }
    assert_int_equal(sim_open_socks(peer->host), 0);
}

void peers_init(struct rig *rig, uint32_t count, struct peer *peers, uint32_t world)
{
    for (uint32_t i = 0; i < count; i++) {
        peer_init(rig, &peers[i], i, world);
    }
}

void peers_fini(uint32_t count, struct peer *peers)
{
    for (uint32_t i = 0; i < count; i++) {
        peer_fini(&peers[i]);
    }
}

void peer_connect(struct peer *peer)
{
    struct net *net = sim_net(peer->host);
    struct net_addr addr = address(peer->rig);
    struct conn_options options = {.message_max = LIMIT_MESSAGE_BYTES,
                                   .payload_max = LIMIT_CHUNK_BYTES};
    struct stream *stream;
    peer_drop(peer);
    assert_int_equal(net->ops->connect(net, &addr, &peer->sock, NULL), 0);
    assert_int_equal(stream_plain_new(peer->sock, &stream, NULL), 0);
    assert_int_equal(
        conn_new(sim_loop(peer->host), stream, &options, &HANDLER, peer, &peer->conn, NULL), 0);
    peer->next_stream = 1;
    peer->credits = peer->grants = 0;
    peer->status = 0;
    for (size_t i = 0; i < peer->reply_count; i++) {
        free(peer->replies[i].payload);
    }
    peer->reply_count = peer->replies_seen = 0;
}

uint32_t peer_send(struct peer *peer, struct msg msg)
{
    if (peer->conn) {
        conn_send_always(peer->conn, peer->next_stream, &msg);
    }
    return peer->next_stream++;
}

struct out {
    struct conn_out out;
    uint8_t data[];
};

static void on_sent(struct conn_out *out, int status) { free(container_of(out, struct out, out)); }

void peer_send_payload(struct peer *peer, struct msg msg, size_t bytes, const void *data)
{
    uint32_t stream = peer->next_stream++;
    if (!peer->conn) {
        return;
    }
    struct out *out = malloc(sizeof *out + bytes);
    assert_non_null(out);
    memcpy(out->data, data, bytes);
    out->out = (struct conn_out){
        .iov_count = 1, .iov[0] = {.iov_base = out->data, .iov_len = bytes}, .done = on_sent};
    conn_send_payload(peer->conn, stream, &msg, &out->out);
}

struct await {
    const struct peer *peer;
    uint32_t stream, credits;
    size_t from;
    const struct peer_reply *found;
};

static bool has_reply(void *user)
{
    struct await *await = user;
    for (size_t i = await->from; i < await->peer->reply_count; i++) {
        if (await->peer->replies[i].stream == await->stream) {
            await->found = &await->peer->replies[i];
            return true;
        }
    }
    return await->peer->conn == NULL;
}

const struct peer_reply *peer_await(struct peer *peer, uint32_t stream)
{
    struct await await = {.peer = peer, .stream = stream, .from = 0};
    if (!sim_run_until(peer->rig->sim, has_reply, &await, WAIT_MS)) {
        fail_msg("no answer on stream %u", stream);
    }
    return await.found;
}

const struct peer_reply *peer_ask(struct peer *peer, struct msg msg)
{
    return peer_await(peer, peer_send(peer, msg));
}

static bool has_ended(void *user) { return ((const struct peer *)user)->conn == NULL; }

bool peer_await_end(struct peer *peer)
{
    return sim_run_until(peer->rig->sim, has_ended, peer, WAIT_MS);
}

const struct peer_reply *peer_last(const struct peer *peer)
{
    assert_true(peer->reply_count > 0);
    return &peer->replies[peer->reply_count - 1];
}

static bool has_credits(void *user)
{
    const struct await *await = user;
    return await->peer->credits >= await->credits || await->peer->conn == NULL;
}

bool peer_await_credits(struct peer *peer, uint32_t count)
{
    struct await await = {.peer = peer, .credits = count};
    assert_true(sim_run_until(peer->rig->sim, has_credits, &await, WAIT_MS));
    return peer->conn != NULL;
}

void peer_expect_error(const struct peer_reply *reply, int code, const char *words)
{
    assert_non_null(reply);
    assert_int_equal(reply->type, MSG_ERROR);
    if (reply->msg.u.error.code != code || !strstr(reply->text, words)) {
        fail_msg("%d, without '%s': %s", reply->msg.u.error.code, words, reply->text);
    }
}

void peer_expect_end(struct peer *peer, int code, const char *words)
{
    assert_true(peer_await_end(peer));
    peer_expect_error(peer_last(peer), code, words);
}

/* --- steps --- */

bool peer_hello(struct peer *peer)
{
    const struct peer_reply *reply =
        peer_ask(peer, (struct msg){.type = MSG_HELLO,
                                    .u.hello = {.version_min = WIRE_VERSION_MIN,
                                                .version_max = WIRE_VERSION_MAX,
                                                .features = peer->features,
                                                .agent = "test"}});
    return reply && reply->type == MSG_WELCOME;
}

struct msg peer_join_msg(const struct peer *peer)
{
    struct msg msg = {.type = MSG_JOIN};
    struct msg_join *join = &msg.u.join;
    *join = (struct msg_join){.rank = peer->rank,
                              .world_size = peer->world,
                              .writer = peer->writer,
                              .token = peer->rig->token,
                              .label = "test"};
    assert_int_equal(run_name_set("lab", "gpt", &join->run, NULL), 0);
    return msg;
}

bool peer_login(struct peer *peer)
{
    peer_connect(peer);
    if (!peer_hello(peer)) {
        return false;
    }
    const struct peer_reply *reply = peer_ask(peer, peer_join_msg(peer));
    return reply && reply->type == MSG_JOINED;
}

bool peer_viewer(struct peer *peer)
{
    struct msg join = {.type = MSG_JOIN, .u.join = {.viewer = true, .label = "test"}};
    peer_connect(peer);
    assert_int_equal(run_name_set("lab", "gpt", &join.u.join.run, NULL), 0);
    if (!peer_hello(peer)) {
        return false;
    }
    const struct peer_reply *reply = peer_ask(peer, join);
    return reply && reply->type == MSG_JOINED;
}

struct msg peer_open_msg(const struct peer *peer, uint64_t step, uint64_t open_id)
{
    struct msg msg = {.type = MSG_OPEN};
    msg.u.open = (struct msg_open){.step = step,
                                   .open_id = peer->rank == 0 ? open_id : 0,
                                   .deadline_ms = 60000,
                                   .wait_ms = 30000};
    return msg;
}

bool peer_open(struct peer *peer, uint64_t step, uint64_t open_id)
{
    const struct peer_reply *reply = peer_ask(peer, peer_open_msg(peer, step, open_id));
    if (!reply || reply->type != MSG_OPENED) {
        return false;
    }
    peer->id = reply->msg.u.opened.id;
    peer->open_id = reply->msg.u.opened.open_id;
    peer->run_uuid = reply->msg.u.opened.run_uuid;
    return true;
}

void peer_begin(struct peer *peer, uint64_t step, uint64_t open_id)
{
    assert_true(peer_login(peer));
    assert_true(peer_open(peer, step, open_id));
}

const struct peer_reply *peer_abort(struct peer *peer, int code, const char *reason)
{
    struct msg msg = {.type = MSG_ABORT, .u.abort = {peer->id, peer->open_id, code, reason}};
    return peer_ask(peer, msg);
}

static struct object_id object_id(const struct peer *peer, uint32_t sequence)
{
    return (struct object_id){.term = peer->id.term,
                              .step = peer->id.step,
                              .writer = peer->writer,
                              .rank = peer->rank,
                              .sequence = sequence};
}

void peer_chunk(struct peer *peer, uint32_t sequence, bool spoil)
{
    uint8_t bytes[RIG_CHUNK];
    struct envelope envelope;
    assert_true(peer->chunk_count < RIG_CHUNKS);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 7 + peer->chunk_count * 31 + peer->rank);
    }
    chunk_seal_raw(sizeof bytes, bytes, 1, &envelope);
    envelope.offset = 0;
    struct msg msg = {.type = MSG_DATA,
                      .u.data = {.object = object_id(peer, sequence),
                                 .offset = peer->next_offset,
                                 .object_bytes = peer->object_bytes,
                                 .envelope_count = 1,
                                 .envelopes = &envelope}};
    bytes[77] ^= spoil ? 1 : 0;
    peer_send_payload(peer, msg, sizeof bytes, bytes);
    peer->envelopes[peer->chunk_count] = envelope;
    peer->envelopes[peer->chunk_count].offset = peer->next_offset;
    peer->in_object[peer->chunk_count] = peer->object_count;
    peer->next_offset += RIG_CHUNK;
    peer->chunk_count++;
    peer->credits -= peer->credits > 0 ? 1 : 0;
}

uint32_t peer_end_object(struct peer *peer, uint32_t sequence, uint32_t chunks)
{
    struct msg msg = {.type = MSG_OBJECT_END,
                      .u.object_end = {.object = object_id(peer, sequence),
                                       .data_bytes = (uint64_t)chunks * RIG_CHUNK,
                                       .envelope_count = chunks}};
    peer->next_offset = 0;
    return peer_send(peer, msg);
}

bool peer_object(struct peer *peer, uint32_t sequence, uint32_t chunks)
{
    for (uint32_t i = 0; i < chunks; i++) {
        peer_send(peer, (struct msg){.type = MSG_WANT, .u.want = {.buffers = 1}});
        if (!peer_await_credits(peer, 1)) {
            return false;
        }
        peer_chunk(peer, sequence, false);
    }
    const struct peer_reply *reply = peer_await(peer, peer_end_object(peer, sequence, chunks));
    peer->objects[peer->object_count++] =
        (struct peer_object){.sequence = sequence, .chunk_count = chunks};
    return reply && reply->type == MSG_OBJECT_DURABLE;
}

uint8_t *peer_part(struct peer *peer, size_t *ret_bytes)
{
    struct part_object objects[RIG_OBJECTS];
    struct part_chunk chunks[RIG_CHUNKS];
    char coordinate[32];
    snprintf(coordinate, sizeof coordinate, "rank=%u", peer->rank);
    struct part_blob blob = {.name = "state",
                             .coordinate = coordinate,
                             .kind = BLOB_BYTES,
                             .placement = PLACEMENT_LOCAL,
                             .plain_bytes = (uint64_t)peer->chunk_count * RIG_CHUNK,
                             .chunk_count = peer->chunk_count};
    struct part part = {.run_uuid = peer->run_uuid,
                        .id = peer->id,
                        .rank = peer->rank,
                        .world_size = peer->world,
                        .writer = peer->writer,
                        .chunk_bytes = RIG_CHUNK,
                        .object_count = peer->object_count,
                        .blob_count = 1,
                        .chunk_count = peer->chunk_count,
                        .objects = objects,
                        .blobs = &blob,
                        .chunks = chunks};
    for (uint32_t i = 0; i < peer->object_count; i++) {
        objects[i] = (struct part_object){.id = object_id(peer, peer->objects[i].sequence)};
    }
    for (uint32_t i = 0; i < peer->chunk_count; i++) {
        const struct envelope *envelope = &peer->envelopes[i];
        chunks[i] = (struct part_chunk){.object = peer->in_object[i],
                                        .cell = i,
                                        .offset = envelope->offset,
                                        .stored_bytes = envelope->stored_bytes,
                                        .plain_bytes = envelope->plain_bytes,
                                        .stored_crc = envelope->stored_crc,
                                        .encoding = envelope->encoding,
                                        .digest_alg = envelope->digest_alg,
                                        .digest = envelope->digest};
    }
    struct buf buf;
    part_count_objects(&part);
    buf_init(&buf, LIMIT_PART_BYTES);
    part_encode(&part, &buf);
    assert_int_equal(buf_status(&buf), 0);
    uint8_t *copy = malloc(buf.bytes);
    assert_non_null(copy);
    memcpy(copy, buf.data, buf.bytes);
    *ret_bytes = buf.bytes;
    buf_fini(&buf);
    return copy;
}

void peer_send_part(struct peer *peer, size_t bytes, const void *data)
{
    size_t half = bytes / 2; /* two frames */
    struct msg msg = {
        .type = MSG_PART,
        .u.part = {.id = peer->id, .open_id = peer->open_id, .offset = 0, .total_bytes = bytes}};
    peer_send_payload(peer, msg, half, data);
    msg.u.part.offset = half;
    peer_send_payload(peer, msg, bytes - half, (const uint8_t *)data + half);
}

const struct peer_reply *peer_seal(struct peer *peer, size_t bytes, const void *data)
{
    struct msg msg = {.type = MSG_SEAL,
                      .u.seal = {.id = peer->id,
                                 .open_id = peer->open_id,
                                 .part_bytes = bytes,
                                 .part_sha256 = sha256(bytes, data)}};
    return peer_ask(peer, msg);
}

const struct peer_reply *peer_seal_all(struct peer *peer)
{
    size_t bytes;
    uint8_t *part = peer_part(peer, &bytes);
    peer_send_part(peer, bytes, part);
    const struct peer_reply *reply = peer_seal(peer, bytes, part);
    free(part);
    return reply;
}

const struct peer_reply *peer_outcome(struct peer *peer)
{
    return peer_ask(
        peer, (struct msg){.type = MSG_WAIT, .u.wait = {.id = peer->id, .open_id = peer->open_id}});
}

bool peer_save(struct peer *peer, uint64_t step, uint64_t open_id, uint32_t chunks)
{
    if (!peer_login(peer) || !peer_open(peer, step, open_id) || !peer_object(peer, 0, chunks)) {
        return false;
    }
    const struct peer_reply *reply = peer_seal_all(peer);
    return reply && reply->type == MSG_SEALED;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank whose URL names several servers leaves one that stops or refuses, and refers to nothing
 * that the server it left may not have committed. What a server says is taken for a reply only if
 * it is one to what was asked.
 */
#include <stdio.h>

#include "engine_world.h"

#include "engine/operations.h"
#include "net/conn.h"
#include "sample.h"
#include "support/unit_test.h"
#include "wire/negotiate.h"

/* Another server of the URL, of which only matters that ranks come to it. */
struct other {
    struct sim_host *host;
    struct listener *listener;
    unsigned came;
};

static void on_accept(void *user, struct sock *sock)
{
    ((struct other *)user)->came++;
    sock_close(sock);
}

static void other_start(struct other *other, struct world *world)
{
    struct net_addr addr = {.family = NET_TCP, .host = "other", .port = WORLD_PORT};
    *other = (struct other){.host = sim_host_new(world->sim, "other", NULL)};
    struct net *net = sim_net(other->host);
    assert_int_equal(
        net->ops->listen(net, &addr, 0, on_accept, other, &other->listener, NULL, NULL), 0);
}

static bool somebody_came(void *user) { return ((struct other *)user)->came > 0; }

/* Goal: a save that a stopping server refuses goes to another one at once, not when the server has
 * gone at last. Method: rank 0's unfinished save keeps the server in its grace, with all
 * connections open; rank 1's next save is refused. */
TEST(a_save_leaves_a_server_that_stops)
{
    struct world world;
    struct other other;
    world_init_with(&world, 41, 2,
                    &(struct world_options){.url = "cairn://server,other/demo/run1"});
    other_start(&other, &world);
    world_ranks_start(&world); /* rank 1 begins with the other one, which sends it away */
    other.came = 0;
    world_save(&world.ranks[0], 1, 300000);
    sim_run_for(world.sim, 1000);
    world_server_stop(&world, 200000);
    world_save(&world.ranks[1], 2, 300000);
    assert_true(sim_run_until(world.sim, somebody_came, &other, 10000));
    assert_int_equal(world.down, 0); /* the grace lasts on: the server did not cut anything */
    assert_false(world.ranks[0].save_done);
    engine_save_abort(&world.ranks[0].save);
    engine_save_abort(&world.ranks[1].save);
    world_await_saves(&world, 60000);
    world_ranks_stop(&world);
    listener_close(other.listener);
    world_fini(&world);
}

/* A server that lets ranks in and refuses whatever they ask, because it is stopping; or gives
 * always the same answer. */
enum { STOPPING_CONNS_MAX = 8 };
struct stopping {
    struct sim_host *host;
    struct listener *listener;
    struct conn *conns[STOPPING_CONNS_MAX];
    size_t count;
    unsigned refused;
    const struct msg *answer; /* NULL means an error */
    uint32_t payload_bytes;   /* of the answer */
};

struct place { /* a connection of it */
    struct stopping *stopping;
    size_t idx;
};
static struct place places[STOPPING_CONNS_MAX];

static void on_answered(struct conn_out *out, int status) { free(out); }

static void give_answer(const struct stopping *stopping, struct conn *conn, uint32_t stream)
{
    static uint8_t zeros[LIMIT_CHUNK_BYTES];
    if (stopping->payload_bytes == 0) {
        conn_send_always(conn, stream, stopping->answer);
        return;
    }
    struct conn_out *out = calloc(1, sizeof *out);
    assert_non_null(out);
    assert_in_range(stopping->payload_bytes, 1, sizeof zeros);
    out->done = on_answered;
    out->iov_count = 1;
    out->iov[0] = (struct iovec){.iov_base = zeros, .iov_len = stopping->payload_bytes};
    conn_send_payload(conn, stream, stopping->answer, out);
}

static int stopping_message(void *user, const struct frame *frame, const struct msg *msg,
                            void **ret_payload, struct diag *diag)
{
    struct place *place = user;
    struct conn *conn = place->stopping->conns[place->idx];
    struct msg welcome = {.type = MSG_WELCOME,
                          .u.welcome = {.version = WIRE_VERSION_MAX,
                                        .heartbeat_ms = 500,
                                        .dead_after_ms = 2000,
                                        .payload_max = LIMIT_CHUNK_BYTES,
                                        .message_max = LIMIT_MESSAGE_BYTES,
                                        .agent = "stopping"}};
    struct msg joined = {
        .type = MSG_JOINED,
        .u.joined = {.chunk_bytes = WORLD_CHUNK_BYTES, .object_bytes = WORLD_OBJECT_BYTES}};
    if (msg->type == MSG_HELLO) {
        conn_send_always(conn, frame->stream, &welcome);
    } else if (msg->type == MSG_JOIN) {
        conn_send_always(conn, frame->stream, &joined);
    } else if (frame->stream != 0 && msg->type != MSG_ERROR) {
        place->stopping->refused++;
        if (place->stopping->answer) {
            give_answer(place->stopping, conn, frame->stream);
            return 0;
        }
        conn_send_error(conn, frame->stream, CAIRN_E_SHUTTING_DOWN, "the server is stopping");
    }
    return 0;
}

static int stopping_payload(void *user, const struct frame *frame, const struct msg *msg,
                            void *payload, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_PROTOCOL, "no payload is expected");
}

static void stopping_close(void *user, int status, const struct diag *diag)
{
    struct place *place = user;
    conn_close(place->stopping->conns[place->idx], false);
    place->stopping->conns[place->idx] = NULL;
}

static const struct conn_handler stopping_handler = {
    .on_message = stopping_message, .on_payload = stopping_payload, .on_close = stopping_close};

static void stopping_accept(void *user, struct sock *sock)
{
    struct stopping *stopping = user;
    struct conn_options options = {.message_max = LIMIT_MESSAGE_BYTES};
    struct stream *stream;
    size_t idx = 0;
    while (idx < stopping->count && stopping->conns[idx]) {
        idx++;
    }
    assert_in_range(idx, 0, STOPPING_CONNS_MAX - 1);
    stopping->count += idx == stopping->count;
    places[idx] = (struct place){.stopping = stopping, .idx = idx};
    assert_int_equal(stream_plain_new(sock, &stream, NULL), 0);
    assert_int_equal(conn_new(sim_loop(stopping->host), stream, &options, &stopping_handler,
                              &places[idx], &stopping->conns[idx], NULL),
                     0);
}

static void stopping_start(struct stopping *stopping, struct world *world)
{
    struct net_addr addr = {.family = NET_TCP, .host = "other", .port = WORLD_PORT};
    *stopping = (struct stopping){.host = sim_host_new(world->sim, "other", NULL)};
    struct net *net = sim_net(stopping->host);
    assert_int_equal(
        net->ops->listen(net, &addr, 0, stopping_accept, stopping, &stopping->listener, NULL, NULL),
        0);
}

static void stopping_end(struct stopping *stopping, struct world *world)
{
    sim_run_for(world->sim, 3000);
    for (size_t i = 0; i < stopping->count; i++) {
        assert_null(stopping->conns[i]); /* the ranks have left */
    }
    listener_close(stopping->listener);
}

/* Goal: what a stopping server refuses is asked of another one of the URL, within the 5 s that a
 * fail-over may take, though the server goes on answering. */
TEST(a_call_leaves_a_server_that_stops)
{
    struct world world;
    struct stopping stopping;
    struct caller callers[3] = {0};
    world_init_with(&world, 42, 1,
                    &(struct world_options){.url = "cairn://other,server/demo/run1"});
    stopping_start(&stopping, &world);
    world_ranks_start(&world); /* the rank begins with the one that stops */
    for (size_t i = 0; i < ARRAY_LEN(callers); i++) {
        callers[i] =
            (struct caller){.call = {.request = {.type = MSG_LIST, .u.list = {.limit = 10}},
                                     .deadline_ms = 5000,
                                     .done = caller_on_done}};
        engine_call_start(world.ranks[0].engine, &callers[i].call);
    }
    for (size_t i = 0; i < ARRAY_LEN(callers); i++) {
        assert_true(sim_await(world.sim, &callers[i].done, 6000));
        assert_int_equal(callers[i].status, 0);
        assert_int_equal(callers[i].call.reply.type, MSG_LIST_REPLY);
        engine_call_fini(&callers[i].call);
    }
    assert_in_range(stopping.refused, 1, ARRAY_LEN(callers)); /* once: it was left */
    stopping_end(&stopping, &world);
    world_end(&world);
}

/* Goal: a restore, whose questions are calls, leaves it as well. */
TEST(a_restore_leaves_a_server_that_stops)
{
    struct world world;
    struct stopping stopping;
    world_init_with(&world, 43, 1,
                    &(struct world_options){.url = "cairn://other,server/demo/run1"});
    world_ranks_start(&world); /* the other one is not there yet */
    world_save_well(&world, 1, 7);
    world_ranks_stop(&world);
    stopping_start(&stopping, &world);
    world_ranks_start(&world);
    world_restore(&world.ranks[0], WORLD_LATEST, 5000);
    world_await_restores(&world, 6000);
    assert_int_equal(world.ranks[0].restore_status, 0);
    assert_true(world_has(&world.ranks[0], 7));
    assert_true(stopping.refused > 0);
    stopping_end(&stopping, &world);
    world_end(&world);
}

/* Asks `request` of a server that answers it with `answer`, and returns whether that was found to
 * be no answer to it: then the call has ended at once, with a text that names both. */
static bool is_no_answer(struct stopping *stopping, struct world *world, uint32_t request,
                         uint32_t answer)
{
    struct caller caller = {.call = {.deadline_ms = 20000, .done = caller_on_done}};
    struct scratch scratch;
    struct msg msg;
    char text[128];
    uint32_t none;
    scratch_init(&scratch, 64 << 20);
    struct sample sample = {.state = answer, .scratch = &scratch};
    sample_make(&sample, request, &caller.call.request, &none);
    do { /* what fits into a frame */
        sample_make(&sample, answer, &msg, &stopping->payload_bytes);
    } while (stopping->payload_bytes > LIMIT_CHUNK_BYTES);
    if (answer == MSG_ERROR) {
        msg.u.error.code = CAIRN_E_INVALID; /* one that is not asked again */
    } else if (answer == MSG_PLAN_REPLY) {
        msg.u.plan_reply.last = true;
    }
    stopping->answer = &msg;
    stopping->refused = 0;
    engine_call_start(world->ranks[0].engine, &caller.call);
    assert_true(sim_await(world->sim, &caller.done, 10000));
    assert_int_equal(stopping->refused, 1);
    snprintf(text, sizeof text, "the server answered %s with %s", msg_name(request),
             msg_name(answer));
    bool ret = strstr(caller.call.diag.text, text) != NULL;
    if (ret) {
        assert_int_equal(caller.status, CAIRN_E_PROTOCOL);
    }
    stopping->answer = NULL;
    free(caller.call.payload);
    engine_call_fini(&caller.call);
    scratch_fini(&scratch);
    return ret;
}

/* Goal: whatever well-formed message comes in place of a reply, no call takes it for one. Method:
 * each request gets each message, but for those that are about the connection itself. */
TEST(no_other_message_is_a_reply)
{
    static const uint32_t requests[][2] = {
#define REPLY(ASK, NAME) {MSG_##ASK, MSG_##NAME},
#include "wire/messages.def"
    };
    struct world world;
    struct stopping stopping;
    unsigned taken = 0;
    world_init_with(&world, 44, 1, &(struct world_options){.url = "cairn://other/demo/run1"});
    stopping_start(&stopping, &world);
    world_ranks_start(&world);
    for (size_t r = 0; r < ARRAY_LEN(requests); r++) {
        uint32_t asked = requests[r][0];
        for (size_t i = 0; asked >= MSG_OPEN && i < SAMPLE_TYPE_COUNT; i++) {
            uint32_t type = SAMPLE_TYPES[i];
            if (type == MSG_PING || type == MSG_PONG || type == MSG_BYE || type == MSG_GRANT) {
                continue;
            }
            bool wrong = is_no_answer(&stopping, &world, asked, type);
            assert_int_equal(wrong, !msg_is_reply(asked, type));
            taken += !wrong && type == requests[r][1];
        }
        taken += asked < MSG_OPEN; /* asked and read by the connection */
    }
    assert_int_equal(taken, ARRAY_LEN(requests));
    world_ranks_stop(&world);
    stopping_end(&stopping, &world);
    world_fini(&world);
}

/* Goal: a part that was made again after a SEAL is not what the next save refers to, since the
 * server may have committed the first one. Method: the first server publishes the part and cannot
 * enter its seal; the rank goes to the next one, which cannot read what is durable: so all is sent
 * again under other sequences, and the part that lies there already is committed. */
TEST(a_part_made_again_is_no_base)
{
    struct world world;
    struct store_fault_rule held = {.kind = FAULT_HOLD, .op = STORE_RECORD_UPDATE, .skip = 1};
    struct store_fault_rule unreadable = {
        .kind = FAULT_FAIL, .op = STORE_STAT, .code = CAIRN_E_IO, .count = 1000};
    world_init_with(&world, 43, 1,
                    &(struct world_options){.url = "cairn://server:7421,server:7422/demo/run1",
                                            .twin = true,
                                            .faults = true,
                                            .spread_after = 1000});
    world_ranks_start(&world);
    struct link *link = &world.ranks[0].engine->link;
    world_save_well(&world, 5, 9);
    assert_int_equal(link->server_idx % 2, 0);
    assert_int_equal(store_fault_add(world.store, &held), 0); /* not the opening: the seal */
    world_save_all(&world, 6, 11);
    sim_run_for(world.sim, 1000);
    assert_false(world.ranks[0].save_done);
    assert_int_equal(store_fault_add(world.store, &unreadable), 0);
    uint64_t sent = world.ranks[0].save.sent_bytes;
    link_reset(link, CAIRN_E_CONNECTION_LOST, "the test goes to the other server");
    world_expect_saved(&world);
    assert_int_equal(link->server_idx % 2, 1);
    assert_true(world.ranks[0].save.sent_bytes > sent); /* it was sent again */
    store_fault_clear(world.store);
    assert_int_equal(store_fault_release(world.store), 1);
    world_save_well(&world, 7, 11);
    assert_true(world.ranks[0].save.stored_bytes < 100); /* no tensor: all was committed */
    world_end(&world);
}

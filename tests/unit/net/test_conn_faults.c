/* SPDX-License-Identifier: Apache-2.0
 *
 * Whatever a peer does wrong, or stops doing, ends the connection with the right code, and the peer
 * is told why where it can be. Method: hand-made frames over a bare socket; a cut network under the
 * simulated clock.
 */
#include "net_fixture.h"

#include "wire/frame.h"

static const struct net_form LOCAL = {.name = "unix"}, TCP = {.name = "tcp", .tcp = true},
                             SIM = {.name = "sim", .sim_seed = 9};

#define FAULT_TEST(name)                        \
    UNIT_TEST_BODY(name, struct net_fixture *f) \
    NET_ROW(name, LOCAL)                        \
    NET_ROW(name, TCP)                          \
    NET_ROW(name, SIM)                          \
    static void name(struct net_fixture *f)
#define SIM_TEST(name)                          \
    UNIT_TEST_BODY(name, struct net_fixture *f) \
    NET_ROW(name, SIM)                          \
    static void name(struct net_fixture *f)

static bool server_over(struct net_fixture *f) { return f->server.closes == 1; }

/* --- what the bare client hears
 * ------------------------------------------------------------------- */

struct heard {
    uint8_t bytes[4096];
    size_t count;
    bool ended;
};

static void listen_on(void *user, unsigned events)
{
    struct net_fixture *f = user;
    struct heard *heard = f->test;
    struct iovec iov = {heard->bytes + heard->count, sizeof(heard->bytes) - heard->count};
    size_t bytes = 0;
    int status = sock_try_readv(f->raw, &iov, 1, &bytes, NULL);
    heard->count += status == 0 ? bytes : 0;
    if (status != 0 && status != CAIRN_E_AGAIN) {
        heard->ended = true;
        sock_want(f->raw, 0, NULL, NULL);
    }
}

static void listen_raw(struct net_fixture *f, struct heard *heard)
{
    static const struct sock_handler HANDLER = {listen_on};
    f->test = heard;
    sock_want(f->raw, SOCK_READ, &HANDLER, f);
}

static bool over_and_ended(struct net_fixture *f)
{
    return server_over(f) && ((struct heard *)f->test)->ended;
}

/* The first frame that came is an ERROR with this code on this stream. */
static void assert_heard_error(const struct heard *heard, int code, uint32_t stream)
{
    struct frame frame;
    struct msg msg;
    struct scratch scratch;
    scratch_init(&scratch, 1 << 16);
    assert_true(heard->count >= FRAME_HEADER_BYTES);
    assert_int_equal(frame_decode(heard->bytes, 4096, 4096, &frame, NULL), 0);
    assert_int_equal(frame_check(heard->bytes, &frame, heard->bytes + FRAME_HEADER_BYTES, NULL), 0);
    assert_int_equal(frame.type, MSG_ERROR);
    assert_int_equal(frame.stream, stream);
    assert_int_equal(frame.sequence, 1);
    assert_int_equal(msg_decode(MSG_ERROR, frame.message_bytes, heard->bytes + FRAME_HEADER_BYTES,
                                &scratch, &msg, NULL),
                     0);
    assert_int_equal(msg.u.error.code, code);
    assert_true(msg.u.error.text[0] != '\0');
    scratch_fini(&scratch);
}

static void send_frame(struct net_fixture *f, struct frame frame, size_t bytes,
                       const uint8_t *message)
{
    uint8_t all[FRAME_HEADER_BYTES + 256];
    assert_true(bytes <= 256);
    frame.message_bytes = (uint32_t)bytes;
    frame_encode(&frame, message, all);
    if (bytes > 0) {
        memcpy(all + FRAME_HEADER_BYTES, message, bytes);
    }
    net_raw_send(f, FRAME_HEADER_BYTES + bytes, all);
}

static void expect_failure(struct net_fixture *f, int code, uint32_t stream)
{
    struct heard heard = {.count = 0};
    listen_raw(f, &heard);
    net_run(f, over_and_ended);
    assert_int_equal(f->server.status, code);
    assert_int_equal(f->server.closes, 1);
    assert_heard_error(&heard, code, stream);
}

FAULT_TEST(test_foreign_bytes)
{
    net_connect_raw(f);
    net_raw_send(f, 40, "GET / HTTP/1.1\r\nHost: localhost:7421\r\n\r\n");
    expect_failure(f, CAIRN_E_PROTOCOL, 0);
}

FAULT_TEST(test_gap_in_the_sequence)
{
    net_connect_raw(f);
    send_frame(f, (struct frame){.type = MSG_LIST, .stream = 1, .sequence = 1}, 0, NULL);
    send_frame(f, (struct frame){.type = MSG_LIST, .stream = 2, .sequence = 3}, 0, NULL);
    expect_failure(f, CAIRN_E_PROTOCOL, 0);
    assert_int_equal(f->server.messages, 1);
}

FAULT_TEST(test_damaged_frame)
{
    uint8_t header[FRAME_HEADER_BYTES];
    struct frame frame = {.type = MSG_LIST, .stream = 1, .sequence = 1};
    net_connect_raw(f);
    frame_encode(&frame, NULL, header);
    header[8] ^= 1;
    net_raw_send(f, sizeof(header), header);
    expect_failure(f, CAIRN_E_PROTOCOL, 0);
    assert_int_equal(f->server.messages, 0);
}

FAULT_TEST(test_message_that_is_too_long)
{
    uint8_t header[FRAME_HEADER_BYTES], message[200] = {0};
    struct frame frame = {.type = MSG_LIST, .stream = 1, .sequence = 1, .message_bytes = 200};
    f->server.options.message_max = 199;
    net_connect_raw(f);
    frame_encode(&frame, message, header);
    net_raw_send(f, sizeof(header), header);
    expect_failure(f, CAIRN_E_TOO_LARGE, 0);
}

FAULT_TEST(test_message_that_does_not_decode)
{
    net_connect_raw(f);
    send_frame(f, (struct frame){.type = MSG_SEAL, .stream = 9, .sequence = 1}, 3,
               (const uint8_t *)"\x0a\x7f\x01");
    expect_failure(f, CAIRN_E_PROTOCOL, 9);
    assert_int_equal(f->server.messages, 0);
}

FAULT_TEST(test_payload_where_none_may_be)
{
    net_connect_raw(f);
    send_frame(f, (struct frame){.type = MSG_LIST, .stream = 9, .sequence = 1, .payload_bytes = 5},
               0, NULL);
    expect_failure(f, CAIRN_E_PROTOCOL, 9);
}

static bool one_message(struct net_fixture *f) { return f->server.messages == 1; }

FAULT_TEST(test_unknown_type_without_payload_is_answered)
{
    struct heard heard = {.count = 0};
    net_connect_raw(f);
    send_frame(f, (struct frame){.type = 999, .stream = 5, .sequence = 1}, 3,
               (const uint8_t *)"xyz");
    send_frame(f, (struct frame){.type = MSG_LIST, .stream = 6, .sequence = 2}, 0, NULL);
    listen_raw(f, &heard);
    net_run(f, one_message);
    net_run_for(f, 50);
    assert_int_equal(f->server.closes, 0);
    assert_heard_error(&heard, CAIRN_E_UNSUPPORTED, 5);
}

FAULT_TEST(test_unknown_type_with_payload_ends_the_connection)
{
    net_connect_raw(f);
    send_frame(f, (struct frame){.type = 999, .stream = 5, .sequence = 1, .payload_bytes = 7}, 0,
               NULL);
    expect_failure(f, CAIRN_E_UNSUPPORTED, 5);
}

static int refuse(struct side *side, const struct frame *frame, const struct msg *msg,
                  void **ret_payload, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_DENIED, "not for you");
}

FAULT_TEST(test_refusal_by_the_handler_is_sent)
{
    f->server.on_message = refuse;
    net_connect_raw(f);
    send_frame(f, (struct frame){.type = MSG_LIST, .stream = 77, .sequence = 1}, 0, NULL);
    expect_failure(f, CAIRN_E_DENIED, 77);
    assert_non_null(strstr(f->server.diag.text, "not for you"));
}

/* Exact where time is simulated. A loaded machine may leave a real process out for some 100 ms, and
 * a peer that is late for that reason must not count as dead. */
static uint32_t patient_ms(const struct net_fixture *f, uint32_t ms)
{
    return f->sim ? ms : ms * 5;
}

FAULT_TEST(test_no_first_message)
{
    struct heard heard = {.count = 0};
    f->server.options.first_message_ms = 50;
    net_connect_raw(f);
    net_raw_send(f, 10, "CRN1\1\0\1\0\0"); /* a header that never ends */
    listen_raw(f, &heard);
    net_run(f, over_and_ended);
    assert_int_equal(f->server.status, CAIRN_E_TIMED_OUT);
    assert_heard_error(&heard, CAIRN_E_TIMED_OUT, 0);
}

FAULT_TEST(test_first_message_in_time)
{
    f->server.options.first_message_ms = patient_ms(f, 200);
    net_connect_raw(f);
    send_frame(f, (struct frame){.type = MSG_LIST, .stream = 1, .sequence = 1}, 0, NULL);
    net_run(f, one_message);
    net_run_for(f, patient_ms(f, 300));
    assert_int_equal(f->server.closes, 0);
}

FAULT_TEST(test_end_in_the_middle_of_a_frame)
{
    net_connect_raw(f);
    net_raw_send(f, 10, "CRN1\1\0\1\0\0");
    net_run_for(f, 20);
    sock_close(f->raw);
    f->raw = NULL;
    net_run(f, server_over);
    assert_int_equal(f->server.status, CAIRN_E_CONNECTION_LOST);
}

FAULT_TEST(test_end_between_frames)
{
    net_connect_raw(f);
    sock_close(f->raw);
    f->raw = NULL;
    net_run(f, server_over);
    assert_int_equal(f->server.status, CAIRN_E_ENDED);
}

/* --- heartbeat
 * ------------------------------------------------------------------------------------ */

static void set_heartbeat(struct net_fixture *f)
{
    f->server.options.heartbeat_ms = f->client.options.heartbeat_ms = 20;
    f->server.options.dead_after_ms = f->client.options.dead_after_ms = patient_ms(f, 200);
}

FAULT_TEST(test_idle_peers_live)
{
    set_heartbeat(f);
    net_connect_conns(f);
    net_run_for(f, 1000);
    assert_int_equal(f->server.closes, 0);
    assert_int_equal(f->client.closes, 0);
    assert_int_equal(f->server.messages, 0); /* PING and PONG are conn's own */
}

FAULT_TEST(test_paused_end_judges_nobody_and_nobody_judges_it)
{
    set_heartbeat(f);
    net_connect_conns(f);
    conn_pause(f->server.conn);
    net_run_for(f, 1000);
    assert_int_equal(f->server.closes, 0);
    assert_int_equal(f->client.closes, 0);
    conn_resume(f->server.conn);
    net_run_for(f, 500);
    assert_int_equal(f->server.closes, 0);
    assert_int_equal(f->client.closes, 0);
}

static bool both_over(struct net_fixture *f)
{
    return f->server.closes == 1 && f->client.closes == 1;
}

SIM_TEST(test_dead_peer_is_found_by_its_silence)
{
    set_heartbeat(f);
    net_connect_conns(f);
    net_run_for(f, 100);
    uint64_t cut_ms = loop_now_ms(f->server.loop);
    sim_partition(f->sim, "client", "server", true);
    sim_partition(f->sim, "server", "client", true);
    net_run(f, both_over);
    assert_int_equal(f->server.status, CAIRN_E_CONNECTION_LOST);
    assert_non_null(strstr(f->server.diag.text, "dead"));
    assert_true(f->server.closed_ms - cut_ms >= 170);
    assert_true(f->server.closed_ms - cut_ms <= 230);
    sim_partition(f->sim, "client", "server", false);
    sim_partition(f->sim, "server", "client", false);
}

FAULT_TEST(test_silent_bare_peer_is_dead)
{
    set_heartbeat(f);
    net_connect_raw(f);
    net_run(f, server_over);
    assert_int_equal(f->server.status, CAIRN_E_CONNECTION_LOST);
}

/* A peer that asks for PONGs and reads none may not fill our memory. */
SIM_TEST(test_ping_flood_is_bounded)
{
    net_connect_raw(f);
    uint64_t sequence = 1;
    for (unsigned round = 0; round < 20000 && f->server.closes == 0; round++) {
        uint8_t pings[32][FRAME_HEADER_BYTES];
        for (size_t i = 0; i < ARRAY_LEN(pings); i++) {
            struct frame frame = {.type = MSG_PING, .sequence = sequence++};
            frame_encode(&frame, NULL, pings[i]);
        }
        size_t at = 0;
        while (at < sizeof(pings) && f->server.closes == 0) {
            struct iovec iov = {(uint8_t *)pings + at, sizeof(pings) - at};
            size_t bytes = 0;
            int status = sock_try_writev(f->raw, &iov, 1, &bytes, NULL);
            at += status == 0 ? bytes : 0;
            if (status == CAIRN_E_AGAIN) {
                net_run_for(f, 1);
            } else if (status != 0) {
                break;
            }
            if (f->server.conn != NULL) {
                assert_true(conn_queued_bytes(f->server.conn) < 80 << 10);
            }
        }
    }
    net_run(f, server_over);
    assert_int_equal(f->server.status, CAIRN_E_PROTOCOL);
}

static bool client_over(struct net_fixture *f) { return f->client.closes == 1; }

FAULT_TEST(test_nobody_listens)
{
    listener_close(f->listener);
    f->listener = NULL;
    f->server.closes = 1; /* none will come */
    net_connect_conns(f);
    net_run(f, client_over);
    assert_int_equal(f->client.status, CAIRN_E_UNREACHABLE);
    assert_true(f->client.diag.text[0] != '\0');
}

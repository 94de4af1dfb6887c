/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames and payloads come through whole and in order over every kind of stream, with
 * back-pressure, and closing from any callback. Method: an echo server over real and simulated
 * sockets, plain, TLS, and chopped into single bytes.
 */
#include "net_fixture.h"

static const struct net_form LOCAL = {.name = "unix"}, TCP = {.name = "tcp", .tcp = true},
                             SIM_1 = {.name = "sim 1", .sim_seed = 1},
                             SIM_2 = {.name = "sim 2", .sim_seed = 2},
                             TLS = {.name = "tls", .tcp = true, .tls = true},
                             SIM_TLS = {.name = "tls, sim", .sim_seed = 4, .tls = true},
                             CHOPPED = {.name = "unix, chopped", .chop = 1},
                             SIM_CHOPPED = {.name = "sim 3, chopped", .sim_seed = 3, .chop = 7},
                             TLS_CHOPPED = {.name = "tls, chopped", .tls = true, .chop = 5};

#define WHOLE_ROWS(name) \
    NET_ROW(name, LOCAL) \
    NET_ROW(name, TCP)   \
    NET_ROW(name, SIM_1) \
    NET_ROW(name, SIM_2) \
    NET_ROW(name, TLS)   \
    NET_ROW(name, SIM_TLS)
/* STREAM_TEST runs over every kind of stream, WHOLE_TEST not over those that are chopped, where it
 * would be too slow. */
#define STREAM_TEST(name)                       \
    UNIT_TEST_BODY(name, struct net_fixture *f) \
    WHOLE_ROWS(name)                            \
    NET_ROW(name, CHOPPED)                      \
    NET_ROW(name, SIM_CHOPPED)                  \
    NET_ROW(name, TLS_CHOPPED)                  \
    static void name(struct net_fixture *f)
#define WHOLE_TEST(name)                        \
    UNIT_TEST_BODY(name, struct net_fixture *f) \
    WHOLE_ROWS(name)                            \
    static void name(struct net_fixture *f)

enum { FRAMES = 60, BIG_BYTES = 4 << 20, BIG_FRAMES = 6 };

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void fill(size_t bytes, uint8_t *data, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)mix(seed * 1000003 + i);
    }
}

struct tally { /* of done() calls */
    unsigned done;
    int status;
};

struct out {
    struct conn_out out;
    struct tally *tally;
    uint8_t data[];
};

static void out_done(struct conn_out *conn_out, int status)
{
    struct out *out = container_of(conn_out, struct out, out);
    out->tally->done++;
    out->tally->status = status;
    free(out);
}

struct echo {
    unsigned sent, came, frames;
    size_t bytes; /* of each payload; 0: by number */
    struct tally client, server;
};

static size_t payload_bytes(const struct echo *echo, unsigned i)
{
    return echo->bytes > 0 ? echo->bytes : i % 3 == 0 ? 0 : 1 + mix(i) % 3000;
}

static void send_bytes(struct side *side, uint32_t stream, size_t bytes, const void *data,
                       struct tally *tally)
{
    struct out *out = malloc(sizeof(*out) + bytes);
    assert_non_null(out);
    out->tally = tally;
    memcpy(out->data, data, bytes);
    size_t half = bytes / 2;
    out->out = (struct conn_out){.iov_count = 2,
                                 .iov = {{out->data, half}, {out->data + half, bytes - half}},
                                 .done = out_done};
    struct msg msg = {.type = MSG_BYTES,
                      .u.bytes = {.offset = stream, .total_bytes = stream + bytes}};
    conn_send_payload(side->conn, stream, &msg, &out->out);
}

static void send_next(struct side *client)
{
    struct echo *echo = client->f->test;
    unsigned i = ++echo->sent;
    size_t bytes = payload_bytes(echo, i);
    uint8_t *data = malloc(bytes + 1);
    fill(bytes, data, i);
    if (bytes > 0) {
        send_bytes(client, i, bytes, data, &echo->client);
    } else {
        struct msg msg = {.type = MSG_LIST, .u.list = {.before_seq = i}};
        assert_int_equal(conn_send(client->conn, i, &msg), 0);
    }
    free(data);
}

static int server_echo(struct side *side, const struct frame *frame, const struct msg *msg,
                       void **ret_payload, struct diag *diag)
{
    if (frame->payload_bytes > 0) {
        side->buffer = *ret_payload = malloc(frame->payload_bytes);
    } else {
        conn_send_always(side->conn, frame->stream, msg);
    }
    return 0;
}

static int server_echo_payload(struct side *side, const struct frame *frame, const struct msg *msg,
                               void *payload, struct diag *diag)
{
    struct echo *echo = side->f->test;
    send_bytes(side, frame->stream, frame->payload_bytes, payload, &echo->server);
    free(payload);
    return 0;
}

static int client_message(struct side *side, const struct frame *frame, const struct msg *msg,
                          void **ret_payload, struct diag *diag)
{
    struct echo *echo = side->f->test;
    echo->came++;
    assert_int_equal(frame->stream, echo->came);
    assert_int_equal(frame->payload_bytes, payload_bytes(echo, echo->came));
    if (frame->payload_bytes > 0) {
        assert_int_equal(msg->type, MSG_BYTES);
        side->buffer = *ret_payload = malloc(frame->payload_bytes);
    } else {
        assert_int_equal(msg->type, MSG_LIST);
        assert_true(msg->u.list.before_seq == echo->came);
    }
    return 0;
}

static int client_payload(struct side *side, const struct frame *frame, const struct msg *msg,
                          void *payload, struct diag *diag)
{
    assert_int_equal(msg->u.bytes.offset, frame->stream); /* the message lives until here */
    uint8_t *expected = malloc(frame->payload_bytes);
    fill(frame->payload_bytes, expected, frame->stream);
    assert_memory_equal(payload, expected, frame->payload_bytes);
    free(expected);
    free(payload);
    return 0;
}

static bool echo_done(struct net_fixture *f)
{
    struct echo *echo = f->test;
    assert_int_equal(f->client.closes, 0);
    assert_int_equal(f->server.closes, 0);
    return echo->came == echo->frames && f->client.buffer == NULL;
}

static void run_echo(struct net_fixture *f, struct echo *echo)
{
    f->test = echo;
    f->server.on_message = server_echo;
    f->server.on_payload = server_echo_payload;
    f->client.on_message = client_message;
    f->client.on_payload = client_payload;
    net_connect_conns(f);
    for (unsigned i = 0; i < echo->frames; i++) {
        send_next(&f->client);
    }
    net_run(f, echo_done);
}

STREAM_TEST(test_echo_of_many_frames)
{
    struct echo echo = {.frames = FRAMES};
    run_echo(f, &echo);
    assert_int_equal(echo.client.done, FRAMES - FRAMES / 3);
    assert_int_equal(echo.client.status, 0);
}

WHOLE_TEST(test_echo_of_large_payloads)
{
    struct echo echo = {.frames = BIG_FRAMES, .bytes = f->sim != NULL ? 100000 : BIG_BYTES};
    run_echo(f, &echo);
}

/* --- a payload without a buffer --------------------------------------------------------------- */

static int no_buffer(struct side *side, const struct frame *frame, const struct msg *msg,
                     void **ret_payload, struct diag *diag)
{
    (void)side, (void)frame, (void)msg, (void)ret_payload, (void)diag;
    return 0;
}

static bool server_is_over(struct net_fixture *f) { return f->server.closes == 1; }

STREAM_TEST(test_a_payload_without_a_buffer_ends_the_connection)
{
    uint8_t data[500] = {0};
    struct tally tally = {.status = 1};
    f->server.on_message = no_buffer;
    net_connect_conns(f);
    send_bytes(&f->client, 1, sizeof(data), data, &tally);
    net_run(f, server_is_over);
    assert_int_equal(f->server.status, CAIRN_E_PROTOCOL);
}

/* --- back-pressure
 * -------------------------------------------------------------------------------- */

struct pressure {
    unsigned sent, stuck; /* stuck: looks in a row at which the queue took nothing */
};

static bool queue_is_stuck(struct net_fixture *f)
{
    struct pressure *pressure = f->test;
    struct msg msg = {.type = MSG_REPORT,
                      .u.report = {.reason = "padding padding padding padding"}};
    unsigned before = pressure->sent;
    while (pressure->sent - before < 10000) {
        int status = conn_send(f->client.conn, 1, &msg);
        if (status != 0) {
            assert_int_equal(status, CAIRN_E_BUSY);
            break;
        }
        pressure->sent++;
    }
    pressure->stuck = pressure->sent == before ? pressure->stuck + 1 : 0;
    return pressure->stuck > 200;
}

static bool drained(struct net_fixture *f) { return f->client.drained > 0; }
static bool all_came(struct net_fixture *f)
{
    return f->server.messages == ((struct pressure *)f->test)->sent;
}

WHOLE_TEST(test_a_paused_reader_fills_the_queue_and_then_drains_it)
{
    struct pressure pressure = {0};
    f->test = &pressure;
    f->client.options.queue_high_bytes = 20000;
    f->client.options.queue_low_bytes = 5000;
    net_connect_conns(f);
    conn_pause(f->server.conn);
    net_run(f, queue_is_stuck);
    assert_true(conn_queued_bytes(f->client.conn) >= 20000);
    assert_true(conn_queued_bytes(f->client.conn) < 21000);
    unsigned drained_before = f->client.drained, came = f->server.messages;
    net_run_for(f, 50);
    assert_int_equal(f->client.drained, drained_before);
    assert_true(f->server.messages - came < 100); /* what was under way when it paused */
    f->client.drained = 0;
    conn_resume(f->server.conn);
    net_run(f, drained);
    net_run(f, all_came);
}

/* --- closing from callbacks
 * ----------------------------------------------------------------------- */

enum where { IN_MESSAGE, IN_PAYLOAD, IN_DONE, IN_DRAINED, AT_ONCE, WHERE_COUNT };

struct closing {
    enum where where;
    unsigned done;
    struct side *side;
};

struct closing_out {
    struct conn_out out;
    struct closing *closing;
};

static void closing_done(struct conn_out *out, int status)
{
    struct closing *closing = container_of(out, struct closing_out, out)->closing;
    closing->done++;
    if (closing->where == IN_DONE) {
        net_close_conn(closing->side);
    }
}

static int close_in_message(struct side *side, const struct frame *frame, const struct msg *msg,
                            void **ret_payload, struct diag *diag)
{
    struct closing *closing = side->f->test;
    assert_non_null(side->conn);
    if (closing->where == IN_MESSAGE) {
        net_close_conn(side);
    } else if (frame->payload_bytes > 0) {
        side->buffer = *ret_payload = malloc(frame->payload_bytes);
    }
    return 0;
}

static int close_in_payload(struct side *side, const struct frame *frame, const struct msg *msg,
                            void *payload, struct diag *diag)
{
    struct closing *closing = side->f->test;
    assert_non_null(side->conn);
    free(payload);
    if (closing->where == IN_PAYLOAD) {
        net_close_conn(side);
    }
    return 0;
}

static void close_in_drained(struct side *side)
{
    struct closing *closing = side->f->test;
    if (closing->where == IN_DRAINED) {
        net_close_conn(side);
    }
}

static bool both_gone(struct net_fixture *f)
{
    struct closing *closing = f->test;
    return f->client.conn == NULL && f->server.conn == NULL && closing->done == 3;
}

STREAM_TEST(test_closing_is_safe_in_every_callback)
{
    for (int where = 0; where < WHERE_COUNT; where++) {
        struct closing closing = {.where = (enum where)where, .side = &f->client};
        f->test = &closing;
        f->client.closes = f->server.closes = 0;
        f->client.options.queue_high_bytes = 300;
        f->client.options.queue_low_bytes = 10;
        f->server.on_message = close_in_message;
        f->server.on_payload = close_in_payload;
        f->client.on_drained = close_in_drained;
        net_connect_conns(f);
        static uint8_t data[3][2000];
        struct closing_out outs[3];
        for (uint32_t i = 0; i < 3; i++) {
            outs[i] = (struct closing_out){.closing = &closing};
            outs[i].out = (struct conn_out){
                .iov_count = 1, .iov = {{data[i], sizeof(data[i])}}, .done = closing_done};
            struct msg msg = {.type = MSG_BYTES, .u.bytes = {.total_bytes = sizeof(data[i])}};
            conn_send_payload(f->client.conn, i + 1, &msg, &outs[i].out);
        }
        for (uint32_t i = 0; i < 20; i++) {
            struct msg msg = {.type = MSG_LIST};
            conn_send_always(f->client.conn, 10 + i, &msg);
        }
        assert_int_equal(closing.done, 0); /* never inside the call */
        if (where == AT_ONCE) {
            net_close_conn(&f->client);
            assert_int_equal(closing.done, 0);
        }
        net_run(f, both_gone);
        assert_true(f->client.closes == 0 || f->server.closes == 0); /* who closed hears nothing */
    }
}

/* --- closing in order
 * ----------------------------------------------------------------------------- */

static bool server_ended(struct net_fixture *f) { return f->server.closes == 1; }

STREAM_TEST(test_flush_delivers_everything_and_ends_in_order)
{
    struct tally tally = {.status = 1};
    net_connect_conns(f);
    for (uint32_t i = 1; i <= 20; i++) {
        uint8_t data[1000]; /* few enough for a loaded machine: a flush has one second */
        fill(sizeof(data), data, i);
        send_bytes(&f->client, i, sizeof(data), data, &tally);
    }
    struct msg bye = {.type = MSG_BYE};
    conn_send_always(f->client.conn, 0, &bye);
    conn_close(f->client.conn, true);
    f->client.conn = NULL;
    net_run(f, server_ended);
    assert_int_equal(f->server.messages, 21);
    assert_int_equal(f->server.payloads, 20);
    assert_int_equal(f->server.status, CAIRN_E_ENDED);
    assert_int_equal(tally.done, 20);
    assert_int_equal(tally.status, 0);
}

static bool client_ended(struct net_fixture *f) { return f->client.closes == 1; }

STREAM_TEST(test_a_message_that_breaks_a_rule_is_not_sent)
{
    net_connect_conns(f);
    struct msg fetch = {.type = MSG_FETCH, .u.fetch = {.id = {1, 1}, .kind = 4}};
    assert_int_equal(conn_send(f->client.conn, 1, &fetch), CAIRN_E_PROTOCOL);
    net_run(f, client_ended);
    assert_int_equal(f->client.status, CAIRN_E_PROTOCOL);
    assert_non_null(strstr(f->client.diag.text, "FETCH.kind is 4; it may be 1 to 3"));
}

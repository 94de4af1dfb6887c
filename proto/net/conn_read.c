/* SPDX-License-Identifier: Apache-2.0
 *
 * The receiving side of a conn: header, message, payload, one after the other. Invariants: a length
 * is checked before memory is taken for it; payload bytes go straight into the user's buffer,
 * except the few that were read ahead together with their header. The loop's thread.
 */
#include "conn_private.h"

#include <string.h>

enum { SCRATCH_FACTOR = 32, SCRATCH_BASE_BYTES = 64 << 10 };

static void expect(struct conn_reader *in, enum read_phase phase, void *at, size_t bytes);
static void step(struct conn *conn);
static int deliver(struct conn *conn, struct diag *diag);
static void frame_done(struct conn *conn);
static void ended(struct conn *conn, int status, const struct diag *diag);

void conn_reader_init(struct conn *conn)
{
    conn->in.next_sequence = 1;
    conn->in.alive_ms = loop_now_ms(conn->loop);
    scratch_init(&conn->in.scratch, 0);
    expect(&conn->in, READ_HEADER, conn->in.header, FRAME_HEADER_BYTES);
}

/* Replaces the number of bytes that are counted for the arriving message, here and in the owner's
 * total. 0 means that the message holds none any more. */
static void hold(struct conn *conn, uint64_t bytes)
{
    uint64_t *total = conn->options.held_bytes;
    if (total != NULL) {
        CHECK(*total >= conn->in.held_bytes);
        *total = *total - conn->in.held_bytes + bytes;
    }
    conn->in.held_bytes = bytes;
}

void conn_reader_fini(struct conn *conn)
{
    hold(conn, 0);
    scratch_fini(&conn->in.scratch);
    free(conn->in.message);
    conn->in.message = NULL;
}

bool conn_may_read(const struct conn *conn)
{
    return conn->phase == CONN_OPEN && conn->status == 0 && !conn->in.paused;
}

void conn_pause(struct conn *conn) { conn->in.paused = true; }

void conn_resume(struct conn *conn)
{
    if (conn->in.paused) {
        conn->in.paused = false;
        conn->in.resumed = true;
        conn->in.alive_ms = loop_now_ms(conn->loop);
        conn_kick(conn);
    }
}

static void expect(struct conn_reader *in, enum read_phase phase, void *at, size_t bytes)
{
    in->phase = phase;
    in->at = at;
    in->left = bytes;
}

static void came(struct conn *conn, size_t bytes)
{
    struct conn_reader *in = &conn->in;
    size_t wanted = bytes < in->left ? bytes : in->left;
    in->at += wanted;
    in->left -= wanted;
    in->ahead_at = 0;
    in->ahead_end = bytes - wanted;
    in->alive_ms = loop_now_ms(conn->loop);
}

void conn_read_run(struct conn *conn)
{
    struct conn_reader *in = &conn->in;
    size_t budget = CONN_WAKEUP_BYTES;
    in->resumed = false;
    while (conn_may_read(conn)) {
        if (in->left == 0) {
            step(conn);
            continue;
        }
        size_t ahead = in->ahead_end - in->ahead_at;
        if (ahead > 0) {
            size_t bytes = ahead < in->left ? ahead : in->left;
            memcpy(in->at, in->ahead + in->ahead_at, bytes);
            in->ahead_at += bytes;
            in->at += bytes;
            in->left -= bytes;
            continue;
        }
        if (budget == 0) {
            return; /* the rest comes at the next wake-up, because the socket is still readable */
        }
        struct iovec iov[2] = {{in->at, in->left}, {in->ahead, sizeof(in->ahead)}};
        struct diag diag = DIAG_INIT;
        size_t bytes = 0;
        int status = conn->stream->ops->try_readv(conn->stream, iov, 2, &bytes, &diag);
        if (status == CAIRN_E_AGAIN) {
            return;
        }
        if (status != 0) {
            ended(conn, status, &diag);
            return;
        }
        CHECK(bytes > 0 && bytes <= in->left + sizeof(in->ahead));
        came(conn, bytes);
        budget -= bytes < budget ? bytes : budget;
    }
}

int conn_read_discard(struct conn *conn, size_t *ret_bytes)
{
    size_t total = 0;
    while (total < CONN_WAKEUP_BYTES) {
        struct iovec iov = {conn->in.ahead, sizeof(conn->in.ahead)};
        size_t bytes = 0;
        int status = conn->stream->ops->try_readv(conn->stream, &iov, 1, &bytes, NULL);
        if (status != 0) {
            *ret_bytes = total;
            return status;
        }
        total += bytes;
    }
    *ret_bytes = total;
    return CAIRN_E_AGAIN;
}

/* Returns whether the first bytes are those of a TLS record, an alert or a handshake. */
static bool is_tls(const struct conn_reader *in)
{
    size_t bytes = in->phase == READ_HEADER ? FRAME_HEADER_BYTES - in->left : 0;
    return bytes >= 2 && (in->header[0] == 0x15 || in->header[0] == 0x16) && in->header[1] == 0x03;
}

/* Ends the connection. Only an end between frames is orderly. */
static void ended(struct conn *conn, int status, const struct diag *diag)
{
    struct conn_reader *in = &conn->in;
    struct diag own = DIAG_INIT;
    if (status != CAIRN_E_ENDED) {
        conn_over(conn, status, diag);
    } else if (in->phase == READ_HEADER && in->left == FRAME_HEADER_BYTES) {
        conn_over(conn, diag_set(&own, CAIRN_E_ENDED, "the peer closed the connection"), &own);
    } else if (is_tls(in)) {
        conn_over(conn,
                  diag_set(&own, CAIRN_E_CONNECTION_LOST,
                           "the peer speaks TLS, but this end does not: name the CA of the peer's "
                           "certificate (ca_file, --ca-file)"),
                  &own);
    } else {
        conn_over(conn,
                  diag_set(&own, CAIRN_E_CONNECTION_LOST,
                           "the peer closed the connection in the middle of a frame"),
                  &own);
    }
}

/* Takes a complete header: checks limits and sequence, and makes room for the message. */
static int header_done(struct conn *conn, struct diag *diag)
{
    struct conn_reader *in = &conn->in;
    int status = frame_decode(in->header, conn->options.message_max, conn->options.payload_max,
                              &in->frame, diag);
    if (status != 0) {
        return status;
    }
    if (in->frame.sequence != in->next_sequence) {
        return diag_set(
            diag, CAIRN_E_PROTOCOL, "the peer sent frame %llu where frame %llu was expected",
            (unsigned long long)in->frame.sequence, (unsigned long long)in->next_sequence);
    }
    in->next_sequence++;
    in->message = malloc(in->frame.message_bytes > 0 ? in->frame.message_bytes : 1);
    if (in->message == NULL) {
        return diag_no_memory(diag, "a message of %u bytes", in->frame.message_bytes);
    }
    hold(conn, in->frame.message_bytes);
    expect(in, READ_MESSAGE, in->message, in->frame.message_bytes);
    return 0;
}

/* Answers a message type that this version does not know, and keeps the connection. */
static int unknown_message(struct conn *conn, struct diag *diag)
{
    const struct frame *frame = &conn->in.frame;
    struct diag why = DIAG_INIT;
    int status =
        diag_set(&why, CAIRN_E_UNSUPPORTED,
                 "message type %u needs a newer Cairn than this; upgrade this end", frame->type);
    if (frame->payload_bytes > 0) {
        return diag_copy(diag, &why);
    }
    if (frame->stream != 0) {
        struct msg msg = {.type = MSG_ERROR, .u.error = {.code = status, .text = why.text}};
        conn_queue_automatic(conn, frame->stream, &msg);
    }
    frame_done(conn);
    return 0;
}

/* Takes a complete message: checks its crc, decodes it and delivers it. */
static int message_done(struct conn *conn, struct diag *diag)
{
    struct conn_reader *in = &conn->in;
    int status = frame_check(in->header, &in->frame, in->message, diag);
    if (status != 0) {
        return status;
    }
    if (msg_name(in->frame.type) == NULL) {
        return unknown_message(conn, diag);
    }
    scratch_init(&in->scratch,
                 SCRATCH_FACTOR * (size_t)in->frame.message_bytes + SCRATCH_BASE_BYTES);
    status = msg_decode(in->frame.type, in->frame.message_bytes, in->message, &in->scratch,
                        &in->msg, diag);
    if (status == 0) {
        status = msg_check_payload(&in->msg, in->frame.payload_bytes, diag);
    }
    /* The decoded message is in the scratch now. */
    free(in->message);
    in->message = NULL;
    hold(conn, in->scratch.held);
    if (status != 0) {
        return status;
    }
    if (in->msg.type == MSG_PING) {
        struct msg pong = {.type = MSG_PONG};
        conn_queue_automatic(conn, in->frame.stream, &pong);
        frame_done(conn);
        return 0;
    }
    if (in->msg.type == MSG_PONG) {
        frame_done(conn);
        return 0;
    }
    return deliver(conn, diag);
}

/* Hands the message to the user, who names a buffer for its payload. */
static int deliver(struct conn *conn, struct diag *diag)
{
    struct conn_reader *in = &conn->in;
    void *buffer = NULL;
    timer_stop(&conn->first);
    int status = conn->handler->on_message(conn->user, &in->frame, &in->msg, &buffer, diag);
    if (status != 0 || conn->phase != CONN_OPEN) {
        return status;
    }
    if (in->frame.payload_bytes == 0) {
        frame_done(conn);
        return 0;
    }
    if (buffer == NULL) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "a payload of %u bytes that nobody waits for",
                        in->frame.payload_bytes);
    }
    in->payload = buffer;
    expect(in, READ_PAYLOAD, in->payload, in->frame.payload_bytes);
    return 0;
}

static int payload_done(struct conn *conn, struct diag *diag)
{
    struct conn_reader *in = &conn->in;
    void *payload = in->payload;
    in->payload = NULL;
    int status = conn->handler->on_payload(conn->user, &in->frame, &in->msg, payload, diag);
    if (status == 0 && conn->phase == CONN_OPEN) {
        frame_done(conn);
    }
    return status;
}

static void frame_done(struct conn *conn)
{
    struct conn_reader *in = &conn->in;
    CHECK(in->payload == NULL);
    hold(conn, 0);
    scratch_fini(&in->scratch);
    free(in->message);
    in->message = NULL;
    expect(in, READ_HEADER, in->header, FRAME_HEADER_BYTES);
}

/* Called when the expected bytes are complete. */
static void step(struct conn *conn)
{
    struct diag diag = DIAG_INIT;
    uint32_t stream = 0;
    int status = 0;
    switch (conn->in.phase) {
    case READ_HEADER:
        status = header_done(conn, &diag);
        break;
    case READ_MESSAGE:
        stream = conn->in.frame.stream;
        status = message_done(conn, &diag);
        break;
    case READ_PAYLOAD:
        stream = conn->in.frame.stream;
        status = payload_done(conn, &diag);
        break;
    }
    if (status != 0) {
        conn_fail(conn, stream, status, &diag);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * conn: framed messages over a stream, with payloads received straight into a buffer that the user
 * names, a bounded queue of messages to send, and a heartbeat. One loop's thread. No callback is
 * made inside conn_new, conn_send or conn_close. After on_close nothing more comes, and
 * conn_close() frees the conn.
 */
#ifndef CAIRN_NET_CONN_H
#define CAIRN_NET_CONN_H

#include "stream.h"
#include "wire/frame.h"
#include "wire/msg.h"

struct conn;

/* The user's callbacks. They may call any function of the conn, also conn_close(). */
struct conn_handler {
    /* Called when a message has arrived. Its memory lives until the frame is finished, that is,
     * through on_payload. If frame->payload_bytes > 0, *ret_payload must be set to a buffer of at
     * least that size; if it stays NULL, the connection ends with PROTOCOL. A non-zero result
     * closes the connection, after an ERROR of that code was sent on the frame's stream. */
    int (*on_message)(void *user, const struct frame *frame, const struct msg *msg,
                      void **ret_payload, struct diag *diag);
    /* Called when the payload is complete in the named buffer. The result means the same. */
    int (*on_payload)(void *user, const struct frame *frame, const struct msg *msg, void *payload,
                      struct diag *diag);
    /* Called when the connection has ended: ENDED (the peer closed in order), CONNECTION_LOST,
     * PROTOCOL, AUTH ... A payload buffer that was named and not delivered is the user's again. The
     * user calls conn_close() in here or later. */
    void (*on_close)(void *user, int status, const struct diag *diag);
    /* Called when the send queue falls below its low mark. May be NULL. */
    void (*on_drained)(void *user);
};

/* Limits and times of a connection, which are copied by conn_new. */
struct conn_options {
    /* What this side accepts. It can be changed later, after login. */
    uint32_t message_max, payload_max;
    uint32_t heartbeat_ms, dead_after_ms; /* 0 means none yet; conn_set_heartbeat() after WELCOME */
    /* The peer must send its first message within this; 0 means no limit. */
    uint32_t first_message_ms;
    /* Marks of the encoded messages in the queue; payloads are borrowed and do not count. If high
     * is 0, the marks are 1 MiB and half of it. */
    size_t queue_high_bytes, queue_low_bytes;
    /* Borrowed; may be NULL. The connection adds the memory that it holds for its peer (the message
     * that is arriving, and the messages that wait to be sent) and takes it off again, so that
     * several connections can share one budget. */
    uint64_t *held_bytes;
};

/* Makes a connection and takes the stream, also on failure. */
int MUST_USE conn_new(struct loop *loop, struct stream *stream, const struct conn_options *options,
                      const struct conn_handler *handler, void *user, struct conn **ret,
                      struct diag *diag);
void conn_set_limits(struct conn *conn, uint32_t message_max, uint32_t payload_max);
void conn_set_heartbeat(struct conn *conn, uint32_t heartbeat_ms, uint32_t dead_after_ms);
/* Returns for how long no byte has come from the peer. If that is long for a peer that is well,
 * asks it for a sign of life, so that a later call can tell. */
uint64_t conn_silent_ms(struct conn *conn);
/* Stop and resume reading. While we do not read, the heartbeat does not declare the peer dead. */
void conn_pause(struct conn *conn);
void conn_resume(struct conn *conn);

/* Queues a message, which is encoded before the call returns. BUSY above the high mark (the message
 * was not taken), CLOSED, or an encoding error. conn_send_always is for replies that must not be
 * lost: it may pass the mark. */
int MUST_USE conn_send(struct conn *conn, uint32_t stream, const struct msg *msg);
void conn_send_always(struct conn *conn, uint32_t stream, const struct msg *msg);
/* A payload to send. It is borrowed until out->done, which is always called once, later: status 0
 * means that the socket has it, any other that it is lost. */
struct conn_out {
    size_t iov_count; /* <= 8 */
    struct iovec iov[8];
    /* in_file says that the same bytes, which are then one iov, lie in `file` from file_at on. They
     * are sent from there by reference if that is possible. Then they may be read even after
     * `done`, until the peer has them: if they are changed before that, the peer reads bytes that
     * it must find wrong. */
    bool in_file;
    int file; /* borrowed until done */
    uint64_t file_at;
    void (*done)(struct conn_out *out, int status);
    struct list link; /* the conn's */
};
void conn_send_payload(struct conn *conn, uint32_t stream, const struct msg *msg,
                       struct conn_out *out);
void conn_send_error(struct conn *conn, uint32_t stream, int code, const char *text);

/* Descriptors beside messages, on a plain Unix socket only. A descriptor is sent with the first
 * byte of its message's frame, and is there when on_message is called for that message. */
bool conn_passes_fds(const struct conn *conn);
/* Sets how many descriptors may wait to be taken, at most NET_FDS_MAX; others are closed as they
 * arrive. At first it is 0.
 */
void conn_accept_fds(struct conn *conn, unsigned most);
/* Returns the oldest waiting descriptor, which is then the caller's, or -1. */
int conn_take_fd(struct conn *conn);
/* Sends like conn_send_always. It takes fd, and closes it once it was sent or will not be. */
void conn_send_fd(struct conn *conn, uint32_t stream, const struct msg *msg, int fd);

size_t conn_queued_bytes(const struct conn *conn);
uint64_t conn_held_bytes(const struct conn *conn); /* its own part of *held_bytes */
uint64_t conn_sent_bytes(const struct conn *conn); /* so far, with payloads */
/* Writes the peer's address, for messages, into `ret`, which has room for `bytes` bytes. */
void conn_peer_name(struct conn *conn, size_t bytes, char *ret);
/* Writes what the peer is proven to be (stream.h), or an empty text if nothing proves it, into
 * `ret`, which has room for `bytes` > 0 bytes. */
void conn_proven(struct conn *conn, size_t bytes, char *ret);
/* Drops the connection at once, without on_close: outs get done(CLOSED), and a later turn of the
 * loop frees the struct. With flush it sends what is queued first, for at most 1 s; outs may then
 * still get done(0), and the loop must go on turning until then. */
void conn_close(struct conn *conn, bool flush);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * conn: framed messages over a stream, with payloads received straight into the buffer that the
 * user names, bounded send queue, heartbeat. One loop's thread. Callbacks are never made inside
 * conn_new, conn_send or conn_close. After on_close nothing comes any more and the conn is freed by
 * conn_close().
 */
#ifndef CAIRN_NET_CONN_H
#define CAIRN_NET_CONN_H

#include "stream.h"
#include "wire/frame.h"
#include "wire/msg.h"

struct conn;

struct conn_handler {
    /* A message came (its memory lives until the frame is finished: through on_payload). If
     * frame->payload_bytes > 0: set *ret_payload to a buffer of at least that size, or leave it
     * NULL: then reading stops until conn_payload_buffer(). Non-zero: the connection is closed with
     * ERROR of that code (frame's stream) sent first. */
    int (*on_message)(void *user, const struct frame *frame, const struct msg *msg,
                      void **ret_payload, struct diag *diag);
    /* The payload is complete in the buffer that was named. Same result rule. */
    int (*on_payload)(void *user, const struct frame *frame, const struct msg *msg, void *payload,
                      struct diag *diag);
    /* The connection is over: ENDED (the peer closed in order), CONNECTION_LOST, PROTOCOL, AUTH ...
     * A payload buffer that was named and not delivered is the user's again. Call conn_close() in
     * here or later. */
    void (*on_close)(void *user, int status, const struct diag *diag);
    /* The send queue fell below its low mark. May be NULL. */
    void (*on_drained)(void *user);
};

struct conn_options {
    /* What this side accepts; can be changed later (after login). */
    uint32_t message_max, payload_max;
    uint32_t heartbeat_ms, dead_after_ms; /* 0: none yet; conn_set_heartbeat() after WELCOME */
    uint32_t first_message_ms; /* the peer must send a first message within this; 0: no limit */
    /* Of encoded messages; payloads are borrowed and do not count. High 0: 1 MiB and half of it. */
    size_t queue_high_bytes, queue_low_bytes;
    /* Borrowed, may be NULL. The connection adds what it holds in memory for its peer (the message
     * that is arriving, and the messages that wait to be sent) and takes it off again, so that
     * several connections can share one budget. */
    uint64_t *held_bytes;
};

/* Takes the stream. */
int MUST_USE conn_new(struct loop *loop, struct stream *stream, const struct conn_options *options,
                      const struct conn_handler *handler, void *user, struct conn **ret,
                      struct diag *diag);
void conn_set_limits(struct conn *conn, uint32_t message_max, uint32_t payload_max);
void conn_set_heartbeat(struct conn *conn, uint32_t heartbeat_ms, uint32_t dead_after_ms);
/* Answers a message that waits for a buffer. */
void conn_payload_buffer(struct conn *conn, void *buffer);
/* Stops and resumes reading (back-pressure). The heartbeat does not declare a peer dead whom we do
 * not read. */
void conn_pause(struct conn *conn);
void conn_resume(struct conn *conn);

/* Queues a message; encoded before return. BUSY above the high mark (the message was not taken),
 * CLOSED, or an encoding error. Replies that must not be lost may exceed the mark with
 * conn_send_always. */
int MUST_USE conn_send(struct conn *conn, uint32_t stream, const struct msg *msg);
void conn_send_always(struct conn *conn, uint32_t stream, const struct msg *msg);
/* With payload: borrowed until out->done (always called once, later; status 0: handed to the
 * socket, else lost). */
struct conn_out {
    size_t iov_count; /* <= 8 */
    struct iovec iov[8];
    /* in_file: the same bytes, one iov of them, lie in `file` from file_at on, and are sent from
     * there by reference where that can be done. They may then be read after `done`, until the
     * peer has them: who changes them before makes the peer read what it must find wrong. */
    bool in_file;
    int file; /* borrowed until done */
    uint64_t file_at;
    void (*done)(struct conn_out *out, int status);
    struct list link; /* conn's */
};
void conn_send_payload(struct conn *conn, uint32_t stream, const struct msg *msg,
                       struct conn_out *out);
void conn_send_error(struct conn *conn, uint32_t stream, int code, const char *text);

/* Descriptors beside messages: on a plain Unix socket only. One is sent with the first byte of its
 * message's frame, and is there when on_message is called for it. */
bool conn_passes_fds(const struct conn *conn);
/* So many may wait to be taken (at most NET_FDS_MAX); others are closed as they come. 0 at first.
 */
void conn_accept_fds(struct conn *conn, unsigned most);
/* The oldest that came; -1: none. The caller's from then on. */
int conn_take_fd(struct conn *conn);
/* As conn_send_always. Takes fd, and closes it once it was sent, or will not be. */
void conn_send_fd(struct conn *conn, uint32_t stream, const struct msg *msg, int fd);

size_t conn_queued_bytes(const struct conn *conn);
uint64_t conn_held_bytes(const struct conn *conn); /* its own part of *held_bytes */
uint64_t conn_sent_bytes(const struct conn *conn); /* so far, payloads included */
uint64_t conn_idle_ms(const struct conn *conn);    /* since the last byte from the peer */
void conn_peer_name(struct conn *conn, size_t bytes, char *ret);
/* Who the peer is proven to be (stream.h); "" when nothing proves it. */
void conn_proven(struct conn *conn, size_t bytes, char *ret);
/* Drops the connection at once; outs get done(CLOSED) and the struct is freed on a later turn of
 * the loop. No on_close. flush: sends what is queued first, at most 1 s; outs may then
 * still get done(0). The loop must go on turning until then. */
void conn_close(struct conn *conn, bool flush);

#endif

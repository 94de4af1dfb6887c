/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of a conn, shared by conn.c (its life), conn_read.c and conn_write.c. The loop's
 * thread.
 */
#ifndef CAIRN_NET_CONN_PRIVATE_H
#define CAIRN_NET_CONN_PRIVATE_H

#include "base/check.h"
#include "base/list.h"
#include "net/conn.h"

enum {
    CONN_MAGIC = 0x434f4e4e,
    CONN_WAKEUP_BYTES = 1 << 20, /* read, and written, at most in one wake-up */
    CONN_AHEAD_BYTES = 4096,     /* read behind a payload: mostly the next header and message */
    CONN_FLUSH_MS = 1000,
    CONN_AUTO_BYTES_MAX = 64 << 10, /* of PONGs and the like that the peer does not read */
};

/* OPEN -> FAILING (an ERROR is being sent) -> OVER (on_close was called) -> CLOSING (conn_close was
 * called; the next kick frees it, after a flush if one was asked for). Each phase may also go
 * straight to OVER or CLOSING. */
enum conn_phase { CONN_OPEN, CONN_FAILING, CONN_OVER, CONN_CLOSING };

enum read_phase { READ_HEADER, READ_MESSAGE, READ_PAYLOAD };

/* The state of receiving. Invariant: `left` bytes are missing at `at`, and ahead_at <= ahead_end.
 */
struct conn_reader {
    enum read_phase phase;
    bool paused;
    /* Bytes that were read ahead must be processed, though the socket may be silent. */
    bool resumed;
    uint8_t *at; /* where the next bytes belong, and how many are missing */
    size_t left;
    uint64_t next_sequence;
    struct frame frame;
    uint8_t header[FRAME_HEADER_BYTES];
    uint8_t *message;
    /* Memory for the message, encoded or decoded, as hold() counts it. */
    uint64_t held_bytes;
    void *payload;
    struct msg msg;
    struct scratch scratch; /* holds the decoded msg */
    uint8_t ahead[CONN_AHEAD_BYTES];
    size_t ahead_at, ahead_end;
    uint64_t alive_ms; /* the last byte, or when reading was resumed */
};

struct conn_item { /* one queued message */
    struct list link;
    struct conn_out *out; /* NULL if it has no payload */
    struct frame frame;
    /* A descriptor that goes with the first byte, or -1. It is ours until it was sent. */
    int fd;
    bool started;   /* has its sequence; must not be dropped any more */
    bool automatic; /* a PONG or the like */
    size_t at, total_bytes;
    uint8_t bytes[]; /* header and message */
};

/* The state of sending. Items of `queue` are in the order of sending; only the first ones may be
 * started. */
struct conn_writer {
    struct list queue; /* struct conn_item */
    struct list lost;  /* struct conn_out; will not be sent */
    size_t queued_bytes, automatic_bytes;
    uint64_t sent_bytes;
    uint64_t next_sequence;
    bool blocked;  /* the last try returned AGAIN */
    bool no_files; /* a file was refused: payloads go from memory from now on */
    bool was_high;
};

/* A connection. It is freed by its kick, after conn_close(). */
struct conn {
    uint32_t magic;
    enum conn_phase phase;
    struct loop *loop;
    struct stream *stream;
    struct conn_options options;
    const struct conn_handler *handler;
    void *user;
    struct post kick;
    struct timer first, beat, flush;
    bool busy; /* inside our own callbacks: what is queued now is written when they end */
    bool flush_on_close, linger, flush_expired, discarding;
    /* In FAILING, what on_close will say. In OPEN, a failure that was found inside a user's call,
     * and is told by the next kick. */
    int status;
    struct diag diag;
    struct conn_reader in;
    struct conn_writer out;
};

/* conn.c. conn_over reports the end, and must not be called inside a user's call; conn_fail sends
 * ERROR first. */
void conn_over(struct conn *conn, int status, const struct diag *diag);
void conn_fail(struct conn *conn, uint32_t stream, int status, const struct diag *diag);
void conn_kick(struct conn *conn);

/* conn_read.c */
void conn_reader_init(struct conn *conn);
void conn_reader_fini(struct conn *conn);
bool conn_may_read(const struct conn *conn);
void conn_read_run(struct conn *conn);
/* Throws away received bytes. Returns AGAIN if *ret_bytes were there and no more are there now,
 * else the end of the connection. */
int conn_read_discard(struct conn *conn, size_t *ret_bytes);

/* conn_write.c */
int conn_queue(struct conn *conn, uint32_t stream, const struct msg *msg, struct conn_out *out);
void conn_queue_automatic(struct conn *conn, uint32_t stream, const struct msg *msg);
/* Writes as much as the stream takes. Returns 0 if everything is with the stream or the rest waits
 * for SOCK_WRITE, else the connection's failure. */
int conn_write_run(struct conn *conn, struct diag *diag);
/* Takes the items that have not begun to be sent out of the queue, or all of them. Their outs are
 * then lost. */
void conn_drop_queue(struct conn *conn, bool started_too);
/* Calls done for all lost outs. */
void conn_tell_lost(struct conn *conn, int status);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The sending side of a conn: a queue of encoded messages with borrowed payloads. Many messages go
 * with one writev. Invariants: a frame gets its sequence when it begins to be sent, so that
 * messages dropped before leave no gap; the callback `done` of every conn_out is called exactly
 * once, never inside the call that queued it. The loop's thread.
 */
#include "conn_private.h"

#include <string.h>
#include <unistd.h>

enum { IOV_MAX_COUNT = 64 };

static struct conn_item *first_item(struct conn *conn)
{
    return list_is_empty(&conn->out.queue)
               ? NULL
               : list_item(conn->out.queue.next, struct conn_item, link);
}

static size_t item_own_bytes(const struct conn_item *item)
{
    return FRAME_HEADER_BYTES + (size_t)item->frame.message_bytes;
}

/* Adds the item to what is queued, or takes it off: here, and in the count that the owner keeps
 * over all of its connections. */
static void count_queued(struct conn *conn, const struct conn_item *item, bool added)
{
    uint64_t *total = conn->options.held_bytes;
    size_t bytes = item_own_bytes(item);
    CHECK(added || conn->out.queued_bytes >= bytes);
    conn->out.queued_bytes =
        added ? conn->out.queued_bytes + bytes : conn->out.queued_bytes - bytes;
    if (total != NULL) {
        CHECK(added || *total >= bytes);
        *total = added ? *total + bytes : *total - bytes;
    }
}

/* Keeps an error found inside the caller's own call. on_close reports it at the next kick, so that
 * the callback never runs inside that call. */
static void fail_later(struct conn *conn, int status, const char *what)
{
    if (conn->phase == CONN_OPEN && conn->status == 0) {
        conn->status = diag_set(&conn->diag, status, "%s", what);
        loop_post(conn->loop, &conn->kick);
    }
}

/* The peer would close the connection over a message that breaks a rule of the protocol. So does
 * this end, before it sends the message: what wanted to send it is broken. */
static int check_rules(struct conn *conn, const struct msg *msg)
{
    int status = msg_check(msg, NULL);
    if (status != 0) {
        struct diag why = DIAG_INIT;
        err_ignore(msg_check(msg, &why)); /* only for its text */
        fail_later(conn, status, why.text);
    }
    return status;
}

int conn_queue(struct conn *conn, uint32_t stream, const struct msg *msg, struct conn_out *out)
{
    int status = check_rules(conn, msg);
    struct buf buf;
    buf_init(&buf, LIMIT_MESSAGE_BYTES);
    if (status == 0) {
        msg_encode(msg, &buf);
        status = buf_status(&buf);
    }
    uint64_t payload = 0;
    for (size_t i = 0; out != NULL && i < out->iov_count; i++) {
        payload += out->iov[i].iov_len;
    }
    CHECK(payload <= UINT32_MAX);
    CHECK(out == NULL || msg_has_payload((uint32_t)msg->type));
    struct conn_item *item = NULL;
    if (status == 0) {
        item = malloc(sizeof(*item) + FRAME_HEADER_BYTES + buf.bytes);
        status = item != NULL ? 0 : CAIRN_E_NO_MEMORY;
    }
    if (status == 0) {
        *item = (struct conn_item){.out = out,
                                   .fd = -1,
                                   .frame = {.type = (uint16_t)msg->type,
                                             .stream = stream,
                                             .message_bytes = (uint32_t)buf.bytes,
                                             .payload_bytes = (uint32_t)payload},
                                   .total_bytes = FRAME_HEADER_BYTES + buf.bytes + (size_t)payload};
        if (buf.bytes > 0) {
            memcpy(item->bytes + FRAME_HEADER_BYTES, buf.data, buf.bytes);
        }
        list_add_tail(&conn->out.queue, &item->link);
        count_queued(conn, item, true);
        conn->out.was_high =
            conn->out.was_high || conn->out.queued_bytes >= conn->options.queue_high_bytes;
        conn_kick(conn);
    }
    buf_fini(&buf);
    return status;
}

void conn_queue_automatic(struct conn *conn, uint32_t stream, const struct msg *msg)
{
    if (conn->out.automatic_bytes > CONN_AUTO_BYTES_MAX) {
        fail_later(conn, CAIRN_E_PROTOCOL, "the peer asks for answers faster than it reads them");
        return;
    }
    if (conn_queue(conn, stream, msg, NULL) != 0) {
        fail_later(conn, CAIRN_E_NO_MEMORY, "there is not enough memory for an answer");
        return;
    }
    struct conn_item *item = list_item(conn->out.queue.prev, struct conn_item, link);
    item->automatic = true;
    conn->out.automatic_bytes += item_own_bytes(item);
}

int conn_send(struct conn *conn, uint32_t stream, const struct msg *msg)
{
    CHECK(conn->magic == CONN_MAGIC);
    if (conn->phase != CONN_OPEN) {
        return CAIRN_E_CLOSED;
    }
    if (conn->out.queued_bytes >= conn->options.queue_high_bytes) {
        conn->out.was_high = true;
        return CAIRN_E_BUSY;
    }
    return conn_queue(conn, stream, msg, NULL);
}

void conn_send_always(struct conn *conn, uint32_t stream, const struct msg *msg)
{
    CHECK(conn->magic == CONN_MAGIC);
    if (conn->phase != CONN_OPEN) {
        return;
    }
    int status = conn_queue(conn, stream, msg, NULL);
    if (status != 0) {
        fail_later(conn, status, "a message could not be encoded");
    }
}

void conn_send_payload(struct conn *conn, uint32_t stream, const struct msg *msg,
                       struct conn_out *out)
{
    CHECK(conn->magic == CONN_MAGIC);
    CHECK(out->iov_count <= ARRAY_LEN(out->iov));
    CHECK(out->done != NULL);
    CHECK(!out->in_file || out->iov_count == 1);
    list_init(&out->link);
    int status = conn->phase == CONN_OPEN ? conn_queue(conn, stream, msg, out) : CAIRN_E_CLOSED;
    if (status != 0) {
        list_add_tail(&conn->out.lost, &out->link);
        fail_later(conn, status, "a message could not be encoded");
        loop_post(conn->loop, &conn->kick);
    }
}

void conn_send_fd(struct conn *conn, uint32_t stream, const struct msg *msg, int fd)
{
    CHECK(conn->magic == CONN_MAGIC);
    CHECK(fd >= 0);
    CHECK(conn_passes_fds(conn));
    int status = conn->phase == CONN_OPEN ? conn_queue(conn, stream, msg, NULL) : CAIRN_E_CLOSED;
    if (status == 0) {
        list_item(conn->out.queue.prev, struct conn_item, link)->fd = fd;
        return;
    }
    close(fd);
    if (status != CAIRN_E_CLOSED) {
        fail_later(conn, status, "a message could not be encoded");
    }
}

/* Takes the item out of the queue and frees it, with its descriptor. */
static void item_remove(struct conn *conn, struct conn_item *item)
{
    list_remove(&item->link);
    count_queued(conn, item, false);
    if (item->automatic) {
        conn->out.automatic_bytes -= item_own_bytes(item);
    }
    if (item->fd >= 0) {
        close(item->fd); /* sent, and the receiver has its own; or it never will be */
    }
    free(item);
}

void conn_drop_queue(struct conn *conn, bool started_too)
{
    list_each_safe (node, &conn->out.queue) {
        struct conn_item *item = list_item(node, struct conn_item, link);
        if (item->started && !started_too) {
            continue;
        }
        if (item->out != NULL) {
            list_add_tail(&conn->out.lost, &item->out->link);
        }
        item_remove(conn, item);
    }
}

void conn_tell_lost(struct conn *conn, int status)
{
    struct list *node;
    while ((node = list_pop(&conn->out.lost)) != NULL) {
        struct conn_out *out = list_item(node, struct conn_out, link);
        out->done(out, status);
    }
}

static void add_iov(struct iovec *iov, size_t *count, size_t *skip, void *data, size_t bytes)
{
    if (*skip >= bytes) {
        *skip -= bytes;
        return;
    }
    iov[*count] = (struct iovec){(char *)data + *skip, bytes - *skip};
    *skip = 0;
    (*count)++;
}

/* Returns whether the payload is sent from a file and not from our vectors. */
static bool goes_by_file(const struct conn *conn, const struct conn_item *item)
{
    return item->out != NULL && item->out->in_file && !conn->out.no_files &&
           conn->stream->ops->try_send_file != NULL;
}

/* Fills the vectors with what is sent next, over the borders of frames, up to the bytes of one
 * wake-up or to a payload that goes from a file. */
static size_t gather(struct conn *conn, struct iovec iov[IOV_MAX_COUNT])
{
    size_t count = 0, bytes = 0;
    list_each (node, &conn->out.queue) {
        struct conn_item *item = list_item(node, struct conn_item, link);
        bool by_file = goes_by_file(conn, item);
        size_t payloads = item->out != NULL && !by_file ? item->out->iov_count : 0;
        bool is_behind_others = count > 0; /* a descriptor goes with a write's first byte */
        if (count + 1 + payloads > IOV_MAX_COUNT || bytes >= CONN_WAKEUP_BYTES ||
            (item->fd >= 0 && item->at == 0 && is_behind_others)) {
            break;
        }
        if (!item->started) {
            item->started = true;
            item->frame.sequence = conn->out.next_sequence++;
            frame_encode(&item->frame, item->bytes + FRAME_HEADER_BYTES, item->bytes);
        }
        size_t skip = item->at;
        add_iov(iov, &count, &skip, item->bytes, item_own_bytes(item));
        for (size_t i = 0; i < payloads; i++) {
            add_iov(iov, &count, &skip, item->out->iov[i].iov_base, item->out->iov[i].iov_len);
        }
        if (by_file) {
            break;
        }
        bytes += item->total_bytes - item->at;
    }
    return count;
}

/* Takes the written bytes off the queue. done() may close the conn; the struct stays until a later
 * kick. */
static void advance(struct conn *conn, size_t bytes)
{
    while (bytes > 0) {
        struct conn_item *item = first_item(conn);
        CHECK(item != NULL);
        size_t rest = item->total_bytes - item->at;
        if (bytes < rest) {
            item->at += bytes;
            return;
        }
        bytes -= rest;
        struct conn_out *out = item->out;
        item_remove(conn, list_item(list_pop(&conn->out.queue), struct conn_item, link));
        if (out != NULL) {
            out->done(out, 0);
        }
    }
}

/* Writes what the socket takes. The descriptor of the first item goes with its first byte. */
static int write_some(struct conn *conn, const struct iovec *iov, size_t count, size_t *ret_bytes,
                      struct diag *diag)
{
    const struct conn_item *item = first_item(conn);
    if (item->fd < 0 || item->at > 0) {
        return conn->stream->ops->try_writev(conn->stream, iov, count, ret_bytes, diag);
    }
    CHECK(conn_passes_fds(conn));
    int status = sock_try_writev_fd(conn->stream->ops->fd_sock(conn->stream), iov, count, item->fd,
                                    ret_bytes);
    if (status != 0 && status != CAIRN_E_AGAIN) {
        diag_set(diag, status, "a file descriptor could not be sent to the peer");
    }
    return status;
}

static int write_from_file(struct conn *conn, size_t *ret_bytes, struct diag *diag)
{
    const struct conn_item *item = first_item(conn);
    size_t rest = item->total_bytes - item->at;
    struct file_span span = {.fd = item->out->file,
                             .at = item->out->file_at + (item->at - item_own_bytes(item)),
                             .bytes = rest < CONN_WAKEUP_BYTES ? rest : CONN_WAKEUP_BYTES};
    return conn->stream->ops->try_send_file(conn->stream, &span, ret_bytes, diag);
}

/* Writes what the socket takes of the first items, from a file if the payload is in one and the
 * socket can do that. */
static int write_next(struct conn *conn, size_t *ret_bytes, struct diag *diag)
{
    const struct conn_item *item = first_item(conn);
    struct iovec iov[IOV_MAX_COUNT];
    if (goes_by_file(conn, item) && item->at >= item_own_bytes(item)) {
        int status = write_from_file(conn, ret_bytes, diag);
        if (status != CAIRN_E_UNSUPPORTED) {
            return status;
        }
        conn->out.no_files = true;
    }
    size_t count = gather(conn, iov);
    return write_some(conn, iov, count, ret_bytes, diag);
}

int conn_write_run(struct conn *conn, struct diag *diag)
{
    enum conn_phase phase = conn->phase;
    size_t budget = CONN_WAKEUP_BYTES;
    while (!conn->out.blocked && budget > 0 && conn->phase == phase && first_item(conn) != NULL) {
        size_t bytes = 0;
        int status = write_next(conn, &bytes, diag);
        if (status == CAIRN_E_AGAIN) {
            conn->out.blocked = true;
            break;
        }
        if (status != 0) {
            return status;
        }
        budget -= bytes < budget ? bytes : budget;
        conn->out.sent_bytes += bytes;
        advance(conn, bytes);
    }
    if (conn->phase == CONN_OPEN && conn->out.was_high &&
        conn->out.queued_bytes <= conn->options.queue_low_bytes) {
        conn->out.was_high = false;
        if (conn->handler->on_drained != NULL) {
            conn->handler->on_drained(conn->user);
        }
    }
    return 0;
}

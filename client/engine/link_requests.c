/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests of a link: the table by stream, what they send, and the replies that come for them.
 * Invariant: a request is in the table exactly while its stream is not 0; a request that was given
 * up has its replies dropped, and its owner sees only types that answer what it asked. Loop's
 * thread.
 */
#include "engine/link.h"

#include "base/check.h"
#include "engine/engine_private.h"

#include <stdlib.h>

static struct list *bucket_of(struct link *link, uint32_t stream)
{
    return &link->buckets[stream % LINK_BUCKETS];
}

/* Returns the request that waits on the stream, or NULL if it was given up. */
static struct request *find_request(struct link *link, uint32_t stream)
{
    if (stream == 0) {
        return NULL;
    }
    list_each (node, bucket_of(link, stream)) {
        struct request *request = list_item(node, struct request, link);
        if (request->stream == stream) {
            return request;
        }
    }
    return NULL;
}

/* Takes the request out of the table, if it is there. Its owner is not told. */
static void unlink_request(struct link *link, struct request *request)
{
    if (request->stream != 0) {
        list_remove(&request->link);
        request->stream = 0;
    }
    if (link->receiving == request) {
        link->receiving = NULL;
    }
}

void link_lose_requests(struct link *link)
{
    CHECK(!link_is_up(link));
    CHECK(link->receiving == NULL);
    struct list lost;
    list_init(&lost);
    for (unsigned i = 0; i < LINK_BUCKETS; i++) {
        struct list *node;
        while ((node = list_pop(&link->buckets[i])) != NULL) {
            list_add_tail(&lost, node);
        }
    }
    struct list *node;
    while ((node = list_pop(&lost)) != NULL) {
        struct request *request = list_item(node, struct request, link);
        request->stream = 0;
        request->receiving = false;
        request->ops->on_lost(request);
    }
}

/* Takes a reply to a request that was given up, and drops its payload. */
static int discard(struct link *link, const struct frame *frame, void **ret_payload,
                   struct diag *diag)
{
    if (frame->payload_bytes > 0) {
        link->trash = link->trash ? link->trash : malloc(LIMIT_CHUNK_BYTES);
        if (!link->trash) {
            return diag_no_memory(diag, "the payload of a late reply");
        }
        *ret_payload = link->trash;
    }
    return 0;
}

/* Returns PROTOCOL if the message is no reply to what was asked, or may have no payload. */
static int check_reply(const struct request *request, const struct frame *frame,
                       const struct msg *msg, struct diag *diag)
{
    if (!msg_is_reply(request->asked, msg->type)) {
        const char *asked = msg_name(request->asked);
        return diag_set(diag, CAIRN_E_PROTOCOL, "the server answered %s with %s",
                        asked ? asked : "what was not asked yet", msg_name(msg->type));
    }
    if (frame->payload_bytes > 0 && (msg->type == MSG_ERROR || !request->ops->on_payload)) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the server sent %s with a payload, which is not allowed",
                        msg_name(msg->type));
    }
    return 0;
}

int link_reply(struct link *link, const struct frame *frame, const struct msg *msg,
               void **ret_payload, struct diag *diag)
{
    struct request *request = find_request(link, frame->stream);
    if (!request) {
        return discard(link, frame, ret_payload, diag);
    }
    CHECK(link->receiving == NULL); /* one payload comes at a time */
    int rc = check_reply(request, frame, msg, diag);
    if (rc == 0 && msg->type == MSG_ERROR) {
        unlink_request(link, request);
    }
    if (rc == 0) {
        rc = request->ops->on_reply(request, frame, msg, ret_payload, diag);
    }
    if (rc == 0 && frame->payload_bytes > 0) {
        CHECK(*ret_payload != NULL);
        link->receiving = request;
        request->receiving = true;
    } else if (rc == CAIRN_E_PROTOCOL) {
        request->was_broken = true;
    }
    return rc;
}

int link_payload(struct link *link, const struct frame *frame, const struct msg *msg, void *payload,
                 struct diag *diag)
{
    struct request *request = link->receiving;
    link->receiving = NULL;
    if (!request) {
        return 0; /* the payload went into the trash */
    }
    CHECK(request->receiving);
    request->receiving = false;
    return request->ops->on_payload(request, frame, msg, payload, diag);
}

void link_add(struct link *link, struct request *request)
{
    CHECK(link_is_up(link));
    CHECK(request->stream == 0);
    CHECK(request->ops != NULL);
    request->stream = link->next_stream++;
    request->asked = 0;
    request->receiving = request->was_broken = false;
    list_init(&request->link);
    list_add_tail(bucket_of(link, request->stream), &request->link);
}

void link_ask(struct link *link, struct request *request, const struct msg *msg)
{
    link_add(link, request);
    link_send(link, request, msg);
}

void link_ask_fd(struct link *link, struct request *request, const struct msg *msg, int fd)
{
    link_add(link, request);
    request->asked = msg->type;
    conn_send_fd(link->conn, request->stream, msg, fd);
}

void link_send(struct link *link, struct request *request, const struct msg *msg)
{
    CHECK(link_is_up(link));
    if (request) {
        request->asked = msg->type;
    }
    conn_send_always(link->conn, request ? request->stream : 0, msg);
}

void link_send_payload(struct link *link, struct request *request, const struct msg *msg,
                       struct conn_out *out)
{
    CHECK(link_is_up(link));
    request->asked = msg->type;
    conn_send_payload(link->conn, request->stream, msg, out);
}

void link_forget(struct link *link, struct request *request)
{
    bool receiving = request->receiving;
    request->receiving = false;
    unlink_request(link, request);
    CHECK(request->stream == 0);
    CHECK(link->receiving != request);
    if (receiving) {
        link_reset(
            link, CAIRN_E_CONNECTION_LOST,
            "the connection is made again, because an operation ended in the middle of a reply");
    }
}

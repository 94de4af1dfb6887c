/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of a client on this host that go into memory of its own: LANDING, and READ with a place in
 * it. The disk writes there directly; no buffer of the budget is taken, and no socket copies.
 * Everything that comes from the peer is checked before it is mapped or written to. Each read holds
 * the mapping until the store has released it, whatever happens to the session. If a checkpoint is
 * restored into more ranks than saved it, many chunks are wanted by two ranks at about the same
 * time; the store reads such a chunk once, and the others get a copy. The loop's thread, copies on
 * workers.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "base/log.h"
#include "wire/negotiate.h"

#include <string.h>

enum { LANDING_READS_MAX = 16 };

void session_offer_landing(struct session *session, uint64_t *features)
{
    if (!conn_passes_fds(session->conn)) {
        *features &= ~(uint64_t)WIRE_FEATURE_LANDING;
    }
    session->lands = (*features & WIRE_FEATURE_LANDING) != 0;
    if (session->lands) {
        conn_accept_fds(session->conn, NET_FDS_MAX);
    }
}

void session_end_landing(struct session *session)
{
    mapped_unref(session->landing);
    session->landing = NULL;
}

/* Handles LANDING: maps the memory that reads of this client go into. Size 0 ends the present
 * landing. */
int session_on_landing(struct session *session, uint32_t stream, const struct msg *msg,
                       struct diag *diag)
{
    struct mapped *landing = NULL;
    struct diag why = DIAG_INIT;
    if (!session->lands) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the client sent LANDING although the two ends did not agree on it");
    }
    if (msg->u.landing.bytes == 0) {
        session_end_landing(session);
        conn_send_always(session->conn, stream, msg);
        return 0;
    }
    struct msg_arena memory = {.arena_id = msg->u.landing.landing_id,
                               .bytes = msg->u.landing.bytes};
    struct mapped_offer offer = {
        .fd = conn_take_fd(session->conn), .owner = session->id, .arena = &memory, .lands = true};
    int status = mapped_new(&session->server->mapped, &offer, &landing, &why);
    if (status != 0) {
        session_log(session, LOG_INFO,
                    "the client's memory for reads was not taken; the bytes go through the socket",
                    diag_text(&why, status));
        conn_send_error(session->conn, stream, status, diag_text(&why, status));
        return 0;
    }
    mapped_unref(session->landing);
    session->landing = landing;
    conn_send_always(session->conn, stream, msg);
    return 0;
}

/* --- READ ----------------------------------------------------------------------------------- */

/* Answers a READ into the landing and frees the request. */
static void read_ended(struct request *request, int status, const struct diag *diag)
{
    const struct msg_read *read = &request->msg.u.read;
    mapped_unref(request->u.read.landing);
    if (request->session) {
        CHECK(request->session->landing_reads > 0);
        request->session->landing_reads--;
    }
    if (status != 0) {
        request_error(request, status, diag);
    } else {
        struct msg reply = {.type = MSG_LANDED, .u.landed = {.bytes = read->bytes}};
        request->server->bytes_out += read->bytes;
        request_reply(request, &reply);
    }
    request_free(request);
}

static void read_alone(struct request *request);

static struct request *next_waiting(struct request *request)
{
    struct list *node = list_pop(&request->u.read.waiting);
    return node ? list_item(node, struct request, u.read.with) : NULL;
}

/* Copies the bytes to the waiting requests. Runs on a worker; the loop does not touch the list
 * meanwhile. */
static void copy_run(struct work *work)
{
    const struct request *from = container_of(work, struct request, u.read.copy);
    list_each (node, &from->u.read.waiting) {
        const struct request *to = list_item(node, struct request, u.read.with);
        CHECK(to->msg.u.read.bytes == from->msg.u.read.bytes);
        memmove(to->u.read.room, from->u.read.room, from->msg.u.read.bytes);
    }
}

static void copy_done(struct work *work)
{
    struct request *request = container_of(work, struct request, u.read.copy), *other;
    CHECK(request->u.read.copies);
    while ((other = next_waiting(request))) {
        read_ended(other, 0, NULL);
    }
    read_ended(request, 0, NULL);
}

/* Called when a read has ended. The waiting requests are served before the client whose memory
 * holds the bytes is told, because it may reuse that memory then. A failure says nothing about the
 * others, so each of them reads for itself. */
static void landed(struct store_req *req)
{
    struct request *request = container_of(req, struct request, u.read.store), *other;
    struct diag diag = req->diag;
    list_remove(&request->u.read.reading);
    if (req->status != 0) {
        while ((other = next_waiting(request))) {
            read_alone(other);
        }
    }
    if (list_is_empty(&request->u.read.waiting)) {
        read_ended(request, req->status, &diag);
        return;
    }
    request->u.read.copies = true;
    list_each (node, &request->u.read.waiting) {
        list_item(node, struct request, u.read.with)->u.read.copies = true;
    }
    request->u.read.copy = (struct work){.run = copy_run, .done = copy_done};
    work_submit(request->server->options.verify_pool, &request->u.read.copy);
}

/* Called when the session goes. Neither store nor worker can be stopped; they go on into memory
 * that stays mapped until they end. */
static void cancel_landing(struct request *request) { request_orphan(request); }

static void cancel_waiting(struct request *request)
{
    if (request->u.read.copies) {
        request_orphan(request);
        return;
    }
    list_remove(&request->u.read.with);
    mapped_unref(request->u.read.landing);
    request_free(request);
}

/* Reads for this request from the store. Requests for the same bytes may join it until the read has
 * ended. */
static void read_alone(struct request *request)
{
    CHECK(request->session != NULL);
    CHECK(request->u.read.room != NULL);
    CHECK(request->u.read.landing != NULL);
    request->cancel = cancel_landing;
    list_init(&request->u.read.waiting);
    list_add_tail(&request->server->landings, &request->u.read.reading);
    session_read(request, request->u.read.room, landed);
}

/* Returns true if the two sessions may share a read. Ranks of one attempt restore together, and
 * trust each other's bytes as little as the disk's: each checks the digests of its bytes. Any other
 * client could spoil a restore by writing into the bytes that are being copied. */
static bool may_share(const struct session *a, const struct session *b)
{
    return a && !a->viewer && !b->viewer && a->run == b->run &&
           token_equal(&a->join.token, &b->join.token);
}

/* Returns a request for which the same bytes are being read, or NULL. */
static struct request *find_same(const struct request *request)
{
    const struct msg_read *read = &request->msg.u.read;
    list_each (node, &request->server->landings) {
        struct request *other = list_item(node, struct request, u.read.reading);
        const struct msg_read *its = &other->msg.u.read;
        if (may_share(other->session, request->session) && its->offset == read->offset &&
            its->bytes == read->bytes && object_id_equal(&its->object, &read->object)) {
            return other;
        }
    }
    return NULL;
}

/* Returns the memory in the landing that a READ names, or NULL with PROTOCOL if it may not be
 * written, or if too many reads are under way. */
static uint8_t *find_room(const struct session *session, const struct msg_read *read,
                          struct diag *diag)
{
    struct mapped *landing = session->landing;
    uint8_t *room = landing && mapped_arena_id(landing) == read->landing_id
                        ? mapped_room(landing, read->landing_offset, read->bytes)
                        : NULL;
    if (!room) {
        diag_set(diag, CAIRN_E_PROTOCOL,
                 "the client sent READ of %u bytes to offset %llu of landing %llx, which %s",
                 read->bytes, (unsigned long long)read->landing_offset,
                 (unsigned long long)read->landing_id,
                 landing && mapped_arena_id(landing) == read->landing_id
                     ? "is too short for it, or has a hole there"
                     : "this server does not have");
    } else if (session->landing_reads >= LANDING_READS_MAX) {
        diag_set(diag, CAIRN_E_PROTOCOL,
                 "more than %d READs into the client's memory are in flight at once",
                 LANDING_READS_MAX);
        room = NULL;
    }
    return room;
}

int session_read_landing(struct request *request, struct diag *diag)
{
    struct session *session = request->session;
    uint8_t *room = find_room(session, &request->msg.u.read, diag);
    if (!room) {
        request_free(request);
        return CAIRN_E_PROTOCOL;
    }
    session->landing_reads++;
    CHECK(session->landing_reads <= LANDING_READS_MAX);
    request->u.read.landing = mapped_ref(session->landing);
    request->u.read.room = room;
    struct request *same = find_same(request);
    if (same) {
        request->cancel = cancel_waiting;
        list_add_tail(&same->u.read.waiting, &request->u.read.with);
        return 0;
    }
    read_alone(request);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads of a client of this host that land in memory of its own: LANDING, and READ with a place in
 * it. The disk writes there directly, no buffer of the budget is taken, and no socket copies. What
 * comes from the peer is checked before it is mapped or written to; each read holds the mapping
 * until the store let go of it, whatever becomes of the session. The loop's thread.
 */
#include "session/session_private.h"

#include "base/check.h"
#include "base/log.h"
#include "wire/negotiate.h"

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

int session_on_landing(struct session *session, uint32_t stream, const struct msg *msg,
                       struct diag *diag)
{
    struct mapped *landing = NULL;
    struct diag why = DIAG_INIT;
    if (!session->lands) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "LANDING, and it was not agreed on");
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
        session_log(session, LOG_INFO, "memory for reads not taken, they go by the socket",
                    diag_text(&why, status));
        conn_send_error(session->conn, stream, status, diag_text(&why, status));
        return 0;
    }
    mapped_unref(session->landing);
    session->landing = landing;
    conn_send_always(session->conn, stream, msg);
    return 0;
}

/* --- READ --- */

static void landed(struct store_req *req)
{
    struct request *request = container_of(req, struct request, u.read.store);
    const struct msg_read *read = &request->msg.u.read;
    mapped_unref(request->u.read.landing);
    if (request->session) {
        CHECK(request->session->landing_reads > 0);
        request->session->landing_reads--;
    }
    if (req->status != 0) {
        request_error(request, req->status, &req->diag);
    } else {
        struct msg reply = {.type = MSG_LANDED, .u.landed = {.bytes = read->bytes}};
        request->server->bytes_out += read->bytes;
        request_reply(request, &reply);
    }
    request_free(request);
}

/* The store cannot be stopped: it goes on into memory that is mapped until then. */
static void cancel_landing(struct request *request) { request_orphan(request); }

static uint8_t *find_room(const struct session *session, const struct msg_read *read,
                          struct diag *diag)
{
    struct mapped *landing = session->landing;
    uint8_t *room = landing && mapped_arena_id(landing) == read->landing_id
                        ? mapped_room(landing, read->landing_offset, read->bytes)
                        : NULL;
    if (!room) {
        diag_set(diag, CAIRN_E_PROTOCOL, "READ of %u bytes to %llu of landing %llx, which %s",
                 read->bytes, (unsigned long long)read->landing_offset,
                 (unsigned long long)read->landing_id,
                 landing && mapped_arena_id(landing) == read->landing_id ? "it leaves"
                                                                         : "is not here");
    } else if (session->landing_reads >= LANDING_READS_MAX) {
        diag_set(diag, CAIRN_E_PROTOCOL, "more than %d READs land at once", LANDING_READS_MAX);
        room = NULL;
    }
    return room;
}

int session_read_landing(struct request *request, struct diag *diag)
{
    struct session *session = request->session;
    const struct msg_read *read = &request->msg.u.read;
    uint8_t *room = find_room(session, read, diag);
    if (!room) {
        request_free(request);
        return CAIRN_E_PROTOCOL;
    }
    session->landing_reads++;
    request->cancel = cancel_landing;
    request->u.read.landing = mapped_ref(session->landing);
    request->u.read.store = (struct store_req){.op = STORE_READ,
                                               .done = landed,
                                               .run = *run_name_of(session->run),
                                               .object = read->object,
                                               .offset = read->offset,
                                               .bytes = read->bytes,
                                               .data = room};
    store_submit(catalog_store(request->server->options.catalog), &request->u.read.store);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank on this host that hands over its arena instead of sending bytes: ARENA, DESCRIBE,
 * COMPLETE. Everything that comes from the peer is checked before it is mapped or read. A message
 * of a feature that was not negotiated ends the connection. The loop's thread.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "base/log.h"
#include "wire/negotiate.h"

#include <stdlib.h>

void session_offer_hand_over(struct session *session, uint64_t *features)
{
    if (!conn_passes_fds(session->conn)) {
        *features &= ~(uint64_t)WIRE_FEATURE_HAND_OVER;
    }
    session->hands_over = (*features & WIRE_FEATURE_HAND_OVER) != 0;
    if (!session->hands_over || session->server->options.encode_lanes == 0) {
        *features &= ~(uint64_t)WIRE_FEATURE_HAND_PACK;
    }
    session->packs = (*features & WIRE_FEATURE_HAND_PACK) != 0;
    if (session->hands_over) {
        conn_accept_fds(session->conn, NET_FDS_MAX);
    }
}

void session_end_hand_over(struct session *session)
{
    mapped_unref(session->mapped);
    session->mapped = NULL;
}

static int check_feature(const struct session *session, const struct msg *msg, struct diag *diag)
{
    return session->hands_over
               ? 0
               : diag_set(diag, CAIRN_E_PROTOCOL,
                          "the client sent %s although the two ends did not agree on hand-over",
                          msg_name(msg->type));
}

/* Handles ARENA: maps the client's memory. A client whose arena is refused sends its bytes by the
 * socket. */
int session_on_arena(struct session *session, uint32_t stream, const struct msg *msg,
                     struct diag *diag)
{
    struct mapped *mapped = NULL;
    struct diag why = DIAG_INIT;
    int status = check_feature(session, msg, diag);
    if (status != 0) {
        return status;
    }
    struct mapped_offer offer = {
        .fd = conn_take_fd(session->conn), .owner = session->id, .arena = &msg->u.arena};
    status = mapped_new(&session->server->mapped, &offer, &mapped, &why);
    if (status != 0) {
        session_log(session, LOG_INFO, "the arena was not taken; its bytes come through the socket",
                    diag_text(&why, status));
        conn_send_error(session->conn, stream, status, diag_text(&why, status));
        return 0;
    }
    mapped_unref(session->mapped);
    session->mapped = mapped;
    conn_send_always(session->conn, stream, msg);
    return 0;
}

void session_room(void *user)
{
    struct server *server = user;
    list_each (node, &server->sessions) {
        session_resume(list_item(node, struct session, link), PAUSE_INGEST);
    }
}

/* Handles DESCRIBE: a payload that lies in the client's arena. Pauses reading while the
 * descriptions are far ahead of the disk. */
int session_on_describe(struct session *session, uint32_t stream, const struct msg *msg,
                        struct diag *diag)
{
    const struct msg_describe *describe = &msg->u.describe;
    const struct msg_data *data = &describe->data;
    int status = check_feature(session, msg, diag);
    if (status != 0) {
        return status;
    }
    if (!session->mapped || mapped_arena_id(session->mapped) != describe->arena_id) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the client described chunks in arena %llx, which it has not handed over",
                        (unsigned long long)describe->arena_id);
    }
    struct session_save *save =
        session_find_save(session, (struct ckpt_id){data->object.term, data->object.step});
    if (!save || writer_is_over(save->writer)) {
        return 0; /* the save ended while this was on its way; WAIT's OUTCOME says how */
    }
    struct described described = {
        .stream = stream, .mapped = session->mapped, .packs = session->packs};
    status = writer_describe(save->writer, describe, &described, diag);
    CHECK(session->server->ingest != NULL);
    if (ingest_is_full(session->server->ingest)) {
        session_pause(session, PAUSE_INGEST);
    }
    return status;
}

/* --- COMPLETE --- */

static void put_part(void *user, uint8_t *part, uint64_t bytes)
{
    struct server *server = user;
    CHECK(server->part_bytes_used >= bytes);
    server->part_bytes_used -= bytes;
    free(part);
}

/* Called when a handed-over part is durable and sealed, or has failed. */
static void on_handed_over(struct hand_over_wait *wait, int status, const struct diag *diag)
{
    struct request *request = container_of(wait, struct request, u.hand);
    struct msg reply = {.type = MSG_SEALED,
                        .u.sealed = {.id = request->msg.u.complete.id,
                                     .stored_bytes = wait->stored_bytes,
                                     .shared_bytes = wait->shared_bytes}};
    request_end(request, status, &reply, diag);
}

/* Called when the session goes. The hand-over itself goes on, and nobody is told. */
static void cancel_complete(struct request *request)
{
    list_remove(&request->u.hand.link);
    request_free(request);
}

/* Starts the hand-over with the part that was received, and answers HANDED. Returns an error only
 * if the client broke the rules; any other failure is answered. */
static int begin_hand_over(struct request *request, struct session_save *save, struct diag *diag)
{
    struct session *session = request->session;
    const struct msg_complete *complete = &request->msg.u.complete;
    struct hand_over_options options = {.token = session->join.token,
                                        .world_size = session->join.world_size,
                                        .base = save->base,
                                        .part_bytes = complete->part_bytes,
                                        .put_part = put_part,
                                        .user = session->server,
                                        .pool = session->server->options.verify_pool};
    int status = session_take_part(save, "COMPLETE", complete->part_bytes, &options.part, diag);
    if (status != 0) {
        return status;
    }
    struct diag why = DIAG_INIT;
    CHECK(options.part != NULL);
    request->u.hand = (struct hand_over_wait){.done = on_handed_over};
    status = writer_hand_over(save->writer, &options, &request->u.hand, &why);
    if (status != 0) {
        put_part(session->server, options.part, options.part_bytes);
        request_end(request, status, NULL, &why);
        return 0;
    }
    session_log(session, LOG_DEBUG, "rank handed over its state", NULL);
    struct msg reply = {.type = MSG_HANDED, .u.handed = {.id = complete->id}};
    request->cancel = cancel_complete;
    request_reply(request, &reply);
    return 0;
}

/* Handles COMPLETE: the client has described everything and sent its part. */
int session_on_complete(struct session *session, uint32_t stream, const struct msg *msg,
                        struct diag *diag)
{
    const struct msg_complete *complete = &msg->u.complete;
    int status = check_feature(session, msg, diag);
    if (status != 0) {
        return status;
    }
    struct session_save *save =
        session_save_to_seal(session, stream, complete->id, complete->open_id);
    if (!save) {
        return 0;
    }
    struct request *request = request_new(session, stream, msg);
    if (!request) {
        return 0;
    }
    status = begin_hand_over(request, save, diag);
    if (status != 0) {
        request_free(request);
    }
    return status;
}

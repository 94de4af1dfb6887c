/* SPDX-License-Identifier: Apache-2.0
 *
 * The point where connections come in: which of them gets a place, and which file of this folder
 * answers each message, in which state and for which sessions. This file calls the other files;
 * none of them calls it.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>

/* --- which message is allowed when ---------------------------------------------------------- */

typedef int (*handler)(struct session *session, uint32_t stream, const struct msg *msg,
                       struct diag *diag);

static const struct rule {
    enum msg_type type;
    enum session_state least;
    bool rank_only;
    handler handle; /* or: */
    int (*ask)(struct request *request, struct diag *why);
} rules[] = {
    {MSG_HELLO, SESSION_NEW, false, session_on_hello, NULL},
    {MSG_JOIN, SESSION_GREETED, false, session_on_join, NULL},
    {MSG_RUNS, SESSION_GREETED, false, NULL, session_ask_runs},
    {MSG_USAGE, SESSION_GREETED, false, NULL, session_ask_usage},
    {MSG_PROGRESS, SESSION_GREETED, false, session_on_progress, NULL},
    {MSG_STATUS, SESSION_JOINED, false, NULL, session_ask_status},
    {MSG_LIST, SESSION_JOINED, false, NULL, session_ask_list},
    {MSG_LOG, SESSION_JOINED, false, NULL, session_ask_log},
    {MSG_ANNOTATE, SESSION_JOINED, false, NULL, session_ask_annotate},
    {MSG_MARK, SESSION_JOINED, false, NULL, session_ask_mark},
    {MSG_REMOVE, SESSION_JOINED, false, NULL, session_ask_remove},
    {MSG_POLICY, SESSION_GREETED, false, NULL, session_ask_policy},
    {MSG_SCRUB, SESSION_GREETED, false, session_on_scrub, NULL},
    {MSG_GC, SESSION_GREETED, false, session_on_gc, NULL},
    {MSG_REPAIR, SESSION_GREETED, false, session_on_repair, NULL},
    {MSG_SERVER, SESSION_GREETED, false, NULL, session_ask_server},
    {MSG_RESTORE, SESSION_JOINED, false, NULL, session_ask_restore},
    {MSG_FETCH, SESSION_JOINED, false, NULL, session_ask_fetch},
    {MSG_PLAN, SESSION_JOINED, false, NULL, session_ask_plan},
    {MSG_READ, SESSION_JOINED, false, session_on_read, NULL},
    {MSG_LANDING, SESSION_JOINED, false, session_on_landing, NULL},
    {MSG_REPORT, SESSION_JOINED, true, NULL, session_ask_report},
    {MSG_OPEN, SESSION_JOINED, true, NULL, session_ask_open},
    {MSG_WANT, SESSION_JOINED, true, session_on_want, NULL},
    {MSG_OBJECT_END, SESSION_JOINED, true, session_on_object_end, NULL},
    {MSG_HAVE, SESSION_JOINED, true, NULL, session_ask_have},
    {MSG_SEAL, SESSION_JOINED, true, session_on_seal, NULL},
    {MSG_WAIT, SESSION_JOINED, true, NULL, session_ask_wait},
    {MSG_ABORT, SESSION_JOINED, true, NULL, session_ask_abort},
    {MSG_ARENA, SESSION_JOINED, true, session_on_arena, NULL},
    {MSG_DESCRIBE, SESSION_JOINED, true, session_on_describe, NULL},
    {MSG_COMPLETE, SESSION_JOINED, true, session_on_complete, NULL},
    {MSG_AGREE, SESSION_JOINED, true, session_on_agree, NULL},
    {MSG_LISTS, SESSION_JOINED, true, session_on_lists, NULL},
    {MSG_DIGESTS, SESSION_JOINED, true, session_on_digests, NULL},
    {MSG_DATA, SESSION_JOINED, true, NULL, NULL},
    {MSG_PART, SESSION_JOINED, true, NULL, NULL},
};

static const struct rule *find_rule(enum msg_type type)
{
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        if (rules[i].type == type) {
            return &rules[i];
        }
    }
    return NULL;
}

/* Checks that the message may be sent to a server, in this state of the session, and by this kind
 * of client. */
static int check_rule(const struct session *session, const struct rule *rule, const struct msg *msg,
                      struct diag *diag)
{
    if (!rule) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "the client sent %s, which a server does not serve",
                        msg_name(msg->type));
    }
    if (session->state < rule->least) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "the client sent %s before %s", msg_name(msg->type),
                        session->state == SESSION_NEW ? "HELLO" : "JOIN");
    }
    if (rule->rank_only && session->viewer) {
        return diag_set(diag, CAIRN_E_DENIED,
                        "a viewer sent %s, but a viewer may only list, read and annotate",
                        msg_name(msg->type));
    }
    return 0;
}

/* Answers a message while the server has no store yet: only HELLO and SERVER are served, the others
 * get UNREACHABLE with the reason, and the client asks again. Returns true if it has answered. */
static bool answer_waiting(struct session *session, const struct frame *frame, enum msg_type type)
{
    const struct server *server = session->server;
    struct diag why = server->waits_why;
    if (server->options.catalog || type == MSG_HELLO || type == MSG_SERVER) {
        return false;
    }
    diag_add(&why, "this server has no store yet: %s", err_name(why.code));
    /* The client may need time to use the answer. */
    timer_start(&session->login, server->options.login_ms);
    conn_send_error(session->conn, frame->stream, CAIRN_E_UNREACHABLE, why.text);
    return true;
}

/* Makes a request of a message that needs one, and answers it if it fails at once. */
static int ask(struct session *session, const struct rule *rule, uint32_t stream,
               const struct msg *msg)
{
    struct request *request = request_new(session, stream, msg);
    struct diag why = DIAG_INIT;
    int status = request ? rule->ask(request, &why) : 0;
    if (status != 0) {
        request_end(request, status, NULL, &why);
    }
    return 0;
}

/* Handles one message. For a message with a payload it gives the memory for it, and on_payload()
 * follows. An error ends the connection. */
static int on_message(void *user, const struct frame *frame, const struct msg *msg,
                      void **ret_payload, struct diag *diag)
{
    struct session *session = user;
    const struct rule *rule = find_rule(msg->type);
    if (msg->type == MSG_BYE) {
        session_leave(session);
        return diag_set(diag, CAIRN_E_ENDED, "the client ended the connection");
    }
    int status = check_rule(session, rule, msg, diag);
    if (status != 0) {
        return status;
    }
    if ((frame->payload_bytes > 0) != msg_has_payload(msg->type)) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the client sent %s with %u bytes of payload, which is not allowed",
                        msg_name(msg->type), frame->payload_bytes);
    }
    if (answer_waiting(session, frame, msg->type)) {
        return 0;
    }
    if (msg->type == MSG_DATA) {
        return session_data_buffer(session, frame, msg, ret_payload, diag);
    }
    if (msg->type == MSG_PART) {
        return session_part_buffer(session, frame, msg, ret_payload, diag);
    }
    CHECK((rule->handle != NULL) != (rule->ask != NULL));
    status = rule->handle ? rule->handle(session, frame->stream, msg, diag)
                          : ask(session, rule, frame->stream, msg);
    if (status == 0) {
        session_stop_if_full(session);
    }
    return status;
}

static int on_payload(void *user, const struct frame *frame, const struct msg *msg, void *payload,
                      struct diag *diag)
{
    struct session *session = user;
    if (msg->type == MSG_DATA) {
        CHECK(session->receiving == payload);
        session->receiving = NULL;
        return session_data(session, frame, msg, payload, diag);
    }
    CHECK(msg->type == MSG_PART);
    session_part(session, frame);
    return 0;
}

/* --- a connection's events -------------------------------------------------------------------- */

static void on_drained(void *user) { session_read_if_room(user); }

static void on_close(void *user, int status, const struct diag *diag)
{
    session_closed(user, status, diag);
}

static const struct conn_handler conn_events = {.on_message = on_message,
                                                .on_payload = on_payload,
                                                .on_close = on_close,
                                                .on_drained = on_drained};

/* --- who gets a place ----------------------------------------------------------------------- */

static int refuse_message(void *user, const struct frame *frame, const struct msg *msg,
                          void **ret_payload, struct diag *diag)
{
    (void)user, (void)frame, (void)msg, (void)ret_payload;
    return diag_set(diag, CAIRN_E_BUSY, "refused");
}

static int refuse_payload(void *user, const struct frame *frame, const struct msg *msg,
                          void *payload, struct diag *diag)
{
    (void)user, (void)frame, (void)msg, (void)payload;
    return diag_set(diag, CAIRN_E_BUSY, "refused");
}

static void refuse_close(void *user, int status, const struct diag *diag)
{
    (void)user, (void)status, (void)diag;
}

/* Refuses a connection. It says why, if the peer takes the answer within the second that a closing
 * connection has. */
static void refuse(struct server *server, struct stream *stream, int code, const char *why)
{
    static const struct conn_handler nobody = {
        .on_message = refuse_message, .on_payload = refuse_payload, .on_close = refuse_close};
    struct conn_options options = {.message_max = LIMIT_MESSAGE_BEFORE_LOGIN_BYTES};
    struct conn *conn = NULL;
    LOG(LOG_WARN, "session", "connection refused", lu("sessions", server->session_count),
        ls("err", why));
    if (conn_new(server->options.loop, stream, &options, &nobody, NULL, &conn, NULL) == 0) {
        conn_send_error(conn, 0, code, why);
        conn_close(conn, true);
    }
}

/* Makes a place for one more connection, and returns false if there is none. An eighth of the
 * places is reserved for Unix sockets, so that nobody from the network can lock out the ranks and
 * the operator of this host. If all places are taken, the connection that has waited longest
 * without a login is closed: a real client logs in within milliseconds, while silent ones would
 * hold their places for login_ms. */
static bool make_place(struct server *server, bool is_local)
{
    uint32_t most = server->options.sessions_max;
    CHECK(server->network_count <= server->session_count);
    bool is_full = server->session_count >= most;
    bool network_is_full = !is_local && server->network_count >= most - most / 8;
    if (!is_full && !network_is_full) {
        return true;
    }
    list_each (node, &server->sessions) { /* the oldest comes first */
        struct session *session = list_item(node, struct session, link);
        if (timer_is_active(&session->login) && (is_full || !session->is_local) &&
            (!network_is_full || !session->is_local)) {
            session_log(session, LOG_INFO,
                        "the connection was closed before its login, because the server needs its "
                        "place for another",
                        NULL);
            session_close(session, false);
            return true;
        }
    }
    return false;
}

void server_accept(struct server *server, struct stream *stream)
{
    struct conn_options options = {.message_max = LIMIT_MESSAGE_BEFORE_LOGIN_BYTES,
                                   .payload_max = 0,
                                   .first_message_ms = server->options.login_ms,
                                   .queue_high_bytes = QUEUE_HIGH_BYTES,
                                   .queue_low_bytes = QUEUE_LOW_BYTES,
                                   .held_bytes = &server->message_bytes};
    if (server->closing) {
        refuse(server, stream, CAIRN_E_SHUTTING_DOWN,
               "the server is stopping; try again, or connect to another server of the same store");
        return;
    }
    /* Only a Unix socket has a descriptor here. */
    bool is_local = stream->ops->fd_sock && stream->ops->fd_sock(stream);
    if (!make_place(server, is_local)) {
        refuse(server, stream, CAIRN_E_BUSY,
               "the server already has as many connections as [session] max allows; try again "
               "later, or raise it");
        return;
    }
    struct session *session = session_new(server);
    if (!session) {
        refuse(server, stream, CAIRN_E_NO_MEMORY,
               "the server has not enough memory for another connection; try again later");
        return;
    }
    struct diag diag = DIAG_INIT;
    if (conn_new(server->options.loop, stream, &options, &conn_events, session, &session->conn,
                 &diag) != 0) {
        LOG(LOG_WARN, "session", "connection refused", ls("err", diag.text));
        free(session);
        return;
    }
    session_begin(session, is_local);
}

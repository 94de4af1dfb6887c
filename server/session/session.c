/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection: its life, the table of what may be asked when, and its requests. A session keeps
 * nothing that a client could not rebuild on another connection: what counts is in the run's record
 * and in the store.
 */
#include "session/session_private.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { REQUEST_SCRATCH_MAX = 16 << 20 };

/* What one session may hold before it is not read any more: of replies that its peer does not take,
 * and of requests that are not answered yet (their memory: the two largest that there can be). */
enum {
    QUEUE_HIGH_BYTES = 1 << 20,
    QUEUE_LOW_BYTES = 256 << 10,
    REQUESTS_HIGH = 256,
    REQUESTS_HIGH_BYTES = 2 * REQUEST_SCRATCH_MAX,
};

/* --- what a session may hold ------------------------------------------------------------------ */

void session_pause(struct session *session, enum session_pause why)
{
    if (session->pauses == 0) {
        conn_pause(session->conn);
    }
    session->pauses |= why;
}

void session_resume(struct session *session, enum session_pause why)
{
    bool was_paused = session->pauses != 0;
    session->pauses &= ~(unsigned)why;
    if (was_paused && session->pauses == 0) {
        conn_resume(session->conn);
    }
}

static bool holds_too_many(const struct session *session)
{
    return session->request_count >= REQUESTS_HIGH || session->request_bytes >= REQUESTS_HIGH_BYTES;
}

/* A message was handled. Reading stops while the session holds too much: a peer that never takes
 * its replies would otherwise have the server keep all of them. */
static void stop_if_full(struct session *session)
{
    struct server *server = session->server;
    if (conn_queued_bytes(session->conn) >= QUEUE_HIGH_BYTES || holds_too_many(session)) {
        session_pause(session, PAUSE_MESSAGES);
    }
    if (server->message_bytes > server->options.message_bytes_total) {
        loop_post(server->options.loop, &server->shed);
    }
}

static void read_if_room(struct session *session)
{
    if (conn_queued_bytes(session->conn) <= QUEUE_LOW_BYTES && !holds_too_many(session)) {
        session_resume(session, PAUSE_MESSAGES);
    }
}

static void on_drained(void *user) { read_if_room(user); }

/* --- requests --------------------------------------------------------------------------------- */

static int copy_msg(const struct msg *msg, struct scratch *scratch, struct msg *ret)
{
    struct buf buf;
    buf_init(&buf, LIMIT_MESSAGE_BYTES);
    msg_encode(msg, &buf);
    int status = buf_status(&buf);
    if (status == 0) {
        status = msg_decode(msg->type, buf.bytes, buf.data, scratch, ret, NULL);
    }
    buf_fini(&buf);
    return status;
}

struct request *request_new(struct session *session, uint32_t stream, const struct msg *msg)
{
    struct request *request = calloc(1, sizeof(*request));
    if (!request) {
        conn_send_error(session->conn, stream, CAIRN_E_NO_MEMORY,
                        "the server has no memory for a request");
        return NULL;
    }
    *request = (struct request){.session = session, .server = session->server, .stream = stream};
    scratch_init(&request->scratch, REQUEST_SCRATCH_MAX);
    int status = copy_msg(msg, &request->scratch, &request->msg);
    if (status != 0) {
        scratch_fini(&request->scratch);
        free(request);
        conn_send_error(session->conn, stream, status, "the server has no memory for a request");
        return NULL;
    }
    list_init(&request->link);
    list_add_tail(&session->requests, &request->link);
    session->server->request_count++;
    request->held_bytes = sizeof(*request) + request->scratch.held;
    session->request_count++;
    session->request_bytes += request->held_bytes;
    session->server->message_bytes += request->held_bytes;
    return request;
}

static void leave_session(struct request *request)
{
    struct session *session = request->session;
    CHECK(session->request_count > 0);
    session->request_count--;
    session->request_bytes -= request->held_bytes;
    request->session = NULL;
    read_if_room(session);
}

void request_free(struct request *request)
{
    struct server *server = request->server;
    list_remove(&request->link);
    server->message_bytes -= request->held_bytes;
    if (request->session) {
        leave_session(request);
    }
    scratch_fini(&request->scratch);
    free(request);
    server->request_count--;
    server_check_stopped(server);
}

void request_orphan(struct request *request)
{
    list_remove(&request->link);
    leave_session(request);
}

void request_reply(struct request *request, const struct msg *reply)
{
    if (request->session) {
        conn_send_always(request->session->conn, request->stream, reply);
    }
}

void request_error(struct request *request, int code, const struct diag *diag)
{
    if (request->session) {
        conn_send_error(request->session->conn, request->stream, code, diag_text(diag, code));
    }
}

void request_send(struct request *request, const struct msg *reply, struct conn_out *out)
{
    struct session *session = request->session;
    conn_send_payload(session->conn, request->stream, reply, out);
}

/* --- what may be asked when
 * --------------------------------------------------------------------------- */

typedef int (*handler)(struct session *session, uint32_t stream, const struct msg *msg,
                       struct diag *diag);

static const struct rule {
    enum msg_type type;
    enum session_state least;
    bool rank_only;
    handler handle;
} rules[] = {
    {MSG_HELLO, SESSION_NEW, false, session_on_hello},
    {MSG_JOIN, SESSION_GREETED, false, session_on_join},
    {MSG_RUNS, SESSION_GREETED, false, session_on_runs},
    {MSG_USAGE, SESSION_GREETED, false, session_on_usage},
    {MSG_PROGRESS, SESSION_GREETED, false, session_on_progress},
    {MSG_STATUS, SESSION_JOINED, false, session_on_status},
    {MSG_LIST, SESSION_JOINED, false, session_on_list},
    {MSG_ANNOTATE, SESSION_JOINED, false, session_on_annotate},
    {MSG_MARK, SESSION_JOINED, false, session_on_mark},
    {MSG_SCRUB, SESSION_GREETED, false, session_on_scrub},
    {MSG_GC, SESSION_GREETED, false, session_on_gc},
    {MSG_REPAIR, SESSION_GREETED, false, session_on_repair},
    {MSG_SERVER, SESSION_GREETED, false, session_on_server},
    {MSG_RESTORE, SESSION_JOINED, false, session_on_restore},
    {MSG_FETCH, SESSION_JOINED, false, session_on_fetch},
    {MSG_PLAN, SESSION_JOINED, false, session_on_plan},
    {MSG_READ, SESSION_JOINED, false, session_on_read},
    {MSG_LANDING, SESSION_JOINED, false, session_on_landing},
    {MSG_REPORT, SESSION_JOINED, true, session_on_report},
    {MSG_OPEN, SESSION_JOINED, true, session_on_open},
    {MSG_WANT, SESSION_JOINED, true, session_on_want},
    {MSG_OBJECT_END, SESSION_JOINED, true, session_on_object_end},
    {MSG_HAVE, SESSION_JOINED, true, session_on_have},
    {MSG_SEAL, SESSION_JOINED, true, session_on_seal},
    {MSG_WAIT, SESSION_JOINED, true, session_on_wait},
    {MSG_ABORT, SESSION_JOINED, true, session_on_abort},
    {MSG_ARENA, SESSION_JOINED, true, session_on_arena},
    {MSG_DESCRIBE, SESSION_JOINED, true, session_on_describe},
    {MSG_COMPLETE, SESSION_JOINED, true, session_on_complete},
    {MSG_AGREE, SESSION_JOINED, true, session_on_agree},
    {MSG_LISTS, SESSION_JOINED, true, session_on_lists},
    {MSG_DIGESTS, SESSION_JOINED, true, session_on_digests},
    {MSG_DATA, SESSION_JOINED, true, NULL},
    {MSG_PART, SESSION_JOINED, true, NULL},
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

static int check_rule(const struct session *session, const struct rule *rule, const struct msg *msg,
                      struct diag *diag)
{
    if (!rule) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%s is not for a server", msg_name(msg->type));
    }
    if (session->state < rule->least) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%s before %s", msg_name(msg->type),
                        session->state == SESSION_NEW ? "HELLO" : "JOIN");
    }
    if (rule->rank_only && session->viewer) {
        return diag_set(diag, CAIRN_E_DENIED,
                        "%s from a viewer, who may only list, read and annotate",
                        msg_name(msg->type));
    }
    return 0;
}

/* A server that has no store can say so, and how it is. What came before the store is asked again
 * by who asked. */
static bool answer_waiting(struct session *session, const struct frame *frame, enum msg_type type)
{
    const struct server *server = session->server;
    struct diag why = server->waits_why;
    if (server->options.catalog || type == MSG_HELLO || type == MSG_SERVER) {
        return false;
    }
    diag_add(&why, "this server has no store yet: %s", err_name(why.code));
    timer_start(&session->login, server->options.login_ms); /* it may wait for the answer's use */
    conn_send_error(session->conn, frame->stream, CAIRN_E_UNREACHABLE, why.text);
    return true;
}

static int on_message(void *user, const struct frame *frame, const struct msg *msg,
                      void **ret_payload, struct diag *diag)
{
    struct session *session = user;
    const struct rule *rule = find_rule(msg->type);
    if (msg->type == MSG_BYE) {
        return diag_set(diag, CAIRN_E_ENDED, "the client said goodbye");
    }
    int status = check_rule(session, rule, msg, diag);
    if (status != 0) {
        return status;
    }
    if ((frame->payload_bytes > 0) != msg_has_payload(msg->type)) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "%s with %u payload bytes", msg_name(msg->type),
                        frame->payload_bytes);
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
    status = rule->handle(session, frame->stream, msg, diag);
    if (status == 0) {
        stop_if_full(session);
    }
    return status;
}

static int on_payload(void *user, const struct frame *frame, const struct msg *msg, void *payload,
                      struct diag *diag)
{
    struct session *session = user;
    if (msg->type == MSG_DATA) {
        session->receiving = NULL;
        return session_data(session, frame, msg, payload, diag);
    }
    session_part(session, frame);
    return 0;
}

/* --- life --- */

void session_log(const struct session *session, int level, const char *text, const char *err)
{
    char name[RUN_NAME_TEXT_MAX] = "";
    if (session->run) {
        run_name_format(run_name_of(session->run), name);
    }
    bool rank = session->state == SESSION_JOINED && !session->viewer;
    LOG((enum log_level)level, "session", text, ls("run", session->run ? name : NULL),
        li("rank", rank ? (int64_t)session->join.rank : -1), lu("session", session->id),
        ls("peer", session->peer), ls("err", err));
}

static void session_end(struct session *session)
{
    struct server *server = session->server;
    absent_left(session);
    timer_stop(&session->login);
    timer_stop(&session->idle);
    credit_user_fini(&session->credit); /* first, so that nothing below is given to this session */
    if (session->receiving) {
        credit_put(&server->credit, session->receiving);
        session->receiving = NULL;
    }
    list_each_safe (node, &session->requests) {
        struct request *request = list_item(node, struct request, link);
        request->cancel(request);
    }
    CHECK(list_is_empty(&session->requests));
    session_drop_saves(session);
    session_free_part_left(session);
    session_end_hand_over(session);
    session_end_landing(session);
    if (session->run) {
        catalog_release(session->run);
    }
    list_remove(&session->link);
    server->session_count--;
    server->network_count -= session->is_local ? 0 : 1;
    free(session);
    server_session_gone(server);
}

void session_close(struct session *session, bool flush)
{
    conn_close(session->conn, flush);
    session_end(session);
}

static void on_close(void *user, int status, const struct diag *diag)
{
    struct session *session = user;
    bool orderly = status == CAIRN_E_ENDED;
    session_log(session, orderly ? LOG_DEBUG : LOG_WARN, "connection closed",
                orderly ? NULL : diag_text(diag, status));
    session_close(session, true);
}

static void on_login_timeout(struct timer *timer)
{
    struct session *session = container_of(timer, struct session, login);
    session_log(session, LOG_WARN, "no login in time", NULL);
    conn_send_error(session->conn, 0, CAIRN_E_TIMED_OUT, "no login in time");
    session_close(session, true);
}

/* Returns why this session should lose its connection, or NULL. Shared memory must come back: a
 * session loses its connection, and resumes, when it holds granted buffers and sends nothing, when
 * it does not take what was read for it, or when it asked for so much that it is not read any more
 * (its end would not be noticed either). Two looks must see the same, so that nobody is blamed for
 * what began a moment before the first. */
static const char *stuck_why(struct session *session)
{
    struct idle_look *last = &session->last_look;
    struct idle_look now = {.held = session->credit.held_count > 0,
                            .sending = conn_queued_bytes(session->conn) > 0,
                            .unread = (session->pauses & PAUSE_MESSAGES) != 0,
                            .data_frames = session->data_frames,
                            .sent_bytes = conn_sent_bytes(session->conn)};
    const char *why = NULL;
    if (now.held && last->held && now.data_frames == last->data_frames) {
        why = "granted buffers were not used in time";
    } else if (now.sending && last->sending && now.sent_bytes == last->sent_bytes) {
        why = "what was asked for was not read in time";
    } else if (now.unread && last->unread && now.sent_bytes == last->sent_bytes) {
        why = "more was asked for at once than a connection may hold, and none of it could be "
              "answered in time";
    }
    *last = now;
    return why;
}

static void on_idle_check(struct timer *timer)
{
    struct session *session = container_of(timer, struct session, idle);
    const char *why = stuck_why(session);
    if (why) {
        session_log(session, LOG_WARN, why, NULL);
        conn_send_error(session->conn, 0, CAIRN_E_TIMED_OUT, why);
        session_close(session, false);
        return;
    }
    timer_start(timer, session->server->options.grant_idle_ms);
}

static void on_grant(struct credit_user *user, uint32_t buffers)
{
    struct session *session = container_of(user, struct session, credit);
    struct msg msg = {.type = MSG_GRANT, .u.grant = {.buffers = buffers}};
    conn_send_always(session->conn, 0, &msg);
}

static const struct conn_handler conn_events = {.on_message = on_message,
                                                .on_payload = on_payload,
                                                .on_close = on_close,
                                                .on_drained = on_drained};

static struct session *session_new(struct server *server)
{
    static const struct msg_join nobody;
    struct session *session = calloc(1, sizeof(*session));
    if (!session) {
        return NULL;
    }
    session->server = server;
    session->join = nobody;
    list_init(&session->link);
    list_init(&session->saves);
    list_init(&session->requests);
    timer_init(&session->login, server->options.loop, on_login_timeout);
    timer_init(&session->patience, server->options.loop, session_on_patience);
    timer_init(&session->idle, server->options.loop, on_idle_check);
    loop_random(server->options.loop, sizeof(session->id), &session->id);
    return session;
}

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

/* Says why, in so far as the peer takes it within the second that a closing connection has. */
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

/* Is there a place for one more connection? An eighth of the places is kept for Unix sockets, so
 * that nobody from the network can lock out the ranks and the operator of this host. Where all are
 * taken, the connection that has waited longest without a login makes room: a peer that means to
 * log in does so within milliseconds, while silent ones would hold their places for login_ms. */
static bool make_place(struct server *server, bool is_local)
{
    uint32_t most = server->options.sessions_max;
    bool is_full = server->session_count >= most;
    bool network_is_full = !is_local && server->network_count >= most - most / 8;
    if (!is_full && !network_is_full) {
        return true;
    }
    list_each (node, &server->sessions) { /* the oldest comes first */
        struct session *session = list_item(node, struct session, link);
        if (timer_is_active(&session->login) && (is_full || !session->is_local) &&
            (!network_is_full || !session->is_local)) {
            session_log(session, LOG_INFO, "closed before its login: its place is needed", NULL);
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
        refuse(server, stream, CAIRN_E_SHUTTING_DOWN, "the server is stopping");
        return;
    }
    bool is_local = stream->ops->fd_sock && stream->ops->fd_sock(stream); /* a Unix socket */
    if (!make_place(server, is_local)) {
        refuse(server, stream, CAIRN_E_BUSY,
               "the server has as many connections as [session] max allows: try again later");
        return;
    }
    struct session *session = session_new(server);
    if (!session) {
        refuse(server, stream, CAIRN_E_NO_MEMORY, "the server has no memory for a connection");
        return;
    }
    struct diag diag = DIAG_INIT;
    if (conn_new(server->options.loop, stream, &options, &conn_events, session, &session->conn,
                 &diag) != 0) {
        LOG(LOG_WARN, "session", "connection refused", ls("err", diag.text));
        free(session);
        return;
    }
    session->is_local = is_local;
    conn_peer_name(session->conn, sizeof(session->peer), session->peer);
    credit_user_init(&session->credit, &server->credit, on_grant);
    list_add_tail(&server->sessions, &session->link);
    server->session_count++;
    server->network_count += is_local ? 0 : 1;
    timer_start(&session->login, server->options.login_ms);
    timer_start(&session->idle, server->options.grant_idle_ms);
}

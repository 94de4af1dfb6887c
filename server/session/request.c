/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that every file of this folder uses, and that use none of them: the requests of a
 * session, how much a session may hold before it is not read any more, and its lines in the log.
 * Loop's thread.
 */
#include "session/session_private.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>

enum { REQUEST_SCRATCH_MAX = 16 << 20 };

/* What one session may hold before it is not read any more: requests that are not answered yet, and
 * their memory (twice the largest request). QUEUE_HIGH_BYTES bounds its replies. */
enum {
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

/* Called when a message was handled. Stops reading while the session holds too much: a peer that
 * never takes its replies would otherwise make the server keep all of them. */
void session_stop_if_full(struct session *session)
{
    struct server *server = session->server;
    if (conn_queued_bytes(session->conn) >= QUEUE_HIGH_BYTES || holds_too_many(session)) {
        session_pause(session, PAUSE_MESSAGES);
    }
    if (server->message_bytes > server->options.message_bytes_total) {
        loop_post(server->options.loop, &server->shed);
    }
}

void session_read_if_room(struct session *session)
{
    if (conn_queued_bytes(session->conn) <= QUEUE_LOW_BYTES && !holds_too_many(session)) {
        session_resume(session, PAUSE_MESSAGES);
    }
}

/* --- requests --------------------------------------------------------------------------------- */

/* Copies a message with all that it points to into the scratch: it is encoded and decoded again, so
 * no type needs a copy function of its own. */
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
                        "the server has not enough memory for this request; try again");
        return NULL;
    }
    request->session = session;
    request->server = session->server;
    request->stream = stream;
    scratch_init(&request->scratch, REQUEST_SCRATCH_MAX);
    int status = msg ? copy_msg(msg, &request->scratch, &request->msg) : 0;
    if (status != 0) {
        scratch_fini(&request->scratch);
        free(request);
        conn_send_error(session->conn, stream, status,
                        "the server has not enough memory for this request; try again");
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
    CHECK(session->request_bytes >= request->held_bytes);
    session->request_count--;
    session->request_bytes -= request->held_bytes;
    request->session = NULL;
    session_read_if_room(session);
}

void request_free(struct request *request)
{
    struct server *server = request->server;
    CHECK(server->request_count > 0);
    CHECK(server->message_bytes >= request->held_bytes);
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

struct attempt_rank session_rank(const struct session *session, uint32_t ordinal)
{
    const struct msg_join *join = &session->join;
    return (struct attempt_rank){.token = join->token,
                                 .rank = join->rank,
                                 .world_size = join->world_size,
                                 .ordinal = ordinal};
}

void request_orphan(struct request *request)
{
    CHECK(request->session != NULL);
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

void request_end(struct request *request, int status, const struct msg *reply,
                 const struct diag *diag)
{
    if (status == 0) {
        request_reply(request, reply);
    } else {
        request_error(request, status, diag);
    }
    request_free(request);
}

void request_send(struct request *request, const struct msg *reply, struct conn_out *out)
{
    struct session *session = request->session;
    CHECK(session != NULL);
    conn_send_payload(session->conn, request->stream, reply, out);
}

/* --- the server and the log ------------------------------------------------------------------- */

void server_check_stopped(struct server *server)
{
    if (server->closing && server->ingest_idle && server->session_count == 0 &&
        server->request_count == 0) {
        loop_post(server->options.loop, &server->stopped_post);
    }
}

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

/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of one connection: how it begins, when it loses its place, and what ends with it. A
 * session keeps nothing that a client could not rebuild on another connection: the durable facts
 * are in the run's record and in the store.
 */
#include "session/session_private.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>

/* Ends everything that the session holds, in an order in which no later step can hand it something
 * new. */
static void session_end(struct session *session)
{
    struct server *server = session->server;
    absent_left(session);
    timer_stop(&session->login);
    timer_stop(&session->idle);
    /* First, so that no buffer is granted to this session below. */
    credit_user_fini(&session->credit);
    if (session->receiving) {
        credit_put(&server->credit, session->receiving);
        session->receiving = NULL;
    }
    list_each_safe (node, &session->requests) {
        struct request *request = list_item(node, struct request, link);
        request->cancel(request);
    }
    CHECK(list_is_empty(&session->requests));
    CHECK(session->request_count == 0);
    CHECK(session->request_bytes == 0);
    session_drop_saves(session);
    session_free_part_left(session);
    session_end_hand_over(session);
    session_end_landing(session);
    if (session->state == SESSION_JOINED && !session->viewer) {
        run_rank_left(session->run);
    }
    if (session->run) {
        catalog_release(session->run);
    }
    CHECK(list_is_empty(&session->saves));
    CHECK(session->part_receiving == NULL);
    CHECK(server->session_count > 0);
    CHECK(session->is_local || server->network_count > 0);
    list_remove(&session->link);
    server->session_count--;
    server->network_count -= session->is_local ? 0 : 1;
    free(session);
    server_check_stopped(server);
}

void session_close(struct session *session, bool flush)
{
    conn_close(session->conn, flush);
    session_end(session);
}

void session_closed(struct session *session, int status, const struct diag *diag)
{
    bool orderly = status == CAIRN_E_ENDED;
    session_log(session, orderly ? LOG_DEBUG : LOG_WARN, "connection closed",
                orderly ? NULL : diag_text(diag, status));
    session_close(session, true);
}

static void on_login_timeout(struct timer *timer)
{
    struct session *session = container_of(timer, struct session, login);
    session_log(session, LOG_WARN, "the client did not log in in time", NULL);
    conn_send_error(session->conn, 0, CAIRN_E_TIMED_OUT, "the client did not log in in time");
    session_close(session, true);
}

/* Returns why this session should lose its connection, or NULL. Shared memory must come back. So a
 * session loses its connection, and resumes, if it holds granted buffers and sends nothing, if it
 * does not take the bytes that were read for it, or if it asked for so much that it is not read any
 * more (its end would not be noticed either). Two checks in a row must find the same, so that no
 * session is closed for something that began a moment before the first. */
static const char *stuck_why(struct session *session)
{
    struct idle_check *last = &session->last_check;
    struct idle_check now = {.held = session->credit.held_count > 0,
                             .sending = conn_queued_bytes(session->conn) > 0,
                             .unread = (session->pauses & PAUSE_MESSAGES) != 0,
                             .data_frames = session->data_frames,
                             .sent_bytes = conn_sent_bytes(session->conn)};
    const char *why = NULL;
    if (now.held && last->held && now.data_frames == last->data_frames) {
        why = "the client did not use its granted buffers in time";
    } else if (now.sending && last->sending && now.sent_bytes == last->sent_bytes) {
        why = "the client did not read its answers in time";
    } else if (now.unread && last->unread && now.sent_bytes == last->sent_bytes) {
        why = "the client asked for more at once than a connection may hold, and did not read any "
              "answer in time";
    }
    *last = now;
    return why;
}

/* Called by the timer. Closes a session that is stuck: its client neither uses the buffers it holds
 * nor reads what it has asked for. */
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

struct session *session_new(struct server *server)
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
    timer_init(&session->idle, server->options.loop, on_idle_check);
    loop_random(server->options.loop, sizeof(session->id), &session->id);
    return session;
}

void session_begin(struct session *session, bool is_local)
{
    struct server *server = session->server;
    CHECK(session->conn != NULL);
    CHECK(session->state == SESSION_NEW);
    session->is_local = is_local;
    conn_peer_name(session->conn, sizeof(session->peer), session->peer);
    credit_user_init(&session->credit, &server->credit, on_grant);
    list_add_tail(&server->sessions, &session->link);
    server->session_count++;
    server->network_count += is_local ? 0 : 1;
    timer_start(&session->login, server->options.login_ms);
    timer_start(&session->idle, server->options.grant_idle_ms);
}

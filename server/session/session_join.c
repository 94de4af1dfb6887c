/* SPDX-License-Identifier: Apache-2.0
 *
 * HELLO and JOIN: version, run, attempt and rank. One live process for each (token, rank): a second
 * one is refused while the heartbeat of the first lives. If the same writer comes again, its new
 * connection replaces the old one.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "base/log.h"
#include "session/health.h"
#include "wire/negotiate.h"

/* Less than the time that a client with other servers waits. */
enum { PATIENCE_MS = 2000 };

static void cancel_snapshot(struct request *request);
static void cancel_refresh(struct request *request);

/* Handles HELLO: agrees on version and features, and tells the client the server's limits. */
int session_on_hello(struct session *session, uint32_t stream, const struct msg *msg,
                     struct diag *diag)
{
    const struct server_options *options = &session->server->options;
    struct msg reply = {.type = MSG_WELCOME};
    struct msg_welcome *welcome = &reply.u.welcome;
    if (session->state != SESSION_NEW) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "the client sent a second HELLO");
    }
    int status = wire_negotiate(&msg->u.hello, &welcome->version, &welcome->features, diag);
    if (status != 0) {
        return status;
    }
    session_offer_hand_over(session, &welcome->features);
    session_offer_landing(session, &welcome->features);
    session->knows_capitals = (welcome->features & WIRE_FEATURE_CAPITALS) != 0;
    session->state = SESSION_GREETED;
    if (options->catalog) {
        welcome->store_uuid = catalog_store(options->catalog)->caps.uuid;
    }
    welcome->heartbeat_ms = options->heartbeat_ms;
    welcome->dead_after_ms = options->dead_after_ms;
    welcome->payload_max = options->buffer_bytes;
    welcome->message_max = LIMIT_MESSAGE_BYTES;
    welcome->agent = options->agent;
    conn_set_heartbeat(session->conn, options->heartbeat_ms, options->dead_after_ms);
    return conn_send(session->conn, stream, &reply);
}

/* --- who else is there ---------------------------------------------------------------------- */

static bool is_same_attempt(const struct session *a, const struct session *b)
{
    return a != b && a->state == SESSION_JOINED && !a->viewer && a->run == b->run &&
           token_equal(&a->join.token, &b->join.token);
}

/* Checks the ranks of the attempt that are connected. *ret_old is the older connection of the same
 * writer, if there is one. */
static int check_ranks(struct session *session, struct session **ret_old, struct diag *diag)
{
    CHECK(!session->viewer);
    const struct msg_join *join = &session->join;
    list_each (node, &session->server->sessions) {
        struct session *other = list_item(node, struct session, link);
        if (!is_same_attempt(other, session)) {
            continue;
        }
        if (other->join.world_size != join->world_size) {
            return diag_set(diag, CAIRN_E_WORLD_MISMATCH,
                            "rank %u gives the world size %u, but rank %u of the same attempt "
                            "gives %u: start all ranks with one world size",
                            join->rank, join->world_size, other->join.rank, other->join.world_size);
        }
        if (other->join.rank == join->rank && other->join.writer != join->writer) {
            return diag_set(diag, CAIRN_E_DUPLICATE_RANK,
                            "rank %u of this attempt is already connected (%s): give every process "
                            "its own rank, or wait until the other process has ended",
                            join->rank, other->peer);
        }
        if (other->join.rank == join->rank) {
            *ret_old = other;
        }
    }
    return 0;
}

/* Refuses a world size that differs from that of an earlier term of the same attempt. */
static int check_record(const struct session *session, const struct run_state *state,
                        struct diag *diag)
{
    const struct msg_join *join = &session->join;
    for (size_t i = 0; i < state->term_count; i++) {
        const struct entry_term *term = &state->terms[i].entry;
        if (token_equal(&term->token, &join->token) && term->world_size != join->world_size) {
            return diag_set(diag, CAIRN_E_WORLD_MISMATCH,
                            "rank %u has world size %u, but term %llu of this attempt was granted "
                            "for %u: a new world size needs a new attempt token",
                            join->rank, join->world_size, (unsigned long long)state->terms[i].term,
                            term->world_size);
        }
    }
    return 0;
}

/* --- JOIN --- */

/* Answers JOINED with the facts about the run that the client needs. From now on the session may
 * send payloads. */
static void joined(struct request *request, const struct run_state *state)
{
    struct session *session = request->session;
    struct catalog *catalog = session->server->options.catalog;
    const struct state_commit *latest = state_latest(state, (struct ckpt_id){0});
    struct msg reply = {.type = MSG_JOINED};
    struct msg_joined *msg = &reply.u.joined;
    CHECK(session->state == SESSION_GREETED);
    CHECK(session->run != NULL);
    msg->exists = state->exists;
    msg->run_uuid = state->info.run_uuid;
    msg->chunk_bytes =
        state->exists ? state->info.chunk_bytes : catalog_options_of(catalog)->chunk_bytes;
    msg->newest_term = state->newest_term;
    msg->latest = latest ? latest->entry.id : (struct ckpt_id){0};
    msg->object_bytes = catalog_store(catalog)->caps.object_bytes_preferred;
    session->state = SESSION_JOINED;
    if (!session->viewer) {
        absent_joined(session);
        run_rank_came(session->run);
    }
    timer_stop(&session->login);
    conn_set_limits(session->conn, LIMIT_MESSAGE_BYTES,
                    session->viewer ? 0 : session->server->options.buffer_bytes);
    session_log(session, LOG_DEBUG, session->viewer ? "viewer joined" : "rank joined", NULL);
    request_reply(request, &reply);
}

/* Called when the state of the run is known: accepts or refuses the JOIN. An older connection of
 * the same process is closed. */
static void on_snapshot(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.snapshot);
    struct session *session = request->session;
    struct session *old = NULL;
    struct diag diag = req->diag;
    int status = req->status;
    CHECK(session->joining);
    session->joining = false;
    timer_stop(&session->patience);
    if (status == 0 && !session->viewer) {
        status = check_record(session, req->state, &diag);
    }
    if (status == 0 && !session->viewer) {
        status = check_ranks(session, &old, &diag);
    }
    if (old) {
        session_log(old, LOG_INFO, "a newer connection of the same process replaces this one",
                    NULL);
        session_close(old, false);
    }
    if (status == 0) {
        joined(request, req->state);
    } else {
        session_log(session, LOG_WARN, "join refused", diag_text(&diag, status));
        request_error(request, status, &diag);
    }
    request_free(request);
}

/* Called while a JOIN waits for the record. If the store is known to refuse, the client is told
 * why. It tries again for as long as it likes, and can report the reason in the end. */
static void on_patience(struct timer *timer)
{
    struct session *session = container_of(timer, struct session, patience);
    struct health_word health;
    CHECK(session->joining);
    server_health(session->server, NULL, &health);
    if (health.word != SERVER_RED) {
        timer_start(timer, PATIENCE_MS);
        return;
    }
    struct diag diag = DIAG_INIT;
    diag_set(&diag, CAIRN_E_UNREACHABLE, "the server's store does not answer: %.300s; %.150s",
             health.text, health.remedy);
    list_each_safe (node, &session->requests) {
        struct request *request = list_item(node, struct request, link);
        if (request->cancel == cancel_snapshot || request->cancel == cancel_refresh) {
            session_log(session, LOG_WARN, "join refused", diag.text);
            request_error(request, diag.code, &diag);
            request->cancel(request);
        }
    }
}

static void cancel_snapshot(struct request *request)
{
    request->session->joining = false;
    timer_stop(&request->session->patience);
    run_snapshot_cancel(&request->u.snapshot);
    request_free(request);
}

/* --- names that differ in capitals only ------------------------------------------------------ */

/* Returns a run that is there or just being opened, and whose name collides, or NULL. */
static const struct run_name *find_collision(const struct session *session)
{
    const struct run_name *name = &session->join.run;
    list_each (node, &session->server->sessions) {
        const struct session *other = list_item(node, struct session, link);
        bool is_here = other->state == SESSION_JOINED || other->joining;
        if (other != session && is_here && !other->viewer &&
            run_name_collides(&other->join.run, name)) {
            return &other->join.run;
        }
    }
    return catalog_collision(session->server->options.catalog, name);
}

/* Reads the record of the run, with which the JOIN goes on. */
static void read_record(struct request *request)
{
    struct session *session = request->session;
    struct run *run = catalog_run(session->server->options.catalog, &session->join.run);
    if (!run) {
        session->joining = false;
        timer_stop(&session->patience);
        request_end(request, CAIRN_E_NO_MEMORY, NULL, NULL);
        return;
    }
    if (session->run) {
        catalog_release(session->run); /* the run of a JOIN that was refused */
    }
    session->run = run;
    request->cancel = cancel_snapshot;
    request->u.snapshot = (struct run_snapshot_req){.done = on_snapshot};
    run_snapshot(session->run, &request->u.snapshot);
}

/* Called when the runs of the store are known: a run that is new must not be one of them in other
 * letters. */
static void on_refreshed(struct catalog_refresh *refresh)
{
    struct request *request = container_of(refresh, struct request, u.refresh);
    struct session *session = request->session;
    struct diag diag = refresh->diag;
    int status = refresh->status;
    const struct run_name *other = status == 0 ? find_collision(session) : NULL;
    CHECK(session->joining);
    if (status == 0 && other == NULL) {
        read_record(request);
        return;
    }
    if (other) {
        struct run_name_text name = run_name_text(&session->join.run);
        bool removed = catalog_run_is_removed(session->server->options.catalog, other);
        status = diag_set(&diag, CAIRN_E_INVALID,
                          "%s cannot be opened, because the store has %s%s: names that differ in "
                          "capitals only are the same; open that one%s, or choose another name",
                          name.at, run_name_text(other).at,
                          removed ? ", which was removed and can be brought back" : "",
                          removed ? ", which begins anew" : "");
    }
    session->joining = false;
    timer_stop(&session->patience);
    session_log(session, LOG_WARN, "join refused", diag_text(&diag, status));
    request_end(request, status, NULL, &diag);
}

static void cancel_refresh(struct request *request)
{
    request->session->joining = false;
    timer_stop(&request->session->patience);
    catalog_refresh_cancel(&request->u.refresh);
    request_free(request);
}

/* Handles JOIN: notes run, attempt and rank, and reads the run's record. */
int session_on_join(struct session *session, uint32_t stream, const struct msg *msg,
                    struct diag *diag)
{
    const struct msg_join *join = &msg->u.join;
    if (session->state == SESSION_JOINED || session->joining) {
        return diag_set(diag, CAIRN_E_PROTOCOL, "the client sent a second JOIN");
    }
    if (!join->viewer && (join->world_size == 0 || join->world_size > LIMIT_WORLD_SIZE ||
                          join->rank >= join->world_size)) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "rank %u of a world of %u is not possible: the rank must be below the "
                        "world size, and that must be within the limit",
                        join->rank, join->world_size);
    }
    struct catalog *catalog = session->server->options.catalog;
    struct request *request = request_new(session, stream, msg);
    if (!request) {
        return 0;
    }
    session->join = *join;
    session_clip_label(join->label ? join->label : "", session->label);
    session->join.label = NULL;
    session->viewer = join->viewer;
    session->joining = true;
    timer_init(&session->patience, session->server->options.loop, on_patience);
    timer_start(&session->patience, PATIENCE_MS);
    if (catalog_has(catalog, &session->join.run)) {
        read_record(request);
        return 0;
    }
    request->cancel = cancel_refresh;
    request->u.refresh = (struct catalog_refresh){.done = on_refreshed};
    catalog_refresh(catalog, &request->u.refresh);
    return 0;
}

/* --- BYE -------------------------------------------------------------------------------------- */

static void on_left(struct run_req *req)
{
    request_free(container_of(req, struct request, u.run)); /* it was for advice only */
}

void session_leave(struct session *session)
{
    if (session->state != SESSION_JOINED || session->viewer || session->join.rank != 0) {
        return;
    }
    CHECK(session->run != NULL);
    struct request *request = request_new(session, 0, NULL);
    if (request) {
        request->u.run = (struct run_req){.done = on_left};
        request->u.run.event = (struct event){.kind = EVENT_LEAVE, .u.leave = session->join.token};
        run_submit(session->run, &request->u.run);
        request_orphan(request);
    }
}

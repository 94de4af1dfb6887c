/* SPDX-License-Identifier: Apache-2.0
 *
 * SCRUB, GC, REPAIR and SERVER: the maintenance of a server's store, for operators and cron. A
 * request for a pass is answered at once with the present state, and the client asks again. REPAIR
 * mends one checkpoint of the joined run, or a run's record, from copies that the server finds or
 * was configured with. A client cannot name a store, so that nobody makes a server read what that
 * client may not read.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "gc/gc.h"
#include "repair/repair.h"
#include "scrub/scrub.h"
#include "session/health.h"

#include <stdio.h>
#include <stdlib.h>

enum { USAGE_PATIENCE_MS = 3000 };

/* Fills in the reply of SCRUB. Its texts point into the scrub's findings, so it is to be sent at
 * once. */
static void tell_scrub(struct scrub *scrub, struct scratch *scratch, struct scrub_info *ret)
{
    struct scrub_status status;
    scrub_status(scrub, &status);
#define TAKE(number, kind, type, name) ret->name = status.name;
    SCRUB_INFO_FIELDS(TAKE)
#undef TAKE
    const char *holder;
    ret->waiting = !scrub_is_ours(scrub, &holder); /* now, and not when it looked last */
    ret->run = status.run;
    ret->id = status.id;
    ret->recent = scratch_array(scratch, status.recent_count + 1, sizeof(*ret->recent));
    for (uint32_t i = 0; ret->recent && i < status.recent_count; i++) {
        const struct scrub_finding *from = status.recent[i];
        ret->recent[ret->recent_count++] = (struct scrub_finding_info){.run = from->run,
                                                                       .id = from->id,
                                                                       .health = from->health,
                                                                       .wall_ns = from->wall_ns,
                                                                       .text = from->text};
    }
}

/* Fills in the reply. Its text points into the status. */
static void tell_gc(struct gc *gc, struct gc_status *status, struct gc_info *ret)
{
    gc_status(gc, status);
#define TAKE(number, kind, type, name) ret->name = status->name;
    GC_INFO_FIELDS(TAKE)
    GC_INFO_MORE_FIELDS(TAKE)
#undef TAKE
    const char *holder;
    ret->waiting = !gc_is_ours(gc, &holder);
    ret->run = status->run;
    ret->code = status->code;
    ret->text = status->text;
}

/* Refuses a pass that another daemon of a shared store runs by its own schedule. A pass that was
 * asked for here would begin only when that daemon has gone, and the client would wait as long. */
static void refuse_duty(struct session *session, uint32_t stream, const char *what,
                        const char *holder)
{
    char text[256];
    snprintf(
        text, sizeof(text),
        "another daemon of this store%s%s %s by its own schedule; send the request to that daemon",
        holder[0] != '\0' ? ", on " : "", holder, what);
    conn_send_error(session->conn, stream, CAIRN_E_BUSY, text);
}

/* Refuses maintenance that this server does not do, because it has opened the store without the
 * right to change it. */
static void refuse_maintenance(struct session *session, uint32_t stream, const char *what)
{
    struct catalog *catalog = session->server->options.catalog;
    bool read_only = catalog && catalog_store(catalog)->caps.read_only;
    char text[256];
    snprintf(text, sizeof(text), "this server does not %s%s", what,
             read_only ? ", because the store was read-only when the server started; check the "
                         "kernel's log and the disk, mount it for writing, and restart the daemon"
                       : "");
    conn_send_error(session->conn, stream, read_only ? CAIRN_E_READ_ONLY : CAIRN_E_UNSUPPORTED,
                    text);
}

/* Handles SCRUB: begins a pass if it is asked to, and answers with the state of the scrub. */
int session_on_scrub(struct session *session, uint32_t stream, const struct msg *msg,
                     struct diag *diag)
{
    struct scrub *scrub = session->server->scrub;
    struct msg reply = {.type = MSG_SCRUB_STATUS};
    struct scratch scratch;
    const char *holder;
    (void)diag;
    timer_stop(&session->login);
    if (!scrub) {
        refuse_maintenance(session, stream, "scrub its store");
        return 0;
    }
    if (msg->u.scrub.begin && !scrub_is_ours(scrub, &holder)) {
        refuse_duty(session, stream, "scrubs it", holder);
        return 0;
    }
    if (msg->u.scrub.begin && msg->u.scrub.rate != 0) {
        scrub_set_rate(scrub, msg->u.scrub.rate == SCRUB_UNLIMITED ? 0 : msg->u.scrub.rate);
    }
    if (msg->u.scrub.begin) {
        scrub_now(scrub);
    }
    scratch_init(&scratch, KIB(64));
    tell_scrub(scrub, &scratch, &reply.u.scrub_status.info);
    conn_send_always(session->conn, stream, &reply);
    scratch_fini(&scratch);
    return 0;
}

/* Checks that the named runs exist, as far as this server knows. */
static int check_runs(struct catalog *catalog, const struct msg_gc *asked, struct diag *diag)
{
    struct run_name *names = NULL;
    size_t count = 0;
    int status = catalog_names(catalog, &names, &count);
    for (uint32_t i = 0; status == 0 && i < asked->run_count; i++) {
        bool found = false;
        for (size_t j = 0; j < count && !found; j++) {
            found = run_name_equal(&asked->runs[i], &names[j]);
        }
        if (!found) {
            status = diag_set(diag, CAIRN_E_NOT_FOUND,
                              "there is no run %s on this server; `cairn ls` lists the runs",
                              run_name_text(&asked->runs[i]).at);
        }
    }
    free(names);
    return status;
}

/* Begins what GC asks for: a pass, or an order to reclaim forgotten checkpoints now. */
static int begin_gc(struct session *session, const struct msg_gc *asked, struct diag *diag)
{
    struct gc *gc = session->server->gc;
    char actor[ENTRY_ACTOR_BYTES];
    if (!asked->now) {
        return gc_now(gc, asked->dry_run)
                   ? 0
                   : diag_set(
                         diag, CAIRN_E_BUSY,
                         "a pass of garbage collection is running; ask again when it has ended");
    }
    session_actor(session, asked->actor, sizeof(actor), actor);
    struct gc_order order = {.dry_run = asked->dry_run,
                             .actor = actor,
                             .runs = asked->runs,
                             .run_count = asked->run_count};
    int status = check_runs(session->server->options.catalog, asked, diag);
    if (status == 0) {
        status = gc_reclaim_now(gc, &order);
        if (status == CAIRN_E_BUSY) {
            err_ignore(diag_set(diag, status,
                                "another pass of garbage collection is already waiting for the "
                                "running one; ask again when both have ended"));
        }
    }
    return status;
}

/* Handles GC: begins a pass if it is asked to, and answers with the state of garbage collection. */
int session_on_gc(struct session *session, uint32_t stream, const struct msg *msg,
                  struct diag *diag)
{
    struct gc *gc = session->server->gc;
    struct msg reply = {.type = MSG_GC_REPORT};
    struct gc_status status;
    struct diag why = DIAG_INIT;
    const char *holder;
    (void)diag;
    timer_stop(&session->login);
    if (!gc) {
        refuse_maintenance(session, stream, "collect garbage");
        return 0;
    }
    if (msg->u.gc.begin && !gc_is_ours(gc, &holder)) {
        refuse_duty(session, stream, "collects its garbage", holder);
        return 0;
    }
    int rc = msg->u.gc.begin ? begin_gc(session, &msg->u.gc, &why) : 0;
    if (rc != 0) {
        conn_send_error(session->conn, stream, rc, diag_text(&why, rc));
        return 0;
    }
    tell_gc(gc, &status, &reply.u.gc_report.info);
    reply.u.gc_report.info.now = reply.u.gc_report.info.now || (msg->u.gc.begin && msg->u.gc.now);
    conn_send_always(session->conn, stream, &reply);
    return 0;
}

/* --- the server ------------------------------------------------------------------------------- */

static uint32_t run_count(struct catalog *catalog)
{
    struct run_name *names = NULL;
    size_t count = 0;
    if (catalog_names(catalog, &names, &count) != 0) {
        return 0;
    }
    free(names);
    return (uint32_t)count;
}

/* Fills in the facts about the store, if there is one. */
static void tell_store(const struct server *server, const struct store_req *req,
                       struct msg_server_status *ret)
{
    struct catalog *catalog = server->options.catalog;
    const struct store_caps *caps = catalog ? &catalog_store(catalog)->caps : NULL;
    ret->store = caps ? caps->name : "none yet";
    ret->detail = "";
    if (caps) {
        ret->store_uuid = caps->uuid;
        ret->epoch = caps->epoch;
        ret->read_only = caps->read_only;
        ret->runs = run_count(catalog);
    }
    if (req && req->status == 0) {
        ret->detail = req->ret_usage.detail;
        ret->total_bytes = req->ret_usage.total_bytes;
        ret->free_bytes = req->ret_usage.free_bytes;
        ret->reserve_bytes = req->ret_usage.reserve_bytes;
        ret->records_free_bytes = max_u64(1, req->ret_usage.records_free_bytes);
        ret->read_only = req->ret_usage.read_only;
    } else if (req) {
        ret->detail = diag_text(&req->diag, req->status);
    }
}

void server_stats(const struct server *server, struct server_stats *ret)
{
    *ret = (struct server_stats){.sessions = server->session_count,
                                 .buffers_free = pool_free_count(server->credit.pool),
                                 .buffers_total = pool_count(server->credit.pool),
                                 .bytes_in = server->ingest ? ingest_bytes_in(server->ingest) : 0,
                                 .bytes_mapped =
                                     server->ingest ? ingest_bytes_mapped(server->ingest) : 0,
                                 .bytes_out = server->bytes_out,
                                 .message_bytes = server->message_bytes};
    list_each (node, &server->sessions) {
        const struct session *session = list_item(node, struct session, link);
        ret->saves_open += list_is_empty(&session->saves) ? 0 : 1;
        ret->requests += session->request_count;
        ret->buffer_waits += list_is_empty(&session->credit.link) ? 0 : 1;
    }
}

void server_health(struct server *server, const struct store_usage *usage, struct health_word *ret)
{
    struct store_state state = {.word = STORE_WELL};
    struct scrub_status scrub;
    struct gc_status gc;
    struct catalog_totals totals;
    char mirror[REPAIR_TEXT_MAX];
    struct health_facts facts = {.store = &state, .usage = usage};
    if (!server->options.catalog) {
        state.word = STORE_REFUSING;
        state.refusal = server->waits_why;
        state.since_ms = loop_now_ms(server->options.loop) - server->waits_ms;
    } else if (server->options.store_state) {
        server->options.store_state(server->options.store_user, &state);
    }
    if (server->scrub) {
        scrub_status(server->scrub, &scrub);
        facts.scrub = &scrub;
    }
    if (server->options.catalog) {
        catalog_totals(server->options.catalog, &totals);
        facts.totals = &totals;
        facts.url = store_caps_url(&catalog_store(server->options.catalog)->caps);
    }
    if (server->gc) {
        gc_status(server->gc, &gc);
        facts.gc = &gc;
    }
    if (server->repair && repair_mirror_fails(server->repair, mirror)) {
        facts.mirror = mirror;
    }
    if (server->options.config_error && server->options.config_error[0] != '\0') {
        facts.config = server->options.config_error;
    }
    health_of(&facts, ret);
}

/* Fills in the daemons of the store. What the store's record said of this one's duties is up to
 * 10 s old, and this one knows better. The texts are those of the list, so it is to be sent at
 * once. */
static void tell_peers(const struct server *server, struct scratch *scratch,
                       struct msg_server_status *ret)
{
    int64_t wall_ms = loop_wall_ns(server->options.loop) / 1000000;
    const char *holder;
    bool scrubs = server->scrub && scrub_is_ours(server->scrub, &holder);
    bool collects = server->gc && gc_is_ours(server->gc, &holder);
    ret->daemons = scratch_array(scratch, server->peer_count + 1, sizeof(*ret->daemons));
    for (size_t i = 0; ret->daemons && i < server->peer_count; i++) {
        const struct server_peer *peer = &server->peers[i];
        bool is_past = peer->seen_wall_ms > 0 && peer->seen_wall_ms < wall_ms;
        ret->daemons[ret->daemon_count++] =
            (struct daemon_info){.name = peer->name,
                                 .addresses = peer->addresses,
                                 .seen_ms = is_past ? (uint64_t)(wall_ms - peer->seen_wall_ms) : 0,
                                 .scrubs = peer->is_self ? scrubs : peer->scrubs && !scrubs,
                                 .collects = peer->is_self ? collects : peer->collects && !collects,
                                 .is_self = peer->is_self};
    }
}

/* Answers SERVER. `req` has the store's answer; NULL if it has not come. */
static void tell_server(struct request *request, const struct store_req *req)
{
    struct server *server = request->server;
    struct msg reply = {.type = MSG_SERVER_STATUS};
    struct msg_server_status *status = &reply.u.server_status;
    struct server_stats stats;
    struct gc_status collected;
    struct health_word health;
    server_stats(server, &stats);
    server_health(server, req && req->status == 0 ? &req->ret_usage : NULL, &health);
    *status = (struct msg_server_status){.agent = server->options.agent,
                                         .uptime_ms =
                                             loop_now_ms(server->options.loop) - server->begun_ms,
                                         .bytes_in = stats.bytes_in,
                                         .bytes_out = stats.bytes_out,
                                         .sessions = stats.sessions,
                                         .saves_open = stats.saves_open,
                                         .health = health.word,
                                         .health_code = health.code,
                                         .health_text = health.text,
                                         .health_remedy = health.remedy,
                                         .health_ms = health.since_ms,
                                         .wall_ns = loop_wall_ns(server->options.loop),
                                         .has_scrub = server->scrub != NULL,
                                         .has_gc = server->gc != NULL};
    tell_store(server, req, status);
    tell_peers(server, &request->scratch, status);
    if (server->scrub) {
        tell_scrub(server->scrub, &request->scratch, &status->scrub);
    }
    if (server->gc) {
        tell_gc(server->gc, &collected, &status->gc);
    }
    request_reply(request, &reply);
}

static void on_usage(struct store_req *req)
{
    struct request *request = container_of(req, struct request, u.server.store);
    timer_stop(&request->u.server.timer);
    if (request->session) {
        tell_server(request, req);
    }
    request_free(request);
}

/* Answers without the store: a store that does not answer may be the reason for the question. */
static void on_usage_late(struct timer *timer)
{
    struct request *request = container_of(timer, struct request, u.server.timer);
    CHECK(request->session != NULL);
    tell_server(request, NULL);
    request_orphan(request);
}

static void cancel_server(struct request *request)
{
    timer_stop(&request->u.server.timer);
    request_orphan(request);
}

/* Handles SERVER. The answer needs the store's usage, which is waited for no longer than
 * USAGE_PATIENCE_MS. */
int session_ask_server(struct request *request, struct diag *why)
{
    (void)why;
    struct session *session = request->session;
    struct server *server = session->server;
    timer_stop(&session->login);
    if (!server->options.catalog) {
        tell_server(request, NULL);
        request_free(request);
        return 0;
    }
    request->cancel = cancel_server;
    timer_init(&request->u.server.timer, server->options.loop, on_usage_late);
    timer_start(&request->u.server.timer, USAGE_PATIENCE_MS);
    request->u.server.store = (struct store_req){.op = STORE_USAGE, .done = on_usage};
    store_submit(catalog_store(server->options.catalog), &request->u.server.store);
    return 0;
}

/* --- repair --- */

/* Answers REPAIR with the state of the present repair, or of the last one. */
static void tell_repair(struct session *session, uint32_t stream, struct repair *repair)
{
    struct msg reply = {.type = MSG_REPAIR_STATUS};
    struct msg_repair_status *to = &reply.u.repair_status;
    struct repair_line_info lines[REPAIR_LINES_MAX];
    struct repair_status status;
    repair_status(repair, &status);
    CHECK(status.line_count <= REPAIR_LINES_MAX);
    for (uint32_t i = 0; i < status.line_count; i++) {
        lines[i] = (struct repair_line_info){.mended = status.lines[i].mended,
                                             .text = status.lines[i].text};
    }
    *to = (struct msg_repair_status){.run = status.run,
                                     .id = status.id,
                                     .running = status.running,
                                     .healed = status.healed,
                                     .code = status.code,
                                     .text = status.text,
                                     .bytes_read = status.bytes_read,
                                     .mended = status.mended,
                                     .left = status.left,
                                     .line_count = status.line_count,
                                     .lines = lines};
    conn_send_always(session->conn, stream, &reply);
}

/* Handles REPAIR: begins a repair if it is asked to, and answers with its state. */
int session_on_repair(struct session *session, uint32_t stream, const struct msg *msg,
                      struct diag *diag)
{
    struct repair *repair = session->server->repair;
    const struct msg_repair *asked = &msg->u.repair;
    struct diag why = DIAG_INIT;
    bool of_record = asked->run.project[0] != '\0';
    if (asked->begin && !of_record && session->state != SESSION_JOINED) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the client sent REPAIR of a checkpoint before JOIN");
    }
    timer_stop(&session->login);
    if (!repair) {
        refuse_maintenance(session, stream, "repair its store");
        return 0;
    }
    if (asked->begin) {
        char actor[ENTRY_ACTOR_BYTES];
        session_actor(session, asked->actor, sizeof(actor), actor);
        const struct run_name *run = of_record ? &asked->run : run_name_of(session->run);
        int status = repair_begin(repair, run, asked->id, actor, &why);
        if (status != 0) {
            conn_send_error(session->conn, stream, status, diag_text(&why, status));
            return 0;
        }
    }
    tell_repair(session, stream, repair);
    return 0;
}

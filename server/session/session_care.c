/* SPDX-License-Identifier: Apache-2.0
 *
 * SCRUB, GC and SERVER: a server's care of its store, for operators and cron. Who asks for a pass
 * is answered at once with where things stand, and asks again.
 */
#include "session/session_private.h"

#include "gc/gc.h"
#include "scrub/scrub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void tell_scrub(struct scrub *scrub, struct scratch *scratch, struct scrub_info *ret)
{
    struct scrub_status status;
    scrub_status(scrub, &status);
#define TAKE(type, name) ret->name = status.name;
    SCRUB_INFO_FIELDS(TAKE)
#undef TAKE
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

/* The text is the status's. */
static void tell_gc(struct gc *gc, struct gc_status *status, struct gc_info *ret)
{
    gc_status(gc, status);
#define TAKE(type, name) ret->name = status->name;
    GC_INFO_FIELDS(TAKE)
#undef TAKE
    ret->run = status->run;
    ret->text = status->text;
}

int session_on_scrub(struct session *session, uint32_t stream, const struct msg *msg,
                     struct diag *diag)
{
    struct scrub *scrub = session->server->scrub;
    struct msg reply = {.type = MSG_SCRUB_STATUS};
    struct scratch scratch;
    (void)diag;
    timer_stop(&session->login);
    if (!scrub) {
        conn_send_error(session->conn, stream, CAIRN_E_UNSUPPORTED,
                        "this server does not scrub its store");
        return 0;
    }
    if (msg->u.scrub.begin) {
        scrub_now(scrub, msg->u.scrub.rate);
    }
    scratch_init(&scratch, KIB(64));
    tell_scrub(scrub, &scratch, &reply.u.scrub_status.info);
    conn_send_always(session->conn, stream, &reply);
    scratch_fini(&scratch);
    return 0;
}

int session_on_gc(struct session *session, uint32_t stream, const struct msg *msg,
                  struct diag *diag)
{
    struct gc *gc = session->server->gc;
    struct msg reply = {.type = MSG_GC_REPORT};
    struct gc_status status;
    (void)diag;
    timer_stop(&session->login);
    if (!gc) {
        conn_send_error(session->conn, stream, CAIRN_E_UNSUPPORTED,
                        "this server does not collect garbage");
        return 0;
    }
    if (msg->u.gc.begin && !gc_now(gc, msg->u.gc.dry_run)) {
        conn_send_error(session->conn, stream, CAIRN_E_BUSY,
                        "garbage collection is at work; ask again when it has ended");
        return 0;
    }
    tell_gc(gc, &status, &reply.u.gc_report.info);
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

static void on_usage(struct store_req *req)
{
    struct request *request = container_of(req, struct request, u.read.store);
    struct server *server = request->server;
    struct msg reply = {.type = MSG_SERVER_STATUS};
    struct msg_server_status *status = &reply.u.server_status;
    const struct store_caps *caps = &catalog_store(server->options.catalog)->caps;
    struct server_stats stats;
    struct gc_status collected;
    server_stats(server, &stats);
    *status = (struct msg_server_status){
        .agent = server->options.agent,
        .store = caps->name,
        .detail = req->status == 0 ? req->ret_usage.detail : diag_text(&req->diag, req->status),
        .store_uuid = caps->uuid,
        .epoch = caps->epoch,
        .total_bytes = req->ret_usage.total_bytes,
        .free_bytes = req->ret_usage.free_bytes,
        .read_only = req->status == 0 ? req->ret_usage.read_only : caps->read_only,
        .uptime_ms = loop_now_ms(server->options.loop) - server->begun_ms,
        .bytes_in = stats.bytes_in,
        .bytes_out = stats.bytes_out,
        .sessions = stats.sessions,
        .saves_open = stats.saves_open,
        .runs = run_count(server->options.catalog),
        .has_scrub = server->scrub != NULL,
        .has_gc = server->gc != NULL};
    if (server->scrub) {
        tell_scrub(server->scrub, &request->scratch, &status->scrub);
    }
    if (server->gc) {
        tell_gc(server->gc, &collected, &status->gc);
    }
    request_reply(request, &reply);
    request_free(request);
}

static void cancel_server(struct request *request) { request_orphan(request); }

int session_on_server(struct session *session, uint32_t stream, const struct msg *msg,
                      struct diag *diag)
{
    (void)diag;
    timer_stop(&session->login);
    struct request *request = request_new(session, stream, msg);
    if (!request) {
        return 0;
    }
    request->cancel = cancel_server;
    request->u.read.store = (struct store_req){.op = STORE_USAGE, .done = on_usage};
    store_submit(catalog_store(session->server->options.catalog), &request->u.read.store);
    return 0;
}

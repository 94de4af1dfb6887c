/* SPDX-License-Identifier: Apache-2.0
 *
 * OPEN by rank 0 under a quota: the project's checkpoints are counted first. Over the quota, a step
 * that is already open or decided goes on, because it was admitted before; a new step is opened and
 * aborted at once with QUOTA. In this way every rank hears the reason, even one that comes later,
 * without a new message in the protocol. To refuse rank 0 alone would leave the others waiting for
 * it.
 */
#include "session/session_private.h"

#include "base/check.h"
#include "base/log.h"
#include "gc/gc.h"

#include <string.h>
#include <time.h>

static void cancel_walk(struct request *request)
{
    usage_walk_cancel(&request->u.open.usage);
    usage_walk_fini(&request->u.open.usage);
    request_free(request);
}

static void cancel_events(struct request *request)
{
    run_cancel(&request->u.open.run);
    run_cancel(&request->u.open.abort);
    run_snapshot_cancel(&request->u.open.info);
    request_free(request);
}

/* Called when the abort is decided: OPENED reports it, and WAIT tells why. */
static void on_aborted(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.open.abort);
    if (req->status != 0) {
        request_end(request, req->status, NULL, &req->diag);
        return;
    }
    enum save_state state = verdict_save(&req->verdict)->state;
    request->u.open.run.verdict.u.save.state = state;
    if (state == SAVE_ABORTED) {
        request->u.open.run.status = CAIRN_E_ABORTED;
        request->u.open.run.diag = request->u.open.refusal;
    }
    session_opened(&request->u.open.run);
}

/* Called with the opening of a step that exceeds the quota. A new opening is aborted at once,
 * unless the refusal is only for full saves and this one has a base. */
static void on_doomed(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.open.run);
    const struct verdict_save *save = verdict_save(&req->verdict);
    bool new_one = req->status == 0 && save->state == SAVE_OPEN && !save->all_sealed;
    bool fits = request->u.open.too_large_if_full && save->base.term != 0;
    if (!new_one || fits) {
        session_opened(req);
        return;
    }
    CHECK(request->u.open.refusal.code == CAIRN_E_QUOTA);
    request->u.open.abort = (struct run_req){.done = on_aborted};
    request->u.open.abort.event =
        (struct event){.kind = EVENT_ABORT,
                       .id = req->verdict.id,
                       .u.abort = {.open_id = save->open_id,
                                   .code = CAIRN_E_QUOTA,
                                   .reason = request->u.open.refusal.text}};
    run_submit(request->session->run, &request->u.open.abort);
}

/* Called when it is known whether the step was admitted before. */
static void on_found(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.open.run);
    const struct msg_open *open = &request->msg.u.open;
    if (session_found_answers(req, verdict_save(&req->verdict)->open_id == open->open_id)) {
        return;
    }
    req->event.kind = EVENT_OPEN;
    req->event.u.open.open_id = open->open_id;
    req->wait_ms = open->wait_ms;
    req->done = on_doomed;
    run_submit(request->session->run, req);
}

/* Writes when the schedule reclaims the last forgotten checkpoint of the project. */
static void tell_until(struct server *server, const char *project, size_t size, char *ret)
{
    struct project_totals totals;
    struct tm tm;
    int64_t first, last = 0;
    size_t at = 0;
    ret[0] = '\0';
    while (server->gc && catalog_next_project(server->options.catalog, &at, &totals)) {
        if (strcmp(totals.project, project) == 0) {
            gc_waits(server->gc, &totals.forgotten, &first, &last);
        }
    }
    time_t seconds = (time_t)(last / 1000000000);
    if (last == 0 || !gmtime_r(&seconds, &tm) ||
        strftime(ret, size, " until %Y-%m-%dT%H:%M:%SZ", &tm) == 0) {
        ret[0] = '\0';
    }
}

/* Tells gc that the project lacks room: under pressure its forgotten checkpoints are reclaimed, so
 * that the next save may succeed. */
static void press(struct request *request, const struct usage_walk *walk, const char *project)
{
    struct gc *gc = request->server->gc;
    if (gc && walk->total.reclaimable_bytes > 0) {
        gc_press(gc, project, request->msg.u.open.plain_bytes);
    }
}

/* Called when the project's checkpoints were counted: lets the save begin, or goes the way of a
 * refused one. */
static void on_counted(struct usage_walk *walk)
{
    struct request *request = container_of(walk, struct request, u.open.usage);
    struct session *session = request->session;
    CHECK(session != NULL); /* a cancelled walk does not come back */
    const char *project = run_name_of(session->run)->project;
    const struct quota *quota = quota_of(session->server->options.quotas, project);
    char until[48];
    struct quota_use use = {.project = project, .usage = &walk->total, .until = until};
    int status = walk->status;
    tell_until(request->server, project, sizeof(until), until);
    if (status == 0) {
        status = quota_check(quota, &use, &request->u.open.refusal);
    }
    if (status == 0) {
        status = quota_check_save(quota, &use, request->msg.u.open.plain_bytes,
                                  &request->u.open.refusal);
        request->u.open.too_large_if_full = status == CAIRN_E_QUOTA;
    }
    if (status == CAIRN_E_QUOTA) {
        press(request, walk, project);
    }
    if (walk->unreadable > 0) {
        session_log(session, LOG_WARN, "the quota does not count runs that cannot be read",
                    project);
    }
    usage_walk_fini(walk);
    request->cancel = cancel_events;
    struct run_req *run = &request->u.open.run;
    if (status != 0 && status != CAIRN_E_QUOTA) {
        request_end(request, status, NULL, NULL);
        return;
    }
    if (status == CAIRN_E_QUOTA) {
        run->event.kind = EVENT_FIND_OPEN;
        run->event.u.open.open_id = 0;
        run->wait_ms = 0;
        run->done = on_found;
    }
    run_submit(session->run, run);
}

void session_open_by_quota(struct request *request)
{
    CHECK(request->u.open.run.event.kind == EVENT_OPEN);
    CHECK(request->session->join.rank == 0);
    struct server *server = request->server;
    request->cancel = cancel_walk;
    request->u.open.refusal = (struct diag)DIAG_INIT;
    request->u.open.usage =
        (struct usage_walk){.project = run_name_of(request->session->run)->project,
                            .window = {0, loop_wall_ns(server->options.loop)},
                            .done = on_counted};
    usage_walk_start(&request->u.open.usage, server->options.catalog);
}

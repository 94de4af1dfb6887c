/* SPDX-License-Identifier: Apache-2.0
 *
 * STATUS, LIST, LOG and RUNS: answers from the record, for clients and people.
 */
#include "base/check.h"
#include "gc/gc.h"
#include "session/handlers.h"

#include <stdlib.h>
#include <string.h>

enum { LIST_ENTRIES_MAX = 500, RUNS_MAX = 4096 };

static void cancel_snapshot(struct request *request)
{
    run_snapshot_cancel(&request->u.snapshot);
    request_free(request);
}

/* Says of each forgotten checkpoint of the page until when it can be brought back. Garbage
 * collection counts that time in cycles; without it nobody can tell. */
static void tell_until(const struct session *session, const struct run_state *state,
                       struct msg_list_reply *io)
{
    for (uint32_t i = 0; session->server->gc && i < io->count; i++) {
        const struct state_commit *commit = state_commit_known(state, io->entries[i].id);
        if (commit && commit->forgotten) {
            uint64_t now = state->gc.cycle, then = commit->forgotten_cycle;
            uint64_t passed = now > then ? now - then : 0;
            struct forgotten_total one = {.count = 1, .cycles_min = passed, .cycles_max = passed};
            int64_t first;
            gc_waits(session->server->gc, &one, &first, &io->entries[i].until_wall_ns);
        }
    }
}

/* Answers LIST with one page of entries, and with the mark of a run whose record is not whole. */
static void on_list(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.snapshot);
    const struct msg_list *list = &request->msg.u.list;
    struct msg reply = {.type = MSG_LIST_REPLY};
    struct msg_list ask = *list;
    ask.limit = (uint32_t)min_u64(list->limit ? list->limit : LIST_ENTRIES_MAX, LIST_ENTRIES_MAX);
    struct diag diag = req->diag;
    char mark[DIAG_TEXT_MAX] = "";
    int status = req->status;
    if (status == 0 &&
        req->state->commit_count == 0) { /* a list must not be empty because the record was lost */
        status = state_unrecorded_check(req->state, &diag);
    }
    if (status == 0) {
        status = run_info_list(req->state, &ask, &request->scratch, &reply.u.list_reply);
    }
    if (status == 0) {
        CHECK(reply.u.list_reply.count <= ask.limit);
        tell_until(request->session, req->state, &reply.u.list_reply);
        state_mark_text(req->state, sizeof(mark), mark);
        reply.u.list_reply.mark = mark;
        request_reply(request, &reply);
    } else {
        request_error(request, status, &diag);
    }
    request_free(request);
}

/* Answers LOG with one page of what has happened to the run. */
static void on_log(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.snapshot);
    struct msg reply = {.type = MSG_LOG_REPLY};
    struct diag diag = req->diag;
    int status = req->status;
    if (status == 0 && req->state->head.seq == 0) { /* as in a list */
        status = state_unrecorded_check(req->state, &diag);
    }
    if (status == 0) {
        status = run_info_log(req->state, &request->msg.u.log, &request->scratch,
                              &reply.u.log_reply, &diag);
    }
    request_end(request, status, &reply, &diag);
}

/* Answers STATUS with the state of one save. */
static void on_status(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.snapshot);
    struct msg reply = {.type = MSG_STATUS_REPLY};
    int status = req->status;
    if (status == 0) {
        status = run_info_find(req->state, request->msg.u.status.id, &request->scratch,
                               &reply.u.status_reply.info);
    }
    request_end(request, status, &reply, &req->diag);
}

/* Asks for the run's state; `done` answers the request from it. */
static int take_snapshot(struct request *request, void (*done)(struct run_snapshot_req *))
{
    CHECK(request->session->run != NULL);
    request->cancel = cancel_snapshot;
    request->u.snapshot = (struct run_snapshot_req){.done = done};
    run_snapshot(request->session->run, &request->u.snapshot);
    return 0;
}

int session_ask_list(struct request *request, struct diag *why)
{
    (void)why;
    return take_snapshot(request, on_list);
}

int session_ask_log(struct request *request, struct diag *why)
{
    (void)why;
    return take_snapshot(request, on_log);
}

int session_ask_status(struct request *request, struct diag *why)
{
    (void)why;
    return take_snapshot(request, on_status);
}

/* Answers RUNS with the names of the runs, or of those of one project, at most RUNS_MAX. */
static void send_runs(struct request *request)
{
    const char *project = request->msg.u.runs.project;
    struct run_name *names = NULL;
    size_t count = 0, kept = 0;
    if (catalog_names(request->server->options.catalog, &names, &count) != 0) {
        request_error(request, CAIRN_E_NO_MEMORY, NULL);
        return;
    }
    for (size_t i = 0; i < count && kept < RUNS_MAX; i++) {
        bool is_meant = !project || project[0] == '\0' || strcmp(project, names[i].project) == 0;
        bool is_shown = request->msg.u.runs.removed ||
                        !catalog_run_is_removed(request->server->options.catalog, &names[i]);
        if (is_meant && is_shown && session_may_name(request->session, &names[i])) {
            names[kept++] = names[i];
        }
    }
    struct msg reply = {.type = MSG_RUNS_REPLY,
                        .u.runs_reply = {.count = (uint32_t)kept, .names = names}};
    request_reply(request, &reply);
    free(names);
}

/* Called when the runs of the store were listed again. */
static void on_refreshed(struct catalog_refresh *refresh)
{
    struct request *request = container_of(refresh, struct request, u.refresh);
    if (refresh->status != 0) {
        request_error(request, refresh->status, &refresh->diag);
    } else {
        send_runs(request);
    }
    request_free(request);
}

static void cancel_refresh(struct request *request)
{
    catalog_refresh_cancel(&request->u.refresh);
    request_free(request);
}

int session_ask_runs(struct request *request, struct diag *why)
{
    (void)why;
    struct session *session = request->session;
    timer_stop(&session->login);
    request->cancel = cancel_refresh;
    request->u.refresh = (struct catalog_refresh){.done = on_refreshed};
    catalog_refresh(session->server->options.catalog, &request->u.refresh);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * ANNOTATE: tags and metrics of a committed checkpoint. Ranks and viewers may: an evaluation or an
 * operator is no rank, and the bytes of a checkpoint do not change.
 */
#include "session/session_private.h"

static void cancel_annotate(struct request *request)
{
    run_cancel(&request->step);
    run_snapshot_cancel(&request->info);
    request_free(request);
}

static void on_annotated_info(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, info);
    struct msg reply = {.type = MSG_ANNOTATED};
    int status = req->status;
    if (status == 0) {
        status = run_info_find(req->state, request->verdict.id, &request->scratch,
                               &reply.u.annotated.info);
    }
    if (status == 0) {
        request_reply(request, &reply);
    } else {
        request_error(request, status, &req->diag);
    }
    request_free(request);
}

static void on_annotated(struct run_req *req)
{
    struct request *request = container_of(req, struct request, step);
    if (req->status != 0) {
        request_error(request, req->status, &req->diag);
        request_free(request);
        return;
    }
    request->verdict = req->verdict;
    request->info = (struct run_snapshot_req){.done = on_annotated_info};
    run_snapshot(request->session->run, &request->info);
}

int session_on_annotate(struct session *session, uint32_t stream, const struct msg *msg,
                        struct diag *diag)
{
    (void)diag;
    struct request *request = request_new(session, stream, msg);
    if (!request) {
        return 0;
    }
    const struct msg_annotate *annotate = &request->msg.u.annotate;
    request->cancel = cancel_annotate;
    request->step = (struct run_req){.done = on_annotated};
    request->step.event = (struct event){.kind = EVENT_ANNOTATE,
                                         .selector = annotate->selector,
                                         .note = {.tag_count = annotate->tag_count,
                                                  .tags = annotate->tags,
                                                  .removed_count = annotate->removed_count,
                                                  .removed = annotate->removed,
                                                  .metric_count = annotate->metric_count,
                                                  .metrics = annotate->metrics}};
    run_submit(session->run, &request->step);
    return 0;
}

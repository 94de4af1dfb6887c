/* SPDX-License-Identifier: Apache-2.0
 *
 * USAGE: what runs cost. Needs no JOIN, as RUNS.
 */
#include "session/session_private.h"

enum { ROWS_MAX = 1000 };

static void cancel_usage(struct request *request)
{
    usage_walk_cancel(&request->u.usage);
    usage_walk_fini(&request->u.usage);
    request_free(request);
}

static int copy_quotas(struct request *request, struct msg_usage_reply *reply)
{
    const struct quota_table *table = request->server->options.quotas;
    size_t count = table ? table->count : 0;
    reply->quotas = scratch_array(&request->scratch, count + 1, sizeof(*reply->quotas));
    if (!reply->quotas) {
        return CAIRN_E_NO_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        reply->quotas[i] = (struct msg_usage_quota){.project = table->quotas[i].project,
                                                    .bytes = table->quotas[i].bytes,
                                                    .checkpoints = table->quotas[i].checkpoints};
    }
    reply->quota_count = (uint32_t)count;
    return 0;
}

static void on_walked(struct usage_walk *walk)
{
    struct request *request = container_of(walk, struct request, u.usage);
    struct msg reply = {.type = MSG_USAGE_REPLY,
                        .u.usage_reply = {.count = walk->row_count,
                                          .rows = walk->rows,
                                          .more = walk->more,
                                          .now_ns = walk->window.until_ns}};
    int status = walk->status;
    if (status == 0) {
        status = copy_quotas(request, &reply.u.usage_reply);
    }
    if (status == 0) {
        request_reply(request, &reply);
    } else {
        request_error(request, status, NULL);
    }
    usage_walk_fini(walk);
    request_free(request);
}

int session_on_usage(struct session *session, uint32_t stream, const struct msg *msg,
                     struct diag *diag)
{
    (void)diag;
    struct request *request = request_new(session, stream, msg);
    timer_stop(&session->login);
    if (!request) {
        return 0;
    }
    const struct msg_usage *usage = &request->msg.u.usage;
    request->cancel = cancel_usage;
    request->u.usage = (struct usage_walk){
        .project = usage->project,
        .after = usage->after,
        .window = {usage->since_ns, loop_wall_ns(session->server->options.loop)},
        .rows_max = ROWS_MAX,
        .done = on_walked};
    usage_walk_start(&request->u.usage, session->server->options.catalog);
    return 0;
}

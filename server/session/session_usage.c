/* SPDX-License-Identifier: Apache-2.0
 *
 * USAGE reports the cost of runs, PROGRESS what ranks are bringing to open saves. Neither needs a
 * JOIN, like RUNS.
 */
#include "session/handlers.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 1000 };

static void cancel_usage(struct request *request)
{
    usage_walk_cancel(&request->u.usage);
    usage_walk_fini(&request->u.usage);
    request_free(request);
}

/* Copies the table of quotas into the reply of USAGE. Returns NO_MEMORY if there is no memory. */
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

/* Answers USAGE with the rows of the walk. */
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

/* Handles USAGE: walks through the runs behind the last one that the client has got. */
int session_ask_usage(struct request *request, struct diag *why)
{
    (void)why;
    struct session *session = request->session;
    timer_stop(&session->login);
    const struct msg_usage *usage = &request->msg.u.usage;
    request->cancel = cancel_usage;
    request->u.usage = (struct usage_walk){
        .project = usage->project,
        .after = usage->after,
        .no_capitals = !session->knows_capitals,
        .window = {usage->since_ns, loop_wall_ns(session->server->options.loop)},
        .rows_max = ROWS_MAX,
        .done = on_walked};
    usage_walk_start(&request->u.usage, session->server->options.catalog);
    return 0;
}

void server_progress(const struct server *server,
                     void (*row)(void *user, const struct ingest_row *row), void *user)
{
    if (server->ingest) {
        ingest_progress(server->ingest, row, user);
    }
}

/* --- PROGRESS ------------------------------------------------------------------------------- */

struct collecting {
    const struct session *session;
    const char *project;
    struct msg_progress_row *rows;
    uint32_t count;
    bool more;
};

/* Adds a writer to the answer of PROGRESS, at most ROWS_MAX of them. */
static void collect(void *user, const struct ingest_row *row)
{
    struct collecting *collecting = user;
    if (!session_may_name(collecting->session, row->run)) {
        return;
    }
    if (collecting->project[0] != '\0' && strcmp(collecting->project, row->run->project) != 0) {
        return;
    }
    if (collecting->count == ROWS_MAX) {
        collecting->more = true;
        return;
    }
    collecting->rows[collecting->count++] =
        (struct msg_progress_row){.run = *row->run,
                                  .id = row->id,
                                  .rank = row->rank,
                                  .received_bytes = row->received_bytes,
                                  .durable_bytes = row->durable_bytes,
                                  .age_ms = row->age_ms,
                                  .quiet_ms = row->quiet_ms,
                                  .connected = row->connected,
                                  .handed_over = row->handed_over};
}

/* Fills in the world size. Only sessions know it: any connected rank of the run gives it. */
static void add_world_size(struct session *session, struct msg_progress_row *row)
{
    const struct session *rank = server_rank_of(session->server, &row->run);
    row->world_size = rank ? rank->join.world_size : 0;
}

/* Handles PROGRESS: answers at once with what ranks are bringing to open saves. */
int session_on_progress(struct session *session, uint32_t stream, const struct msg *msg,
                        struct diag *diag)
{
    const char *project = msg->u.progress.project ? msg->u.progress.project : "";
    struct collecting collecting = {.session = session, .project = project};
    collecting.rows = calloc(ROWS_MAX, sizeof(*collecting.rows));
    if (!collecting.rows) {
        return diag_no_memory(diag, "the progress of saves");
    }
    ingest_progress(session->server->ingest, collect, &collecting);
    for (uint32_t i = 0; i < collecting.count; i++) {
        add_world_size(session, &collecting.rows[i]);
    }
    struct msg reply = {.type = MSG_PROGRESS_REPLY,
                        .u.progress_reply = {.count = collecting.count,
                                             .rows = collecting.rows,
                                             .more = collecting.more}};
    timer_stop(&session->login);
    conn_send_always(session->conn, stream, &reply);
    free(collecting.rows);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * PROGRESS: what ranks are bringing to open saves. Needs no JOIN, as RUNS.
 */
#include "session/session_private.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 1000 };

struct collecting {
    const char *project;
    struct msg_progress_row *rows;
    uint32_t count;
    bool more;
};

static void collect(void *user, const struct ingest_row *row)
{
    struct collecting *collecting = user;
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

/* The world size is a session's to know: any rank of the run that is connected says it. */
static void add_world_size(struct session *session, struct msg_progress_row *row)
{
    list_each (node, &session->server->sessions) {
        const struct session *other = list_item(node, struct session, link);
        if (other->state == SESSION_JOINED && !other->viewer &&
            run_name_equal(&other->join.run, &row->run)) {
            row->world_size = other->join.world_size;
            return;
        }
    }
}

int session_on_progress(struct session *session, uint32_t stream, const struct msg *msg,
                        struct diag *diag)
{
    struct collecting collecting = {.project =
                                        msg->u.progress.project ? msg->u.progress.project : ""};
    collecting.rows = calloc(ROWS_MAX, sizeof(*collecting.rows));
    if (!collecting.rows) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the progress of saves");
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

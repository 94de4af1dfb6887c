/* SPDX-License-Identifier: Apache-2.0
 *
 * REPAIR: one checkpoint of the joined run is put right from copies that the server finds, or was
 * configured with: a client names no store, so that nobody makes a server read what he may not.
 * Answered at once; who waits asks again.
 */
#include "session/session_private.h"

#include "repair/repair.h"

static void tell(struct session *session, uint32_t stream, struct repair *repair)
{
    struct msg reply = {.type = MSG_REPAIR_STATUS};
    struct msg_repair_status *to = &reply.u.repair_status;
    struct repair_line_info lines[REPAIR_LINES_MAX];
    struct repair_status status;
    repair_status(repair, &status);
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

int session_on_repair(struct session *session, uint32_t stream, const struct msg *msg,
                      struct diag *diag)
{
    struct repair *repair = session->server->repair;
    const struct msg_repair *asked = &msg->u.repair;
    struct diag why = DIAG_INIT;
    (void)diag;
    if (!repair) {
        conn_send_error(session->conn, stream, CAIRN_E_UNSUPPORTED,
                        "this server does not repair its store");
        return 0;
    }
    if (asked->begin) {
        int status = repair_begin(repair, run_name_of(session->run), asked->id, asked->actor, &why);
        if (status != 0) {
            conn_send_error(session->conn, stream, status, diag_text(&why, status));
            return 0;
        }
    }
    tell(session, stream, repair);
    return 0;
}

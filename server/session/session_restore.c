/* SPDX-License-Identifier: Apache-2.0
 *
 * Restore: RESTORE and REPORT use the group's session in the run's record (a viewer only resolves a
 * selector); FETCH, PLAN and READ deliver the bytes. Reads take their buffers from the same budget
 * and in the same rotation as saves.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "base/log.h"
#include "run/run_counts.h"

#include <stdlib.h>
#include <string.h>

/* --- which checkpoint ----------------------------------------------------------------------- */

/* Logs that the restore can only use what a damaged record still knows. Logged once for all
 * ranks. */
static void warn_of_loss(const struct session *session, const struct run_state *state)
{
    char text[DIAG_TEXT_MAX];
    if (state_is_marked(state) && (session->viewer || session->join.rank == 0)) {
        state_mark_text(state, sizeof(text), text);
        LOG(LOG_WARN, "session", "a restore uses a record that is not whole",
            ls("run", run_name_text(run_name_of(session->run)).at), ls("err", text));
    }
}

/* Answers RESTORE with the checkpoint that was chosen, after adding the facts about it. The answer
 * also says so if a newer checkpoint may exist that a damaged record does not know. */
static void reply_resolved(struct request *request, const struct run_state *state,
                           struct msg_resolved resolved)
{
    warn_of_loss(request->session, state);
    bool asks_newest = request->msg.u.restore.selector.kind == SELECT_LATEST;
    resolved.fell_back =
        resolved.fell_back || (asks_newest && state_may_lack_newer(state, resolved.id));
    int status = run_info_find(state, resolved.id, &request->scratch, &resolved.info);
    struct msg reply = {.type = MSG_RESOLVED, .u.resolved = resolved};
    if (status == 0) {
        request_reply(request, &reply);
    } else {
        request_error(request, status, NULL);
    }
}

/* Counts a restore by all ranks, of which rank 0's session tells when it began and ended. A session
 * that came in between, after a lost connection, counts nothing. */
static void count_restore(struct session *session, const struct verdict_restore *restore)
{
    bool is_over = restore->done || restore->code != 0;
    if (restore->done && session->restore.begun_ms != 0) {
        run_took(session->run, PHASE_RESTORE,
                 loop_now_ms(session->server->options.loop) - session->restore.begun_ms);
    }
    session->restore.begun_ms = is_over ? 0 : session->restore.begun_ms;
}

/* Answers REPORT with the state of the restore session. */
static void reply_verdict(struct request *request, const struct run_state *state)
{
    CHECK(request->session != NULL);
    const struct verdict *verdict = &request->u.restore.run.verdict;
    const struct verdict_restore *restore = verdict_restore(verdict);
    struct msg reply = {.type = MSG_VERDICT};
    struct msg_verdict *msg = &reply.u.verdict;
    count_restore(request->session, restore);
    *msg = (struct msg_verdict){.done = restore->done,
                                .fell_back = restore->fell_back,
                                .code = restore->code,
                                .text = restore->failed ? verdict->diag.text : "",
                                .id = verdict->id,
                                .try_count = restore->try_count,
                                .newest_term = verdict->newest_term};
    int status = run_info_find(state, verdict->id, &request->scratch, &msg->info);
    if (status == 0) {
        request_reply(request, &reply);
    } else {
        request_error(request, status, NULL);
    }
}

/* Called with the run's state, from which the answer is made. */
static void on_info(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.restore.info);
    if (req->status != 0) {
        request_error(request, req->status, &req->diag);
    } else if (request->msg.type == MSG_RESTORE) {
        const struct verdict_restore *restore = verdict_restore(&request->u.restore.run.verdict);
        reply_resolved(
            request, req->state,
            (struct msg_resolved){.empty = restore->empty,
                                  .fell_back = restore->fell_back,
                                  .id = request->u.restore.run.verdict.id,
                                  .try_count = restore->try_count,
                                  .newest_term = request->u.restore.run.verdict.newest_term});
    } else {
        reply_verdict(request, req->state);
    }
    request_free(request);
}

static void add_info(struct request *request)
{
    request->u.restore.info = (struct run_snapshot_req){.done = on_info};
    run_snapshot(request->session->run, &request->u.restore.info);
}

static void cancel_steps(struct request *request)
{
    run_cancel(&request->u.restore.run);
    run_snapshot_cancel(&request->u.restore.info);
    request_free(request);
}

/* Called when the session has chosen a checkpoint, or has a report in its record; the answer needs
 * the facts about the checkpoint. A rank that comes when another one has failed is answered the
 * same: it counts this restore as the others do, and the answer to its report says that it has
 * failed. */
static void on_decided(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.restore.run);
    if (req->status != 0) {
        request_end(request, req->status, NULL, &req->diag);
        return;
    }
    add_info(request);
}

/* Resolves a viewer's selector. This makes no session and writes nothing. */
static void on_viewed(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.restore.info);
    const struct state_commit *commit = NULL;
    struct diag diag = req->diag;
    int status = req->status;
    bool empty = false;
    if (status == 0 && request->msg.u.restore.selector.kind == SELECT_LATEST) {
        commit = state_latest(req->state, (struct ckpt_id){0});
        /* A job may have begun anew under the name of a removed run. */
        empty = req->state->commit_count == 0 || (req->state->removal && !req->state->removed);
        if (empty) {
            status = state_unrecorded_check(req->state, &diag);
        }
        if (!commit && req->state->removed) {
            status = state_removed_error(req->state, &diag);
        } else if (!commit && !empty) {
            status = diag_set(&diag, CAIRN_E_DAMAGED,
                              "every checkpoint on the lineage is damaged or forgotten; `cairn ls "
                              "RUN --all` shows the superseded ones");
        }
    } else if (status == 0) {
        status = state_select(req->state, &request->msg.u.restore.selector, &commit, &diag);
    }
    if (status != 0) {
        request_error(request, status, &diag);
    } else {
        reply_resolved(request, req->state,
                       (struct msg_resolved){.empty = empty,
                                             .id = commit ? commit->entry.id : (struct ckpt_id){0},
                                             .newest_term = req->state->newest_term});
    }
    request_free(request);
}

/* Handles RESTORE: a rank joins the session of its attempt, and a viewer only resolves the
 * selector. */
int session_ask_restore(struct request *request, struct diag *why)
{
    (void)why;
    struct session *session = request->session;
    const struct msg_restore *restore = &request->msg.u.restore;
    request->cancel = cancel_steps;
    if (session->viewer) {
        request->u.restore.info = (struct run_snapshot_req){.done = on_viewed};
        run_snapshot(session->run, &request->u.restore.info);
        return 0;
    }
    if (session->join.rank == 0 &&
        (session->restore.begun_ms == 0 || session->restore.ordinal != restore->ordinal)) {
        session->restore.ordinal = restore->ordinal;
        session->restore.begun_ms = loop_now_ms(session->server->options.loop);
    }
    request->u.restore.run = (struct run_req){.done = on_decided, .wait_ms = restore->wait_ms};
    request->u.restore.run.event =
        (struct event){.kind = EVENT_RESTORE_BEGIN,
                       .u.begin = {.from = session_rank(session, restore->ordinal),
                                   .selector = restore->selector,
                                   .allow_older = restore->allow_older}};
    run_submit(session->run, &request->u.restore.run);
    return 0;
}

/* --- REPORT --- */

/* Called when the state is known: finds the checkpoint that the reported try was about, because the
 * message holds only the number of the try. */
static void on_report_try(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.restore.info);
    struct session *session = request->session;
    const struct msg_report *report = &request->msg.u.report;
    const struct state_restore *restore =
        req->status == 0 ? state_restore_find(req->state, &session->join.token, report->ordinal)
                         : NULL;
    if (!restore) {
        struct diag diag = req->diag;
        int status =
            req->status != 0
                ? req->status
                : diag_set(&diag, CAIRN_E_NOT_FOUND,
                           "the client reports on a restore that this session has not begun");
        request_end(request, status, NULL, &diag);
        return;
    }
    bool current = restore->entry.try_count == report->try_count;
    request->u.restore.run = (struct run_req){.done = on_decided, .wait_ms = report->wait_ms};
    request->u.restore.run.event =
        (struct event){.kind = EVENT_RESTORE_REPORT,
                       .id = current ? restore->entry.id : (struct ckpt_id){0},
                       .u.report = {.from = session_rank(session, report->ordinal),
                                    .code = report->code,
                                    .reason = report->reason,
                                    .actor = session_actor_copy(request, session->label)}};
    run_submit(session->run, &request->u.restore.run);
}

/* Handles REPORT. The try that the session has reached is read before. */
int session_ask_report(struct request *request, struct diag *why)
{
    (void)why;
    request->cancel = cancel_steps;
    request->u.restore.info = (struct run_snapshot_req){.done = on_report_try};
    run_snapshot(request->session->run, &request->u.restore.info);
    return 0;
}

/* --- FETCH --- */

enum { PIECE_BYTES = 1 << 20 };

/* A reply whose bytes are sent in several frames, one at a time. */
static void send_piece(struct request *request);

static const uint8_t *piece_data(const struct request *request, uint64_t *ret_total)
{
    if (request->msg.type == MSG_FETCH) {
        *ret_total = request->u.fetch.bytes;
        return request->u.fetch.data;
    }
    *ret_total = request->u.plan.read_count * PLAN_READ_BYTES;
    return request->pieces.memory;
}

static void pieces_release(struct request *request)
{
    if (request->msg.type == MSG_FETCH) {
        run_fetch_release(&request->u.fetch);
    } else {
        free(request->u.plan.reads);
        free(request->pieces.memory);
    }
}

static void pieces_free(struct request *request)
{
    pieces_release(request);
    request_free(request);
}

/* Called when a piece of the answer has been sent: sends the next one, until all of it is sent. */
static void piece_sent(struct conn_out *out, int status)
{
    struct request *request = container_of(out, struct request, pieces.out);
    uint64_t total;
    (void)piece_data(request, &total);
    CHECK(request->pieces.sending);
    request->pieces.sending = false;
    if (status != 0 || !request->session || request->pieces.at >= total) {
        pieces_free(request);
        return;
    }
    send_piece(request);
}

/* Sends the next piece of the reply. piece_sent() continues with the one after it. */
static void send_piece(struct request *request)
{
    uint64_t total;
    const uint8_t *data = piece_data(request, &total);
    CHECK(!request->pieces.sending);
    CHECK(request->pieces.at <= total);
    uint64_t bytes = min_u64(PIECE_BYTES, total - request->pieces.at);
    struct msg reply = {.type = MSG_BYTES,
                        .u.bytes = {.offset = request->pieces.at, .total_bytes = total}};
    if (request->msg.type == MSG_PLAN) {
        reply = (struct msg){.type = MSG_PLAN_REPLY};
        reply.u.plan_reply =
            (struct msg_plan_reply){.record_count = (uint32_t)(bytes / PLAN_READ_BYTES),
                                    .last = request->pieces.at + bytes == total};
    }
    struct conn_out *out = &request->pieces.out;
    *out = (struct conn_out){.iov_count = 1, .done = piece_sent};
    out->iov[0] = (struct iovec){.iov_base = (void *)(uintptr_t)(data + request->pieces.at),
                                 .iov_len = bytes};
    request->pieces.at += bytes;
    request->pieces.sending = true;
    request->server->bytes_out += bytes;
    request_send(request, &reply, out);
}

/* Called when the session ends before all of the answer is sent. */
static void cancel_pieces(struct request *request)
{
    if (request->pieces.sending) {
        request_orphan(request); /* piece_sent() comes with CLOSED */
        return;
    }
    if (request->msg.type == MSG_PLAN) {
        run_plan_cancel(&request->u.plan);
    }
    pieces_free(request);
}

static void on_marked(struct run_req *req)
{
    /* Even if the record could not be written: the next reader finds the damage again. */
    request_free(container_of(req, struct request, u.run));
}

/* Answers a request with an error. Damage that this server has found itself is put into the record,
 * so that `latest` means an older checkpoint from now on. The request lives on for that, without
 * its session. */
static void fail_and_mark(struct request *request, int status, const struct diag *diag)
{
    CHECK(status != 0);
    request_error(request, status, diag);
    if (status != CAIRN_E_DAMAGED || !request->session) {
        request_free(request);
        return;
    }
    struct run *run = request->session->run;
    char *reason =
        scratch_string(&request->scratch, strlen(diag_text(diag, status)), diag_text(diag, status));
    request_orphan(request);
    request->u.run = (struct run_req){.done = on_marked};
    request->u.run.event = (struct event){
        .kind = EVENT_HEALTH,
        .id = request->msg.type == MSG_FETCH ? request->msg.u.fetch.id : request->msg.u.plan.id,
        .u.health = {.health = HEALTH_DAMAGED, .reason = reason ? reason : ""}};
    run_submit(run, &request->u.run);
}

/* Called when the document was read. A damaged one also marks its checkpoint as damaged. */
static void on_fetched(struct fetch_req *req)
{
    struct request *request = container_of(req, struct request, u.fetch);
    if (req->status != 0) {
        pieces_release(request);
        fail_and_mark(request, req->status, &req->diag);
        return;
    }
    send_piece(request);
}

/* Handles FETCH: sends a manifest, page or part. */
int session_ask_fetch(struct request *request, struct diag *why)
{
    (void)why;
    struct session *session = request->session;
    const struct msg_fetch *fetch = &request->msg.u.fetch;
    request->cancel = cancel_pieces;
    request->u.fetch = (struct fetch_req){.id = fetch->id,
                                          .kind = (enum store_kind)fetch->kind,
                                          .number = fetch->number,
                                          /* `cairn verify` wants no cached bytes. */
                                          .fresh = session->viewer,
                                          .done = on_fetched};
    run_fetch(session->run, &request->u.fetch);
    return 0;
}

/* --- PLAN --- */

/* Encodes the plan and starts to send it. */
static void on_planned(struct plan_req *req)
{
    struct request *request = container_of(req, struct request, u.plan);
    int status = req->status;
    if (status == 0) {
        request->pieces.memory = malloc(req->read_count * PLAN_READ_BYTES + 1);
        status = request->pieces.memory ? 0 : CAIRN_E_NO_MEMORY;
    }
    if (status != 0) {
        pieces_release(request);
        fail_and_mark(request, status, &req->diag);
        return;
    }
    for (size_t i = 0; i < req->read_count; i++) {
        plan_read_encode(&req->reads[i], request->pieces.memory + i * PLAN_READ_BYTES);
    }
    send_piece(request);
}

/* Handles PLAN: finds the chunks that make up the wanted boxes and blobs. */
int session_ask_plan(struct request *request, struct diag *why)
{
    (void)why;
    const struct msg_plan *plan = &request->msg.u.plan;
    request->cancel = cancel_pieces;
    request->u.plan = (struct plan_req){
        .id = plan->id, .want_count = plan->want_count, .wants = plan->wants, .done = on_planned};
    run_plan(request->session->run, &request->u.plan);
    return 0;
}

/* --- READ --- */

static void read_free(struct request *request)
{
    if (request->u.read.buffer) {
        credit_read_put(&request->server->credit,
                        request->session ? &request->session->credit : NULL,
                        request->u.read.buffer);
    }
    request_free(request);
}

static void read_sent(struct conn_out *out, int status)
{
    struct request *request = container_of(out, struct request, u.read.out);
    (void)status; /* after a lost connection the client asks again on the next one */
    read_free(request);
}

/* Called when the bytes were read: sends them. The buffer is given back when the socket has taken
 * them. */
static void on_read(struct store_req *req)
{
    struct request *request = container_of(req, struct request, u.read.store);
    const struct msg_read *read = &request->msg.u.read;
    CHECK(request->u.read.running);
    request->u.read.running = false;
    if (req->status != 0 || !request->session) {
        request_error(request, req->status, &req->diag);
        read_free(request);
        return;
    }
    struct msg reply = {.type = MSG_READ_REPLY, .u.read_reply = {.bytes = read->bytes}};
    struct conn_out *out = &request->u.read.out;
    *out = (struct conn_out){.iov_count = 1, .done = read_sent};
    out->iov[0] = (struct iovec){.iov_base = request->u.read.buffer, .iov_len = read->bytes};
    request->u.read.running = true;
    request->server->bytes_out += read->bytes;
    request_send(request, &reply, out);
}

void session_read(struct request *request, void *data, void (*done)(struct store_req *req))
{
    const struct msg_read *read = &request->msg.u.read;
    request->u.read.store = (struct store_req){.op = STORE_READ,
                                               .done = done,
                                               .run = *run_name_of(request->session->run),
                                               .object = read->object,
                                               .offset = read->offset,
                                               .bytes = read->bytes,
                                               .to_end = read->to_end,
                                               .data = data};
    store_submit(catalog_store(request->server->options.catalog), &request->u.read.store);
}

/* Called with a buffer of the budget: reads the bytes from the store. */
static void on_buffer(struct credit_read *credit, void *buffer)
{
    struct request *request = container_of(credit, struct request, u.read.credit);
    CHECK(buffer != NULL);
    CHECK(!request->u.read.running);
    CHECK(request->session != NULL);
    CHECK(request->msg.u.read.bytes <= request->server->options.buffer_bytes);
    request->u.read.buffer = buffer;
    request->u.read.running = true;
    session_read(request, buffer, on_read);
}

static void cancel_read(struct request *request)
{
    if (request->u.read.running) {
        request_orphan(request);
        return;
    }
    list_remove(&request->u.read.credit.link);
    read_free(request);
}

/* Handles READ: into the client's own memory if it names a landing, and otherwise through a buffer
 * of the budget. */
int session_on_read(struct session *session, uint32_t stream, const struct msg *msg,
                    struct diag *diag)
{
    const struct msg_read *read = &msg->u.read;
    if (read->bytes == 0 || read->bytes > session->server->options.buffer_bytes) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the client sent READ of %u bytes, which is outside the limits",
                        read->bytes);
    }
    struct request *request = request_new(session, stream, msg);
    if (request && read->landing_id != 0) {
        return session_read_landing(request, diag);
    }
    if (request) {
        request->cancel = cancel_read;
        list_init(&request->u.read.credit.link);
        credit_read(&session->credit, &request->u.read.credit, on_buffer);
    }
    return 0;
}

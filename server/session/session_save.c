/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's part in a save: OPEN, credit, payloads, objects, WAIT, ABORT. The commit core decides
 * and ingest stores; this file turns frames into calls to them.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "base/log.h"
#include "base/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAVES_PER_SESSION_MAX = 64 };

struct session_save *session_find_save(struct session *session, struct ckpt_id id)
{
    list_each (node, &session->saves) {
        struct session_save *save = list_item(node, struct session_save, link);
        if (ckpt_id_equal(save->id, id)) {
            return save;
        }
    }
    return NULL;
}

struct session_save *session_save_to_seal(struct session *session, uint32_t stream,
                                          struct ckpt_id id, uint64_t open_id)
{
    struct session_save *save = session_find_save(session, id);
    if (!save || save->open_id != open_id || writer_is_over(save->writer)) {
        conn_send_error(session->conn, stream, CAIRN_E_ABORTED,
                        "the save is not open on this server; save again");
        return NULL;
    }
    /* If the part was refused, this was on its way then, and the refusal was the answer. */
    return save->part_refused ? NULL : save;
}

void session_free_part(struct session_save *save)
{
    struct session *session = save->session;
    if (save->part && session->part_receiving == save) {
        /* The connection is still writing into it: it is freed when the frame or the session
         * ends. */
        session->part_receiving = NULL;
        CHECK(session->part_left == NULL);
        session->part_left = save->part;
        session->part_left_bytes = save->part_bytes;
    } else if (save->part) {
        CHECK(session->server->part_bytes_used >= save->part_bytes);
        session->server->part_bytes_used -= save->part_bytes;
        free(save->part);
    }
    save->part = NULL;
}

static void drop_save(struct session_save *save)
{
    list_remove(&save->link);
    session_free_part(save);
    writer_detach(save->writer, save);
    agree_drop(save->agree);
    free(save);
}

void session_drop_saves(struct session *session)
{
    list_each_safe (node, &session->saves) {
        drop_save(list_item(node, struct session_save, link));
    }
}

void session_reap_saves(struct session *session)
{
    list_each_safe (node, &session->saves) {
        struct session_save *save = list_item(node, struct session_save, link);
        if (writer_is_over(save->writer)) {
            drop_save(save);
        }
    }
}

/* --- the outcome of objects ----------------------------------------------------------------- */

static void on_durable(void *user, uint32_t stream, const struct object_id *id)
{
    struct session_save *save = user;
    struct msg msg = {.type = MSG_OBJECT_DURABLE, .u.object_durable = {.object = *id}};
    conn_send_always(save->session->conn, stream, &msg);
}

static void on_failed(void *user, uint32_t stream, const struct object_id *id, int code,
                      const char *text)
{
    struct session_save *save = user;
    LOG(LOG_WARN, "session", "object refused", lu("term", id->term), lu("step", id->step),
        lu("rank", id->rank), lu("sequence", id->sequence), ls("err", text));
    conn_send_error(save->session->conn, stream, code, text);
}

static const struct writer_events writer_events = {.on_durable = on_durable,
                                                   .on_failed = on_failed};

/* --- OPEN --- */

/* Returns the trace id that rank 0 has asked for with OPEN, or NULL. */
static const char *trace_asked(const struct request *request)
{
    return trace_of(request->msg.u.open.tag_count, request->msg.u.open.tags);
}

/* Attaches the session to the save with a writer, unless it is attached already. Returns BUSY if
 * the session takes part in too many saves. */
static int add_save(const struct request *request)
{
    struct session *session = request->session;
    const struct ckpt_id id = request->u.open.run.verdict.id;
    const struct verdict_save *opening = verdict_save(&request->u.open.run.verdict);
    const uint64_t open_id = opening->open_id;
    struct session_save *save = session_find_save(session, id);
    if (save && save->open_id == open_id) {
        return 0;
    }
    if (save) {
        drop_save(save);
    }
    CHECK(id.term > 0);
    CHECK(open_id != 0);
    struct writer_key key = {.run = session->run,
                             .id = id,
                             .open_id = open_id,
                             .writer = session->join.writer,
                             .rank = session->join.rank};
    const char *trace = trace_asked(request);
    snprintf(key.trace, sizeof(key.trace), "%s", trace ? trace : "");
    session_reap_saves(session);
    size_t count = 0;
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): what was freed is not in the list any more */
    list_each (node, &session->saves) {
        count++;
    }
    if (count >= SAVES_PER_SESSION_MAX) {
        return CAIRN_E_BUSY;
    }
    save = calloc(1, sizeof(*save));
    if (!save) {
        return CAIRN_E_NO_MEMORY;
    }
    *save = (struct session_save){
        .session = session, .id = id, .open_id = open_id, .base = opening->base};
    list_init(&save->link);
    int status = ingest_attach(session->server->ingest, &key, &writer_events, save, &save->writer);
    if (status != 0) {
        free(save);
        return status;
    }
    list_add_tail(&session->saves, &save->link);
    if (!opening->sealed) {
        run_enter_rank(session->run, id, open_id, key.rank);
    }
    return 0;
}

/* Answers OPEN with the base. A base that cannot be read is not used: the client sends everything,
 * the save goes on, and the readers of that checkpoint will find what is wrong with it. A client
 * that was told the base on an earlier connection may still refer to it, so SEAL tries to read it
 * once more. */
static void on_base(struct base_req *req)
{
    struct request *request = container_of(req, struct request, u.open.base);
    struct session *session = request->session;
    struct msg reply = {.type = MSG_OPENED, .u.opened = request->u.open.opened};
    if (req->status == 0) {
        reply.u.opened.base = req->id;
        reply.u.opened.sparse_count = req->sparse_count;
        reply.u.opened.sparse = (struct object_id *)(uintptr_t)req->sparse;
    } else {
        struct session_save *save = session_find_save(session, request->u.open.opened.id);
        /* NOT_FOUND: the world of the base had no such rank. */
        session_log(session, req->status == CAIRN_E_NOT_FOUND ? LOG_DEBUG : LOG_WARN,
                    "the rank has no base to refer to and sends everything",
                    diag_text(&req->diag, req->status));
        if (save && req->status == CAIRN_E_NOT_FOUND) {
            save->base = (struct ckpt_id){0};
        }
    }
    request_end(request, 0, &reply, NULL);
}

static void cancel_base(struct request *request)
{
    run_base_cancel(&request->u.open.base);
    request_free(request);
}

static void reply_with_base(struct request *request, const struct msg_opened *opened)
{
    request->u.open.opened = *opened;
    request->cancel = cancel_base;
    request->u.open.base = (struct base_req){.id = verdict_save(&request->u.open.run.verdict)->base,
                                             .rank = request->session->join.rank,
                                             .done = on_base};
    run_base(request->session->run, &request->u.open.base);
}

/* Answers OPENED with the state of the save and the facts about the run. If the save has a base,
 * its part is read first. */
static void on_open_info(struct run_snapshot_req *req)
{
    struct request *request = container_of(req, struct request, u.open.info);
    const struct verdict *verdict = &request->u.open.run.verdict;
    const struct verdict_save *save = verdict_save(verdict);
    int status = req->status;
    CHECK(request->session != NULL);
    if (status == 0 && save->state == SAVE_OPEN) {
        status = add_save(request);
    }
    if (status != 0) {
        request_end(request, status, NULL, &req->diag);
        return;
    }
    struct msg reply = {.type = MSG_OPENED};
    reply.u.opened = (struct msg_opened){.id = verdict->id,
                                         .open_id = save->open_id,
                                         .state = save->state,
                                         .sealed = save->sealed,
                                         .new_term = save->new_term,
                                         .new_lineage = save->new_lineage,
                                         .seq = save->seq,
                                         .deadline_ms = save->deadline_ms,
                                         .chunk_bytes = req->state->info.chunk_bytes,
                                         .run_uuid = req->state->info.run_uuid};
    if (save->state == SAVE_OPEN && !save->sealed && save->base.term != 0) {
        reply_with_base(request, &reply.u.opened);
        return;
    }
    request_end(request, 0, &reply, NULL);
}

static void cancel_open(struct request *request)
{
    run_cancel(&request->u.open.run);
    run_snapshot_cancel(&request->u.open.info);
    request_free(request);
}

/* Logs the opening, with a warning if a new lineage begins beside existing checkpoints. */
static void log_opened(const struct request *request, const struct verdict *verdict)
{
    struct run_name_text name = run_name_text(run_name_of(request->session->run));
    const struct verdict_save *save = verdict_save(verdict);
    if (save->new_lineage) {
        LOG(LOG_WARN, "session",
            "this attempt restored none of the run's checkpoints, so a new lineage begins beside "
            "them",
            ls("run", name.at), lu("term", verdict->id.term), lu("step", verdict->id.step),
            lu("rank", request->session->join.rank), ls("trace", trace_asked(request)));
    }
    LOG(LOG_INFO, "session", save->new_term ? "save opened, new term" : "save opened",
        ls("run", name.at), lu("term", verdict->id.term), lu("step", verdict->id.step),
        lu("rank", request->session->join.rank), ls("trace", trace_asked(request)));
}

void session_opened(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.open.run);
    /* If the save was aborted before this rank came, OPENED reports it, and WAIT tells why. */
    bool aborted =
        req->status == CAIRN_E_ABORTED && verdict_save(&req->verdict)->state == SAVE_ABORTED;
    if (req->status != 0) {
        session_log(request->session, LOG_WARN, "save not opened",
                    diag_text(&req->diag, req->status));
    }
    if (req->status != 0 && !aborted) {
        request_end(request, req->status, NULL, &req->diag);
        return;
    }
    if (request->session->join.rank == 0 && !aborted) {
        log_opened(request, &req->verdict);
    }
    request->u.open.info = (struct run_snapshot_req){.done = on_open_info, .any_age = true};
    run_snapshot(request->session->run, &request->u.open.info);
}

bool session_found_answers(struct run_req *found, bool own)
{
    bool told = found->status == 0 || found->status == CAIRN_E_ABORTED;
    bool answers = (told && own) || found->status == CAIRN_E_FENCED;
    if (answers) {
        session_opened(found);
    }
    return answers;
}

/* Answers OPEN while the server stops: only an existing opening is answered, and to rank 0 only its
 * own. */
static void on_found(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.open.run);
    uint64_t open_id = request->msg.u.open.open_id;
    if (session_found_answers(req, request->session->join.rank != 0 ||
                                       verdict_save(&req->verdict)->open_id == open_id)) {
        return;
    }
    struct diag diag = DIAG_INIT;
    int status = diag_set(&diag, CAIRN_E_SHUTTING_DOWN,
                          "the server is stopping and opens no new save; try again, or connect to "
                          "another server of the same store");
    request_end(request, status, NULL, &diag);
}

/* Fills in the open entry from the message, with tags and metrics in the form of the entry. */
static int fill_open(struct request *request, struct entry_open *open)
{
    const struct msg_open *msg = &request->msg.u.open;
    open->deadline_ms = msg->deadline_ms;
    open->metadata_bytes = msg->metadata_bytes;
    open->metadata = msg->metadata;
    open->tag_count = msg->tag_count;
    open->tags = msg->tags;
    open->metric_count = msg->metric_count;
    open->metric_names =
        scratch_array(&request->scratch, msg->metric_count + 1, sizeof(*open->metric_names));
    open->metric_values =
        scratch_array(&request->scratch, msg->metric_count + 1, sizeof(*open->metric_values));
    if (!open->metric_names || !open->metric_values) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < msg->metric_count; i++) {
        open->metric_names[i] = msg->metrics[i].name;
        open->metric_values[i] = msg->metrics[i].value;
    }
    return 0;
}

/* Handles OPEN: rank 0 opens the save, and the other ranks look for its opening. */
int session_ask_open(struct request *request, struct diag *why)
{
    (void)why;
    struct session *session = request->session;
    const struct msg_join *join = &session->join;
    session_reap_saves(session);
    const struct msg_open *open = &request->msg.u.open;
    struct run_req *run = &request->u.open.run;
    /* A server that is stopping opens nothing, but a rank may come back to a save that is open. */
    bool stopping = session->server->stopping;
    *run = (struct run_req){.done = stopping ? on_found : session_opened,
                            .wait_ms = stopping ? 0 : open->wait_ms};
    run->event = (struct event){.kind = join->rank == 0 && !stopping ? EVENT_OPEN : EVENT_FIND_OPEN,
                                .id = {.step = open->step}};
    run->event.u.open =
        (struct event_open){.from = session_rank(session, open->ordinal),
                            .actor = session_actor_copy(request, session->label),
                            .parent = open->parent,
                            .newest_seen = open->newest_seen,
                            .open_id = join->rank == 0 && stopping ? 0 : open->open_id,
                            .full = open->full,
                            .blocked_ms = open->blocked_ms,
                            .staged_ms = open->staged_ms,
                            .persist_ms = open->persist_ms};
    if (fill_open(request, &run->event.u.open.entry) != 0) {
        return CAIRN_E_NO_MEMORY;
    }
    request->cancel = cancel_open;
    const char *project = run_name_of(session->run)->project;
    if (run->event.kind == EVENT_OPEN && quota_of(session->server->options.quotas, project)) {
        session_open_by_quota(request);
    } else {
        run_submit(session->run, run);
    }
    return 0;
}

/* --- payloads --- */

int session_on_want(struct session *session, uint32_t stream, const struct msg *msg,
                    struct diag *diag)
{
    (void)stream, (void)diag;
    credit_want(&session->credit, msg->u.want.buffers);
    return 0;
}

int session_data_buffer(struct session *session, const struct frame *frame, const struct msg *msg,
                        void **ret, struct diag *diag)
{
    (void)msg;
    if (frame->payload_bytes > session->server->options.buffer_bytes) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the client sent a payload of %u bytes, which is larger than was agreed on",
                        frame->payload_bytes);
    }
    CHECK(session->receiving == NULL);
    session->receiving = credit_use(&session->credit);
    if (!session->receiving) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the client sent a payload for which it had no grant");
    }
    *ret = session->receiving;
    return 0;
}

int session_data(struct session *session, const struct frame *frame, const struct msg *msg,
                 void *payload, struct diag *diag)
{
    CHECK(payload != NULL);
    CHECK(session->receiving == NULL);
    const struct msg_data *data = &msg->u.data;
    session->data_frames++;
    struct session_save *save =
        session_find_save(session, (struct ckpt_id){data->object.term, data->object.step});
    if (!save || writer_is_over(save->writer)) {
        /* The save ended while this was on its way; WAIT's OUTCOME says how. */
        credit_put(&session->server->credit, payload);
        return 0;
    }
    struct payload came = {.stream = frame->stream, .bytes = frame->payload_bytes, .data = payload};
    return writer_data(save->writer, data, &came, diag);
}

int session_on_object_end(struct session *session, uint32_t stream, const struct msg *msg,
                          struct diag *diag)
{
    const struct msg_object_end *end = &msg->u.object_end;
    struct session_save *save =
        session_find_save(session, (struct ckpt_id){end->object.term, end->object.step});
    if (!save || writer_is_over(save->writer)) {
        conn_send_error(session->conn, stream, CAIRN_E_ABORTED, "the save has already ended");
        return 0;
    }
    return writer_end(save->writer, stream, end, diag);
}

/* --- HAVE --- */

/* Answers HAVE with the sequences of the durable objects. */
static void on_have(struct writer_have *have, int status, const struct diag *diag, size_t count,
                    const uint32_t *sequences)
{
    struct request *request = container_of(have, struct request, u.have);
    uint32_t *copy =
        status == 0 ? scratch_array(&request->scratch, count + 1, sizeof(*copy)) : NULL;
    if (!copy) {
        request_error(request, status != 0 ? status : CAIRN_E_NO_MEMORY, diag);
    } else {
        memcpy(copy, sequences, count * sizeof(*copy));
        struct msg reply = {.type = MSG_HELD,
                            .u.held = {.count = (uint32_t)count, .sequences = copy}};
        request_reply(request, &reply);
    }
    request_free(request);
}

static void cancel_have(struct request *request)
{
    list_remove(&request->u.have.link);
    request_free(request);
}

/* Handles HAVE: asks which objects of this client are durable. */
int session_ask_have(struct request *request, struct diag *why)
{
    struct session_save *save = session_find_save(request->session, request->msg.u.have.id);
    if (!save || writer_is_over(save->writer)) {
        return diag_set(why, CAIRN_E_ABORTED, "the save is not open on this server; save again");
    }
    request->cancel = cancel_have;
    request->u.have = (struct writer_have){
        .done = on_have, .placed = request->msg.u.have.placed, .from = request->msg.u.have.from};
    writer_have(save->writer, &request->u.have);
    return 0;
}

/* --- WAIT and ABORT --- */

static void reply_outcome(struct request *request, struct msg_outcome outcome)
{
    struct msg reply = {.type = MSG_OUTCOME, .u.outcome = outcome};
    reply.u.outcome.open_id =
        request->msg.type == MSG_WAIT ? request->msg.u.wait.open_id : request->msg.u.abort.open_id;
    request_reply(request, &reply);
}

static void on_outcome(struct run_watch *watch, enum save_state state, int code, const char *why,
                       uint64_t seq)
{
    struct request *request = container_of(watch, struct request, u.watch);
    reply_outcome(
        request,
        (struct msg_outcome){
            .id = watch->id, .state = state, .code = code, .text = why ? why : "", .seq = seq});
    request_free(request);
}

static void cancel_wait(struct request *request)
{
    run_unwatch(&request->u.watch);
    request_free(request);
}

int session_ask_wait(struct request *request, struct diag *why)
{
    (void)why;
    const struct msg_wait *wait = &request->msg.u.wait;
    request->cancel = cancel_wait;
    request->u.watch = (struct run_watch){
        .id = wait->id, .open_id = wait->open_id, .hears_refusals = true, .done = on_outcome};
    run_watch(request->session->run, &request->u.watch);
    return 0;
}

/* Answers ABORT with the outcome of the save. If it was committed or aborted before, that outcome
 * is given. */
static void on_aborted(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.run);
    const struct verdict *verdict = &req->verdict;
    if (req->status != 0 && req->status != CAIRN_E_ABORTED) {
        request_error(request, req->status, &req->diag);
    } else {
        const struct verdict_save *save = verdict_save(verdict);
        /* If the save was dead already: the code and the reason of the first abort. */
        int first = save->dead_code != 0 ? save->dead_code : verdict->diag.code;
        int code = first != 0 ? first : request->msg.u.abort.code;
        const char *why = req->status != 0          ? req->diag.text
                          : verdict->diag.code != 0 ? verdict->diag.text
                                                    : request->msg.u.abort.reason;
        bool committed = save->state == SAVE_COMMITTED;
        reply_outcome(request, (struct msg_outcome){.id = verdict->id,
                                                    .state = save->state,
                                                    .code = committed ? 0 : code,
                                                    .text = why ? why : "",
                                                    .seq = save->seq});
    }
    request_free(request);
}

static void cancel_run(struct request *request)
{
    run_cancel(&request->u.run);
    request_free(request);
}

/* Handles ABORT: submits the end of the save. */
int session_ask_abort(struct request *request, struct diag *why)
{
    (void)why;
    struct session *session = request->session;
    const struct msg_abort *abort = &request->msg.u.abort;
    struct run_req *run = &request->u.run;
    *run = (struct run_req){.done = on_aborted};
    run->event =
        (struct event){.kind = EVENT_ABORT,
                       .id = abort->id,
                       .u.abort = {.token = session->join.token,
                                   .open_id = abort->open_id,
                                   .code = abort->code != 0 ? abort->code : CAIRN_E_ABORTED,
                                   .reason = abort->reason}};
    request->cancel = cancel_run;
    run_submit(session->run, run);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * PART and SEAL: receives a rank's part, checks it (hash, structure, every chunk against those
 * verified here), publishes it, and then puts the seal into the record. The check runs on a worker,
 * because a part may hold a hundred thousand chunks.
 */
#include "session/handlers.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { PART_SCRATCH_FACTOR = 4 };

void session_free_part_left(struct session *session)
{
    if (session->part_left) {
        CHECK(session->server->part_bytes_used >= session->part_left_bytes);
        session->server->part_bytes_used -= session->part_left_bytes;
        free(session->part_left);
        session->part_left = NULL;
    }
}

/* Gives memory for a part and counts it. Returns BUSY if other parts use up the server's budget,
 * and TOO_LARGE if the part could never fit. */
static int reserve_part(struct server *server, uint64_t bytes, uint8_t **ret, struct diag *diag)
{
    CHECK(server->part_bytes_used <= server->options.part_bytes_total);
    if (bytes > server->options.part_bytes_total) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the rank's part has %llu bytes, and [memory] parts of the server's "
                        "configuration allows %llu; raise it",
                        (unsigned long long)bytes,
                        (unsigned long long)server->options.part_bytes_total);
    }
    if (bytes > server->options.part_bytes_total - server->part_bytes_used) {
        return diag_set(diag, CAIRN_E_BUSY,
                        "the server is receiving parts of %llu bytes already: try again, or raise "
                        "[memory] parts in its configuration",
                        (unsigned long long)server->part_bytes_used);
    }
    uint8_t *memory = malloc(bytes);
    if (!memory) {
        return diag_no_memory(diag, "a part of %llu bytes", (unsigned long long)bytes);
    }
    server->part_bytes_used += bytes;
    *ret = memory;
    return 0;
}

/* Gives memory for bytes that nobody wants. All sessions share it, because nobody reads it. */
static int take_trash(struct server *server, void **ret, struct diag *diag)
{
    server->trash = server->trash ? server->trash : malloc(server->options.buffer_bytes);
    if (!server->trash) {
        return diag_no_memory(diag, "the bytes of a part that is not wanted");
    }
    *ret = server->trash;
    return 0;
}

/* Reserves memory for a part that will come in pieces. A part that was begun before is dropped. If
 * there is no room for it, this is the answer to the client, on the stream of the SEAL or COMPLETE
 * that it will send: what it has sent until it hears of that is dropped. */
static int start_part(struct session_save *save, const struct frame *frame,
                      const struct msg_part *part, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    session_free_part(save);
    if (part->total_bytes == 0 || part->total_bytes > LIMIT_PART_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the rank's part has %llu bytes, which is not possible",
                        (unsigned long long)part->total_bytes);
    }
    int status = reserve_part(save->session->server, part->total_bytes, &save->part, &why);
    save->part_refused = status != 0;
    if (status != 0) {
        session_log(save->session, LOG_INFO, "part not taken now", diag_text(&why, status));
        conn_send_error(save->session->conn, frame->stream, status, diag_text(&why, status));
        return 0;
    }
    save->part_bytes = part->total_bytes;
    save->part_at = 0;
    return 0;
}

int session_part_buffer(struct session *session, const struct frame *frame, const struct msg *msg,
                        void **ret, struct diag *diag)
{
    const struct msg_part *part = &msg->u.part;
    struct session_save *save = session_find_save(session, part->id);
    CHECK(!session->part_receiving);
    CHECK(!session->part_left);
    CHECK(frame->payload_bytes <= session->server->options.buffer_bytes);
    if (!save || save->open_id != part->open_id) {
        return take_trash(session->server, ret, diag); /* the save has ended meanwhile */
    }
    int status = part->offset == 0 ? start_part(save, frame, part, diag) : 0;
    if (status != 0) {
        return status;
    }
    if (save->part_refused) {
        return take_trash(session->server, ret, diag);
    }
    if (!save->part || part->total_bytes != save->part_bytes || part->offset != save->part_at ||
        frame->payload_bytes > save->part_bytes - save->part_at) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "bytes of the part for offset %llu came where offset %llu was expected",
                        (unsigned long long)part->offset, (unsigned long long)save->part_at);
    }
    session->part_receiving = save;
    *ret = save->part + save->part_at;
    return 0;
}

void session_part(struct session *session, const struct frame *frame)
{
    CHECK(!session->part_receiving || !session->part_left);
    if (session->part_receiving) {
        session->part_receiving->part_at += frame->payload_bytes;
        CHECK(session->part_receiving->part_at <= session->part_receiving->part_bytes);
        session->part_receiving = NULL;
    }
    session_free_part_left(session);
    session_stop_if_full(session); /* a part may have been answered */
}

/* --- SEAL --- */

/* Frees a SEAL request, with the bytes of its part and its hold on the writer. */
static void seal_free(struct request *request)
{
    struct server *server = request->server;
    if (request->u.seal.data) {
        CHECK(server->part_bytes_used >= request->msg.u.seal.part_bytes);
        server->part_bytes_used -= request->msg.u.seal.part_bytes;
        free(request->u.seal.data);
    }
    run_fetch_release(&request->u.seal.fetch);
    scratch_fini(&request->u.seal.scratch);
    scratch_fini(&request->u.seal.base_scratch);
    if (request->u.seal.writer) {
        writer_detach(request->u.seal.writer, NULL);
    }
    request_free(request);
}

/* Answers a SEAL that has failed. If the save is over, nothing that fails says more than that: its
 * base, for one, may have been collected since. The client then asks for the outcome. */
static void seal_fail(struct request *request, int code, const struct diag *diag)
{
    static const struct diag over = {.code = CAIRN_E_ABORTED, .text = "the save has already ended"};
    CHECK(code != 0);
    CHECK(!request->u.seal.running);
    if (writer_is_over(request->u.seal.writer)) {
        request_error(request, CAIRN_E_ABORTED, &over);
    } else {
        if (request->session) {
            session_log(request->session, LOG_WARN, "part refused", diag_text(diag, code));
        }
        request_error(request, code, diag);
    }
    seal_free(request);
}

/* Called when the part is published and its seal is in the record, or one of them has failed. */
static void on_sealed(struct part_seal *seal, int status, const struct diag *diag)
{
    struct request *request = container_of(seal, struct request, u.seal.seal);
    if (status != 0) {
        seal_fail(request, status, diag);
        return;
    }
    struct msg reply = {.type = MSG_SEALED, .u.sealed = {.id = request->msg.u.seal.id}};
    request_reply(request, &reply);
    seal_free(request);
}

/* Checks hash and structure. Runs on a worker; the comparison with the verified chunks is done on
 * the loop, which owns their tables. */
static void check_run(struct work *work)
{
    struct request *request = container_of(work, struct request, u.seal.work);
    const struct msg_seal *seal = &request->msg.u.seal;
    struct sha256 sha = sha256(seal->part_bytes, request->u.seal.data);
    if (memcmp(&sha, &seal->part_sha256, sizeof(sha)) != 0) {
        request->u.seal.status = diag_set(&request->u.seal.diag, CAIRN_E_DIGEST_MISMATCH,
                                          "the part's SHA-256 does not match");
        return;
    }
    request->u.seal.status =
        part_decode(seal->part_bytes, request->u.seal.data, &request->u.seal.scratch,
                    &request->u.seal.part, &request->u.seal.diag);
}

/* Checks that every chunk was verified here or is one of the base, then publishes the part. */
static void check_chunks(struct request *request)
{
    struct session *session = request->session;
    const struct part_refs *refs = request->u.seal.refs.base ? &request->u.seal.refs : NULL;
    CHECK(session != NULL);
    int status = writer_check_part(request->u.seal.writer, &request->u.seal.part, refs,
                                   &request->u.seal.diag);
    if (status == 0 && request->u.seal.part.world_size != session->join.world_size) {
        status = diag_set(&request->u.seal.diag, CAIRN_E_INVALID,
                          "the part gives the world size %u, which is not that of the save",
                          request->u.seal.part.world_size);
    }
    if (status != 0) {
        seal_fail(request, status, &request->u.seal.diag);
        return;
    }
    request->u.seal.seal = (struct part_seal){.writer = request->u.seal.writer,
                                              .part = &request->u.seal.part,
                                              .bytes = request->msg.u.seal.part_bytes,
                                              .data = request->u.seal.data,
                                              .sha256 = request->msg.u.seal.part_sha256,
                                              .done = on_sealed};
    part_seal_begin(&request->u.seal.seal);
}

static void index_run(struct work *work)
{
    struct request *request = container_of(work, struct request, u.seal.work);
    request->u.seal.status = part_refs_init(&request->u.seal.refs, request->u.seal.fetch.part,
                                            &request->u.seal.base_scratch, &request->u.seal.diag);
}

/* Called when the pool has worked for a request. Returns the request, or NULL if it was cancelled
 * meanwhile or has failed, and so has ended here. */
static struct request *seal_worked(struct work *work)
{
    struct request *request = container_of(work, struct request, u.seal.work);
    CHECK(request->u.seal.running);
    request->u.seal.running = false;
    if (!request->session) {
        seal_free(request);
        return NULL;
    }
    if (request->u.seal.status != 0) {
        seal_fail(request, request->u.seal.status, &request->u.seal.diag);
        return NULL;
    }
    return request;
}

/* Called when the pool has made the index of the part. */
static void index_done(struct work *work)
{
    struct request *request = seal_worked(work);
    if (request) {
        check_chunks(request);
    }
}

/* Called with this rank's part of the base: sorts its chunks on a worker, so that references to it
 * can be checked. */
static void on_base(struct fetch_req *req)
{
    struct request *request = container_of(req, struct request, u.seal.fetch);
    if (req->status != 0) {
        struct diag diag = req->diag;
        diag_add(&diag, "reading the base that the part refers to");
        seal_fail(request, req->status, &diag);
        return;
    }
    scratch_fini(&request->u.seal.base_scratch);
    scratch_init(&request->u.seal.base_scratch,
                 ((size_t)req->part->chunk_count + 1) * sizeof(uint32_t) + KIB(64));
    request->u.seal.running = true;
    request->u.seal.work = (struct work){.run = index_run, .done = index_done};
    work_submit(request->server->options.verify_pool, &request->u.seal.work);
}

/* Called when the part was checked on the worker. If it refers to a base, the base's part is
 * fetched first. */
static void check_done(struct work *work)
{
    struct request *request = seal_worked(work);
    if (!request) {
        return;
    }
    if (request->u.seal.base.term != 0 &&
        writer_has_refs(request->u.seal.writer, &request->u.seal.part)) {
        request->u.seal.fetch = (struct fetch_req){.id = request->u.seal.base,
                                                   .kind = STORE_PART,
                                                   .number = request->session->join.rank,
                                                   .any_age = true,
                                                   .done = on_base};
        run_fetch(request->session->run, &request->u.seal.fetch);
    } else {
        check_chunks(request);
    }
}

/* Called when the session ends before the answer. What the pool or the store is at work on is freed
 * when it is done. */
static void cancel_seal(struct request *request)
{
    if (!request->u.seal.running && part_seal_cancel(&request->u.seal.seal)) {
        seal_free(request); /* a fetch ends with it */
    } else {
        request_orphan(request);
    }
}

int session_take_part(struct session_save *save, const char *what, uint64_t bytes, uint8_t **ret,
                      struct diag *diag)
{
    if (!save->part || save->part_at != save->part_bytes || bytes != save->part_bytes) {
        return diag_set(
            diag, CAIRN_E_PROTOCOL,
            "the client sent %s before the whole part: only %llu of %llu bytes have come", what,
            (unsigned long long)save->part_at, (unsigned long long)bytes);
    }
    CHECK(save->session->part_receiving != save); /* it is complete: no frame of it is under way */
    writer_transferred(save->writer);
    *ret = save->part;
    save->part = NULL;
    return 0;
}

/* Moves the bytes of the part from the save to the request, and holds the writer as long as the
 * request lives. */
static int take_part(struct request *request, struct session_save *save, struct diag *diag)
{
    int status = session_take_part(save, "SEAL", request->msg.u.seal.part_bytes,
                                   &request->u.seal.data, diag);
    if (status == 0) {
        scratch_init(&request->u.seal.scratch, save->part_bytes * PART_SCRATCH_FACTOR + KIB(64));
        request->u.seal.writer = writer_hold(save->writer);
        request->u.seal.base = save->base;
    }
    return status;
}

/* Handles SEAL: the whole part has come and is to be checked, published and sealed. */
int session_on_seal(struct session *session, uint32_t stream, const struct msg *msg,
                    struct diag *diag)
{
    const struct msg_seal *seal = &msg->u.seal;
    struct session_save *save = session_save_to_seal(session, stream, seal->id, seal->open_id);
    if (!save) {
        return 0;
    }
    struct request *request = request_new(session, stream, msg);
    if (!request) {
        return 0;
    }
    scratch_init(&request->u.seal.scratch, KIB(4));
    scratch_init(&request->u.seal.base_scratch, KIB(4));
    request->cancel = cancel_seal;
    int status = take_part(request, save, diag);
    if (status != 0) {
        seal_free(request);
        return status;
    }
    request->u.seal.running = true;
    request->u.seal.work = (struct work){.run = check_run, .done = check_done};
    work_submit(session->server->options.verify_pool, &request->u.seal.work);
    return 0;
}

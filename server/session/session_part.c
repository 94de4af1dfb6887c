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

enum { PART_SCRATCH_FACTOR = 4, PUBLISH_TRIES = 4 };

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

/* Gives memory for a frame of a save that ended while the frame was on its way: the bytes are
 * received and thrown away. */
static int part_of_nothing(struct session *session, uint32_t payload_bytes, void **ret,
                           struct diag *diag)
{
    int status = reserve_part(session->server, payload_bytes, &session->part_left, diag);
    if (status == 0) {
        session->part_left_bytes = payload_bytes;
        *ret = session->part_left;
    }
    return status;
}

/* Reserves memory for a part that will come in pieces. A part that was begun before is dropped. */
static int start_part(struct session_save *save, const struct msg_part *part, struct diag *diag)
{
    session_free_part(save);
    if (part->total_bytes == 0 || part->total_bytes > LIMIT_PART_BYTES) {
        return diag_set(diag, CAIRN_E_TOO_LARGE,
                        "the rank's part has %llu bytes, which is not possible",
                        (unsigned long long)part->total_bytes);
    }
    int status = reserve_part(save->session->server, part->total_bytes, &save->part, diag);
    if (status == 0) {
        save->part_bytes = part->total_bytes;
        save->part_at = 0;
    }
    return status;
}

int session_part_buffer(struct session *session, const struct frame *frame, const struct msg *msg,
                        void **ret, struct diag *diag)
{
    const struct msg_part *part = &msg->u.part;
    struct session_save *save = session_find_save(session, part->id);
    CHECK(!session->part_receiving);
    CHECK(!session->part_left);
    if (!save || save->open_id != part->open_id) {
        return part_of_nothing(session, frame->payload_bytes, ret, diag);
    }
    int status = part->offset == 0 ? start_part(save, part, diag) : 0;
    if (status != 0) {
        return status;
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
    CHECK((session->part_receiving != NULL) != (session->part_left != NULL));
    if (session->part_receiving) {
        session->part_receiving->part_at += frame->payload_bytes;
        CHECK(session->part_receiving->part_at <= session->part_receiving->part_bytes);
        session->part_receiving = NULL;
    }
    session_free_part_left(session);
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

static void seal_fail(struct request *request, int code, const struct diag *diag)
{
    CHECK(code != 0);
    CHECK(!request->u.seal.running);
    if (request->session) {
        session_log(request->session, LOG_WARN, "part refused", diag_text(diag, code));
    }
    request_error(request, code, diag);
    seal_free(request);
}

/* Called when the seal is in the record, or was refused. */
static void on_sealed(struct run_req *req)
{
    struct request *request = container_of(req, struct request, u.seal.run);
    request->u.seal.running = false;
    if (req->status != 0) {
        struct diag diag = req->diag;
        seal_fail(request, req->status, &diag);
        return;
    }
    struct msg reply = {.type = MSG_SEALED, .u.sealed = {.id = request->msg.u.seal.id}};
    request_reply(request, &reply);
    seal_free(request);
}

/* Submits the seal. If an earlier part of the same process was accepted, the seal names that
 * one. */
static void submit_seal(struct request *request)
{
    const struct msg_seal *seal = &request->msg.u.seal;
    const struct msg_join *join = &request->session->join;
    struct run_req *run = &request->u.seal.run;
    request->u.seal.seal = (struct event_seal){.rank = join->rank,
                                               .entry = {.open_id = seal->open_id,
                                                         .writer = join->writer,
                                                         .part_bytes = seal->part_bytes,
                                                         .part_sha256 = seal->part_sha256}};
    if (request->u.seal.adopted_bytes > 0) {
        request->u.seal.seal.entry.part_bytes = request->u.seal.adopted_bytes;
        request->u.seal.seal.entry.part_sha256 = request->u.seal.adopted_sha256;
    }
    CHECK(request->u.seal.seal.entry.part_bytes > 0);
    *run = (struct run_req){.done = on_sealed};
    run->event = (struct event){
        .kind = EVENT_SEAL,
        .id = seal->id,
        .u.seal = {.open_id = seal->open_id, .count = 1, .items = &request->u.seal.seal}};
    run_submit(request->session->run, run);
}

static struct store_name part_name(const struct request *request)
{
    const struct msg_seal *seal = &request->msg.u.seal;
    return (struct store_name){.run = request->u.seal.store.name.run,
                               .id = seal->id,
                               .kind = STORE_PART,
                               .number = request->session->join.rank,
                               .tag = seal->open_id};
}

/* Called when the part is durable: keeps its bytes for finishing the save, and submits the seal. */
static void published(struct request *request)
{
    CHECK(request->u.seal.running);
    request->u.seal.running = false;
    if (!request->session) {
        seal_free(request);
        return;
    }
    struct store_name name = part_name(request);
    if (request->u.seal.adopted_bytes == 0) {
        run_cache_part(request->session->run, &name, request->msg.u.seal.part_bytes,
                       request->u.seal.data);
    }
    request->u.seal.running = true;
    submit_seal(request);
}

static void on_published(struct store_req *req);
static void publish(struct request *request);

/* Called if another part of this rank is stored. If the same process wrote it, through another
 * server that it has left since, the part is accepted: that server had verified it as this one
 * would, and the rank's contents are the same; only its objects have other numbers. */
static int adopt(struct request *request, const struct store_req *found, const struct sha256 *sha,
                 struct diag *diag)
{
    struct scratch scratch;
    struct part part;
    uint64_t writer = request->session ? request->session->join.writer : 0;
    scratch_init(&scratch, found->ret_bytes * PART_SCRATCH_FACTOR + KIB(64));
    bool same = part_decode(found->ret_bytes, found->ret_data, &scratch, &part, NULL) == 0 &&
                part.object_count > 0;
    for (uint32_t i = 0; same && i < part.object_count; i++) {
        same = part.objects[i].id.step != request->msg.u.seal.id.step ||
               part.objects[i].id.writer == writer;
    }
    scratch_fini(&scratch);
    if (!same) {
        return diag_set(diag, CAIRN_E_CONFLICT,
                        "another part of this rank is already stored for the same save; start each "
                        "rank only once");
    }
    request->u.seal.adopted_bytes = found->ret_bytes;
    request->u.seal.adopted_sha256 = *sha;
    return 0;
}

/* Compares a stored part, which may have been published before the connection was lost: the same
 * bytes are success, others are a conflict. */
static void on_compared(struct store_req *req)
{
    struct request *request = container_of(req, struct request, u.seal.store);
    const struct msg_seal *seal = &request->msg.u.seal;
    struct diag diag = req->diag;
    int status = req->status;
    if (status == CAIRN_E_NOT_FOUND && ++request->u.seal.tries < PUBLISH_TRIES) {
        /* A time-out, and it is not there; PUBLISH never replaces, so it may be repeated. */
        publish(request);
        return;
    }
    if (status == CAIRN_E_NOT_FOUND) {
        diag_clear(&diag);
        status = diag_set(&diag, CAIRN_E_TIMED_OUT,
                          "the store did not take the part of rank %u: %d attempts timed out; see "
                          "`cairn status` for the daemon's health",
                          req->name.number, PUBLISH_TRIES);
    }
    if (status == 0) {
        struct sha256 sha = sha256(req->ret_bytes, req->ret_data);
        if (memcmp(&sha, &seal->part_sha256, sizeof(sha)) != 0) {
            status = adopt(request, req, &sha, &diag);
        }
        free(req->ret_data);
    }
    if (status == 0) {
        published(request);
    } else {
        request->u.seal.running = false;
        seal_fail(request, status, &diag);
    }
}

/* Publishes the part under the name in the request's store operation. */
static void publish(struct request *request)
{
    CHECK(request->u.seal.data != NULL);
    CHECK(request->u.seal.running);
    struct store_name name = request->u.seal.store.name;
    request->u.seal.store = (struct store_req){.op = STORE_PUBLISH,
                                               .done = on_published,
                                               .name = name,
                                               .bytes = request->msg.u.seal.part_bytes,
                                               .data = request->u.seal.data};
    store_submit(catalog_store(request->server->options.catalog), &request->u.seal.store);
}

/* Called when PUBLISH was answered. If the name is taken, or the outcome is unknown, the stored
 * part is read and compared. */
static void on_published(struct store_req *req)
{
    struct request *request = container_of(req, struct request, u.seal.store);
    if (req->status == 0) {
        published(request);
        return;
    }
    if (req->status == CAIRN_E_EXISTS || req->status == CAIRN_E_OUTCOME_UNKNOWN) {
        struct store_name name = req->name;
        *req = (struct store_req){.op = STORE_FETCH, .done = on_compared, .name = name};
        store_submit(catalog_store(request->server->options.catalog), req);
        return;
    }
    struct diag diag = req->diag;
    request->u.seal.running = false;
    seal_fail(request, req->status, &diag);
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
    request->u.seal.store.name.run = *run_name_of(session->run);
    request->u.seal.store.name = part_name(request);
    request->u.seal.tries = 0;
    request->u.seal.adopted_bytes = 0;
    request->u.seal.running = true;
    publish(request);
}

static void index_run(struct work *work)
{
    struct request *request = container_of(work, struct request, u.seal.work);
    request->u.seal.status = part_refs_init(&request->u.seal.refs, request->u.seal.fetch.part,
                                            &request->u.seal.base_scratch, &request->u.seal.diag);
}

/* Called when the pool has made the index of the part. The request may have been cancelled
 * meanwhile. */
static void index_done(struct work *work)
{
    struct request *request = container_of(work, struct request, u.seal.work);
    CHECK(request->u.seal.running);
    request->u.seal.running = false;
    if (!request->session) {
        seal_free(request);
    } else if (request->u.seal.status != 0) {
        seal_fail(request, request->u.seal.status, &request->u.seal.diag);
    } else {
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
    struct request *request = container_of(work, struct request, u.seal.work);
    CHECK(request->u.seal.running);
    request->u.seal.running = false;
    if (!request->session) {
        seal_free(request);
    } else if (request->u.seal.status != 0) {
        seal_fail(request, request->u.seal.status, &request->u.seal.diag);
    } else if (request->u.seal.base.term != 0 &&
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

/* Called when the session ends before the answer. What the pool is at work on is freed when it is
 * done. */
static void cancel_seal(struct request *request)
{
    if (!request->u.seal.running) { /* or it fetches, which seal_free() cancels */
        seal_free(request);
    } else if (request->u.seal.run.submitted) {
        run_cancel(&request->u.seal.run);
        seal_free(request);
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
    struct session_save *save = session_find_save(session, seal->id);
    if (!save || save->open_id != seal->open_id) {
        conn_send_error(session->conn, stream, CAIRN_E_ABORTED,
                        "the save is not open on this server; save again");
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

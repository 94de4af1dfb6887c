/* SPDX-License-Identifier: Apache-2.0
 *
 * The base of a save: at OPEN, which of its objects are mostly dead (their sizes are asked from the
 * store), so that the client sends their chunks anew and they can go some day; at SEAL, the part of
 * the base that references are checked against. The claim in the open entry keeps both there, also
 * when the base is forgotten meanwhile. Loop's thread; the index on a worker.
 */
#include "session/session_private.h"

#include "base/log.h"
#include "session/part_refs.h"

#include <stdlib.h>
#include <string.h>

struct session_base {
    struct request *request;
    struct msg_opened opened; /* what will be answered */
    struct fetch_req fetch;
    struct work work;
    struct store_req stat;
    struct scratch scratch;
    struct part_refs refs;
    struct diag diag;
    struct object_id *sparse;
    uint32_t sparse_count, object_at;
    int status;
    bool busy; /* store or worker have it */
};

static void base_free(struct session_base *base)
{
    run_fetch_release(&base->fetch);
    scratch_fini(&base->scratch);
    free(base);
}

static void base_end(struct session_base *base)
{
    struct request *request = base->request;
    struct msg reply = {.type = MSG_OPENED, .u.opened = base->opened};
    reply.u.opened.sparse_count = base->sparse_count;
    reply.u.opened.sparse = base->sparse;
    request_reply(request, &reply);
    request_free(request);
    base_free(base);
}

/* A base that cannot be read is none: the client sends everything. The save goes on, and whoever
 * reads that checkpoint will find what is wrong with it. */
static void base_fail(struct session_base *base, int status, const struct diag *diag)
{
    struct request *request = base->request;
    /* NOT_FOUND: the base has no part of this rank number, because its world was smaller. */
    if (request->session) {
        struct session_save *save = session_find_save(request->session, base->opened.id);
        session_log(request->session, status == CAIRN_E_NOT_FOUND ? LOG_DEBUG : LOG_WARN,
                    "no base to refer to, the rank sends everything", diag_text(diag, status));
        if (save) {
            save->base = (struct ckpt_id){0};
        }
    }
    base->opened.base = (struct ckpt_id){0};
    base->sparse_count = 0;
    base_end(base);
}

static void next_object(struct session_base *base);

static void on_stat(struct store_req *req)
{
    struct session_base *base = container_of(req, struct session_base, stat);
    struct diag diag = req->diag;
    base->busy = false;
    if (req->status != 0) {
        base_fail(base, req->status, &diag);
        return;
    }
    if (part_refs_is_sparse(&base->refs, base->object_at, req->ret_bytes)) {
        base->sparse[base->sparse_count++] = req->object;
    }
    base->object_at++;
    next_object(base);
}

static int object_order(const void *a, const void *b) { return object_id_compare(a, b); }

/* What the base wrote itself is in use as a whole. */
static void next_object(struct session_base *base)
{
    const struct part *part = base->fetch.part;
    while (base->object_at < part->object_count &&
           part->objects[base->object_at].id.term == base->opened.base.term &&
           part->objects[base->object_at].id.step == base->opened.base.step) {
        base->object_at++;
    }
    if (!base->request->session || base->object_at == part->object_count ||
        base->sparse_count == OPENED_SPARSE_MAX) {
        qsort(base->sparse, base->sparse_count, sizeof(*base->sparse), object_order);
        base_end(base);
        return;
    }
    struct server *server = base->request->server;
    base->busy = true;
    base->stat = (struct store_req){.op = STORE_STAT,
                                    .done = on_stat,
                                    .run = *run_name_of(base->request->session->run),
                                    .object = part->objects[base->object_at].id};
    store_submit(catalog_store(server->options.catalog), &base->stat);
}

static void index_run(struct work *work)
{
    struct session_base *base = container_of(work, struct session_base, work);
    const struct part *part = base->fetch.part;
    uint32_t most = part->object_count < OPENED_SPARSE_MAX ? part->object_count : OPENED_SPARSE_MAX;
    base->sparse = scratch_array(&base->scratch, (size_t)most + 1, sizeof(*base->sparse));
    base->status = base->sparse ? part_refs_init(&base->refs, part, &base->scratch, &base->diag)
                                : diag_set(&base->diag, CAIRN_E_NO_MEMORY, "no memory for a base");
}

static void index_done(struct work *work)
{
    struct session_base *base = container_of(work, struct session_base, work);
    base->busy = false;
    if (base->status != 0) {
        base_fail(base, base->status, &base->diag);
    } else {
        next_object(base);
    }
}

static void on_fetched(struct fetch_req *req)
{
    struct session_base *base = container_of(req, struct session_base, fetch);
    if (req->status != 0) {
        struct diag diag = req->diag;
        base_fail(base, req->status, &diag);
        return;
    }
    scratch_init(&base->scratch, (size_t)req->part->chunk_count * sizeof(uint32_t) +
                                     OPENED_SPARSE_MAX * sizeof(struct object_id) + KIB(64));
    base->busy = true;
    base->work = (struct work){.run = index_run, .done = index_done};
    work_submit(base->request->server->options.verify_pool, &base->work);
}

static void cancel_base(struct request *request)
{
    struct session_base *base = request->base;
    if (base->busy) {
        request_orphan(request);
    } else {
        request_free(request);
        base_free(base);
    }
}

void session_base_reply(struct request *request, const struct msg_opened *opened)
{
    struct session_base *base = calloc(1, sizeof(*base));
    if (!base) {
        request_error(request, CAIRN_E_NO_MEMORY, NULL);
        request_free(request);
        return;
    }
    base->request = request;
    base->opened = *opened;
    scratch_init(&base->scratch, KIB(4));
    request->base = base;
    request->cancel = cancel_base;
    base->fetch = (struct fetch_req){.id = opened->base,
                                     .kind = STORE_PART,
                                     .number = request->session->join.rank,
                                     .claimed = true,
                                     .done = on_fetched};
    run_fetch(request->session->run, &base->fetch);
}

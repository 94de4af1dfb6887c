/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds what one rank may refer to in its base: fetches the part, sorts its chunks on a worker, and
 * asks the store, one after the other, for the size of each object of an older step. Objects that
 * the base wrote itself are in use as a whole. A cancelled operation frees itself when store or
 * worker come back. Loop's thread; index_run on a worker.
 */
#include "run_base.h"

#include "base/check.h"
#include "part_refs.h"
#include "run_fetch.h"
#include "run_private.h"

#include <stdlib.h>

struct base_op {
    struct base_req *req; /* NULL once it is cancelled */
    struct run *run;
    struct fetch_req fetch;
    struct work work;
    struct store_req stat;
    struct scratch scratch;
    struct part_refs refs;
    struct diag diag;
    struct object_id *sparse;
    uint32_t sparse_count, object_at;
    int status;
    bool busy; /* the store or a worker has it */
};

static void op_free(struct base_op *op)
{
    CHECK(!op->busy);
    struct catalog *catalog = op->run->catalog;
    run_fetch_release(&op->fetch);
    scratch_fini(&op->scratch);
    free(op);
    catalog_drop(catalog);
}

/* Answers the request, unless it was cancelled. */
static void op_end(struct base_op *op, int status, const struct diag *diag)
{
    struct base_req *req = op->req;
    if (req) {
        req->op = NULL;
        req->status = status;
        diag_copy(&req->diag, diag);
        req->sparse_count = status == 0 ? op->sparse_count : 0;
        req->sparse = op->sparse;
        req->done(req);
    }
    op_free(op);
}

static void next_object(struct base_op *op);

static void on_stat(struct store_req *stat)
{
    struct base_op *op = container_of(stat, struct base_op, stat);
    CHECK(op->busy);
    CHECK(op->sparse_count < RUN_BASE_SPARSE_MAX);
    op->busy = false;
    if (stat->status != 0) {
        op_end(op, stat->status, &stat->diag);
        return;
    }
    if (part_refs_is_sparse(&op->refs, op->object_at, stat->ret_bytes)) {
        op->sparse[op->sparse_count++] = stat->object;
    }
    op->object_at++;
    next_object(op);
}

/* Asks for the size of the next older object that the part refers to, to find those of which little
 * is still in use. After the last one the operation ends. */
static void next_object(struct base_op *op)
{
    const struct part *part = op->fetch.part;
    CHECK(!op->busy);
    CHECK(op->object_at <= part->object_count);
    while (op->object_at < part->object_count &&
           part->objects[op->object_at].id.term == op->fetch.id.term &&
           part->objects[op->object_at].id.step == op->fetch.id.step) {
        op->object_at++;
    }
    if (!op->req || op->object_at == part->object_count ||
        op->sparse_count == RUN_BASE_SPARSE_MAX) {
        qsort(op->sparse, op->sparse_count, sizeof(*op->sparse), object_id_order);
        op_end(op, 0, &op->diag);
        return;
    }
    op->busy = true;
    op->stat = (struct store_req){.op = STORE_STAT,
                                  .done = on_stat,
                                  .run = op->run->name,
                                  .object = part->objects[op->object_at].id};
    store_submit(op->run->catalog->store, &op->stat);
}

static void index_run(struct work *work)
{
    struct base_op *op = container_of(work, struct base_op, work);
    const struct part *part = op->fetch.part;
    uint64_t most = min_u64(part->object_count, RUN_BASE_SPARSE_MAX);
    op->sparse = scratch_array(&op->scratch, most + 1, sizeof(*op->sparse));
    op->status = op->sparse ? part_refs_init(&op->refs, part, &op->scratch, &op->diag)
                            : diag_no_memory(&op->diag, "a base");
}

static void index_done(struct work *work)
{
    struct base_op *op = container_of(work, struct base_op, work);
    CHECK(op->busy);
    op->busy = false;
    if (op->status != 0 || !op->req) {
        op_end(op, op->status, &op->diag);
    } else {
        next_object(op);
    }
}

/* Called when the part of the base was read. */
static void on_fetched(struct fetch_req *fetch)
{
    struct base_req *req = container_of(fetch, struct base_req, fetch);
    struct base_op *op = fetch->status == 0 ? calloc(1, sizeof(*op)) : NULL;
    if (!op) {
        req->status = fetch->status != 0 ? fetch->status : CAIRN_E_NO_MEMORY;
        diag_copy(&req->diag, &fetch->diag);
        diag_set(&req->diag, req->status,
                 "there is not enough memory for a base"); /* the first text is kept */
        run_fetch_release(fetch);
        req->done(req);
        return;
    }
    req->op = op;
    op->req = req;
    op->run = req->run;
    op->fetch = *fetch; /* the op owns the part, so that it survives a cancelled request */
    *fetch = (struct fetch_req){0};
    catalog_hold(op->run->catalog);
    scratch_init(&op->scratch, (size_t)op->fetch.part->chunk_count * sizeof(uint32_t) +
                                   RUN_BASE_SPARSE_MAX * sizeof(struct object_id) + KIB(64));
    op->busy = true;
    op->work = (struct work){.run = index_run, .done = index_done};
    work_submit(op->run->catalog->options.pool, &op->work);
}

void run_base(struct run *run, struct base_req *req)
{
    CHECK(req->done != NULL);
    req->op = NULL;
    req->run = run;
    req->status = 0;
    req->sparse_count = 0;
    diag_clear(&req->diag);
    req->fetch = (struct fetch_req){.id = req->id,
                                    .kind = STORE_PART,
                                    .number = req->rank,
                                    .any_age = true,
                                    .done = on_fetched};
    run_fetch(run, &req->fetch);
}

void run_base_cancel(struct base_req *req)
{
    struct base_op *op = req->op;
    run_fetch_release(&req->fetch);
    if (op) {
        req->op = NULL;
        op->req = NULL;
        if (!op->busy) {
            op_free(op);
        }
    }
}

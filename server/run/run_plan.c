/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans a restore. One operation reads the manifest, the index pages that the names of the wants
 * fall into, and then, one after another, the parts that hold wanted chunks. The intersection of
 * boxes runs in the pool.
 *
 *   MANIFEST --> PAGES (one by one) --> PARTS (one by one: fetch, intersect in the pool) --> done
 *
 * Parts that are likely to hold wanted chunks come first, and once everything is covered no further
 * part is read. So one rank of many reads what its own boxes need, not the whole metadata.
 *
 * Invariant: an answer of 0 covers each wanted box exactly once: the elements are counted. Loop's
 * thread, except work_*.
 */
#include "run_plan.h"

#include "base/check.h"
#include "intersect.h"
#include "run_fetch.h"
#include "run_private.h"

#include <stdlib.h>
#include <string.h>

struct plan_op {
    struct plan_req *req; /* NULL once it is cancelled */
    struct run *run;
    struct ckpt_id id;
    struct scratch scratch; /* memory of the copied wants */
    struct intersect sect;
    struct fetch_req manifest, part;
    struct plan_page *pages; /* one for each page of the manifest; the needed ones are filled in */
    uint32_t page_next;
    uint8_t *ranks; /* parts that may be needed; RANK_LIKELY ones are read first */
    uint32_t rank_next;
    bool likely_are_read, covered;
    struct work work;
    bool working;
    int status;
    struct diag diag;
};

struct plan_page {
    struct fetch_req req;
    struct plan_op *op;
};

static void next_page(struct plan_op *op);
static void next_part(struct plan_op *op);

/* Copies the wants, so that a cancelled plan needs nothing of its caller. */
static int wants_copy(struct plan_op *op, const struct plan_req *req)
{
    struct plan_want *wants =
        scratch_array(&op->scratch, req->want_count + (size_t)1, sizeof *wants);

    if (!wants) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < req->want_count; i++) {
        const char *coordinate = req->wants[i].coordinate ? req->wants[i].coordinate : "";
        wants[i] = req->wants[i];
        wants[i].name = scratch_string(&op->scratch, strlen(wants[i].name), wants[i].name);
        wants[i].coordinate = scratch_string(&op->scratch, strlen(coordinate), coordinate);
        if (!wants[i].name || !wants[i].coordinate) {
            return CAIRN_E_NO_MEMORY;
        }
    }
    return intersect_init(&op->sect, req->want_count, wants);
}

/* Frees the operation, unless the pool still works on it. */
static void op_end(struct plan_op *op)
{
    struct catalog *catalog = op->run->catalog;

    if (op->req) {
        op->req->op = NULL;
        op->req = NULL;
    }
    if (op->working) {
        return;
    }
    for (uint32_t i = 0; op->pages && i < op->manifest.manifest->page_count; i++) {
        run_fetch_release(&op->pages[i].req);
    }
    run_fetch_release(&op->part);
    run_fetch_release(&op->manifest);
    intersect_fini(&op->sect);
    scratch_fini(&op->scratch);
    free(op->pages);
    free(op->ranks);
    free(op);
    catalog_drop(catalog);
}

static void tell(struct plan_req *req, int status, const struct diag *diag)
{
    char text[CKPT_TEXT_MAX];

    req->status = status;
    if (status) {
        ckpt_text(&req->run->name, req->id, text);
        diag_copy(&req->diag, diag);
        diag_set(&req->diag, status, "%s: %s", text, err_text(status));
        if (status != CAIRN_E_DAMAGED && status != CAIRN_E_NOT_FOUND) {
            diag_add(&req->diag, "%s", text);
        }
    }
    req->done(req);
}

static void answer(struct plan_op *op, int status, const struct diag *diag)
{
    struct plan_req *req = op->req;
    struct diag kept = DIAG_INIT; /* the operation's own diag is freed with it */

    CHECK(!op->working);
    if (status) {
        diag_copy(&kept, diag);
    } else {
        req->reads = intersect_take(&op->sect, &req->read_count);
    }
    op_end(op);
    tell(req, status, &kept);
}

/* Returns true if a want lies between the first name of this page and that of the next page. A name
 * may continue on the next page with another coordinate. */
static bool page_is_needed(const struct plan_op *op, uint32_t number)
{
    const struct manifest *manifest = op->manifest.manifest;
    CHECK(number < manifest->page_count);
    const struct page_ref *ref = &manifest->pages[number];
    bool last = number + 1 == manifest->page_count;

    if (ref->kind != PAGE_INDEX) {
        return false;
    }
    return intersect_has_name_between(&op->sect, ref->first_name,
                                      last ? NULL : manifest->pages[number + 1].first_name);
}

/* Returns true if the operation is over: it was cancelled, or it failed in the pool. */
static bool work_is_last(struct plan_op *op)
{
    CHECK(op->working);
    op->working = false;
    if (!op->req) {
        op_end(op);
        return true;
    }
    if (op->status) {
        answer(op, op->status, &op->diag);
        return true;
    }
    return false;
}

static void on_sorted(struct work *work)
{
    struct plan_op *op = container_of(work, struct plan_op, work);

    if (!work_is_last(op)) {
        answer(op, 0, NULL);
    }
}

/* Sorts the reads and checks coverage. Runs on a pool thread. */
static void work_sort(struct work *work)
{
    struct plan_op *op = container_of(work, struct plan_op, work);

    op->status = intersect_end(&op->sect, &op->diag);
}

static void on_intersected(struct work *work)
{
    struct plan_op *op = container_of(work, struct plan_op, work);

    if (!work_is_last(op)) {
        next_part(op);
    }
}

/* Intersects a part with the wants. Runs on a pool thread. */
static void work_intersect(struct work *work)
{
    struct plan_op *op = container_of(work, struct plan_op, work);

    op->status = intersect_part(&op->sect, op->part.part, &op->diag);
    op->covered = intersect_is_covered(&op->sect);
}

/* Called with a part that holds wanted tensors. The pool finds the chunks. */
static void on_part(struct fetch_req *req)
{
    struct plan_op *op = container_of(req, struct plan_op, part);

    CHECK(!op->working);
    if (req->status) {
        answer(op, req->status, &req->diag);
        return;
    }
    op->working = true;
    op->work = (struct work){.run = work_intersect, .done = on_intersected};
    work_submit(op->run->catalog->options.pool, &op->work);
}

static uint32_t next_rank(const struct plan_op *op, uint32_t world)
{
    uint8_t wanted = op->likely_are_read ? RANK_POSSIBLE : RANK_LIKELY;
    uint32_t rank = op->rank_next;
    while (rank < world && op->ranks[rank] != wanted) {
        rank++;
    }
    return rank;
}

/* Fetches the next part. If there is none, or none is needed any more, starts the last work, which
 * sorts. */
static void next_part(struct plan_op *op)
{
    uint32_t world = op->manifest.manifest->world_size;

    CHECK(!op->working);
    run_fetch_release(&op->part);
    op->rank_next = next_rank(op, world);
    if (op->rank_next == world && !op->likely_are_read && !op->covered) {
        op->likely_are_read = true;
        op->rank_next = 0;
        op->rank_next = next_rank(op, world);
    }
    if (op->rank_next == world || op->covered) {
        op->working = true;
        op->work = (struct work){.run = work_sort, .done = on_sorted};
        work_submit(op->run->catalog->options.pool, &op->work);
        return;
    }
    op->part = (struct fetch_req){
        .id = op->id, .kind = STORE_PART, .number = op->rank_next++, .done = on_part};
    run_fetch(op->run, &op->part);
}

/* Called with a page of the index: the wanted tensors are looked up in it. */
static void on_page(struct fetch_req *req)
{
    struct plan_op *op = container_of(req, struct plan_page, req)->op;

    if (req->status == 0) {
        op->status = intersect_page(&op->sect, req->page, &op->diag);
    }
    if (req->status || op->status) {
        answer(op, req->status ? req->status : op->status, req->status ? &req->diag : &op->diag);
        return;
    }
    next_page(op);
}

/* Reads the next page of the index that may name a wanted tensor. After the last page it begins
 * with the parts, or fails if a tensor was not found. */
static void next_page(struct plan_op *op)
{
    const struct manifest *manifest = op->manifest.manifest;

    while (op->page_next < manifest->page_count && !page_is_needed(op, op->page_next)) {
        op->page_next++;
    }
    if (op->page_next < manifest->page_count) {
        struct plan_page *page = &op->pages[op->page_next];
        page->op = op;
        page->req.id = op->id;
        page->req.kind = STORE_PAGE;
        page->req.number = op->page_next++;
        page->req.done = on_page;
        run_fetch(op->run, &page->req);
        return;
    }
    op->status = intersect_check_found(&op->sect, &op->diag);
    if (op->status) {
        answer(op, op->status, &op->diag);
        return;
    }
    intersect_ranks(&op->sect, manifest->world_size, op->ranks);
    next_part(op);
}

/* Called with the manifest of the checkpoint: the plan begins. */
static void on_manifest(struct fetch_req *fetch)
{
    struct plan_req *req = container_of(fetch, struct plan_req, manifest);
    const struct manifest *manifest = fetch->manifest;
    struct plan_op *op = fetch->status == 0 ? calloc(1, sizeof *op) : NULL;

    if (!op) {
        run_fetch_release(fetch);
        tell(req, fetch->status ? fetch->status : CAIRN_E_NO_MEMORY, &fetch->diag);
        return;
    }
    req->op = op;
    op->req = req;
    op->run = req->run;
    op->id = req->id;
    op->manifest = *fetch; /* the op owns it: it outlives a cancelled request */
    *fetch = (struct fetch_req){0};
    scratch_init(&op->scratch, MIB(256));
    catalog_hold(op->run->catalog);
    op->status = wants_copy(op, req);
    op->pages = calloc(manifest->page_count + (size_t)1, sizeof *op->pages);
    op->ranks = calloc(manifest->world_size + (size_t)1, 1);
    if (op->status == 0 && (!op->pages || !op->ranks)) {
        op->status = CAIRN_E_NO_MEMORY;
    }
    if (op->status) {
        answer(op, op->status, &op->diag);
        return;
    }
    op->sect.chunk_bytes = manifest->chunk_bytes;
    next_page(op);
}

void run_plan(struct run *run, struct plan_req *req)
{
    CHECK(req->done != NULL);
    CHECK(req->wants != NULL || req->want_count == 0);
    req->status = 0;
    diag_clear(&req->diag);
    req->read_count = 0;
    req->reads = NULL;
    req->op = NULL;
    req->run = run;
    req->manifest = (struct fetch_req){.id = req->id, .kind = STORE_MANIFEST, .done = on_manifest};
    run_fetch(run, &req->manifest);
}

void run_plan_cancel(struct plan_req *req)
{
    run_fetch_release(&req->manifest);
    if (req->op) {
        op_end(req->op);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks the chain of hashes from the record to the document that is asked for: commit entry,
 * manifest, parts page, part. Each step is a document that was checked against the one before it.
 * Loop's thread.
 *
 *   record --> manifest --+--> (manifest itself)
 *                         +--> page n
 *                         +--> parts page of the rank --> part
 */
#include "run_fetch.h"

#include "base/check.h"
#include "run_private.h"

#include <stdlib.h>

struct fetch_op {
    struct fetch_req *req;
    uint64_t tag; /* the open_id of the commit */
    struct doc_req manifest, page, part;
};

static void on_state(struct run_snapshot_req *snapshot);
static void on_manifest(struct doc_req *req);
static void on_page(struct doc_req *req);
static void on_part(struct doc_req *req);

void run_fetch(struct run *run, struct fetch_req *req)
{
    CHECK(!req->run);
    CHECK(req->done != NULL);
    req->status = 0;
    diag_clear(&req->diag);
    req->data = NULL;
    req->bytes = 0;
    req->manifest = NULL;
    req->page = NULL;
    req->part = NULL;
    req->doc = NULL;
    req->op = NULL;
    req->run = run;
    req->snapshot = (struct run_snapshot_req){.done = on_state, .any_age = req->any_age};
    catalog_hold(run->catalog);
    run_snapshot(run, &req->snapshot);
}

/* Ends a fetch that is over or cancelled. No operation of it is under way any more. */
static void end(struct fetch_req *req)
{
    struct catalog *catalog = req->run->catalog;
    struct fetch_op *op = req->op;

    run_snapshot_cancel(&req->snapshot);
    if (op) {
        doc_release(&op->manifest);
        doc_release(&op->page);
        doc_release(&op->part);
        free(op);
    }
    req->op = NULL;
    req->run = NULL;
    catalog_drop(catalog);
}

void run_fetch_release(struct fetch_req *req)
{
    if (req->run) {
        end(req);
    }
    if (req->doc) {
        struct doc_req ref = {.doc = req->doc};
        req->doc = NULL;
        doc_release(&ref);
    }
    req->data = NULL;
    req->manifest = NULL;
    req->page = NULL;
    req->part = NULL;
}

static void fail(struct fetch_req *req, int status, const struct diag *diag)
{
    CHECK(status != 0);
    req->status = status;
    diag_copy(&req->diag, diag);
    end(req);
    req->done(req);
}

/* Answers the request with the document. The request owns the reference from here on. */
static void succeed(struct fetch_op *op, struct doc_req *ref)
{
    struct fetch_req *req = op->req;
    struct doc *doc = ref->doc;

    CHECK(doc->ready);
    CHECK(doc->key.name.kind == req->kind);
    ref->doc = NULL; /* the request gets the reference */
    req->doc = doc;
    req->data = doc->data;
    req->bytes = (size_t)doc->key.bytes;
    switch (doc->key.name.kind) {
    case STORE_MANIFEST:
        req->manifest = &doc->manifest;
        break;
    case STORE_PAGE:
        req->page = &doc->page;
        break;
    case STORE_PART:
        req->part = &doc->part;
        break;
    }
    end(req);
    req->done(req);
}

/* Asks for a document of the checkpoint. Only the document that was asked for is read anew if
 * `fresh` is set; those that lead to it may come from the cache. */
static void get(struct fetch_op *op, struct doc_req *req, enum store_kind kind, uint32_t number)
{
    req->key.name = (struct store_name){.run = op->req->run->name,
                                        .id = op->req->id,
                                        .kind = kind,
                                        .number = number,
                                        .tag = op->tag};
    req->fresh = op->req->fresh && kind == op->req->kind;
    if (docs_get(op->req->run->catalog, req) != 0) {
        fail(op->req, req->status, &req->diag);
    }
}

/* Called with the run's state: it says whether the checkpoint is there and which manifest it has.
 */
static void on_state(struct run_snapshot_req *snapshot)
{
    struct fetch_req *req = container_of(snapshot, struct fetch_req, snapshot);
    const struct state_commit *commit;
    struct diag diag = DIAG_INIT;
    char text[CKPT_TEXT_MAX];

    if (snapshot->status) {
        fail(req, snapshot->status, &snapshot->diag);
        return;
    }
    ckpt_text(&req->run->name, req->id, text);
    /* It may be forgotten: the claim of an open save or the lease of a restore keeps it
     * readable. */
    commit = state_commit_known(snapshot->state, req->id);
    if (!commit) {
        diag_set(&diag, CAIRN_E_NOT_FOUND,
                 "there is no %s: it was never committed, or it was forgotten and reclaimed", text);
        fail(req, CAIRN_E_NOT_FOUND, &diag);
        return;
    }
    struct fetch_op *op = req->op = calloc(1, sizeof *op);
    if (!op) {
        diag_no_memory(&diag, "reading %s", text);
        fail(req, CAIRN_E_NO_MEMORY, &diag);
        return;
    }
    op->req = req;
    op->tag = commit->entry.open_id;
    op->manifest.done = on_manifest;
    op->manifest.key.sha256 = commit->entry.manifest_sha256;
    op->manifest.key.bytes = commit->entry.manifest_bytes;
    get(op, &op->manifest, STORE_MANIFEST, 0);
}

static void fail_not_found(struct fetch_op *op, const char *what, uint32_t number)
{
    struct diag diag = DIAG_INIT;
    char text[CKPT_TEXT_MAX];

    ckpt_text(&op->req->run->name, op->req->id, text);
    diag_set(&diag, CAIRN_E_NOT_FOUND, "%s has no %s %u", text, what, number);
    fail(op->req, CAIRN_E_NOT_FOUND, &diag);
}

static void get_page(struct fetch_op *op, uint32_t number)
{
    CHECK(number < op->manifest.doc->manifest.page_count);
    const struct page_ref *ref = &op->manifest.doc->manifest.pages[number];

    op->page.done = on_page;
    op->page.key.sha256 = ref->sha256;
    op->page.key.bytes = ref->bytes;
    get(op, &op->page, STORE_PAGE, number);
}

/* Called with the manifest. It is the answer, or it says where the wanted page or part is. */
static void on_manifest(struct doc_req *req)
{
    struct fetch_op *op = container_of(req, struct fetch_op, manifest);
    const struct manifest *manifest;
    uint64_t before = 0;

    if (req->status) {
        fail(op->req, req->status, &req->diag);
        return;
    }
    manifest = &req->doc->manifest;
    switch (op->req->kind) {
    case STORE_MANIFEST:
        succeed(op, req);
        return;
    case STORE_PAGE:
        if (op->req->number < manifest->page_count) {
            get_page(op, op->req->number);
        } else {
            fail_not_found(op, "page", op->req->number);
        }
        return;
    case STORE_PART:
        for (uint32_t i = 0; i < manifest->page_count; i++) {
            if (manifest->pages[i].kind == PAGE_PARTS &&
                op->req->number < before + manifest->pages[i].entry_count) {
                get_page(op, i);
                return;
            }
            before += manifest->pages[i].kind == PAGE_PARTS ? manifest->pages[i].entry_count : 0;
        }
        fail_not_found(op, "part of rank", op->req->number);
        return;
    }
    fail_not_found(op, "file of kind", op->req->kind);
}

/* Called with a page. It is the answer, or it describes the wanted part. */
static void on_page(struct doc_req *req)
{
    struct fetch_op *op = container_of(req, struct fetch_op, page);
    const struct page *page;

    if (req->status) {
        fail(op->req, req->status, &req->diag);
        return;
    }
    if (op->req->kind == STORE_PAGE) {
        succeed(op, req);
        return;
    }
    page = &req->doc->page;
    for (uint32_t i = 0; i < page->entry_count && page->kind == PAGE_PARTS; i++) {
        const struct part_ref *ref = &page->parts[i];
        if (ref->rank == op->req->number) {
            op->part.done = on_part;
            op->part.key.sha256 = ref->sha256;
            op->part.key.bytes = ref->bytes;
            get(op, &op->part, STORE_PART, ref->rank);
            return;
        }
    }
    fail_not_found(op, "part of rank", op->req->number);
}

static void on_part(struct doc_req *req)
{
    struct fetch_op *op = container_of(req, struct fetch_op, part);

    if (req->status) {
        fail(op->req, req->status, &req->diag);
    } else {
        succeed(op, req);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of verified manifests, pages and parts. Invariant: a document that is `ready` has
 * matched its key's SHA-256 and its own structure; a document that failed leaves the table before
 * any request is told. Loop's thread, except work_verify.
 */
#include "docs.h"

#include "base/check.h"
#include "run_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct upload {
    struct list link;
    struct store_name name;
    size_t bytes;
    uint8_t *data;
};

static void doc_fetch(struct doc *doc);
static void on_fetched(struct store_req *req);
static void work_verify(struct work *work);
static void on_verified(struct work *work);
static void on_posted(struct post *post);

void docs_init(struct docs *docs, uint64_t bytes_max, uint64_t upload_bytes_max)
{
    memset(docs, 0, sizeof *docs);
    for (size_t i = 0; i < DOC_BUCKETS; i++) {
        list_init(&docs->buckets[i]);
    }
    list_init(&docs->lru);
    list_init(&docs->uploads);
    docs->bytes_max = bytes_max;
    docs->upload_bytes_max = upload_bytes_max;
}

static bool name_equal(const struct store_name *a, const struct store_name *b)
{
    return a->kind == b->kind && a->number == b->number && a->tag == b->tag &&
           ckpt_id_equal(a->id, b->id) && run_name_equal(&a->run, &b->run);
}

static bool key_equal(const struct doc_key *a, const struct doc_key *b)
{
    return a->bytes == b->bytes && memcmp(&a->sha256, &b->sha256, sizeof a->sha256) == 0 &&
           name_equal(&a->name, &b->name);
}

static void upload_free(struct docs *docs, struct upload *upload)
{
    CHECK(docs->upload_bytes >= upload->bytes);
    list_remove(&upload->link);
    docs->upload_bytes -= upload->bytes;
    free(upload->data);
    free(upload);
}

static void doc_free(struct docs *docs, struct doc *doc)
{
    CHECK(doc->refs == 0);
    CHECK(list_is_empty(&doc->waiters));
    CHECK(!doc->posted);
    CHECK(docs->bytes >= doc->cost);
    list_remove(&doc->bucket);
    list_remove(&doc->lru);
    docs->bytes -= doc->cost;
    scratch_fini(&doc->scratch);
    free(doc->data);
    free(doc);
}

void docs_fini(struct docs *docs)
{
    struct list *node;
    while ((node = list_pop(&docs->lru))) {
        doc_free(docs, list_item(node, struct doc, lru));
    }
    while ((node = list_pop(&docs->uploads))) {
        upload_free(docs, list_item(node, struct upload, link));
    }
}

void docs_add_upload(struct docs *docs, const struct store_name *name, size_t bytes,
                     const void *data)
{
    struct upload *upload;

    if (bytes > docs->upload_bytes_max) {
        return;
    }
    /* The part was sent again: the newer bytes are the published ones. */
    for (struct list *before = &docs->uploads; before->next != &docs->uploads;) {
        if (name_equal(&list_item(before->next, struct upload, link)->name, name)) {
            struct list *old = list_pop(before);
            CHECK(old != NULL);
            upload_free(docs, list_item(old, struct upload, link));
        } else {
            before = before->next;
        }
    }
    /* The oldest bytes belong to a save that never finished. */
    while (docs->upload_bytes + bytes > docs->upload_bytes_max) {
        struct list *oldest = list_pop(&docs->uploads);
        CHECK(oldest != NULL);
        upload_free(docs, list_item(oldest, struct upload, link));
    }
    upload = calloc(1, sizeof *upload);
    if (!upload || !(upload->data = malloc(bytes ? bytes : 1))) {
        free(upload); /* it was only a hint: the bytes will be read back */
        return;
    }
    memcpy(upload->data, data, bytes);
    upload->name = *name;
    upload->bytes = bytes;
    docs->upload_bytes += bytes;
    CHECK(docs->upload_bytes <= docs->upload_bytes_max);
    list_add_tail(&docs->uploads, &upload->link);
}

/* Returns the uploaded bytes of that name, which the caller then owns, or NULL if there are
 * none. */
static uint8_t *upload_take(struct docs *docs, const struct doc_key *key)
{
    list_each (node, &docs->uploads) {
        struct upload *upload = list_item(node, struct upload, link);
        if (upload->bytes == key->bytes && name_equal(&upload->name, &key->name)) {
            uint8_t *data = upload->data;
            upload->data = NULL;
            upload_free(docs, upload);
            return data;
        }
    }
    return NULL;
}

static bool is_idle(const struct doc *doc)
{
    return doc->refs == 0 && doc->ready && list_is_empty(&doc->waiters) && !doc->posted;
}

/* Frees documents, the least recently used first, until the cache is within its limit. Documents in
 * use stay. */
static void evict(struct docs *docs)
{
    list_each_safe (node, &docs->lru) {
        struct doc *doc = list_item(node, struct doc, lru);
        if (docs->bytes <= docs->bytes_max) {
            return;
        }
        if (is_idle(doc)) {
            doc_free(docs, doc);
        }
    }
}

/* Removes a document from the table, so that it is not found any more. One that is in use is freed
 * when it is the oldest. */
static void doc_forget(struct docs *docs, struct doc *doc)
{
    if (is_idle(doc)) {
        doc_free(docs, doc);
    } else {
        list_remove(&doc->bucket);
    }
}

static struct doc *doc_find(struct docs *docs, const struct doc_key *key)
{
    struct list *bucket = &docs->buckets[key->sha256.bytes[0] % DOC_BUCKETS];

    list_each (node, bucket) {
        struct doc *doc = list_item(node, struct doc, bucket);
        if (key_equal(&doc->key, key)) {
            return doc;
        }
    }
    return NULL;
}

static void doc_post(struct doc *doc)
{
    if (!doc->posted) {
        doc->posted = true;
        catalog_hold(doc->catalog);
        loop_post(doc->catalog->loop, &doc->post);
    }
}

/* Returns the size of the scratch: decoded structs are a few times as large as their records
 * (names, fixed arrays of dimensions). */
static size_t doc_scratch_bytes(const struct doc_key *key)
{
    return (size_t)key->bytes * 16 + KIB(64);
}

/* Returns a document that is in the table and not yet read; NULL if there is no memory. */
static struct doc *doc_new(struct catalog *catalog, const struct doc_key *key)
{
    struct doc *doc = calloc(1, sizeof *doc);

    if (!doc) {
        return NULL;
    }
    doc->catalog = catalog;
    doc->key = *key;
    doc->post.cb = on_posted;
    doc->work.run = work_verify;
    doc->work.done = on_verified;
    list_init(&doc->waiters);
    list_init(&doc->bucket);
    list_init(&doc->lru);
    scratch_init(&doc->scratch, doc_scratch_bytes(key));
    list_add_tail(&catalog->docs.buckets[key->sha256.bytes[0] % DOC_BUCKETS], &doc->bucket);
    list_add_tail(&catalog->docs.lru, &doc->lru);
    return doc;
}

static uint64_t kind_bytes_max(enum store_kind kind)
{
    return kind == STORE_MANIFEST ? LIMIT_MANIFEST_BYTES
           : kind == STORE_PAGE   ? LIMIT_PAGE_BYTES
                                  : LIMIT_PART_BYTES;
}

/* Starts to read the document: a document that is larger than its kind allows fails without a read.
 */
static void doc_load(struct doc *doc)
{
    CHECK(!doc->ready);
    CHECK(doc->data == NULL);
    struct catalog *catalog = doc->catalog;
    char text[256];

    if (doc->key.bytes > kind_bytes_max(doc->key.name.kind)) {
        doc_name_text(&doc->key.name, sizeof text, text);
        doc->status =
            diag_set(&doc->diag, CAIRN_E_TOO_LARGE, "%s has %llu bytes, which is above the limit",
                     text, (unsigned long long)doc->key.bytes);
        doc_post(doc);
        return;
    }
    catalog_hold(catalog);
    doc->data = doc->fresh ? NULL : upload_take(&catalog->docs, &doc->key);
    if (doc->data) {
        doc->uploaded = true;
        doc->data_bytes = (size_t)doc->key.bytes;
        work_submit(catalog->options.pool, &doc->work);
        return;
    }
    doc_fetch(doc);
}

static void doc_fetch(struct doc *doc)
{
    struct catalog *catalog = doc->catalog;

    doc->req = (struct store_req){.op = STORE_FETCH,
                                  .name = doc->key.name,
                                  .run = doc->key.name.run,
                                  .deadline_ms = RUN_STORE_DEADLINE_MS,
                                  .from_medium = doc->fresh,
                                  .done = on_fetched};
    store_submit(catalog->store, &doc->req);
}

static void doc_wait(struct doc *doc, struct doc_req *req)
{
    CHECK(!req->pending);
    list_add_tail(&doc->waiters, &req->link);
    req->doc = doc;
    req->pending = true;
}

static int doc_no_memory(struct doc_req *req)
{
    char text[256];
    doc_name_text(&req->key.name, sizeof text, text);
    return diag_no_memory(&req->diag, "reading %s", text);
}

int docs_get(struct catalog *catalog, struct doc_req *req)
{
    struct doc *doc = doc_find(&catalog->docs, &req->key);

    CHECK(req->done != NULL);
    CHECK(!req->pending);
    CHECK(!req->doc);
    req->status = 0;
    diag_clear(&req->diag);
    if (doc && req->fresh && (doc->ready || !doc->fresh)) {
        doc_forget(&catalog->docs, doc);
        doc = NULL;
    }
    if (!doc) {
        doc = doc_new(catalog, &req->key);
        if (!doc) {
            return req->status = doc_no_memory(req);
        }
        doc->fresh = req->fresh;
        doc_wait(doc, req);
        doc_load(doc);
        return 0;
    }
    list_remove(&doc->lru);
    list_add_tail(&catalog->docs.lru, &doc->lru);
    doc_wait(doc, req);
    if (doc->ready) {
        doc_post(doc);
    }
    return 0;
}

void doc_release(struct doc_req *req)
{
    struct doc *doc = req->doc;

    if (!doc) {
        return;
    }
    req->doc = NULL;
    if (req->pending) {
        req->pending = false;
        list_remove(&req->link);
        return; /* the load goes on and fills the cache */
    }
    CHECK(doc->refs > 0);
    doc->refs--;
    evict(&doc->catalog->docs);
}

/* Called when the bytes were read. They are verified in the pool, because this may take long. */
static void on_fetched(struct store_req *req)
{
    struct doc *doc = container_of(req, struct doc, req);
    char text[256];

    CHECK(!doc->ready);
    doc_name_text(&doc->key.name, sizeof text, text);
    if (req->status == CAIRN_E_NOT_FOUND) {
        doc->status = diag_set(&doc->diag, CAIRN_E_DAMAGED, "%s is missing from the store", text);
    } else if (req->status) {
        doc->status = req->status;
        diag_copy(&doc->diag, &req->diag);
        diag_add(&doc->diag, "read %s", text);
    } else {
        doc->data = req->ret_data;
        doc->data_bytes = req->ret_bytes;
    }
    if (req->status) {
        free(req->ret_data); /* it was read, but the answer came too late */
    }
    req->ret_data = NULL;
    if (doc->status) {
        doc_post(doc);
        catalog_drop(doc->catalog);
    } else {
        work_submit(doc->catalog->options.pool, &doc->work);
    }
}

int doc_check(const struct doc_key *key, size_t bytes, const void *data, struct diag *diag)
{
    char text[256], have[17], want[17];

    doc_name_text(&key->name, sizeof text, text);
    if (key->bytes != 0 && bytes != key->bytes) {
        return diag_set(diag, CAIRN_E_DAMAGED, "%s is damaged: %zu bytes instead of %llu", text,
                        bytes, (unsigned long long)key->bytes);
    }
    struct sha256 sha = sha256(bytes, data);
    if (memcmp(&sha, &key->sha256, sizeof sha) != 0) {
        hex_encode(8, sha.bytes, have);
        hex_encode(8, key->sha256.bytes, want);
        return diag_set(diag, CAIRN_E_DAMAGED, "%s is damaged: its SHA-256 is %s… instead of %s…",
                        text, have, want);
    }
    return 0;
}

/* Hashes and decodes a document. Runs on a pool thread. */
static void work_verify(struct work *work)
{
    struct doc *doc = container_of(work, struct doc, work);
    size_t bytes = doc->data_bytes;
    char text[256];

    doc->status = doc_check(&doc->key, bytes, doc->data, &doc->diag);
    if (doc->status != 0) {
        return;
    }
    switch (doc->key.name.kind) {
    case STORE_MANIFEST:
        doc->status = manifest_decode(bytes, doc->data, &doc->scratch, &doc->manifest, &doc->diag);
        break;
    case STORE_PAGE:
        doc->status = page_decode(bytes, doc->data, &doc->scratch, &doc->page, &doc->diag);
        break;
    case STORE_PART:
        doc->status = part_decode(bytes, doc->data, &doc->scratch, &doc->part, &doc->diag);
        break;
    }
    if (doc->status) {
        doc_name_text(&doc->key.name, sizeof text, text);
        diag_add(&doc->diag, "%s", text);
    }
}

/* Answers all requests that wait for the document, and makes room in the cache if it is now too
 * large. The document is freed if it failed. */
static void doc_deliver(struct doc *doc)
{
    struct catalog *catalog = doc->catalog;
    struct list *node;

    CHECK(!doc->posted);
    CHECK(!doc->ready || doc->status == 0);
    CHECK(doc->ready || doc->refs == 0);
    if (!doc->ready) { /* first delivery: it goes into the cache, or out of the table */
        if (doc->status == 0) {
            doc->ready = true;
            doc->cost = (size_t)doc->key.bytes + doc->scratch.held + sizeof *doc;
            catalog->docs.bytes += doc->cost;
        } else {
            list_remove(&doc->bucket);
        }
    }
    doc->refs++; /* a callback may release the document */
    while ((node = list_pop(&doc->waiters))) {
        struct doc_req *req = list_item(node, struct doc_req, link);
        req->pending = false;
        req->status = doc->status;
        if (doc->status) {
            diag_copy(&req->diag, &doc->diag);
            req->doc = NULL;
        } else {
            doc->refs++;
        }
        req->done(req);
    }
    doc->refs--;
    if (!doc->ready) {
        doc_free(&catalog->docs, doc);
    }
    evict(&catalog->docs);
}

/* Called when the pool has verified the document. A document that a client has just uploaded is
 * read from the store if the uploaded bytes do not verify. */
static void on_verified(struct work *work)
{
    struct doc *doc = container_of(work, struct doc, work);
    struct catalog *catalog = doc->catalog;

    if (doc->status && doc->uploaded) { /* the hint was wrong: the bytes in the store count */
        doc->uploaded = false;
        doc->status = 0;
        diag_clear(&doc->diag);
        free(doc->data);
        doc->data = NULL;
        scratch_fini(&doc->scratch);
        scratch_init(&doc->scratch, doc_scratch_bytes(&doc->key));
        doc_fetch(doc);
        return;
    }
    doc_deliver(doc);
    catalog_drop(catalog);
}

static void on_posted(struct post *post)
{
    struct doc *doc = container_of(post, struct doc, post);
    struct catalog *catalog = doc->catalog;

    CHECK(doc->posted);
    doc->posted = false;
    doc_deliver(doc);
    catalog_drop(catalog);
}

void doc_name_text(const struct store_name *name, size_t bytes, char *ret)
{
    char ckpt[CKPT_TEXT_MAX];

    ckpt_text(&name->run, name->id, ckpt);
    switch (name->kind) {
    case STORE_MANIFEST:
        snprintf(ret, bytes, "the manifest of %s", ckpt);
        return;
    case STORE_PART:
        snprintf(ret, bytes, "part %u of %s", name->number, ckpt);
        return;
    case STORE_PAGE:
        snprintf(ret, bytes, "page %u of %s", name->number, ckpt);
        return;
    }
    snprintf(ret, bytes, "a document of %s", ckpt);
}

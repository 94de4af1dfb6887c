/* SPDX-License-Identifier: Apache-2.0
 *
 * docs: manifests, pages and parts ("documents") as read from the store. Each is checked against
 * the SHA-256 that the caller knows from the level above, decoded, and kept in an LRU cache within
 * a byte budget while nobody uses it. One read serves all callers that ask at the same time.
 * Hashing and decoding run in the work pool, everything else on the loop.
 */
#ifndef CAIRN_RUN_DOCS_H
#define CAIRN_RUN_DOCS_H

#include "base/list.h"
#include "format/manifest.h"
#include "store/store.h"

struct catalog;

/* A document is found by its name, its hash and its size together. */
struct doc_key {
    struct store_name name;
    struct sha256 sha256;
    uint64_t bytes; /* for doc_check(): 0 if it is not known */
};
/* Compares bytes with what the level above says of them. Returns DAMAGED if they differ. Any
 * thread. */
int MUST_USE doc_check(const struct doc_key *key, size_t bytes, const void *data,
                       struct diag *diag);

/* A document in the cache or on its way into it. It is freed when no request refers to it and the
 * budget asks for room. */
struct doc {
    struct list bucket, lru;
    struct list waiters; /* doc_req.link of the requests that wait for it */
    struct catalog *catalog;
    struct doc_key key;
    unsigned refs;
    /* ready: status is final. posted: `post` is on its way. uploaded: data came from docs.uploads.
     * fresh: it is read for a caller that wants no cached bytes. */
    bool ready, posted, uploaded, fresh;
    uint8_t *data;
    size_t data_bytes, cost;
    struct scratch scratch;
    struct manifest manifest; /* one of these three is filled in, according to key.name.kind */
    struct page page;
    struct part part;
    int status;
    struct diag diag;
    struct store_req req;
    struct work work;
    struct post post;
};

struct doc_req {
    struct doc_key key;
    /* Called once, never inside docs_get(), and not if docs_get() failed. */
    void (*done)(struct doc_req *req);
    /* DAMAGED if it is missing or has another length or other contents; FORMAT; or the store's
     * error. */
    int status;
    struct diag diag;
    struct doc *doc; /* a reference until doc_release() */
    struct list link;
    bool pending;
    bool fresh; /* read the store now: use neither the cache nor uploaded bytes */
};

enum { DOC_BUCKETS = 256 };
struct docs {
    struct list buckets[DOC_BUCKETS];
    struct list lru;     /* least recently used first */
    struct list uploads; /* bytes of what was just published, oldest first */
    uint64_t bytes, bytes_max, upload_bytes, upload_bytes_max;
};

void docs_init(struct docs *docs, uint64_t bytes_max, uint64_t upload_bytes_max);
void docs_fini(struct docs *docs); /* nothing may be loading or referenced any more */
/* Looks the document up and starts to read it if necessary. Returns 0 if `done` will be called, or
 * NO_MEMORY, with req->diag, if it will not. */
int MUST_USE docs_get(struct catalog *catalog, struct doc_req *req);
/* Cancels a pending request, or gives the reference to the document back. Safe for an idle (zeroed)
 * request. */
void doc_release(struct doc_req *req);
/* Keeps a copy of the bytes of a document that was just published: a hint, which the next request
 * for it checks. */
void docs_add_upload(struct docs *docs, const struct store_name *name, size_t bytes,
                     const void *data);
/* Writes a name such as "part 1 of checkpoint 20@1 of project/run". */
void doc_name_text(const struct store_name *name, size_t bytes, char *ret);

#endif

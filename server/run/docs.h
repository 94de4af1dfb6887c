/* SPDX-License-Identifier: Apache-2.0
 *
 * docs: manifests, pages and parts, read from the store, checked against the SHA-256 that the
 * caller knows from the level above, decoded, kept by an LRU within a byte budget while nobody uses
 * them. One read serves all who ask at the same time. Hashing and decoding run in the work pool;
 * all else on the loop.
 */
#ifndef CAIRN_RUN_DOCS_H
#define CAIRN_RUN_DOCS_H

#include "base/list.h"
#include "format/manifest.h"
#include "store/store.h"

struct catalog;

struct doc_key {
    struct store_name name;
    struct sha256 sha256;
    uint64_t bytes;
};

struct doc {
    struct list bucket, lru;
    struct list waiters; /* doc_req */
    struct catalog *catalog;
    struct doc_key key;
    unsigned refs;
    bool ready, posted, uploaded, fresh;
    uint8_t *data;
    size_t cost;
    struct scratch scratch;
    struct manifest manifest; /* by key.name.kind */
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
    void (*done)(struct doc_req *req); /* once, never inside docs_get(), and not if that failed */
    int status; /* DAMAGED: missing, of other length or contents; FORMAT; the store's errors */
    struct diag diag;
    struct doc *doc; /* referenced until doc_release() */
    struct list link;
    bool pending;
    bool fresh; /* what the store holds now: neither the cache nor bytes that passed through */
};

enum { DOC_BUCKETS = 256 };
struct docs {
    struct list buckets[DOC_BUCKETS];
    struct list lru;     /* least recently used first */
    struct list uploads; /* bytes of parts just published, oldest first */
    uint64_t bytes, bytes_max, upload_bytes, upload_bytes_max;
};

void docs_init(struct docs *docs, uint64_t bytes_max, uint64_t upload_bytes_max);
void docs_fini(struct docs *docs); /* nothing may be loading or referenced */
/* Returns NO_MEMORY, with req->diag, if there is no memory to begin with; done does not come then.
 * Returns 0 otherwise. */
int MUST_USE docs_get(struct catalog *catalog, struct doc_req *req);
/* Cancels what is pending, lets go of the doc. Safe when idle (zeroed). */
void doc_release(struct doc_req *req);
void docs_add_upload(struct docs *docs, const struct store_name *name, size_t bytes,
                     const void *data);
/* "part 1 of checkpoint 20@1 of project/run" */
void doc_name_text(const struct store_name *name, size_t bytes, char *ret);

#endif

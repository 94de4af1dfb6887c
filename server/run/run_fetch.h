/* SPDX-License-Identifier: Apache-2.0
 *
 * Manifests, pages and parts of a committed checkpoint, verified: the commit entry names the
 * SHA-256 of the manifest, the manifest those of its pages, and the pages those of the parts.
 * Nothing is handed out before its hash and its own structure were checked. A document that fails
 * these checks is DAMAGED, and the text names kind, number and checkpoint. Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_FETCH_H
#define CAIRN_RUN_RUN_FETCH_H

#include "run.h"

#include "format/manifest.h"

struct doc;

struct fetch_req {
    struct ckpt_id id;
    enum store_kind kind;
    uint32_t number; /* page number in the manifest, or rank of a part; 0 for the manifest */
    bool fresh;      /* read the store now, not the cache; for callers that look for damage */
    /* Set by a caller that knows an opening in this daemon's copy of the record whose base is the
     * checkpoint. That keeps it from being reclaimed, so the copy will do, and is not read anew. */
    bool any_age;
    void (*done)(struct fetch_req *req); /* never called inside run_fetch() */
    /* NOT_FOUND if there is no such committed checkpoint, page or part; DAMAGED; NO_MEMORY; IO and
     * so on. */
    int status;
    struct diag diag;
    const uint8_t *data; /* as stored; valid until run_fetch_release() */
    size_t bytes;
    /* decoded; the one that `kind` names is set, the others are NULL. */
    const struct manifest *manifest;
    const struct page *page;
    const struct part *part;
    /* The fields below belong to run_fetch.c. */
    struct run *run; /* NULL if no fetch is under way */
    struct run_snapshot_req snapshot;
    struct doc *doc;
    struct fetch_op *op; /* NULL until the record is known */
};

/* Starts to fetch. Calls done once, unless cancelled. */
void run_fetch(struct run *run, struct fetch_req *req);
/* Gives the bytes back, or cancels a fetch that is under way; its callback does not come then. Safe
 * for an idle (zeroed) request. */
void run_fetch_release(struct fetch_req *req);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Small published things of a committed checkpoint, verified: the commit entry names the manifest's
 * SHA-256, the manifest its pages', the parts pages the parts'. Nothing is handed out before its
 * hash and its own structure were checked; what fails is DAMAGED and names kind, number and
 * checkpoint. Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_FETCH_H
#define CAIRN_RUN_RUN_FETCH_H

#include "run.h"

#include "format/manifest.h"

struct doc;

struct fetch_req {
    struct ckpt_id id;
    enum store_kind kind;
    uint32_t number; /* page number in the manifest, rank of a part; 0 for the manifest */
    bool fresh;      /* read from the store now, not from the cache: for who looks for damage */
    bool any_age;    /* an opening of this copy of the record has a claim on it: it is there, and
                      * what other daemons did since does not matter */
    void (*done)(struct fetch_req *req); /* never inside run_fetch() */
    /* NOT_FOUND: no such committed checkpoint, page or part; DAMAGED; NO_MEMORY; IO ... */
    int status;
    struct diag diag;
    const uint8_t *data; /* as stored; valid until run_fetch_release() */
    size_t bytes;
    const struct manifest *manifest; /* decoded, by kind; the others are NULL */
    const struct page *page;
    const struct part *part;
    /* the fetch's: */
    struct run *run; /* NULL: not on its way */
    struct run_snapshot_req snapshot;
    struct doc *doc;
    struct fetch_op *op; /* NULL until the record is known */
};

/* done comes once, unless cancelled. */
void run_fetch(struct run *run, struct fetch_req *req);
/* Lets go of the bytes, or cancels a fetch that is on its way (no callback then). Safe when idle
 * (zeroed). */
void run_fetch_release(struct fetch_req *req);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The base of an incremental save, as one rank may refer to it: its part of the base, and which of
 * the objects there are mostly dead (less than half of their bytes in use), so that their chunks
 * are sent anew and they can go some day. The claim in the open entry keeps the base there, also
 * when it is forgotten meanwhile. Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_BASE_H
#define CAIRN_RUN_RUN_BASE_H

#include "run_fetch.h"

enum { RUN_BASE_SPARSE_MAX = 4096 };

struct base_op;

struct base_req {
    struct ckpt_id id;
    uint32_t rank;
    void (*done)(struct base_req *req); /* never inside run_base() */
    int status; /* NOT_FOUND: the base has no part of this rank; DAMAGED, NO_MEMORY, IO ...:
                   nothing can be referred to */
    struct diag diag;
    uint32_t sparse_count;
    const struct object_id *sparse; /* ascending; valid during the callback */
    /* the request's own: */
    struct run *run;
    struct fetch_req fetch; /* of the part; the op's, once there is one */
    struct base_op *op;
};

/* done comes once, unless cancelled. */
void run_base(struct run *run, struct base_req *req);
void run_base_cancel(struct base_req *req); /* no callback then; safe when idle (zeroed) */

#endif

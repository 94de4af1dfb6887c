/* SPDX-License-Identifier: Apache-2.0
 *
 * What one rank may refer to in the base of an incremental save: its own part of the base, and the
 * list of objects there that are mostly dead (less than half of their bytes are in use). Chunks in
 * such objects are sent anew, so that the objects can be collected some day. The claim in the open
 * entry keeps the base readable, even if it is forgotten meanwhile. Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_BASE_H
#define CAIRN_RUN_RUN_BASE_H

#include "run_fetch.h"

enum { RUN_BASE_SPARSE_MAX = 4096 };

struct base_op;

struct base_req {
    struct ckpt_id id;
    uint32_t rank;
    void (*done)(struct base_req *req); /* never called inside run_base() */
    /* NOT_FOUND if the base has no part of this rank. After this or any other error (DAMAGED,
     * NO_MEMORY, IO and so on) the rank can refer to nothing. */
    int status;
    struct diag diag;
    uint32_t sparse_count;
    const struct object_id *sparse; /* sorted; valid during the callback */
    /* The fields below belong to run_base.c. */
    struct run *run;
    struct fetch_req fetch; /* of the part; belongs to op once op is set */
    struct base_op *op;
};

/* Finds the part and its sparse objects. Calls done once, unless cancelled. */
void run_base(struct run *run, struct base_req *req);
/* Done does not come any more; safe when idle (zeroed). */
void run_base_cancel(struct base_req *req);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a restore: which stored chunks make up the wanted boxes and blobs of a checkpoint.
 * Reads the manifest, the index pages whose range of names the wants touch, and the parts that hold
 * chunks of them, all verified (run_fetch.h). Boxes are general: what was saved by 8 ranks may be
 * wanted by 3.
 */
#ifndef CAIRN_RUN_RUN_PLAN_H
#define CAIRN_RUN_RUN_PLAN_H

#include "run_fetch.h"

#include "wire/msg.h"
#include "wire/plan.h"

struct plan_req {
    struct ckpt_id id;
    uint32_t want_count;
    const struct plan_want *wants;      /* borrowed until done or cancelled */
    void (*done)(struct plan_req *req); /* never inside run_plan() */
    /* NOT_FOUND; MISSING_TENSOR, SHAPE_MISMATCH, DTYPE_MISMATCH, INVALID naming the tensor; DAMAGED
     * naming the file; TOO_LARGE for a plan of more than PLAN_READS_MAX chunks; NO_MEMORY */
    int status;
    struct diag diag;
    size_t read_count;
    struct plan_read
        *reads; /* malloc'ed, the caller frees; sorted by (object, offset). A chunk that two wants
                 * touch is there twice. The cells cover each wanted box exactly. */
    /* the planner's: */
    struct run *run;
    struct fetch_req manifest; /* the op's, once there is one */
    struct plan_op *op;
};

enum { PLAN_READS_MAX = 1 << 20 };

void run_plan(struct run *run, struct plan_req *req);
void run_plan_cancel(struct plan_req *req); /* no callback afterwards; wants may go at once; safe
                                               when idle (zeroed) */

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * run_plan: finds the stored chunks that make up the wanted boxes and blobs of a checkpoint, as the
 * plan of a restore. It reads the manifest, the index pages whose range of names contains a want,
 * and the parts that hold wanted chunks, all verified (run_fetch.h). Boxes are general: a tensor
 * that 8 ranks saved may be wanted by 3.
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
    void (*done)(struct plan_req *req); /* never called inside run_plan() */
    /* NOT_FOUND; MISSING_TENSOR, SHAPE_MISMATCH, DTYPE_MISMATCH or INVALID, naming the tensor;
     * DAMAGED, naming the file; TOO_LARGE for a plan of more than PLAN_READS_MAX chunks; NO_MEMORY.
     */
    int status;
    struct diag diag;
    size_t read_count;
    struct plan_read
        /* malloc'ed, freed by the caller, sorted by (object, offset). A chunk that two wants touch
         * is in the list twice. The cells cover each wanted box exactly. */
        *reads;
    /* The fields below belong to run_plan.c. */
    struct run *run;
    struct fetch_req manifest; /* belongs to op once op is set */
    struct plan_op *op;
};

enum { PLAN_READS_MAX = 1 << 20 };

/* Starts to plan. Calls done once, unless cancelled. */
void run_plan(struct run *run, struct plan_req *req);
/* Cancels a plan: done does not come any more, and the wants may be freed at once. Safe when idle
 * (zeroed). */
void run_plan_cancel(struct plan_req *req);

#endif

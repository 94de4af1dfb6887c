/* SPDX-License-Identifier: Apache-2.0
 *
 * salvage: makes checkpoints again of which the run's record does not tell, because it was lost,
 * cut at its damaged end, or exchanged for an older copy: each manifest that the record does not
 * explain is read with all below it, and enters the record (EVENT_ADOPT). Oldest first, one update
 * each: it may be killed at any moment and begun again. A repair object does the work, on its
 * thread; one of repair and salvage at a time.
 */
#ifndef CAIRN_REPAIR_SALVAGE_H
#define CAIRN_REPAIR_SALVAGE_H

#include "repair/repair.h"

struct salvage_options {
    bool yes;         /* else only what would be done is told; the store may be read-only */
    bool accept_loss; /* a record whose end is lost goes on from what is left of it */
    bool quick;       /* manifests, pages and parts only: no object is read */
    bool discard;     /* what cannot be made whole is given up, as an aborted save is */
};

enum salvage_outcome {
    SALVAGE_WHOLE,    /* the checkpoint is in the record (or would be); the record was made good */
    SALVAGE_DAMAGED,  /* it is in the record as damaged: text says what is wrong with it */
    SALVAGE_GIVEN_UP, /* garbage collection removes it */
    SALVAGE_LEFT      /* nothing was done: text says why */
};

struct salvage_item {
    struct ckpt_id id; /* term 0: the record itself */
    enum salvage_outcome outcome;
    bool needs_accept_loss; /* left, for want of it */
    char text[REPAIR_TEXT_MAX];
};

/* As repair_begin(); the end is told by repair_options.ended. */
int MUST_USE salvage_begin(struct repair *repair, const struct run_name *run,
                           const struct salvage_options *how, const char *actor, struct diag *diag);
/* What was found, in the order in which it was done; malloc'ed, the caller's. Once it has ended. */
void salvage_take(struct repair *repair, struct salvage_item **ret, size_t *ret_count);

#endif

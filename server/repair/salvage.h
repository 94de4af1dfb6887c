/* SPDX-License-Identifier: Apache-2.0
 *
 * salvage: enters checkpoints again that the run's record does not know, because the record was
 * lost, was cut at its damaged end, or was replaced by an older copy. Each manifest that the record
 * does not explain is read with everything below it and enters the record (EVENT_ADOPT). The oldest
 * comes first, with one update each, so a salvage may be killed at any moment and begun again. A
 * repair object does the work on its thread; only one repair or salvage runs at a time.
 */
#ifndef CAIRN_REPAIR_SALVAGE_H
#define CAIRN_REPAIR_SALVAGE_H

#include "repair/repair.h"

struct salvage_options {
    bool yes;         /* do it; otherwise it is only reported, and the store may be read-only */
    bool accept_loss; /* a record whose end is lost goes on from its intact start */
    bool quick;       /* reads manifests, pages and parts only, no objects */
    bool discard;     /* checkpoints that cannot be made whole are given up, like an aborted save */
    bool
        same_marks; /* of a copy: tags and pins that the other store does not have are taken away */
};

enum salvage_outcome {
    SALVAGE_WHOLE,    /* the checkpoint is (or would be) in the record; the record was mended */
    SALVAGE_DAMAGED,  /* it is in the record as damaged; text says what is wrong with it */
    SALVAGE_GIVEN_UP, /* garbage collection removes it */
    SALVAGE_LEFT,     /* nothing was done; text says why */
    SALVAGE_THERE     /* of a copy: nothing was to do */
};

struct salvage_item {
    struct ckpt_id id; /* term 0 for the record itself */
    enum salvage_outcome outcome;
    bool needs_accept_loss; /* it was left because accept_loss is not set */
    char text[REPAIR_TEXT_MAX];
};

/* Begins a salvage, with the errors of repair_begin(); repair_options.ended tells its end. */
int MUST_USE salvage_begin(struct repair *repair, const struct run_name *run,
                           const struct salvage_options *how, const char *actor, struct diag *diag);
/* Gives the items in the order of the work, once the salvage has ended. The array is malloc'ed and
 * the caller frees it. */
void salvage_take(struct repair *repair, struct salvage_item **ret, size_t *ret_count);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The outcome of forgetting, undeleting, pinning or reclaiming, for each checkpoint of a batch. The
 * outcomes are a part of the verdict (commit.h). Pure.
 */
#ifndef CAIRN_CORE_COMMIT_FORGET_H
#define CAIRN_CORE_COMMIT_FORGET_H

#include "format/ids.h"

/* The outcome for one checkpoint of a batch. A batch is not a transaction: all changes that are
 * allowed are made in one update, and each other checkpoint is named with its reason. */
enum mark_outcome {
    MARK_DONE = 0,
    MARK_ALREADY,   /* nothing to change; no error, so that a batch may be repeated */
    MARK_UNKNOWN,   /* it was never committed */
    MARK_FORGOTTEN, /* PIN: it must be undeleted first */
    MARK_RECLAIMED, /* it is too late to undelete it */
    MARK_EARLY,     /* RECLAIM: it is not forgotten, or was forgotten too recently */
    MARK_PINNED,
    MARK_CLAIMED,
    MARK_LEASED,
    MARK_PARENT,
    MARK_NEWEST,  /* it is the newest good checkpoint of the lineage */
    MARK_NO_GOOD, /* the lineage has no good checkpoint, so nothing is forgotten */
    MARK_LEAST,   /* too few good checkpoints would be left */
    MARK_APART,   /* all good checkpoints that are left would share objects */
    MARK_KEPT,    /* a rule of the policy keeps it; `reasons` says which */
};
/* Returns the words that follow the checkpoint's name in a sentence, such as "is pinned". */
const char *mark_outcome_text(enum mark_outcome outcome);

struct mark {
    struct ckpt_id id;
    enum mark_outcome outcome;
    uint64_t reasons; /* if a policy keeps it: bits of enum retention_reason (retention.h) */
    int64_t wall_ns;
};

#endif

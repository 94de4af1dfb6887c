/* SPDX-License-Identifier: Apache-2.0
 *
 * What became of each checkpoint of a batch that was forgotten, brought back, pinned or reclaimed:
 * part of the verdict (commit.h). Pure.
 */
#ifndef CAIRN_CORE_COMMIT_FORGET_H
#define CAIRN_CORE_COMMIT_FORGET_H

#include "format/ids.h"

/* What became of a checkpoint of a batch. A batch is no transaction: what may be done is done, in
 * one update, and the rest is named with its reason. */
enum mark_outcome {
    MARK_DONE = 0,
    MARK_ALREADY,   /* it was so before: no error, so that a batch may be repeated */
    MARK_UNKNOWN,   /* was never committed */
    MARK_FORGOTTEN, /* PIN: undelete it first */
    MARK_RECLAIMED, /* too late to undelete */
    MARK_EARLY,     /* RECLAIM: not forgotten, or not for long enough */
    MARK_PINNED,
    MARK_CLAIMED,
    MARK_LEASED,
    MARK_PARENT,
    MARK_NEWEST,  /* the newest good one of the lineage */
    MARK_NO_GOOD, /* the lineage has no good one: nothing is forgotten */
    MARK_LEAST,   /* fewer good ones would be left than must be */
    MARK_APART,   /* all good ones that are left would share objects */
    MARK_KEPT,    /* a policy's rule keeps it: see the reasons */
};
/* "is pinned" ...: what follows the checkpoint's name in a sentence. */
const char *mark_outcome_text(enum mark_outcome outcome);

struct mark {
    struct ckpt_id id;
    enum mark_outcome outcome;
    uint64_t reasons; /* of a policy that keeps it: retention.h */
    int64_t wall_ns;
};

#endif

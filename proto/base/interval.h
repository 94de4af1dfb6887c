/* SPDX-License-Identifier: Apache-2.0
 *
 * interval: how often to save, from what was measured: Young's rule in Daly's higher order, with
 * failures counted against a prior, a cap on the time that goes into saves, and the rate at which
 * saves can become durable apart. For `cairn advise` and for Checkpointer(interval="auto"). Pure.
 */
#ifndef CAIRN_BASE_INTERVAL_H
#define CAIRN_BASE_INTERVAL_H

#include "base/diag.h"

#include <stddef.h>
#include <stdint.h>

/* Where nothing was seen yet: one unexpected stop in so many hours of one accelerator (Llama 3's
 * training: 419 in 54 days of 16,384). */
#define INTERVAL_PRIOR_RANK_HOURS 50700.0

/* Times in seconds; 0 means the default where one is given. */
struct interval_input {
    double blocked_s;    /* training stands still so long for one save; above 0 */
    double persist_s;    /* from the call until durable; at least blocked_s is assumed */
    double restart_s;    /* from a failure until training goes on, restore included */
    double observed_s;   /* training that was watched for failures */
    uint64_t failures;   /* seen in it */
    double prior_mtbf_s; /* what to expect before that; 0: of the ranks, from the figure above */
    double prior_weight; /* failures that the prior counts as; 0: 1 */
    uint32_t ranks;      /* 0: 1 */
    uint32_t in_flight;  /* saves that may be on their way at once; 0: 1 */
    double overhead_max; /* share of the time that saves may take, below 1; 0: 0.05 */
};

enum interval_bound { /* what decided */
                      INTERVAL_OPTIMUM,
                      INTERVAL_OVERHEAD, /* the cap: saving more often would pay, but is not wanted
                                          */
                      INTERVAL_PERSIST   /* saves cannot become durable faster; of durable_s only */
};

struct interval_advice {
    double mtbf_s;    /* failures and prior together */
    double optimum_s; /* of training between the end of one save and the next, by Daly */
    double staged_s;  /* the same within the cap: what saves cost that are only staged */
    double durable_s; /* the same, but not faster than saves become durable: use this one */
    enum interval_bound bound; /* what made durable_s what it is */
    double overhead;           /* share of the time that saves every durable_s take */
    double lost_s;             /* of training, by one failure, on average; restart_s not counted */
    double waste; /* share of the time for saves, repeated training and restarts; at most 1 */
};

/* INVALID names what is negative, infinite or not a number. ret is written only on success. */
int MUST_USE interval_advise(const struct interval_input *input, struct interval_advice *ret,
                             struct diag *diag);

enum { INTERVAL_TEXT_BYTES = 640 };
/* The advice in three lines, each ended by a newline: failures, saves, what follows. */
void interval_explain(const struct interval_input *input, const struct interval_advice *advice,
                      char ret[INTERVAL_TEXT_BYTES]);

#endif

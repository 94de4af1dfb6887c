/* SPDX-License-Identifier: Apache-2.0
 *
 * interval: how often to save, from measured times: Young's rule in Daly's higher order, with
 * failures counted against a prior, a cap on the time that goes into saves, and the rate at which
 * saves become durable. Used by `cairn advise`, by `cairn plan` and by
 * Checkpointer(interval="auto"). Pure.
 */
#ifndef CAIRN_BASE_INTERVAL_H
#define CAIRN_BASE_INTERVAL_H

#include "base/diag.h"

#include <stdint.h>

/* What is assumed before anything was seen: one unexpected stop in so many hours of one
 * accelerator. The figure is that of Llama 3's training, 419 stops in 54 days of 16,384
 * accelerators. */
#define INTERVAL_PRIOR_RANK_HOURS 50700.0

/* Times are in seconds. 0 means the default where one is given. */
struct interval_input {
    double blocked_s;    /* how long training stands still for one save; above 0 */
    double persist_s;    /* from the call until durable; at least blocked_s is assumed */
    double restart_s;    /* from a failure until training goes on, with the restore */
    double observed_s;   /* training that was watched for failures */
    uint64_t failures;   /* failures that were seen in it */
    uint64_t planned;    /* restarts that were none; only told */
    double prior_mtbf_s; /* what to expect before that; 0 means the figure above, for `ranks` */
    double prior_weight; /* failures that the prior counts as; 0 means 1 */
    uint32_t ranks;      /* 0 means 1 */
    uint32_t in_flight;  /* saves that may be on their way at once; 0 means 1 */
    double overhead_max; /* share of the time that saves may take, below 1; 0 means 0.05 */
};

enum interval_bound { /* what decided the interval */
                      INTERVAL_OPTIMUM,
                      /* The cap: saving more often would pay, but is not wanted. */
                      INTERVAL_OVERHEAD,
                      INTERVAL_PERSIST /* saves cannot become durable faster; in durable_s only */
};

/* The advice. Times are in seconds. */
struct interval_advice {
    double mtbf_s;             /* from failures and prior together */
    double optimum_s;          /* training between the end of one save and the next, by Daly */
    double staged_s;           /* the same within the cap; saves then cost what staging costs */
    double durable_s;          /* the same, but no faster than saves become durable: use this one */
    enum interval_bound bound; /* what made durable_s what it is */
    double overhead;           /* share of the time that saves every durable_s take */
    /* Training that one failure loses on average; restart_s is not counted. */
    double lost_s;
    /* Share of the time for saves, repeated training and restarts; at most 1. */
    double waste;
};

/* Computes the advice. INVALID names the input that is negative, infinite or not a number; then ret
 * is not written. */
int MUST_USE interval_advise(const struct interval_input *input, struct interval_advice *ret,
                             struct diag *diag);

/* Computes what saving every io->durable_s costs: overhead, lost_s and waste. io->mtbf_s is set,
 * and the input is one that interval_advise() has taken. */
void interval_cost(const struct interval_input *input, struct interval_advice *io);

struct interval_span {
    char text[24];
};
/* Writes a time as people do: "3.4 ms", "5 min", "4.1 days". */
struct interval_span interval_span(double seconds);

enum { INTERVAL_COST_BYTES = 164, INTERVAL_TEXT_BYTES = 640 };
/* Writes what interval_cost() has computed as a part of a line. */
void interval_explain_cost(const struct interval_advice *advice, char ret[INTERVAL_COST_BYTES]);
/* Writes the advice as three lines, each with a newline: failures, saves, and what follows from
 * them. */
void interval_explain(const struct interval_input *input, const struct interval_advice *advice,
                      char ret[INTERVAL_TEXT_BYTES]);

#endif

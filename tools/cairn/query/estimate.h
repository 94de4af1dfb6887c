/* SPDX-License-Identifier: Apache-2.0
 *
 * estimate: what a training needs before it runs: bytes, memory, rates, disk, and the work that
 * failures cost. The disk follows "How large a disk" of docs/operator-day.md, the failures and the
 * interval come from base/interval.h. Pure.
 */
#ifndef CAIRN_TOOLS_ESTIMATE_H
#define CAIRN_TOOLS_ESTIMATE_H

#include "base/interval.h"

#include <stdbool.h>

/* Sizes are in bytes, times in seconds, rates in bytes per second. */
struct estimate_input {
    double params, bytes_per_param;
    double stored_ratio; /* stored bytes of one plain byte, above 0 and at most 1 */
    uint64_t ranks, ranks_per_node, snapshots, keep;
    double interval_s;        /* 0 means the advised one */
    double forget_s;          /* between two times that policies are applied */
    double wait_s;            /* until a forgotten checkpoint is reclaimed */
    double reserve_bytes;     /* [store] reserve */
    double free_share;        /* [gc] pressure as a share of the disk, below 1 */
    double copy_rate;         /* of one rank, into its arena */
    double write_rate;        /* of the store; 0 means as much as the plan needs */
    double price_per_tib;     /* of a month */
    double restart_s, mtbf_s; /* as of struct interval_input; its prior */
    double overhead_max;
};

struct estimate {
    double checkpoint_bytes, stored_bytes;
    double rank_bytes, arena_bytes, arena_node_bytes;
    double interval_s;
    double unforgotten;       /* checkpoints that are no longer kept, and not yet forgotten */
    double waiting;           /* forgotten checkpoints whose room is not reclaimed yet */
    double disk_bytes, price; /* of a month */
    double write_rate;        /* that makes a save durable within the interval */
    double network_rate;      /* bytes per second that the server receives from all ranks */
    double network_node_rate; /* from a node */
    double failures_per_month, lost_rank_hours_per_month;
    bool is_durable_in_time;     /* the given write_rate is enough */
    struct interval_input input; /* of the advice */
    struct interval_advice advice;
    struct interval_advice at; /* what interval_s costs; its durable_s is interval_s */
};

enum { ESTIMATE_HOURS_PER_MONTH = 730 };

/* Computes the plan. INVALID names the value that is not possible, by its option. */
int MUST_USE estimate_make(const struct estimate_input *input, struct estimate *ret,
                           struct diag *diag);

#endif

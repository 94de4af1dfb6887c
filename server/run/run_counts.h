/* SPDX-License-Identifier: Apache-2.0
 *
 * run_counts: counters, for metrics, of what this daemon has done since its start, and a summary of
 * its runs at present. A thing is counted after its update of the record was made, so it is counted
 * once, by the daemon that did it. Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_COUNTS_H
#define CAIRN_RUN_RUN_COUNTS_H

#include "base/tally.h"
#include "run/run.h"

struct run_counts {
    uint64_t saves_opened, saves_committed, saves_failed;
    struct err_tally failures;          /* the failed saves by their error code */
    uint64_t plain_bytes, stored_bytes; /* of the committed saves */
    /* From this daemon's first sight of the opening to the commit. */
    struct histogram save_durations;
    /* Durations of the previous save, as reported by rank 0: how long training was blocked, and how
     * long the checkpoint took to become durable. */
    struct histogram blocked, persisted;
    uint64_t restores_done, restores_failed;
    uint64_t forgotten, undeleted, reclaimed, annotated, health_changes;
    uint64_t updates, conflicts, unknown_outcomes, update_errors, loads, load_errors;
};
const struct run_counts *catalog_counts(const struct catalog *catalog);

/* The checkpoints that are forgotten and not reclaimed yet. */
struct forgotten_total {
    uint64_t count, bytes; /* bytes: an upper bound of what can be freed */
    /* Gc cycles begun since the oldest forget (max) and the newest one (min). */
    uint64_t cycles_max, cycles_min;
};

/* A summary of all runs of the store, as far as their records were read. */
struct catalog_totals {
    uint64_t runs, runs_unreadable, runs_marked; /* marked as in state_is_marked() */
    /* The first marked run; borrowed until the next turn of the loop. */
    const struct run_name *marked;
    uint64_t checkpoints[HEALTH_DAMAGED + 1]; /* that are not forgotten, by enum health */
    struct forgotten_total forgotten;
    const struct run_name
        /* Of the runs with more than two good checkpoints the one that stores most, or NULL;
         * borrowed until the next turn of the loop. */
        *largest;
    uint64_t saves_open, oldest_open_ms; /* oldest_open_ms: since this daemon first saw it */
};
void catalog_totals(const struct catalog *catalog, struct catalog_totals *ret);
/* Gives the forgotten checkpoints of one run. */
void run_forgotten(const struct run *run, struct forgotten_total *ret);

/* A summary of the runs of one project. */
struct project_totals {
    const char *project;   /* borrowed until the next turn of the loop */
    uint64_t stored_bytes; /* of the checkpoints that are not reclaimed */
    struct forgotten_total forgotten;
};
/* Gives the projects one after another; *at has to be 0 at the first call. Returns false after the
 * last project. */
bool catalog_next_project(const struct catalog *catalog, size_t *at, struct project_totals *ret);

/* A run that is saving, or has saved since since_wall_ns. */
struct run_totals {
    const struct run_name *name; /* borrowed until the next turn of the loop */
    int64_t commit_wall_ns;      /* of the newest commit, in ns since 1970 */
    uint64_t commit_step, saves_open;
};
/* Gives at most `most` live runs, sorted by name. Returns how many there are altogether. */
size_t catalog_live_runs(const struct catalog *catalog, int64_t since_wall_ns, size_t most,
                         struct run_totals *ret);

#endif

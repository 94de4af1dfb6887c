/* SPDX-License-Identifier: Apache-2.0
 *
 * run_counts: what this daemon has made happen since its start, and what its runs look like now,
 * for metrics. Counted when an update of a record has been made, so each thing once, by the daemon
 * that did it. Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_COUNTS_H
#define CAIRN_RUN_RUN_COUNTS_H

#include "base/tally.h"
#include "run/run.h"

struct run_counts {
    uint64_t saves_opened, saves_committed, saves_failed;
    struct err_tally failures;          /* the failed saves by their error */
    uint64_t plain_bytes, stored_bytes; /* of the committed ones */
    struct histogram save_durations;    /* from when this daemon saw the opening to the commit */
    /* as rank 0 tells of the save before: training stood still; from the call until durable */
    struct histogram blocked, persisted;
    uint64_t restores_done, restores_failed;
    uint64_t forgotten, undeleted, reclaimed, annotated, health_changes;
    uint64_t updates, conflicts, unknown_outcomes, update_errors, loads, load_errors;
};
const struct run_counts *catalog_counts(const struct catalog *catalog);

/* What is forgotten and not reclaimed yet. */
struct forgotten_sight {
    uint64_t count, bytes;           /* at most so many bytes come free */
    uint64_t cycles_max, cycles_min; /* that have begun since the first, the last was forgotten */
};

/* All runs of the store, as far as their records were read. */
struct catalog_sight {
    uint64_t runs, runs_unreadable, runs_marked; /* marked: state_is_marked */
    const struct run_name *marked;            /* the first of these; borrowed until the next turn */
    uint64_t checkpoints[HEALTH_DAMAGED + 1]; /* that are listed, by enum health */
    struct forgotten_sight forgotten;
    const struct run_name
        *largest; /* that stores most, of those with more than two good checkpoints;
                   * borrowed until the next turn of the loop; NULL: none */
    uint64_t saves_open, oldest_open_ms; /* as long as this daemon knows of it */
};
void catalog_sight(const struct catalog *catalog, struct catalog_sight *ret);
/* Of one run. */
void run_forgotten(const struct run *run, struct forgotten_sight *ret);

/* Of the runs of one project. */
struct project_sight {
    const char *project;   /* borrowed until the next turn of the loop */
    uint64_t stored_bytes; /* of what is not reclaimed */
    struct forgotten_sight forgotten;
};
/* Projects one after another: *at is 0 first. False: there is none left. */
bool catalog_next_project(const struct catalog *catalog, size_t *at, struct project_sight *ret);

/* A run that saves, or has saved since since_wall_ns. */
struct run_sight {
    const struct run_name *name; /* borrowed until the next turn of the loop */
    int64_t commit_wall_ns;      /* of the newest commit */
    uint64_t commit_step, saves_open;
};
/* At most `most`, in the order of their names; how many there are. */
size_t catalog_live_runs(const struct catalog *catalog, int64_t since_wall_ns, size_t most,
                         struct run_sight *ret);

#endif

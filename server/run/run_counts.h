/* SPDX-License-Identifier: Apache-2.0
 *
 * run_counts: counters, for metrics, of what this daemon has done since its start, and a summary of
 * its runs at present, and of each run. A thing is counted after its update of the record was made,
 * so it is counted once, by the daemon that did it. Durations that no update tells are given by
 * run_took(). Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_COUNTS_H
#define CAIRN_RUN_RUN_COUNTS_H

#include "base/tally.h"
#include "run/run.h"

/* Phases of a save, or of a restore, that the server times; stores time their operations. */
enum run_phase {
    PHASE_TRANSFER, /* of one rank: from its first payload to the whole part */
    PHASE_COMMIT,   /* from the last rank's seal to the commit */
    PHASE_RESTORE,  /* by all ranks: from rank 0's request to the verdict that it is done */
    RUN_PHASE_COUNT
};

/* How often each node gave notice that it fails: tags that `cairn run --watch` has written. */
enum { NOTICE_NODES_MAX = 64 };
struct node_notices {
    size_t count;
    uint64_t unnamed; /* notices of nodes that came after the table was full */
    struct node_notice {
        char node[NOTICE_NODE_BYTES];
        uint64_t notices;
    } nodes[NOTICE_NODES_MAX];
};

struct run_counts {
    uint64_t saves_opened, saves_committed, saves_failed;
    struct err_tally failures;          /* the failed saves by their error code */
    uint64_t plain_bytes, stored_bytes; /* of the committed saves */
    /* From this daemon's first sight of the opening to the commit. */
    struct histogram save_durations;
    /* Durations of the previous save, as reported by rank 0: how long training was blocked, how
     * long the state took to be copied, and the checkpoint to become durable. */
    struct histogram blocked, staged, persisted;
    struct histogram phases[RUN_PHASE_COUNT];
    struct node_notices notices;
    uint64_t restores_done, restores_failed;
    uint64_t forgotten, undeleted, reclaimed, annotated;
    uint64_t updates, conflicts, unknown_outcomes, update_errors, loads, load_errors;
};
const struct run_counts *catalog_counts(const struct catalog *catalog);
/* Returns the node whose notice the added tags hold, with its notices up to now. Returns NULL if
 * they hold none, or if that node is not in the table. */
const struct node_notice *catalog_notice(const struct catalog *catalog,
                                         const struct note_change *change);
/* Counts a rank of the run that has connected, or whose connection ends. */
void run_rank_came(struct run *run);
void run_rank_left(struct run *run);
/* Counts a phase of a save or of a restore of the run that has ended after so long. */
void run_took(struct run *run, enum run_phase phase, uint64_t ms);

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
    /* Of the runs with more than two good checkpoints the one that stores most, or NULL; borrowed
     * until the next turn of the loop. */
    const struct run_name *largest;
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
    uint32_t ranks; /* that are connected to this daemon */
};
/* Gives at most `most` live runs, sorted by name. Returns how many there are altogether. */
size_t catalog_live_runs(const struct catalog *catalog, int64_t since_wall_ns, size_t most,
                         struct run_totals *ret);

/* --- overviews --------------------------------------------------------------------------------
 *
 * What this daemon knows of its runs at this moment, for pages. Nothing here asks the store or
 * waits: a run whose record was not read yet is given without a state. On a store that several
 * daemons share, the record of a run that nobody here works with may have changed;
 * run_overview_refresh() has it read again in the background. */

enum { RUN_TIMES_MAX = 256, RUN_DAYS = 8 };

/* Durations of a save, as far as this daemon has seen them since its start. */
struct run_time {
    struct ckpt_id id;
    uint64_t took_ms;                /* first sight of the opening to the commit; 0 if not known */
    uint64_t blocked_ms, persist_ms; /* as rank 0 reported with its next save */
    bool is_reported;
};

/* Bytes that were stored and given back on one day (days since 1970, UTC). */
struct run_day {
    uint64_t day, saves, written_bytes, reclaimed_bytes;
};

/* One run. Pointers are borrowed until the next turn of the loop. */
struct run_overview {
    const struct run_name *name;
    const struct run_state *state; /* NULL if its record was not read, or cannot be */
    bool is_unreadable;
    uint64_t changed; /* what catalog_changes() was when the run changed last */
    uint64_t checkpoints[HEALTH_DAMAGED + 1];
    struct forgotten_total forgotten;
    uint64_t stored_bytes; /* of the checkpoints that are not reclaimed */
    uint64_t saves_open;
    uint32_t ranks;                        /* that are connected to this daemon */
    int64_t first_wall_ns, commit_wall_ns; /* of the first and the newest commit; 0 if none */
    const struct run_day *days;            /* RUN_DAYS of them, in no order; day 0 is empty */
    const struct run_time *times;          /* oldest first */
    size_t time_count;
};

/* Returns a number that grows whenever any run changes. It starts at 1. */
uint64_t catalog_changes(const struct catalog *catalog);
/* Gives the first run that the store holds behind `after` in the order of names, or from the
 * beginning if both parts of `after` are empty. Returns false if there is none. */
bool catalog_next_overview(const struct catalog *catalog, const struct run_name *after,
                           struct run_overview *ret);
/* Gives one run. Returns false if the store is not known to hold it. */
bool catalog_overview(const struct catalog *catalog, const struct run_name *name,
                      struct run_overview *ret);
/* Has the record of the run read again in the background if several daemons use the store and that
 * was not asked for within every_ms. Does nothing if there is no such run. */
void run_overview_refresh(struct catalog *catalog, const struct run_name *name, uint64_t every_ms);
/* Does the same for the next 128 runs in the order of names, of each at most every ten seconds, and
 * begins anew after the last one. An answer that shows runs calls it once. */
void catalog_overviews_refresh(struct catalog *catalog);
/* Gives when this daemon saw the opening of a save first, in ms of the loop's clock; 0 if it did
 * not. */
uint64_t run_opened_ms(const struct catalog *catalog, const struct run_name *name,
                       struct ckpt_id id);

/* What run_private.h keeps for each run: figures of the decoded record, and what pages ask for
 * beside them. */
struct run_sums {
    uint64_t checkpoints[HEALTH_DAMAGED + 1], commit_step;
    struct forgotten_total forgotten;
    uint64_t stored_bytes;                 /* of the checkpoints that are not reclaimed */
    int64_t first_wall_ns, commit_wall_ns; /* of the first and the newest commit; 0 if none */
    struct run_day days[RUN_DAYS];         /* at day % RUN_DAYS; a newer day replaces an older */
};

struct run_shown {
    uint64_t changed, again_ms;
    uint32_t ranks;
    struct run_time *times; /* NULL until the first; RUN_TIMES_MAX of them */
    size_t time_count;
};

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * run_usage: computes what the runs of a store cost, one run after another, from their records. It
 * serves USAGE, and the quota of a project before a save is opened.
 */
#ifndef CAIRN_RUN_RUN_USAGE_H
#define CAIRN_RUN_RUN_USAGE_H

#include "core/usage.h"
#include "run/run.h"
#include "wire/msg.h"

/* One walk over the runs, embedded in its user. Loop's thread; done is never called inside
 * usage_walk_start(). */
struct usage_walk {
    /* Inputs: */
    const char *project;   /* only runs of this project, "" for all; borrowed until done */
    struct run_name after; /* only runs behind this one; both parts are empty for all */
    bool no_capitals;      /* leaves out runs whose names have capitals */
    struct usage_window window;
    uint32_t rows_max; /* at most so many rows; 0 for the total only */
    void (*done)(struct usage_walk *walk);
    /* Results; the texts of the rows are valid until usage_walk_fini(). */
    int status; /* of the walk itself: 0, NO_MEMORY or SHUTTING_DOWN */
    struct msg_usage_row *rows;
    uint32_t row_count;
    bool more; /* there are runs behind the last row */
    struct usage total;
    uint32_t unreadable; /* runs that are not in the total because their record cannot be read */
    /* The fields below belong to run_usage.c. */
    struct catalog *catalog;
    struct run_name *names;
    size_t name_count, at;
    struct run *run;
    struct run_snapshot_req snapshot;
    struct catalog_refresh refresh;
    struct scratch scratch;
};

/* Starts the walk over the runs; `done` follows, unless the walk is cancelled. */
void usage_walk_start(struct usage_walk *walk, struct catalog *catalog);
void usage_walk_cancel(struct usage_walk *walk); /* done does not come any more; call fini next */
void usage_walk_fini(struct usage_walk *walk);

/* --- quotas --- */

enum { QUOTAS_MAX = 256 };

struct quota {                              /* a limit of 0 is no limit */
    char project[LIMIT_RUN_NAME_BYTES + 1]; /* "*" for each project without a row */
    uint64_t bytes, checkpoints;
};
struct quota_table {
    size_t count;
    struct quota quotas[QUOTAS_MAX];
};

/* Returns NULL if the project has no quota. */
const struct quota *quota_of(const struct quota_table *table, const char *project);
struct quota_use { /* what a quota is checked against */
    const char *project;
    const struct usage *usage; /* of the whole project */
    /* When forgotten bytes are freed: " until TIME", or "" if no schedule says. */
    const char *until;
};
/* Returns QUOTA if the project has reached its quota; the text says how much there is, how much may
 * be, and what to do. Returns 0 otherwise. */
int MUST_USE quota_check(const struct quota *quota, const struct quota_use *use, struct diag *diag);
/* Returns the same for a save of `bytes` bytes, assuming that it would store all of them. */
int MUST_USE quota_check_save(const struct quota *quota, const struct quota_use *use,
                              uint64_t bytes, struct diag *diag);

#endif

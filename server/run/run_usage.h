/* SPDX-License-Identifier: Apache-2.0
 *
 * run_usage: what the runs of a store cost: one run after another, from its record. For USAGE, and
 * for the quota of a project before a save is opened.
 */
#ifndef CAIRN_RUN_RUN_USAGE_H
#define CAIRN_RUN_RUN_USAGE_H

#include "core/usage.h"
#include "run/run.h"
#include "wire/msg_usage.h"

/* One walk; embedded in its user. Loop's thread; done is never called inside usage_walk_start(). */
struct usage_walk {
    /* in */
    const char *project;   /* of these runs only; "" for all; borrowed until done */
    struct run_name after; /* runs behind it; both empty: from the first */
    struct usage_window window;
    uint32_t rows_max; /* 0: the total only */
    void (*done)(struct usage_walk *walk);
    /* out; rows' texts are the walk's: usage_walk_fini() */
    int status; /* of the walk itself: NO_MEMORY, SHUTTING_DOWN */
    struct msg_usage_row *rows;
    uint32_t row_count;
    bool more; /* there are runs behind the last row */
    struct usage total;
    uint32_t unreadable; /* runs that are not in the total */
    /* its own */
    struct catalog *catalog;
    struct run_name *names;
    size_t name_count, at;
    struct run *run;
    struct run_snapshot_req snapshot;
    struct catalog_look look;
    struct scratch scratch;
};

void usage_walk_start(struct usage_walk *walk, struct catalog *catalog);
void usage_walk_cancel(struct usage_walk *walk); /* no callback afterwards; then fini */
void usage_walk_fini(struct usage_walk *walk);

/* --- quotas --- */

enum { QUOTAS_MAX = 256 };

struct quota {                              /* 0: no limit */
    char project[LIMIT_RUN_NAME_BYTES + 1]; /* "*": each that has none of its own */
    uint64_t bytes, checkpoints;
};
struct quota_table {
    size_t count;
    struct quota quotas[QUOTAS_MAX];
};

/* NULL: the project has none. */
const struct quota *quota_of(const struct quota_table *table, const char *project);
struct quota_sight { /* what is asked of a quota */
    const char *project;
    const struct usage *usage; /* of the project */
    const char *until; /* what is forgotten waits: " until TIME", "" where no schedule says */
};
/* QUOTA, with how much there is, how much may be, and what to do; else 0. */
int MUST_USE quota_check(const struct quota *quota, const struct quota_sight *sight,
                         struct diag *diag);
/* The same of a save of so many bytes that would store them all. */
int MUST_USE quota_check_save(const struct quota *quota, const struct quota_sight *sight,
                              uint64_t bytes, struct diag *diag);

#endif

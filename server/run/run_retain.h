/* SPDX-License-Identifier: Apache-2.0
 *
 * retain: the retention policies of the configuration, run by the daemon: every interval each run
 * that a policy is meant for is decided once, one after another. What it forgets can be brought
 * back like anything that is forgotten. Two daemons of a store that do the same are harmless: the
 * second one finds nothing. While the wall clock is not believed (catalog_clock_jump_s) rounds are
 * left out. Loop's thread.
 */
#ifndef CAIRN_RUN_RUN_RETAIN_H
#define CAIRN_RUN_RUN_RETAIN_H

#include "core/retention.h"
#include "run/run.h"

enum { RETAIN_ROWS_MAX = 32, RETAIN_OPTIONS_MAX = 24, RETAIN_VALUE_MAX = 160 };

struct retain_row {   /* a section [retention "project/pattern"] */
    char pattern[64]; /* of project/run; "": the section without one, for all others */
    unsigned option_count;
    struct retain_option {
        char name[32], value[RETAIN_VALUE_MAX];
    } options[RETAIN_OPTIONS_MAX];
};
struct retain_table {
    size_t count;
    struct retain_row rows[RETAIN_ROWS_MAX]; /* in the order of the file */
};

/* The first row whose pattern the run matches, else the one without pattern; NULL: none is meant
 * for it. A row is whole: nothing is taken over from another. */
const struct retain_row *retain_row_of(const struct retain_table *table,
                                       const struct run_name *run);
/* The row as a policy; texts from scratch. INVALID. */
int MUST_USE retain_policy(const struct retain_row *row, struct scratch *scratch,
                           struct retention_policy *ret, struct diag *diag);

struct retain_options {
    struct loop *loop;
    struct catalog *catalog;          /* outlives it */
    const struct retain_table *table; /* borrowed; may change between two turns of the loop */
    uint64_t interval_ms;             /* above 0 */
    /* After each run: status 0 and how many were forgotten, or why none were. run NULL: a round was
     * left out. */
    void (*report)(void *user, const struct run_name *run, int status, const struct diag *diag,
                   size_t forgotten);
    void *user;
};
struct retain;

struct retain_status {
    uint64_t rounds,
        errors;           /* ended; runs of which nothing could be decided, and rounds left out */
    int64_t good_wall_ns; /* the end of the last round without an error; 0: none yet */
};
void retain_status(const struct retain *retain, struct retain_status *ret);

int MUST_USE retain_new(const struct retain_options *options, struct retain **ret);
/* From now on, above 0; a round that runs goes on. The next one begins no later than that from now.
 */
void retain_set_interval(struct retain *retain, uint64_t interval_ms);
void retain_free(struct retain *retain); /* no report afterwards; NULL is nothing */

#endif

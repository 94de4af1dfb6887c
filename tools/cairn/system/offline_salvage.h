/* SPDX-License-Identifier: Apache-2.0
 *
 * offline_salvage: makes checkpoints again that the records of a store do not tell of, or copies
 * them from another store, in this process, under the store's lock.
 */
#ifndef CAIRN_TOOLS_OFFLINE_SALVAGE_H
#define CAIRN_TOOLS_OFFLINE_SALVAGE_H

#include "repair/copy.h"

struct offline_salvage_options {
    const char *store;          /* a store's URL */
    const struct run_name *run; /* NULL means all runs */
    struct salvage_options how; /* without yes the store is opened read-only */
    const char *actor;
    /* Of the store, also where its own record is made again; NULL means any. */
    const struct uuid *uuid;
    struct diag *store_lost; /* what was wrong with the store's record, where it was made again */
    /* Of a copy: the URL of the store that these runs are copied from; `run` does not count, and of
     * `how` same_marks alone. */
    const char *from;
    size_t run_count;
    const struct run_name *runs;
    void (*tick)(void *user, const struct repair_status *status); /* now and then; may be NULL */
    void *user;
};

struct salvaged_run {
    struct run_name run;
    int code; /* why it was not examined to the end; 0 if it was */
    char text[REPAIR_TEXT_MAX];
    uint64_t bytes_read;
    size_t count;
    struct salvage_item *items;
};

/* Sets *ret to an array of one item for each run, sorted, which offline_salvage_free() frees.
 * Returns NOT_FOUND if there is nothing of the run that was named. Returns STORE_LOCKED if
 * something is to be changed while a daemon has the store. */
int MUST_USE offline_salvage(const struct offline_salvage_options *options,
                             struct salvaged_run **ret, size_t *ret_count, struct diag *diag);
void offline_salvage_free(struct salvaged_run *runs, size_t count);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * offline_store: a store in this process, with its catalogue where that is wanted, and nothing on
 * top of them yet. On the loop's thread; every call runs the loop.
 */
#ifndef CAIRN_TOOLS_OFFLINE_STORE_H
#define CAIRN_TOOLS_OFFLINE_STORE_H

#include "env/work.h"
#include "run/run.h"
#include "store/open/store_open.h"

struct offline_store {
    struct loop *loop;      /* made unless it is given */
    struct work_pool *pool; /* of the catalogue: made unless it is given */
    struct work_pool *store_pool;
    struct store *store;
    struct catalog *catalog;
    bool owns_loop, owns_pool, done;
    int status;
    struct diag diag;
};

/* Checks the URL, and makes the loop and the threads for its store. After a failure, too, the
 * caller calls offline_store_close(). */
int MUST_USE offline_store_begin(struct offline_store *store, const char *url, struct diag *diag);
/* The same, and opens the store of options->url with its catalogue, and fills in the loop and the
 * pool of the options. After a failure, too, the caller calls offline_store_close(). Returns
 * NO_STORE, STORE_FEATURES, DAMAGED, DENIED and other errors of opening a store. */
int MUST_USE offline_store_open(struct offline_store *store, struct store_open_options *options,
                                struct diag *diag);
void offline_store_close(struct offline_store *store);
/* Closes the store and its catalogue; the loop and the threads stay. */
void offline_store_leave(struct offline_store *store);
/* Runs the loop until offline_store_wake(store) is called, which is a callback of closings. */
void offline_store_wait(struct offline_store *store);
void offline_store_wake(void *store);

#endif

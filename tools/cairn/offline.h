/* SPDX-License-Identifier: Apache-2.0
 *
 * offline: the server's core over a store, in this process: one restore path, not two. Opened
 * read-only, or for writing under its lock.
 */
#ifndef CAIRN_TOOLS_OFFLINE_H
#define CAIRN_TOOLS_OFFLINE_H

#include "env/net.h"
#include "env/work.h"
#include "format/ids.h"

struct offline;

/* store: a URL as store_open.h says. offline_new blocks while it opens. NO_STORE, STORE_FEATURES,
 * DAMAGED, DENIED
 * ... */
struct offline_options {
    struct loop *loop;
    struct net *net;
    struct work_pool *pool;
    const char *store;
    bool writable;           /* STORE_LOCKED while a daemon has it */
    bool repairs;            /* writable: REPAIR is answered */
    const char *repair_from; /* a URL: where repairs look for copies too; NULL: nowhere else */
};
int MUST_USE offline_new(const struct offline_options *options, struct offline **ret,
                         struct diag *diag);
void offline_free(struct offline *offline); /* its connections must be closed; runs the loop */
/* Reads every file of a record from the medium, in both places; NULL: of the store's own; and
 * whether all that is stored of the run is told of by it. 0, or DAMAGED with what is wrong in diag.
 * ret_salvage: `salvage` is what helps, for the second copy does not have it either.
 * Other errors: it could not be looked at. Runs the loop. */
int MUST_USE offline_check_record(struct offline *offline, const struct run_name *run,
                                  bool *ret_salvage, struct diag *diag);
/* engine_options.dial: user is the struct offline. */
int MUST_USE offline_dial(void *user, struct sock **ret, struct diag *diag);

#endif

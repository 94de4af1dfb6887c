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
    const char *repair_from; /* a URL where repairs look for copies too, or NULL */
};
int MUST_USE offline_new(const struct offline_options *options, struct offline **ret,
                         struct diag *diag);
void offline_free(struct offline *offline); /* its connections must be closed; runs the loop */
/* Reads every file of a run's record from the medium, in both places, and checks that the record
 * names everything that is stored of the run. If `run` is NULL, it reads the store's own record.
 * Returns 0, or DAMAGED with what is wrong in diag; *ret_salvage then says that only `salvage`
 * helps, because the second copy lacks it as well. Any other error means that the record could not
 * be read. Runs the loop. */
int MUST_USE offline_check_record(struct offline *offline, const struct run_name *run,
                                  bool *ret_salvage, struct diag *diag);
/* engine_options.dial: user is the struct offline. */
int MUST_USE offline_dial(void *user, struct sock **ret, struct diag *diag);

#endif

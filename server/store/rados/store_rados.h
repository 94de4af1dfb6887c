/* SPDX-License-Identifier: Apache-2.0
 *
 * store_rados: the store on a Ceph cluster. Any number of daemons use it at once; what a daemon
 * knows and the cluster does not is only a cache. Straight-line blocking code over struct cluster,
 * run on a work pool whose threads are the depth. Layout and the rules that it keeps (R1 to R17):
 * README.md.
 */
#ifndef CAIRN_STORE_RADOS_H
#define CAIRN_STORE_RADOS_H

#include "cluster.h"
#include "env/work.h"
#include "store/store.h"

struct store_rados_options {
    struct loop *loop;       /* operations complete on it */
    struct work_pool *pool;  /* its threads wait for the cluster: 16 or more */
    struct cluster *cluster; /* closed with the store, and also if opening fails */
    /* RADOS namespace, and prefix of the projects' namespaces; NULL means "cairn" */
    const char *space;
    /* The cluster's pool for data, by the name in the store's record; NULL means the pool of the
     * records. If the store was made with another pool, the error is STORE_MISMATCH. */
    const char *data_pool;
    bool create; /* make the store if there is none */
    /* The advice of NO_STORE; NULL says that the name is wrong. */
    const char *remedy;
    bool read_only;                   /* writes nothing at all */
    const struct uuid *expected_uuid; /* NULL accepts any store; another store is STORE_MISMATCH */
    /* Not NULL for salvage: a missing or damaged store record is made again, and the diag says what
     * was wrong with it. With read_only it is made in memory alone. With NULL the error is DAMAGED,
     * FORMAT or IO. */
    struct diag *salvaged;
};

/* Opens the store. Blocks for a few round trips. Returns NO_STORE, STORE_FEATURES, STORE_MISMATCH,
 * DAMAGED (the store's record is lost), UNSUPPORTED (an erasure-coded pool for metadata), DENIED,
 * TIMED_OUT or IO. */
int MUST_USE store_rados_new(const struct store_rados_options *options, struct store **ret,
                             struct diag *diag);

#endif

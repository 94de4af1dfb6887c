/* SPDX-License-Identifier: Apache-2.0
 *
 * store_rados: the store on a Ceph cluster. Any number of daemons on it at once; what one knows and
 * the cluster does not is only a cache. Straight-line blocking code over struct cluster, run on a
 * work pool whose threads are the depth. Layout and the rules R1 to R17 that it keeps:
 * README.md.
 */
#ifndef CAIRN_STORE_RADOS_H
#define CAIRN_STORE_RADOS_H

#include "cluster.h"
#include "env/work.h"
#include "store/store.h"

struct store_rados_options {
    struct loop *loop;       /* where operations complete */
    struct work_pool *pool;  /* its threads wait for the cluster: 16 and more */
    struct cluster *cluster; /* closed with the store, also when opening fails */
    const char *space; /* RADOS namespace, and the start of those of projects; NULL: "cairn" */
    /* The cluster's pool for data, by the name that the store's record has for it; NULL: the one
     * that the records are in. Another one than the store was made with is STORE_MISMATCH. */
    const char *data_pool;
    bool create;                      /* make the store where there is none */
    const char *remedy;               /* where there is none; NULL: the name is wrong */
    bool read_only;                   /* writes nothing at all */
    const struct uuid *expected_uuid; /* NULL: any; otherwise another store is STORE_MISMATCH */
    /* For salvage: a store record that is missing or damaged is made again (read_only: in this
     * process's memory), and this says what was wrong with it. NULL: it is DAMAGED, FORMAT or IO.
     */
    struct diag *salvaged;
};

/* Opens the store; blocks the caller for a few round trips. NO_STORE, STORE_FEATURES,
 * STORE_MISMATCH, DAMAGED (the store's record is lost), UNSUPPORTED (an erasure-coded pool for
 * metadata), DENIED, TIMED_OUT, IO. */
int MUST_USE store_rados_new(const struct store_rados_options *options, struct store **ret,
                             struct diag *diag);

#endif

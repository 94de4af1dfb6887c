/* SPDX-License-Identifier: Apache-2.0
 *
 * rados_doctor: examines a Ceph cluster as the place of a store: what the monitors say about it and
 * its pools, and, by trying, what this user may do. It may run beside daemons: it makes one object
 * in each pool and removes it.
 */
#ifndef CAIRN_STORE_RADOS_DOCTOR_H
#define CAIRN_STORE_RADOS_DOCTOR_H

#include "base/json_view.h"
#include "cluster.h"
#include "store/doctor.h"

struct rados_doctor_options {
    struct cluster *cluster;
    const char *user, *meta_pool,
        /* data_pool is the same as meta_pool if there is no data pool. */
        *data_pool;
    const char *space;
};

/* Examines the cluster and adds the findings to doctor. Blocks. Returns an error only if nothing
 * can be examined: TIMED_OUT, IO, DENIED (blocklisted). *ret_silent is set if the monitors answered
 * and the OSDs did not answer an operation; nothing more was tried then. */
int MUST_USE rados_doctor(const struct rados_doctor_options *options, struct doctor *doctor,
                          bool *ret_silent, struct diag *diag);

/* --- rados_doctor_pool.c: pure --- */
/* Examines one pool by the monitor's `report` and `df`. */
void rados_doctor_pool(const char *pool, bool is_meta, struct json_view report, struct json_view df,
                       struct doctor *doctor);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * rados_doctor: examines a Ceph cluster as the place of a store: what the monitors say of it and of
 * its pools, and what this user may and may not do, by trying. Beside running daemons: it makes one
 * object in each pool, and removes it.
 */
#ifndef CAIRN_STORE_RADOS_DOCTOR_H
#define CAIRN_STORE_RADOS_DOCTOR_H

#include "base/json_view.h"
#include "cluster.h"
#include "store/doctor.h"

struct rados_doctor_options {
    struct cluster *cluster;
    const char *user, *meta_pool,
        *data_pool; /* data_pool: the same when there is none of its own */
    const char *space;
};

/* Blocks. Findings go to doctor; an error only where nothing can be looked at: TIMED_OUT, IO.
 * *ret_silent: the monitors answered, and the OSDs did not answer one operation; then nothing more
 * was tried. */
int MUST_USE rados_doctor(const struct rados_doctor_options *options, struct doctor *doctor,
                          bool *ret_silent, struct diag *diag);

/* --- rados_doctor_pool.c: pure --- */
/* One pool, of the monitor's `report` and `df`. */
void rados_doctor_pool(const char *pool, bool is_meta, struct json_view report, struct json_view df,
                       struct doctor *doctor);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * store_doctor: examines the store that a URL names: the system under it (dir_doctor.h,
 * rados_doctor.h), this host's clock, and every record in it, as the medium holds it.
 */
#ifndef CAIRN_STORE_OPEN_STORE_DOCTOR_H
#define CAIRN_STORE_OPEN_STORE_DOCTOR_H

#include "store/doctor.h"
#include "store_open.h"

struct store_doctor_options {
    struct loop *loop;      /* a loop_uv that does not run; it is run here */
    struct work_pool *pool; /* of at least store_url_threads_min() + 1 threads */
    const char *url;
    uint64_t reserve_bytes; /* dir: as in the daemon's configuration */
};

/* Examines the store and adds the findings to doctor; an absent store is one. Blocks. Returns an
 * error only if nothing can be examined: CONFIG, AUTH, UNREACHABLE, NO_STORE (no such directory),
 * TIMED_OUT and so on. */
int MUST_USE store_doctor(const struct store_doctor_options *options, struct doctor *doctor,
                          struct diag *diag);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * dir_doctor: examines a directory that is, or shall become, a store, and the file system under it.
 * It may run beside a daemon: it makes one small temporary file and removes it.
 */
#ifndef CAIRN_STORE_DIR_DOCTOR_H
#define CAIRN_STORE_DIR_DOCTOR_H

#include "base/diag.h"
#include "env/vfs.h"
#include "store/doctor.h"

struct dir_doctor_options {
    struct vfs *vfs;
    const char *path;
    uint64_t reserve_bytes; /* space that objects may not use */
};

/* Examines the directory and adds its findings to doctor. Blocks. Returns an error only if nothing
 * can be examined: NO_STORE (no such directory), DENIED, IO. */
int MUST_USE dir_doctor(const struct dir_doctor_options *options, struct doctor *doctor,
                        struct diag *diag);

#endif

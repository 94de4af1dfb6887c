/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu: copies between device memory and host memory through the CUDA driver, which is found at run
 * time; a machine without it is normal. A handle has one table of driver functions, and side
 * streams, one for each thread that copies at a time. Any thread.
 */
#ifndef CAIRN_GPU_GPU_H
#define CAIRN_GPU_GPU_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu;

/* Loads the driver: the library that CAIRN_LIBCUDA names, else libcuda.so.1. Returns UNSUPPORTED,
 * which says what is missing. */
int MUST_USE gpu_open(struct gpu **ret, struct diag *diag);
void gpu_close(struct gpu *gpu); /* no copy may run any more; NULL is allowed */
/* Checks that the bytes are memory of this device. Returns INVALID if they are not, or UNSUPPORTED
 * if there is no such device. */
int MUST_USE gpu_check(struct gpu *gpu, uint32_t ordinal, const void *device, struct diag *diag);

/* One copy. The caller keeps both memories valid until the function returns. */
struct gpu_copy {
    uint32_t ordinal;
    size_t bytes;
    void *host;
    uintptr_t device;
    /* For gpu_copy_out: a CUevent that the copy waits for on the device, or NULL. */
    void *after;
};
/* Copy, and return when the bytes are there. IO names the driver's function and its error. */
int MUST_USE gpu_copy_out(struct gpu *gpu, const struct gpu_copy *copy, struct diag *diag);
int MUST_USE gpu_copy_in(struct gpu *gpu, const struct gpu_copy *copy, struct diag *diag);

/* Page-locks memory, so that copies run at the rate of the bus. Returns false if the memory stays
 * as it is, because no device has been used so far or the driver refuses. */
bool gpu_pin(struct gpu *gpu, size_t bytes, void *data);
void gpu_unpin(struct gpu *gpu, void *data);

#endif

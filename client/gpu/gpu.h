/* SPDX-License-Identifier: Apache-2.0
 *
 * gpu: copies between device memory and ours through the CUDA driver, which is found at run time: a
 * machine without it is normal. One table of driver functions a handle; side streams, one for each
 * thread that copies at a time. Any thread.
 */
#ifndef CAIRN_GPU_GPU_H
#define CAIRN_GPU_GPU_H

#include "base/diag.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu;

/* Loads the driver: the library that CAIRN_LIBCUDA names, else libcuda.so.1. UNSUPPORTED says what
 * is missing. */
int MUST_USE gpu_open(struct gpu **ret, struct diag *diag);
void gpu_close(struct gpu *gpu); /* nobody copies any more; NULL is fine */
/* Are these bytes memory of this device? INVALID, and UNSUPPORTED (no such device). */
int MUST_USE gpu_check(struct gpu *gpu, uint32_t ordinal, const void *device, struct diag *diag);

struct gpu_copy {
    uint32_t ordinal;
    size_t bytes;
    void *host;
    uintptr_t device;
    void *after; /* gpu_copy_out: a CUevent that the copy waits for on the device; NULL: none */
};
/* Return when the bytes are there. IO names the driver's function and its error. */
int MUST_USE gpu_copy_out(struct gpu *gpu, const struct gpu_copy *copy, struct diag *diag);
int MUST_USE gpu_copy_in(struct gpu *gpu, const struct gpu_copy *copy, struct diag *diag);

/* Page-locks memory, so that copies run at the bus's rate; false: it stays as it is (no device has
 * been used so far, or the driver refuses). */
bool gpu_pin(struct gpu *gpu, size_t bytes, void *data);
void gpu_unpin(struct gpu *gpu, void *data);

#endif

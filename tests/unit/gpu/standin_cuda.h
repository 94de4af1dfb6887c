/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests ask of the stand-in driver, beside the functions that the driver itself has. Found by
 * dlsym in the library that CAIRN_LIBCUDA names.
 */
#ifndef CAIRN_TESTS_UNIT_GPU_STANDIN_CUDA_H
#define CAIRN_TESTS_UNIT_GPU_STANDIN_CUDA_H

#include <stddef.h>
#include <stdint.h>

void standin_fail_at(int call); /* that call, from 0, fails, once; -1: none */
int standin_streams(void);
int standin_registered(void);
unsigned standin_context_depth(void); /* of this thread */
size_t standin_range_bytes(void);     /* of a device's addresses, from its first allocation on */
void *standin_alloc(int device, size_t bytes);
/* An event behind work that is still to come: whoever waits for it finds these bytes set. */
void *standin_event(void *device, size_t bytes, int value);
uint8_t *standin_shadow(const void *pointer); /* what is there */

int cuInit(unsigned flags);
int cuDeviceGet(int *ret, int ordinal);
int cuDevicePrimaryCtxRetain(void **ret, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **ret);
int cuStreamCreate(void **ret, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamSynchronize(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream);
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream);
int cuPointerGetAttribute(void *ret, int attribute, uintptr_t pointer);
int cuMemHostRegister_v2(void *data, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *data);
int cuGetErrorString(int code, const char **ret);

#endif

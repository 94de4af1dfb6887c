/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for the CUDA driver, loaded by path: device memory is a range of addresses that nobody
 * can touch, with its contents elsewhere; two devices; every call can be made to fail. It checks
 * what a driver would: a current context, streams of it, addresses inside an allocation.
 */
#include "standin_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RANGE_BYTES = 256 << 20, DEVICES = 2, CODE_INVALID = 1, CODE_ASKED_FOR = 700 };

struct standin_device {
    uint8_t *range;  /* PROT_NONE: an address, never memory */
    uint8_t *shadow; /* what "is" there */
    size_t used;
};

static struct standin_device devices[DEVICES];
static int contexts[DEVICES];
static _Thread_local void *current[8];
static _Thread_local unsigned depth;
static atomic_int calls_left = -1; /* the call that fails; -1: none does */
static atomic_int streams, registered_count;

static int step(void)
{
    if (atomic_load(&calls_left) < 0) {
        return 0;
    }
    return atomic_fetch_sub(&calls_left, 1) == 0 ? CODE_ASKED_FOR : 0;
}

void standin_fail_at(int call) { atomic_store(&calls_left, call); }
int standin_streams(void) { return atomic_load(&streams); }
int standin_registered(void) { return atomic_load(&registered_count); }
unsigned standin_context_depth(void) { return depth; }

size_t standin_range_bytes(void) { return RANGE_BYTES; }

void *standin_alloc(int device, size_t bytes)
{
    struct standin_device *d = &devices[device];
    if (!d->range) {
        d->range = mmap(NULL, RANGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        d->shadow = calloc(1, RANGE_BYTES);
        if (d->range == MAP_FAILED || !d->shadow) {
            abort();
        }
    }
    size_t at = d->used;
    d->used += (bytes + 511) / 512 * 512;
    return d->used <= RANGE_BYTES ? d->range + at : NULL;
}

static struct standin_device *device_of(uintptr_t pointer, size_t bytes)
{
    for (unsigned i = 0; i < DEVICES; i++) {
        uintptr_t base = (uintptr_t)devices[i].range;
        if (base && pointer >= base && pointer + bytes <= base + devices[i].used) {
            return &devices[i];
        }
    }
    return NULL;
}

uint8_t *standin_shadow(const void *pointer)
{
    struct standin_device *d = device_of((uintptr_t)pointer, 1);
    return d ? d->shadow + ((const uint8_t *)pointer - d->range) : NULL;
}

static struct standin_event {
    uint8_t *shadow;
    size_t bytes;
    int value;
} the_event;

void *standin_event(void *device, size_t bytes, int value)
{
    the_event = (struct standin_event){standin_shadow(device), bytes, value};
    return &the_event;
}

/* --- the driver's functions -------------------------------------------------------- */

int cuInit(unsigned flags) { return flags != 0 ? CODE_INVALID : step(); }

int cuDeviceGet(int *ret, int ordinal)
{
    *ret = ordinal;
    return ordinal < 0 || ordinal >= DEVICES ? CODE_INVALID : step();
}

int cuDevicePrimaryCtxRetain(void **ret, int device)
{
    int status = step();
    if (status == 0) {
        *ret = &contexts[device];
    }
    return status;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return device < 0 ? CODE_INVALID : 0; }

int cuCtxPushCurrent_v2(void *context)
{
    int status = step();
    if (status == 0) {
        current[depth++] = context;
    }
    return status;
}

int cuCtxPopCurrent_v2(void **ret)
{
    *ret = depth > 0 ? current[--depth] : NULL;
    return *ret ? 0 : CODE_INVALID;
}

int cuStreamCreate(void **ret, unsigned flags)
{
    int status = depth == 0 || flags != 1 ? CODE_INVALID : step();
    if (status == 0) {
        *ret = malloc(1);
        atomic_fetch_add(&streams, 1);
    }
    return status;
}

int cuStreamDestroy_v2(void *stream)
{
    free(stream);
    atomic_fetch_sub(&streams, 1);
    return 0;
}

int cuStreamSynchronize(void *stream) { return !stream ? CODE_INVALID : step(); }

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    const struct standin_event *found = event;
    int status = !stream || !event || flags != 0 || depth == 0 ? CODE_INVALID : step();
    if (status == 0) {
        memset(found->shadow, found->value, found->bytes);
    }
    return status;
}

static int copy(uintptr_t at, void *host, size_t bytes, int out)
{
    struct standin_device *d = device_of(at, bytes);
    int status =
        !d || depth == 0 || current[depth - 1] != &contexts[d - devices] ? CODE_INVALID : step();
    if (status == 0) {
        uint8_t *device = d->shadow + (at - (uintptr_t)d->range);
        memcpy(out ? host : device, out ? device : host, bytes);
    }
    return status;
}

int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, void *stream)
{
    return !stream ? CODE_INVALID : copy(from, to, bytes, 1);
}

int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, void *stream)
{
    return !stream ? CODE_INVALID : copy(to, (void *)(uintptr_t)from, bytes, 0);
}

int cuPointerGetAttribute(void *ret, int attribute, uintptr_t pointer)
{
    struct standin_device *d = device_of(pointer, 1);
    int status = !d || depth == 0 ? CODE_INVALID : step();
    if (status == 0) {
        *(int *)ret = attribute == 2 ? 2 : (int)(d - devices);
    }
    return status;
}

int cuMemHostRegister_v2(void *data, size_t bytes, unsigned flags)
{
    int status = !data || bytes == 0 || flags != 1 || depth == 0 ? CODE_INVALID : step();
    atomic_fetch_add(&registered_count, status == 0);
    return status;
}

int cuMemHostUnregister(void *data)
{
    if (!data || depth == 0) {
        return CODE_INVALID;
    }
    atomic_fetch_sub(&registered_count, 1);
    return 0;
}

int cuGetErrorString(int code, const char **ret)
{
    *ret = code == CODE_ASKED_FOR ? "an illegal memory access was encountered" : "invalid argument";
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The narrow table of driver functions, the primary context of each device that is used, and side
 * streams. One thread takes a stream at a time, so that copies of several threads overlap and none
 * waits for the training's own stream. Invariant: when a function returns, the caller's current
 * context is what it was.
 */
#include "gpu/gpu.h"

#include "base/check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES_MAX = 64, STREAMS_MAX = 64 };
enum { STREAM_NON_BLOCKING = 1, HOST_PORTABLE = 1 };
enum { POINTER_MEMORY_TYPE = 2, POINTER_ORDINAL = 9, MEMORY_DEVICE = 2 };

struct driver { /* the part of the driver API that is used; 0 is success */
    int (*init)(unsigned flags);
    int (*device_get)(int *ret, int ordinal);
    int (*context_retain)(void **ret, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **ret);
    int (*stream_create)(void **ret, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*stream_wait_event)(void *stream, void *event, unsigned flags);
    int (*copy_out)(void *to, uintptr_t from, size_t bytes, void *stream);
    int (*copy_in)(uintptr_t to, const void *from, size_t bytes, void *stream);
    int (*pointer_get)(void *ret, int attribute, uintptr_t pointer);
    int (*host_register)(void *data, size_t bytes, unsigned flags);
    int (*host_unregister)(void *data);
    int (*error_text)(int code, const char **ret);
};

static const struct {
    const char *name;
    size_t at;
} symbols[] = {
    {"cuInit", offsetof(struct driver, init)},
    {"cuDeviceGet", offsetof(struct driver, device_get)},
    {"cuDevicePrimaryCtxRetain", offsetof(struct driver, context_retain)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(struct driver, context_release)},
    {"cuCtxPushCurrent_v2", offsetof(struct driver, context_push)},
    {"cuCtxPopCurrent_v2", offsetof(struct driver, context_pop)},
    {"cuStreamCreate", offsetof(struct driver, stream_create)},
    {"cuStreamDestroy_v2", offsetof(struct driver, stream_destroy)},
    {"cuStreamSynchronize", offsetof(struct driver, stream_synchronize)},
    {"cuStreamWaitEvent", offsetof(struct driver, stream_wait_event)},
    {"cuMemcpyDtoHAsync_v2", offsetof(struct driver, copy_out)},
    {"cuMemcpyHtoDAsync_v2", offsetof(struct driver, copy_in)},
    {"cuPointerGetAttribute", offsetof(struct driver, pointer_get)},
    {"cuMemHostRegister_v2", offsetof(struct driver, host_register)},
    {"cuMemHostUnregister", offsetof(struct driver, host_unregister)},
    {"cuGetErrorString", offsetof(struct driver, error_text)},
};

struct side_stream {
    void *stream;
    bool busy;
};

struct device {
    int handle;
    void *context; /* NULL if not used yet */
    struct side_stream streams[STREAMS_MAX];
};

struct gpu {
    void *library;
    struct driver driver;
    pthread_mutex_t lock; /* guards devices and streams */
    struct device devices[DEVICES_MAX];
};

static int driver_failed(const struct gpu *gpu, int status, const char *what, struct diag *diag)
{
    const char *text = NULL;
    bool is_known = gpu->driver.error_text(status, &text) == 0 && text;
    return diag_set(diag, CAIRN_E_IO, "%s: %s (%d)", what,
                    is_known ? text : "the driver reports an unknown error", status);
}

/* --- opening --------------------------------------------------------------------- */

/* Loads the library and looks up the functions of the table. */
static int load(struct gpu *gpu, struct diag *diag)
{
    const char *named = getenv("CAIRN_LIBCUDA"), *path = named ? named : "libcuda.so.1";
    gpu->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!gpu->library) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the CUDA driver cannot be loaded (%s), and device tensors need it; "
                        "install it, or register tensors in host memory",
                        dlerror());
    }
    for (size_t i = 0; i < ARRAY_LEN(symbols); i++) {
        void *symbol = dlsym(gpu->library, symbols[i].name);
        if (!symbol) {
            return diag_set(diag, CAIRN_E_UNSUPPORTED, "%s has no %s; install a newer driver", path,
                            symbols[i].name);
        }
        memcpy((uint8_t *)&gpu->driver + symbols[i].at, &symbol, sizeof symbol);
    }
    int status = gpu->driver.init(0);
    if (status != 0) {
        driver_failed(gpu, status, "cuInit", diag);
        diag->code = CAIRN_E_UNSUPPORTED;
        return CAIRN_E_UNSUPPORTED;
    }
    return 0;
}

int gpu_open(struct gpu **ret, struct diag *diag)
{
    struct gpu *gpu = calloc(1, sizeof *gpu);
    struct diag own = DIAG_INIT;
    if (!gpu) {
        return diag_no_memory(diag, "the table of the CUDA driver");
    }
    int rc = load(gpu, &own);
    if (rc != 0) {
        if (gpu->library) {
            err_ignore(dlclose(gpu->library)); /* the failure above is what counts */
        }
        free(gpu);
        return diag_copy(diag, &own);
    }
    CHECK(pthread_mutex_init(&gpu->lock, NULL) == 0);
    *ret = gpu;
    return 0;
}

void gpu_close(struct gpu *gpu)
{
    if (!gpu) {
        return;
    }
    for (unsigned d = 0; d < DEVICES_MAX; d++) {
        struct device *device = &gpu->devices[d];
        for (unsigned s = 0; device->context && s < STREAMS_MAX; s++) {
            CHECK(!device->streams[s].busy);
            if (device->streams[s].stream) {
                err_ignore(gpu->driver.stream_destroy(device->streams[s].stream));
            }
        }
        if (device->context) {
            /* There is no caller to tell. */
            err_ignore(gpu->driver.context_release(device->handle));
        }
    }
    pthread_mutex_destroy(&gpu->lock);
    err_ignore(dlclose(gpu->library));
    free(gpu);
}

/* --- devices and streams ----------------------------------------------------------- */

/* Makes the device's context current. The thread may be one of ours, which has none, or the
 * caller's, which may be in another one. */
static int enter(struct gpu *gpu, const struct device *device, struct diag *diag)
{
    int status = gpu->driver.context_push(device->context);
    return status != 0 ? driver_failed(gpu, status, "cuCtxPushCurrent", diag) : 0;
}

static int leave(struct gpu *gpu, struct diag *diag)
{
    void *left = NULL;
    int status = gpu->driver.context_pop(&left);
    return status != 0 ? driver_failed(gpu, status, "cuCtxPopCurrent", diag) : 0;
}

/* Makes the context of a device current. Takes its primary context when it is first used. */
static int enter_device(struct gpu *gpu, uint32_t ordinal, struct device **ret, struct diag *diag)
{
    if (ordinal >= DEVICES_MAX) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the device number %u is too large; at most %d CUDA devices are possible",
                        ordinal, DEVICES_MAX);
    }
    struct device *device = &gpu->devices[ordinal];
    int status = 0;
    pthread_mutex_lock(&gpu->lock);
    if (!device->context) {
        status = gpu->driver.device_get(&device->handle, (int)ordinal);
        if (status == 0) {
            status = gpu->driver.context_retain(&device->context, device->handle);
        }
    }
    pthread_mutex_unlock(&gpu->lock);
    if (status != 0) {
        struct diag own = DIAG_INIT;
        driver_failed(gpu, status, "the driver", &own);
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "CUDA device %u cannot be used: %s", ordinal,
                        own.text);
    }
    *ret = device;
    return enter(gpu, device, diag);
}

/* Takes a free side stream. The device's context must be current. */
static int take_stream(struct gpu *gpu, struct device *device, struct side_stream **ret,
                       struct diag *diag)
{
    struct side_stream *found = NULL;
    int status = 0;
    pthread_mutex_lock(&gpu->lock);
    for (unsigned i = 0; i < STREAMS_MAX && !found; i++) {
        found = device->streams[i].busy ? NULL : &device->streams[i];
    }
    if (found && !found->stream) {
        status = gpu->driver.stream_create(&found->stream, STREAM_NON_BLOCKING);
    }
    if (found && status == 0) {
        found->busy = true;
    }
    pthread_mutex_unlock(&gpu->lock);
    if (status != 0) {
        return driver_failed(gpu, status, "cuStreamCreate", diag);
    }
    CHECK(found != NULL); /* a handle has no more threads than that */
    *ret = found;
    return 0;
}

static void give_stream(struct gpu *gpu, struct side_stream *stream)
{
    pthread_mutex_lock(&gpu->lock);
    stream->busy = false;
    pthread_mutex_unlock(&gpu->lock);
}

int gpu_check(struct gpu *gpu, uint32_t ordinal, const void *pointer, struct diag *diag)
{
    struct device *device;
    unsigned type = 0;
    int found = -1;
    int rc = enter_device(gpu, ordinal, &device, diag);
    if (rc != 0) {
        return rc;
    }
    int status = gpu->driver.pointer_get(&type, POINTER_MEMORY_TYPE, (uintptr_t)pointer);
    if (status == 0) {
        status = gpu->driver.pointer_get(&found, POINTER_ORDINAL, (uintptr_t)pointer);
    }
    rc = leave(gpu, diag);
    if (rc != 0) {
        return rc;
    }
    if (status != 0 || type != MEMORY_DEVICE) {
        return diag_set(diag, CAIRN_E_INVALID, "%p is not device memory", pointer);
    }
    if (found != (int)ordinal) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "%p is memory of CUDA device %d, but device %u was given", pointer, found,
                        ordinal);
    }
    return 0;
}

/* --- copies ------------------------------------------------------------------------ */

/* Copies on the side stream and waits for the end. */
static int copy_on(struct gpu *gpu, const struct gpu_copy *copy, bool out, struct side_stream *side,
                   struct diag *diag)
{
    int status = 0;
    if (out && copy->after) {
        status = gpu->driver.stream_wait_event(side->stream, copy->after, 0);
    }
    if (status != 0) {
        return driver_failed(gpu, status, "cuStreamWaitEvent", diag);
    }
    status = out ? gpu->driver.copy_out(copy->host, copy->device, copy->bytes, side->stream)
                 : gpu->driver.copy_in(copy->device, copy->host, copy->bytes, side->stream);
    if (status != 0) {
        return driver_failed(gpu, status, out ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", diag);
    }
    status = gpu->driver.stream_synchronize(side->stream);
    return status != 0 ? driver_failed(gpu, status, "cuStreamSynchronize", diag) : 0;
}

/* Runs a copy in the device's context, and restores the caller's context. */
static int run_copy(struct gpu *gpu, const struct gpu_copy *copy, bool out, struct diag *diag)
{
    struct device *device;
    struct side_stream *side = NULL;
    int rc = enter_device(gpu, copy->ordinal, &device, diag);
    if (rc != 0) {
        return rc;
    }
    rc = take_stream(gpu, device, &side, diag);
    if (rc == 0) {
        rc = copy_on(gpu, copy, out, side, diag);
        give_stream(gpu, side);
    }
    int left = leave(gpu, rc != 0 ? NULL : diag); /* the first failure is what counts */
    return rc != 0 ? rc : left;
}

int gpu_copy_out(struct gpu *gpu, const struct gpu_copy *copy, struct diag *diag)
{
    return run_copy(gpu, copy, true, diag);
}

int gpu_copy_in(struct gpu *gpu, const struct gpu_copy *copy, struct diag *diag)
{
    return run_copy(gpu, copy, false, diag);
}

/* --- page-locked memory ------------------------------------------------------------ */

/* Returns the first device in use, or NULL. Memory locked in one context is locked for all
 * (HOST_PORTABLE). */
static const struct device *any_device(struct gpu *gpu)
{
    const struct device *found = NULL;
    pthread_mutex_lock(&gpu->lock);
    for (unsigned d = 0; d < DEVICES_MAX && !found; d++) {
        found = gpu->devices[d].context ? &gpu->devices[d] : NULL;
    }
    pthread_mutex_unlock(&gpu->lock);
    return found;
}

bool gpu_pin(struct gpu *gpu, size_t bytes, void *data)
{
    const struct device *device = any_device(gpu);
    if (!device || enter(gpu, device, NULL) != 0) {
        return false;
    }
    bool locked = gpu->driver.host_register(data, bytes, HOST_PORTABLE) == 0;
    err_ignore(leave(gpu, NULL)); /* the only result is whether it is locked */
    return locked;
}

void gpu_unpin(struct gpu *gpu, void *data)
{
    const struct device *device = any_device(gpu);
    CHECK(device != NULL); /* it was pinned through a device */
    if (enter(gpu, device, NULL) == 0) {
        err_ignore(gpu->driver.host_unregister(data)); /* the memory goes in any case */
        err_ignore(leave(gpu, NULL));
    }
}

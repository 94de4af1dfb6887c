/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies wait for the work of another stream, shared memory can be page-locked, and several threads
 * may copy: only a real device shows this, since the stand-in of test_gpu.c copies at once. Method:
 * the machine's own CUDA driver; skipped where there is none, or no device.
 */
#include "gpu/gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/unit_test.h"

#define MIB (1UL << 20)

static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *ret, int ordinal);
    int (*context_retain)(void **ret, int device);
    int (*context_set)(void *context);
    int (*context_get)(void **ret);
    int (*alloc)(uintptr_t *ret, size_t bytes);
    int (*release)(uintptr_t memory);
    int (*fill)(uintptr_t memory, unsigned char value, size_t bytes, void *stream);
    int (*stream_create)(void **ret, unsigned flags);
    int (*event_create)(void **ret, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*synchronize)(void);
} cuda;

static bool has_symbol(void *library, const char *name, void *ret)
{
    void *symbol = dlsym(library, name);
    memcpy(ret, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool has_device(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int device;
    void *context;
    return library && has_symbol(library, "cuInit", &cuda.init) &&
           has_symbol(library, "cuDeviceGet", &cuda.device_get) &&
           has_symbol(library, "cuDevicePrimaryCtxRetain", &cuda.context_retain) &&
           has_symbol(library, "cuCtxSetCurrent", &cuda.context_set) &&
           has_symbol(library, "cuCtxGetCurrent", &cuda.context_get) &&
           has_symbol(library, "cuMemAlloc_v2", &cuda.alloc) &&
           has_symbol(library, "cuMemFree_v2", &cuda.release) &&
           has_symbol(library, "cuMemsetD8Async", &cuda.fill) &&
           has_symbol(library, "cuStreamCreate", &cuda.stream_create) &&
           has_symbol(library, "cuEventCreate", &cuda.event_create) &&
           has_symbol(library, "cuEventRecord", &cuda.event_record) &&
           has_symbol(library, "cuCtxSynchronize", &cuda.synchronize) && cuda.init(0) == 0 &&
           cuda.device_get(&device, 0) == 0 && cuda.context_retain(&context, device) == 0 &&
           cuda.context_set(context) == 0;
}

/* The handle of a test; a machine without a device skips it. */
static struct gpu *opened(void)
{
    struct gpu *gpu = NULL;
    if (!has_device()) {
        print_message("no CUDA device here\n");
        skip();
    }
    unsetenv("CAIRN_LIBCUDA");
    assert_int_equal(gpu_open(&gpu, NULL), 0);
    return gpu;
}

static uintptr_t allocated(size_t bytes)
{
    uintptr_t memory = 0;
    assert_int_equal(cuda.alloc(&memory, bytes), 0);
    return memory;
}

static void fill_random(uint8_t *bytes, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 56);
    }
}

TEST(bytes_go_both_ways)
{
    static const size_t sizes[] = {1, 4095, 4096, 4097, MIB + 3, 9 * MIB + 1};
    struct gpu *gpu = opened();
    void *before = NULL, *after = NULL;
    assert_int_equal(cuda.context_get(&before), 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *host = malloc(sizes[i]), *back = calloc(1, sizes[i]);
        uintptr_t device = allocated(sizes[i] + 64) + i; /* not aligned either */
        assert_non_null(host);
        assert_non_null(back);
        fill_random(host, sizes[i], i);
        struct gpu_copy copy = {.bytes = sizes[i], .host = host, .device = device};
        assert_int_equal(gpu_check(gpu, 0, (const void *)device, NULL), 0);
        assert_int_equal(gpu_copy_in(gpu, &copy, NULL), 0);
        copy.host = back;
        assert_int_equal(gpu_copy_out(gpu, &copy, NULL), 0);
        assert_memory_equal(host, back, sizes[i]);
        assert_int_equal(cuda.release(device - i), 0);
        free(host);
        free(back);
    }
    assert_int_equal(cuda.context_get(&after), 0);
    assert_ptr_equal(before, after);
    gpu_close(gpu);
}

/* Goal: a copy sees what the training's stream was asked for before the event. Method: hundreds of
 * fills, some tenths of a second, on a stream of its own; the copy is asked for at once. */
TEST(a_copy_waits_for_the_event)
{
    enum { FILLS = 400 };
    size_t bytes = 512 * MIB;
    struct gpu *gpu = opened();
    uint8_t *host = malloc(MIB);
    void *stream, *event;
    uintptr_t device = allocated(bytes);
    assert_non_null(host);
    assert_int_equal(cuda.stream_create(&stream, 1), 0);
    assert_int_equal(cuda.event_create(&event, 2), 0);
    for (int i = 1; i <= FILLS; i++) {
        assert_int_equal(cuda.fill(device, (unsigned char)(i % 251), bytes, stream), 0);
    }
    assert_int_equal(cuda.event_record(event, stream), 0);
    struct gpu_copy copy = {
        .bytes = MIB, .host = host, .device = device + bytes - MIB, .after = event};
    assert_int_equal(gpu_copy_out(gpu, &copy, NULL), 0);
    for (size_t i = 0; i < MIB; i++) {
        assert_int_equal(host[i], FILLS % 251);
    }
    assert_int_equal(cuda.synchronize(), 0);
    assert_int_equal(cuda.release(device), 0);
    free(host);
    gpu_close(gpu);
}

TEST(shared_memory_is_page_locked)
{
    size_t bytes = 64 * MIB;
    struct gpu *gpu = opened();
    int fd = memfd_create("test-gpu", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    uint8_t *arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(arena != MAP_FAILED);
    uintptr_t device = allocated(bytes);
    assert_int_equal(gpu_check(gpu, 0, (const void *)device, NULL), 0);
    assert_true(gpu_pin(gpu, bytes, arena));
    fill_random(arena, bytes, 7);
    struct gpu_copy copy = {.bytes = bytes, .host = arena, .device = device};
    assert_int_equal(gpu_copy_in(gpu, &copy, NULL), 0);
    uint8_t *wanted = malloc(bytes);
    assert_non_null(wanted);
    memcpy(wanted, arena, bytes);
    memset(arena, 0, bytes);
    assert_int_equal(gpu_copy_out(gpu, &copy, NULL), 0);
    assert_memory_equal(arena, wanted, bytes);
    gpu_unpin(gpu, arena);
    assert_true(gpu_pin(gpu, bytes, arena)); /* it was let go */
    gpu_unpin(gpu, arena);
    free(wanted);
    munmap(arena, bytes);
    close(fd);
    assert_int_equal(cuda.release(device), 0);
    gpu_close(gpu);
}

TEST(other_memory_is_refused)
{
    struct gpu *gpu = opened();
    struct diag diag[3] = {DIAG_INIT, DIAG_INIT, DIAG_INIT};
    int here;
    uintptr_t device = allocated(MIB);
    assert_int_equal(gpu_check(gpu, 0, &here, &diag[0]), CAIRN_E_INVALID);
    assert_non_null(strstr(diag[0].text, "not device memory"));
    assert_int_equal(gpu_check(gpu, 63, (const void *)device, &diag[1]), CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(diag[1].text, "CUDA device 63"));
    assert_int_equal(cuda.release(device), 0);
    assert_int_equal(gpu_check(gpu, 0, (const void *)device, &diag[2]), CAIRN_E_INVALID);
    gpu_close(gpu);
}

struct copier {
    pthread_t thread;
    struct gpu *gpu;
    uintptr_t device;
    uint64_t seed;
    int rc;
    bool is_same;
};

static void *copy_often(void *arg)
{
    enum { TIMES = 20 };
    struct copier *copier = arg;
    size_t bytes = 3 * MIB + 11;
    uint8_t *host = malloc(bytes), *back = malloc(bytes);
    copier->is_same = host && back;
    for (int i = 0; copier->is_same && copier->rc == 0 && i < TIMES; i++) {
        fill_random(host, bytes, copier->seed * 1000 + (uint64_t)i);
        struct gpu_copy copy = {.bytes = bytes, .host = host, .device = copier->device};
        copier->rc = gpu_copy_in(copier->gpu, &copy, NULL);
        copy.host = back;
        copier->rc = copier->rc != 0 ? copier->rc : gpu_copy_out(copier->gpu, &copy, NULL);
        copier->is_same = memcmp(host, back, bytes) == 0;
    }
    free(host);
    free(back);
    return NULL;
}

/* The threads have no context of their own, as those of the snapshot have none. */
TEST(many_threads_copy_at_once)
{
    enum { THREADS = 8 };
    struct copier copiers[THREADS] = {0};
    struct gpu *gpu = opened();
    for (size_t i = 0; i < THREADS; i++) {
        copiers[i] = (struct copier){.gpu = gpu, .device = allocated(4 * MIB), .seed = i};
        assert_int_equal(pthread_create(&copiers[i].thread, NULL, copy_often, &copiers[i]), 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(copiers[i].thread, NULL);
        assert_int_equal(copiers[i].rc, 0);
        assert_true(copiers[i].is_same);
        assert_int_equal(cuda.release(copiers[i].device), 0);
    }
    gpu_close(gpu);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A fixed set of aligned buffers in one mapping. Invariants: a buffer is either in the free stack
 * or with exactly one user (`taken` catches a double put); nothing is allocated after pool_new().
 * Under AddressSanitizer the buffers in the stack are poisoned. Owned by one loop.
 */
#include "base/pool.h"

#include "base/check.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)   ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

enum { POOL_HUGE_BYTES = 2 << 20 };

struct pool {
    void *map;
    size_t map_bytes;
    uint8_t *base; /* of buffer 0, inside map, at a multiple of POOL_HUGE_BYTES */
    size_t count, buffer_bytes;
    size_t free_count;
    /* Indices of the free buffers. The last one put is the next one got, because it is still in the
     * cache. */
    size_t *stack;
    bool *taken;
};

/* Writes to each page, so that the first use of a buffer does not wait for the kernel to find
 * memory. */
static void pool_touch(const struct pool *pool)
{
    volatile uint8_t *base = pool->base;
    for (size_t at = 0; at < pool->count * pool->buffer_bytes; at += POOL_ALIGN) {
        base[at] = 0;
    }
}

/* Maps the memory of all buffers, with room to align it to huge pages. */
static int pool_map(struct pool *pool, struct diag *diag)
{
    size_t bytes;
    if (__builtin_mul_overflow(pool->count, pool->buffer_bytes, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)POOL_HUGE_BYTES, &pool->map_bytes)) {
        return diag_set(diag, CAIRN_E_INVALID, "a buffer pool of %zu x %zu bytes is too large",
                        pool->count, pool->buffer_bytes);
    }
    void *map =
        mmap(NULL, pool->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        int errnum = errno;
        return diag_set(diag, CAIRN_E_NO_MEMORY,
                        "the system refuses the memory for a buffer pool of %zu x %zu bytes (errno "
                        "%d); configure a smaller pool",
                        pool->count, pool->buffer_bytes, errnum);
    }
    pool->map = map;
    uintptr_t start = (uintptr_t)map;
    size_t skip = (size_t)(round_up_u64(start, POOL_HUGE_BYTES) - start);
    pool->base = (uint8_t *)map + skip;
    /* This is only a wish: without huge pages the pool works and is a little slower. */
    err_ignore(madvise(pool->base, bytes, MADV_HUGEPAGE));
    pool_touch(pool);
    return 0;
}

int pool_new(size_t count, size_t buffer_bytes, struct pool **ret, struct diag *diag)
{
    CHECK(count > 0);
    CHECK(buffer_bytes > 0);
    CHECK(buffer_bytes % POOL_ALIGN == 0);
    int rc;
    struct pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return diag_no_memory(diag, "a buffer pool of %zu x %zu bytes", count, buffer_bytes);
    }
    pool->count = count;
    pool->buffer_bytes = buffer_bytes;
    pool->stack = calloc(count, sizeof(*pool->stack));
    pool->taken = calloc(count, sizeof(*pool->taken));
    if (pool->stack == NULL || pool->taken == NULL) {
        rc = diag_no_memory(diag, "a buffer pool of %zu x %zu bytes", count, buffer_bytes);
        goto out;
    }
    rc = pool_map(pool, diag);
    if (rc != 0) {
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        pool->stack[i] = count - 1 - i;
    }
    pool->free_count = count;
    ASAN_POISON_MEMORY_REGION(pool->base, count * buffer_bytes);
    *ret = pool;
    pool = NULL;
out:
    pool_free(pool);
    return rc;
}

void pool_free(struct pool *pool)
{
    if (pool == NULL) {
        return;
    }
    if (pool->map != NULL) {
        CHECK(pool->free_count == pool->count);
        ASAN_UNPOISON_MEMORY_REGION(pool->base, pool->count * pool->buffer_bytes);
        CHECK(munmap(pool->map, pool->map_bytes) == 0);
    }
    free(pool->taken);
    free(pool->stack);
    free(pool);
}

void *pool_get(struct pool *pool)
{
    if (pool->free_count == 0) {
        return NULL;
    }
    size_t index = pool->stack[--pool->free_count];
    CHECK(!pool->taken[index]);
    pool->taken[index] = true;
    uint8_t *buffer = pool->base + index * pool->buffer_bytes;
    ASAN_UNPOISON_MEMORY_REGION(buffer, pool->buffer_bytes);
    return buffer;
}

void pool_put(struct pool *pool, void *buffer)
{
    uintptr_t offset = (uintptr_t)buffer - (uintptr_t)pool->base;
    size_t index = offset / pool->buffer_bytes;
    CHECK(offset % pool->buffer_bytes == 0);
    CHECK(index < pool->count);
    CHECK(pool->taken[index]);
    pool->taken[index] = false;
    pool->stack[pool->free_count++] = index;
    ASAN_POISON_MEMORY_REGION(buffer, pool->buffer_bytes);
}

size_t pool_free_count(const struct pool *pool) { return pool->free_count; }
size_t pool_count(const struct pool *pool) { return pool->count; }

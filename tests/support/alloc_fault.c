/* SPDX-License-Identifier: Apache-2.0
 *
 * The other ends of the linker's --wrap. Single-threaded tests only.
 */
#include "support/alloc_fault.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset);

static unsigned fault_left;
static bool fault_hit;

void alloc_fault_at(unsigned n)
{
    fault_left = n;
    fault_hit = false;
}

bool alloc_fault_hit(void)
{
    bool hit = fault_hit;
    alloc_fault_at(0);
    return hit;
}

static bool fails_now(void)
{
    if (fault_left == 0 || --fault_left > 0) {
        return false;
    }
    fault_hit = true;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t bytes) { return fails_now() ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return fails_now() ? MAP_FAILED : __real_mmap(address, bytes, protection, flags, fd, offset);
}

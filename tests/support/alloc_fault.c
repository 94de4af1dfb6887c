/* SPDX-License-Identifier: Apache-2.0
 *
 * The other ends of the linker's --wrap. Single-threaded tests only.
 */
#include "support/alloc_fault.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

__typeof__(malloc) __real_malloc, __wrap_malloc;
__typeof__(calloc) __real_calloc, __wrap_calloc;
__typeof__(realloc) __real_realloc, __wrap_realloc;
__typeof__(mmap) __real_mmap, __wrap_mmap;
__typeof__(munmap) __real_munmap, __wrap_munmap;

enum { STRANGERS_MAX = 256 };

static unsigned fault_left;
static bool fault_hit;

/* A mapping that belongs to another thread of the program, as far as the code under test can tell.
 */
struct stranger {
    uint8_t *data;
    size_t bytes;
};

static struct stranger strangers[STRANGERS_MAX];
static unsigned stranger_count, strangers_left, trespass_count;

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

/* --- strangers in the holes ------------------------------------------------------------------ */

void alloc_fault_fill_holes(unsigned count)
{
    strangers_left = count;
    trespass_count = 0;
}

unsigned alloc_fault_trespasses(void)
{
    strangers_left = 0;
    while (stranger_count > 0) {
        const struct stranger *stranger = &strangers[--stranger_count];
        (void)__real_munmap(stranger->data, stranger->bytes); /* a trespasser may have done it */
    }
    return trespass_count;
}

static void fill_hole(void *address, size_t bytes)
{
    if (strangers_left == 0 || stranger_count == STRANGERS_MAX) {
        return;
    }
    void *data = __real_mmap(address, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (data != MAP_FAILED) {
        strangers_left--;
        strangers[stranger_count++] = (struct stranger){.data = data, .bytes = bytes};
    }
}

static void note_trespass(const uint8_t *data, size_t bytes)
{
    for (unsigned i = 0; i < stranger_count; i++) {
        if (data < strangers[i].data + strangers[i].bytes && strangers[i].data < data + bytes) {
            trespass_count++;
            return;
        }
    }
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    bool fails = fails_now();
    if (flags & MAP_FIXED) {
        note_trespass(address, bytes);
        if (fails) {
            (void)__real_munmap(address, bytes); /* what the kernel may do before it fails */
            errno = ENOMEM;
        }
    }
    void *data = fails ? MAP_FAILED : __real_mmap(address, bytes, protection, flags, fd, offset);
    if (data == MAP_FAILED && (flags & MAP_FIXED)) {
        int errnum = errno;
        fill_hole(address, bytes); /* only where the kernel has left one */
        errno = errnum;
    }
    return data;
}

int __wrap_munmap(void *address, size_t bytes)
{
    note_trespass(address, bytes);
    int status = __real_munmap(address, bytes);
    if (status == 0) {
        fill_hole(address, bytes);
    }
    return status;
}

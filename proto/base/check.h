/* SPDX-License-Identifier: Apache-2.0
 *
 * CHECK() for our own bugs, on in every build. The program decides what a broken one does. The
 * daemon and the tools abort, which is the default. libcairn installs a handler for its threads,
 * which marks the handle dead and never returns to the broken code (it long-jumps to the thread's
 * entry). Bytes from a peer, a disk, a file or a user never meet CHECK: they get an error code.
 */
#ifndef CAIRN_BASE_CHECK_H
#define CAIRN_BASE_CHECK_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Called with the place and the text of a broken check. It must not return. */
typedef void (*check_handler)(const char *file, int line, const char *what);

/* Sets the handler of the calling thread, and returns the previous one. NULL restores abort. */
check_handler check_set_handler(check_handler handler);
/* Calls the handler of this thread, or prints a line and aborts. */
_Noreturn void check_failed(const char *file, int line, const char *what);

#define CHECK(cond)   ((cond) ? (void)0 : check_failed(__FILE__, __LINE__, #cond))
#define UNREACHABLE() check_failed(__FILE__, __LINE__, "unreachable")

#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))
#define ARRAY_LEN(a)                    (sizeof(a) / sizeof((a)[0]))

/* Add or multiply numbers from outside. They return false on overflow, and set *ret only on
 * success. */
static inline int add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return 0;
    }
    *ret = sum;
    return 1;
}

static inline int mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return 0;
    }
    *ret = product;
    return 1;
}

static inline uint64_t round_up_u64(uint64_t n, uint64_t align)
{
    return (n + align - 1) / align * align;
}
static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
/* For qsort() and bsearch(). */
static inline int compare_u64(uint64_t a, uint64_t b) { return a < b ? -1 : a > b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

#endif

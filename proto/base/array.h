/* SPDX-License-Identifier: Apache-2.0
 *
 * An array that grows as things are appended to it: its pointer, its count and its capacity are
 * three fields of whatever owns it. A sorted array, in which things are found.
 */
#ifndef CAIRN_BASE_ARRAY_H
#define CAIRN_BASE_ARRAY_H

#include <stdlib.h>

#include "base/check.h"

/* Makes room for one more item behind `count`. Returns the array, which may have moved, with its
 * new capacity in *io_cap; NULL if there is no memory: then the old one is as it was. */
static inline void *array_room(void *items, size_t count, size_t *io_cap, size_t item_bytes)
{
    CHECK(count <= *io_cap);
    if (count < *io_cap) {
        return items;
    }
    size_t cap = count < 8 ? 16 : count * 2;
    void *grown = realloc(items, cap * item_bytes);
    *io_cap = grown != NULL ? cap : *io_cap;
    return grown;
}

/* Order arrays of numbers, or of structs that begin with one, for qsort() and array_find(). */
static inline int order_u32(const void *a, const void *b)
{
    return compare_u64(*(const uint32_t *)a, *(const uint32_t *)b);
}
static inline int order_u64(const void *a, const void *b)
{
    return compare_u64(*(const uint64_t *)a, *(const uint64_t *)b);
}

/* Finds the key in a sorted array, as bsearch() does. The array may be NULL if count is 0. */
static inline void *array_find(const void *key, const void *items, size_t count, size_t item_bytes,
                               int (*compare)(const void *key, const void *item))
{
    return count > 0 ? bsearch(key, items, count, item_bytes, compare) : NULL;
}

#endif

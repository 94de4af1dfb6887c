/* SPDX-License-Identifier: Apache-2.0
 *
 * An array that grows as things are appended to it: its pointer, its count and its capacity are
 * three fields of whatever owns it.
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

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Who of a group writes which cells: the group's items laid end to end are divided into equal runs of
 * bytes, and a cell belongs to the run in which its first byte lies. Every member computes the same
 * answer alone. Pure; any thread.
 */
#include "box.h"

#include "base/check.h"

/* floor(total * m / n) without overflow. */
static uint64_t split_bound(const struct split *split, uint32_t m)
{
    __extension__ unsigned __int128 product = split->total_bytes;
    return (uint64_t)(product * m / split->members);
}

bool split_is_mine(const struct split *split, uint64_t start)
{
    CHECK(split->members > 0);
    CHECK(split->member < split->members);
    CHECK(start < split->total_bytes);
    return start >= split_bound(split, split->member) && start < split_bound(split, split->member + 1);
}

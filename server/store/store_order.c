/* SPDX-License-Identifier: Apache-2.0
 *
 * store_order: see store_order.h.
 */
#include "store_order.h"

#include "store.h"

int store_order_smalls(const void *left, const void *right)
{
    const struct store_name *a = left, *b = right;
    if (a->kind != b->kind) {
        return a->kind < b->kind ? -1 : 1;
    }
    if (a->number != b->number) {
        return a->number < b->number ? -1 : 1;
    }
    return compare_u64(a->tag, b->tag);
}

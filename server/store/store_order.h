/* SPDX-License-Identifier: Apache-2.0
 *
 * store_order: comparisons for qsort() that give the orders that store.h promises. Pure.
 */
#ifndef CAIRN_STORE_STORE_ORDER_H
#define CAIRN_STORE_STORE_ORDER_H

/* Orders struct store_name of one checkpoint by (kind, number, tag). */
int store_order_smalls(const void *left, const void *right);

#endif

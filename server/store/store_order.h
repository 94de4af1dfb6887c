/* SPDX-License-Identifier: Apache-2.0
 *
 * store_order: the orders of lists that store.h promises, for qsort(). Pure.
 */
#ifndef CAIRN_STORE_STORE_ORDER_H
#define CAIRN_STORE_STORE_ORDER_H

/* Of struct object_id, in one checkpoint: (rank, writer, sequence). */
int store_order_objects(const void *left, const void *right);
/* Of struct store_name, in one checkpoint: (kind, number, tag). */
int store_order_smalls(const void *left, const void *right);
/* Of struct ckpt_id: (term, step). */
int store_order_ckpts(const void *left, const void *right);

#endif

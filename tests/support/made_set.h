/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank registers, for tests that register lists of their own: boxes, tensors of one box, and
 * the set of a list. Invariant: what is made here is valid; a test of what is refused changes it.
 */
#ifndef CAIRN_TESTS_SUPPORT_MADE_SET_H
#define CAIRN_TESTS_SUPPORT_MADE_SET_H

#include "share/registered.h"

/* A contiguous box at the origin. The data is lent until the set that has the box is gone. */
struct registered_box made_vector(int64_t length, void *data);
struct registered_box made_matrix(int64_t rows, int64_t columns, void *data);
/* A tensor that this box is the whole of, without a coordinate and a group. Name and box are lent
 * until the set is made. */
struct registered_tensor made_tensor(const char *name, uint32_t dtype, uint32_t placement,
                                     struct registered_box *box);
/* The set of a list that must be accepted: otherwise the test fails. One reference is the
 * caller's. */
struct registered *made_set(const struct registered_list *list);
/* The set of a world of one rank that has one tensor. */
struct registered *made_set_of(const struct registered_tensor *tensor);

#endif

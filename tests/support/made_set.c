/* SPDX-License-Identifier: Apache-2.0
 *
 * See made_set.h. Nothing is kept here: a set is the caller's alone.
 */
#include "support/made_set.h"

#include "support/unit_test.h"

struct registered_box made_vector(int64_t length, void *data)
{
    return (struct registered_box){
        .box = {.ndim = 1, .length = {length}}, .contiguous = true, .data = data};
}

struct registered_box made_matrix(int64_t rows, int64_t columns, void *data)
{
    return (struct registered_box){
        .box = {.ndim = 2, .length = {rows, columns}}, .contiguous = true, .data = data};
}

struct registered_tensor made_tensor(const char *name, uint32_t dtype, uint32_t placement,
                                     struct registered_box *box)
{
    struct registered_tensor tensor = {.name = name,
                                       .coordinate = "",
                                       .dtype = dtype,
                                       .placement = placement,
                                       .shape = {.ndim = box->box.ndim},
                                       .box_count = 1,
                                       .boxes = box};
    memcpy(tensor.shape.length, box->box.length, sizeof box->box.length);
    return tensor;
}

struct registered *made_set(const struct registered_list *list)
{
    struct registered *set;
    struct diag diag = DIAG_INIT;
    if (registered_new(list, &set, &diag) != 0) {
        fail_msg("rank %u of %u: %s", list->rank, list->world_size, diag.text);
    }
    return set;
}

struct registered *made_set_of(const struct registered_tensor *tensor)
{
    return made_set(
        &(struct registered_list){.world_size = 1, .tensor_count = 1, .tensors = tensor});
}

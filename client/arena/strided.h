/* SPDX-License-Identifier: Apache-2.0
 *
 * strided: copies of rectangles between memory with any strides, to gather a snapshot and to
 * scatter a restore. Pure; any thread.
 */
#ifndef CAIRN_ARENA_STRIDED_H
#define CAIRN_ARENA_STRIDED_H

#include "format/box.h"

#include <stdbool.h>

/* Memory of a box: where its first element lies, and the distance of neighbours in bytes in each
 * dimension. */
struct strided {
    uint8_t *data;
    int64_t stride[LIMIT_NDIM];
};

/* Returns the description of row-major memory without holes. */
struct strided strided_packed(void *data, const struct box *box, uint32_t element_bytes);
/* Copies `part`, which lies inside both boxes, from the memory of from_box to the memory of
 * to_box. */
struct strided_copy {
    const struct box *to_box, *from_box, *part;
    struct strided to, from;
    uint32_t element_bytes;
};
void strided_copy(const struct strided_copy *copy);
/* Returns true, and where it starts, if `part`, inside `box`, is one run of the box's row-major
 * bytes. */
bool strided_run(const struct box *box, const struct box *part, uint32_t element_bytes,
                 uint64_t *ret_offset);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * part_place: finds the chunk that a part has at the same place, that is, of the same tensor or
 * blob, box and cell. Sets may have grown, shrunk or been cut differently since, and then less is
 * found. A chunk that is found is only a candidate: its digest decides whether it holds the same
 * bytes. Pure.
 */
#ifndef CAIRN_PIPELINE_PART_PLACE_H
#define CAIRN_PIPELINE_PART_PLACE_H

#include "format/part.h"

struct part_place { /* a box of a tensor, or a blob */
    const char *name, *coordinate;
    uint32_t dtype;
    const struct box *box; /* NULL means a blob */
};
struct part_run { /* the chunks of one box or blob, which follow each other */
    uint32_t first, count;
};
/* Finds the chunks of a place, in a decoded part or one that is sorted like it. A count of 0 means
 * that it has none. O(log n). */
struct part_run part_find_run(const struct part *part, const struct part_place *place);
/* Returns 1 + the index of the cell's chunk in the part, if it has so many plain bytes, else 0. */
uint32_t part_find_cell(const struct part *part, struct part_run run, uint32_t cell,
                        uint32_t plain_bytes);

#endif

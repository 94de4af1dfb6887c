/* SPDX-License-Identifier: Apache-2.0
 *
 * part_place: the chunk that a part has at the same place: of the same tensor or blob, box and
 * cell. Sets may have grown, shrunk or been cut otherwise since, and then less is found. A chunk
 * that is found is a candidate: whether it holds the same bytes is for its digest to say. Pure.
 */
#ifndef CAIRN_PIPELINE_PART_PLACE_H
#define CAIRN_PIPELINE_PART_PLACE_H

#include "format/part.h"

struct part_place { /* of a box of a tensor, or of a blob */
    const char *name, *coordinate;
    uint32_t dtype;
    const struct box *box; /* NULL: a blob */
};
struct part_run { /* the chunks of one box or blob: they follow each other */
    uint32_t first, count;
};
/* Of a decoded part or one sorted like it. count 0: it has none there. O(log n). */
struct part_run part_find_run(const struct part *part, const struct part_place *place);
/* 1 + the index of the cell's chunk in the part, where that has so many plain bytes; 0: none. */
uint32_t part_find_cell(const struct part *part, struct part_run run, uint32_t cell,
                        uint32_t plain_bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Binary searches in a part's sorted tables. Pure; any thread.
 */
#include "pipeline/part_place.h"

/* Returns the run of chunks of this box, found by binary search. */
static struct part_run box_run(const struct part *part, const struct part_tensor *tensor,
                               const struct box *box)
{
    uint32_t low = tensor->box_first, high = low + tensor->box_count, end = high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (box_compare(&part->boxes[middle].box, box) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == end || box_compare(&part->boxes[low].box, box) != 0) {
        return (struct part_run){0};
    }
    return (struct part_run){part->boxes[low].chunk_first, part->boxes[low].chunk_count};
}

struct part_run part_find_run(const struct part *part, const struct part_place *place)
{
    if (!place->box) {
        const struct part_blob *blob = part_find_blob(part, place->name, place->coordinate);
        return blob ? (struct part_run){blob->chunk_first, blob->chunk_count}
                    : (struct part_run){0};
    }
    const struct part_tensor *tensor = part_find_tensor(part, place->name, place->coordinate);
    return tensor && tensor->dtype == place->dtype ? box_run(part, tensor, place->box)
                                                   : (struct part_run){0};
}

uint32_t part_find_cell(const struct part *part, struct part_run run, uint32_t cell,
                        uint32_t plain_bytes)
{
    uint32_t low = run.first, high = run.first + run.count, end = high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (part->chunks[middle].cell < cell) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool same =
        low < end && part->chunks[low].cell == cell && part->chunks[low].plain_bytes == plain_bytes;
    return same ? low + 1 : 0;
}

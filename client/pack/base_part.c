/* SPDX-License-Identifier: Apache-2.0
 *
 * Matching by name, box and cell, each found by a binary search in the part's sorted tables: sets
 * may have grown, shrunk or been cut otherwise since, and then less is found. Whether a chunk is
 * the same is for its digest to say. Pure but for the reference count.
 */
#include "pack/base_part.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { BASE_SCRATCH_FACTOR = 4 };

int base_part_new(struct ckpt_id id, size_t bytes, const uint8_t *data, struct base_part **ret,
                  struct diag *diag)
{
    struct base_part *base = calloc(1, sizeof *base);
    if (!base) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a base of %zu bytes", bytes);
    }
    base->refs = 1;
    base->id = id;
    scratch_init(&base->scratch, bytes * BASE_SCRATCH_FACTOR + KIB(64));
    int rc = part_decode(bytes, data, &base->scratch, &base->part, diag);
    if (rc == 0 && !ckpt_id_equal(base->part.id, id)) {
        rc = diag_set(diag, CAIRN_E_INVALID, "the part that came for a base is of another step");
    }
    if (rc != 0) {
        base_part_unref(base);
        return rc;
    }
    *ret = base;
    return 0;
}

struct base_part *base_part_ref(struct base_part *base)
{
    base->refs++;
    return base;
}

void base_part_unref(struct base_part *base)
{
    if (base && --base->refs == 0) {
        scratch_fini(&base->scratch);
        free(base);
    }
}

/* --- matching ---------------------------------------------------------------------- */

static struct base_run box_run(const struct part *part, const struct part_tensor *tensor,
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
        return (struct base_run){0};
    }
    return (struct base_run){part->boxes[low].chunk_first, part->boxes[low].chunk_count};
}

struct base_run base_part_run(const struct base_part *base, const struct base_place *place)
{
    const struct part *part = &base->part;
    if (!place->box) {
        const struct part_blob *blob = part_find_blob(part, place->name, place->coordinate);
        return blob ? (struct base_run){blob->chunk_first, blob->chunk_count}
                    : (struct base_run){0};
    }
    const struct part_tensor *tensor = part_find_tensor(part, place->name, place->coordinate);
    return tensor && tensor->dtype == place->dtype ? box_run(part, tensor, place->box)
                                                   : (struct base_run){0};
}

uint32_t base_part_cell(const struct base_part *base, struct base_run run, uint32_t cell,
                        uint32_t plain_bytes)
{
    const struct part *part = &base->part;
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

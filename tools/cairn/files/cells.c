/* SPDX-License-Identifier: Apache-2.0
 *
 * See cells.h.
 */
#include "files/cells.h"

#include <stdlib.h>
#include <string.h>

static struct cell *grow(struct cells *cells, size_t count, struct diag *diag)
{
    struct cell *grown = realloc(cells->items, (cells->count + count + 1) * sizeof(*grown));
    if (!grown) {
        err_ignore(diag_no_memory(diag, "the chunks of a tensor"));
        return NULL; /* the caller returns NO_MEMORY */
    }
    cells->items = grown;
    struct cell *first = grown + cells->count;
    cells->count += count;
    return first;
}

static void take(struct cell *cell, const struct part_chunk *chunk)
{
    cell->plain_bytes = chunk->plain_bytes;
    cell->digest_alg = chunk->digest_alg;
    cell->digest = chunk->digest;
}

static int add_box(struct cells *cells, const struct part *part, const struct part_box *box,
                   uint32_t dtype, struct diag *diag)
{
    struct grid grid;
    struct cell *cell = grow(cells, box->chunk_count, diag);
    if (!cell) {
        return CAIRN_E_NO_MEMORY;
    }
    grid_init(&grid, &box->box, dtype, part->chunk_bytes);
    for (uint32_t i = 0; i < box->chunk_count; i++) {
        const struct part_chunk *chunk = &part->chunks[box->chunk_first + i];
        uint64_t offset, bytes;
        grid_cell(&grid, chunk->cell, &cell[i].box, &offset, &bytes);
        take(&cell[i], chunk);
    }
    return 0;
}

static int add_blob(struct cells *cells, const struct part *part, const struct part_blob *blob,
                    struct diag *diag)
{
    struct cell *cell = grow(cells, blob->chunk_count, diag);
    if (!cell) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < blob->chunk_count; i++) {
        const struct part_chunk *chunk = &part->chunks[blob->chunk_first + i];
        cell[i].box = (struct box){.ndim = 1,
                                   .offset = {(int64_t)(chunk->cell * part->chunk_bytes)},
                                   .length = {(int64_t)chunk->plain_bytes}};
        take(&cell[i], chunk);
    }
    return 0;
}

int cell_order(const void *a, const void *b)
{
    return box_compare(&((const struct cell *)a)->box, &((const struct cell *)b)->box);
}

int cells_of(const struct documents *documents, const struct index_entry *entry, struct cells *ret,
             struct diag *diag)
{
    int status = 0;
    *ret = (struct cells){0};
    for (uint32_t r = 0; status == 0 && r < entry->rank_count; r++) {
        if (entry->ranks[r] >= documents->of.part_count) {
            return diag_set(diag, CAIRN_E_DAMAGED, "%s: the index names rank %u of %zu",
                            entry->name, entry->ranks[r], documents->of.part_count);
        }
        const struct part *part = &documents->parts[entry->ranks[r]];
        if (entry->kind == INDEX_BLOB) {
            const struct part_blob *blob = part_find_blob(part, entry->name, entry->coordinate);
            status = blob ? add_blob(ret, part, blob, diag) : 0;
            continue;
        }
        const struct part_tensor *tensor = part_find_tensor(part, entry->name, entry->coordinate);
        for (uint32_t i = 0; status == 0 && tensor && i < tensor->box_count; i++) {
            status = add_box(ret, part, &part->boxes[tensor->box_first + i], entry->dtype, diag);
        }
    }
    if (status == 0 && ret->count > 1) {
        qsort(ret->items, ret->count, sizeof(*ret->items), cell_order);
    }
    return status;
}

void cells_fini(struct cells *cells)
{
    free(cells->items);
    cells->items = NULL;
    cells->count = 0;
}

bool cell_equal(const struct cell *a, const struct cell *b)
{
    return a->plain_bytes == b->plain_bytes && a->digest_alg == b->digest_alg &&
           memcmp(&a->digest, &b->digest, sizeof(a->digest)) == 0;
}

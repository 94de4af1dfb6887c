/* SPDX-License-Identifier: Apache-2.0
 *
 * See compare.h.
 */
#include "files/compare.h"

#include "dtype_value.h"
#include "writeout.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 4, BLOB_BYTES_MAX = 256 << 20 };

struct comparing {
    struct cli *cli;
    const struct compare_side *sides;
    const struct compare_options *options;
    struct compare_result *result;
    struct cells cells[2];
    const struct box *boxes[PAIRS]; /* to be read */
    size_t count;
    uint8_t *memory[2][PAIRS]; /* LIMIT_CHUNK_BYTES each */
};

static const struct cell *find_same(const struct cells *cells, const struct box *box)
{
    struct cell key = {.box = *box};
    return array_find(&key, cells->items, cells->count, sizeof(key), cell_order);
}

static void add_norms(struct comparing *comparing, const uint8_t *a, const uint8_t *b,
                      uint64_t bytes)
{
    uint32_t dtype = comparing->sides[0].entry->dtype;
    uint64_t components = dtype_components(dtype);
    uint64_t count = bytes / (dtype_bits(dtype) / 8) * components;
    struct norms *norms = &comparing->result->norms;
    for (size_t i = 0; i < count; i++) {
        double x = dtype_component(dtype, a, i), y = dtype_component(dtype, b, i);
        double difference = fabs(y - x);
        norms->a2 += x * x;
        norms->b2 += y * y;
        norms->difference2 += difference * difference;
        if (isnan(difference) || difference > norms->largest) {
            norms->largest = isnan(norms->largest) ? norms->largest : difference;
        }
    }
}

static void count_bytes(struct comparing *comparing, const uint8_t *a, const uint8_t *b,
                        uint64_t bytes)
{
    if (memcmp(a, b, bytes) != 0) {
        comparing->result->changed_chunks++;
        for (uint64_t i = 0; i < bytes; i++) {
            comparing->result->changed_bytes += a[i] != b[i];
        }
    }
}

/* Reads what is queued from both, and compares. */
static int flush(struct comparing *comparing, struct diag *diag)
{
    int status = 0;
    for (size_t side = 0; status == 0 && side < 2; side++) {
        const struct compare_side *from = &comparing->sides[side];
        struct sink sinks[PAIRS];
        for (size_t i = 0; i < comparing->count; i++) {
            sinks[i] = (struct sink){.entry = from->entry,
                                     .box = comparing->boxes[i],
                                     .fd = -1,
                                     .memory = comparing->memory[side][i]};
        }
        status = writeout(comparing->cli, &from->documents->info, comparing->count, sinks, diag);
    }
    for (size_t i = 0; status == 0 && i < comparing->count; i++) {
        uint64_t bytes = box_bytes(comparing->boxes[i], comparing->sides[0].entry->dtype);
        count_bytes(comparing, comparing->memory[0][i], comparing->memory[1][i], bytes);
        comparing->result->read_bytes += 2 * bytes;
        if (comparing->options->norms) {
            add_norms(comparing, comparing->memory[0][i], comparing->memory[1][i], bytes);
        }
    }
    comparing->count = 0;
    return status;
}

static int queue(struct comparing *comparing, const struct box *box, struct diag *diag)
{
    comparing->boxes[comparing->count++] = box;
    return comparing->count == PAIRS ? flush(comparing, diag) : 0;
}

/* Chunk by chunk of the second checkpoint. With norms, all of a tensor that changed is read. */
static int compare_cells(struct comparing *comparing, struct diag *diag)
{
    const struct cells *old = &comparing->cells[0], *new = &comparing->cells[1];
    struct compare_result *result = comparing->result;
    bool read = comparing->options->read_data, changed = old->count != new->count;
    int status = 0;
    for (size_t i = 0; i < new->count; i++) {
        const struct cell *same = find_same(old, &new->items[i].box);
        changed = changed || !same || !cell_equal(same, &new->items[i]);
    }
    for (size_t i = 0; status == 0 && changed && i < new->count; i++) {
        const struct cell *cell = &new->items[i], *same = find_same(old, &cell->box);
        bool equal = same && cell_equal(same, cell);
        if (read && (!equal || comparing->options->norms)) {
            status = queue(comparing, &cell->box, diag);
        } else if (!equal) {
            result->changed_chunks++;
            result->changed_bytes += cell->plain_bytes;
        }
    }
    return status == 0 && comparing->count > 0 ? flush(comparing, diag) : status;
}

static int compare_tensor(struct comparing *comparing, struct diag *diag)
{
    int status = 0;
    for (size_t side = 0; side < 2; side++) {
        for (size_t i = 0; i < PAIRS; i++) {
            comparing->memory[side][i] = malloc(LIMIT_CHUNK_BYTES);
            if (!comparing->memory[side][i]) {
                status = diag_no_memory(diag, "chunks");
            }
        }
    }
    if (status == 0) {
        status = compare_cells(comparing, diag);
    }
    for (size_t i = 0; i < PAIRS && status != CAIRN_E_CANCELLED; i++) {
        free(comparing->memory[0][i]); /* after an interrupt reads still write into them */
        free(comparing->memory[1][i]);
    }
    return status;
}

static int read_blob(struct comparing *comparing, size_t side, uint8_t **ret, struct diag *diag)
{
    const struct compare_side *from = &comparing->sides[side];
    *ret = malloc(from->entry->plain_bytes + 1);
    struct sink sink = {.entry = from->entry, .fd = -1, .memory = *ret};
    if (!*ret) {
        return diag_no_memory(diag, "%s", from->entry->name);
    }
    comparing->result->read_bytes += from->entry->plain_bytes;
    return writeout(comparing->cli, &from->documents->info, 1, &sink, diag);
}

static int compare_blob(struct comparing *comparing, struct diag *diag)
{
    const struct cells *old = &comparing->cells[0], *new = &comparing->cells[1];
    struct compare_result *result = comparing->result;
    uint64_t bytes = comparing->sides[0].entry->plain_bytes, changed = 0;
    for (size_t i = 0; i < new->count; i++) {
        const struct cell *same = find_same(old, &new->items[i].box);
        bool equal = same && cell_equal(same, &new->items[i]);
        result->changed_chunks += equal ? 0 : 1;
        changed += equal ? 0 : new->items[i].plain_bytes;
    }
    result->exact = comparing->options->read_data && bytes <= BLOB_BYTES_MAX;
    result->changed_bytes = changed;
    if (changed == 0 || !result->exact) {
        return 0;
    }
    uint8_t *memory[2] = {NULL, NULL};
    int status = read_blob(comparing, 0, &memory[0], diag);
    if (status == 0) {
        status = read_blob(comparing, 1, &memory[1], diag);
    }
    if (status == 0) {
        result->changed_bytes = result->changed_chunks = 0;
        count_bytes(comparing, memory[0], memory[1], bytes);
    }
    if (status != CAIRN_E_CANCELLED) {
        free(memory[0]);
        free(memory[1]);
    }
    return status;
}

int compare_entries(struct cli *cli, const struct compare_side sides[2],
                    const struct compare_options *options, struct compare_result *ret,
                    struct diag *diag)
{
    struct comparing comparing = {.cli = cli, .sides = sides, .options = options, .result = ret};
    struct compare_options chosen = *options;
    bool blob = sides[0].entry->kind == INDEX_BLOB;
    chosen.norms = options->norms && !blob && dtype_components(sides[0].entry->dtype) > 0;
    comparing.options = &chosen;
    *ret = (struct compare_result){.exact = options->read_data};
    int status = cells_of(sides[0].documents, sides[0].entry, &comparing.cells[0], diag);
    if (status == 0) {
        status = cells_of(sides[1].documents, sides[1].entry, &comparing.cells[1], diag);
    }
    if (status == 0) {
        ret->chunks = comparing.cells[1].count;
        status = blob ? compare_blob(&comparing, diag) : compare_tensor(&comparing, diag);
        ret->has_norms = chosen.norms && ret->changed_bytes > 0;
    }
    if (status != CAIRN_E_CANCELLED) {
        cells_fini(&comparing.cells[0]);
        cells_fini(&comparing.cells[1]);
    }
    return status;
}

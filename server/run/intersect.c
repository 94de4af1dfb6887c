/* SPDX-License-Identifier: Apache-2.0
 *
 * Wanted boxes against stored ones. Invariant: coverage was checked when the checkpoint was
 * committed (distinct boxes tile a tensor, each cell is stored once), so each wanted element is
 * found exactly once; intersect_end() counts and checks that. Pure.
 */
#include "intersect.h"

#include "base/array.h"
#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int want_order(const void *a, const void *b, void *user)
{
    const struct plan_want *wants = user;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int order = strcmp(wants[x].name, wants[y].name);
    return order ? order : (x > y) - (x < y);
}

int intersect_init(struct intersect *sect, uint32_t want_count, const struct plan_want *wants)
{
    CHECK(wants != NULL || want_count == 0);
    memset(sect, 0, sizeof *sect);
    sect->want_count = want_count;
    sect->wants = wants;
    sect->items = calloc(want_count + (size_t)1, sizeof *sect->items);
    sect->by_name = calloc(want_count + (size_t)1, sizeof *sect->by_name);
    if (!sect->items || !sect->by_name) {
        return CAIRN_E_NO_MEMORY; /* the caller calls intersect_fini() in any case */
    }
    for (uint32_t i = 0; i < want_count; i++) {
        sect->items[i].want = &wants[i];
        sect->by_name[i] = i;
    }
    qsort_r(sect->by_name, want_count, sizeof *sect->by_name, want_order, (void *)(uintptr_t)wants);
    return 0;
}

void intersect_fini(struct intersect *sect)
{
    free(sect->items);
    free(sect->by_name);
    free(sect->reads);
    memset(sect, 0, sizeof *sect);
}

/* Returns the first position in by_name whose name is >= name. */
static uint32_t name_lower_bound(const struct intersect *sect, const char *name)
{
    uint32_t low = 0, high = sect->want_count;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (strcmp(sect->wants[sect->by_name[mid]].name, name) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

bool intersect_has_name_between(const struct intersect *sect, const char *first, const char *last)
{
    uint32_t at = name_lower_bound(sect, first);
    return at < sect->want_count &&
           (!last || strcmp(sect->wants[sect->by_name[at]].name, last) <= 0);
}

/* Writes "tensor 'layer.weight'", with the coordinate if there is one. */
static void want_text(const struct plan_want *want, size_t bytes, char *ret)
{
    snprintf(ret, bytes, "%s '%.160s'%s%s", want->is_blob ? "blob" : "tensor", want->name,
             *want->coordinate ? " of " : "", want->coordinate);
}

/* Returns an error if the stored tensor is of another type or shape than the wanted one, or if the
 * wanted box is not inside it. Blobs always fit. */
static int want_check(const struct plan_want *want, const struct index_entry *entry,
                      struct diag *diag)
{
    char text[384], stored[160], wanted[160];
    int status;

    if (want->is_blob) {
        return 0;
    }
    want_text(want, sizeof text, text);
    if (want->dtype != entry->dtype) {
        return diag_set(diag, CAIRN_E_DTYPE_MISMATCH, "%s is stored as %s, but was requested as %s",
                        text, dtype_name(entry->dtype), dtype_name(want->dtype));
    }
    if (!shape_equal(&want->shape, &entry->shape)) {
        shape_format(&entry->shape, sizeof stored, stored);
        shape_format(&want->shape, sizeof wanted, wanted);
        return diag_set(diag, CAIRN_E_SHAPE_MISMATCH,
                        "%s is stored with shape %s, but was requested with %s", text, stored,
                        wanted);
    }
    status = box_check(&want->box, &entry->shape, diag);
    if (status) {
        diag_add(diag, "the requested box of %s", text);
    }
    return status;
}

int intersect_page(struct intersect *sect, const struct page *page, struct diag *diag)
{
    const struct index_entry *last;
    uint32_t at;

    if (page->kind != PAGE_INDEX || page->entry_count == 0) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the manifest names a page as its index that is not an index page");
    }
    last = &page->index[page->entry_count - 1];
    for (at = name_lower_bound(sect, page->index[0].name); at < sect->want_count; at++) {
        struct sect_want *item = &sect->items[sect->by_name[at]];
        const struct plan_want *want = item->want;
        int status;

        if (strcmp(want->name, last->name) > 0) {
            break;
        }
        if (item->entry) {
            continue;
        }
        item->entry = index_find(page->entry_count, page->index, want->name, want->coordinate,
                                 want->is_blob ? INDEX_BLOB : INDEX_TENSOR);
        status = item->entry ? want_check(want, item->entry, diag) : 0;
        if (status) {
            return status;
        }
    }
    return 0;
}

int intersect_check_found(const struct intersect *sect, struct diag *diag)
{
    const struct plan_want *first = NULL;
    uint32_t missing = 0;
    char text[384];

    for (uint32_t i = 0; i < sect->want_count; i++) {
        if (!sect->items[i].entry) {
            first = first ? first : sect->items[i].want;
            missing++;
        }
    }
    if (!first) {
        return 0;
    }
    want_text(first, sizeof text, text);
    if (missing > 1) {
        return diag_set(diag, CAIRN_E_MISSING_TENSOR,
                        "the checkpoint does not hold %s, nor %" PRIu32
                        " others that were requested",
                        text, missing - 1);
    }
    return diag_set(diag, CAIRN_E_MISSING_TENSOR, "the checkpoint does not hold %s", text);
}

/* Returns true for a want without elements, for which nothing is read. */
static bool want_is_empty(const struct sect_want *item)
{
    return item->want->is_blob ? item->entry->plain_bytes == 0
                               : box_elements(&item->want->box) == 0;
}

/* The position of a box among boxes of its own size that would tile the tensor: the number of such
 * boxes, and the box's own number, counted from the first dimension and from the last. */
struct place {
    uint64_t count, row_major, column_major;
    uint32_t cut_dims, dim; /* how many dimensions are cut, and one of them */
};

/* Returns where the wanted box lies among the equal boxes into which its tensor would be cut. */
static struct place place_of(const struct plan_want *want)
{
    struct place place = {.count = 1};
    for (uint32_t d = 0; d < want->shape.ndim; d++) {
        uint64_t length = (uint64_t)want->box.length[d], all = (uint64_t)want->shape.length[d];
        CHECK(length > 0); /* a want without elements has no place */
        uint64_t boxes = (all + length - 1) / length, at = (uint64_t)want->box.offset[d] / length;
        place.row_major = place.row_major * boxes + at;
        place.column_major += at * place.count;
        place.count *= boxes;
        if (boxes > 1) {
            place.cut_dims++;
            place.dim = d;
        }
    }
    return place;
}

/* Returns true if the k-th of n ranks that hold parts of one dimension in order would hold a part
 * of the box, given equal shares or shares that are rounded up. */
static bool share_meets(const struct plan_want *want, uint32_t dim, uint64_t k, uint64_t n)
{
    uint64_t all = (uint64_t)want->shape.length[dim], from = (uint64_t)want->box.offset[dim];
    uint64_t last = from + (uint64_t)want->box.length[dim] - 1, each = (all + n - 1) / n;
    bool rounded_up = k >= from / each && k <= last / each;
    return rounded_up || (k >= from * n / all && k <= last * n / all);
}

/* Guesses whether the k-th rank of the entry holds a part of the wanted box, from the ways in which
 * training frameworks lay ranks out. A wrong guess costs reading more parts. */
static bool is_likely(const struct sect_want *item, const struct place *place, uint32_t k,
                      uint32_t world_size)
{
    const struct index_entry *entry = item->entry;
    uint32_t rank = entry->ranks[k];
    if (item->want->is_blob || place->cut_dims == 0) {
        return true;
    }
    if (place->cut_dims == 1 && share_meets(item->want, place->dim, k, entry->rank_count)) {
        return true;
    }
    if (place->count > world_size || world_size % place->count != 0) {
        return false;
    }
    uint64_t inner = rank % place->count, outer = rank / (world_size / place->count);
    return inner == place->row_major || inner == place->column_major || outer == place->row_major ||
           outer == place->column_major;
}

void intersect_ranks(const struct intersect *sect, uint32_t world_size, uint8_t *ret)
{
    for (uint32_t i = 0; i < sect->want_count; i++) {
        const struct sect_want *item = &sect->items[i];
        CHECK(item->entry != NULL); /* intersect_check_found() comes first */
        if (want_is_empty(item)) {
            continue;
        }
        struct place place = place_of(item->want);
        for (uint32_t k = 0; k < item->entry->rank_count; k++) {
            uint32_t rank = item->entry->ranks[k];
            if (rank < world_size && ret[rank] != RANK_LIKELY) {
                ret[rank] = is_likely(item, &place, k, world_size) ? RANK_LIKELY : RANK_POSSIBLE;
            }
        }
    }
}

static bool entry_has_rank(const struct index_entry *entry, uint32_t rank)
{
    return array_find(&rank, entry->ranks, entry->rank_count, sizeof(rank), order_u32) != NULL;
}

/* Appends a chunk to the plan and returns it; NULL if there is no memory or the plan has
 * PLAN_READS_MAX chunks. */
static struct plan_read *read_add(struct intersect *sect, uint32_t want, const struct part *part,
                                  const struct part_chunk *chunk, struct diag *diag)
{
    struct plan_read *read;

    if (sect->read_count == PLAN_READS_MAX) {
        diag_set(diag, CAIRN_E_TOO_LARGE,
                 "the plan has more than %d chunks; ask for fewer tensors at once", PLAN_READS_MAX);
        return NULL;
    }
    struct plan_read *reads =
        array_room(sect->reads, sect->read_count, &sect->read_cap, sizeof *reads);
    if (!reads) {
        diag_no_memory(diag, "a plan of more than %zu chunks", sect->read_count);
        return NULL;
    }
    sect->reads = reads;
    CHECK(sect->read_count < sect->read_cap);
    CHECK(chunk->object < part->object_count);
    read = &sect->reads[sect->read_count++];
    *read = (struct plan_read){.want = want,
                               .object = part->objects[chunk->object].id,
                               .offset = chunk->offset,
                               .stored_bytes = chunk->stored_bytes,
                               .plain_bytes = chunk->plain_bytes,
                               .stored_crc = chunk->stored_crc,
                               .encoding = chunk->encoding,
                               .digest_alg = chunk->digest_alg,
                               .digest = chunk->digest};
    return read;
}

/* Adds the chunks of a tensor in one part that have elements in common with the wanted box, and
 * counts these elements. */
static int tensor_reads(struct intersect *sect, uint32_t idx, const struct part *part,
                        const struct part_tensor *tensor, struct diag *diag)
{
    struct sect_want *item = &sect->items[idx];

    for (uint32_t b = 0; b < tensor->box_count; b++) {
        const struct part_box *box = &part->boxes[tensor->box_first + b];
        struct box common, cell;
        struct grid grid;

        if (box->chunk_count == 0 || !box_intersect(&box->box, &item->want->box, &common)) {
            continue;
        }
        grid_init(&grid, &box->box, tensor->dtype, sect->chunk_bytes);
        for (uint32_t c = 0; c < box->chunk_count; c++) {
            const struct part_chunk *chunk = &part->chunks[box->chunk_first + c];
            uint64_t offset, bytes;
            struct plan_read *read;

            grid_cell(&grid, chunk->cell, &cell, &offset, &bytes);
            if (!box_intersect(&cell, &item->want->box, &common)) {
                continue;
            }
            read = read_add(sect, idx, part, chunk, diag);
            if (!read) {
                return sect->read_count == PLAN_READS_MAX ? CAIRN_E_TOO_LARGE : CAIRN_E_NO_MEMORY;
            }
            read->cell = cell;
            item->covered += box_elements(&common);
        }
    }
    return 0;
}

/* Adds all chunks of a blob: a blob is always wanted whole. */
static int blob_reads(struct intersect *sect, uint32_t idx, const struct part *part,
                      const struct part_blob *blob, struct diag *diag)
{
    for (uint32_t c = 0; c < blob->chunk_count; c++) {
        const struct part_chunk *chunk = &part->chunks[blob->chunk_first + c];
        struct plan_read *read = read_add(sect, idx, part, chunk, diag);

        if (!read) {
            return sect->read_count == PLAN_READS_MAX ? CAIRN_E_TOO_LARGE : CAIRN_E_NO_MEMORY;
        }
        read->blob_offset = chunk->cell * sect->chunk_bytes;
        sect->items[idx].covered += chunk->plain_bytes;
    }
    return 0;
}

int intersect_part(struct intersect *sect, const struct part *part, struct diag *diag)
{
    int status = 0;

    if (part->chunk_bytes != sect->chunk_bytes) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "part %" PRIu32 " has chunks of %" PRIu64
                        " bytes, but its manifest gives %" PRIu64,
                        part->rank, part->chunk_bytes, sect->chunk_bytes);
    }
    for (uint32_t i = 0; status == 0 && i < sect->want_count; i++) {
        const struct sect_want *item = &sect->items[i];
        const struct plan_want *want = item->want;

        if (want_is_empty(item) || !entry_has_rank(item->entry, part->rank)) {
            continue;
        }
        if (want->is_blob) {
            const struct part_blob *blob = part_find_blob(part, want->name, want->coordinate);
            status = blob ? blob_reads(sect, i, part, blob, diag) : 0;
        } else {
            const struct part_tensor *tensor = part_find_tensor(part, want->name, want->coordinate);
            status = tensor ? tensor_reads(sect, i, part, tensor, diag) : 0;
        }
    }
    return status; /* chunks that were missing show in the count of intersect_end() */
}

/* Orders reads by object and offset, so that each object is read from front to back. */
static int read_order(const void *a, const void *b)
{
    const struct plan_read *x = a, *y = b;
    int order = object_id_compare(&x->object, &y->object);

    if (order) {
        return order;
    }
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    return (x->want > y->want) - (x->want < y->want);
}

static uint64_t want_needs(const struct sect_want *item)
{
    return item->want->is_blob ? item->entry->plain_bytes : box_elements(&item->want->box);
}

bool intersect_is_covered(const struct intersect *sect)
{
    for (uint32_t i = 0; i < sect->want_count; i++) {
        if (sect->items[i].covered != want_needs(&sect->items[i])) {
            return false;
        }
    }
    return true;
}

int intersect_end(struct intersect *sect, struct diag *diag)
{
    char text[384];

    for (uint32_t i = 0; i < sect->want_count; i++) {
        const struct sect_want *item = &sect->items[i];
        uint64_t needed = want_needs(item);

        if (item->covered != needed) {
            want_text(item->want, sizeof text, text);
            return diag_set(
                diag, CAIRN_E_DAMAGED,
                "%s is incomplete: the parts hold %" PRIu64 " of %" PRIu64 " requested %s", text,
                item->covered, needed, item->want->is_blob ? "bytes" : "elements");
        }
    }
    if (sect->read_count) {
        qsort(sect->reads, sect->read_count, sizeof *sect->reads, read_order);
    }
    return 0;
}

struct plan_read *intersect_take(struct intersect *sect, size_t *ret_count)
{
    struct plan_read *reads = sect->reads;

    *ret_count = sect->read_count;
    sect->reads = NULL;
    sect->read_count = sect->read_cap = 0;
    return reads;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A part from outside bytes. The checksums are checked first, then the counts against the length,
 * then every record in one pass. The references of each record must continue those of the record
 * before, so that a part has one encoding, nothing overlaps or is unreferenced, and the work is
 * linear. Pure; any thread.
 */
#include "part_layout.h"

#include <stdlib.h>

#include "base/check.h"
#include "hash/hash.h"
#include "rows_private.h"

struct decoder {
    const uint8_t *data;
    struct scratch *scratch;
    struct part_layout layout;
    struct part part;
    uint64_t dim_count, string_bytes; /* of the whole part */
    uint64_t dim_next, string_next;   /* how far records have referred until now */
    uint32_t box_next, chunk_next;
    uint64_t *used; /* by object: stored bytes that chunks refer to */
    struct diag *diag;
};

static int broken(const struct decoder *decoder, const char *what, uint64_t idx)
{
    return diag_set(decoder->diag, CAIRN_E_FORMAT, "the part of rank %u: %s (record %llu)",
                    decoder->part.rank, what, (unsigned long long)idx);
}

/* Reads the header, and checks its counts against the length of the part. */
static int take_header(struct decoder *decoder, size_t bytes, struct cur *cur)
{
    struct part *part = &decoder->part;
    uint32_t page_bytes = cur_u32(cur);
    row_take_part(cur, part);
    decoder->dim_count = cur_u64(cur);
    decoder->string_bytes = cur_u64(cur);
    cur_zeros(cur, PART_HEADER_BYTES - 120);
    bool good = cur->status == 0 && page_bytes == PART_PAGE_BYTES && part->id.term > 0 &&
                part->world_size > 0 && part->world_size <= LIMIT_WORLD_SIZE &&
                part->rank < part->world_size && chunk_bytes_is_valid(part->chunk_bytes) &&
                decoder->dim_count <= bytes / 8 && decoder->string_bytes <= bytes;
    if (!good) {
        return diag_set(decoder->diag, CAIRN_E_FORMAT, "the part's header is malformed");
    }
    part_layout_init(&decoder->layout, part, decoder->dim_count, decoder->string_bytes);
    if (decoder->layout.bytes != bytes) {
        return diag_set(decoder->diag, CAIRN_E_FORMAT,
                        "the part of rank %u has %zu bytes, but its counts add up to %llu",
                        part->rank, bytes, (unsigned long long)decoder->layout.bytes);
    }
    return 0;
}

/* Checks the crc of the table of checksums, and of each page. */
static int check_crcs(struct decoder *decoder)
{
    const struct part_layout *layout = &decoder->layout;
    const uint8_t *table = decoder->data + layout->crcs;
    size_t table_bytes = (size_t)(4 * layout->page_count);
    if (crc32c(0, table_bytes, table) != load_u32(table + table_bytes)) {
        return diag_set(decoder->diag, CAIRN_E_DAMAGED,
                        "the part of rank %u is damaged in its table of checksums",
                        decoder->part.rank);
    }
    for (uint64_t page = 0; page < layout->page_count; page++) {
        uint64_t from = page * PART_PAGE_BYTES;
        size_t bytes = (size_t)min_u64(PART_PAGE_BYTES, layout->crcs - from);
        if (crc32c(0, bytes, decoder->data + from) != load_u32(table + 4 * page)) {
            return diag_set(decoder->diag, CAIRN_E_DAMAGED,
                            "the part of rank %u is damaged between bytes %llu and %llu",
                            decoder->part.rank, (unsigned long long)from,
                            (unsigned long long)(from + bytes - 1));
        }
    }
    for (uint64_t at = layout->strings + decoder->string_bytes; at < layout->crcs; at++) {
        if (decoder->data[at] != 0) {
            return broken(decoder, "padding is not zero", at);
        }
    }
    return 0;
}

/* Allocates the arrays of the part, whose counts were checked before. */
static int allocate(struct decoder *decoder)
{
    struct part *part = &decoder->part;
    struct scratch *scratch = decoder->scratch;
    part->objects = scratch_array(scratch, (size_t)part->object_count + 1, sizeof *part->objects);
    part->tensors = scratch_array(scratch, (size_t)part->tensor_count + 1, sizeof *part->tensors);
    part->boxes = scratch_array(scratch, (size_t)part->box_count + 1, sizeof *part->boxes);
    part->blobs = scratch_array(scratch, (size_t)part->blob_count + 1, sizeof *part->blobs);
    part->chunks = scratch_array(scratch, (size_t)part->chunk_count + 1, sizeof *part->chunks);
    decoder->used = scratch_array(scratch, (size_t)part->object_count + 1, sizeof *decoder->used);
    if (part->objects == NULL || part->tensors == NULL || part->boxes == NULL ||
        part->blobs == NULL || part->chunks == NULL || decoder->used == NULL) {
        return doc_no_memory("part", decoder->diag);
    }
    return 0;
}

/* Copies `count` dimensions, if they are the next ones. */
static bool take_dims(struct decoder *decoder, uint64_t first, uint32_t count, int64_t *ret)
{
    if (first != decoder->dim_next || count > decoder->dim_count - decoder->dim_next) {
        return false;
    }
    const uint8_t *from = decoder->data + decoder->layout.dims + 8 * first;
    for (uint32_t d = 0; d < count; d++) {
        ret[d] = (int64_t)load_u64(from + (size_t)8 * d);
    }
    decoder->dim_next += count;
    return true;
}

/* Reads name and coordinate of the record at cur, if their bytes are the next ones and valid; else
 * returns FORMAT or NO_MEMORY. A local item has a coordinate, and no other has one. */
static int take_names(struct decoder *decoder, struct cur *cur, const char **ret_name,
                      const char **ret_coordinate)
{
    uint64_t first = cur_u32(cur);
    size_t name_bytes = cur_u16(cur), coordinate_bytes = cur_u16(cur);
    if (first != decoder->string_next ||
        name_bytes + coordinate_bytes > decoder->string_bytes - decoder->string_next) {
        return CAIRN_E_FORMAT;
    }
    const char *name = (const char *)decoder->data + decoder->layout.strings + first;
    const char *coordinate = name + name_bytes;
    if (!text_is_valid(name_bytes, name, LIMIT_NAME_BYTES) ||
        (coordinate_bytes > 0 &&
         !text_is_valid(coordinate_bytes, coordinate, LIMIT_COORDINATE_BYTES))) {
        return CAIRN_E_FORMAT;
    }
    decoder->string_next += name_bytes + coordinate_bytes;
    *ret_name = scratch_string(decoder->scratch, name_bytes, name);
    *ret_coordinate =
        coordinate_bytes == 0 ? "" : scratch_string(decoder->scratch, coordinate_bytes, coordinate);
    return *ret_name == NULL || *ret_coordinate == NULL ? CAIRN_E_NO_MEMORY : 0;
}

static bool placement_fits(uint32_t placement, const char *coordinate)
{
    return placement >= PLACEMENT_REPLICATED && placement <= PLACEMENT_LOCAL &&
           (placement == PLACEMENT_LOCAL) == (coordinate[0] != '\0');
}

static int take_object(struct decoder *decoder, uint32_t idx, struct cur *cur)
{
    struct part_object *object = &decoder->part.objects[idx];
    row_take_part_object(cur, object);
    return object->id.term > 0 ? 0 : broken(decoder, "an object has term 0", idx);
}

/* Reads and checks a tensor's record. */
static int take_tensor(struct decoder *decoder, uint32_t idx, struct cur *cur)
{
    struct part_tensor *tensor = &decoder->part.tensors[idx];
    uint64_t bytes = 0;
    int rc = take_names(decoder, cur, &tensor->name, &tensor->coordinate);
    if (rc != 0) {
        return rc == CAIRN_E_NO_MEMORY ? doc_no_memory("part", decoder->diag)
                                       : broken(decoder, "a tensor's name is broken", idx);
    }
    tensor->dtype = cur_u32(cur);
    tensor->placement = cur_u32(cur);
    tensor->shape.ndim = cur_u32(cur);
    cur_zeros(cur, 4);
    uint64_t dims = cur_u64(cur);
    tensor->box_first = cur_u32(cur);
    tensor->box_count = cur_u32(cur);
    if (cur->status != 0 || tensor->shape.ndim > LIMIT_NDIM ||
        !take_dims(decoder, dims, tensor->shape.ndim, tensor->shape.length) ||
        !placement_fits(tensor->placement, tensor->coordinate) ||
        tensor->box_first != decoder->box_next ||
        tensor->box_count > decoder->part.box_count - decoder->box_next) {
        return broken(decoder, "a tensor's record is broken", idx);
    }
    decoder->box_next += tensor->box_count;
    if (idx > 0 && part_name_compare(tensor[-1].name, tensor[-1].coordinate, tensor->name,
                                     tensor->coordinate) >= 0) {
        return broken(decoder, "tensors are out of order", idx);
    }
    rc = shape_check(&tensor->shape, tensor->dtype, &bytes, decoder->diag);
    if (rc != 0) {
        diag_add(decoder->diag, "tensor \"%.200s\"", tensor->name);
    }
    return doc_as_format(rc, decoder->diag);
}

/* Takes a run of chunks, if it is the next one. */
static bool take_chunk_run(struct decoder *decoder, uint32_t first, uint32_t count)
{
    if (first != decoder->chunk_next || count > decoder->part.chunk_count - decoder->chunk_next) {
        return false;
    }
    decoder->chunk_next += count;
    return true;
}

/* Reads and checks a box's record. */
static int take_box(struct decoder *decoder, uint32_t idx, struct cur *cur)
{
    struct part_box *box = &decoder->part.boxes[idx];
    row_take_part_box(cur, box);
    uint64_t dims = cur_u64(cur);
    if (cur->status != 0 || box->tensor >= decoder->part.tensor_count) {
        return broken(decoder, "a box's record is broken", idx);
    }
    const struct part_tensor *tensor = &decoder->part.tensors[box->tensor];
    uint32_t ndim = tensor->shape.ndim;
    box->box.ndim = ndim;
    if (idx < tensor->box_first || idx - tensor->box_first >= tensor->box_count ||
        !take_dims(decoder, dims, ndim, box->box.offset) ||
        !take_dims(decoder, dims + ndim, ndim, box->box.length) ||
        !take_chunk_run(decoder, box->chunk_first, box->chunk_count)) {
        return broken(decoder, "a box's record is broken", idx);
    }
    int rc = box_check(&box->box, &tensor->shape, decoder->diag);
    if (rc != 0) {
        diag_add(decoder->diag, "tensor \"%.200s\"", tensor->name);
        return doc_as_format(rc, decoder->diag);
    }
    if (idx > tensor->box_first && box_compare(&box[-1].box, &box->box) >= 0) {
        return broken(decoder, "boxes are out of order", idx);
    }
    return 0;
}

/* Reads and checks a blob's record. */
static int take_blob(struct decoder *decoder, uint32_t idx, struct cur *cur)
{
    struct part_blob *blob = &decoder->part.blobs[idx];
    int rc = take_names(decoder, cur, &blob->name, &blob->coordinate);
    if (rc != 0) {
        return rc == CAIRN_E_NO_MEMORY ? doc_no_memory("part", decoder->diag)
                                       : broken(decoder, "a blob's name is broken", idx);
    }
    row_take_part_blob(cur, blob);
    if (blob->kind != BLOB_BYTES && blob->kind != BLOB_TREE) {
        return diag_set(decoder->diag, CAIRN_E_UNSUPPORTED,
                        "blob \"%.200s\" has kind %u, which needs a newer Cairn than this",
                        blob->name, blob->kind);
    }
    if (!placement_fits(blob->placement, blob->coordinate) || blob->plain_bytes > INT64_MAX ||
        !take_chunk_run(decoder, blob->chunk_first, blob->chunk_count)) {
        return broken(decoder, "a blob's record is broken", idx);
    }
    if (idx > 0 &&
        part_name_compare(blob[-1].name, blob[-1].coordinate, blob->name, blob->coordinate) >= 0) {
        return broken(decoder, "blobs are out of order", idx);
    }
    return 0;
}

/* Reads and checks a chunk's record, and counts its bytes for its object. */
static int take_chunk(struct decoder *decoder, uint32_t idx, struct cur *cur)
{
    struct part_chunk *chunk = &decoder->part.chunks[idx];
    row_take_part_chunk(cur, chunk);
    int rc =
        encoding_check(chunk->encoding, chunk->stored_bytes, chunk->plain_bytes, decoder->diag);
    rc = rc != 0 ? rc : digest_check(chunk->digest_alg, &chunk->digest, decoder->diag);
    if (rc != 0) {
        return rc;
    }
    uint64_t end = 0;
    if (cur->status != 0 || chunk->object >= decoder->part.object_count ||
        !add_u64(chunk->offset, chunk->stored_bytes, &end) || end > LIMIT_OBJECT_BYTES) {
        return broken(decoder, "a chunk's record is broken", idx);
    }
    decoder->used[chunk->object] += chunk->stored_bytes;
    return 0;
}

struct section {
    uint64_t from;
    uint32_t record_bytes, count;
    int (*take)(struct decoder *decoder, uint32_t idx, struct cur *cur);
};

/* Reads the records of all sections in order. */
static int take_sections(struct decoder *decoder)
{
    const struct part_layout *layout = &decoder->layout;
    const struct part *part = &decoder->part;
    const struct section sections[] = {
        {layout->objects, PART_OBJECT_BYTES, part->object_count, take_object},
        {layout->tensors, PART_TENSOR_BYTES, part->tensor_count, take_tensor},
        {layout->boxes, PART_BOX_BYTES, part->box_count, take_box},
        {layout->blobs, PART_BLOB_BYTES, part->blob_count, take_blob},
        {layout->chunks, PART_CHUNK_BYTES, part->chunk_count, take_chunk},
    };
    for (size_t s = 0; s < ARRAY_LEN(sections); s++) {
        const struct section *section = &sections[s];
        for (uint32_t i = 0; i < section->count; i++) {
            struct cur cur;
            cur_init(&cur, section->record_bytes,
                     decoder->data + section->from + (uint64_t)i * section->record_bytes);
            int rc = section->take(decoder, i, &cur);
            if (rc != 0) {
                return rc;
            }
            CHECK(cur_finish(&cur) == 0);
        }
    }
    if (decoder->box_next != part->box_count || decoder->chunk_next != part->chunk_count ||
        decoder->dim_next != decoder->dim_count || decoder->string_next != decoder->string_bytes) {
        return broken(decoder, "it holds records to which nothing refers", 0);
    }
    return 0;
}

/* Checks that the cells of each box or blob ascend, lie inside, and have the bytes that the grid
 * gives them. */
static int check_cells(struct decoder *decoder)
{
    const struct part *part = &decoder->part;
    for (uint32_t b = 0; b < part->box_count; b++) {
        const struct part_box *box = &part->boxes[b];
        struct grid grid;
        grid_init(&grid, &box->box, part->tensors[box->tensor].dtype, part->chunk_bytes);
        for (uint32_t i = 0; i < box->chunk_count; i++) {
            const struct part_chunk *chunk = &part->chunks[box->chunk_first + i];
            struct box cell;
            uint64_t offset = 0, bytes = 0;
            if (chunk->cell >= grid.cell_count || (i > 0 && chunk[-1].cell >= chunk->cell)) {
                return broken(decoder, "a box's cells are out of order or outside", b);
            }
            grid_cell(&grid, chunk->cell, &cell, &offset, &bytes);
            if (chunk->plain_bytes != bytes) {
                return broken(decoder, "a chunk does not have the bytes of its cell",
                              box->chunk_first + i);
            }
        }
    }
    for (uint32_t b = 0; b < part->blob_count; b++) {
        const struct part_blob *blob = &part->blobs[b];
        uint64_t count = blob_chunk_count(blob->plain_bytes, part->chunk_bytes);
        for (uint32_t i = 0; i < blob->chunk_count; i++) {
            const struct part_chunk *chunk = &part->chunks[blob->chunk_first + i];
            if (chunk->cell >= count || (i > 0 && chunk[-1].cell >= chunk->cell)) {
                return broken(decoder, "a blob's chunks are out of order or outside", b);
            }
            if (chunk->plain_bytes !=
                blob_chunk_bytes(blob->plain_bytes, part->chunk_bytes, chunk->cell)) {
                return broken(decoder, "a chunk does not have the bytes of its piece",
                              blob->chunk_first + i);
            }
        }
    }
    return 0;
}

static int object_order(const void *a, const void *b)
{
    const struct part_object *const *x = a, *const *y = b;
    return object_id_compare(&(*x)->id, &(*y)->id);
}

/* Checks that each object is named once, and that its bytes in use are those of its chunks. */
static int check_objects(struct decoder *decoder)
{
    const struct part *part = &decoder->part;
    const struct part_object **order =
        scratch_array(decoder->scratch, (size_t)part->object_count + 1, sizeof(*order));
    if (order == NULL) {
        return doc_no_memory("part", decoder->diag);
    }
    for (uint32_t i = 0; i < part->object_count; i++) {
        if (part->objects[i].bytes_used != decoder->used[i] || decoder->used[i] == 0) {
            return broken(decoder, "an object's count of used bytes is not that of its chunks", i);
        }
        order[i] = &part->objects[i];
    }
    qsort(order, part->object_count, sizeof(*order), object_order);
    for (uint32_t i = 1; i < part->object_count; i++) {
        if (object_id_equal(&order[i - 1]->id, &order[i]->id)) {
            return broken(decoder, "an object is named twice",
                          (uint64_t)(order[i] - part->objects));
        }
    }
    return 0;
}

int part_decode(size_t bytes, const uint8_t *data, struct scratch *scratch, struct part *ret,
                struct diag *diag)
{
    static int (*const steps[])(struct decoder * decoder) = {check_crcs, allocate, take_sections,
                                                             check_cells, check_objects};
    struct decoder decoder = {.data = data, .scratch = scratch, .diag = diag};
    struct cur cur;
    int rc = doc_open(&part_kind, bytes, data, &cur, diag);
    if (rc == 0) {
        rc = take_header(&decoder, bytes, &cur);
    }
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(steps); i++) {
        rc = steps[i](&decoder);
    }
    if (rc == 0) {
        *ret = decoder.part;
    }
    return rc;
}

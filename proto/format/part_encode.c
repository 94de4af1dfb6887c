/* SPDX-License-Identifier: Apache-2.0
 *
 * A part as bytes: header, sections of fixed-width records, dimensions, strings, and a crc for each
 * 64 KiB. The struct comes from our own code, so a broken order is a CHECK, and only its size can
 * be an error. Pure; any thread.
 */
#include "part_layout.h"

#include <string.h>

#include "base/check.h"
#include "hash/hash.h"
#include "rows_private.h"

const struct doc_kind part_kind = {DOC_MAGIC('C', 'R', 'N', 'P'), "part", PART_HEADER_BYTES + 8,
                                   LIMIT_PART_BYTES, PART_HEADER_BYTES};

void part_layout_init(struct part_layout *layout, const struct part *part, uint64_t dim_count,
                      uint64_t string_bytes)
{
    CHECK(dim_count <= LIMIT_PART_BYTES);
    CHECK(string_bytes <= LIMIT_PART_BYTES);
    layout->objects = PART_HEADER_BYTES;
    layout->tensors = layout->objects + (uint64_t)part->object_count * PART_OBJECT_BYTES;
    layout->boxes = layout->tensors + (uint64_t)part->tensor_count * PART_TENSOR_BYTES;
    layout->blobs = layout->boxes + (uint64_t)part->box_count * PART_BOX_BYTES;
    layout->chunks = layout->blobs + (uint64_t)part->blob_count * PART_BLOB_BYTES;
    layout->dims = layout->chunks + (uint64_t)part->chunk_count * PART_CHUNK_BYTES;
    layout->strings = layout->dims + dim_count * 8;
    layout->crcs = round_up_u64(layout->strings + string_bytes, 8);
    layout->page_count = (layout->crcs + PART_PAGE_BYTES - 1) / PART_PAGE_BYTES;
    layout->bytes = layout->crcs + 4 * layout->page_count + 4;
}

/* Writes the fixed fields and the counts, from which the layout follows. */
static void put_header(const struct part *part, uint64_t dim_count, uint64_t string_bytes,
                       struct buf *buf)
{
    buf_put_u32(buf, PART_PAGE_BYTES);
    row_put_part(part, buf);
    buf_put_u64(buf, dim_count);
    buf_put_u64(buf, string_bytes);
    buf_put_zero(buf, PART_HEADER_BYTES - 120);
}

static void put_objects(const struct part *part, struct buf *buf)
{
    for (uint32_t i = 0; i < part->object_count; i++) {
        row_put_part_object(&part->objects[i], buf);
    }
}

/* Where the next name and the next dimensions go: in order, without a gap. */
struct pools {
    uint64_t dim_count, string_bytes;
};

static void put_names(struct pools *pools, const char *name, const char *coordinate,
                      struct buf *buf)
{
    size_t name_bytes = strlen(name), coordinate_bytes = strlen(coordinate);
    CHECK(name_bytes > 0 && name_bytes <= LIMIT_NAME_BYTES);
    CHECK(coordinate_bytes <= LIMIT_COORDINATE_BYTES);
    buf_put_u32(buf, (uint32_t)pools->string_bytes);
    buf_put_u16(buf, (uint16_t)name_bytes);
    buf_put_u16(buf, (uint16_t)coordinate_bytes);
    pools->string_bytes += name_bytes + coordinate_bytes;
}

/* Writes the records of tensors, boxes and blobs, which refer to the pools in order. */
static void put_records(const struct part *part, struct buf *buf)
{
    struct pools pools = {0, 0};
    for (uint32_t i = 0; i < part->tensor_count; i++) {
        const struct part_tensor *tensor = &part->tensors[i];
        put_names(&pools, tensor->name, tensor->coordinate, buf);
        buf_put_u32(buf, tensor->dtype);
        buf_put_u32(buf, tensor->placement);
        buf_put_u32(buf, tensor->shape.ndim);
        buf_put_u32(buf, 0);
        buf_put_u64(buf, pools.dim_count);
        buf_put_u32(buf, tensor->box_first);
        buf_put_u32(buf, tensor->box_count);
        pools.dim_count += tensor->shape.ndim;
    }
    for (uint32_t i = 0; i < part->box_count; i++) {
        row_put_part_box(&part->boxes[i], buf);
        buf_put_u64(buf, pools.dim_count);
        pools.dim_count += 2 * (uint64_t)part->boxes[i].box.ndim;
    }
    for (uint32_t i = 0; i < part->blob_count; i++) {
        const struct part_blob *blob = &part->blobs[i];
        put_names(&pools, blob->name, blob->coordinate, buf);
        row_put_part_blob(blob, buf);
    }
}

/* Writes the records of the chunks. */
static void put_chunks(const struct part *part, struct buf *buf)
{
    for (uint32_t i = 0; i < part->chunk_count; i++) {
        row_put_part_chunk(&part->chunks[i], buf);
    }
}

static void put_dims(uint32_t count, const int64_t *dims, struct buf *buf)
{
    CHECK(count <= LIMIT_NDIM);
    for (uint32_t d = 0; d < count; d++) {
        buf_put_u64(buf, (uint64_t)dims[d]);
    }
}

/* Writes dimensions and strings, in the order in which the records refer to them. */
static void put_pools(const struct part *part, struct buf *buf)
{
    for (uint32_t i = 0; i < part->tensor_count; i++) {
        put_dims(part->tensors[i].shape.ndim, part->tensors[i].shape.length, buf);
    }
    for (uint32_t i = 0; i < part->box_count; i++) {
        put_dims(part->boxes[i].box.ndim, part->boxes[i].box.offset, buf);
        put_dims(part->boxes[i].box.ndim, part->boxes[i].box.length, buf);
    }
    for (uint32_t i = 0; i < part->tensor_count; i++) {
        buf_put(buf, strlen(part->tensors[i].name), part->tensors[i].name);
        buf_put(buf, strlen(part->tensors[i].coordinate), part->tensors[i].coordinate);
    }
    for (uint32_t i = 0; i < part->blob_count; i++) {
        buf_put(buf, strlen(part->blobs[i].name), part->blobs[i].name);
        buf_put(buf, strlen(part->blobs[i].coordinate), part->blobs[i].coordinate);
    }
}

static void part_measure(const struct part *part, struct pools *ret)
{
    *ret = (struct pools){0, 0};
    for (uint32_t i = 0; i < part->tensor_count; i++) {
        ret->dim_count += part->tensors[i].shape.ndim;
        ret->string_bytes += strlen(part->tensors[i].name) + strlen(part->tensors[i].coordinate);
    }
    for (uint32_t i = 0; i < part->box_count; i++) {
        ret->dim_count += 2 * (uint64_t)part->boxes[i].box.ndim;
    }
    for (uint32_t i = 0; i < part->blob_count; i++) {
        ret->string_bytes += strlen(part->blobs[i].name) + strlen(part->blobs[i].coordinate);
    }
}

static void put_crcs(const struct part_layout *layout, size_t start, struct buf *buf)
{
    size_t table = buf->bytes;
    for (uint64_t page = 0; page < layout->page_count && buf_status(buf) == 0; page++) {
        uint64_t from = page * PART_PAGE_BYTES;
        size_t bytes = (size_t)min_u64(PART_PAGE_BYTES, layout->crcs - from);
        buf_put_u32(buf, crc32c(0, bytes, buf->data + start + from));
    }
    if (buf_status(buf) == 0) {
        buf_put_u32(buf, crc32c(0, buf->bytes - table, buf->data + table));
    }
}

void part_encode(const struct part *part, struct buf *buf)
{
    struct pools pools;
    struct part_layout layout;
    part_measure(part, &pools);
    if (pools.dim_count > LIMIT_PART_BYTES / 8 || pools.string_bytes > LIMIT_PART_BYTES) {
        buf->status = buf->status != 0 ? buf->status : CAIRN_E_TOO_LARGE;
        return;
    }
    part_layout_init(&layout, part, pools.dim_count, pools.string_bytes);
    size_t start = doc_begin(buf, &part_kind);
    put_header(part, pools.dim_count, pools.string_bytes, buf);
    put_objects(part, buf);
    put_records(part, buf);
    put_chunks(part, buf);
    put_pools(part, buf);
    if (buf_status(buf) != 0) {
        return;
    }
    buf_put_zero(buf, (size_t)layout.crcs - (buf->bytes - start));
    /* The length and the crc of the header come before the crcs of the pages, which cover them. */
    buf_put_zero(buf, (size_t)(4 * layout.page_count + 4));
    doc_end(buf, &part_kind, start);
    if (buf_status(buf) != 0) {
        return;
    }
    CHECK(buf->bytes - start == layout.bytes);
    buf->bytes = start + (size_t)layout.crcs;
    put_crcs(&layout, start, buf);
}

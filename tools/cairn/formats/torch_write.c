/* SPDX-License-Identifier: Apache-2.0
 *
 * See torch_write.h.
 */
#include "formats/torch_write.h"

#include "base/check.h"
#include "format/ids.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CLASSES "torch.distributed.checkpoint.metadata"
#define FILES   "torch.distributed.checkpoint.filesystem"

static const struct {
    uint32_t dtype;
    const char *storage;
} storages[] = {{CAIRN_BOOL, "BoolStorage"},        {CAIRN_U8, "ByteStorage"},
                {CAIRN_I8, "CharStorage"},          {CAIRN_I16, "ShortStorage"},
                {CAIRN_I32, "IntStorage"},          {CAIRN_I64, "LongStorage"},
                {CAIRN_F16, "HalfStorage"},         {CAIRN_BF16, "BFloat16Storage"},
                {CAIRN_F32, "FloatStorage"},        {CAIRN_F64, "DoubleStorage"},
                {CAIRN_C64, "ComplexFloatStorage"}, {CAIRN_C128, "ComplexDoubleStorage"}};

/* --- words of a pickle --- */

static void op(struct buf *buf, uint8_t opcode) { buf_put_u8(buf, opcode); }

static void put_str(struct buf *buf, const char *text)
{
    op(buf, 'X');
    buf_put_u32(buf, (uint32_t)strlen(text));
    buf_put(buf, strlen(text), text);
}

static void put_int(struct buf *buf, uint64_t value)
{
    if (value <= INT32_MAX) {
        op(buf, 'J');
        buf_put_u32(buf, (uint32_t)value);
    } else { /* nine bytes: a zero on top says that it is positive */
        op(buf, 0x8a);
        buf_put_u8(buf, 9);
        buf_put_u64(buf, value);
        buf_put_u8(buf, 0);
    }
}

static void put_global(struct buf *buf, const char *module, const char *name)
{
    buf_printf(buf, "c%s\n%s\n", module, name);
}

static void put_lengths(struct buf *buf, uint32_t count, const int64_t *lengths)
{
    op(buf, '(');
    for (uint32_t i = 0; i < count; i++) {
        put_int(buf, (uint64_t)lengths[i]);
    }
    op(buf, 't');
}

static void put_size(struct buf *buf, uint32_t count, const int64_t *lengths)
{
    put_global(buf, "torch", "Size");
    put_lengths(buf, count, lengths);
    op(buf, 0x85);
    op(buf, 'R');
}

/* An object without arguments; its fields follow, then end_object(). */
static void begin_object(struct buf *buf, const char *module, const char *name)
{
    put_global(buf, module, name);
    op(buf, ')');
    op(buf, 0x81);
    op(buf, '}');
    op(buf, '(');
}

static void end_object(struct buf *buf)
{
    op(buf, 'u');
    op(buf, 'b');
}

static void begin_pickle(struct buf *buf)
{
    op(buf, 0x80);
    op(buf, 2);
}

/* --- tensors --- */

static const char *storage_of(uint32_t dtype)
{
    for (size_t i = 0; i < ARRAY_LEN(storages); i++) {
        if (storages[i].dtype == dtype) {
            return storages[i].storage;
        }
    }
    return NULL;
}

static void put_storage(struct buf *buf, const struct torch_item *item, size_t key)
{
    const char *storage = storage_of(item->dtype);
    char text[24];
    snprintf(text, sizeof(text), "%zu", key);
    op(buf, '(');
    put_str(buf, "storage");
    put_global(buf, storage ? "torch" : "torch.storage", storage ? storage : "UntypedStorage");
    put_str(buf, text);
    put_str(buf, "cpu");
    put_int(buf, storage ? item->plain_bytes / (dtype_bits(item->dtype) / 8) : item->plain_bytes);
    op(buf, 't');
    op(buf, 'Q');
}

static void put_tensor(struct buf *buf, const struct torch_item *item, size_t key)
{
    int64_t strides[LIMIT_NDIM] = {0}, stride = 1;
    bool typed = storage_of(item->dtype) != NULL;
    for (uint32_t i = item->shape.ndim; i > 0; i--) {
        strides[i - 1] = stride;
        stride *= item->shape.length[i - 1] > 0 ? item->shape.length[i - 1] : 1;
    }
    put_global(buf, "torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    op(buf, '(');
    put_storage(buf, item, key);
    put_int(buf, 0);
    put_lengths(buf, item->shape.ndim, item->shape.length);
    put_lengths(buf, item->shape.ndim, strides);
    op(buf, 0x89);
    put_global(buf, "collections", "OrderedDict");
    op(buf, ')');
    op(buf, 'R');
    if (!typed) {
        put_global(buf, "torch", dtype_name(item->dtype));
    }
    op(buf, 't');
    op(buf, 'R');
}

void torch_put_state(struct buf *buf, size_t count, const struct torch_item *items, bool single)
{
    begin_pickle(buf);
    if (single) {
        put_tensor(buf, &items[0], 0);
    } else {
        op(buf, '}');
        for (size_t i = 0; i < count; i++) {
            put_str(buf, items[i].name);
            put_tensor(buf, &items[i], i);
            op(buf, 's');
        }
    }
    op(buf, '.');
}

/* --- the metadata of a directory --- */

static void put_properties(struct buf *buf, const struct torch_item *item)
{
    put_global(buf, CLASSES, "TensorProperties");
    op(buf, ')');
    op(buf, 0x81);
    op(buf, '(');
    put_global(buf, "torch", dtype_name(item->dtype));
    put_global(buf, "torch.serialization", "_get_layout");
    put_str(buf, "torch.strided");
    op(buf, 0x85);
    op(buf, 'R');
    op(buf, 0x89);
    put_global(buf, CLASSES, "_MEM_FORMAT_ENCODING");
    put_int(buf, 0);
    op(buf, 0x85);
    op(buf, 'R');
    op(buf, 0x89);
    op(buf, 't');
    op(buf, 'b');
}

static void put_tensor_metadata(struct buf *buf, const struct torch_item *item)
{
    static const int64_t zeros[LIMIT_NDIM] = {0};
    begin_object(buf, CLASSES, "TensorStorageMetadata");
    put_str(buf, "properties");
    put_properties(buf, item);
    put_str(buf, "size");
    put_size(buf, item->shape.ndim, item->shape.length);
    put_str(buf, "chunks");
    op(buf, ']');
    begin_object(buf, CLASSES, "ChunkStorageMetadata");
    put_str(buf, "offsets");
    put_size(buf, item->shape.ndim, zeros);
    put_str(buf, "sizes");
    put_size(buf, item->shape.ndim, item->shape.length);
    end_object(buf);
    op(buf, 'a');
    end_object(buf);
}

static void put_place(struct buf *buf, const struct torch_item *item, const char *file)
{
    static const int64_t zeros[LIMIT_NDIM] = {0};
    begin_object(buf, CLASSES, "MetadataIndex");
    put_str(buf, "fqn");
    put_str(buf, item->name);
    if (!item->is_blob) {
        put_str(buf, "offset");
        put_size(buf, item->shape.ndim, zeros);
        put_str(buf, "index");
        put_int(buf, 0);
    } else {
        put_str(buf, "index");
        op(buf, 'N');
    }
    end_object(buf);
    begin_object(buf, FILES, "_StorageInfo");
    put_str(buf, "relative_path");
    put_str(buf, file);
    put_str(buf, "offset");
    put_int(buf, item->offset);
    put_str(buf, "length");
    put_int(buf, item->bytes);
    end_object(buf);
}

void dcp_put_metadata(struct buf *buf, size_t count, const struct torch_item *items,
                      const char *file)
{
    begin_pickle(buf);
    begin_object(buf, CLASSES, "Metadata");
    put_str(buf, "state_dict_metadata");
    op(buf, '}');
    for (size_t i = 0; i < count; i++) {
        put_str(buf, items[i].name);
        if (items[i].is_blob) {
            put_global(buf, CLASSES, "BytesStorageMetadata");
            op(buf, ')');
            op(buf, 0x81);
        } else {
            put_tensor_metadata(buf, &items[i]);
        }
        op(buf, 's');
    }
    put_str(buf, "planner_data");
    op(buf, '}');
    for (size_t i = 0; i < count; i++) { /* where each stands in the state: under its name */
        put_str(buf, items[i].name);
        put_str(buf, items[i].name);
        op(buf, 0x85);
        op(buf, 's');
    }
    put_str(buf, "storage_data");
    op(buf, '}');
    for (size_t i = 0; i < count; i++) {
        put_place(buf, &items[i], file);
        op(buf, 's');
    }
    put_str(buf, "storage_meta");
    op(buf, 'N');
    put_str(buf, "version");
    put_str(buf, "1.0.0");
    end_object(buf);
    op(buf, '.');
}

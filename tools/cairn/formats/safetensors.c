/* SPDX-License-Identifier: Apache-2.0
 *
 * See safetensors.h.
 */
#include "formats/safetensors.h"

#include "json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES_MAX = 100000000 };

static int compare(const void *a, const void *b)
{
    const struct index_entry *x = ((const struct safetensor *)a)->entry,
                             *y = ((const struct safetensor *)b)->entry;
    if (dtype_bits(x->dtype) != dtype_bits(y->dtype)) {
        return dtype_bits(x->dtype) > dtype_bits(y->dtype) ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static void put_metadata(struct json *json, size_t count, const struct safetensor *tensors,
                         const char *checkpoint)
{
    json_open(json, "__metadata__", '{');
    json_str(json, "format", "pt");
    json_str(json, "cairn.checkpoint", checkpoint);
    for (size_t i = 0; i < count; i++) {
        if (!dtype_safetensors(tensors[i].entry->dtype)) {
            char key[LIMIT_NAME_BYTES + 32];
            snprintf(key, sizeof(key), "cairn.dtype.%s", tensors[i].entry->name);
            json_str(json, key, dtype_name(tensors[i].entry->dtype));
        }
    }
    json_close(json, '}');
}

static void put_tensor(struct json *json, const struct safetensor *tensor)
{
    const struct index_entry *entry = tensor->entry;
    const char *dtype = dtype_safetensors(entry->dtype);
    json_open(json, entry->name, '{');
    json_str(json, "dtype", dtype ? dtype : "U8");
    json_open(json, "shape", '[');
    for (uint32_t i = 0; i < entry->shape.ndim; i++) {
        json_u64(json, NULL, (uint64_t)entry->shape.length[i]);
    }
    if (!dtype) {
        json_u64(json, NULL, dtype_bits(entry->dtype) / 8);
    }
    json_close(json, ']');
    json_open(json, "data_offsets", '[');
    json_u64(json, NULL, tensor->offset);
    json_u64(json, NULL, tensor->offset + entry->plain_bytes);
    json_close(json, ']');
    json_close(json, '}');
}

int safetensors_layout(const struct safetensors *file, struct buf *buf, struct diag *diag)
{
    size_t count = file->count;
    struct safetensor *tensors = file->tensors;
    struct json json;
    uint64_t at = 0;
    qsort(tensors, count, sizeof(*tensors), compare);
    json_init(&json);
    json_open(&json, NULL, '{');
    for (size_t i = 0; i < count; i++) {
        tensors[i].offset = at;
        at += tensors[i].entry->plain_bytes;
    }
    put_metadata(&json, count, tensors, file->checkpoint);
    for (size_t i = 0; i < count; i++) {
        put_tensor(&json, &tensors[i]);
    }
    json_close(&json, '}');
    while (json.buf.bytes % 8 != 0) {
        buf_put_u8(&json.buf, ' ');
    }
    int status = buf_status(&json.buf);
    if (status == 0 && json.buf.bytes > HEADER_BYTES_MAX) {
        status = diag_set(diag, CAIRN_E_TOO_LARGE, "a safetensors header of %zu bytes: at most %d",
                          json.buf.bytes, HEADER_BYTES_MAX);
    }
    if (status == 0) {
        buf_put_u64(buf, json.buf.bytes);
        buf_put(buf, json.buf.bytes, json.buf.data);
        status = buf_status(buf);
    }
    json_fini(&json);
    return status;
}

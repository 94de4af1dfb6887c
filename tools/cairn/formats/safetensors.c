/* SPDX-License-Identifier: Apache-2.0
 *
 * See safetensors.h.
 */
#include "formats/safetensors.h"

#include "formats/metadata.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

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

/* Writes the pairs that an import has kept. Returns whether "format" is one of them. */
static bool put_imported(const struct safetensors *file, struct json *json)
{
    struct metadata_walk walk;
    struct tree_node name, text;
    bool has_format = false;
    metadata_begin(file->metadata_bytes, file->metadata, &walk);
    while (metadata_next(&walk, &name, &text)) {
        char words[2][LIMIT_METADATA_BYTES + 1];
        snprintf(words[0], sizeof(words[0]), "%.*s", (int)name.bytes, (const char *)name.data);
        snprintf(words[1], sizeof(words[1]), "%.*s", (int)text.bytes, (const char *)text.data);
        json_str(json, words[0], words[1]);
        has_format = has_format || strcmp(words[0], "format") == 0;
    }
    return has_format;
}

static void put_metadata(const struct safetensors *file, struct json *json)
{
    json_open(json, "__metadata__", '{');
    if (!put_imported(file, json)) {
        json_str(json, "format", "pt");
    }
    json_str(json, "cairn.checkpoint", file->checkpoint);
    for (size_t i = 0; i < file->count; i++) {
        const struct index_entry *entry = file->tensors[i].entry;
        if (!dtype_safetensors(entry->dtype)) {
            char key[LIMIT_NAME_BYTES + 32];
            snprintf(key, sizeof(key), "cairn.dtype.%s", entry->name);
            json_str(json, key, dtype_name(entry->dtype));
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
    put_metadata(file, &json);
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

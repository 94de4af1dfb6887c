/* SPDX-License-Identifier: Apache-2.0
 *
 * See torch_zip.h.
 */
#include "formats/torch_zip.h"

#include "base/check.h"

#include <stdio.h>
#include <string.h>

enum { VALUES_MAX = 32 << 20, NUMEL_IDX = 4 };

/* Names that are read, and what they stand for. Nothing else is, whatever it is called. */
static const char *const globals[] = {"torch._utils _rebuild_tensor_v2",
                                      "torch._utils _rebuild_tensor_v3",
                                      "torch._utils _rebuild_parameter",
                                      "collections OrderedDict",
                                      "torch Size",
                                      "torch device",
                                      "torch.storage UntypedStorage",
                                      "torch.storage TypedStorage",
                                      "torch BoolStorage",
                                      "torch ByteStorage",
                                      "torch CharStorage",
                                      "torch ShortStorage",
                                      "torch IntStorage",
                                      "torch LongStorage",
                                      "torch HalfStorage",
                                      "torch BFloat16Storage",
                                      "torch FloatStorage",
                                      "torch DoubleStorage",
                                      "torch ComplexFloatStorage",
                                      "torch ComplexDoubleStorage",
                                      "torch bool",
                                      "torch uint8",
                                      "torch int8",
                                      "torch uint16",
                                      "torch int16",
                                      "torch uint32",
                                      "torch int32",
                                      "torch uint64",
                                      "torch int64",
                                      "torch float16",
                                      "torch bfloat16",
                                      "torch float32",
                                      "torch float64",
                                      "torch complex32",
                                      "torch complex64",
                                      "torch complex128",
                                      "torch float8_e4m3fn",
                                      "torch float8_e5m2",
                                      "torch float8_e4m3fnuz",
                                      "torch float8_e5m2fnuz",
                                      "torch float8_e8m0fnu",
                                      "torch float4_e2m1fn_x2",
                                      "_codecs encode",
                                      NULL};

static const struct {
    const char *global;
    uint32_t dtype; /* 0: bytes */
} storages[] = {{"torch.storage UntypedStorage", 0},       {"torch BoolStorage", CAIRN_BOOL},
                {"torch ByteStorage", CAIRN_U8},           {"torch CharStorage", CAIRN_I8},
                {"torch ShortStorage", CAIRN_I16},         {"torch IntStorage", CAIRN_I32},
                {"torch LongStorage", CAIRN_I64},          {"torch HalfStorage", CAIRN_F16},
                {"torch BFloat16Storage", CAIRN_BF16},     {"torch FloatStorage", CAIRN_F32},
                {"torch DoubleStorage", CAIRN_F64},        {"torch ComplexFloatStorage", CAIRN_C64},
                {"torch ComplexDoubleStorage", CAIRN_C128}};

/* --- the archive --- */

static const struct zip_entry *find(const struct torch_zip *torch, const char *name)
{
    char path[600];
    snprintf(path, sizeof(path), "%s%s", torch->prefix, name);
    return zip_find(&torch->zip, path);
}

static int check_entry(const struct zip_entry *entry, const char *name, struct diag *diag)
{
    if (!entry) {
        return diag_set(diag, CAIRN_E_FORMAT, "the archive has no %s", name);
    }
    return entry->method == 0
               ? 0
               : diag_set(diag, CAIRN_E_UNSUPPORTED, "%s is compressed", entry->name);
}

static int find_prefix(struct torch_zip *torch, struct diag *diag)
{
    static const char name[] = "data.pkl";
    for (size_t i = 0; i < torch->zip.count; i++) {
        const char *entry = torch->zip.entries[i].name;
        size_t length = strlen(entry);
        if (length > sizeof(name) && length - sizeof(name) + 1 < sizeof(torch->prefix) &&
            strcmp(entry + length - sizeof(name) + 1, name) == 0 &&
            entry[length - sizeof(name)] == '/') {
            snprintf(torch->prefix, sizeof(torch->prefix), "%.*s", (int)(length - sizeof(name) + 1),
                     entry);
            return 0;
        }
    }
    return diag_set(diag, CAIRN_E_FORMAT,
                    "no data.pkl in the archive: torch.save did not write it");
}

int torch_zip_open(size_t bytes, const uint8_t *data, struct scratch *scratch,
                   struct torch_zip *ret, struct diag *diag)
{
    struct pickle_options options = {.globals = globals, .values_max = VALUES_MAX};
    *ret = (struct torch_zip){.data = data, .bytes = bytes};
    if (bytes > 2 && data[0] == 0x80 && data[1] <= 5) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "a bare pickle (torch.save before 1.6, or without the zip format): save it "
                        "again with torch.save");
    }
    int status = zip_read(bytes, data, scratch, &ret->zip, diag);
    status = status != 0 ? status : find_prefix(ret, diag);
    const struct zip_entry *order = status == 0 ? find(ret, "byteorder") : NULL;
    if (order && (order->bytes != 6 || memcmp(data + order->offset, "little", 6) != 0)) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "the archive is not little-endian");
    }
    const struct zip_entry *pickle = status == 0 ? find(ret, "data.pkl") : NULL;
    status = status != 0 ? status : check_entry(pickle, "data.pkl", diag);
    if (status == 0) {
        options.bytes = pickle->bytes;
        options.data = data + pickle->offset;
        status = pickle_read(&options, scratch, &ret->root, diag);
    }
    return status;
}

/* --- tensors --- */

uint32_t torch_dtype(const struct pickle_value *value)
{
    bool named = value && value->kind == PICKLE_GLOBAL && strncmp(value->text, "torch ", 6) == 0;
    return named ? dtype_parse(value->text + 6) : 0;
}

bool torch_is_tensor(const struct pickle_value *value)
{
    return pickle_is_call(value, "torch._utils _rebuild_tensor_v2") ||
           pickle_is_call(value, "torch._utils _rebuild_tensor_v3") ||
           pickle_is_call(value, "torch._utils _rebuild_parameter");
}

bool torch_lengths(const struct pickle_value *value, uint32_t *ret_count, int64_t *ret)
{
    if (pickle_is_call(value, "torch Size") && value->items[0]->count == 1) {
        value = value->items[0]->items[0];
    }
    if (!value || (value->kind != PICKLE_TUPLE && value->kind != PICKLE_LIST) ||
        value->count > LIMIT_NDIM) {
        return false;
    }
    for (size_t i = 0; i < value->count; i++) {
        if (value->items[i]->kind != PICKLE_INT || value->items[i]->u.number < 0) {
            return false;
        }
        ret[i] = value->items[i]->u.number;
    }
    *ret_count = (uint32_t)value->count;
    return true;
}

static bool storage_dtype(const struct pickle_value *global, uint32_t *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(storages); i++) {
        if (pickle_is_global(global, storages[i].global)) {
            *ret = storages[i].dtype;
            return true;
        }
    }
    return false;
}

/* ("storage", type, key, location, count of elements) */
static int find_storage(const struct torch_zip *torch, const struct pickle_value *value,
                        struct torch_tensor *io, struct diag *diag)
{
    const struct pickle_value *id = value->kind == PICKLE_STORAGE ? value->items[0] : NULL;
    char name[300];
    if (!id || id->kind != PICKLE_TUPLE || id->count < NUMEL_IDX + 1 ||
        !pickle_is_text(id->items[0], "storage") || !storage_dtype(id->items[1], &io->dtype) ||
        id->items[2]->kind != PICKLE_STR || id->items[2]->bytes > 200 ||
        memchr(id->items[2]->text, '\0', id->items[2]->bytes)) {
        return diag_set(diag, CAIRN_E_FORMAT, "a tensor without a storage");
    }
    snprintf(name, sizeof(name), "data/%s", id->items[2]->text);
    const struct zip_entry *entry = find(torch, name);
    int status = check_entry(entry, name, diag);
    if (status == 0) {
        io->range =
            (struct bundle_range){.data = torch->data + entry->offset, .bytes = entry->bytes};
    }
    return status;
}

/* (storage, offset, size, stride, requires_grad, hooks[, dtype of v3]) */
int torch_zip_tensor(const struct torch_zip *torch, const struct pickle_value *value,
                     struct torch_tensor *ret, struct diag *diag)
{
    *ret = (struct torch_tensor){0};
    if (pickle_is_call(value, "torch._utils _rebuild_parameter") && value->items[0]->count > 0) {
        value = value->items[0]->items[0];
    }
    bool v3 = pickle_is_call(value, "torch._utils _rebuild_tensor_v3");
    const struct pickle_value *arguments = torch_is_tensor(value) ? value->items[0] : NULL;
    uint32_t strides = 0;
    if (!arguments || arguments->count < (v3 ? 7 : 4) || arguments->items[1]->kind != PICKLE_INT ||
        arguments->items[1]->u.number < 0 ||
        !torch_lengths(arguments->items[2], &ret->shape.ndim, ret->shape.length) ||
        !torch_lengths(arguments->items[3], &strides, ret->stride) || strides != ret->shape.ndim) {
        return diag_set(diag, CAIRN_E_FORMAT, "a tensor that is not described as PyTorch does");
    }
    int status = find_storage(torch, arguments->items[0], ret, diag);
    if (status == 0 && v3) {
        ret->dtype = torch_dtype(arguments->items[6]);
    }
    if (status == 0 && ret->dtype == 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "a tensor of a type that is unknown here");
    }
    if (status == 0 && !mul_u64((uint64_t)arguments->items[1]->u.number, dtype_bits(ret->dtype) / 8,
                                &ret->range.offset)) {
        return diag_set(diag, CAIRN_E_FORMAT, "a tensor that begins behind everything");
    }
    return status;
}

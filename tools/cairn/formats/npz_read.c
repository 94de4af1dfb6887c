/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads .npz archives of arrays that numpy.savez or savez_compressed wrote: .npy headers of
 * versions 1 to 3, little-endian, row- or column-major, no objects. Types that numpy lacks are V1
 * and V2 there; Cairn's own exports say in the entry cairn.json which they are.
 */
#include "formats/bundle.h"
#include "formats/inflate.h"
#include "formats/json_read.h"
#include "formats/zip.h"

#include "base/check.h"
#include "base/digits.h"

#include <string.h>

enum { HEADER_MAX = 10000, NPY_FIXED = 10, METHOD_DEFLATED = 8 };

struct archive {
    struct bundle *bundle;
    const char *path;
    struct bundle_file file;
    struct zip zip;
    struct bundle_file entry;      /* the one at hand, decompressed; not counted among the files */
    const struct json_node *types; /* or NULL: name -> type */
};

struct npy {
    char descr[16];
    bool fortran;
    struct shape shape;
    size_t header_bytes; /* all in front of the data */
};

static int bad(const struct archive *archive, const char *name, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_FORMAT, "%s: %s: %s", archive->path, name, what);
}

/* --- the header: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } --- */

static void skip(const char **at)
{
    while (**at == ' ') {
        (*at)++;
    }
}

static bool take(const char **at, const char *literal)
{
    skip(at);
    return digits_skip(at, literal);
}

static bool take_descr(const char **at, struct npy *ret)
{
    if (!take(at, "'")) {
        return false;
    }
    size_t length = strcspn(*at, "'");
    if (length == 0 || length >= sizeof(ret->descr) || (*at)[length] != '\'') {
        return false;
    }
    memcpy(ret->descr, *at, length);
    ret->descr[length] = '\0';
    *at += length + 1;
    return true;
}

static bool take_shape(const char **at, struct npy *ret)
{
    if (!take(at, "(")) {
        return false;
    }
    while (!take(at, ")")) {
        uint64_t length = 0;
        if (ret->shape.ndim == LIMIT_NDIM || !digits_read_decimal(at, INT64_MAX, &length)) {
            return false;
        }
        ret->shape.length[ret->shape.ndim++] = (int64_t)length;
        if (!take(at, ",")) {
            return take(at, ")") && ret->shape.ndim > 1;
        }
        skip(at);
    }
    return true;
}

/* The three keys in any order, each once. */
static bool parse_header(const char *text, struct npy *ret)
{
    bool descr = false, order = false, shape = false;
    if (!take(&text, "{")) {
        return false;
    }
    while (!take(&text, "}")) {
        bool fine = false;
        if (!descr && take(&text, "'descr'")) {
            descr = fine = take(&text, ":") && take_descr(&text, ret);
        } else if (!order && take(&text, "'fortran_order'")) {
            fine = take(&text, ":");
            ret->fortran = take(&text, "True");
            order = fine = fine && (ret->fortran || take(&text, "False"));
        } else if (!shape && take(&text, "'shape'")) {
            shape = fine = take(&text, ":") && take_shape(&text, ret);
        }
        if (!fine || (!take(&text, ",") && *text != '}')) {
            return false;
        }
        skip(&text);
    }
    skip(&text);
    return descr && order && shape && strcmp(text, "\n") == 0;
}

static int read_header(const struct archive *archive, const struct zip_entry *entry,
                       struct npy *ret, struct diag *diag)
{
    const uint8_t *data = archive->entry.data;
    char text[HEADER_MAX + 1];
    if (archive->entry.bytes < NPY_FIXED + 2 || memcmp(data, "\x93NUMPY", 6) != 0 || data[6] < 1 ||
        data[6] > 3) {
        return bad(archive, entry->name, "no .npy header of version 1 to 3", diag);
    }
    size_t fixed = data[6] == 1 ? NPY_FIXED : NPY_FIXED + 2;
    size_t length = (size_t)data[8] | (size_t)data[9] << 8;
    if (data[6] > 1) {
        length |= (size_t)data[10] << 16 | (size_t)data[11] << 24;
    }
    if (length > HEADER_MAX || length > archive->entry.bytes - fixed) {
        return bad(archive, entry->name, "a header that is too long", diag);
    }
    memcpy(text, data + fixed, length);
    text[length] = '\0';
    *ret = (struct npy){.header_bytes = fixed + length};
    return strlen(text) == length && parse_header(text, ret)
               ? 0
               : bad(archive, entry->name, "a broken header", diag);
}

/* --- arrays --- */

static uint32_t dtype_of(const char *descr)
{
    static const struct {
        const char *descr;
        uint32_t dtype;
    } types[] = {{"|b1", CAIRN_BOOL}, {"|u1", CAIRN_U8},   {"|i1", CAIRN_I8},  {"<u2", CAIRN_U16},
                 {"<i2", CAIRN_I16},  {"<u4", CAIRN_U32},  {"<i4", CAIRN_I32}, {"<u8", CAIRN_U64},
                 {"<i8", CAIRN_I64},  {"<f2", CAIRN_F16},  {"<f4", CAIRN_F32}, {"<f8", CAIRN_F64},
                 {"<c8", CAIRN_C64},  {"<c16", CAIRN_C128}};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (strcmp(types[i].descr, descr) == 0) {
            return types[i].dtype;
        }
    }
    return 0;
}

/* V1, V2, V4: what it is stands beside it. */
static uint32_t void_dtype(const struct archive *archive, const char *name, const char *descr)
{
    const struct json_node *node = json_get(archive->types, name);
    uint32_t dtype = node && node->kind == JSON_STRING ? dtype_parse(node->text) : 0;
    uint64_t bytes = 0;
    bool is_void = (descr[0] == '|' || descr[0] == '<') && descr[1] == 'V' &&
                   digits_parse_decimal(descr + 2, 16, &bytes);
    return dtype != 0 && is_void && bytes * 8 == dtype_bits(dtype) ? dtype : 0;
}

static int add_array(struct archive *archive, const char *name, const struct npy *npy,
                     struct diag *diag)
{
    struct bundle_new tensor = {.name = name, .dtype = dtype_of(npy->descr), .shape = npy->shape};
    int64_t stride[LIMIT_NDIM] = {1};
    if (tensor.dtype == 0) {
        tensor.dtype = void_dtype(archive, name, npy->descr);
    }
    if (tensor.dtype == 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "%s: %s: arrays of type '%s' are not read%s",
                        archive->path, name, npy->descr,
                        strchr(npy->descr, 'O') ? ": objects are pickles" : "");
    }
    int status = bundle_add(archive->bundle, &tensor, diag);
    for (uint32_t i = 1; status == 0 && i < npy->shape.ndim; i++) { /* column-major */
        stride[i] = stride[i - 1] * npy->shape.length[i - 1];
    }
    struct bundle_range range = {archive->entry.data, archive->entry.bytes, npy->header_bytes};
    return status != 0
               ? status
               : bundle_add_whole(archive->bundle, npy->fortran ? stride : NULL, &range, diag);
}

/* Its bytes, where they lie or decompressed. */
static int open_entry(struct archive *archive, const struct zip_entry *entry, struct diag *diag)
{
    if (entry->method == 0) {
        archive->entry = (struct bundle_file){archive->file.data + entry->offset, entry->bytes};
        return 0;
    }
    return entry->method == METHOD_DEFLATED
               ? inflate_entry(archive->bundle, &archive->file, entry, &archive->entry, diag)
               : diag_set(diag, CAIRN_E_UNSUPPORTED,
                          "%s: %s is compressed in way %u: save it with numpy.savez", archive->path,
                          entry->name, entry->method);
}

static int read_array(struct archive *archive, const struct zip_entry *entry, struct diag *diag)
{
    struct npy npy;
    size_t length = strlen(entry->name);
    if (strcmp(entry->name, "cairn.json") == 0) {
        return 0;
    }
    if (length < 5 || strcmp(entry->name + length - 4, ".npy") != 0) {
        return bad(archive, entry->name, "is no .npy", diag);
    }
    char *name = scratch_string(&archive->bundle->scratch, length - 4, entry->name);
    if (!name) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a name");
    }
    int status = open_entry(archive, entry, diag);
    status = status != 0 ? status : read_header(archive, entry, &npy, diag);
    return status != 0 ? status : add_array(archive, name, &npy, diag);
}

int npz_read(struct bundle *bundle, const char *path, struct diag *diag)
{
    struct archive archive = {.bundle = bundle, .path = path};
    int status = bundle_map(bundle, path, &archive.file, diag);
    if (status == 0) {
        status =
            zip_read(archive.file.bytes, archive.file.data, &bundle->scratch, &archive.zip, diag);
    }
    const struct zip_entry *types = status == 0 ? zip_find(&archive.zip, "cairn.json") : NULL;
    if (types) {
        status = open_entry(&archive, types, diag);
        status = status != 0 ? status
                             : json_read(archive.entry.bytes, (const char *)archive.entry.data,
                                         &bundle->scratch, &archive.types, diag);
    }
    for (size_t i = 0; status == 0 && i < archive.zip.count; i++) {
        status = read_array(&archive, &archive.zip.entries[i], diag);
    }
    if (status != 0) {
        diag_add(diag, "%s", path);
    }
    return status;
}

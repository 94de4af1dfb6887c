/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a directory of torch.distributed.checkpoint: .metadata, a pickle of a few known classes,
 * says which rectangles of which tensor lie where; each is a torch.save archive of its own in a
 * .distcp file. Objects that are no tensors are archives too; their pickles become trees.
 */
#include "formats/torch_zip.h"

#include <stdio.h>
#include <string.h>

#define CLASSES "torch.distributed.checkpoint.metadata "
#define FILES   "torch.distributed.checkpoint.filesystem "

enum { VALUES_MAX = 64 << 20, PATH_BYTES = 4096 };

static const char *const globals[] = {CLASSES "Metadata",
                                      CLASSES "MetadataIndex",
                                      CLASSES "TensorStorageMetadata",
                                      CLASSES "BytesStorageMetadata",
                                      CLASSES "ChunkStorageMetadata",
                                      CLASSES "TensorProperties",
                                      CLASSES "StorageMeta",
                                      CLASSES "_MEM_FORMAT_ENCODING",
                                      FILES "_StorageInfo",
                                      "torch.serialization _get_layout",
                                      "torch Size",
                                      "torch *",
                                      "pathlib PosixPath",
                                      "pathlib._local PosixPath",
                                      "collections OrderedDict",
                                      NULL};

struct reading {
    struct bundle *bundle;
    const char *path;
    const struct pickle_value *tensors, *places;
    struct {
        char name[256];
        struct bundle_file file;
    } last; /* the file that was used last */
    struct diag *diag;
};

static int bad(struct reading *reading, const char *name, const char *what)
{
    return diag_set(reading->diag, CAIRN_E_FORMAT, "%s: %s: %s", reading->path, name, what);
}

static const struct pickle_value *field(const struct pickle_value *object, const char *name)
{
    return object && object->kind == PICKLE_CALL ? pickle_get(object->state, name) : NULL;
}

/* --- where things lie --- */

static bool is_place_of(const struct pickle_value *index, const char *name, const struct box *box)
{
    struct box at = {0};
    const struct pickle_value *offset = field(index, "offset");
    if (!pickle_is_text(field(index, "fqn"), name)) {
        return false;
    }
    if (!box || !offset || offset->kind == PICKLE_NONE) {
        return true; /* a tensor that lies in one place has no offset */
    }
    return torch_lengths(offset, &at.ndim, at.offset) && at.ndim == box->ndim &&
           memcmp(at.offset, box->offset, box->ndim * sizeof(at.offset[0])) == 0;
}

static const struct pickle_value *find_place(const struct reading *reading, const char *name,
                                             const struct box *box)
{
    const struct pickle_value *places = reading->places;
    for (size_t i = 0; i + 1 < places->count; i += 2) {
        if (is_place_of(places->items[i], name, box)) {
            return places->items[i + 1];
        }
    }
    return NULL;
}

static bool is_plain_name(const struct pickle_value *value)
{
    return value && value->kind == PICKLE_STR && value->bytes > 0 && value->bytes < 200 &&
           value->text[0] != '.' && !memchr(value->text, '/', value->bytes) &&
           !memchr(value->text, '\0', value->bytes);
}

static int open_file(struct reading *reading, const char *name)
{
    char path[PATH_BYTES];
    if (strcmp(reading->last.name, name) == 0) {
        return 0;
    }
    int length = snprintf(path, sizeof(path), "%s/%s", reading->path, name);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return diag_set(reading->diag, CAIRN_E_INVALID, "the path of %s is too long", name);
    }
    int status = bundle_map(reading->bundle, path, &reading->last.file, reading->diag);
    if (status == 0) {
        snprintf(reading->last.name, sizeof(reading->last.name), "%s", name);
    }
    return status;
}

/* The archive at a place. */
static int open_place(struct reading *reading, const char *name, const struct box *box,
                      struct torch_zip *ret)
{
    const struct pickle_value *place = find_place(reading, name, box);
    const struct pickle_value *file = field(place, "relative_path"),
                              *offset = field(place, "offset"), *length = field(place, "length"),
                              *transforms = field(place, "transform_descriptors");
    if (!is_plain_name(file) || !offset || offset->kind != PICKLE_INT || offset->u.number < 0 ||
        !length || length->kind != PICKLE_INT || length->u.number < 0) {
        return bad(reading, name, "no place for it in the metadata");
    }
    if (transforms && transforms->kind != PICKLE_NONE && transforms->count > 0) {
        return diag_set(reading->diag, CAIRN_E_UNSUPPORTED, "%s: stored with a transform", name);
    }
    int status = open_file(reading, file->text);
    if (status != 0) {
        return status;
    }
    uint64_t from = (uint64_t)offset->u.number, bytes = (uint64_t)length->u.number;
    if (from > reading->last.file.bytes || bytes > reading->last.file.bytes - from) {
        return bad(reading, name, "its place does not lie in the file");
    }
    return torch_zip_open(bytes, reading->last.file.data + from, &reading->bundle->scratch, ret,
                          reading->diag);
}

/* --- tensors --- */

static int add_chunk(struct reading *reading, const char *name, const struct pickle_value *chunk,
                     const struct bundle_new *tensor)
{
    struct box box = {0};
    struct torch_zip torch = {.root = NULL};
    struct torch_tensor stored;
    uint32_t sizes = 0;
    if (!torch_lengths(field(chunk, "offsets"), &box.ndim, box.offset) ||
        !torch_lengths(field(chunk, "sizes"), &sizes, box.length) || sizes != box.ndim) {
        return bad(reading, name, "a chunk without offsets and sizes");
    }
    int status = open_place(reading, name, &box, &torch);
    status = status != 0 ? status : torch_zip_tensor(&torch, torch.root, &stored, reading->diag);
    if (status != 0) {
        return status;
    }
    if (stored.dtype != tensor->dtype || stored.shape.ndim != box.ndim ||
        memcmp(stored.shape.length, box.length, box.ndim * sizeof(box.length[0])) != 0) {
        return bad(reading, name, "a chunk is not what the metadata says");
    }
    return bundle_add_box(reading->bundle, &box, stored.stride, &stored.range, reading->diag);
}

/* TensorProperties keeps its state as a tuple whose first item is the type. */
static uint32_t dtype_of(const struct pickle_value *metadata)
{
    const struct pickle_value *properties = field(metadata, "properties");
    const struct pickle_value *state =
        properties && properties->kind == PICKLE_CALL ? properties->state : NULL;
    if (state && state->kind == PICKLE_TUPLE && state->count > 0) {
        return torch_dtype(state->items[0]);
    }
    return torch_dtype(field(properties, "dtype"));
}

static int add_tensor(struct reading *reading, const char *name,
                      const struct pickle_value *metadata)
{
    struct bundle_new tensor = {.name = name, .dtype = dtype_of(metadata)};
    const struct pickle_value *chunks = field(metadata, "chunks");
    if (tensor.dtype == 0 || !chunks || chunks->kind != PICKLE_LIST ||
        !torch_lengths(field(metadata, "size"), &tensor.shape.ndim, tensor.shape.length)) {
        return bad(reading, name, "no type, size or chunks that are known here");
    }
    int status = bundle_add(reading->bundle, &tensor, reading->diag);
    for (size_t i = 0; status == 0 && i < chunks->count; i++) {
        status = add_chunk(reading, name, chunks->items[i], &tensor);
    }
    return status;
}

/* --- what is no tensor: kept as the bytes of its archive, which nothing here runs --- */

static int add_bytes(struct reading *reading, const char *name)
{
    struct torch_zip torch;
    int status = open_place(reading, name, NULL, &torch);
    if (status != 0) {
        return status;
    }
    struct bundle_blob blob = {.name = name, .bytes = torch.bytes, .data = torch.data};
    return bundle_add_blob(reading->bundle, &blob, reading->diag);
}

static int add_entry(struct reading *reading, const struct pickle_value *key,
                     const struct pickle_value *metadata)
{
    if (key->kind != PICKLE_STR || memchr(key->text, '\0', key->bytes)) {
        return bad(reading, ".metadata", "a name that is none");
    }
    if (pickle_is_call(metadata, CLASSES "TensorStorageMetadata")) {
        return add_tensor(reading, key->text, metadata);
    }
    return pickle_is_call(metadata, CLASSES "BytesStorageMetadata")
               ? add_bytes(reading, key->text)
               : bad(reading, key->text, "neither a tensor nor bytes");
}

int dcp_read(struct bundle *bundle, const char *path, struct diag *diag)
{
    char name[PATH_BYTES];
    struct reading reading = {.bundle = bundle, .path = path, .diag = diag};
    struct pickle_options options = {.globals = globals, .values_max = VALUES_MAX};
    struct bundle_file file;
    const struct pickle_value *root = NULL;
    int length = snprintf(name, sizeof(name), "%s/.metadata", path);
    if (length < 0 || (size_t)length >= sizeof(name)) {
        return diag_set(diag, CAIRN_E_INVALID, "the path is too long");
    }
    int status = bundle_map(bundle, name, &file, diag);
    options.bytes = status == 0 ? file.bytes : 0;
    options.data = status == 0 ? file.data : NULL;
    status = status != 0 ? status : pickle_read(&options, &bundle->scratch, &root, diag);
    if (status != 0) {
        diag_add(diag, "%s", name);
        return status;
    }
    reading.tensors = field(root, "state_dict_metadata");
    reading.places = field(root, "storage_data");
    if (!pickle_is_call(root, CLASSES "Metadata") || !reading.tensors || !reading.places ||
        reading.tensors->kind != PICKLE_DICT || reading.places->kind != PICKLE_DICT) {
        return bad(&reading, ".metadata", "is not what torch.distributed.checkpoint writes");
    }
    for (size_t i = 0; status == 0 && i + 1 < reading.tensors->count; i += 2) {
        status = add_entry(&reading, reading.tensors->items[i], reading.tensors->items[i + 1]);
    }
    return status;
}

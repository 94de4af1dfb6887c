/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a directory of torch.distributed.checkpoint: .metadata, a pickle of a few known classes,
 * says which rectangles of which tensor lie where; each is a torch.save archive of its own in a
 * .distcp file. Objects that are no tensors are archives too; their pickles become trees.
 */
#include "formats/torch_zip.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DCP_ARCHIVE_MAX ((size_t)4 << 30)
#define CLASSES         "torch.distributed.checkpoint.metadata "
#define FILES           "torch.distributed.checkpoint.filesystem "

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
                                      "builtins getattr",
                                      NULL};
static const char *const members[] = {CLASSES "_MEM_FORMAT_ENCODING TORCH_CONTIGUOUS_FORMAT",
                                      CLASSES "_MEM_FORMAT_ENCODING TORCH_CHANNELS_LAST",
                                      CLASSES "_MEM_FORMAT_ENCODING TORCH_PRESERVE_FORMAT", NULL};

struct place { /* of a rectangle, or of bytes */
    const struct pickle_value *name, *info;
    bool anywhere; /* a tensor that lies in one place has no offset */
    struct box at;
};

struct mapped {
    const char *name;
    struct bundle_file file;
};

/* A large job has hundreds of thousands of rectangles in as many files as it had ranks: they are
 * found by their order, and each file is mapped once. */
struct reading {
    struct bundle *bundle;
    const char *path;
    const struct pickle_value *tensors, *stored;
    size_t place_count, file_count, file_cap, last; /* last: the file that was used last */
    struct place *places;                           /* sorted */
    struct mapped *files;
    struct scratch scratch; /* of the archive at hand */
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

static int compare_text(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    return order != 0 ? order : a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

static int compare_at(const struct place *place, bool anywhere, const struct box *at)
{
    if (place->anywhere || anywhere) {
        return (int)anywhere - (int)place->anywhere;
    }
    if (place->at.ndim != at->ndim) {
        return place->at.ndim < at->ndim ? -1 : 1;
    }
    for (uint32_t i = 0; i < at->ndim; i++) {
        if (place->at.offset[i] != at->offset[i]) {
            return place->at.offset[i] < at->offset[i] ? -1 : 1;
        }
    }
    return 0;
}

/* Those without an offset come first. */
static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = compare_text(x->name->text, x->name->bytes, y->name->text, y->name->bytes);
    return order != 0 ? order : compare_at(x, y->anywhere, &y->at);
}

/* What names no place is passed over: whoever needs it says so. */
static int collect_places(struct reading *reading)
{
    const struct pickle_value *stored = reading->stored;
    reading->places =
        scratch_array(&reading->bundle->scratch, stored->count / 2 + 1, sizeof(*reading->places));
    if (!reading->places) {
        return diag_set(reading->diag, CAIRN_E_NO_MEMORY, "no memory for %zu places",
                        stored->count / 2);
    }
    for (size_t i = 0; i + 1 < stored->count; i += 2) {
        struct place place = {.name = field(stored->items[i], "fqn"), .info = stored->items[i + 1]};
        const struct pickle_value *offset = field(stored->items[i], "offset");
        place.anywhere = !offset || offset->kind == PICKLE_NONE;
        if (place.name && place.name->kind == PICKLE_STR &&
            (place.anywhere || torch_lengths(offset, &place.at.ndim, place.at.offset))) {
            reading->places[reading->place_count++] = place;
        }
    }
    if (reading->place_count > 1) {
        qsort(reading->places, reading->place_count, sizeof(*reading->places), compare_places);
    }
    return 0;
}

/* The first that is not in front of it. */
static const struct place *lower_bound(const struct reading *reading, const char *name,
                                       bool anywhere, const struct box *at)
{
    size_t low = 0, high = reading->place_count, bytes = strlen(name);
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct place *place = &reading->places[mid];
        int order = compare_text(place->name->text, place->name->bytes, name, bytes);
        order = order != 0 ? order : compare_at(place, anywhere, at);
        low = order < 0 ? mid + 1 : low;
        high = order < 0 ? high : mid;
    }
    bool found = low < reading->place_count && pickle_is_text(reading->places[low].name, name);
    return found ? &reading->places[low] : NULL;
}

/* box NULL: of bytes, which have no offset. */
static const struct pickle_value *find_place(const struct reading *reading, const char *name,
                                             const struct box *box)
{
    const struct place *first = lower_bound(reading, name, true, box);
    if (!box || (first && first->anywhere)) {
        return first ? first->info : NULL;
    }
    const struct place *exact = lower_bound(reading, name, false, box);
    return exact && compare_at(exact, false, box) == 0 ? exact->info : NULL;
}

static bool is_plain_name(const struct pickle_value *value)
{
    return value && value->kind == PICKLE_STR && value->bytes > 0 && value->bytes < 200 &&
           value->text[0] != '.' && !memchr(value->text, '/', value->bytes) &&
           !memchr(value->text, '\0', value->bytes);
}

static int map_file(struct reading *reading, const char *name)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof(path), "%s/%s", reading->path, name);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return diag_set(reading->diag, CAIRN_E_INVALID, "the path of %s is too long", name);
    }
    if (reading->file_count == reading->file_cap) {
        size_t cap = reading->file_cap * 2 + 16;
        struct mapped *grown = realloc(reading->files, cap * sizeof(*grown));
        if (!grown) {
            return diag_set(reading->diag, CAIRN_E_NO_MEMORY, "no memory for %zu files", cap);
        }
        reading->files = grown;
        reading->file_cap = cap;
    }
    struct mapped mapped = {.name = name};
    int status = bundle_map(reading->bundle, path, &mapped.file, reading->diag);
    if (status == 0) {
        reading->last = reading->file_count;
        reading->files[reading->file_count++] = mapped;
    }
    return status;
}

/* It becomes the last one. Most often it is that already, or comes behind it: rank by rank. The
 * name outlives the reading. */
static int open_file(struct reading *reading, const char *name)
{
    for (size_t i = 0; i < reading->file_count; i++) {
        size_t at = (reading->last + i) % reading->file_count;
        if (strcmp(reading->files[at].name, name) == 0) {
            reading->last = at;
            return 0;
        }
    }
    return map_file(reading, name);
}

/* The archive at a place; what is read of it ends with the next one. */
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
    const struct bundle_file *mapped = &reading->files[reading->last].file;
    uint64_t from = (uint64_t)offset->u.number, bytes = (uint64_t)length->u.number;
    if (from > mapped->bytes || bytes > mapped->bytes - from) {
        return bad(reading, name, "its place does not lie in the file");
    }
    scratch_fini(&reading->scratch);
    scratch_init(&reading->scratch, DCP_ARCHIVE_MAX);
    return torch_zip_open(bytes, mapped->data + from, &reading->scratch, ret, reading->diag);
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

static int read_all(struct reading *reading)
{
    int status = collect_places(reading);
    for (size_t i = 0; status == 0 && i + 1 < reading->tensors->count; i += 2) {
        status = add_entry(reading, reading->tensors->items[i], reading->tensors->items[i + 1]);
    }
    return status;
}

int dcp_read(struct bundle *bundle, const char *path, struct diag *diag)
{
    char name[PATH_BYTES];
    struct reading reading = {.bundle = bundle, .path = path, .diag = diag};
    struct pickle_options options = {
        .globals = globals, .members = members, .values_max = VALUES_MAX};
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
    reading.stored = field(root, "storage_data");
    if (!pickle_is_call(root, CLASSES "Metadata") || !reading.tensors || !reading.stored ||
        reading.tensors->kind != PICKLE_DICT || reading.stored->kind != PICKLE_DICT) {
        return bad(&reading, ".metadata", "is not what torch.distributed.checkpoint writes");
    }
    scratch_init(&reading.scratch, DCP_ARCHIVE_MAX);
    status = read_all(&reading);
    scratch_fini(&reading.scratch);
    free(reading.files);
    return status;
}

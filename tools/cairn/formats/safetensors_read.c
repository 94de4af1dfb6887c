/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads safetensors files and sets of them with an index, by all rules of the format: no holes, no
 * overlap, no bytes behind the last tensor, sizes that agree with shapes. Cairn's own exports name
 * types that the format lacks in __metadata__ (safetensors.h); they come back as they were.
 */
#include "formats/bundle.h"
#include "formats/json_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HEADER_MAX = 100000000, PATH_MAX_BYTES = 4096 };

struct opened { /* one file */
    struct bundle *bundle;
    const char *path;
    struct bundle_file file;
    uint64_t data_at;       /* where the tensors' bytes begin */
    json_t *header;         /* owned */
    const json_t *metadata; /* a member of it, or NULL */
};

struct span { /* of the data */
    uint64_t begin, end;
    const char *name;
};

static int bad(const struct opened *opened, const char *name, const char *what, struct diag *diag)
{
    return diag_set(diag, CAIRN_E_FORMAT, "%s: %s%s%s", opened->path, name, name[0] ? ": " : "",
                    what);
}

static uint32_t dtype_of(const char *name)
{
    for (uint32_t dtype = 1; dtype_is_known(dtype); dtype++) {
        const char *known = dtype_safetensors(dtype);
        if (known && strcmp(known, name) == 0) {
            return dtype;
        }
    }
    return 0;
}

/* Returns the type whose elements are the last dimension of the shape, because the format has no
 * name for it, or 0. */
static uint32_t hidden_dtype(const struct opened *opened, const struct bundle_tensor *tensor)
{
    char key[LIMIT_NAME_BYTES + 32];
    if (tensor->dtype != CAIRN_U8 || tensor->shape.ndim == 0) {
        return 0;
    }
    snprintf(key, sizeof(key), "cairn.dtype.%s", tensor->name);
    const char *name = json_string_value(json_object_get(opened->metadata, key));
    uint32_t dtype = name ? dtype_parse(name) : 0;
    bool fits = dtype != 0 &&
                (uint64_t)tensor->shape.length[tensor->shape.ndim - 1] * 8 == dtype_bits(dtype);
    return fits ? dtype : 0;
}

static int read_shape(const struct opened *opened, const json_t *node, struct bundle_tensor *io,
                      struct diag *diag)
{
    const json_t *shape = json_object_get(node, "shape"), *length;
    if (!json_is_array(shape) || json_array_size(shape) > LIMIT_NDIM + 1) {
        return bad(opened, io->name, "no shape of at most 8 dimensions", diag);
    }
    int64_t lengths[LIMIT_NDIM + 1] = {0};
    size_t i;
    json_array_foreach(shape, i, length)
    {
        lengths[i] = json_is_integer(length) ? json_integer_value(length) : -1;
        if (lengths[i] < 0) {
            return bad(opened, io->name, "a length that is no number from 0 on", diag);
        }
    }
    uint32_t count = (uint32_t)json_array_size(shape);
    io->shape.ndim = count > LIMIT_NDIM ? LIMIT_NDIM : count;
    memcpy(io->shape.length, lengths, sizeof(io->shape.length));
    return count > LIMIT_NDIM ? bad(opened, io->name, "more than 8 dimensions", diag) : 0;
}

/* Reads a pair [begin, end] of offsets. Returns false if the value is none. */
static bool read_range(const json_t *range, struct span *ret)
{
    const json_t *begin = json_array_get(range, 0), *end = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(begin) > json_integer_value(end)) {
        return false;
    }
    ret->begin = (uint64_t)json_integer_value(begin);
    ret->end = (uint64_t)json_integer_value(end);
    return true;
}

static int read_tensor(struct opened *opened, const char *name, const json_t *node,
                       struct span *ret, struct diag *diag)
{
    const char *dtype = json_string_value(json_object_get(node, "dtype"));
    struct bundle_tensor tensor = {.name = name};
    uint64_t bytes = 0;
    if (!dtype) {
        return bad(opened, name, "no dtype", diag);
    }
    tensor.dtype = dtype_of(dtype);
    if (tensor.dtype == 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "%s: %s: the type %.40s is unknown here",
                        opened->path, name, dtype);
    }
    ret->name = name;
    if (!read_range(json_object_get(node, "data_offsets"), ret)) {
        return bad(opened, name, "data_offsets must be [begin, end]", diag);
    }
    int status = read_shape(opened, node, &tensor, diag);
    uint32_t hidden = status == 0 ? hidden_dtype(opened, &tensor) : 0;
    if (hidden != 0) {
        tensor.dtype = hidden;
        tensor.shape.ndim--;
    }
    status = status != 0 ? status : shape_check(&tensor.shape, tensor.dtype, &bytes, diag);
    if (status == 0 && bytes != ret->end - ret->begin) {
        status = bad(opened, name, "data_offsets do not agree with shape and dtype", diag);
    }
    return status != 0 ? status
                       : bundle_add(opened->bundle, &tensor, &opened->file,
                                    opened->data_at + ret->begin, diag);
}

static int compare(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end == y->end ? 0 : x->end < y->end ? -1 : 1;
}

static int check_spans(const struct opened *opened, size_t count, struct span *spans,
                       struct diag *diag)
{
    uint64_t at = 0;
    if (count > 1) {
        qsort(spans, count, sizeof(*spans), compare);
    }
    for (size_t i = 0; i < count; i++) {
        if (spans[i].begin != at) {
            return bad(opened, spans[i].name, "a hole or an overlap in front of its bytes", diag);
        }
        at = spans[i].end;
    }
    return at == opened->file.bytes - opened->data_at
               ? 0
               : bad(opened, "", "bytes behind the last tensor", diag);
}

static int read_tensors(struct opened *opened, struct diag *diag)
{
    struct span *spans = calloc(json_object_size(opened->header) + 1, sizeof(*spans));
    size_t count = 0;
    int status = spans ? 0 : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a header");
    for (void *at = json_object_iter(opened->header); status == 0 && at != NULL;
         at = json_object_iter_next(opened->header, at)) {
        const json_t *node = json_object_iter_value(at);
        if (node != opened->metadata) {
            status = read_tensor(opened, json_object_iter_key(at), node, &spans[count], diag);
            count++;
        }
    }
    status = status != 0 ? status : check_spans(opened, count, spans, diag);
    free(spans);
    return status;
}

static int take_metadata(const struct opened *opened, struct diag *diag)
{
    json_t *metadata = json_object_get(opened->header, "__metadata__");
    if (metadata && !json_is_object(metadata)) {
        return bad(opened, "__metadata__", "is no object", diag);
    }
    for (void *at = json_object_iter(metadata); at != NULL;
         at = json_object_iter_next(metadata, at)) {
        const char *text = json_string_value(json_object_iter_value(at));
        if (!text) {
            return bad(opened, "__metadata__", "holds what is no text", diag);
        }
        if (strstr(text, "saved_offsets")) {
            return diag_set(diag, CAIRN_E_UNSUPPORTED,
                            "%s: holds parts of tensors (written by torch.distributed.checkpoint): "
                            "consolidate it first",
                            opened->path);
        }
        struct metadata_pair pair = {.name = json_object_iter_key(at), .text = text};
        bool is_ours = strncmp(pair.name, "cairn.", 6) == 0; /* an export writes its own anew */
        int status = is_ours ? 0 : bundle_add_pair(opened->bundle, &pair, diag);
        if (status != 0) {
            return status;
        }
    }
    return 0;
}

static int read_file(struct opened *opened, struct diag *diag)
{
    int status = bundle_map(opened->bundle, opened->path, &opened->file, diag);
    if (status != 0) {
        return status;
    }
    uint64_t length = 0;
    for (size_t i = 0; i < 8 && opened->file.bytes >= 8; i++) {
        length |= (uint64_t)opened->file.data[i] << (8 * i);
    }
    if (opened->file.bytes < 8 || length > HEADER_MAX || length > opened->file.bytes - 8 ||
        length == 0 || opened->file.data[8] != '{') {
        return bad(opened, "", "no safetensors file", diag);
    }
    opened->data_at = 8 + length;
    while (length > 0 && opened->file.data[8 + length - 1] == ' ') {
        length--;
    }
    status = json_read(length, (const char *)opened->file.data + 8, &opened->header, diag);
    if (status != 0) {
        diag_add(diag, "%s", opened->path);
        return status;
    }
    opened->metadata = json_object_get(opened->header, "__metadata__");
    status = take_metadata(opened, diag);
    return status != 0 ? status : read_tensors(opened, diag);
}

int safetensors_read(struct bundle *bundle, const char *path, struct diag *diag)
{
    struct opened opened = {.bundle = bundle, .path = path};
    int status = read_file(&opened, diag);
    json_decref(opened.header);
    return status;
}

/* --- sets --- */

static bool is_plain_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\');
}

struct set {
    struct bundle *bundle;
    const char *folder;
    json_t *map;        /* from a tensor's name to the name of its file */
    const char **files; /* that were read */
    size_t file_count;
};

static int check_map(const struct set *set, size_t from, const char *file, struct diag *diag)
{
    for (size_t i = from; i < set->bundle->tensor_count; i++) {
        const char *name = set->bundle->tensors[i].name;
        const char *said = json_string_value(json_object_get(set->map, name));
        if (!said || strcmp(said, file) != 0) {
            return diag_set(diag, CAIRN_E_FORMAT, "%s holds %s, which the index does not say", file,
                            name);
        }
    }
    return 0;
}

/* The file of the last tensor, most often. */
static bool was_read(const struct set *set, const char *file)
{
    for (size_t i = set->file_count; i-- > 0;) {
        if (strcmp(set->files[i], file) == 0) {
            return true;
        }
    }
    return false;
}

static int read_shard(struct set *set, const char *file, struct diag *diag)
{
    char path[PATH_MAX_BYTES];
    size_t from = set->bundle->tensor_count;
    int length = snprintf(path, sizeof(path), "%s/%s", set->folder, file);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return diag_set(diag, CAIRN_E_INVALID, "the path of %s is too long", file);
    }
    set->files[set->file_count++] = file;
    int status = safetensors_read(set->bundle, path, diag);
    return status != 0 ? status : check_map(set, from, file, diag);
}

/* Checks the names of all files before one of them is opened. */
static int check_names(json_t *map, struct diag *diag)
{
    for (void *at = json_object_iter(map); at != NULL; at = json_object_iter_next(map, at)) {
        const char *file = json_string_value(json_object_iter_value(at));
        if (!file || !is_plain_name(file)) {
            return diag_set(diag, CAIRN_E_FORMAT, "the index names a file for %s that is none",
                            json_object_iter_key(at));
        }
    }
    return 0;
}

static int read_set(struct set *set, struct diag *diag)
{
    set->files =
        scratch_array(&set->bundle->scratch, json_object_size(set->map) + 1, sizeof(const char *));
    if (!set->files) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for an index");
    }
    int status = check_names(set->map, diag);
    for (void *at = json_object_iter(set->map); status == 0 && at != NULL;
         at = json_object_iter_next(set->map, at)) {
        const char *file = json_string_value(json_object_iter_value(at));
        status = was_read(set, file) ? 0 : read_shard(set, file, diag);
    }
    if (status == 0 && set->bundle->tensor_count != json_object_size(set->map)) {
        status = diag_set(diag, CAIRN_E_FORMAT, "the index names %zu tensors, the files hold %zu",
                          json_object_size(set->map), set->bundle->tensor_count);
    }
    return status;
}

int safetensors_index_read(struct bundle *bundle, const char *path, struct diag *diag)
{
    static const char name[] = "model.safetensors.index.json";
    char index[PATH_MAX_BYTES], folder[PATH_MAX_BYTES];
    struct stat info;
    struct bundle_file file;
    json_t *root = NULL;
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    const char *slash = strrchr(path, '/');
    int n =
        snprintf(index, sizeof(index), "%s%s%s", path, is_folder ? "/" : "", is_folder ? name : "");
    if (n < 0 || (size_t)n >= sizeof(index)) {
        return diag_set(diag, CAIRN_E_INVALID, "the path is too long");
    }
    snprintf(folder, sizeof(folder), "%.*s",
             is_folder ? (int)strlen(path)
             : slash   ? (int)(slash - path)
                       : 1,
             is_folder || slash ? path : ".");
    int status = bundle_map(bundle, index, &file, diag);
    if (status == 0) {
        status = json_read(file.bytes, (const char *)file.data, &root, diag);
    }
    struct set set = {
        .bundle = bundle, .folder = folder, .map = json_object_get(root, "weight_map")};
    if (status == 0 && !json_is_object(set.map)) {
        status = diag_set(diag, CAIRN_E_FORMAT, "%s: no weight_map", index);
    }
    if (status == 0) {
        status = read_set(&set, diag);
    }
    json_decref(root);
    return status;
}

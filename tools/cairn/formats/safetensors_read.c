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
    uint64_t data_at; /* where the tensors' bytes begin */
    const struct json_node *header, *metadata;
    size_t count;
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

/* Is one of the shape's dimensions the bytes of an element that the format has no name for? */
static uint32_t hidden_dtype(const struct opened *opened, const struct bundle_tensor *tensor)
{
    char key[LIMIT_NAME_BYTES + 32];
    if (tensor->dtype != CAIRN_U8 || tensor->shape.ndim == 0) {
        return 0;
    }
    snprintf(key, sizeof(key), "cairn.dtype.%s", tensor->name);
    const struct json_node *node = json_get(opened->metadata, key);
    uint32_t dtype = node && node->kind == JSON_STRING ? dtype_parse(node->text) : 0;
    bool fits = dtype != 0 &&
                (uint64_t)tensor->shape.length[tensor->shape.ndim - 1] * 8 == dtype_bits(dtype);
    return fits ? dtype : 0;
}

static int read_shape(const struct opened *opened, const struct json_node *node,
                      struct bundle_tensor *io, struct diag *diag)
{
    const struct json_node *shape = json_get(node, "shape");
    if (!shape || shape->kind != JSON_ARRAY || shape->count > LIMIT_NDIM + 1) {
        return bad(opened, node->key, "no shape of at most 8 dimensions", diag);
    }
    int64_t lengths[LIMIT_NDIM + 1] = {0};
    uint32_t count = 0;
    for (const struct json_node *length = shape->first; length; length = length->next) {
        if (!length->is_whole || length->whole > INT64_MAX) {
            return bad(opened, node->key, "a length that is no number from 0 on", diag);
        }
        lengths[count++] = (int64_t)length->whole;
    }
    io->shape.ndim = count > LIMIT_NDIM ? LIMIT_NDIM : count;
    memcpy(io->shape.length, lengths, sizeof(io->shape.length));
    return count > LIMIT_NDIM ? bad(opened, node->key, "more than 8 dimensions", diag) : 0;
}

static int read_tensor(struct opened *opened, const struct json_node *node, struct span *ret,
                       struct diag *diag)
{
    const struct json_node *dtype = json_get(node, "dtype"),
                           *range = json_get(node, "data_offsets");
    struct bundle_tensor tensor = {.name = node->key};
    uint64_t bytes = 0;
    if (node->kind != JSON_OBJECT || !dtype || dtype->kind != JSON_STRING) {
        return bad(opened, node->key, "no dtype", diag);
    }
    tensor.dtype = dtype_of(dtype->text);
    if (tensor.dtype == 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "%s: %s: the type %.40s is unknown here",
                        opened->path, node->key, dtype->text);
    }
    if (!range || range->kind != JSON_ARRAY || range->count != 2 || !range->first->is_whole ||
        !range->first->next->is_whole || range->first->whole > range->first->next->whole) {
        return bad(opened, node->key, "data_offsets must be [begin, end]", diag);
    }
    *ret = (struct span){range->first->whole, range->first->next->whole, node->key};
    int status = read_shape(opened, node, &tensor, diag);
    uint32_t hidden = status == 0 ? hidden_dtype(opened, &tensor) : 0;
    if (hidden != 0) {
        tensor.dtype = hidden;
        tensor.shape.ndim--;
    }
    status = status != 0 ? status : shape_check(&tensor.shape, tensor.dtype, &bytes, diag);
    if (status == 0 && bytes != ret->end - ret->begin) {
        status = bad(opened, node->key, "data_offsets do not agree with shape and dtype", diag);
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
    struct span *spans = calloc(opened->header->count + 1, sizeof(*spans));
    size_t count = 0;
    int status = spans ? 0 : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a header");
    for (const struct json_node *node = opened->header->first; status == 0 && node;
         node = node->next) {
        if (strcmp(node->key, "__metadata__") != 0) {
            status = read_tensor(opened, node, &spans[count], diag);
            count++;
        } else if (node != opened->metadata) {
            status = bad(opened, "__metadata__", "is there twice", diag);
        }
    }
    opened->count = count;
    status = status != 0 ? status : check_spans(opened, count, spans, diag);
    free(spans);
    return status;
}

static int check_metadata(const struct opened *opened, struct diag *diag)
{
    const struct json_node *metadata = opened->metadata;
    if (metadata && metadata->kind != JSON_OBJECT) {
        return bad(opened, "__metadata__", "is no object", diag);
    }
    for (const struct json_node *node = metadata ? metadata->first : NULL; node;
         node = node->next) {
        if (node->kind != JSON_STRING) {
            return bad(opened, "__metadata__", "holds what is no text", diag);
        }
        if (strstr(node->text, "saved_offsets")) {
            return diag_set(diag, CAIRN_E_UNSUPPORTED,
                            "%s: holds parts of tensors (written by torch.distributed.checkpoint): "
                            "consolidate it first",
                            opened->path);
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
    status = json_read(length, (const char *)opened->file.data + 8, &opened->bundle->scratch,
                       &opened->header, diag);
    if (status != 0) {
        diag_add(diag, "%s", opened->path);
        return status;
    }
    opened->metadata = json_get(opened->header, "__metadata__");
    status = check_metadata(opened, diag);
    return status != 0 ? status : read_tensors(opened, diag);
}

int safetensors_read(struct bundle *bundle, const char *path, struct diag *diag)
{
    struct opened opened = {.bundle = bundle, .path = path};
    return read_file(&opened, diag);
}

/* --- sets --- */

static bool is_plain_name(const char *name)
{
    return name[0] != '\0' && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\');
}

/* An index of a hundred thousand tensors is usual: what it says is looked up by order. */
struct set {
    struct bundle *bundle;
    const char *folder;
    const struct json_node *map;
    const struct json_node **sorted; /* the map's, by key */
    const char **files;              /* that were read */
    size_t file_count;
};

static int compare_keys(const void *a, const void *b)
{
    const struct json_node *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

static int sort_map(struct set *set, struct diag *diag)
{
    struct scratch *scratch = &set->bundle->scratch;
    size_t count = 0;
    set->sorted = scratch_array(scratch, set->map->count + 1, sizeof(struct json_node *));
    set->files = scratch_array(scratch, set->map->count + 1, sizeof(char *));
    if (!set->sorted || !set->files) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for an index");
    }
    for (const struct json_node *node = set->map->first; node; node = node->next) {
        if (node->kind != JSON_STRING || !is_plain_name(node->text)) {
            return diag_set(diag, CAIRN_E_FORMAT, "the index names a file for %s that is none",
                            node->key);
        }
        set->sorted[count++] = node;
    }
    if (count > 1) {
        qsort(set->sorted, count, sizeof(struct json_node *), compare_keys);
    }
    return 0;
}

static int check_map(const struct set *set, size_t from, const char *file, struct diag *diag)
{
    for (size_t i = from; i < set->bundle->tensor_count; i++) {
        const struct json_node wanted = {.key = set->bundle->tensors[i].name}, *key = &wanted;
        const struct json_node *const *found =
            bsearch(&key, set->sorted, set->map->count, sizeof(struct json_node *), compare_keys);
        if (!found || strcmp((*found)->text, file) != 0) {
            return diag_set(diag, CAIRN_E_FORMAT, "%s holds %s, which the index does not say", file,
                            wanted.key);
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
    char *kept = scratch_string(&set->bundle->scratch, strlen(path), path);
    int status = kept ? safetensors_read(set->bundle, kept, diag)
                      : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a path");
    return status != 0 ? status : check_map(set, from, file, diag);
}

static int read_set(struct set *set, struct diag *diag)
{
    int status = sort_map(set, diag);
    for (const struct json_node *node = set->map->first; status == 0 && node; node = node->next) {
        status = was_read(set, node->text) ? 0 : read_shard(set, node->text, diag);
    }
    if (status == 0 && set->bundle->tensor_count != set->map->count) {
        status = diag_set(diag, CAIRN_E_FORMAT, "the index names %zu tensors, the files hold %zu",
                          set->map->count, set->bundle->tensor_count);
    }
    return status;
}

int safetensors_index_read(struct bundle *bundle, const char *path, struct diag *diag)
{
    static const char name[] = "model.safetensors.index.json";
    char index[PATH_MAX_BYTES], folder[PATH_MAX_BYTES];
    struct stat info;
    struct bundle_file file;
    const struct json_node *root = NULL;
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
    status = status != 0
                 ? status
                 : json_read(file.bytes, (const char *)file.data, &bundle->scratch, &root, diag);
    const struct json_node *map = status == 0 ? json_get(root, "weight_map") : NULL;
    if (status == 0 && (!map || map->kind != JSON_OBJECT)) {
        status = diag_set(diag, CAIRN_E_FORMAT, "%s: no weight_map", index);
    }
    struct set set = {.bundle = bundle, .folder = folder, .map = map};
    return status != 0 ? status : read_set(&set, diag);
}

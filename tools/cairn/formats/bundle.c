/* SPDX-License-Identifier: Apache-2.0
 *
 * See bundle.h.
 */
#include "formats/bundle.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUNDLE_SCRATCH_MAX ((size_t)4 << 30)

void bundle_init(struct bundle *bundle)
{
    *bundle = (struct bundle){0};
    scratch_init(&bundle->scratch, BUNDLE_SCRATCH_MAX);
}

void bundle_fini(struct bundle *bundle)
{
    for (size_t i = 0; i < bundle->file_count; i++) {
        CHECK(munmap((void *)(uintptr_t)bundle->files[i].data, bundle->files[i].bytes) == 0);
    }
    free(bundle->tensors);
    free(bundle->files);
    free(bundle->pairs);
    scratch_fini(&bundle->scratch);
}

/* Room for one more item of size bytes. */
static int grow(void **io, size_t *io_cap, size_t count, size_t size, struct diag *diag)
{
    if (count < *io_cap) {
        return 0;
    }
    size_t cap = *io_cap == 0 ? 16 : *io_cap * 2;
    void *grown = realloc(*io, cap * size);
    if (!grown) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for %zu items", cap);
    }
    *io = grown;
    *io_cap = cap;
    return 0;
}

static int map(int fd, const char *path, struct bundle_file *ret, struct diag *diag)
{
    struct stat stat;
    if (fstat(fd, &stat) != 0) {
        return diag_errno(diag, errno, "look at %s", path);
    }
    if (!S_ISREG(stat.st_mode)) {
        return diag_set(diag, CAIRN_E_INVALID, "%s is no file", path);
    }
    *ret = (struct bundle_file){.bytes = (size_t)stat.st_size};
    if (ret->bytes == 0) {
        return 0;
    }
    void *data = mmap(NULL, ret->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        return diag_errno(diag, errno, "map %s", path);
    }
    ret->data = data;
    return 0;
}

int bundle_map(struct bundle *bundle, const char *path, struct bundle_file *ret, struct diag *diag)
{
    void *files = bundle->files;
    int status = grow(&files, &bundle->file_cap, bundle->file_count, sizeof(*bundle->files), diag);
    bundle->files = files;
    if (status != 0) {
        return status;
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return diag_errno(diag, errno, "open %s", path);
    }
    status = map(fd, path, ret, diag);
    close(fd);
    if (status == 0 && ret->bytes > 0) {
        bundle->files[bundle->file_count++] = *ret;
    }
    return status;
}

int bundle_add(struct bundle *bundle, const struct bundle_tensor *tensor,
               const struct bundle_file *file, uint64_t offset, struct diag *diag)
{
    void *tensors = bundle->tensors;
    struct bundle_tensor added = *tensor;
    uint64_t end = 0;
    if (tensor->name[0] == '\0' || strlen(tensor->name) > LIMIT_NAME_BYTES) {
        return diag_set(diag, CAIRN_E_INVALID, "'%.100s': a tensor's name has 1 to %d bytes",
                        tensor->name, LIMIT_NAME_BYTES);
    }
    int status = shape_check(&added.shape, added.dtype, &added.bytes, diag);
    if (status != 0) {
        diag_add(diag, "%s", tensor->name);
        return status;
    }
    if (!add_u64(offset, added.bytes, &end) || end > file->bytes) {
        return diag_set(
            diag, CAIRN_E_FORMAT,
            "%s: %llu bytes from byte %llu on do not lie in the %zu bytes that are there",
            tensor->name, (unsigned long long)added.bytes, (unsigned long long)offset, file->bytes);
    }
    status =
        grow(&tensors, &bundle->tensor_cap, bundle->tensor_count, sizeof(*bundle->tensors), diag);
    bundle->tensors = tensors;
    if (status != 0) {
        return status;
    }
    added.name = scratch_string(&bundle->scratch, strlen(tensor->name), tensor->name);
    if (!added.name) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for names");
    }
    added.data = added.bytes > 0 ? file->data + offset : NULL;
    bundle->tensors[bundle->tensor_count++] = added;
    return 0;
}

int bundle_add_pair(struct bundle *bundle, const struct metadata_pair *pair, struct diag *diag)
{
    void *pairs = bundle->pairs;
    if (bundle->pair_count > LIMIT_METADATA_BYTES / (2 * TREE_NODE_BYTES)) {
        return 0; /* too many already, which the caller finds when it encodes them */
    }
    for (size_t i = 0; i < bundle->pair_count; i++) {
        if (strcmp(bundle->pairs[i].name, pair->name) == 0) {
            return 0;
        }
    }
    int status = grow(&pairs, &bundle->pair_cap, bundle->pair_count, sizeof(*bundle->pairs), diag);
    bundle->pairs = pairs;
    if (status != 0) {
        return status;
    }
    struct metadata_pair added = {
        .name = scratch_string(&bundle->scratch, strlen(pair->name), pair->name),
        .text = scratch_string(&bundle->scratch, strlen(pair->text), pair->text)};
    if (!added.name || !added.text) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for __metadata__");
    }
    bundle->pairs[bundle->pair_count++] = added;
    return 0;
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct bundle_tensor *)a)->name, ((const struct bundle_tensor *)b)->name);
}

int bundle_finish(struct bundle *bundle, struct diag *diag)
{
    if (bundle->tensor_count > 1) {
        qsort(bundle->tensors, bundle->tensor_count, sizeof(*bundle->tensors), compare);
    }
    for (size_t i = 1; i < bundle->tensor_count; i++) {
        if (strcmp(bundle->tensors[i - 1].name, bundle->tensors[i].name) == 0) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "two tensors are called %s; rename one of them and save again",
                            bundle->tensors[i].name);
        }
    }
    return 0;
}

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
    for (size_t i = 0; i < bundle->tensor_count; i++) {
        free(bundle->tensors[i].boxes);
    }
    for (size_t i = 0; i < bundle->file_count; i++) {
        CHECK(munmap((void *)(uintptr_t)bundle->files[i].data, bundle->files[i].bytes) == 0);
    }
    free(bundle->tensors);
    free(bundle->blobs);
    free(bundle->files);
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

int bundle_map_fd(struct bundle *bundle, int fd, const char *path, struct bundle_file *ret,
                  struct diag *diag)
{
    void *files = bundle->files;
    int status = grow(&files, &bundle->file_cap, bundle->file_count, sizeof(*bundle->files), diag);
    bundle->files = files;
    status = status != 0 ? status : map(fd, path, ret, diag);
    if (status == 0 && ret->bytes > 0) {
        bundle->files[bundle->file_count++] = *ret;
    }
    return status;
}

int bundle_map(struct bundle *bundle, const char *path, struct bundle_file *ret, struct diag *diag)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        return diag_errno(diag, errno, "open %s", path);
    }
    int status = bundle_map_fd(bundle, fd, path, ret, diag);
    close(fd);
    return status;
}

int bundle_add(struct bundle *bundle, const struct bundle_new *tensor, struct diag *diag)
{
    void *tensors = bundle->tensors;
    uint64_t bytes = 0;
    if (tensor->name[0] == '\0' || strlen(tensor->name) > LIMIT_NAME_BYTES) {
        return diag_set(diag, CAIRN_E_INVALID, "'%.100s': a tensor's name has 1 to %d bytes",
                        tensor->name, LIMIT_NAME_BYTES);
    }
    int status = shape_check(&tensor->shape, tensor->dtype, &bytes, diag);
    if (status != 0) {
        diag_add(diag, "%s", tensor->name);
        return status;
    }
    status =
        grow(&tensors, &bundle->tensor_cap, bundle->tensor_count, sizeof(*bundle->tensors), diag);
    bundle->tensors = tensors;
    char *name =
        status == 0 ? scratch_string(&bundle->scratch, strlen(tensor->name), tensor->name) : NULL;
    if (!name) {
        return status != 0 ? status : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for names");
    }
    bundle->tensors[bundle->tensor_count++] =
        (struct bundle_tensor){.name = name, .dtype = tensor->dtype, .shape = tensor->shape};
    return 0;
}

/* Bytes from the first element to the end of the last one. */
static bool extent(const struct bundle_tensor *tensor, const struct box *box, const int64_t *stride,
                   uint64_t *ret)
{
    uint64_t element = dtype_bits(tensor->dtype) / 8, last = 0, part = 0;
    *ret = 0;
    if (box_elements(box) == 0) {
        return true;
    }
    for (uint32_t i = 0; i < box->ndim; i++) {
        if (stride[i] < 0 || !mul_u64((uint64_t)stride[i], (uint64_t)box->length[i] - 1, &part) ||
            !add_u64(last, part, &last)) {
            return false;
        }
    }
    return add_u64(last, 1, &last) && mul_u64(last, element, ret);
}

int bundle_add_box(struct bundle *bundle, const struct box *box, const int64_t *stride,
                   const struct bundle_range *range, struct diag *diag)
{
    CHECK(bundle->tensor_count > 0);
    struct bundle_tensor *tensor = &bundle->tensors[bundle->tensor_count - 1];
    struct bundle_box added = {.box = *box, .strided = stride != NULL};
    void *boxes = tensor->boxes;
    uint64_t bytes = 0, end = 0;
    int status = box_check(box, &tensor->shape, diag);
    if (status != 0) {
        diag_add(diag, "%s", tensor->name);
        return CAIRN_E_FORMAT;
    }
    bool fits = true;
    if (stride) {
        memcpy(added.stride, stride, box->ndim * sizeof(*stride));
        fits = extent(tensor, box, stride, &bytes);
    } else {
        bytes = box_bytes(box, tensor->dtype);
    }
    if (!fits || !add_u64(range->offset, bytes, &end) || end > range->bytes) {
        return diag_set(
            diag, CAIRN_E_FORMAT,
            "%s: %llu bytes from byte %llu on do not lie in the %zu bytes that are there",
            tensor->name, (unsigned long long)bytes, (unsigned long long)range->offset,
            range->bytes);
    }
    status = grow(&boxes, &tensor->box_cap, tensor->box_count, sizeof(*tensor->boxes), diag);
    tensor->boxes = boxes;
    if (status == 0) {
        added.data = bytes > 0 ? range->data + range->offset : NULL;
        tensor->boxes[tensor->box_count++] = added;
    }
    return status;
}

int bundle_add_whole(struct bundle *bundle, const int64_t *stride, const struct bundle_range *range,
                     struct diag *diag)
{
    struct box box = box_whole(&bundle->tensors[bundle->tensor_count - 1].shape);
    return bundle_add_box(bundle, &box, stride, range, diag);
}

int bundle_add_blob(struct bundle *bundle, const struct bundle_blob *blob, struct diag *diag)
{
    void *blobs = bundle->blobs;
    struct bundle_blob added = *blob;
    int status = grow(&blobs, &bundle->blob_cap, bundle->blob_count, sizeof(*bundle->blobs), diag);
    bundle->blobs = blobs;
    if (status != 0) {
        return status;
    }
    added.name = scratch_string(&bundle->scratch, strlen(blob->name), blob->name);
    added.data = scratch_copy(&bundle->scratch, blob->bytes, blob->data);
    if (!added.name || (!added.data && blob->bytes > 0)) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for %s", blob->name);
    }
    bundle->blobs[bundle->blob_count++] = added;
    return 0;
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct bundle_tensor *)a)->name, ((const struct bundle_tensor *)b)->name);
}

static int check_tiles(const struct bundle_tensor *tensor, struct diag *diag)
{
    struct box *boxes = calloc(tensor->box_count + 1, sizeof(*boxes));
    if (!boxes) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for boxes");
    }
    for (size_t i = 0; i < tensor->box_count; i++) {
        boxes[i] = tensor->boxes[i].box;
    }
    int status = boxes_tile(&tensor->shape, tensor->box_count, boxes, diag);
    free(boxes);
    if (status != 0) {
        diag_add(diag, "%s", tensor->name);
    }
    return status;
}

int bundle_finish(struct bundle *bundle, struct diag *diag)
{
    int status = 0;
    if (bundle->tensor_count > 1) {
        qsort(bundle->tensors, bundle->tensor_count, sizeof(*bundle->tensors), compare);
    }
    for (size_t i = 0; status == 0 && i < bundle->tensor_count; i++) {
        if (i > 0 && strcmp(bundle->tensors[i - 1].name, bundle->tensors[i].name) == 0) {
            return diag_set(diag, CAIRN_E_INVALID, "two tensors are called %s",
                            bundle->tensors[i].name);
        }
        status = check_tiles(&bundle->tensors[i], diag);
    }
    return status;
}

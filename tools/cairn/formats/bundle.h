/* SPDX-License-Identifier: Apache-2.0
 *
 * bundle: what another program's files hold, as a save needs it: tensors with their bytes where
 * they lie in mapped files, and blobs. Reading a format fills a bundle and copies no tensor. Each
 * addition is checked against the file: types, shapes, ranges.
 */
#ifndef CAIRN_TOOLS_BUNDLE_H
#define CAIRN_TOOLS_BUNDLE_H

#include "base/scratch.h"
#include "format/box.h"

struct bundle_file { /* mapped read-only; one that shrinks meanwhile is a SIGBUS: cmd_import.c */
    const uint8_t *data;
    size_t bytes;
};

struct bundle_box {
    struct box box;
    bool strided;               /* else row-major */
    int64_t stride[LIMIT_NDIM]; /* elements, >= 0 */
    const uint8_t *data;
};

struct bundle_tensor {
    const char *name;
    uint32_t dtype;
    struct shape shape;
    size_t box_count, box_cap;
    struct bundle_box *boxes;
};

struct bundle_blob {
    const char *name;
    bool is_tree;
    size_t bytes;
    const uint8_t *data;
};

struct bundle {
    struct scratch scratch; /* names and blobs */
    size_t tensor_count, tensor_cap, blob_count, blob_cap, file_count, file_cap;
    struct bundle_tensor *tensors;
    struct bundle_blob *blobs;
    struct bundle_file *files;
};

void bundle_init(struct bundle *bundle);
void bundle_fini(struct bundle *bundle);
/* NOT_FOUND, INVALID (no regular file), IO. An empty file has no data. */
int MUST_USE bundle_map(struct bundle *bundle, const char *path, struct bundle_file *ret,
                        struct diag *diag);
/* The same of an open file, which may be closed afterwards. */
int MUST_USE bundle_map_fd(struct bundle *bundle, int fd, const char *path, struct bundle_file *ret,
                           struct diag *diag);
struct bundle_new { /* a tensor */
    const char *name;
    uint32_t dtype;
    struct shape shape;
};
/* NULL name is copied. INVALID: a name that Cairn does not take. Boxes are added to the last one.
 */
int MUST_USE bundle_add(struct bundle *bundle, const struct bundle_new *tensor, struct diag *diag);
struct bundle_range { /* where the bytes of a box may lie, and from which byte on */
    const uint8_t *data;
    size_t bytes;
    uint64_t offset;
};
/* FORMAT: outside of the tensor or of the range. stride NULL: row-major and contiguous. */
int MUST_USE bundle_add_box(struct bundle *bundle, const struct box *box, const int64_t *stride,
                            const struct bundle_range *range, struct diag *diag);
/* All of the last tensor. */
int MUST_USE bundle_add_whole(struct bundle *bundle, const int64_t *stride,
                              const struct bundle_range *range, struct diag *diag);
/* data is copied. */
int MUST_USE bundle_add_blob(struct bundle *bundle, const struct bundle_blob *blob,
                             struct diag *diag);
/* Sorts by name. INVALID: two of one name; FORMAT: a tensor whose boxes do not tile it. */
int MUST_USE bundle_finish(struct bundle *bundle, struct diag *diag);

/* One reader a format; path as the user named it. */
int MUST_USE safetensors_read(struct bundle *bundle, const char *path, struct diag *diag);
/* A folder with model.safetensors.index.json, or that file. */
int MUST_USE safetensors_index_read(struct bundle *bundle, const char *path, struct diag *diag);
int MUST_USE npz_read(struct bundle *bundle, const char *path, struct diag *diag);
int MUST_USE torch_read(struct bundle *bundle, const char *path, struct diag *diag);
int MUST_USE dcp_read(struct bundle *bundle, const char *path, struct diag *diag);

#endif

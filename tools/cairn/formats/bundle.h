/* SPDX-License-Identifier: Apache-2.0
 *
 * bundle: what a safetensors file, or a set of them, holds, as a save needs it: tensors with their
 * bytes where they lie in mapped files. Reading fills a bundle and copies no tensor. Each addition
 * is checked against the file: type, shape, range.
 */
#ifndef CAIRN_TOOLS_BUNDLE_H
#define CAIRN_TOOLS_BUNDLE_H

#include "base/scratch.h"
#include "format/box.h"
#include "formats/metadata.h"

struct bundle_file { /* mapped read-only; one that shrinks meanwhile is a SIGBUS: cmd_import.c */
    const uint8_t *data;
    size_t bytes;
};

struct bundle_tensor {
    const char *name;
    uint32_t dtype;
    struct shape shape;
    uint64_t bytes;
    const uint8_t *data; /* row-major */
};

struct bundle {
    struct scratch scratch; /* names and headers */
    size_t tensor_count, tensor_cap, file_count, file_cap;
    struct bundle_tensor *tensors;
    struct bundle_file *files;
    size_t pair_count, pair_cap;
    struct metadata_pair *pairs; /* of the files' __metadata__ */
};

void bundle_init(struct bundle *bundle);
void bundle_fini(struct bundle *bundle);
/* NOT_FOUND, INVALID (no regular file), IO. An empty file has no data. */
int MUST_USE bundle_map(struct bundle *bundle, const char *path, struct bundle_file *ret,
                        struct diag *diag);
/* Adds a tensor whose bytes begin at `offset` of the file; the name is copied, `bytes` and `data`
 * are set here. INVALID: a name that Cairn does not take. FORMAT: the bytes do not lie in the
 * file. */
int MUST_USE bundle_add(struct bundle *bundle, const struct bundle_tensor *tensor,
                        const struct bundle_file *file, uint64_t offset, struct diag *diag);
/* Adds a pair of a file's __metadata__, copied. Of two with one name the first stays: the files of
 * a set say the same. */
int MUST_USE bundle_add_pair(struct bundle *bundle, const struct metadata_pair *pair,
                             struct diag *diag);
/* Sorts by name. Returns INVALID if two tensors have one name. */
int MUST_USE bundle_finish(struct bundle *bundle, struct diag *diag);

/* One reader for each format; path as the user named it. */
int MUST_USE safetensors_read(struct bundle *bundle, const char *path, struct diag *diag);
/* A folder with model.safetensors.index.json, or that file. */
int MUST_USE safetensors_index_read(struct bundle *bundle, const char *path, struct diag *diag);

#endif

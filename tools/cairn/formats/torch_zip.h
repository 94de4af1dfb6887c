/* SPDX-License-Identifier: Apache-2.0
 *
 * torch_zip: one archive of torch.save: its pickle as values, and where a tensor's bytes lie in it.
 * Pure.
 */
#ifndef CAIRN_TOOLS_TORCH_ZIP_H
#define CAIRN_TOOLS_TORCH_ZIP_H

#include "formats/bundle.h"
#include "formats/pickle.h"
#include "formats/zip.h"

struct torch_zip {
    const uint8_t *data;
    size_t bytes;
    struct zip zip;
    char prefix[256]; /* "archive/" */
    const struct pickle_value *root;
};

struct torch_tensor {
    uint32_t dtype;
    struct shape shape;
    int64_t stride[LIMIT_NDIM];
    struct bundle_range range; /* its storage, and the byte where it begins */
};

/* UNSUPPORTED: big-endian, compressed, the format before 1.6, names that are not read. */
int MUST_USE torch_zip_open(size_t bytes, const uint8_t *data, struct scratch *scratch,
                            struct torch_zip *ret, struct diag *diag);
bool torch_is_tensor(const struct pickle_value *value);
int MUST_USE torch_zip_tensor(const struct torch_zip *torch, const struct pickle_value *value,
                              struct torch_tensor *ret, struct diag *diag);
/* "torch float32" as a dtype; 0: none. */
uint32_t torch_dtype(const struct pickle_value *value);
/* A tuple, list or torch.Size of numbers from 0 on. False: it is none, or longer than 8. */
bool torch_lengths(const struct pickle_value *value, uint32_t *ret_count, int64_t *ret);

#endif

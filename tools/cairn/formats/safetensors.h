/* SPDX-License-Identifier: Apache-2.0
 *
 * safetensors: the layout of one file: an 8-byte length, a JSON header padded with spaces, the
 * tensors' bytes without holes, widest dtype first, then by name. Only the header is written here;
 * the bytes go to the offsets it names.
 */
#ifndef CAIRN_TOOLS_SAFETENSORS_H
#define CAIRN_TOOLS_SAFETENSORS_H

#include "base/buf.h"
#include "format/manifest.h"

struct safetensor {
    const struct index_entry *entry;  /* as the file has it */
    const struct index_entry *stored; /* as the checkpoint has it; NULL means like entry */
    const struct box *box;            /* of the stored one; NULL means all of it */
    uint64_t offset;                  /* in the data, set by safetensors_layout */
};

/* Sorts, sets the offsets, and appends length and header to buf. Types that safetensors lacks are
 * written as U8 with the element's bytes as one more dimension, and named in __metadata__
 * ("cairn.dtype.<name>"). TOO_LARGE above 100 MB. */
struct safetensors {
    const char *checkpoint; /* its name, for __metadata__ */
    size_t metadata_bytes;  /* the checkpoint's, of which what was imported goes there as well */
    const uint8_t *metadata;
    size_t count;
    struct safetensor *tensors;
};
int MUST_USE safetensors_layout(const struct safetensors *file, struct buf *buf, struct diag *diag);

#endif

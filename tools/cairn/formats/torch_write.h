/* SPDX-License-Identifier: Apache-2.0
 *
 * torch_write: pickles as torch.save and torch.distributed.checkpoint write them, protocol 2. Only
 * the few shapes of object that an export needs. Pure; errors are sticky in the buffer.
 */
#ifndef CAIRN_TOOLS_TORCH_WRITE_H
#define CAIRN_TOOLS_TORCH_WRITE_H

#include "base/buf.h"
#include "format/box.h"

struct torch_item {
    const char *name;
    uint32_t dtype;
    struct shape shape;
    uint64_t plain_bytes;
    uint64_t offset, bytes; /* dcp: where its archive lies in its file */
    bool is_blob;           /* dcp: bytes that torch.save made */
};

/* A dict of tensors, or with single set the first one alone; the storage of items[i] is data/i. */
void torch_put_state(struct buf *buf, size_t count, const struct torch_item *items, bool single);
/* The .metadata of a directory with one file. */
void dcp_put_metadata(struct buf *buf, size_t count, const struct torch_item *items,
                      const char *file);

#endif

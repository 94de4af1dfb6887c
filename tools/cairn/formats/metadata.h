/* SPDX-License-Identifier: Apache-2.0
 *
 * metadata: the `__metadata__` of safetensors files, names and texts, as part of a checkpoint's own
 * metadata: the dict "safetensors" of a typed tree (FORMAT.md 10). `cairn show` prints it, and
 * exports write it back. Pure.
 */
#ifndef CAIRN_TOOLS_METADATA_H
#define CAIRN_TOOLS_METADATA_H

#include "format/tree.h"

struct metadata_pair { /* borrowed */
    const char *name, *text;
};

/* Appends the tree to an empty buffer. */
void metadata_encode(size_t count, const struct metadata_pair *pairs, struct buf *buf);

/* A walk over the pairs of a checkpoint's metadata, which outlives it. There are none if the
 * metadata is no tree, or has no such dict. */
struct metadata_walk {
    struct tree_iter iter;
    uint32_t left;
};
void metadata_begin(size_t bytes, const uint8_t *data, struct metadata_walk *ret);
/* Gives the next name and text; they are not ended by a zero. Returns false at the end. */
bool metadata_next(struct metadata_walk *walk, struct tree_node *ret_name,
                   struct tree_node *ret_text);

#endif

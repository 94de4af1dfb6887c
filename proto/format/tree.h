/* SPDX-License-Identifier: Apache-2.0
 *
 * tree: non-tensor state as a flat preorder array of nodes (kind, flags, child count, bytes); never
 * code. Its depth is at most LIMIT_TREE_DEPTH, checked by a loop. Bytes: FORMAT.md 10. Pure.
 *
 * Header: magic "CRNT", u32 version, u32 node count, u32 bytes of all that follows, u32 crc32c of
 * all that follows. Node: u8 kind, u8 reserved[3], u32 child count, u32 payload bytes, then the
 * payload, unpadded. Payloads: int: two's complement little-endian, minimal length (0 is one byte,
 * 127 one, 128 two, -128 one); float: 8 bytes of bits; complex: 16; str: UTF-8; list, tuple:
 * children; dict: children are key, value, key, value ... in order (child count even), keys of kind
 * int, str, bool, float, null or tuple of such; tagged: payload is the tag's name ("OrderedDict",
 * "Counter", "set", "torch.dtype", "torch.Size", "torch.device", "numpy.scalar", "ref", or a
 * registered type's), one child.
 */
#ifndef CAIRN_FORMAT_TREE_H
#define CAIRN_FORMAT_TREE_H

#include "base/buf.h"
#include "base/diag.h"

#include <stdbool.h>

enum tree_kind {
    TREE_NULL = 0,
    TREE_FALSE = 1,
    TREE_TRUE = 2,
    TREE_INT = 3,
    TREE_FLOAT = 4,
    TREE_COMPLEX = 5,
    TREE_STR = 6,
    TREE_BYTES = 7,
    TREE_LIST = 8,
    TREE_TUPLE = 9,
    TREE_DICT = 10,
    TREE_TAGGED = 11,
};

enum { TREE_VERSION = 1, TREE_HEADER_BYTES = 20, TREE_NODE_BYTES = 12, TREE_TAG_BYTES_MAX = 128 };
#define TREE_MAGIC UINT32_C(0x544e5243) /* "CRNT" */

/* One node, as tree_next() gives it. */
struct tree_node {
    enum tree_kind kind;
    uint32_t child_count;
    uint32_t bytes;
    const uint8_t *data; /* borrowed from the tree */
    uint32_t depth;      /* 0 for the root */
};

/* The state of a walk; the tree must outlive it. */
struct tree_iter {
    struct cur cur;
    uint32_t nodes_left, depth;
    uint32_t open[64]; /* children that are still to come at each depth */
    int status;
};

/* Checks everything: header, crc, depth, counts, forms of payloads, keys of dicts. FORMAT says
 * where; DAMAGED, UNSUPPORTED. That the keys of a dict differ is the duty of its writer. */
int MUST_USE tree_check(size_t bytes, const uint8_t *data, struct diag *diag);
/* Walk a tree that has passed tree_check() in preorder. tree_next() returns false at the end. */
void tree_iter_init(struct tree_iter *iter, size_t bytes, const uint8_t *data);
bool tree_next(struct tree_iter *iter, struct tree_node *ret);
/* Writes JSON for people and `cairn restore`. Ints beyond 2^53 and floats that are not finite
 * become strings under {"$int": ...} and {"$float": ...}; bytes {"$bytes": base64}; tuples
 * {"$tuple": []}; tagged values {"$tag": name, "value": ...}; dicts with keys that are not all
 * strings, or begin with '$', {"$dict": [[key, value], ...]}; complex numbers {"$complex": [re,
 * im]}. indent is the number of spaces for each level, or 0 for one line. The tree is checked
 * first; errors as above, NO_MEMORY, and those of buf. */
int MUST_USE tree_to_json(size_t bytes, const uint8_t *data, unsigned indent, struct buf *buf,
                          struct diag *diag);

#endif

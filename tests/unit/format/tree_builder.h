/* SPDX-License-Identifier: Apache-2.0
 *
 * tree_builder: makes typed trees for the tests. Preorder calls, sticky errors in buf; INVALID when
 * tree_end() finds child counts or payloads broken.
 */
#ifndef CAIRN_TESTS_UNIT_FORMAT_TREE_BUILDER_H
#define CAIRN_TESTS_UNIT_FORMAT_TREE_BUILDER_H

#include "format/tree.h"

struct tree_builder {
    struct buf *buf;
    size_t start;
    uint32_t nodes;
};
void tree_begin(struct tree_builder *builder, struct buf *buf);
void tree_put(struct tree_builder *builder, enum tree_kind kind, uint32_t child_count, size_t bytes,
              const void *data);
void tree_put_int(struct tree_builder *builder, int64_t value);
void tree_put_float(struct tree_builder *builder, double value);
void tree_put_str(struct tree_builder *builder, const char *text);
void tree_end(struct tree_builder *builder);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * See metadata.h. Invariant: what metadata_encode() writes passes tree_check(). Any thread.
 */
#include "formats/metadata.h"

#include "base/check.h"
#include "hash/hash.h"

#include <string.h>

static const char KEY[] = "safetensors";

static void put_node(struct buf *buf, enum tree_kind kind, uint32_t children, const char *text)
{
    size_t bytes = text ? strlen(text) : 0;
    buf_put_u8(buf, (uint8_t)kind);
    buf_put_zero(buf, 3);
    buf_put_u32(buf, children);
    buf_put_u32(buf, (uint32_t)bytes);
    buf_put(buf, bytes, text);
}

void metadata_encode(size_t count, const struct metadata_pair *pairs, struct buf *buf)
{
    CHECK(buf->bytes == 0);
    CHECK(count < UINT32_MAX / 2 - 4);
    uint32_t nodes = 2 * (uint32_t)count;
    buf_put_u32(buf, TREE_MAGIC);
    buf_put_u32(buf, TREE_VERSION);
    buf_put_u32(buf, nodes + 3);
    buf_put_zero(buf, 8);
    put_node(buf, TREE_DICT, 2, NULL);
    put_node(buf, TREE_STR, 0, KEY);
    put_node(buf, TREE_DICT, nodes, NULL);
    for (size_t i = 0; i < count; i++) {
        put_node(buf, TREE_STR, 0, pairs[i].name);
        put_node(buf, TREE_STR, 0, pairs[i].text);
    }
    if (buf_status(buf) == 0) {
        size_t bytes = buf->bytes - TREE_HEADER_BYTES;
        buf_patch_u32(buf, 12, (uint32_t)bytes);
        buf_patch_u32(buf, 16, crc32c(0, bytes, buf->data + TREE_HEADER_BYTES));
    }
}

static bool is_key(const struct tree_node *node)
{
    return node->kind == TREE_STR && node->bytes == sizeof(KEY) - 1 &&
           memcmp(node->data, KEY, sizeof(KEY) - 1) == 0;
}

void metadata_begin(size_t bytes, const uint8_t *data, struct metadata_walk *ret)
{
    struct tree_node node = {.kind = TREE_NULL};
    bool is_name = true, is_ours = false;
    ret->left = 0;
    if (bytes == 0 || tree_check(bytes, data, NULL) != 0) {
        return;
    }
    tree_iter_init(&ret->iter, bytes, data);
    if (!tree_next(&ret->iter, &node) || node.kind != TREE_DICT) {
        return;
    }
    while (tree_next(&ret->iter, &node)) { /* at depth 1: a name, its value, a name ... */
        if (node.depth != 1) {
            continue;
        }
        if (is_ours && !is_name && node.kind == TREE_DICT) {
            ret->left = node.child_count / 2;
            return;
        }
        is_ours = is_name && is_key(&node);
        is_name = !is_name;
    }
}

bool metadata_next(struct metadata_walk *walk, struct tree_node *ret_name,
                   struct tree_node *ret_text)
{
    struct tree_node name, text;
    if (walk->left == 0) {
        return false;
    }
    walk->left--;
    if (!tree_next(&walk->iter, &name) || !tree_next(&walk->iter, &text) || name.kind != TREE_STR ||
        text.kind != TREE_STR) {
        walk->left = 0; /* somebody else's dict of that name */
        return false;
    }
    *ret_name = name;
    *ret_text = text;
    return true;
}

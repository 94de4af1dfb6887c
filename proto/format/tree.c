/* SPDX-License-Identifier: Apache-2.0
 *
 * The typed tree, read: one loop over a flat array of nodes with a stack of fixed depth, never
 * recursion. tree_check() accepts exactly what the format allows; the iterator walks only what was
 * checked. Trees are written in Python (client/python/cairn/tree.py). Pure; any thread.
 */
#include "tree.h"

#include <string.h>

#include "base/limits.h"
#include "base/utf8.h"
#include "hash/hash.h"
#include "ids.h"

_Static_assert(sizeof((struct tree_iter *)0)->open / sizeof(uint32_t) == LIMIT_TREE_DEPTH,
               "one per level");

/* A container that is being read. */
struct level {
    enum tree_kind kind;
    uint32_t left; /* children still to come */
    /* It is a dict's key, or inside one, where only tuples and plain scalars are allowed. */
    bool is_key;
};

struct checker {
    struct cur cur;
    struct level levels[LIMIT_TREE_DEPTH];
    uint32_t depth; /* open containers */
    uint32_t node;  /* index of the present node, for messages */
    struct diag *diag;
};

static int bad(const struct checker *checker, const char *what)
{
    return diag_set(checker->diag, CAIRN_E_FORMAT, "the tree's node %u (offset %zu): %s",
                    checker->node, checker->cur.at, what);
}

static bool int_is_minimal(uint32_t bytes, const uint8_t *data)
{
    if (bytes < 2) {
        return bytes == 1;
    }
    uint8_t top = data[bytes - 1];
    bool next_negative = (data[bytes - 2] & 0x80) != 0;
    return !(top == 0x00 && !next_negative) && !(top == 0xff && next_negative);
}

/* Checks the payload and the child count of a node of this kind. */
static bool form_is_valid(const struct tree_node *node)
{
    switch (node->kind) {
    case TREE_NULL:
    case TREE_FALSE:
    case TREE_TRUE:
        return node->child_count == 0 && node->bytes == 0;
    case TREE_INT:
        return node->child_count == 0 && int_is_minimal(node->bytes, node->data);
    case TREE_FLOAT:
        return node->child_count == 0 && node->bytes == 8;
    case TREE_COMPLEX:
        return node->child_count == 0 && node->bytes == 16;
    case TREE_STR:
        return node->child_count == 0 && utf8_is_valid(node->bytes, node->data);
    case TREE_BYTES:
        return node->child_count == 0;
    case TREE_LIST:
    case TREE_TUPLE:
        return node->bytes == 0;
    case TREE_DICT:
        return node->bytes == 0 && node->child_count % 2 == 0;
    case TREE_TAGGED:
        return node->child_count == 1 &&
               text_is_valid(node->bytes, (const char *)node->data, TREE_TAG_BYTES_MAX);
    }
    return false;
}

/* Returns whether this kind may be, or be inside, a key of a dict. */
static bool kind_may_be_key(enum tree_kind kind)
{
    switch (kind) {
    case TREE_NULL:
    case TREE_FALSE:
    case TREE_TRUE:
    case TREE_INT:
    case TREE_FLOAT:
    case TREE_STR:
    case TREE_TUPLE:
        return true;
    case TREE_COMPLEX:
    case TREE_BYTES:
    case TREE_LIST:
    case TREE_DICT:
    case TREE_TAGGED:
        return false;
    }
    return false;
}

/* Reads a node without judging it. Returns false at the end of the bytes, or for an unknown
 * kind. */
static bool take_node(struct cur *cur, struct tree_node *ret)
{
    uint8_t kind = cur_u8(cur);
    cur_zeros(cur, 3);
    ret->child_count = cur_u32(cur);
    ret->bytes = cur_u32(cur);
    ret->data = cur_bytes(cur, ret->bytes);
    ret->kind = (enum tree_kind)kind;
    return cur->status == 0 && kind <= TREE_TAGGED;
}

/* Checks one node, and opens or closes the containers around it. */
static int check_node(struct checker *checker)
{
    struct tree_node node;
    bool is_key = false;
    if (!take_node(&checker->cur, &node)) {
        return bad(checker, "it is cut off, or has an unknown kind");
    }
    if (!form_is_valid(&node)) {
        return bad(checker, "its payload or child count does not fit its kind");
    }
    if (checker->depth > 0) {
        struct level *parent = &checker->levels[checker->depth - 1];
        is_key = parent->is_key || (parent->kind == TREE_DICT && parent->left % 2 == 0);
        parent->left--;
    }
    if (is_key && !kind_may_be_key(node.kind)) {
        return bad(checker, "a dict's key may be null, bool, int, float, str, or a tuple of these");
    }
    if (node.child_count > 0) {
        if (checker->depth + 1 >= LIMIT_TREE_DEPTH) {
            return bad(checker, "it is nested too deep; 64 levels are allowed");
        }
        checker->levels[checker->depth++] = (struct level){node.kind, node.child_count, is_key};
    }
    while (checker->depth > 0 && checker->levels[checker->depth - 1].left == 0) {
        checker->depth--;
    }
    return 0;
}

int tree_check(size_t bytes, const uint8_t *data, struct diag *diag)
{
    struct checker checker;
    memset(&checker, 0, sizeof checker);
    checker.diag = diag;
    struct cur *cur = &checker.cur;
    cur_init(cur, bytes, data);
    uint32_t magic = cur_u32(cur), version = cur_u32(cur), nodes = cur_u32(cur),
             length = cur_u32(cur);
    uint32_t crc = cur_u32(cur);
    if (cur->status != 0 || magic != TREE_MAGIC) {
        return diag_set(diag, CAIRN_E_FORMAT, "this is not a typed tree");
    }
    if (version != TREE_VERSION) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the typed tree has version %u; this program reads %d", version,
                        TREE_VERSION);
    }
    if (length != cur_left(cur) || nodes == 0 || nodes > length / TREE_NODE_BYTES) {
        return diag_set(
            diag, CAIRN_E_FORMAT,
            "the typed tree's header says %u nodes in %u bytes, but the tree has %zu bytes", nodes,
            length, cur_left(cur));
    }
    uint32_t found = crc32c(0, length, data + TREE_HEADER_BYTES);
    if (found != crc) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "the typed tree is damaged: its crc32c is %08x, but %08x is stored", found,
                        crc);
    }
    for (checker.node = 0; checker.node < nodes; checker.node++) {
        if (checker.node > 0 && checker.depth == 0) {
            return bad(&checker, "it comes after the end of the tree");
        }
        int rc = check_node(&checker);
        if (rc != 0) {
            return rc;
        }
    }
    if (checker.depth != 0 || cur_finish(cur) != 0) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "the typed tree ends before all children came, or has bytes left over");
    }
    return 0;
}

void tree_iter_init(struct tree_iter *iter, size_t bytes, const uint8_t *data)
{
    memset(iter, 0, sizeof *iter);
    cur_init(&iter->cur, bytes, data);
    cur_seek(&iter->cur, 8);
    iter->nodes_left = cur_u32(&iter->cur);
    cur_seek(&iter->cur, TREE_HEADER_BYTES);
    iter->status = iter->cur.status;
}

bool tree_next(struct tree_iter *iter, struct tree_node *ret)
{
    struct tree_node node;
    if (iter->nodes_left == 0 || iter->status != 0) {
        return false;
    }
    if (!take_node(&iter->cur, &node)) {
        iter->status = CAIRN_E_FORMAT;
        return false;
    }
    node.depth = iter->depth;
    iter->nodes_left--;
    if (iter->depth > 0) {
        iter->open[iter->depth - 1]--;
    }
    if (node.child_count > 0) {
        if (iter->depth + 1 >= LIMIT_TREE_DEPTH) {
            iter->status = CAIRN_E_FORMAT;
            return false;
        }
        iter->open[iter->depth++] = node.child_count;
    }
    while (iter->depth > 0 && iter->open[iter->depth - 1] == 0) {
        iter->depth--;
    }
    *ret = node;
    return true;
}

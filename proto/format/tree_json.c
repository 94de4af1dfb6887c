/* SPDX-License-Identifier: Apache-2.0
 *
 * The typed tree as JSON, for people and for `cairn restore`. One loop with a stack of fixed depth;
 * values that JSON does not have stand under keys that begin with '$'. The output is linear in the
 * input. Pure; any thread.
 */
#include "tree.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"

enum json_mode { JSON_LIST, JSON_TUPLE, JSON_OBJECT, JSON_PAIRS, JSON_TAGGED };

struct json_level {
    enum json_mode mode;
    uint32_t idx, left; /* children so far, and still to come */
};

struct json {
    struct buf *buf;
    unsigned indent;
    uint32_t depth;
    struct json_level levels[LIMIT_TREE_DEPTH];
    uint8_t *pairs; /* one bit for each node: it is a dict that is no JSON object */
};

static void put_text(struct buf *buf, const char *text) { buf_put(buf, strlen(text), text); }

/* Writes a string with quotes and JSON's escapes. */
static void put_string(struct buf *buf, size_t bytes, const uint8_t *text)
{
    size_t from = 0;
    buf_put_u8(buf, '"');
    for (size_t i = 0; i < bytes; i++) {
        uint8_t c = text[i];
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) {
            continue;
        }
        buf_put(buf, i - from, text + from);
        from = i + 1;
        if (c == '"' || c == '\\') {
            buf_printf(buf, "\\%c", c);
        } else if (c == '\n') {
            put_text(buf, "\\n");
        } else {
            buf_printf(buf, "\\u%04x", c);
        }
    }
    buf_put(buf, bytes - from, text + from);
    buf_put_u8(buf, '"');
}

/* Writes bytes as base64, with padding. */
static void put_base64(struct buf *buf, size_t bytes, const uint8_t *data)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes; i += 3) {
        size_t have = bytes - i < 3 ? bytes - i : 3;
        uint32_t group = (uint32_t)data[i] << 16;
        group |= have > 1 ? (uint32_t)data[i + 1] << 8 : 0;
        group |= have > 2 ? (uint32_t)data[i + 2] : 0;
        char out[4] = {digits[group >> 18], digits[group >> 12 & 63], digits[group >> 6 & 63],
                       digits[group & 63]};
        for (size_t k = have + 1; k < 4; k++) {
            out[k] = '=';
        }
        buf_put(buf, sizeof out, out);
    }
}

/* Returns byte i of the magnitude of a two's complement number. low is the index of its lowest byte
 * that is not zero. */
static uint8_t magnitude_byte(const struct tree_node *node, uint32_t low, uint32_t i)
{
    bool negative = (node->data[node->bytes - 1] & 0x80) != 0;
    if (!negative || i < low) {
        return node->data[i];
    }
    return (uint8_t)(i == low ? 0x100 - node->data[i] : ~node->data[i] & 0xff);
}

enum { DECIMAL_INT_BYTES = 64, DECIMAL_WORDS = DECIMAL_INT_BYTES / 4, DECIMAL_GROUPS = 18 };

/* Writes the decimal digits of up to 64 bytes: at most 155 digits. */
static void put_big_decimal(struct buf *buf, const struct tree_node *node, uint32_t low)
{
    uint32_t words[DECIMAL_WORDS] = {0}, groups[DECIMAL_GROUPS] = {0};
    size_t count = 0;
    for (uint32_t i = 0; i < node->bytes; i++) {
        words[i / 4] |= (uint32_t)magnitude_byte(node, low, i) << (8 * (i % 4));
    }
    for (bool more = true; more && count < DECIMAL_GROUPS; count++) {
        uint64_t rest = 0;
        more = false;
        for (size_t w = DECIMAL_WORDS; w-- > 0;) {
            rest = rest << 32 | words[w];
            words[w] = (uint32_t)(rest / 1000000000);
            rest %= 1000000000;
            more = more || words[w] != 0;
        }
        groups[count] = (uint32_t)rest;
    }
    buf_printf(buf, "%" PRIu32, groups[--count]);
    while (count-- > 0) {
        buf_printf(buf, "%09" PRIu32, groups[count]);
    }
}

/* Writes an int as a JSON number if every reader keeps it exactly, else as {"$int": text}. */
static void put_int(struct buf *buf, const struct tree_node *node)
{
    const int64_t exact = INT64_C(1) << 53; /* what every JSON reader keeps */
    bool negative = (node->data[node->bytes - 1] & 0x80) != 0;
    if (node->bytes <= 8) {
        uint64_t bits = negative ? UINT64_MAX : 0;
        for (uint32_t i = node->bytes; i-- > 0;) {
            bits = bits << 8 | node->data[i];
        }
        if ((int64_t)bits >= -exact && (int64_t)bits <= exact) {
            buf_printf(buf, "%" PRId64, (int64_t)bits);
            return;
        }
    }
    uint32_t low = 0;
    while (low + 1 < node->bytes && node->data[low] == 0) {
        low++;
    }
    put_text(buf, negative ? "{\"$int\": \"-" : "{\"$int\": \"");
    if (node->bytes <= DECIMAL_INT_BYTES) {
        put_big_decimal(buf, node, low);
    } else {
        put_text(buf, "0x");
        for (uint32_t i = node->bytes; i-- > 0;) {
            buf_printf(buf, "%02x", magnitude_byte(node, low, i));
        }
    }
    put_text(buf, "\"}");
}

/* Writes the shortest decimal that reads back as the same bits, always with a point or an
 * exponent. */
static void put_finite(struct buf *buf, double value)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        int n = snprintf(text, sizeof text, "%.*g", digits, value);
        CHECK(n > 0 && (size_t)n < sizeof text);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    for (char *p = text; *p != '\0'; p++) {
        *p = *p == ',' ? '.' : *p; /* the radix character of the process's locale */
    }
    put_text(buf, text);
    if (strpbrk(text, ".e") == NULL) {
        put_text(buf, ".0");
    }
}

static void put_float(struct buf *buf, const uint8_t *data)
{
    double value;
    memcpy(&value, data, sizeof value);
    if (isfinite(value)) {
        put_finite(buf, value);
        return;
    }
    put_text(buf, isnan(value) ? "{\"$float\": \"nan\"}"
                  : value > 0  ? "{\"$float\": \"inf\"}"
                               : "{\"$float\": \"-inf\"}");
}

static void put_line(struct json *json, uint32_t depth)
{
    if (json->indent == 0) {
        return;
    }
    buf_put_u8(json->buf, '\n');
    for (uint32_t i = 0; i < depth * json->indent; i++) {
        buf_put_u8(json->buf, ' ');
    }
}

/* Writes what goes in front of a child of the innermost container. */
static void put_before(struct json *json)
{
    const struct json_level *level = &json->levels[json->depth - 1];
    bool value = level->idx % 2 == 1;
    switch (level->mode) {
    case JSON_TAGGED:
        return;
    case JSON_OBJECT:
    case JSON_PAIRS:
        if (value) {
            put_text(json->buf, level->mode == JSON_OBJECT ? ": " : ", ");
            return;
        }
        break;
    case JSON_LIST:
    case JSON_TUPLE:
        break;
    }
    if (level->idx > 0) {
        put_text(json->buf, json->indent == 0 ? ", " : ",");
    }
    put_line(json, json->depth);
    if (level->mode == JSON_PAIRS) {
        buf_put_u8(json->buf, '[');
    }
}

static const char *const json_open[] = {
    [JSON_LIST] = "[",   [JSON_TUPLE] = "{\"$tuple\": [",
    [JSON_OBJECT] = "{", [JSON_PAIRS] = "{\"$dict\": [",
    [JSON_TAGGED] = "",
};
static const char *const json_close[] = {
    [JSON_LIST] = "]",   [JSON_TUPLE] = "]}", [JSON_OBJECT] = "}",
    [JSON_PAIRS] = "]}", [JSON_TAGGED] = "}",
};

/* Called when a child of the innermost container is complete. The container may then be complete as
 * well, and so on. */
static void put_after(struct json *json)
{
    while (json->depth > 0) {
        struct json_level *level = &json->levels[json->depth - 1];
        if (level->mode == JSON_PAIRS && level->idx % 2 == 1) {
            buf_put_u8(json->buf, ']');
        }
        level->idx++;
        if (--level->left > 0) {
            return;
        }
        if (level->mode != JSON_TAGGED) {
            put_line(json, json->depth - 1);
        }
        put_text(json->buf, json_close[level->mode]);
        json->depth--;
    }
}

/* Writes how a container begins, and puts it on the stack. */
static void open_container(struct json *json, const struct tree_node *node, bool pairs)
{
    enum json_mode mode = node->kind == TREE_LIST    ? JSON_LIST
                          : node->kind == TREE_TUPLE ? JSON_TUPLE
                          : node->kind == TREE_DICT  ? (pairs ? JSON_PAIRS : JSON_OBJECT)
                                                     : JSON_TAGGED;
    if (mode == JSON_TAGGED) {
        put_text(json->buf, "{\"$tag\": ");
        put_string(json->buf, node->bytes, node->data);
        put_text(json->buf, ", \"value\": ");
    }
    put_text(json->buf, json_open[mode]);
    if (node->child_count == 0) {
        put_text(json->buf, json_close[mode]);
        put_after(json);
        return;
    }
    CHECK(json->depth < LIMIT_TREE_DEPTH);
    json->levels[json->depth++] = (struct json_level){mode, 0, node->child_count};
}

/* Writes a scalar, or opens a container. */
static void put_node(struct json *json, const struct tree_node *node, bool pairs)
{
    struct buf *buf = json->buf;
    switch (node->kind) {
    case TREE_NULL:
        put_text(buf, "null");
        break;
    case TREE_FALSE:
        put_text(buf, "false");
        break;
    case TREE_TRUE:
        put_text(buf, "true");
        break;
    case TREE_INT:
        put_int(buf, node);
        break;
    case TREE_FLOAT:
        put_float(buf, node->data);
        break;
    case TREE_COMPLEX:
        put_text(buf, "{\"$complex\": [");
        put_float(buf, node->data);
        put_text(buf, ", ");
        put_float(buf, node->data + 8);
        put_text(buf, "]}");
        break;
    case TREE_STR:
        put_string(buf, node->bytes, node->data);
        break;
    case TREE_BYTES:
        put_text(buf, "{\"$bytes\": \"");
        put_base64(buf, node->bytes, node->data);
        put_text(buf, "\"}");
        break;
    case TREE_LIST:
    case TREE_TUPLE:
    case TREE_DICT:
    case TREE_TAGGED:
        open_container(json, node, pairs);
        return;
    }
    put_after(json);
}

/* Marks the dicts that cannot be a JSON object, because a key is no string or could be taken for
 * one of ours. */
static void mark_pairs(size_t bytes, const uint8_t *data, uint8_t *pairs)
{
    struct tree_iter iter;
    struct tree_node node;
    struct {
        uint32_t node, left;
        bool dict;
    } open[LIMIT_TREE_DEPTH];
    uint32_t depth = 0;
    tree_iter_init(&iter, bytes, data);
    for (uint32_t i = 0; tree_next(&iter, &node); i++) {
        if (depth > 0 && open[depth - 1].dict && open[depth - 1].left % 2 == 0 &&
            (node.kind != TREE_STR || (node.bytes > 0 && node.data[0] == '$'))) {
            uint32_t dict = open[depth - 1].node;
            pairs[dict / 8] = (uint8_t)(pairs[dict / 8] | 1u << dict % 8);
        }
        if (depth > 0) {
            open[depth - 1].left--;
        }
        if (node.child_count > 0) {
            open[depth].node = i;
            open[depth].left = node.child_count;
            open[depth++].dict = node.kind == TREE_DICT;
        }
        while (depth > 0 && open[depth - 1].left == 0) {
            depth--;
        }
    }
}

int tree_to_json(size_t bytes, const uint8_t *data, unsigned indent, struct buf *buf,
                 struct diag *diag)
{
    struct json json;
    struct tree_iter iter;
    struct tree_node node;
    int rc = tree_check(bytes, data, diag);
    if (rc != 0) {
        return rc;
    }
    memset(&json, 0, sizeof json);
    json.buf = buf;
    json.indent = indent < 16 ? indent : 16;
    tree_iter_init(&iter, bytes, data);
    json.pairs = calloc(iter.nodes_left / 8 + 1u, 1);
    if (json.pairs == NULL) {
        return diag_no_memory(diag, "writing a tree of %u nodes as JSON", iter.nodes_left);
    }
    mark_pairs(bytes, data, json.pairs);
    for (uint32_t i = 0; tree_next(&iter, &node) && buf_status(buf) == 0; i++) {
        if (json.depth > 0) {
            put_before(&json);
        }
        put_node(&json, &node, (json.pairs[i / 8] >> i % 8 & 1) != 0);
    }
    free(json.pairs);
    rc = buf_status(buf);
    return rc == 0 ? 0 : diag_set(diag, rc, "writing a tree as JSON");
}

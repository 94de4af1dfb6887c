/* SPDX-License-Identifier: Apache-2.0
 *
 * A typed tree holds ordinary state exactly, refuses every other form, and reads as JSON. Method:
 * built trees against the JSON that they must give, broken ones by table, random ones by round
 * trip.
 */
#include <math.h>
#include <stdio.h>

#include "base/check.h"
#include "fixtures.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"
#include "tree_builder.h"

static void assert_json(struct buf *tree, unsigned indent, const char *want)
{
    struct buf json;
    struct diag diag = DIAG_INIT;
    buf_init(&json, MIB(4));
    int rc = tree_to_json(tree->bytes, tree->data, indent, &json, &diag);
    if (rc != 0) {
        fail_msg("%d: %s, for %s", rc, diag.text, want);
    }
    buf_put_u8(&json, 0);
    assert_string_equal((const char *)json.data, want);
    buf_fini(&json);
}

TEST(test_the_fixture_as_json)
{
    struct buf tree = {0};
    for (size_t i = 0; i < fixture_count; i++) {
        if (strcmp(fixtures[i].name, "tree") == 0) {
            tree = fixture_bytes(&fixtures[i]);
        }
    }
    assert_json(&tree, 0,
                "{\"$dict\": [[\"lr\", 0.1], [-7, [null, true, false, {\"$int\": "
                "\"2361183241434822606848\"}]], "
                "[{\"$tuple\": [300, \"k\xc3\xa9y\"]}, {\"$complex\": [3.5, -0.0]}], "
                "[\"milestones\", {\"$tag\": \"Counter\", \"value\": {\"$dict\": [[30, 1]]}}], "
                "[\"raw\", {\"$bytes\": \"AAH+/w==\"}]]}");
    buf_fini(&tree);
}

/* A tree of one node. */
static void one(struct buf *buf, enum tree_kind kind, size_t bytes, const void *data)
{
    struct tree_builder builder;
    buf_reset(buf);
    tree_begin(&builder, buf);
    tree_put(&builder, kind, 0, bytes, data);
    tree_end(&builder);
}

static void assert_int_json(struct buf *buf, int64_t value, const char *want)
{
    struct tree_builder builder;
    buf_reset(buf);
    tree_begin(&builder, buf);
    tree_put_int(&builder, value);
    tree_end(&builder);
    assert_int_equal(buf_status(buf), 0);
    assert_json(buf, 0, want);
}

CODEC_TEST(test_numbers_as_json)
{
    static const struct {
        double value;
        const char *json;
    } floats[] = {{0.0, "0.0"},
                  {-0.0, "-0.0"},
                  {1.0, "1.0"},
                  {0.1, "0.1"},
                  {1e300, "1e+300"},
                  {1.0 / 3, "0.3333333333333333"},
                  {3e-4, "0.0003"},
                  {INFINITY, "{\"$float\": \"inf\"}"},
                  {-INFINITY, "{\"$float\": \"-inf\"}"},
                  {NAN, "{\"$float\": \"nan\"}"},
                  {5e-324, "4.94065645841247e-324"},
                  {9007199254740993.0, "9007199254740992.0"}};
    uint8_t big[65] = {0};
    for (size_t i = 0; i < ARRAY_LEN(floats); i++) {
        one(buf, TREE_FLOAT, 8, &floats[i].value);
        assert_json(buf, 0, floats[i].json);
    }
    assert_int_json(buf, 0, "0");
    assert_int_json(buf, 127, "127");
    assert_int_json(buf, 128, "128");
    assert_int_json(buf, -128, "-128");
    assert_int_json(buf, -129, "-129");
    assert_int_json(buf, INT64_C(1) << 53, "9007199254740992");
    assert_int_json(buf, (INT64_C(1) << 53) + 1, "{\"$int\": \"9007199254740993\"}");
    assert_int_json(buf, INT64_MIN, "{\"$int\": \"-9223372036854775808\"}");
    assert_int_json(buf, INT64_MAX, "{\"$int\": \"9223372036854775807\"}");
    big[15] = 0x40; /* 2^126: as wide as the state of a NumPy generator */
    one(buf, TREE_INT, 16, big);
    assert_json(buf, 0, "{\"$int\": \"85070591730234615865843651857942052864\"}");
    big[15] = 0x80;
    one(buf, TREE_INT, 16, big);
    assert_json(buf, 0, "{\"$int\": \"-170141183460469231731687303715884105728\"}");
    big[15] = 0;
    big[64] = 0x80;
    big[0] = 1; /* 65 bytes: -(2^519) + 1 in hex */
    one(buf, TREE_INT, 65, big);
    assert_int_equal(buf_status(buf), 0);
    struct buf json;
    buf_init(&json, MIB(1));
    assert_int_equal(tree_to_json(buf->bytes, buf->data, 0, &json, NULL), 0);
    assert_memory_equal(json.data, "{\"$int\": \"-0x7fffff", 19);
    assert_memory_equal(json.data + json.bytes - 6, "ffff\"}", 6);
    buf_fini(&json);
}

CODEC_TEST(test_pretty_json_and_escapes)
{
    struct tree_builder builder;
    tree_begin(&builder, buf);
    tree_put(&builder, TREE_DICT, 6, 0, NULL);
    tree_put_str(&builder, "a\"\\\n\x01\x7f");
    tree_put(&builder, TREE_LIST, 2, 0, NULL);
    tree_put_int(&builder, 1);
    tree_put(&builder, TREE_LIST, 0, 0, NULL);
    tree_put_str(&builder, "e");
    tree_put(&builder, TREE_DICT, 0, 0, NULL);
    tree_put_str(&builder, "d");
    tree_put(&builder, TREE_DICT, 2, 0, NULL);
    tree_put_str(&builder, "$int"); /* could be taken for one of ours */
    tree_put(&builder, TREE_TUPLE, 0, 0, NULL);
    tree_end(&builder);
    assert_int_equal(buf_status(buf), 0);
    assert_json(buf, 2,
                "{\n  \"a\\\"\\\\\\n\\u0001\\u007f\": [\n    1,\n    []\n  ],\n  \"e\": {},\n  "
                "\"d\": {\"$dict\": [\n"
                "    [\"$int\", {\"$tuple\": []}]\n  ]}\n}");
}

struct form {
    const char *what;
    enum tree_kind kind;
    uint32_t child_count;
    size_t bytes;
    const char *data;
};

CODEC_TEST(test_other_forms_are_refused)
{
    static const struct form forms[] = {{"null with bytes", TREE_NULL, 0, 1, "x"},
                                        {"empty int", TREE_INT, 0, 0, ""},
                                        {"int 0 of two bytes", TREE_INT, 0, 2, "\0\0"},
                                        {"int -1 of two bytes", TREE_INT, 0, 2, "\xff\xff"},
                                        {"short float", TREE_FLOAT, 0, 7, "1234567"},
                                        {"short complex", TREE_COMPLEX, 0, 8, "12345678"},
                                        {"str not UTF-8", TREE_STR, 0, 1, "\xff"},
                                        {"surrogate", TREE_STR, 0, 3, "\xed\xa0\x80"},
                                        {"list with bytes", TREE_LIST, 0, 1, "x"},
                                        {"odd dict", TREE_DICT, 1, 0, ""},
                                        {"tag without child", TREE_TAGGED, 0, 3, "set"},
                                        {"tag without name", TREE_TAGGED, 1, 0, ""},
                                        {"missing child", TREE_LIST, 1, 0, ""},
                                        {"str with child", TREE_STR, 1, 1, "x"},
                                        {"unknown kind", (enum tree_kind)12, 0, 0, ""}};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct tree_builder builder;
        buf_reset(buf);
        tree_begin(&builder, buf);
        tree_put(&builder, forms[i].kind, forms[i].child_count, forms[i].bytes, forms[i].data);
        tree_end(&builder);
        if (buf_status(buf) != CAIRN_E_INVALID) {
            fail_msg("%s was taken", forms[i].what);
        }
    }
}

/* A dict with one key of this kind. */
static int key_status(struct buf *buf, enum tree_kind kind, size_t bytes, const void *data,
                      bool in_tuple)
{
    struct tree_builder builder;
    buf_reset(buf);
    tree_begin(&builder, buf);
    tree_put(&builder, TREE_DICT, 2, 0, NULL);
    if (in_tuple) {
        tree_put(&builder, TREE_TUPLE, 1, 0, NULL);
    }
    tree_put(&builder, kind, kind == TREE_TAGGED, bytes, data);
    if (kind == TREE_TAGGED) {
        tree_put(&builder, TREE_NULL, 0, 0, NULL);
    }
    tree_put(&builder, TREE_LIST, 0, 0, NULL);
    tree_end(&builder);
    return buf_status(buf);
}

CODEC_TEST(test_keys_of_a_dict)
{
    for (int in_tuple = 0; in_tuple < 2; in_tuple++) {
        assert_int_equal(key_status(buf, TREE_NULL, 0, NULL, in_tuple == 1), 0);
        assert_int_equal(key_status(buf, TREE_TRUE, 0, NULL, in_tuple == 1), 0);
        assert_int_equal(key_status(buf, TREE_INT, 1, "\5", in_tuple == 1), 0);
        assert_int_equal(key_status(buf, TREE_FLOAT, 8, "12345678", in_tuple == 1), 0);
        assert_int_equal(key_status(buf, TREE_STR, 1, "s", in_tuple == 1), 0);
        assert_int_equal(key_status(buf, TREE_TUPLE, 0, NULL, in_tuple == 1), 0);
        assert_int_equal(key_status(buf, TREE_BYTES, 1, "s", in_tuple == 1), CAIRN_E_INVALID);
        assert_int_equal(key_status(buf, TREE_LIST, 0, NULL, in_tuple == 1), CAIRN_E_INVALID);
        assert_int_equal(key_status(buf, TREE_DICT, 0, NULL, in_tuple == 1), CAIRN_E_INVALID);
        assert_int_equal(key_status(buf, TREE_COMPLEX, 16, "1234567812345678", in_tuple == 1),
                         CAIRN_E_INVALID);
        assert_int_equal(key_status(buf, TREE_TAGGED, 3, "set", in_tuple == 1), CAIRN_E_INVALID);
    }
}

static int nested_status(struct buf *buf, unsigned levels)
{
    struct tree_builder builder;
    buf_reset(buf);
    tree_begin(&builder, buf);
    for (unsigned i = 1; i < levels; i++) {
        tree_put(&builder, TREE_LIST, 1, 0, NULL);
    }
    tree_put(&builder, TREE_LIST, 0, 0, NULL);
    tree_end(&builder);
    return buf_status(buf);
}

CODEC_TEST(test_the_example_of_the_norm)
{
    static const uint8_t want[] = {0x43, 0x52, 0x4e, 0x54, 1, 0,    0,    0,    1,    0, 0,
                                   0,    13,   0,    0,    0, 0x5e, 0x36, 0xe0, 0x5e, 3, 0,
                                   0,    0,    0,    0,    0, 0,    1,    0,    0,    0, 0xf9};
    struct tree_builder builder;
    tree_begin(&builder, buf);
    tree_put_int(&builder, -7);
    tree_end(&builder);
    assert_int_equal(buf->bytes, sizeof want);
    assert_memory_equal(buf->data, want, sizeof want);
}

CODEC_TEST(test_depth_ends_at_64_levels)
{
    struct tree_iter iter;
    struct tree_node node;
    uint32_t deepest = 0;
    assert_int_equal(nested_status(buf, LIMIT_TREE_DEPTH), 0);
    tree_iter_init(&iter, buf->bytes, buf->data);
    while (tree_next(&iter, &node)) {
        deepest = node.depth;
    }
    assert_int_equal(iter.status, 0);
    assert_int_equal(deepest, LIMIT_TREE_DEPTH - 1);
    assert_int_equal(nested_status(buf, LIMIT_TREE_DEPTH + 1), CAIRN_E_INVALID);
    assert_int_equal(nested_status(buf, 10001), CAIRN_E_INVALID);
}

/* A random tree of at most depth levels, written without recursion. */
static void random_tree(struct prng *prng, struct buf *buf)
{
    struct tree_builder builder;
    uint64_t left = 1,
             made = 0; /* nodes that were promised; lists only, so that any node fits anywhere */
    buf_reset(buf);
    tree_begin(&builder, buf);
    while (left > 0) {
        uint8_t bytes[12];
        uint32_t children = made < 40 ? (uint32_t)prng_below(prng, 4) : 0;
        store_u64(bytes, prng_next(prng));
        store_u32(bytes + 8, 0);
        left--;
        made++;
        switch (prng_below(prng, 5)) {
        case 0:
            tree_put_int(&builder, (int64_t)prng_next(prng) >> prng_below(prng, 64));
            break;
        case 1:
            tree_put(&builder, TREE_BYTES, 0, prng_below(prng, 12), bytes);
            break;
        case 2:
            tree_put(&builder, TREE_FLOAT, 0, 8, bytes);
            break;
        default:
            tree_put(&builder, prng_below(prng, 2) == 0 ? TREE_LIST : TREE_TUPLE, children, 0,
                     NULL);
            left += children;
        }
    }
    tree_end(&builder);
}

CODEC_TEST(test_random_trees_come_back)
{
    struct prng prng = prng_init("tree", 77);
    struct buf again, json;
    buf_init(&again, MIB(1));
    buf_init(&json, MIB(1));
    for (unsigned round = 0; round < 1000; round++) {
        struct tree_builder builder;
        struct tree_iter iter;
        struct tree_node node;
        random_tree(&prng, buf);
        assert_int_equal(buf_status(buf), 0);
        buf_reset(&again);
        buf_reset(&json);
        tree_begin(&builder, &again);
        tree_iter_init(&iter, buf->bytes, buf->data);
        while (tree_next(&iter, &node)) {
            tree_put(&builder, node.kind, node.child_count, node.bytes, node.data);
        }
        tree_end(&builder);
        assert_int_equal(again.bytes, buf->bytes);
        assert_memory_equal(again.data, buf->data, buf->bytes);
        assert_int_equal(tree_to_json(buf->bytes, buf->data, (unsigned)(round % 3), &json, NULL),
                         0);
    }
    buf_fini(&again);
    buf_fini(&json);
}

TEST(test_json_without_memory_or_room)
{
    struct buf buf, json;
    buf_init(&buf, MIB(1));
    buf_init(&json, 8);
    one(&buf, TREE_STR, 20, "01234567890123456789");
    assert_int_equal(tree_to_json(buf.bytes, buf.data, 0, &json, NULL), CAIRN_E_TOO_LARGE);
    buf_reset(&json);
    alloc_fault_at(1);
    assert_int_equal(tree_to_json(buf.bytes, buf.data, 0, &json, NULL), CAIRN_E_NO_MEMORY);
    assert_true(alloc_fault_hit());
    buf_fini(&buf);
    buf_fini(&json);
}

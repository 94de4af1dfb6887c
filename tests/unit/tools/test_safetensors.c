/* SPDX-License-Identifier: Apache-2.0
 *
 * The header is what safetensors readers expect: its length, aligned JSON, and offsets without
 * holes in the order of widths. Method: one small file compared whole; types that safetensors
 * lacks.
 */
#include "formats/metadata.h"
#include "formats/safetensors.h"

#include <stdio.h>

#include "support/unit_test.h"

TEST(test_layout)
{
    struct index_entry entries[] = {
        {.name = "b", .dtype = CAIRN_U8, .shape = {.ndim = 1, .length = {3}}, .plain_bytes = 3},
        {.name = "a",
         .dtype = CAIRN_F32,
         .shape = {.ndim = 2, .length = {2, 2}},
         .plain_bytes = 16},
        {.name = "c", .dtype = CAIRN_I64, .shape = {.ndim = 0}, .plain_bytes = 8},
        {.name = "e", .dtype = CAIRN_F32, .shape = {.ndim = 1, .length = {0}}, .plain_bytes = 0}};
    struct safetensor tensors[4];
    for (size_t i = 0; i < 4; i++) {
        tensors[i] = (struct safetensor){.entry = &entries[i]};
    }
    struct buf buf;
    struct safetensors file = {.checkpoint = "lab/gpt 10@1", .count = 4, .tensors = tensors};
    buf_init(&buf, 1 << 20);
    assert_int_equal(safetensors_layout(&file, &buf, NULL), 0);
    assert_int_equal(buf.bytes % 8, 0);
    assert_true(load_u64(buf.data) == buf.bytes - 8);
    static const char expected[] =
        "{\"__metadata__\":{\"format\":\"pt\",\"cairn.checkpoint\":\"lab/gpt 10@1\"},"
        "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]},"
        "\"e\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[24,24]},"
        "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[24,27]}}";
    assert_memory_equal(buf.data + 8, expected, sizeof expected - 1);
    for (size_t i = 8 + sizeof expected - 1; i < buf.bytes; i++) {
        assert_int_equal(buf.data[i], ' ');
    }
    assert_string_equal(tensors[0].entry->name, "c");
    assert_true(tensors[3].offset == 24);
    buf_fini(&buf);
}

/* Every dtype of ours appears with a type that safetensors has, and bytes that fit its shape. */
TEST(test_foreign_types)
{
    unsigned foreign = 0;
    for (uint32_t dtype = 0; dtype < 64; dtype++) {
        if (!dtype_name(dtype) || dtype_bits(dtype) == 0 || dtype_safetensors(dtype)) {
            continue;
        }
        foreign++;
        struct index_entry entry = {.name = "x",
                                    .dtype = dtype,
                                    .shape = {.ndim = 1, .length = {2}},
                                    .plain_bytes = 2 * dtype_bits(dtype) / 8};
        struct safetensor tensor = {.entry = &entry};
        char expected[96];
        struct buf buf;
        struct safetensors file = {.checkpoint = "", .count = 1, .tensors = &tensor};
        buf_init(&buf, 1 << 20);
        assert_int_equal(safetensors_layout(&file, &buf, NULL), 0);
        buf_put_u8(&buf, 0);
        snprintf(expected, sizeof expected, "\"x\":{\"dtype\":\"U8\",\"shape\":[2,%u]",
                 dtype_bits(dtype) / 8);
        assert_non_null(strstr((const char *)buf.data + 8, expected));
        assert_non_null(strstr((const char *)buf.data + 8, "cairn.dtype.x"));
        buf_fini(&buf);
    }
    assert_true(foreign > 0);
}

/* Goal: pairs come back as they were given, and a checkpoint's own metadata beside them, or of
 * another kind, does no harm. */
TEST(test_metadata_comes_back)
{
    static const struct metadata_pair pairs[] = {{"format", "tf"}, {"empty", ""}, {"q", "\"\n"}};
    struct metadata_walk walk;
    struct tree_node name, text;
    struct buf tree, header;
    buf_init(&tree, 1 << 20);
    buf_init(&header, 1 << 20);
    metadata_encode(3, pairs, &tree);
    assert_int_equal(tree_check(tree.bytes, tree.data, NULL), 0);
    metadata_begin(tree.bytes, tree.data, &walk);
    for (size_t i = 0; i < 3; i++) {
        assert_true(metadata_next(&walk, &name, &text));
        assert_int_equal(text.bytes, strlen(pairs[i].text));
        assert_memory_equal(name.data, pairs[i].name, name.bytes);
        assert_memory_equal(text.data, pairs[i].text, text.bytes);
    }
    assert_false(metadata_next(&walk, &name, &text));
    struct safetensor nothing[1];
    struct safetensors file = {.tensors = nothing,
                               .checkpoint = "1@1",
                               .metadata_bytes = tree.bytes,
                               .metadata = tree.data};
    assert_int_equal(safetensors_layout(&file, &header, NULL), 0);
    static const char expected[] = "{\"__metadata__\":{\"format\":\"tf\",\"empty\":\"\",\"q\":"
                                   "\"\\\"\\n\",\"cairn.checkpoint\":\"1@1\"}}";
    assert_memory_equal(header.data + 8, expected, sizeof expected - 1);
    metadata_begin(tree.bytes - 1, tree.data, &walk); /* no tree */
    assert_false(metadata_next(&walk, &name, &text));
    metadata_begin(0, NULL, &walk);
    assert_false(metadata_next(&walk, &name, &text));
    buf_fini(&tree);
    buf_fini(&header);
}

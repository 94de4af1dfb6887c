/* SPDX-License-Identifier: Apache-2.0
 *
 * The header is what safetensors readers expect: its length, aligned JSON, and offsets without
 * holes in the order of widths. Method: one small file compared whole; types that safetensors
 * lacks.
 */
#include "formats/safetensors.h"

#include <stdio.h>

#include "support/unit_test.h"

static void test_layout(void **state)
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
static void test_foreign_types(void **state)
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

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_layout),
    cmocka_unit_test(test_foreign_types),
};

UNIT_TEST_MAIN(tests)

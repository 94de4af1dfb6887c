/* SPDX-License-Identifier: Apache-2.0
 *
 * What the writer makes is JSON, whatever the texts hold. Method: documents compared whole.
 */
#include "base/json.h"

#include <math.h>

#include "support/unit_test.h"

static void assert_document(struct json *json, const char *expected)
{
    assert_int_equal(buf_status(&json->buf), 0);
    assert_int_equal(json->buf.bytes, strlen(expected));
    assert_memory_equal(json->buf.data, expected, strlen(expected));
    json_fini(json);
}

TEST(test_nesting_and_commas)
{
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_u64(&json, "a", UINT64_MAX);
    json_open(&json, "b", '[');
    json_close(&json, ']');
    json_open(&json, "c", '[');
    json_u64(&json, NULL, 1);
    json_open(&json, NULL, '{');
    json_bool(&json, "d", true);
    json_close(&json, '}');
    json_str(&json, NULL, NULL);
    json_close(&json, ']');
    json_raw(&json, "e", 3, "[7]");
    json_bool(&json, "f", false);
    json_close(&json, '}');
    assert_document(&json,
                    "{\"a\":18446744073709551615,\"b\":[],\"c\":[1,{\"d\":true},null],\"e\":[7],"
                    "\"f\":false}");
}

TEST(test_texts_are_escaped)
{
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '{');
    json_str(&json, "k\"\\", "line\nbell\a\x7f quote\" back\\ \xc3\xa4");
    json_str(&json, "csi", "\xc2\x9b\xe2\x80\xae\xff");
    json_close(&json, '}');
    assert_document(&json,
                    "{\"k\\\"\\\\\":\"line\\nbell\\u0007\\u007f quote\\\" back\\\\ \xc3\xa4\","
                    "\"csi\":\"\\u009b\\u202e\\ufffd\"}");
}

TEST(test_numbers)
{
    struct json json;
    json_init(&json);
    json_open(&json, NULL, '[');
    json_f64(&json, NULL, 0.1);
    json_f64(&json, NULL, (double)INFINITY);
    json_f64(&json, NULL, (double)NAN);
    json_close(&json, ']');
    assert_document(&json, "[0.10000000000000001,null,null]");
}

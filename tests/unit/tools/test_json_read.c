/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON of other programs is taken exactly or refused with a named error, within bounds of depth and
 * memory. Method: good and broken texts, each at the end of its memory, so that ASan sees a read
 * behind it; every truncation of one text.
 */
#include "formats/json_read.h"

#include <stdio.h>

#include "support/unit_test.h"

static int read_bytes(size_t bytes, const char *text, json_t **ret, struct diag *diag)
{
    char *copy = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    int rc = json_read(bytes, copy, ret, diag);
    free(copy);
    return rc;
}

static void assert_refused(int code, const char *text, const char *why)
{
    json_t *root = NULL;
    struct diag diag = DIAG_INIT;
    assert_int_equal(read_bytes(strlen(text), text, &root, &diag), code);
    assert_null(root);
    if (strstr(diag.text, why) == NULL) {
        fail_msg("%s: '%s' does not say '%s'", text, diag.text, why);
    }
}

TEST(test_values_are_exact)
{
    static const char text[] =
        " {\"b\": [9223372036854775807, -1, 1.5], \"a\": \"\\u00e4\\ud83d\\ude00/\", \"c\": null} ";
    json_t *root = NULL;
    assert_int_equal(read_bytes(sizeof(text) - 1, text, &root, NULL), 0);
    const json_t *list = json_object_get(root, "b");
    assert_int_equal(json_array_size(list), 3);
    assert_true(json_integer_value(json_array_get(list, 0)) == INT64_MAX);
    assert_false(json_is_integer(json_array_get(list, 2)));
    assert_string_equal(json_string_value(json_object_get(root, "a")), "\xc3\xa4\xf0\x9f\x98\x80/");
    assert_string_equal(json_object_iter_key(json_object_iter(root)), "b"); /* the file's order */
    json_decref(root);
}

TEST(test_broken_texts_are_refused)
{
    assert_refused(CAIRN_E_FORMAT, "{\"a\":1,\"a\":2}", "duplicate");
    assert_refused(CAIRN_E_FORMAT, "[9223372036854775808]", "too big integer");
    assert_refused(CAIRN_E_FORMAT, "{} x", "end of file expected");
    assert_refused(CAIRN_E_FORMAT, "[\"\xff\"]", "decode byte");
    assert_refused(CAIRN_E_FORMAT, "[\"\xc0\x80\"]", "decode byte"); /* an overlong NUL */
    assert_refused(CAIRN_E_FORMAT, "[\"\\u0000\"]", "JSON: ");
    assert_refused(CAIRN_E_FORMAT, "[\"\\ud83d\"]", "JSON: ");
    assert_refused(CAIRN_E_FORMAT, "[\"\n\"]", "JSON: ");
    assert_refused(CAIRN_E_FORMAT, "[01]", "JSON: ");
    assert_refused(CAIRN_E_FORMAT, "[1,]", "JSON: ");
    assert_refused(CAIRN_E_FORMAT, "[nan]", "JSON: ");
    assert_refused(CAIRN_E_FORMAT, "", "JSON: ");
    json_t *root = NULL;
    assert_int_equal(read_bytes(4, "[\0]", &root, NULL), CAIRN_E_FORMAT);
    /* What the text holds is not in the message: it could steer a terminal. */
    struct diag diag = DIAG_INIT;
    assert_int_equal(read_bytes(9, "[\"\x1b]0;x\"?", &root, &diag), CAIRN_E_FORMAT);
    assert_null(strchr(diag.text, '\x1b'));
}

TEST(test_depth_and_number_of_values_are_bounded)
{
    char deep[67] = {0};
    memset(deep, '[', 32);
    memset(deep + 32, ']', 32);
    json_t *root = NULL;
    assert_int_equal(read_bytes(64, deep, &root, NULL), 0);
    json_decref(root);
    memset(deep, '[', 33);
    memset(deep + 33, ']', 33);
    assert_refused(CAIRN_E_TOO_LARGE, deep, "deeper than 32");
    /* Brackets in a string do not count, and a quote behind a backslash does not end it. */
    static const char quoted[] =
        "[\"\\\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"]";
    root = NULL;
    assert_int_equal(read_bytes(sizeof(quoted) - 1, quoted, &root, NULL), 0);
    json_decref(root);
    size_t bytes = ((size_t)17 << 20) * 2;
    char *many = malloc(bytes);
    assert_non_null(many);
    for (size_t i = 0; i < bytes; i += 2) {
        memcpy(many + i, "1,", 2);
    }
    many[0] = '[';
    root = NULL;
    assert_int_equal(json_read(bytes, many, &root, NULL), CAIRN_E_TOO_LARGE);
    free(many);
}

TEST(test_every_truncation_is_refused)
{
    static const char text[] = "{\"a\\\"\":[1.5e3,true,{\"\\u00e4\":\"\xc3\xa4\"}],\"b\":-12}";
    for (size_t bytes = 0; bytes < sizeof(text) - 1; bytes++) {
        json_t *root = NULL;
        assert_int_equal(read_bytes(bytes, text, &root, NULL), CAIRN_E_FORMAT);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A target becomes exactly its words and arguments, or an error; no bytes of it lead outside.
 * Method: single targets, and each prefix and each changed byte of one.
 */
#include "rest/rest.h"
#include "rest/rest_request.h"

#include "support/unit_test.h"

static void test_words_and_arguments(void **state)
{
    struct rest_request request;
    assert_int_equal(
        rest_request_parse("/api/v1/runs//a%2Fb/c?x=1&empty=&bare&&y=%26=", &request, NULL), 0);
    assert_int_equal(request.word_count, 3);
    assert_string_equal(request.words[1], "a/b");
    assert_int_equal(request.arg_count, 4);
    assert_string_equal(rest_arg(&request, "x"), "1");
    assert_string_equal(rest_arg(&request, "empty"), "");
    assert_string_equal(rest_arg(&request, "bare"), "");
    assert_string_equal(rest_arg(&request, "y"), "&=");
    assert_null(rest_arg(&request, "z"));
    assert_int_equal(rest_request_parse("/api/v1", &request, NULL), 0);
    assert_int_equal(request.word_count, 0);
}

static void test_what_is_refused(void **state)
{
    static const char *const bad[] = {"/api/v1/%",
                                      "/api/v1/%0",
                                      "/api/v1/%zz",
                                      "/api/v1/%00",
                                      "/api/v1/a/b/c/d/e/f/g",
                                      "/api/v1/?a&b&c&d&e&f&g&h&i",
                                      "/api/v1/?a=%f"};
    struct rest_request request;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct diag diag = DIAG_INIT;
        assert_int_equal(rest_request_parse(bad[i], &request, &diag), CAIRN_E_INVALID);
        assert_true(diag.text[0] != '\0');
    }
}

static void test_numbers(void **state)
{
    struct rest_range range = {.preset = 7, .least = 1, .most = 9};
    struct rest_request request;
    uint64_t value = 0;
    assert_int_equal(rest_request_parse("/api/v1/?a=9&b=10&c=0&d=-1&e=1x&f=&g=01", &request, NULL),
                     0);
    assert_int_equal(rest_arg_u64(&request, "a", range, &value, NULL), 0);
    assert_int_equal(value, 9);
    assert_int_equal(rest_arg_u64(&request, "none", range, &value, NULL), 0);
    assert_int_equal(value, 7);
    for (const char *name = "bcdefg"; *name; name++) {
        const char text[] = {*name, '\0'};
        assert_int_equal(rest_arg_u64(&request, text, range, &value, NULL), CAIRN_E_INVALID);
    }
}

static void test_each_byte(void **state)
{
    static const char whole[] = "/api/v1/runs/%61/b?limit=5&after=%41%42/c";
    char target[sizeof(whole)];
    struct rest_request request;
    for (size_t at = strlen(REST_PREFIX); at < sizeof(whole) - 1; at++) {
        for (int byte = 0; byte < 256; byte++) {
            memcpy(target, whole, sizeof(whole));
            target[at] = (char)byte;
            int status = rest_request_parse(target, &request, NULL);
            assert_true(status == 0 || status == CAIRN_E_INVALID);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_and_arguments), cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_each_byte)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

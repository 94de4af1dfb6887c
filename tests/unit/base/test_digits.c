/* SPDX-License-Identifier: Apache-2.0
 *
 * A number in text has one spelling, and what is refused changes nothing. Method: tables of texts
 * that are numbers and texts that nearly are.
 */
#include "base/check.h"
#include "base/digits.h"
#include "support/unit_test.h"

TEST(test_decimals_are_read)
{
    static const struct {
        const char *text;
        uint64_t value;
        size_t bytes;
    } rows[] = {
        {"0", 0, 1}, {"7x", 7, 1}, {"10-2", 10, 2}, {"18446744073709551615", UINT64_MAX, 20}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *at = rows[i].text;
        uint64_t value = 99;
        assert_true(digits_read_decimal(&at, UINT64_MAX, &value));
        assert_true(value == rows[i].value);
        assert_ptr_equal(at, rows[i].text + rows[i].bytes);
    }
}

TEST(test_refused_decimals_change_nothing)
{
    static const char *const texts[] = {
        "", "x", "+1", "-1", " 1", "00", "01", "18446744073709551616", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        const char *at = texts[i];
        uint64_t value = 99;
        assert_false(digits_read_decimal(&at, UINT64_MAX, &value));
        assert_false(digits_parse_decimal(texts[i], UINT64_MAX, &value));
        assert_int_equal(value, 99);
        assert_ptr_equal(at, texts[i]);
    }
}

TEST(test_decimals_have_a_limit)
{
    uint64_t value = 99;
    assert_false(digits_parse_decimal("256", 255, &value));
    assert_int_equal(value, 99);
    assert_true(digits_parse_decimal("255", 255, &value));
    assert_int_equal(value, 255);
}

TEST(test_whole_text_is_the_number)
{
    uint64_t value = 99;
    assert_false(digits_parse_decimal("12 ", UINT64_MAX, &value));
    assert_false(digits_parse_decimal("1e3", UINT64_MAX, &value));
    assert_int_equal(value, 99);
}

TEST(test_hex_has_its_width)
{
    const char *text = "00000000deadbeef.rest";
    const char *at = text;
    uint64_t value = 99;
    assert_true(digits_read_hex(&at, 16, &value));
    assert_true(value == UINT64_C(0xdeadbeef));
    assert_ptr_equal(at, text + 16);

    at = "ffffffffffffffff";
    assert_true(digits_read_hex(&at, 16, &value));
    assert_true(value == UINT64_MAX);
}

TEST(test_refused_hex_changes_nothing)
{
    static const char *const texts[] = {"", "0", "012", "01G4", "0xAB", "ABCD", " 123", "-123"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        const char *at = texts[i];
        uint64_t value = 99;
        assert_false(digits_read_hex(&at, 4, &value));
        assert_int_equal(value, 99);
        assert_ptr_equal(at, texts[i]);
    }
}

TEST(test_literals_are_skipped)
{
    const char *text = ".tmp-1";
    const char *at = text;
    assert_false(digits_skip(&at, ".tmp_"));
    assert_false(digits_skip(&at, ".tmp-12"));
    assert_ptr_equal(at, text);
    assert_true(digits_skip(&at, ".tmp-"));
    assert_ptr_equal(at, text + 5);
}

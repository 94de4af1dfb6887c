/* SPDX-License-Identifier: Apache-2.0
 *
 * A terminal shows the bytes that it would obey, and does not obey them; everything else stands for
 * itself. Method: texts with what they become, every size of the target, and every single byte.
 */
#include "base/plain.h"

#include <stdio.h>

#include "support/unit_test.h"

TEST(test_what_acts_is_escaped)
{
    static const struct {
        const char *text, *shown;
    } cases[] = {{"", ""},
                 {"model.w", "model.w"},
                 {"na\xc3\xafve \xe6\xa8\xa1\xe5\x9e\x8b \xf0\x9f\x98\x80", /* letters, an emoji */
                  "na\xc3\xafve \xe6\xa8\xa1\xe5\x9e\x8b \xf0\x9f\x98\x80"},
                 {"a\\b \"c\"", "a\\b \"c\""},
                 {"\x1b[2Jgone", "\\u001b[2Jgone"},
                 {"one\ntwo\r\tthree\x7f", "one\\ntwo\\u000d\\u0009three\\u007f"},
                 {"csi \xc2\x9b"
                  "2J",
                  "csi \\u009b"
                  "2J"}, /* ESC [ in one character */
                 {"\xe2\x80\xaetxt.exe", "\\u202etxt.exe"},
                 {"\xe2\x81\xa6\xe2\x80\xa8\xef\xbb\xbf", "\\u2066\\u2028\\ufeff"},
                 {"\xff\xc0\x80", "\\ufffd\\ufffd\\ufffd"}};
    char shown[200];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_string_equal(plain_copy(cases[i].text, sizeof(shown), shown), cases[i].shown);
    }
}

TEST(test_a_cut_falls_between_characters)
{
    static const char text[] = "ab\x1b\xc3\xaf"
                               "cd",
                      whole[] = "ab\\u001b\xc3\xaf"
                                "cd";
    for (size_t size = 4; size <= sizeof(whole) + 2; size++) {
        char shown[40];
        memset(shown, 'x', sizeof(shown));
        plain_copy(text, size, shown);
        size_t length = strlen(shown);
        assert_true(length < size);
        assert_int_equal(shown[size], 'x');
        if (size >= sizeof(whole)) {
            assert_string_equal(shown, whole);
            continue;
        }
        assert_string_equal(shown + length - 3, "...");
        assert_memory_equal(shown, whole, length - 3);
        assert_true(length == 3 || length == 4 || length == 5 || length >= 11);
    }
}

TEST(test_no_byte_acts)
{
    for (unsigned byte = 1; byte < 256; byte++) {
        char text[3] = {(char)byte, 'x', '\0'}, shown[20];
        for (const char *at = plain_copy(text, sizeof(shown), shown); *at != '\0'; at++) {
            assert_true((uint8_t)*at >= ' ');
            assert_true((uint8_t)*at < 0x7f);
        }
    }
}

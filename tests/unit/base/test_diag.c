/* SPDX-License-Identifier: Apache-2.0
 *
 * The first failure is kept, context goes in front, long texts are cut between characters. Method:
 * texts around the capacity, with UTF-8 at the cut.
 */
#include <errno.h>

#include "base/diag.h"
#include "support/unit_test.h"

TEST(test_first_failure_wins)
{
    struct diag diag = DIAG_INIT;
    assert_int_equal(diag_set(&diag, CAIRN_E_IO, "write %s: %d", "a", 5), CAIRN_E_IO);
    assert_int_equal(diag_set(&diag, CAIRN_E_NO_SPACE, "later"), CAIRN_E_NO_SPACE);
    assert_int_equal(diag.code, CAIRN_E_IO);
    assert_string_equal(diag.text, "write a: 5");
    diag_clear(&diag);
    assert_int_equal(diag.code, 0);
    assert_string_equal(diag_text(&diag, CAIRN_E_IO), err_text(CAIRN_E_IO));
}

TEST(test_null_diag_is_accepted)
{
    assert_int_equal(diag_set(NULL, CAIRN_E_IO, "x"), CAIRN_E_IO);
    assert_int_equal(diag_errno(NULL, ENOSPC, "x"), CAIRN_E_NO_SPACE);
    diag_add(NULL, "x");
    diag_clear(NULL);
    assert_string_equal(diag_text(NULL, CAIRN_E_BUSY), err_text(CAIRN_E_BUSY));
    struct diag from = {.code = CAIRN_E_IO};
    assert_int_equal(diag_copy(NULL, &from), CAIRN_E_IO);
}

TEST(test_errno_is_appended)
{
    struct diag diag = DIAG_INIT;
    assert_int_equal(diag_errno(&diag, ENOENT, "open %s", "/x"), CAIRN_E_NOT_FOUND);
    assert_string_equal(diag.text, "open /x: No such file or directory");
}

TEST(test_context_goes_in_front)
{
    struct diag diag = DIAG_INIT;
    diag_add(&diag, "nothing failed");
    assert_string_equal(diag.text, "");
    diag_set(&diag, CAIRN_E_DAMAGED, "page %d", 3);
    diag_add(&diag, "part of rank %d", 1);
    assert_string_equal(diag.text, "part of rank 1: page 3");
    assert_int_equal(diag.code, CAIRN_E_DAMAGED);
}

TEST(test_context_before_a_code_without_text)
{
    struct diag diag = {.code = CAIRN_E_BUSY};
    diag_add(&diag, "save");
    assert_string_equal(diag.text, "save: in use by another operation");
}

TEST(test_copy_keeps_the_first)
{
    struct diag from = DIAG_INIT;
    struct diag to = DIAG_INIT;
    assert_int_equal(diag_copy(&to, &from), 0);
    diag_set(&from, CAIRN_E_IO, "first");
    assert_int_equal(diag_copy(&to, &from), CAIRN_E_IO);
    assert_string_equal(to.text, "first");
    struct diag other = DIAG_INIT;
    diag_set(&other, CAIRN_E_BUSY, "second");
    assert_int_equal(diag_copy(&to, &other), CAIRN_E_BUSY);
    assert_string_equal(to.text, "first");
}

/* For each width of a character, each position of the cut inside it. */
TEST(test_cut_is_between_characters)
{
    static const char *const characters[] = {"a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x99\x82"};
    for (size_t width = 1; width <= 4; width++) {
        for (size_t shift = 0; shift < width; shift++) {
            char text[DIAG_TEXT_MAX * 2] = "";
            memset(text, '.', shift);
            for (size_t at = shift; at < DIAG_TEXT_MAX + 8; at += width) {
                memcpy(text + at, characters[width - 1], width);
            }
            struct diag diag = DIAG_INIT;
            diag_set(&diag, CAIRN_E_IO, "%s", text);
            size_t length = strlen(diag.text);
            assert_true(length < DIAG_TEXT_MAX);
            assert_true(length >= DIAG_TEXT_MAX - width);
            assert_int_equal((length - shift) % width, 0);
            diag_add(&diag, "context");
            assert_true(strlen(diag.text) < DIAG_TEXT_MAX);
            assert_int_equal((strlen(diag.text) - strlen("context: ") - shift) % width, 0);
        }
    }
}

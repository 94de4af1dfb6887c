/* SPDX-License-Identifier: Apache-2.0
 *
 * The error table is complete and answers any number. Method: known rows, and every number around
 * the table.
 */
#include <errno.h>
#include <limits.h>

#include "base/check.h"
#include "base/err.h"
#include "support/unit_test.h"

TEST(test_known_code_has_its_row)
{
    assert_string_equal(err_name(CAIRN_E_NO_SPACE), "NO_SPACE");
    assert_string_equal(err_text(CAIRN_E_NO_SPACE), "no space left in the store");
    assert_int_equal(err_retry(CAIRN_E_NO_SPACE), ERR_RETRY_LATER);
    assert_int_equal(err_retry(CAIRN_E_OUTCOME_UNKNOWN), ERR_RETRY_RESOLVE);
    assert_int_equal(err_exit_status(CAIRN_E_DAMAGED), 6);
    assert_int_equal(err_exit_status(CAIRN_OK), 0);
}

TEST(test_unknown_code_is_answered)
{
    static const int codes[] = {1, 7, -9999, INT_MAX, INT_MIN};
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        assert_false(err_is_known(codes[i]));
        assert_string_equal(err_name(codes[i]), "UNKNOWN");
        assert_string_equal(err_text(codes[i]), "unknown error");
        assert_int_equal(err_retry(codes[i]), ERR_RETRY_NEVER);
        assert_int_equal(err_exit_status(codes[i]), 1);
    }
}

/* The values are ABI and wire: no hole, distinct names, exit statuses that a shell can see. */
TEST(test_table_is_dense_and_distinct)
{
    int count = 0;
#define CAIRN_ERR(name, value, text, retry, status) count++;
#include "base/err.def"
#undef CAIRN_ERR
    for (int code = -1; code >= -count; code--) {
        assert_true(err_is_known(code));
        assert_int_equal(err_from_name(err_name(code)), code);
        assert_in_range(err_exit_status(code), 1, 125);
        assert_true(strlen(err_text(code)) > 3);
    }
    assert_false(err_is_known(-count - 1));
}

TEST(test_name_that_is_none)
{
    assert_int_equal(err_from_name("NO_SUCH"), 0);
    assert_int_equal(err_from_name("OK"), 0);
    assert_int_equal(err_from_name(""), 0);
}

TEST(test_errno_is_translated)
{
    assert_int_equal(err_from_errno(ENOSPC), CAIRN_E_NO_SPACE);
    assert_int_equal(err_from_errno(EDQUOT), CAIRN_E_QUOTA);
    assert_int_equal(err_from_errno(EROFS), CAIRN_E_READ_ONLY);
    assert_int_equal(err_from_errno(ENOENT), CAIRN_E_NOT_FOUND);
    assert_int_equal(err_from_errno(EEXIST), CAIRN_E_EXISTS);
    assert_int_equal(err_from_errno(ENOTEMPTY), CAIRN_E_NOT_EMPTY);
    assert_int_equal(err_from_errno(ENOMEM), CAIRN_E_NO_MEMORY);
    assert_int_equal(err_from_errno(EACCES), CAIRN_E_DENIED);
    assert_int_equal(err_from_errno(EPERM), CAIRN_E_DENIED);
    assert_int_equal(err_from_errno(ETIMEDOUT), CAIRN_E_TIMED_OUT);
    assert_int_equal(err_from_errno(EIO), CAIRN_E_IO);
    assert_int_equal(err_from_errno(0), CAIRN_E_IO);
}

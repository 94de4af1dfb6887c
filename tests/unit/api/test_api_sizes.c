/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that was built with an older cairn.h goes on with a newer library. Method: options in
 * the size of their first version, with what lies behind it set: it must not be read.
 */
#include "api_handle.h"

HANDLE_TEST(test_restore_options)
{
    struct cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
    struct cairn_error err;
    cairn_op_t *op = NULL;
    options.only_count = 1;
    assert_int_equal(cairn_restore(cairn, &options, &op, &err), CAIRN_E_INVALID);
    assert_non_null(strstr(err.text, "options.only has 1 patterns at NULL"));
    options.size = offsetof(struct cairn_restore_options, only);
    assert_int_equal(cairn_restore(cairn, &options, &op, &err), 0);
    end_well(op);
    options.size -= 8; /* smaller than it ever was */
    assert_int_equal(cairn_restore(cairn, &options, &op, &err), CAIRN_E_INVALID);
    assert_non_null(strstr(err.text, "cairn_restore_options.size is 32"));
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * See api_handle.h.
 */
#include "api_handle.h"

const char url[] = "cairn://127.0.0.1:7421/demo/run1";

cairn_t *open_default(void)
{
    cairn_t *cairn = NULL;
    struct cairn_error err;
    assert_int_equal(cairn_open(url, NULL, &cairn, &err), 0);
    assert_non_null(cairn);
    return cairn;
}

void close_well(cairn_t *cairn)
{
    struct cairn_error err;
    assert_int_equal(cairn_close(cairn, CAIRN_FOREVER, &err), 0);
    assert_string_equal(err.text, "");
}

void end_well(cairn_op_t *op)
{
    struct cairn_error err;
    assert_int_equal(cairn_op_wait(op, CAIRN_DONE, CAIRN_FOREVER, &err), 0);
    cairn_op_free(op);
}

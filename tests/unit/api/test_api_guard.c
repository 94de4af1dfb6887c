/* SPDX-License-Identifier: Apache-2.0
 *
 * A broken CHECK, on any of the threads that Cairn's code runs on, kills the handle and not the
 * process; every future ends, every callback comes once, and another handle works. Method: fail
 * points that the shell CHECKs, and a fake engine whose copy breaks one on a worker.
 */
#include "api_handle.h"

#include <stdatomic.h>

struct seen {
    atomic_int calls, drops, code;
};

static void note(void *user, int code)
{
    struct seen *seen = user;
    seen->code = code;
    atomic_fetch_add(&seen->calls, 1);
}

static void drop(void *user) { atomic_fetch_add(&((struct seen *)user)->drops, 1); }

static void ignore_line(void *user, int level, const char *line)
{
    if (strstr(line, "unusable") != NULL) {
        *(atomic_int *)user = 1;
    }
}

/* One save waits for its end while another breaks a CHECK somewhere. */
static void break_one(void)
{
    struct cairn_options options = CAIRN_OPTIONS_INIT;
    struct cairn_error err;
    struct seen seen = {0};
    atomic_int logged = 0;
    cairn_t *cairn = NULL;
    cairn_op_t *waiting = NULL, *op = NULL;
    cairn_list_t *list = NULL;

    bool breaks_worker = fake_script.breaks_worker;
    fake_script.breaks_worker = false;
    fake_script.never_ends = true;
    options.log = ignore_line;
    options.log_user = &logged;
    assert_int_equal(cairn_open(url, &options, &cairn, &err), 0);
    assert_int_equal(cairn_save(cairn, 1, NULL, &waiting, &err), 0);
    assert_int_equal(cairn_op_notify(waiting, CAIRN_DONE, note, &seen, drop), 0);

    fake_script.breaks_worker = breaks_worker;
    assert_int_equal(cairn_save(cairn, 2, NULL, &op, &err), CAIRN_E_INTERNAL);
    assert_non_null(strstr(err.text, "this handle can no longer be used"));
    assert_null(op);
    fake_script.breaks_worker = false;

    assert_int_equal(cairn_op_wait(waiting, CAIRN_DONE, CAIRN_FOREVER, &err), CAIRN_E_INTERNAL);
    assert_int_equal(cairn_op_wait(waiting, CAIRN_STAGED, 0, &err), 0); /* it had been */
    cairn_op_abort(waiting);
    cairn_op_free(waiting);
    assert_int_equal(cairn_save(cairn, 3, NULL, &op, &err), CAIRN_E_INTERNAL);
    assert_int_equal(cairn_restore(cairn, NULL, &op, &err), CAIRN_E_INTERNAL);
    assert_int_equal(cairn_list(cairn, 0, &list, &err), CAIRN_E_INTERNAL);
    assert_int_equal(cairn_set_tensors(cairn, NULL, 0, &err), CAIRN_E_INTERNAL);
    assert_int_equal(cairn_close(cairn, 0, &err), CAIRN_E_INTERNAL);
    assert_int_equal(seen.calls, 1);
    assert_int_equal(seen.drops, 1);
    assert_int_equal(seen.code, CAIRN_E_INTERNAL);
    assert_int_equal(logged, 1);

    fake_reset();
    cairn_t *next = open_default();
    assert_int_equal(cairn_save(next, 1, NULL, &op, &err), 0);
    end_well(op);
    close_well(next);
}

/* Saves that start, in the order of the tests: 1 waits, 2 breaks, 3 is the next handle's; 4 waits,
 * and the fifth call breaks before it starts. */
static int set_fail_points(void **state)
{
    return setenv("CAIRN_FAILPOINTS", "api.start=error:INTERNAL@2;api.call=error:INTERNAL@5", 1);
}

UNIT_TEST_GROUP(set_fail_points, NULL)

FIXED_TEST(test_a_check_broken_on_the_handles_thread) { break_one(); }

FIXED_TEST(test_a_check_broken_on_the_callers_thread) { break_one(); }

FIXED_TEST(test_a_check_broken_on_a_worker)
{
    fake_script.breaks_worker = true;
    break_one();
}

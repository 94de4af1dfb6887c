/* SPDX-License-Identifier: Apache-2.0
 *
 * A broken CHECK reaches the thread's handler or aborts; arithmetic helpers refuse overflow.
 * Method: a trap handler; a child process for abort().
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "support/check_trap.h"
#include "support/unit_test.h"

static void broken(void *user)
{
    int value = *(int *)user;
    CHECK(value == 1);
}

TEST(test_handler_is_called)
{
    int value = 2;
    assert_true(check_breaks(broken, &value));
    assert_string_equal(check_last_broken(), "value == 1");
    value = 1;
    assert_false(check_breaks(broken, &value));
    assert_string_equal(check_last_broken(), "");
}

static void return_from_handler(const char *file, int line, const char *what) {}

static void expect_abort(check_handler handler)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        check_set_handler(handler);
        int value = 3;
        broken(&value);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

TEST(test_no_handler_aborts) { expect_abort(NULL); }

TEST(test_handler_that_returns_aborts) { expect_abort(return_from_handler); }

static void break_again(const char *file, int line, const char *what) { CHECK(what == NULL); }

/* Not the handler once more, which would go round until the stack ends. */
TEST(test_check_broken_in_a_handler_aborts) { expect_abort(break_again); }

TEST(test_arithmetic)
{
    uint64_t n = 5;
    assert_true(add_u64(1, 2, &n));
    assert_int_equal(n, 3);
    assert_false(add_u64(UINT64_MAX, 1, &n));
    assert_int_equal(n, 3);
    assert_true(mul_u64(3, 4, &n));
    assert_int_equal(n, 12);
    assert_false(mul_u64(UINT64_MAX, 2, &n));
    assert_int_equal(n, 12);
    assert_int_equal(round_up_u64(0, 8), 0);
    assert_int_equal(round_up_u64(1, 8), 8);
    assert_int_equal(round_up_u64(8, 8), 8);
    assert_int_equal(min_u64(3, 2), 2);
    assert_int_equal(max_u64(3, 2), 3);
}

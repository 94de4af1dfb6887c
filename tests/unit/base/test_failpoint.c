/* SPDX-License-Identifier: Apache-2.0
 *
 * Each action happens at its time and place; a setting that cannot be read ends the program.
 * Method: a child process for each setting, since it is read once.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/failpoint.h"
#include "support/unit_test.h"

/* Runs body in a child under the setting; returns the child's wait status (WUNTRACED). */
static int run_with(const char *setting, int (*body)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        setenv("CAIRN_FAILPOINTS", setting, 1);
        _exit(body());
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, WUNTRACED), child);
    if (WIFSTOPPED(status)) {
        int ended;
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &ended, 0), child);
    }
    return status;
}

static int expect_error_each_time(void)
{
    return !(FAILPOINT("a") == CAIRN_E_IO && FAILPOINT("a") == CAIRN_E_IO && FAILPOINT("b") == 0);
}

static int expect_error_at_second(void)
{
    return !(FAILPOINT("a") == 0 && FAILPOINT("a") == CAIRN_E_NO_SPACE && FAILPOINT("a") == 0);
}

static int expect_both(void)
{
    return !(FAILPOINT("a") == CAIRN_E_IO && FAILPOINT("b") == CAIRN_E_BUSY && FAILPOINT("c") == 0);
}

static int expect_nothing(void) { return FAILPOINT("a") != 0; }

static int reach_third(void)
{
    for (int i = 0; i < 3; i++) {
        if (FAILPOINT("a") != 0) {
            return 1;
        }
    }
    return 42;
}

static int reach_twice(void) { return FAILPOINT("a") == 0 && FAILPOINT("a") == 0 ? 43 : 1; }

TEST(test_errors)
{
    assert_int_equal(run_with("a=error:IO", expect_error_each_time), 0);
    assert_int_equal(run_with("a=error:NO_SPACE@2", expect_error_at_second), 0);
    assert_int_equal(run_with("a=error:IO;b=error:BUSY", expect_both), 0);
    assert_int_equal(run_with("", expect_nothing), 0);
    assert_int_equal(run_with("other=error:IO", expect_nothing), 0);
}

TEST(test_kill_at_its_time)
{
    int status = run_with("a=kill@3", reach_third);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
    status = run_with("a=kill@3", reach_twice);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 43);
}

TEST(test_stop)
{
    int status = run_with("a=stop@2", reach_twice);
    assert_true(WIFSTOPPED(status));
    assert_int_equal(WSTOPSIG(status), SIGSTOP);
}

TEST(test_bad_settings_end_the_program)
{
    static const char *const settings[] = {"a",       "=kill",    "a=explode", "a=error:NOPE",
                                           "a=kill@", "a=kill@x", "a=kill@0",  "a=error:"};
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        int status = run_with(settings[i], expect_nothing);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), SIGABRT);
    }
}

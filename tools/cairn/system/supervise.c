/* SPDX-License-Identifier: Apache-2.0
 *
 * See supervise.h.
 */
#include "system/supervise.h"

#include "base/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOT_FOUND = 127, NOT_RUNNABLE = 126, SIGNALLED = 128, WAIT_MS_MAX = 60000 };

static const int passed_on[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT, SIGWINCH, SIGCONT};

uint64_t supervise_now_ms(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void waited_for(sigset_t *ret)
{
    sigemptyset(ret);
    sigaddset(ret, SIGCHLD);
    sigaddset(ret, SIGTERM);
    sigaddset(ret, SIGINT);
    for (size_t i = 0; i < ARRAY_LEN(passed_on); i++) {
        sigaddset(ret, passed_on[i]);
    }
}

int supervise_begin(struct supervise *supervise, struct diag *diag)
{
    sigset_t set;
    waited_for(&set);
    supervise->stopped_by = 0;
    supervise->killed = false;
    supervise->noticed = false;
    supervise->child = 0;
    /* A launcher may ignore SIGCHLD, which survives exec. The kernel would then reap our children
     * itself, and waitpid() could neither find them nor say how they ended. */
    signal(SIGCHLD, SIG_DFL);
    return sigprocmask(SIG_BLOCK, &set, NULL) == 0
               ? 0
               : diag_errno(diag, errno, "cannot block signals");
}

/* --- the child's side --- */

/* Only async-signal-safe calls: between fork and exec. */
static _Noreturn void become(char *const *argv, pid_t parent, int tell)
{
    sigset_t set;
    waited_for(&set);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_DFL);
    (void)setpgid(0, 0); /* fails where it leads a session: then it has a group already */
    if (isatty(STDIN_FILENO)) {
        signal(SIGTTOU, SIG_IGN);
        (void)tcsetpgrp(STDIN_FILENO, getpid()); /* a command that reads the terminal may */
        signal(SIGTTOU, SIG_DFL);
    }
    bool tied = prctl(PR_SET_PDEATHSIG, SIGTERM) == 0; /* nobody is left to restart it */
    if (tied && getppid() == parent && sigprocmask(SIG_UNBLOCK, &set, NULL) == 0) {
        execvp(argv[0], argv);
    }
    int error = errno;
    ssize_t told = write(tell, &error, sizeof(error));
    _exit(told == (ssize_t)sizeof(error) && error == ENOENT ? NOT_FOUND : NOT_RUNNABLE);
}

/* --- ours --- */

static void pass(const struct supervise *supervise, int signum)
{
    if (supervise->child > 0) {
        (void)kill(supervise->child, signum); /* gone already: waitpid tells */
    }
}

static void kill_all(struct supervise *supervise)
{
    supervise->killed = true;
    if (supervise->child > 0 && kill(-supervise->child, SIGKILL) != 0) {
        pass(supervise, SIGKILL); /* it has not made its group yet */
    }
}

static void take_signal(struct supervise *supervise, int signum)
{
    if (signum == SIGTERM || signum == SIGINT) {
        if (supervise->stopped_by != 0) {
            kill_all(supervise);
        } else {
            supervise->stopped_by = signum;
            if (!supervise->noticed) { /* else it was asked to end already */
                supervise->kill_at_ms = supervise_now_ms() + supervise->grace_ms;
                pass(supervise, signum);
            }
        }
    } else if (signum != SIGCHLD && signum > 0) {
        pass(supervise, signum);
    }
}

/* Probes the sources, and asks the process to end when one gives notice. Returns for how many ms
 * nothing is to do. */
static uint64_t watch(struct supervise *supervise)
{
    if (supervise->noticed || supervise->stopped_by != 0) {
        return WAIT_MS_MAX;
    }
    uint64_t ms = node_watch_turn(supervise->watch, supervise_now_ms());
    if (supervise->watch->fired) {
        supervise->noticed = true;
        supervise->kill_at_ms = supervise_now_ms() + supervise->grace_ms;
        pass(supervise, SIGTERM);
    }
    return min_u64(ms, WAIT_MS_MAX);
}

/* Until a signal, or for at most ms. */
static void wait_signal(struct supervise *supervise, uint64_t ms)
{
    sigset_t set;
    struct timespec timeout = {.tv_sec = (time_t)(ms / 1000),
                               .tv_nsec = (long)(ms % 1000) * 1000000};
    waited_for(&set);
    take_signal(supervise, sigtimedwait(&set, NULL, &timeout));
}

static int status_of(int waited)
{
    return WIFEXITED(waited) ? WEXITSTATUS(waited) : SIGNALLED + WTERMSIG(waited);
}

static int wait_child(struct supervise *supervise)
{
    int waited = 0;
    for (;;) {
        pid_t ended = waitpid(supervise->child, &waited, WNOHANG);
        CHECK(ended >= 0 || errno == EINTR);
        if (ended == supervise->child) {
            break;
        }
        uint64_t patience = watch(supervise), now = supervise_now_ms();
        if ((supervise->stopped_by != 0 || supervise->noticed) && !supervise->killed) {
            patience = supervise->kill_at_ms > now ? supervise->kill_at_ms - now : 0;
            if (patience == 0) {
                kill_all(supervise);
                patience = WAIT_MS_MAX;
            }
        }
        wait_signal(supervise, patience);
    }
    /* What it left behind in its group ends with it: it would hold the run against the next one. */
    (void)kill(-supervise->child, SIGKILL);
    if (isatty(STDIN_FILENO)) {
        signal(SIGTTOU, SIG_IGN);
        (void)tcsetpgrp(STDIN_FILENO, getpgrp()); /* the terminal comes back */
        signal(SIGTTOU, SIG_DFL);
    }
    supervise->child = 0;
    return status_of(waited);
}

int supervise_run(struct supervise *supervise, char *const *argv, int *ret_status,
                  struct diag *diag)
{
    int tell[2], error = 0;
    pid_t parent = getpid();
    if (pipe2(tell, O_CLOEXEC) != 0) {
        return diag_errno(diag, errno, "cannot create a pipe");
    }
    pid_t child = fork();
    if (child == 0) {
        become(argv, parent, tell[1]);
    }
    int failed = errno;
    close(tell[1]);
    if (child < 0) {
        close(tell[0]);
        return diag_errno(diag, failed, "start %s", argv[0]);
    }
    supervise->child = child;
    (void)setpgid(child, child); /* whoever of the two comes first */
    ssize_t got = 0;
    do { /* ends when the child runs the command, or says why it cannot */
        got = read(tell[0], &error, sizeof(error));
    } while (got < 0 && errno == EINTR);
    close(tell[0]);
    if (got == (ssize_t)sizeof(error)) {
        err_ignore(diag_set(diag, CAIRN_E_IO, "%s: %s", argv[0], strerror(error)));
    }
    *ret_status = wait_child(supervise);
    return 0;
}

void supervise_pause(struct supervise *supervise, uint64_t ms)
{
    uint64_t now = supervise_now_ms(), end = now + ms;
    while (now < end && supervise->stopped_by == 0) {
        uint64_t patience = watch(supervise);
        if (supervise->noticed) {
            break;
        }
        wait_signal(supervise, min_u64(end - now, patience));
        now = supervise_now_ms();
    }
}

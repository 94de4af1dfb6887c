/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that asks for it gets short slices and nothing else; threads that it makes, and those of
 * another policy, stay as they are. Method: what the kernel says of threads that live for one
 * trial, beside what it does with the same wish by hand, because older kernels do not take it.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "env/prompt.h"
#include "env_fixture.h"

struct attr {
    uint32_t bytes, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline_ns, period_ns;
};

struct trial {
    bool by_hand, batch;
    struct attr before, after, childs;
};

static struct attr now(void)
{
    struct attr attr = {0};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &attr, sizeof attr, 0), 0);
    return attr;
}

static void *child_main(void *arg)
{
    ((struct trial *)arg)->childs = now();
    return NULL;
}

static void *trial_main(void *arg)
{
    struct trial *trial = arg;
    struct sched_param none = {0};
    pthread_t child;
    if (trial->batch) {
        assert_int_equal(pthread_setschedparam(pthread_self(), SCHED_BATCH, &none), 0);
    }
    trial->before = now();
    if (trial->by_hand) {
        struct attr attr = trial->before;
        attr.bytes = sizeof attr;
        attr.slice_ns = 300000;
        assert_int_equal(syscall(SYS_sched_setattr, 0, &attr, 0), 0);
    } else {
        thread_be_prompt();
    }
    trial->after = now();
    assert_int_equal(pthread_create(&child, NULL, child_main, trial), 0);
    assert_int_equal(pthread_join(child, NULL), 0);
    return NULL;
}

static struct trial outcome_of(struct trial trial)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, trial_main, &trial), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return trial;
}

static bool kernel_takes_slices(void)
{
    return outcome_of((struct trial){.by_hand = true}).after.slice_ns == 300000;
}

TEST(test_slices_become_short_and_nothing_else_changes)
{
    struct trial trial = outcome_of((struct trial){0});
    assert_int_equal(trial.after.policy, trial.before.policy);
    assert_int_equal(trial.after.nice, trial.before.nice);
    if (kernel_takes_slices()) {
        assert_true(trial.after.slice_ns > 0);
        assert_true(trial.after.slice_ns < trial.before.slice_ns);
    } else {
        assert_int_equal(trial.after.slice_ns, trial.before.slice_ns);
    }
    assert_int_equal(trial.childs.policy, trial.before.policy);
    assert_int_equal(trial.childs.nice, trial.before.nice);
    assert_int_equal(trial.childs.slice_ns, trial.before.slice_ns);
}

TEST(test_another_policy_is_left_alone)
{
    struct trial trial = outcome_of((struct trial){.batch = true});
    assert_int_equal(trial.after.policy, SCHED_BATCH);
    assert_int_equal(trial.after.slice_ns, trial.before.slice_ns);
    assert_int_equal(trial.after.flags, trial.before.flags);
}

/* --- a pool ---------------------------------------------------------------------------- */

struct job {
    struct work work;
    struct env *env;
    struct attr attr;
};

static void run_job(struct work *work) { container_of(work, struct job, work)->attr = now(); }

static void job_done(struct work *work) { env_stop(container_of(work, struct job, work)->env); }

static uint64_t slice_in_pool(struct env *env, bool prompt)
{
    struct work_pool *pool;
    struct job job = {.env = env, .work = {.run = run_job, .done = job_done}};
    assert_int_equal(work_threads_new(env->loop, 1, "test", &pool, NULL), 0);
    if (prompt) {
        work_threads_be_prompt(pool);
    }
    work_submit(pool, &job.work);
    env_run(env);
    work_threads_free(pool);
    return job.attr.slice_ns;
}

ENV_TEST(test_a_pools_threads_are_prompt_when_told)
{
    struct trial trial = outcome_of((struct trial){0});
    assert_int_equal(slice_in_pool(env, false), trial.before.slice_ns);
    assert_int_equal(slice_in_pool(env, true), trial.after.slice_ns);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that asks for it gets short slices and nothing else; threads that it makes, and those of
 * another policy, stay as they are. Method: what the kernel says of threads that live for one look,
 * beside what it does with the same wish by hand, because older kernels do not take it.
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

struct look {
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
    ((struct look *)arg)->childs = now();
    return NULL;
}

static void *look_main(void *arg)
{
    struct look *look = arg;
    struct sched_param none = {0};
    pthread_t child;
    if (look->batch) {
        assert_int_equal(pthread_setschedparam(pthread_self(), SCHED_BATCH, &none), 0);
    }
    look->before = now();
    if (look->by_hand) {
        struct attr attr = look->before;
        attr.bytes = sizeof attr;
        attr.slice_ns = 300000;
        assert_int_equal(syscall(SYS_sched_setattr, 0, &attr, 0), 0);
    } else {
        thread_be_prompt();
    }
    look->after = now();
    assert_int_equal(pthread_create(&child, NULL, child_main, look), 0);
    assert_int_equal(pthread_join(child, NULL), 0);
    return NULL;
}

static struct look look_at(struct look look)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look_main, &look), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return look;
}

static bool kernel_takes_slices(void)
{
    return look_at((struct look){.by_hand = true}).after.slice_ns == 300000;
}

TEST(test_slices_become_short_and_nothing_else_changes)
{
    struct look look = look_at((struct look){0});
    assert_int_equal(look.after.policy, look.before.policy);
    assert_int_equal(look.after.nice, look.before.nice);
    if (kernel_takes_slices()) {
        assert_true(look.after.slice_ns > 0);
        assert_true(look.after.slice_ns < look.before.slice_ns);
    } else {
        assert_int_equal(look.after.slice_ns, look.before.slice_ns);
    }
    assert_int_equal(look.childs.policy, look.before.policy);
    assert_int_equal(look.childs.nice, look.before.nice);
    assert_int_equal(look.childs.slice_ns, look.before.slice_ns);
}

TEST(test_another_policy_is_left_alone)
{
    struct look look = look_at((struct look){.batch = true});
    assert_int_equal(look.after.policy, SCHED_BATCH);
    assert_int_equal(look.after.slice_ns, look.before.slice_ns);
    assert_int_equal(look.after.flags, look.before.flags);
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
    struct look look = look_at((struct look){0});
    assert_int_equal(slice_in_pool(env, false), look.before.slice_ns);
    assert_int_equal(slice_in_pool(env, true), look.after.slice_ns);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Each submitted work runs once and is done once, later, on the loop's thread, also when its run()
 * breaks an assertion. Method: counters in both forms; a broken CHECK on the threads of the real
 * one.
 */
#include <pthread.h>

#include "base/check.h"
#include "env_fixture.h"

enum { WORKS = 50 };

struct job {
    struct work work;
    struct env *env;
    unsigned runs, dones;
    bool is_breaking;
    pthread_t thread;
};

static unsigned done_count, broken_count;
static bool is_inside;

static void run_job(struct work *work)
{
    struct job *job = container_of(work, struct job, work);

    job->runs++;
    job->thread = pthread_self();
    CHECK(!job->is_breaking);
}

static void job_done(struct work *work)
{
    struct job *job = container_of(work, struct job, work);

    assert_false(is_inside);
    job->dones++;
    if (++done_count == WORKS) {
        env_stop(job->env);
    }
}

static void submit_all(struct env *env, struct job *jobs, bool is_breaking)
{
    done_count = 0;
    for (size_t i = 0; i < WORKS; i++) {
        jobs[i] = (struct job){.work = {.run = run_job, .done = job_done},
                               .env = env,
                               .is_breaking = is_breaking && i % 2};
        is_inside = true;
        work_submit(env->pool, &jobs[i].work);
        assert_int_equal(jobs[i].dones, 0);
        is_inside = false;
    }
    env_run(env);
    for (size_t i = 0; i < WORKS; i++) {
        assert_int_equal(jobs[i].runs, 1);
        assert_int_equal(jobs[i].dones, 1);
        assert_int_equal(!!pthread_equal(jobs[i].thread, pthread_self()), env->is_sim);
    }
}

ENV_TESTS(test_works_run_and_are_done_once)
{
    struct job jobs[WORKS];

    submit_all(env, jobs, false);
    submit_all(env, jobs, false);
}

static void on_broken(void *user, const char *file, int line, const char *what)
{
    assert_ptr_equal(user, &broken_count);
    assert_string_equal(what, "!job->is_breaking");
    __atomic_add_fetch(&broken_count, 1, __ATOMIC_SEQ_CST);
}

ENV_TEST(test_a_broken_assertion_ends_one_work_only)
{
    struct job jobs[WORKS];

    broken_count = 0;
    work_threads_on_broken(env->pool, on_broken, &broken_count);
    submit_all(env, jobs, true);
    assert_int_equal(broken_count, WORKS / 2);
}

ENV_TEST(test_free_waits_for_what_is_queued)
{
    struct work_pool *pool = NULL;
    struct job jobs[WORKS];

    done_count = 0;
    assert_int_equal(work_threads_new(env->loop, 3, "a-very-long-name-for-a-thread", &pool, NULL),
                     0);
    for (size_t i = 0; i < WORKS; i++) {
        jobs[i] = (struct job){.work = {.run = run_job, .done = job_done}, .env = env};
        work_submit(pool, &jobs[i].work);
    }
    work_threads_free(pool);
    for (size_t i = 0; i < WORKS; i++) {
        assert_int_equal(jobs[i].runs, 1);
        assert_int_equal(jobs[i].dones, 0);
    }
    env_run(env); /* the posts are still there */
    assert_int_equal(done_count, WORKS);
    work_threads_free(NULL);
}

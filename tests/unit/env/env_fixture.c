/* SPDX-License-Identifier: Apache-2.0
 *
 * See env_fixture.h.
 */
#include "env_fixture.h"

#include <ftw.h>
#include <stdio.h>
#include <unistd.h>

enum { GUARD_MS = 10000 };

static void on_guard(struct timer *timer)
{
    struct env *env = container_of(timer, struct env, guard);

    env->is_too_late = true;
    env_stop(env);
}

static void setup_real(struct env *env)
{
    snprintf(env->path, sizeof env->path, "/tmp/cairn-env-XXXXXX");
    assert_non_null(mkdtemp(env->path));
    assert_int_equal(loop_uv_new(&env->loop, NULL), 0);
    assert_int_equal(net_uv_new(env->loop, &env->net, NULL), 0);
    assert_int_equal(work_threads_new(env->loop, 2, "test", &env->pool, NULL), 0);
    env->vfs = vfs_posix();
}

int env_setup(void **state)
{
    struct env *env = calloc(1, sizeof *env);
    uint64_t seed = (uintptr_t)*state;

    assert_non_null(env);
    env->is_sim = seed != 0;
    if (env->is_sim) {
        env->sim = sim_new(seed);
        env->host = sim_host_new(env->sim, "host", NULL);
        env->loop = sim_loop(env->host);
        env->net = sim_net(env->host);
        env->pool = sim_pool(env->host);
        env->vfs = sim_vfs(env->host);
        snprintf(env->path, sizeof env->path, "/store");
    } else {
        setup_real(env);
    }
    assert_int_equal(env->vfs->ops->open_root(env->vfs, env->path, &env->dir, NULL), 0);
    timer_init(&env->guard, env->loop, on_guard);
    *state = env;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
    return remove(path);
}

int env_teardown(void **state)
{
    struct env *env = *state;

    assert_int_equal(env->vfs->ops->close(env->vfs, env->dir, NULL), 0);
    if (env->is_sim) {
        sim_run_for(env->sim, 1000);
        assert_int_equal(sim_open_socks(env->host), 0);
        assert_int_equal(sim_open_files(env->host), 0);
        assert_int_equal(sim_open_works(env->host), 0);
        sim_free(env->sim);
    } else {
        work_threads_free(env->pool);
        net_uv_free(env->net);
        loop_uv_free(env->loop);
        assert_int_equal(nftw(env->path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
    }
    free(env);
    return 0;
}

void env_run(struct env *env)
{
    env->is_stopped = false;
    timer_start(&env->guard, GUARD_MS);
    if (env->is_sim) {
        sim_await(env->sim, &env->is_stopped, GUARD_MS + 1);
    } else {
        loop_uv_run(env->loop);
    }
    timer_stop(&env->guard);
    assert_false(env->is_too_late);
}

void env_stop(struct env *env)
{
    env->is_stopped = true;
    if (!env->is_sim) {
        loop_uv_stop(env->loop);
    }
}

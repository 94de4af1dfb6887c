/* SPDX-License-Identifier: Apache-2.0
 *
 * One fixture for the tests that hold for both forms of env: the libuv / POSIX one and the
 * simulated one.
 */
#ifndef CAIRN_TEST_ENV_FIXTURE_H
#define CAIRN_TEST_ENV_FIXTURE_H

#include "env/loop.h"
#include "env/net.h"
#include "env/vfs.h"
#include "env/work.h"
#include "sim/env/sim.h"
#include "support/unit_test.h"

struct env {
    bool is_sim;
    struct loop *loop;
    struct net *net;
    struct work_pool *pool;
    struct vfs *vfs;
    vfs_fd dir; /* an empty directory */
    struct sim *sim;
    struct sim_host *host;
    struct timer guard;
    bool is_stopped, is_too_late;
    char path[64]; /* of dir, real form */
};

/* The initial *state is the seed as a pointer; 0 is the real form. */
int env_setup(void **state);
int env_teardown(void **state);
/* Runs the loop until env_stop(); fails the test after 10 seconds. */
void env_run(struct env *env);
void env_stop(struct env *env);

/* A test of the real form only, and one of the real form and of three seeds of the simulated one.
 */
#define ENV_TEST(name)                    \
    UNIT_TEST_BODY(name, struct env *env) \
    ENV_ROW(name, 0)                      \
    static void name(struct env *env)
#define ENV_TESTS(name)                   \
    UNIT_TEST_BODY(name, struct env *env) \
    ENV_ROW(name, 0)                      \
    ENV_ROW(name, 1)                      \
    ENV_ROW(name, 2)                      \
    ENV_ROW(name, 3)                      \
    static void name(struct env *env)
#define ENV_ROW(name, seed)                                                                \
    UNIT_TEST_ROW(name##_##seed, #name "(" #seed ")", name##_run, env_setup, env_teardown, \
                  (void *)(uintptr_t)(seed))

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a daemon's own policies forget what they say; a wall clock that was set, back or forward,
 * costs a round and no checkpoint; what a monitor is told of it is so. Method: rounds of an hour on
 * the simulated clock.
 */
#include "run_rig.h"

#include "run/run_counts.h"
#include "run/run_retain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HOUR_MS = 3600 * 1000, SAVES = 5 };
static const int64_t day_ns = INT64_C(86400000000000);

struct told {
    unsigned rounds_left_out;
    size_t forgotten;
    int status;
};

static void on_report(void *user, const struct run_name *run, int status, const struct diag *diag,
                      size_t forgotten)
{
    struct told *told = user;
    told->rounds_left_out += run == NULL;
    told->forgotten += forgotten;
    told->status = status;
    if (!run) {
        assert_non_null(strstr(diag->text, "the wall clock jumped"));
    }
}

struct listed {
    struct run_snapshot_req req;
    size_t count;
    bool done, has_newest;
};

static void on_state(struct run_snapshot_req *req)
{
    struct listed *listed = container_of(req, struct listed, req);
    assert_int_equal(req->status, 0);
    for (size_t i = 0; i < req->state->commit_count; i++) {
        const struct state_commit *commit = &req->state->commits[i];
        listed->count += !commit->forgotten;
        listed->has_newest =
            listed->has_newest || (!commit->forgotten && commit->entry.id.step == SAVES);
    }
    listed->done = true;
}

static struct listed look(struct rig *rig)
{
    struct listed listed = {.req = {.done = on_state}};
    run_snapshot(rig->run, &listed.req);
    rig_until(rig, &listed.done);
    return listed;
}

/* Each save sets the clock a day further back: by wall time the first is the newest. */
static void save_all(struct rig *rig)
{
    struct rank_list lists[2];
    rig_two_ranks(lists);
    for (uint64_t step = 1; step <= SAVES; step++) {
        sim_host_set_wall(rig->host, -(int64_t)step * day_ns);
        rig_save(rig, step, 2, lists);
    }
}

static void test_a_clock_that_was_set(void **state)
{
    static const struct retain_table table = {
        .count = 1, .rows = {{.option_count = 1, .options = {{"keep-last", "2"}}}}};
    struct rig rig = {.seed = 3};
    struct told told = {0};
    struct retain *retain = NULL;
    struct retain_status status;
    (void)state;
    rig_init(&rig);
    rig_start(&rig);
    save_all(&rig);
    struct retain_options options = {.loop = sim_loop(rig.host),
                                     .catalog = rig.catalog,
                                     .table = &table,
                                     .interval_ms = HOUR_MS,
                                     .report = on_report,
                                     .user = &told};
    assert_int_equal(retain_new(&options, &retain), 0);
    sim_host_set_wall(rig.host, -30 * 365 * day_ns);
    sim_run_for(rig.sim, HOUR_MS / 2);
    assert_int_equal(told.rounds_left_out, 1);
    assert_int_equal(look(&rig).count, SAVES);
    retain_status(retain, &status);
    assert_int_equal(status.errors, 1);
    assert_int_equal(status.good_wall_ns, 0);
    sim_run_for(rig.sim, HOUR_MS);
    struct listed listed = look(&rig);
    assert_int_equal(told.status, 0);
    assert_int_equal(told.forgotten, SAVES - 2);
    assert_int_equal(listed.count, 2);
    assert_true(listed.has_newest); /* by the order of the commits, not by the clock */
    retain_status(retain, &status);
    assert_int_equal(status.rounds, 1);
    assert_int_equal(status.errors, 1);
    assert_int_not_equal(status.good_wall_ns, 0);
    assert_int_equal(catalog_counts(rig.catalog)->forgotten, SAVES - 2);
    retain_free(retain);
    rig_fini(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_clock_that_was_set)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

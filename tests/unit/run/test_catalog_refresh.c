/* SPDX-License-Identifier: Apache-2.0
 *
 * A catalogue finds the runs that another daemon of a shared store has made: at once when somebody
 * asks, and by itself after a while. It does so once its start-up has read all records.
 */
#include "run_rig.h"

#include "support/unit_test.h"

static void setup(struct rig *rig)
{
    rig_init(rig);
    rig->options.poll_ms = 50;
    rig_start(rig);
}

static size_t names_of(struct catalog *catalog)
{
    struct run_name *names = NULL;
    size_t count = 99;
    assert_int_equal(catalog_names(catalog, &names, &count), 0);
    free(names);
    return count;
}

struct refresh_call {
    struct catalog_refresh refresh;
    bool done;
    int status;
};

static void on_refreshed(struct catalog_refresh *refresh)
{
    struct refresh_call *call = container_of(refresh, struct refresh_call, refresh);
    call->done = true;
    call->status = refresh->status;
}

static int refresh_result(struct rig *rig, struct catalog *catalog)
{
    struct refresh_call call = {.refresh.done = on_refreshed};
    catalog_refresh(catalog, &call.refresh);
    assert_false(call.done); /* never inside the call */
    rig_until(rig, &call.done);
    return call.status;
}

static void save(struct rig *rig, uint64_t step)
{
    assert_int_equal(rig_save(rig, step, 2, rig->lists).step, step);
}

#define REFRESH_TEST(name) FIXTURE_TEST(name, setup, rig_fini, struct rig, rig)

REFRESH_TEST(a_refresh_finds_what_another_daemon_made)
{
    struct catalog *other = rig_catalog_new(rig);
    save(rig, 10);
    assert_int_equal(names_of(other), 0); /* it began before there was a run */
    assert_int_equal(refresh_result(rig, other), 0);
    assert_int_equal(names_of(other), 1);
    rig_catalog_close(rig, other);
}

REFRESH_TEST(it_is_found_after_a_while)
{
    struct catalog *other = rig_catalog_new(rig);
    save(rig, 10);
    sim_run_for(rig->sim, 6000);
    assert_int_equal(names_of(other), 1);
    rig_catalog_close(rig, other);
}

REFRESH_TEST(a_store_that_does_not_answer_is_named)
{
    struct store_fault_rule fails = {
        .kind = FAULT_FAIL, .op = STORE_LIST_RUNS, .count = 1, .code = CAIRN_E_IO};
    assert_int_equal(store_fault_add(rig->store, &fails), 0);
    assert_int_equal(refresh_result(rig, rig->catalog), CAIRN_E_IO);
    assert_int_equal(refresh_result(rig, rig->catalog), 0);
}

/* A refresh that nobody waits for any more, and one that the end of the catalogue meets. */
REFRESH_TEST(given_up_and_closed)
{
    struct catalog *other = rig_catalog_new(rig);
    struct refresh_call given_up = {.refresh.done = on_refreshed},
                        late = {.refresh.done = on_refreshed};
    catalog_refresh(other, &given_up.refresh);
    catalog_refresh_cancel(&given_up.refresh);
    catalog_refresh(other, &late.refresh);
    rig_catalog_close(rig, other);
    assert_false(given_up.done);
    assert_true(late.done);
    assert_int_equal(late.status, CAIRN_E_SHUTTING_DOWN);
}

struct reading {
    struct run_snapshot_req req;
    bool done;
};

static void on_read(struct run_snapshot_req *req)
{
    container_of(req, struct reading, req)->done = true;
}

/* Trainers connect again as soon as the daemon is back, before its start-up has come to their run.
 */
REFRESH_TEST(a_session_may_come_before_the_start_up)
{
    struct store_fault_rule late = {
        .kind = FAULT_DELAY, .op = STORE_LIST_RUNS, .count = 1, .delay_ms = 1000};
    save(rig, 10);
    rig_stop(rig);
    assert_int_equal(store_fault_add(rig->store, &late), 0);
    rig->ready = false;
    assert_int_equal(catalog_new(sim_loop(rig->host), rig->store, &rig->options, &rig->catalog), 0);
    struct reading reading = {.req.done = on_read};
    rig->run = catalog_run(rig->catalog, &rig->name);
    run_snapshot(rig->run, &reading.req);
    rig_until(rig, &reading.done);
    assert_false(rig->ready);
    rig_until(rig, &rig->ready);
    assert_int_equal(refresh_result(rig, rig->catalog), 0); /* waits for the start-up to end */
}

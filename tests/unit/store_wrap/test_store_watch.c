/* SPDX-License-Identifier: Apache-2.0
 *
 * A store that refuses is reported as unhealthy, with the name of its error, within seconds, also
 * if nobody uses it. It is reported as healthy again when it works again, and not before. An answer
 * about the requested thing itself, such as NOT_FOUND, does not make the store unhealthy.
 */
#include "support/store_fault.h"
#include "support/store_memory.h"

#include "base/check.h"
#include "sim/env/sim.h"
#include "support/unit_test.h"

struct bench {
    struct sim *sim;
    struct sim_host *host;
    struct store *fault, *store;
    unsigned turned_ill, turned_well;
    bool closed;
};

static void on_changed(void *user, bool is_ill, const struct diag *refusal)
{
    struct bench *bench = user;
    bench->turned_ill += is_ill;
    bench->turned_well += !is_ill;
    assert_true(refusal->code < 0);
}

static void setup(struct bench *bench)
{
    struct store *memory;
    bench->sim = sim_new(11);
    bench->host = sim_host_new(bench->sim, "server", NULL);
    struct loop *loop = sim_loop(bench->host);
    struct store_watch_options options = {.changed = on_changed, .user = bench};
    assert_int_equal(store_memory_new(loop, sim_pool(bench->host), NULL, &memory, NULL), 0);
    assert_int_equal(store_fault_new(loop, memory, &bench->fault), 0);
    assert_int_equal(store_watch_new(loop, bench->fault, &options, &bench->store), 0);
}

static void teardown(struct bench *bench)
{
    err_ignore((int)store_fault_release(bench->fault)); /* what a test has held */
    store_close(bench->store, sim_raise, &bench->closed);
    assert_true(sim_await(bench->sim, &bench->closed, 60000));
    sim_free(bench->sim);
}

static struct store_state look(const struct bench *bench)
{
    struct store_state state;
    store_watch_state(bench->store, &state);
    return state;
}

static void refuse(struct bench *bench, enum store_op op, int code, unsigned count)
{
    struct store_fault_rule rule = {.kind = FAULT_FAIL, .op = op, .code = code, .count = count};
    assert_int_equal(store_fault_add(bench->fault, &rule), 0);
}

struct asked {
    struct store_req req;
    bool done;
};
static void on_done(struct store_req *req) { container_of(req, struct asked, req)->done = true; }

static int ask(struct bench *bench, enum store_op op)
{
    struct asked asked = {.req = {.op = op, .bytes = 4096, .done = on_done}};
    memcpy(asked.req.run.project, "demo", 5);
    memcpy(asked.req.run.run, "run", 4);
    asked.req.object = (struct object_id){.term = 1, .step = 1, .writer = 7};
    store_submit(bench->store, &asked.req);
    assert_true(sim_await(bench->sim, &asked.done, 60000));
    return asked.req.status;
}

#define BENCH_TEST(name) FIXTURE_TEST(name, setup, teardown, struct bench, bench)

BENCH_TEST(test_a_store_that_nobody_uses_is_found_ill_and_well_again)
{
    sim_run_for(bench->sim, 30000);
    assert_int_equal(look(bench).word, STORE_WELL);
    refuse(bench, STORE_PROBE, CAIRN_E_DENIED, 1000);
    sim_run_for(bench->sim, 13000);
    struct store_state ill = look(bench);
    assert_int_equal(ill.word, STORE_REFUSING);
    assert_int_equal(ill.refusal.code, CAIRN_E_DENIED);
    assert_true(ill.since_ms > 0 && ill.since_ms <= 13000);
    store_fault_clear(bench->fault);
    sim_run_for(bench->sim, 3000);
    assert_int_equal(look(bench).word, STORE_RECOVERED);
    assert_int_equal(look(bench).refusal.code, CAIRN_E_DENIED);
    sim_run_for(bench->sim, 70000);
    assert_int_equal(look(bench).word, STORE_WELL);
    assert_int_equal(bench->turned_ill, 1);
    assert_int_equal(bench->turned_well, 1);
}

BENCH_TEST(test_one_thing_that_fails_is_not_the_store)
{
    refuse(bench, STORE_CREATE, CAIRN_E_TIMED_OUT, 1);
    assert_int_equal(ask(bench, STORE_CREATE), CAIRN_E_TIMED_OUT);
    assert_int_equal(look(bench).word, STORE_REFUSING); /* until a probe has said otherwise */
    sim_run_for(bench->sim, 1000);
    assert_int_equal(look(bench).word, STORE_RECOVERED);
}

BENCH_TEST(test_a_full_store_is_full_until_something_fits)
{
    refuse(bench, STORE_CREATE, CAIRN_E_NO_SPACE, 1);
    assert_int_equal(ask(bench, STORE_CREATE), CAIRN_E_NO_SPACE);
    sim_run_for(bench->sim, 60000); /* small probes fit, and prove nothing */
    assert_int_equal(look(bench).word, STORE_REFUSING);
    assert_int_equal(look(bench).refusal.code, CAIRN_E_NO_SPACE);
    assert_int_equal(ask(bench, STORE_CREATE), 0);
    assert_int_equal(look(bench).word, STORE_RECOVERED);
    refuse(bench, STORE_CREATE, CAIRN_E_NO_SPACE, 1);
    assert_int_equal(ask(bench, STORE_CREATE), CAIRN_E_NO_SPACE);
    sim_run_for(bench->sim, 310000); /* nobody tries again: it is not believed for ever */
    assert_int_equal(look(bench).word, STORE_RECOVERED);
}

BENCH_TEST(test_answers_are_no_illness)
{
    assert_int_equal(ask(bench, STORE_STAT), CAIRN_E_NOT_FOUND);
    refuse(bench, STORE_STAT, CAIRN_E_DAMAGED, 1);
    assert_int_equal(ask(bench, STORE_STAT), CAIRN_E_DAMAGED);
    assert_int_equal(ask(bench, STORE_CREATE), 0);
    assert_int_equal(ask(bench, STORE_CREATE), CAIRN_E_EXISTS);
    assert_int_equal(look(bench).word, STORE_WELL);
}

BENCH_TEST(test_a_store_that_does_not_answer)
{
    struct store_fault_rule rule = {.kind = FAULT_HOLD, .op = STORE_PROBE};
    sim_run_for(bench->sim, 1000); /* behind the first */
    assert_int_equal(store_fault_add(bench->fault, &rule), 0);
    sim_run_for(bench->sim, 25000);
    assert_int_equal(look(bench).word, STORE_WELL);
    sim_run_for(bench->sim, 10000);
    assert_int_equal(look(bench).word, STORE_REFUSING);
    assert_int_equal(look(bench).refusal.code, CAIRN_E_TIMED_OUT);
    assert_int_equal(store_fault_release(bench->fault), 1);
    sim_run_for(bench->sim, 1000);
    assert_int_equal(look(bench).word, STORE_WELL);
}

BENCH_TEST(test_closing_waits_for_a_probe)
{
    struct store_fault_rule rule = {.kind = FAULT_DELAY, .op = STORE_PROBE, .delay_ms = 5000};
    sim_run_for(bench->sim, 1000); /* behind the first */
    assert_int_equal(store_fault_add(bench->fault, &rule), 0);
    sim_run_for(bench->sim, 11000); /* one is under way; teardown closes */
    assert_int_equal(look(bench).word, STORE_WELL);
}

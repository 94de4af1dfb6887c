/* SPDX-License-Identifier: Apache-2.0
 *
 * Of several daemons on one cluster exactly one holds a duty, and it changes hands when its holder
 * is gone. Method: daemons on one fake cluster.
 */
#include "daemon/duty.h"

#include "base/check.h"
#include "sim/env/sim.h"
#include "store/rados/store_rados.h"
#include "support/cluster_fake.h"
#include "support/store_fault.h"
#include "support/store_memory.h"
#include "support/unit_test.h"

enum { DAEMONS = 3, RENEW_MS = 1000, EXPIRE_MS = 4000 };

struct one { /* a daemon */
    struct sim_host *host;
    struct store *store; /* the fault decorator */
    struct duty duty;
    bool is_ours, stopped;
    unsigned changes;
};

struct bench {
    struct sim *sim;
    struct fake_medium *medium;
    struct one daemons[DAEMONS];
};

static void on_changed(struct duty *duty, bool is_ours)
{
    struct one *one = container_of(duty, struct one, duty);
    assert_int_not_equal(one->is_ours, is_ours); /* told of changes only */
    one->is_ours = is_ours;
    one->changes++;
}

static void on_stopped(struct duty *duty) { container_of(duty, struct one, duty)->stopped = true; }

static void start(struct one *one, const char *label)
{
    struct duty_options options = {.loop = sim_loop(one->host),
                                   .store = one->store,
                                   .name = "gc",
                                   .label = label,
                                   .renew_ms = RENEW_MS,
                                   .expire_ms = EXPIRE_MS,
                                   .changed = on_changed};
    duty_init(&one->duty, &options);
    duty_start(&one->duty);
}

static void stop(struct bench *bench, struct one *one)
{
    duty_stop(&one->duty, on_stopped);
    assert_false(one->stopped); /* never inside the call */
    assert_true(sim_await(bench->sim, &one->stopped, 60000));
}

static void setup(struct bench *bench)
{
    bench->sim = sim_new(7);
    bench->medium = fake_medium_new();
    for (size_t i = 0; i < DAEMONS; i++) {
        struct one *one = &bench->daemons[i];
        struct diag diag = DIAG_INIT;
        one->host = sim_host_new(bench->sim, "server", NULL);
        struct store_rados_options options = {.loop = sim_loop(one->host),
                                              .pool = sim_pool(one->host),
                                              .cluster = fake_cluster_new(bench->medium),
                                              .create = true};
        struct store *store;
        assert_int_equal(store_rados_new(&options, &store, &diag), 0);
        assert_int_equal(store_fault_new(sim_loop(one->host), store, &one->store), 0);
    }
}

static void teardown(struct bench *bench)
{
    for (size_t i = 0; i < DAEMONS; i++) {
        bool closed = false;
        store_close(bench->daemons[i].store, sim_raise, &closed);
        assert_true(sim_await(bench->sim, &closed, 60000));
    }
    fake_medium_free(bench->medium);
    sim_free(bench->sim);
}

/* How many believe to hold it now. */
static unsigned believers(const struct bench *bench)
{
    unsigned count = 0;
    for (size_t i = 0; i < DAEMONS; i++) {
        count += duty_is_ours(&bench->daemons[i].duty);
    }
    return count;
}

static void run_watched(struct bench *bench, uint64_t ms)
{
    for (uint64_t i = 0; i < ms / 10; i++) {
        sim_run_for(bench->sim, 10);
        assert_true(believers(bench) <= 1);
    }
}

static void fail_all_ops(struct one *one)
{
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .any_op = true, .count = 100000, .code = CAIRN_E_IO};
    assert_int_equal(store_fault_add(one->store, &rule), 0);
}

#define BENCH_TEST(name) FIXTURE_TEST(name, setup, teardown, struct bench, bench)

/* Goal: of three that start at once, one has it, keeps it, and the others know whose it is. */
BENCH_TEST(one_of_three_has_it)
{
    struct one *all = bench->daemons;
    start(&all[0], "a");
    start(&all[1], "b");
    start(&all[2], "c");
    run_watched(bench, 20 * RENEW_MS);
    assert_int_equal(believers(bench), 1);
    unsigned changes = 0;
    const char *holder = duty_holder(&all[0].duty);
    for (size_t i = 0; i < DAEMONS; i++) {
        changes += all[i].changes;
        assert_string_equal(duty_holder(&all[i].duty), holder);
    }
    assert_int_equal(changes, 1);
    for (size_t i = 0; i < DAEMONS; i++) {
        stop(bench, &all[i]);
    }
}

/* Goal: given back, it is taken at the next reading, not after the expiry. */
BENCH_TEST(given_back_it_is_taken_at_once)
{
    struct one *a = &bench->daemons[0], *b = &bench->daemons[1];
    start(a, "a");
    run_watched(bench, 500);
    assert_true(a->is_ours);
    start(b, "b");
    run_watched(bench, 2 * RENEW_MS);
    assert_false(b->is_ours);
    stop(bench, a);
    assert_false(duty_is_ours(&a->duty));
    run_watched(bench, RENEW_MS + 200);
    assert_true(b->is_ours);
    stop(bench, b);
}

/* Goal: who cannot renew stops believing before anybody else takes over, and that happens. */
BENCH_TEST(one_that_is_cut_off_loses_it)
{
    struct one *a = &bench->daemons[0], *b = &bench->daemons[1];
    start(a, "a");
    run_watched(bench, 3 * RENEW_MS);
    start(b, "b");
    run_watched(bench, RENEW_MS);
    assert_true(duty_is_ours(&a->duty));
    fail_all_ops(a);
    run_watched(bench, EXPIRE_MS - RENEW_MS + 100);
    assert_false(duty_is_ours(&a->duty)); /* nobody's for a while: that is the margin */
    assert_false(a->is_ours);
    run_watched(bench, 2 * RENEW_MS + 100);
    assert_true(b->is_ours);
    store_fault_clear(a->store); /* back again: it waits its turn */
    run_watched(bench, 10 * RENEW_MS);
    assert_false(a->is_ours);
    assert_true(b->is_ours);
    stop(bench, a);
    stop(bench, b);
}

/* Goal: a renewal that lands after another has taken over changes nothing. */
BENCH_TEST(a_late_renewal_takes_nothing_back)
{
    struct one *a = &bench->daemons[0], *b = &bench->daemons[1];
    start(a, "a");
    run_watched(bench, 500);
    start(b, "b");
    struct store_fault_rule late = {.kind = FAULT_HOLD, .op = STORE_RECORD_UPDATE, .count = 1};
    assert_int_equal(store_fault_add(a->store, &late), 0);
    run_watched(bench, 2 * EXPIRE_MS);
    assert_true(b->is_ours);
    assert_false(a->is_ours);
    assert_int_equal(store_fault_release(a->store), 1);
    run_watched(bench, 5 * RENEW_MS);
    assert_true(b->is_ours);
    assert_false(a->is_ours);
    stop(bench, b);
    run_watched(bench, 2 * RENEW_MS);
    assert_true(a->is_ours);
    stop(bench, a);
}

/* Goal: an update whose outcome nobody knows neither hands it to two nor loses it for good. */
BENCH_TEST(unknown_outcomes_are_read_again)
{
    struct one *a = &bench->daemons[0], *b = &bench->daemons[1];
    struct store_fault_rule lost = {.kind = FAULT_LOST, .op = STORE_RECORD_UPDATE, .count = 2};
    assert_int_equal(store_fault_add(a->store, &lost), 0);
    start(a, "a");
    run_watched(bench, 200);
    start(b, "b");
    run_watched(bench, 5 * RENEW_MS);
    assert_int_equal(believers(bench), 1);
    assert_true(a->is_ours); /* its first update is there, though it was not told */
    stop(bench, a);
    run_watched(bench, 2 * RENEW_MS);
    assert_true(b->is_ours);
    stop(bench, b);
}

/* Goal: a store that is one daemon's makes no entry and no traffic. */
BENCH_TEST(alone_it_is_ours)
{
    struct one *a = &bench->daemons[0];
    struct store *cluster = a->store;
    assert_int_equal(store_memory_new(sim_loop(a->host), sim_pool(a->host), NULL, &a->store, NULL),
                     0);
    assert_int_equal(store_fault_new(sim_loop(a->host), a->store, &a->store), 0);
    start(a, "a");
    sim_run_for(bench->sim, 50000);
    assert_true(a->is_ours);
    assert_true(duty_is_ours(&a->duty));
    stop(bench, a);
    assert_int_equal(store_fault_seen(a->store), 0);
    bool closed = false;
    store_close(a->store, sim_raise, &closed);
    assert_true(sim_await(bench->sim, &closed, 60000));
    a->store = cluster;
}

struct readings {
    struct duty *drops; /* the one that removes "duty/old" */
    unsigned count;
    bool seen_old;
};
static struct readings readings;

static void note_record(struct duty *duty, const struct record *record)
{
    struct record_value value;
    struct duty_entry entry;
    readings.count++;
    readings.seen_old = record_get(record, "duty/old", &value);
    if (readings.seen_old) {
        assert_true(duty_read(&value, &entry));
        assert_string_equal(entry.label, "gone:1 tcp:h:1");
        readings.drops = duty;
        duty_drop(duty, "duty/old", &value);
    }
}

/* Goal: a daemon sees the entries of others at each reading, and removes one of a daemon that is
 * gone. Method: the gone one is frozen, its entry stays. */
BENCH_TEST(an_entry_of_a_daemon_that_is_gone_is_removed)
{
    struct one *gone = &bench->daemons[0], *here = &bench->daemons[1];
    readings = (struct readings){0};
    struct duty_options options = {.loop = sim_loop(gone->host),
                                   .store = gone->store,
                                   .name = "old",
                                   .label = "gone:1 tcp:h:1",
                                   .renew_ms = RENEW_MS,
                                   .changed = on_changed};
    duty_init(&gone->duty, &options);
    duty_start(&gone->duty);
    sim_run_for(bench->sim, 100);
    options.loop = sim_loop(here->host);
    options.store = here->store;
    options.name = "new";
    options.on_record = note_record;
    timer_stop(&gone->duty.timer);
    duty_init(&here->duty, &options);
    duty_start(&here->duty);
    sim_run_for(bench->sim, 3 * RENEW_MS);
    assert_true(readings.drops == &here->duty);
    assert_true(readings.count >= 2);
    assert_false(readings.seen_old);
    assert_true(duty_is_ours(&here->duty));
    stop(bench, here);
    stop(bench, gone);
}

/* A value that is not a valid entry is refused. */
TEST(entries_are_checked)
{
    uint8_t bytes[DUTY_VALUE_MAX + 1] = {1};
    struct duty_entry entry;
    assert_false(duty_read(&(struct record_value){15, bytes}, &entry));
    assert_false(duty_read(&(struct record_value){sizeof(bytes), bytes}, &entry));
    assert_true(duty_read(&(struct record_value){16, bytes}, &entry));
    assert_true(entry.holder == 1 && entry.label[0] == '\0');
    memset(bytes, 'x', sizeof(bytes));
    assert_true(duty_read(&(struct record_value){DUTY_VALUE_MAX, bytes}, &entry));
    assert_int_equal(strlen(entry.label), DUTY_LABEL_MAX);
}

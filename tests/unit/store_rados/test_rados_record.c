/* SPDX-License-Identifier: Apache-2.0
 *
 * The guarded update happens once or not at all, and whoever asked knows which (R5, R9), with
 * several daemons on one cluster that loses answers, loses operations, and carries some out long
 * after it has said that they timed out. Method: a counter that is only ever raised under a guard
 * on its value; every update that was answered with success is counted.
 */
#include "store/store_bed.h"

#include "base/check.h"

#include <stdio.h>

enum { DAEMONS = 3 };

struct daemons {
    struct bed beds[DAEMONS];
};

static void daemons_open(struct daemons *daemons)
{
    for (size_t i = 0; i < DAEMONS; i++) {
        bed_init(&daemons->beds[i], BED_RADOS, "", 1);
        if (i > 0) {
            fake_medium_free(daemons->beds[i].cluster);
            daemons->beds[i].cluster = daemons->beds[0].cluster;
        }
        bed_open_ok(&daemons->beds[i]);
    }
}

static void daemons_close(struct daemons *daemons)
{
    for (size_t i = DAEMONS; i-- > 0;) {
        struct fake_medium *medium = daemons->beds[0].cluster;
        bed_close(&daemons->beds[i]);
        daemons->beds[i].cluster = i > 0 ? NULL : medium;
        bed_fini(&daemons->beds[i]);
    }
}

#define DAEMONS_TEST(name) FIXTURE_TEST(name, daemons_open, daemons_close, struct daemons, daemons)

static unsigned counter_of(struct bed *bed)
{
    struct record *record;
    struct record_value value;
    char text[16] = "0";
    assert_int_equal(bed_record(bed, &record), 0);
    if (record_get(record, "counter", &value)) {
        assert_in_range(value.bytes, 1, sizeof(text) - 1);
        memcpy(text, value.data, value.bytes);
        text[value.bytes] = 0;
    }
    record_free(record);
    return (unsigned)strtoul(text, NULL, 10);
}

static int raise_counter(struct bed *bed, unsigned from)
{
    char was[16], will[16];
    snprintf(was, sizeof(was), "%u", from);
    snprintf(will, sizeof(will), "%u", from + 1);
    struct bed_change change = {"counter", will, true, from == 0 ? NULL : was};
    return bed_update(bed, &change, NULL);
}

/* Goal: a thousand races for the same transition, one winner each. */
DAEMONS_TEST(a_race_has_one_winner)
{
    for (unsigned round = 0; round < 1000; round++) {
        unsigned winners = 0;
        for (size_t i = 0; i < DAEMONS; i++) {
            int rc = raise_counter(&daemons->beds[(i + round) % DAEMONS], round);
            assert_true(rc == 0 || rc == CAIRN_E_CONFLICT);
            winners += rc == 0;
        }
        assert_int_equal(winners, 1);
    }
    assert_int_equal(counter_of(&daemons->beds[0]), 1000);
}

static void one_bad_cluster(uint64_t seed)
{
    struct daemons daemons;
    unsigned made = 0, unknown = 0, known = 0;
    const struct fake_plan plan = {
        .seed = seed,
        .percent = {[FAKE_LOST] = 8, [FAKE_UNANSWERED] = 8, [FAKE_LATE] = 12},
        .later_max = 40};
    daemons_open(&daemons);
    fake_medium_plan(daemons.beds[0].cluster, &plan);
    for (unsigned i = 0; i < 300; i++) {
        struct bed *bed = &daemons.beds[(i * 7 + seed) % DAEMONS];
        int rc = raise_counter(bed, known);
        made += rc == 0;
        unknown += rc == CAIRN_E_OUTCOME_UNKNOWN;
        /* TIMED_OUT: for certain not made */
        assert_true(rc == 0 || rc == CAIRN_E_CONFLICT || rc == CAIRN_E_OUTCOME_UNKNOWN ||
                    rc == CAIRN_E_TIMED_OUT);
        unsigned now = counter_of(bed);
        assert_in_range(now, made, made + unknown);
        assert_true(now >= known); /* never back */
        known = now;
    }
    fake_medium_plan(daemons.beds[0].cluster, NULL);
    fake_medium_settle(daemons.beds[0].cluster);
    for (size_t i = 0; i < DAEMONS; i++) {
        assert_in_range(counter_of(&daemons.beds[i]), made, made + unknown);
        assert_int_equal(counter_of(&daemons.beds[i]), counter_of(&daemons.beds[0]));
    }
    assert_true(made > 200); /* it gets on all the same */
    daemons_close(&daemons);
}

/* Goal: what was answered is what happened, whatever the cluster loses, hides or does late. */
TEST(answers_are_true_on_a_bad_cluster)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        one_bad_cluster(seed);
    }
}

/* Goal: after "not made" the late operation finds its version taken. */
DAEMONS_TEST(a_late_update_finds_the_door_shut)
{
    const struct fake_plan late = {.seed = 1, .percent = {[FAKE_LATE] = 100}, .later_max = 1000};
    struct bed *a = &daemons->beds[0], *b = &daemons->beds[1];
    assert_int_equal(raise_counter(a, 0), 0);
    assert_int_equal(counter_of(b), 1);
    fake_medium_plan(a->cluster, &late);
    assert_int_equal(raise_counter(a, 1), CAIRN_E_OUTCOME_UNKNOWN); /* its fences are late too */
    fake_medium_plan(a->cluster, NULL);
    assert_int_equal(raise_counter(b, 1), 0); /* somebody else takes the version */
    fake_medium_settle(a->cluster);
    assert_int_equal(counter_of(a), 2);
    assert_int_equal(counter_of(b), 2);
    assert_int_equal(fake_medium_landed_late(a->cluster), 0);
}

/* Goal: a daemon that slept reads what it missed, by the log or, beyond it, from the map. */
DAEMONS_TEST(a_daemon_that_slept_catches_up)
{
    assert_int_equal(counter_of(&daemons->beds[1]), 0);
    unsigned at = 0;
    for (unsigned missed = 1; missed <= 400; missed = missed * 3 + 1) {
        for (unsigned i = 0; i < missed; i++, at++) {
            assert_int_equal(raise_counter(&daemons->beds[0], at), 0);
        }
        assert_int_equal(counter_of(&daemons->beds[1]), at);
        assert_int_equal(bed_version(&daemons->beds[1]), at);
    }
}

/* Goal: the cost: one round trip for an update, one for a look, when nobody interferes. */
DAEMONS_TEST(round_trips_are_few)
{
    struct bed *bed = &daemons->beds[0];
    assert_int_equal(raise_counter(bed, 0), 0);
    uint64_t before = fake_medium_calls(bed->cluster);
    assert_int_equal(raise_counter(bed, 1), 0);
    assert_int_equal(fake_medium_calls(bed->cluster) - before, 1);
    assert_int_equal(counter_of(bed), 2);
    assert_int_equal(fake_medium_calls(bed->cluster) - before, 2);
}

static int make_run(struct bed *bed, const char *project, const char *run, struct diag *diag)
{
    struct record_change change = {.key = "counter", .value = {1, (const uint8_t *)"1"}};
    struct record_guard guard = {.key = "counter", .absent = true};
    struct record_update update = {
        .guard_count = 1, .guards = &guard, .change_count = 1, .changes = &change};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .update = &update};
    assert_int_equal(run_name_set(project, run, &req.run, NULL), 0);
    int status = bed_do(bed, &req);
    *diag = req.diag;
    return status;
}

/* Goal: of daemons that make one new run in several spellings one wins, and the others' error names
 * its spelling; what is not the same name is not in the way. */
DAEMONS_TEST(a_name_has_one_spelling)
{
    struct diag why;
    struct bed *beds = daemons->beds;
    assert_int_equal(make_run(&beds[0], "demo", "Bert", &why), 0);
    for (unsigned i = 0; i < DAEMONS; i++) {
        assert_int_equal(make_run(&beds[i], "demo", "bert", &why), CAIRN_E_INVALID);
        assert_non_null(
            strstr(why.text, "demo/bert cannot be made, because the store has demo/Bert"));
        assert_int_equal(make_run(&beds[i], "DEMO", "x", &why), CAIRN_E_INVALID);
        assert_non_null(strstr(why.text, "DEMO cannot be made, because the store has demo:"));
    }
    assert_int_equal(make_run(&beds[1], "demo", "Bert", &why), CAIRN_E_CONFLICT);
    assert_int_equal(make_run(&beds[2], "demo", "bert2", &why), 0);
    struct store_req list = {.op = STORE_LIST_RUNS};
    assert_int_equal(bed_do(&beds[1], &list), 0);
    assert_int_equal(list.ret_count, 2);
    assert_string_equal(list.ret_runs[0].run, "Bert");
    assert_string_equal(list.ret_runs[1].run, "bert2");
    free(list.ret_runs);
}

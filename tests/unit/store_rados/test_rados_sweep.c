/* SPDX-License-Identifier: Apache-2.0
 *
 * What dead daemons leave behind on a cluster is found and removed, with nothing that is sealed,
 * whatever was lost, unanswered or late; what was given up is never sealed; and closing on a
 * cluster that is silent does not wait for each open object.
 */
#include "store/store_bed.h"

static size_t sweep(struct bed *bed, uint64_t step)
{
    struct store_req req = {.op = STORE_SWEEP, .run = bed_run(), .id = {1, step}};
    assert_int_equal(bed_do(bed, &req), 0);
    return req.ret_count;
}

static void sweep_all(struct bed *bed, uint64_t step)
{
    unsigned times = 0;
    while (sweep(bed, step) > 0) {
        assert_in_range(++times, 1, 3);
    }
}

/* The daemon dies: nothing that it does when it closes reaches the cluster. */
static void die(struct bed *bed)
{
    const struct fake_plan silent = {.seed = 1, .percent = {[FAKE_LOST] = 100}};
    fake_medium_plan(bed->cluster, &silent);
    bed_close(bed);
    fake_medium_plan(bed->cluster, NULL);
    fake_medium_settle(bed->cluster);
    bed_open_ok(bed);
}

/* Of a store whose list of checkpoints names step 5, and that holds nothing else. */
static size_t objects_of_nothing(struct bed *bed)
{
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1000), 4096, 1), 0);
    assert_int_equal(bed_delete(bed, bed_object(5, 0, 1000)), 0);
    assert_int_equal(sweep(bed, 5), 0);
    return fake_medium_objects(bed->cluster);
}

#define BED_TEST(name) FIXTURE_TEST(name, bed_setup_rados, bed_fini, struct bed, bed)

BED_TEST(what_a_dead_daemon_left_is_removed)
{
    size_t before = objects_of_nothing(bed);
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), 8192, 1), 0);
    size_t sealed = fake_medium_objects(bed->cluster);
    struct object_id many = bed_object(5, 0, 2), few = bed_object(5, 17, 3);
    assert_int_equal(bed_create(bed, many, MIB(4)), 0);
    for (unsigned i = 0; i < 200; i++) { /* more pieces than an object may have at first */
        assert_int_equal(bed_write(bed, many, i * 4096, 4096, i), 0);
    }
    assert_int_equal(bed_create(bed, few, MIB(16)), 0);
    assert_int_equal(bed_write(bed, few, 0, MIB(9), 7), 0);
    assert_true(fake_medium_objects(bed->cluster) > sealed + 200);
    die(bed);
    assert_int_equal(sweep(bed, 6), 0); /* another checkpoint */
    assert_int_equal(sweep(bed, 5), 2);
    assert_int_equal(sweep(bed, 5), 2); /* once more, for what came late */
    assert_int_equal(sweep(bed, 5), 0);
    assert_int_equal(fake_medium_objects(bed->cluster), sealed);
    assert_int_equal(bed_check_object(bed, bed_object(5, 0, 1), 8192, 1), 0);
    assert_int_equal(bed_delete(bed, bed_object(5, 0, 1)), 0);
    assert_int_equal(sweep(bed, 5), 0);
    assert_int_equal(fake_medium_objects(bed->cluster), before); /* the index went too */
}

/* Goal: a sweep while a writer lives voids its object, and never what it has sealed. */
BED_TEST(what_was_given_up_is_never_sealed)
{
    struct object_id id = bed_object(5, 0, 1), other = bed_object(5, 0, 2);
    assert_int_equal(bed_create(bed, id, 16384), 0);
    assert_int_equal(bed_write(bed, id, 0, 4096, 1), 0);
    assert_int_equal(bed_create(bed, other, 4096), 0);
    assert_int_equal(bed_write(bed, other, 0, 4096, 2), 0);
    assert_int_equal(bed_seal(bed, other), 0);
    assert_int_equal(sweep(bed, 5), 1);
    assert_int_equal(bed_write(bed, id, 4096, 4096, 1), 0);
    assert_int_equal(bed_seal(bed, id), CAIRN_E_IO);
    uint64_t bytes;
    assert_int_equal(bed_stat(bed, id, &bytes), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_abort(bed, id), 0);
    sweep_all(bed, 5);
    assert_int_equal(bed_check_object(bed, other, 4096, 2), 0);
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 3), 4096, 3), 0); /* life goes on */
    assert_int_equal(bed_count_objects(bed, 5), 2);
}

/* Goal: a write that lands after the first sweep is found by the second. */
BED_TEST(what_lands_late_is_found)
{
    size_t before = objects_of_nothing(bed);
    const struct fake_plan late = {.seed = 1, .percent = {[FAKE_LATE] = 100}, .later_max = 1000000};
    assert_int_equal(bed_create(bed, bed_object(5, 0, 1), 16384), 0);
    fake_medium_plan(bed->cluster, &late);
    assert_int_equal(bed_write(bed, bed_object(5, 0, 1), 0, 4096, 1), CAIRN_E_OUTCOME_UNKNOWN);
    fake_medium_plan(bed->cluster, NULL);
    assert_int_equal(sweep(bed, 5), 1);
    fake_medium_settle(bed->cluster);
    assert_int_equal(fake_medium_landed_late(bed->cluster), 1);
    assert_int_equal(sweep(bed, 5), 1);
    assert_int_equal(sweep(bed, 5), 0);
    assert_int_equal(fake_medium_objects(bed->cluster), before);
}

/* Goal: on a bad cluster, with daemons that die, nothing sealed is lost and nothing else is left.
 */
BED_TEST(nothing_is_left_on_a_bad_cluster)
{
    size_t before = objects_of_nothing(bed);
    for (unsigned round = 0; round < 40; round++) {
        const struct fake_plan plan = {
            .seed = round,
            .percent = {[FAKE_LOST] = 4, [FAKE_UNANSWERED] = 4, [FAKE_LATE] = 4},
            .later_max = 20};
        bool sealed[8] = {false}, gone[8] = {false};
        fake_medium_plan(bed->cluster, &plan);
        for (unsigned i = 0; i < 8; i++) {
            struct object_id id = bed_object(5, i % 3, i);
            int rc = bed_create(bed, id, MIB(1));
            for (unsigned k = 0; rc == 0 && k < 70; k++) {
                rc = bed_write(bed, id, k * 4096, 4096, k);
            }
            sealed[i] = rc == 0 && i % 4 != 3 && bed_seal(bed, id) == 0;
            gone[i] = sealed[i] && i % 2 == 0;
            if (gone[i]) {
                err_ignore(bed_delete(bed, id)); /* done, cut short, or not begun */
            }
        }
        die(bed);
        sweep_all(bed, 5);
        for (unsigned i = 0; i < 8; i++) {
            struct object_id id = bed_object(5, i % 3, i);
            uint64_t bytes;
            int found = bed_stat(bed, id, &bytes);
            assert_true(found == 0 || found == CAIRN_E_NOT_FOUND);
            assert_true(!sealed[i] || gone[i] || found == 0);
            if (found == 0) {
                assert_int_equal(bytes, 70 * 4096);
                uint8_t *data = malloc(bytes);
                assert_non_null(data);
                assert_int_equal(bed_read(bed, id, 0, bytes, data), 0); /* all pieces are there */
                free(data);
                assert_int_equal(bed_delete(bed, id), 0);
            }
        }
        sweep_all(bed, 5);
        assert_int_equal(fake_medium_objects(bed->cluster), before);
    }
}

/* Goal: closing on a silent cluster costs a time-out or two, not one for each open object. */
BED_TEST(closing_does_not_wait_for_each)
{
    const struct fake_plan silent = {.seed = 1, .percent = {[FAKE_LOST] = 100}};
    for (unsigned i = 0; i < 50; i++) {
        struct object_id id = bed_object(5, i, 1);
        assert_int_equal(bed_create(bed, id, 8192), 0);
        assert_int_equal(bed_write(bed, id, 0, 4096, i), 0);
    }
    fake_medium_plan(bed->cluster, &silent);
    uint64_t calls = fake_medium_calls(bed->cluster);
    bed_close(bed);
    assert_in_range(fake_medium_calls(bed->cluster) - calls, 1, 2);
    fake_medium_plan(bed->cluster, NULL);
    bed_open_ok(bed);
    assert_int_equal(sweep(bed, 5), 50);
}

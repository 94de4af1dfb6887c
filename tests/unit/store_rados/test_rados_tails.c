/* SPDX-License-Identifier: Apache-2.0
 *
 * Of a part that is larger than an operation nothing stays that nobody needs, and nothing goes that
 * is needed, wherever the daemon dies that publishes or removes it. A checkpoint of which nothing
 * is left, and that nobody will write any more, is no longer listed.
 */
#include "store/store_bed.h"

#include "base/check.h"

enum { PART_BYTES = (21 << 20) + 5, TAILS = 2, STEPS_MAX = 16 };

static void setup(struct bed *bed)
{
    bed_init(bed, BED_RADOS, "", 1);
    bed_open_ok(bed);
    assert_int_equal(bed_put_object(bed, bed_object(9, 0, 1), 4096, 1), 0); /* the list is there */
}

static size_t sweep(struct bed *bed, bool for_good)
{
    struct store_req req = {
        .op = STORE_SWEEP, .run = bed_run(), .id = {1, 5}, .for_good = for_good};
    assert_int_equal(bed_do(bed, &req), 0);
    return req.ret_count;
}

static void sweep_all(struct bed *bed, bool for_good)
{
    unsigned times = 0;
    while (sweep(bed, for_good) > 0) {
        assert_in_range(++times, 1, 4);
    }
}

/* The next changing calls go well, so many of them; then nothing reaches the cluster any more, and
 * the daemon dies of it (fault: LOST, or UNANSWERED: the last one did). */
static void limit(struct bed *bed, unsigned spare, enum fake_fault fault)
{
    struct fake_plan plan = {.seed = 1, .spare = spare};
    plan.percent[fault] = 100;
    fake_medium_plan(bed->cluster, &plan);
}

static void die(struct bed *bed)
{
    limit(bed, 0, FAKE_LOST);
    bed_close(bed);
    fake_medium_plan(bed->cluster, NULL);
    fake_medium_settle(bed->cluster);
    bed_open_ok(bed);
}

static size_t count_ckpts(struct bed *bed)
{
    struct store_req req = {.op = STORE_LIST_CKPTS, .run = bed_run()};
    assert_int_equal(bed_do(bed, &req), 0);
    free(req.ret_ckpts);
    return req.ret_count;
}

static size_t count_smalls(struct bed *bed)
{
    struct store_req req = {.op = STORE_LIST_SMALL, .run = bed_run(), .id = {1, 5}};
    assert_int_equal(bed_do(bed, &req), 0);
    free(req.ret_smalls);
    return req.ret_count;
}

/* What passes of garbage collection do with a checkpoint that came to nothing. */
static void collect(struct bed *bed, struct store_name name, size_t before)
{
    for (unsigned pass = 0; pass < 2; pass++) {
        if (count_smalls(bed) > 0) {
            int rc = bed_delete_small(bed, name);
            assert_true(rc == 0 || rc == CAIRN_E_NOT_FOUND);
        }
        sweep_all(bed, true);
    }
    assert_int_equal(count_smalls(bed), 0);
    assert_int_equal(count_ckpts(bed), 1);
    assert_int_equal(fake_medium_objects(bed->cluster), before);
}

#define BED_TEST(name) FIXTURE_TEST(name, setup, bed_fini, struct bed, bed)

/* Dies after each of the steps of publishing; what it was told was published is whole. */
BED_TEST(a_daemon_dies_publishing)
{
    struct store_name name = bed_name(5, STORE_PART, 0, 1);
    size_t before = fake_medium_objects(bed->cluster);
    for (unsigned fault = FAKE_LOST; fault <= FAKE_UNANSWERED; fault++) {
        int rc = CAIRN_E_IO;
        unsigned spare = 0;
        for (; rc != 0 && spare < STEPS_MAX; spare++) {
            limit(bed, spare, fault);
            rc = bed_publish(bed, name, PART_BYTES, 3);
            die(bed);
            sweep_all(bed, false); /* it may be committed yet: nothing that is whole goes */
            int found = bed_check_small(bed, name, PART_BYTES, 3);
            assert_true(found == 0 || (found == CAIRN_E_NOT_FOUND && rc != 0));
            collect(bed, name, before);
        }
        assert_int_equal(rc, 0);
        assert_int_equal(spare, 2 + TAILS + 2 + 1); /* lists, tails, head, settled */
    }
}

BED_TEST(a_daemon_dies_removing)
{
    struct store_name name = bed_name(5, STORE_PART, 0, 1);
    size_t before = fake_medium_objects(bed->cluster);
    for (unsigned fault = FAKE_LOST; fault <= FAKE_UNANSWERED; fault++) {
        for (unsigned spare = 0; spare < 2 + TAILS + 2; spare++) {
            assert_int_equal(bed_publish(bed, name, PART_BYTES, 3), 0);
            assert_int_equal(sweep(bed, false), 0); /* a part that is there is no business of it */
            limit(bed, spare, fault);
            int rc = bed_delete_small(bed, name);
            assert_true(rc == 0 || spare < 2);
            die(bed);
            collect(bed, name, before);
        }
    }
}

/* Goal: tails that land after they were swept are found by the next sweep; a head that does is a
 * part like others, though damaged, and goes with the checkpoint. */
BED_TEST(what_lands_late_goes)
{
    struct store_name name = bed_name(5, STORE_PART, 0, 1);
    size_t before = fake_medium_objects(bed->cluster);
    for (unsigned spare = 2; spare <= 2 + TAILS; spare++) {
        struct fake_plan late = {
            .seed = 1, .spare = spare, .percent = {[FAKE_LATE] = 100}, .later_max = 1000000};
        fake_medium_plan(bed->cluster, &late);
        assert_int_not_equal(bed_publish(bed, name, PART_BYTES, 3), 0);
        fake_medium_plan(bed->cluster, NULL);
        assert_int_equal(sweep(bed, false), 1);
        uint64_t landed = fake_medium_landed_late(bed->cluster);
        fake_medium_settle(bed->cluster);
        assert_true(fake_medium_landed_late(bed->cluster) > landed);
        assert_int_equal(sweep(bed, false), 1);
        assert_int_not_equal(bed_check_small(bed, name, PART_BYTES, 3), 0);
        collect(bed, name, before);
    }
}

/* Goal: two who publish the same do each other no harm, nor does the sweep after them. */
BED_TEST(the_second_publisher_harms_nothing)
{
    struct store_name name = bed_name(5, STORE_PAGE, 0, 1);
    size_t before = fake_medium_objects(bed->cluster);
    assert_int_equal(bed_publish(bed, name, PART_BYTES, 3), 0);
    size_t published = fake_medium_objects(bed->cluster);
    assert_int_equal(bed_publish(bed, name, PART_BYTES, 3), CAIRN_E_EXISTS);
    sweep_all(bed, false);
    assert_int_equal(fake_medium_objects(bed->cluster), published);
    assert_int_equal(bed_check_small(bed, name, PART_BYTES, 3), 0);
    collect(bed, name, before);
}

/* Goal: what was answered with success is there, though a sweep was at work at the same time.
 * Method: both at once on the pool's threads, again and again. */
BED_TEST(published_beside_a_sweep)
{
    uint8_t *data = bed_bytes(PART_BYTES, 3);
    unsigned published = 0;
    for (unsigned i = 0; i < 24; i++) {
        struct store_name name = bed_name(5, STORE_PART, i, 1);
        struct store_req reqs[2 + 3] = {
            {.op = STORE_PUBLISH, .name = name, .bytes = PART_BYTES, .data = data}};
        for (size_t k = 1; k < ARRAY_LEN(reqs); k++) {
            reqs[k] = (struct store_req){.op = STORE_SWEEP, .run = bed_run(), .id = {1, 5}};
        }
        bed_do_all(bed, 1 + i % 4, reqs);
        int rc = reqs[0].status;
        assert_true(rc == 0 || rc == CAIRN_E_IO || rc == CAIRN_E_OUTCOME_UNKNOWN);
        if (rc == 0 ||
            (rc == CAIRN_E_OUTCOME_UNKNOWN && bed_check_small(bed, name, PART_BYTES, 3) == 0)) {
            published++;
            sweep_all(bed, false);
            assert_int_equal(bed_check_small(bed, name, PART_BYTES, 3), 0);
        }
        int removed = bed_delete_small(bed, name);
        assert_true(removed == 0 || removed == CAIRN_E_NOT_FOUND);
        sweep_all(bed, false);
    }
    free(data);
    assert_in_range(published, 6, 24); /* every fourth has no sweep beside it */
}

/* Goal: entries go when nothing is left, and not before; and what is made after that is listed. */
BED_TEST(nothing_left_is_not_listed)
{
    struct store_name part = bed_name(5, STORE_PART, 0, 1);
    size_t before = fake_medium_objects(bed->cluster);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(bed_put_object(bed, bed_object(5, 0, i), 4096, 1), 0);
        assert_int_equal(bed_publish(bed, part, 100, 1), 0);
        assert_int_equal(count_ckpts(bed), 2);
        assert_int_equal(bed_delete(bed, bed_object(5, 0, i)), 0);
        assert_int_equal(sweep(bed, true), 0);
        assert_int_equal(count_ckpts(bed), 2); /* the part is there */
        assert_int_equal(bed_check_small(bed, part, 100, 1), 0);
        assert_int_equal(bed_delete_small(bed, part), 0);
        assert_int_equal(sweep(bed, false), 0);
        assert_int_equal(count_ckpts(bed), 2); /* it may be written again */
        assert_int_equal(sweep(bed, true), 0);
        assert_int_equal(count_ckpts(bed), 1);
        assert_int_equal(fake_medium_objects(bed->cluster), before);
    }
}

/* Goal: whatever a bad cluster does to the sweep, entries are not lost before the things. */
BED_TEST(entries_outlive_things)
{
    struct store_name name = bed_name(5, STORE_PART, 0, 1);
    size_t before = fake_medium_objects(bed->cluster);
    for (unsigned seed = 0; seed < 30; seed++) {
        const struct fake_plan plan = {
            .seed = seed,
            .percent = {[FAKE_LOST] = 8, [FAKE_UNANSWERED] = 8, [FAKE_LATE] = 8},
            .later_max = 8};
        fake_medium_plan(bed->cluster, &plan);
        err_ignore(bed_put_object(bed, bed_object(5, 0, seed), 4096, 1));
        err_ignore(bed_publish(bed, name, PART_BYTES, 3));
        err_ignore(bed_delete(bed, bed_object(5, 0, seed)));
        err_ignore(bed_delete_small(bed, name));
        for (unsigned i = 0; i < 3; i++) {
            struct store_req req = {.op = STORE_SWEEP, .run = bed_run(), .id = {1, 5}};
            err_ignore(bed_do(bed, &req));
        }
        die(bed);
        err_ignore(bed_delete(bed, bed_object(5, 0, seed)));
        collect(bed, name, before);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A file call that fails costs nothing that was acknowledged, and nothing else is claimed (D03 to
 * D10, L3 to L5, L18, L22). Method: each call of a store's life fails once, with EIO or a full
 * disk.
 */
#include "store_scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_MAX = 3000 };

/* False when the scenario was over before the call. */
static bool live_with_fault(uint64_t call, int code, bool lose_all)
{
    struct bed bed;
    struct scenario scenario = {0};
    bed_init(&bed, BED_DIR_SIM, "", call);
    uint64_t begin = sim_disk_calls(bed.disk);
    sim_disk_fail_call(bed.disk, call, code);
    scenario_run(&bed, &scenario);
    bool was_hit = sim_disk_calls(bed.disk) - begin >= call;
    sim_disk_fail_call(bed.disk, 0, 0);
    if (bed.store == NULL) {
        bed_open_ok(&bed); /* refused once, and nothing spoiled */
    }
    scenario_check(&bed, &scenario); /* while it runs */
    bed_reopen(&bed);
    scenario_check(&bed, &scenario); /* after a restart */
    bed_crash(&bed, lose_all);
    bed_open_ok(&bed);
    scenario_check(&bed, &scenario); /* after a power cut */
    bed_fini(&bed);
    return was_hit;
}

TEST(every_call_fails_once)
{
    static const int codes[] = {CAIRN_E_IO, CAIRN_E_NO_SPACE};
    for (size_t i = 0; i < 2; i++) {
        uint64_t call = 1;
        while (call < CALLS_MAX && live_with_fault(call, codes[i], call % 2 == 0)) {
            call++;
        }
        assert_true(call > 200 && call < CALLS_MAX);
    }
}

static void setup(struct bed *bed)
{
    bed_init(bed, BED_DIR_SIM, "", 1);
    bed_open_ok(bed);
}

#define BED_TEST(name) FIXTURE_TEST(name, setup, bed_fini, struct bed, bed)

/* Goal (D03, L5): an fsync that failed voids the object although its bytes can still be read back;
 * the next object is fine. */
BED_TEST(a_failed_fsync_voids_the_object)
{
    struct object_id id = bed_object(5, 0, 1), again = bed_object(5, 0, 2);
    uint64_t bytes;
    assert_int_equal(bed_create(bed, id, SCENARIO_BYTES), 0);
    assert_int_equal(bed_write(bed, id, 0, SCENARIO_BYTES, 1), 0);
    sim_disk_fail_next_fsync(bed->disk);
    assert_int_equal(bed_seal(bed, id), CAIRN_E_IO);
    assert_int_equal(bed_stat(bed, id, &bytes), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_seal(bed, id), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_put_object(bed, again, SCENARIO_BYTES, 2), 0);
    bed_crash(bed, true);
    bed_open_ok(bed);
    assert_int_equal(bed_stat(bed, id, &bytes), CAIRN_E_NOT_FOUND);
    assert_int_equal(bed_check_object(bed, again, SCENARIO_BYTES, 2), 0);
}

/* Goal (D05, L3): after a failed write the object cannot be sealed, whatever is written later. */
BED_TEST(a_failed_write_voids_the_object)
{
    struct object_id id = bed_object(5, 0, 1);
    uint64_t bytes;
    assert_int_equal(bed_create(bed, id, 8192), 0);
    sim_disk_fail_call(bed->disk, 1, CAIRN_E_IO);
    assert_int_equal(bed_write(bed, id, 0, 4096, 1), CAIRN_E_IO);
    assert_int_equal(bed_write(bed, id, 0, 4096, 1), CAIRN_E_IO);
    assert_int_equal(bed_seal(bed, id), CAIRN_E_IO);
    assert_int_equal(bed_stat(bed, id, &bytes), CAIRN_E_NOT_FOUND);
}

/* Goal (D04, L5): three failed fsyncs in ten minutes and the store is read-only and says so;
 * reading goes on; a restart tries anew. */
BED_TEST(repeated_fsync_failures_end_writing)
{
    assert_int_equal(bed_put_object(bed, bed_object(5, 0, 1), SCENARIO_BYTES, 1), 0);
    for (uint32_t i = 0; i < 3; i++) {
        sim_disk_fail_next_fsync(bed->disk);
        assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, i, 1), 100, 1), CAIRN_E_IO);
    }
    assert_int_equal(bed_create(bed, bed_object(5, 0, 2), 4096), CAIRN_E_READ_ONLY);
    assert_int_equal(bed_set(bed, "k", "v"), CAIRN_E_READ_ONLY);
    assert_int_equal(bed_check_object(bed, bed_object(5, 0, 1), SCENARIO_BYTES, 1), 0);
    struct store_req req = {.op = STORE_USAGE};
    assert_int_equal(bed_do(bed, &req), 0);
    assert_true(req.ret_usage.read_only);
    assert_true(req.ret_usage.detail[0] != 0);
    bed_reopen(bed);
    assert_int_equal(bed_set(bed, "k", "v"), 0);
}

/* Goal: failures that are far apart do not add up. */
BED_TEST(rare_fsync_failures_do_not_add_up)
{
    for (uint32_t i = 0; i < 6; i++) {
        sim_disk_fail_next_fsync(bed->disk);
        assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, i, 1), 100, 1), CAIRN_E_IO);
        sim_run_for(bed->sim, 6 * 60 * 1000);
        assert_int_equal(bed_publish(bed, bed_name(5, STORE_PART, i, 1), 100, 1), 0);
    }
}

/* Goal (D10, L22): a read error is tried once more with a fresh descriptor; bytes are right or
 * there is an error. Method: each file call of a read fails once. */
BED_TEST(a_read_error_is_tried_again)
{
    struct object_id id = bed_object(5, 0, 1);
    struct store_name name = bed_name(5, STORE_PART, 0, 1);
    unsigned healed = 0;
    uint8_t *expected = bed_bytes(SCENARIO_BYTES, 1), *data = bed_bytes(SCENARIO_BYTES, 2);
    assert_int_equal(bed_put_object(bed, id, SCENARIO_BYTES, 1), 0);
    assert_int_equal(bed_publish(bed, name, 5000, 1), 0);
    for (uint64_t call = 1; call < 12; call++) {
        uint64_t begin = sim_disk_calls(bed->disk);
        sim_disk_fail_call(bed->disk, call, CAIRN_E_IO);
        int rc = bed_read(bed, id, 0, SCENARIO_BYTES, data);
        bool was_hit = sim_disk_calls(bed->disk) - begin >= call;
        sim_disk_fail_call(bed->disk, 0, 0);
        assert_true(rc == 0 || rc == CAIRN_E_IO);
        if (rc == 0) {
            assert_memory_equal(expected, data, SCENARIO_BYTES);
            healed += was_hit;
        }
        sim_disk_fail_call(bed->disk, call, CAIRN_E_IO);
        rc = bed_check_small(bed, name, 5000, 1);
        sim_disk_fail_call(bed->disk, 0, 0);
        assert_true(rc == 0 || rc == CAIRN_E_IO);
    }
    assert_true(healed >= 4); /* open and read; the two closes do not matter anyway */
    free(expected);
    free(data);
}

/* Goal (L5, L8): an update whose directory fsync failed is neither lost nor claimed: it is settled
 * at the next look, and what is shown then stays, also after a power cut. */
TEST(an_uncertain_update_is_settled)
{
    unsigned uncertain = 0;
    for (uint64_t call = 1; call < 20; call++) {
        struct bed bed;
        struct bed_change one = {"k", "1", true, NULL}, two = {"k", "2", true, "1"};
        bed_init(&bed, BED_DIR_SIM, "", call);
        bed_open_ok(&bed);
        assert_int_equal(bed_update(&bed, &one, NULL), 0);
        sim_disk_fail_call(bed.disk, call, CAIRN_E_IO);
        int rc = bed_update(&bed, &two, NULL);
        sim_disk_fail_call(bed.disk, 0, 0);
        if (rc == CAIRN_E_OUTCOME_UNKNOWN) {
            uncertain++;
            bool happened = bed_has(&bed, "k", "2");
            assert_true(happened || bed_has(&bed, "k", "1"));
            uint64_t version = bed_version(&bed);
            assert_true(version > 2); /* beyond the number that was in doubt */
            bed_crash(&bed, true);
            bed_open_ok(&bed);
            assert_true(bed_has(&bed, "k", happened ? "2" : "1"));
            assert_int_equal(bed_version(&bed), version);
            assert_int_equal(bed_set(&bed, "k", "3"), 0);
            bed_reopen(&bed);
            assert_true(bed_has(&bed, "k", "3"));
        } else if (rc != 0) {
            assert_int_equal(bed_update(&bed, &two, NULL), 0); /* nothing had happened */
        }
        bed_fini(&bed);
    }
    assert_true(uncertain > 0);
}

/* Goal: while the disk goes on failing nothing is claimed and each call is answered, and when it is
 * well again so is the run, without a restart. Method: the fsync that settles fails too. */
TEST(a_failing_disk_is_waited_for)
{
    unsigned uncertain = 0;
    for (uint64_t call = 1; call < 20; call++) {
        struct bed bed;
        struct bed_change one = {"k", "1", true, NULL}, two = {"k", "2", true, "1"};
        bed_init(&bed, BED_DIR_SIM, "", call);
        bed_open_ok(&bed);
        assert_int_equal(bed_update(&bed, &one, NULL), 0);
        sim_disk_fail_call(bed.disk, call, CAIRN_E_IO);
        if (bed_update(&bed, &two, NULL) == CAIRN_E_OUTCOME_UNKNOWN) {
            uncertain++;
            sim_disk_fail_next_fsync(bed.disk); /* that of the new snapshot */
            assert_int_equal(bed_update(&bed, &two, NULL), CAIRN_E_READ_ONLY);
            assert_true(bed_has(&bed, "k", "2") || bed_has(&bed, "k", "1"));
            assert_int_equal(bed_set(&bed, "k", "3"), 0);
            bed_crash(&bed, true);
            bed_open_ok(&bed);
            assert_true(bed_has(&bed, "k", "3"));
        }
        bed_fini(&bed);
    }
    assert_true(uncertain > 0);
}

struct seen {
    unsigned copies;
    char newest[256];
};

static void see_copy(void *user, const char *path, uint64_t bytes)
{
    struct seen *seen = user;
    if (strstr(path, "copy/runs/p/r/record/") != NULL && bytes > 0) {
        seen->copies++;
        snprintf(seen->newest, sizeof(seen->newest), "%s", path);
    }
}

/* Goal: a record's second place follows by itself, no more than about once a second, and the two
 * newest stay. Method: ten updates a second for twenty seconds. */
BED_TEST(copies_keep_their_pace)
{
    char last[256] = "";
    unsigned changes = 0;
    for (unsigned i = 1; i <= 200; i++) {
        struct seen seen = {0};
        bed_number(bed, "k", i);
        sim_run_for(bed->sim, 100);
        sim_disk_each_file(bed->disk, see_copy, &seen);
        assert_true(seen.copies <= 3);
        changes += strcmp(seen.newest, last) != 0;
        memcpy(last, seen.newest, sizeof(last));
    }
    print_message("%u copies of 200 updates in 20 s\n", changes);
    assert_true(changes >= 10 && changes <= 22);
    sim_run_for(bed->sim, 5000);
    struct seen seen = {0};
    sim_disk_each_file(bed->disk, see_copy, &seen);
    assert_int_equal(seen.copies, 2);
    bed_crash(bed, true);
    bed_open_ok(bed);
    assert_true(bed_has(bed, "k", "200"));
}

/* Goal (D06, L18, L19): with any amount of space a step is done or says NO_SPACE, what is old stays
 * whole, and deleting works on a full disk. */
TEST(a_full_disk_says_so)
{
    for (uint64_t extra = 0; extra < 60000; extra += 1500) {
        struct bed bed;
        struct scenario scenario = {0};
        bed_init(&bed, BED_DIR_SIM, "", extra);
        bed_open_ok(&bed);
        assert_int_equal(bed_put_object(&bed, bed_object(90, 0, 1), SCENARIO_BYTES, 77), 0);
        bed_close(&bed);
        sim_disk_set_capacity(bed.disk, sim_disk_used(bed.disk) + extra);
        scenario_run(&bed, &scenario);
        assert_true(scenario.worst == 0 || scenario.worst == CAIRN_E_NO_SPACE ||
                    scenario.worst == CAIRN_E_READ_ONLY);
        if (bed.store != NULL) {
            scenario_check(&bed, &scenario);
            assert_int_equal(bed_check_object(&bed, bed_object(90, 0, 1), SCENARIO_BYTES, 77), 0);
            assert_int_equal(bed_delete(&bed, bed_object(90, 0, 1)), 0);
        }
        bed_fini(&bed);
    }
}

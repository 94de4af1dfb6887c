/* SPDX-License-Identifier: Apache-2.0
 *
 * After a power cut the store opens, also when the opening is itself killed twice, and everything
 * acknowledged is there (D01, L1 to L8, L10, L14, L21). Method: the process dies before each of its
 * file calls in turn, and the machine loses what was not synced, all of it or a random part.
 */
#include "store_scenario.h"

#include <stdlib.h>

enum { CALLS_MAX = 3000, START_CALLS_MAX = 200 };

/* Opens after a crash, dying at the given call of the first and of the second attempt (0: not). */
static void recover(struct bed *bed, uint64_t first, uint64_t second, bool lose_all)
{
    uint64_t calls[] = {first, second};
    struct diag diag = DIAG_INIT;
    for (size_t i = 0; i < 2; i++) {
        if (calls[i] == 0) {
            continue;
        }
        sim_kill_at_vfs_call(bed->host, calls[i]);
        diag_clear(&diag);
        int rc = bed_open(bed, true, false, &diag);
        sim_kill_at_vfs_call(bed->host, 0);
        assert_true(rc == 0 || sim_is_dead(bed->host)); /* only the kill may stop it */
        bed_crash(bed, lose_all);
    }
    bed_open_ok(bed);
}

/* One life with a death at `call`; false when the scenario was over before. */
static bool live_and_die(uint64_t call, uint64_t seed, bool lose_all)
{
    struct bed bed;
    struct scenario scenario = {0};
    bed_init(&bed, BED_DIR_SIM, "", seed);
    sim_kill_at_vfs_call(bed.host, call);
    scenario_run(&bed, &scenario);
    bool died = sim_is_dead(bed.host);
    if (!died) {
        assert_int_equal(scenario.worst, 0);
        assert_int_equal(scenario.version, SCENARIO_UPDATES);
    }
    bed_crash(&bed, lose_all);
    uint64_t first = sim_below(bed.sim, 3) == 0 ? 0 : 1 + sim_below(bed.sim, 60);
    recover(&bed, first, first == 0 ? 0 : sim_below(bed.sim, 60), lose_all);
    scenario_check(&bed, &scenario);
    bed_reopen(&bed);
    scenario_check(&bed, &scenario);
    bed_fini(&bed);
    return died;
}

TEST(every_call_losing_everything)
{
    uint64_t call = 1;
    while (call < CALLS_MAX && live_and_die(call, call, true)) {
        call++;
    }
    print_message("%llu calls\n", (unsigned long long)call);
    assert_true(call > 200 && call < CALLS_MAX);
}

TEST(every_call_losing_a_part)
{
    for (uint64_t round = 0; round < 3; round++) {
        uint64_t call = 1;
        while (call < CALLS_MAX && live_and_die(call, round * 10007 + call, false)) {
            call++;
        }
        assert_true(call < CALLS_MAX);
    }
}

/* Goal: a dirty store opens after its opening was killed at every call, and that of the second
 * attempt at every call. Method: the scenario dies in the middle, with temporaries about. */
TEST(every_pair_of_calls_of_the_start)
{
    uint64_t calls = 0;
    for (uint64_t first = 1; first < START_CALLS_MAX; first++) {
        bool died = false;
        for (uint64_t second = 1; second < START_CALLS_MAX; second += 1 + first % 7) {
            struct bed bed;
            struct scenario scenario = {0};
            bed_init(&bed, BED_DIR_SIM, "", 1);
            sim_kill_at_vfs_call(bed.host, 230);
            scenario_run(&bed, &scenario);
            assert_true(sim_is_dead(bed.host));
            bed_crash(&bed, false);
            sim_kill_at_vfs_call(bed.host, first);
            struct diag diag = DIAG_INIT;
            died = bed_open(&bed, true, false, &diag) != 0;
            sim_kill_at_vfs_call(bed.host, 0);
            bed_crash(&bed, false);
            sim_kill_at_vfs_call(bed.host, second);
            diag_clear(&diag);
            bool died_again = bed_open(&bed, true, false, &diag) != 0;
            sim_kill_at_vfs_call(bed.host, 0);
            bed_crash(&bed, false);
            bed_open_ok(&bed);
            scenario_check(&bed, &scenario);
            bed_fini(&bed);
            if (!died_again) {
                break;
            }
        }
        if (!died) {
            calls = first;
            break;
        }
    }
    print_message("%llu calls of a start\n", (unsigned long long)calls);
    assert_true(calls > 20);
}

/* Goal (L11): what a restarted store vouches for outlives a power cut, also when the process that
 * made it died between the rename and the directory's fsync. Method: the process dies at each call,
 * the disk not; a new one is asked; then the power goes, and everything unsynced with it. */
TEST(what_is_vouched_for_is_durable)
{
    unsigned inherited = 0;
    bool died = true;
    for (uint64_t call = 1; died; call++) {
        struct bed bed;
        struct scenario scenario = {0};
        bool seen[SCENARIO_OBJECTS];
        bed_init(&bed, BED_DIR_SIM, "", call);
        sim_kill_at_vfs_call(bed.host, call);
        scenario_run(&bed, &scenario);
        died = sim_is_dead(bed.host);
        bed_kill(&bed);
        bed_open_ok(&bed);
        uint64_t version = bed_version(&bed);
        for (uint32_t i = 0; i < SCENARIO_OBJECTS; i++) {
            struct object_id id = bed_object(5 + i / 2, i, 1);
            seen[i] = bed_check_object(&bed, id, SCENARIO_BYTES, i) == 0;
            inherited += seen[i] && scenario.objects[i] == FATE_MAYBE;
        }
        for (uint32_t i = 0; i < SCENARIO_SMALLS; i++) {
            int rc = bed_publish(&bed, bed_name(5, STORE_PART, i, 1), 5000, i);
            assert_true(rc == 0 || rc == CAIRN_E_EXISTS);
            if (rc == CAIRN_E_EXISTS) {
                break; /* nothing else may sync the directory for it */
            }
        }
        bed_crash(&bed, true);
        bed_open_ok(&bed);
        for (uint32_t i = 0; i < SCENARIO_OBJECTS; i++) {
            int rc = bed_check_object(&bed, bed_object(5 + i / 2, i, 1), SCENARIO_BYTES, i);
            assert_true(!seen[i] || rc == 0);
        }
        assert_int_equal(bed_check_small(&bed, bed_name(5, STORE_PART, 0, 1), 5000, 0), 0);
        assert_int_equal(bed_version(&bed), version);
        bed_fini(&bed);
    }
    assert_true(inherited > 0);
}

/* Goal: gc may forget that there was a checkpoint which is not on a lasting list. Without that the
 * power cut brings the removed manifest back, which no entry tells of any more. */
TEST(what_a_lasting_list_has_not_stays_away)
{
    unsigned came_back[2] = {0};
    for (int lasting = 0; lasting < 2; lasting++) {
        struct bed bed;
        bed_init(&bed, BED_DIR_SIM, "", 7);
        bed_open_ok(&bed);
        struct store_name name = bed_name(5, STORE_MANIFEST, 0, 1);
        assert_int_equal(bed_publish(&bed, name, 5000, 1), 0);
        assert_int_equal(bed_delete_small(&bed, name), 0);
        struct store_req list = {.op = STORE_LIST_CKPTS, .run = name.run, .lasting = lasting == 1};
        assert_int_equal(bed_do(&bed, &list), 0);
        assert_int_equal(list.ret_count, 0);
        free(list.ret_ckpts);
        bed_crash(&bed, true);
        bed_open_ok(&bed);
        came_back[lasting] = bed_check_small(&bed, name, 5000, 1) == 0;
        bed_fini(&bed);
    }
    assert_int_equal(came_back[0], 1); /* otherwise this test proves nothing */
    assert_int_equal(came_back[1], 0);
}

/* Goal: nothing is left behind: after a start no temporary exists (L21, I8). */
static void count_temps(void *user, const char *path, uint64_t bytes)
{
    for (const char *at = path; *at != 0; at++) {
        if (at[0] == '/' && at[1] == '.') {
            ++*(unsigned *)user;
        }
    }
}

TEST(a_start_removes_temporaries)
{
    struct bed bed;
    unsigned temps = 0, seen = 0;
    for (uint64_t call = 100; call < 300; call += 3) {
        struct scenario scenario = {0};
        bed_init(&bed, BED_DIR_SIM, "", call);
        sim_kill_at_vfs_call(bed.host, call);
        scenario_run(&bed, &scenario);
        bed_crash(&bed, false);
        sim_disk_each_file(bed.disk, count_temps, &seen);
        bed_open_ok(&bed);
        sim_disk_each_file(bed.disk, count_temps, &temps);
        assert_int_equal(temps, 0);
        bed_fini(&bed);
    }
    assert_true(seen > 0); /* there were some to remove */
}

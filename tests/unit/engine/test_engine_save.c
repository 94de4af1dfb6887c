/* SPDX-License-Identifier: Apache-2.0
 *
 * A save commits, survives cut connections and a killed daemon, ends by its deadline naming the
 * ranks that are missing, and leaves nothing behind. Method: the engine against the real server on
 * the simulator.
 */
#include "engine_world.h"
#include "support/store_fault.h"
#include "support/unit_test.h"

/* Goal: the arena is there before the first save, a save that comes while it is being made waits
 * for it, and closing meanwhile leaves nothing behind. */
WORLD_TEST(the_arena_is_made_ahead, 31, 2)
{
    engine_prepare(world->ranks[0].engine, world->ranks[0].set);
    engine_prepare(world->ranks[0].engine, world->ranks[0].set);
    world_save_all(world, 5, 9); /* rank 0's meets the worker, rank 1's makes its own */
    world_expect_saved(world);
    world_ranks_restart(world);
    for (uint32_t i = 0; i < 2; i++) {
        struct world_rank *rank = &world->ranks[i];
        engine_prepare(rank->engine, rank->set);
    }
    sim_run_for(world->sim, 500);
    assert_true(arena_bytes(world->ranks[0].arena) == 0); /* a restore may follow */
    sim_run_for(world->sim, 1500);
    for (uint32_t i = 0; i < 2; i++) {
        struct world_rank *rank = &world->ranks[i];
        assert_true(arena_bytes(rank->arena) > 0);
        assert_int_equal(arena_used_bytes(rank->arena), 0);
    }
    world_expect_newest(world, 5, 9);
    world_save_well(world, 6, 10);
    world_ranks_restart(world);
    engine_prepare(world->ranks[0].engine, world->ranks[0].set);
}

#ifndef WORLD_LOCAL /* the bytes go through a socket */
/* Goal: over a socket, what lies in the arena is sent from there without being copied first, also
 * after the connection was cut; what is encoded lies elsewhere, and is not. */
TEST(a_save_is_sent_from_the_arena)
{
    uint64_t from_files[2] = {0}, plain_bytes = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        for (int dense = 0; dense < 2; dense++) {
            struct world_options options = {.encoding = dense ? ENCODE_DENSEST : ENCODE_NEVER};
            struct world world;
            world_begin_with(&world, seed, 2, &options);
            world_save_all(&world, 5, 9);
            sim_run_for(world.sim, 5);
            sim_cut(world.sim, NULL, NULL);
            world_expect_saved(&world);
            for (uint32_t i = 0; i < 2; i++) {
                from_files[dense] += sim_file_bytes(world.ranks[i].host);
                plain_bytes += dense ? 0 : world.ranks[i].save.total_bytes;
            }
            assert_int_equal(sim_file_bytes(world.server_host), 0);
            world_expect_newest(&world, 5, 9);
            world_end(&world);
        }
    }
    assert_true(from_files[0] > plain_bytes / 4); /* the simulator refuses some */
    assert_true(from_files[1] < from_files[0] / 2);
}
#endif

/* Goal: what is saved by 1 to 3 ranks is restored by a new attempt of them, bit for bit. */
TEST(a_save_commits_and_restores)
{
    for (uint32_t size = 1; size <= 3; size++) {
        struct world world;
        world_begin(&world, size, size);
        world_save_well(&world, 5, 9);
        world_save_well(&world, 6, 10);
        assert_int_equal(world.ranks[0].save.id.term, 1);
        world_ranks_restart(&world);
        world_expect_newest(&world, 6, 10);
        world_save_well(&world, 7, 11);
        assert_int_equal(world.ranks[0].save.id.term, 2);
        assert_false(world.ranks[0].save.new_lineage);
        world_end(&world);
    }
}

static void cut_all(void *user) { (void)sim_cut(((struct world *)user)->sim, NULL, NULL); }

/* Goal: a save goes on over lost connections. Method: cut all connections at random moments, many
 * seeds. */
TEST(cut_connections_are_resumed)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world world;
        world_begin(&world, seed, 2);
        world_save_all(&world, 1, (uint8_t)seed);
        for (unsigned i = 0; i < 5; i++) {
            sim_at(world.sim, sim_below(world.sim, 150), cut_all, &world);
        }
        world_expect_saved(&world);
        world_ranks_restart(&world);
        for (unsigned i = 0; i < 3; i++) {
            sim_at(world.sim, sim_below(world.sim, 100), cut_all, &world);
        }
        world_expect_newest(&world, 1, (uint8_t)seed);
        world_end(&world);
    }
}

/* Goal: a daemon that dies and comes back does not fail a save. Method: kill it at a random moment.
 */
TEST(a_killed_daemon_is_survived)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world world;
        world_begin(&world, seed, 2);
        world_save_all(&world, 1, (uint8_t)seed);
        sim_run_for(world.sim, sim_below(world.sim, 60));
        world_server_kill(&world);
        world_server_start(&world);
        world_expect_saved(&world);
        world_expect_newest(&world, 1, (uint8_t)seed);
        world_end(&world);
    }
}

/* Goal: an object of which nobody knows whether it was stored is sent again, under another name. */
TEST(an_object_of_unknown_outcome_is_sent_again)
{
    for (unsigned lost = 0; lost < 2; lost++) {
        struct world world;
        world_begin_with(&world, 31, 1, &(struct world_options){.faults = true});
        struct store_fault_rule rule = {.kind = lost ? FAULT_LOST : FAULT_FAIL,
                                        .op = STORE_SEAL,
                                        .count = 2,
                                        .code = CAIRN_E_OUTCOME_UNKNOWN};
        assert_int_equal(store_fault_add(world.store, &rule), 0);
        world_save_well(&world, 1, 4);
        world_expect_newest(&world, 1, 4);
        world_end(&world);
    }
}

/* Goal: no rank hangs, and the error names the rank that did not come (I7). */
WORLD_TEST(a_missing_rank_is_named, 3, 3)
{
    for (uint32_t i = 0; i < 3; i += 2) {
        world_fill(&world->ranks[i], 1);
        world_save(&world->ranks[i], 1, 5000);
    }
    world_await_saves(world, 6000);
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_int_equal(world->ranks[i].save_status, CAIRN_E_MISSING_RANKS);
        assert_non_null(strstr(world->ranks[i].save.diag.text, "rank 1"));
    }
    world_save_all(world, 2, 4); /* and the run is none the worse */
    world_expect_saved(world);
}

/* Goal: a rank that dies in the middle of a save is named after the grace, long before the save's
 * deadline; one that only loses its connection is not missed. */
WORLD_TEST_WITH(a_rank_that_dies_is_named_after_the_grace, 31, 3, .rank_grace_ms = 3000)
{
    world_save_all(world, 1, 1);
    sim_at(world->sim, 20, cut_all, world);
    world_expect_saved(world);
    sim_run_for(world->sim, 10000); /* nobody is missed: nothing is aborted */
    for (uint32_t i = 0; i < 2; i++) {
        world_save(&world->ranks[i], 2, 600000);
    }
    uint64_t before_ns = sim_now_ns(world->sim);
    world->ranks[2].saving = false;
    sim_kill(world->ranks[2].host, SIM_RESET);
    world_await_saves(world, 60000);
    assert_in_range((sim_now_ns(world->sim) - before_ns) / 1000000, 3000, 6000);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(world->ranks[i].save_status, CAIRN_E_MISSING_RANKS);
        assert_non_null(strstr(world->ranks[i].save.diag.text, "rank 2 of 3 (test)"));
    }
}

/* Goal: the grace outlives the daemon. The rank dies with it, or while it is away, and the next one
 * ends the save after the grace all the same; those that come back in time are not missed, nor are
 * ranks of an attempt that begins. */
WORLD_TEST_WITH(a_rank_that_is_gone_is_missed_by_the_next_daemon, 32, 3, .rank_grace_ms = 3000)
{
    world_save_well(world, 1, 1);
    for (unsigned step = 2; step <= 3; step++) { /* the second time it is known to be gone */
        for (uint32_t i = 0; i < 2; i++) {
            world_save(&world->ranks[i], step, 600000);
        }
        if (step == 2) {
            sim_run_for(world->sim, 2000);
            world->ranks[2].saving = false;
            sim_kill(world->ranks[2].host, SIM_RESET);
            world_server_kill(world);
            sim_run_for(world->sim, 500);
            world_server_start(world);
        }
        uint64_t began_ns = sim_now_ns(world->sim);
        world_await_saves(world, 60000);
        assert_in_range((sim_now_ns(world->sim) - began_ns) / 1000000, step == 2 ? 3000 : 0, 9000);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(world->ranks[i].save_status, CAIRN_E_MISSING_RANKS);
            assert_non_null(strstr(world->ranks[i].save.diag.text, "rank 2 of 3 has been gone"));
        }
    }
}

/* Goal: a daemon that has just begun misses nobody that comes back, nor who has not come yet at
 * all. */
WORLD_TEST_WITH(a_new_daemon_misses_nobody_that_comes, 33, 3, .rank_grace_ms = 6000)
{
    /* More than a client's longest pause between two tries. */
    for (uint32_t i = 0; i < 2; i++) {
        world_save(&world->ranks[i], 1, 600000);
    }
    sim_run_for(world->sim, 20000); /* the third takes its time: it is here, and only slow */
    world_server_kill(world);
    sim_run_for(world->sim, 20000);
    world_server_start(world);
    sim_run_for(world->sim, 20000);
    world_save(&world->ranks[2], 1, 600000);
    world_expect_saved(world);
}

WORLD_TEST(a_rank_without_rank_0_ends_too, 4, 2)
{
    world_save(&world->ranks[1], 1, 4000);
    world_await_saves(world, 5000);
    assert_int_equal(world->ranks[1].save_status, CAIRN_E_MISSING_RANKS);
    assert_non_null(strstr(world->ranks[1].save.diag.text, "rank 0"));
}

WORLD_TEST(an_aborted_save_tells_and_the_step_can_be_saved_again, 5, 1)
{
    world_save_all(world, 1, 1);
    sim_run_for(world->sim, 5);
    engine_save_abort(&world->ranks[0].save);
    world_await_saves(world, 20000);
    int status = world->ranks[0].save_status;
    assert_true(status == CAIRN_E_CANCELLED || status == 0);
    world_save_well(world, 1, 2);
    world_expect_newest(world, 1, status == 0 ? 1 : 2);
}

static bool is_saved_0(void *user) { return ((struct world *)user)->ranks[0].save_done; }
static bool is_saved_1(void *user) { return ((struct world *)user)->ranks[1].save_done; }

/* A rank saves a step again whose part it has sealed before. The step can be committed as soon as
 * the other rank comes, so an end without the server's word is no failure. */
WORLD_TEST(a_step_that_was_sealed_before_has_no_certain_failure, 11, 2)
{
    for (unsigned i = 0; i < 2; i++) {
        world_fill(&world->ranks[0], 1);
        world_save(&world->ranks[0], 1, 20000);
        sim_run_for(world->sim, 8000); /* it decides alone, and seals */
        world_server_kill(world);
        assert_true(sim_run_until(world->sim, is_saved_0, world, 60000));
        if (world->ranks[0].save_status != CAIRN_E_OUTCOME_UNKNOWN) {
            fail_msg("try %u: %s", i, world->ranks[0].save.diag.text);
        }
        world_server_start(world);
    }
    world_fill(&world->ranks[1], 1);
    world_save(&world->ranks[1], 1, 5000);
    assert_true(sim_run_until(world->sim, is_saved_1, world, 60000));
    assert_int_equal(world->ranks[1].save_status, 0);
    world_expect_newest(world, 1, 1);
}

/* Goal: close ends what is in flight without waiting for the network, at any moment. */
TEST(close_ends_saves_at_once)
{
    for (uint64_t ms = 0; ms < 60; ms += 3) {
        struct world world;
        world_begin(&world, ms + 1, 2);
        world_save_all(&world, 1, 1);
        sim_run_for(world.sim, ms);
        sim_partition(world.sim, NULL, NULL, true);
        world_ranks_stop(&world);
        for (uint32_t i = 0; i < 2; i++) {
            int status = world.ranks[i].save_status;
            assert_true(world.ranks[i].save_done);
            assert_true(status == 0 || status == CAIRN_E_CLOSED ||
                        status == CAIRN_E_OUTCOME_UNKNOWN);
        }
        sim_partition(world.sim, NULL, NULL, false);
        world_fini(&world);
    }
}

/* Goal: with the server gone for good, the deadline still holds. */
WORLD_TEST(an_unreachable_server_ends_by_the_deadline, 6, 1)
{
    sim_partition(world->sim, "rank0", "server", true);
    sim_partition(world->sim, "server", "rank0", true);
    world_save_all(world, 1, 1);
    world->ranks[0].save.deadline_ms = 60000;
    world_await_saves(world, 66000);
    assert_int_equal(world->ranks[0].save_status, CAIRN_E_TIMED_OUT);
    assert_int_equal(world->ranks[0].staged_status, 0);
    sim_partition(world->sim, "rank0", "server", false);
    sim_partition(world->sim, "server", "rank0", false);
    world_save_well(world, 2, 2);
}

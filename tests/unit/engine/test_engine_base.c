/* SPDX-License-Identifier: Apache-2.0
 *
 * An incremental save does not send again what its base has, also after a restart; what is restored
 * is what was saved; objects that are mostly dead are left behind. Method: the engine against the
 * real server on the simulator.
 */
#include "engine_world.h"
#include "share/share.h"
#include "support/unit_test.h"

/* The bytes that all ranks sent. */
static uint64_t finish_saves(struct world *world)
{
    uint64_t stored_bytes = 0;
    world_expect_saved(world);
    for (uint32_t i = 0; i < world->world_size; i++) {
        stored_bytes += world->ranks[i].save.stored_bytes;
    }
    return stored_bytes;
}

static uint64_t save_all(struct world *world, uint64_t step, uint8_t salt)
{
    world_save_all(world, step, salt);
    return finish_saves(world);
}

static uint64_t total_bytes(const struct world *world)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < world->world_size; i++) {
        bytes += world->ranks[i].save.total_bytes;
    }
    return bytes;
}

/* They are the same whatever the salt. */
static uint64_t blob_bytes(const struct world *world)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < world->world_size; i++) {
        const struct registered *set = world->ranks[i].set;
        for (size_t b = 0; b < set->blob_count; b++) {
            bytes += share_writes_blob(set, &set->blobs[b]) ? set->blobs[b].bytes : 0;
        }
    }
    return bytes;
}

/* An unchanged state costs no byte, a change of a few bytes costs their chunk, and each of the
 * checkpoints restores. */
TEST(only_what_changed_is_sent)
{
    for (uint32_t size = 1; size <= 3; size++) {
        struct world world;
        world_begin(&world, size, size);
        uint64_t all = save_all(&world, 5, 9);
        assert_int_equal(all, total_bytes(&world));
        assert_int_equal(save_all(&world, 6, 9), 0);
        /* One byte in the middle of a sharded tensor, of one rank. */
        for (uint32_t i = 0; i < size; i++) {
            world_fill(&world.ranks[i], 9);
            world.ranks[i].memory[75000] ^= i == size - 1 ? 0x40 : 0;
            world_save(&world.ranks[i], 7, 60000);
        }
        uint64_t stored = finish_saves(&world);
        assert_true(stored > 0 && stored <= WORLD_CHUNK_BYTES);
        assert_int_equal(save_all(&world, 8, 9), stored); /* and back */
        assert_int_equal(save_all(&world, 9, 10), total_bytes(&world) - blob_bytes(&world));
        world_ranks_restart(&world);
        for (uint64_t step = 5; step <= 9; step++) {
            world_restore_well(&world, WORLD_STEP(step));
            if (step == 7) {
                assert_false(world_has(&world.ranks[size - 1], 9));
                world.ranks[size - 1].memory[75000] ^= 0x40;
            }
            world_expect_state(&world, step == 9 ? 10 : 9);
        }
        world_end(&world);
    }
}

/* Goal: a new process, of the same or of another world size, refers to what it restored. */
WORLD_TEST(a_restored_state_is_the_base, 3, 2)
{
    (void)save_all(world, 5, 9);
    world_ranks_restart(world);
    world_restore_well(world, WORLD_LATEST);
    assert_int_equal(save_all(world, 6, 9), 0);
    assert_int_equal(world->ranks[0].save.id.term, 2);
    world_ranks_stop(world);
    /* Three ranks: what lies at the same place in the part of the same rank is found. */
    world->world_size = 3;
    world_ranks_start(world);
    (void)save_all(world, 7, 9); /* a lineage of its own, without a base */
    world_ranks_stop(world);
    world->world_size = 2;
    world_ranks_start(world);
    world_restore_well(world, (struct selector){.kind = SELECT_EXACT, .id = {2, 6}});
    assert_int_equal(save_all(world, 8, 9), 0);
}

WORLD_TEST_WITH(a_full_save_refers_to_nothing, 4, 2, .full_every = 3)
{
    const bool is_full[] = {true, false, false, true, false, true, false};
    for (uint64_t i = 0; i < 7; i++) {
        for (uint32_t r = 0; r < 2; r++) {
            world_fill(&world->ranks[r], 9);
            world_save_with(&world->ranks[r], 10 + i, 60000, i == 5);
        }
        uint64_t stored = finish_saves(world);
        assert_int_equal(stored, is_full[i] ? total_bytes(world) : 0);
    }
    world_ranks_restart(world);
    world_restore_well(world, WORLD_LATEST);
    world_expect_state(world, 9);
}

/* Goal: while a connection is cut or the daemon dies, references stay what they are. */
TEST(references_survive_cuts)
{
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct world world;
        world_begin_with(
            &world, seed, 2,
            &(struct world_options){.encoding = seed % 2 ? ENCODE_DENSEST : ENCODE_NEVER});
        (void)save_all(&world, 5, 9);
        for (uint32_t i = 0; i < 2; i++) {
            world_fill(&world.ranks[i], 9);
            memset(world.ranks[i].memory, 0x31, 30000); /* of the replicated tensor */
            world_save(&world.ranks[i], 6, 60000);
        }
        sim_run_for(world.sim, seed % 10);
        if (seed % 4 < 2) {
            (void)sim_cut(world.sim, NULL, NULL);
        } else {
            world_server_kill(&world);
            sim_run_for(world.sim, 200);
            world_server_start(&world);
        }
        assert_true(finish_saves(&world) < 40000);
        world_ranks_restart(&world);
        world_restore_well(&world, WORLD_LATEST);
        for (uint32_t i = 0; i < 2; i++) {
            for (size_t at = 0; at < 30000; at++) {
                assert_int_equal(world.ranks[i].memory[at], 0x31);
            }
        }
        world_end(&world);
    }
}

/* Goal: an object of which less than half is in use is not referred to any more, so that it can go;
 * one that is used as a whole stays. */
WORLD_TEST(sparse_objects_are_left, 7, 1)
{
    (void)save_all(world, 5, 9);
    /* Two of the tensors change, and with them more than two thirds of the one object. */
    for (unsigned i = 0; i < 3; i++) {
        world_fill(&world->ranks[0], 9);
        memset(world->ranks[0].memory, 0x31, 62000);
        world_save(&world->ranks[0], 6 + i, 60000);
        uint64_t stored = finish_saves(world);
        if (i == 0) {
            assert_int_equal(stored, 48000 + 12000);
        } else if (i == 1) {
            assert_true(stored > 25600 && stored < 30000); /* what was left in it */
        } else {
            assert_int_equal(stored, 0);
        }
    }
    world_ranks_restart(world);
    world_restore_well(world, WORLD_LATEST);
    for (size_t at = 0; at < 48000; at++) {
        assert_int_equal(world->ranks[0].memory[at], 0x31);
    }
}

/* Goal: an aborted save is nobody's base. */
WORLD_TEST(aborted_saves_are_no_base, 8, 2)
{
    (void)save_all(world, 5, 9);
    world_save_all(world, 6, 10);
    sim_run_for(world->sim, 3);
    engine_save_abort(&world->ranks[1].save);
    world_await_saves(world, 60000);
    bool aborted = world->ranks[0].save_status != 0;
    uint64_t stored = save_all(world, 7, 10);
    assert_true(aborted);
    assert_int_equal(stored, total_bytes(world) - blob_bytes(world));
    world_ranks_restart(world);
    world_restore_well(world, WORLD_LATEST);
    world_expect_state(world, 10);
}

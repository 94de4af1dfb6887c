/* SPDX-License-Identifier: Apache-2.0
 *
 * A save that is handed over never uses memory again that the daemon may still read, and loses
 * nothing when the daemon stops taking arenas or the process is gone after "handed over". A
 * restore that lands in the client's memory is right even if the connection is cut meanwhile.
 * Method: the engine against the real server on the simulator, as on one machine.
 */
#include "base/log.h"
#include "engine/operations.h"
#include "engine_world.h"
#include "support/store_fault.h"
#include "support/unit_test.h"

static void begin(struct world *world, uint64_t step, uint8_t salt)
{
    for (uint32_t i = 0; i < world->world_size; i++) {
        world_fill(&world->ranks[i], salt);
        world_save(&world->ranks[i], step, 20000);
    }
}

static bool all_handed(void *user)
{
    const struct world *world = user;
    for (uint32_t i = 0; i < world->world_size; i++) {
        if (!world->ranks[i].handed) {
            return false;
        }
    }
    return true;
}

/* The server falls silent in the middle of a save, so nobody says what became of it. The next save
 * must not write into memory that the first one's descriptions point to: both have their own bytes.
 */
TEST(memory_of_an_unknown_outcome_is_not_reused)
{
    unsigned retired = 0;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct world world;
        world_begin(&world, seed, 2);
        begin(&world, 1, 3);
        sim_run_for(world.sim, 4 + seed);
        sim_partition(world.sim, "server", NULL, true);
        world_await_saves(&world, 60000);
        for (uint32_t i = 0; i < 2; i++) {
            struct world_rank *rank = &world.ranks[i];
            bool unknown = rank->save_status == CAIRN_E_OUTCOME_UNKNOWN;
            retired += unknown ? 1 : 0;
            if (unknown) {
                assert_int_equal(arena_bytes(rank->arena), 0);
                assert_int_equal(arena_used_bytes(rank->arena), 0);
            }
        }
        sim_partition(world.sim, "server", NULL, false);
        sim_run_for(world.sim, 5000);
        begin(&world, 2, 4);
        world_await_saves(&world, 60000);
        for (uint32_t i = 0; i < 2; i++) {
            if (world.ranks[i].save_status != 0) {
                fail_msg("seed %u: %s", (unsigned)seed, world.ranks[i].save.diag.text);
            }
        }
        world_expect_newest(&world, 2, 4);
        world_end(&world);
    }
    assert_true(retired > 5);
}

/* In the middle of a save the daemon is replaced by one that takes no arenas, and the connection to
 * that one may be lost as well. Payloads are small, so that there are several objects, of which
 * only some are durable then. With a base and an encoding the daemon packs them. */
TEST(a_daemon_that_takes_arenas_no_more)
{
    for (uint64_t ms = 0; ms < 120; ms++) {
        struct world world;
        bool packs = ms >= 60;
        world_begin_with(&world, ms + 1, 2,
                         &(struct world_options){.encoding = packs ? ENCODE_DENSEST : ENCODE_NEVER,
                                                 .buffer_bytes = 8 << 10,
                                                 .any_transport = true});
        begin(&world, 1, 5);
        sim_run_for(world.sim, ms % 60);
        world_server_kill(&world);
        sim_net_set(world.sim, &(struct sim_net_options){.no_fds = true});
        world_server_start(&world);
        sim_run_for(world.sim, ms % 7);
        for (uint32_t i = 0; i < 2 && ms % 3 > 0; i++) {
            link_reset(&world.ranks[i].engine->link, CAIRN_E_CONNECTION_LOST, "lost once more");
        }
        world_await_saves(&world, 60000);
        for (uint32_t i = 0; i < 2; i++) {
            if (world.ranks[i].save_status != 0) {
                fail_msg("after %u ms: %s", (unsigned)ms, world.ranks[i].save.diag.text);
            }
        }
        world_expect_newest(&world, 1, 5);
        world_end(&world);
    }
}

enum { OBJECT_BYTES = 56 << 10 };
#define OBJECT_PER_BUFFER .object_bytes = OBJECT_BYTES, .buffer_bytes = OBJECT_BYTES

/* Goal: a store that fails objects at different times does not fail the save: each is described
 * again, as often as it may be. Method: the seal of one object fails three times, then that of the
 * other, and the part is refused each time. */
WORLD_TEST_WITH(objects_that_fail_in_turn_are_described_again, 52, 1, .faults = true,
                OBJECT_PER_BUFFER)
{
    static const struct store_fault_rule rules[] = {
        {.kind = FAULT_DELAY, .op = STORE_WRITE, .skip = 1, .delay_ms = 2000},
        {.kind = FAULT_FAIL, .op = STORE_SEAL, .count = 3, .code = CAIRN_E_OUTCOME_UNKNOWN},
        {.kind = FAULT_DELAY, .op = STORE_SEAL},
        {.kind = FAULT_FAIL, .op = STORE_SEAL, .count = 3, .code = CAIRN_E_OUTCOME_UNKNOWN}};
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        assert_int_equal(store_fault_add(world->store, &rules[i]), 0);
    }
    begin(world, 1, 8);
    world_await_saves(world, 60000);
    if (world->ranks[0].save_status != 0) {
        fail_msg("%s", world->ranks[0].save.diag.text);
    }
    world_expect_newest(world, 1, 8);
}

/* Every rank was told "handed over", and no rank ever spoke to the server again. */
TEST(ranks_gone_after_the_hand_over_cost_nothing)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct world world;
        world_begin(&world, seed, 2);
        begin(&world, 1, 6);
        assert_true(sim_run_until(world.sim, all_handed, &world, 20000));
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(world.ranks[i].staged_status, 0);
            sim_kill(world.ranks[i].host, seed % 2 ? SIM_RESET : SIM_SILENT);
        }
        world_ranks_stop(&world);
        world_ranks_start(&world); /* another attempt; its restore waits where it must */
        world_expect_newest(&world, 1, 6);
        world_end(&world);
    }
}

/* --- the transport that was asked for --------------------------------------------------------- */

enum { SMALL_ARENA = 16 << 10 }; /* less than a rank's state: saves go in waves */

/* Under TRANSPORT_MEMFD (the world's) a save in waves is handed over although it has a base, which
 * the daemon cannot compare with then: all of it is stored again. By the socket nothing would be.
 */
WORLD_TEST_WITH(waves_with_a_base_are_handed_over, 51, 2, .arena_bytes = SMALL_ARENA)
{
    uint64_t stored[2] = {0, 0};
    for (unsigned step = 1; step <= 2; step++) {
        begin(world, step, 7);
        world_await_saves(world, 60000);
        for (uint32_t i = 0; i < 2; i++) {
            if (world->ranks[i].save_status != 0) {
                fail_msg("step %u: %s", step, world->ranks[i].save.diag.text);
            }
            stored[step - 1] += world->ranks[i].save.stored_bytes;
        }
    }
    assert_true(stored[0] > 4 * SMALL_ARENA);
    assert_int_equal(stored[1], stored[0]);
    world_expect_newest(world, 2, 7);
}

/* A dense encoding in waves needs the socket: with TRANSPORT_MEMFD that fails by name, saying what
 * to do; where any transport will do, it is saved. */
TEST(dense_waves_are_refused_by_name)
{
    for (unsigned any = 0; any < 2; any++) {
        struct world world;
        world_begin_with(&world, 52, 2,
                         &(struct world_options){.encoding = ENCODE_DENSEST,
                                                 .arena_bytes = SMALL_ARENA,
                                                 .any_transport = any != 0});
        begin(&world, 1, 8);
        world_await_saves(&world, 60000);
        for (uint32_t i = 0; i < 2; i++) {
            const struct world_rank *rank = &world.ranks[i];
            bool refused = rank->save_status == CAIRN_E_UNSUPPORTED;
            if (any ? rank->save_status != 0 : !refused) {
                fail_msg("rank %u: %d: %s", i, rank->save_status, rank->save.diag.text);
            }
            if (!any) {
                assert_non_null(strstr(rank->save.diag.text, "CAIRN_TRANSPORT=memfd"));
            }
        }
        world_end(&world);
    }
}

/* The same over a connection that passes no descriptors. */
TEST(dense_without_descriptors_is_refused_by_name)
{
    struct world world;
    world_init_with(&world, 53, 1, &(struct world_options){.encoding = ENCODE_DENSEST});
    sim_net_set(world.sim, &(struct sim_net_options){.no_fds = true});
    world_ranks_start(&world);
    begin(&world, 1, 8);
    world_await_saves(&world, 60000);
    assert_int_equal(world.ranks[0].save_status, CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(world.ranks[0].save.diag.text, "CAIRN_TRANSPORT=memfd"));
    world_end(&world);
}

/* --- restores --------------------------------------------------------------------------------- */

static unsigned landings;

static void count_landings(void *user, enum log_level level, const char *line, size_t bytes)
{
    landings += strstr(line, "writes what it reads into") != NULL;
}

static void save_one(struct world *world, uint64_t seed)
{
    world_init(world, 5 + seed, 2);
    world_ranks_start(world);
    begin(world, 1, 6);
    world_await_saves(world, 20000);
    world_ranks_restart(world);
}

TEST(what_is_restored_lands)
{
    struct world world;
    save_one(&world, 0);
    landings = 0;
    log_setup(LOG_DEBUG, LOG_TEXT);
    log_set_sink(count_landings, NULL);
    world_expect_newest(&world, 1, 6);
    log_set_sink(NULL, NULL);
    log_setup(LOG_INFO, LOG_TEXT);
    assert_int_equal(landings, 2);
    world_end(&world);
}

/* What the daemon still writes then goes into memory that is not looked at any more. */
TEST(a_cut_while_reads_land)
{
    for (unsigned seed = 0; seed < 30; seed++) {
        struct world world;
        save_one(&world, seed);
        for (uint32_t i = 0; i < world.world_size; i++) {
            world_fill(&world.ranks[i], 0x77);
            world_restore(&world.ranks[i], WORLD_LATEST, 60000);
        }
        sim_run_for(world.sim, seed / 2);
        (void)sim_cut(world.sim, NULL, NULL);
        world_await_restores(&world, 120000);
        for (uint32_t i = 0; i < world.world_size; i++) {
            assert_int_equal(world.ranks[i].restore_status, 0);
            assert_true(world_has(&world.ranks[i], 6));
        }
        world_end(&world);
    }
}

enum { OTHER_WORKS = 40 };

static bool all_restored(const struct world *world)
{
    for (uint32_t i = 0; i < world->world_size; i++) {
        if (!world->ranks[i].restore_done) {
            return false;
        }
    }
    return true;
}

static void do_nothing(struct work *work) { (void)work; }

/* Goal: whatever a restore waits for when the connection goes, it goes on over the next one; in
 * particular nothing is asked while its requests are told, when there is no connection any more.
 * Method: the connections are cut after 0, 3, 6, ... events, until the restore ends before. Other
 * work is in front of the making of the landing, so that READs wait for it. */
TEST(a_cut_at_any_event_of_a_restore)
{
    bool ended = false;
    for (unsigned events = 0; !ended; events += 3) {
        struct world world;
        struct work works[2][OTHER_WORKS];
        save_one(&world, 0);
        for (uint32_t i = 0; i < world.world_size; i++) {
            for (size_t k = 0; k < OTHER_WORKS; k++) {
                works[i][k] = (struct work){.run = do_nothing, .done = do_nothing};
                work_submit(sim_pool(world.ranks[i].host), &works[i][k]);
            }
            world_fill(&world.ranks[i], 0x77);
            world_restore(&world.ranks[i], WORLD_LATEST, 60000);
        }
        for (unsigned i = 0; i < events; i++) {
            assert_true(sim_step(world.sim));
        }
        ended = all_restored(&world);
        (void)sim_cut(world.sim, NULL, NULL);
        world_await_restores(&world, 120000);
        for (uint32_t i = 0; i < world.world_size; i++) {
            assert_int_equal(world.ranks[i].restore_status, 0);
            assert_true(world_has(&world.ranks[i], 6));
        }
        world_end(&world);
    }
}

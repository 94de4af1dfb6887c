/* SPDX-License-Identifier: Apache-2.0
 *
 * Several saves may be in flight, each with the contents of its moment; one that finds no room
 * waits, is skipped or is refused on all ranks alike; one that would wait for a server that is away
 * is skipped in time; a save larger than its arena goes in waves; a lazy save detects what changed
 * too early. Method: the engine against the real server on the
 * simulator.
 */
#include <stdio.h>

#include "engine/operations.h"
#include "engine_world.h"
#include "support/unit_test.h"

/* One of several saves of a rank. */
struct flight {
    struct engine_save save;
    struct world_rank *rank;
    bool released, staged, done;
    int staged_status, status;
    uint64_t bytes_when_released; /* of the layout: 0 where there was none yet */
    uint8_t fill_when_staged;     /* 0: the memory stays as it is */
    struct flight *next;          /* started when this one is staged */
};

static void fly(struct flight *flight, struct world_rank *rank, uint64_t step);

static void on_released(struct engine_save *save)
{
    struct flight *flight = container_of(save, struct flight, save);
    assert_false(flight->released);
    assert_false(flight->staged);
    flight->released = true;
    flight->bytes_when_released = atomic_load(&save->total_bytes);
}

static void on_staged(struct engine_save *save, int status)
{
    struct flight *flight = container_of(save, struct flight, save);
    assert_false(flight->staged);
    flight->staged = true;
    flight->staged_status = status;
    if (status == 0 && flight->fill_when_staged != 0) {
        world_fill(flight->rank, flight->fill_when_staged);
    }
    if (flight->next) {
        fly(flight->next, flight->rank, save->step + 1);
    }
}

static void on_done(struct engine_save *save, int status)
{
    struct flight *flight = container_of(save, struct flight, save);
    assert_true(flight->staged);
    assert_false(flight->done);
    flight->done = true;
    flight->status = status;
}

static void fly(struct flight *flight, struct world_rank *rank, uint64_t step)
{
    flight->rank = rank;
    flight->save.step = step;
    flight->save.deadline_ms = flight->save.deadline_ms ? flight->save.deadline_ms : 60000;
    flight->save.set = rank->set;
    flight->save.on_released = on_released;
    flight->save.on_staged = on_staged;
    flight->save.on_done = on_done;
    engine_save_start(rank->engine, &flight->save);
}

struct waited {
    struct flight *flights;
    unsigned count;
};

static bool all_done(void *user)
{
    const struct waited *waited = user;
    for (unsigned i = 0; i < waited->count; i++) {
        if (!waited->flights[i].done) {
            return false;
        }
    }
    return true;
}

static void await(struct world *world, unsigned count, struct flight flights[])
{
    struct waited waited = {flights, count};
    assert_true(sim_run_until(world->sim, all_done, &waited, 120000));
}

static void expect_status(unsigned count, const struct flight flights[], int status)
{
    for (unsigned i = 0; i < count; i++) {
        if (flights[i].status != status) {
            fail_msg("flight %u: %d, not %d: %s", i, flights[i].status, status,
                     flights[i].save.diag.text);
        }
    }
}

static void expect_restored(struct world *world, uint64_t step, uint8_t salt)
{
    world_restore_well(world, step == 0 ? WORLD_LATEST : WORLD_STEP(step));
    world_expect_state(world, salt);
}

/* Ranks begin apart, or out of reach. */
enum { AGREE_MS = 100 };

static void begin(struct world *world, uint64_t seed, uint32_t size, uint64_t arena_bytes,
                  unsigned snapshots)
{
    world_begin_with(world, seed, size,
                     &(struct world_options){.arena_bytes = arena_bytes,
                                             .snapshots = snapshots,
                                             .agree_wait_ms = AGREE_MS});
}

/* --- several in flight ------------------------------------------------------------ */

/* Goal: with room for n, n saves are in flight at once, and each has the contents of its moment.
 * Method: the server is out of reach until all are staged, and the memory changes in between. */
static void n_saves_are_in_flight(unsigned n)
{
    struct world world;
    struct flight flights[3][2] = {0};
    begin(&world, 40 + n, 2, 0, n);
    world_fill(&world.ranks[0], 1);
    world_fill(&world.ranks[1], 1);
    sim_partition(world.sim, NULL, NULL, true);
    for (unsigned i = 0; i < n; i++) {
        for (unsigned r = 0; r < 2; r++) {
            flights[i][r].save.deadline_ms = 600000;
            flights[i][r].fill_when_staged = (uint8_t)(i + 2);
            fly(&flights[i][r], &world.ranks[r], i + 1);
        }
        for (unsigned r = 0; r < 2; r++) {
            assert_true(sim_await(world.sim, &flights[i][r].staged, 1000));
        }
    }
    for (unsigned i = 0; i < n; i++) {
        assert_false(flights[i][0].done);
        assert_int_equal(flights[i][0].staged_status, 0);
    }
    assert_true(arena_used_bytes(world.ranks[0].arena) * (n + 1) >
                arena_bytes(world.ranks[0].arena) * n);
    sim_partition(world.sim, NULL, NULL, false);
    await(&world, 2 * n, flights[0]);
    expect_status(2 * n, flights[0], 0);
    for (unsigned i = 0; i < n; i++) {
        expect_restored(&world, i + 1, (uint8_t)(i + 1));
    }
    world_end(&world);
}

TEST(two_saves_are_in_flight) { n_saves_are_in_flight(2); }

TEST(three_saves_are_in_flight) { n_saves_are_in_flight(3); }

/* Goal: by default the one that finds no room waits for it, and then goes on. */
WORLD_TEST_WITH(without_room_a_save_waits, 45, 1, .snapshots = 1, .agree_wait_ms = AGREE_MS)
{
    struct flight flights[3] = {
        {.fill_when_staged = 2}, {.fill_when_staged = 3}, {.fill_when_staged = 0}};
    world_fill(&world->ranks[0], 1);
    flights[0].next = &flights[1];
    flights[1].next = &flights[2];
    fly(&flights[0], &world->ranks[0], 1);
    assert_true(sim_await(world->sim, &flights[0].staged, 1000));
    assert_false(flights[1].staged);
    await(world, 3, flights);
    expect_status(3, flights, 0);
    for (unsigned i = 0; i < 3; i++) {
        expect_restored(world, i + 1, (uint8_t)(i + 1));
    }
}

/* --- skip and fail ----------------------------------------------------------------- */

/* Goal: one rank without room ends the step on all ranks alike, by name, at once. Method: rank
 * `full` has room for one save, the others for two; rank 0 opens late or early. known: a save has
 * been committed before, so that nobody asks who writes what. */
static void all_end_alike(unsigned full, enum when_full policy, int code, bool known)
{
    struct world world;
    struct flight flights[2][3] = {0};
    begin(&world, 50 + full, 3, 0, 2);
    arena_set_snapshots(world.ranks[full].arena, 1);
    struct flight first[3] = {0};
    for (unsigned r = 0; known && r < 3; r++) {
        fly(&first[r], &world.ranks[r], 0);
    }
    if (known) {
        await(&world, 3, first);
        expect_status(3, first, 0);
    }
    for (unsigned r = 0; r < 3; r++) {
        world_fill(&world.ranks[r], 1);
        flights[0][r].save.when_full = policy;
        flights[0][r].save.deadline_ms = 600000;
        fly(&flights[0][r], &world.ranks[r], 1);
        assert_true(sim_await(world.sim, &flights[0][r].staged, 1000));
        assert_int_equal(flights[0][r].staged_status, 0); /* the first finds room */
    }
    sim_partition(world.sim, NULL, NULL, true); /* so that step 1 is in flight for certain */
    sim_run_for(world.sim, 3000);
    bool in_flight = !flights[0][full].done;
    for (unsigned r = 0; r < 3; r++) {
        flights[1][r].save.when_full = policy;
        fly(&flights[1][r], &world.ranks[r], 2);
        assert_true(sim_await(world.sim, &flights[1][r].staged, 1000));
    }
    if (in_flight) {
        assert_true(flights[1][full].save.refused);
        assert_int_equal(flights[1][full].staged_status, code);
        assert_non_null(strstr(flights[1][full].save.diag.text, "step 1"));
    }
    sim_partition(world.sim, NULL, NULL, false);
    await(&world, 6, flights[0]);
    expect_status(3, flights[0], 0);
    assert_true(in_flight);
    expect_status(3, flights[1], code);
    char who[32];
    snprintf(who, sizeof who, "rank %u has no room for step 2", full);
    for (unsigned r = 0; r < 3; r++) {
        assert_non_null(strstr(flights[1][r].save.diag.text, who));
    }
    struct flight again[3] = {0}; /* the run is none the worse, and the same step can be saved */
    for (unsigned r = 0; r < 3; r++) {
        world_fill(&world.ranks[r], 9);
        again[r].save.when_full = policy;
        fly(&again[r], &world.ranks[r], 2);
    }
    await(&world, 3, again);
    expect_status(3, again, 0);
    expect_restored(&world, 2, 9);
    world_end(&world);
}

TEST(a_skip_is_the_same_on_all_ranks)
{
    for (unsigned full = 0; full < 3; full++) {
        all_end_alike(full, WHEN_FULL_SKIP, CAIRN_E_SKIPPED, false);
        all_end_alike(full, WHEN_FULL_SKIP, CAIRN_E_SKIPPED, true);
    }
}

TEST(a_refusal_is_the_same_on_all_ranks)
{
    for (unsigned full = 0; full < 3; full++) {
        all_end_alike(full, WHEN_FULL_FAIL, CAIRN_E_BUSY, false);
        all_end_alike(full, WHEN_FULL_FAIL, CAIRN_E_BUSY, true);
    }
}

/* Goal: a rank that cannot save, for a reason of its caller's, ends the step on all ranks at once
 * with that reason, and the next save is whole. known: as above. */
static void own_refusal(unsigned who, bool known)
{
    struct world world;
    struct flight flights[2][3] = {0}, first[3] = {0};
    world_init(&world, 60 + who, 3);
    world_ranks_start(&world);
    for (unsigned r = 0; known && r < 3; r++) {
        fly(&first[r], &world.ranks[r], 0);
    }
    if (known) {
        await(&world, 3, first);
    }
    diag_set(&flights[0][who].save.refusal, CAIRN_E_UNSUPPORTED, "its state holds a socket");
    for (unsigned r = 0; r < 3; r++) {
        world_fill(&world.ranks[r], 1);
        flights[0][r].save.deadline_ms = 600000;
        fly(&flights[0][r], &world.ranks[r], 1);
    }
    await(&world, 3, flights[0]); /* long before the deadline */
    expect_status(3, flights[0], CAIRN_E_UNSUPPORTED);
    assert_true(flights[0][who].save.refused);
    for (unsigned r = 0; r < 3; r++) {
        assert_non_null(strstr(flights[0][r].save.diag.text, "its state holds a socket"));
        world_fill(&world.ranks[r], 9);
        fly(&flights[1][r], &world.ranks[r], 2);
    }
    await(&world, 3, flights[1]);
    expect_status(3, flights[1], 0);
    expect_restored(&world, 2, 9);
    world_end(&world);
}

TEST(a_callers_refusal_is_the_same_on_all_ranks)
{
    for (unsigned who = 0; who < 3; who++) {
        own_refusal(who, false);
        own_refusal(who, true);
    }
}

/* Goal: a rank alone skips without a word to the server, and names what is in flight. */
WORLD_TEST_WITH(a_rank_alone_skips_at_once, 55, 1, .snapshots = 1, .agree_wait_ms = AGREE_MS)
{
    struct flight flights[2] = {{.save.deadline_ms = 600000}, {.save.when_full = WHEN_FULL_SKIP}};
    sim_partition(world->sim, NULL, NULL, true);
    world_fill(&world->ranks[0], 1);
    fly(&flights[0], &world->ranks[0], 1);
    assert_true(sim_await(world->sim, &flights[0].staged, 1000));
    fly(&flights[1], &world->ranks[0], 2);
    await(world, 1, &flights[1]);
    assert_int_equal(flights[1].status, CAIRN_E_SKIPPED);
    assert_non_null(strstr(flights[1].save.diag.text, "1 in flight (step 1)"));
    assert_false(flights[0].done);
    sim_partition(world->sim, NULL, NULL, false);
    await(world, 1, flights);
    expect_status(1, flights, 0);
}

/* --- no server --------------------------------------------------------------------- */

static void begin_down(struct world *world, uint64_t seed, uint32_t size, uint64_t arena_bytes)
{
    world_begin_with(world, seed, size,
                     &(struct world_options){.arena_bytes = arena_bytes,
                                             .agree_wait_ms = 100,
                                             .when_down = WHEN_DOWN_SKIP});
    world_save_well(world, 1, 1);
}

/* Begins a save of each rank, and expects that each caller may go on in this time. */
static void save_in_time(struct world *world, struct flight flights[], uint64_t step, uint64_t ms)
{
    for (uint32_t r = 0; r < world->world_size; r++) {
        flights[r].save.deadline_ms = 600000;
        fly(&flights[r], &world->ranks[r], step);
    }
    for (uint32_t r = 0; r < world->world_size; r++) {
        if (!sim_await(world->sim, &flights[r].staged, ms)) {
            fail_msg("rank %u waits at step %llu", r, (unsigned long long)step);
        }
    }
}

/* Goal: while the server is away the save that has room is kept, and those behind it are skipped on
 * all ranks; when it is back, the one that was kept becomes durable, and the next one goes. */
static void without_a_server_saves_are_skipped(uint32_t size, bool is_killed, bool lazy)
{
    enum { SKIPPED = 40 };
    struct world world;
    static struct flight flights[SKIPPED + 2][2];
    memset(flights, 0, sizeof flights);
    begin_down(&world, 70 + size, size, 0);
    if (is_killed) {
        world_server_kill(&world);
    } else {
        sim_partition(world.sim, NULL, NULL, true);
    }
    for (unsigned i = 0; i <= SKIPPED; i++) {
        for (uint32_t r = 0; r < size; r++) {
            flights[i][r].save.lazy = lazy;
        }
        save_in_time(&world, flights[i], 2 + i, i == 1 ? 4500 : 1000);
        assert_int_equal(flights[i][0].staged_status, i == 0 ? 0 : CAIRN_E_SKIPPED);
        assert_true(i == 0 || flights[i][0].save.refused);
    }
    assert_non_null(strstr(flights[3][0].save.diag.text, "the server is away"));
    assert_false(flights[0][0].done);
    if (is_killed) {
        world_server_start(&world);
    } else {
        sim_partition(world.sim, NULL, NULL, false);
    }
    for (unsigned i = 0; i <= SKIPPED; i++) {
        await(&world, size, flights[i]);
        expect_status(size, flights[i], i == 0 ? 0 : CAIRN_E_SKIPPED);
    }
    save_in_time(&world, flights[SKIPPED + 1], 100, 1000);
    await(&world, size, flights[SKIPPED + 1]);
    expect_status(size, flights[SKIPPED + 1], 0);
    world_end(&world);
}

TEST(saves_are_skipped_while_the_server_is_dead)
{
    without_a_server_saves_are_skipped(1, true, false);
    without_a_server_saves_are_skipped(2, true, false);
    without_a_server_saves_are_skipped(2, true, true);
}

TEST(saves_are_skipped_while_the_server_is_silent)
{
    without_a_server_saves_are_skipped(1, false, false);
    without_a_server_saves_are_skipped(2, false, true);
}

static void cut_off(struct world *world, unsigned rank, bool is_cut)
{
    sim_partition(world->sim, sim_host_name(world->ranks[rank].host), NULL, is_cut);
    sim_partition(world->sim, NULL, sim_host_name(world->ranks[rank].host), is_cut);
}

/* Goal: one rank has no way to the server. It skips, the other one does not wait for it for long,
 * and both end alike. */
TEST(a_rank_that_is_cut_off_holds_up_nobody)
{
    struct world world;
    struct flight flights[4][2] = {0};
    begin_down(&world, 80, 2, 0);
    cut_off(&world, 1, true);
    save_in_time(&world, flights[0], 2, 1000);
    save_in_time(&world, flights[1], 3, 6000);
    save_in_time(&world, flights[2], 4, 1000);
    cut_off(&world, 1, false);
    for (unsigned i = 0; i < 3; i++) {
        await(&world, 2, flights[i]);
        expect_status(2, flights[i], i == 0 ? 0 : CAIRN_E_SKIPPED);
    }
    save_in_time(&world, flights[3], 5, 1000);
    await(&world, 2, flights[3]);
    expect_status(2, flights[3], 0);
    world_end(&world);
}

/* Goal: a rank that has skipped many saves still tells of the first one, which another rank has
 * kept. Method: rank `who` is cut off with a save that only it has begun and that holds its room;
 * the other one keeps the next step, and skips those behind it. */
static void many_skips_are_told(unsigned who)
{
    enum { SKIPPED = 60 };
    struct world world;
    static struct flight flights[SKIPPED + 1][2];
    struct flight lone = {.save.deadline_ms = 20000};
    memset(flights, 0, sizeof flights);
    begin_down(&world, 90 + who, 2, 0);
    cut_off(&world, who, true);
    fly(&lone, &world.ranks[who], 2);
    assert_true(sim_await(world.sim, &lone.staged, 1000));
    for (unsigned i = 0; i < SKIPPED; i++) {
        save_in_time(&world, flights[i], 3 + i, 6000);
    }
    assert_int_equal(flights[0][who].staged_status, CAIRN_E_SKIPPED);
    assert_int_equal(flights[0][1 - who].staged_status, 0);
    cut_off(&world, who, false);
    for (unsigned i = 0; i < SKIPPED; i++) {
        await(&world, 2, flights[i]); /* long before the deadlines */
        expect_status(2, flights[i], CAIRN_E_SKIPPED);
    }
    await(&world, 1, &lone);
    save_in_time(&world, flights[SKIPPED], 100, 1000);
    await(&world, 2, flights[SKIPPED]);
    expect_status(2, flights[SKIPPED], 0);
    world_end(&world);
}

TEST(a_skipped_save_is_told_however_many_follow)
{
    many_skips_are_told(1);
    many_skips_are_told(0);
}

/* Goal: closing forgets what is to be told. */
TEST(what_is_untold_ends_with_the_engine)
{
    struct world world;
    static struct flight flights[40][2];
    memset(flights, 0, sizeof flights);
    begin_down(&world, 92, 2, 0);
    cut_off(&world, 1, true);
    for (unsigned i = 0; i < 40; i++) {
        save_in_time(&world, flights[i], 2 + i, 6000);
    }
    world_end(&world);
}

/* Goal: an outage holds up the training once, though this rank's own connection comes and goes. */
TEST(an_outage_holds_up_once)
{
    struct world world;
    struct flight flights[8][2] = {0};
    begin_down(&world, 93, 2, 0);
    cut_off(&world, 1, true);
    save_in_time(&world, flights[0], 2, 1000);
    save_in_time(&world, flights[1], 3, 6000);
    for (unsigned i = 2; i < 7; i++) {
        (void)sim_cut(world.sim, NULL, NULL);
        sim_run_for(world.sim, 400); /* rank 0 is connected again */
        assert_true(link_is_up(&world.ranks[0].engine->link));
        save_in_time(&world, flights[i], 2 + i, 1000);
        assert_int_equal(flights[i][0].staged_status, CAIRN_E_SKIPPED);
    }
    cut_off(&world, 1, false);
    for (unsigned i = 0; i < 7; i++) {
        await(&world, 2, flights[i]);
        expect_status(2, flights[i], i == 0 ? 0 : CAIRN_E_SKIPPED);
    }
    save_in_time(&world, flights[7], 100, 1000);
    await(&world, 2, flights[7]);
    expect_status(2, flights[7], 0);
    assert_false(world.ranks[0].engine->outage);
    world_end(&world);
}

/* Goal: a save that is larger than its arena does not wait for the server with half a copy. */
TEST(a_save_in_waves_is_skipped_too)
{
    struct world world;
    struct flight flights[2][2] = {0};
    begin_down(&world, 81, 2, 12 << 10);
    world_server_kill(&world);
    save_in_time(&world, flights[0], 2, 1500);
    assert_int_equal(flights[0][0].staged_status, CAIRN_E_SKIPPED);
    world_server_start(&world);
    await(&world, 2, flights[0]);
    expect_status(2, flights[0], CAIRN_E_SKIPPED);
    save_in_time(&world, flights[1], 3, 5000);
    await(&world, 2, flights[1]);
    expect_status(2, flights[1], 0);
    world_end(&world);
}

/* Goal: the deadline of a save that was kept for the server ends it as skipped, not as failed. */
TEST(a_kept_save_ends_as_skipped)
{
    struct world world;
    struct flight flight = {.save.deadline_ms = 3000};
    begin_down(&world, 82, 1, 0);
    world_server_kill(&world);
    fly(&flight, &world.ranks[0], 2);
    await(&world, 1, &flight);
    assert_int_equal(flight.staged_status, 0);
    assert_int_equal(flight.status, CAIRN_E_SKIPPED);
    assert_non_null(strstr(flight.save.diag.text, "the server is away"));
    world_server_start(&world);
    world_end(&world);
}

/* Goal: with WHEN_DOWN_TRAIN ranks begin without a server, a restore fails by name, and saves go
 * when the server has come. */
TEST(ranks_begin_without_a_server)
{
    struct world world;
    struct flight flights[2][2] = {0};
    world_init_with(&world, 83, 2,
                    &(struct world_options){.agree_wait_ms = 100, .when_down = WHEN_DOWN_TRAIN});
    world_server_kill(&world);
    world_ranks_start(&world);
    assert_int_equal(world.ranks[0].ready_status, 0);
    save_in_time(&world, flights[0], 1, 1000);
    assert_int_equal(flights[0][1].staged_status, CAIRN_E_SKIPPED);
    world_restore_all(&world, WORLD_LATEST, 7000);
    assert_int_equal(world.ranks[0].restore_status, CAIRN_E_UNREACHABLE);
    assert_non_null(strstr(world.ranks[0].restore.diag.text, "the state in memory is as it was"));
    world_server_start(&world);
    await(&world, 2, flights[0]);
    expect_status(2, flights[0], CAIRN_E_SKIPPED);
    world_save_well(&world, 2, 2);
    world_expect_newest(&world, 2, 2);
    world_end(&world);
}

/* --- waves ------------------------------------------------------------------------- */

enum { STATE_BYTES = 92 << 10, EIGHTH = STATE_BYTES / 8 };

/* Goal: an arena of an eighth of the state holds the save, whatever happens to the daemon, and
 * never grows. Method: kill the daemon at a random moment, many seeds. */
TEST(waves_survive_a_killed_daemon)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world world;
        struct flight flights[2] = {{.fill_when_staged = 0xee}, {.fill_when_staged = 0xee}};
        begin(&world, seed, seed % 2 + 1, seed % 3 == 0 ? 2 * 4096 : EIGHTH, 0);
        for (unsigned r = 0; r < world.world_size; r++) {
            world_fill(&world.ranks[r], (uint8_t)seed);
            fly(&flights[r], &world.ranks[r], 1);
        }
        sim_run_for(world.sim, sim_below(world.sim, 120));
        world_server_kill(&world);
        world_server_start(&world);
        await(&world, world.world_size, flights);
        expect_status(world.world_size, flights, 0);
        for (unsigned r = 0; r < world.world_size; r++) {
            assert_int_equal(flights[r].save.staged_bytes, flights[r].save.total_bytes);
            assert_int_equal(flights[r].save.durable_bytes, flights[r].save.total_bytes);
            assert_true(flights[r].save.total_bytes > 3 * arena_bytes(world.ranks[r].arena));
            assert_true(arena_bytes(world.ranks[r].arena) <= EIGHTH + 4096);
        }
        expect_restored(&world, 0, (uint8_t)seed);
        world_end(&world);
    }
}

static void cut_all(void *user) { (void)sim_cut(((struct world *)user)->sim, NULL, NULL); }

/* Goal: reconnects in the middle of waves, with a second save behind; nothing is sent that is not
 * in the arena any more. */
TEST(waves_survive_cut_connections)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct world world;
        struct flight flights[2][2] = {{{.fill_when_staged = 5}, {.fill_when_staged = 5}}};
        begin(&world, seed + 200, 2, EIGHTH, 0);
        for (unsigned r = 0; r < 2; r++) {
            world_fill(&world.ranks[r], 4);
            flights[0][r].next = &flights[1][r];
            fly(&flights[0][r], &world.ranks[r], 1);
        }
        for (unsigned i = 0; i < 6; i++) {
            sim_at(world.sim, sim_below(world.sim, 300), cut_all, &world);
        }
        await(&world, 4, flights[0]);
        expect_status(4, flights[0], 0);
        expect_restored(&world, 1, 4);
        expect_restored(&world, 2, 5);
        world_end(&world);
    }
}

/* Goal: aborting and closing at any moment of a save in waves leaves nothing behind. */
TEST(waves_end_at_any_moment)
{
    for (uint64_t ms = 0; ms < 90; ms += 3) {
        struct world world;
        struct flight flight = {0};
        begin(&world, ms + 1, 1, EIGHTH, 0);
        world_fill(&world.ranks[0], 1);
        fly(&flight, &world.ranks[0], 1);
        sim_run_for(world.sim, ms);
        if (ms % 2 == 0) {
            engine_save_abort(&flight.save);
            await(&world, 1, &flight);
            assert_true(flight.status == CAIRN_E_CANCELLED || flight.status == 0);
            assert_int_equal(arena_used_bytes(world.ranks[0].arena), 0);
        }
        world_end(&world);
        assert_true(flight.done);
    }
}

/* Goal: an arena that cannot even hold two payloads is refused, and the text says what would do. */
WORLD_TEST_WITH(an_arena_without_room_for_two_payloads_is_too_small, 60, 1, .arena_bytes = 4096,
                .agree_wait_ms = AGREE_MS)
{
    struct flight flight = {0};
    world_fill(&world->ranks[0], 1);
    fly(&flight, &world->ranks[0], 1);
    await(world, 1, &flight);
    assert_int_equal(flight.status, CAIRN_E_ARENA_TOO_SMALL);
    assert_non_null(strstr(flight.save.diag.text, "needs 8192 at least"));
}

/* --- lazy -------------------------------------------------------------------------- */

/* Goal: a lazy save lets its caller go before the copy is made; eager tensors are copied by then,
 * and may change. Method: the eager tensor is overwritten at on_released. */
TEST(eager_tensors_are_copied_before_the_release)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world world;
        struct flight flight = {.save = {.lazy = true}};
        world_begin_with(
            &world, 70 + seed, 1,
            &(struct world_options){.eager = true, .arena_bytes = seed % 2 == 0 ? EIGHTH : 0});
        struct world_rank *rank = &world.ranks[0];
        world_fill(rank, 3);
        fly(&flight, rank, 1);
        while (!flight.released) {
            sim_run_for(world.sim, 1);
        }
        memset(rank->memory + 70000, 0xdd, 100 * 64 * 4);
        await(&world, 1, &flight);
        expect_status(1, &flight, 0);
        expect_restored(&world, 0, 3);
        world_end(&world);
    }
}

/* Goal: without eager tensors the caller goes on before anything was laid out or copied, and
 * somebody who waits hurries the copy. */
WORLD_TEST_WITH(a_lazy_save_returns_before_it_copies, 80, 1, .agree_wait_ms = AGREE_MS)
{
    struct flight flight = {.save = {.lazy = true}, .fill_when_staged = 0xee};
    world_fill(&world->ranks[0], 3);
    fly(&flight, &world->ranks[0], 1);
    assert_true(sim_await(world->sim, &flight.released, 10));
    assert_true(flight.released);
    assert_false(flight.staged);
    assert_int_equal(flight.save.staged_bytes, 0);
    assert_int_equal(flight.bytes_when_released, 0);
    engine_save_hurry(&flight.save);
    await(world, 1, &flight);
    expect_status(1, &flight, 0);
    assert_true(flight.save.total_bytes > 0);
    expect_restored(world, 0, 3);
}

/* Goal: state that changes before STAGED fails the save by the name of a tensor, and what does not
 * change passes. Method: one byte (full) or all of a tensor (sampled) is changed after the release.
 */
TEST(changed_state_is_detected)
{
    for (unsigned kind = WATCH_SAMPLED; kind <= WATCH_FULL; kind++) {
        for (unsigned change = 0; change < 2; change++) {
            struct world world;
            struct flight flight = {.save = {.lazy = true, .watch = kind}};
            begin(&world, 90 + kind, 1, EIGHTH, 0); /* in waves: it takes its time */
            struct world_rank *rank = &world.ranks[0];
            world_fill(rank, 3);
            fly(&flight, rank, 1);
            while (!flight.released) {
                sim_run_for(world.sim, 1);
            }
            assert_false(flight.staged);
            if (change && kind == WATCH_FULL) {
                rank->memory[100000 + 70 * 30 - 1] ^= 1; /* the last byte of "rng" */
            } else if (change) {
                memset(rank->memory + 100000, 0xdd, 70 * 30);
            }
            await(&world, 1, &flight);
            assert_int_equal(flight.status, change ? CAIRN_E_DIGEST_MISMATCH : 0);
            if (change) {
                assert_non_null(strstr(flight.save.diag.text, "'rng'"));
                assert_int_not_equal(flight.staged_status, 0);
            } else {
                expect_restored(&world, 0, 3);
            }
            world_end(&world);
        }
    }
}

/* Goal: the samples see a change all over a large run of bytes, and a digest is the same for the
 * same bytes. */
TEST(samples_see_what_an_optimizer_does)
{
    static uint8_t bytes[(4 << 20) + 100];
    const size_t sizes[] = {1, 64, 4096, 4097, 65536, 70000, 1 << 20, sizeof bytes};
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t b = 0; b < sizes[i]; b++) {
            bytes[b] = (uint8_t)(b * 7);
        }
        uint64_t before = watch_digest(WATCH_SAMPLED, sizes[i], bytes);
        assert_true(before == watch_digest(WATCH_SAMPLED, sizes[i], bytes));
        for (size_t b = 0; b < sizes[i]; b += 4) {
            bytes[b]++; /* the low byte of each float */
        }
        assert_true(before != watch_digest(WATCH_SAMPLED, sizes[i], bytes));
    }
}

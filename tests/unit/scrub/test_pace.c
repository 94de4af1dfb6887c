/* SPDX-License-Identifier: Apache-2.0
 *
 * A scrub keeps its rate over time, and takes its share beside sessions that move bytes.
 */
#include "scrub/pace.h"

#include "support/unit_test.h"

#define MS UINT64_C(1000000)
enum { READ = 4 << 20 };

struct world {
    struct pace pace;
    uint64_t now, load, load_per_ms, read_ms;
};

static struct world world_new(uint64_t rate)
{
    struct world world = {.now = 77 * MS, .read_ms = 3};
    pace_init(&world.pace, rate);
    return world;
}

/* Reads as often as it may for so long; each read takes read_ms. Returns the bytes. */
static uint64_t run(struct world *world, uint64_t ms)
{
    uint64_t end = world->now + ms * MS, bytes = 0;
    while (world->now < end) {
        uint64_t wait = pace_wait_ms(&world->pace, world->now, world->load);
        uint64_t step = wait > 0 ? wait : world->read_ms;
        if (wait == 0) {
            bytes += READ;
            pace_charge(&world->pace, world->now, READ);
        }
        world->now += step * MS;
        world->load += step * world->load_per_ms;
    }
    return bytes;
}

/* Goal: at a set rate, within a tenth, also when single reads are slow now and then. */
TEST(test_rate_is_kept)
{
    static const uint64_t rates[] = {UINT64_C(1) << 20, UINT64_C(50) << 20, UINT64_C(300) << 20};
    for (size_t i = 0; i < 3; i++) {
        struct world world = world_new(rates[i]);
        uint64_t begin = world.now, bytes = 0;
        for (unsigned s = 0; s < 60; s++) {
            world.read_ms = s % 7 == 0 ? 12 : 3;
            bytes += run(&world, 1000);
        }
        uint64_t due = rates[i] * ((world.now - begin) / MS / 1000);
        assert_true(bytes > due - due / 10);
        assert_true(bytes < due + due / 10);
    }
}

/* Goal: after a pause there is no storm. */
TEST(test_a_pause_is_not_caught_up)
{
    struct world world = world_new(100 << 20);
    run(&world, 1000);
    world.now += 60000 * MS;
    assert_true(run(&world, 1000) < (uint64_t)140 << 20);
}

/* Goal: a new rate holds from now on: what was read at a slow one, which would have kept it waiting
 * for an hour, is paid; without a rate nothing waits. */
TEST(test_a_new_rate)
{
    struct world world = world_new(1 << 10);
    pace_charge(&world.pace, world.now, READ);
    assert_true(pace_wait_ms(&world.pace, world.now, world.load) > 1000);
    pace_set_rate(&world.pace, 100 << 20);
    uint64_t bytes = run(&world, 1000);
    assert_true(bytes > (uint64_t)90 << 20);
    assert_true(bytes < (uint64_t)140 << 20);
    pace_set_rate(&world.pace, 1 << 10);
    pace_charge(&world.pace, world.now, READ);
    pace_set_rate(&world.pace, 0);
    assert_int_equal(pace_wait_ms(&world.pace, world.now, world.load), 0);
    assert_true(run(&world, 1000) > (uint64_t)1000 << 20);
}

/* Goal: beside sessions that move bytes, a fiftieth of them; and the full rate again afterwards. */
TEST(test_it_yields)
{
    struct world world = world_new(0);
    (void)pace_wait_ms(&world.pace, world.now, world.load);
    world.load_per_ms = 500 << 10; /* 500 MiB/s */
    uint64_t bytes = run(&world, 10000);
    assert_true(bytes <= world.load / PACE_SHARE + (uint64_t)2 * READ);
    assert_true(bytes >= world.load / PACE_SHARE / 2);
    assert_true(pace_is_yielding(&world.pace, world.now));
    world.load_per_ms = 0;
    run(&world, 1500);
    assert_false(pace_is_yielding(&world.pace, world.now));
    assert_true(run(&world, 1000) > (uint64_t)1000 << 20);
}

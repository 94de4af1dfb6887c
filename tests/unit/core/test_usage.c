/* SPDX-License-Identifier: Apache-2.0
 *
 * A run costs the bytes and hours that its record shows, and checkpoints that leave no entry of
 * their own are still counted.
 */
#include "core/usage.h"
#include "core_fixture.h"
#include "support/unit_test.h"

static const struct actor alone = {.token = 1, .world_size = 1};
static const int64_t HOUR = INT64_C(3600) * 1000 * 1000 * 1000;

static struct usage usage_now(const struct core_fixture *f, int64_t since, int64_t until)
{
    struct usage usage;
    usage_of_run(&f->state, (struct usage_window){since, until}, &usage);
    return usage;
}

/* A save of so many bytes at a wall time. */
static void save_at(struct core_fixture *f, uint64_t step, int64_t wall_ns, uint64_t plain,
                    uint64_t stored)
{
    assert_int_equal(core_open(f, &alone, step, step), 0);
    struct ckpt_id id = f->verdict.id;
    assert_int_equal(core_seal(f, id, step, 0), 0);
    struct event event = commit_event(id, step);
    event.wall_ns = wall_ns;
    event.u.commit.entry.plain_bytes = plain;
    event.u.commit.entry.stored_bytes = stored;
    event.u.commit.entry.wall_ns = wall_ns;
    assert_int_equal(core_run(f, &event), 0);
}

#define CORE_TEST(name) \
    FIXTURE_TEST(name, core_fixture_init, core_fixture_fini, struct core_fixture, f)

/* Goal: a checkpoint costs what it stored, for as long as it is there, and counts as written in the
 * window that it was committed in. */
CORE_TEST(bytes_and_hours)
{
    save_at(f, 10, 1 * HOUR, 1000, 1000);
    save_at(f, 20, 3 * HOUR, 1000, 100);
    struct usage all = usage_now(f, 0, 5 * HOUR);
    assert_int_equal(all.saves, 2);
    assert_int_equal(all.checkpoints, 2);
    assert_int_equal(all.written_bytes, 1100);
    assert_int_equal(all.stored_bytes, 1100);
    assert_int_equal(all.plain_bytes, 2000);
    assert_int_equal(all.shared_bytes, 900);
    assert_int_equal(all.reclaimable_bytes, 0);
    assert_true(all.byte_hours == 1000.0 * 4 + 100.0 * 2);
    struct usage late = usage_now(f, 2 * HOUR, 5 * HOUR);
    assert_int_equal(late.saves, 1);
    assert_int_equal(late.written_bytes, 100);
    assert_int_equal(late.stored_bytes, 1100);
    assert_true(late.byte_hours == 1000.0 * 3 + 100.0 * 2);
    struct usage before = usage_now(f, 0, HOUR / 2); /* a clock that went back: nothing, not less */
    assert_true(before.byte_hours == 0);
}

/* Goal: forgotten bytes are there and can be had back; reclaimed ones cost until they went. */
CORE_TEST(forgotten_and_reclaimed)
{
    struct run_state state;
    save_at(f, 10, 1 * HOUR, 1000, 1000);
    save_at(f, 20, 2 * HOUR, 1000, 400);
    assert_int_equal(core_append(f, CHAIN_FORGET, ID(1, 10), &state), 0);
    struct usage usage = usage_now(f, 0, 3 * HOUR);
    assert_int_equal(usage.checkpoints, 1);
    assert_int_equal(usage.forgotten, 1);
    assert_int_equal(usage.stored_bytes, 1400);
    assert_int_equal(usage.reclaimable_bytes, 1000);
    assert_int_equal(usage.plain_bytes, 1000);
    assert_int_equal(core_append(f, CHAIN_RECLAIM, ID(1, 10), &state), 0); /* at wall time 0 */
    usage = usage_now(f, 0, 3 * HOUR);
    assert_int_equal(usage.forgotten, 0);
    assert_int_equal(usage.stored_bytes, 400);
    assert_int_equal(usage.reclaimable_bytes, 0);
    assert_int_equal(usage.written_bytes, 1400); /* was written all the same */
    assert_true(usage.byte_hours == 400.0);
}

/* Goal: an aborted save and an ended restore are counted once, on the day of the event, whatever
 * repeats them. */
CORE_TEST(days_count_what_leaves_nothing)
{
    save_at(f, 10, HOUR, 10, 10);
    assert_int_equal(core_open(f, &alone, 20, 2), 0);
    struct ckpt_id id = f->verdict.id;
    struct event abort = abort_event(id, 2);
    abort.wall_ns = 30 * HOUR; /* day 1 */
    assert_int_equal(core_run(f, &abort), 0);
    assert_int_equal(core_run(f, &abort), 0); /* again: an answer, no count */
    struct actor rank = {.token = 9, .world_size = 1};
    assert_int_equal(core_begin(f, &rank, LATEST, true), 0);
    struct event report = event_of(EVENT_RESTORE_REPORT, &rank);
    report.id = ID(1, 10);
    report.wall_ns = 31 * HOUR;
    assert_int_equal(core_run(f, &report), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    assert_int_equal(core_run(f, &report), 0);
    rank.ordinal = 1;
    assert_int_equal(core_begin(f, &rank, EXACT(1, 10), false), 0);
    report = event_of(EVENT_RESTORE_REPORT, &rank);
    report.id = ID(1, 10);
    report.u.report.code = CAIRN_E_IO;
    report.wall_ns = 80 * HOUR; /* day 3 */
    assert_int_equal(core_run(f, &report), 0);
    assert_true(verdict_restore(&f->verdict)->failed);
    assert_int_equal(f->state.day_count, 2);
    assert_int_equal(f->state.days[0].day, 1);
    assert_int_equal(f->state.days[1].day, 3);
    struct usage usage = usage_now(f, 0, 100 * HOUR);
    assert_int_equal(usage.saves_aborted, 1);
    assert_int_equal(usage.restores, 1);
    assert_int_equal(usage.restores_failed, 1);
    usage = usage_now(f, 73 * HOUR, 100 * HOUR);
    assert_int_equal(usage.restores, 0);
    assert_int_equal(usage.restores_failed, 1);
}

/* Restores the checkpoint with the actor, and checks how many restores are counted and logged. */
static void restores_again(struct core_fixture *f, struct actor *actor, struct ckpt_id id,
                           uint32_t count)
{
    struct event report = event_of(EVENT_RESTORE_REPORT, actor);
    report.id = id;
    assert_int_equal(core_begin(f, actor, EXACT(id.term, id.step), false), 0);
    assert_int_equal(core_run(f, &report), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    assert_int_equal(usage_now(f, 0, HOUR).restores, count);
    assert_int_equal(f->state.ended_count, count);
    actor->ordinal++;
}

/* Goal: an attempt that reads one checkpoint in several sessions, with nothing saved in between,
 * has restored it once. Another checkpoint, another attempt or a save in between makes two. */
CORE_TEST(a_restore_in_several_sessions_is_one)
{
    struct actor rank = {.token = 9, .world_size = 1}, other = {.token = 8, .world_size = 1};
    save_at(f, 10, HOUR, 10, 10);
    save_at(f, 20, HOUR, 10, 10);
    restores_again(f, &rank, ID(1, 20), 1);
    restores_again(f, &rank, ID(1, 20), 1);
    restores_again(f, &rank, ID(1, 20), 1);
    restores_again(f, &other, ID(1, 20), 2);
    restores_again(f, &rank, ID(1, 10), 3);
    restores_again(f, &rank, ID(1, 20), 4);
    rank.newest_seen = 1;
    assert_int_equal(core_open(f, &rank, 30, 30), 0);
    restores_again(f, &rank, ID(1, 20), 5);
}

/* Goal: what a save says of the one before it is counted with the opening that carries it, once. */
CORE_TEST(times_are_counted_with_the_opening)
{
    save_at(f, 10, HOUR, 10, 10);
    struct event open = open_event(&alone, 20, 20);
    open.u.open.blocked_ms = 5;
    open.u.open.persist_ms = 70;
    open.wall_ns = 2 * HOUR;
    assert_int_equal(core_run(f, &open), 0);
    assert_int_equal(core_run(f, &open), 0); /* again: the answer of before */
    struct usage usage = usage_now(f, 0, 3 * HOUR);
    assert_int_equal(usage.timed_saves, 1);
    assert_int_equal(usage.blocked_ms, 5);
    assert_int_equal(usage.persist_ms, 70);
    assert_int_equal(usage.saves_aborted, 0);
}

/* Goal: two drivers that count on one day from old copies lose no count: the later one conflicts.
 */
CORE_TEST(counts_are_guarded)
{
    struct stale one, two;
    save_at(f, 10, HOUR, 10, 10);
    struct actor a = {.token = 9, .world_size = 1}, b = {.token = 8, .world_size = 1};
    assert_int_equal(core_begin(f, &a, LATEST, true), 0);
    assert_int_equal(core_begin(f, &b, LATEST, true), 0);
    struct event first = event_of(EVENT_RESTORE_REPORT, &a);
    struct event second = event_of(EVENT_RESTORE_REPORT, &b);
    first.id = second.id = ID(1, 10);
    stale_init(&one, f, &first);
    stale_init(&two, f, &second);
    assert_int_equal(stale_apply(&one, f), 0);
    assert_int_equal(stale_apply(&two, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &second), 0);
    assert_int_equal(usage_now(f, 0, HOUR).restores, 2);
}

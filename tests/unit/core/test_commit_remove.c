/* SPDX-License-Identifier: Apache-2.0
 *
 * A run that is removed loses nothing that somebody uses or has pinned, is removed whole or not at
 * all, fences every attempt, and can be brought back; its name begins anew. Idle runs go by policy.
 * Method: scenarios, and races on stale copies of the record.
 */
#include "base/check.h"
#include "core/retention.h"
#include "core_fixture.h"
#include "support/unit_test.h"

static const struct actor first = {.token = 1, .world_size = 1};
static const int64_t day_ns = INT64_C(86400000000000);

/* Steps 10 to 50 in term 1, each built on the one before. */
static void setup(struct core_fixture *f)
{
    core_fixture_init(f);
    for (uint64_t step = 10; step <= 50; step += 10) {
        core_save(f, &first, step);
    }
}

static struct event remove_event(void)
{
    return (struct event){
        .kind = EVENT_REMOVE, .wall_ns = 99, .u.mark = {.actor = "ada@login1", .reason = "old"}};
}

static int remove_run(struct core_fixture *f)
{
    struct event event = remove_event();
    return core_run(f, &event);
}

static int mark(struct core_fixture *f, enum event_kind kind, size_t count,
                const struct ckpt_id *ids)
{
    struct event event = {.kind = kind, .wall_ns = 98, .u.mark = {.id_count = count, .ids = ids}};
    return core_run(f, &event);
}

static size_t kept_count(const struct core_fixture *f)
{
    size_t count = 0;
    for (size_t i = 0; i < f->state.commit_count; i++) {
        count += !f->state.commits[i].forgotten;
    }
    return count;
}

#define CORE_TEST(name) FIXTURE_TEST(name, setup, core_fixture_fini, struct core_fixture, f)
#define EMPTY_TEST(name) \
    FIXTURE_TEST(name, core_fixture_init, core_fixture_fini, struct core_fixture, f)

CORE_TEST(test_everything_is_forgotten_and_the_chain_says_who)
{
    assert_int_equal(remove_run(f), 0);
    assert_true(verdict_marks(&f->verdict)->removed);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 5);
    assert_int_equal(kept_count(f), 0);
    assert_true(f->state.removed);
    assert_non_null(f->state.removal);
    assert_int_equal(f->state.mark_count, 2);
    const struct entry_chain *entry = &f->state.marks[1];
    assert_int_equal(entry->kind, CHAIN_REMOVE);
    assert_int_equal(entry->wall_ns, 99);
    assert_string_equal(entry->actor, "ada@login1");
    assert_string_equal(entry->reason, "old");
    assert_int_equal(f->state.marks[0].id_count, 5);
    uint64_t seq = f->state.head.seq;
    assert_int_equal(remove_run(f), 0); /* a second time changes nothing */
    assert_true(verdict_marks(&f->verdict)->removed);
    assert_int_equal(f->state.head.seq, seq);
}

CORE_TEST(test_an_attempt_of_before_is_fenced_by_name)
{
    assert_int_equal(remove_run(f), 0);
    assert_int_equal(core_open(f, &first, 60, 7), CAIRN_E_FENCED);
    assert_non_null(strstr(f->verdict.diag.text, "removed by ada@login1"));
    struct actor joined = {.token = 2, .world_size = 1, .newest_seen = 1}; /* before the removal */
    assert_int_equal(core_open(f, &joined, 60, 8), CAIRN_E_FENCED);
    assert_non_null(strstr(f->verdict.diag.text, "removed by ada@login1"));
}

/* The name begins anew: its first restore finds nothing, and nothing of before is its lineage. */
CORE_TEST(test_the_name_begins_anew)
{
    assert_int_equal(remove_run(f), 0);
    uint64_t newest = f->state.newest_term;
    struct actor second = {.token = 3, .world_size = 1, .newest_seen = newest};
    assert_int_equal(core_begin(f, &second, LATEST, true), 0);
    assert_true(verdict_restore(&f->verdict)->empty);
    assert_int_equal(core_open(f, &second, 10, 9), 0);
    assert_false(f->state.removed); /* it is a run again, and still an empty one */
    assert_non_null(f->state.removal);
    struct actor third = {.token = 4, .world_size = 1, .newest_seen = newest + 1};
    assert_int_equal(core_begin(f, &third, LATEST, true), 0);
    assert_true(verdict_restore(&f->verdict)->empty);
    struct ckpt_id id = {newest + 1, 10};
    assert_int_equal(core_seal(f, id, 9, 0), 0);
    assert_int_equal(core_commit(f, id, 9), 0);
    assert_null(f->state.removal);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, newest + 1, 10);
    assert_int_equal(kept_count(f), 1);
    assert_int_equal(remove_run(f), 0); /* and can be removed again */
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 1);
    assert_true(f->state.removed);
}

CORE_TEST(test_undelete_brings_the_run_back)
{
    assert_int_equal(remove_run(f), 0);
    assert_int_equal(mark(f, EVENT_UNDELETE, 0, NULL), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 5);
    assert_null(f->state.removal);
    assert_false(f->state.removed);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 50);
    struct actor next = {
        .token = 5, .world_size = 1, .newest_seen = f->state.newest_term, .parent = ID(1, 50)};
    assert_int_equal(core_begin(f, &next, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 1, 50);
}

CORE_TEST(test_what_is_used_or_pinned_is_not_removed)
{
    struct ckpt_id pinned = ID(1, 20);
    assert_int_equal(mark(f, EVENT_PIN, 1, &pinned), 0);
    assert_int_equal(remove_run(f), CAIRN_E_DENIED);
    assert_non_null(strstr(f->verdict.diag.text, "20@1 is pinned"));
    assert_int_equal(mark(f, EVENT_UNPIN, 1, &pinned), 0);
    assert_int_equal(core_open(f, &first, 60, 7), 0);
    assert_int_equal(remove_run(f), CAIRN_E_DENIED);
    assert_non_null(strstr(f->verdict.diag.text, "given up 5 s after it began"));
    assert_int_equal(core_abort(f, ID(1, 60), 7), 0);
    struct actor other = {.token = 6, .world_size = 1, .newest_seen = 1};
    assert_int_equal(core_begin(f, &other, LATEST, true), 0);
    assert_int_equal(remove_run(f), CAIRN_E_DENIED);
    assert_int_equal(core_report(f, &other, ID(1, 50), 0), 0);
    assert_int_equal(kept_count(f), 5);
    assert_int_equal(remove_run(f), 0);
}

/* What another driver writes beside it makes the removal conflict, so that it is decided anew. */
CORE_TEST(test_races_are_decided_anew)
{
    struct event event = remove_event();
    struct ckpt_id pinned = ID(1, 20);
    struct stale stale;
    stale_init(&stale, f, &event);
    assert_int_equal(mark(f, EVENT_PIN, 1, &pinned), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(mark(f, EVENT_UNPIN, 1, &pinned), 0);
    stale_init(&stale, f, &event);
    core_save(f, &first, 60);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    stale_init(&stale, f, &event);
    struct actor other = {.token = 7, .world_size = 1, .newest_seen = 1, .parent = ID(1, 60)};
    assert_int_equal(core_open(f, &other, 70, 11), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(kept_count(f), 6);
    assert_int_equal(remove_run(f), CAIRN_E_DENIED);
}

/* A save that is opened or committed on a copy of before the removal does not take effect. */
CORE_TEST(test_a_save_on_an_old_copy_is_fenced)
{
    struct event open = open_event(&first, 60, 7);
    struct stale stale;
    stale_init(&stale, f, &open);
    assert_int_equal(remove_run(f), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_open(f, &first, 60, 7), CAIRN_E_FENCED);
}

EMPTY_TEST(test_a_run_without_checkpoints)
{
    assert_int_equal(remove_run(f), CAIRN_E_NOT_FOUND);
    assert_int_equal(core_open(f, &first, 10, 7), 0);
    assert_int_equal(core_abort(f, ID(1, 10), 7), 0);
    assert_int_equal(remove_run(f), 0);
    assert_true(f->state.removed);
    assert_int_equal(f->state.mark_count, 1);
}

/* Lets garbage collection, which has one cycle a day, begin so many. */
static void count_days(struct core_fixture *f, unsigned days)
{
    for (unsigned i = 0; i < days; i++) {
        struct event event = {.kind = EVENT_GC_CYCLE, .u.gc_cycle = {f->state.gc.cycle, 0}};
        assert_int_equal(core_run(f, &event), 0);
    }
}

/* Runs a policy at a wall time, and returns whether the run was removed. */
static bool expires(struct core_fixture *f, struct retention_policy policy, int64_t wall_ns,
                    bool living)
{
    struct event event = {.kind = EVENT_FORGET, .wall_ns = wall_ns};
    event.u.mark.forget = (struct event_forget){
        .policy = &policy, .living = living, .cycle_ms = 86400000, .keep_cycles = 2};
    assert_int_equal(core_run(f, &event), 0);
    return verdict_marks(&f->verdict)->removed;
}

CORE_TEST(test_an_idle_run_goes_by_policy)
{
    int64_t last = 0;
    for (size_t i = 0; i < f->state.commit_count; i++) {
        int64_t wall_ns = f->state.commits[i].entry.wall_ns;
        last = wall_ns > last ? wall_ns : last;
    }
    struct retention_policy idle = {.remove_idle_seconds = 86400};
    struct ckpt_id pinned = ID(1, 20);
    assert_false(expires(f, idle, last + day_ns - 1, false));
    assert_int_equal(kept_count(f), 5); /* it is no rule about checkpoints */
    count_days(f, 3);
    assert_false(expires(f, idle, last + 2 * day_ns, true));
    assert_int_equal(mark(f, EVENT_PIN, 1, &pinned), 0);
    assert_false(expires(f, idle, last + 2 * day_ns, false));
    assert_int_equal(kept_count(f), 5);
    assert_int_equal(mark(f, EVENT_UNPIN, 1, &pinned), 0);
    count_days(f, 3);
    assert_false(expires(f, (struct retention_policy){.last = 9}, last + 9 * day_ns, false));
    assert_true(expires(f, idle, last + 2 * day_ns, false));
    assert_true(f->state.removed);
    assert_string_equal(f->state.removal->reason, "remove-idle 24h");
    struct event undelete = {.kind = EVENT_UNDELETE, .wall_ns = last + 3 * day_ns};
    assert_int_equal(core_run(f, &undelete), 0);
    assert_false(expires(f, idle, last + 3 * day_ns + 1, false)); /* somebody wants it */
    count_days(f, 3);
    assert_true(expires(f, idle, last + 5 * day_ns, false));
}

/* A clock that is years ahead takes no run: the time has to have been counted as well, from the
 * first cycle that saw the last use, and at least as long as forgotten checkpoints are kept. */
CORE_TEST(test_a_clock_alone_removes_nothing)
{
    struct retention_policy idle = {.remove_idle_seconds = 3 * 86400};
    struct retention_policy short_idle = {.remove_idle_seconds = 1};
    int64_t ahead = 9000 * day_ns;
    assert_false(expires(f, idle, ahead, false)); /* no cycle was counted */
    assert_non_null(strstr(verdict_marks(&f->verdict)->why, "0 of 3 cycles"));
    count_days(f, 3);
    assert_false(expires(f, idle, ahead, false));
    assert_non_null(strstr(verdict_marks(&f->verdict)->why, "2 of 3 cycles"));
    assert_int_equal(mark(f, EVENT_PIN, 1, &(struct ckpt_id){1, 20}), 0);
    assert_int_equal(mark(f, EVENT_UNPIN, 1, &(struct ckpt_id){1, 20}), 0); /* used: begins anew */
    count_days(f, 2);
    assert_false(expires(f, short_idle, ahead, false));
    struct event gc_off = {.kind = EVENT_FORGET, .wall_ns = ahead};
    gc_off.u.mark.forget = (struct event_forget){.policy = &short_idle};
    assert_int_equal(core_run(f, &gc_off), 0);
    assert_false(verdict_marks(&f->verdict)->removed);
    assert_non_null(strstr(verdict_marks(&f->verdict)->why, "no garbage collection"));
    count_days(f, 1);
    assert_true(expires(f, short_idle, ahead, false));
    assert_string_equal(f->state.removal->reason, "remove-idle 1s");
}

/* Who tags a checkpoint uses the run. */
CORE_TEST(test_a_note_is_a_use)
{
    struct retention_policy idle = {.remove_idle_seconds = 86400};
    static const char *const tags[] = {"good"};
    struct event note = {.kind = EVENT_ANNOTATE,
                         .wall_ns = 500 * day_ns,
                         .u.annotate.selector = {.kind = SELECT_LATEST},
                         .u.annotate.note = {.tag_count = 1, .tags = tags}};
    count_days(f, 9);
    assert_int_equal(core_run(f, &note), 0);
    assert_int_equal(f->state.use.wall_ns, 500 * day_ns);
    assert_false(expires(f, idle, 500 * day_ns + day_ns / 2, false));
    assert_false(expires(f, idle, 600 * day_ns, false));
    count_days(f, 2);
    assert_true(expires(f, idle, 600 * day_ns, false));
}

static void restore_on_day(struct core_fixture *f, struct actor *actor, int64_t day)
{
    struct event report = event_of(EVENT_RESTORE_REPORT, actor);
    report.id = ID(1, 20);
    report.wall_ns = day * day_ns;
    assert_int_equal(core_begin(f, actor, EXACT(1, 20), false), 0);
    assert_int_equal(core_run(f, &report), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    actor->ordinal++;
}

/* So does an attempt that restores one checkpoint again, although that counts as one restore. */
CORE_TEST(test_the_same_restore_again_is_a_use)
{
    struct retention_policy idle = {.remove_idle_seconds = 86400};
    struct actor rank = {.token = 9, .world_size = 1};
    restore_on_day(f, &rank, 400);
    count_days(f, 9);
    size_t ended = f->state.ended_count;
    restore_on_day(f, &rank, 500);
    assert_int_equal(f->state.ended_count, ended);
    assert_false(expires(f, idle, 500 * day_ns + day_ns / 2, false));
    count_days(f, 2);
    assert_true(expires(f, idle, 600 * day_ns, false));
}

/* Each error about a removed run or a forgotten checkpoint says who did it, and when. */
CORE_TEST(test_errors_say_who_removed_it)
{
    const struct state_commit *found;
    struct selector step = {.kind = SELECT_STEP, .id = {0, 20}};
    struct selector exact = {.kind = SELECT_EXACT, .id = {1, 20}};
    struct ckpt_id id = {1, 20};
    struct diag diag = DIAG_INIT, latest = DIAG_INIT, after = DIAG_INIT;
    assert_int_equal(mark(f, EVENT_FORGET, 1, &id), 0);
    assert_int_equal(state_select(&f->state, &step, &found, &diag), CAIRN_E_NOT_FOUND);
    assert_non_null(strstr(diag.text, "20@1 was forgotten by somebody at 1970-01-01"));
    assert_non_null(strstr(diag.text, "`cairn undelete RUN 20@1`"));
    assert_int_equal(remove_run(f), 0);
    assert_int_equal(state_select(&f->state, &LATEST, &found, &latest), CAIRN_E_NOT_FOUND);
    assert_non_null(strstr(latest.text, "removed by ada@login1 at 1970-01-01"));
    assert_int_equal(state_select(&f->state, &exact, &found, &after), CAIRN_E_NOT_FOUND);
    assert_non_null(strstr(after.text, "`cairn undelete RUN --all`"));
    assert_int_equal(remove_run(f), 0);
    assert_string_equal(verdict_marks(&f->verdict)->why,
                        "was removed already, by ada@login1 at 1970-01-01T00:00:00Z");
}

/* A rank that has not saved yet hears of the removal, and not of another attempt's token. */
CORE_TEST(test_a_rank_that_waits_hears_of_the_removal)
{
    struct actor second = {.token = 8, .world_size = 2, .rank = 1, .newest_seen = 1};
    assert_int_equal(remove_run(f), 0);
    struct event find = open_event(&second, 60, 7);
    find.kind = EVENT_FIND_OPEN;
    assert_int_equal(core_run(f, &find), CAIRN_E_FENCED);
    assert_non_null(strstr(f->verdict.diag.text, "removed by ada@login1"));
}

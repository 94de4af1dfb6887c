/* SPDX-License-Identifier: Apache-2.0
 *
 * Forget, undelete, pin, reclaim and the cycles of garbage collection refuse by name what they must
 * not do; a batch does the part that it may; and races with saves, restores and scrub on stale
 * copies lose nothing.
 */
#include "base/check.h"
#include "core_fixture.h"
#include "support/unit_test.h"

static const struct actor alone = {.token = 1, .world_size = 1};

/* Steps 10 to 50 in term 1, each built on the one before. */
static void setup(struct core_fixture *f)
{
    core_fixture_init(f);
    for (uint64_t step = 10; step <= 50; step += 10) {
        core_save(f, &alone, step);
    }
}

static struct event mark_event(enum event_kind kind, size_t count, const struct ckpt_id *ids)
{
    return (struct event){
        .kind = kind,
        .wall_ns = 99,
        .u.mark = {.id_count = count, .ids = ids, .actor = "ada@login1", .reason = "keep-last 2"}};
}

/* What becomes of one checkpoint. */
static enum mark_outcome mark(struct core_fixture *f, enum event_kind kind, struct ckpt_id id)
{
    struct event event = mark_event(kind, 1, &id);
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(verdict_marks(&f->verdict)->count, 1);
    return verdict_marks(&f->verdict)->done_count == 1 ? MARK_DONE
           : verdict_marks(&f->verdict)->refused_count == 0
               ? MARK_ALREADY
               : MARK_UNKNOWN; /* refused: see refusal() */
}

/* Why one is refused; the verdict's marks are read before the fixture loads again. */
static enum mark_outcome refusal(struct core_fixture *f, const struct event *event)
{
    struct scratch scratch;
    struct verdict verdict;
    scratch_init(&scratch, MIB(4));
    commit_step(&f->state, event, &scratch, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_int_equal(verdict_marks(&verdict)->done_count, 0);
    assert_int_equal(verdict.update.change_count, 0);
    enum mark_outcome outcome = verdict_marks(&verdict)->items[0].outcome;
    scratch_fini(&scratch);
    return outcome;
}

static enum mark_outcome refused(struct core_fixture *f, enum event_kind kind, struct ckpt_id id)
{
    struct event event = mark_event(kind, 1, &id);
    return refusal(f, &event);
}

static void cycle(struct core_fixture *f, uint64_t cycles)
{
    struct event event = {.kind = EVENT_GC_CYCLE, .u.gc_cycle = {f->state.gc.cycle, cycles}};
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(verdict_gc_cycle(&f->verdict)->cycle, event.u.gc_cycle.cycle + 1);
}

static const struct state_commit *known(const struct core_fixture *f, uint64_t step)
{
    return state_commit_known(&f->state, ID(1, step));
}

#define CORE_TEST(name) FIXTURE_TEST(name, setup, core_fixture_fini, struct core_fixture, f)

/* Goal: a batch does what it may in one chain entry, which says who and why; what it may not stays
 * and is named. */
CORE_TEST(a_batch_is_done_in_part)
{
    const struct ckpt_id ids[] = {ID(1, 30), ID(1, 50), ID(1, 10), ID(7, 7)};
    struct event event = mark_event(EVENT_FORGET, ARRAY_LEN(ids), ids);
    uint64_t seq = f->state.head.seq;
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 2);
    assert_int_equal(verdict_marks(&f->verdict)->refused_count, 2);
    assert_int_equal(f->state.head.seq, seq + 1);
    assert_true(known(f, 10)->forgotten && known(f, 30)->forgotten && !known(f, 50)->forgotten);
    assert_string_equal(known(f, 10)->mark->actor, "ada@login1");
    assert_string_equal(known(f, 10)->mark->reason, "keep-last 2");
    assert_int_equal(known(f, 10)->mark->wall_ns, 99);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 50)), MARK_NEWEST);
    assert_int_equal(refused(f, EVENT_FORGET, ID(7, 7)), MARK_UNKNOWN);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 10)), MARK_ALREADY);
    assert_int_equal(f->state.head.seq, seq + 1);
}

/* Goal: two good ones stay unless one is said to be enough; damaged ones do not count. */
CORE_TEST(the_last_good_ones_stay)
{
    const struct ckpt_id ids[] = {ID(1, 10), ID(1, 20), ID(1, 30), ID(1, 40), ID(1, 50)};
    assert_int_equal(core_health(f, ID(1, 40), HEALTH_SUSPECT), 0);
    struct event event = mark_event(EVENT_FORGET, ARRAY_LEN(ids), ids);
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 3); /* 10, 20 and the suspect one */
    assert_false(known(f, 30)->forgotten);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 30)), MARK_LEAST);
    assert_int_equal(core_health(f, ID(1, 40), HEALTH_VERIFIED), 0); /* while it is forgotten */
    event.u.mark.forget.keep_least = 1;
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 1);
    struct event newest = mark_event(EVENT_FORGET, 1, &ids[4]);
    newest.u.mark.forget.keep_least = 1;
    assert_int_equal(refusal(f, &newest), MARK_NEWEST);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 50);
}

/* Goal: where nothing is good, nothing is forgotten, superseded or damaged as it may be; where too
 * little is good, only damage goes. */
CORE_TEST(a_run_full_of_damage_loses_nothing)
{
    for (uint64_t step = 10; step <= 40; step += 10) {
        assert_int_equal(core_health(f, ID(1, step), step < 30 ? HEALTH_DAMAGED : HEALTH_SUSPECT),
                         0);
    }
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 30)), MARK_LEAST);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 10)), MARK_DONE);
    assert_int_equal(core_health(f, ID(1, 50), HEALTH_SUSPECT), 0);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 50)), MARK_NO_GOOD);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 20)), MARK_NO_GOOD);
}

/* Goal: of two sets, one member of each stays where that is asked for. */
CORE_TEST(two_sets_stay)
{
    struct event open = open_event(&alone, 60, 600);
    open.u.open.full = true;
    assert_int_equal(core_run(f, &open), 0);
    assert_int_equal(core_seal(f, ID(1, 60), 600, 0), 0);
    assert_int_equal(core_commit(f, ID(1, 60), 600), 0);
    core_save(f, &alone, 70);
    core_save(f, &alone, 80);
    const struct ckpt_id ids[] = {ID(1, 10), ID(1, 20), ID(1, 30), ID(1, 40), ID(1, 50), ID(1, 60)};
    struct event event = mark_event(EVENT_FORGET, ARRAY_LEN(ids), ids);
    event.u.mark.forget.apart = true;
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 5);
    assert_false(known(f, 50)->forgotten);
    event.u.mark.ids = &ids[4];
    event.u.mark.id_count = 1;
    assert_int_equal(refusal(f, &event), MARK_APART);
    event.u.mark.forget.apart = false;
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 1);
}

/* Goal: pinned ones stay until unpinned; forgotten ones are not pinned. */
CORE_TEST(pins_hold)
{
    assert_int_equal(mark(f, EVENT_PIN, ID(1, 10)), MARK_DONE);
    assert_string_equal(known(f, 10)->pin_mark->actor, "ada@login1");
    assert_int_equal(mark(f, EVENT_PIN, ID(1, 10)), MARK_ALREADY);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 10)), MARK_PINNED);
    assert_int_equal(mark(f, EVENT_UNPIN, ID(1, 10)), MARK_DONE);
    assert_int_equal(mark(f, EVENT_UNPIN, ID(1, 10)), MARK_ALREADY);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 10)), MARK_DONE);
    assert_int_equal(refused(f, EVENT_PIN, ID(1, 10)), MARK_FORGOTTEN);
    assert_int_equal(refused(f, EVENT_PIN, ID(2, 10)), MARK_UNKNOWN);
}

/* Goal: a repair is in the chain with who and what, as often as there is one, and changes nothing
 * else; what is gone for good is not repaired. */
CORE_TEST(repairs_are_in_the_chain)
{
    uint64_t before = f->state.head.seq;
    assert_int_equal(known(f, 10)->repaired_seq, 0);
    assert_int_equal(mark(f, EVENT_REPAIR, ID(1, 10)), MARK_DONE);
    assert_int_equal(known(f, 10)->repaired_seq, before + 1);
    assert_int_equal(mark(f, EVENT_REPAIR, ID(1, 10)), MARK_DONE);
    assert_int_equal(known(f, 10)->repaired_seq, before + 2);
    assert_int_equal(known(f, 10)->health, HEALTH_VERIFIED);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 10)), MARK_DONE);
    assert_int_equal(mark(f, EVENT_REPAIR, ID(1, 10)), MARK_DONE);
    assert_int_equal(mark(f, EVENT_RECLAIM, ID(1, 10)), MARK_DONE);
    assert_int_equal(refused(f, EVENT_REPAIR, ID(1, 10)), MARK_RECLAIMED);
    assert_int_equal(refused(f, EVENT_REPAIR, ID(2, 10)), MARK_UNKNOWN);
}

/* Goal: what serves a save, a restore or an attempt that has not saved since is refused by name. */
CORE_TEST(what_is_in_use_stays)
{
    struct actor other = {.token = 2, .world_size = 2, .ordinal = 1, .newest_seen = 1};
    assert_int_equal(core_begin(f, &other, EXACT(1, 20), false), 0);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 20)), MARK_LEASED);
    assert_int_equal(core_report(f, &other, ID(1, 20), 0), 0);
    other.rank = 1;
    assert_int_equal(core_report(f, &other, ID(1, 20), 0), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    other.rank = 0;
    other.parent = ID(1, 20);
    assert_int_equal(core_open(f, &other, 25, 250), 0);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 20)), MARK_CLAIMED);
    assert_int_equal(core_abort(f, ID(2, 25), 250), 0);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 20)), MARK_PARENT);
    core_save(f, &other, 26);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 30)), MARK_DONE); /* superseded now */
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 10)), MARK_DONE);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 20)), MARK_LEAST); /* 26@2 and it are left */
}

/* Goal: undelete works until the space is reclaimed, which waits for the cycles of garbage
 * collection; then it is gone for good, and its step is not saved again. */
CORE_TEST(forgotten_reclaimed_gone)
{
    cycle(f, 0);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 10)), MARK_DONE);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 20)), MARK_DONE);
    assert_int_equal(known(f, 10)->forgotten_cycle, 1);
    assert_int_equal(mark(f, EVENT_UNDELETE, ID(1, 20)), MARK_DONE);
    assert_int_equal(mark(f, EVENT_UNDELETE, ID(1, 20)), MARK_ALREADY);
    struct event reclaim = mark_event(EVENT_RECLAIM, 0, NULL);
    reclaim.u.mark.cycles = 2;
    cycle(f, 0);
    assert_int_equal(core_run(f, &reclaim), 0);
    assert_int_equal(verdict_marks(&f->verdict)->count, 0);
    const struct ckpt_id ids[] = {ID(1, 10), ID(1, 20)};
    struct event named = mark_event(EVENT_RECLAIM, 1, ids);
    named.u.mark.cycles = 2;
    assert_int_equal(refusal(f, &named), MARK_EARLY);
    cycle(f, 0);
    assert_int_equal(core_run(f, &reclaim), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 1);
    assert_null(known(f, 10));
    assert_non_null(known(f, 20));
    assert_int_equal(refused(f, EVENT_UNDELETE, ID(1, 10)), MARK_RECLAIMED);
    assert_int_equal(state_status(&f->state, ID(1, 10), NULL), SAVE_FORGOTTEN);
    assert_int_equal(core_open(f, &alone, 10, 1234), CAIRN_E_EXISTS);
    /* A scrub that was reading it misses what was removed: that is no damage. */
    struct event health = {
        .kind = EVENT_HEALTH, .id = ID(1, 10), .u.health.health = HEALTH_DAMAGED};
    assert_int_equal(core_run(f, &health), CAIRN_E_NOT_FOUND);
    named.u.mark.ids = &ids[1];
    assert_int_equal(refusal(f, &named), MARK_EARLY);
}

/* Goal: a save's base and a restore's checkpoint that are forgotten meanwhile are not reclaimed
 * before they end. */
CORE_TEST(claims_and_leases_outlive_a_forget)
{
    struct actor other = {.token = 3, .world_size = 1, .ordinal = 1, .newest_seen = 1};
    const struct ckpt_id ids[] = {ID(1, 40), ID(1, 50)};
    struct event forget = mark_event(EVENT_FORGET, 1, ids);
    struct event reclaim = mark_event(EVENT_RECLAIM, 0, NULL);
    struct stale stale;
    stale_init(&stale, f, &forget); /* decided before the session is there */
    assert_int_equal(core_begin(f, &other, EXACT(1, 40), false), 0);
    assert_int_equal(stale_apply(&stale, f), 0);
    assert_true(known(f, 40)->forgotten);
    cycle(f, 0);
    assert_int_equal(refusal(f, &reclaim), MARK_LEASED);
    assert_int_equal(core_report(f, &other, ID(1, 40), 0), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    assert_int_equal(core_run(f, &reclaim), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 1);

    core_save(f, &alone, 60);
    forget.u.mark.ids = &ids[1];
    assert_int_equal(core_open(f, &alone, 70, 700), 0); /* on 60 */
    assert_ckpt(verdict_save(&f->verdict)->base, 1, 60);
    assert_int_equal(core_run(f, &forget), 0);
    assert_int_equal(core_run(f, &reclaim), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 1);
}

/* Goal: a claim that slips in beside a forget keeps the base from being reclaimed. */
CORE_TEST(a_claim_beside_a_forget)
{
    struct ckpt_id base = ID(1, 30);
    struct event forget = mark_event(EVENT_FORGET, 1, &base);
    struct event reclaim = mark_event(EVENT_RECLAIM, 0, NULL);
    struct actor other = {.token = 4, .world_size = 1, .parent = base, .newest_seen = 1};
    struct stale stale;
    stale_init(&stale, f, &forget);
    assert_int_equal(core_open(f, &other, 35, 350), 0);
    assert_ckpt(verdict_save(&f->verdict)->base, 1, 30);
    assert_int_equal(stale_apply(&stale, f), 0);
    cycle(f, 0);
    assert_int_equal(refusal(f, &reclaim), MARK_CLAIMED);
    assert_int_equal(core_seal(f, ID(2, 35), 350, 0), 0);
    assert_int_equal(core_commit(f, ID(2, 35), 350), 0);
    assert_int_equal(core_run(f, &reclaim), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 1);

    /* The other way round: the save that comes second chooses anew. */
    base = ID(1, 20);
    struct actor third = {.token = 5, .world_size = 1, .parent = base, .newest_seen = 2};
    struct event open = open_event(&third, 26, 260);
    stale_init(&stale, f, &open);
    assert_int_equal(core_run(f, &forget), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &open), 0);
    assert_ckpt(verdict_save(&f->verdict)->base, 1, 10);
}

/* Goal: what a forget has counted on may not change beside it: a commit, a pin, a good one that is
 * found to be damaged, a bad one that is found to be good, a cycle. */
CORE_TEST(a_forget_is_guarded)
{
    const struct ckpt_id ids[] = {ID(1, 10), ID(1, 20), ID(1, 30)};
    struct event forget = mark_event(EVENT_FORGET, ARRAY_LEN(ids), ids);
    struct event pin = mark_event(EVENT_PIN, 1, &ids[1]);
    struct stale stale;
    stale_init(&stale, f, &forget);
    assert_int_equal(core_run(f, &pin), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    stale_init(&stale, f, &forget);
    core_save(f, &alone, 60);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    stale_init(&stale, f, &forget);
    assert_int_equal(core_health(f, ID(1, 50), HEALTH_DAMAGED), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_health(f, ID(1, 10), HEALTH_DAMAGED), 0);
    stale_init(&stale, f, &forget);
    assert_int_equal(core_health(f, ID(1, 10), HEALTH_VERIFIED), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    stale_init(&stale, f, &forget);
    cycle(f, 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    struct event undelete = mark_event(EVENT_UNDELETE, 1, ids);
    assert_int_equal(core_run(f, &forget), 0);
    cycle(f, 0);
    struct event reclaim = mark_event(EVENT_RECLAIM, 0, NULL);
    stale_init(&stale, f, &reclaim);
    assert_int_equal(core_run(f, &undelete), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
}

/* Goal: the same of a branch's good ones, which stay for those that a young lineage lacks. */
CORE_TEST(a_forget_on_a_branch_is_guarded)
{
    const struct ckpt_id ids[] = {ID(1, 10), ID(1, 20), ID(1, 30)};
    struct event forget = mark_event(EVENT_FORGET, ARRAY_LEN(ids), ids);
    struct actor other = {.token = 6, .world_size = 1, .newest_seen = 1};
    struct stale stale;
    struct ckpt_id young = core_save(f, &other, 5);
    assert_ckpt(young, 2, 5);
    stale_init(&stale, f, &forget);
    assert_int_equal(core_health(f, ID(1, 50), HEALTH_DAMAGED), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    stale_init(&stale, f, &forget);
    assert_int_equal(core_health(f, ID(1, 40), HEALTH_DAMAGED), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &forget), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 2);
    assert_false(known(f, 30)->forgotten);
}

/* Goal: a restore that falls back takes a lease only on what is there. */
CORE_TEST(a_fall_back_is_guarded)
{
    struct actor other = {.token = 3, .world_size = 1, .ordinal = 1, .newest_seen = 1};
    assert_int_equal(core_begin(f, &other, LATEST, true), 0);
    struct event report = event_of(EVENT_RESTORE_REPORT, &other);
    report.id = ID(1, 50);
    report.u.report.code = CAIRN_E_DAMAGED;
    struct stale stale;
    stale_init(&stale, f, &report);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 40)), MARK_DONE);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &report), 0);
    assert_ckpt(f->verdict.id, 1, 30);
}

/* Goal: the session of a job that died holds its checkpoint for some cycles and not for ever; a
 * rank that comes back is told. The same cycle is not begun twice. */
CORE_TEST(a_lease_ends)
{
    struct actor other = {.token = 3, .world_size = 2, .ordinal = 1, .newest_seen = 1};
    assert_int_equal(core_begin(f, &other, EXACT(1, 20), false), 0);
    assert_int_equal(core_report(f, &other, ID(1, 20), 0), 0);
    cycle(f, 2);
    cycle(f, 2);
    assert_int_equal(verdict_gc_cycle(&f->verdict)->ended_count, 0);
    assert_int_equal(refused(f, EVENT_FORGET, ID(1, 20)), MARK_LEASED);
    struct event again = {.kind = EVENT_GC_CYCLE, .u.gc_cycle = {1, 2}};
    assert_int_equal(core_run(f, &again), 0);
    assert_int_equal(verdict_gc_cycle(&f->verdict)->cycle, 2);
    again.u.gc_cycle.cycle = 3;
    assert_int_equal(core_run(f, &again), CAIRN_E_INVALID);
    cycle(f, 2);
    assert_int_equal(verdict_gc_cycle(&f->verdict)->ended_count, 1);
    assert_int_equal(mark(f, EVENT_FORGET, ID(1, 20)), MARK_DONE);
    other.rank = 1;
    assert_int_equal(core_report(f, &other, ID(1, 20), 0), 0);
    assert_true(verdict_restore(&f->verdict)->failed);
    assert_int_equal(verdict_restore(&f->verdict)->code, CAIRN_E_TIMED_OUT);
    assert_int_equal(f->state.report_count, 0);
}

/* Goal: texts that cannot be read back are refused, long ones cut; an id twice is refused. */
CORE_TEST(bad_batches_are_refused)
{
    struct ckpt_id ids[] = {ID(1, 10), ID(1, 10)};
    struct event event = mark_event(EVENT_FORGET, 2, ids);
    assert_int_equal(core_run(f, &event), CAIRN_E_INVALID);
    event.u.mark.id_count = 1;
    event.u.mark.reason = "bad \xff";
    assert_int_equal(core_run(f, &event), CAIRN_E_INVALID);
    char text[400];
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    memcpy(text + 62, "\xe2\x82\xac", 3);
    event.u.mark.actor = event.u.mark.reason = text;
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(strlen(known(f, 10)->mark->actor), 62);
    assert_int_equal(strlen(known(f, 10)->mark->reason), ENTRY_REASON_BYTES - 1);
}

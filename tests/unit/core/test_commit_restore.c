/* SPDX-License-Identifier: Apache-2.0
 *
 * All ranks of a restore get the same checkpoint, or all get an error; they fall back together, and
 * are told that they did.
 */
#include "core_fixture.h"

#include "support/unit_test.h"

static const struct actor r0 = {.token = 5, .rank = 0, .world_size = 2};
static const struct actor r1 = {.token = 5, .rank = 1, .world_size = 2};
static const struct actor trainer = {.token = 1, .world_size = 1};

static void setup_saved(struct core_fixture *f)
{
    core_fixture_init(f);
    for (uint64_t step = 10; step <= 30; step += 10) {
        core_save(f, &trainer, step);
    }
}

#define EMPTY_TEST(name) \
    FIXTURE_TEST(name, core_fixture_init, core_fixture_fini, struct core_fixture, f)

/* Goal: a run without a checkpoint is proven empty, for all ranks, also when one is saved in
 * between. */
EMPTY_TEST(empty_run)
{
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    assert_true(verdict_restore(&f->verdict)->empty);
    assert_true(verdict_restore(&f->verdict)->done);
    core_save(f, &trainer, 10);
    assert_int_equal(core_begin(f, &r1, LATEST, true), 0);
    assert_true(verdict_restore(&f->verdict)->empty);
    assert_int_equal(f->verdict.newest_term, 0);
    struct actor later = {.token = 6, .world_size = 1};
    assert_int_equal(core_begin(f, &later, LATEST, true), 0);
    assert_false(verdict_restore(&f->verdict)->empty);
    assert_ckpt(f->verdict.id, 1, 10);
}

#define CORE_TEST(name) FIXTURE_TEST(name, setup_saved, core_fixture_fini, struct core_fixture, f)

/* Goal: the first rank resolves, later ones get the same; done only when all have reported OK. */
CORE_TEST(all_ranks_the_same)
{
    assert_int_equal(core_begin(f, &r1, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 1, 30);
    assert_int_equal(verdict_restore(&f->verdict)->try_count, 1);
    core_save(f, &trainer, 40); /* the trainer was not dead: a restore fences nobody */
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 1, 30);
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), 0);
    assert_false(verdict_restore(&f->verdict)->done);
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), CAIRN_E_AGAIN);
    assert_non_null(strstr(f->verdict.diag.text, "1 of 2"));
    assert_int_equal(core_report(f, &r1, ID(1, 30), 0), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    assert_false(verdict_restore(&f->verdict)->fell_back);
    assert_int_equal(f->state.report_count, 0);
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    assert_true(verdict_restore(&f->verdict)->done);
}

/* Goal: reports that two drivers wrote at once are both counted at the next look. */
CORE_TEST(reports_in_a_race)
{
    struct event other = event_of(EVENT_RESTORE_REPORT, &r1);
    struct stale stale;
    other.id = ID(1, 30);
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    stale_init(&stale, f, &other);
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), 0);
    assert_int_equal(stale_apply(&stale, f), 0);
    assert_int_equal(f->state.report_count, 2);
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    assert_int_equal(core_report(f, &r1, ID(1, 30), 0), 0);
    assert_true(verdict_restore(&f->verdict)->done);
}

/* Goal: selectors that name nothing are NOT_FOUND with what is near; ranks that ask differently are
 * told. */
CORE_TEST(selectors)
{
    assert_int_equal(core_begin(f, &r0, STEP(25), true), CAIRN_E_NOT_FOUND);
    assert_non_null(strstr(f->verdict.diag.text, "20 and 30"));
    assert_int_equal(core_begin(f, &r0, EXACT(2, 20), true), CAIRN_E_NOT_FOUND);
    assert_int_equal(f->state.restore_count, 0);
    assert_int_equal(core_begin(f, &r0, STEP(20), true), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    assert_int_equal(core_begin(f, &r1, STEP(30), true), CAIRN_E_INVALID);
    assert_int_equal(core_begin(f, &r1, EXACT(1, 20), true), 0);
    assert_int_equal(core_begin(f, &r1, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    struct actor bigger = {.token = 5, .rank = 2, .world_size = 3},
                 beyond = {.token = 5, .rank = 2, .world_size = 2};
    assert_int_equal(core_begin(f, &bigger, LATEST, true), CAIRN_E_WORLD_MISMATCH);
    assert_int_equal(core_begin(f, &beyond, LATEST, true), CAIRN_E_INVALID);
    assert_int_equal(core_report(f, &bigger, ID(1, 20), 0), CAIRN_E_WORLD_MISMATCH);
    assert_int_equal(core_report(f, &trainer, ID(1, 20), 0), CAIRN_E_NOT_FOUND);
}

/* Goal (I4, G01): damage that one rank meets moves all to the next older one; the damaged one stays
 * listed. */
CORE_TEST(fall_back_together)
{
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), 0);
    assert_int_equal(core_report(f, &r1, ID(1, 30), CAIRN_E_DAMAGED), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    assert_true(verdict_restore(&f->verdict)->fell_back);
    assert_int_equal(verdict_restore(&f->verdict)->try_count, 2);
    assert_int_equal(f->state.report_count, 0);
    assert_int_equal(core_report(f, &r1, ID(1, 20), 0), 0);
    assert_false(verdict_restore(&f->verdict)->done); /* rank 0's OK was for another try */
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    assert_false(verdict_restore(&f->verdict)->done);
    assert_int_equal(core_report(f, &r0, ID(1, 20), 0), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    assert_true(verdict_restore(&f->verdict)->fell_back);
    const struct state_commit *commit = state_commit_find(&f->state, ID(1, 30));
    assert_int_equal(commit->health, HEALTH_DAMAGED);
    assert_string_equal(commit->health_reason, "tensor w: a chunk's crc differs");
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 20);
    struct actor next = {.token = 6, .world_size = 1}; /* later restores say it too */
    assert_int_equal(core_begin(f, &next, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    assert_true(verdict_restore(&f->verdict)->fell_back);
    next.token = 7;
    assert_int_equal(core_begin(f, &next, LATEST, false), CAIRN_E_DAMAGED);
    assert_non_null(strstr(f->verdict.diag.text, "30@1"));
    assert_non_null(strstr(f->verdict.diag.text, "20@1"));
}

/* Goal: an OK for the older try that was decided before the fall-back does not count for the next
 * one. */
CORE_TEST(stale_ok_does_not_count)
{
    struct event ok = event_of(EVENT_RESTORE_REPORT, &r0);
    struct stale stale;
    ok.id = ID(1, 30);
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    stale_init(&stale, f, &ok);
    assert_int_equal(core_report(f, &r1, ID(1, 30), CAIRN_E_DAMAGED), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    /* And one that lands before the fall-back was decided elsewhere is left over, for nothing. */
    ok = event_of(EVENT_RESTORE_REPORT, &r1);
    ok.id = ID(1, 20);
    ok.u.report.code = CAIRN_E_DAMAGED;
    stale_init(&stale, f, &ok);
    assert_int_equal(core_report(f, &r0, ID(1, 20), 0), 0);
    assert_int_equal(stale_apply(&stale, f), 0);
    assert_ckpt(f->state.restores[0].entry.id, 1, 10);
    assert_true(f->state.report_count == 1 && f->state.reports[0].orphan);
    struct actor next = {.token = 6, .world_size = 1};
    struct event begin = event_of(EVENT_RESTORE_BEGIN, &next); /* would sweep it */
    begin.u.begin.allow_older = true;
    stale_init(&stale, f, &begin);
    assert_int_equal(core_report(f, &r0, ID(1, 10), 0), 0);
    assert_false(verdict_restore(&f->verdict)->done);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_false(f->state.reports[0].orphan);
    assert_int_equal(core_report(f, &r1, ID(1, 10), 0), 0);
    assert_true(verdict_restore(&f->verdict)->done);
    assert_int_equal(f->state.report_count, 0);
}

/* Goal: without leave to take an older one the session fails for all, with the code and the rank.
 */
CORE_TEST(no_older_allowed)
{
    assert_int_equal(core_begin(f, &r0, STEP(20), false), 0);
    assert_int_equal(core_report(f, &r1, ID(1, 20), CAIRN_E_DAMAGED), 0);
    assert_true(verdict_restore(&f->verdict)->failed);
    assert_int_equal(verdict_restore(&f->verdict)->code, CAIRN_E_DAMAGED);
    assert_int_equal(core_report(f, &r0, ID(1, 20), 0), 0);
    assert_true(verdict_restore(&f->verdict)->failed);
    assert_false(verdict_restore(&f->verdict)->done);
    assert_non_null(strstr(f->verdict.diag.text, "rank 1"));
    assert_int_equal(core_begin(f, &r0, STEP(20), false), 0);
    assert_true(verdict_restore(&f->verdict)->failed);
    struct actor again = {.token = 5, .rank = 0, .world_size = 2, .ordinal = 1};
    assert_int_equal(core_begin(f, &again, STEP(10), false), 0);
    assert_ckpt(f->verdict.id, 1, 10);
    assert_false(verdict_restore(&f->verdict)->failed);
}

/* Goal: what is no damage of the store (a shape that differs) fails at once, and blames no
 * checkpoint. */
CORE_TEST(other_errors_do_not_fall_back)
{
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    assert_int_equal(core_report(f, &r1, ID(1, 30), CAIRN_E_SHAPE_MISMATCH), 0);
    assert_true(verdict_restore(&f->verdict)->failed);
    assert_int_equal(verdict_restore(&f->verdict)->code, CAIRN_E_SHAPE_MISMATCH);
    assert_int_equal(state_commit_find(&f->state, ID(1, 30))->health, HEALTH_VERIFIED);
}

/* Goal (G02): when none is left the error lists what was tried. */
CORE_TEST(none_left)
{
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    for (uint64_t step = 30; step > 0; step -= 10) {
        assert_ckpt(f->verdict.id, 1, step);
        assert_int_equal(core_report(f, &r0, ID(1, step), CAIRN_E_DAMAGED), 0);
    }
    assert_true(verdict_restore(&f->verdict)->failed);
    assert_int_equal(verdict_restore(&f->verdict)->code, CAIRN_E_DAMAGED);
    assert_non_null(strstr(f->verdict.diag.text, "30@1, 20@1, 10@1"));
    struct actor next = {.token = 6, .world_size = 1};
    assert_int_equal(core_begin(f, &next, LATEST, true), CAIRN_E_DAMAGED);
    assert_int_equal(core_begin(f, &next, STEP(20), true),
                     0); /* by name it is tried all the same */
    assert_int_equal(f->state.commit_count, 3);
}

/* Goal: a digest that differs only at one client makes a checkpoint suspect; latest still takes it
 * in turn. */
CORE_TEST(suspect_is_taken_in_turn)
{
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    assert_int_equal(core_report(f, &r1, ID(1, 30), CAIRN_E_DIGEST_MISMATCH), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    assert_int_equal(state_commit_find(&f->state, ID(1, 30))->health, HEALTH_SUSPECT);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 30);
    assert_int_equal(core_health(f, ID(1, 30), HEALTH_DAMAGED), 0);
    assert_int_equal(core_health(f, ID(1, 30), HEALTH_SUSPECT), 0);
    assert_int_equal(state_commit_find(&f->state, ID(1, 30))->health, HEALTH_DAMAGED);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 20);
    assert_int_equal(core_health(f, ID(1, 30), HEALTH_VERIFIED), 0);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 30);
    assert_int_equal(core_health(f, ID(1, 31), HEALTH_DAMAGED), CAIRN_E_NOT_FOUND);
}

/* Goal: sessions do not pile up; an attempt's own last one stays. */
CORE_TEST(sessions_stay_bounded)
{
    struct actor actor = {.world_size = 1};
    for (uint8_t token = 10; token < 60; token++) {
        actor.token = token;
        assert_int_equal(core_begin(f, &actor, LATEST, true), 0);
        if (token % 2 == 0) {
            assert_int_equal(core_report(f, &actor, ID(1, 30), 0), 0);
        } else if (token % 3 == 0) {
            actor.world_size = 2;
        }
        assert_true(f->state.restore_count <= 16);
        actor.world_size = 1;
    }
    for (actor.ordinal = 1; actor.ordinal < 20; actor.ordinal++) {
        assert_int_equal(core_begin(f, &actor, LATEST, true), 0);
        assert_int_equal(core_report(f, &actor, ID(1, 30), 0), 0);
    }
    size_t own_count = 0;
    for (size_t i = 0; i < f->state.restore_count; i++) {
        own_count += f->state.restores[i].token.bytes[0] == actor.token;
    }
    assert_int_equal(own_count, 2);
}

/* Goal (I4): the end of a session, decided on an old copy, does not undo where it has gone since.
 */
CORE_TEST(stale_end_conflicts)
{
    struct event ok = event_of(EVENT_RESTORE_REPORT, &r1), bad = ok;
    struct stale stale_ok, stale_bad;
    ok.id = bad.id = ID(1, 30);
    bad.u.report.code = CAIRN_E_SHAPE_MISMATCH;
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), 0);
    stale_init(&stale_ok, f, &ok);
    stale_init(&stale_bad, f, &bad);
    assert_true(verdict_restore(&stale_ok.verdict)->done &&
                verdict_restore(&stale_bad.verdict)->failed);
    assert_int_equal(core_report(f, &r0, ID(1, 30), CAIRN_E_DAMAGED), 0);
    assert_int_equal(stale_apply(&stale_ok, f), CAIRN_E_CONFLICT);
    assert_int_equal(stale_apply(&stale_bad, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &bad), 0);
    assert_false(verdict_restore(&f->verdict)->failed);
    assert_ckpt(f->verdict.id, 1, 20);
}

/* Goal: left-over reports go with a later session. */
CORE_TEST(left_over_reports_are_swept)
{
    struct event damage = event_of(EVENT_RESTORE_REPORT, &r1);
    struct stale stale;
    damage.id = ID(1, 30);
    damage.u.report.code = CAIRN_E_DAMAGED;
    assert_int_equal(core_begin(f, &r0, LATEST, true), 0);
    stale_init(&stale, f, &damage);
    assert_int_equal(core_report(f, &r0, ID(1, 30), 0), 0);
    assert_int_equal(stale_apply(&stale, f), 0);
    assert_int_equal(f->state.report_count, 1);
    struct actor next = {.token = 6, .world_size = 1};
    assert_int_equal(core_begin(f, &next, LATEST, true), 0);
    assert_int_equal(f->state.report_count, 0);
}

/* Goal: a session that went on since it was seen is not swept. */
CORE_TEST(living_session_is_not_swept)
{
    struct actor actor = {.world_size = 1};
    for (actor.token = 10; actor.token < 26; actor.token++) {
        assert_int_equal(core_begin(f, &actor, LATEST, true), 0);
    }
    struct event begin = event_of(EVENT_RESTORE_BEGIN, &actor);
    struct stale stale;
    stale_init(&stale, f, &begin);
    actor.token = 10;
    assert_int_equal(core_report(f, &actor, ID(1, 30), 0), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &begin), 0);
    assert_int_equal(f->state.restore_count, 16);
}

/* Goal: what was healthy on an old copy does not wipe out damage that was found since. */
CORE_TEST(stale_health_conflicts)
{
    struct event heal = {.kind = EVENT_HEALTH, .id = {1, 30}, .u.health.health = HEALTH_VERIFIED};
    struct stale stale;
    assert_int_equal(core_health(f, ID(1, 30), HEALTH_SUSPECT), 0);
    stale_init(&stale, f, &heal);
    assert_int_equal(core_health(f, ID(1, 30), HEALTH_DAMAGED), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
}

/* Goal: two first ranks on two drivers resolve one session, not two. */
CORE_TEST(one_resolves)
{
    struct event begin = event_of(EVENT_RESTORE_BEGIN, &r1);
    struct stale stale;
    begin.u.begin.allow_older = true;
    stale_init(&stale, f, &begin);
    assert_int_equal(core_begin(f, &r0, STEP(20), true), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &begin), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    stale_init(
        &stale, f,
        &(struct event){.kind = EVENT_HEALTH, .id = {1, 20}, .u.health.health = HEALTH_DAMAGED});
    struct actor next = {.token = 6, .world_size = 1};
    assert_int_equal(core_health(f, ID(1, 20), HEALTH_SUSPECT), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_begin(f, &next, LATEST, true), 0);
}

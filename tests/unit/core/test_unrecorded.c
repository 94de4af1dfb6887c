/* SPDX-License-Identifier: Apache-2.0
 *
 * A record that is missing, cut or of yesterday never makes "no checkpoint" of a run that has one,
 * never grants a term twice and never opens a stored step again. What an abort left is not mistaken
 * for a lost checkpoint, nor a lost checkpoint for what an abort left.
 */
#include "core_fixture.h"

#include "support/unit_test.h"

static const struct actor one = {.token = 1, .world_size = 1};

static void beside(struct core_fixture *f, size_t count, const struct state_unknown *unknown)
{
    f->unrecorded = (struct state_unrecorded){.run = "p/r", .ckpt_count = count};
    if (count > 0) {
        f->unrecorded.highest = unknown[count - 1].id;
        f->unrecorded.unknown_count = count;
        f->unrecorded.unknown = unknown;
    }
    f->state.unrecorded = f->unrecorded;
}

static void assert_says(const struct core_fixture *f, const char *text)
{
    if (strstr(f->verdict.diag.text, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", f->verdict.diag.text, text);
    }
}

#define CORE_TEST(name) \
    FIXTURE_TEST(name, core_fixture_init, core_fixture_fini, struct core_fixture, f)

/* Goal: without a record, and with anything beside it, the run is neither empty nor made anew: a
 * new record would have another uuid than what lies there. */
CORE_TEST(a_missing_record_is_no_empty_run)
{
    static const struct state_unknown stored[] = {{{3, 20}, 7}};
    struct event create = event_of(EVENT_CREATE, &one);
    beside(f, 1, stored);
    assert_int_equal(core_begin(f, &one, LATEST, true), CAIRN_E_DAMAGED);
    assert_says(f, "cairn salvage p/r");
    assert_int_equal(core_begin(f, &one, STEP(20), true), CAIRN_E_DAMAGED);
    assert_int_equal(core_begin(f, &one, EXACT(1, 1), true), CAIRN_E_DAMAGED);
    assert_int_equal(core_open(f, &one, 21, 8), CAIRN_E_DAMAGED);
    assert_says(f, "is missing");
    assert_int_equal(core_run(f, &create), CAIRN_E_DAMAGED);
    assert_int_equal(record_count(f->record), 0);
    f->unrecorded.unknown_count = 0; /* parts without a manifest are something, too */
    assert_int_equal(core_begin(f, &one, LATEST, true), CAIRN_E_DAMAGED);
    beside(f, 0, NULL);
    assert_int_equal(core_begin(f, &one, LATEST, true), 0);
    assert_true(verdict_restore(&f->verdict)->empty);
}

/* Goal: what cannot be listed is not called empty, and no term is granted on it. */
CORE_TEST(an_unreadable_medium_is_no_empty_run)
{
    beside(f, 0, NULL);
    f->unrecorded.code = CAIRN_E_IO;
    f->unrecorded.code_text = "readdir: Input/output error";
    assert_int_equal(core_begin(f, &one, LATEST, true), CAIRN_E_IO);
    assert_says(f, "readdir");
    assert_int_equal(core_open(f, &one, 10, 7), CAIRN_E_IO);
    f->unrecorded.code = 0;
    struct ckpt_id id = core_save(f, &one, 10);
    f->unrecorded.code = CAIRN_E_IO; /* what the record has is had all the same */
    struct actor next = {.token = 2, .world_size = 1, .newest_seen = 1, .parent = id};
    assert_int_equal(core_begin(f, &next, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 1, 10);
    assert_int_equal(core_open(f, &one, 11, 8), 0); /* a term that stands goes on */
    assert_int_equal(core_open(f, &next, 20, 9), CAIRN_E_IO);
}

/* Goal: a record of before the first commit: named error; one with commits goes on from them, and
 * an unknown step that is asked for by name is no NOT_FOUND. */
CORE_TEST(an_older_record_hides_nothing)
{
    static const struct state_unknown stored[] = {{{1, 30}, 7}, {{2, 40}, 9}};
    struct actor two = {.token = 2, .world_size = 1, .newest_seen = 1};
    assert_int_equal(core_open(f, &one, 10, 77), 0);
    assert_int_equal(core_abort(f, ID(1, 10), 77), 0);
    beside(f, 2, stored);
    assert_int_equal(core_begin(f, &two, LATEST, true), CAIRN_E_DAMAGED);
    assert_says(f, "2 stored checkpoints are not in the run's record (newest: 40@2)");
    beside(f, 0, NULL);
    core_save(f, &one, 20);
    beside(f, 2, stored);
    two.ordinal = 1;
    assert_int_equal(core_begin(f, &two, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    assert_true(state_may_lack_newer(&f->state, ID(1, 20)));
    assert_false(state_may_lack_newer(&f->state, ID(2, 40)));
    two.ordinal = 2;
    assert_int_equal(core_begin(f, &two, STEP(40), true), CAIRN_E_DAMAGED);
    assert_int_equal(core_begin(f, &two, EXACT(2, 40), true), CAIRN_E_DAMAGED);
    assert_int_equal(core_begin(f, &two, STEP(41), true), CAIRN_E_NOT_FOUND);
}

/* Goal: no term is granted twice: those up to the greatest on the medium are filled, and the record
 * can be read back. */
CORE_TEST(the_next_term_is_above_the_mark)
{
    static const struct state_unknown stored[] = {{{5, 100}, 7}};
    core_save(f, &one, 10);
    beside(f, 1, stored);
    struct actor two = {.token = 2, .world_size = 2, .newest_seen = 1, .parent = {1, 10}};
    assert_int_equal(core_open(f, &two, 100, 8), 0);
    assert_ckpt(f->verdict.id, 6, 100);
    assert_int_equal(f->state.newest_term, 6);
    assert_int_equal(f->state.term_count, 6);
    struct actor nobody = {.world_size = 1, .newest_seen = 4};
    assert_int_equal(core_open(f, &nobody, 100, 9), CAIRN_E_FENCED); /* theirs is nobody's token */
    assert_int_equal(core_seal(f, ID(6, 100), 8, 0), 0);
    assert_int_equal(core_seal(f, ID(6, 100), 8, 1), 0);
    assert_int_equal(core_commit(f, ID(6, 100), 8), 0);
    assert_true(f->state.commits[0].on_lineage && f->state.commits[1].on_lineage);
}

/* Goal: a number that nobody can have granted makes neither a loop nor a huge record. */
CORE_TEST(an_absurd_term_is_refused)
{
    static const struct state_unknown absurd[] = {{{UINT64_MAX, 3}, 7}};
    struct actor two = {.token = 2, .world_size = 1, .newest_seen = 1};
    struct state_unknown far = {{1 + 1024, 3}, 7};
    core_save(f, &one, 10);
    beside(f, 1, absurd);
    assert_int_equal(core_open(f, &two, 20, 8), CAIRN_E_DAMAGED);
    assert_says(f, "step 3 of term 18446744073709551615");
    far.id.term++;
    beside(f, 1, &far);
    assert_int_equal(core_open(f, &two, 20, 8), CAIRN_E_DAMAGED);
    far.id.term--;
    beside(f, 1, &far);
    assert_int_equal(core_open(f, &two, 20, 8), 0);
    assert_int_equal(f->state.newest_term, 1026);
}

/* Goal (I3): a stored step that the record has lost is not opened again by another opening; the one
 * that made it may go on, and commits it. */
CORE_TEST(a_stored_step_is_not_opened_again)
{
    static const struct state_unknown stored[] = {{{1, 20}, 7}};
    core_save(f, &one, 10);
    beside(f, 1, stored);
    assert_int_equal(core_open(f, &one, 20, 8), CAIRN_E_DAMAGED);
    assert_says(f, "step 20 of term 1 is stored already");
    assert_int_equal(core_open(f, &one, 30, 8), 0);
    assert_int_equal(core_open(f, &one, 20, 7), 0);
    assert_int_equal(core_seal(f, ID(1, 20), 7, 0), 0);
    assert_true(state_explains(&f->state, ID(1, 20), 7));
    assert_int_equal(core_commit(f, ID(1, 20), 7), 0);
}

/* Goal: what the record tells of a manifest. A dead entry speaks of its own opening only; an open
 * one whose seals are not all there has lost them. */
CORE_TEST(what_is_told_of)
{
    struct actor both = {.token = 1, .world_size = 2};
    core_save(f, &both, 10);
    assert_true(state_explains(&f->state, ID(1, 10), 999)); /* what lies beside a commit is dead */
    assert_false(state_explains(&f->state, ID(1, 20), 7));
    assert_int_equal(core_open(f, &both, 20, 7), 0);
    assert_int_equal(core_seal(f, ID(1, 20), 7, 0), 0);
    assert_false(state_explains(&f->state, ID(1, 20), 7));
    assert_true(state_explains(&f->state, ID(1, 20), 6));
    assert_false(state_explains_all(&f->state, ID(1, 20)));
    assert_int_equal(core_seal(f, ID(1, 20), 7, 1), 0);
    assert_true(state_explains(&f->state, ID(1, 20), 7));
    assert_int_equal(core_abort(f, ID(1, 20), 7), 0);
    assert_true(state_explains(&f->state, ID(1, 20), 7));
    assert_false(state_explains(&f->state, ID(1, 20), 8));
}

/* Goal: a step that is opened again and again keeps its aborted openings in mind, until it is
 * committed or nothing of it is stored. */
CORE_TEST(aborted_openings_are_told_of)
{
    for (uint64_t open_id = 5; open_id < 9; open_id++) {
        assert_int_equal(core_open(f, &one, 10, open_id), 0);
        assert_int_equal(core_abort(f, ID(1, 10), open_id), 0);
    }
    for (uint64_t open_id = 5; open_id < 9; open_id++) {
        assert_true(state_explains(&f->state, ID(1, 10), open_id));
    }
    assert_false(state_explains(&f->state, ID(1, 10), 9));
    assert_int_equal(f->state.past_count, 3);
    assert_int_equal(core_open(f, &one, 10, 9), 0);
    assert_int_equal(f->state.past_count, 4);
    assert_int_equal(core_seal(f, ID(1, 10), 9, 0), 0);
    assert_int_equal(core_commit(f, ID(1, 10), 9), 0);
    assert_int_equal(f->state.past_count, 0);
    assert_true(state_explains(&f->state, ID(1, 10), 5));
    for (uint64_t open_id = 5; open_id < 7; open_id++) {
        assert_int_equal(core_open(f, &one, 20, open_id), 0);
        assert_int_equal(core_abort(f, ID(1, 20), open_id), 0);
    }
    struct actor two = {.token = 2, .world_size = 1, .newest_seen = 1};
    assert_int_equal(core_open(f, &two, 20, 7), 0);
    const struct ckpt_id id = {1, 20};
    struct event bury = {.kind = EVENT_BURY, .u.mark = {.id_count = 1, .ids = &id}};
    assert_int_equal(core_run(f, &bury), 0);
    assert_int_equal(f->state.dead_count + f->state.past_count, 0);
}

/* Goal: an opening that the record's lost end had committed is not called dead when its deadline
 * passes or a grant fences it: its manifest stays unknown, and is kept. */
CORE_TEST(a_lost_commit_does_not_die)
{
    static const struct state_unknown stored[] = {{{1, 10}, 7}};
    struct actor both = {.token = 1, .world_size = 2};
    struct actor two = {.token = 2, .world_size = 2, .newest_seen = 1};
    assert_int_equal(core_open(f, &both, 10, 7), 0);
    beside(f, 1, stored);
    assert_int_equal(core_abort(f, ID(1, 10), 7), 0);
    assert_int_equal(f->state.dead_count, 0);
    assert_false(state_explains(&f->state, ID(1, 10), 7));
    assert_int_equal(core_open(f, &both, 10, 7), 0);
    assert_int_equal(core_open(f, &two, 10, 8), 0);
    assert_int_equal(f->state.dead_count, 0);
    assert_int_equal(f->state.open_count, 1);
}

/* Goal: dead entries outlive grants, and go when nothing of them is stored, but not those that
 * answer for the newest term. */
CORE_TEST(dead_entries_stay_until_buried)
{
    const struct ckpt_id ids[] = {{1, 10}, {2, 10}, {1, 99}};
    struct event bury = {.kind = EVENT_BURY, .u.mark = {.id_count = 3, .ids = ids}};
    for (uint8_t token = 1; token <= 2; token++) {
        struct actor actor = {.token = token, .world_size = 1, .newest_seen = f->state.newest_term};
        assert_int_equal(core_open(f, &actor, 10, token), 0);
        assert_int_equal(core_abort(f, ID(token, 10), token), 0);
    }
    struct actor three = {.token = 3, .world_size = 1, .newest_seen = 2};
    assert_int_equal(core_run(f, &bury), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 1);
    assert_int_equal(f->state.dead_count, 1);
    assert_int_equal(core_open(f, &three, 20, 9), 0);
    assert_int_equal(f->state.dead_count, 1);
    struct stale stale;
    stale_init(&stale, f, &bury);
    assert_int_equal(core_run(f, &bury), 0);
    assert_int_equal(f->state.dead_count, 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &bury), 0);
    assert_int_equal(verdict_marks(&f->verdict)->done_count, 0);
}

/* Goal: a record whose end is lost gives what its prefix has, and is never empty. */
CORE_TEST(a_lost_end)
{
    char text[300];
    f->unrecorded = (struct state_unrecorded){.run = "p/r", .lost_from = 3};
    assert_int_equal(core_begin(f, &one, LATEST, true), CAIRN_E_DAMAGED);
    assert_says(f, "update 3 and everything after it");
    f->unrecorded.lost_from = 0;
    core_save(f, &one, 10);
    f->unrecorded.lost_from = 9;
    f->state.unrecorded = f->unrecorded;
    assert_int_equal(core_begin(f, &one, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 1, 10);
    state_mark_text(&f->state, sizeof(text), text);
    assert_non_null(strstr(text, "cairn salvage p/r"));
}

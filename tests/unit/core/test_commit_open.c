/* SPDX-License-Identifier: Apache-2.0
 *
 * An opening grants a term to the attempt that continues the run, fences the attempt before it,
 * finds an opening that is there, and refuses the rest by name.
 */
#include "core_fixture.h"

#include "base/check.h"
#include "core/usage.h"
#include "support/unit_test.h"

static const struct actor first = {.token = 1, .world_size = 2};

#define CORE_TEST(name) \
    FIXTURE_TEST(name, core_fixture_init, core_fixture_fini, struct core_fixture, f)

/* Goal: the first open of a run makes info, term 1 and the opening in one update. */
CORE_TEST(first_open_creates_run_and_term)
{
    assert_int_equal(core_open(f, &first, 10, 77), 0);
    assert_ckpt(f->verdict.id, 1, 10);
    assert_true(verdict_save(&f->verdict)->new_term);
    assert_false(verdict_save(&f->verdict)->new_lineage);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_OPEN);
    assert_int_equal(verdict_save(&f->verdict)->deadline_ms, 5000);
    assert_int_equal(f->verdict.newest_term, 1);
    assert_int_equal(record_version(f->record), 1);
    assert_true(f->state.exists);
    assert_int_equal(f->state.info.chunk_bytes, LIMIT_CHUNK_BYTES);
    assert_false(f->state.terms[0].entered);
    assert_int_equal(state_status(&f->state, ID(1, 10), NULL), SAVE_OPEN);
}

/* Goal: a repeated open, with whatever id, is answered with the opening that stands; nothing is
 * written. */
CORE_TEST(repeated_open_is_idempotent)
{
    assert_int_equal(core_open(f, &first, 10, 77), 0);
    assert_int_equal(core_open(f, &first, 10, 77), 0);
    assert_int_equal(core_open(f, &first, 10, 78), 0);
    assert_int_equal(verdict_save(&f->verdict)->open_id, 77);
    assert_false(verdict_save(&f->verdict)->new_term);
    assert_int_equal(record_version(f->record), 1);
}

/* Goal: several saves of a term are in flight at once, and each commits by itself. */
CORE_TEST(several_saves_in_flight)
{
    struct actor alone = {.token = 1, .world_size = 1};
    assert_int_equal(core_open(f, &alone, 10, 77), 0);
    assert_int_equal(core_open(f, &alone, 20, 78), 0);
    assert_ckpt(f->verdict.id, 1, 20);
    assert_int_equal(f->state.open_count, 2);
    assert_int_equal(core_seal(f, ID(1, 20), 78, 0), 0);
    assert_int_equal(core_commit(f, ID(1, 20), 78), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_commit(f, ID(1, 10), 77), 0);
    assert_int_equal(verdict_save(&f->verdict)->seq, 2);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 20);
}

/* Goal: an attempt that ended in order makes the next term a planned one, an attempt that was cut
 * does not; nobody speaks for another, and a grant that comes first wins. */
CORE_TEST(an_orderly_end_is_noted)
{
    struct actor actors[] = {{.token = 1, .world_size = 1},
                             {.token = 2, .world_size = 1},
                             {.token = 3, .world_size = 1}};
    struct event leave = {.kind = EVENT_LEAVE, .wall_ns = 50};
    struct stale stale;
    for (unsigned i = 0; i < 3; i++) {
        memset(&leave.u.leave, i == 1 ? 9 : (int)i + 1, sizeof(leave.u.leave));
        actors[i].newest_seen = i;
        core_save(f, &actors[i], 10 + i);
        if (i != 1) {
            stale_init(&stale, f, &leave);
        }
        assert_int_equal(core_run(f, &leave), 0);
        uint64_t version = record_version(f->record);
        assert_int_equal(core_run(f, &leave), 0); /* again: nothing new */
        assert_int_equal(record_version(f->record), version);
        if (i != 1) {
            assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
        }
    }
    assert_false(state_term_is_planned(&f->state, 1));
    assert_true(state_term_is_planned(&f->state, 2));
    assert_false(state_term_is_planned(&f->state, 3)); /* only somebody else has left */
    struct usage usage;
    usage_of_run(&f->state, (struct usage_window){.since_ns = 0, .until_ns = 100}, &usage);
    assert_int_equal(usage.planned, 1);
    struct actor last = {.token = 4, .world_size = 1, .newest_seen = 3};
    memset(&leave.u.leave, 4, sizeof(leave.u.leave));
    core_save(f, &last, 20);
    stale_init(&stale, f, &leave);
    last.token = 5, last.newest_seen = 4;
    assert_int_equal(core_open(f, &last, 30, 7), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
}

/* Goal: that an attempt ended in order is only told to people, so an entry of it that is damaged,
 * or of a term that there is not, costs a time and never the run. */
CORE_TEST(a_damaged_end_costs_nothing_else)
{
    struct actor one = {.token = 1, .world_size = 1}, two = {.token = 2, .world_size = 1};
    static const char *const keys[] = {"left/0000000000000001", "left/0000000000000009"};
    struct record_change broken[ARRAY_LEN(keys)];
    struct record_update update = {.change_count = ARRAY_LEN(keys), .changes = broken};
    core_save(f, &one, 10);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        broken[i] = (struct record_change){.key = keys[i], .value = {3, (const uint8_t *)"abc"}};
    }
    assert_int_equal(record_apply(f->record, &update, NULL), 0);
    core_save(f, &one, 15);
    struct event leave = {.kind = EVENT_LEAVE, .wall_ns = 50};
    memset(&leave.u.leave, 1, sizeof(leave.u.leave));
    assert_int_equal(core_run(f, &leave), 0); /* it has left already */
    two.newest_seen = 1;
    core_save(f, &two, 20);
    assert_true(state_term_is_planned(&f->state, 2));
    assert_int_equal(f->state.terms[0].left_wall_ns, 0);
}

/* Goal (I5): a grant ends what older terms have open, and nothing of them takes effect afterwards.
 */
CORE_TEST(grant_fences_older_terms)
{
    struct actor next = {.token = 2, .world_size = 2, .newest_seen = 1};
    struct diag why = DIAG_INIT;
    assert_int_equal(core_open(f, &first, 10, 77), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_open(f, &next, 10, 88), 0);
    assert_ckpt(f->verdict.id, 2, 10);
    assert_int_equal(f->state.open_count, 1);
    assert_int_equal(f->state.seal_count, 0);
    assert_int_equal(state_status(&f->state, ID(1, 10), &why), SAVE_ABORTED);
    assert_int_equal(why.code, CAIRN_E_FENCED);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), CAIRN_E_FENCED);
    assert_int_equal(core_commit(f, ID(1, 10), 77), CAIRN_E_FENCED);
    assert_int_equal(core_open(f, &first, 11, 79), CAIRN_E_FENCED);
    assert_non_null(strstr(f->verdict.diag.text, "term 2"));
    struct actor zombie = {.token = 1, .rank = 1, .world_size = 2};
    assert_int_equal(core_find(f, &zombie, 10), CAIRN_E_FENCED);
}

/* Goal: a stalled attempt that never had a term wakes up after its successor: it cannot fence it.
 */
CORE_TEST(stalled_attempt_is_fenced)
{
    struct actor stalled = {.token = 2, .world_size = 1, .newest_seen = 0};
    assert_int_equal(core_open(f, &first, 10, 77), 0);
    assert_int_equal(core_open(f, &stalled, 10, 88), CAIRN_E_FENCED);
    assert_non_null(strstr(f->verdict.diag.text, "term 1"));
    assert_int_equal(f->state.newest_term, 1);
}

/* Goal: after its own restore an attempt takes a new term; its late message from before is fenced.
 */
CORE_TEST(new_term_after_own_restore)
{
    struct actor alone = {.token = 1, .world_size = 1};
    core_save(f, &alone, 10);
    struct actor again = {
        .token = 1, .world_size = 1, .ordinal = 1, .newest_seen = 1, .parent = {1, 10}};
    core_save(f, &again, 11);
    assert_ckpt(f->verdict.id, 2, 11);
    assert_int_equal(core_open(f, &alone, 12, 9), CAIRN_E_FENCED);
    struct actor late = {.token = 1, .world_size = 1, .ordinal = 0, .newest_seen = 2};
    late.token = 1;
    assert_int_equal(core_open(f, &late, 12, 9), CAIRN_E_FENCED);
}

/* Goal: an attempt's late opening from before its restore cannot take a term that it never had. */
CORE_TEST(lower_ordinal_cannot_take_a_term)
{
    struct actor restored = {.token = 1, .world_size = 1, .ordinal = 3};
    struct actor late = {.token = 1, .world_size = 1, .ordinal = 2, .newest_seen = 1};
    core_save(f, &restored, 10);
    assert_int_equal(core_open(f, &late, 10, 9), CAIRN_E_FENCED);
}

/* Goal: a parent must be there; without one, a run with checkpoints says so loudly. */
CORE_TEST(parent_and_new_lineage)
{
    struct actor alone = {.token = 1, .world_size = 1};
    struct actor next = {.token = 2, .world_size = 1, .newest_seen = 1, .parent = {1, 11}};
    core_save(f, &alone, 10);
    assert_int_equal(core_open(f, &next, 20, 9), CAIRN_E_NOT_FOUND);
    assert_non_null(strstr(f->verdict.diag.text, "11@1"));
    next.parent = ID(0, 0);
    assert_int_equal(core_open(f, &next, 20, 9), 0);
    assert_true(verdict_save(&f->verdict)->new_lineage);
    struct actor third = {.token = 3, .world_size = 1, .newest_seen = 2, .parent = {1, 10}};
    assert_int_equal(core_open(f, &third, 20, 10), 0);
    assert_false(verdict_save(&f->verdict)->new_lineage);
    assert_ckpt(f->state.terms[2].entry.parent, 1, 10);
}

/* Goal: the world size of a term is fixed. */
CORE_TEST(world_size_must_agree)
{
    struct actor other = {.token = 1, .world_size = 3};
    assert_int_equal(core_open(f, &first, 10, 77), 0);
    assert_int_equal(core_open(f, &other, 11, 78), CAIRN_E_WORLD_MISMATCH);
    other.rank = 2;
    assert_int_equal(core_find(f, &other, 10), CAIRN_E_WORLD_MISMATCH);
}

/* Goal: a committed step answers with its sequence; an aborted opening with its reason; a new one
 * replaces it. */
CORE_TEST(past_of_a_step)
{
    struct actor alone = {.token = 1, .world_size = 1};
    core_save(f, &alone, 10);
    assert_int_equal(core_open(f, &alone, 10, 5), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_COMMITTED);
    assert_int_equal(verdict_save(&f->verdict)->seq, 1);
    assert_int_not_equal(verdict_save(&f->verdict)->open_id, 5);
    assert_int_equal(core_open(f, &alone, 11, 6), 0);
    assert_int_equal(core_abort(f, ID(1, 11), 6), 0);
    assert_int_equal(core_open(f, &alone, 11, 6), CAIRN_E_ABORTED);
    assert_int_equal(verdict_save(&f->verdict)->dead_code, CAIRN_E_MISSING_RANKS);
    assert_non_null(strstr(f->verdict.diag.text, "rank 1"));
    assert_int_equal(core_open(f, &alone, 11, 7), 0);
    assert_int_equal(verdict_save(&f->verdict)->open_id, 7);
    assert_int_equal(f->state.dead_count, 0);
    assert_int_equal(core_seal(f, ID(1, 11), 6, 0), CAIRN_E_ABORTED);
}

/* Goal: the other ranks find the opening when rank 0 came, and only theirs. */
CORE_TEST(other_ranks_find_the_opening)
{
    struct actor other = {.token = 1, .rank = 1, .world_size = 2};
    struct actor stranger = {.token = 9, .rank = 1, .world_size = 2};
    struct actor beyond = {.token = 1, .rank = 2, .world_size = 2};
    assert_int_equal(core_find(f, &other, 10), CAIRN_E_AGAIN);
    assert_int_equal(core_open(f, &first, 10, 77), 0);
    assert_int_equal(core_find(f, &other, 10), 0);
    assert_int_equal(verdict_save(&f->verdict)->open_id, 77);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_OPEN);
    assert_ckpt(f->verdict.id, 1, 10);
    assert_int_equal(core_find(f, &other, 11), CAIRN_E_AGAIN);
    assert_int_equal(core_find(f, &stranger, 10), CAIRN_E_TOKEN_MISMATCH);
    stranger.newest_seen = 1; /* of a new attempt, which waits for its own rank 0 */
    assert_int_equal(core_find(f, &stranger, 10), CAIRN_E_AGAIN);
    assert_int_equal(core_find(f, &beyond, 10), CAIRN_E_INVALID);
}

/* Goal: a rank hears of an abort once, and then waits for the next opening. */
CORE_TEST(finding_after_an_abort)
{
    struct actor other = {.token = 1, .rank = 1, .world_size = 2};
    assert_int_equal(core_open(f, &first, 10, 77), 0);
    assert_int_equal(core_abort(f, ID(1, 10), 77), 0);
    assert_int_equal(core_find(f, &other, 10), CAIRN_E_ABORTED);
    assert_int_equal(verdict_save(&f->verdict)->open_id, 77);
    struct event event = event_of(EVENT_FIND_OPEN, &other);
    event.id.step = 10;
    event.u.open.open_id = 77;
    assert_int_equal(core_run(f, &event), CAIRN_E_AGAIN);
}

/* Goal: what a stale copy decided is refused by the guards: after a commit, a grant, an abort. */
CORE_TEST(stale_opens_conflict)
{
    struct actor alone = {.token = 1, .world_size = 1};
    struct stale stale;
    struct event event = open_event(&alone, 10, 5);
    stale_init(&stale, f, &event);
    core_save(f, &alone, 10);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);

    event = open_event(&alone, 20, 6);
    stale_init(&stale, f, &event); /* opened, aborted in between: the dead entry says so */
    assert_int_equal(core_open(f, &alone, 20, 7), 0);
    assert_int_equal(core_abort(f, ID(1, 20), 7), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);

    event = open_event(&alone, 30, 8);
    stale_init(&stale, f, &event);
    struct actor next = {.token = 2, .world_size = 1, .newest_seen = 1};
    struct event grant = open_event(&next, 30, 9);
    struct stale other;
    stale_init(&other, f, &grant);
    assert_int_equal(stale_apply(&other, f), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
}

/* Goal: a run that another driver created in between keeps its info. */
CORE_TEST(two_drivers_create_the_run)
{
    struct event event = open_event(&first, 10, 5);
    struct event create = {.kind = EVENT_CREATE,
                           .u.create = {.chunk_bytes = LIMIT_CHUNK_BYTES_MIN}};
    struct stale stale;
    stale_init(&stale, f, &event);
    assert_int_equal(core_run(f, &create), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(f->state.info.chunk_bytes, LIMIT_CHUNK_BYTES_MIN);
    assert_int_equal(core_run(f, &create), 0);
    assert_int_equal(record_version(f->record), 2);
}

/* Goal: input from outside that makes no sense, or could not be read back, is refused by name. */
CORE_TEST(bad_input)
{
    struct actor none = {.token = 1, .world_size = 0},
                 other = {.token = 1, .rank = 1, .world_size = 2};
    const char *tag = "\xff\xfe", *empty = "";
    assert_int_equal(core_open(f, &none, 1, 5), CAIRN_E_INVALID);
    assert_int_equal(core_open(f, &other, 1, 5), CAIRN_E_INVALID);
    assert_int_equal(core_open(f, &first, 1, 0), CAIRN_E_INVALID);
    struct event event = open_event(&first, 1, 5);
    event.u.open.entry.tag_count = 1;
    event.u.open.entry.tags = &tag;
    assert_int_equal(core_run(f, &event), CAIRN_E_INVALID);
    event.u.open.entry.tags = &empty;
    assert_int_equal(core_run(f, &event), CAIRN_E_INVALID);
    event.u.open.entry.tag_count = LIMIT_TAGS + 1;
    assert_int_equal(core_run(f, &event), CAIRN_E_TOO_LARGE);
    event = open_event(&first, 1, 5);
    event.u.open.entry.metadata_bytes = LIMIT_METADATA_BYTES + 1;
    assert_int_equal(core_run(f, &event), CAIRN_E_TOO_LARGE);
    event = open_event(&first, 1, 5);
    event.u.open.info.chunk_bytes = 1000;
    assert_int_equal(core_run(f, &event), CAIRN_E_INVALID);
    assert_int_equal(record_version(f->record), 0);
}

/* Goal: an update that does not fit into the scratch is an error, at every size of it. */
CORE_TEST(no_memory_is_an_error)
{
    struct event event = open_event(&first, 1, 5);
    size_t ok_count = 0;
    for (size_t max = 0; max < 4096; max += 16) {
        struct scratch scratch;
        struct verdict verdict;
        scratch_init(&scratch, max);
        commit_step(&f->state, &event, &scratch, &verdict);
        assert_true(verdict.code == 0 || verdict.code == CAIRN_E_NO_MEMORY ||
                    verdict.code == CAIRN_E_INVALID);
        assert_true((verdict.update.change_count > 0) == (verdict.code == 0));
        ok_count += verdict.code == 0;
        scratch_fini(&scratch);
    }
    assert_true(ok_count > 0);
}

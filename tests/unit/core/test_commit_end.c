/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank seals one content, an opening has one end, and whoever asks afterwards is told the truth.
 */
#include "core_fixture.h"

#include "support/unit_test.h"

static const struct actor both = {.token = 1, .world_size = 2};

static void setup(struct core_fixture *f)
{
    core_fixture_init(f);
    assert_int_equal(core_open(f, &both, 10, 77), 0);
}

#define CORE_TEST(name) FIXTURE_TEST(name, setup, core_fixture_fini, struct core_fixture, f)

/* Goal (I3): the same seal again changes nothing; another content of the same rank is refused. */
CORE_TEST(seal_once)
{
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    assert_int_equal(f->state.seal_count, 1); /* in the record */
    assert_false(verdict_save(&f->verdict)->all_sealed);
    uint64_t version = record_version(f->record);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    assert_int_equal(record_version(f->record), version);
    struct event_seal other = seal_of(1, 12345);
    struct event event = seal_event(ID(1, 10), 77, 1, &other);
    assert_int_equal(core_run(f, &event), CAIRN_E_CONFLICT);
    assert_int_equal(verdict_save(&f->verdict)->rank, 1);
    struct actor second = {.token = 1, .rank = 1, .world_size = 2};
    assert_int_equal(core_find(f, &second, 10), 0);
    assert_true(verdict_save(&f->verdict)->sealed);
}

/* Goal: a batch is all or nothing, repeats inside are fine, contradictions are not. */
CORE_TEST(seal_batch)
{
    struct event_seal seals[3] = {seal_of(0, 77), seal_of(1, 77), seal_of(1, 5)};
    struct event event = seal_event(ID(1, 10), 77, 3, seals);
    assert_int_equal(core_run(f, &event), CAIRN_E_CONFLICT);
    assert_int_equal(f->state.seal_count, 0);
    seals[2].rank = 2;
    assert_int_equal(core_run(f, &event), CAIRN_E_INVALID);
    assert_int_equal(verdict_save(&f->verdict)->rank, 2);
    seals[2] = seals[1];
    assert_int_equal(core_run(f, &event), 0);
    assert_true(verdict_save(&f->verdict)->all_sealed);
    assert_int_equal(f->state.seal_count, 2);
    seals[0].entry.part_bytes = 0;
    assert_int_equal(core_run(f, &event), CAIRN_E_INVALID);
}

/* Goal: two drivers that seal the same rank with different contents: one wins. */
CORE_TEST(stale_seals_conflict)
{
    struct event_seal other = seal_of(1, 12345);
    struct event event = seal_event(ID(1, 10), 77, 1, &other);
    struct stale stale;
    stale_init(&stale, f, &event);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &event), CAIRN_E_CONFLICT);
}

/* Goal: a commit needs all ranks and names those that are missing. */
CORE_TEST(commit_needs_all_ranks)
{
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_commit(f, ID(1, 10), 77), CAIRN_E_MISSING_RANKS);
    assert_non_null(strstr(f->verdict.diag.text, "rank 1 of 2"));
    assert_int_equal(f->state.commit_count, 0);
    assert_null(state_latest(&f->state, ID(0, 0)));
}

/* Goal: a commit appends to the chain, takes the opening and its seals along, and may be repeated.
 */
CORE_TEST(commit_is_idempotent)
{
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    assert_int_equal(core_commit(f, ID(1, 10), 77), 0);
    assert_int_equal(verdict_save(&f->verdict)->seq, 1);
    assert_int_equal(f->state.open_count + f->state.seal_count + f->state.dead_count, 0);
    uint64_t version = record_version(f->record);
    assert_int_equal(core_commit(f, ID(1, 10), 77), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_COMMITTED);
    assert_int_equal(verdict_save(&f->verdict)->seq, 1);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_COMMITTED);
    assert_int_equal(core_commit(f, ID(1, 10), 78), CAIRN_E_EXISTS);
    assert_int_equal(core_abort(f, ID(1, 10), 77), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_COMMITTED);
    assert_int_equal(record_version(f->record), version);
    assert_int_equal(state_status(&f->state, ID(1, 10), NULL), SAVE_COMMITTED);
}

/* Goal: the chain is numbered without holes, and each entry holds the hash of the one before. */
CORE_TEST(chain_grows)
{
    struct actor alone = {.token = 2, .world_size = 1, .newest_seen = 1};
    for (uint64_t step = 1; step <= 5; step++) {
        core_save(f, &alone, step);
        assert_int_equal(verdict_save(&f->verdict)->seq, step);
    }
    assert_int_equal(f->state.head.seq, 5);
    struct record_value value;
    assert_true(record_get(f->record, key_chain(4).at, &value));
    struct sha256 hash = sha256(value.bytes, value.data);
    assert_memory_equal(&hash, &f->state.commits[4].entry.previous, sizeof(hash));
}

/* Goal: an abort ends the opening, says why, and may be repeated; a commit afterwards is refused.
 */
CORE_TEST(abort_is_the_end)
{
    struct diag why = DIAG_INIT;
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_abort(f, ID(1, 10), 77), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_ABORTED);
    assert_int_equal(f->state.open_count + f->state.seal_count, 0);
    assert_int_equal(core_abort(f, ID(1, 10), 77), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_ABORTED);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), CAIRN_E_ABORTED);
    assert_int_equal(verdict_save(&f->verdict)->dead_code, CAIRN_E_MISSING_RANKS);
    assert_int_equal(core_commit(f, ID(1, 10), 77), CAIRN_E_ABORTED);
    assert_int_equal(state_status(&f->state, ID(1, 10), &why), SAVE_ABORTED);
    assert_int_equal(why.code, CAIRN_E_MISSING_RANKS);
    assert_non_null(strstr(why.text, "rank 1 did not come"));
    assert_int_equal(core_abort(f, ID(1, 99), 77), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_NONE);
    assert_int_equal(core_seal(f, ID(9, 10), 77, 1), CAIRN_E_NOT_FOUND);
}

/* Goal: of a commit and an abort decided on the same copy exactly one wins, and the loser then
 * hears the truth. */
/* Goal: whoever knows an open id still cannot end the save of another attempt. */
CORE_TEST(abort_needs_its_own_attempt)
{
    struct event abort = abort_event(ID(1, 10), 77);
    memset(&abort.u.abort.token, 2, sizeof(abort.u.abort.token));
    assert_int_equal(core_run(f, &abort), CAIRN_E_TOKEN_MISMATCH);
    assert_non_null(strstr(f->verdict.diag.text, "belongs to another attempt"));
    assert_non_null(state_open_find(&f->state, ID(1, 10)));
    memset(&abort.u.abort.token, both.token, sizeof(abort.u.abort.token));
    assert_int_equal(core_run(f, &abort), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_ABORTED);
    memset(&abort.u.abort.token, 2,
           sizeof(abort.u.abort.token)); /* once it is over, anybody may hear how */
    assert_int_equal(core_run(f, &abort), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_ABORTED);
}

CORE_TEST(commit_and_abort_race)
{
    struct event commit = commit_event(ID(1, 10), 77), abort = abort_event(ID(1, 10), 77);
    struct stale stale;
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    stale_init(&stale, f, &commit);
    assert_int_equal(core_run(f, &abort), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &commit), CAIRN_E_ABORTED);

    assert_int_equal(core_open(f, &both, 11, 78), 0);
    assert_int_equal(core_seal(f, ID(1, 11), 78, 0), 0);
    assert_int_equal(core_seal(f, ID(1, 11), 78, 1), 0);
    abort = abort_event(ID(1, 11), 78);
    stale_init(&stale, f, &abort);
    assert_int_equal(core_commit(f, ID(1, 11), 78), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &abort), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_COMMITTED);
}

/* Goal (I5): a commit that was decided before a grant does not land after it. */
CORE_TEST(commit_and_grant_race)
{
    struct actor next = {.token = 2, .world_size = 1, .newest_seen = 1};
    struct event commit = commit_event(ID(1, 10), 77);
    struct stale stale;
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    stale_init(&stale, f, &commit);
    assert_int_equal(core_open(f, &next, 1, 5), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &commit), CAIRN_E_FENCED);
}

/* Goal: a seal that lands between an abort's look and its write is left over, counts for nothing in
 * the next opening, and is gone when that has ended. */
CORE_TEST(left_over_seal_counts_for_nothing)
{
    struct event abort = abort_event(ID(1, 10), 77);
    struct stale stale;
    stale_init(&stale, f, &abort);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    assert_int_equal(stale_apply(&stale, f), 0);
    assert_int_equal(f->state.seal_count, 1);
    assert_true(f->state.seals[0].orphan);
    assert_int_equal(core_open(f, &both, 10, 78), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 78, 0), 0);
    assert_false(verdict_save(&f->verdict)->all_sealed);
    assert_int_equal(core_commit(f, ID(1, 10), 78), CAIRN_E_MISSING_RANKS);
    assert_int_equal(core_seal(f, ID(1, 10), 78, 1), 0);
    assert_true(verdict_save(&f->verdict)->all_sealed);
    assert_int_equal(core_commit(f, ID(1, 10), 78), 0);
    assert_int_equal(f->state.seal_count, 0);
}

/* Goal: an opening of a fenced term that slipped in beside the grant is void, and an abort clears
 * it. */
CORE_TEST(opening_beside_a_grant_is_void)
{
    struct actor next = {.token = 2, .world_size = 1, .newest_seen = 1};
    struct event grant = open_event(&next, 1, 5);
    struct stale stale;
    stale_init(&stale, f, &grant);
    assert_int_equal(core_open(f, &both, 20, 78), 0); /* the grant did not see this one */
    assert_int_equal(stale_apply(&stale, f), 0);
    struct diag why = DIAG_INIT;
    assert_non_null(state_open_find(&f->state, ID(1, 20)));
    assert_int_equal(state_status(&f->state, ID(1, 20), &why), SAVE_ABORTED);
    assert_int_equal(why.code, CAIRN_E_FENCED);
    assert_int_equal(core_seal(f, ID(1, 20), 78, 0), CAIRN_E_FENCED);
    assert_int_equal(core_commit(f, ID(1, 20), 78), CAIRN_E_FENCED);
    assert_int_equal(core_abort(f, ID(1, 20), 78), 0);
    assert_null(state_open_find(&f->state, ID(1, 20)));
    assert_int_equal(state_status(&f->state, ID(1, 20), NULL), SAVE_ABORTED);
}

/* Goal (I5): a seal and a commit of such an opening, decided before the grant, do not land after
 * it. */
CORE_TEST(commit_beside_a_grant)
{
    struct actor next = {.token = 2, .world_size = 1, .newest_seen = 1};
    struct event grant = open_event(&next, 1, 5);
    struct stale stale_grant, stale_seal, stale_commit;
    stale_init(&stale_grant, f, &grant);
    assert_int_equal(core_open(f, &both, 20, 78), 0);
    assert_int_equal(core_open(f, &both, 30, 79), 0);
    struct event_seal one = seal_of(0, 79);
    struct event seal = seal_event(ID(1, 30), 79, 1, &one);
    struct event commit = commit_event(ID(1, 20), 78);
    assert_int_equal(core_seal(f, ID(1, 20), 78, 0), 0);
    assert_int_equal(core_seal(f, ID(1, 20), 78, 1), 0);
    stale_init(&stale_seal, f, &seal);
    stale_init(&stale_commit, f, &commit);
    assert_int_equal(stale_apply(&stale_grant, f), 0);
    assert_int_equal(stale_apply(&stale_seal, f), CAIRN_E_CONFLICT);
    assert_int_equal(stale_apply(&stale_commit, f), CAIRN_E_CONFLICT);
    assert_int_equal(core_run(f, &commit), CAIRN_E_FENCED);
    assert_int_equal(f->state.commit_count, 0);
}

/* Goal: a left-over seal is swept by a later opening; one that was overwritten by a good seal since
 * it was seen is not. */
CORE_TEST(sweeping_left_over_seals)
{
    struct event abort = abort_event(ID(1, 10), 77);
    struct event open = open_event(&both, 30, 90);
    struct stale stale;
    stale_init(&stale, f, &abort);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    assert_int_equal(stale_apply(&stale, f), 0);
    stale_init(&stale, f, &open);
    assert_int_equal(core_open(f, &both, 10, 78), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 78, 1), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    abort = abort_event(ID(1, 10), 78);
    stale_init(&stale, f, &abort);
    assert_int_equal(core_seal(f, ID(1, 10), 78, 0), 0);
    assert_int_equal(stale_apply(&stale, f), 0);
    assert_int_equal(f->state.seal_count, 1);
    assert_int_equal(core_run(f, &open), 0);
    assert_int_equal(f->state.seal_count, 0);
}

/* Goal: a manifest size that could not be read back is refused before it is written. */
CORE_TEST(commit_checks_the_manifest)
{
    struct event commit = commit_event(ID(1, 10), 77);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    commit.u.commit.entry.manifest_bytes = 0;
    assert_int_equal(core_run(f, &commit), CAIRN_E_INVALID);
    commit.u.commit.entry.manifest_bytes = LIMIT_MANIFEST_BYTES + 1;
    assert_int_equal(core_run(f, &commit), CAIRN_E_INVALID);
}

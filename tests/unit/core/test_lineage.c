/* SPDX-License-Identifier: Apache-2.0
 *
 * `latest` and the other selectors name a checkpoint of the present lineage, also after a rewind;
 * what a rewind left behind is superseded; a save that lacks ranks says which.
 */
#include "core_fixture.h"

#include "support/unit_test.h"

static const struct actor trainer = {.token = 1, .world_size = 1};

/* Term 1 saves 10 to 50. */
static void setup(struct core_fixture *f)
{
    core_fixture_init(f);
    for (uint64_t step = 10; step <= 50; step += 10) {
        core_save(f, &trainer, step);
    }
}

static bool on_lineage(const struct core_fixture *f, uint64_t term, uint64_t step)
{
    return state_commit_find(&f->state, ID(term, step))->on_lineage;
}

#define CORE_TEST(name) FIXTURE_TEST(name, setup, core_fixture_fini, struct core_fixture, f)

/* Goal: resuming from an older step and saving the same steps again conflicts with nothing; the old
 * branch is superseded as soon as the new one has a commit, not before. */
CORE_TEST(rewind_supersedes)
{
    struct actor again = {
        .token = 2, .world_size = 1, .newest_seen = 1, .ordinal = 1, .parent = {1, 20}};
    assert_int_equal(core_open(f, &again, 30, 9), 0);
    assert_ckpt(f->verdict.id, 2, 30);
    assert_false(verdict_save(&f->verdict)->new_lineage);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 50); /* granted, not entered */
    assert_int_equal(core_seal(f, ID(2, 30), 9, 0), 0);
    assert_int_equal(core_commit(f, ID(2, 30), 9), 0);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 2, 30);
    assert_true(on_lineage(f, 1, 10) && on_lineage(f, 1, 20) && on_lineage(f, 2, 30));
    assert_false(on_lineage(f, 1, 30) || on_lineage(f, 1, 40) || on_lineage(f, 1, 50));
    core_save(f, &again, 40);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 2, 40);
    assert_ckpt(state_latest(&f->state, ID(2, 40))->entry.id, 2, 30);
    assert_ckpt(state_latest(&f->state, ID(2, 30))->entry.id, 1, 20);
    assert_null(state_latest(&f->state, ID(1, 10)));
}

/* Goal: a branch of a branch, and a return to the first branch by its name. */
CORE_TEST(branches_of_branches)
{
    struct actor second = {.token = 2, .world_size = 1, .newest_seen = 1, .parent = {1, 20}};
    struct actor third = {.token = 3, .world_size = 1, .newest_seen = 2, .parent = {1, 40}};
    struct actor fourth = {.token = 4, .world_size = 1, .newest_seen = 3};
    core_save(f, &second, 25);
    core_save(f, &third, 45);
    assert_true(on_lineage(f, 1, 30) && on_lineage(f, 1, 40) && on_lineage(f, 3, 45));
    assert_false(on_lineage(f, 1, 50) || on_lineage(f, 2, 25));
    assert_true(f->state.terms[0].on_lineage && !f->state.terms[1].on_lineage);
    core_save(f, &fourth, 5); /* never restored: a lineage of its own */
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 4, 5);
    assert_false(on_lineage(f, 1, 10) || on_lineage(f, 3, 45));
}

/* Goal: falling back in a restore follows the ancestors of what was asked for, also beside the
 * lineage. */
CORE_TEST(ancestors_of_a_superseded_one)
{
    struct actor second = {.token = 2, .world_size = 1, .newest_seen = 1, .parent = {1, 20}};
    struct actor reader = {.token = 9, .world_size = 1};
    core_save(f, &second, 25);
    assert_int_equal(core_begin(f, &reader, EXACT(1, 40), true), 0);
    assert_int_equal(core_report(f, &reader, ID(1, 40), CAIRN_E_DAMAGED), 0);
    assert_ckpt(f->verdict.id, 1, 30);
    reader.ordinal = 1;
    assert_int_equal(core_begin(f, &reader, LATEST, true), 0);
    assert_ckpt(f->verdict.id, 2, 25);
    assert_int_equal(core_report(f, &reader, ID(2, 25), CAIRN_E_DAMAGED), 0);
    assert_ckpt(f->verdict.id, 1, 20); /* not 1, 50 */
}

/* Goal: STEP means the newest lineage; a step that only a superseded branch has is named with its
 * term. */
CORE_TEST(selecting_steps)
{
    struct actor second = {.token = 2, .world_size = 1, .newest_seen = 1, .parent = {1, 20}};
    const struct state_commit *found = NULL;
    struct diag diag = DIAG_INIT;
    core_save(f, &second, 30);
    assert_int_equal(state_select(&f->state, &STEP(30), &found, NULL), 0);
    assert_ckpt(found->entry.id, 2, 30);
    assert_int_equal(state_select(&f->state, &STEP(10), &found, NULL), 0);
    assert_ckpt(found->entry.id, 1, 10);
    assert_int_equal(state_select(&f->state, &EXACT(1, 30), &found, NULL), 0);
    assert_ckpt(found->entry.id, 1, 30);
    assert_int_equal(state_select(&f->state, &STEP(50), &found, &diag), CAIRN_E_NOT_FOUND);
    assert_non_null(strstr(diag.text, "50@1"));
    diag_clear(&diag);
    assert_int_equal(state_select(&f->state, &STEP(99), &found, &diag), CAIRN_E_NOT_FOUND);
    assert_non_null(strstr(diag.text, "nearest saved steps: 30"));
}

/* Goal: the names of missing ranks read well at every count, and stay inside the caller's buffer.
 */
CORE_TEST(naming_missing_ranks)
{
    struct actor many = {.token = 7, .world_size = 40, .newest_seen = 1};
    char text[200] = "no part came from ";
    assert_int_equal(core_open(f, &many, 1, 5), 0);
    state_missing_ranks(&f->state, ID(2, 1), sizeof(text), text);
    assert_string_equal(text,
                        "no part came from ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, "
                        "14, 15 and 24 others of 40");
    for (uint32_t rank = 0; rank < 40; rank++) {
        if (rank != 1 && rank != 3 && rank != 5) {
            assert_int_equal(core_seal(f, ID(2, 1), 5, rank), 0);
        }
    }
    text[0] = '\0';
    state_missing_ranks(&f->state, ID(2, 1), sizeof(text), text);
    assert_string_equal(text, "ranks 1, 3 and 5 of 40");
    assert_int_equal(core_seal(f, ID(2, 1), 5, 1), 0);
    assert_int_equal(core_seal(f, ID(2, 1), 5, 5), 0);
    text[0] = '\0';
    state_missing_ranks(&f->state, ID(2, 1), sizeof(text), text);
    assert_string_equal(text, "rank 3 of 40");
    char small[8] = "abc";
    state_missing_ranks(&f->state, ID(2, 1), sizeof(small), small);
    assert_string_equal(small, "abcrank");
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * An incremental save refers to the newest checkpoint of the history that it continues, never to
 * one that is damaged, suspect or forgotten, and only as a whole set that shares no object.
 */
#include "core_fixture.h"

#include "support/unit_test.h"

static const struct actor one = {.token = 1, .world_size = 1};

static struct event base_event(const struct actor *actor, uint64_t step, uint32_t full_every)
{
    struct event event = open_event(actor, step, 5000 + step);
    event.u.open.full_every = full_every;
    return event;
}

/* What base would a save get now? Decided and not applied. */
static struct ckpt_id base_of(struct core_fixture *f, const struct actor *actor, uint32_t every)
{
    struct event event = base_event(actor, 9999, every);
    struct verdict verdict;
    struct scratch scratch;
    scratch_init(&scratch, MIB(1));
    commit_step(&f->state, &event, &scratch, &verdict);
    scratch_fini(&scratch);
    assert_int_equal(verdict.code, 0);
    return verdict_save(&verdict)->base;
}

/* Saves with the base that the core chooses. */
static void save_based(struct core_fixture *f, const struct actor *actor, uint64_t step,
                       uint32_t full_every)
{
    struct event event = base_event(actor, step, full_every);
    assert_int_equal(core_run(f, &event), 0);
    struct ckpt_id id = f->verdict.id;
    for (uint32_t rank = 0; rank < actor->world_size; rank++) {
        assert_int_equal(core_seal(f, id, event.u.open.open_id, rank), 0);
    }
    assert_int_equal(core_commit(f, id, event.u.open.open_id), 0);
}

#define CORE_TEST(name) \
    FIXTURE_TEST(name, core_fixture_init, core_fixture_fini, struct core_fixture, f)

/* Goal: the first save is full, the next one refers to the newest of its own term; every rank hears
 * of it, and the commit remembers. */
CORE_TEST(the_newest_of_the_term)
{
    struct actor both = {.token = 1, .world_size = 2}, second = both;
    second.rank = 1;
    assert_int_equal(core_open(f, &both, 10, 77), 0);
    assert_ckpt(verdict_save(&f->verdict)->base, 0, 0);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 0), 0);
    assert_int_equal(core_seal(f, ID(1, 10), 77, 1), 0);
    assert_int_equal(core_commit(f, ID(1, 10), 77), 0);
    assert_int_equal(core_open(f, &both, 20, 78), 0);
    assert_ckpt(verdict_save(&f->verdict)->base, 1, 10);
    assert_ckpt(f->state.opens[0].entry.base, 1, 10); /* the claim */
    assert_int_equal(core_find(f, &second, 20), 0);
    assert_ckpt(verdict_save(&f->verdict)->base, 1, 10);
    assert_int_equal(core_open(f, &both, 20, 78), 0); /* again, after a reconnect */
    assert_ckpt(verdict_save(&f->verdict)->base, 1, 10);
    assert_int_equal(core_seal(f, ID(1, 20), 78, 0), 0);
    assert_int_equal(core_seal(f, ID(1, 20), 78, 1), 0);
    assert_int_equal(core_commit(f, ID(1, 20), 78), 0);
    assert_ckpt(state_commit_find(&f->state, ID(1, 20))->entry.base, 1, 10);
    /* An older step that is saved later continues what was saved last. */
    save_based(f, &both, 5, 0);
    assert_ckpt(base_of(f, &both, 0), 1, 5);
}

/* Goal: a new term begins with its parent, not with what another branch saved since. */
CORE_TEST(the_parent_of_the_term)
{
    core_save(f, &one, 10);
    core_save(f, &one, 20);
    struct actor child = {.token = 2, .world_size = 1, .newest_seen = 1, .parent = {1, 10}};
    assert_ckpt(base_of(f, &child, 0), 1, 10);
    save_based(f, &child, 30, 0);
    assert_ckpt(base_of(f, &child, 0), 2, 30);
    /* One that restored nothing has nothing to refer to. */
    struct actor fresh = {.token = 3, .world_size = 1, .newest_seen = 2};
    assert_ckpt(base_of(f, &fresh, 0), 0, 0);
}

/* Goal: with full_every 3, saves 1, 4 and 7 are full, along the lineage and across terms. */
CORE_TEST(every_kth_is_full)
{
    for (uint64_t step = 1; step <= 4; step++) {
        save_based(f, &one, step, 3);
    }
    struct actor child = {.token = 2, .world_size = 1, .newest_seen = 1, .parent = {1, 4}};
    for (uint64_t step = 5; step <= 7; step++) {
        save_based(f, &child, step, 3);
    }
    const uint64_t bases[] = {0, 1, 2, 0, 4, 5, 0};
    for (uint64_t i = 0; i < 7; i++) {
        assert_int_equal(f->state.commits[i].entry.base.step, bases[i]);
    }
    assert_ckpt(base_of(f, &child, 1), 0, 0); /* 1: every save */
    assert_ckpt(base_of(f, &child, 0), 2, 7); /* 0: only the first */
    /* A rewind counts from where it continues. */
    struct actor rewound = {.token = 3, .world_size = 1, .newest_seen = 2, .parent = {1, 3}};
    assert_ckpt(base_of(f, &rewound, 3), 0, 0);
    struct actor other = {.token = 4, .world_size = 1, .newest_seen = 2, .parent = {1, 2}};
    assert_ckpt(base_of(f, &other, 3), 1, 2);
}

CORE_TEST(full_when_asked)
{
    core_save(f, &one, 10);
    struct event event = base_event(&one, 20, 0);
    event.u.open.full = true;
    assert_int_equal(core_run(f, &event), 0);
    assert_ckpt(verdict_save(&f->verdict)->base, 0, 0);
}

/* Goal: damage in any member of a set ends the set, because its members share objects. */
CORE_TEST(damage_ends_a_set)
{
    for (uint64_t step = 1; step <= 3; step++) {
        save_based(f, &one, step, 0);
    }
    assert_ckpt(base_of(f, &one, 0), 1, 3);
    assert_int_equal(core_health(f, ID(1, 1), HEALTH_SUSPECT), 0);
    assert_ckpt(base_of(f, &one, 0), 0, 0);
    save_based(f, &one, 4, 0);
    assert_ckpt(state_commit_find(&f->state, ID(1, 4))->entry.base, 0, 0);
    assert_ckpt(base_of(f, &one, 0), 1, 4);
    assert_int_equal(core_health(f, ID(1, 4), HEALTH_DAMAGED), 0);
    assert_ckpt(base_of(f, &one, 0), 0, 0);
}

/* Goal: a forgotten one is no base, and no hindrance: the next older one is, and a base that is
 * forgotten while a save has its claim on it does not stop that save. */
CORE_TEST(forgotten_ones)
{
    struct run_state state;
    for (uint64_t step = 1; step <= 3; step++) {
        save_based(f, &one, step, 0);
    }
    assert_int_equal(core_append(f, CHAIN_FORGET, ID(1, 3), &state), 0);
    assert_ckpt(base_of(f, &one, 0), 1, 2);
    assert_int_equal(core_append(f, CHAIN_FORGET, ID(1, 1), &state), 0);
    assert_ckpt(base_of(f, &one, 0), 1, 2); /* a member below may be forgotten */
    struct event event = base_event(&one, 40, 0);
    assert_int_equal(core_run(f, &event), 0);
    assert_int_equal(core_append(f, CHAIN_FORGET, ID(1, 2), &state), 0);
    assert_ckpt(state.opens[0].entry.base, 1, 2);
    assert_int_equal(core_seal(f, ID(1, 40), event.u.open.open_id, 0), 0);
    assert_int_equal(core_commit(f, ID(1, 40), event.u.open.open_id), 0);
    assert_ckpt(state_commit_find(&f->state, ID(1, 40))->entry.base, 1, 2);
}

/* Goal: an opening that was decided before damage was found is decided again. */
CORE_TEST(health_is_guarded)
{
    struct stale stale;
    core_save(f, &one, 10);
    struct event event = base_event(&one, 20, 0);
    stale_init(&stale, f, &event);
    assert_int_equal(core_health(f, ID(1, 10), HEALTH_SUSPECT), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
}

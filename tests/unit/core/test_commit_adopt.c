/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints that a lost, cut or older record does not have enter it again, with the terms,
 * parents and bases that they need, in one update each. What the record has is never changed.
 */
#include "core_fixture.h"

#include "support/unit_test.h"

static const struct actor alone = {.token = 1, .world_size = 1};

/* As the manifest of (term, step) tells it: the attempt's token is 16 times `token`. */
static struct event adopt_event(uint8_t token, struct ckpt_id id, struct ckpt_id parent)
{
    struct event event = {.kind = EVENT_ADOPT,
                          .id = id,
                          .wall_ns = 99,
                          .u.adopt = {.parent = parent,
                                      .world_size = 1,
                                      .open_id = 7,
                                      .actor = "ada@login1",
                                      .entry.manifest_bytes = 400,
                                      .info = {.chunk_bytes = LIMIT_CHUNK_BYTES}}};
    memset(&event.u.adopt.token, token, sizeof(event.u.adopt.token));
    memset(&event.u.adopt.info.run_uuid, 9, sizeof(event.u.adopt.info.run_uuid));
    return event;
}

static int adopt(struct core_fixture *f, struct event event) { return core_run(f, &event); }

#define CORE_TEST(name) \
    FIXTURE_TEST(name, core_fixture_init, core_fixture_fini, struct core_fixture, f)

CORE_TEST(test_a_whole_record_is_made_again)
{
    assert_int_equal(adopt(f, adopt_event(1, ID(1, 10), ID(0, 0))), 0);
    assert_int_equal(adopt(f, adopt_event(1, ID(1, 20), ID(0, 0))), 0);
    assert_int_equal(adopt(f, adopt_event(1, ID(1, 30), ID(0, 0))), 0);
    struct event built_on = adopt_event(1, ID(2, 30), ID(1, 20));
    built_on.u.adopt.entry.base = ID(1, 20);
    assert_int_equal(adopt(f, built_on), 0);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 2, 30);
    assert_false(state_commit_find(&f->state, ID(1, 30))->on_lineage);
    assert_true(state_commit_find(&f->state, ID(1, 20))->on_lineage);
    assert_int_equal(f->state.newest_term, 2);
    assert_int_equal(f->state.terms[1].entry.ordinal, 1);
    assert_ckpt(state_commit_find(&f->state, ID(2, 30))->entry.base, 1, 20);
    struct actor next = {.token = 2, .world_size = 1, .parent = ID(2, 30), .newest_seen = 2};
    struct ckpt_id id = core_save(f, &next, 40);
    assert_ckpt(id, 3, 40);
}

CORE_TEST(test_the_same_again_changes_nothing)
{
    assert_int_equal(adopt(f, adopt_event(1, ID(1, 10), ID(0, 0))), 0);
    uint64_t version = record_version(f->record);
    assert_int_equal(adopt(f, adopt_event(1, ID(1, 10), ID(0, 0))), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_COMMITTED);
    assert_int_equal(record_version(f->record), version);
}

CORE_TEST(test_what_is_gone_in_between_is_entered_by_name)
{
    assert_int_equal(adopt(f, adopt_event(1, ID(1, 10), ID(0, 0))), 0);
    struct event event = adopt_event(3, ID(4, 50), ID(2, 20));
    event.u.adopt.entry.base = ID(3, 40);
    assert_int_equal(adopt(f, event), 0);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 4, 50);
    assert_null(state_commit_known(&f->state, ID(2, 20)));
    assert_null(state_commit_known(&f->state, ID(3, 40)));
    assert_int_equal(f->state.commit_count, 4);
    /* A term of nobody gets its owner back where no checkpoint of it was entered. */
    struct event late = adopt_event(3, ID(6, 60), ID(4, 50));
    assert_int_equal(adopt(f, late), 0);
    assert_int_equal(adopt(f, adopt_event(5, ID(5, 70), ID(4, 50))), 0);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 6, 60);
    assert_int_equal(adopt(f, adopt_event(5, ID(3, 30), ID(1, 10))), CAIRN_E_CONFLICT);
}

CORE_TEST(test_an_older_record_takes_what_it_has_lost)
{
    core_save(f, &alone, 10);
    struct event event = adopt_event(1, ID(1, 20), ID(0, 0));
    event.u.adopt.info.run_uuid = f->state.info.run_uuid;
    event.u.adopt.entry.base = ID(1, 10);
    assert_int_equal(adopt(f, event), 0);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 20);
    struct actor same = alone;
    same.newest_seen = 0; /* its term is still its own */
    struct ckpt_id id = core_save(f, &same, 30);
    assert_ckpt(id, 1, 30);
}

CORE_TEST(test_what_the_record_has_is_not_changed)
{
    struct ckpt_id id = core_save(f, &alone, 10);
    struct event event = adopt_event(1, id, ID(0, 0));
    event.u.adopt.info.run_uuid = f->state.info.run_uuid;
    uint64_t version = record_version(f->record);
    assert_int_equal(adopt(f, event), CAIRN_E_EXISTS); /* another opening of the step */
    event = adopt_event(8, ID(1, 20), ID(0, 0));
    event.u.adopt.info.run_uuid = f->state.info.run_uuid;
    assert_int_equal(adopt(f, event), CAIRN_E_CONFLICT); /* another attempt's term */
    event = adopt_event(1, ID(1, 20), ID(0, 0));
    event.u.adopt.info.run_uuid.bytes[0] ^= 1;
    assert_int_equal(adopt(f, event), CAIRN_E_CONFLICT); /* another run */
    event = adopt_event(1, ID(5000, 20), ID(0, 0));
    event.u.adopt.info.run_uuid = f->state.info.run_uuid;
    assert_int_equal(adopt(f, event), CAIRN_E_DAMAGED); /* no record grows by thousands of terms */
    assert_int_equal(core_open(f, &alone, 20, 77), 0);
    version++;
    event = adopt_event(1, ID(1, 20), ID(0, 0));
    event.u.adopt.info.run_uuid = f->state.info.run_uuid;
    assert_int_equal(adopt(f, event), CAIRN_E_CONFLICT); /* it is being saved anew */
    assert_int_equal(record_version(f->record), version);
    event.u.adopt.open_id = 77; /* the opening whose seals the record has lost */
    assert_int_equal(adopt(f, event), 0);
    assert_int_equal(f->state.open_count, 0);
}

CORE_TEST(test_what_is_damaged_keeps_its_name_and_reason)
{
    assert_int_equal(adopt(f, adopt_event(1, ID(1, 10), ID(0, 0))), 0);
    struct event event = adopt_event(1, ID(1, 20), ID(0, 0));
    event.u.adopt.health = HEALTH_DAMAGED;
    event.u.adopt.reason = "model.w is gone";
    assert_int_equal(adopt(f, event), 0);
    assert_int_equal(state_commit_find(&f->state, ID(1, 20))->health, HEALTH_DAMAGED);
    assert_ckpt(state_latest(&f->state, ID(0, 0))->entry.id, 1, 10);
}

CORE_TEST(test_what_is_given_up_is_an_aborted_opening)
{
    struct event event = adopt_event(1, ID(2, 20), ID(0, 0));
    event.u.adopt.code = CAIRN_E_DAMAGED;
    event.u.adopt.reason = "its manifest is gone";
    assert_int_equal(adopt(f, event), 0);
    assert_int_equal(f->state.dead_count, 1);
    assert_int_equal(f->state.deads[0].entry.open_id, 7);
    event.u.adopt.code = 0; /* somebody has put it back */
    assert_int_equal(adopt(f, event), 0);
    assert_int_equal(f->state.dead_count, 0);
    event.u.adopt.code = CAIRN_E_DAMAGED; /* what is committed stays */
    assert_int_equal(adopt(f, event), 0);
    assert_int_equal(verdict_save(&f->verdict)->state, SAVE_COMMITTED);
    assert_int_equal(f->state.dead_count, 0);
}

CORE_TEST(test_races)
{
    struct event event = adopt_event(1, ID(1, 10), ID(0, 0));
    struct stale stale;
    stale_init(&stale, f, &event);
    assert_int_equal(adopt(f, event), 0);
    assert_int_equal(stale_apply(&stale, f), CAIRN_E_CONFLICT);
    struct event alone_info = {.kind = EVENT_ADOPT, .u.adopt.info = event.u.adopt.info};
    assert_int_equal(core_run(f, &alone_info), 0);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * All ranks of a restore end at the same checkpoint, or all know who is missing, also while the
 * record takes no update. Method: restore sessions through the driver.
 */
#include "run_rig.h"

#include "base/check.h"
#include "support/unit_test.h"

static struct attempt_rank rank_of(uint32_t rank)
{
    return (struct attempt_rank){.token = {{9}}, .rank = rank, .world_size = 2};
}

static void begin(struct rig *rig, uint32_t rank, struct rig_call *ret)
{
    struct event event = {.kind = EVENT_RESTORE_BEGIN,
                          .u.begin = {.from = rank_of(rank),
                                      .selector = {.kind = SELECT_LATEST},
                                      .allow_older = true}};
    rig_begin(rig->run, &event, 5000, ret);
}

static void report(struct rig *rig, uint32_t rank, struct ckpt_id id, int code,
                   struct rig_call *ret)
{
    struct event event = {
        .kind = EVENT_RESTORE_REPORT,
        .id = id,
        .u.report = {.from = rank_of(rank), .code = code, .reason = "digest of w differs"}};
    rig_begin(rig->run, &event, 5000, ret);
}

static void begin_all(struct rig *rig, struct ckpt_id expected)
{
    struct rig_call call;

    for (uint32_t rank = 0; rank < 2; rank++) {
        begin(rig, rank, &call);
        rig_until(rig, &call.done);
        assert_int_equal(call.req.status, 0);
        assert_true(ckpt_id_equal(call.req.verdict.id, expected));
    }
}

/* A rank that reported waits until the other one did. */
RIG_TEST(test_report_waits_for_the_others)
{
    struct rig_call calls[2];

    struct ckpt_id id = rig_save(rig, 10, 2, rig->lists);
    begin_all(rig, id);
    report(rig, 0, id, 0, &calls[0]);
    sim_run_for(rig->sim, 2000);
    assert_false(calls[0].done);
    report(rig, 1, id, 0, &calls[1]);
    for (int i = 0; i < 2; i++) {
        rig_until(rig, &calls[i].done);
        assert_int_equal(calls[i].req.status, 0);
        assert_true(verdict_restore(&calls[i].req.verdict)->done);
    }
}

/* A rank that never reports is named to those who wait. */
RIG_TEST(test_missing_report_is_named)
{
    struct rig_call call;

    struct ckpt_id id = rig_save(rig, 10, 2, rig->lists);
    begin_all(rig, id);
    report(rig, 0, id, 0, &call);
    rig_until(rig, &call.done);
    assert_int_equal(call.req.status, CAIRN_E_MISSING_RANKS);
    assert_non_null(strstr(call.req.diag.text, "no report came from rank 1 of 2 "));
}

/* One rank meets damage: all move to the older checkpoint and finish there. */
RIG_TEST(test_damage_moves_all_to_the_older_one)
{
    struct rig_call calls[2];

    struct ckpt_id old = rig_save(rig, 10, 2, rig->lists), new = rig_save(rig, 20, 2, rig->lists);
    begin_all(rig, new);
    report(rig, 0, new, 0, &calls[0]);
    sim_run_for(rig->sim, 500);
    report(rig, 1, new, CAIRN_E_DAMAGED, &calls[1]);
    for (int i = 0; i < 2; i++) {
        rig_until(rig, &calls[i].done);
        assert_int_equal(calls[i].req.status, 0);
        assert_true(ckpt_id_equal(calls[i].req.verdict.id, old));
        assert_true(verdict_restore(&calls[i].req.verdict)->fell_back);
        assert_false(verdict_restore(&calls[i].req.verdict)->done);
    }
    report(rig, 0, old, 0, &calls[0]);
    report(rig, 1, old, 0, &calls[1]);
    for (int i = 0; i < 2; i++) {
        rig_until(rig, &calls[i].done);
        assert_true(verdict_restore(&calls[i].req.verdict)->done);
    }
}

/* `latest` waits for a save that is all sealed but not committed yet; and not for ever. */
RIG_TEST(test_latest_waits_for_a_sealed_save)
{
    struct rig_call call;
    struct ckpt_id id;
    struct store_fault_rule hold = {
        .kind = FAULT_HOLD, .op = STORE_PUBLISH, .skip = 2, .count = 100};

    struct ckpt_id old = rig_save(rig, 10, 2, rig->lists);
    for (uint64_t step = 20; step <= 30; step += 10) {
        assert_int_equal(store_fault_add(rig->store, &hold), 0);
        assert_int_equal(rig_open(rig, step, 2, 40 + step, &id), 0);
        rig_seal_both(rig, id, 40 + step, rig->lists);
        begin(rig, 0, &call);
        call.req.event.u.begin.from.ordinal = (uint32_t)step;
        sim_run_for(rig->sim, 3000);
        assert_false(call.done);
        if (step == 20) { /* the store is stuck: the older one is the answer */
            rig_until(rig, &call.done);
            assert_true(ckpt_id_equal(call.req.verdict.id, old));
        }
        store_fault_clear(rig->store);
        store_fault_release(rig->store);
        rig_until(rig, &call.done);
        assert_int_equal(call.req.status, 0);
        assert_int_equal(rig_outcome(rig, id, 40 + step).state, SAVE_COMMITTED);
    }
    assert_true(ckpt_id_equal(call.req.verdict.id, id));
}

/* A run without checkpoints is proven empty, for all ranks. */
RIG_TEST(test_empty_run)
{
    struct rig_call call;

    for (uint32_t rank = 0; rank < 2; rank++) {
        begin(rig, rank, &call);
        rig_until(rig, &call.done);
        assert_int_equal(call.req.status, 0);
        assert_true(verdict_restore(&call.req.verdict)->empty);
    }
}

static void refuse_updates(struct rig *rig, int code)
{
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_RECORD_UPDATE, .count = 1000000, .code = code};
    assert_int_equal(store_fault_add(rig->store, &rule), 0);
}

static uint64_t stored_version(struct rig *rig)
{
    struct record *record = memory_medium_copy_record(rig->medium, &rig->name);
    uint64_t version = record_version(record);
    record_free(record);
    return version;
}

/* Both begin at `new`, rank 1 finds it damaged, both are told `old`. */
static void fall_back(struct rig *rig, struct ckpt_id new, struct ckpt_id old)
{
    struct rig_call calls[2];

    begin_all(rig, new);
    report(rig, 0, new, 0, &calls[0]);
    sim_run_for(rig->sim, 500);
    assert_false(calls[0].done);
    report(rig, 1, new, CAIRN_E_DAMAGED, &calls[1]);
    for (int i = 0; i < 2; i++) {
        rig_until(rig, &calls[i].done);
        assert_int_equal(calls[i].req.status, 0);
        assert_true(ckpt_id_equal(calls[i].req.verdict.id, old));
        assert_true(verdict_restore(&calls[i].req.verdict)->fell_back);
    }
}

static void end_all(struct rig *rig, struct ckpt_id id)
{
    struct rig_call calls[2];

    for (uint32_t rank = 0; rank < 2; rank++) {
        report(rig, rank, id, 0, &calls[rank]);
    }
    for (int i = 0; i < 2; i++) {
        rig_until(rig, &calls[i].done);
        assert_int_equal(calls[i].req.status, 0);
        assert_true(verdict_restore(&calls[i].req.verdict)->done);
        assert_true(ckpt_id_equal(calls[i].req.verdict.id, id));
    }
}

/* A record that takes no update: the ranks agree, fall back together and finish, nothing is
 * written; after a restart they begin again, and meet the same. */
RIG_TEST(test_a_record_that_takes_no_update)
{
    static const int codes[] = {CAIRN_E_READ_ONLY, CAIRN_E_NO_SPACE, CAIRN_E_DAMAGED};
    struct rig_call call;

    struct ckpt_id old = rig_save(rig, 10, 2, rig->lists), new = rig_save(rig, 20, 2, rig->lists);
    uint64_t version = stored_version(rig);
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        store_fault_clear(rig->store);
        refuse_updates(rig, codes[i]);
        fall_back(rig, new, old);
        end_all(rig, old);
        assert_int_equal(stored_version(rig), version);
        rig_restart(rig);
        report(rig, 0, old, 0, &call);
        rig_until(rig, &call.done);
        assert_int_equal(call.req.status, CAIRN_E_NOT_FOUND);
    }
    struct ckpt_id id;
    assert_int_equal(rig_open(rig, 30, 2, 42, &id), CAIRN_E_DAMAGED);
    store_fault_clear(rig->store);
    rig_save(rig, 40, 2, rig->lists);
}

/* A session ends where it has begun, also when the record takes updates again meanwhile: one that
 * began in the record goes on in memory, one that began in memory ends there. */
RIG_TEST(test_a_session_outlives_the_refusal)
{
    struct ckpt_id old = rig_save(rig, 10, 2, rig->lists), new = rig_save(rig, 20, 2, rig->lists);
    begin_all(rig, new); /* in the record */
    refuse_updates(rig, CAIRN_E_READ_ONLY);
    uint64_t version = stored_version(rig);
    fall_back(rig, new, old);
    store_fault_clear(rig->store);
    end_all(rig, old);
    assert_int_equal(stored_version(rig), version);
}

/* What was kept in memory goes when the record takes an update that rests on it: the next attempt's
 * session is the record's, and decided by what the record says. */
RIG_TEST(test_what_is_kept_gives_way_to_the_record)
{
    struct verdict verdict;

    struct ckpt_id old = rig_save(rig, 10, 2, rig->lists), new = rig_save(rig, 20, 2, rig->lists);
    struct event event = {.kind = EVENT_RESTORE_BEGIN,
                          .u.begin = {.from = {.token = {{7}}, .world_size = 1},
                                      .selector = {.kind = SELECT_LATEST},
                                      .allow_older = true}};
    refuse_updates(rig, CAIRN_E_READ_ONLY);
    fall_back(rig, new, old);
    end_all(rig, old);
    assert_int_equal(rig_event(rig, rig->run, &event, &verdict), 0);
    assert_true(ckpt_id_equal(verdict.id, old)); /* the damage is known, in memory */
    store_fault_clear(rig->store);
    uint64_t version = stored_version(rig);
    event.u.begin.from.token = (struct token){{8}};
    assert_int_equal(rig_event(rig, rig->run, &event, &verdict), 0);
    assert_true(ckpt_id_equal(verdict.id, new));
    assert_int_equal(stored_version(rig), version + 1);
}

/* A run of which there is no record is not made in memory. */
RIG_TEST(test_no_run_is_made_in_memory)
{
    struct rig_call call;

    refuse_updates(rig, CAIRN_E_READ_ONLY);
    begin(rig, 0, &call);
    rig_until(rig, &call.done);
    assert_int_equal(call.req.status, CAIRN_E_READ_ONLY);
}

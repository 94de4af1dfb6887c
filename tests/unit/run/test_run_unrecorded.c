/* SPDX-License-Identifier: Apache-2.0
 *
 * A checkpoint that the record does not know is found before the run's first use, and is let go of
 * when the record knows it again. Method: real saves on the memory store; the record is put back to
 * an older copy or taken away while nobody has the store open; a restart.
 */
#include "run_rig.h"

#include "base/check.h"
#include "support/unit_test.h"

struct bed {
    struct rig rig; /* first */
};

/* The record becomes `record` while no daemon runs, and the next one starts. */
static void restart_with(struct rig *rig, struct record *record, uint64_t lost_from)
{
    rig_stop(rig);
    memory_medium_set_record(rig->medium, &rig->name, record, lost_from);
    rig_start(rig);
}

struct summary {
    bool marked;
    size_t unknown_count, commit_count, dead_count;
    struct ckpt_id newest;
    uint64_t newest_term;
    int code;
};

static void take_state(void *user, const struct run_state *state)
{
    struct summary *summary = user;
    const struct state_unrecorded *unrecorded = &state->unrecorded;
    summary->marked = state_is_marked(state);
    summary->unknown_count = unrecorded->unknown_count;
    summary->commit_count = state->commit_count;
    summary->dead_count = state->dead_count;
    summary->newest_term = state->newest_term;
    summary->code = unrecorded->code;
    if (unrecorded->unknown_count > 0) {
        summary->newest = unrecorded->unknown[unrecorded->unknown_count - 1].id;
    }
}

static struct summary summary_of(struct rig *rig)
{
    struct summary summary = {.marked = false};
    rig_state(rig, take_state, &summary);
    return summary;
}

static int begin(struct rig *rig, uint8_t token, struct verdict *ret)
{
    struct event event = {.kind = EVENT_RESTORE_BEGIN,
                          .u.begin = {.from = {.token = {{token}}, .world_size = 1},
                                      .selector = {.kind = SELECT_LATEST},
                                      .allow_older = true}};
    return rig_event(rig, rig->run, &event, ret);
}

/* Another attempt, which saves at once: it has seen the newest term that the record knows. */
static int open_as(struct rig *rig, uint8_t token, uint64_t step, uint64_t open_id,
                   struct ckpt_id *ret)
{
    struct event event = rig_open_event(rig, step, 2, open_id);
    struct verdict verdict;
    event.u.open.from.token = (struct token){{token}};
    event.u.open.newest_seen = summary_of(rig).newest_term;
    int status = rig_event(rig, rig->run, &event, &verdict);
    *ret = verdict.id;
    return status;
}

static struct ckpt_id save_as(struct rig *rig, uint8_t token, uint64_t step,
                              const struct rank_list *lists)
{
    struct ckpt_id id;
    assert_int_equal(open_as(rig, token, step, 7000 + step, &id), 0);
    rig_seal_both(rig, id, 7000 + step, lists);
    assert_int_equal(rig_outcome(rig, id, 7000 + step).state, SAVE_COMMITTED);
    return id;
}

/* Goal: a record of yesterday: what it lacks is unknown, the run is marked, restores take what it
 * knows, and the next term is above all that is stored. */
RIG_TEST(test_a_record_of_yesterday)
{
    struct verdict verdict;
    struct ckpt_id id;

    struct ckpt_id known = rig_save(rig, 10, 2, rig->lists);
    struct record *yesterday = memory_medium_copy_record(rig->medium, &rig->name);
    rig_save(rig, 20, 2, rig->lists);
    struct ckpt_id lost = save_as(rig, 77, 30, rig->lists);
    assert_int_equal(lost.term, known.term + 1);
    struct record *today = memory_medium_copy_record(rig->medium, &rig->name);
    assert_false(summary_of(rig).marked);

    restart_with(rig, yesterday, 0);
    struct summary summary = summary_of(rig);
    assert_true(summary.marked);
    assert_int_equal(summary.unknown_count, 2);
    assert_true(ckpt_id_equal(summary.newest, lost));
    assert_int_equal(begin(rig, 5, &verdict), 0);
    assert_true(ckpt_id_equal(verdict.id, known));
    assert_int_equal(open_as(rig, 78, 30, 4711, &id), 0);
    assert_int_equal(id.term, lost.term + 1);

    restart_with(rig, today, 0); /* the right one was put back */
    assert_false(summary_of(rig).marked);
    assert_int_equal(summary_of(rig).commit_count, 3);
}

/* Goal: no record beside checkpoints: never "no checkpoint", and no new record. */
RIG_TEST(test_a_missing_record)
{
    struct verdict verdict;
    struct ckpt_id id;

    rig_save(rig, 10, 2, rig->lists);
    restart_with(rig, NULL, 0);
    assert_int_equal(begin(rig, 5, &verdict), CAIRN_E_DAMAGED);
    assert_int_equal(rig_open(rig, 20, 2, 4711, &id), CAIRN_E_DAMAGED);
    assert_true(summary_of(rig).marked);
    assert_null(memory_medium_copy_record(rig->medium, &rig->name));
}

/* Goal: a record whose end is lost: the prefix is read and restored from, the run is marked,
 * nothing is written. */
RIG_TEST(test_a_lost_end)
{
    struct verdict verdict;
    struct ckpt_id id;

    struct ckpt_id known = rig_save(rig, 10, 2, rig->lists);
    struct record *prefix = memory_medium_copy_record(rig->medium, &rig->name);
    rig_save(rig, 20, 2, rig->lists);
    restart_with(rig, prefix, record_version(prefix) + 1);
    struct summary summary = summary_of(rig);
    assert_true(summary.marked);
    assert_int_equal(summary.commit_count, 1);
    assert_int_equal(summary.unknown_count, 1);
    assert_int_equal(begin(rig, 5, &verdict), 0);
    assert_true(ckpt_id_equal(verdict.id, known));
    struct event ended = {.kind = EVENT_RESTORE_REPORT,
                          .id = known,
                          .u.report.from = {.token = {{5}}, .world_size = 1}};
    assert_int_equal(rig_event(rig, rig->run, &ended, &verdict), 0);
    assert_true(verdict_restore(&verdict)->done);
    assert_int_equal(rig_open(rig, 30, 2, 4711, &id), CAIRN_E_DAMAGED);
}

/* Goal: what aborts left, in this term and in fenced ones, is not unknown, also after a restart. */
RIG_TEST(test_what_aborts_left_is_known)
{
    struct ckpt_id id;

    for (uint64_t i = 0; i < 4; i++) {
        uint64_t open_id = 100 + i;
        assert_int_equal(open_as(rig, (uint8_t)(20 + i / 2), 10 + i, open_id, &id), 0);
        struct rig_seal seal = {id, open_id, 0, 2};
        assert_int_equal(rig_seal(rig, rig->run, &seal, &rig->lists[0]), 0);
        struct store_name name = {
            .run = rig->name, .id = id, .kind = STORE_MANIFEST, .tag = open_id};
        struct store_req publish = {
            .op = STORE_PUBLISH, .name = name, .bytes = 4, .data = (void *)(uintptr_t) "some"};
        struct event abort = {.kind = EVENT_ABORT, .id = id, .u.abort.open_id = open_id};
        struct verdict verdict;
        assert_int_equal(rig_event(rig, rig->run, &abort, &verdict), 0);
        rig_store(rig, &publish); /* as of a finish that the abort came before */
        assert_int_equal(publish.status, 0);
    }
    restart_with(rig, memory_medium_copy_record(rig->medium, &rig->name), 0);
    struct summary summary = summary_of(rig);
    assert_int_equal(summary.unknown_count, 0);
    assert_false(summary.marked);
    assert_int_equal(summary.dead_count, 4);
}

/* Goal: a medium that cannot be listed is not an empty one; it is looked at again later. */
RIG_TEST(test_a_medium_that_cannot_be_listed)
{
    struct verdict verdict;
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_LIST_CKPTS, .count = 2, .code = CAIRN_E_IO};

    rig_save(rig, 10, 2, rig->lists);
    rig_stop(rig);
    memory_medium_set_record(rig->medium, &rig->name, NULL, 0);
    assert_int_equal(store_fault_add(rig->store, &rule), 0);
    rig_start(rig);
    assert_int_equal(begin(rig, 5, &verdict), CAIRN_E_IO);
    assert_int_equal(summary_of(rig).code, CAIRN_E_IO);
    sim_run_for(rig->sim, 2500);
    assert_int_equal(begin(rig, 5, &verdict), CAIRN_E_IO); /* the second that fails */
    sim_run_for(rig->sim, 2500);
    assert_int_equal(begin(rig, 5, &verdict), CAIRN_E_DAMAGED);
}

/* Goal: an answer that is for now (full, late) marks nothing: neither a folder that was not listed,
 * nor a name that was listed and whose bytes nobody has read. It is looked at again later. */
RIG_TEST(test_an_answer_for_now_marks_nothing)
{
    struct store_fault_rule rules[] = {
        {.kind = FAULT_FAIL, .op = STORE_LIST_SMALL, .count = 1, .code = CAIRN_E_NO_SPACE},
        {.kind = FAULT_FAIL, .op = STORE_FETCH, .count = 1, .code = CAIRN_E_TIMED_OUT},
    };

    rig_save(rig, 10, 2, rig->lists);
    struct record *yesterday = memory_medium_copy_record(rig->medium, &rig->name);
    rig_save(rig, 20, 2, rig->lists);
    rig_save(rig, 30, 2, rig->lists);
    restart_with(rig, yesterday, 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(store_fault_add(rig->store, &rules[i]), 0);
        struct summary summary = summary_of(rig);
        assert_int_equal(summary.code, rules[i].code);
        assert_int_equal(summary.unknown_count, 0);
        assert_false(summary.marked);
        sim_run_for(rig->sim, 2500);
    }
    assert_int_equal(summary_of(rig).unknown_count, 2);
}

/* Goal: the search ends wherever the catalogue closes, or an operation fails. */
RIG_TEST(test_closed_at_every_moment)
{
    rig_save(rig, 10, 2, rig->lists);
    struct record *yesterday = memory_medium_copy_record(rig->medium, &rig->name);
    rig_save(rig, 20, 2, rig->lists);
    rig_save(rig, 30, 2, rig->lists);
    restart_with(rig, yesterday, 0);
    for (unsigned i = 0; i < 60; i++) {
        rig_restart(rig);
        for (unsigned n = 0; n < i; n++) {
            sim_run_for(rig->sim, 0);
        }
    }
    assert_int_equal(summary_of(rig).unknown_count, 2);
}

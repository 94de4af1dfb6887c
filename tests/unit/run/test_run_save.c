/* SPDX-License-Identifier: Apache-2.0
 *
 * A save is committed, or ends with the reason that every rank is told, and a restart finishes what
 * was sealed. Method: saves through the driver on a store that fails by rule.
 */
#include "run_rig.h"

#include "base/check.h"
#include "run/run_counts.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

#include <stdio.h>

/* Two ranks open, seal and are told of the commit; the run is listed afterwards. */
RIG_TEST(test_two_ranks_commit)
{
    struct run_name *names = NULL;
    struct rig_outcome outcome;
    size_t count = 99;

    assert_int_equal(catalog_names(rig->catalog, &names, &count), 0);
    assert_int_equal(count, 0); /* looking at a run does not make it */
    free(names);
    assert_int_equal(rig_save(rig, 10, 2, rig->lists).term, 1);
    assert_int_equal(rig_save(rig, 20, 2, rig->lists).term, 1);
    outcome = rig_outcome(rig, (struct ckpt_id){1, 20}, 7020);
    assert_int_equal(outcome.seq, 2);
    assert_int_equal(catalog_names(rig->catalog, &names, &count), 0);
    assert_int_equal(count, 1);
    assert_string_equal(names[0].run, "gpt");
    free(names);
    outcome = rig_outcome(rig, (struct ckpt_id){1, 30}, 7030);
    assert_int_equal(outcome.state, SAVE_NONE);
    assert_int_equal(outcome.code, CAIRN_E_NOT_FOUND);
}

static void find_open(struct rig *rig, struct rig_call *call, uint64_t wait_ms)
{
    struct event event = {.kind = EVENT_FIND_OPEN,
                          .id = {0, 10},
                          .u.open.from = {.token = rig->token, .rank = 1, .world_size = 2}};
    rig_begin(rig->run, &event, wait_ms, call);
}

/* A rank that comes first waits for rank 0, and then knows the opening. */
RIG_TEST(test_rank_waits_for_rank_0)
{
    struct rig_call waiter;
    struct ckpt_id id;

    find_open(rig, &waiter, 5000);
    sim_run_for(rig->sim, 1000);
    assert_false(waiter.done);
    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    rig_until(rig, &waiter.done);
    assert_int_equal(waiter.req.status, 0);
    assert_true(ckpt_id_equal(waiter.req.verdict.id, id));
    assert_int_equal(verdict_save(&waiter.req.verdict)->open_id, 42);
}

/* When rank 0 never comes the answer names it; without a wait it comes at once. */
RIG_TEST(test_missing_rank_0_is_named)
{
    struct rig_call waiter;

    find_open(rig, &waiter, 5000);
    rig_until(rig, &waiter.done);
    assert_int_equal(waiter.req.status, CAIRN_E_MISSING_RANKS);
    assert_non_null(strstr(waiter.req.diag.text, "rank 0"));
    assert_true(sim_now_ns(rig->sim) >= UINT64_C(5000) * 1000000);
    find_open(rig, &waiter, 0);
    sim_run_for(rig->sim, 100);
    assert_true(waiter.done);
}

/* A cancelled wait has no callback, whatever happens later. */
RIG_TEST(test_cancelled_wait_is_silent)
{
    struct rig_call waiter;
    struct ckpt_id id;

    find_open(rig, &waiter, 5000);
    sim_run_for(rig->sim, 100);
    run_cancel(&waiter.req);
    run_cancel(&waiter.req);
    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    sim_run_for(rig->sim, 10000);
    assert_false(waiter.done);
}

/* Once saves have ended nothing is left behind: no timer runs for it. */
RIG_TEST(test_idle_run_is_silent)
{
    struct ckpt_id id;
    uint64_t before;

    rig_save(rig, 10, 2, rig->lists);
    assert_int_equal(rig_open(rig, 20, 2, 42, &id), 0);
    assert_int_equal(rig_outcome(rig, id, 42).state, SAVE_ABORTED);
    sim_run_for(rig->sim, 2000);
    before = sim_steps(rig->sim);
    sim_run_for(rig->sim, 3600 * 1000);
    assert_int_equal(sim_steps(rig->sim), before);
}

/* A rank that never seals: the deadline aborts the save, names the rank, and leaves older
 * checkpoints. */
RIG_TEST(test_deadline_names_the_missing_rank)
{
    struct rig_outcome outcome;
    struct ckpt_id id;

    rig_save(rig, 10, 2, rig->lists);
    assert_int_equal(rig_open(rig, 20, 2, 43, &id), 0);
    struct rig_seal seal = {id, 43, 0, 2};
    assert_int_equal(rig_seal(rig, rig->run, &seal, &rig->lists[0]), 0);
    uint64_t from_ns = sim_now_ns(rig->sim);
    rig_expect_aborted(rig, id, 43, CAIRN_E_MISSING_RANKS, "rank 1");
    assert_in_range(sim_now_ns(rig->sim) - from_ns, UINT64_C(59000000000), UINT64_C(61000000000));
    outcome = rig_outcome(rig, (struct ckpt_id){1, 10}, 7010);
    assert_int_equal(outcome.state, SAVE_COMMITTED);
    assert_int_equal(rig_open(rig, 20, 2, 44, &id), 0); /* the step may be tried again */
}

struct snapshot_call {
    struct run_snapshot_req req;
    bool done, exists;
    int status;
};

static void on_snapshot(struct run_snapshot_req *req)
{
    struct snapshot_call *call = container_of(req, struct snapshot_call, req);
    call->done = true;
    call->status = req->status;
    call->exists = req->status == 0 && req->state->exists;
}

/* The projects of which the catalogue has a run in memory. */
static size_t project_count(const struct catalog *catalog)
{
    struct project_totals project;
    size_t count = 0;
    for (size_t at = 0; catalog_next_project(catalog, &at, &project);) {
        count++;
    }
    return count;
}

/* Names that were only looked at do not stay; one that was saved to, or is in use, does. */
RIG_TEST(test_made_up_names_go)
{
    struct run_name name;
    struct ckpt_id id;

    id = rig_save(rig, 10, 2, rig->lists);
    for (unsigned i = 0; i < 1000; i++) {
        char text[16];
        snprintf(text, sizeof text, "made-up-%u", i);
        assert_int_equal(run_name_set("made-up", text, &name, NULL), 0);
        struct run *run = catalog_run(rig->catalog, &name);
        struct snapshot_call call = {.req.done = on_snapshot};
        run_snapshot(run, &call.req);
        rig_until(rig, &call.done);
        assert_int_equal(call.status, 0);
        assert_false(call.exists);
        catalog_release(run);
    }
    assert_int_equal(run_name_set("made-up", "cancelled", &name, NULL), 0);
    struct snapshot_call call = {.req.done = on_snapshot};
    struct run *run = catalog_run(rig->catalog, &name);
    run_snapshot(run, &call.req);
    run_snapshot_cancel(&call.req);
    catalog_release(run);
    sim_run_for(rig->sim, 1000);
    assert_false(call.done);
    catalog_release(rig->run);
    sim_run_for(rig->sim, 1000);
    rig->run = catalog_run(rig->catalog, &rig->name);
    assert_int_equal(rig_outcome(rig, id, 7010).state, SAVE_COMMITTED);
    assert_int_equal(project_count(rig->catalog), 1);
}

/* Goal: short memory makes no run, and ends no daemon. Method: each allocation of a look-up fails
 * in turn; without a fault the same look-up makes the run. */
RIG_TEST(test_no_memory_makes_no_run)
{
    struct run_name name;
    unsigned failed = 0;

    for (unsigned n = 1;; n++) {
        char text[16];
        snprintf(text, sizeof text, "scarce-%u", n);
        assert_int_equal(run_name_set("made-up", text, &name, NULL), 0);
        alloc_fault_at(n);
        struct run *run = catalog_run(rig->catalog, &name);
        if (!alloc_fault_hit()) {
            assert_non_null(run);
            catalog_release(run);
            break;
        }
        assert_null(run);
        failed++;
    }
    assert_true(failed > 0);
    sim_run_for(rig->sim, 1000);
    assert_int_equal(project_count(rig->catalog), 1);
}

/* An open entry that the grant of a newer term left behind is fenced all the same. */
RIG_TEST(test_open_of_a_fenced_term_is_over)
{
    struct ckpt_id id;
    struct entry_term entry = {.ordinal = 1, .world_size = 2, .newest_seen = 1};
    struct key_text key = key_term(2);
    struct buf buf;

    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    rig_stop(rig);
    memset(&entry.token, 0x77, sizeof entry.token);
    buf_init(&buf, LIMIT_RECORD_VALUE_BYTES);
    entry_term_encode(&entry, &buf);
    assert_int_equal(buf_status(&buf), 0);
    struct record_change change = {.key = key.at, .value = {buf.bytes, buf.data}};
    struct record_update update = {.change_count = 1, .changes = &change};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .run = rig->name, .update = &update};
    rig_store(rig, &req);
    assert_int_equal(req.status, 0);
    buf_fini(&buf);
    rig_start(rig);
    uint64_t from_ns = sim_now_ns(rig->sim);
    rig_expect_aborted(rig, id, 42, CAIRN_E_FENCED, "");
    assert_true(sim_now_ns(rig->sim) - from_ns < UINT64_C(5000000000));
}

/* Parts that leave a hole: the save is aborted, with the tensor's name. */
RIG_TEST(test_coverage_failure_aborts)
{
    struct ckpt_id id;

    rig->lists[1].pieces[0].box.length[0] = 31;
    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    rig_seal_both(rig, id, 42, rig->lists);
    rig_expect_aborted(rig, id, 42, CAIRN_E_COVERAGE, "a.weight");
}

/* Two drivers on one store, each sealing one rank: both finish, exactly one commit is made. */
RIG_TEST(test_two_drivers_commit_once)
{
    struct catalog *other;
    struct rig_outcome outcomes[2];
    struct ckpt_id id;

    rig_stop(rig);
    rig->options.poll_ms = 50;
    rig_start(rig);
    other = rig_catalog_new(rig);
    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    struct rig_seal seals[2] = {{id, 42, 0, 2}, {id, 42, 1, 2}};
    struct run *runs[2] = {rig->run, catalog_run(other, &rig->name)};
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(rig_seal(rig, runs[i], &seals[i], &rig->lists[i]), 0);
        rig_watch(runs[i], id, 42, &outcomes[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        rig_until(rig, &outcomes[i].done);
        assert_int_equal(outcomes[i].state, SAVE_COMMITTED);
        assert_int_equal(outcomes[i].seq, 1);
    }
    sim_run_for(rig->sim, 1000);
    rig_catalog_close(rig, other);
}

/* Everybody sealed, then the daemon died: the next one finishes the save without being asked. */
RIG_TEST(test_restart_finishes_a_sealed_save)
{
    struct ckpt_id id;
    struct store_fault_rule hold = {.kind = FAULT_FAIL,
                                    .op = STORE_PUBLISH,
                                    .skip = 2,
                                    .count = 100,
                                    .code = CAIRN_E_SHUTTING_DOWN};

    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    assert_int_equal(store_fault_add(rig->store, &hold), 0);
    rig_seal_both(rig, id, 42, rig->lists);
    rig_stop(rig);
    store_fault_clear(rig->store);
    rig->catalog = rig_catalog_new(rig);
    sim_run_for(rig->sim, 5000);
    rig->run = catalog_run(rig->catalog, &rig->name);
    struct rig_outcome outcome = rig_outcome(rig, id, 42);
    assert_int_equal(outcome.state, SAVE_COMMITTED);
}

/* The daemon died between manifest and commit; the next one, at another wall time, takes the
 * manifest that is there. */
RIG_TEST(test_restart_adopts_the_manifest)
{
    struct ckpt_id id;
    struct store_fault_rule fail = {.kind = FAULT_FAIL,
                                    .op = STORE_RECORD_UPDATE,
                                    .count = 100,
                                    .skip = 2,
                                    .code = CAIRN_E_SHUTTING_DOWN};

    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    assert_int_equal(store_fault_add(rig->store, &fail), 0);
    rig_seal_both(rig, id, 42, rig->lists);
    sim_run_for(rig->sim, 5000);
    struct store_req req = {
        .op = STORE_FETCH, .name = {.run = rig->name, .id = id, .kind = STORE_MANIFEST, .tag = 42}};
    rig_store(rig, &req);
    assert_int_equal(req.status, 0);
    free(req.ret_data);
    rig_stop(rig);
    store_fault_clear(rig->store);
    rig_start(rig);
    struct rig_outcome outcome = rig_outcome(rig, id, 42);
    assert_int_equal(outcome.state, SAVE_COMMITTED);
}

/* Every update is lost on its way back once: each event is run again and nothing happens twice. */
RIG_TEST(test_unknown_outcomes_are_resolved)
{
    for (unsigned skip = 0; skip < 5; skip++) {
        struct store_fault_rule lost = {
            .kind = FAULT_LOST, .op = STORE_RECORD_UPDATE, .skip = skip};
        uint64_t step = 10 + skip;
        assert_int_equal(store_fault_add(rig->store, &lost), 0);
        rig_save(rig, step, 2, rig->lists);
        assert_int_equal(rig_outcome(rig, (struct ckpt_id){1, step}, 7000 + step).seq, skip + 1);
        store_fault_clear(rig->store);
    }
}

/* A store that is full when pages are published: the save ends with that code, the next one is not
 * harmed. */
RIG_TEST(test_no_space_aborts)
{
    struct ckpt_id id;
    struct store_fault_rule full = {
        .kind = FAULT_FAIL, .op = STORE_PUBLISH, .skip = 2, .code = CAIRN_E_NO_SPACE};

    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    assert_int_equal(store_fault_add(rig->store, &full), 0);
    rig_seal_both(rig, id, 42, rig->lists);
    rig_expect_aborted(rig, id, 42, CAIRN_E_NO_SPACE, "");
    rig_save(rig, 20, 2, rig->lists);
}

/* A record that takes no updates any more, as after a failed fsync. */
static void make_read_only(struct rig *rig)
{
    struct store_fault_rule stuck = {
        .kind = FAULT_FAIL, .op = STORE_RECORD_UPDATE, .count = 1000000, .code = CAIRN_E_READ_ONLY};
    assert_int_equal(store_fault_add(rig->store, &stuck), 0);
}

static void watch_and_hear(struct rig *rig, struct ckpt_id id, struct rig_outcome *ret)
{
    rig_watch(rig->run, id, 42, ret);
    ret->watch.hears_refusals = true;
}

/* A rank that waits for the outcome is told at once that the record takes no update, also one that
 * asks long after; when it takes updates again the sealed save is committed. */
RIG_TEST(test_read_only_is_told_to_waiters)
{
    struct rig_outcome early, late;
    struct ckpt_id id;

    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    struct rig_seal first = {id, 42, 0, 2}, second = {id, 42, 1, 2};
    assert_int_equal(rig_seal(rig, rig->run, &first, &rig->lists[0]), 0);
    watch_and_hear(rig, id, &early);
    sim_run_for(rig->sim, 100);
    assert_false(early.done);
    uint64_t began_ns = sim_now_ns(rig->sim);
    make_read_only(rig);
    assert_int_equal(rig_seal(rig, rig->run, &second, &rig->lists[1]), CAIRN_E_READ_ONLY);
    rig_until(rig, &early.done);
    assert_int_equal(early.state, SAVE_OPEN);
    assert_int_equal(early.code, CAIRN_E_READ_ONLY);
    sim_run_for(rig->sim, 3000);
    watch_and_hear(rig, id, &late);
    rig_until(rig, &late.done);
    assert_int_equal(late.code, CAIRN_E_READ_ONLY);
    assert_true(sim_now_ns(rig->sim) - began_ns < UINT64_C(4000) * 1000000);
    store_fault_clear(rig->store);
    assert_int_equal(rig_seal(rig, rig->run, &second, &rig->lists[1]), 0);
    assert_int_equal(rig_outcome(rig, id, 42).state, SAVE_COMMITTED);
}

/* The commit itself was refused, and the abort after it: the save is neither; a store that is
 * mended finishes it when somebody asks again, without a restart and before the deadline. */
RIG_TEST(test_refused_commit_is_tried_again)
{
    struct rig_outcome outcome, again;
    struct ckpt_id id;
    struct store_fault_rule stuck = {.kind = FAULT_FAIL,
                                     .op = STORE_RECORD_UPDATE,
                                     .skip = 2,
                                     .count = 1000000,
                                     .code = CAIRN_E_READ_ONLY};

    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
    assert_int_equal(store_fault_add(rig->store, &stuck), 0);
    watch_and_hear(rig, id, &outcome);
    rig_seal_both(rig, id, 42, rig->lists);
    rig_until(rig, &outcome.done);
    assert_int_equal(outcome.state, SAVE_OPEN);
    assert_int_equal(outcome.code, CAIRN_E_READ_ONLY);
    store_fault_clear(rig->store);
    sim_run_for(rig->sim, 2000);
    watch_and_hear(rig, id, &again);
    rig_until(rig, &again.done);
    assert_int_equal(again.state, SAVE_COMMITTED);
}

/* Rank 0's opening was refused: the ranks that wait for it hear why, and whoever comes later too,
 * as long as the record is read-only. */
RIG_TEST(test_refused_opening_is_told_to_all)
{
    static const int codes[] = {CAIRN_E_READ_ONLY, CAIRN_E_NO_SPACE};
    struct ckpt_id id;

    rig_save(rig, 5, 2, rig->lists);
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        struct store_fault_rule refuse = {
            .kind = FAULT_FAIL, .op = STORE_RECORD_UPDATE, .count = 1000000, .code = codes[i]};
        struct rig_call waiter, late;
        find_open(rig, &waiter, 5000000);
        assert_int_equal(store_fault_add(rig->store, &refuse), 0);
        assert_int_equal(rig_open(rig, 10, 2, 42, &id), codes[i]);
        sim_run_for(rig->sim, 100);
        assert_true(waiter.done);
        assert_int_equal(waiter.req.status, codes[i]);
        sim_run_for(rig->sim, 10000);
        find_open(rig, &late, 20000);
        rig_until(rig, &late.done);
        assert_int_equal(late.req.status,
                         codes[i] == CAIRN_E_READ_ONLY ? codes[i] : CAIRN_E_MISSING_RANKS);
        store_fault_clear(rig->store);
        sim_run_for(rig->sim, 1000); /* a refusal is believed for so long */
    }
    assert_int_equal(rig_open(rig, 10, 2, 42, &id), 0);
}

/* Seals of all ranks in one turn make one update; one that contradicts an earlier one fails alone.
 */
RIG_TEST(test_seals_are_batched_and_taken_apart)
{
    struct ckpt_id id;
    struct event_seal seals[4];
    struct event events[4];
    struct rig_call calls[4];
    uint64_t before;

    assert_int_equal(rig_open(rig, 10, 8, 42, &id), 0);
    before = store_fault_seen(rig->store);
    for (uint32_t i = 0; i < 4; i++) {
        seals[i] = (struct event_seal){.rank = i < 3 ? i : 2,
                                       .entry = {.open_id = 42, .writer = i, .part_bytes = 100}};
        events[i] = (struct event){.kind = EVENT_SEAL,
                                   .id = id,
                                   .u.seal = {.open_id = 42, .count = 1, .items = &seals[i]}};
    }
    for (uint32_t i = 0; i < 3; i++) {
        rig_begin(rig->run, &events[i], 0, &calls[i]);
    }
    rig_until(rig, &calls[2].done);
    assert_int_equal(store_fault_seen(rig->store) - before, 1);
    rig_begin(rig->run, &events[0], 0, &calls[0]);
    rig_begin(rig->run, &events[3], 0, &calls[3]); /* rank 2 again, by another writer */
    rig_until(rig, &calls[0].done);
    rig_until(rig, &calls[3].done);
    assert_int_equal(calls[0].req.status, 0);
    assert_int_equal(calls[3].req.status, CAIRN_E_CONFLICT);
    assert_non_null(strstr(calls[3].req.diag.text, "rank 2"));
}

/* Closing answers what waits with SHUTTING_DOWN. */
RIG_TEST(test_close_fails_what_waits)
{
    struct rig_call waiter;
    struct rig_outcome outcome;
    struct ckpt_id id;

    assert_int_equal(rig_open(rig, 20, 2, 42, &id), 0);
    rig_watch(rig->run, id, 42, &outcome);
    find_open(rig, &waiter, 5000);
    sim_run_for(rig->sim, 100);
    rig_stop(rig);
    assert_true(waiter.done);
    assert_int_equal(waiter.req.status, CAIRN_E_SHUTTING_DOWN);
    assert_true(outcome.done);
    assert_int_equal(outcome.code, CAIRN_E_SHUTTING_DOWN);
}

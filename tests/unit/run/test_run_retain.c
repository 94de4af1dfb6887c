/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon's own policies forget what they say, a stored one before those of the configuration, and
 * a stored one that cannot be read forgets nothing; while a wall clock that was set, back or
 * forward, once or again and again, is not believed, no rule of time forgets anything, neither in a
 * round nor asked for by hand; what a monitor is told of it is so. Method: rounds of an hour on the
 * simulated clock.
 */
#include "run_rig.h"

#include "run/run_counts.h"
#include "run/run_retain.h"
#include "support/unit_test.h"

enum { HOUR_MS = 3600 * 1000, SAVES = 5 };
static const int64_t day_ns = INT64_C(86400000000000);

struct told {
    unsigned rounds_left_out;
    size_t forgotten;
    int status;
};

static void on_report(void *user, const struct run_name *run, int status, const struct diag *diag,
                      const struct verdict_marks *marks)
{
    struct told *told = user;
    told->rounds_left_out += run == NULL;
    told->forgotten += marks ? marks->done_count : 0;
    told->status = status;
    if (!run) {
        assert_non_null(strstr(diag->text, "the wall clock jumped"));
    }
}

static void tell_use(void *server, const struct run_name *run, struct event_forget *ret) {}

struct listed {
    size_t count;
    bool has_newest;
};

static void take_state(void *user, const struct run_state *state)
{
    struct listed *listed = user;
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        listed->count += !commit->forgotten;
        listed->has_newest =
            listed->has_newest || (!commit->forgotten && commit->entry.id.step == SAVES);
    }
}

static struct listed look(struct rig *rig)
{
    struct listed listed = {0};
    rig_state(rig, take_state, &listed);
    return listed;
}

/* Each save sets the clock a day further back: by wall time the first is the newest. */
static void save_all(struct rig *rig)
{
    for (uint64_t step = 1; step <= SAVES; step++) {
        sim_host_set_wall(rig->host, -(int64_t)step * day_ns);
        rig_save(rig, step, 2, rig->lists);
    }
}

TEST(test_a_clock_that_was_set)
{
    static const struct policy_table table = {
        .count = 1, .rows = {{.option_count = 1, .options = {{"keep-last", "2"}}}}};
    struct rig rig = {.seed = 3};
    struct told told = {0};
    struct retain *retain = NULL;
    struct retain_status status;
    rig_init(&rig);
    rig_start(&rig);
    save_all(&rig);
    struct retain_options options = {.loop = sim_loop(rig.host),
                                     .catalog = rig.catalog,
                                     .table = &table,
                                     .interval_ms = HOUR_MS,
                                     .report = on_report,
                                     .tell_use = tell_use,
                                     .user = &told};
    assert_int_equal(retain_new(&options, &retain), 0);
    sim_host_set_wall(rig.host, -30 * 365 * day_ns);
    sim_run_for(rig.sim, HOUR_MS / 2);
    assert_int_equal(told.rounds_left_out, 1);
    assert_int_equal(look(&rig).count, SAVES);
    retain_status(retain, &status);
    assert_int_equal(status.errors, 1);
    assert_int_equal(status.good_wall_ns, 0);
    sim_run_for(rig.sim, 3 * HOUR_MS); /* not once only */
    assert_int_equal(told.rounds_left_out, 4);
    assert_int_equal(look(&rig).count, SAVES);
    sim_host_set_wall(rig.host, 0); /* where it was when the daemon began: it is believed again */
    sim_run_for(rig.sim, HOUR_MS);
    struct listed listed = look(&rig);
    assert_int_equal(told.status, 0);
    assert_int_equal(told.forgotten, SAVES - 2);
    assert_int_equal(listed.count, 2);
    assert_true(listed.has_newest); /* by the order of the commits, not by the clock */
    retain_status(retain, &status);
    assert_int_equal(status.rounds, 1);
    assert_int_equal(status.errors, 4);
    assert_int_not_equal(status.good_wall_ns, 0);
    assert_int_equal(catalog_counts(rig.catalog)->forgotten, SAVES - 2);
    retain_free(retain);
    rig_fini(&rig);
}

/* ---- stored policies ---- */

struct stored {
    struct policies_req req;
    bool done;
};

static void on_stored(struct policies_req *req)
{
    container_of(req, struct stored, req)->done = true;
}

/* Sets a policy of the store. */
static void store_policy(struct rig *rig, const char *pattern, const char *last)
{
    struct policy_entry entry = {.change = POLICY_SET, .actor = "test"};
    struct stored stored = {.req = {.store = rig->store, .change = &entry, .done = on_stored}};
    assert_int_equal(policy_row_name(&entry.row, pattern, NULL), 0);
    assert_int_equal(policy_row_add(&entry.row, "keep-last", last, NULL), 0);
    assert_int_equal(policies_submit(&stored.req, NULL), 0);
    rig_until(rig, &stored.done);
    assert_int_equal(stored.req.status, 0);
}

/* Writes bytes over the first stored policy, as a fault of the medium that no crc has found. */
static void damage_policy(struct rig *rig, const char *key)
{
    struct record_change change = {.key = key, .value = {3, (const uint8_t *)"abc"}};
    struct record_update update = {.change_count = 1, .changes = &change};
    struct store_req req = {.op = STORE_RECORD_UPDATE, .update = &update};
    rig_store(rig, &req);
    assert_int_equal(req.status, 0);
}

static void check_reason(void *user, const struct run_state *state)
{
    for (size_t i = 0; i < state->commit_count; i++) {
        if (state->commits[i].forgotten) {
            assert_string_equal(state->commits[i].mark->actor, "cairnd");
            assert_string_equal(state->commits[i].mark->reason, "stored policy lab/*: keep-last 3");
        }
    }
}

/* Goal: a stored policy goes before the configuration, from the next round on; a damaged one
 * forgets nothing, until it is set again. */
RIG_TEST(test_a_stored_policy_goes_before_the_configuration)
{
    static const struct policy_table table = {
        .count = 1, .rows = {{.option_count = 1, .options = {{"keep-last", "2"}}}}};
    struct told told = {0};
    struct retain *retain = NULL;
    struct retain_status status;
    for (uint64_t step = 1; step <= SAVES; step++) {
        rig_save(rig, step, 2, rig->lists);
    }
    store_policy(rig, "lab/*", "unlimited");
    struct retain_options options = {.loop = sim_loop(rig->host),
                                     .catalog = rig->catalog,
                                     .table = &table,
                                     .interval_ms = HOUR_MS,
                                     .report = on_report,
                                     .tell_use = tell_use,
                                     .user = &told};
    assert_int_equal(retain_new(&options, &retain), 0);
    sim_run_for(rig->sim, HOUR_MS / 2);
    retain_status(retain, &status);
    assert_int_equal(status.rounds, 1);
    assert_int_equal(look(rig).count, SAVES);
    damage_policy(rig, "policy/0000000000000001/lab/*");
    sim_run_for(rig->sim, HOUR_MS);
    retain_status(retain, &status);
    assert_int_equal(status.errors, 1);
    assert_int_equal(told.status, CAIRN_E_DAMAGED);
    assert_int_equal(look(rig).count, SAVES);
    store_policy(rig, "lab/*", "3");
    sim_run_for(rig->sim, HOUR_MS);
    assert_int_equal(told.status, 0);
    assert_int_equal(look(rig).count, 3);
    rig_state(rig, check_reason, NULL);
    sim_run_for(rig->sim, HOUR_MS / 2);
    struct store_fault_rule slow = {
        .kind = FAULT_DELAY, .op = STORE_RECORD_GET, .delay_ms = HOUR_MS, .count = 4};
    assert_int_equal(store_fault_add(rig->store, &slow), 0);
    sim_run_for(rig->sim, HOUR_MS / 2); /* it ends while it asks the store */
    retain_free(retain);
    sim_run_for(rig->sim, 2 * HOUR_MS);
}

struct asked {
    struct run_req req;
    bool done;
    size_t already; /* forgotten before, and told of */
};

static void on_asked(struct run_req *req)
{
    struct asked *asked = container_of(req, struct asked, req);
    const struct verdict_marks *marks = verdict_marks(&req->verdict);
    for (size_t i = 0; i < marks->count; i++) {
        asked->already += marks->items[i].outcome == MARK_ALREADY;
    }
    asked->done = true;
}

/* As `cairn forget` asks: one rule, decided now. */
static int forget(struct rig *rig, const char *rule, const char *value, bool dry_run, size_t *ret)
{
    struct retention_policy policy = {0};
    struct scratch scratch;
    struct asked asked = {.req = {.done = on_asked, .dry_run = dry_run}};
    scratch_init(&scratch, 4096);
    assert_int_equal(retention_policy_set(&policy, rule, value, &scratch, NULL), 0);
    asked.req.event = (struct event){.kind = EVENT_FORGET,
                                     .u.mark = {.actor = "test", .forget = {.policy = &policy}}};
    run_submit(rig->run, &asked.req);
    rig_until(rig, &asked.done);
    if (asked.req.status == CAIRN_E_CONFLICT) {
        assert_non_null(strstr(asked.req.diag.text, "clock"));
    }
    *ret = asked.req.status == 0 ? verdict_marks(&asked.req.verdict)->done_count : 0;
    scratch_fini(&scratch);
    return asked.req.status;
}

static void refuses_time(struct rig *rig)
{
    size_t count = 0;
    for (unsigned dry_run = 0; dry_run < 2; dry_run++) {
        assert_int_equal(forget(rig, "keep-within", "1h", dry_run, &count), CAIRN_E_CONFLICT);
        assert_int_equal(forget(rig, "keep-daily", "1", dry_run, &count), CAIRN_E_CONFLICT);
    }
    assert_int_equal(forget(rig, "keep-last", "2", true, &count), 0); /* asks for no time */
    assert_int_equal(count, SAVES - 2);
}

/* Goal: who asks by hand is refused as well, in a dry run too, after each jump, for a day. */
TEST(test_no_rule_of_time_by_a_clock_that_was_set)
{
    static const int64_t jumps_days[] = {400, -30, 401, 400};
    struct rig rig = {.seed = 4};
    size_t count = 0;
    rig_init(&rig);
    rig_start(&rig);
    for (uint64_t step = 1; step <= SAVES; step++) {
        rig_save(&rig, step, 2, rig.lists);
        sim_run_for(rig.sim, 2 * HOUR_MS);
    }
    assert_int_equal(forget(&rig, "keep-within", "1h", true, &count), 0);
    assert_int_equal(count, SAVES - 2);
    for (size_t i = 0; i < ARRAY_LEN(jumps_days); i++) {
        sim_host_set_wall(rig.host, jumps_days[i] * day_ns);
        for (unsigned hour = 0; hour < 20; hour++) {
            refuses_time(&rig);
            sim_run_for(rig.sim, HOUR_MS);
        }
    }
    sim_host_set_wall(rig.host, 0); /* set right */
    assert_int_equal(forget(&rig, "keep-within", "1h", true, &count), 0);
    sim_host_set_wall(rig.host, day_ns);
    refuses_time(&rig);
    sim_run_for(rig.sim, 25 * HOUR_MS); /* it has run on for a day */
    assert_int_equal(forget(&rig, "keep-within", "1h", false, &count), 0);
    assert_int_equal(count, SAVES - 2);
    rig_fini(&rig);
}

/* Submits the event twice. The answer of the store to the first update is lost. Returns in `ret`
 * how many checkpoints were told to be so already, each time. */
static void ask_twice(struct rig *rig, const struct event *event, size_t ret[2])
{
    struct store_fault_rule lost = {.kind = FAULT_LOST, .op = STORE_RECORD_UPDATE};
    assert_int_equal(store_fault_add(rig->store, &lost), 0);
    for (unsigned round = 0; round < 2; round++) {
        struct asked asked = {.req = {.event = *event, .done = on_asked}};
        sim_run_for(rig->sim, 1000);
        run_submit(rig->run, &asked.req);
        rig_until(rig, &asked.done);
        assert_int_equal(asked.req.status, 0);
        ret[round] = asked.already;
    }
}

/* Goal: an operator hears of all that a policy has forgotten, and that an undelete of all has
 * brought back, also where the answer of the store was lost and the daemon had to look. The next
 * round is told of nothing. */
TEST(test_what_a_lost_answer_marked_is_told)
{
    struct retention_policy policy = {0};
    struct scratch scratch;
    struct rig rig = {.seed = 5};
    size_t already[2];
    rig_init(&rig);
    rig_start(&rig);
    save_all(&rig);
    scratch_init(&scratch, 4096);
    assert_int_equal(retention_policy_set(&policy, "keep-last", "2", &scratch, NULL), 0);
    struct event forget_old = {.kind = EVENT_FORGET,
                               .u.mark = {.actor = "test", .forget = {.policy = &policy}}};
    struct event undelete = {.kind = EVENT_UNDELETE, .u.mark = {.actor = "test"}};
    ask_twice(&rig, &forget_old, already);
    assert_int_equal(already[0], SAVES - 2);
    assert_int_equal(already[1], 0);
    ask_twice(&rig, &undelete, already);
    assert_int_equal(already[0], SAVES - 2);
    assert_int_equal(already[1], 0);
    scratch_fini(&scratch);
    rig_fini(&rig);
}

static void never(struct policies_req *req) { fail_msg("a cancelled request was answered"); }

/* A daemon that stops cancels what it has asked, and then closes the store. */
RIG_TEST(test_a_store_stays_open_for_a_cancelled_question)
{
    struct policies_req req = {.done = never};
    struct store_fault_rule hold = {.kind = FAULT_HOLD, .op = STORE_RECORD_GET};
    struct catalog *catalog = rig_catalog_new(rig);
    bool closed = false;
    assert_int_equal(store_fault_add(rig->store, &hold), 0);
    assert_int_equal(retain_ask(catalog, &req, NULL), 0);
    policies_cancel(&req);
    catalog_close(catalog, sim_raise, &closed);
    sim_run_for(rig->sim, 1000);
    assert_false(closed);
    assert_int_equal(store_fault_release(rig->store), 1);
    rig_until(rig, &closed);
}

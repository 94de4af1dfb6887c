/* SPDX-License-Identifier: Apache-2.0
 *
 * A change of a stored policy is answered with the truth, whatever the store does with its update,
 * of two that are made side by side none is lost, and one that is refused leaves everything as it
 * was. Method: the memory store behind the fault decorator.
 */
#include "policy/policies.h"

#include "run_rig.h"
#include "support/unit_test.h"

struct asked {
    struct policies_req req;
    struct policy_entry entry;
    bool done;
    unsigned in_force; /* entries that hold, as the answer has them */
};

static void on_done(struct policies_req *req)
{
    struct asked *asked = container_of(req, struct asked, req);
    struct record_value value;
    const char *key;
    size_t at = 0;
    while (req->status == 0 && (key = policy_next(req->record, &at, &value)) != NULL) {
        asked->in_force += policy_is_last(req->record, key);
    }
    asked->done = true;
}

static void begin(struct rig *rig, struct asked *asked, const char *pattern, const char *last)
{
    *asked = (struct asked){.req = {.store = rig->store, .done = on_done}};
    if (pattern != NULL) {
        asked->entry.change = last != NULL ? POLICY_SET : POLICY_REMOVE;
        assert_int_equal(policy_row_name(&asked->entry.row, pattern, NULL), 0);
        assert_true(last == NULL ||
                    policy_row_add(&asked->entry.row, "keep-last", last, NULL) == 0);
        asked->req.change = &asked->entry;
    }
    assert_int_equal(policies_submit(&asked->req, NULL), 0);
}

static int ask(struct rig *rig, const char *pattern, const char *last, unsigned *ret_in_force)
{
    struct asked asked;
    begin(rig, &asked, pattern, last);
    rig_until(rig, &asked.done);
    *ret_in_force = asked.in_force;
    return asked.req.status;
}

#define RIG_TEST(name) FIXTURE_TEST(name, rig_setup, rig_fini, struct rig, rig)

RIG_TEST(test_an_answer_that_is_lost)
{
    static const enum store_fault_kind kinds[] = {FAULT_LOST, FAULT_LATE, FAULT_FAIL};
    unsigned in_force = 0;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct store_fault_rule rule = {
            .kind = kinds[i], .op = STORE_RECORD_UPDATE, .code = CAIRN_E_TIMED_OUT};
        assert_int_equal(store_fault_add(rig->store, &rule), 0);
        assert_int_equal(ask(rig, "lab/*", "3", &in_force), 0);
        (void)store_fault_release(rig->store); /* the late one comes too late */
        assert_int_equal(in_force, 1);
        assert_int_equal(ask(rig, NULL, NULL, &in_force), 0);
        assert_int_equal(in_force, 1);
    }
    struct store_fault_rule full = {
        .kind = FAULT_FAIL, .op = STORE_RECORD_UPDATE, .code = CAIRN_E_NO_SPACE};
    assert_int_equal(store_fault_add(rig->store, &full), 0);
    assert_int_equal(ask(rig, "vis/*", "3", &in_force), CAIRN_E_NO_SPACE);
    assert_int_equal(ask(rig, NULL, NULL, &in_force), 0);
    assert_int_equal(in_force, 1);
    assert_int_equal(ask(rig, "vis/*", NULL, &in_force), CAIRN_E_NOT_FOUND);
}

RIG_TEST(test_two_at_once)
{
    struct asked first, second, other, gone;
    unsigned in_force = 0;
    begin(rig, &first, "lab/*", "3");
    begin(rig, &second, "lab/*", "4");
    begin(rig, &other, "vis/*", "5");
    begin(rig, &gone, "not/told", "6");
    policies_cancel(&gone.req); /* what was asked goes on */
    rig_until(rig, &first.done);
    rig_until(rig, &second.done);
    rig_until(rig, &other.done);
    assert_int_equal(first.req.status | second.req.status | other.req.status, 0);
    assert_int_not_equal(first.entry.number, second.entry.number);
    assert_int_not_equal(first.entry.number, other.entry.number);
    sim_run_for(rig->sim, 1000);
    assert_false(gone.done);
    assert_int_equal(ask(rig, NULL, NULL, &in_force), 0);
    assert_int_equal(in_force, 3);
}

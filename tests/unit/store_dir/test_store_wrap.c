/* SPDX-License-Identifier: Apache-2.0
 *
 * Each kind of planted fault happens as it was asked for, and counting changes nothing. Method: the
 * decorators in the simulated world, on a memory store.
 */
#include "store/store_bed.h"

#include "base/check.h"

/* A memory store behind a fault decorator, in the simulator. */
struct stack {
    struct sim *sim;
    struct loop *loop;
    struct store *fault, *top;
    unsigned done;
};

static struct stack *stack_of_test;

static void begin(struct stack *stack)
{
    struct store *memory;
    struct diag diag = DIAG_INIT;
    *stack = (struct stack){.sim = sim_new(7)};
    struct sim_host *host = sim_host_new(stack->sim, "server", NULL);
    stack->loop = sim_loop(host);
    assert_int_equal(store_memory_new(stack->loop, sim_pool(host), NULL, &memory, &diag), 0);
    assert_int_equal(store_fault_new(stack->loop, memory, &stack->fault), 0);
    stack->top = stack->fault;
    stack_of_test = stack;
}

static void end(struct stack *stack)
{
    bool is_closed = false;
    store_close(stack->top, sim_raise, &is_closed);
    assert_true(sim_await(stack->sim, &is_closed, 1000));
    sim_free(stack->sim);
}

#define STACK_TEST(name) FIXTURE_TEST(name, begin, end, struct stack, stack)

static void on_done(struct store_req *req) { stack_of_test->done++; }

static struct store_req publish_req(uint32_t number)
{
    static char text[] = "some bytes";
    return (struct store_req){.op = STORE_PUBLISH,
                              .name = bed_name(5, STORE_PART, number, 1),
                              .data = text,
                              .bytes = sizeof(text),
                              .done = on_done};
}

static void run(struct stack *stack, struct store_req *req)
{
    unsigned before = stack->done;
    store_submit(stack->top, req);
    assert_int_equal(stack->done, before); /* never inside submit */
    sim_run_for(stack->sim, 100000);
    assert_int_equal(stack->done, before + 1);
}

static int fetch(struct stack *stack, uint32_t number)
{
    struct store_req req = {
        .op = STORE_FETCH, .name = bed_name(5, STORE_PART, number, 1), .done = on_done};
    run(stack, &req);
    free(req.ret_data);
    return req.status;
}

static void inject(struct stack *stack, int code, unsigned count)
{
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .any_op = true, .code = code, .count = count};
    assert_int_equal(store_fault_add(stack->fault, &rule), 0);
}

STACK_TEST(lost_and_late_answers)
{
    struct store_fault_rule lost = {.kind = FAULT_LOST, .op = STORE_PUBLISH};
    struct store_fault_rule late = {.kind = FAULT_LATE, .op = STORE_PUBLISH, .skip = 1};
    assert_int_equal(store_fault_add(stack->fault, &lost), 0);
    assert_int_equal(store_fault_add(stack->fault, &late), 0);
    struct store_req req = publish_req(1);
    run(stack, &req);
    assert_int_equal(req.status, CAIRN_E_OUTCOME_UNKNOWN);
    assert_int_equal(fetch(stack, 1), 0); /* it happened */
    req = publish_req(9);
    run(stack, &req); /* the late rule lets one pass */
    char *text = strdup("some bytes");
    req = publish_req(2);
    req.data = text;
    run(stack, &req);
    memset(text, 'x', strlen(text)); /* the caller's memory is the caller's again */
    free(text);
    assert_int_equal(req.status, CAIRN_E_OUTCOME_UNKNOWN);
    assert_int_equal(fetch(stack, 2), CAIRN_E_NOT_FOUND); /* not yet */
    assert_int_equal(store_fault_release(stack->fault), 1);
    sim_run_for(stack->sim, 1000);
    struct store_req check = {
        .op = STORE_FETCH, .name = bed_name(5, STORE_PART, 2, 1), .done = on_done};
    run(stack, &check);
    assert_int_equal(check.status, 0);
    assert_string_equal((char *)check.ret_data, "some bytes");
    free(check.ret_data);
}

/* Goal: a guarded update makes a late one impossible: the contract's way out of an unknown outcome.
 */
STACK_TEST(a_guard_stops_a_late_update)
{
    const uint8_t one[] = "1", two[] = "2";
    struct record_guard guard = {.key = "k", .absent = true};
    struct record_change change = {"k", false, {1, one}};
    struct record_update update = {1, 1, &guard, &change};
    struct store_fault_rule late = {.kind = FAULT_LATE, .op = STORE_RECORD_UPDATE};
    assert_int_equal(store_fault_add(stack->fault, &late), 0);
    struct store_req req = {
        .op = STORE_RECORD_UPDATE, .run = bed_run(), .update = &update, .done = on_done};
    run(stack, &req);
    assert_int_equal(req.status, CAIRN_E_OUTCOME_UNKNOWN);
    change.value.data = two;
    run(stack, &req);
    assert_int_equal(req.status, 0);
    assert_int_equal(store_fault_release(stack->fault), 1);
    sim_run_for(stack->sim, 1000);
    struct store_req get = {.op = STORE_RECORD_GET, .run = bed_run(), .done = on_done};
    run(stack, &get);
    struct record_value value;
    assert_true(record_get(get.ret_record, "k", &value));
    assert_int_equal(value.data[0], '2');
    assert_int_equal(record_version(get.ret_record), 1);
    record_free(get.ret_record);
}

STACK_TEST(delayed_answers_come_later)
{
    struct store_fault_rule delay = {.kind = FAULT_DELAY, .any_op = true, .delay_ms = 5000};
    assert_int_equal(store_fault_add(stack->fault, &delay), 0);
    struct store_req req = publish_req(1);
    store_submit(stack->top, &req);
    sim_run_for(stack->sim, 4900);
    assert_int_equal(stack->done, 0);
    sim_run_for(stack->sim, 1000);
    assert_int_equal(stack->done, 1);
    assert_int_equal(req.status, 0);
}

STACK_TEST(counting_changes_nothing)
{
    const struct store_counts *counts = NULL;
    assert_int_equal(store_count_new(stack->loop, stack->fault, &stack->top, &counts), 0);
    struct store_req req = publish_req(1);
    run(stack, &req);
    assert_int_equal(req.status, 0);
    assert_int_equal(counts->bytes_written, req.bytes);
    assert_int_equal(fetch(stack, 1), 0);
    assert_int_equal(counts->bytes_read, req.bytes);
    assert_int_equal(fetch(stack, 2), CAIRN_E_NOT_FOUND); /* an answer, no error */
    assert_int_equal(counts->errors.counts[err_slot(CAIRN_E_NOT_FOUND)], 0);
    inject(stack, CAIRN_E_IO, 1);
    req = publish_req(3);
    run(stack, &req);
    assert_int_equal(req.status, CAIRN_E_IO);
    assert_int_equal(counts->errors.counts[err_slot(CAIRN_E_IO)], 1);
    assert_int_equal(counts->bytes_written, req.bytes);
    struct store_fault_rule delay = {.kind = FAULT_DELAY, .any_op = true, .delay_ms = 40000};
    assert_int_equal(store_fault_add(stack->fault, &delay), 0);
    req = publish_req(4);
    store_submit(stack->top, &req);
    assert_int_equal(counts->running, 1);
    sim_run_for(stack->sim, 50000);
    assert_int_equal(req.status, 0);
    assert_int_equal(counts->running, 0);
    const struct histogram *published = &counts->durations[STORE_PUBLISH];
    uint64_t fast = 0;
    for (size_t i = 0; i < published->bound_count; i++) {
        fast += published->counts[i];
    }
    assert_int_equal(fast, 2);
    assert_int_equal(published->counts[published->bound_count], 1); /* the slow one */
}

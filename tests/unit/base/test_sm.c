/* SPDX-License-Identifier: Apache-2.0
 *
 * States change along the table only, runs do not nest, a finished struct is not touched. Method: a
 * small operation whose completion comes inside or outside the state function.
 */
#include "base/check.h"
#include "base/log.h"
#include "base/sm.h"
#include "support/check_trap.h"
#include "support/unit_test.h"

enum { OP_START, OP_WORK, OP_END, OP_LONELY };

struct op {
    struct sm sm;
    int started, worked, entered;
    bool complete_inside, ready, free_at_end, broken;
};

static struct op *op_of(struct sm *sm) { return container_of(sm, struct op, sm); }

static enum sm_result on_start(struct sm *sm)
{
    op_of(sm)->started++;
    sm_move(sm, OP_WORK);
    return SM_AGAIN;
}

static enum sm_result on_work(struct sm *sm)
{
    struct op *op = op_of(sm);
    op->worked++;
    if (op->ready) {
        sm_move(sm, OP_END);
        return SM_AGAIN;
    }
    if (op->complete_inside) {
        op->ready = true;
        sm_run(sm); /* remembered, not nested */
        assert_int_equal(op->worked, 1);
    }
    return SM_WAIT;
}

static enum sm_result on_end(struct sm *sm)
{
    struct op *op = op_of(sm);
    if (op->free_at_end) {
        free(op);
    }
    return SM_DONE;
}

static void enter_work(struct sm *sm) { op_of(sm)->entered++; }

static void check_op(const struct sm *sm)
{
    const struct op *op = container_of(sm, struct op, sm);
    CHECK(!op->broken);
    CHECK(op->entered <= op->worked); /* checked before the state is entered */
}

static const struct sm_state table[] = {
    [OP_START] = {"start", on_start, SM_TO(OP_WORK), 0},
    [OP_WORK] = {"work", on_work, SM_TO(OP_WORK) | SM_TO(OP_END), 0, enter_work},
    [OP_END] = {"end", on_end, 0, SM_FINAL},
    [OP_LONELY] = {"lonely", NULL, SM_TO(OP_START), 0},
};

TEST(test_waits_and_goes_on)
{
    struct op op = {0};
    sm_init(&op.sm, table, OP_START, "op", 1);
    sm_run(&op.sm);
    assert_true(sm_is(&op.sm, OP_WORK));
    assert_string_equal(sm_state_name(&op.sm), "work");
    sm_run(&op.sm); /* woken for nothing: stays */
    assert_true(sm_is(&op.sm, OP_WORK));
    op.ready = true;
    sm_run(&op.sm);
    assert_true(sm_is(&op.sm, OP_END));
    assert_int_equal(op.started, 1);
    assert_int_equal(op.entered, 1); /* once, however often it is run */
    assert_int_equal(op.worked, 3);
}

static void move_to_work(void *user) { sm_move(user, OP_WORK); }

/* Goal: a move that breaks the invariant is a bug, and nothing of the new state has begun. */
TEST(test_invariant_is_checked_at_each_move)
{
    struct op op = {.broken = true};
    sm_init(&op.sm, table, OP_START, "op", 6);
    op.sm.invariant = check_op;
    assert_true(check_breaks(move_to_work, &op.sm));
    assert_int_equal(op.entered, 0);
    op = (struct op){0};
    sm_init(&op.sm, table, OP_START, "op", 7);
    op.sm.invariant = check_op;
    sm_run(&op.sm);
    assert_int_equal(op.entered, 1);
}

TEST(test_completion_inside_is_not_lost)
{
    struct op op = {.complete_inside = true};
    sm_init(&op.sm, table, OP_START, "op", 2);
    sm_run(&op.sm);
    assert_true(sm_is(&op.sm, OP_END));
    assert_int_equal(op.worked, 2);
}

/* AddressSanitizer watches that nothing is read after the free. */
TEST(test_done_may_free)
{
    struct op *op = calloc(1, sizeof(*op));
    assert_non_null(op);
    op->free_at_end = true;
    op->ready = true;
    sm_init(&op->sm, table, OP_START, "op", 3);
    sm_run(&op->sm);
}

TEST(test_state_without_function_waits)
{
    struct op op = {0};
    sm_init(&op.sm, table, OP_LONELY, "op", 4);
    sm_run(&op.sm);
    assert_true(sm_is(&op.sm, OP_LONELY));
    sm_move(&op.sm, OP_START);
    sm_run(&op.sm);
    assert_true(sm_is(&op.sm, OP_WORK));
}

static void move_outside_table(void *user) { sm_move(user, OP_END); }

TEST(test_move_outside_the_table_is_a_bug)
{
    struct op op = {0};
    sm_init(&op.sm, table, OP_START, "op", 5);
    assert_true(check_breaks(move_outside_table, &op.sm));
    assert_true(sm_is(&op.sm, OP_START));
}

static void keep_line(void *user, enum log_level level, const char *line, size_t bytes)
{
    strncpy(user, line, 255);
}

TEST(test_moves_are_traced)
{
    char line[256] = "";
    struct op op = {0};
    log_setup(LOG_DEBUG, LOG_TEXT);
    log_set_sink(keep_line, line);
    sm_init(&op.sm, table, OP_START, "save", 77);
    sm_move(&op.sm, OP_WORK);
    log_set_sink(NULL, NULL);
    log_setup(LOG_INFO, LOG_TEXT);
    assert_non_null(strstr(line, "op=save id=77 from=start to=work"));
}

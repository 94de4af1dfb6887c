/* SPDX-License-Identifier: Apache-2.0
 *
 * Garbage collection removes what nobody needs, when it may, and leaves everything else. Method:
 * one scenario for each rule.
 */
#include "gc_rig.h"

#include "base/check.h"
#include "format/part_layout.h"
#include "hash/hash.h"
#include "support/unit_test.h"

#include <stdio.h>

#define GC_TEST(name) FIXTURE_TEST(name, gc_rig_setup, gc_rig_fini, struct gc_rig, g)

/* Goal: what is forgotten stays for keep_cycles, can be read by nobody after, and goes as a whole.
 */
GC_TEST(test_forgotten_goes_after_its_time)
{
    struct ckpt_id first = gc_rig_save(g, false)->id;
    gc_rig_save(g, false);
    gc_rig_save(g, false);
    gc_rig_start(g, 3);
    gc_rig_pass(g, true);
    assert_int_equal(gc_rig_forget(g, first), 0);
    for (unsigned i = 0; i < 2; i++) {
        gc_rig_pass(g, true);
        assert_true(gc_rig_has_object(g, first, 0));
        assert_int_equal(g->status.reclaimed, 0);
    }
    gc_rig_pass(g, false); /* asked for: begins no cycle */
    assert_int_equal(g->status.reclaimed, 0);
    gc_rig_pass(g, true);
    assert_int_equal(g->status.reclaimed, 1);
    assert_int_equal(g->status.objects, 2);
    assert_int_equal(g->status.smalls, 5);
    assert_true(g->status.bytes > 64 * 96 * 4);
    assert_false(gc_rig_has_object(g, first, 0));
    gc_rig_check_reachable(g);
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* Goal: objects that a kept checkpoint refers to outlive the one that wrote them, however long the
 * chain; when the last reference goes they go. */
GC_TEST(test_references_pin_objects)
{
    struct ckpt_id ids[4];
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        ids[i] = gc_rig_save(g, i > 0)->id;
    }
    gc_rig_save(g, false);
    gc_rig_start(g, 1);
    gc_rig_pass(g, true);
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        assert_true(gc_rig_has_object(g, ids[0], 0));
        assert_int_equal(gc_rig_forget(g, ids[i]), 0);
        gc_rig_pass(g, true);
        gc_rig_pass(g, true);
        assert_true(gc_rig_is_reclaimed(g, ids[i]));
        gc_rig_check_reachable(g);
        assert_int_equal(gc_rig_count_garbage(g), 0);
    }
    assert_false(gc_rig_has_object(g, ids[0], 0));
    assert_true(g->status.bytes_read < 1 << 20);
}

/* Goal: what an opening left that came to nothing goes, in the second pass that finds it dead;
 * while it is open nothing of it does, and a fenced one is ended first. */
GC_TEST(test_openings)
{
    gc_rig_save(g, false);
    struct gc_save *open = gc_rig_leave_open(g, 1);
    gc_rig_start(g, 1);
    for (unsigned i = 0; i < 3; i++) {
        gc_rig_pass(g, true);
        assert_true(gc_rig_has_object(g, open->id, 0));
    }
    gc_rig_abort(g, open);
    gc_rig_pass(g, true);
    assert_true(gc_rig_has_object(g, open->id, 0));
    assert_int_equal(g->status.kept, 2);
    gc_rig_pass(g, true);
    assert_false(gc_rig_has_object(g, open->id, 0));
    struct gc_save *fenced = gc_rig_leave_open(g, 1);
    gc_rig_attempt(g);
    gc_rig_save(g, false);
    for (unsigned i = 0; i < 2; i++) {
        gc_rig_pass(g, true);
    }
    assert_false(gc_rig_is_open(g, fenced->id));
    assert_false(gc_rig_has_object(g, fenced->id, 0));
    gc_rig_check_reachable(g);
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

static struct gc_status dry_run(struct gc_rig *g, bool cycle)
{
    assert_true(cycle ? gc_cycle(g->gc, true) : gc_now(g->gc, true));
    gc_rig_wait(g);
    return g->status;
}

/* Goal: a dry run says what the next run does, object by object, and does nothing. */
GC_TEST(test_dry_run)
{
    struct ckpt_id first = gc_rig_save(g, false)->id;
    struct ckpt_id base = gc_rig_save(g, false)->id;
    gc_rig_save(g, true); /* refers to it: its objects stay */
    gc_rig_leave_open(g, 1);
    gc_rig_attempt(g);
    gc_rig_save(g, false);
    gc_rig_start(g, 1);
    assert_int_equal(gc_rig_forget(g, first), 0);
    assert_int_equal(gc_rig_forget(g, base), 0);
    assert_int_equal(dry_run(g, false).reclaimed, 0);
    for (unsigned i = 0; i < 3; i++) {
        uint64_t removed = g->status.objects_total;
        struct gc_status would = dry_run(g, true);
        assert_int_equal(would.objects_total, removed);
        assert_true(gc_rig_has_object(g, first, 0) == (i == 0));
        assert_int_equal(gc_rig_is_reclaimed(g, first), i > 0);
        gc_rig_pass(g, true);
        assert_int_equal(would.reclaimed, g->status.reclaimed);
        assert_int_equal(would.objects, g->status.objects);
        assert_int_equal(would.smalls, g->status.smalls);
        assert_int_equal(would.bytes, g->status.bytes);
        assert_int_equal(would.kept, g->status.kept);
        assert_int_equal(g->status.objects > 0, i < 2);
    }
    gc_rig_check_reachable(g);
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* Goal: where what a kept checkpoint refers to cannot be read, nothing that it may refer to is
 * reclaimed: all of it can be brought back. The rest goes, and a dry run says the same. */
GC_TEST(test_what_cannot_be_swept_is_not_reclaimed)
{
    struct ckpt_id alone = gc_rig_save(g, false)->id;
    struct ckpt_id base = gc_rig_save(g, false)->id;
    struct gc_save *built = gc_rig_save(g, true);
    struct ckpt_id second = gc_rig_save(g, true)->id; /* refers to the same, by the same chain */
    gc_rig_save(g, false);
    gc_rig_start(g, 1);
    gc_rig_pass(g, true);
    struct store_name part = gc_rig_part(g, built, 1);
    rig_flip(&g->rig, &part, 300);
    assert_int_equal(gc_rig_forget(g, alone), 0);
    assert_int_equal(gc_rig_forget(g, base), 0);
    assert_int_equal(gc_rig_forget(g, second), 0);
    struct gc_status told = dry_run(g, true);
    assert_int_equal(told.reclaimed, 2);
    assert_true(told.errors > 0);
    gc_rig_pass(g, true);
    assert_int_equal(g->status.reclaimed, 2);
    assert_int_equal(g->status.objects, told.objects);
    assert_int_equal(g->status.smalls, told.smalls);
    assert_true(gc_rig_is_reclaimed(g, alone) && gc_rig_is_reclaimed(g, second));
    assert_false(gc_rig_has_object(g, alone, 0));
    for (unsigned i = 0; i < 3; i++) {
        assert_false(gc_rig_is_reclaimed(g, base));
        assert_int_equal(err_exit_status(g->status.code), err_exit_status(CAIRN_E_DAMAGED));
        assert_non_null(strstr(g->status.text, "the part of rank 1 of checkpoint 3@1 cannot be"));
        assert_non_null(strstr(g->status.text, " 3@1 --repair`), or forget that checkpoint"));
        gc_rig_check_reachable(g); /* base's small things, too */
        gc_rig_pass(g, true);
    }
    struct event undelete = {.kind = EVENT_UNDELETE, .u.mark = {.id_count = 1, .ids = &base}};
    struct verdict verdict;
    assert_int_equal(rig_event(&g->rig, g->rig.run, &undelete, &verdict), 0);
    assert_int_equal(verdict_marks(&verdict)->done_count, 1);
    assert_int_equal(gc_rig_forget(g, base), 0);
    assert_int_equal(gc_rig_forget(g, built->id), 0); /* the remedy: its table does not matter */
    gc_rig_pass(g, true);
    assert_int_equal(g->status.errors, 0);
    assert_true(gc_rig_is_reclaimed(g, base));
    assert_false(gc_rig_has_object(g, base, 0));
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* Goal: what was reclaimed before a table became unreadable keeps what that might refer to; the
 * rest goes. */
GC_TEST(test_damaged_tables_keep)
{
    struct ckpt_id base = gc_rig_save(g, false)->id;
    struct gc_save *built = gc_rig_save(g, true);
    struct ckpt_id alone = gc_rig_save(g, false)->id;
    gc_rig_save(g, false);
    gc_rig_start(g, 1);
    gc_rig_pass(g, true);
    assert_int_equal(gc_rig_forget(g, base), 0);
    gc_rig_pass(g, true);
    assert_true(gc_rig_is_reclaimed(g, base));
    assert_true(gc_rig_has_object(g, base, 0)); /* referred to */
    struct store_name part = gc_rig_part(g, built, 1);
    rig_flip(&g->rig, &part, 300);
    assert_int_equal(gc_rig_forget(g, alone), 0);
    gc_rig_pass(g, true);
    gc_rig_pass(g, true);
    assert_true(gc_rig_is_reclaimed(g, alone));
    assert_false(gc_rig_has_object(g, alone, 0));
    assert_true(g->status.errors > 0);
    assert_int_equal(err_exit_status(g->status.code), err_exit_status(CAIRN_E_DAMAGED));
    assert_non_null(strstr(g->status.text, ": reading an object table: "));
    assert_true(gc_rig_has_object(g, base, 0));
    assert_true(gc_rig_has_object(g, base, 1));
    rig_flip(&g->rig, &part, 300);
    gc_rig_pass(g, true);
    assert_true(gc_rig_has_object(g, base, 0));
    assert_int_equal(g->status.errors, 0);
    assert_int_equal(g->status.code, 0);
    assert_string_equal(g->status.text, "");
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* Goal: a forgotten checkpoint whose objects cannot be listed is not reclaimed. */
GC_TEST(test_an_unreadable_list_is_not_reclaimed)
{
    struct ckpt_id first = gc_rig_save(g, false)->id;
    gc_rig_save(g, false);
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_LIST_OBJECTS, .code = CAIRN_E_IO, .count = 1000};
    assert_int_equal(gc_rig_forget(g, first), 0);
    assert_int_equal(store_fault_add(g->rig.store, &rule), 0);
    gc_rig_start(g, 1);
    gc_rig_pass(g, true);
    assert_int_equal(g->status.reclaimed, 0);
    assert_int_equal(g->status.code, CAIRN_E_IO);
    store_fault_clear(g->rig.store);
    gc_rig_check_reachable(g);
    gc_rig_pass(g, true);
    assert_int_equal(g->status.reclaimed, 1);
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* Goal: one fault takes the list and a table of a forgotten checkpoint: its base stays, too. */
GC_TEST(test_a_stuck_one_keeps_its_base)
{
    struct ckpt_id base = gc_rig_save(g, false)->id;
    struct gc_save *built = gc_rig_save(g, true);
    struct store_name part = gc_rig_part(g, built, 1);
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_LIST_OBJECTS, .code = CAIRN_E_IO, .skip = 1, .count = 1};
    gc_rig_save(g, false);
    gc_rig_start(g, 1);
    rig_flip(&g->rig, &part, 300);
    assert_int_equal(gc_rig_forget(g, base), 0);
    assert_int_equal(gc_rig_forget(g, built->id), 0);
    assert_int_equal(store_fault_add(g->rig.store, &rule), 0);
    gc_rig_pass(g, true);
    assert_int_equal(g->status.reclaimed, 0);
}

/* Goal: a store that takes no updates does not keep what is dead from going. */
GC_TEST(test_full_record)
{
    gc_rig_save(g, false);
    struct gc_save *open = gc_rig_leave_open(g, 2);
    gc_rig_abort(g, open);
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_RECORD_UPDATE, .code = CAIRN_E_NO_SPACE, .count = 1000};
    assert_int_equal(store_fault_add(g->rig.store, &rule), 0);
    gc_rig_start(g, 1);
    gc_rig_pass(g, true);
    assert_true(g->status.errors > 0);
    assert_int_equal(g->status.code, CAIRN_E_NO_SPACE);
    gc_rig_pass(g, true);
    store_fault_clear(g->rig.store);
    assert_false(gc_rig_has_object(g, open->id, 0));
    gc_rig_check_reachable(g);
}

/* Goal: what unfinished writes left is swept, of committed checkpoints too; a sweep that failed is
 * told and done again in the next pass, one that found nothing is not. */
GC_TEST(test_sweep)
{
    gc_rig_save(g, false);
    gc_rig_save(g, false);
    gc_rig_leave_open(g, 1); /* is not swept: it is being written */
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_SWEEP, .code = CAIRN_E_TIMED_OUT, .count = 1000};
    gc_rig_start(g, 1);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(store_fault_add(g->rig.store, &rule), 0);
        gc_rig_pass(g, false);
        assert_int_equal(g->status.errors, 2);
        assert_int_equal(g->status.code, CAIRN_E_TIMED_OUT);
        store_fault_clear(g->rig.store);
    }
    gc_rig_pass(g, false);
    assert_int_equal(g->status.errors, 0);
    assert_int_equal(store_fault_add(g->rig.store, &rule), 0);
    gc_rig_pass(g, false);
    assert_int_equal(g->status.errors, 0); /* both are settled */
    gc_rig_check_reachable(g);
}

/* Goal: passes and cycles between a save's OPEN and its first object take nothing that it will
 * refer to, though what holds that is forgotten meanwhile, and nothing that it writes afterwards.
 */
GC_TEST(test_between_open_and_the_first_object)
{
    for (int incremental = 0; incremental < 2; incremental++) {
        struct ckpt_id holder = gc_rig_save(g, false)->id;
        gc_rig_save(g, true); /* the base: all of it lies in the one before */
        struct gc_save *open = gc_rig_leave_open(g, 0);
        assert_int_not_equal(open->base.term, 0);
        if (!g->gc) {
            gc_rig_start(g, 1);
        }
        assert_int_equal(gc_rig_forget(g, holder), 0);
        for (unsigned i = 0; i < 3; i++) {
            gc_rig_pass(g, true);
        }
        assert_true(gc_rig_is_reclaimed(g, holder));
        assert_true(gc_rig_has_object(g, holder, 0));
        gc_rig_finish(g, open, incremental != 0);
        for (unsigned i = 0; i < 2; i++) {
            gc_rig_pass(g, true);
        }
        gc_rig_check_reachable(g);
        assert_int_equal(gc_rig_count_garbage(g), 0);
    }
}

/* Goal: what may be brought back is counted in cycles; a wall clock that is set back or forward
 * shortens nothing and stops nothing. */
GC_TEST(test_wall_clock_set)
{
    static const int64_t years[] = {-30, 30, -1, 0};
    struct ckpt_id first = gc_rig_save(g, false)->id;
    gc_rig_save(g, false);
    gc_rig_start(g, ARRAY_LEN(years));
    gc_rig_pass(g, true);
    assert_int_equal(gc_rig_forget(g, first), 0);
    for (size_t i = 0; i < ARRAY_LEN(years); i++) {
        assert_true(gc_rig_has_object(g, first, 0));
        sim_host_set_wall(g->rig.host, years[i] * 365 * 86400 * INT64_C(1000000000));
        gc_rig_save(g, false);
        gc_rig_pass(g, true);
        gc_rig_check_reachable(g);
    }
    assert_false(gc_rig_has_object(g, first, 0));
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* A second daemon's collection, on the same store. */
struct second {
    struct catalog *catalog;
    struct gc *gc;
    struct gc_rig *g;
};

static bool both_have_ended(void *user)
{
    struct second *second = user;
    struct gc_status status;
    gc_status(second->gc, &status);
    gc_status(second->g->gc, &second->g->status);
    return !status.running && !second->g->status.running;
}

/* Goal: the duty is a hint, so two daemons may collect at once: nothing that is needed goes, all
 * garbage does. Method: both begin a pass and a cycle at the same moment, round after round, of
 * saves, forgets and openings that come to nothing. */
static void two_collect(uint64_t seed)
{
    struct gc_rig *g = calloc(1, sizeof(*g));
    assert_non_null(g);
    gc_rig_init(g, seed);
    rig_stop(&g->rig);
    g->rig.options.poll_ms = 100; /* others write to the store */
    rig_start(&g->rig);
    struct second second = {.catalog = rig_catalog_new(&g->rig), .g = g};
    struct gc_options options = gc_rig_options(g, 1);
    options.catalog = second.catalog;
    options.actor = "the other";
    assert_int_equal(gc_new(&options, &second.gc), 0);
    gc_rig_start(g, 1);
    for (unsigned round = 0; round < 6; round++) {
        struct ckpt_id old = gc_rig_save(g, round % 2 == 1)->id;
        gc_rig_save(g, true);
        gc_rig_save(g, false);
        struct gc_save *open = gc_rig_leave_open(g, round % 2);
        assert_int_equal(gc_rig_forget(g, old), 0);
        for (unsigned pass = 0; pass < 3; pass++) {
            assert_true(gc_cycle(g->gc, false));
            assert_true(gc_cycle(second.gc, false));
            assert_true(sim_run_until(g->rig.sim, both_have_ended, &second, 3600 * 1000));
            gc_rig_check_reachable(g);
        }
        gc_rig_abort(g, open);
    }
    for (unsigned pass = 0; pass < 3; pass++) {
        gc_rig_pass(g, true);
    }
    assert_int_equal(gc_rig_count_garbage(g), 0);
    bool closed = false;
    gc_close(second.gc, sim_raise, &closed);
    rig_until(&g->rig, &closed);
    rig_catalog_close(&g->rig, second.catalog);
    gc_rig_fini(g);
    free(g);
}

TEST(test_two_daemons_at_once)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        two_collect(seed);
    }
}

struct duty_left { /* how often it is ours, and how often it was asked after that */
    unsigned left, late;
};

static bool is_ours(void *user)
{
    struct duty_left *duty = user;
    bool is_over = duty->left == 0;
    duty->left -= !is_over;
    duty->late += is_over;
    return !is_over;
}

/* Goal: a pass whose duty is lost in the middle ends at once, wherever that is; what it has left
 * goes with the next pass, and nothing else. */
GC_TEST(test_the_duty_is_lost)
{
    for (unsigned lost_at = 1; lost_at < 42; lost_at += 4) {
        struct ckpt_id first = gc_rig_save(g, false)->id;
        gc_rig_save(g, true);
        gc_rig_save(g, false);
        assert_int_equal(gc_rig_forget(g, first), 0);
        struct duty_left duty = {.left = lost_at};
        struct gc_options options = gc_rig_options(g, 1);
        options.may_run = is_ours;
        options.user = &duty;
        assert_int_equal(gc_new(&options, &g->gc), 0);
        gc_rig_pass(g, true);
        gc_rig_check_reachable(g);
        assert_int_equal(g->status.errors, 0);
        assert_int_equal(duty.late, 1);
        gc_rig_stop(g);
    }
    gc_rig_start(g, 1);
    for (unsigned i = 0; i < 4; i++) {
        gc_rig_pass(g, true);
    }
    gc_rig_check_reachable(g);
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* Puts the bytes of a part in the place of another one, perhaps with the mark of another run. */
static void replace_part(struct gc_rig *g, const struct store_name *name,
                         const struct store_name *by, bool of_other_run)
{
    struct store_req fetch = {.op = STORE_FETCH, .name = *by};
    rig_store(&g->rig, &fetch);
    assert_int_equal(fetch.status, 0);
    if (of_other_run) {
        uint8_t *header = fetch.ret_data;
        header[24] ^= 1;
        store_u32(header + 16, crc32c(crc32c(0, 16, header), PART_HEADER_BYTES - DOC_PROLOGUE_BYTES,
                                      header + DOC_PROLOGUE_BYTES));
    }
    struct store_req remove = {.op = STORE_DELETE_SMALL, .name = *name};
    rig_store(&g->rig, &remove);
    struct store_req publish = {
        .op = STORE_PUBLISH, .name = *name, .bytes = fetch.ret_bytes, .data = fetch.ret_data};
    rig_store(&g->rig, &publish);
    assert_int_equal(publish.status, 0);
    free(fetch.ret_data);
}

/* Goal: a part that is whole and of another checkpoint says nothing about what is referred to; a
 * leftover with a part of another run is not this record's to remove. */
GC_TEST(test_a_part_of_another)
{
    struct ckpt_id base = gc_rig_save(g, false)->id;
    struct gc_save *built = gc_rig_save(g, true);
    struct gc_save *other = gc_rig_save(g, false);
    struct gc_save *open = gc_rig_leave_open(g, 1);
    gc_rig_abort(g, open);
    struct store_name part = gc_rig_part(g, built, 0), by = gc_rig_part(g, other, 0);
    replace_part(g, &part, &by, false);
    part = gc_rig_part(g, open, 0);
    replace_part(g, &part, &part, true);
    assert_int_equal(gc_rig_forget(g, base), 0);
    gc_rig_start(g, 1);
    for (unsigned i = 0; i < 3; i++) {
        gc_rig_pass(g, true);
        assert_int_equal(g->status.code, CAIRN_E_DAMAGED);
    }
    assert_int_equal(g->status.objects_total + g->status.smalls_total, 0);
    assert_false(gc_rig_is_reclaimed(g, base));
}

/* Goal: a store that has become read-only ends the pass, which says so. */
GC_TEST(test_a_read_only_store_ends_the_pass)
{
    struct ckpt_id first = gc_rig_save(g, false)->id;
    gc_rig_save(g, false);
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_DELETE_OBJECT, .code = CAIRN_E_READ_ONLY, .count = 1};
    assert_int_equal(gc_rig_forget(g, first), 0);
    assert_int_equal(store_fault_add(g->rig.store, &rule), 0);
    gc_rig_start(g, 1);
    gc_rig_pass(g, true);
    assert_int_equal(g->status.code, CAIRN_E_READ_ONLY);
    assert_int_equal(g->status.objects + g->status.smalls, 0); /* not even what would go */
    gc_rig_pass(g, true);
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* Waits for the pass that was ordered. */
static struct gc_status reclaim_now(struct gc_rig *g, const struct gc_order *order)
{
    assert_int_equal(gc_reclaim_now(g->gc, order), 0);
    assert_int_equal(gc_reclaim_now(g->gc, order), CAIRN_E_BUSY); /* one waits already */
    gc_rig_wait(g);
    return g->status;
}

/* Goal: what is asked for goes at once, the rest keeps its time; a dry run says the same and does
 * nothing; what an open save refers to stays and is counted. */
GC_TEST(test_reclaimed_now)
{
    struct ckpt_id ids[4];
    struct gc_order all = {.actor = "ada"}, dry = {.actor = "ada", .dry_run = true};
    struct run_name other = {"other", "run"};
    struct gc_order others = {.actor = "ada", .runs = &other, .run_count = 1};
    struct gc_order named = {.actor = "ada", .runs = &g->rig.name, .run_count = 1};
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        ids[i] = gc_rig_save(g, false)->id;
    }
    gc_rig_start(g, 3);
    gc_rig_pass(g, true);
    assert_int_equal(g->status.forgotten, 0);
    assert_int_equal(gc_rig_forget(g, ids[0]), 0);
    assert_int_equal(gc_rig_forget(g, ids[1]), 0);
    gc_status(g->gc, &g->status);
    assert_int_equal(g->status.forgotten, 2);
    assert_true(g->status.forgotten_bytes > 0);
    struct gc_status told = reclaim_now(g, &dry);
    assert_true(told.now && told.dry_run);
    assert_int_equal(told.reclaimed, 2);
    assert_int_equal(told.objects, 4);
    assert_false(gc_rig_is_reclaimed(g, ids[0]));
    assert_int_equal(reclaim_now(g, &others).reclaimed, 0);
    assert_true(gc_rig_has_object(g, ids[0], 0));
    struct gc_status done = reclaim_now(g, &named);
    assert_int_equal(done.reclaimed, 2);
    assert_int_equal(done.objects, told.objects);
    assert_int_equal(done.smalls, told.smalls);
    assert_int_equal(done.bytes, told.bytes);
    assert_int_equal(done.forgotten, 0);
    assert_false(gc_rig_has_object(g, ids[0], 0));
    assert_false(gc_rig_has_object(g, ids[1], 1));
    gc_rig_check_reachable(g);
    assert_int_equal(gc_rig_count_garbage(g), 0);
    assert_int_equal(reclaim_now(g, &all).reclaimed, 0);
}

/* Goal: the claim of an open save keeps its base, whoever asks. */
GC_TEST(test_claimed_stays)
{
    struct gc_order all = {.actor = "ada"};
    struct ckpt_id base = gc_rig_save(g, false)->id;
    struct gc_save *open = gc_rig_leave_open(g, 0);
    assert_true(ckpt_id_equal(open->base, base));
    assert_int_equal(gc_rig_forget(g, base), CAIRN_E_DENIED); /* while it is claimed */
    gc_rig_start(g, 1);
    assert_int_equal(reclaim_now(g, &all).reclaimed, 0);
    gc_rig_finish(g, open, true);
    gc_rig_save(g, false);
    gc_rig_check_reachable(g);
}

/* Goal: an acknowledged checkpoint that a record of yesterday does not know outlives every pass,
 * with all that it may refer to, whatever is forgotten meanwhile and however old its term becomes.
 * With the right record back, those made meanwhile are the unknown ones. */
GC_TEST(test_a_record_of_yesterday_costs_nothing)
{
    struct rig *rig = &g->rig;
    struct ckpt_id first = gc_rig_save(g, false)->id;
    gc_rig_save(g, false);
    struct record *yesterday = memory_medium_copy_record(rig->medium, &rig->name);
    struct ckpt_id holder = gc_rig_save(g, true)->holder; /* what the lost one refers to */
    gc_rig_attempt(g);
    struct ckpt_id later = gc_rig_save(g, false)->id;
    struct record *today = memory_medium_copy_record(rig->medium, &rig->name);
    rig_stop(rig);
    memory_medium_set_record(rig->medium, &rig->name, yesterday, 0);
    rig_start(rig);
    for (unsigned i = 0; i < 3; i++) { /* train on */
        gc_rig_attempt(g);
        assert_int_equal(gc_rig_save(g, false)->id.term, later.term + 1 + i);
    }
    gc_rig_start(g, 1);
    assert_int_equal(gc_rig_forget(g, first), 0);
    assert_int_equal(gc_rig_forget(g, holder), 0);
    for (unsigned i = 0; i < 5; i++) {
        gc_rig_pass(g, true);
        assert_int_equal(g->status.code, CAIRN_E_DAMAGED);
        assert_non_null(strstr(g->status.text, "cairn salvage"));
    }
    assert_int_equal(g->status.objects_total + g->status.smalls_total, 0);
    assert_true(gc_rig_has_object(g, holder, 0));
    assert_true(gc_rig_has_object(g, later, 0));
    assert_true(gc_rig_has_object(g, later, 1));
    gc_rig_stop(g);
    rig_stop(rig);
    memory_medium_set_record(rig->medium, &rig->name, today, 0);
    rig_start(rig);
    gc_rig_start(g, 1);
    gc_rig_pass(g, true);
    assert_int_equal(g->status.code, CAIRN_E_DAMAGED); /* the later terms' are the unknown ones */
}

/* Goal: dead entries go when nothing of their step is stored, and not before. */
GC_TEST(test_dead_entries_are_buried)
{
    gc_rig_save(g, false);
    struct gc_save *open = gc_rig_leave_open(g, 1);
    gc_rig_abort(g, open);
    gc_rig_attempt(g);
    gc_rig_save(g, false);
    gc_rig_start(g, 1);
    gc_rig_pass(g, true);
    assert_true(gc_rig_has_object(g, open->id, 0));
    assert_int_equal(gc_rig_dead_count(g), 1);
    gc_rig_pass(g, true);
    assert_false(gc_rig_has_object(g, open->id, 0));
    gc_rig_pass(g, true);
    assert_int_equal(gc_rig_dead_count(g), 0);
    assert_int_equal(g->status.errors_total, 0);
}

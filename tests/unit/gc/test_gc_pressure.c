/* SPDX-License-Identifier: Apache-2.0
 *
 * Where room is wanted, forgotten checkpoints go before their time, the right ones and no more.
 * Method: a store, or a quota, that refuses saves.
 */
#include "gc_rig.h"

#include "base/check.h"
#include "support/unit_test.h"

#include <stdio.h>

struct refusing { /* a store that has no room */
    uint64_t count, bytes;
    struct ckpt_id told[8];
    char why[8][ENTRY_REASON_BYTES];
    size_t told_count;
};

static uint64_t refused(void *user, uint64_t *ret_bytes)
{
    struct refusing *refusing = user;
    *ret_bytes = refusing->bytes;
    return refusing->count;
}

static void note_reclaimed(void *user, const struct run_name *run, struct ckpt_id id,
                           const struct gc_reclaim *why)
{
    struct refusing *refusing = user;
    CHECK(refusing->told_count < ARRAY_LEN(refusing->told));
    snprintf(refusing->why[refusing->told_count], sizeof(refusing->why[0]), "%s", why->reason);
    refusing->told[refusing->told_count++] = id;
}

static void start_pressed(struct gc_rig *g, struct refusing *refusing,
                          const struct quota_table *quotas)
{
    struct gc_options options = gc_rig_options(g, 9);
    options.pressure = 10;
    options.quotas = quotas;
    options.refusals = refused;
    options.reclaimed = note_reclaimed;
    options.user = refusing;
    assert_int_equal(gc_new(&options, &g->gc), 0);
}

#define GC_TEST(name) FIXTURE_TEST(name, gc_rig_setup, gc_rig_fini, struct gc_rig, g)

/* Goal: without a refusal what is forgotten waits; each refusal takes what was forgotten first, and
 * no more than is wanted; what is not forgotten never goes. */
GC_TEST(test_pressure_takes_the_first_forgotten)
{
    struct refusing refusing = {.count = 0};
    struct ckpt_id ids[6];
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        ids[i] = gc_rig_save(g, false)->id;
    }
    start_pressed(g, &refusing, NULL);
    assert_int_equal(gc_rig_forget(g, ids[2]), 0);
    sim_run_for(g->rig.sim, 1000);
    assert_int_equal(gc_rig_forget(g, ids[0]), 0);
    sim_run_for(g->rig.sim, 1000);
    assert_int_equal(gc_rig_forget(g, ids[1]), 0);
    sim_run_for(g->rig.sim, 100000);
    assert_int_equal(refusing.told_count, 0);
    gc_status(g->gc, &g->status);
    refusing.count = 1;
    refusing.bytes = g->status.forgotten_bytes / 3 + 1; /* two of three equal ones */
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 2);
    assert_true(ckpt_id_equal(refusing.told[0], ids[0]) || ckpt_id_equal(refusing.told[0], ids[2]));
    assert_true(gc_rig_is_reclaimed(g, ids[0]) && gc_rig_is_reclaimed(g, ids[2]));
    assert_false(gc_rig_is_reclaimed(g, ids[1]));
    assert_false(gc_rig_has_object(g, ids[2], 0));
    assert_non_null(strstr(refusing.why[0], "pressure: a save was refused"));
    sim_run_for(g->rig.sim, 60000);
    assert_int_equal(refusing.told_count, 2); /* the same refusal: no more */
    refusing.count = 2;
    gc_press(g->gc, NULL, 0); /* at once */
    sim_run_for(g->rig.sim, 1000);
    assert_true(gc_rig_is_reclaimed(g, ids[1]));
    gc_status(g->gc, &g->status);
    assert_int_equal(g->status.pressed_total, 3);
    assert_true(g->status.pressed_wall_ns > 0 && g->status.pressed_bytes_total > 0);
    refusing.count = 3; /* nothing is left to take */
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 3);
    gc_rig_check_reachable(g);
    assert_int_equal(gc_rig_count_garbage(g), 0);
}

/* Goal: pressure 0 is off, for refusals of the store and of a quota as well, and what is set while
 * the daemon runs holds from the next look on. */
GC_TEST(test_pressure_is_off_at_0)
{
    struct refusing refusing = {.count = 1, .bytes = 1};
    struct quota_table quotas = {.count = 1};
    struct ckpt_id first = gc_rig_save(g, false)->id;
    gc_rig_save(g, false);
    snprintf(quotas.quotas[0].project, sizeof(quotas.quotas[0].project), "%s", g->rig.name.project);
    quotas.quotas[0].bytes = 1;
    start_pressed(g, &refusing, &quotas);
    gc_set_pressure(g->gc, 0);
    assert_int_equal(gc_rig_forget(g, first), 0);
    sim_run_for(g->rig.sim, 100000);
    gc_press(g->gc, g->rig.name.project, 1);
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 0);
    gc_set_pressure(g->gc, 3);
    gc_status(g->gc, &g->status);
    assert_int_equal(g->status.pressure, 3);
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 1);
    gc_rig_check_reachable(g);
}

/* Goal: pressure passes over what cannot be swept, so that the others give the room; and tries it
 * again after the next ordinary pass. */
GC_TEST(test_pressure_passes_over_what_is_stuck)
{
    struct refusing refusing = {.count = 0};
    struct ckpt_id base = gc_rig_save(g, false)->id;
    struct gc_save *built = gc_rig_save(g, true);
    struct ckpt_id alone = gc_rig_save(g, false)->id;
    gc_rig_save(g, false);
    start_pressed(g, &refusing, NULL);
    struct store_name part = gc_rig_part(g, built, 0);
    rig_flip(&g->rig, &part, 300);
    assert_int_equal(gc_rig_forget(g, base), 0);
    sim_run_for(g->rig.sim, 1000);
    assert_int_equal(gc_rig_forget(g, alone), 0);
    sim_run_for(g->rig.sim, 100000);
    refusing.count = refusing.bytes = 1;
    sim_run_for(g->rig.sim, 20000);
    gc_status(g->gc, &g->status);
    assert_int_equal(g->status.code, CAIRN_E_DAMAGED);
    assert_int_equal(refusing.told_count, 0); /* the first that was forgotten is stuck */
    gc_rig_check_reachable(g);
    refusing.count = 2;
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 1);
    assert_true(ckpt_id_equal(refusing.told[0], alone));
    assert_false(gc_rig_has_object(g, alone, 0));
    rig_flip(&g->rig, &part, 300); /* repaired */
    refusing.count = 3;
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 1);
    gc_rig_pass(g, false);
    refusing.count = 4;
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 2);
    assert_true(gc_rig_is_reclaimed(g, base));
    gc_rig_check_reachable(g);
}

/* Goal: a project's quota that is nearly full is pressure, and a save that it refuses; only what
 * that project has forgotten goes. */
GC_TEST(test_pressure_of_a_quota)
{
    struct refusing refusing = {.count = 0};
    struct quota_table quotas = {.count = 1};
    struct ckpt_id ids[4];
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        ids[i] = gc_rig_save(g, false)->id;
    }
    snprintf(quotas.quotas[0].project, sizeof(quotas.quotas[0].project), "%s", g->rig.name.project);
    quotas.quotas[0].bytes = UINT64_MAX / 2;
    start_pressed(g, &refusing, &quotas);
    assert_int_equal(gc_rig_forget(g, ids[0]), 0);
    assert_int_equal(gc_rig_forget(g, ids[1]), 0);
    gc_status(g->gc, &g->status);
    sim_run_for(g->rig.sim, 100000);
    assert_int_equal(refusing.told_count, 0);
    gc_press(g->gc, "other", UINT64_MAX / 2); /* not of this project */
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 0);
    quotas.quotas[0].bytes = g->status.forgotten_bytes * 2; /* all four, exactly: none is free */
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 1); /* a quarter is more than 10 % */
    assert_true(ckpt_id_equal(refusing.told[0], ids[0]));
    assert_non_null(strstr(refusing.why[0], "less than 10 % of the project's quota"));
    gc_press(g->gc, g->rig.name.project, g->status.forgotten_bytes);
    sim_run_for(g->rig.sim, 20000);
    assert_int_equal(refusing.told_count, 2);
    assert_non_null(strstr(refusing.why[1], "refused because the project's quota was used up"));
    gc_rig_check_reachable(g);
}

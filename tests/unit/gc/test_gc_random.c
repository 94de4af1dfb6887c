/* SPDX-License-Identifier: Apache-2.0
 *
 * What is committed or open is there after every step of any history (I6), and when all is quiet
 * nothing else is. Method: random saves that refer to older ones, openings that are left, attempts
 * that fence, forgets, passes that are killed and stores that fail, against a naive model.
 * CAIRN_SEED=n replays one history, CAIRN_SEEDS=n runs more.
 */
#include "gc_rig.h"

#include "base/check.h"
#include "support/unit_test.h"

#include <stdio.h>

enum { STEPS = 60 };

static void fail_something(struct gc_rig *g)
{
    static const enum store_op ops[] = {STORE_LIST_CKPTS,    STORE_LIST_OBJECTS, STORE_LIST_SMALL,
                                        STORE_DELETE_OBJECT, STORE_DELETE_SMALL, STORE_FETCH,
                                        STORE_STAT};
    struct store_fault_rule rule = {.kind = sim_chance(g->rig.sim, 3) ? FAULT_LOST : FAULT_FAIL,
                                    .op = ops[sim_below(g->rig.sim, ARRAY_LEN(ops))],
                                    .skip = (unsigned)sim_below(g->rig.sim, 6),
                                    .count = 1 + (unsigned)sim_below(g->rig.sim, 4),
                                    .code = CAIRN_E_IO};
    if (rule.op != STORE_DELETE_OBJECT && rule.op != STORE_DELETE_SMALL) {
        rule.kind = FAULT_FAIL;
    }
    assert_int_equal(store_fault_add(g->rig.store, &rule), 0);
}

static void killed_pass(struct gc_rig *g)
{
    assert_true(gc_cycle(g->gc, false));
    sim_run_for(g->rig.sim, sim_below(g->rig.sim, 60));
    gc_rig_stop(g);
    gc_rig_start(g, 1 + sim_below(g->rig.sim, 2));
}

static void one_step(struct gc_rig *g)
{
    struct sim *sim = g->rig.sim;
    switch (sim_below(sim, 9)) {
    case 0:
    case 1:
    case 2:
        gc_rig_save(g, !sim_chance(sim, 4));
        break;
    case 3: {
        struct gc_save *save = gc_rig_leave_open(g, (uint32_t)sim_below(sim, 2));
        if (sim_chance(sim, 2)) {
            gc_rig_abort(g, save);
        }
        break;
    }
    case 4:
        if (sim_chance(sim, 3)) {
            gc_rig_attempt(g);
        }
        break;
    case 5:
    case 6:
        if (g->save_count > 0) {
            struct gc_save *save = &g->saves[sim_below(sim, g->save_count)];
            if (save->committed) {
                (void)gc_rig_forget(g, save->id); /* what must stay is refused */
            }
        }
        break;
    case 7:
        killed_pass(g);
        break;
    case 8:
        if (sim_chance(sim, 3)) {
            fail_something(g);
        }
        gc_rig_pass(g, !sim_chance(sim, 4));
        store_fault_clear(g->rig.store);
        sim_run_for(sim, 2500); /* a look at the store that failed is repeated after two seconds */
        break;
    }
}

static void run_seed(uint64_t seed)
{
    struct gc_rig *g = calloc(1, sizeof(*g));
    assert_non_null(g);
    gc_rig_init(g, seed);
    gc_rig_start(g, 1);
    for (unsigned i = 0; i < STEPS; i++) {
        one_step(g);
        gc_rig_check_reachable(g);
    }
    for (size_t i = 0; i < g->save_count; i++) {
        if (!g->saves[i].committed) {
            gc_rig_abort(g, &g->saves[i]);
        }
    }
    for (unsigned i = 0; i < 4; i++) {
        gc_rig_pass(g, true);
    }
    gc_rig_check_reachable(g);
    assert_int_equal(gc_rig_count_garbage(g), 0);
    assert_int_equal(g->status.errors, 0);
    gc_rig_fini(g);
    free(g);
}

TEST(test_random_histories)
{
    const char *one = getenv("CAIRN_SEED"), *many = getenv("CAIRN_SEEDS");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1;
    uint64_t count = one ? 1 : many ? strtoull(many, NULL, 10) : 40;
    for (uint64_t seed = first; seed < first + count; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        run_seed(seed);
    }
}

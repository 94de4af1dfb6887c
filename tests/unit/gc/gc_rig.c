/* SPDX-License-Identifier: Apache-2.0
 *
 * See gc_rig.h.
 */
#include "gc_rig.h"

#include "base/check.h"
#include "support/unit_test.h"

#include <stdio.h>

void gc_rig_init(struct gc_rig *g, uint64_t seed)
{
    g->rig.seed = seed;
    rig_init(&g->rig);
    g->rig.with_objects = true;
    g->next_step = 1;
    rig_start(&g->rig);
}

void gc_rig_setup(struct gc_rig *g) { gc_rig_init(g, 1); }

void gc_rig_fini(struct gc_rig *g)
{
    if (g->gc) {
        gc_rig_stop(g);
    }
    rig_fini(&g->rig);
}

struct gc_options gc_rig_options(struct gc_rig *g, uint64_t keep_cycles)
{
    return (struct gc_options){.loop = sim_loop(g->rig.host),
                               .catalog = g->rig.catalog,
                               .thread = sim_waiting_pool(g->rig.host),
                               .keep_cycles = keep_cycles,
                               .actor = "test"};
}

void gc_rig_start(struct gc_rig *g, uint64_t keep_cycles)
{
    struct gc_options options = gc_rig_options(g, keep_cycles);
    assert_int_equal(gc_new(&options, &g->gc), 0);
}

void gc_rig_stop(struct gc_rig *g)
{
    bool closed = false;
    gc_close(g->gc, sim_raise, &closed);
    g->gc = NULL;
    rig_until(&g->rig, &closed);
}

static bool has_ended(void *user)
{
    struct gc_rig *g = user;
    gc_status(g->gc, &g->status);
    return !g->status.running;
}

void gc_rig_wait(struct gc_rig *g)
{
    assert_true(sim_run_until(g->rig.sim, has_ended, g, 3600 * 1000));
}

void gc_rig_pass(struct gc_rig *g, bool cycle)
{
    assert_true(cycle ? gc_cycle(g->gc, false) : gc_now(g->gc, false));
    gc_rig_wait(g);
}

/* --- saves ------------------------------------------------------------------------------------ */

struct summary {
    struct ckpt_id id;
    uint64_t newest_term;
    size_t dead_count;
    bool reclaimed, open;
};

static void take_state(void *user, const struct run_state *state)
{
    struct summary *summary = user;
    summary->newest_term = state->newest_term;
    summary->dead_count = state->dead_count;
    summary->open = state_open_find(state, summary->id) != NULL;
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        summary->reclaimed = summary->reclaimed ||
                             (commit->reclaimed && ckpt_id_equal(commit->entry.id, summary->id));
    }
}

static struct summary summary_of(struct gc_rig *g, struct ckpt_id id)
{
    struct summary summary = {.id = id};
    rig_state(&g->rig, take_state, &summary);
    return summary;
}

bool gc_rig_is_reclaimed(struct gc_rig *g, struct ckpt_id id)
{
    return summary_of(g, id).reclaimed;
}
size_t gc_rig_dead_count(struct gc_rig *g)
{
    return summary_of(g, (struct ckpt_id){0, 0}).dead_count;
}
bool gc_rig_is_open(struct gc_rig *g, struct ckpt_id id) { return summary_of(g, id).open; }

void gc_rig_attempt(struct gc_rig *g)
{
    uint64_t random = sim_random(g->rig.sim);
    memcpy(g->rig.token.bytes, &random, sizeof(random));
}

static struct gc_save *open_save(struct gc_rig *g)
{
    CHECK(g->save_count < GC_SAVES_MAX);
    struct gc_save *save = &g->saves[g->save_count++];
    uint64_t step = g->next_step++;
    struct verdict verdict;
    struct event event = rig_open_event(&g->rig, step, 2, 7000 + step);
    event.u.open.newest_seen = summary_of(g, (struct ckpt_id){1, 1}).newest_term;
    event.u.open.entry.deadline_ms = 600 * 1000;
    assert_int_equal(rig_event(&g->rig, g->rig.run, &event, &verdict), 0);
    *save = (struct gc_save){.id = verdict.id,
                             .holder = verdict.id,
                             .base = verdict_save(&verdict)->base,
                             .open_id = 7000 + step};
    return save;
}

static struct gc_save *find_save(struct gc_rig *g, struct ckpt_id id)
{
    for (size_t i = 0; i < g->save_count; i++) {
        if (ckpt_id_equal(g->saves[i].id, id)) {
            return &g->saves[i];
        }
    }
    return NULL;
}

struct store_name gc_rig_part(const struct gc_rig *g, const struct gc_save *save, uint32_t rank)
{
    return (struct store_name){.run = g->rig.name,
                               .id = save->id,
                               .kind = STORE_PART,
                               .number = rank,
                               .tag = save->open_id};
}

static void write_rank(struct gc_rig *g, struct gc_save *save, uint32_t rank)
{
    struct rig_seal seal = {save->id, save->open_id, rank, 2};
    bool own = ckpt_id_equal(save->holder, save->id);
    g->rig.refer = own ? (struct ckpt_id){0, 0} : save->holder;
    assert_int_equal(rig_seal(&g->rig, g->rig.run, &seal, &g->rig.lists[rank]), 0);
    g->rig.refer = (struct ckpt_id){0, 0};
    save->written++;
}

void gc_rig_finish(struct gc_rig *g, struct gc_save *save, bool incremental)
{
    CHECK(save->written == 0);
    if (incremental && save->base.term != 0) {
        save->holder = find_save(g, save->base)->holder;
    }
    write_rank(g, save, 0);
    write_rank(g, save, 1);
    assert_int_equal(rig_outcome(&g->rig, save->id, save->open_id).state, SAVE_COMMITTED);
    save->committed = true;
}

struct gc_save *gc_rig_save(struct gc_rig *g, bool incremental)
{
    struct gc_save *save = open_save(g);
    gc_rig_finish(g, save, incremental);
    return save;
}

struct gc_save *gc_rig_leave_open(struct gc_rig *g, uint32_t written)
{
    struct gc_save *save = open_save(g);
    for (uint32_t rank = 0; rank < written; rank++) {
        write_rank(g, save, rank);
    }
    return save;
}

void gc_rig_abort(struct gc_rig *g, struct gc_save *save)
{
    struct event event = {
        .kind = EVENT_ABORT,
        .id = save->id,
        .u.abort = {.open_id = save->open_id, .code = CAIRN_E_ABORTED, .reason = "by the test"}};
    rig_event(&g->rig, g->rig.run, &event, NULL);
}

int gc_rig_forget(struct gc_rig *g, struct ckpt_id id)
{
    struct event event = {
        .kind = EVENT_FORGET,
        .u.mark = {.id_count = 1, .ids = &id, .reason = "test", .forget = {.keep_least = 1}}};
    struct verdict verdict;
    int status = rig_event(&g->rig, g->rig.run, &event, &verdict);
    return status != 0 ? status : verdict_marks(&verdict)->refused_count > 0 ? CAIRN_E_DENIED : 0;
}

/* --- the model -------------------------------------------------------------------------------- */

bool gc_rig_has_object(struct gc_rig *g, struct ckpt_id id, uint32_t rank)
{
    struct store_req req = {.op = STORE_STAT, .run = g->rig.name, .object = rig_object(id, rank)};
    rig_store(&g->rig, &req);
    assert_true(req.status == 0 || req.status == CAIRN_E_NOT_FOUND);
    return req.status == 0;
}

static bool has_small(struct gc_rig *g, const struct gc_save *save, enum store_kind kind,
                      uint32_t number)
{
    struct store_req req = {.op = STORE_FETCH,
                            .name = {.run = g->rig.name,
                                     .id = save->id,
                                     .kind = kind,
                                     .number = number,
                                     .tag = save->open_id}};
    rig_store(&g->rig, &req);
    free(req.ret_data);
    return req.status == 0;
}

void gc_rig_check_reachable(struct gc_rig *g)
{
    for (size_t i = 0; i < g->save_count; i++) {
        const struct gc_save *save = &g->saves[i];
        struct summary summary = summary_of(g, save->id);
        if (summary.reclaimed || (!save->committed && !summary.open)) {
            continue;
        }
        for (uint32_t rank = 0; rank < (save->committed ? 2 : save->written); rank++) {
            assert_true(gc_rig_has_object(g, save->holder, rank));
            assert_true(has_small(g, save, STORE_PART, rank));
        }
        if (save->committed) {
            assert_true(has_small(g, save, STORE_MANIFEST, 0));
            assert_true(has_small(g, save, STORE_PAGE, 0));
            assert_true(has_small(g, save, STORE_PAGE, 1));
        }
    }
}

static bool is_needed(struct gc_rig *g, struct ckpt_id holder)
{
    for (size_t i = 0; i < g->save_count; i++) {
        const struct gc_save *save = &g->saves[i];
        if (ckpt_id_equal(save->holder, holder)) {
            struct summary summary = summary_of(g, save->id);
            if (summary.open || (save->committed && !summary.reclaimed)) {
                return true;
            }
        }
    }
    return false;
}

size_t gc_rig_count_garbage(struct gc_rig *g)
{
    struct store_req ckpts = {.op = STORE_LIST_CKPTS, .run = g->rig.name};
    size_t garbage = 0;
    rig_store(&g->rig, &ckpts);
    assert_int_equal(ckpts.status, 0);
    for (size_t i = 0; i < ckpts.ret_count; i++) {
        struct ckpt_id id = ckpts.ret_ckpts[i];
        struct summary summary = summary_of(g, id);
        const struct gc_save *save = find_save(g, id);
        struct store_req list = {.op = STORE_LIST_OBJECTS, .run = g->rig.name, .id = id};
        rig_store(&g->rig, &list);
        garbage += is_needed(g, id) ? 0 : list.ret_count;
        free(list.ret_objects);
        list = (struct store_req){.op = STORE_LIST_SMALL, .run = g->rig.name, .id = id};
        rig_store(&g->rig, &list);
        bool alive = summary.open || (save && save->committed && !summary.reclaimed);
        garbage += alive ? 0 : list.ret_count;
        free(list.ret_smalls);
    }
    free(ckpts.ret_ckpts);
    return garbage;
}

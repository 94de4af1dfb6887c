/* SPDX-License-Identifier: Apache-2.0
 *
 * Pressure: when room is wanted, forgotten checkpoints are reclaimed before their time, the one
 * that was forgotten first before the others, and no more of them than needed. Room is wanted while
 * less than `[gc] pressure` percent of the store, or of a project's quota, are free, and after a
 * save was refused for lack of room. Only checkpoints that are forgotten, and that neither an open
 * save nor a restore uses, are taken; the core decides that (I6). The search runs every few
 * seconds, and only while something is forgotten. On the pass's thread; what is called on the loop
 * is named on_ or take_.
 *
 *   press_find: the store's usage -> whose room? -> the runs, one after another: candidates
 *       -> an order for a pass over these
 */
#include "gc_private.h"

#include "base/array.h"
#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool press_may_want(struct gc *gc)
{
    struct catalog_totals totals;
    catalog_totals(gc->options.catalog, &totals);
    if (totals.forgotten.count == 0 || gc->options.pressure == 0) {
        gc->press.wanted_project[0] = '\0';
        return false;
    }
    return true;
}

/* --- whose room is wanted, and how much ------------------------------------------------------- */

static void want(struct gc *gc, const char *project, uint64_t need, const char *reason)
{
    CHECK(need > 0);
    struct press *press = &gc->press;
    press->need = need;
    snprintf(press->project, sizeof(press->project), "%s", project);
    snprintf(press->reason, sizeof(press->reason), "pressure: %s", reason);
}

static uint64_t percent_of(uint64_t bytes, uint64_t percent) { return bytes / 100 * percent; }

/* Returns true if the store lacks room. A refusal counts once; when it comes again, more is
 * reclaimed. */
static bool store_wants(struct gc *gc, const struct store_req *usage)
{
    char reason[128];
    uint64_t lacked = 0, percent = gc->options.pressure;
    uint64_t refusals = gc->options.refusals ? gc->options.refusals(gc->options.user, &lacked) : 0;
    uint64_t total = usage->status == 0 ? usage->ret_usage.total_bytes : 0;
    uint64_t available = usage->status == 0 ? usage->ret_usage.free_bytes : 0;
    uint64_t wanted = percent_of(total, percent);
    bool is_new = refusals > 0 && refusals != gc->press.refusals;
    gc->press.refusals = refusals;
    if (total > 0 && available < wanted) {
        snprintf(reason, sizeof(reason), "less than %" PRIu64 " %% of the store is free", percent);
        want(gc, "", max_u64(wanted - available, is_new ? lacked : 0), reason);
        return true;
    }
    if (is_new) {
        want(gc, "", max_u64(lacked, 1), "a save was refused because the store was full");
    }
    return is_new;
}

/* Returns true if the project lacks room within its quota and has forgotten checkpoints to reclaim.
 */
static bool project_wants(struct gc *gc, const struct project_totals *totals)
{
    const struct quota *quota = quota_of(gc->options.quotas, totals->project);
    bool is_refused = strcmp(gc->press.wanted_project, totals->project) == 0;
    char reason[128];
    if (!quota || quota->bytes == 0 || totals->forgotten.count == 0) {
        return false;
    }
    uint64_t spare = percent_of(quota->bytes, gc->options.pressure);
    uint64_t lacks = is_refused ? gc->press.wanted_bytes : 0;
    uint64_t most = quota->bytes - min_u64(quota->bytes, max_u64(spare, lacks));
    if (totals->stored_bytes <= most) {
        return false;
    }
    snprintf(reason, sizeof(reason),
             is_refused ? "a save was refused because the project's quota was used up"
                        : "less than %" PRIu64 " %% of the project's quota is free",
             gc->options.pressure);
    want(gc, totals->project, totals->stored_bytes - most, reason);
    return true;
}

/* Returns true if the store or a project lacks room. The amount and the reason are noted. */
static bool anybody_wants(struct gc *gc, const struct store_req *usage)
{
    struct project_totals totals;
    size_t at = 0;
    if (store_wants(gc, usage)) {
        return true;
    }
    while (gc->options.quotas && catalog_next_project(gc->options.catalog, &at, &totals)) {
        if (project_wants(gc, &totals)) {
            return true;
        }
    }
    gc->press.wanted_project[0] = '\0'; /* the project has enough room again */
    return false;
}

/* Keeps the names of the runs that have forgotten checkpoints and whose room is wanted. Without
 * memory there are none, and the next check tries again. */
static void on_usage(void *user)
{
    struct gc *gc = user;
    const char *project = gc->press.project;
    size_t kept = 0;
    CHECK(!gc->names);
    gc->name_count = 0;
    if (!anybody_wants(gc, &gc->press.usage) ||
        catalog_names(gc->options.catalog, &gc->names, &gc->name_count) != 0) {
        return;
    }
    for (size_t i = 0; i < gc->name_count; i++) {
        struct forgotten_total totals = {.count = 0};
        bool is_meant = project[0] == '\0' || strcmp(project, gc->names[i].project) == 0;
        struct run *run = is_meant ? catalog_run(gc->options.catalog, &gc->names[i]) : NULL;
        if (run) {
            run_forgotten(run, &totals);
            catalog_release(run);
        }
        if (totals.count > 0) {
            gc->names[kept++] = gc->names[i];
        }
    }
    gc->name_count = kept;
}

/* --- candidates ------------------------------------------------------------------------------- */

static int compare_picks(const void *a, const void *b)
{
    const struct press_pick *left = a, *right = b;
    if (left->forgotten_wall_ns != right->forgotten_wall_ns) {
        return left->forgotten_wall_ns < right->forgotten_wall_ns ? -1 : 1;
    }
    int order = memcmp(&left->run, &right->run, sizeof(left->run));
    return order != 0 ? order : compare_u64(left->seq, right->seq);
}

/* Returns the names of the runs among the picks, each once, or NULL if there is no memory. */
static struct run_name *runs_of(const struct press_pick *picks, size_t count, size_t *ret_count)
{
    struct run_name *runs = calloc(count + 1, sizeof(*runs));
    *ret_count = 0;
    for (size_t i = 0; runs && i < count; i++) {
        bool known = false;
        for (size_t j = 0; j < *ret_count && !known; j++) {
            known = run_name_equal(&runs[j], &picks[i].run);
        }
        if (!known) {
            runs[(*ret_count)++] = picks[i].run;
        }
    }
    return runs;
}

/* Chooses as many forgotten checkpoints as the lacking bytes need, those forgotten longest ago
 * first. Returns false if there is no memory. */
static bool choose(struct press *press, struct pass_order *ret)
{
    struct pass_order order = {.now = true, .pressed = true};
    uint64_t sum = 0;
    CHECK(press->pick_count > 0);
    qsort(press->picks, press->pick_count, sizeof(*press->picks), compare_picks);
    while (order.pick_count < press->pick_count && sum < press->need) {
        sum += press->picks[order.pick_count++].bytes;
    }
    CHECK(order.pick_count > 0);
    order.runs = runs_of(press->picks, order.pick_count, &order.run_count);
    if (!order.runs) {
        return false;
    }
    order.picks = press->picks; /* the order owns them from here on */
    press->picks = NULL;
    memcpy(order.reason, press->reason, sizeof(order.reason));
    *ret = order;
    return true;
}

/* Appends a checkpoint that may be reclaimed. Returns false if there is no memory. */
static bool add(struct press *press, const struct press_pick *pick)
{
    struct press_pick *grown =
        array_room(press->picks, press->pick_count, &press->pick_cap, sizeof(*grown));
    if (!grown) {
        return false;
    }
    press->picks = grown;
    press->picks[press->pick_count++] = *pick;
    return true;
}

/* Appends all forgotten checkpoints of a run that nothing uses. Returns false if there is
 * no memory. */
static bool add_all(struct gc *gc, const struct run_state *state)
{
    struct scratch scratch;
    struct state_use *uses = NULL;
    scratch_init(&scratch, MIB(16));
    bool good = state_uses(state, &scratch, &uses) == 0;
    for (size_t i = 0; good && i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        const struct known_ckpt *known = known_find(&gc->known, gc->visit.name, commit->entry.id);
        bool is_stuck = known && known->stuck; /* of no use here; the others can be reclaimed */
        bool is_free = commit->forgotten && !commit->reclaimed && !commit->pinned;
        if (is_free && !is_stuck && !uses[i].claimed && !uses[i].leased) {
            struct press_pick pick = {.run = *gc->visit.name,
                                      .id = commit->entry.id,
                                      .forgotten_wall_ns = commit->mark->wall_ns,
                                      .seq = commit->entry.seq,
                                      .bytes = commit->entry.stored_bytes};
            good = add(&gc->press, &pick);
        }
    }
    scratch_fini(&scratch);
    return good;
}

static void take_candidates(void *user, const struct run_state *state)
{
    struct gc *gc = user;
    gc->press.lacks_memory = !add_all(gc, state);
}

/* Takes the candidates of a run. A run whose record cannot be read gives none; scrub and the passes
 * report it. */
static int add_run(struct gc *gc, const struct run_name *name)
{
    if (!gc_take_run(gc, name)) {
        return CAIRN_E_NO_MEMORY;
    }
    int status = ask_state(&gc->ask, gc->visit.run, take_candidates, gc, NULL);
    gc_release_run(gc);
    return gc->press.lacks_memory ? CAIRN_E_NO_MEMORY : status == CAIRN_E_CANCELLED ? status : 0;
}

/* All forgotten checkpoints are in use, so the project waits no more. */
static void on_none(void *user)
{
    struct gc *gc = user;
    gc->press.wanted_project[0] = '\0';
}

static bool find(struct gc *gc, struct pass_order *ret)
{
    struct press *press = &gc->press;
    int status = 0;
    press->lacks_memory = false;
    for (size_t i = 0; status == 0 && i < gc->name_count; i++) {
        status = add_run(gc, &gc->names[i]);
    }
    if (status == 0 && press->pick_count == 0) {
        ask_call(&gc->ask, on_none, gc);
        return false;
    }
    return status == 0 && choose(press, ret);
}

bool press_find(struct gc *gc, struct pass_order *ret)
{
    struct press *press = &gc->press;
    bool is_found = false;
    press->usage = (struct store_req){.op = STORE_USAGE};
    if (gc_store(gc, &press->usage) != CAIRN_E_CANCELLED) {
        ask_call(&gc->ask, on_usage, gc);
        is_found = gc->names && find(gc, ret);
    }
    free(gc->names);
    free(press->picks);
    gc->names = NULL;
    press->picks = NULL;
    press->pick_count = press->pick_cap = 0;
    return is_found;
}

int press_ids(const struct gc *gc, struct ckpt_id **ret, size_t *ret_count)
{
    const struct pass_order *order = &gc->order;
    struct ckpt_id *ids = calloc(order->pick_count + 1, sizeof(*ids));
    size_t count = 0;
    if (!ids) {
        return CAIRN_E_NO_MEMORY;
    }
    for (size_t i = 0; i < order->pick_count; i++) {
        if (run_name_equal(&order->picks[i].run, &gc->now.run)) {
            ids[count++] = order->picks[i].id;
        }
    }
    CHECK(count > 0); /* id_count 0 would mean all */
    *ret = ids;
    *ret_count = count;
    return 0;
}

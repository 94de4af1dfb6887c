/* SPDX-License-Identifier: Apache-2.0
 *
 * The way of a pass through the runs. Events of the core begin a cycle, end stale openings, and
 * reclaim what was forgotten for long enough; then the stored checkpoints are examined, batch by
 * batch. On the pass's thread; what is called on the loop is named on_ or take_.
 */
#include "gc_private.h"

#include "base/array.h"
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

/* --- what is stored --------------------------------------------------------------------------- */

/* Returns true if the checkpoint has to be examined. An open one is not, nor one for which an
 * earlier pass found that nothing is dead. */
static bool is_of_interest(const struct gc *gc, const struct run_state *state, struct ckpt_id id)
{
    const struct known_ckpt *known = known_find(&gc->known, &gc->now.run, id);
    const struct state_commit *commit = commit_any(state, id);
    if (mark_is_open(gc, state, id)) {
        return false;
    }
    if (dues_has(gc, id) || !known || !known->settled || !commit) {
        return true;
    }
    return known->mark != mark_of_commit(commit);
}

static bool is_listed(const struct gc *gc, struct ckpt_id id)
{
    return array_find(&id, gc->visit.ckpts, gc->visit.ckpt_count, sizeof(id), ckpt_id_order) !=
           NULL;
}

/* Takes the dead entries of openings that were fenced before the list was made and of which nothing
 * is on it. The list was a lasting one: a manifest that a power cut brought back without its entry
 * would look like a checkpoint that the record has lost. Without memory the next pass does it. */
static void take_buries(struct gc *gc, const struct run_state *state)
{
    CHECK(!gc->visit.buries); /* leave_run() of the run before has freed it */
    size_t count = state->dead_count + state->past_count;
    gc->visit.buries = !gc->visit.may_bury ? NULL : calloc(count + 1, sizeof(*gc->visit.buries));
    for (size_t i = 0; gc->visit.buries && i < count; i++) {
        bool is_dead = i < state->dead_count;
        struct ckpt_id id = is_dead ? state->deads[i].id : state->pasts[i - state->dead_count].id;
        if (id.term < gc->visit.fenced && !is_listed(gc, id)) {
            CHECK(gc->visit.bury_count < count);
            gc->visit.buries[gc->visit.bury_count++] = id;
        }
    }
}

/* Called with a state that was read after the list. Drops the checkpoints from the list in which
 * there is nothing to do. */
static int take_listed(struct gc *gc, const struct run_state *state)
{
    size_t kept = 0;
    take_buries(gc, state);
    for (size_t i = 0; i < gc->visit.ckpt_count; i++) {
        if (is_of_interest(gc, state, gc->visit.ckpts[i])) {
            gc->visit.ckpts[kept++] = gc->visit.ckpts[i];
        }
    }
    gc->visit.ckpt_count = kept;
    return 0;
}

/* Sends an event about the present run. Returns 0 also if it was refused with one of the codes, of
 * which the last one is 0; other errors are noted. */
static int send(struct gc *gc, const struct event *event, const int *quiet, const char *what)
{
    struct diag diag = DIAG_INIT;
    CHECK(!gc->order.dry_run); /* each of them is written */
    int status = ask_event(&gc->ask, gc->visit.run, event, false, &diag);
    for (; *quiet != 0; quiet++) {
        status = status == *quiet ? 0 : status;
    }
    return status != 0 ? gc_note(gc, status, &diag, what) : 0;
}

static int bury(struct gc *gc)
{
    static const int quiet[] = {CAIRN_E_NO_SPACE, 0}; /* they stay until there is room */
    struct event event = {.kind = EVENT_BURY,
                          .u.mark = {.id_count = gc->visit.bury_count, .ids = gc->visit.buries}};
    return gc->visit.bury_count == 0
               ? 0
               : send(gc, &event, quiet, "removing the entries of aborted saves");
}

/* Lists the stored checkpoints of the run, and removes what is dead of them. */
static int collect_stored(struct gc *gc)
{
    struct store_req req = {
        .op = STORE_LIST_CKPTS, .run = gc->now.run, .lasting = gc->visit.may_bury};
    int status = gc_store(gc, &req);
    if (status != 0) {
        return gc_note(gc, status, &req.diag, "listing the checkpoints");
    }
    gc->visit.ckpts = req.ret_ckpts;
    gc->visit.ckpt_count = req.ret_count;
    gc->visit.ckpt_next = 0;
    status = gc_state(gc, take_listed);
    if (status == 0) {
        status = bury(gc);
    }
    return status != 0 ? status : batch_remove(gc);
}

/* --- a run: a cycle, stale openings, dues, then what is stored -------------------------------- */

/* Ends stale openings by guarded updates before any of their things are examined: while its entry
 * exists, everything of an opening stays. */
static int end_stale(struct gc *gc)
{
    static const int quiet[] = {CAIRN_E_ABORTED, CAIRN_E_FENCED, CAIRN_E_NOT_FOUND, 0};
    int status = 0;
    for (size_t i = 0; status == 0 && i < gc->visit.stale_count; i++) {
        struct event event = {.kind = EVENT_ABORT,
                              .id = gc->visit.stales[i].id,
                              .u.abort = {.open_id = gc->visit.stales[i].open_id,
                                          .code = CAIRN_E_FENCED,
                                          .reason = "a newer term of this run exists"}};
        status = send(gc, &event, quiet, "ending a save that was abandoned");
    }
    return status;
}

static int begin_cycle(struct gc *gc)
{
    static const int quiet[] = {0};
    struct event event = {
        .kind = EVENT_GC_CYCLE,
        .u.gc_cycle = {.cycle = gc->visit.cycle, .lease_cycles = gc->order.lease_cycles}};
    /* An error, such as of a full disk, ends nothing: dead things are removed all the same. */
    return send(gc, &event, quiet, "beginning a new cycle");
}

static int take_first(struct gc *gc, const struct run_state *state)
{
    struct visit *visit = &gc->visit;
    struct diag diag = DIAG_INIT;
    int status = state_unrecorded_check(state, &diag);
    visit->marked = status != 0;
    if (status != 0) {
        err_ignore(gc_note(gc, status, &diag, "nothing of the run is removed")); /* it goes on */
    }
    if (!state->exists) {
        return CAIRN_E_ENDED;
    }
    visit->fenced = state->newest_term;
    visit->may_bury = !gc->order.dry_run && state->dead_count + state->past_count > 0;
    visit->cycle = state->gc.cycle;
    for (size_t i = 0; i < state->open_count && visit->stale_count < GC_STALE_MAX; i++) {
        const struct state_open *open = &state->opens[i];
        if (open->id.term < state->newest_term) {
            visit->stales[visit->stale_count++] =
                (struct stale){.id = open->id, .open_id = open->entry.open_id};
        }
    }
    return 0;
}

static int collect_run(struct gc *gc)
{
    int status = gc_state(gc, take_first);
    if (status == 0 && !gc->order.dry_run) {
        status = gc->order.cycle ? begin_cycle(gc) : 0;
        status = status != 0 ? status : end_stale(gc);
    }
    if (status != 0 || gc->visit.marked) { /* an unknown checkpoint may refer to objects of any */
        return status;
    }
    status = dues_reclaim(gc);
    return status != 0 ? status : collect_stored(gc);
}

/* --- from run to run -------------------------------------------------------------------------- */

/* Keeps only the names of the runs that the order asks for. */
static void choose_runs(struct gc *gc)
{
    const struct pass_order *order = &gc->order;
    size_t kept = 0;
    for (size_t i = 0; order->runs && i < gc->name_count; i++) {
        bool wanted = false;
        for (size_t j = 0; j < order->run_count && !wanted; j++) {
            wanted = run_name_equal(&order->runs[j], &gc->names[i]);
        }
        if (wanted) {
            gc->names[kept++] = gc->names[i];
        }
    }
    CHECK(kept <= gc->name_count);
    gc->name_count = order->runs ? kept : gc->name_count;
}

static void on_names(void *user)
{
    struct gc *gc = user;
    CHECK(!gc->names);
    gc->name_count = 0;
    if (catalog_names(gc->options.catalog, &gc->names, &gc->name_count) == 0) {
        choose_runs(gc);
    }
}

static void on_refresh(void *user) { run_refresh(((struct gc *)user)->visit.run); }

/* Frees what the pass has of the present run, and releases the run. */
static void leave_run(struct gc *gc)
{
    batch_clear(gc);
    mark_clear(gc);
    dues_clear(gc);
    free(gc->visit.ckpts);
    free(gc->visit.buries);
    gc_release_run(gc);
}

static int next_run(struct gc *gc, const struct run_name *name)
{
    gc->now.run = *name;
    gc->now.runs++;
    if (!gc_take_run(gc, name)) {
        return CAIRN_E_NO_MEMORY;
    }
    ask_call(&gc->ask, on_refresh, gc);
    int status = collect_run(gc);
    leave_run(gc);
    return status == CAIRN_E_ENDED ? 0 : status;
}

void visit_runs(struct gc *gc)
{
    int status = 0;
    ask_call(&gc->ask, on_names, gc);
    status = gc->names ? 0 : CAIRN_E_NO_MEMORY;
    for (size_t i = 0; status == 0 && i < gc->name_count; i++) {
        status = next_run(gc, &gc->names[i]);
    }
    free(gc->names);
    gc->names = NULL;
    if (status != 0 && status != CAIRN_E_CANCELLED) { /* no memory, or the store is read-only */
        if (gc->now.code == 0) {
            gc->now.code = CAIRN_E_NO_MEMORY;
            snprintf(gc->now.text, sizeof(gc->now.text), "no memory for a pass");
        }
        gc->now.errors++;
        gc->now.errors_total++;
    }
}

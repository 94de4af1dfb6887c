/* SPDX-License-Identifier: Apache-2.0
 *
 * The schedule, and the way of a pass through the runs. Events of the core begin a cycle, end stale
 * openings, and reclaim what was forgotten for long enough; then the stored checkpoints are
 * examined, batch by batch.
 */
#include "gc_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NS_IN_MS = 1000000 };
static const uint64_t MS_MAX = INT64_MAX / NS_IN_MS / 4; /* longest wait that is reported */

static void look(struct gc *gc);
static void next_run(struct gc *gc);
static void end_stale(struct gc *gc);

static void on_timer(struct timer *timer)
{
    struct gc *gc = container_of(timer, struct gc, timer);
    CHECK(!gc->busy);
    gc->step(gc);
}

static void free_order(struct pass_order *order)
{
    free(order->runs);
    free(order->picks);
    order->runs = NULL;
    order->picks = NULL;
}

/* Called by the loop after gc_close(), when nothing is under way: frees everything and tells the
 * caller. */
static void on_post(struct post *post)
{
    struct gc *gc = container_of(post, struct gc, post);
    void (*closed)(void *user) = gc->closed;
    void *user = gc->closed_user;
    CHECK(!gc->busy);
    CHECK(gc->doing == GC_WAITS);
    CHECK(gc->visit.run == NULL);
    known_fini(&gc->known);
    free_order(&gc->order);
    free_order(&gc->asked);
    press_clear(gc);
    free(gc->mark.tables);
    free(gc->mark.ids);
    free(gc);
    closed(user);
}

/* Sets the time of the next pass. The wall time is for people, and stays the same until then. */
static void set_due(struct gc *gc)
{
    gc->due_ms = loop_now_ms(gc->options.loop) + gc->options.every_ms;
    gc->due_wall_ns =
        loop_wall_ns(gc->options.loop) + (int64_t)min_u64(gc->options.every_ms, MS_MAX) * NS_IN_MS;
}

/* --- steps ------------------------------------------------------------------------------------ */

bool gc_is_ours(const struct gc *gc, const char **ret_holder)
{
    *ret_holder = gc->options.holder ? gc->options.holder(gc->options.user) : "";
    return gc_may_run(gc);
}

/* Frees what the pass has of the present run, and releases the run. */
static void leave_run(struct gc *gc)
{
    batch_clear(gc);
    mark_clear(gc);
    run_snapshot_cancel(&gc->snapshot);
    run_cancel(&gc->event);
    free(gc->visit.ckpts);
    free(gc->visit.buries);
    gc->visit.ckpts = gc->visit.buries = NULL;
    gc->visit.ckpt_count = gc->visit.ckpt_next = gc->visit.bury_count = 0;
    dues_clear(gc);
    if (gc->visit.run) {
        struct run *run = gc->visit.run;
        gc->visit.run = NULL;
        catalog_release(run);
    }
}

/* Ends a pass, complete or not; the next one finds what is left. */
static void end_pass(struct gc *gc)
{
    bool was_running = gc->doing == GC_RUNS;
    CHECK(!gc->busy);
    leave_run(gc);
    free(gc->names);
    gc->names = NULL;
    gc->name_count = 0;
    bool again = gc->is_asked && gc_may_run(gc); /* an order that came in between */
    gc->doing = GC_WAITS;
    free_order(&gc->order);
    gc->order = (struct pass_order){.dry_run = false};
    gc->status.run = (struct run_name){{0}, {0}};
    gc->status.ended_wall_ns =
        was_running ? loop_wall_ns(gc->options.loop) : gc->status.ended_wall_ns;
    if (gc->closed) {
        timer_stop(&gc->timer);
        loop_post(gc->options.loop, &gc->post);
        return;
    }
    gc_later(gc, again ? 0 : GC_LOOK_MS, look);
    if (was_running && gc->options.ended) {
        gc->options.ended(gc->options.user);
    }
}

void gc_close(struct gc *gc, void (*done)(void *user), void *user)
{
    CHECK(!gc->closed);
    CHECK(done);
    gc->closed = done;
    gc->closed_user = user;
    if (!gc->busy) {
        end_pass(gc);
    }
}

/* --- the schedule ----------------------------------------------------------------------------- */

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

/* Resets the figures of the pass and chooses its runs. */
static void begin_pass(struct gc *gc)
{
    struct gc_status *status = &gc->status;
    CHECK(gc->doing == GC_RUNS);
    CHECK(gc->visit.run == NULL);
    status->pass++;
    status->dry_run = gc->order.dry_run;
    status->now = gc->order.now;
    status->pressed = gc->order.pressed;
    status->held = 0;
    status->begun_wall_ns = loop_wall_ns(gc->options.loop);
    status->runs = status->ckpts = status->reclaimed = status->objects = status->smalls = 0;
    status->bytes = status->bytes_read = status->kept = status->errors = 0;
    status->code = 0;
    status->text[0] = '\0';
    gc->name_next = 0;
    if (!gc->order.pressed) {
        known_unstick(&gc->known);
    }
    free(gc->names);
    gc->names = NULL;
    if (catalog_names(gc->options.catalog, &gc->names, &gc->name_count) != 0) {
        gc_stop_pass(gc);
        return;
    }
    choose_runs(gc);
    next_run(gc);
}

/* Called when the search under pressure is over. */
static void on_press_chosen(struct gc *gc, const struct pass_order *order)
{
    CHECK(gc->doing == GC_LOOKS);
    if (!order) {
        end_pass(gc);
        return;
    }
    gc->order = *order;
    gc->doing = GC_RUNS;
    gc->status.pressed_wall_ns = loop_wall_ns(gc->options.loop);
    begin_pass(gc);
}

/* Called by the timer. Decides whether a pass begins now: because one was asked for, is due, or is
 * the first, or because the store lacks room. */
static void look(struct gc *gc)
{
    uint64_t now = loop_now_ms(gc->options.loop);
    bool due = gc->options.every_ms > 0 && now >= gc->due_ms;
    gc->status.waiting = !gc_may_run(gc);
    if (gc->closed || gc->status.waiting) {
        end_pass(gc);
        return;
    }
    if (!due && !gc->is_asked && !gc->first) {
        gc->doing = GC_LOOKS;
        if (!press_look(gc, on_press_chosen)) {
            end_pass(gc);
        }
        return;
    }
    gc->order = gc->is_asked ? gc->asked : (struct pass_order){.dry_run = false};
    gc->asked = (struct pass_order){.dry_run = false}; /* the order owns its arrays now */
    gc->is_asked = gc->first = false;
    if (due && !gc->order.now) { /* otherwise the next look does it: a cycle is for all runs */
        set_due(gc);
        gc->order.dry_run = false;
        gc->order.cycle = true;
    }
    gc->doing = GC_RUNS;
    begin_pass(gc);
}

/* Looks now, unless gc is looking or working; in that case the end of that looks again. */
static void look_soon(struct gc *gc)
{
    if (gc->doing == GC_WAITS && !gc->closed) {
        gc_later(gc, 0, look);
    }
}

void gc_press(struct gc *gc, const char *project, uint64_t bytes)
{
    if (project) {
        snprintf(gc->press.wanted_project, sizeof(gc->press.wanted_project), "%s", project);
        gc->press.wanted_bytes = bytes;
    }
    look_soon(gc);
}

static bool ask(struct gc *gc, bool dry_run, bool cycle)
{
    if (gc->doing == GC_RUNS || gc->closed || gc->is_asked) {
        return false;
    }
    gc->is_asked = true;
    gc->asked = (struct pass_order){.dry_run = dry_run, .cycle = cycle};
    look_soon(gc);
    return true;
}

bool gc_now(struct gc *gc, bool dry_run) { return ask(gc, dry_run, false); }
bool gc_cycle(struct gc *gc, bool dry_run) { return ask(gc, dry_run, true); }

int gc_reclaim_now(struct gc *gc, const struct gc_order *order)
{
    CHECK(order->actor != NULL);
    CHECK(order->runs != NULL || order->run_count == 0);
    struct run_name *runs = NULL;
    if (gc->closed || gc->is_asked) {
        return CAIRN_E_BUSY;
    }
    if (order->run_count > 0) {
        runs = malloc(order->run_count * sizeof(*runs));
        if (!runs) {
            return CAIRN_E_NO_MEMORY;
        }
        memcpy(runs, order->runs, order->run_count * sizeof(*runs));
    }
    gc->asked = (struct pass_order){
        .dry_run = order->dry_run, .now = true, .runs = runs, .run_count = order->run_count};
    snprintf(gc->asked.actor, sizeof(gc->asked.actor), "%s", order->actor);
    gc->is_asked = true;
    look_soon(gc);
    return 0;
}

/* Returns the wall time at which enough cycles will have passed. The next cycle begins when the
 * next pass is due, and the others follow one after another. */
static int64_t wall_of_cycle(const struct gc *gc, uint64_t passed)
{
    uint64_t keep = gc->options.keep_cycles, left = keep > passed ? keep - passed : 1, ms;
    bool is_sane = mul_u64(left - 1, gc->options.every_ms, &ms) && ms < MS_MAX;
    return is_sane ? gc->due_wall_ns + (int64_t)ms * NS_IN_MS : 0;
}

void gc_waits(const struct gc *gc, const struct forgotten_total *forgotten, int64_t *ret_first,
              int64_t *ret_last)
{
    bool by_itself = gc->options.every_ms > 0 && gc_may_run(gc) && forgotten->count > 0;
    *ret_first = by_itself ? wall_of_cycle(gc, forgotten->cycles_max) : 0;
    *ret_last = by_itself ? wall_of_cycle(gc, forgotten->cycles_min) : 0;
}

void gc_set_schedule(struct gc *gc, uint64_t every_ms, uint64_t keep_cycles, uint64_t lease_cycles)
{
    bool was_resting = gc->options.every_ms == 0;
    CHECK(keep_cycles > 0);
    gc->options.every_ms = gc->status.every_ms = every_ms;
    gc->options.keep_cycles = gc->status.keep_cycles = keep_cycles;
    gc->options.lease_cycles = lease_cycles;
    if (was_resting || gc->due_ms > loop_now_ms(gc->options.loop) + every_ms) {
        set_due(gc);
    }
    if (gc->doing == GC_WAITS && !gc->busy && !gc->closed && !gc->is_asked) {
        gc_later(gc, min_u64(every_ms, GC_LOOK_MS),
                 look); /* it may be waiting by the old schedule */
    }
}

void gc_set_pressure(struct gc *gc, uint64_t pressure)
{
    gc->options.pressure = gc->status.pressure = pressure;
}

void gc_status(const struct gc *gc, struct gc_status *ret)
{
    struct catalog_totals totals;
    *ret = gc->status;
    ret->running = gc->doing == GC_RUNS || gc->is_asked;
    catalog_totals(gc->options.catalog, &totals);
    ret->forgotten = totals.forgotten.count;
    ret->forgotten_bytes = totals.forgotten.bytes;
    gc_waits(gc, &totals.forgotten, &ret->first_wall_ns, &ret->last_wall_ns);
}

/* --- what is stored --------------------------------------------------------------------------- */

/* Returns true if the checkpoint has to be examined. An open one is not, nor one for which an
 * earlier pass found that nothing is dead. */
static bool is_of_interest(const struct gc *gc, const struct run_state *state, struct ckpt_id id)
{
    const struct known_ckpt *known = known_find(&gc->known, &gc->status.run, id);
    const struct state_commit *commit = mark_commit(state, id);
    if (mark_is_open(gc, state, id)) {
        return false;
    }
    if (dues_has(gc, id) || !known || !known->settled || !commit) {
        return true;
    }
    return known->mark != mark_of_commit(commit);
}

static int compare_ids(const void *a, const void *b)
{
    const struct ckpt_id *left = a, *right = b;
    return ckpt_id_compare(*left, *right);
}

static bool is_listed(const struct gc *gc, struct ckpt_id id)
{
    return gc->visit.ckpt_count > 0 && bsearch(&id, gc->visit.ckpts, gc->visit.ckpt_count,
                                               sizeof(*gc->visit.ckpts), compare_ids) != NULL;
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

static void on_buried(struct run_req *req)
{
    struct gc *gc = container_of(req, struct gc, event);
    if (req->status != 0 && req->status != CAIRN_E_NO_SPACE) { /* they stay until there is room */
        gc_note(gc, req->status, &req->diag, "removing the entries of aborted saves");
    }
    batch_begin(gc);
}

/* Called with a state that was read after the list. Drops the checkpoints from the list in which
 * there is nothing to do. */
static void on_listed_state(struct run_snapshot_req *req)
{
    struct gc *gc = container_of(req, struct gc, snapshot);
    size_t kept = 0;
    gc->snapshot.run = NULL; /* it was answered */
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "the run's record");
        gc_next_run(gc);
        return;
    }
    take_buries(gc, req->state);
    for (size_t i = 0; i < gc->visit.ckpt_count; i++) {
        if (is_of_interest(gc, req->state, gc->visit.ckpts[i])) {
            gc->visit.ckpts[kept++] = gc->visit.ckpts[i];
        }
    }
    gc->visit.ckpt_count = kept;
    if (gc->visit.bury_count == 0) {
        batch_begin(gc);
        return;
    }
    struct event event = {.kind = EVENT_BURY,
                          .u.mark = {.id_count = gc->visit.bury_count, .ids = gc->visit.buries}};
    gc_submit_event(gc, &event, on_buried);
}

/* Called when the stored checkpoints of the run were listed. */
static void on_ckpts(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    CHECK(gc->visit.run != NULL);
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "listing the checkpoints");
        gc_next_run(gc);
        return;
    }
    free(gc->visit.ckpts);
    gc->visit.ckpts = req->ret_ckpts;
    gc->visit.ckpt_count = req->ret_count;
    gc->visit.ckpt_next = 0;
    if (gc_must_stop(gc)) {
        return;
    }
    gc_snapshot(gc, on_listed_state);
}

static void list_ckpts(struct gc *gc)
{
    if (gc_must_stop(gc)) {
        return;
    }
    gc->req = (struct store_req){
        .op = STORE_LIST_CKPTS, .run = gc->status.run, .lasting = gc->visit.may_bury};
    gc_submit(gc, on_ckpts);
}

/* --- a run: a cycle, stale openings, dues, then what is stored ----------------------------------
 */

static void reclaim(struct gc *gc)
{
    if (gc->visit.marked) { /* an unknown checkpoint may refer to objects of any other */
        gc_next_run(gc);
        return;
    }
    dues_begin(gc, list_ckpts);
}

static void on_stale_ended(struct run_req *req)
{
    struct gc *gc = container_of(req, struct gc, event);
    if (req->status != 0 && req->status != CAIRN_E_ABORTED && req->status != CAIRN_E_FENCED &&
        req->status != CAIRN_E_NOT_FOUND) {
        gc_note(gc, req->status, &req->diag, "ending a save that was abandoned");
    }
    gc->visit.stale_next++;
    gc_rest(gc, end_stale);
}

/* Ends a stale opening by a guarded update before any of its things are examined: while its entry
 * exists, everything of it stays. */
static void end_stale(struct gc *gc)
{
    if (gc_must_stop(gc)) {
        return;
    }
    if (gc->visit.stale_next == gc->visit.stale_count) {
        reclaim(gc);
        return;
    }
    CHECK(gc->visit.stale_next < gc->visit.stale_count);
    const struct stale *stale = &gc->visit.stales[gc->visit.stale_next];
    struct event event = {.kind = EVENT_ABORT,
                          .id = stale->id,
                          .u.abort = {.open_id = stale->open_id,
                                      .code = CAIRN_E_FENCED,
                                      .reason = "a newer term of this run exists"}};
    gc_submit_event(gc, &event, on_stale_ended);
}

static void on_cycle(struct run_req *req)
{
    struct gc *gc = container_of(req, struct gc, event);
    if (req->status != 0) {
        /* Such as a full disk: dead things are removed all the same. */
        gc_note(gc, req->status, &req->diag, "beginning a new cycle");
    }
    gc_rest(gc, end_stale);
}

static void begin_cycle(struct gc *gc)
{
    struct event event = {
        .kind = EVENT_GC_CYCLE,
        .u.gc_cycle = {.cycle = gc->visit.cycle, .lease_cycles = gc->options.lease_cycles}};
    CHECK(gc->order.cycle);
    if (!gc_must_stop(gc)) {
        gc_submit_event(gc, &event, on_cycle);
    }
}

static void on_first_state(struct run_snapshot_req *req)
{
    struct gc *gc = container_of(req, struct gc, snapshot);
    CHECK(gc->doing == GC_RUNS);
    gc->snapshot.run = NULL; /* it was answered */
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "the run's record");
        gc_next_run(gc);
        return;
    }
    struct diag diag = DIAG_INIT;
    int status = state_unrecorded_check(req->state, &diag);
    if (status != 0) {
        gc_note(gc, status, &diag, "nothing of the run is removed");
    }
    gc->visit.marked = status != 0;
    if (!req->state->exists) {
        gc_next_run(gc);
        return;
    }
    gc->visit.fenced = req->state->newest_term;
    gc->visit.may_bury = !gc->status.dry_run && req->state->dead_count + req->state->past_count > 0;
    gc->visit.cycle = req->state->gc.cycle;
    gc->visit.stale_count = gc->visit.stale_next = 0;
    for (size_t i = 0; i < req->state->open_count && gc->visit.stale_count < GC_STALE_MAX; i++) {
        const struct state_open *open = &req->state->opens[i];
        if (open->id.term < req->state->newest_term) {
            gc->visit.stales[gc->visit.stale_count++] =
                (struct stale){.id = open->id, .open_id = open->entry.open_id};
        }
    }
    gc_rest(gc, gc->status.dry_run ? reclaim : gc->order.cycle ? begin_cycle : end_stale);
}

/* Begins with the next run of the pass. The pass ends after the last one. */
static void next_run(struct gc *gc)
{
    leave_run(gc);
    if (gc_must_stop(gc)) {
        return;
    }
    CHECK(gc->name_next <= gc->name_count);
    if (gc->name_next == gc->name_count) {
        end_pass(gc);
        return;
    }
    gc->status.run = gc->names[gc->name_next++];
    gc->status.runs++;
    gc->visit.run = catalog_run(gc->options.catalog, &gc->status.run);
    if (!gc->visit.run) {
        gc_stop_pass(gc);
        return;
    }
    run_refresh(gc->visit.run);
    gc_snapshot(gc, on_first_state);
}

/* --- the start ----------------------------------------------------------------------------------
 */

int gc_new(const struct gc_options *options, struct gc **ret)
{
    struct gc *gc = calloc(1, sizeof(*gc));
    CHECK(options->keep_cycles > 0);
    CHECK(options->loop != NULL);
    CHECK(options->catalog != NULL);
    if (!gc) {
        return CAIRN_E_NO_MEMORY;
    }
    gc->options = *options;
    gc->post.cb = on_post;
    gc->end_pass = end_pass;
    gc->next_run = next_run;
    gc->status.every_ms = options->every_ms;
    gc->status.keep_cycles = options->keep_cycles;
    gc->status.pressure = options->pressure;
    timer_init(&gc->timer, options->loop, on_timer);
    set_due(gc);
    *ret = gc;
    gc->first = options->every_ms > 0; /* removes soon what a crash left; begins no cycle */
    gc_later(gc, min_u64(GC_FIRST_MS, options->every_ms > 0 ? options->every_ms : GC_FIRST_MS),
             look);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Dues: the forgotten checkpoints that a pass reclaims. A reclaim entry is permanent, so the pass
 * first makes sure that their space can be freed: it lists the objects of each due, and reads the
 * object tables of all kept checkpoints that may refer to one. A due whose space could not be freed
 * stays forgotten, and can be undeleted. One loop's thread.
 *
 *   dues_begin: the core decides, nothing is written -> the objects of each due -> the record
 *       -> marking.c: the tables -> on_checked -> the reclaim event -> `then`
 */
#include "gc_private.h"

#include "base/check.h"

#include <stdlib.h>

static void list_next(struct gc *gc);
static void on_objects(struct store_req *req);
static void on_state(struct run_snapshot_req *req);
static void on_checked(struct gc *gc);
static void on_reclaimed(struct run_req *req);

void dues_clear(struct gc *gc)
{
    free(gc->dues.items);
    free(gc->dues.ids);
    gc->dues.items = NULL;
    gc->dues.ids = NULL;
    gc->dues.count = gc->dues.at = gc->dues.id_count = 0;
}

static int compare_dues(const void *a, const void *b)
{
    const struct due *left = a, *right = b;
    return ckpt_id_compare(left->id, right->id);
}

static struct due *find_due(const struct gc *gc, struct ckpt_id id)
{
    struct due key = {.id = id};
    return gc->dues.count == 0 ? NULL
                               : bsearch(&key, gc->dues.items, gc->dues.count,
                                         sizeof(*gc->dues.items), compare_dues);
}

bool dues_has(const struct gc *gc, struct ckpt_id id) { return find_due(gc, id) != NULL; }

/* --- what has to be reclaimed --------------------------------------------------------------- */

/* Returns the reclaim event of this pass. A reclaim that was asked for, or that makes room, does
 * not wait, and the chain says who asked and why. A dry run begins no cycle; where the real pass
 * would begin one, one cycle less has to have passed. */
static struct event reclaim_event(const struct gc *gc)
{
    const struct pass_order *order = &gc->order;
    CHECK(gc->options.keep_cycles > 0);
    struct event_mark mark = {.cycles = gc->options.keep_cycles - (order->dry_run && order->cycle),
                              .actor = gc->options.actor,
                              .reason = "the checkpoint has been forgotten for long enough",
                              .ids = gc->dues.ids,
                              .id_count = gc->dues.id_count};
    if (order->now) {
        mark.cycles = 0;
        mark.actor = order->pressed ? gc->options.actor : order->actor;
        mark.reason = order->pressed ? order->reason : "a caller asked to reclaim it now";
    }
    return (struct event){.kind = EVENT_RECLAIM, .u.mark = mark};
}

/* Copies the checkpoints that the event has chosen, sorted by id. Returns false if there is no
 * memory. */
static bool take_dues(struct gc *gc, const struct verdict_marks *marks)
{
    struct due *dues = calloc(marks->done_count + 1, sizeof(*dues));
    size_t count = 0;
    CHECK(!gc->dues.items); /* the end of the run before has freed it */
    if (!dues) {
        return false;
    }
    for (size_t i = 0; i < marks->count; i++) {
        if (marks->items[i].outcome == MARK_DONE) {
            dues[count++].id = marks->items[i].id;
        }
    }
    CHECK(count == marks->done_count);
    if (count > 1) {
        qsort(dues, count, sizeof(*dues), compare_dues);
    }
    gc->dues.items = dues;
    gc->dues.count = count;
    return true;
}

/* Called when the run has said which checkpoints are due. */
static void on_decided(struct run_req *req)
{
    struct gc *gc = container_of(req, struct gc, event);
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "reclaiming forgotten checkpoints");
        gc_rest(gc, gc->dues.then);
        return;
    }
    const struct verdict_marks *marks = verdict_marks(&req->verdict);
    if (!take_dues(gc, marks)) {
        gc_stop_pass(gc);
        return;
    }
    gc->status.held += marks->refused_count;
    gc_rest(gc, gc->dues.count > 0 ? list_next : gc->dues.then);
}

void dues_begin(struct gc *gc, void (*then)(struct gc *gc))
{
    dues_clear(gc);
    CHECK(then != NULL);
    CHECK(gc->visit.run != NULL);
    CHECK(!gc->visit.marked);
    gc->dues.then = then;
    if (gc->order.pressed && press_ids(gc, &gc->dues.ids, &gc->dues.id_count) != 0) {
        gc_stop_pass(gc);
        return;
    }
    gc->event = (struct run_req){.event = reclaim_event(gc), .done = on_decided, .dry_run = true};
    run_submit(gc->visit.run, &gc->event);
}

/* --- can they be swept? ----------------------------------------------------------------------- */

/* Lists the objects of the next due checkpoint. After the last one the run's state is asked for. */
static void list_next(struct gc *gc)
{
    if (gc_must_stop(gc)) {
        return;
    }
    if (gc->dues.at == gc->dues.count) {
        gc_snapshot(gc, on_state);
        return;
    }
    CHECK(gc->dues.at < gc->dues.count);
    gc->req = (struct store_req){
        .op = STORE_LIST_OBJECTS, .run = gc->status.run, .id = gc->dues.items[gc->dues.at].id};
    gc_submit(gc, on_objects);
}

/* Called when the objects of a due checkpoint were listed. One that cannot be listed is stuck: it
 * is not reclaimed in this pass. */
static void on_objects(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    CHECK(gc->dues.at < gc->dues.count);
    struct due *due = &gc->dues.items[gc->dues.at++];
    due->stuck = req->status != 0 && req->status != CAIRN_E_NOT_FOUND;
    due->has_objects = req->status == 0 && req->ret_count > 0;
    if (due->stuck) {
        gc_note(gc, req->status, &req->diag, "listing the objects of a forgotten checkpoint");
    }
    free(req->status == 0 ? req->ret_objects : NULL);
    gc_rest(gc, list_next);
}

/* --- marking for the dues (struct mark_user) ----------------------------------------------------
 */

static bool may_go(const struct gc *gc, struct ckpt_id id)
{
    const struct due *due = find_due(gc, id);
    return due && due->has_objects;
}

/* A stuck one stays, so its table says what it refers to. */
static bool is_gone(const struct gc *gc, struct ckpt_id id)
{
    const struct due *due = find_due(gc, id);
    return due && !due->stuck;
}

static bool reads_no_own(const struct gc *gc, struct ckpt_id id)
{
    (void)gc, (void)id;
    return false;
}

/* Which tables can be read matters here, not what they say. */
static bool asks_nothing(const struct gc *gc, struct ckpt_id id)
{
    (void)gc, (void)id;
    return false;
}

static void lose_no_own(struct gc *gc, struct ckpt_id id) { (void)gc, (void)id; }

/* The due stays forgotten, and its table is read like that of any other kept checkpoint. */
static bool keep(struct gc *gc, struct ckpt_id id)
{
    struct due *due = find_due(gc, id);
    bool is_new = due && !due->stuck;
    if (due) {
        due->stuck = true;
    }
    return is_new;
}

static void keep_all(struct gc *gc)
{
    for (size_t i = 0; i < gc->dues.count; i++) {
        gc->dues.items[i].stuck = true;
    }
}

static const struct mark_user dues_marking = {.may_go = may_go,
                                              .is_gone = is_gone,
                                              .reads_own = reads_no_own,
                                              .is_asked = asks_nothing,
                                              .lose_own = lose_no_own,
                                              .keep = keep,
                                              .keep_all = keep_all,
                                              .done = on_checked};

/* --- can their space be freed? ------------------------------------------------------------------
 */

/* Called with the run's state: the parts of the checkpoints that stay are read, to mark the objects
 * that they refer to. */
static void on_state(struct run_snapshot_req *req)
{
    struct gc *gc = container_of(req, struct gc, snapshot);
    gc->snapshot.run = NULL; /* it was answered */
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "the run's record");
        gc_next_run(gc);
        return;
    }
    if (!mark_plan(gc, &dues_marking, true, req->state)) {
        gc_stop_pass(gc);
        return;
    }
    mark_read(gc);
}

/* Notes that the space of a due cannot be freed. Pressure leaves it out until a pass of another
 * kind has tried again. */
static void note_stuck(struct gc *gc, const struct due *due)
{
    const struct known_ckpt *before = known_find(&gc->known, &gc->status.run, due->id);
    struct known_ckpt known = before ? *before : (struct known_ckpt){.id = due->id};
    known.stuck = true;
    known_put(&gc->known, &gc->status.run, &known);
}

/* Keeps the dues whose space can be freed, and names them for the event. Returns false if there is
 * no memory. */
static bool choose(struct gc *gc)
{
    size_t kept = 0;
    free(gc->dues.ids);
    gc->dues.ids = calloc(gc->dues.count + 1, sizeof(*gc->dues.ids));
    for (size_t i = 0; gc->dues.ids && i < gc->dues.count; i++) {
        if (!gc->dues.items[i].stuck) {
            gc->dues.ids[kept] = gc->dues.items[i].id;
            gc->dues.items[kept++] = gc->dues.items[i];
        } else if (!gc->status.dry_run) {
            note_stuck(gc, &gc->dues.items[i]);
        }
    }
    CHECK(kept <= gc->dues.count);
    gc->dues.count = gc->dues.id_count = kept;
    return gc->dues.ids != NULL;
}

static void on_checked(struct gc *gc)
{
    mark_clear(gc);
    if (!choose(gc)) {
        gc_stop_pass(gc);
    } else if (gc->status.dry_run) {
        gc->status.reclaimed += gc->dues.count;
        gc_rest(gc, gc->dues.then);
    } else if (gc->dues.count == 0) { /* an event without ids would mean all */
        gc_rest(gc, gc->dues.then);
    } else {
        struct event event = reclaim_event(gc);
        gc_submit_event(gc, &event, on_reclaimed);
    }
}

/* --- the entry -------------------------------------------------------------------------------- */

static void tell_reclaimed(struct gc *gc, const struct run_req *req)
{
    const struct verdict_marks *marks = verdict_marks(&req->verdict);
    struct gc_reclaim why = {.actor = req->event.u.mark.actor, .reason = req->event.u.mark.reason};
    for (size_t i = 0; gc->options.reclaimed && i < marks->count; i++) {
        if (marks->items[i].outcome == MARK_DONE) {
            gc->options.reclaimed(gc->options.user, &gc->status.run, marks->items[i].id, &why);
        }
    }
}

/* Called when the reclaim event has been answered. From here on the record says what is reclaimed;
 * if it took no update, nothing is. */
static void on_reclaimed(struct run_req *req)
{
    struct gc *gc = container_of(req, struct gc, event);
    CHECK(!gc->status.dry_run);
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "reclaiming forgotten checkpoints");
    } else {
        size_t count = verdict_marks(&req->verdict)->done_count;
        gc->status.reclaimed += count;
        gc->status.reclaimed_total += count;
        gc->status.pressed_total += gc->order.pressed ? count : 0;
        tell_reclaimed(gc, req);
    }
    dues_clear(gc);
    gc_rest(gc, gc->dues.then);
}

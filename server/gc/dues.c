/* SPDX-License-Identifier: Apache-2.0
 *
 * Dues: the forgotten checkpoints that a pass reclaims. A reclaim entry is permanent, so the pass
 * first makes sure that their space can be freed: it lists the objects of each due, and reads the
 * object tables of all kept checkpoints that may refer to one. A due whose space could not be freed
 * stays forgotten, and can be undeleted. One loop's thread.
 *
 *   dues_begin: the core decides, nothing is written -> the objects of each due -> the record
 *       -> marking.c: the tables -> dues_checked -> the reclaim event -> gc_list_ckpts
 */
#include "gc_private.h"

#include "base/check.h"

#include <stdlib.h>

static void list_next(struct gc *gc);
static void on_objects(struct store_req *req);
static void on_state(struct run_snapshot_req *req);
static void on_reclaimed(struct run_req *req);

void dues_clear(struct gc *gc)
{
    free(gc->dues);
    free(gc->ids);
    gc->dues = NULL;
    gc->ids = NULL;
    gc->due_count = gc->due_at = gc->id_count = 0;
    gc->checking = false;
}

static int compare_dues(const void *a, const void *b)
{
    const struct due *left = a, *right = b;
    return ckpt_id_compare(left->id, right->id);
}

struct due *dues_find(const struct gc *gc, struct ckpt_id id)
{
    struct due key = {.id = id};
    return gc->due_count == 0
               ? NULL
               : bsearch(&key, gc->dues, gc->due_count, sizeof(*gc->dues), compare_dues);
}

bool dues_has(const struct gc *gc, struct ckpt_id id) { return dues_find(gc, id) != NULL; }

/* --- what has to be reclaimed --------------------------------------------------------------- */

/* Returns the reclaim event of this pass. A reclaim that was asked for, or that makes room, does
 * not wait, and the chain says who asked and why. A dry run begins no cycle; where the real pass
 * would begin one, one cycle less has to have passed. */
static struct event reclaim_event(const struct gc *gc)
{
    const struct pass_order *order = &gc->order;
    struct event event = {.kind = EVENT_RECLAIM,
                          .cycles = gc->options.keep_cycles - (order->dry_run && order->cycle),
                          .actor = gc->options.actor,
                          .reason = "forgotten for long enough",
                          .ids = gc->ids,
                          .id_count = gc->id_count};
    if (order->now) {
        event.cycles = 0;
        event.actor = order->pressed ? gc->options.actor : order->actor;
        event.reason = order->pressed ? order->reason : "asked to be reclaimed now";
    }
    return event;
}

/* Copies the checkpoints that the event has chosen, sorted by id. Returns false if there is no
 * memory. */
static bool take_dues(struct gc *gc, const struct verdict *verdict)
{
    struct due *dues = calloc(verdict->done_count + 1, sizeof(*dues));
    size_t count = 0;
    CHECK(!gc->dues); /* let_go() of the run before has freed it */
    if (!dues) {
        return false;
    }
    for (size_t i = 0; i < verdict->mark_count; i++) {
        if (verdict->marks[i].outcome == MARK_DONE) {
            dues[count++].id = verdict->marks[i].id;
        }
    }
    if (count > 1) {
        qsort(dues, count, sizeof(*dues), compare_dues);
    }
    gc->dues = dues;
    gc->due_count = count;
    return true;
}

/* Called when the run has said which checkpoints are due. */
static void on_decided(struct run_req *req)
{
    struct gc *gc = container_of(req, struct gc, event);
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "reclaiming what was forgotten");
        gc_rest(gc, gc_list_ckpts);
        return;
    }
    if (!take_dues(gc, &req->verdict)) {
        gc_stop_pass(gc);
        return;
    }
    gc->status.held += req->verdict.refused_count;
    gc_rest(gc, gc->due_count > 0 ? list_next : gc_list_ckpts);
}

void dues_begin(struct gc *gc)
{
    dues_clear(gc);
    if (gc->order.pressed && press_ids(gc, &gc->ids, &gc->id_count) != 0) {
        gc_stop_pass(gc);
        return;
    }
    gc->event = (struct run_req){.event = reclaim_event(gc), .done = on_decided, .dry_run = true};
    run_submit(gc->run, &gc->event);
}

/* --- can they be swept? ----------------------------------------------------------------------- */

/* Lists the objects of the next due checkpoint. After the last one the run's state is asked for. */
static void list_next(struct gc *gc)
{
    if (gc_must_stop(gc)) {
        return;
    }
    if (gc->due_at == gc->due_count) {
        gc->snapshot = (struct run_snapshot_req){.done = on_state};
        run_snapshot(gc->run, &gc->snapshot);
        return;
    }
    gc->req = (struct store_req){
        .op = STORE_LIST_OBJECTS, .run = gc->status.run, .id = gc->dues[gc->due_at].id};
    gc_submit(gc, on_objects);
}

/* Called when the objects of a due checkpoint were listed. One that cannot be listed is stuck: it
 * is not reclaimed in this pass. */
static void on_objects(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    struct due *due = &gc->dues[gc->due_at++];
    due->stuck = req->status != 0 && req->status != CAIRN_E_NOT_FOUND;
    due->has_objects = req->status == 0 && req->ret_count > 0;
    if (due->stuck) {
        gc_note(gc, req->status, &req->diag, "the list of what a forgotten checkpoint has stored");
    }
    free(req->status == 0 ? req->ret_objects : NULL);
    gc_rest(gc, list_next);
}

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
    mark_clear(gc);
    gc->checking = true;
    if (!mark_plan_dues(gc, req->state)) {
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
    free(gc->ids);
    gc->ids = calloc(gc->due_count + 1, sizeof(*gc->ids));
    for (size_t i = 0; gc->ids && i < gc->due_count; i++) {
        if (!gc->dues[i].stuck) {
            gc->ids[kept] = gc->dues[i].id;
            gc->dues[kept++] = gc->dues[i];
        } else if (!gc->status.dry_run) {
            note_stuck(gc, &gc->dues[i]);
        }
    }
    gc->due_count = gc->id_count = kept;
    return gc->ids != NULL;
}

void dues_checked(struct gc *gc)
{
    CHECK(gc->checking);
    gc->checking = false;
    mark_clear(gc);
    if (!choose(gc)) {
        gc_stop_pass(gc);
    } else if (gc->status.dry_run) {
        gc->status.reclaimed += gc->due_count;
        gc_rest(gc, gc_list_ckpts);
    } else if (gc->due_count == 0) { /* an event without ids would mean all */
        gc_rest(gc, gc_list_ckpts);
    } else {
        gc->event = (struct run_req){.event = reclaim_event(gc), .done = on_reclaimed};
        run_submit(gc->run, &gc->event);
    }
}

/* --- the entry -------------------------------------------------------------------------------- */

static void tell_reclaimed(struct gc *gc, const struct run_req *req)
{
    struct gc_reclaim why = {.actor = req->event.actor, .reason = req->event.reason};
    for (size_t i = 0; gc->options.reclaimed && i < req->verdict.mark_count; i++) {
        if (req->verdict.marks[i].outcome == MARK_DONE) {
            gc->options.reclaimed(gc->options.user, &gc->status.run, req->verdict.marks[i].id,
                                  &why);
        }
    }
}

/* Called when the reclaim event has been answered. From here on the record says what is reclaimed;
 * if it took no update, nothing is. */
static void on_reclaimed(struct run_req *req)
{
    struct gc *gc = container_of(req, struct gc, event);
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "reclaiming what was forgotten");
    } else {
        gc->status.reclaimed += req->verdict.done_count;
        gc->status.reclaimed_total += req->verdict.done_count;
        gc->status.pressed_total += gc->order.pressed ? req->verdict.done_count : 0;
        tell_reclaimed(gc, req);
    }
    dues_clear(gc);
    gc_rest(gc, gc_list_ckpts);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Dues: the forgotten checkpoints that a pass reclaims. A reclaim entry is permanent, so the pass
 * first makes sure that their space can be freed: it lists the objects of each due, and reads the
 * object tables of all kept checkpoints that may refer to one. A due whose space could not be freed
 * stays forgotten, and can be undeleted. On the pass's thread; take_ functions are called on the
 * loop.
 */
#include "gc_private.h"

#include "base/array.h"
#include "base/check.h"

#include <stdlib.h>

void dues_clear(struct gc *gc)
{
    free(gc->dues.items);
    free(gc->dues.ids);
    gc->dues.items = NULL;
    gc->dues.ids = NULL;
    gc->dues.count = gc->dues.id_count = 0;
}

static struct due *find_due(const struct gc *gc, struct ckpt_id id)
{
    return array_find(&id, gc->dues.items, gc->dues.count, sizeof(*gc->dues.items), ckpt_id_order);
}

bool dues_has(const struct gc *gc, struct ckpt_id id) { return find_due(gc, id) != NULL; }

/* --- what has to be reclaimed --------------------------------------------------------------- */

/* Returns the reclaim event of this pass. A reclaim that was asked for, or that makes room, does
 * not wait, and the chain says who asked and why. A dry run begins no cycle; where the real pass
 * would begin one, one cycle less has to have passed. */
static struct event reclaim_event(const struct gc *gc)
{
    const struct pass_order *order = &gc->order;
    CHECK(order->keep_cycles > 0);
    struct event_mark mark = {.cycles = order->keep_cycles - (order->dry_run && order->cycle),
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

/* Copies the checkpoints that the event has chosen, sorted by id. Without memory there are none. */
static void take_dues(void *user, const struct verdict *verdict)
{
    struct gc *gc = user;
    const struct verdict_marks *marks = verdict_marks(verdict);
    struct due *dues = calloc(marks->done_count + 1, sizeof(*dues));
    size_t count = 0;
    CHECK(!gc->dues.items); /* dues_clear() has freed it */
    for (size_t i = 0; dues && i < marks->count; i++) {
        if (marks->items[i].outcome == MARK_DONE) {
            CHECK(count < marks->done_count);
            dues[count++].id = marks->items[i].id;
        }
    }
    if (count > 1) {
        qsort(dues, count, sizeof(*dues), ckpt_id_order);
    }
    CHECK(!dues || count == marks->done_count);
    gc->dues.items = dues;
    gc->dues.count = count;
    gc->now.held += marks->refused_count;
}

/* Sends the reclaim event, or asks what it would do. */
static int decide(struct gc *gc, bool dry_run,
                  void (*take)(void *user, const struct verdict *verdict))
{
    struct event event = reclaim_event(gc);
    struct diag diag = DIAG_INIT;
    CHECK(dry_run || event.u.mark.id_count > 0); /* without ids it would mean all */
    gc->ask.hear = take;
    int status = ask_event(&gc->ask, gc->visit.run, &event, dry_run, &diag);
    return status != 0 ? gc_note(gc, status, &diag, "reclaiming forgotten checkpoints") : 0;
}

/* Asks the core, without writing, what is due. */
static int find_dues(struct gc *gc)
{
    dues_clear(gc);
    CHECK(!gc->visit.marked);
    if (gc->order.pressed && press_ids(gc, &gc->dues.ids, &gc->dues.id_count) != 0) {
        return CAIRN_E_NO_MEMORY;
    }
    return decide(gc, true, take_dues);
}

/* --- can they be swept? ----------------------------------------------------------------------- */

/* Takes the list of a due checkpoint. One that cannot be listed is stuck: it is not reclaimed in
 * this pass. */
static int take_objects(struct gc *gc, struct store_req *req)
{
    struct due *due = find_due(gc, req->id);
    CHECK(due != NULL);
    due->stuck = req->status != 0 && req->status != CAIRN_E_NOT_FOUND;
    due->has_objects = req->status == 0 && req->ret_count > 0;
    free(req->status == 0 ? req->ret_objects : NULL);
    return due->stuck ? gc_note(gc, req->status, &req->diag,
                                "listing the objects of a forgotten checkpoint")
                      : 0;
}

static int list_dues(struct gc *gc)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < gc->dues.count; i++) {
        struct store_req req = {
            .op = STORE_LIST_OBJECTS, .run = gc->now.run, .id = gc->dues.items[i].id};
        status = gc_group_add(gc, &req, take_objects);
    }
    return status != 0 ? status : gc_group_run(gc, take_objects);
}

/* --- marking for the dues (struct mark_user) -------------------------------------------------- */

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

static const struct mark_user dues_marking = {
    .may_go = may_go, .is_gone = is_gone, .keep = keep, .keep_all = keep_all};

/* --- can their space be freed? ---------------------------------------------------------------- */

/* The parts of the checkpoints that stay are read, to learn which objects they refer to. */
static int take_state(struct gc *gc, const struct run_state *state)
{
    return mark_plan(gc, &dues_marking, true, state) ? 0 : CAIRN_E_NO_MEMORY;
}

/* Notes that the space of a due cannot be freed. Pressure leaves it out until a pass of another
 * kind has tried again. */
static void note_stuck(struct gc *gc, const struct due *due)
{
    const struct known_ckpt *before = known_find(&gc->known, &gc->now.run, due->id);
    struct known_ckpt known = before ? *before : (struct known_ckpt){.id = due->id};
    known.stuck = true;
    known_put(&gc->known, &gc->now.run, &known);
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
        } else if (!gc->order.dry_run) {
            note_stuck(gc, &gc->dues.items[i]);
        }
    }
    CHECK(kept <= gc->dues.count);
    gc->dues.count = gc->dues.id_count = kept;
    return gc->dues.ids != NULL;
}

/* Reads the tables, and leaves out the dues whose space cannot be freed. */
static int check_dues(struct gc *gc)
{
    int status = list_dues(gc);
    if (status == 0) {
        status = mark_read(gc, take_state);
    }
    mark_clear(gc);
    return status != 0 || choose(gc) ? status : CAIRN_E_NO_MEMORY;
}

/* --- the entry -------------------------------------------------------------------------------- */

/* From here on the record says what is reclaimed. If it took no update, nothing is. */
static void take_reclaimed(void *user, const struct verdict *verdict)
{
    struct gc *gc = user;
    const struct verdict_marks *marks = verdict_marks(verdict);
    struct event event = reclaim_event(gc);
    struct gc_reclaim why = {.actor = event.u.mark.actor, .reason = event.u.mark.reason};
    CHECK(!gc->order.dry_run);
    gc->now.reclaimed += marks->done_count;
    gc->now.reclaimed_total += marks->done_count;
    gc->now.pressed_total += gc->order.pressed ? marks->done_count : 0;
    for (size_t i = 0; gc->options.reclaimed && i < marks->count; i++) {
        if (marks->items[i].outcome == MARK_DONE) {
            gc->options.reclaimed(gc->options.user, &gc->now.run, marks->items[i].id, &why);
        }
    }
}

int dues_reclaim(struct gc *gc)
{
    int status = find_dues(gc);
    if (status != 0 || gc->dues.count == 0) {
        return status;
    }
    status = check_dues(gc);
    if (status == 0 && gc->order.dry_run) {
        gc->now.reclaimed += gc->dues.count;
    } else if (status == 0) {
        status = gc->dues.count > 0 ? decide(gc, false, take_reclaimed) : 0;
        dues_clear(gc);
    }
    return status;
}

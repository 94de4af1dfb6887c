/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch of a run's checkpoints: it lists names, reads the record, reads tables (marking.c), and
 * removes. The order makes it safe: whatever is removed was listed before the record was read, and
 * the record says that nobody can come to refer to it. Names that appear later are not touched.
 */
#include "gc_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void list_objects(struct gc *gc);
static void remove_dead(struct gc *gc);
static void next_item(struct gc *gc);
static void on_stat(struct store_req *req);
static void on_swept(struct store_req *req);

void batch_clear(struct gc *gc)
{
    for (size_t i = 0; i < gc->batch.count; i++) {
        free(gc->batch.ckpts[i].objects);
        free(gc->batch.ckpts[i].smalls);
    }
    gc->batch.count = gc->batch.names = gc->batch.at = gc->batch.item = gc->batch.sweep = 0;
    gc->batch.in_smalls = false;
}

/* Finds a checkpoint by bisection: the batch is sorted, because the list was. */
static const struct batch_ckpt *find(const struct gc *gc, struct ckpt_id id)
{
    size_t low = 0, high = gc->batch.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = ckpt_id_compare(gc->batch.ckpts[middle].id, id);
        if (order == 0) {
            return &gc->batch.ckpts[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

static struct batch_ckpt *find_in(struct gc *gc, struct ckpt_id id)
{
    const struct batch_ckpt *found = find(gc, id);
    return found ? &gc->batch.ckpts[found - gc->batch.ckpts] : NULL;
}

/* --- the record ------------------------------------------------------------------------------- */

static const struct state_dead *find_dead(const struct run_state *state, struct ckpt_id id)
{
    for (size_t i = 0; i < state->dead_count; i++) {
        if (ckpt_id_equal(state->deads[i].id, id)) {
            return &state->deads[i];
        }
    }
    return NULL;
}

static bool has_root(const struct batch_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->small_count; i++) {
        if (ckpt->smalls[i].kind == STORE_MANIFEST && ckpt->smalls[i].tag == ckpt->open_id) {
            return true;
        }
    }
    return false;
}

/* Determines the kind and the mark of a checkpoint. An existing opening keeps everything. The wait
 * for the next pass counts from the end of the last opening, or from the commit. The end of an
 * opening stays in the record until nothing of it is stored (EVENT_BURY), so a checkpoint that
 * neither the chain nor an entry names was stored under another record. A manifest of it would have
 * marked the run when the pass came to it; without a manifest, and in a fenced term, it cannot
 * become a checkpoint. */
static void classify(const struct gc *gc, const struct run_state *state, struct batch_ckpt *ckpt)
{
    const struct state_commit *commit = mark_commit(state, ckpt->id);
    if (mark_is_open(gc, state, ckpt->id)) {
        ckpt->kind = KIND_OPEN;
    } else if (commit && (commit->reclaimed || dues_has(gc, ckpt->id))) {
        ckpt->kind = KIND_RECLAIMED;
        ckpt->mark = mark_of_commit(commit);
        ckpt->for_good = true;
    } else if (commit) {
        ckpt->kind = KIND_LIVE;
        ckpt->mark = mark_of_commit(commit);
        ckpt->open_id = commit->entry.open_id;
        ckpt->has_root = has_root(ckpt);
    } else {
        const struct state_dead *dead = find_dead(state, ckpt->id);
        bool is_told = dead || ckpt->id.term < state->newest_term;
        ckpt->kind = is_told ? KIND_DEAD : KIND_UNKNOWN;
        ckpt->mark = dead ? dead->entry.open_id : 1;
        ckpt->for_good = ckpt->id.term < state->newest_term;
    }
}

/* Called for a checkpoint that belongs to another record. Nothing of it is removed, and the pass
 * reports it. */
static void note_unknown(struct gc *gc, struct batch_ckpt *ckpt)
{
    struct diag diag = DIAG_INIT;
    int status =
        diag_set(&diag, CAIRN_E_DAMAGED,
                 "the store holds objects of checkpoint %" PRIu64 "@%" PRIu64
                 ", which this record does not list: the record is an older copy, or belongs to "
                 "another run; put the right one back (no object of that checkpoint is removed)",
                 ckpt->id.step, ckpt->id.term);
    ckpt->kind = KIND_UNKNOWN;
    gc_note(gc, status, &diag, "the run's record");
}

/* --- marking for the batch (struct mark_user) ---------------------------------------------------
 */

static bool has_objects(const struct batch_ckpt *ckpt, enum ckpt_kind kind)
{
    return ckpt && ckpt->kind == kind && ckpt->object_count > 0;
}

static bool may_go(const struct gc *gc, struct ckpt_id id)
{
    return has_objects(find(gc, id), KIND_RECLAIMED);
}

static bool reads_own(const struct gc *gc, struct ckpt_id id)
{
    return has_objects(find(gc, id), KIND_LIVE);
}

static bool is_asked(const struct gc *gc, struct ckpt_id id) { return find(gc, id) != NULL; }

static void lose_own(struct gc *gc, struct ckpt_id id)
{
    struct batch_ckpt *ckpt = find_in(gc, id);
    if (ckpt) {
        ckpt->unreadable = true;
    }
}

/* The checkpoint keeps its objects; its table is not needed for that. */
static bool keep(struct gc *gc, struct ckpt_id id)
{
    struct batch_ckpt *ckpt = find_in(gc, id);
    if (ckpt && ckpt->kind == KIND_RECLAIMED) {
        ckpt->unreadable = true;
    }
    return false;
}

static void keep_all(struct gc *gc)
{
    for (size_t i = 0; i < gc->batch.count; i++) {
        err_ignore(keep(gc, gc->batch.ckpts[i].id)); /* false: no table is read for it */
    }
}

static void is_foreign(struct gc *gc, struct ckpt_id id)
{
    struct batch_ckpt *ckpt = find_in(gc, id);
    if (ckpt) {
        note_unknown(gc, ckpt);
    }
}

static const struct mark_user batch_marking = {.may_go = may_go,
                                               .is_gone = dues_has,
                                               .reads_own = reads_own,
                                               .is_asked = is_asked,
                                               .lose_own = lose_own,
                                               .keep = keep,
                                               .keep_all = keep_all,
                                               .is_foreign = is_foreign,
                                               .done = remove_dead};

/* Adds one part of a checkpoint that is about to be removed as the leftover of a failed save.
 * Returns false if there is no memory. */
static bool plan_dead(struct gc *gc, const struct batch_ckpt *ckpt)
{
    for (size_t i = 0; ckpt->kind == KIND_DEAD && ckpt->ripe && i < ckpt->small_count; i++) {
        const struct store_name *small = &ckpt->smalls[i];
        if (small->kind == STORE_PART && small->number < UINT32_MAX) {
            return mark_add_dead(gc, small);
        }
    }
    return true;
}

static bool plan_marking(struct gc *gc, const struct run_state *state)
{
    bool any_reclaimed = false;
    for (size_t i = 0; i < gc->batch.count; i++) {
        any_reclaimed = any_reclaimed || has_objects(&gc->batch.ckpts[i], KIND_RECLAIMED);
    }
    bool good = mark_plan(gc, &batch_marking, any_reclaimed, state);
    for (size_t i = 0; good && i < gc->batch.count; i++) {
        good = plan_dead(gc, &gc->batch.ckpts[i]);
    }
    return good;
}

/* --- what each checkpoint is --------------------------------------------------------------------
 */

/* Called with the run's state, which was read after the lists. It says what each checkpoint of the
 * batch is, and whether it was dead at an earlier pass already. */
static void on_state(struct run_snapshot_req *req)
{
    struct gc *gc = container_of(req, struct gc, snapshot);
    gc->snapshot.run = NULL; /* it was answered */
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "the run's record");
        gc->visit.ckpt_next = gc->visit.ckpt_count; /* the next pass tries again */
        batch_begin(gc);
        return;
    }
    for (size_t i = 0; i < gc->batch.count; i++) {
        struct batch_ckpt *ckpt = &gc->batch.ckpts[i];
        classify(gc, req->state, ckpt);
        if (ckpt->kind == KIND_UNKNOWN) {
            note_unknown(gc, ckpt);
        }
        const struct known_ckpt *known = known_find(&gc->known, &gc->status.run, ckpt->id);
        /* Reclaimed checkpoints have already waited: they were forgotten for keep_cycles. */
        ckpt->ripe = ckpt->kind == KIND_RECLAIMED ||
                     (gc->status.dry_run && gc->options.dry_twice) ||
                     (known && known->mark == ckpt->mark && known->pass < gc->status.pass);
    }
    /* It was marked after the pass came to it, or a later look could not list what is stored. */
    if (state_is_marked(req->state) || req->state->unrecorded.code != 0) {
        gc_next_run(gc);
        return;
    }
    if (!plan_marking(gc, req->state)) {
        gc_stop_pass(gc);
        return;
    }
    mark_read(gc);
}

/* --- removal ---------------------------------------------------------------------------------- */

/* Returns true if nothing can refer to the object at index `at`. Objects of open saves and of
 * unknown checkpoints are never dead. */
static bool is_dead_object(const struct gc *gc, const struct batch_ckpt *ckpt, size_t at)
{
    CHECK(at < ckpt->object_count);
    switch (ckpt->kind) {
    case KIND_DEAD:
        return true;
    case KIND_LIVE:
    case KIND_RECLAIMED:
        return !ckpt->unreadable && !mark_has(gc, &ckpt->objects[at]);
    case KIND_OPEN:
    case KIND_UNKNOWN:
        return false;
    }
    return false;
}

/* Returns true if nobody can need the small object at index `at`. */
static bool is_dead_small(const struct batch_ckpt *ckpt, size_t at)
{
    CHECK(at < ckpt->small_count);
    switch (ckpt->kind) {
    case KIND_DEAD:
    case KIND_RECLAIMED:
        return true;
    case KIND_LIVE: /* only beside the right ones; without them it may be all that is left */
        return ckpt->has_root && ckpt->smalls[at].tag != ckpt->open_id;
    case KIND_OPEN:
    case KIND_UNKNOWN:
        return false;
    }
    return false;
}

/* Notes what the next pass has to know about the checkpoint. */
static void remember(struct gc *gc, const struct batch_ckpt *ckpt, size_t dead)
{
    CHECK(dead <= ckpt->object_count + ckpt->small_count);
    const struct known_ckpt *before = known_find(&gc->known, &gc->status.run, ckpt->id);
    struct known_ckpt known = {.id = ckpt->id,
                               .mark = ckpt->mark,
                               .pass = gc->status.pass,
                               .stuck = before && before->stuck};
    if (gc->status.dry_run || ckpt->kind == KIND_OPEN || ckpt->kind == KIND_UNKNOWN) {
        gc->status.kept += ckpt->ripe ? 0 : dead; /* a checkpoint that stays has nothing dead */
        return;
    }
    if (dead == 0) {
        known.settled = ckpt->kind != KIND_DEAD && !ckpt->unreadable &&
                        (ckpt->kind == KIND_LIVE ? ckpt->has_root : ckpt->object_count == 0);
    } else if (!ckpt->ripe) {
        known.pass = before && before->mark == ckpt->mark ? before->pass : known.pass;
        gc->status.kept += dead;
    }
    known_put(&gc->known, &gc->status.run, &known);
}

static size_t count_dead(const struct gc *gc, const struct batch_ckpt *ckpt)
{
    size_t dead = 0;
    for (size_t i = 0; i < ckpt->object_count; i++) {
        dead += is_dead_object(gc, ckpt, i);
    }
    for (size_t i = 0; i < ckpt->small_count; i++) {
        dead += is_dead_small(ckpt, i);
    }
    return dead;
}

/* Called when the tables were read: begins to remove. */
static void remove_dead(struct gc *gc)
{
    CHECK(!gc->visit.marked);
    for (size_t i = 0; i < gc->batch.count; i++) {
        remember(gc, &gc->batch.ckpts[i], count_dead(gc, &gc->batch.ckpts[i]));
    }
    gc->batch.at = gc->batch.item = 0;
    gc->batch.in_smalls = false;
    gc_rest(gc, next_item);
}

/* Finds the next dead thing: objects, then small things, checkpoint by checkpoint. Returns false at
 * the end of the batch. */
static bool find_item(struct gc *gc)
{
    while (gc->batch.at < gc->batch.count) {
        const struct batch_ckpt *ckpt = &gc->batch.ckpts[gc->batch.at];
        size_t count = gc->batch.in_smalls ? ckpt->small_count : ckpt->object_count;
        for (; ckpt->ripe && gc->batch.item < count; gc->batch.item++) {
            if (gc->batch.in_smalls ? is_dead_small(ckpt, gc->batch.item)
                                    : is_dead_object(gc, ckpt, gc->batch.item)) {
                return true;
            }
        }
        gc->batch.item = 0;
        gc->batch.at += gc->batch.in_smalls;
        gc->batch.in_smalls = !gc->batch.in_smalls;
    }
    return false;
}

/* Returns true if the leftovers of unfinished writes may be swept: nobody writes to the checkpoint
 * any more. */
static bool is_swept(const struct gc *gc, const struct batch_ckpt *ckpt)
{
    bool over = ckpt->kind == KIND_LIVE || (ckpt->kind != KIND_OPEN && ckpt->ripe);
    return over && ckpt->kind != KIND_UNKNOWN && !gc->status.dry_run;
}

/* Asks the store to sweep what unfinished writes left at the next checkpoint of the batch. After
 * the last one the next batch begins. */
static void sweep_next(struct gc *gc)
{
    while (gc->batch.sweep < gc->batch.count && !is_swept(gc, &gc->batch.ckpts[gc->batch.sweep])) {
        gc->batch.sweep++;
    }
    if (gc->batch.sweep == gc->batch.count) {
        batch_begin(gc);
        return;
    }
    CHECK(gc->batch.ckpts[gc->batch.sweep].kind != KIND_OPEN);
    gc->req = (struct store_req){.op = STORE_SWEEP,
                                 .run = gc->status.run,
                                 .id = gc->batch.ckpts[gc->batch.sweep].id,
                                 .for_good = gc->batch.ckpts[gc->batch.sweep].for_good};
    gc_submit(gc, on_swept);
}

/* Called when the store has swept a checkpoint. Until a sweep finds nothing, the next passes come
 * to this checkpoint again. */
static void on_swept(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    CHECK(gc->batch.sweep < gc->batch.count);
    const struct batch_ckpt *ckpt = &gc->batch.ckpts[gc->batch.sweep++];
    const struct known_ckpt *known = known_find(&gc->known, &gc->status.run, ckpt->id);
    bool again = req->status != 0 || req->ret_count > 0; /* sweeps again until one finds nothing */
    if (req->status != 0) {
        gc_note(gc, req->status, &req->diag, "removing what unfinished writes left behind");
    }
    if (again && known && known->settled) {
        struct known_ckpt open = *known;
        open.settled = false;
        known_put(&gc->known, &gc->status.run, &open);
    }
    gc_rest(gc, next_item);
}

static void on_removed(struct store_req *req);

static void remove_small(struct gc *gc)
{
    const struct batch_ckpt *ckpt = &gc->batch.ckpts[gc->batch.at];
    CHECK(ckpt->ripe);
    CHECK(is_dead_small(ckpt, gc->batch.item));
    gc->req = (struct store_req){.op = STORE_DELETE_SMALL,
                                 .run = gc->status.run,
                                 .name = gc->batch.ckpts[gc->batch.at].smalls[gc->batch.item]};
    gc_submit(gc, on_removed);
}

/* Removes the next dead object or small object of the batch, or counts it in a dry run. After the
 * last one the store sweeps. */
static void next_item(struct gc *gc)
{
    if (gc_must_stop(gc)) {
        return;
    }
    if (!find_item(gc)) {
        sweep_next(gc);
        return;
    }
    if (!gc->batch.in_smalls) {
        gc->req =
            (struct store_req){.op = STORE_STAT,
                               .run = gc->status.run,
                               .object = gc->batch.ckpts[gc->batch.at].objects[gc->batch.item]};
        gc_submit(gc, on_stat);
    } else if (gc->status.dry_run) {
        gc->status.smalls++;
        gc->batch.item++;
        gc_rest(gc, next_item);
    } else {
        remove_small(gc);
    }
}

/* Called when an object was removed. One that was gone already is no error; the pass ends if the
 * store has become read-only. */
static void on_removed(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    if (req->status == 0 && gc->batch.in_smalls) {
        gc->status.smalls++;
        gc->status.smalls_total++;
    } else if (req->status == 0) {
        gc->status.objects++;
        gc->status.objects_total++;
        gc->status.bytes += req->bytes;
        gc->status.bytes_total += req->bytes;
        gc->status.pressed_bytes_total += gc->order.pressed ? req->bytes : 0;
    } else if (req->status != CAIRN_E_NOT_FOUND) {
        gc_note(gc, req->status, &req->diag, "removing objects that no checkpoint refers to");
        if (req->status == CAIRN_E_READ_ONLY) {
            gc_stop_pass(gc);
            return;
        }
    }
    gc->batch.item++;
    gc_rest(gc, next_item);
}

/* Called with the size of an object, which only the report needs; removes the object. */
static void on_stat(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    uint64_t bytes = req->status == 0 ? req->ret_bytes : 0;
    gc->req = (struct store_req){.op = STORE_DELETE_OBJECT,
                                 .run = gc->status.run,
                                 .object = gc->batch.ckpts[gc->batch.at].objects[gc->batch.item],
                                 .bytes = bytes};
    CHECK(gc->batch.ckpts[gc->batch.at].ripe);
    CHECK(is_dead_object(gc, &gc->batch.ckpts[gc->batch.at], gc->batch.item));
    if (gc->status.dry_run) {
        gc->status.objects++;
        gc->status.bytes += bytes;
        gc->batch.item++;
        gc_rest(gc, next_item);
        return;
    }
    if (!gc_must_stop(gc)) {
        gc_submit(gc, on_removed);
    }
}

/* --- names ------------------------------------------------------------------------------------ */

static void decide(struct gc *gc)
{
    if (gc_must_stop(gc)) {
        return;
    }
    gc_snapshot(gc, on_state);
}

/* Leaves out a checkpoint that cannot be listed; the next pass tries again. */
static void skip(struct gc *gc, const struct store_req *req)
{
    gc_note(gc, req->status, &req->diag, "listing the stored objects");
    free(gc->batch.ckpts[gc->batch.count].objects);
    gc->visit.ckpt_next++;
    gc_rest(gc, list_objects);
}

/* Called when the small objects of a checkpoint were listed. The checkpoint belongs to the batch
 * from here on. */
static void on_smalls(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    struct batch_ckpt *ckpt = &gc->batch.ckpts[gc->batch.count];
    if (req->status != 0) {
        skip(gc, req);
        return;
    }
    ckpt->smalls = req->ret_smalls;
    ckpt->small_count = req->ret_count;
    CHECK(gc->batch.count == 0 || /* find() bisects */
          ckpt_id_compare(gc->batch.ckpts[gc->batch.count - 1].id, ckpt->id) <= 0);
    gc->batch.names += ckpt->object_count + ckpt->small_count;
    gc->batch.count++;
    gc->visit.ckpt_next++;
    gc->status.ckpts++;
    gc_rest(gc, list_objects);
}

/* Called when the objects of a checkpoint were listed. */
static void on_objects(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    struct batch_ckpt *ckpt = &gc->batch.ckpts[gc->batch.count];
    if (req->status != 0) {
        skip(gc, req);
        return;
    }
    ckpt->objects = req->ret_objects;
    ckpt->object_count = req->ret_count;
    gc->req = (struct store_req){.op = STORE_LIST_SMALL, .run = gc->status.run, .id = ckpt->id};
    gc_submit(gc, on_smalls);
}

/* Lists the objects of the next checkpoint. Once the batch is full or has all checkpoints of the
 * run, what is dead is decided. */
static void list_objects(struct gc *gc)
{
    if (gc_must_stop(gc)) {
        return;
    }
    if (gc->visit.ckpt_next == gc->visit.ckpt_count || gc->batch.count == BATCH_CKPTS_MAX ||
        gc->batch.names >= BATCH_NAMES_MAX) {
        decide(gc);
        return;
    }
    CHECK(gc->batch.count < BATCH_CKPTS_MAX);
    gc->batch.ckpts[gc->batch.count] =
        (struct batch_ckpt){.id = gc->visit.ckpts[gc->visit.ckpt_next]};
    gc->req = (struct store_req){.op = STORE_LIST_OBJECTS,
                                 .run = gc->status.run,
                                 .id = gc->visit.ckpts[gc->visit.ckpt_next]};
    gc_submit(gc, on_objects);
}

void batch_begin(struct gc *gc)
{
    batch_clear(gc);
    mark_clear(gc);
    if (gc->visit.ckpt_next == gc->visit.ckpt_count) {
        gc_next_run(gc);
        return;
    }
    gc_rest(gc, list_objects);
}

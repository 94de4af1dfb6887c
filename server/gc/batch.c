/* SPDX-License-Identifier: Apache-2.0
 *
 * A batch of a run's checkpoints: it lists names, reads the record, reads tables (marking.c), and
 * removes. The order makes it safe: whatever is removed was listed before the record was read, and
 * the record says that nobody can come to refer to it. Names that appear later are not touched. On
 * the pass's thread, but for what is decided with a state of the run: that is on the loop.
 */
#include "gc_private.h"

#include "base/check.h"

#include <stdlib.h>

static void drop_ckpt(struct batch_ckpt *ckpt)
{
    free(ckpt->objects);
    free(ckpt->smalls);
    *ckpt = (struct batch_ckpt){.kind = KIND_UNKNOWN};
}

void batch_clear(struct gc *gc)
{
    for (size_t i = 0; i < gc->batch.count; i++) {
        drop_ckpt(&gc->batch.ckpts[i]);
    }
    drop_ckpt(&gc->batch.next);
    gc->batch.count = gc->batch.names = 0;
}

/* Finds a checkpoint of the batch, which is sorted, because the list was. */
static const struct batch_ckpt *find(const struct gc *gc, struct ckpt_id id)
{
    const struct batch *batch = &gc->batch;
    size_t at = ckpt_id_bound(batch->ckpts, batch->count, sizeof(*batch->ckpts),
                              offsetof(struct batch_ckpt, id), id);
    return at < batch->count && ckpt_id_equal(batch->ckpts[at].id, id) ? &batch->ckpts[at] : NULL;
}

static struct batch_ckpt *find_in(struct gc *gc, struct ckpt_id id)
{
    const struct batch_ckpt *found = find(gc, id);
    return found ? &gc->batch.ckpts[found - gc->batch.ckpts] : NULL;
}

/* --- the record ------------------------------------------------------------------------------- */

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
    const struct state_commit *commit = commit_any(state, ckpt->id);
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
        const struct state_dead *dead = dead_find(state, ckpt->id);
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
                 "the store holds objects of checkpoint %s, which this record does not list: the "
                 "record is an older copy, or belongs to "
                 "another run; put the right one back (no object of that checkpoint is removed)",
                 ckpt_id_text(ckpt->id).at);
    ckpt->kind = KIND_UNKNOWN;
    err_ignore(gc_note(gc, status, &diag, "the run's record")); /* DAMAGED ends no pass */
}

/* --- marking for the batch (struct mark_user) ------------------------------------------------- */

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
        err_ignore(
            keep(gc, gc->batch.ckpts[i].id)); /* if it returns false, no table is read for it */
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
                                               .is_foreign = is_foreign};

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

/* --- what each checkpoint is ------------------------------------------------------------------ */

/* The state of the run, which was read after the lists, says what each checkpoint of the batch is,
 * and whether it was dead at an earlier pass already. */
static int take_state(struct gc *gc, const struct run_state *state)
{
    for (size_t i = 0; i < gc->batch.count; i++) {
        struct batch_ckpt *ckpt = &gc->batch.ckpts[i];
        classify(gc, state, ckpt);
        if (ckpt->kind == KIND_UNKNOWN) {
            note_unknown(gc, ckpt);
        }
        const struct known_ckpt *known = known_find(&gc->known, &gc->now.run, ckpt->id);
        /* Reclaimed checkpoints have already waited: they were forgotten for keep_cycles. */
        ckpt->ripe = ckpt->kind == KIND_RECLAIMED || (gc->order.dry_run && gc->options.dry_twice) ||
                     (known && known->mark == ckpt->mark && known->pass < gc->now.pass);
    }
    /* It was marked after the pass came to it, or a later pass could not list what is stored. */
    if (state_is_marked(state) || state->unrecorded.code != 0) {
        return CAIRN_E_ENDED;
    }
    return plan_marking(gc, state) ? 0 : CAIRN_E_NO_MEMORY;
}

/* --- what is dead ----------------------------------------------------------------------------- */

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
    const struct known_ckpt *before = known_find(&gc->known, &gc->now.run, ckpt->id);
    struct known_ckpt known = {
        .id = ckpt->id, .mark = ckpt->mark, .pass = gc->now.pass, .stuck = before && before->stuck};
    if (gc->order.dry_run || ckpt->kind == KIND_OPEN || ckpt->kind == KIND_UNKNOWN) {
        gc->now.kept += ckpt->ripe ? 0 : dead; /* a checkpoint that stays has nothing dead */
        return;
    }
    if (dead == 0) {
        known.settled = ckpt->kind != KIND_DEAD && !ckpt->unreadable &&
                        (ckpt->kind == KIND_LIVE ? ckpt->has_root : ckpt->object_count == 0);
    } else if (!ckpt->ripe) {
        known.pass = before && before->mark == ckpt->mark ? before->pass : known.pass;
        gc->now.kept += dead;
    }
    known_put(&gc->known, &gc->now.run, &known);
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

/* --- removal: objects, then small things, of all checkpoints of the batch --------------------- */

/* Takes the answer to a removal. One that was gone already is no error; the pass ends if the store
 * has become read-only. */
static int take_removed(struct gc *gc, struct store_req *req)
{
    bool is_object = req->op == STORE_DELETE_OBJECT;
    if (req->status == 0 && is_object) {
        gc->now.objects++;
        gc->now.objects_total++;
        gc->now.bytes += req->bytes;
        gc->now.bytes_total += req->bytes;
        gc->now.pressed_bytes_total += gc->order.pressed ? req->bytes : 0;
    } else if (req->status == 0) {
        gc->now.smalls++;
        gc->now.smalls_total++;
    } else if (req->status != CAIRN_E_NOT_FOUND) {
        int status =
            gc_note(gc, req->status, &req->diag, "removing objects that no checkpoint refers to");
        return req->status == CAIRN_E_READ_ONLY ? req->status : status;
    }
    return 0;
}

/* Takes the size of an object, which only the report needs, and makes the question after it the
 * removal. */
static int take_size(struct gc *gc, struct store_req *req)
{
    uint64_t bytes = req->status == 0 ? req->ret_bytes : 0;
    if (gc->order.dry_run) {
        gc->now.objects++;
        gc->now.bytes += bytes;
    }
    *req = (struct store_req){
        .op = STORE_DELETE_OBJECT, .run = gc->now.run, .object = req->object, .bytes = bytes};
    return 0;
}

static int remove_group(struct gc *gc)
{
    size_t count = gc->group_count;
    int status = gc_group_run(gc, take_size);
    if (status == 0 && !gc->order.dry_run) {
        gc->group_count = count;
        status = gc_group_run(gc, take_removed);
    }
    return status;
}

static int remove_objects(struct gc *gc)
{
    int status = 0;
    for (size_t i = 0; i < gc->batch.count; i++) {
        const struct batch_ckpt *ckpt = &gc->batch.ckpts[i];
        for (size_t k = 0; status == 0 && ckpt->ripe && k < ckpt->object_count; k++) {
            if (!is_dead_object(gc, ckpt, k)) {
                continue;
            }
            struct store_req req = {
                .op = STORE_STAT, .run = gc->now.run, .object = ckpt->objects[k]};
            status = gc->group_count == GC_GROUP ? remove_group(gc) : 0;
            if (status == 0) {
                status = gc_group_add(gc, &req, take_size);
            }
        }
    }
    return status != 0 ? status : remove_group(gc);
}

static int remove_smalls(struct gc *gc)
{
    int status = 0;
    for (size_t i = 0; i < gc->batch.count; i++) {
        const struct batch_ckpt *ckpt = &gc->batch.ckpts[i];
        for (size_t k = 0; status == 0 && ckpt->ripe && k < ckpt->small_count; k++) {
            if (!is_dead_small(ckpt, k)) {
                continue;
            }
            if (gc->order.dry_run) {
                gc->now.smalls++;
                continue;
            }
            struct store_req req = {
                .op = STORE_DELETE_SMALL, .run = gc->now.run, .name = ckpt->smalls[k]};
            status = gc_group_add(gc, &req, take_removed);
        }
    }
    return status != 0 ? status : gc_group_run(gc, take_removed);
}

/* Returns true if the leftovers of unfinished writes may be swept: nobody writes to the checkpoint
 * any more. */
static bool is_swept(const struct gc *gc, const struct batch_ckpt *ckpt)
{
    bool over = ckpt->kind == KIND_LIVE || (ckpt->kind != KIND_OPEN && ckpt->ripe);
    return over && ckpt->kind != KIND_UNKNOWN && !gc->order.dry_run;
}

/* Takes what the store has swept of a checkpoint. Until a sweep finds nothing, the next passes come
 * to this checkpoint again. */
static int take_swept(struct gc *gc, struct store_req *req)
{
    const struct known_ckpt *known = known_find(&gc->known, &gc->now.run, req->id);
    bool again = req->status != 0 || req->ret_count > 0; /* sweeps again until one finds nothing */
    if (again && known && known->settled) {
        struct known_ckpt open = *known;
        open.settled = false;
        known_put(&gc->known, &gc->now.run, &open);
    }
    int status = req->status == 0 ? 0
                                  : gc_note(gc, req->status, &req->diag,
                                            "removing what unfinished writes left behind");
    return req->status == CAIRN_E_READ_ONLY ? req->status : status;
}

static int sweep(struct gc *gc)
{
    int status = 0;
    for (size_t i = 0; status == 0 && i < gc->batch.count; i++) {
        const struct batch_ckpt *ckpt = &gc->batch.ckpts[i];
        if (is_swept(gc, ckpt)) {
            CHECK(ckpt->kind != KIND_OPEN);
            struct store_req req = {
                .op = STORE_SWEEP, .run = gc->now.run, .id = ckpt->id, .for_good = ckpt->for_good};
            status = gc_group_add(gc, &req, take_swept);
        }
    }
    return status != 0 ? status : gc_group_run(gc, take_swept);
}

/* Removes what is dead, now that the tables were read. */
static int remove_dead(struct gc *gc)
{
    CHECK(!gc->visit.marked);
    for (size_t i = 0; i < gc->batch.count; i++) {
        remember(gc, &gc->batch.ckpts[i], count_dead(gc, &gc->batch.ckpts[i]));
    }
    int status = remove_objects(gc);
    if (status == 0) {
        status = remove_smalls(gc);
    }
    return status != 0 ? status : sweep(gc);
}

/* --- names ------------------------------------------------------------------------------------ */

/* Takes the list of a checkpoint's objects, or the one of its small things, which is the next. Then
 * the checkpoint belongs to the batch. One that cannot be listed is left out; the next pass tries
 * again. */
static int take_list(struct gc *gc, struct store_req *req)
{
    struct batch *batch = &gc->batch;
    struct batch_ckpt *next = &batch->next;
    if (req->op == STORE_LIST_OBJECTS) {
        drop_ckpt(next);
        next->id = req->id;
        next->objects = req->status == 0 ? req->ret_objects : NULL;
        next->object_count = req->status == 0 ? req->ret_count : 0;
        batch->next_is_lost = req->status != 0;
    } else if (req->status == 0) {
        CHECK(ckpt_id_equal(next->id, req->id));
        next->smalls = req->ret_smalls;
        next->small_count = req->ret_count;
    } else if (batch->next_is_lost) {
        return 0; /* it was noted */
    }
    if (req->status != 0) {
        batch->next_is_lost = true;
        return gc_note(gc, req->status, &req->diag, "listing the stored objects");
    }
    if (req->op == STORE_LIST_SMALL && !batch->next_is_lost) {
        CHECK(batch->count < BATCH_CKPTS_MAX);
        CHECK(batch->count == 0 || /* find() bisects */
              ckpt_id_compare(batch->ckpts[batch->count - 1].id, next->id) <= 0);
        batch->names += next->object_count + next->small_count;
        batch->ckpts[batch->count++] = *next;
        *next = (struct batch_ckpt){.kind = KIND_UNKNOWN};
        gc->now.ckpts++;
    }
    return 0;
}

/* Lists what is stored of the next checkpoints of the run, until the batch is full. */
static int list_names(struct gc *gc)
{
    struct visit *visit = &gc->visit;
    size_t first = visit->ckpt_next;
    int status = 0;
    while (status == 0 && visit->ckpt_next < visit->ckpt_count &&
           visit->ckpt_next - first < BATCH_CKPTS_MAX && gc->batch.names < BATCH_NAMES_MAX) {
        struct store_req req = {
            .op = STORE_LIST_OBJECTS, .run = gc->now.run, .id = visit->ckpts[visit->ckpt_next++]};
        status = gc_group_add(gc, &req, take_list);
        if (status == 0) {
            req.op = STORE_LIST_SMALL;
            status = gc_group_add(gc, &req, take_list);
        }
    }
    return status != 0 ? status : gc_group_run(gc, take_list);
}

int batch_remove(struct gc *gc)
{
    int status = 0;
    while (status == 0 && gc->visit.ckpt_next < gc->visit.ckpt_count) {
        batch_clear(gc);
        status = list_names(gc);
        if (status == 0) {
            status = mark_read(gc, take_state);
        }
        if (status == 0) {
            status = remove_dead(gc);
        }
        mark_clear(gc);
    }
    batch_clear(gc);
    return status;
}

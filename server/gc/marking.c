/* SPDX-License-Identifier: Apache-2.0
 *
 * Marking: finds the objects of the batch's checkpoints that are referred to. Whatever a checkpoint
 * refers to, its base refers to or holds, word for word. So an object of X can only be in the
 * tables of X and of the checkpoints whose chain of bases leads to X; only their object tables are
 * read. An opening has a claim on its base, which is not reclaimed meanwhile, so the base's table
 * speaks for the opening. A table that cannot be read keeps everything that it might refer to.
 */
#include "gc_private.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t mark_of_commit(const struct state_commit *commit)
{
    uint64_t seq = commit->repaired_seq > 0 ? commit->repaired_seq : commit->entry.seq;
    return commit->reclaimed ? UINT64_MAX - commit->entry.seq : seq;
}

bool mark_is_open(const struct gc *gc, const struct run_state *state, struct ckpt_id id)
{
    bool is_stale = gc->status.dry_run && id.term < state->newest_term;
    return !is_stale && state_open_find(state, id);
}

const struct state_commit *mark_commit(const struct run_state *state, struct ckpt_id id)
{
    size_t low = 0, high = state->commit_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = ckpt_id_compare(state->by_id[middle]->entry.id, id);
        if (order == 0) {
            return state->by_id[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return NULL;
}

/* Adds a part to the list of those to read. Returns false if there is no memory. */
static bool add_table(struct gc *gc, const struct table_of *of)
{
    if (gc->table_count == gc->table_cap) {
        size_t cap = gc->table_cap == 0 ? 64 : gc->table_cap * 2;
        struct table_of *grown = realloc(gc->tables, cap * sizeof(*grown));
        if (!grown) {
            return false;
        }
        gc->tables = grown;
        gc->table_cap = cap;
    }
    gc->tables[gc->table_count++] = *of;
    return true;
}

static bool add_commit(struct gc *gc, const struct state_commit *commit, bool for_itself)
{
    struct table_of of = {.id = commit->entry.id,
                          .open_id = commit->entry.open_id,
                          .world_size = commit->entry.world_size,
                          .for_itself = for_itself};
    return add_table(gc, &of);
}

/* Adds the table of one part of a checkpoint that is about to be removed as the leftover of a
 * failed save. Under the record of another run, all checkpoints of a run would look like that, and
 * the part says which run it belongs to. */
static bool add_dead(struct gc *gc, const struct batch_ckpt *ckpt)
{
    for (size_t i = 0; ckpt->kind == KIND_DEAD && ckpt->ripe && i < ckpt->small_count; i++) {
        const struct store_name *small = &ckpt->smalls[i];
        if (small->kind == STORE_PART && small->number < UINT32_MAX) {
            struct table_of of = {.id = ckpt->id,
                                  .open_id = small->tag,
                                  .first_rank = small->number,
                                  .world_size = small->number + 1,
                                  .is_dead = true};
            return add_table(gc, &of);
        }
    }
    return true;
}

static bool has_objects(const struct batch_ckpt *ckpt, enum ckpt_kind kind)
{
    return ckpt && ckpt->kind == kind && ckpt->object_count > 0;
}

/* Returns the next one in a chain of bases, or NULL. A base has a smaller sequence, so the walk
 * ends. */
static const struct state_commit *base_of(const struct run_state *state,
                                          const struct state_commit *commit)
{
    const struct state_commit *base = mark_commit(state, commit->entry.base);
    return base && base->entry.seq < commit->entry.seq ? base : NULL;
}

/* Returns true if the checkpoint, of the batch or of the dues, has objects that may be removed. */
static bool may_go(struct gc *gc, struct ckpt_id id)
{
    const struct due *due = gc->checking ? dues_find(gc, id) : NULL;
    return gc->checking ? due && due->has_objects : has_objects(batch_find(gc, id), KIND_RECLAIMED);
}

/* Returns true if the commit's chain of bases leads to a checkpoint whose objects may be
 * removed. */
static bool leads_to_any(struct gc *gc, const struct run_state *state,
                         const struct state_commit *commit)
{
    for (; commit && commit->entry.base.term != 0; commit = base_of(state, commit)) {
        if (may_go(gc, commit->entry.base)) {
            return true;
        }
    }
    return false;
}

bool mark_plan(struct gc *gc, const struct run_state *state)
{
    bool any_reclaimed = false;
    gc->run_uuid = state->info.run_uuid;
    for (size_t i = 0; i < gc->batch_count; i++) {
        any_reclaimed = any_reclaimed || has_objects(&gc->batch[i], KIND_RECLAIMED);
        if (!add_dead(gc, &gc->batch[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        bool own = has_objects(batch_find(gc, commit->entry.id), KIND_LIVE);
        bool is_gone = commit->reclaimed || dues_has(gc, commit->entry.id);
        bool leads = any_reclaimed && !is_gone && leads_to_any(gc, state, commit);
        if ((own || leads) && !add_commit(gc, commit, own)) {
            return false;
        }
    }
    gc->table_rank = gc->table_count > 0 ? gc->tables[0].first_rank : 0;
    return true;
}

bool mark_plan_dues(struct gc *gc, const struct run_state *state)
{
    CHECK(gc->checking);
    gc->run_uuid = state->info.run_uuid;
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        const struct due *due = dues_find(gc, commit->entry.id);
        bool is_gone = commit->reclaimed || (due && !due->stuck); /* a stuck one stays: it refers */
        if (!is_gone && leads_to_any(gc, state, commit) && !add_commit(gc, commit, false)) {
            return false;
        }
    }
    return true;
}

void mark_clear(struct gc *gc)
{
    free(gc->table_pages);
    gc->table_pages = NULL;
    gc->table_count = gc->table_next = gc->mark_count = 0;
    gc->table_rank = 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int compare_objects(const void *a, const void *b) { return object_id_compare(a, b); }

bool mark_has(const struct gc *gc, const struct object_id *id)
{
    return gc->mark_count > 0 &&
           bsearch(id, gc->marks, gc->mark_count, sizeof(*gc->marks), compare_objects) != NULL;
}

/* Reads a range of the next part. */
static void fetch(struct gc *gc, uint64_t offset, uint64_t bytes,
                  void (*done)(struct store_req *req))
{
    const struct table_of *of = &gc->tables[gc->table_next];
    gc->req = (struct store_req){.op = STORE_FETCH,
                                 .name = {.run = gc->status.run,
                                          .id = of->id,
                                          .kind = STORE_PART,
                                          .number = gc->table_rank,
                                          .tag = of->open_id},
                                 .run = gc->status.run,
                                 .offset = offset,
                                 .bytes = bytes};
    gc_submit(gc, done);
}

/* Goes on with the part of the next rank, or with the next checkpoint. */
static void next_table(struct gc *gc)
{
    free(gc->table_pages);
    gc->table_pages = NULL;
    gc->table_rank++;
    if (gc->table_rank == gc->tables[gc->table_next].world_size) {
        gc->table_next++;
        gc->table_rank =
            gc->table_next < gc->table_count ? gc->tables[gc->table_next].first_rank : 0;
    }
    mark_read(gc);
}

/* Keeps a checkpoint that an unreadable table may refer to. A due stays forgotten, and its table is
 * read like that of any other kept checkpoint. A reclaimed checkpoint keeps its objects. Returns
 * false if there is no memory. */
static bool keep(struct gc *gc, struct ckpt_id id, const struct state_commit *commit)
{
    struct due *due = gc->checking ? dues_find(gc, id) : NULL;
    struct batch_ckpt *ckpt = gc->checking ? NULL : batch_find(gc, id);
    bool is_new = due && !due->stuck;
    if (due) {
        due->stuck = true;
    }
    if (ckpt && ckpt->kind == KIND_RECLAIMED) {
        ckpt->unreadable = true;
    }
    return !is_new || !commit || add_commit(gc, commit, false);
}

/* Called for a checkpoint whose table cannot be read. It refers to nothing but what its base holds
 * or refers to: so the base's objects stay, and the base's table speaks for the rest; if the base
 * was reclaimed, the same holds for its own base, and so on. If the chain is not known, everything
 * that was to be removed stays. */
static void on_unreadable_state(struct run_snapshot_req *req)
{
    struct gc *gc = container_of(req, struct gc, snapshot);
    const struct run_state *state = req->status == 0 ? req->state : NULL;
    const struct state_commit *commit =
        state ? mark_commit(state, gc->tables[gc->table_next].id) : NULL;
    bool good = true;
    gc->snapshot.run = NULL; /* answered */
    for (size_t i = 0; !commit && i < gc->due_count; i++) {
        good = keep(gc, gc->dues[i].id, NULL) && good;
    }
    for (size_t i = 0; !commit && i < gc->batch_count; i++) {
        good = keep(gc, gc->batch[i].id, NULL) && good;
    }
    while (commit && commit->entry.base.term != 0) {
        const struct state_commit *base = mark_commit(state, commit->entry.base);
        good = keep(gc, commit->entry.base, base) && good;
        commit = base && base->reclaimed ? base_of(state, commit) : NULL;
    }
    if (!good) {
        gc_stop_pass(gc);
        return;
    }
    next_table(gc);
}

/* Returns false for an error that passes, after which nobody should repair or forget anything. */
static bool repair_helps(int status)
{
    return status == CAIRN_E_DAMAGED || status == CAIRN_E_FORMAT || status == CAIRN_E_NOT_FOUND ||
           status == CAIRN_E_DIGEST_MISMATCH || status == CAIRN_E_IO;
}

/* Handles a table that cannot be read: what it may refer to stays, and the report says why, and
 * what helps. */
static void unreadable(struct gc *gc, int status, const struct diag *diag)
{
    const struct table_of *of = &gc->tables[gc->table_next];
    struct batch_ckpt *own = batch_find(gc, of->id);
    struct diag whole = DIAG_INIT;
    char name[RUN_NAME_TEXT_MAX], remedy[RUN_NAME_TEXT_MAX + 160] = "";
    if (of->is_dead) {
        next_table(gc); /* it is removed anyway */
        return;
    }
    run_name_format(&gc->status.run, name);
    if (repair_helps(status)) {
        snprintf(remedy, sizeof(remedy),
                 "; repair it (`cairn verify %s %" PRIu64 "@%" PRIu64
                 " --repair`) or forget that checkpoint, too",
                 name, of->id.step, of->id.term);
    }
    diag_set(&whole, status,
             "the part of rank %" PRIu32 " of checkpoint %" PRIu64 "@%" PRIu64
             " cannot be read (%.200s), so what it may refer to stays%s",
             gc->table_rank, of->id.step, of->id.term, diag_text(diag, status), remedy);
    gc_note(gc, status, &whole, "an object table");
    if (own && !gc->checking) {
        own->unreadable = true;
    }
    gc->snapshot = (struct run_snapshot_req){.done = on_unreadable_state, .any_age = true};
    run_snapshot(gc->run, &gc->snapshot);
}

/* Returns true if a read gave at least `wanted` bytes. Otherwise the bytes are freed and the
 * checkpoint counts as unreadable. */
static bool take_bytes(struct gc *gc, struct store_req *req, uint64_t wanted, struct diag *diag)
{
    gc->status.bytes_read += req->status == 0 ? req->ret_bytes : 0;
    if (req->status != 0) {
        diag_copy(diag, &req->diag);
        free(req->ret_data);
        unreadable(gc, req->status, diag);
        return false;
    }
    if (req->ret_bytes < wanted) {
        diag_set(diag, CAIRN_E_DAMAGED, "a part is shorter than its header says");
        free(req->ret_data);
        unreadable(gc, CAIRN_E_DAMAGED, diag);
        return false;
    }
    return true;
}

/* Adds the ids that belong to a checkpoint of the batch to the marks. Returns false if there is no
 * memory. */
static bool add_marks(struct gc *gc, size_t count, const struct object_id *ids)
{
    if (gc->mark_cap - gc->mark_count < count) {
        size_t cap = gc->mark_cap * 2 + count + 256;
        struct object_id *grown = realloc(gc->marks, cap * sizeof(*grown));
        if (!grown) {
            return false;
        }
        gc->marks = grown;
        gc->mark_cap = cap;
    }
    for (size_t i = 0; i < count; i++) {
        if (batch_find(gc, (struct ckpt_id){ids[i].term, ids[i].step})) {
            gc->marks[gc->mark_count++] = ids[i];
        }
    }
    return true;
}

/* Called with the checksums of the table: the table is verified, and the objects it names are
 * marked. */
static void on_crcs(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    struct diag diag = DIAG_INIT;
    if (!take_bytes(gc, req, gc->table.crcs_bytes, &diag)) {
        return;
    }
    struct object_id *ids = calloc((size_t)gc->table.object_count + 1, sizeof(*ids));
    int status = ids ? part_table_read(&gc->table, gc->table_pages, req->ret_data, ids, &diag)
                     : diag_set(&diag, CAIRN_E_NO_MEMORY, "no memory for an object table");
    if (status == 0 && !add_marks(gc, gc->table.object_count, ids)) {
        status = diag_set(&diag, CAIRN_E_NO_MEMORY, "no memory for an object table");
    }
    free(req->ret_data);
    free(ids);
    if (status != 0) {
        unreadable(gc, status, &diag);
    } else {
        next_table(gc);
    }
}

/* Called with the pages of a part's object table. */
static void on_pages(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    struct diag diag = DIAG_INIT;
    if (!take_bytes(gc, req, gc->table.pages_bytes, &diag)) {
        return;
    }
    free(gc->table_pages);
    gc->table_pages = req->ret_data;
    fetch(gc, gc->table.crcs_offset, gc->table.crcs_bytes, on_crcs);
}

/* Called when the header of a part was read that says which run it belongs to. */
static void look_at_dead(struct gc *gc, bool is_ours)
{
    struct batch_ckpt *ckpt = batch_find(gc, gc->tables[gc->table_next].id);
    if (!is_ours && ckpt) {
        batch_note_unknown(gc, ckpt);
    }
    next_table(gc);
}

/* Called with the beginning of a part, which says where its table of objects lies. */
static void on_first(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    const struct table_of *of = &gc->tables[gc->table_next];
    struct diag diag = DIAG_INIT;
    if (!take_bytes(gc, req, 1, &diag)) {
        return;
    }
    int status = part_table_begin((size_t)req->ret_bytes, req->ret_data, &gc->table, &diag);
    bool is_ours = memcmp(&gc->table.run_uuid, &gc->run_uuid, sizeof(gc->run_uuid)) == 0;
    if (status == 0 && of->is_dead) {
        free(req->ret_data);
        look_at_dead(gc, is_ours);
        return;
    }
    /* It is whole, but of another checkpoint or rank: what it names would be kept, and what is
     * really referred to would be removed. */
    bool is_this = ckpt_id_equal(gc->table.id, of->id) && gc->table.rank == gc->table_rank;
    if (status == 0 && !(is_ours && is_this)) {
        status = diag_set(&diag, CAIRN_E_DAMAGED, "a part is another's");
    }
    if (status != 0) {
        free(req->ret_data);
        unreadable(gc, status, &diag);
        return;
    }
    if (gc->table.pages_bytes > req->ret_bytes) {
        free(req->ret_data);
        fetch(gc, 0, gc->table.pages_bytes, on_pages);
        return;
    }
    gc->table_pages = req->ret_data;
    fetch(gc, gc->table.crcs_offset, gc->table.crcs_bytes, on_crcs);
}

static void read_next(struct gc *gc)
{
    if (!gc_must_stop(gc)) {
        fetch(gc, 0, PART_TABLE_FIRST_BYTES, on_first);
    }
}

void mark_read(struct gc *gc)
{
    if (gc->table_next < gc->table_count) {
        gc_rest(gc, read_next);
        return;
    }
    if (gc->mark_count > 0) {
        qsort(gc->marks, gc->mark_count, sizeof(*gc->marks), compare_objects);
    }
    if (gc->checking) {
        dues_checked(gc);
    } else {
        batch_remove(gc);
    }
}

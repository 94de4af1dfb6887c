/* SPDX-License-Identifier: Apache-2.0
 *
 * Marking: finds the objects of some checkpoints that are referred to, for a user (the dues, or the
 * batch) that says which checkpoints these are. Whatever a checkpoint refers to, its base refers to
 * or holds, word for word. So an object of X can only be in the tables of X and of the checkpoints
 * whose chain of bases leads to X; only their object tables are read. An opening has a claim on its
 * base, which is not reclaimed meanwhile, so the base's table speaks for the opening. A table that
 * cannot be read keeps everything that it might refer to.
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
    if (gc->mark.table_count == gc->mark.table_cap) {
        size_t cap = gc->mark.table_cap == 0 ? 64 : gc->mark.table_cap * 2;
        struct table_of *grown = realloc(gc->mark.tables, cap * sizeof(*grown));
        if (!grown) {
            return false;
        }
        gc->mark.tables = grown;
        gc->mark.table_cap = cap;
    }
    gc->mark.tables[gc->mark.table_count++] = *of;
    return true;
}

static bool add_commit(struct gc *gc, const struct state_commit *commit)
{
    struct table_of of = {.id = commit->entry.id,
                          .open_id = commit->entry.open_id,
                          .world_size = commit->entry.world_size};
    return add_table(gc, &of);
}

/* Under the record of another run, all checkpoints of a run would look like leftovers of failed
 * saves, and the part says which run it belongs to. */
bool mark_add_dead(struct gc *gc, const struct store_name *part)
{
    struct table_of of = {.id = part->id,
                          .open_id = part->tag,
                          .first_rank = part->number,
                          .world_size = part->number + 1,
                          .is_dead = true};
    CHECK(part->kind == STORE_PART);
    CHECK(part->number < UINT32_MAX);
    return add_table(gc, &of);
}

/* Returns the next one in a chain of bases, or NULL. A base has a smaller sequence, so the walk
 * ends. */
static const struct state_commit *base_of(const struct run_state *state,
                                          const struct state_commit *commit)
{
    const struct state_commit *base = mark_commit(state, commit->entry.base);
    return base && base->entry.seq < commit->entry.seq ? base : NULL;
}

/* Returns true if the commit's chain of bases leads to a checkpoint whose objects may be
 * removed. */
static bool leads_to_any(const struct gc *gc, const struct run_state *state,
                         const struct state_commit *commit)
{
    for (; commit && commit->entry.base.term != 0; commit = base_of(state, commit)) {
        if (gc->mark.user->may_go(gc, commit->entry.base)) {
            return true;
        }
    }
    return false;
}

bool mark_plan(struct gc *gc, const struct mark_user *user, bool any_may_go,
               const struct run_state *state)
{
    mark_clear(gc);
    CHECK(user->done != NULL);
    gc->mark.user = user;
    gc->mark.run_uuid = state->info.run_uuid;
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        bool stays = !commit->reclaimed && !user->is_gone(gc, commit->entry.id);
        bool is_read = user->reads_own(gc, commit->entry.id) ||
                       (any_may_go && stays && leads_to_any(gc, state, commit));
        if (is_read && !add_commit(gc, commit)) {
            return false;
        }
    }
    return true;
}

void mark_clear(struct gc *gc)
{
    free(gc->mark.pages);
    gc->mark.pages = NULL;
    gc->mark.table_count = gc->mark.table_next = gc->mark.count = 0;
    gc->mark.rank = 0;
}

static void read_next(struct gc *gc);

/* --- reading ---------------------------------------------------------------------------------- */

static int compare_objects(const void *a, const void *b) { return object_id_compare(a, b); }

bool mark_has(const struct gc *gc, const struct object_id *id)
{
    CHECK(gc->mark.table_next == gc->mark.table_count); /* all are read, and the ids sorted */
    return gc->mark.count > 0 && bsearch(id, gc->mark.ids, gc->mark.count, sizeof(*gc->mark.ids),
                                         compare_objects) != NULL;
}

/* Reads a range of the next part. */
static void fetch(struct gc *gc, uint64_t offset, uint64_t bytes,
                  void (*done)(struct store_req *req))
{
    CHECK(gc->mark.table_next < gc->mark.table_count);
    const struct table_of *of = &gc->mark.tables[gc->mark.table_next];
    CHECK(gc->mark.rank < of->world_size);
    gc->req = (struct store_req){.op = STORE_FETCH,
                                 .name = {.run = gc->status.run,
                                          .id = of->id,
                                          .kind = STORE_PART,
                                          .number = gc->mark.rank,
                                          .tag = of->open_id},
                                 .run = gc->status.run,
                                 .offset = offset,
                                 .bytes = bytes};
    gc_submit(gc, done);
}

/* Goes on with the part of the next rank, or with the next checkpoint. */
static void next_table(struct gc *gc)
{
    CHECK(gc->mark.table_next < gc->mark.table_count);
    free(gc->mark.pages);
    gc->mark.pages = NULL;
    gc->mark.rank++;
    if (gc->mark.rank == gc->mark.tables[gc->mark.table_next].world_size) {
        gc->mark.table_next++;
        mark_read(gc);
    } else {
        gc_rest(gc, read_next);
    }
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
        state ? mark_commit(state, gc->mark.tables[gc->mark.table_next].id) : NULL;
    bool good = true;
    gc->snapshot.run = NULL; /* answered */
    if (!commit) {
        gc->mark.user->keep_all(gc);
    }
    while (commit && commit->entry.base.term != 0) {
        const struct state_commit *base = mark_commit(state, commit->entry.base);
        bool is_new = gc->mark.user->keep(gc, commit->entry.base);
        good = (!is_new || !base || add_commit(gc, base)) && good;
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
    const struct table_of *of = &gc->mark.tables[gc->mark.table_next];
    CHECK(status != 0);
    struct diag whole = DIAG_INIT;
    char name[RUN_NAME_TEXT_MAX], remedy[RUN_NAME_TEXT_MAX + 160] = "";
    if (of->is_dead) {
        next_table(gc); /* it is removed anyway */
        return;
    }
    run_name_format(&gc->status.run, name);
    if (repair_helps(status)) {
        snprintf(remedy, sizeof(remedy),
                 "; repair the part (`cairn verify %s %" PRIu64 "@%" PRIu64
                 " --repair`), or forget that checkpoint as well",
                 name, of->id.step, of->id.term);
    }
    diag_set(&whole, status,
             "the part of rank %" PRIu32 " of checkpoint %" PRIu64 "@%" PRIu64
             " cannot be read (%.200s), so every object that it may refer to stays%s",
             gc->mark.rank, of->id.step, of->id.term, diag_text(diag, status), remedy);
    gc_note(gc, status, &whole, "reading an object table");
    gc->mark.user->lose_own(gc, of->id);
    gc->snapshot = (struct run_snapshot_req){.done = on_unreadable_state, .any_age = true};
    run_snapshot(gc->visit.run, &gc->snapshot);
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
        diag_set(diag, CAIRN_E_DAMAGED, "the part is shorter than its header says");
        free(req->ret_data);
        unreadable(gc, CAIRN_E_DAMAGED, diag);
        return false;
    }
    return true;
}

/* Adds the ids that the user asks for to the marks. Returns false if there is no
 * memory. */
static bool add_marks(struct gc *gc, size_t count, const struct object_id *ids)
{
    if (gc->mark.cap - gc->mark.count < count) {
        size_t cap = gc->mark.cap * 2 + count + 256;
        struct object_id *grown = realloc(gc->mark.ids, cap * sizeof(*grown));
        if (!grown) {
            return false;
        }
        gc->mark.ids = grown;
        gc->mark.cap = cap;
    }
    for (size_t i = 0; i < count; i++) {
        if (gc->mark.user->is_asked(gc, (struct ckpt_id){ids[i].term, ids[i].step})) {
            CHECK(gc->mark.count < gc->mark.cap);
            gc->mark.ids[gc->mark.count++] = ids[i];
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
    if (!take_bytes(gc, req, gc->mark.table.crcs_bytes, &diag)) {
        return;
    }
    struct object_id *ids = calloc((size_t)gc->mark.table.object_count + 1, sizeof(*ids));
    const struct part_table *table = &gc->mark.table;
    int status = ids ? part_table_read(table, gc->mark.pages, req->ret_data, ids, &diag)
                     : diag_no_memory(&diag, "an object table");
    if (status == 0 && !add_marks(gc, gc->mark.table.object_count, ids)) {
        status = diag_no_memory(&diag, "an object table");
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
    if (!take_bytes(gc, req, gc->mark.table.pages_bytes, &diag)) {
        return;
    }
    free(gc->mark.pages);
    gc->mark.pages = req->ret_data;
    fetch(gc, gc->mark.table.crcs_offset, gc->mark.table.crcs_bytes, on_crcs);
}

/* Called with the beginning of a part, which says where its table of objects lies. */
static void on_first(struct store_req *req)
{
    struct gc *gc = container_of(req, struct gc, req);
    const struct table_of *of = &gc->mark.tables[gc->mark.table_next];
    struct diag diag = DIAG_INIT;
    if (!take_bytes(gc, req, 1, &diag)) {
        return;
    }
    int status = part_table_begin((size_t)req->ret_bytes, req->ret_data, &gc->mark.table, &diag);
    bool is_ours =
        memcmp(&gc->mark.table.run_uuid, &gc->mark.run_uuid, sizeof(gc->mark.run_uuid)) == 0;
    if (status == 0 && of->is_dead) {
        free(req->ret_data);
        if (!is_ours) {
            gc->mark.user->is_foreign(gc, of->id);
        }
        next_table(gc);
        return;
    }
    /* It is whole, but of another checkpoint or rank: what it names would be kept, and what is
     * really referred to would be removed. */
    bool is_this = ckpt_id_equal(gc->mark.table.id, of->id) && gc->mark.table.rank == gc->mark.rank;
    if (status == 0 && !(is_ours && is_this)) {
        status = diag_set(&diag, CAIRN_E_DAMAGED, "the part belongs to another checkpoint or rank");
    }
    if (status != 0) {
        free(req->ret_data);
        unreadable(gc, status, &diag);
        return;
    }
    if (gc->mark.table.pages_bytes > req->ret_bytes) {
        free(req->ret_data);
        fetch(gc, 0, gc->mark.table.pages_bytes, on_pages);
        return;
    }
    CHECK(gc->mark.pages == NULL);
    gc->mark.pages = req->ret_data;
    fetch(gc, gc->mark.table.crcs_offset, gc->mark.table.crcs_bytes, on_crcs);
}

static void read_next(struct gc *gc)
{
    if (!gc_must_stop(gc)) {
        fetch(gc, 0, PART_TABLE_FIRST_BYTES, on_first);
    }
}

void mark_read(struct gc *gc)
{
    CHECK(gc->mark.user);
    if (gc->mark.table_next < gc->mark.table_count) {
        gc->mark.rank = gc->mark.tables[gc->mark.table_next].first_rank;
        gc_rest(gc, read_next);
        return;
    }
    if (gc->mark.count > 0) {
        qsort(gc->mark.ids, gc->mark.count, sizeof(*gc->mark.ids), compare_objects);
    }
    gc->mark.user->done(gc);
}

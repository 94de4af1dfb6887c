/* SPDX-License-Identifier: Apache-2.0
 *
 * Marking: finds the objects of some checkpoints that are referred to, for a user (the dues, or the
 * batch) that says which checkpoints these are. Whatever a checkpoint refers to, its base refers to
 * or holds, word for word. So an object of X can only be in the tables of X and of the checkpoints
 * whose chain of bases leads to X; only their object tables are read. An opening has a claim on its
 * base, which is not reclaimed meanwhile, so the base's table speaks for the opening. A table that
 * cannot be read keeps everything that it might refer to. Plans are made on the loop, with a state
 * of the run; the rest is the pass's thread.
 */
#include "gc_private.h"

#include "base/array.h"
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
    bool is_stale = gc->order.dry_run && id.term < state->newest_term;
    return !is_stale && state_open_find(state, id);
}

/* Adds a part to the list of those to read. Returns false if there is no memory. */
static bool add_table(struct gc *gc, const struct table_of *of)
{
    struct table_of *grown =
        array_room(gc->mark.tables, gc->mark.table_count, &gc->mark.table_cap, sizeof(*grown));
    if (!grown) {
        return false;
    }
    gc->mark.tables = grown;
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
    const struct state_commit *base = commit_any(state, commit->entry.base);
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
    gc->mark.user = user;
    gc->mark.run_uuid = state->info.run_uuid;
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        bool stays = !commit->reclaimed && !user->is_gone(gc, commit->entry.id);
        bool is_read = (user->reads_own && user->reads_own(gc, commit->entry.id)) ||
                       (any_may_go && stays && leads_to_any(gc, state, commit));
        if (is_read && !add_commit(gc, commit)) {
            return false;
        }
    }
    return true;
}

void mark_clear(struct gc *gc)
{
    gc->mark.table_count = gc->mark.count = 0;
    gc->mark.is_sorted = false;
}

/* --- reading ---------------------------------------------------------------------------------- */

bool mark_has(const struct gc *gc, const struct object_id *id)
{
    CHECK(gc->mark.is_sorted);
    return array_find(id, gc->mark.ids, gc->mark.count, sizeof(*id), object_id_order) != NULL;
}

/* A part whose table is read. */
struct one_table {
    struct gc *gc;
    const struct table_of *of;
    uint32_t rank;
    bool has_memory;
};

/* Called with the state, or NULL if the record cannot be read. The checkpoint refers to nothing but
 * what its base holds or refers to: so the base's objects stay, and the base's table speaks for the
 * rest; if the base was reclaimed, the same holds for its own base, and so on. If the chain is not
 * known, everything that was to be removed stays. */
static void keep_base(void *user, const struct run_state *state)
{
    struct one_table *one = user;
    struct gc *gc = one->gc;
    const struct state_commit *commit = state ? commit_any(state, one->of->id) : NULL;
    if (!commit) {
        gc->mark.user->keep_all(gc);
    }
    while (commit && commit->entry.base.term != 0) {
        const struct state_commit *base = commit_any(state, commit->entry.base);
        bool is_new = gc->mark.user->keep(gc, commit->entry.base);
        one->has_memory = (!is_new || !base || add_commit(gc, base)) && one->has_memory;
        commit = base && base->reclaimed ? base_of(state, commit) : NULL;
    }
}

/* Handles a table that cannot be read: what it may refer to stays, and the report says why, and
 * what helps. */
static int unreadable(struct one_table *one, int status, const struct diag *diag)
{
    struct gc *gc = one->gc;
    const struct table_of *of = one->of;
    struct diag whole = DIAG_INIT;
    char remedy[RUN_NAME_TEXT_MAX + 160] = "";
    CHECK(status != 0);
    CHECK(!of->is_dead);
    if (reader_is_damage(status)) { /* after what passes nobody should repair or forget anything */
        snprintf(
            remedy, sizeof(remedy),
            "; repair the part (`cairn verify %s %s --repair`), or forget that checkpoint as well",
            run_name_text(&gc->now.run).at, ckpt_id_text(of->id).at);
    }
    err_ignore(diag_set(
        &whole, status,
        "the part of rank %" PRIu32
        " of checkpoint %s cannot be read (%.200s), so every object that it may refer to stays%s",
        one->rank, ckpt_id_text(of->id).at, diag_text(diag, status), remedy));
    status = gc_note(gc, status, &whole, "reading an object table");
    if (status != 0) {
        return status;
    }
    if (gc->mark.user->lose_own) {
        gc->mark.user->lose_own(gc, of->id);
    }
    status = ask_state(&gc->ask, gc->visit.run, keep_base, one, NULL);
    if (status != 0 && status != CAIRN_E_CANCELLED) {
        keep_base(one, NULL);
        status = 0;
    }
    return status != 0 || one->has_memory ? status : CAIRN_E_NO_MEMORY;
}

/* Adds the ids that the user asks for to the marks. Returns false if there is no
 * memory. */
static bool add_marks(struct gc *gc, size_t count, const struct object_id *ids)
{
    const struct mark_user *user = gc->mark.user;
    CHECK(count == 0 || ids != NULL);
    if (gc->mark.cap - gc->mark.count < count) {
        size_t cap = gc->mark.cap * 2 + count + 256;
        struct object_id *grown = realloc(gc->mark.ids, cap * sizeof(*grown));
        if (!grown) {
            return false;
        }
        gc->mark.ids = grown;
        gc->mark.cap = cap;
    }
    for (size_t i = 0; user->is_asked && i < count; i++) {
        if (user->is_asked(gc, (struct ckpt_id){ids[i].term, ids[i].step})) {
            CHECK(gc->mark.count < gc->mark.cap);
            gc->mark.ids[gc->mark.count++] = ids[i];
        }
    }
    return true;
}

static void count_read(struct store_source *source, int status, uint64_t bytes)
{
    struct gc *gc = container_of(source, struct gc, source);
    CHECK(status == 0 || bytes == 0);
    gc->now.bytes_read += bytes;
    gc_show(gc);
}

/* Reads the object table of a part, and marks what it names. A table that is whole but belongs to
 * another checkpoint or rank would keep what it names, and what is really referred to would be
 * removed; so it counts as damaged. Of a dead part it only matters whose it is. */
static int read_table(struct one_table *one)
{
    struct gc *gc = one->gc;
    const struct table_of *of = one->of;
    struct store_name name = {.run = gc->now.run,
                              .id = of->id,
                              .kind = STORE_PART,
                              .number = one->rank,
                              .tag = of->open_id};
    struct part_table table;
    struct object_id *ids = NULL;
    struct diag diag = DIAG_INIT;
    int status = reader_table(&gc->source.reader, &name, &table, of->is_dead ? NULL : &ids, &diag);
    bool is_ours =
        status == 0 && memcmp(&table.run_uuid, &gc->mark.run_uuid, sizeof(gc->mark.run_uuid)) == 0;
    if (of->is_dead) {
        if (status == 0 && !is_ours) {
            gc->mark.user->is_foreign(gc, of->id);
        }
        return status == CAIRN_E_CANCELLED ? status : 0; /* it is removed anyway */
    }
    bool is_this = is_ours && ckpt_id_equal(table.id, of->id) && table.rank == one->rank;
    if (status == 0 && !is_this) {
        status = diag_set(&diag, CAIRN_E_DAMAGED, "the part belongs to another checkpoint or rank");
    }
    if (status == 0 && !add_marks(gc, table.object_count, ids)) {
        status = diag_no_memory(&diag, "an object table");
    }
    free(ids);
    return status != 0 ? unreadable(one, status, &diag) : 0;
}

void mark_init(struct gc *gc)
{
    gc->source = (struct store_source){.ask = &gc->ask,
                                       .store = catalog_store(gc->options.catalog),
                                       .tries = 1, /* the next pass tries again */
                                       .tried = count_read};
    store_source_init(&gc->source);
}

int mark_read(struct gc *gc, int (*plan)(struct gc *gc, const struct run_state *state))
{
    int status = gc_state(gc, plan);
    if (status != 0) {
        return status;
    }
    CHECK(gc->mark.user);
    for (size_t i = 0; i < gc->mark.table_count; i++) { /* unreadable() may add some */
        struct table_of of = gc->mark.tables[i];
        struct one_table one = {.gc = gc, .of = &of, .rank = of.first_rank, .has_memory = true};
        for (; status == 0 && one.rank < of.world_size; one.rank++) {
            status = read_table(&one);
        }
    }
    if (gc->mark.count > 0) {
        qsort(gc->mark.ids, gc->mark.count, sizeof(*gc->mark.ids), object_id_order);
    }
    gc->mark.is_sorted = status == 0;
    return status;
}

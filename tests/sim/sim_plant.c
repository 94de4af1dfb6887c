/* SPDX-License-Identifier: Apache-2.0
 *
 * See sim_plant.h. A function that is called from another file of its folder is reached through
 * __wrap_NAME here, which may change what goes in and what comes out. One world, one thread.
 */
#include "sim_plant.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "core/retention.h"
#include "gc/gc_private.h"
#include "run/part_refs.h"
#include "run/run_private.h"
#include "sim_scene.h"

struct first_seen { /* a pass found something of this one dead, for the first time */
    const struct gc *gc;
    struct run_name run;
    struct ckpt_id id;
    uint64_t mark, pass;
};

static struct scene *world; /* the one that runs */
static const struct sim_mutant *planted;
static struct first_seen *first_seens;
static size_t first_seen_count, first_seen_cap;

void plant(struct scene *scene, const struct sim_mutant *mutant)
{
    world = scene;
    planted = mutant;
    first_seen_count = 0;
}

void plant_fini(void)
{
    free(first_seens);
    first_seens = NULL;
    first_seen_count = first_seen_cap = 0;
    world = NULL;
    planted = NULL;
}

static bool is(enum mutant kind) { return mutant_is(planted, kind); }

/* --- references ------------------------------------------------------------------- */

__typeof__(part_refs_has) __real_part_refs_has, __wrap_part_refs_has;

bool __wrap_part_refs_has(const struct part_refs *refs, const struct object_id *id,
                          const struct part_chunk *chunk)
{
    return is(MUTANT_ANY_REFERENCE) || __real_part_refs_has(refs, id, chunk);
}

__typeof__(part_encode) __real_part_encode, __wrap_part_encode;

static bool is_of_base(const struct part *part, uint32_t object)
{
    const struct object_id *id = &part->objects[object].id;
    return id->term != part->id.term || id->step != part->id.step;
}

/* An object that there never was; or what lies there is said to be something else. */
static void lie(struct part *part, struct part_chunk *chunk)
{
    if (world->seed / 4 % 2 == 0) {
        part->objects[chunk->object].id.sequence ^= 0x40000000;
    } else {
        chunk->digest.bytes[0] ^= 1;
    }
}

/* Not a fault of the world but of a rank, which has a bug: its part as it tells it to the server is
 * not what it compared. */
void __wrap_part_encode(const struct part *part, struct buf *buf)
{
    struct part told = *part;
    uint32_t at = 0;
    while (at < part->chunk_count && !is_of_base(part, part->chunks[at].object)) {
        at++;
    }
    if (!world->liar || world->lied || world->healed || at == part->chunk_count) {
        __real_part_encode(part, buf);
        return;
    }
    told.objects = calloc(part->object_count, sizeof *told.objects);
    told.chunks = calloc(part->chunk_count, sizeof *told.chunks);
    CHECK(told.objects && told.chunks);
    memcpy(told.objects, part->objects, part->object_count * sizeof *told.objects);
    memcpy(told.chunks, part->chunks, part->chunk_count * sizeof *told.chunks);
    lie(&told, &told.chunks[at]);
    world->lied = true;
    scene_tell(world, "rank %u lies about a chunk of its base", part->rank);
    __real_part_encode(&told, buf);
    free(told.objects);
    free(told.chunks);
}

/* --- start-up --------------------------------------------------------------------- */

__typeof__(catalog_swept) __real_catalog_swept, __wrap_catalog_swept;

void __wrap_catalog_swept(struct catalog *catalog)
{
    const struct run_name *name = &catalog->sweep_names[catalog->sweep_next - 1];
    for (size_t i = 0; i < catalog->run_count; i++) {
        const struct run *run = catalog->runs[i];
        if (is(MUTANT_LOST_SWEEP) && run->users > 0 && run_name_equal(&run->name, name)) {
            return;
        }
    }
    __real_catalog_swept(catalog);
}

/* --- the core --------------------------------------------------------------------- */

__typeof__(commit_step) __real_commit_step, __wrap_commit_step;

static void *copy_of(struct scratch *scratch, size_t count, size_t bytes, const void *items)
{
    void *copy = scratch_array(scratch, count + 1, bytes);
    CHECK(copy);
    if (count > 0) {
        memcpy(copy, items, count * bytes);
    }
    return copy;
}

/* What forget and reclaim see of the state. */
static void blind(struct run_state *state, struct scratch *scratch)
{
    if (is(MUTANT_NO_CLAIMS)) {
        state->opens = copy_of(scratch, state->open_count, sizeof *state->opens, state->opens);
        for (size_t i = 0; i < state->open_count; i++) {
            state->opens[i].entry.base = (struct ckpt_id){0, 0};
        }
    }
    if (is(MUTANT_NO_LEASES)) {
        state->restore_count = 0;
    }
}

/* The decision once more, by a naive look: what goes serves no open save and no restore. */
static void check_uses(const struct run_state *state, const struct ckpt_id id)
{
    const char *use = NULL;
    for (size_t i = 0; i < state->open_count; i++) {
        bool is_void = state->opens[i].id.term != state->newest_term;
        use = !is_void && ckpt_id_equal(state->opens[i].entry.base, id) ? "the base of an open save"
                                                                        : use;
    }
    for (size_t i = 0; i < state->restore_count; i++) {
        const struct entry_restore *entry = &state->restores[i].entry;
        bool runs = entry->state == RESTORE_RUNNING && ckpt_id_equal(entry->id, id);
        use = runs ? "being restored" : use;
    }
    if (use) {
        scene_fail(world, "I6: %" PRIu64 "@%" PRIu64 " is %s, and may be forgotten or reclaimed",
                   id.step, id.term, use);
    }
}

void __wrap_commit_step(const struct run_state *state, const struct event *event,
                        struct scratch *scratch, struct verdict *ret)
{
    struct run_state seen = *state;
    struct event asked = *event;
    if (event->kind == EVENT_FORGET || event->kind == EVENT_RECLAIM) {
        blind(&seen, scratch);
    }
    if (event->kind == EVENT_RECLAIM && is(MUTANT_EARLY_RECLAIM)) {
        asked.u.mark.cycles = 0;
    }
    __real_commit_step(&seen, &asked, scratch, ret);
    bool takes = event->kind == EVENT_FORGET || event->kind == EVENT_RECLAIM;
    for (size_t i = 0; takes && ret->code == 0 && i < ret->u.marks.count; i++) {
        if (ret->u.marks.items[i].outcome == MARK_DONE) {
            check_uses(state, ret->u.marks.items[i].id);
        }
    }
}

__typeof__(retention_guard) __real_retention_guard, __wrap_retention_guard;

void __wrap_retention_guard(const struct retention_item *items, size_t count,
                            const struct retention_guards *guards, enum mark_outcome *outcomes)
{
    __real_retention_guard(items, count, guards, outcomes);
    for (size_t i = 0; i < count; i++) {
        bool last = outcomes[i] == MARK_NEWEST || outcomes[i] == MARK_LEAST;
        if ((last && is(MUTANT_FORGET_LAST)) ||
            (outcomes[i] == MARK_PINNED && is(MUTANT_FORGET_PINNED))) {
            outcomes[i] = MARK_DONE;
        }
    }
}

/* --- garbage collection ----------------------------------------------------------- */

__typeof__(mark_plan) __real_mark_plan, __wrap_mark_plan;

bool __wrap_mark_plan(struct gc *gc, const struct mark_user *user, bool any_may_go,
                      const struct run_state *state)
{
    for (size_t i = 0; i < gc->batch.count; i++) {
        struct batch_ckpt *ckpt = &gc->batch.ckpts[i];
        if (ckpt->kind == KIND_OPEN && is(MUTANT_TAKE_OPEN)) {
            ckpt->kind = KIND_DEAD;
            ckpt->ripe = true;
        } else if (ckpt->kind == KIND_OPEN && is(MUTANT_SWEEP_UNGUARDED)) {
            ckpt->kind = KIND_LIVE; /* nothing of it is removed, but it is swept */
            ckpt->ripe = false;
        }
        ckpt->ripe = ckpt->ripe || is(MUTANT_ONE_CYCLE);
        for (size_t k = 0; k < state->open_count; k++) {
            if (ckpt_id_equal(state->opens[k].id, ckpt->id) && ckpt->kind != KIND_OPEN) {
                scene_fail(world, "I6: gc takes %" PRIu64 "@%" PRIu64 " for over, which is open",
                           ckpt->id.step, ckpt->id.term);
            }
        }
    }
    return __real_mark_plan(gc, user, any_may_go, state);
}

static struct first_seen *first_seen_of(const struct gc *gc, const struct batch_ckpt *ckpt)
{
    for (size_t i = 0; i < first_seen_count; i++) {
        const struct first_seen *seen = &first_seens[i];
        if (seen->gc == gc && run_name_equal(&seen->run, gc->visit.name) &&
            ckpt_id_equal(seen->id, ckpt->id)) {
            return &first_seens[i];
        }
    }
    if (first_seen_count == first_seen_cap) {
        first_seen_cap = first_seen_cap ? first_seen_cap * 2 : 64;
        first_seens = realloc(first_seens, first_seen_cap * sizeof *first_seens);
        CHECK(first_seens);
    }
    first_seens[first_seen_count] =
        (struct first_seen){.gc = gc, .run = *gc->visit.name, .id = ckpt->id};
    return &first_seens[first_seen_count++];
}

/* What no checkpoint was ever made of goes in the second pass that finds it so, not before. */
static void check_batch(struct gc *gc)
{
    for (size_t i = 0; i < gc->batch.count; i++) {
        const struct batch_ckpt *ckpt = &gc->batch.ckpts[i];
        struct first_seen *seen = first_seen_of(gc, ckpt);
        if (seen->pass == 0 || seen->mark != ckpt->mark || seen->pass > gc->now.pass) {
            seen->mark = ckpt->mark;
            seen->pass = gc->now.pass;
        }
        bool waits = ckpt->kind == KIND_DEAD || ckpt->kind == KIND_LIVE;
        if (waits && ckpt->ripe && seen->pass == gc->now.pass) {
            scene_fail(world,
                       "%" PRIu64 "@%" PRIu64 " may lose objects in the first pass that "
                       "finds them dead",
                       ckpt->id.step, ckpt->id.term);
        }
    }
}

/* Between the marking of a batch and its removal; the dues have no batch. */
__typeof__(mark_read) __real_mark_read, __wrap_mark_read;

int __wrap_mark_read(struct gc *gc, int (*plan)(struct gc *gc, const struct run_state *state))
{
    int status = __real_mark_read(gc, plan);
    if (status == 0) {
        check_batch(gc);
    }
    return status;
}

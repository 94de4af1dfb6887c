/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a save lies in the arena. As a rule it has one extent for everything. A save that is larger
 * than the arena may be goes in waves: each lot of payloads has an extent of its own, which is
 * given back when the objects made of it are durable and no socket sends from it, and taken again
 * for a later lot. Objects end with their lot, so that no object stays open for want of room for
 * another lot. Invariant: bytes that are not durable stay in the arena until the save is over, so
 * that every try sends the same bytes. Loop's thread.
 */
#include "save/save_private.h"

#include "base/check.h"

/* In the arena at once, so that copying and sending overlap. */
enum { WAVE_OBJECTS = 4, WAVE_PAYLOADS = 8 };

/* Returns the most that the arena may have, in whole pages, or 0 if it may have as much as is asked
 * for. */
static uint64_t room_bytes(const struct save *save)
{
    uint64_t most = arena_max_bytes(save->common.engine->options.arena);
    return most - most % LIMIT_ALIGN_BYTES;
}

/* Lays the save out again in smaller lots, of which at least two must fit into the arena. */
static int lay_out_waves(struct save *save, struct layout_options options, struct diag *diag)
{
    struct layout *layout = &save->layout;
    uint64_t room = room_bytes(save), largest = 0, all = layout->extent_bytes;
    uint64_t object_bytes = max_u64(1, room / WAVE_OBJECTS);
    options.object_bytes =
        options.object_bytes > 0 ? min_u64(options.object_bytes, object_bytes) : object_bytes;
    options.payload_bytes = (uint32_t)max_u64(options.chunk_bytes,
                                              min_u64(options.payload_bytes, room / WAVE_PAYLOADS));
    layout_fini(layout);
    int rc = layout_init(layout, save->common.set, &options, diag);
    for (uint32_t i = 0; rc == 0 && i < layout->object_count; i++) {
        largest = max_u64(largest, layout->objects[i].data_bytes);
    }
    if (rc == 0 && largest > room / 2) {
        rc =
            diag_set(diag, CAIRN_E_ARENA_TOO_SMALL,
                     "the arena may have %llu bytes; this save of %llu bytes, in waves, needs %llu "
                     "at least: raise arena_bytes",
                     (unsigned long long)arena_max_bytes(save->common.engine->options.arena),
                     (unsigned long long)all, (unsigned long long)(2 * largest));
        layout_fini(layout);
    }
    save->waves = rc == 0;
    return rc;
}

/* Makes the counters of payloads that are still needed, for a save in waves. */
static bool note_lots(struct save *save)
{
    const struct layout *layout = &save->layout;
    if (!save->waves) {
        return true;
    }
    save->lots_left =
        scratch_array(&save->scratch, layout->object_count + 1, sizeof *save->lots_left);
    save->given = scratch_alloc(&save->scratch, layout->payload_count + 1);
    for (uint32_t i = 0; save->lots_left && save->given && i < layout->object_count; i++) {
        save->lots_left[i] = layout->objects[i].payload_count;
    }
    return save->lots_left != NULL && save->given != NULL;
}

int save_room_lay_out(struct save *save, struct diag *diag)
{
    struct layout_options options = engine_layout_options(save->common.engine);
    options.share = &save->agree.share;
    uint64_t room = room_bytes(save);
    int rc = layout_init(&save->layout, save->common.set, &options, diag);
    if (rc == 0 && room > 0 && save->layout.extent_bytes > room) {
        rc = lay_out_waves(save, options, diag);
    }
    rc = rc != 0 ? rc : save_stream_init(save, diag);
    if (rc == 0) {
        save->places =
            scratch_array(&save->scratch, save->layout.object_count + 1, sizeof *save->places);
        rc = save->places && note_lots(save)
                 ? 0
                 : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a save of %u lots",
                            save->layout.object_count);
    }
    if (rc == 0) {
        save->laid_out = true;
        save->common.chunk_bytes = (uint32_t)options.chunk_bytes;
        atomic_store(&save->common.user->total_bytes, save->layout.plain_bytes);
    }
    return rc;
}

/* --- taking ---------------------------------------------------------------------- */

static uint64_t wanted_bytes(const struct save *save)
{
    return save->waves ? room_bytes(save) : save->layout.extent_bytes;
}

/* Takes one extent for the whole save. Returns false if there is no room for it now. */
static bool take_whole(struct save *save)
{
    save->extent = save->extent
                       ? save->extent
                       : arena_take(save->common.engine->options.arena, save->layout.extent_bytes);
    if (!save->extent) {
        return false;
    }
    for (uint32_t i = 0; i < save->layout.object_count; i++) {
        save->places[i] = save->extent + save->layout.objects[i].at;
    }
    save->placed = save->layout.object_count;
    return true;
}

/* Takes extents for further lots, for as many as there is room. Returns whether any lot has had its
 * place. */
static bool take_objects(struct save *save)
{
    struct arena *arena = save->common.engine->options.arena;
    while (save->placed < save->layout.object_count) {
        uint8_t *place = arena_take(arena, save->layout.objects[save->placed].data_bytes);
        if (!place) {
            break;
        }
        save->places[save->placed++] = place;
    }
    return save->placed > 0;
}

static void on_reserve_run(struct work *work)
{
    struct save *save = container_of(work, struct save, reserve);
    save->reserve_status =
        arena_reserve(save->common.engine->options.arena, wanted_bytes(save), &save->reserve_diag);
    engine_pin_arena(save->common.engine->options.arena, save->common.set->gpu);
}

/* Called on the loop's thread when the arena has grown, or could not. */
static void on_reserve_done(struct work *work)
{
    struct save *save = container_of(work, struct save, reserve);
    save->reserving = false;
    if (save->reserve_status != 0) {
        save_fail(save, save->reserve_status, &save->reserve_diag);
    } else {
        engine_log_arena(save->common.engine);
    }
    save_wake(&save->common);
}

bool save_room_take(struct save *save)
{
    struct arena *arena = save->common.engine->options.arena;
    if (save->common.engine->prepare.running) {
        return false; /* the worker has the arena */
    }
    if (wanted_bytes(save) <= arena_bytes(arena)) {
        return save->waves ? take_objects(save) : take_whole(save);
    }
    if (arena_used_bytes(arena) == 0 && !save->reserving) {
        save->reserving = true;
        save->reserve = (struct work){.run = on_reserve_run, .done = on_reserve_done};
        work_submit(save->common.engine->options.pool, &save->reserve);
    }
    return false;
}

bool save_room_is_free(struct save *save)
{
    const struct arena *arena = save->common.engine->options.arena;
    list_each (node, &save->common.engine->saves) {
        const struct save *other = save_of_link(node);
        if (other == save) {
            break;
        }
        if (other->reserving || save_is_queued(other)) {
            return false; /* the room that there is belongs to that save */
        }
    }
    if (arena_used_bytes(arena) == 0) {
        return true;
    }
    return !save->waves && save->layout.extent_bytes <= arena_bytes(arena) && take_whole(save);
}

/* --- giving back ----------------------------------------------------------------- */

void save_room_more(struct save *save)
{
    if (save->waves && save->copying && save->common.status == 0) {
        (void)take_objects(save);
        if (save->watched) {
            snapshot_resume(&save->snapshot);
        }
    }
}

/* Marks a payload as not needed any more. The last one of a lot gives the lot's extent back. */
static void release(struct save *save, uint32_t payload)
{
    uint32_t lot = save->layout.payloads[payload].object;
    if (save->given[payload]) {
        return;
    }
    save->given[payload] = 1;
    if (--save->lots_left[lot] == 0) {
        CHECK(save->places[lot] != NULL);
        arena_give(save->common.engine->options.arena, save->places[lot]);
        save->places[lot] = NULL;
    }
}

void save_room_release_range(struct save *save, uint32_t from, uint32_t to)
{
    if (!save->waves || from >= to) {
        return;
    }
    for (uint32_t i = from; i < to; i++) {
        release(save, i);
    }
    if (save->copying) {
        save_room_more(save);
    } else {
        engine_wake_stagers(save->common.engine);
    }
}

void save_room_release(struct save *save, const struct save_object *object)
{
    if (object->state == OBJECT_DURABLE && object->slots_busy == 0) {
        save_room_release_range(save, object->payload_first, object->payload_end);
    }
}

bool save_room_has(const struct save *save, const struct save_object *object)
{
    for (uint32_t i = object->payload_first; save->waves && i < object->payload_end; i++) {
        if (save->given[i]) {
            return false;
        }
    }
    return true;
}

bool save_room_ends(const struct save *save, const struct save_object *object, uint32_t payload)
{
    const struct layout *layout = &save->layout;
    return save->waves && payload < layout->payload_count &&
           layout->payloads[payload].object != layout->payloads[object->payload_first].object;
}

void save_room_give(struct save *save)
{
    for (uint32_t i = 0; save->waves && i < save->placed; i++) {
        if (save->places[i]) {
            save_hand_give(save, save->places[i]);
            save->places[i] = NULL;
        }
    }
    if (save->extent) {
        save_hand_give(save, save->extent);
        save->extent = NULL;
    }
    save->placed = 0;
}

uint8_t *save_payload_data(const struct save *save, uint32_t payload_idx)
{
    const struct layout_payload *payload = &save->layout.payloads[payload_idx];
    uint8_t *place = save->places[payload->object];
    CHECK(place != NULL);
    return place + (payload->at - save->layout.objects[payload->object].at);
}

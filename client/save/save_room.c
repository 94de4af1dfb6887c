/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a save lies in the arena. As a rule it has one extent for everything. A save that is larger
 * than the arena may be goes in waves: each lot of payloads has an extent of its own, which is
 * given back when the objects made of it are durable and no socket sends from it, and taken again
 * for a later lot. Objects end with their lot, so that no object stays open for want of room for
 * another lot. Invariant: bytes that are not durable stay in the arena until the save is over, so
 * that every try sends the same bytes. Loop's thread.
 */
#include "save/save_room_private.h"

#include "base/check.h"

#define ROOM_SCRATCH_MAX ((size_t)4 << 30)

/* In the arena at once, so that copying and sending overlap. */
enum { WAVE_OBJECTS = 4, WAVE_PAYLOADS = 8 };

/* Returns the most that the arena may have, in whole pages, or 0 if it may have as much as is asked
 * for. */
static uint64_t room_bytes(const struct save_room *room)
{
    uint64_t bytes = arena_max_bytes(room->common->engine->options.arena);
    return bytes - bytes % LIMIT_ALIGN_BYTES;
}

/* Lays the save out again in smaller lots, of which at least two must fit into the arena. */
static int lay_out_waves(struct save_room *room, struct layout_options options, struct diag *diag)
{
    struct layout *layout = &room->layout;
    uint64_t most = room_bytes(room), largest = 0, all = layout->extent_bytes;
    uint64_t object_bytes = max_u64(1, most / WAVE_OBJECTS);
    options.object_bytes =
        options.object_bytes > 0 ? min_u64(options.object_bytes, object_bytes) : object_bytes;
    options.payload_bytes = (uint32_t)max_u64(options.chunk_bytes,
                                              min_u64(options.payload_bytes, most / WAVE_PAYLOADS));
    layout_fini(layout);
    int rc = layout_init(layout, room->common->set, &options, diag);
    for (uint32_t i = 0; rc == 0 && i < layout->object_count; i++) {
        largest = max_u64(largest, layout->objects[i].data_bytes);
    }
    if (rc == 0 && largest > most / 2) {
        rc =
            diag_set(diag, CAIRN_E_ARENA_TOO_SMALL,
                     "the arena may have %llu bytes; this save of %llu bytes, in waves, needs %llu "
                     "at least: raise arena_bytes",
                     (unsigned long long)arena_max_bytes(room->common->engine->options.arena),
                     (unsigned long long)all, (unsigned long long)(2 * largest));
        layout_fini(layout);
    }
    room->waves = rc == 0;
    return rc;
}

/* Makes the counters of payloads that are still needed, for a save in waves. */
static bool note_lots(struct save_room *room)
{
    const struct layout *layout = &room->layout;
    if (!room->waves) {
        return true;
    }
    room->lots_left =
        scratch_array(&room->scratch, layout->object_count + 1, sizeof *room->lots_left);
    room->given = scratch_alloc(&room->scratch, layout->payload_count + 1);
    for (uint32_t i = 0; room->lots_left && room->given && i < layout->object_count; i++) {
        room->lots_left[i] = layout->objects[i].payload_count;
    }
    return room->lots_left != NULL && room->given != NULL;
}

int save_room_lay_out(struct save_room *room, const struct share *share, struct diag *diag)
{
    struct save_common *common = room->common;
    struct layout *layout = &room->layout;
    struct layout_options options = engine_layout_options(common->engine);
    options.share = share;
    CHECK(room->places == NULL);
    scratch_init(&room->scratch, ROOM_SCRATCH_MAX);
    uint64_t most = room_bytes(room);
    int rc = layout_init(layout, common->set, &options, diag);
    if (rc == 0 && most > 0 && layout->extent_bytes > most) {
        rc = lay_out_waves(room, options, diag);
    }
    if (rc != 0) {
        return rc;
    }
    room->places = scratch_array(&room->scratch, layout->object_count + 1, sizeof *room->places);
    if (!room->places || !note_lots(room)) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a save of %u lots",
                        layout->object_count);
    }
    common->chunk_bytes = (uint32_t)options.chunk_bytes;
    atomic_store(&common->user->total_bytes, layout->plain_bytes);
    return 0;
}

/* --- taking ---------------------------------------------------------------------- */

uint64_t save_room_wanted_bytes(const struct save_room *room)
{
    return room->waves ? room_bytes(room) : room->layout.extent_bytes;
}

/* Takes one extent for the whole save. Returns false if there is no room for it now. */
static bool take_whole(struct save_room *room)
{
    room->extent = room->extent
                       ? room->extent
                       : arena_take(room->common->engine->options.arena, room->layout.extent_bytes);
    if (!room->extent) {
        return false;
    }
    for (uint32_t i = 0; i < room->layout.object_count; i++) {
        room->places[i] = room->extent + room->layout.objects[i].at;
    }
    room->placed = room->layout.object_count;
    return true;
}

/* Takes extents for further lots, for as many as there is room. Returns whether any lot has had its
 * place. */
static bool take_lots(struct save_room *room)
{
    struct arena *arena = room->common->engine->options.arena;
    while (room->placed < room->layout.object_count) {
        uint8_t *place = arena_take(arena, room->layout.objects[room->placed].data_bytes);
        if (!place) {
            break;
        }
        room->places[room->placed++] = place;
    }
    return room->placed > 0;
}

bool save_room_take(struct save_room *room)
{
    CHECK(room->places != NULL);
    return room->waves ? take_lots(room) : take_whole(room);
}

/* --- giving back ----------------------------------------------------------------- */

/* Marks a payload as not needed any more. The last one of a lot gives the lot's extent back. */
static void release(struct save_room *room, uint32_t payload)
{
    uint32_t lot = room->layout.payloads[payload].object;
    if (room->given[payload]) {
        return;
    }
    room->given[payload] = 1;
    CHECK(room->lots_left[lot] > 0);
    if (--room->lots_left[lot] == 0) {
        CHECK(room->places[lot] != NULL);
        arena_give(room->common->engine->options.arena, room->places[lot]);
        room->places[lot] = NULL;
    }
}

void save_room_release(struct save_room *room, uint32_t from, uint32_t to)
{
    CHECK(to <= room->layout.payload_count);
    if (!room->waves || from >= to) {
        return;
    }
    for (uint32_t i = from; i < to; i++) {
        release(room, i);
    }
    engine_wake_stagers(room->common->engine); /* this save itself may be resting for want of it */
}

bool save_room_has(const struct save_room *room, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; room->waves && i < to; i++) {
        if (room->given[i]) {
            return false;
        }
    }
    return true;
}

bool save_room_ends(const struct save_room *room, uint32_t first, uint32_t payload)
{
    const struct layout *layout = &room->layout;
    return room->waves && payload < layout->payload_count &&
           layout->payloads[payload].object != layout->payloads[first].object;
}

/* Gives memory back to the arena, or retires it if the daemon may still read it: nobody has said
 * that it does not, and the next save must not write there. */
static void give(struct save_room *room, uint8_t **place)
{
    struct arena *arena = room->common->engine->options.arena;
    if (*place && room->lent) {
        arena_retire(arena, *place);
    } else if (*place) {
        arena_give(arena, *place);
    }
    *place = NULL;
}

void save_room_give(struct save_room *room)
{
    for (uint32_t i = 0; room->waves && i < room->placed; i++) {
        give(room, &room->places[i]);
    }
    give(room, &room->extent);
    room->placed = 0;
}

uint8_t *save_room_data(const struct save_room *room, uint32_t payload_idx)
{
    CHECK(payload_idx < room->layout.payload_count);
    const struct layout_payload *payload = &room->layout.payloads[payload_idx];
    uint8_t *place = room->places[payload->object];
    CHECK(place != NULL);
    return place + (payload->at - room->layout.objects[payload->object].at);
}

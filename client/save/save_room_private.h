/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a save lies in the arena: its layout, and a place for each lot of it. A lot is a run of
 * payloads that have their place together; the layout calls it an object. Loop's thread; workers
 * read the layout and the places of lots that they were given.
 */
#ifndef CAIRN_SAVE_SAVE_ROOM_PRIVATE_H
#define CAIRN_SAVE_SAVE_ROOM_PRIVATE_H

#include "save/save_common.h"
#include "share/layout.h"

struct save_room {
    struct save_common *common;
    struct scratch scratch; /* owns all arrays that are as long as the layout */
    struct layout layout;
    uint8_t *extent;     /* NULL if it has none, or goes in waves */
    uint8_t **places;    /* by lot: its first payload; NULL if it has no place yet, or no more */
    uint32_t placed;     /* lots before this one have had a place */
    uint32_t *lots_left; /* in waves, by lot: payloads that are still needed */
    uint8_t *given;      /* in waves, by payload: 1 once it is not needed any more */
    bool waves;          /* each lot has an extent of its own */
    bool lent;           /* the daemon was told to read it, for as long as nothing is decided */
};

/* Lays the save out, in waves if the arena may not have as much as it needs. Fails with
 * ARENA_TOO_SMALL, NO_MEMORY, or what layout_init says. */
int MUST_USE save_room_lay_out(struct save_room *room, const struct share *share,
                               struct diag *diag);
/* Returns how large the arena must be for the save to begin. */
uint64_t save_room_wanted_bytes(const struct save_room *room);
/* Takes what room there is. Returns whether the copy can begin. */
bool save_room_take(struct save_room *room);
/* In waves: gives back the payloads from..to, which are not needed any more. */
void save_room_release(struct save_room *room, uint32_t from, uint32_t to);
/* Returns false if any of the payloads from..to was given back. */
bool save_room_has(const struct save_room *room, uint32_t from, uint32_t to);
/* Returns whether an object that began with payload `first` must end before `payload`, because in
 * waves it ends with its lot. */
bool save_room_ends(const struct save_room *room, uint32_t first, uint32_t payload);
/* Gives everything back. Memory that the daemon may still read is retired instead. */
void save_room_give(struct save_room *room);
uint8_t *save_room_data(const struct save_room *room, uint32_t payload);

#endif

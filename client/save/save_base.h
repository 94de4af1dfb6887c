/* SPDX-License-Identifier: Apache-2.0
 *
 * save_base: the checkpoint that a save refers to, called its base. The server names it in OPENED,
 * together with those of its objects that are mostly dead and must not be referred to. Its part is
 * known from this rank's own last save, or is fetched. Loop's thread; workers read it once it is
 * known.
 */
#ifndef CAIRN_SAVE_SAVE_BASE_H
#define CAIRN_SAVE_SAVE_BASE_H

#include "pack/base_part.h"
#include "save/save_room_private.h"

/* Below SAVE_GAIN_PERCENT_MIN per cent of unchanged bytes, only one save in SAVE_COMPARE_EVERY
 * compares. */
enum { SAVE_GAIN_PERCENT_MIN = 10, SAVE_COMPARE_EVERY = 10 };

enum base_state { BASE_UNKNOWN, BASE_FETCHING, BASE_KNOWN /* digests may begin */ };

struct save_base {
    struct save_common *common;
    const struct save_room *room;
    enum base_state state;
    struct ckpt_id id;      /* as the server named it; term 0 means none */
    struct base_part *part; /* a reference; NULL if nothing is referred to */
    uint32_t *chunk_of;     /* by piece: 1 + index of the base's chunk at its place, or 0 */
    struct engine_call fetch;
    uint32_t sparse_count;
    struct object_id *sparse; /* objects of the base that must not be referred to */
};

/* Called for the first OPENED: notes which base it names, and takes the array of sparse objects
 * out of the message, where it is borrowed. */
void save_base_note(struct save_base *base, struct msg_opened *opened);
/* Finds the base, at once or after fetching it, once the save is opened and laid out; does nothing
 * before, and when it was called already. `compares` says whether comparing with it is of use. */
void save_base_begin(struct save_base *base, bool compares);
/* Returns whether comparing with a base is likely to pay for a save that may be handed over. */
bool save_base_is_worth_comparing(struct engine *engine);
/* Returns the digest of the base's chunk at the place of the piece, or NULL. */
const struct digest *save_base_digest(const struct save_base *base, uint32_t piece);
/* Drops a base that is known but must not be used, so that everything is sent. Only before any
 * payload was digested or described. */
void save_base_leave(struct save_base *base);
/* Called when committed: this part becomes a base for the next save. */
void save_base_keep(const struct save_common *common, const struct buf *part);
void save_base_end(struct save_base *base); /* stops fetching; wakes the save when that is over */
void save_base_fini(struct save_base *base);

#endif

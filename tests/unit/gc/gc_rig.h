/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of server/gc share: saves with real objects on a memory store, some of which refer
 * to older objects; a naive model of what must be there; passes that are waited for.
 */
#ifndef CAIRN_GC_RIG_H
#define CAIRN_GC_RIG_H

#include "gc/gc.h"
#include "run_rig.h"

enum { GC_SAVES_MAX = 256 };

struct gc_save {               /* what the test has made */
    struct ckpt_id id, holder; /* holder: whose objects it refers to; its own or an older one's */
    struct ckpt_id base;       /* that the server gave it; term 0: none */
    uint64_t open_id;
    bool committed;
    uint32_t written; /* ranks whose object and part were written, when it was given up */
};

struct gc_rig {
    struct rig rig; /* first */
    struct gc *gc;
    struct gc_status status; /* of the last pass */
    uint64_t next_step;
    size_t save_count;
    struct gc_save saves[GC_SAVES_MAX];
};

void gc_rig_init(struct gc_rig *g, uint64_t seed);
void gc_rig_fini(struct gc_rig *g);
/* The same, for cmocka. */
void gc_rig_setup(struct gc_rig *g);
struct gc_options gc_rig_options(struct gc_rig *g, uint64_t keep_cycles);
void gc_rig_start(struct gc_rig *g, uint64_t keep_cycles);
void gc_rig_stop(struct gc_rig *g); /* also in the middle of a pass */
/* A new attempt, which fences the one before. */
void gc_rig_attempt(struct gc_rig *g);
struct gc_save *gc_rig_save(struct gc_rig *g, bool incremental);
/* Opens a save, writes objects and parts of `written` ranks, and leaves the save open. */
struct gc_save *gc_rig_leave_open(struct gc_rig *g, uint32_t written);
/* Writes a save that gc_rig_leave_open() left open with nothing written, until it is committed. */
void gc_rig_finish(struct gc_rig *g, struct gc_save *save, bool incremental);
void gc_rig_abort(struct gc_rig *g, struct gc_save *save);
int gc_rig_forget(struct gc_rig *g, struct ckpt_id id);
void gc_rig_wait(struct gc_rig *g); /* for the end of a pass */
void gc_rig_pass(struct gc_rig *g, bool cycle);
struct store_name gc_rig_part(const struct gc_rig *g, const struct gc_save *save, uint32_t rank);
bool gc_rig_is_reclaimed(struct gc_rig *g, struct ckpt_id id);
size_t gc_rig_dead_count(struct gc_rig *g);
bool gc_rig_is_open(struct gc_rig *g, struct ckpt_id id);
bool gc_rig_has_object(struct gc_rig *g, struct ckpt_id id, uint32_t rank);
/* Checks that nothing is missing of a save that is open, or committed and not reclaimed (I6). */
void gc_rig_check_reachable(struct gc_rig *g);
/* Returns how many objects and documents the store lists that no such save needs. */
size_t gc_rig_count_garbage(struct gc_rig *g);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the machines of one save share: what the caller asked for, how far the save came at the
 * server, and how a machine reports to the root (save.c) without knowing it. Only the root changes
 * the fields. Loop's thread; workers read what does not change.
 */
#ifndef CAIRN_SAVE_SAVE_COMMON_H
#define CAIRN_SAVE_SAVE_COMMON_H

#include "engine/operations.h"
#include "save/save.h"

struct save_common;
struct save_stage;

/* What a machine reports upward. */
struct save_events {
    /* Something has happened for which another machine may be waiting. Each machine looks again; if
     * one of them is running, they look when it rests. */
    void (*wake)(struct save_common *common);
    /* Ends the save with a failure. Only the first failure counts. */
    void (*fail)(struct save_common *common, int status, const struct diag *diag);
    /* Frees the save. Its caller has its memory until the last callback, which follows. */
    void (*free)(struct save_common *common);
};

/* How far the save came at the server. Only OPENED and SEALED leave anything to be decided. */
enum save_reach {
    REACH_NOTHING, /* the server does not know this rank's save */
    REACH_OPENED,  /* OPENED came */
    REACH_SEALED,  /* SEAL or COMPLETE went out, so the save may be committed */
    REACH_DECIDED  /* the server has said what became of the opening */
};

struct save_common {
    struct engine_op op; /* of engine->saves */
    const struct save_events *events;
    struct engine *engine;
    struct engine_save *user;
    struct registered *set;    /* holds a reference */
    struct save_stage *stage;  /* other saves see by it whose turn it is */
    uint64_t number;           /* numbers this save among the engine's operations */
    uint64_t begun_ms, end_ms; /* when the call was made, and its deadline */
    enum save_reach reach;
    uint64_t sealed_ms; /* when it reached REACH_SEALED */
    uint64_t open_id;   /* of the opening that it takes part in */
    struct uuid run_uuid;
    uint32_t chunk_bytes; /* the chunk size that it is laid out for; 0 if it is not laid out */
    int status;           /* what it will end with; 0 so far means well */
};

/* Returns whether the save has failed, or its outcome is known: no machine begins anything then. */
static inline bool save_is_over(const struct save_common *common)
{
    return common->status != 0 || common->reach == REACH_DECIDED;
}

/* save_untold.c. Notes a declined step that its caller has been told of, so that the other ranks
 * will hear of it. Returns false if there is no memory. */
bool save_untold_add(const struct save_common *common, const struct diag *why);
/* Returns whether such a step waits for a connection. */
bool save_untold_has(const struct engine *engine, uint64_t step);
/* Begins to tell, if there is a connection, by saves that `start` starts. Any set of this rank will
 * do. */
typedef void save_start_fn(struct engine *engine, struct engine_save *save);
void save_untold_tell(struct engine *engine, struct registered *set, save_start_fn *start);
bool save_untold_is_teller(const struct engine_save *user);

static inline void save_wake(struct save_common *common) { common->events->wake(common); }

static inline void save_fail(struct save_common *common, int status, const struct diag *diag)
{
    common->events->fail(common, status, diag);
}

#endif

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

static inline void save_wake(struct save_common *common) { common->events->wake(common); }

static inline void save_fail(struct save_common *common, int status, const struct diag *diag)
{
    common->events->fail(common, status, diag);
}

#endif

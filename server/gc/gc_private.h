/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of the garbage collector, and its parts. One thing is in flight at a time (a store
 * operation, an event, a question to the run, a timer); its completion calls the next step, so
 * there are no races inside, and stopping is a flag that each step looks at.
 *
 *   gc.c: next run -> cycle -> stale openings end
 *      dues.c: what is to be reclaimed -> can its space be given back? -> reclaim
 *   gc.c: list the checkpoints
 *      batch.c: list names of some of them -> read the record, decide
 *          marking.c: read the object tables of those that may refer to them
 *      batch.c: remove what is dead -> the next batch ... -> next run
 */
#ifndef CAIRN_GC_GC_PRIVATE_H
#define CAIRN_GC_GC_PRIVATE_H

#include "gc/gc.h"
#include "gc/known.h"
#include "gc/part_table.h"

enum {
    GC_LOOK_MS = 5000,   /* how often to look whether this daemon has the duty */
    GC_FIRST_MS = 60000, /* from the start to the first pass, which begins no cycle */
    GC_STORE_DEADLINE_MS = 60000,
    /* After this time without a byte moved by a session, sessions count as idle. */
    GC_QUIET_MS = 1000,
    GC_SHARE = 20,     /* beside busy sessions, gc uses one part in this many of the time */
    GC_PAUSE_MS = 20,  /* the shortest pause beside busy sessions */
    GC_STALE_MAX = 64, /* stale openings that one pass ends */
    BATCH_CKPTS_MAX = 128,
    BATCH_NAMES_MAX = 65536,
};

enum ckpt_kind {
    KIND_UNKNOWN,   /* the record should know it and does not, so everything stays */
    KIND_OPEN,      /* nothing of it is touched */
    KIND_LIVE,      /* committed, perhaps forgotten: removes what it does not refer to */
    KIND_RECLAIMED, /* removes what no other checkpoint refers to */
    KIND_DEAD       /* of openings that were never committed: removes everything */
};

struct batch_ckpt {
    struct ckpt_id id;
    enum ckpt_kind kind;
    uint64_t mark;    /* the event that made it dead or complete: see known.h */
    uint64_t open_id; /* KIND_LIVE: the tag of the small things that stay */
    bool unreadable;  /* a table that may refer to it cannot be read: its objects stay */
    bool ripe;        /* its dead things were already dead in an earlier pass */
    bool has_root;    /* KIND_LIVE: the manifest that its commit names is there */
    bool for_good;    /* nobody can open it again: it was committed, or its term is fenced */
    size_t object_count, small_count;
    struct object_id *objects;
    struct store_name *smalls;
};

struct table_of { /* a checkpoint whose object tables have to be read */
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t first_rank, world_size; /* the ranks from first_rank up to, but without, world_size */
    bool for_itself;                 /* it is a KIND_LIVE of the batch itself */
    bool is_dead;                    /* it is a KIND_DEAD: checks that it belongs to this run */
};

struct due { /* a forgotten checkpoint that the pass reclaims */
    struct ckpt_id id;
    bool has_objects;
    bool stuck; /* its space cannot be freed, so it stays forgotten */
};

struct stale {
    struct ckpt_id id;
    uint64_t open_id;
};

/* What a pass has to do. The order owns its arrays. */
struct pass_order {
    bool dry_run, cycle; /* cycle: a cycle begins with the pass */
    bool now;            /* reclaims without waiting, and does not yield to sessions */
    bool pressed;        /* because room is wanted: reclaims `picks`, for `reason` */
    char actor[ENTRY_ACTOR_BYTES];
    size_t run_count;
    struct run_name *runs; /* only these runs; NULL for all */
    struct press_pick
        *picks; /* pressure: only these checkpoints, in the order in which they were forgotten */
    size_t pick_count;
    char reason[ENTRY_REASON_BYTES]; /* of pressure, for the chain */
};

/* A forgotten checkpoint that may be reclaimed because room is wanted. */
struct press_pick {
    struct run_name run;
    struct ckpt_id id;
    int64_t forgotten_wall_ns;
    uint64_t seq, bytes;
};

/* The search for forgotten checkpoints under pressure; see pressure.c. */
struct press {
    char project[LIMIT_RUN_NAME_BYTES + 1]; /* only its runs; "" for all */
    uint64_t need;                          /* bytes to free */
    char reason[ENTRY_REASON_BYTES];
    size_t pick_count, pick_cap;
    struct press_pick *picks;
    /* What refused saves have lacked; "" and 0 if nothing. */
    char wanted_project[LIMIT_RUN_NAME_BYTES + 1];
    uint64_t wanted_bytes;
    uint64_t refusals; /* refusals of the store that were already handled */
};

struct gc {
    struct gc_options options;
    struct timer timer;
    struct post post;
    void (*step)(struct gc *gc);
    struct store_req req;
    struct run_req event;
    struct run_snapshot_req snapshot;
    void (*done)(struct store_req *req);
    bool busy;  /* a request is at the store */
    bool first; /* the first pass after the start is yet to come */
    bool running, closing, is_asked;
    bool looking; /* searching under pressure, between two passes */
    struct press press;
    struct pass_order asked, order; /* asked: the next one, if is_asked; order: the one that runs */
    uint64_t due_ms;
    int64_t due_wall_ns;
    /* For gc_rest(): op_ms is when the last operation began, took_ms how long it took. */
    uint64_t load, busy_ms, op_ms, took_ms;
    struct gc_status status;
    struct known known;
    struct run_name *names;
    size_t name_count, name_next;
    struct run *run;
    uint64_t cycle;
    bool marked;       /* state_is_marked(): nothing of the run is removed */
    uint64_t fenced;   /* terms below this were fenced before anything was listed */
    size_t bury_count; /* dead entries of which nothing is stored any more */
    struct ckpt_id *buries;
    size_t stale_count, stale_next;
    struct stale stales[GC_STALE_MAX];
    struct ckpt_id *ckpts; /* checkpoints of the run that have to be examined */
    size_t ckpt_count, ckpt_next;
    struct ckpt_id *ids; /* of the run: the ids that the reclaim event names */
    size_t id_count;
    struct due *dues; /* of the run, sorted by id; in a dry run, those that count as reclaimed */
    size_t due_count, due_at;
    bool checking; /* tables are being read for the dues, not for the batch */
    size_t batch_count, batch_at, item_at, sweep_at;
    size_t batch_names;
    struct batch_ckpt batch[BATCH_CKPTS_MAX];
    struct uuid run_uuid; /* of the run, to compare with the headers of its parts */
    size_t table_count, table_next, table_cap;
    struct table_of *tables;
    uint32_t table_rank;
    struct part_table table;
    uint8_t *table_pages;
    size_t mark_count, mark_cap;
    struct object_id *marks; /* objects that are referred to; sorted once all tables are read */
    bool removing_smalls, removed_any;
    void (*closed)(void *user);
    void *closed_user;
};

/* gc.c */
bool gc_must_stop(struct gc *gc);
void gc_note(struct gc *gc, int status, const struct diag *diag, const char *what);
/* Calls step now, or after a pause if sessions are busy. */
void gc_rest(struct gc *gc, void (*step)(struct gc *gc));
/* Submits gc->req, which the caller has filled in. Clears busy before it calls done. */
void gc_submit(struct gc *gc, void (*done)(struct store_req *req));
void gc_next_run(struct gc *gc);
void gc_list_ckpts(struct gc *gc); /* called after the reclaim */
void gc_stop_pass(struct gc *gc);  /* ends the pass: no memory, or the store is read-only */

void gc_end_look(struct gc *gc); /* ends the search: there is no pressure, or nothing to reclaim */
void gc_begin_pressed(struct gc *gc, const struct pass_order *order); /* takes the order's arrays */

/* pressure.c */

/* Starts the search under pressure. Returns false if there is no reason to search. After true,
 * gc_end_look() or gc_begin_pressed() will be called. */
bool press_look(struct gc *gc);
void press_clear(struct gc *gc);
/* Gives the checkpoints of the present run that the order names. *ret is malloc'ed and the caller
 * frees it. Returns NO_MEMORY if there is no memory. */
int MUST_USE press_ids(const struct gc *gc, struct ckpt_id **ret, size_t *ret_count);

/* dues.c */
void dues_begin(struct gc *gc);   /* ends with gc_list_ckpts() */
void dues_checked(struct gc *gc); /* called when the tables were read */
struct due *dues_find(const struct gc *gc, struct ckpt_id id);
bool dues_has(const struct gc *gc, struct ckpt_id id); /* it counts as reclaimed */
void dues_clear(struct gc *gc);

/* batch.c */
void batch_begin(struct gc *gc);  /* goes on at ckpt_next; calls gc_next_run() if none is left */
void batch_remove(struct gc *gc); /* called when the tables were read */
void batch_clear(struct gc *gc);
struct batch_ckpt *batch_find(struct gc *gc, struct ckpt_id id);

/* marking.c */

/* Returns the number that identifies the state of a commit (known.h). A repair leaves the damaged
 * bytes under a name that is dead, so it changes the number, and what was known is void. */
uint64_t mark_of_commit(const struct state_commit *commit);
/* Returns true if the checkpoint has an opening. In a dry run an opening of a fenced term does not
 * count, because a real pass ends it first. */
bool mark_is_open(const struct gc *gc, const struct run_state *state, struct ckpt_id id);
const struct state_commit *mark_commit(const struct run_state *state, struct ckpt_id id);
/* Called for a checkpoint that belongs to another record. Nothing of it is removed, and the pass
 * reports it. */
void batch_note_unknown(struct gc *gc, struct batch_ckpt *ckpt);
/* Lists the tables that have to be read for the batch. Returns false if there is no memory. */
bool mark_plan(struct gc *gc, const struct run_state *state);
/* Lists the tables for the dues: those of all kept checkpoints that may refer to one of them. */
bool mark_plan_dues(struct gc *gc, const struct run_state *state);
/* Ends with batch_remove(), or with dues_checked() if gc->checking. */
void mark_read(struct gc *gc);
bool mark_has(const struct gc *gc, const struct object_id *id);
void mark_clear(struct gc *gc);

#endif

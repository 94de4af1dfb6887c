/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this folder share. One thing is in flight at a time (a store operation, an
 * event, a question to the run, a timer); its completion calls the next step, so there are no races
 * inside, and stopping is a flag that each step looks at.
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
    GC_LOOK_MS = 5000,   /* without a duty: look again */
    GC_FIRST_MS = 60000, /* from the start to the first pass, which begins no cycle */
    GC_STORE_DEADLINE_MS = 60000,
    GC_QUIET_MS = 1000, /* without a byte moved by a session: nobody is disturbed */
    GC_SHARE = 20,      /* beside sessions: of so much time, one part */
    GC_PAUSE_MS = 20,   /* the least pause beside sessions */
    GC_STALE_MAX = 64,  /* stale openings ended in a pass */
    BATCH_CKPTS_MAX = 128,
    BATCH_NAMES_MAX = 65536,
};

enum ckpt_kind {
    KIND_UNKNOWN,   /* the record should know of it: it is not what it was; all stays */
    KIND_OPEN,      /* nothing of it is touched */
    KIND_LIVE,      /* committed, forgotten ones too: what it does not refer to goes */
    KIND_RECLAIMED, /* what nobody else refers to goes */
    KIND_DEAD       /* of openings that came to nothing: all goes */
};

struct batch_ckpt {
    struct ckpt_id id;
    enum ckpt_kind kind;
    uint64_t mark;    /* what made it dead or complete: see known.h */
    uint64_t open_id; /* KIND_LIVE: the tag of what stays */
    bool unreadable;  /* a table that may refer to it cannot be read: no object goes */
    bool ripe;        /* what is dead was so in an earlier pass */
    bool has_root;    /* KIND_LIVE: the manifest that its commit names is there */
    bool for_good;    /* nobody can open it again: it was committed once, or its term is fenced */
    size_t object_count, small_count;
    struct object_id *objects;
    struct store_name *smalls;
};

struct table_of { /* a checkpoint whose tables are to be read */
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t first_rank, world_size; /* whose parts: from the one, below the other */
    bool for_itself;                 /* of KIND_LIVE in the batch */
    bool is_dead;                    /* of KIND_DEAD: is it this run's at all? */
};

struct due { /* a forgotten checkpoint that the pass reclaims */
    struct ckpt_id id;
    bool has_objects;
    bool stuck; /* its space cannot be given back: it stays forgotten */
};

struct stale {
    struct ckpt_id id;
    uint64_t open_id;
};

/* What a pass is to do. */
struct pass_order {
    bool dry_run, cycle; /* cycle: one begins with it */
    bool now;            /* reclaims without waiting, and does not rest beside sessions */
    bool pressed;        /* because room is wanted: of `picks`, for `reason` */
    char actor[ENTRY_ACTOR_BYTES];
    size_t run_count;
    struct run_name *runs;    /* of these only; NULL: of all. The order's */
    struct press_pick *picks; /* pressure: of these checkpoints only, run by run. The order's */
    size_t pick_count;
    char reason[ENTRY_REASON_BYTES]; /* pressure */
};

/* A forgotten checkpoint that may be reclaimed for want of room. */
struct press_pick {
    struct run_name run;
    struct ckpt_id id;
    int64_t forgotten_wall_ns;
    uint64_t seq, bytes;
};

/* The look for pressure; see pressure.c. */
struct press {
    char project[LIMIT_RUN_NAME_BYTES + 1]; /* of its runs only; "": of all */
    uint64_t need;                          /* bytes */
    char reason[ENTRY_REASON_BYTES];
    size_t pick_count, pick_cap;
    struct press_pick *picks;
    /* What saves that were refused have lacked; "": nothing. */
    char wanted_project[LIMIT_RUN_NAME_BYTES + 1];
    uint64_t wanted_bytes;
    uint64_t refusals; /* of the store, that were looked at */
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
    bool busy;  /* the store has something */
    bool first; /* the pass after the start is yet to come */
    bool running, closing, is_asked;
    bool looking; /* for pressure: between two passes */
    struct press press;
    struct pass_order asked, order; /* the next one, where is_asked; the one that runs */
    uint64_t due_ms;
    int64_t due_wall_ns;
    uint64_t load, busy_ms, op_ms, took_ms; /* see gc_rest; op: begun, took: the last one */
    struct gc_status status;
    struct known known;
    struct run_name *names;
    size_t name_count, name_next;
    struct run *run;
    uint64_t cycle;
    bool marked;       /* nothing of the run is removed: state_is_marked */
    uint64_t fenced;   /* terms below were fenced before anything was listed */
    size_t bury_count; /* dead entries of which nothing is stored */
    struct ckpt_id *buries;
    size_t stale_count, stale_next;
    struct stale stales[GC_STALE_MAX];
    struct ckpt_id *ckpts; /* of the run: to be looked at */
    size_t ckpt_count, ckpt_next;
    struct ckpt_id *ids; /* of the run: what the reclaim event names */
    size_t id_count;
    struct due *dues; /* of the run, by id; of a dry run until its end: taken for reclaimed */
    size_t due_count, due_at;
    bool checking; /* the tables are read for the dues, not for the batch */
    size_t batch_count, batch_at, item_at, sweep_at;
    size_t batch_names;
    struct batch_ckpt batch[BATCH_CKPTS_MAX];
    struct uuid run_uuid; /* of the run: what its parts' headers say */
    size_t table_count, table_next, table_cap;
    struct table_of *tables;
    uint32_t table_rank;
    struct part_table table;
    uint8_t *table_pages;
    size_t mark_count, mark_cap;
    struct object_id *marks; /* referred to; sorted when all tables were read */
    bool removing_smalls, removed_any;
    void (*closed)(void *user);
    void *closed_user;
};

/* gc.c */
bool gc_must_stop(struct gc *gc);
void gc_note(struct gc *gc, int status, const struct diag *diag, const char *what);
/* Calls step now, or after a rest when sessions are at work. */
void gc_rest(struct gc *gc, void (*step)(struct gc *gc));
/* Submits gc->req, which the caller has filled; done is called with busy cleared. */
void gc_submit(struct gc *gc, void (*done)(struct store_req *req));
void gc_next_run(struct gc *gc);
void gc_list_ckpts(struct gc *gc); /* after the reclaim */
void gc_stop_pass(struct gc *gc);  /* no memory, or the store takes no changes: the pass is over */

void gc_end_look(struct gc *gc); /* for pressure: there is none, or nothing can be done */
void gc_begin_pressed(struct gc *gc, const struct pass_order *order); /* takes what it owns */

/* pressure.c */
/* False: there is nothing to look for. True: gc_end_look or gc_begin_pressed comes. */
bool press_look(struct gc *gc);
void press_clear(struct gc *gc);
/* The checkpoints of the run that the order names; *ret is into the order's picks' copy. */
int MUST_USE press_ids(const struct gc *gc, struct ckpt_id **ret, size_t *ret_count);

/* dues.c */
void dues_begin(struct gc *gc);   /* gc_list_ckpts comes */
void dues_checked(struct gc *gc); /* after the tables were read */
struct due *dues_find(const struct gc *gc, struct ckpt_id id);
bool dues_has(const struct gc *gc, struct ckpt_id id); /* to be taken for reclaimed */
void dues_clear(struct gc *gc);

/* batch.c */
void batch_begin(struct gc *gc);  /* from ckpt_next on; gc_next_run when there is none left */
void batch_remove(struct gc *gc); /* after the tables were read */
void batch_clear(struct gc *gc);
struct batch_ckpt *batch_find(struct gc *gc, struct ckpt_id id);

/* marking.c */
/* What its state is known by (known.h). A repair leaves the damaged bytes under a name that is
 * dead: so it makes what is known void. */
uint64_t mark_of_commit(const struct state_commit *commit);
/* An opening stands; of fenced ones a real run ends it first. */
bool mark_is_open(const struct gc *gc, const struct run_state *state, struct ckpt_id id);
const struct state_commit *mark_commit(const struct run_state *state, struct ckpt_id id);
/* It is not what this record is about: nothing of it goes, and the pass says so. */
void batch_note_unknown(struct gc *gc, struct batch_ckpt *ckpt);
/* Which tables are to be read for the batch; false: no memory. */
bool mark_plan(struct gc *gc, const struct run_state *state);
/* The same for the dues: those of all that is kept and may refer to one of them. */
bool mark_plan_dues(struct gc *gc, const struct run_state *state);
void mark_read(struct gc *gc); /* then batch_remove; dues_checked where gc->checking */
bool mark_has(const struct gc *gc, const struct object_id *id);
void mark_clear(struct gc *gc);

#endif

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
 *
 * gc.c is the root. It calls the parts, each of which has its own struct here; they call marking.c
 * and pass.c, and come back by what the caller gave them.
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
struct gc;

struct press {
    void (*chosen)(struct gc *gc, const struct pass_order *order);
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

/* What the pass knows of the run that it is at. */
struct visit {
    struct run *run; /* held; NULL between two runs */
    uint64_t cycle;
    bool marked;     /* state_is_marked(): nothing of the run is removed */
    bool may_bury;   /* there were dead entries before anything was listed */
    uint64_t fenced; /* terms below this were fenced before anything was listed */
    size_t stale_count, stale_next;
    struct stale stales[GC_STALE_MAX];
    size_t bury_count; /* dead entries of which nothing is stored any more */
    struct ckpt_id *buries;
    struct ckpt_id *ckpts; /* checkpoints that have to be examined */
    size_t ckpt_count, ckpt_next;
};

/* The dues of a run; see dues.c. */
struct dues {
    size_t count, at;
    struct due *items;   /* sorted by id; in a dry run, those that count as reclaimed */
    struct ckpt_id *ids; /* the ids that the reclaim event names */
    size_t id_count;
    void (*then)(struct gc *gc);
};

/* The checkpoints whose leftovers are removed together, sorted by id; see batch.c. */
struct batch {
    size_t count, names;
    size_t at, item, sweep; /* where removing and sweeping stand */
    bool in_smalls;         /* removes the small things of the checkpoint at `at` */
    struct batch_ckpt ckpts[BATCH_CKPTS_MAX];
};

/* Who asks for marking: the dues, or the batch. */
struct mark_user {
    /* Returns true if the checkpoint has objects that may be removed. */
    bool (*may_go)(const struct gc *gc, struct ckpt_id id);
    /* Returns true if the checkpoint counts as reclaimed, so that its table says nothing. */
    bool (*is_gone)(const struct gc *gc, struct ckpt_id id);
    /* Returns true if its own table has to be read because some of its objects may be dead. */
    bool (*reads_own)(const struct gc *gc, struct ckpt_id id);
    /* Returns true if the objects of the checkpoint are to be marked. */
    bool (*is_asked)(const struct gc *gc, struct ckpt_id id);
    /* Called for a checkpoint whose own table cannot be read. */
    void (*lose_own)(struct gc *gc, struct ckpt_id id);
    /* Called for a checkpoint that an unreadable table may refer to: keeps it. Returns true if its
     * own table has to be read from now on. */
    bool (*keep)(struct gc *gc, struct ckpt_id id);
    /* Called if nobody knows what an unreadable table may refer to: keeps everything. */
    void (*keep_all)(struct gc *gc);
    /* Called for a dead checkpoint whose part belongs to another run. */
    void (*is_foreign)(struct gc *gc, struct ckpt_id id);
    /* Called when all tables were read. */
    void (*done)(struct gc *gc);
};

/* The reading of object tables, and the objects that they refer to; see marking.c. */
struct marking {
    const struct mark_user *user;
    struct uuid run_uuid; /* to compare with the headers of the run's parts */
    size_t table_count, table_next, table_cap;
    struct table_of *tables;
    uint32_t rank; /* the one whose part of tables[table_next] is read */
    struct part_table table;
    uint8_t *pages;
    size_t count, cap;
    struct object_id *ids; /* objects that are referred to; sorted once all tables are read */
};

enum gc_doing {
    GC_WAITS,
    GC_LOOKS, /* searches under pressure, between two passes */
    GC_RUNS   /* a pass */
};

struct gc {
    struct gc_options options;
    enum gc_doing doing;
    struct timer timer;
    struct post post;
    void (*step)(struct gc *gc);
    struct store_req req;
    struct run_req event;
    struct run_snapshot_req snapshot;
    void (*done)(struct store_req *req);
    bool busy;  /* a request is at the store */
    bool first; /* the first pass after the start is yet to come */
    bool is_asked;
    struct pass_order asked, order; /* asked: the next one, if is_asked; order: the one that runs */
    uint64_t due_ms;
    int64_t due_wall_ns;
    /* For gc_rest(): op_ms is when the last operation began, took_ms how long it took. */
    uint64_t load, busy_ms, op_ms, took_ms;
    struct gc_status status;
    struct known known;
    struct run_name *names;
    size_t name_count, name_next;
    struct press press;
    struct visit visit;
    struct dues dues;
    struct batch batch;
    struct marking mark;
    void (*end_pass)(struct gc *gc), (*next_run)(struct gc *gc); /* gc.c's, for pass.c */
    void (*closed)(void *user); /* set once gc_close() was called */
    void *closed_user;
};

/* --- pass.c: what every part of a pass needs -------------------------------------------------- */

/* Returns true, and ends the pass, if gc is closing or may not run any more. */
bool gc_must_stop(struct gc *gc);
/* Notes an error of the present run for the status; the first damage stays. */
void gc_note(struct gc *gc, int status, const struct diag *diag, const char *what);
/* Calls step by the timer. */
void gc_later(struct gc *gc, uint64_t ms, void (*step)(struct gc *gc));
/* Calls step now, or after a pause if sessions are busy. */
void gc_rest(struct gc *gc, void (*step)(struct gc *gc));
/* Submits gc->req, which the caller has filled in. Clears busy before it calls done. */
void gc_submit(struct gc *gc, void (*done)(struct store_req *req));
/* Sends an event to the present run. */
void gc_submit_event(struct gc *gc, const struct event *event, void (*done)(struct run_req *req));
/* Asks the present run for its state. */
void gc_snapshot(struct gc *gc, void (*done)(struct run_snapshot_req *req));
void gc_next_run(struct gc *gc);  /* gives up the present run, or is done with it */
void gc_stop_pass(struct gc *gc); /* ends the pass: no memory, or the store is read-only */
bool gc_may_run(const struct gc *gc);

/* --- pressure.c ------------------------------------------------------------------------------- */

/* Starts the search under pressure. Returns false if there is no reason to search. After true,
 * chosen is called: with the order of a pass, whose arrays it takes, or with NULL if there is no
 * pressure or nothing to reclaim. */
bool press_look(struct gc *gc, void (*chosen)(struct gc *gc, const struct pass_order *order));
void press_clear(struct gc *gc);
/* Gives the checkpoints of the present run that the order names. *ret is malloc'ed and the caller
 * frees it. Returns NO_MEMORY if there is no memory. */
int MUST_USE press_ids(const struct gc *gc, struct ckpt_id **ret, size_t *ret_count);

/* --- marking.c -------------------------------------------------------------------------------- */

/* Returns the number that identifies the state of a commit (known.h). A repair leaves the damaged
 * bytes under a name that is dead, so it changes the number, and what was known is void. */
uint64_t mark_of_commit(const struct state_commit *commit);
/* Returns true if the checkpoint has an opening. In a dry run an opening of a fenced term does not
 * count, because a real pass ends it first. */
bool mark_is_open(const struct gc *gc, const struct run_state *state, struct ckpt_id id);
const struct state_commit *mark_commit(const struct run_state *state, struct ckpt_id id);
/* Lists the tables to read for the user: those that it reads itself, and, if there are any that may
 * go, those of all kept checkpoints that may refer to one of them. Returns false if there is no
 * memory. */
bool mark_plan(struct gc *gc, const struct mark_user *user, bool any_may_go,
               const struct run_state *state);
/* Adds the part of a checkpoint that is about to be removed as the leftover of a failed save, to
 * see that it belongs to this run. Called after mark_plan(). Returns false if there is no memory.
 */
bool mark_add_dead(struct gc *gc, const struct store_name *part);
/* Reads the tables. Ends with user->done(). */
void mark_read(struct gc *gc);
bool mark_has(const struct gc *gc, const struct object_id *id);
void mark_clear(struct gc *gc);

/* --- dues.c ----------------------------------------------------------------------------------- */

/* Reclaims what is due in the present run, and calls then. */
void dues_begin(struct gc *gc, void (*then)(struct gc *gc));
bool dues_has(const struct gc *gc, struct ckpt_id id); /* it counts as reclaimed */
void dues_clear(struct gc *gc);

/* --- batch.c ---------------------------------------------------------------------------------- */

void batch_begin(struct gc *gc); /* goes on at ckpt_next; calls gc_next_run() if none is left */
void batch_clear(struct gc *gc);

#endif

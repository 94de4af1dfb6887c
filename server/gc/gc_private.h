/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of the garbage collector, and its parts. A pass is straight-line code on a thread of
 * its own (in the simulator a fiber), which asks the loop for everything (reader/ask.h), one
 * question at a time; so there are no races inside. The schedule, the pace and what others are told
 * live on the loop. Each file calls only files that stand below it:
 *
 *   file          what it does
 *   gc.c          decides on the loop when a pass is due, ends it, and gives the status
 *   visit.c       goes from run to run: its cycle, stale openings, dues, what is stored
 *   batch.c       lists names of some checkpoints, reads the record, removes what is dead
 *   dues.c        finds what is to be reclaimed, and whether its space can be given back
 *   pressure.c    decides which forgotten checkpoints go because room is wanted
 *   marking.c     finds, through the reader, which objects other checkpoints may refer to
 *   known.c       remembers what earlier passes found
 *   pass.c        asks the store and the run; keeps errors and the status
 *
 * The functions of a pass return 0 if the pass goes on, and ENDED if it leaves the present run.
 * Other errors end the pass: CANCELLED (gc is closing, or another daemon has the duty), NO_MEMORY,
 * READ_ONLY.
 */
#ifndef CAIRN_GC_GC_PRIVATE_H
#define CAIRN_GC_GC_PRIVATE_H

#include "gc/gc.h"
#include "gc/known.h"
#include "reader/store_source.h"

enum {
    GC_GROUP = 32,     /* store operations that are asked for in one question */
    GC_STALE_MAX = 64, /* stale openings that one pass ends */
    BATCH_CKPTS_MAX = 128,
    BATCH_NAMES_MAX = 65536, /* no more are listed once there are so many */
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
    char reason[ENTRY_REASON_BYTES];    /* of pressure, for the chain */
    uint64_t keep_cycles, lease_cycles; /* as the schedule was when the pass began */
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
    /* The loop's: what refused saves have lacked; "" and 0 if nothing. */
    char wanted_project[LIMIT_RUN_NAME_BYTES + 1];
    uint64_t wanted_bytes;
    uint64_t refusals; /* refusals of the store that were already handled */
    /* The thread's: */
    char project[LIMIT_RUN_NAME_BYTES + 1]; /* only its runs; "" for all */
    uint64_t need;                          /* bytes to free */
    char reason[ENTRY_REASON_BYTES];
    struct store_req usage;
    size_t pick_count, pick_cap;
    struct press_pick *picks;
    bool lacks_memory;
};

/* What the pass knows of the run that it is at. */
struct visit {
    struct run *run; /* held; NULL between two runs */
    const struct run_name *name;
    uint64_t cycle;
    bool marked;     /* state_is_marked(): nothing of the run is removed */
    bool may_bury;   /* there were dead entries before anything was listed */
    uint64_t fenced; /* terms below this were fenced before anything was listed */
    size_t stale_count;
    struct stale stales[GC_STALE_MAX];
    size_t bury_count; /* dead entries of which nothing is stored any more */
    struct ckpt_id *buries;
    struct ckpt_id *ckpts; /* checkpoints that have to be examined */
    size_t ckpt_count, ckpt_next;
};

/* The dues of a run; see dues.c. */
struct dues {
    size_t count;
    struct due *items;   /* sorted by id; in a dry run, those that count as reclaimed */
    struct ckpt_id *ids; /* the ids that the reclaim event names */
    size_t id_count;
};

/* The checkpoints whose leftovers are removed together, sorted by id; see batch.c. */
struct batch {
    size_t count, names;
    struct batch_ckpt next; /* whose objects were listed, and whose small things are next */
    bool next_is_lost;      /* they could not be listed: it is left out */
    struct batch_ckpt ckpts[BATCH_CKPTS_MAX];
};

/* Who asks for marking: the dues, or the batch. */
struct mark_user {
    /* Returns true if the checkpoint has objects that may be removed. */
    bool (*may_go)(const struct gc *gc, struct ckpt_id id);
    /* Returns true if the checkpoint counts as reclaimed, so that its table says nothing. */
    bool (*is_gone)(const struct gc *gc, struct ckpt_id id);
    /* Returns true if its own table has to be read because some of its objects may be dead. NULL,
     * as the next two: never; which tables can be read matters, and not what they say. */
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
};

/* The reading of object tables, and the objects that they refer to; see marking.c. */
struct marking {
    const struct mark_user *user;
    struct uuid run_uuid; /* to compare with the headers of the run's parts */
    size_t table_count, table_cap;
    struct table_of *tables;
    size_t count, cap;
    struct object_id *ids; /* objects that are referred to */
    bool is_sorted;        /* all tables are read, and the ids are sorted */
};

struct gc {
    struct gc_options options;
    struct ask ask;
    struct store_source source; /* of the reader; the thread's */
    /* The loop's: */
    struct timer timer;
    struct post post;
    struct work work;
    bool busy;    /* the thread is at work: on a pass, or it looks whether room is wanted */
    bool running; /* on a pass */
    bool waiting; /* another daemon has the duty */
    bool first;   /* the first pass after the start is yet to come */
    bool is_asked;
    struct pass_order asked; /* the next pass, if is_asked */
    uint64_t due_ms;
    int64_t due_wall_ns;
    uint64_t load, busy_ms;     /* what sessions have moved, and until when they count as busy */
    void (*closed)(void *user); /* set once gc_close() was called */
    void *closed_user;
    /* The thread's while it is at work, else the loop's: */
    struct pass_order order; /* of the pass that runs */
    bool has_order;
    struct gc_status now;
    struct known known;
    struct run_name *names;
    size_t name_count;
    size_t group_count;
    struct store_req group[GC_GROUP]; /* operations that are asked for together */
    struct press press;
    struct visit visit;
    struct dues dues;
    struct batch batch;
    struct marking mark;
    pthread_mutex_t lock; /* guards shown */
    struct gc_status shown;
};

/* --- pass.c: what every part of a pass needs -------------------------------------------------- */

/* Makes what the pass has counted visible in the status. */
void gc_show(struct gc *gc);
/* Notes an error of the present run for the status; the first damage stays. Returns 0, or CANCELLED
 * without a note if that is the status. */
int MUST_USE gc_note(struct gc *gc, int status, const struct diag *diag, const char *what);
/* Runs one operation. Returns its status. */
int MUST_USE gc_store(struct gc *gc, struct store_req *io);
/* Adds an operation to gc->group. A full group is run first. */
int MUST_USE gc_group_add(struct gc *gc, const struct store_req *req,
                          int (*take)(struct gc *gc, struct store_req *req));
/* Runs the group, which is empty afterwards. Calls take with each operation that was not
 * cancelled, and returns the first error of these calls. */
int MUST_USE gc_group_run(struct gc *gc, int (*take)(struct gc *gc, struct store_req *req));
/* Makes a run the present one; false without memory. The other releases it, and forgets what the
 * pass knows of it. */
bool gc_take_run(struct gc *gc, const struct run_name *name);
void gc_release_run(struct gc *gc);
/* Has take called on the loop's thread with the state of the present run, and returns what it
 * returns. ENDED, with a note, if the record cannot be read. */
int MUST_USE gc_state(struct gc *gc, int (*take)(struct gc *gc, const struct run_state *state));

/* --- pressure.c ------------------------------------------------------------------------------- */

/* Called on the loop. Returns true if it is worth looking whether room is wanted. */
bool press_may_want(struct gc *gc);
/* Looks whether room is wanted. Returns true, with the order of a pass, whose arrays the caller
 * takes, if there is something to reclaim. */
bool press_find(struct gc *gc, struct pass_order *ret);
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

/* Lists the tables to read for the user: those that it reads itself, and, if there are any that may
 * go, those of all kept checkpoints that may refer to one of them. Returns false if there is no
 * memory. */
bool mark_plan(struct gc *gc, const struct mark_user *user, bool any_may_go,
               const struct run_state *state);
/* Adds the part of a checkpoint that is about to be removed as the leftover of a failed save, to
 * see that it belongs to this run. Called after mark_plan(). Returns false if there is no memory.
 */
bool mark_add_dead(struct gc *gc, const struct store_name *part);
/* Called once, before the others: says how the tables are read. */
void mark_init(struct gc *gc);
/* Reads the tables that `plan` lists, by mark_plan(), for the state of the present run. */
int MUST_USE mark_read(struct gc *gc, int (*plan)(struct gc *gc, const struct run_state *state));
bool mark_has(const struct gc *gc, const struct object_id *id);
void mark_clear(struct gc *gc);

/* --- dues.c ----------------------------------------------------------------------------------- */

/* Reclaims what is due in the present run. */
int MUST_USE dues_reclaim(struct gc *gc);
bool dues_has(const struct gc *gc, struct ckpt_id id); /* it counts as reclaimed */
void dues_clear(struct gc *gc);

/* --- batch.c ---------------------------------------------------------------------------------- */

/* Removes what is dead of the checkpoints that visit.ckpts names. */
int MUST_USE batch_remove(struct gc *gc);
void batch_clear(struct gc *gc);

/* --- visit.c ---------------------------------------------------------------------------------- */

/* Runs the pass that has begun. */
void visit_runs(struct gc *gc);

#endif

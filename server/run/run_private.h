/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of this folder share: the structs of catalogue and run, and the calls between
 * them. Everything lives on the loop's thread. Invariant: catalog.pending counts each store
 * operation, work item, post and operation that will come back; the catalogue is freed only when it
 * is closing and that is zero.
 */
#ifndef CAIRN_RUN_RUN_PRIVATE_H
#define CAIRN_RUN_RUN_PRIVATE_H

#include "docs.h"
#include "run.h"
#include "run_counts.h"

enum {
    RUN_TRIES_MAX = 32,     /* of one event against conflicts and unknown outcomes */
    RUN_BATCH_GAP_MS = 20,  /* between two updates with a batch, while more are to come */
    RUN_BATCH_MAX = 1024,   /* seals or reports in one update */
    RUN_TURN_MAX = 256,     /* events in one turn of the loop */
    RUN_RETRY_MS = 1000,    /* after a store error, for what the driver does on its own account */
    RUN_REFUSED_MS = 1000,  /* a refusal of the store is believed for so long, then tried again */
    RUN_POLL_FIRST_MS = 10, /* until the record is read again for what other daemons did */
    RUN_STORE_DEADLINE_MS = 60000, /* of one store operation */
};

struct finish;

/* An open entry that this daemon knows of: its deadline runs from when it was first seen. */
struct open_track {
    struct list link;
    struct run *run;
    struct ckpt_id id;
    uint64_t open_id;
    uint64_t begun_ms;    /* when this daemon saw it first */
    struct timer timer;   /* the deadline; after it, the next try to abort */
    struct run_req abort; /* EVENT_ABORT of the deadline */
    char reason[ENTRY_REASON_BYTES];
    struct finish *finish; /* while it is being built */
    bool failed;           /* the finish could neither commit nor abort: left to the deadline */
    bool seen;             /* used by tracks_sync */
};

/* run_counts.c: of the event whose update is at the store, whoever cancels it meanwhile. */
struct run_applying {
    enum event_kind kind;
    int code;
    uint64_t plain_bytes, stored_bytes, blocked_ms, persist_ms;
};
/* wait.c: the store's last refusal of an update, until one is made. */
struct run_refusal {
    struct diag diag; /* code 0: none */
    uint64_t at_ms;
    struct {
        bool was_asked; /* the refused update would have opened a save: */
        uint64_t step;
        struct token token;
    } open;
};
/* run_counts.c: of the decoded record. */
struct run_look {
    uint64_t checkpoints[HEALTH_DAMAGED + 1], commit_step;
    struct forgotten_sight forgotten;
    uint64_t stored_bytes;  /* of what is not reclaimed */
    int64_t commit_wall_ns; /* 0: none */
};

/* run_beside.c: what lies on the medium beside the record. */
struct run_beside {
    bool looked;       /* once at least, with diag.code where it failed */
    uint64_t again_ms; /* after a failure: not before */
    struct diag diag;
    char run_text[RUN_NAME_TEXT_MAX];
    struct ckpt_id *ckpts; /* while it looks: of which anything is stored */
    size_t ckpt_count, at;
    struct ckpt_id highest;
    size_t checked;                /* of those found: they are there, or cannot be read */
    size_t found_count, found_cap; /* manifests of which the record did not tell; of both arrays */
    struct state_unknown *found, *unknown; /* unknown: of which it does not tell now */
};

struct run {
    struct catalog *catalog;
    struct run_name name;
    struct record *record;  /* NULL until it was read */
    struct record *kept;    /* run_beside.c: what restores noted in memory alone; NULL: nothing */
    struct record *view;    /* record and kept in one, while there is such; NULL: record is it */
    struct scratch scratch; /* of state */
    struct run_state state; /* decoded from view or record, whenever loaded */
    bool decoded;           /* state is what record says, of whatever age */
    bool loaded;            /* record and state are as the store's, as far as known */
    bool busy;              /* a load or an update is at the store */
    bool posted;
    bool wake;          /* the state may have changed: waiters are to be stepped again */
    bool tell;          /* watches are to be looked at */
    bool want_load;     /* load even when nobody asks (start-up, poll) */
    bool sweeping;      /* the catalogue's start-up waits for this load */
    bool held;          /* the store has a record of it */
    bool unreadable;    /* the last try to read it failed */
    uint64_t lost_from; /* of the record's updates, for good; 0: none */
    struct diag lost;   /* what the store said of that */
    uint32_t users;     /* catalog_run() without catalog_release() */
    /* Operations at the store, counted at their start: the one that gave the copy, and the last one
     * when somebody last asked to look. With several daemons on a store an answer that is not
     * proven comes only from a copy that is younger than the question. */
    uint64_t ops_started, copy_op, look_op;
    struct post post;
    struct timer retry, poll;
    struct timer gap;       /* seals and reports that are held back for others to join them */
    uint64_t batched_at_ms; /* when the last update with such set out */
    uint64_t poll_next_ms;  /* grows while nothing changes */
    uint64_t poll_version;  /* of the record, when that began */
    struct store_req req;
    struct scratch step_scratch; /* of the step in progress: verdict, and what it points to */
    struct verdict verdict;
    struct list queue, current,
        waiting; /* run_req: to be stepped; being stepped; for something to happen */
    struct list tracks, watches, snapshots;
    struct list handed; /* run_handed.link */
    struct run_applying applying;
    struct run_look look;
    struct run_refusal refusal;
    struct diag unknown; /* the first update of unknown outcome since one was made; code 0: none */
    bool probing;        /* the update at the store is an empty one: does the record take any? */
    struct run_beside beside;
};

struct catalog {
    struct loop *loop;
    struct store *store;
    struct catalog_options options;
    struct run **runs; /* sorted by name */
    size_t run_count, run_cap;
    struct docs docs;
    struct run_counts counts;
    struct store_req req;
    struct post post;
    size_t pending, sweep_next;
    bool closing, freeing;
    struct {                          /* catalog_clock_jump_s() */
        int64_t believed_ms, seen_ms; /* wall minus monotonic */
        uint64_t seen_at_ms;          /* since when it has been about seen_ms */
    } clock;
    struct run_name *sweep_names; /* what STORE_LIST_RUNS gave */
    size_t sweep_count;
    void (*closed)(void *user);
    void *closed_user;
    struct {                        /* catalog_look.c */
        struct list waiting, asked; /* for the next listing; for the one on its way */
        struct store_req req;
        struct post post;
        struct timer timer;
        bool busy, posted;
    } look;
};

/* queue.c */
/* Somebody works for the catalogue: it is not freed before as many drops as holds were made. */
void catalog_hold(struct catalog *catalog);
void catalog_drop(struct catalog *catalog);
void run_kick(struct run *run); /* the driver looks at the run at the next turn of the loop */
void req_answer(struct run_req *req, int status);
/* "checkpoint 20@1 of project/run", for texts */
enum { CKPT_TEXT_MAX = RUN_NAME_TEXT_MAX + 64 };
void ckpt_text(const struct run_name *run, struct ckpt_id id, char ret[CKPT_TEXT_MAX]);

/* catalog.c */
void catalog_forget(struct run *run); /* frees one that run_is_unused */
/* Notes that the store holds the run. False: no memory. */
bool catalog_hold_run(struct catalog *catalog, const struct run_name *name, bool load);
void catalog_look_init(struct catalog *catalog);
void catalog_look_start(struct catalog *catalog); /* the list of the start is there */
void catalog_look_close(struct catalog *catalog);
void catalog_swept(
    struct catalog *catalog); /* the run that start-up waited for was read, or could not be */

/* run.c */
int MUST_USE run_new(struct catalog *catalog, const struct run_name *name, struct run **ret);
void run_free(struct run *run);
bool run_is_unused(
    const struct run *run);     /* nobody named it who is still there, nor does the store */
void run_shut(struct run *run); /* fails all that waits; after catalog.closing was set */

/* run_beside.c */
bool beside_is_needed(const struct run *run);
void beside_look(struct run *run); /* the record has been read; ends with a kick */
void beside_sync(struct run *run); /* the state was decoded anew */
void beside_fini(struct run *run);
/* An update of a restore is kept in memory instead: because the record is known to take none, or
 * since its session has begun there. */
bool keep_is_due(const struct run *run, const struct event *event);
/* The same after the store has refused the update. */
bool keep_is_due_after(const struct run *run, int refusal);
/* Takes the verdict's update, or leaves all as it was. */
int MUST_USE keep_update(struct run *run, struct diag *diag);
/* The view of the record as it is now. */
int MUST_USE keep_merge(const struct run *run, struct record **ret, struct diag *diag);
/* The record takes updates, and this one rested on what is kept, which goes. */
void keep_conflict(struct run *run);

/* run_counts.c */
void counts_init(struct run_counts *counts);
void counts_remember(struct run *run, const struct event *event); /* its update sets out */
void counts_applied(struct run *run);                             /* and was made */
void counts_look(struct run *run);                                /* the state was decoded anew */

/* batching.c: seals of a save, and good reports of a restore, share updates */
bool batch_is_kind(const struct event *event);
bool batch_is_same(const struct event *a, const struct event *b); /* may share one */
struct run_req *batch_choose(struct run *run); /* the next to be stepped; NULL: none now */
void batch_take(struct run *run); /* into current: the chosen one, and who shares its update */
/* One event of all in current. NO_MEMORY. */
int MUST_USE batch_merge(struct run *run, struct event *event);

/* wait.c: who waits for what */
bool wait_is_needed(const struct run_req *req, const struct verdict *verdict);
bool wait_drain_is_needed(const struct run *run, const struct run_req *req); /* only looks */
void wait_begin(struct run *run, struct run_req *req, uint64_t wait_ms);
void wait_wake(struct run *run);
void wait_give_up(const struct run *run,
                  struct run_req *req); /* answers MISSING_RANKS, naming them */
/* The store has refused an update, or has made one: those that wait for updates hear of it. */
void refusal_note(struct run *run, const struct store_req *req);
void refusal_end(struct run *run);
/* Somebody waits for an update of a record that took none when it was last asked, which is not just
 * now. */
bool refusal_is_to_be_probed(const struct run *run);
/* The refusal that ends the wait of the request; NULL: it may wait. */
const struct diag *refusal_of(const struct run *run, const struct run_req *req);
void watches_tell(struct run *run);
void watches_fail(struct run *run, int code, const struct diag *diag);
void snapshots_tell(struct run *run, int status, const struct diag *diag);

/* track.c: open saves */
void tracks_sync(struct run *run);
void tracks_free(struct run *run);
/* Every rank has sealed, and no newer term has fenced it. */
bool open_is_sealed(const struct run_state *state, const struct state_open *open);
const struct state_term *term_at(const struct run_state *state,
                                 uint64_t term); /* NULL: no such term */

/* enter.c */
/* The checkpoint is about to be opened. */
void enter_ckpt(struct run *run, struct ckpt_id id);

/* finish.c */
/* Starts to finish a fully sealed save. NULL: out of memory. Ends by itself, and says so in
 * track->finish. */
struct finish *finish_start(struct open_track *track, const struct state_open *open);
void finish_cancel(
    struct finish *finish); /* the track goes; what is in flight ends without effect */

#endif

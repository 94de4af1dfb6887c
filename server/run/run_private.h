/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and calls that the files of this folder share: the catalogue, the run, and the functions
 * that connect them. Everything lives on the loop's thread. Invariant: catalog.pending counts each
 * store operation, work item, post and operation that has not come back yet; the catalogue is freed
 * only when it is closing and that count is zero.
 */
#ifndef CAIRN_RUN_RUN_PRIVATE_H
#define CAIRN_RUN_RUN_PRIVATE_H

#include "base/sm.h"
#include "docs.h"
#include "run.h"
#include "run_counts.h"

#include <stdlib.h>

enum {
    RUN_TRIES_MAX = 32,    /* tries of one event after conflicts and unknown outcomes */
    RUN_BATCH_GAP_MS = 20, /* between two updates with a batch while more events are to come */
    RUN_BATCH_MAX = 1024,  /* seals or reports in one update */
    RUN_TURN_MAX = 256,    /* events in one turn of the loop */
    RUN_RETRY_MS = 1000,   /* after a store error, for work that the driver does by itself */
    /* How long a refusal of the store is believed before it is tried again. */
    RUN_REFUSED_MS = 1000,
    /* First interval at which the record is read again for other daemons' updates. */
    RUN_POLL_FIRST_MS = 10,
    RUN_STORE_DEADLINE_MS = 60000, /* deadline of one store operation */
};

struct finish;

/* An open entry that this daemon knows. Its deadline counts from the time when this daemon saw it
 * first. */
struct open_track {
    struct list link;
    struct run *run;
    struct ckpt_id id;
    uint64_t open_id, begun_ms, sealed_ms; /* times: when it, and all its seals, were seen first */
    struct timer timer;   /* runs until the deadline, and after it until the next try to abort */
    struct run_req abort; /* the EVENT_ABORT of the deadline */
    char reason[ENTRY_REASON_BYTES];
    struct finish *finish; /* not NULL while manifest and pages are being built */
    bool failed;           /* the finish could neither commit nor abort; the deadline will */
    bool seen;             /* used by tracks_sync */
};

/* run_counts.c: facts about the event whose update is at the store. They are copied, because the
 * request may be cancelled meanwhile. */
struct run_applying {
    enum event_kind kind;
    int code;
    uint64_t plain_bytes, stored_bytes, blocked_ms, staged_ms, persist_ms;
    char node[NOTICE_NODE_BYTES]; /* ANNOTATE: the node that gave notice; "" if none */
};
/* wait.c: the store's last refusal of an update. It is cleared when an update succeeds. */
struct run_refusal {
    struct diag diag; /* its code is 0 if there was no refusal */
    uint64_t at_ms;
    struct {
        bool was_asked; /* the refused update would have opened this save: */
        uint64_t step;
        struct token token;
    } open;
};
/* run_unrecorded.c: the checkpoints that are stored beside the record. */
struct run_unrecorded {
    bool listed;       /* the store was listed at least once; diag.code is set if that failed */
    uint64_t again_ms; /* after a failure: the next try is not before this time */
    struct diag diag;
    char run_text[RUN_NAME_TEXT_MAX];
    struct ckpt_id *ckpts; /* while listing: the checkpoints of which anything is stored */
    size_t ckpt_count, at;
    struct ckpt_id highest;
    size_t checked; /* number of entries of found that were checked: they exist or cannot be read */
    /* Manifests that the record did not know; the cap is that of both arrays. */
    size_t found_count, found_cap;
    struct state_unknown *found, *unknown; /* unknown: those that it still does not know */
};

/* Operations at the store are numbered at their start. `copy` is the one that brought the copy of
 * the record; `asked` the last one that had started when a request last asked. With
 * several daemons on a store, an answer that is not proven is given only from a copy that is
 * younger than the question. */
struct run_ops {
    uint64_t started, copy, asked;
};

/* Reading the record again from time to time, because another daemon may have changed it. */
struct run_poll {
    struct timer timer;
    uint64_t next_ms; /* grows while nothing changes */
    uint64_t version; /* version of the record when next_ms was reset */
};

/* Holds seals and reports back, so that others can share their update. */
struct run_gap {
    struct timer timer;
    uint64_t batched_at_ms; /* start of the last update with such events */
};

/* What this daemon's copy of the record is worth. */
enum run_copy {
    COPY_NONE,  /* nothing is decoded: the store has to send the record, whatever its version */
    COPY_OLD,   /* decoded, but the record may have changed: it is read again before it is used */
    COPY_FRESH, /* equal to the store's record, as far as this daemon knows */
};

/* What a run has under way at the store; one thing at a time. The table is in run.c. */
enum { RUN_IDLE, RUN_LOADING, RUN_LISTING, RUN_UPDATING, RUN_PROBING };

struct run {
    struct catalog *catalog;
    struct run_name name;
    struct sm at_store;
    enum run_copy copy;
    struct record *record; /* NULL until it was read */
    /* run_unrecorded.c: updates of restores that were made in memory only; NULL if none. */
    struct record *kept;
    struct record *view;    /* record and kept merged; NULL if nothing is kept */
    struct scratch scratch; /* memory of state */
    struct run_state state; /* decoded from view, or from record, each time it is loaded */
    bool posted;
    bool wake;          /* the state may have changed: waiting requests have to be stepped again */
    bool tell;          /* watches have to be checked */
    bool want_load;     /* load even if no request needs it (at start-up, or by the poll timer) */
    bool sweeping;      /* the start-up of the catalogue waits for the record */
    bool held;          /* the store has a record of it */
    bool unreadable;    /* the last try to read it failed */
    uint64_t lost_from; /* first update of the record that is lost for good; 0 if none is */
    struct diag lost;   /* what the store said about that loss */
    uint32_t users;     /* calls of catalog_run() without their catalog_release() */
    struct run_ops ops;
    struct post post;
    struct timer retry;
    struct run_poll poll;
    struct run_gap gap;
    struct store_req req;
    /* Memory of the step in progress: the verdict and what it points to. */
    struct scratch step_scratch;
    struct verdict verdict;
    /* Requests (run_req): to be stepped; being stepped; waiting for a change. */
    struct list queue, current, waiting;
    struct list tracks, watches, snapshots;
    struct list handed; /* run_handed.link */
    struct run_applying applying;
    struct run_sums sums;
    struct run_refusal refusal;
    /* The first unknown outcome since an update succeeded; its code is 0 if none. */
    struct diag unknown;
    struct run_unrecorded unrecorded;
    struct run_shown shown;
};

static inline bool run_is_idle(const struct run *run) { return sm_is(&run->at_store, RUN_IDLE); }
static inline bool run_is_fresh(const struct run *run) { return run->copy == COPY_FRESH; }

struct catalog {
    struct loop *loop;
    struct store *store;
    struct catalog_options options;
    struct run **runs; /* sorted by name */
    size_t run_count, run_cap;
    struct docs docs;
    struct run_counts counts;
    uint64_t changes; /* catalog_changes() */
    struct store_req req;
    struct post post;
    size_t pending, sweep_next, refreshed_at; /* refreshed_at: catalog_overviews_refresh()'s */
    bool closing, freeing;
    bool swept; /* start-up has read the record of each run, or found it unreadable */
    struct {    /* see catalog_clock_jump_s() */
        int64_t believed_ms, seen_ms; /* wall minus monotonic time */
        uint64_t seen_at_ms;          /* since when the difference has been about seen_ms */
    } clock;
    struct run_name *sweep_names; /* result of STORE_LIST_RUNS */
    size_t sweep_count;
    void (*closed)(void *user);
    void *closed_user;
    struct { /* catalog_refresh.c */
        /* Refreshes that wait for the next listing, and those of the listing under way. */
        struct list waiting, asked;
        struct store_req req;
        struct post post;
        struct timer timer;
        bool busy, posted;
    } refresh;
};

/* queue.c */
/* Keeps the catalogue from being freed until catalog_drop() was called as often as this. */
void catalog_hold(struct catalog *catalog);
void catalog_drop(struct catalog *catalog);
void run_kick(struct run *run); /* makes the driver look at the run in the next turn of the loop */
void req_answer(struct run_req *req, int status);
/* Writes a name such as "checkpoint 20@1 of project/run" for messages. */
enum { CKPT_TEXT_MAX = RUN_NAME_TEXT_MAX + 64 };
void ckpt_text(const struct run_name *run, struct ckpt_id id, char ret[CKPT_TEXT_MAX]);

/* catalog.c */
void catalog_forget(struct run *run); /* frees a run that run_is_unused() */
/* Return the index of the run with that name, or where to insert it; and the run, or NULL. */
size_t catalog_lower_bound(const struct catalog *catalog, const struct run_name *name);
struct run *catalog_find(const struct catalog *catalog, const struct run_name *name);
/* Notes that the store holds the run. Returns false if there is no memory. */
bool catalog_hold_run(struct catalog *catalog, const struct run_name *name, bool load);
void catalog_refresh_init(struct catalog *catalog);
/* Called when the list of the start-up is there. */
void catalog_refresh_start(struct catalog *catalog);
/* Called when start-up has read all records. */
void catalog_refresh_swept(struct catalog *catalog);
void catalog_refresh_close(struct catalog *catalog);
/* Called when the record of a run that start-up waited for was read, or could not be read. */
void catalog_swept(struct catalog *catalog);

/* run.c */
void run_copy_ages(struct run *run); /* the record may have changed, or is to be read again */
int MUST_USE run_new(struct catalog *catalog, const struct run_name *name, struct run **ret);
void run_free(struct run *run);
bool run_is_unused(const struct run *run); /* no user and not in the store */
void run_shut(struct run *run);            /* fails all that waits; catalog.closing has to be set */

/* run_unrecorded.c */
bool unrecorded_is_needed(const struct run *run);
void unrecorded_list(struct run *run); /* called when the record was read; ends with run_kick() */
void unrecorded_sync(struct run *run); /* called when the state was decoded anew */
void unrecorded_fini(struct run *run);
/* Returns true if an update of a restore is to be kept in memory, because the record is known to
 * take no update, or because the session has begun in memory. */
bool keep_is_due(const struct run *run, const struct event *event);
/* Returns the same after the store has refused the update with the code `refusal`. */
bool keep_is_due_after(const struct run *run, int refusal);
/* Applies the verdict's update to what is kept in memory. After an error everything is as before.
 */
int MUST_USE keep_update(struct run *run, struct diag *diag);
/* Gives a new record: the stored one merged with what is kept in memory. */
int MUST_USE keep_merge(const struct run *run, struct record **ret, struct diag *diag);
/* Called when the record takes updates again and an update rested on what is kept in memory. Drops
 * what is kept. */
void keep_conflict(struct run *run);

/* run_counts.c */
void counts_init(struct run_counts *counts);
/* Called when an update is sent to the store. */
void counts_remember(struct run *run, const struct event *event);
void counts_applied(struct run *run);           /* called when the store has made it */
void counts_update(struct run *run);            /* called when the state was decoded anew */
uint64_t run_open_count(const struct run *run); /* open saves */
/* Called when what struct run_overview gives has changed. */
static inline void run_changed(struct run *run) { run->shown.changed = ++run->catalog->changes; }
static inline void run_shown_fini(struct run *run) { free(run->shown.times); }

/* batching.c: the seals of a save, and the good reports of a restore, share updates. */
bool batch_is_kind(const struct event *event);
/* Whether both may share one update. */
bool batch_is_same(const struct event *a, const struct event *b);
struct run_req *batch_choose(struct run *run); /* the next request to be stepped, or NULL */
void batch_take(struct run *run); /* moves it, and those that share its update, to current */
/* Merges all requests in current into one event. Returns NO_MEMORY if there is no memory. */
int MUST_USE batch_merge(struct run *run, struct event *event);

/* wait.c: requests that wait for a change of the record. */
bool wait_is_needed(const struct run_req *req, const struct verdict *verdict);
bool wait_drain_is_needed(const struct run *run, const struct run_req *req); /* changes nothing */
void wait_begin(struct run *run, struct run_req *req, uint64_t wait_ms);
void wait_wake(struct run *run);
void wait_give_up(const struct run *run,
                  struct run_req *req); /* answers MISSING_RANKS, naming the ranks */
/* Called when the store has refused an update (note) or made one (end). Tells the requests and
 * watches that depend on it. */
void refusal_note(struct run *run, const struct store_req *req);
void refusal_end(struct run *run);
/* Returns true if a request waits for an update of a record that refused the last one, and the
 * refusal is old enough to be tried again. */
bool refusal_is_to_be_probed(const struct run *run);
/* Returns the refusal that ends the wait of the request, or NULL if it may go on waiting. */
const struct diag *refusal_of(const struct run *run, const struct run_req *req);
void watches_tell(struct run *run);
void watches_fail(struct run *run, int code, const struct diag *diag);
void snapshots_tell(struct run *run, int status, const struct diag *diag);

/* track.c: open saves. */
void tracks_sync(struct run *run);
void tracks_free(struct run *run);
const struct state_term *term_at(const struct run_state *state,
                                 uint64_t term); /* NULL if there is no such term */

/* Called when the checkpoint is about to be opened. Sends the hint STORE_ENTER to the store. */
void enter_ckpt(struct run *run, struct ckpt_id id);

/* finish.c */
/* Starts to finish a fully sealed save. The finish ends by itself and tells through track->finish.
 * Returns false if memory is short. */
bool finish_start(struct open_track *track, const struct state_open *open);
void finish_cancel(
    struct finish *finish); /* for a track that is freed; work in flight ends without effect */

#endif

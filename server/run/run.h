/* SPDX-License-Identifier: Apache-2.0
 *
 * run: the driver of one run: keeps a copy of its record, feeds events to the commit core one batch
 * at a time, applies the updates to the store, builds pages and manifest, keeps the deadlines,
 * tells those who watch. catalog: all runs of a store. Requests are embedded in the caller's
 * struct; callbacks come on the loop's thread, never inside the call. Nothing here that the record
 * does not hold survives a restart, or has to (restores of a record that takes no update begin
 * again). Beside this header: run_fetch.h (verified manifests,
 * pages, parts), run_plan.h (what to read for a restore), run_info.h (lists and status).
 */
#ifndef CAIRN_RUN_RUN_H
#define CAIRN_RUN_RUN_H

#include "base/list.h"
#include "core/commit.h"
#include "env/loop.h"
#include "env/work.h"
#include "store/store.h"

struct catalog;
struct run;

struct catalog_options {
    uint64_t chunk_bytes;      /* of new runs; 0: LIMIT_CHUNK_BYTES */
    uint64_t restore_drain_ms; /* DESIGN's "drain": how long `latest` waits for a save that
                                  needs no client any more */
    uint64_t deadline_ms_max;  /* a save's deadline is cut to this; 0: not cut */
    void (*ready)(void *user, int status,
                  const struct diag *diag); /* required; see catalog_new() */
    void *user;
    uint32_t full_every; /* of so many saves of a lineage one is full; 0: only the first. Not for a
                            store that survives a media fault by itself */
    struct work_pool
        *pool; /* decoding, hashing, coverage, planning; required, outlives the catalogue */
    uint64_t
        cache_bytes; /* verified manifests, pages and parts kept for the next reader; 0: 64 MiB */
    uint64_t
        upload_bytes; /* bytes of uploaded parts kept for the finish (run_cache_part); 0: 64 MiB */
    uint64_t page_bytes; /* about how large a page becomes; 0: 3 MiB. Tests use small ones */
    uint64_t poll_ms; /* while something waits for another daemon, the record is read again at least
                       * so often, and sooner after a change; 0: never, for a store that has one
                       * daemon */
};

/* Loads the list of runs; then reads their records in the background, so that saves that a crash
 * left fully sealed are finished and the others' deadlines run. ready: once, 0 or why not (then
 * close it). *ret is set at once. */
int MUST_USE catalog_new(struct loop *loop, struct store *store,
                         const struct catalog_options *options, struct catalog **ret);
/* Fails what waits with SHUTTING_DOWN, waits for what the store still does, frees. */
void catalog_close(struct catalog *catalog, void (*done)(void *user), void *user);
struct store *catalog_store(struct catalog *catalog);
/* By how many seconds the wall clock has been set against the monotonic one since the catalogue was
 * made; 0: by less than five minutes, or it is believed again because it has run on for a day
 * since. It is looked at with each event, too. */
int64_t catalog_clock_jump_s(struct catalog *catalog);
const struct catalog_options *catalog_options_of(const struct catalog *catalog);

/* A look at which runs the store holds now: on a store that several daemons share, others make runs
 * too. done: once, at a later turn; after it catalog_names() knows what was there when the look was
 * asked for. status: why the store could not be asked (then the names are as old as they are). A
 * store of one daemon is not asked. The catalogue looks by itself every few seconds. */
struct catalog_look {
    void (*done)(struct catalog_look *look);
    int status;
    struct diag diag;
    struct list link;
};
void catalog_look(struct catalog *catalog, struct catalog_look *look);
void catalog_look_cancel(struct catalog_look *look); /* safe when idle */

/* The driver of a run; created empty in memory when the store has none (nothing is written by
 * looking). Lives until catalog_release(), and as long as the catalogue when the store holds it. */
struct run *catalog_run(struct catalog *catalog, const struct run_name *name);
/* The caller has no request, watch or snapshot of it left. A run that nobody uses and the store
 * does not hold goes: looking at names that do not exist costs nothing that lasts. */
void catalog_release(struct run *run);
size_t catalog_run_count(const struct catalog *catalog); /* those in memory */
/* Sorted names of the runs that the store holds; *ret is malloc'ed. */
int MUST_USE catalog_names(struct catalog *catalog, struct run_name **ret, size_t *ret_count);
const struct run_name *run_name_of(const struct run *run);

/* One event through the core. The verdict's pointers are not to be used in the callback (scratch is
 * gone), but for marks, in the callback only; its plain fields and diag are. The driver fills what
 * is zero: info (CREATE, OPEN, RESTORE_BEGIN), wall_ns. It answers when there is something to say;
 * wait_ms bounds the wait:
 *
 * - FIND_OPEN until rank 0 has opened the step; then MISSING_RANKS naming rank 0;
 *
 * - RESTORE_REPORT until the session is decided: restore_done, restore_failed, or moved on (then
 *   verdict.id is another than event.id); then MISSING_RANKS naming who has not reported;
 *
 * - RESTORE_BEGIN of `latest` waits by itself, at most restore_drain_ms, for a save that every
 *   rank has sealed, or handed over whole to this daemon (run_handed). */
struct run_req {
    struct event event; /* pointers in it are borrowed until done */
    uint64_t wait_ms;
    bool dry_run; /* decides, and writes nothing */
    void (*done)(struct run_req *req);
    int status; /* the verdict's code, or the store's error */
    struct diag diag;
    struct verdict verdict;
    /* the driver's: */
    struct list link;
    struct timer timer;
    struct run *run;
    bool submitted, waiting, expired, alone;
    unsigned tries;
    uint64_t op;
};
void run_submit(struct run *run, struct run_req *req);
/* No callback afterwards; safe when idle (a zeroed one too). An update that is on its way to the
 * store goes on, without an answer and without a second try. */
void run_cancel(struct run_req *req);

/* A watch on a save: told once when it is committed or aborted (code and why say the cause). A save
 * that never was: SAVE_NONE with NOT_FOUND; a record that cannot be read: SAVE_OPEN with that
 * error. */
struct run_watch {
    struct ckpt_id id;
    uint64_t open_id;
    bool any_age; /* this daemon's copy knows the opening, and nobody waits for the answer: what
                   * other daemons did since is learnt with the next look */
    bool hears_refusals; /* SAVE_OPEN with READ_ONLY while the record takes no update: nobody can
                          * say yet what becomes of the save */
    void (*done)(struct run_watch *watch, enum save_state state, int code, const char *why,
                 uint64_t seq);
    struct list link;
    struct run *run;
};
void run_watch(struct run *run, struct run_watch *watch);
void run_unwatch(struct run_watch *watch); /* safe when idle */

/* A rank of an open save whose part this daemon will finish by itself. `latest` waits for a save of
 * which every rank is sealed or one of these. */
struct run_handed {
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t rank;
    struct list link;
    struct run *run;
};
void run_handed_add(struct run *run, struct run_handed *handed);
void run_handed_remove(struct run_handed *handed);
bool run_is_handed(const struct run *run, struct ckpt_id id, uint64_t open_id, uint32_t rank);

/* The current, decoded state for listing and joining. Asynchronous because the record may have to
 * be read first. */
struct run_snapshot_req {
    void (*done)(struct run_snapshot_req *req);
    bool any_age; /* what is wanted of it never changes: no other daemon is asked what it did */
    int status;
    struct diag diag;
    const struct run_state *state; /* borrowed during the callback */
    struct list link;
    struct run *run;
};
void run_snapshot(struct run *run, struct run_snapshot_req *req);
void run_snapshot_cancel(struct run_snapshot_req *req); /* safe when idle */

/* What is stored beside the record (state->beside) is looked at anew before the next use of the
 * run: somebody may have put back, or taken away, what the last look found. */
void run_look_again(struct run *run);

/* A hint: this rank will publish its part for that opening, which stands in the record; rank 0's
 * daemon most likely pages and manifest, too. A store that has to note them down before does it
 * now, beside the objects. */
void run_enter_rank(struct run *run, struct ckpt_id id, uint64_t open_id, uint32_t rank);

/* A hint: these are the bytes of a part that was just published, so that finishing the save need
 * not read them back. Copied when the budget allows, else ignored; checked against the seal's
 * SHA-256 like any others. */
void run_cache_part(struct run *run, const struct store_name *name, size_t bytes, const void *data);

#endif

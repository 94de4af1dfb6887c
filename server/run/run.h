/* SPDX-License-Identifier: Apache-2.0
 *
 * run: the driver of one run: keeps a copy of its record, feeds events to the commit core one batch at a time,
 * applies the updates to the store, builds pages and manifest, keeps the deadlines, tells those who watch.
 * catalog: all runs of a store. Requests are embedded in the caller's struct; callbacks come on the loop's
 * thread, never inside the call. Nothing here that the record does not hold survives a restart, or has to.
 */
#ifndef CAIRN_RUN_RUN_H
#define CAIRN_RUN_RUN_H

#include "core/commit.h"
#include "env/loop.h"
#include "store/store.h"

struct catalog;
struct run;

struct catalog_options {
    uint64_t chunk_bytes;       /* of new runs */
    uint64_t restore_drain_ms;  /* DESIGN's "drain": how long `latest` waits for a save of which all ranks sealed */
    uint64_t deadline_ms_max;   /* a save's deadline is cut to this */
};

/* Loads the list of runs; records are read at first use. ready: once, 0 or why not. */
int MUST_USE catalog_new(struct loop *loop, struct store *store, const struct catalog_options *options,
                         void (*ready)(void *user, int status, const struct diag *diag), void *user, struct catalog **ret);
/* Fails what waits with SHUTTING_DOWN, waits for what the store still does, frees. */
void catalog_close(struct catalog *catalog, void (*done)(void *user), void *user);
struct store *catalog_store(struct catalog *catalog);

/* The driver of a run; created empty in memory when the store has none (nothing is written by looking). */
struct run *catalog_run(struct catalog *catalog, const struct run_name *name);
/* Sorted names of the runs that the store holds; *ret is malloc'ed. */
int MUST_USE catalog_names(struct catalog *catalog, struct run_name **ret, size_t *ret_count);
const struct run_name *run_name_of(const struct run *run);

/* One event through the core. The verdict's pointers are not to be used in the callback (scratch is gone);
 * its plain fields and diag are. For EVENT_FIND_OPEN and RESTORE_REPORT the driver answers when there is something to
 * say: wait_ms bounds the wait (then AGAIN -> the verdict's code is MISSING_RANKS, naming who is missing). */
struct run_req {
    struct event event;       /* pointers in it are borrowed until done */
    uint64_t wait_ms;
    void (*done)(struct run_req *req);
    int status;               /* the verdict's code, or the store's error */
    struct diag diag;
    struct verdict verdict;
    struct list link;         /* the driver's */
    struct timer timer;
    struct run *run;
    bool submitted;
};
void run_submit(struct run *run, struct run_req *req);
void run_cancel(struct run_req *req); /* no callback afterwards; safe when idle; not for one being applied: see .c */

/* A watch on a save: told once when it is committed or aborted. */
struct run_watch {
    struct ckpt_id id;
    uint64_t open_id;
    void (*done)(struct run_watch *watch, enum save_state state, int code, const char *why, uint64_t seq);
    struct list link;
    struct run *run;
};
void run_watch(struct run *run, struct run_watch *watch);
void run_unwatch(struct run_watch *watch);

/* A copy of the current, decoded state for listing and planning: valid until run_snapshot_free. Asynchronous because
 * the record may have to be read first. */
struct run_snapshot_req {
    void (*done)(struct run_snapshot_req *req);
    int status;
    struct diag diag;
    const struct run_state *state; /* borrowed during the callback */
    struct list link;
    struct run *run;
};
void run_snapshot(struct run *run, struct run_snapshot_req *req);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * run: the driver of one run. It keeps a copy of the run's record, feeds events to the commit core
 * one batch at a time, applies the updates to the store, builds pages and manifest, keeps the
 * deadlines, and tells watchers. catalog: all runs of a store.
 *
 * Requests are embedded in the caller's struct. Callbacks come on the loop's thread, never inside
 * the call. No state here that the record does not hold survives a restart, and none has to: only a
 * restore of a record that takes no update begins again.
 *
 * Neighbours of this header: run_fetch.h (verified manifests, pages and parts), run_plan.h (what to
 * read for a restore), run_info.h (lists and status).
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
    uint64_t chunk_bytes; /* of new runs; 0 means LIMIT_CHUNK_BYTES */
    /* How long a restore of `latest` waits for a save that needs no client any more. */
    uint64_t restore_drain_ms;
    uint64_t deadline_ms_max; /* upper bound of a save's deadline; 0 means no bound */
    void (*ready)(void *user, int status,
                  const struct diag *diag); /* required; see catalog_new() */
    void *user;
    /* Of this many saves of a lineage one is full; 0 means that only the first one is. For a store
     * that does not survive a media fault by itself. */
    uint32_t full_every;
    struct work_pool
        *pool; /* decodes, hashes, checks coverage, plans; required, outlives the catalogue */
    uint64_t cache_bytes; /* of verified documents kept for the next reader; 0 means 64 MiB */
    uint64_t
        /* Of uploaded parts kept for finishing the save (run_cache_part); 0 means 64 MiB. */
        upload_bytes;
    uint64_t page_bytes; /* approximate size of a page; 0 means 3 MiB; tests use small ones */
    /* While a request waits for another daemon, the record is read again at least this often, and
     * sooner after a change. 0 means never, for a store that only one daemon uses. */
    uint64_t poll_ms;
};

/* Makes the catalogue and loads the list of runs. Then reads the records of these runs in the
 * background, so that saves that a crash left fully sealed get finished and the deadlines of the
 * others run. `ready` is called once, with 0 or an error; after an error the caller closes the
 * catalogue. *ret is set before the return. */
int MUST_USE catalog_new(struct loop *loop, struct store *store,
                         const struct catalog_options *options, struct catalog **ret);
/* Fails all waiting requests with SHUTTING_DOWN, waits for the store operations in flight, frees
 * the catalogue, and then calls done. */
void catalog_close(struct catalog *catalog, void (*done)(void *user), void *user);
struct store *catalog_store(struct catalog *catalog);
/* Returns by how many seconds the wall clock has jumped against the monotonic clock since the
 * catalogue was made. Returns 0 if that is less than five minutes, or if the clock has run on
 * steadily for a day since the jump and is trusted again. Each event checks the clock as well. */
int64_t catalog_clock_jump_s(struct catalog *catalog);
const struct catalog_options *catalog_options_of(const struct catalog *catalog);

/* Asks the store which runs it holds now; on a store that several daemons share, other daemons make
 * runs too. `done` is called once, in a later turn of the loop. From then on catalog_names() knows
 * the runs that existed when the refresh was asked for. A status that is not 0 says why the store
 * could not be asked; the names are then old. A store that only one daemon uses is not asked. The
 * catalogue also refreshes itself every few seconds. */
struct catalog_refresh {
    void (*done)(struct catalog_refresh *refresh);
    int status;
    struct diag diag;
    struct list link;
};
void catalog_refresh(struct catalog *catalog, struct catalog_refresh *refresh);
void catalog_refresh_cancel(struct catalog_refresh *refresh); /* safe when idle */
/* Returns the run of the store whose name collides with this one (run_name_collides), or NULL. */
const struct run_name *catalog_collision(const struct catalog *catalog,
                                         const struct run_name *name);
/* Returns whether the store is known to hold a run of exactly this name. */
bool catalog_has(const struct catalog *catalog, const struct run_name *name);

/* Returns the driver of a run. If the store has no such run, an empty one is made in memory;
 * looking at a run writes nothing. The driver lives until catalog_release(), or as long as the
 * catalogue if the store holds the run. Returns NULL if there is no memory. */
struct run *catalog_run(struct catalog *catalog, const struct run_name *name);
/* Called when the caller has no request, watch or snapshot of the run left. A run that has no user
 * and that the store does not hold is freed, so that asking for names that do not exist costs no
 * lasting memory. */
void catalog_release(struct run *run);
/* Gives the names of the runs that the store holds, sorted; the caller frees *ret. */
int MUST_USE catalog_names(struct catalog *catalog, struct run_name **ret, size_t *ret_count);
/* Returns true if the run was removed, and nobody has begun it anew, as far as this server has read
 * its record. Lists leave such a run out. */
bool catalog_run_is_removed(struct catalog *catalog, const struct run_name *name);
const struct run_name *run_name_of(const struct run *run);

/* Sends one event through the core. The driver fills in what is zero: info (for CREATE, OPEN,
 * RESTORE_BEGIN) and wall_ns. In the callback the plain fields and the diag of the verdict are
 * valid, and so are its marks; its other pointers are not, because their scratch is gone. The
 * driver calls done when it has an answer, and wait_ms bounds that time:
 *
 * - FIND_OPEN waits until rank 0 has opened the step; then it fails with MISSING_RANKS, naming rank
 * 0.
 *
 * - RESTORE_REPORT waits until the session is decided: `done`, `failed`, or moved on
 * (verdict.id differs from event.id); then it fails with MISSING_RANKS, naming the ranks that have
 * not reported.
 *
 * - RESTORE_BEGIN of `latest` waits by itself, for at most restore_drain_ms, for a save that every
 * rank has sealed or handed over whole to this daemon (run_handed). */
struct run_req {
    struct event event; /* its pointers are borrowed until done */
    uint64_t wait_ms;
    bool dry_run; /* only decides; writes nothing */
    void (*done)(struct run_req *req);
    int status; /* the verdict's code, or the store's error */
    struct diag diag;
    struct verdict verdict;
    /* The fields below belong to the driver. */
    struct list link;
    struct timer timer;
    struct run *run;
    bool submitted, waiting, expired, alone;
    unsigned tries;
    uint64_t op;
};
void run_submit(struct run *run, struct run_req *req);
/* Cancels the request: its callback does not come any more. Safe for an idle (zeroed) request. An
 * update that is on its way to the store goes on, without an answer and without a second try. */
void run_cancel(struct run_req *req);

/* A watch on a save. It is told once, when the save is committed or aborted; `code` and `why` give
 * the cause. For a save that does not exist the answer is SAVE_NONE with NOT_FOUND, for a record
 * that cannot be read SAVE_OPEN with that error. */
struct run_watch {
    struct ckpt_id id;
    uint64_t open_id;
    /* This daemon's copy knows the opening and no caller waits for the answer, so the record is not
     * read at once to learn what other daemons did; the next look shows it. */
    bool any_age;
    /* Answer SAVE_OPEN with READ_ONLY while the record takes no update, because nobody can say yet
     * how the save will end. */
    bool hears_refusals;
    void (*done)(struct run_watch *watch, enum save_state state, int code, const char *why,
                 uint64_t seq);
    struct list link;
    struct run *run;
};
void run_watch(struct run *run, struct run_watch *watch);
void run_unwatch(struct run_watch *watch); /* safe when idle */

/* A rank of an open save whose part this daemon will finish without its client. `latest` waits for
 * a save if every rank has sealed or is one of these. */
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

/* The current, decoded state, for listing and joining. Asynchronous because the record may have to
 * be read first. */
struct run_snapshot_req {
    void (*done)(struct run_snapshot_req *req);
    /* The caller wants facts that never change, so an old copy of the record will do. */
    bool any_age;
    int status;
    struct diag diag;
    const struct run_state *state; /* borrowed during the callback */
    struct list link;
    struct run *run;
};
void run_snapshot(struct run *run, struct run_snapshot_req *req);
void run_snapshot_cancel(struct run_snapshot_req *req); /* safe when idle */

/* Called when somebody may have added or removed stored checkpoints. They are compared with the
 * record (state->unrecorded) anew before the next use of the run. */
void run_refresh(struct run *run);

/* A hint that this rank will publish its part for that opening, which is in the record; rank 0's
 * daemon will most likely publish pages and manifest too. A store that has to note their names
 * first does so now, while the objects are being written. */
void run_enter_rank(struct run *run, struct ckpt_id id, uint64_t open_id, uint32_t rank);

/* A hint: the bytes of a part that was just published, so that finishing the save need not read
 * them back. They are copied if the budget allows, and ignored otherwise. Like any others they are
 * checked against the SHA-256 of the seal. */
void run_cache_part(struct run *run, const struct store_name *name, size_t bytes, const void *data);

#endif

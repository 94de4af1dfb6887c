/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of server/run share: a simulated loop and pool, a memory store behind the fault
 * decorator, catalogues on it, and ranks that make parts out of lists of pieces. Calls that wait
 * run the loop until done.
 */
#ifndef CAIRN_RUN_RIG_H
#define CAIRN_RUN_RIG_H

#include "run/run.h"
#include "run/run_fetch.h"
#include "run/run_info.h"
#include "run/run_plan.h"
#include "sim/env/sim.h"
#include "support/store_fault.h"
#include "support/store_memory.h"

enum { RIG_CHUNK = 4096, RIG_RANKS_MAX = 64, RIG_PIECES_MAX = 16 };

/* A box of a tensor (or a blob, with bytes) that a rank brings, writing the cells with cell % of ==
 * member. */
struct piece {
    const char *name, *coordinate;
    bool is_blob;
    uint32_t dtype, placement, of, member;
    struct shape shape;
    struct box box;
    uint64_t bytes;
};

struct rank_list {
    size_t count;
    struct piece pieces[RIG_PIECES_MAX]; /* sorted by (is_blob, name, coordinate, box) */
};

struct rig {
    uint64_t seed;
    struct sim *sim;
    struct sim_host *host;
    struct memory_medium *medium;
    struct store *store; /* the fault decorator */
    struct catalog_options options;
    struct catalog *catalog;
    struct run_name name;
    struct run *run;
    struct token token;
    struct rank_list lists[2]; /* rig_two_ranks, until a test changes them */
    bool ready;
    int ready_status;
    bool with_objects;    /* parts are of objects that are in the store, with real contents */
    struct ckpt_id refer; /* parts refer to this checkpoint's objects instead; term 0: their own */
};

void rig_init(struct rig *rig);    /* rig->seed is kept */
void rig_start(struct rig *rig);   /* catalogue and run */
void rig_stop(struct rig *rig);    /* closes the catalogue; the store stays */
void rig_restart(struct rig *rig); /* nothing stays in memory */
void rig_fini(struct rig *rig);
/* cmocka's functions around a test: its state is a rig of its own, started or not yet. */
void rig_setup(struct rig *rig);
#define RIG_TEST(name) FIXTURE_TEST(name, rig_setup, rig_fini, struct rig, rig)
struct catalog *rig_catalog_new(struct rig *rig); /* a second one on the same store */
void rig_catalog_close(struct rig *rig, struct catalog *catalog);
void rig_until(struct rig *rig,
               const bool *flag); /* runs the loop until *flag; fails after an hour */

/* One store operation, one event, waited for. The latter's status is returned. */
void rig_store(struct rig *rig, struct store_req *req);
int rig_event(struct rig *rig, struct run *run, const struct event *event, struct verdict *ret);

/* The same without waiting for its end. */
struct rig_call {
    struct run_req req;
    bool done;
};
void rig_begin(struct run *run, const struct event *event, uint64_t wait_ms, struct rig_call *ret);

struct event rig_open_event(struct rig *rig, uint64_t step, uint32_t world, uint64_t open_id);
int rig_open(struct rig *rig, uint64_t step, uint32_t world, uint64_t open_id, struct ckpt_id *ret);
/* Builds the part of a rank, publishes it, seals it. */
struct rig_seal {
    struct ckpt_id id;
    uint64_t open_id;
    uint32_t rank, world;
};
int rig_seal(struct rig *rig, struct run *run, const struct rig_seal *seal,
             const struct rank_list *list);
/* Of ranks 0 and 1 of 2, one after the other; both must be taken. */
void rig_seal_both(struct rig *rig, struct ckpt_id id, uint64_t open_id,
                   const struct rank_list lists[2]);
/* The same under faults: each step again until it went through, at most 50 times. */
int rig_seal_retry(struct rig *rig, struct run *run, const struct rig_seal *seal,
                   const struct rank_list *list);
/* Waits for the outcome of a save. */
struct rig_outcome {
    struct run_watch watch;
    bool done;
    enum save_state state;
    int code;
    char why[ENTRY_REASON_BYTES];
    uint64_t seq;
};
void rig_watch(struct run *run, struct ckpt_id id, uint64_t open_id, struct rig_outcome *ret);
struct rig_outcome rig_outcome(struct rig *rig, struct ckpt_id id, uint64_t open_id);
/* The save must be aborted with this code, for a reason that has these words. */
void rig_expect_aborted(struct rig *rig, struct ckpt_id id, uint64_t open_id, int code,
                        const char *words);
/* Open, all parts, seals; the outcome must be a commit. */
struct ckpt_id rig_save(struct rig *rig, uint64_t step, uint32_t world,
                        const struct rank_list *lists);

/* Gives the state of the run to take(). */
void rig_state(struct rig *rig, void (*take)(void *user, const struct run_state *state),
               void *user);
/* What the record says of a committed checkpoint now. */
struct rig_commit {
    uint64_t open_id, manifest_bytes;
    struct sha256 manifest_sha256;
    enum health health;
    char reason[ENTRY_REASON_BYTES];
};
struct rig_commit rig_commit(struct rig *rig, struct ckpt_id id);

/* A tensor of ndim dimensions: shapes and boxes for tests. */
struct shape rig_shape(uint32_t ndim, int64_t a, int64_t b, int64_t c);
struct box rig_box(const struct shape *shape, const int64_t *offset, const int64_t *length);
struct piece rig_whole(const char *name, uint32_t dtype, struct shape shape, uint32_t of,
                       uint32_t member);
struct piece rig_slab(const char *name, struct shape shape, int64_t offset, int64_t length);
struct piece rig_blob(const char *name, uint64_t bytes);
/* Two ranks: "a.weight" sharded by rows, "b.bias" replicated and split, blob "state" by rank 0. */
void rig_two_ranks(struct rank_list lists[2]);
/* The object of a rank in one of its checkpoints. */
struct object_id rig_object(struct ckpt_id id, uint32_t rank);
/* Changes one byte of a published thing in the medium. */
void rig_flip(struct rig *rig, const struct store_name *name, size_t at);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * engine_world: a simulated server (the real session and run code on a memory store) and ranks with
 * engines, in one thread. Calls that can fail end the test.
 */
#ifndef CAIRN_TEST_ENGINE_WORLD_H
#define CAIRN_TEST_ENGINE_WORLD_H

#include "save/save.h"
#include "session/server.h"
#include "sim/env/sim.h"
#include "support/store_fault.h"
#include "support/store_memory.h"
#include "support/unit_test.h"

enum {
    WORLD_RANKS_MAX = 16,
    WORLD_TENSORS = 6,
    WORLD_CHUNK_BYTES = 4096,
    WORLD_PORT = 7421,
    WORLD_POLL_MS = 50, /* of two daemons on one store */
    WORLD_OBJECT_BYTES = 24 << 10,
    /* A payload at most. The daemon's own 4 MiB would be mapped and touched for each new server,
     * which costs more than most saves here. */
    WORLD_BUFFER_BYTES = 256 << 10,
};

struct world_rank {
    struct world *world;
    struct sim_host *host;
    struct engine *engine;
    struct arena *arena;
    struct registered *set;
    uint8_t *memory; /* of all tensors */
    size_t memory_bytes;
    bool ready, closed;
    int ready_status;
    struct diag ready_diag;
    struct engine_save save;
    bool saving, staged, handed, save_done;
    int staged_status, save_status;
    struct engine_restore restore;
    bool restoring, restore_done;
    int restore_status;
    const char *const *only; /* of the next restores */
    size_t only_count;
};

struct world_options { /* zero: the world's defaults */
    enum encode_mode encoding;
    uint32_t chunk_bytes, full_every;
    uint64_t object_bytes;
    const char *url; /* of the ranks; NULL means the world's one server */
    bool twin;       /* a second daemon on the same store, at the next port of the same host */
    bool faults;     /* world->store takes store_fault_add */
    uint32_t buffer_bytes;    /* of the server: a payload at most; 0: WORLD_BUFFER_BYTES */
    uint32_t rank_grace_ms;   /* of the server */
    uint32_t spread_after;    /* of engines; 0: the default */
    uint64_t agree_wait_ms;   /* of engines; 0: the default */
    enum when_down when_down; /* of engines */
    bool any_transport;       /* by the socket, too, where the world is one machine */
    uint64_t arena_bytes;     /* of ranks; 0: no bound */
    unsigned snapshots;       /* that their arenas have room for; 0: the default */
    bool eager;               /* their tensor optim.exp_avg is copied at once in lazy saves */
    /* In place of the world's own tensors: makes rank->memory (malloc, freed by the world) and
     * rank->set. */
    void (*register_rank)(struct world_rank *rank, uint32_t idx, void *user);
    void *register_user;
};

struct world {
    uint32_t check_replicas; /* of saves; enum msg_check */
    struct world_options options;
    struct sim *sim;
    struct sim_host *server_host;
    struct memory_medium *medium;
    struct store *store;
    struct catalog *catalog;
    struct server *server;
    struct listener *listener;
    struct { /* options.twin */
        struct catalog *catalog;
        struct server *server;
        struct listener *listener;
    } twin;
    bool catalog_ready;
    bool stopping;
    unsigned down; /* steps of the server's end that are done */
    uint32_t world_size;
    struct token token;
    struct world_rank ranks[WORLD_RANKS_MAX];
};

void world_init(struct world *world, uint64_t seed, uint32_t world_size);
void world_init_with(struct world *world, uint64_t seed, uint32_t world_size,
                     const struct world_options *options);
/* Closes engines and server; nothing may be left on any host. */
void world_fini(struct world *world);
void world_server_start(struct world *world);
/* Ends the server's process (connections are cut); the medium stays. */
void world_server_kill(struct world *world);
/* Begins to end it in order, as SIGTERM does, with so much time for saves that are under way. */
void world_server_stop(struct world *world, uint64_t grace_ms);
/* New engines with a new token: another attempt. */
void world_ranks_start(struct world *world);
/* Registers what is listed, in place of what was. The list's rank and world are the rank's. */
void world_register(struct world_rank *rank, struct registered_list list);
void world_ranks_stop(struct world *world);
void world_fill(struct world_rank *rank, uint8_t salt);
/* Did this rank's memory become what world_fill(salt) makes? */
bool world_has(const struct world_rank *rank, uint8_t salt);
void world_save(struct world_rank *rank, uint64_t step, uint64_t deadline_ms);
void world_save_with(struct world_rank *rank, uint64_t step, uint64_t deadline_ms, bool full);
void world_restore(struct world_rank *rank, struct selector selector, uint64_t deadline_ms);
/* Runs until every rank's save (restore) is done. */
void world_await_saves(struct world *world, uint64_t within_ms);
void world_await_restores(struct world *world, uint64_t within_ms);

/* --- what most tests do ----------------------------------------------------------------------- */

/* world_init and world_ranks_start; world_ranks_stop and world_fini. */
void world_begin(struct world *world, uint64_t seed, uint32_t world_size);
void world_begin_with(struct world *world, uint64_t seed, uint32_t world_size,
                      const struct world_options *options);
void world_end(struct world *world);
/* Ends the ranks and begins another attempt. */
void world_ranks_restart(struct world *world);
/* Every rank fills its memory and begins a save. */
void world_save_all(struct world *world, uint64_t step, uint8_t salt);
/* Waits for every rank's save, which must be staged, committed and whole. */
void world_expect_saved(struct world *world);
/* world_save_all and world_expect_saved. */
void world_save_well(struct world *world, uint64_t step, uint8_t salt);
/* Every rank spoils its memory and restores; returns when all restores have ended, however. */
void world_restore_all(struct world *world, struct selector selector, uint64_t deadline_ms);
/* The same, and every rank's restore must succeed. */
void world_restore_well(struct world *world, struct selector selector);
/* Every rank's memory must be what world_fill(salt) makes. */
void world_expect_state(const struct world *world, uint8_t salt);
/* Restores the newest checkpoint, which must be of this step and hold that state. */
void world_expect_newest(struct world *world, uint64_t step, uint8_t salt);
/* WORLD_TEST(name, seed, world_size) { ... } is a test in a world that begins before it and ends
 * after it, and is lent to it as `world`. WORLD_TEST_WITH takes fields of world_options, too. */
#define WORLD_TEST(name, seed, size) WORLD_TEST_WITH(name, seed, size, .encoding = 0)
#define WORLD_TEST_WITH(name, seed, size, ...)                                                    \
    UNIT_TEST_BODY(name, struct world *world)                                                     \
    UNIT_TEST_ENDS(name,                                                                          \
                   world_begin_with(*state = unit_test_fixture(sizeof(struct world)), seed, size, \
                                    &(struct world_options){__VA_ARGS__}),                        \
                   (world_end(*state), free(*state)))                                             \
    static void name(struct world *world)
#define WORLD_LATEST      ((struct selector){.kind = SELECT_LATEST})
#define WORLD_STEP(step_) ((struct selector){.kind = SELECT_STEP, .id = {.step = (step_)}})

/* One engine_call, its done callback, and for sim_await whether it came. */
struct caller {
    struct engine_call call;
    bool done;
    int status;
};
void caller_on_done(struct engine_call *call, int status);

#endif

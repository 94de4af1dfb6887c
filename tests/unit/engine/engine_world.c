/* SPDX-License-Identifier: Apache-2.0
 *
 * The world of the engine's tests. Each rank has: a replicated tensor of several chunks, a
 * replicated transposed one, a sharded one (rows by rank), a local one, a scalar, an empty one; a
 * replicated blob and a local one.
 */
#include "engine_world.h"

#include <stdio.h>

#include "base/check.h"
#include "support/made_set.h"
#include "support/unit_test.h"

/* The same tests run twice: over TCP, and over a Unix socket, where arenas are handed over. */
#ifdef WORLD_LOCAL
#define WORLD_URL       "cairn+unix:///server?run=demo/run1"
#define WORLD_TRANSPORT TRANSPORT_MEMFD /* a save that cannot fails: none does unnoticed */
static struct net_addr world_address(void)
{
    return (struct net_addr){.family = NET_UNIX, .host = "/server"};
}
#else
#define WORLD_URL       "cairn://server:7421/demo/run1"
#define WORLD_TRANSPORT TRANSPORT_AUTO
static struct net_addr world_address(void)
{
    return (struct net_addr){.family = NET_TCP, .host = "server", .port = WORLD_PORT};
}
#endif

/* --- the server ------------------------------------------------------------------ */

static void on_accept(void *user, struct sock *sock)
{
    struct world *world = user;
    struct stream *stream;
    assert_int_equal(stream_plain_new(sock, &stream, NULL), 0);
    server_accept(world->server, stream);
}

static void on_catalog_ready(void *user, int status, const struct diag *diag)
{
    assert_int_equal(status, 0);
    ((struct world *)user)->catalog_ready = true;
}

static void twin_on_accept(void *user, struct sock *sock)
{
    struct world *world = user;
    struct stream *stream;
    assert_int_equal(stream_plain_new(sock, &stream, NULL), 0);
    server_accept(world->twin.server, stream);
}

static struct catalog *start_catalog(struct world *world)
{
    struct sim_host *host = world->server_host;
    const struct world_options *own = &world->options;
    struct catalog_options options = {.chunk_bytes = own->chunk_bytes > 0 ? own->chunk_bytes
                                                                          : WORLD_CHUNK_BYTES,
                                      .full_every = own->full_every,
                                      .restore_drain_ms = 1000,
                                      .poll_ms = own->twin ? WORLD_POLL_MS : 0,
                                      .ready = on_catalog_ready,
                                      .user = world,
                                      .pool = sim_pool(host)};
    struct catalog *catalog;
    world->catalog_ready = false;
    assert_int_equal(catalog_new(sim_loop(host), world->store, &options, &catalog), 0);
    assert_true(sim_await(world->sim, &world->catalog_ready, 10000));
    return catalog;
}

static struct server *start_server(struct world *world, struct catalog *catalog)
{
    const struct world_options *own = &world->options;
    struct sim_host *host = world->server_host;
    struct server_options options = {.loop = sim_loop(host),
                                     .catalog = catalog,
                                     .verify_pool = sim_pool(host),
                                     .buffer_bytes_total = 8 * WORLD_BUFFER_BYTES,
                                     .sessions_max = 64,
                                     .heartbeat_ms = 500,
                                     .dead_after_ms = 2000,
                                     .login_ms = 5000,
                                     .grant_idle_ms = 5000,
                                     .buffer_bytes = own->buffer_bytes > 0 ? own->buffer_bytes
                                                                           : WORLD_BUFFER_BYTES,
                                     .rank_grace_ms = own->rank_grace_ms,
                                     .part_bytes_total = MIB(16),
                                     .encode_lanes = 2,
                                     .agent = "cairnd test"};
    struct server *server;
    assert_int_equal(server_new(&options, &server, NULL), 0);
    return server;
}

static struct listener *listen_at(struct world *world, const struct net_addr *addr,
                                  void (*accept)(void *user, struct sock *sock))
{
    struct net *net = sim_net(world->server_host);
    struct listener *listener;
    assert_int_equal(net->ops->listen(net, addr, 0, accept, world, &listener, NULL, NULL), 0);
    return listener;
}

void world_server_start(struct world *world)
{
    struct sim_host *host = world->server_host;
    const struct world_options *own = &world->options;
    const struct net_addr addr = world_address();
    const struct net_addr next = {.family = NET_TCP, .host = "server", .port = WORLD_PORT + 1};
    assert_int_equal(
        store_memory_new(sim_loop(host), sim_pool(host), world->medium, &world->store, NULL), 0);
    world->store->caps.object_bytes_preferred =
        own->object_bytes > 0 ? own->object_bytes : WORLD_OBJECT_BYTES;
    if (own->faults) {
        struct store *inner = world->store;
        assert_int_equal(store_fault_new(sim_loop(host), inner, &world->store), 0);
    }
    world->catalog = start_catalog(world);
    world->server = start_server(world, world->catalog);
    world->listener = listen_at(world, &addr, on_accept);
    if (own->twin) {
        world->twin.catalog = start_catalog(world);
        world->twin.server = start_server(world, world->twin.catalog);
        world->twin.listener = listen_at(world, &next, twin_on_accept);
    }
}

static void on_down(void *user) { ((struct world *)user)->down++; }
static bool is_down_1(void *user) { return ((struct world *)user)->down >= 1; }
static bool is_down_2(void *user) { return ((struct world *)user)->down >= 2; }
static bool is_down_3(void *user) { return ((struct world *)user)->down >= 3; }

void world_server_stop(struct world *world, uint64_t grace_ms)
{
    world->down = 0;
    world->stopping = true;
    server_stop(world->server, grace_ms, on_down, world);
}

static void twin_end(struct world *world)
{
    if (world->twin.server) {
        world->down = 0;
        server_stop(world->twin.server, 0, on_down, world);
        assert_true(sim_run_until(world->sim, is_down_1, world, 20000));
        server_free(world->twin.server);
        catalog_close(world->twin.catalog, on_down, world);
        assert_true(sim_run_until(world->sim, is_down_2, world, 20000));
        world->twin.server = NULL;
    }
}

static void server_end(struct world *world)
{
    twin_end(world);
    if (!world->stopping || world->down == 0) {
        world_server_stop(world, 0); /* or it need not wait any longer */
    }
    world->stopping = false;
    assert_true(sim_run_until(world->sim, is_down_1, world, 20000));
    server_free(world->server);
    catalog_close(world->catalog, on_down, world);
    assert_true(sim_run_until(world->sim, is_down_2, world, 20000));
    store_close(world->store, on_down, world);
    assert_true(sim_run_until(world->sim, is_down_3, world, 20000));
}

static void stop_listening(struct world *world)
{
    listener_close(world->listener);
    if (world->twin.listener) {
        listener_close(world->twin.listener);
        world->twin.listener = NULL;
    }
}

void world_server_kill(struct world *world)
{
    stop_listening(world);
    sim_kill(world->server_host, SIM_RESET);
    server_end(world);
    world->server_host = sim_restart(world->server_host);
}

/* --- ranks ----------------------------------------------------------------------- */

static void on_ready(void *user, int status, const struct diag *diag)
{
    struct world_rank *rank = user;
    rank->ready = true;
    rank->ready_status = status;
    rank->ready_diag = *diag;
}

static bool all_ready(void *user)
{
    const struct world *world = user;
    for (uint32_t i = 0; i < world->world_size; i++) {
        if (!world->ranks[i].ready) {
            return false;
        }
    }
    return true;
}

void world_register(struct world_rank *rank, struct registered_list list)
{
    list.rank = (uint32_t)(rank - rank->world->ranks);
    list.world_size = rank->world->world_size;
    registered_unref(rank->set);
    rank->set = made_set(&list);
}

static void register_all(struct world_rank *rank, uint32_t idx, uint32_t world_size)
{
    uint32_t everybody[WORLD_RANKS_MAX];
    char coordinate[32], text[32];
    uint8_t *at = rank->memory;
    for (uint32_t i = 0; i < WORLD_RANKS_MAX; i++) {
        everybody[i] = i;
    }
    struct registered_box boxes[WORLD_TENSORS] = {made_matrix(300, 40, at),
                                                  made_matrix(60, 50, at + 50000),
                                                  made_matrix(100, 64, at + 70000),
                                                  made_matrix(70, 30, at + 100000),
                                                  {.contiguous = true, .data = at + 110000},
                                                  made_matrix(0, 5, NULL)};
    boxes[1].contiguous = false; /* in memory it lies transposed */
    boxes[1].stride[0] = 1;
    boxes[1].stride[1] = 60;
    boxes[2].box.offset[0] = idx * 100;
    snprintf(coordinate, sizeof coordinate, "rank=%u", idx);
    snprintf(text, sizeof text, "state of rank %u", idx);
    struct registered_tensor tensors[WORLD_TENSORS] = {
        made_tensor("model.weight", CAIRN_F32, PLACEMENT_REPLICATED, &boxes[0]),
        made_tensor("model.transposed", CAIRN_F32, PLACEMENT_REPLICATED, &boxes[1]),
        made_tensor("optim.exp_avg", CAIRN_F32, PLACEMENT_SHARDED, &boxes[2]),
        made_tensor("rng", CAIRN_U8, PLACEMENT_LOCAL, &boxes[3]),
        made_tensor("step", CAIRN_I64, PLACEMENT_REPLICATED, &boxes[4]),
        made_tensor("empty", CAIRN_F16, PLACEMENT_REPLICATED, &boxes[5])};
    tensors[2].shape.length[0] = 100 * (int64_t)world_size;
    tensors[2].eager = rank->world->options.eager;
    tensors[3].coordinate = coordinate;
    for (unsigned i = 0; i < WORLD_TENSORS; i++) {
        if (tensors[i].placement == PLACEMENT_REPLICATED) {
            tensors[i].group = everybody;
            tensors[i].group_count = world_size;
        }
    }
    const struct registered_blob blobs[] = {{.name = "config",
                                             .coordinate = "",
                                             .kind = BLOB_BYTES,
                                             .placement = PLACEMENT_REPLICATED,
                                             .bytes = 6,
                                             .data = (const uint8_t *)"config"},
                                            {.name = "loader",
                                             .coordinate = coordinate,
                                             .kind = BLOB_BYTES,
                                             .placement = PLACEMENT_LOCAL,
                                             .bytes = strlen(text),
                                             .data = (const uint8_t *)text}};
    world_register(rank, (struct registered_list){.tensor_count = WORLD_TENSORS,
                                                  .tensors = tensors,
                                                  .blob_count = 2,
                                                  .blobs = blobs});
}

static void rank_start(struct world *world, uint32_t idx)
{
    struct world_rank *rank = &world->ranks[idx];
    char name[16];
    snprintf(name, sizeof name, "rank%u", idx);
    memset(rank, 0, sizeof *rank);
    rank->world = world;
    rank->host = sim_host_new(world->sim, name, NULL);
    assert_int_equal(arena_new(world->options.arena_bytes, &rank->arena, NULL), 0);
    arena_set_snapshots(rank->arena, world->options.snapshots);
    if (world->options.register_rank != NULL) {
        world->options.register_rank(rank, idx, world->options.register_user);
    } else {
        rank->memory_bytes = 111000;
        rank->memory = calloc(1, rank->memory_bytes);
        register_all(rank, idx, world->world_size);
    }
    struct engine_options options = {.loop = sim_loop(rank->host),
                                     .net = sim_net(rank->host),
                                     .pool = sim_pool(rank->host),
                                     .token = world->token,
                                     .rank = idx,
                                     .world_size = world->world_size,
                                     .writer = sim_random(world->sim) | 1,
                                     .arena = rank->arena,
                                     .io_deadline_ms = 5000,
                                     .transport = world->options.any_transport ? TRANSPORT_AUTO
                                                                               : WORLD_TRANSPORT,
                                     .agree_wait_ms = world->options.agree_wait_ms,
                                     .when_down = world->options.when_down,
                                     .spread_after = world->options.spread_after,
                                     .encoding = world->options.encoding,
                                     .label = "test"};
    const char *url = world->options.url ? world->options.url : WORLD_URL;
    assert_int_equal(url_parse(url, NULL, false, &options.url, NULL), 0);
    assert_int_equal(engine_new(&options, on_ready, rank, &rank->engine, NULL), 0);
}

void world_ranks_start(struct world *world)
{
    uint64_t halves[2] = {sim_random(world->sim), sim_random(world->sim)};
    memcpy(world->token.bytes, halves, sizeof world->token.bytes);
    for (uint32_t i = 0; i < world->world_size; i++) {
        rank_start(world, i);
    }
    assert_true(sim_run_until(world->sim, all_ready, world, 20000));
}

static bool all_closed(void *user)
{
    const struct world *world = user;
    for (uint32_t i = 0; i < world->world_size; i++) {
        if (!world->ranks[i].closed) {
            return false;
        }
    }
    return true;
}

void world_ranks_stop(struct world *world)
{
    for (uint32_t i = 0; i < world->world_size; i++) {
        engine_close(world->ranks[i].engine, sim_raise, &world->ranks[i].closed);
    }
    assert_true(sim_run_until(world->sim, all_closed, world, 5000));
    sim_run_for(world->sim, 3000); /* what lingers: sockets that say goodbye */
    for (uint32_t i = 0; i < world->world_size; i++) {
        struct world_rank *rank = &world->ranks[i];
        assert_int_equal(sim_open_socks(rank->host), 0);
        assert_int_equal(sim_open_works(rank->host), 0);
        assert_int_equal(arena_used_bytes(rank->arena), 0);
        assert_int_equal(rank->set->refs, 1);
        if (rank->restoring) {
            assert_true(rank->restore_done);
            engine_restore_fini(&rank->restore);
        }
        registered_unref(rank->set);
        arena_free(rank->arena);
        free(rank->memory);
    }
}

void world_init(struct world *world, uint64_t seed, uint32_t world_size)
{
    world_init_with(world, seed, world_size, &(struct world_options){0});
}

void world_init_with(struct world *world, uint64_t seed, uint32_t world_size,
                     const struct world_options *options)
{
    memset(world, 0, sizeof *world);
    world->options = *options;
    world->sim = sim_new(seed);
    world->world_size = world_size;
    world->server_host = sim_host_new(world->sim, "server", NULL);
    assert_int_equal(memory_medium_new(&world->medium), 0);
    world_server_start(world);
}

void world_fini(struct world *world)
{
    stop_listening(world);
    server_end(world);
    memory_medium_free(world->medium);
    sim_free(world->sim);
}

/* --- state ----------------------------------------------------------------------- */

/* What is replicated is equal on all ranks, what is sharded or local differs. */
static uint8_t byte_at(const struct world_rank *rank, size_t i, uint8_t salt)
{
    uint32_t idx = (uint32_t)(rank - rank->world->ranks);
    bool own = i >= 70000 && i < 110000;
    return (uint8_t)(i * 131 + i / 251 + salt * 17u + (own ? idx * 41 : 0));
}

void world_fill(struct world_rank *rank, uint8_t salt)
{
    for (size_t i = 0; i < rank->memory_bytes; i++) {
        rank->memory[i] = byte_at(rank, i, salt);
    }
}

static bool is_tensor_byte(size_t i)
{
    return i < 300 * 40 * 4 || (i >= 50000 && i < 50000 + 60 * 50 * 4) ||
           (i >= 70000 && i < 70000 + 100 * 64 * 4) || (i >= 100000 && i < 100000 + 70 * 30) ||
           (i >= 110000 && i < 110008);
}

bool world_has(const struct world_rank *rank, uint8_t salt)
{
    for (size_t i = 0; i < rank->memory_bytes; i++) {
        if (is_tensor_byte(i) && rank->memory[i] != byte_at(rank, i, salt)) {
            return false;
        }
    }
    return true;
}

/* --- operations ------------------------------------------------------------------ */

static void on_staged(struct engine_save *save, int status)
{
    struct world_rank *rank = container_of(save, struct world_rank, save);
    assert_false(rank->staged);
    rank->staged = true;
    rank->staged_status = status;
    world_fill(rank, 0xee); /* the snapshot must not see this */
}

static void on_handed(struct engine_save *save)
{
    struct world_rank *rank = container_of(save, struct world_rank, save);
    assert_true(rank->staged);
    assert_false(rank->handed);
    rank->handed = true;
}

static void on_save_done(struct engine_save *save, int status)
{
    struct world_rank *rank = container_of(save, struct world_rank, save);
    assert_true(rank->staged);
    assert_false(rank->save_done);
    assert_true(rank->handed || status != 0);
    rank->save_done = true;
    rank->save_status = status;
}

void world_save(struct world_rank *rank, uint64_t step, uint64_t deadline_ms)
{
    world_save_with(rank, step, deadline_ms, false);
}

void world_save_with(struct world_rank *rank, uint64_t step, uint64_t deadline_ms, bool full)
{
    rank->staged = rank->handed = rank->save_done = false;
    rank->saving = true;
    rank->save = (struct engine_save){.step = step,
                                      .deadline_ms = deadline_ms,
                                      .full = full,
                                      .set = rank->set,
                                      .check_replicas = rank->world->check_replicas,
                                      .on_staged = on_staged,
                                      .on_handed = on_handed,
                                      .on_done = on_save_done};
    engine_save_start(rank->engine, &rank->save);
}

static void on_restore_done(struct engine_restore *restore, int status)
{
    struct world_rank *rank = container_of(restore, struct world_rank, restore);
    assert_false(rank->restore_done);
    rank->restore_done = true;
    rank->restore_status = status;
}

void world_restore(struct world_rank *rank, struct selector selector, uint64_t deadline_ms)
{
    if (rank->restoring) {
        assert_true(rank->restore_done);
        engine_restore_fini(&rank->restore);
    }
    rank->restore_done = false;
    rank->restoring = true;
    memset(&rank->restore, 0, sizeof rank->restore);
    rank->restore.selector = selector;
    rank->restore.allow_older = selector.kind == SELECT_LATEST;
    rank->restore.strict = true;
    rank->restore.only = rank->only;
    rank->restore.only_count = rank->only_count;
    rank->restore.deadline_ms = deadline_ms;
    rank->restore.set = rank->set;
    rank->restore.on_done = on_restore_done;
    engine_restore_start(rank->engine, &rank->restore);
}

static bool saves_done(void *user)
{
    const struct world *world = user;
    for (uint32_t i = 0; i < world->world_size; i++) {
        if (world->ranks[i].saving && !world->ranks[i].save_done) {
            return false;
        }
    }
    return true;
}

static bool restores_done(void *user)
{
    const struct world *world = user;
    for (uint32_t i = 0; i < world->world_size; i++) {
        if (world->ranks[i].restoring && !world->ranks[i].restore_done) {
            return false;
        }
    }
    return true;
}

void world_await_saves(struct world *world, uint64_t within_ms)
{
    assert_true(sim_run_until(world->sim, saves_done, world, within_ms));
}

void world_await_restores(struct world *world, uint64_t within_ms)
{
    assert_true(sim_run_until(world->sim, restores_done, world, within_ms));
}

void caller_on_done(struct engine_call *call, int status)
{
    struct caller *caller = container_of(call, struct caller, call);
    caller->done = true;
    caller->status = status;
}

/* --- what most tests do ----------------------------------------------------------------------- */

void world_begin(struct world *world, uint64_t seed, uint32_t world_size)
{
    world_begin_with(world, seed, world_size, &(struct world_options){0});
}

void world_begin_with(struct world *world, uint64_t seed, uint32_t world_size,
                      const struct world_options *options)
{
    world_init_with(world, seed, world_size, options);
    world_ranks_start(world);
}

void world_end(struct world *world)
{
    world_ranks_stop(world);
    world_fini(world);
}

void world_ranks_restart(struct world *world)
{
    world_ranks_stop(world);
    world_ranks_start(world);
}

void world_save_all(struct world *world, uint64_t step, uint8_t salt)
{
    for (uint32_t i = 0; i < world->world_size; i++) {
        world_fill(&world->ranks[i], salt);
        world_save(&world->ranks[i], step, 60000);
    }
}

void world_expect_saved(struct world *world)
{
    world_await_saves(world, 60000);
    for (uint32_t i = 0; i < world->world_size; i++) {
        struct world_rank *rank = &world->ranks[i];
        if (rank->save_status != 0 || rank->staged_status != 0) {
            fail_msg("rank %u: %d, %d: %s", i, rank->staged_status, rank->save_status,
                     rank->save.diag.text);
        }
        assert_int_equal(rank->save.staged_bytes, rank->save.total_bytes);
        assert_int_equal(rank->save.durable_bytes, rank->save.total_bytes);
        assert_true(rank->save.total_bytes > 0);
    }
}

void world_save_well(struct world *world, uint64_t step, uint8_t salt)
{
    world_save_all(world, step, salt);
    world_expect_saved(world);
}

void world_restore_all(struct world *world, struct selector selector, uint64_t deadline_ms)
{
    for (uint32_t i = 0; i < world->world_size; i++) {
        world_fill(&world->ranks[i], 0x77);
        world_restore(&world->ranks[i], selector, deadline_ms);
    }
    world_await_restores(world, deadline_ms + 2000);
}

void world_restore_well(struct world *world, struct selector selector)
{
    world_restore_all(world, selector, 60000);
    for (uint32_t i = 0; i < world->world_size; i++) {
        const struct world_rank *rank = &world->ranks[i];
        if (rank->restore_status != 0) {
            fail_msg("rank %u: %d: %s", i, rank->restore_status, rank->restore.diag.text);
        }
    }
}

void world_expect_state(const struct world *world, uint8_t salt)
{
    for (uint32_t i = 0; i < world->world_size; i++) {
        assert_true(world_has(&world->ranks[i], salt));
    }
}

void world_expect_newest(struct world *world, uint64_t step, uint8_t salt)
{
    world_restore_well(world, WORLD_LATEST);
    for (uint32_t i = 0; i < world->world_size; i++) {
        assert_int_equal(world->ranks[i].restore.id.step, step);
    }
    world_expect_state(world, salt);
}

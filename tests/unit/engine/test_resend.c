/* SPDX-License-Identifier: Apache-2.0
 *
 * A save that is cut at any moment completes, and what was durable then is not sent again. Method:
 * one save of two ranks in a simulated world whose course is the seed's; the same course is run
 * again for each of its events, up to that event, and then all connections are cut, or the daemon
 * dies and a new one starts on the same store. At the moment of the cut the store is asked which
 * objects are durable; what the server then receives must fit into the rest, and in the end no
 * object is there twice. Objects of 24 KiB are sent in payloads of 8 KiB.
 */
#include <inttypes.h>

#include "base/check.h"
#include "base/log.h"
#include "engine_world.h"
#include "support/made_set.h"
#include "support/unit_test.h"

enum fault { CUT, KILL };
enum {
    SEED = 1,
    SHARED_ROWS = 160,
    OWN_ROWS = 80,
    FOOTER_BYTES = 4096,
    IN_FLIGHT_BYTES = 64 << 10
};

struct objects {
    size_t count;
    uint64_t data_bytes; /* without their footers */
};

struct asked {
    struct store_req req;
    bool done;
};

static void on_request(struct store_req *req) { container_of(req, struct asked, req)->done = true; }

static void ask_store(struct world *world, struct asked *asked)
{
    asked->req.done = on_request;
    store_submit(world->store, &asked->req);
    assert_true(sim_await(world->sim, &asked->done, 1000));
    assert_int_equal(asked->req.status, 0);
}

/* Durable objects of the step's first term. */
static struct objects durable(struct world *world, const struct run_name *run)
{
    struct objects ret = {0};
    struct asked list = {.req = {.op = STORE_LIST_OBJECTS, .run = *run, .id = {1, 1}}};
    ask_store(world, &list);
    ret.count = list.req.ret_count;
    for (size_t i = 0; i < ret.count; i++) {
        struct asked stat = {
            .req = {.op = STORE_STAT, .run = *run, .object = list.req.ret_objects[i]}};
        ask_store(world, &stat);
        ret.data_bytes += stat.req.ret_bytes - FOOTER_BYTES;
    }
    free(list.req.ret_objects);
    return ret;
}

struct course {
    uint64_t steps; /* events of the whole save */
    uint64_t bytes_in;
    struct objects objects;
};

static uint64_t bytes_in(const struct world *world)
{
    struct server_stats stats;
    server_stats(world->server, &stats);
    return stats.bytes_in;
}

static bool all_saved(const struct world *world)
{
    return world->ranks[0].save_done && world->ranks[1].save_done;
}

/* A replicated tensor that both write half of, and one of each rank's own. */
static void register_rank(struct world_rank *rank, uint32_t idx, void *user)
{
    uint32_t everybody[] = {0, 1};
    rank->memory_bytes = SHARED_ROWS * 1024 + OWN_ROWS * 1024;
    rank->memory = calloc(1, rank->memory_bytes);
    struct registered_box shared = made_matrix(SHARED_ROWS, 1024, rank->memory);
    struct registered_box own = made_matrix(OWN_ROWS, 1024, rank->memory + SHARED_ROWS * 1024);
    struct registered_tensor tensors[] = {
        made_tensor("own", CAIRN_U8, PLACEMENT_SHARDED, &own),
        made_tensor("shared", CAIRN_U8, PLACEMENT_REPLICATED, &shared)};
    own.box.offset[0] = idx * OWN_ROWS;
    tensors[0].shape.length[0] = 2 * OWN_ROWS;
    tensors[1].group_count = 2;
    tensors[1].group = everybody;
    world_register(rank, (struct registered_list){.tensor_count = 2, .tensors = tensors});
}

static void start(struct world *world, uint64_t seed)
{
    world_begin_with(
        world, seed, 2,
        &(struct world_options){.buffer_bytes = 8 << 10, .register_rank = register_rank});
    sim_run_for(world->sim, 100);
    for (uint32_t i = 0; i < 2; i++) {
        memset(world->ranks[i].memory, 3, world->ranks[i].memory_bytes);
        world_save(&world->ranks[i], 1, 60000);
    }
}

static void end(struct world *world)
{
    for (uint32_t i = 0; i < 2; i++) {
        if (world->ranks[i].save_status != 0) {
            fail_msg("rank %u: %s", i, world->ranks[i].save.diag.text);
        }
    }
    world_end(world);
}

static void run_whole(struct world *world, uint64_t seed, const struct run_name *run,
                      struct course *ret)
{
    start(world, seed);
    for (ret->steps = 0; !all_saved(world); ret->steps++) {
        assert_true(sim_step(world->sim));
    }
    ret->bytes_in = bytes_in(world);
    ret->objects = durable(world, run);
    end(world);
}

static void run_cut(struct world *world, const struct run_name *run, const struct course *whole,
                    uint64_t at, enum fault fault)
{
    start(world, SEED);
    for (uint64_t i = 0; i < at; i++) {
        assert_true(sim_step(world->sim));
    }
    uint64_t before = bytes_in(world);
    if (fault == KILL) {
        world_server_kill(world);
        world_server_start(world);
        before = 0;
    } else {
        (void)sim_cut(world->sim, NULL, NULL);
    }
    struct objects then = durable(world, run);
    world_await_saves(world, 60000);
    uint64_t again = bytes_in(world) - before;
    struct objects after = durable(world, run);
    uint64_t arrived =
        fault == KILL ? 0 : IN_FLIGHT_BYTES; /* before the cut, and counted after it */
    if (again + then.data_bytes > whole->bytes_in + arrived ||
        after.count != whole->objects.count || after.data_bytes != whole->objects.data_bytes) {
        fail_msg("%s at event %" PRIu64 ": %zu objects with %" PRIu64
                 " bytes were durable, %" PRIu64 " of %" PRIu64 " bytes came after; in the end "
                 "%zu objects with %" PRIu64 " bytes instead of %zu with %" PRIu64,
                 fault == KILL ? "daemon killed" : "cut", at, then.count, then.data_bytes, again,
                 whole->bytes_in, after.count, after.data_bytes, whole->objects.count,
                 whole->objects.data_bytes);
    }
    end(world);
}

TEST(nothing_durable_is_sent_again)
{
    struct world *world = malloc(sizeof *world);
    struct course whole;
    struct run_name run;
    log_setup(LOG_ERROR, LOG_TEXT);
    assert_int_equal(run_name_set("demo", "run1", &run, NULL), 0);
    run_whole(world, SEED, &run, &whole);
    assert_true(whole.objects.count > 10 && whole.steps > 300);
    assert_int_equal(whole.objects.data_bytes, whole.bytes_in);
    for (uint64_t at = 1; at < whole.steps; at++) {
        run_cut(world, &run, &whole, at, at % 2 == 0 ? CUT : KILL);
    }
    free(world);
}

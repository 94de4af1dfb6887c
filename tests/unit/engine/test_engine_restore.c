/* SPDX-License-Identifier: Apache-2.0
 *
 * A restore names what does not fit, proves that an empty run is empty, and moves all ranks when
 * one of them finds damage; a refused login says why. Method: the engine against the real server on
 * the simulator.
 */
#include <stdio.h>

#include "base/check.h"
#include "engine_world.h"
#include "support/made_set.h"
#include "support/unit_test.h"
#include "wire/negotiate.h"

WORLD_TEST(an_empty_run_is_proven_empty, 1, 2)
{
    world_restore_all(world, WORLD_LATEST, 10000);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(world->ranks[i].restore_status, CAIRN_E_NOT_FOUND);
        assert_true(world->ranks[i].restore.empty);
    }
    world_save_well(world, 1, 1); /* and the first save goes on from there */
}

WORLD_TEST(an_unknown_step_is_named, 2, 2)
{
    world_save_well(world, 4, 1);
    world_restore_all(world, WORLD_STEP(9), 10000);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(world->ranks[i].restore_status, CAIRN_E_NOT_FOUND);
        assert_false(world->ranks[i].restore.empty);
        assert_non_null(strstr(world->ranks[i].restore.diag.text, "9"));
    }
    world_restore_all(world, WORLD_STEP(4), 10000);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(world->ranks[i].restore_status, 0);
        assert_true(world_has(&world->ranks[i], 1));
        const struct engine_restore *restore = &world->ranks[i].restore;
        assert_int_equal(restore->blobs.count, 2);
        assert_string_equal(restore->blobs.items[0].name, "config");
        assert_memory_equal(restore->blobs.items[0].data, "config", 6);
        assert_string_equal(restore->blobs.items[1].name, "loader");
        assert_int_equal(restore->blobs.items[1].data[restore->blobs.items[1].bytes - 1], '0' + i);
        assert_int_equal(restore->total_bytes, restore->done_bytes);
    }
}

/* Gives rank 0 (of a world of one) another list of one tensor. */
static void register_one(struct world *world, const char *name, uint32_t dtype, int64_t rows)
{
    struct world_rank *rank = &world->ranks[0];
    struct registered_box box = made_matrix(rows, 40, rank->memory);
    struct registered_tensor tensor = made_tensor(name, dtype, PLACEMENT_REPLICATED, &box);
    world_register(rank, (struct registered_list){.tensor_count = 1, .tensors = &tensor});
}

WORLD_TEST(what_does_not_fit_is_named, 3, 1)
{
    static const struct {
        const char *name;
        uint32_t dtype;
        int64_t rows;
        int code;
        const char *text;
    } cases[] = {
        {"model.weigth", CAIRN_F32, 300, CAIRN_E_MISSING_TENSOR, "similar name is 'model.weight'"},
        {"model.weight", CAIRN_BF16, 300, CAIRN_E_DTYPE_MISMATCH, "stored as float32"},
        {"model.weight", CAIRN_F32, 299, CAIRN_E_SHAPE_MISMATCH, "[300, 40]"},
    };
    world_save_well(world, 1, 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        register_one(world, cases[i].name, cases[i].dtype, cases[i].rows);
        world_restore_all(world, WORLD_LATEST, 10000);
        const struct world_rank *rank = &world->ranks[0];
        if (rank->restore_status != cases[i].code ||
            !strstr(rank->restore.diag.text, cases[i].text)) {
            fail_msg("case %zu: %d: %s", i, rank->restore_status, rank->restore.diag.text);
        }
    }
    register_one(world, "model.weight", CAIRN_F32, 300);
    world_restore_all(world, WORLD_LATEST, 10000);
    assert_int_equal(world->ranks[0].restore_status, 0);
    assert_int_equal(world->ranks[0].restore.unexpected_count, 5);
}

/* Goal: `only` restores what matches a pattern and touches nothing else; a pattern that means
 * nothing is named. */
WORLD_TEST(a_part_is_restored_by_pattern, 13, 2)
{
    static const char *const weight[] = {"*.weight", "config"}, *const typo[] = {"model.weigth"};
    world_save_well(world, 1, 1);
    size_t changed = 0, kept = 0;
    for (uint32_t i = 0; i < 2; i++) {
        struct world_rank *rank = &world->ranks[i];
        world_fill(rank, 0x77);
        rank->only = weight;
        rank->only_count = 2;
        world_restore(rank, WORLD_LATEST, 10000);
    }
    world_await_restores(world, 12000);
    for (uint32_t i = 0; i < 2; i++) {
        struct world_rank *rank = &world->ranks[i];
        assert_int_equal(rank->restore_status, 0);
        uint8_t *restored = malloc(rank->memory_bytes), *untouched = malloc(rank->memory_bytes);
        memcpy(restored, rank->memory, rank->memory_bytes);
        world_fill(rank, 0x77);
        memcpy(untouched, rank->memory, rank->memory_bytes);
        world_fill(rank, 1);
        for (size_t t = 0; t < rank->set->tensor_count; t++) {
            const struct registered_tensor *tensor = &rank->set->tensors[t];
            bool wanted = strcmp(tensor->name + strlen(tensor->name) - 7, ".weight") == 0;
            for (size_t b = 0; b < tensor->box_count; b++) {
                const struct registered_box *box = &tensor->boxes[b];
                size_t at = (size_t)(box->data - rank->memory);
                uint64_t bytes = box_bytes(&box->box, tensor->dtype);
                if (!box->contiguous || bytes == 0) {
                    continue;
                }
                assert_memory_equal(restored + at, wanted ? rank->memory + at : untouched + at,
                                    bytes);
                changed += wanted;
                kept += !wanted;
            }
        }
        assert_int_equal(rank->restore.blobs.count, 1);
        assert_string_equal(rank->restore.blobs.items[0].name, "config");
        assert_int_equal(rank->restore.unexpected_count, 0);
        free(restored);
        free(untouched);
    }
    assert_true(changed > 0 && kept > 0);
    for (uint32_t i = 0; i < 2; i++) {
        world->ranks[i].only = typo;
        world->ranks[i].only_count = 1;
        world_restore(&world->ranks[i], WORLD_LATEST, 10000);
    }
    world_await_restores(world, 12000);
    assert_int_equal(world->ranks[0].restore_status, CAIRN_E_MISSING_TENSOR);
    assert_non_null(strstr(world->ranks[0].restore.diag.text, "similar name is 'model.weight'"));
}

/* Goal: one rank's damage moves all ranks to the older checkpoint, loudly. Method: the store flips
 * a bit of what is read. */
static uint64_t flip_step;
static const struct store_ops *real_ops;
static struct store_ops flipping_ops;
static void (*flipped_done)(struct store_req *req);

static void on_flip(struct store_req *req)
{
    ((uint8_t *)req->data)[req->bytes / 2] ^= 1;
    flipped_done(req);
}

static void flip_submit(struct store *store, struct store_req *req)
{
    if (req->op == STORE_READ && req->object.step == flip_step && req->object.rank == 1) {
        flipped_done = req->done;
        req->done = on_flip;
    }
    real_ops->submit(store, req);
}

TEST(damage_moves_all_ranks_to_an_older_one)
{
    struct world world;
    world_init(&world, 4, 2);
    real_ops = world.store->ops;
    flipping_ops = *real_ops;
    flipping_ops.submit = flip_submit;
    flip_step = 2;
    world.store->ops = &flipping_ops;
    world_ranks_start(&world);
    world_save_well(&world, 1, 1);
    world_save_well(&world, 2, 2);
    world_restore_all(&world, WORLD_LATEST, 10000);
    for (uint32_t i = 0; i < 2; i++) {
        struct world_rank *rank = &world.ranks[i];
        if (rank->restore_status != 0) {
            fail_msg("rank %u: %s", i, rank->restore.diag.text);
        }
        assert_int_equal(rank->restore.id.step, 1);
        assert_true(rank->restore.fell_back);
        assert_true(world_has(rank, 1));
    }
    world_restore_all(&world, WORLD_STEP(2), 10000);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(world.ranks[i].restore_status, CAIRN_E_DAMAGED);
        assert_non_null(strstr(world.ranks[i].restore.diag.text, "do not use"));
    }
    for (uint32_t i = 2; i-- > 0;) { /* rank 0 comes when it has failed, and counts it too */
        world_restore(&world.ranks[i], WORLD_STEP(2), 10000);
        world_await_restores(&world, 12000);
        assert_int_equal(world.ranks[i].restore_status, CAIRN_E_DAMAGED);
    }
    world_restore_well(&world, WORLD_STEP(1));
    world_end(&world);
}

WORLD_TEST(a_rank_that_does_not_restore_is_named, 5, 2)
{
    world_save_well(world, 1, 1);
    world_restore(&world->ranks[0], WORLD_LATEST, 4000);
    world_await_restores(world, 5000);
    assert_int_equal(world->ranks[0].restore_status, CAIRN_E_MISSING_RANKS);
    if (!strstr(world->ranks[0].restore.diag.text, "rank 1 of")) {
        fail_msg("%s", world->ranks[0].restore.diag.text);
    }
}

TEST(close_ends_restores_at_once)
{
    for (uint64_t ms = 0; ms < 80; ms += 4) {
        struct world world;
        world_begin(&world, ms + 1, 2);
        world_save_well(&world, 1, 1);
        for (uint32_t i = 0; i < 2; i++) {
            world_restore(&world.ranks[i], WORLD_LATEST, 10000);
        }
        sim_run_for(world.sim, ms);
        world_end(&world);
    }
}

/* --- requests and login ---------------------------------------------------------- */

WORLD_TEST(requests_are_answered_over_a_lost_connection, 6, 1)
{
    struct caller caller = {
        .call = {.request = {.type = MSG_LIST, .u.list = {.limit = 10}}, .done = caller_on_done}};
    world_save_well(world, 1, 1);
    world_save_well(world, 2, 2);
    engine_call_start(world->ranks[0].engine, &caller.call);
    (void)sim_cut(world->sim, NULL, NULL);
    assert_true(sim_await(world->sim, &caller.done, 10000));
    assert_int_equal(caller.status, 0);
    assert_int_equal(caller.call.reply.type, MSG_LIST_REPLY);
    assert_int_equal(caller.call.reply.u.list_reply.count, 2);
    assert_int_equal(caller.call.reply.u.list_reply.entries[0].id.step, 2);
    engine_call_fini(&caller.call);
    caller.done = false;
    engine_call_start(world->ranks[0].engine, &caller.call);
    engine_call_cancel(&caller.call);
    assert_false(caller.done); /* never inside the call */
    assert_true(sim_await(world->sim, &caller.done, 10000));
    assert_int_equal(caller.status, CAIRN_E_CANCELLED);
    engine_call_fini(&caller.call);
}

#ifndef WORLD_LOCAL
static bool calloc_fails; /* the next one */
__typeof__(calloc) __real_calloc, __wrap_calloc;

void *__wrap_calloc(size_t count, size_t bytes)
{
    bool fails = calloc_fails;
    calloc_fails = false;
    return fails ? NULL : __real_calloc(count, bytes);
}

/* Goal: without memory to begin with, a request, a restore and a save end with NO_MEMORY, not the
 * handle; and the next ones work. */
WORLD_TEST(short_of_memory_ends_the_operation_only, 8, 1)
{
    struct caller caller = {
        .call = {.request = {.type = MSG_LIST, .u.list = {.limit = 10}}, .done = caller_on_done}};
    struct world_rank *rank = &world->ranks[0];
    for (int round = 0; round < 2; round++) {
        int status = round == 0 ? CAIRN_E_NO_MEMORY : 0;
        calloc_fails = round == 0;
        world_save(rank, 1, 10000);
        assert_false(rank->save_done); /* never inside the call */
        world_await_saves(world, 10000);
        assert_int_equal(rank->save_status, status);
        calloc_fails = round == 0;
        world_restore(rank, WORLD_LATEST, 10000);
        world_await_restores(world, 10000);
        assert_int_equal(rank->restore_status, status);
        calloc_fails = round == 0;
        caller.done = false;
        engine_call_start(rank->engine, &caller.call);
        assert_false(caller.done);
        assert_true(sim_await(world->sim, &caller.done, 10000));
        assert_int_equal(caller.status, status);
        engine_call_fini(&caller.call);
    }
}
#endif

WORLD_TEST(an_older_server_is_not_asked_what_it_does_not_know, 7, 1)
{
    struct caller caller = {.call = {.request = {.type = MSG_LIST, .u.list = {.limit = 10}},
                                     .features = 1ULL << 63,
                                     .done = caller_on_done}};
    engine_call_start(world->ranks[0].engine, &caller.call);
    assert_true(sim_await(world->sim, &caller.done, 10000));
    assert_int_equal(caller.status, CAIRN_E_UNSUPPORTED);
    assert_non_null(strstr(caller.call.diag.text, "upgrade"));
    engine_call_fini(&caller.call);
    caller.done = false;
    caller.call.features = WIRE_FEATURE_RECORD; /* this one knows it */
    engine_call_start(world->ranks[0].engine, &caller.call);
    assert_true(sim_await(world->sim, &caller.done, 10000));
    assert_int_equal(caller.status, 0);
    engine_call_fini(&caller.call);
}

#ifndef WORLD_LOCAL /* its addresses are of TCP */
struct login {
    bool ready, closed;
    int status;
    char text[DIAG_TEXT_MAX];
};

static void on_login(void *user, int status, const struct diag *diag)
{
    struct login *login = user;
    login->ready = true;
    login->status = status;
    snprintf(login->text, sizeof login->text, "%s", diag->text);
}

/* Another process that says it is that rank of a world of that size; what becomes of its login? */
static struct login try_login(struct world *world, const char *url, uint32_t rank, uint32_t size)
{
    struct sim_host *host = sim_host_new(world->sim, "other", NULL);
    struct login login = {0};
    struct engine *engine;
    struct engine_options options = {.loop = sim_loop(host),
                                     .net = sim_net(host),
                                     .pool = sim_pool(host),
                                     .token = world->token,
                                     .rank = rank,
                                     .world_size = size,
                                     .writer = 99,
                                     .io_deadline_ms = 3000};
    assert_int_equal(url_parse(url, NULL, false, &options.url, NULL), 0);
    assert_int_equal(engine_new(&options, on_login, &login, &engine, NULL), 0);
    assert_true(sim_await(world->sim, &login.ready, 4000));
    engine_close(engine, sim_raise, &login.closed);
    assert_true(sim_await(world->sim, &login.closed, 1000));
    sim_run_for(world->sim, 3000);
    assert_int_equal(sim_open_socks(host), 0);
    return login;
}

WORLD_TEST(refused_logins_say_why, 7, 2)
{
    struct login login = try_login(world, "cairn://server:7421/demo/run1", 1, 2);
    assert_int_equal(login.status, CAIRN_E_DUPLICATE_RANK);
    login = try_login(world, "cairn://server:9/demo/run1", 0, 2);
    assert_int_equal(login.status, CAIRN_E_UNREACHABLE);
    login = try_login(world, "cairn://server:9,server:7421/demo/other", 0,
                      1); /* the second address answers */
    assert_int_equal(login.status, 0);
}

#endif

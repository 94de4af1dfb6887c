/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: what is restored is what was saved, bit for bit, for every dtype and the sizes around a
 * chunk, empty and rank-0 tensors, transposed and aliased memory, NaN payloads and negative zero,
 * over all encodings and over long runs of saves that change a random part of the state, with
 * aborts, cuts, restarts and restores between. Method: a model of what each step held.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_world.h"

enum { ZOO_DTYPES = 22, ZOO_SIZES = 6, ZOO_TENSORS = ZOO_DTYPES * ZOO_SIZES + 3, ZOO_SAVES = 30 };

struct zoo {
    struct world world;
    uint32_t chunk_bytes;
    size_t bytes;              /* of the state of a rank */
    uint8_t *state;            /* as it is now; the same on all ranks */
    uint8_t *saved[ZOO_SAVES]; /* as each step saved it; NULL: aborted */
};

/* --- the set ----------------------------------------------------------------------- */

static size_t elements_of(const struct zoo *zoo, unsigned size, uint32_t element_bytes)
{
    size_t chunk = zoo->chunk_bytes / element_bytes;
    const size_t counts[ZOO_SIZES] = {0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk + 3};
    return counts[size];
}

static struct registered_tensor vector(const char *name, uint32_t dtype, struct registered_box *box)
{
    struct registered_tensor tensor = {.name = name,
                                       .coordinate = "",
                                       .dtype = dtype,
                                       .placement = PLACEMENT_REPLICATED,
                                       .shape = {.ndim = box->box.ndim},
                                       .box_count = 1,
                                       .boxes = box};
    memcpy(tensor.shape.length, box->box.length, sizeof box->box.length);
    return tensor;
}

static size_t element_bytes(uint32_t dtype) { return dtype_bits(dtype) / 8; }

/* All dtypes in all sizes, each at a place of its own; then a scalar, a transposed one over the
 * bytes of the largest int64, and an alias of another. */
static size_t list_tensors(const struct zoo *zoo, uint8_t *memory, char (*names)[24],
                           struct registered_tensor *tensors, struct registered_box *boxes)
{
    size_t at = 0, n = 0, i64_at = 0, i64_count = 0;
    for (uint32_t dtype = 1; dtype <= ZOO_DTYPES; dtype++) {
        for (unsigned size = 0; size < ZOO_SIZES; size++, n++) {
            size_t count = elements_of(zoo, size, (uint32_t)element_bytes(dtype));
            snprintf(names[n], sizeof names[n], "t%02u.%u", dtype, size);
            boxes[n] = (struct registered_box){.box = {.ndim = 1, .length = {(int64_t)count}},
                                               .contiguous = true,
                                               .data = memory ? memory + at : NULL};
            tensors[n] = vector(names[n], dtype, &boxes[n]);
            i64_at = dtype == CAIRN_I64 ? at : i64_at;
            i64_count = dtype == CAIRN_I64 ? count : i64_count;
            at = (at + count * element_bytes(dtype) + 15) / 16 * 16;
        }
    }
    boxes[n] = (struct registered_box){.contiguous = true, .data = memory ? memory + i64_at : NULL};
    tensors[n] = vector("scalar", CAIRN_F64, &boxes[n]);
    n++;
    boxes[n] = (struct registered_box){.box = {.ndim = 2, .length = {7, (int64_t)i64_count / 7}},
                                       .stride = {1, 7},
                                       .data = memory ? memory + i64_at : NULL};
    tensors[n] = vector("transposed", CAIRN_I64, &boxes[n]);
    n++;
    boxes[n] = (struct registered_box){.box = {.ndim = 1, .length = {(int64_t)i64_count}},
                                       .contiguous = true,
                                       .data = memory ? memory + i64_at : NULL};
    tensors[n] = vector("alias", CAIRN_I64, &boxes[n]);
    return at;
}

static int name_order(const void *a, const void *b)
{
    const struct registered_tensor *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static void register_zoo(struct zoo *zoo, struct world_rank *rank)
{
    static char names[ZOO_TENSORS][24];
    static struct registered_tensor tensors[ZOO_TENSORS];
    static struct registered_box boxes[ZOO_TENSORS];
    uint32_t everybody[WORLD_RANKS_MAX] = {0, 1, 2, 3};
    struct diag diag = DIAG_INIT;
    registered_unref(rank->set);
    free(rank->memory);
    rank->memory = calloc(1, zoo->bytes);
    rank->memory_bytes = zoo->bytes;
    (void)list_tensors(zoo, rank->memory, names, tensors, boxes);
    for (unsigned i = 0; i < ZOO_TENSORS; i++) {
        tensors[i].group = everybody;
        tensors[i].group_count = zoo->world.world_size;
    }
    qsort(tensors, ZOO_TENSORS, sizeof tensors[0], name_order);
    if (registered_new(&(struct registered_list){.rank = (uint32_t)(rank - zoo->world.ranks),
                                                 .world_size = zoo->world.world_size,
                                                 .tensor_count = ZOO_TENSORS,
                                                 .tensors = tensors},
                       &rank->set, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
}

/* --- its bytes --------------------------------------------------------------------- */

/* Zeros, noise, small integers, floats near each other, NaNs with payloads and negative zeros. */
static void write_some(struct zoo *zoo, size_t at, size_t bytes)
{
    static const uint32_t specials[] = {0x7fc00001, 0xffa5a5a5, 0x80000000, 0x7f800000, 0x00000001};
    unsigned kind = (unsigned)(sim_random(zoo->world.sim) % 5);
    uint64_t random = sim_random(zoo->world.sim);
    for (size_t i = 0; i < bytes; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint8_t noise = (uint8_t)(random >> 40);
        uint32_t special = specials[(at + i) / 4 % 5];
        const uint8_t choice[5] = {0, noise, (uint8_t)((at + i) % 4 == 0 ? noise : 0),
                                   (uint8_t)((at + i) % 4 == 3 ? 0x3f : noise),
                                   (uint8_t)(special >> ((at + i) % 4 * 8))};
        zoo->state[at + i] = choice[kind];
    }
}

static void change_some(struct zoo *zoo)
{
    unsigned count = (unsigned)(sim_random(zoo->world.sim) % 6);
    for (unsigned i = 0; i < count; i++) {
        size_t at = sim_random(zoo->world.sim) % zoo->bytes;
        size_t most = zoo->bytes - at < zoo->bytes / 8 ? zoo->bytes - at : zoo->bytes / 8;
        write_some(zoo, at, sim_random(zoo->world.sim) % (most + 1));
    }
}

/* Bytes between tensors belong to nobody: they are zero in both. */
static void expect_equal(struct zoo *zoo, const struct world_rank *rank, const uint8_t *state)
{
    static char names[ZOO_TENSORS][24];
    static struct registered_tensor tensors[ZOO_TENSORS];
    static struct registered_box boxes[ZOO_TENSORS];
    (void)list_tensors(zoo, rank->memory, names, tensors, boxes);
    for (unsigned i = 0; i < ZOO_TENSORS - 3; i++) {
        size_t bytes = (size_t)boxes[i].box.length[0] * element_bytes(tensors[i].dtype);
        size_t at = (size_t)(boxes[i].data - rank->memory);
        if (memcmp(rank->memory + at, state + at, bytes) != 0) {
            fail_msg("tensor %s differs", names[i]);
        }
    }
}

/* --- saves and restores ------------------------------------------------------------ */

static void zoo_ranks_start(struct zoo *zoo)
{
    world_ranks_start(&zoo->world);
    for (uint32_t i = 0; i < zoo->world.world_size; i++) {
        register_zoo(zoo, &zoo->world.ranks[i]);
    }
}

static void zoo_init(struct zoo *zoo, uint64_t seed, const struct world_options *options)
{
    memset(zoo, 0, sizeof *zoo);
    static char names[ZOO_TENSORS][24];
    static struct registered_tensor tensors[ZOO_TENSORS];
    static struct registered_box boxes[ZOO_TENSORS];
    world_init_with(&zoo->world, seed, 2, options);
    zoo->chunk_bytes = options->chunk_bytes;
    zoo->bytes = list_tensors(zoo, NULL, names, tensors, boxes);
    zoo->state = calloc(1, zoo->bytes);
    for (size_t at = 0; at < zoo->bytes; at += 5000) {
        write_some(zoo, at, zoo->bytes - at < 5000 ? zoo->bytes - at : 5000);
    }
    zoo_ranks_start(zoo);
}

static void zoo_fini(struct zoo *zoo)
{
    world_ranks_stop(&zoo->world);
    world_fini(&zoo->world);
    for (unsigned i = 0; i < ZOO_SAVES; i++) {
        free(zoo->saved[i]);
    }
    free(zoo->state);
}

static void restore(struct zoo *zoo, unsigned step)
{
    const struct selector selector = {.kind = SELECT_STEP, .id = {0, step}};
    for (uint32_t i = 0; i < zoo->world.world_size; i++) {
        memset(zoo->world.ranks[i].memory, 0x77, zoo->bytes);
        world_restore(&zoo->world.ranks[i], selector, 60000);
    }
    world_await_restores(&zoo->world, 120000);
    for (uint32_t i = 0; i < zoo->world.world_size; i++) {
        struct world_rank *rank = &zoo->world.ranks[i];
        if (rank->restore_status != 0) {
            fail_msg("step %u, rank %u: %s", step, i, rank->restore.diag.text);
        }
        assert_int_equal(rank->restore.id.step, step);
        expect_equal(zoo, rank, zoo->saved[step]);
    }
}

static unsigned newest_saved(const struct zoo *zoo, unsigned below)
{
    while (below > 0 && !zoo->saved[--below]) {
    }
    return below;
}

/* Something happens while the save is on its way; true where it may fail. */
static bool disturb(struct zoo *zoo, unsigned step)
{
    struct world *world = &zoo->world;
    sim_run_for(world->sim, sim_random(world->sim) % 12);
    switch (sim_random(world->sim) % 8) {
    case 0:
        (void)sim_cut(world->sim, NULL, NULL);
        return false;
    case 1:
        world_server_kill(world);
        sim_run_for(world->sim, 100);
        world_server_start(world);
        return false;
    case 2:
        if (step > 0) { /* there must be something to restore */
            engine_save_abort(&world->ranks[step % 2].save);
        }
        return step > 0;
    default:
        return false;
    }
}

static void save(struct zoo *zoo, unsigned step)
{
    struct world *world = &zoo->world;
    for (uint32_t i = 0; i < world->world_size; i++) {
        memcpy(world->ranks[i].memory, zoo->state, zoo->bytes);
        world_save(&world->ranks[i], step, 60000);
    }
    bool may_fail = disturb(zoo, step);
    world_await_saves(world, 120000);
    int status = world->ranks[0].save_status;
    if ((status != 0) != (world->ranks[1].save_status != 0) || (status != 0 && !may_fail)) {
        fail_msg("step %u: %d, %d: %s", step, status, world->ranks[1].save_status,
                 world->ranks[status == 0].save.diag.text);
    }
    if (status == 0) {
        zoo->saved[step] = malloc(zoo->bytes);
        memcpy(zoo->saved[step], zoo->state, zoo->bytes);
    }
}

static void long_run(uint64_t seed, const struct world_options *options)
{
    struct zoo zoo;
    print_message("seed %llu\n", (unsigned long long)seed);
    zoo_init(&zoo, seed, options);
    for (unsigned step = 0; step < ZOO_SAVES; step++) {
        uint64_t what = sim_random(zoo.world.sim) % 8;
        if (step > 0 && what == 0) { /* a new attempt goes on from the newest */
            unsigned from = newest_saved(&zoo, step);
            world_ranks_stop(&zoo.world);
            zoo_ranks_start(&zoo);
            restore(&zoo, from);
            memcpy(zoo.state, zoo.saved[from], zoo.bytes);
        } else if (step > 0 && what == 1) { /* the same one goes back */
            unsigned from = newest_saved(&zoo, step);
            restore(&zoo, from);
            memcpy(zoo.state, zoo.saved[from], zoo.bytes);
        }
        change_some(&zoo);
        save(&zoo, step);
    }
    world_ranks_stop(&zoo.world);
    zoo_ranks_start(&zoo);
    for (unsigned step = 0; step < ZOO_SAVES; step++) {
        if (zoo.saved[step]) {
            restore(&zoo, step);
        }
    }
    zoo_fini(&zoo);
}

static void small_chunks(void **state)
{
    (void)state;
    const enum encode_mode modes[] = {ENCODE_NEVER, ENCODE_DENSEST};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        long_run(seed, &(struct world_options){.chunk_bytes = 4096,
                                               .encoding = modes[seed % 2],
                                               .full_every = seed > 2 ? 7 : 0,
                                               .object_bytes = seed > 2 ? 100000 : 0});
    }
}

/* Chunks that are sent one by one, encoded one by one, and refer to objects of several. */
static void large_chunks(void **state)
{
    (void)state;
    const enum encode_mode modes[] = {ENCODE_DENSEST, ENCODE_NEVER};
    for (uint64_t seed = 11; seed <= 12; seed++) {
        long_run(seed, &(struct world_options){.chunk_bytes = 65536,
                                               .encoding = modes[seed % 2],
                                               .object_bytes = 400000});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_chunks),
        cmocka_unit_test(large_chunks),
    };
    return cmocka_run_group_tests_name("engine_zoo", tests, NULL, NULL);
}

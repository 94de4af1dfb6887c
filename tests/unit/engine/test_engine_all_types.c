/* SPDX-License-Identifier: Apache-2.0
 *
 * What is restored is what was saved, bit for bit, for every dtype and the sizes around a chunk,
 * empty and rank-0 tensors, transposed and aliased memory, NaN payloads and negative zero, over all
 * encodings and over long runs of saves that change a random part of the state, with aborts, cuts,
 * restarts and restores between. Method: a model of what each step held.
 */
#include <stdio.h>

#include "engine_world.h"
#include "support/made_set.h"
#include "support/unit_test.h"

enum { ALL_DTYPES = 22, ALL_SIZES = 6, ALL_TENSORS = ALL_DTYPES * ALL_SIZES + 3, ALL_SAVES = 30 };

struct all_types {
    struct world world;
    uint32_t chunk_bytes;
    size_t bytes;              /* of the state of a rank */
    uint8_t *state;            /* as it is now; the same on all ranks */
    uint8_t *saved[ALL_SAVES]; /* as each step saved it; NULL for one that was aborted */
};

/* --- the set ----------------------------------------------------------------------- */

static size_t elements_of(const struct all_types *all_types, unsigned size, uint32_t element_bytes)
{
    size_t chunk = all_types->chunk_bytes / element_bytes;
    const size_t counts[ALL_SIZES] = {0, 1, chunk - 1, chunk, chunk + 1, 2 * chunk + 3};
    return counts[size];
}

static size_t element_bytes(uint32_t dtype) { return dtype_bits(dtype) / 8; }

/* All dtypes in all sizes, each at a place of its own; then a scalar, a transposed one over the
 * bytes of the largest int64, and an alias of another. */
static size_t list_tensors(const struct all_types *all_types, uint8_t *memory, char (*names)[24],
                           struct registered_tensor *tensors, struct registered_box *boxes)
{
    size_t at = 0, n = 0, i64_at = 0, i64_count = 0;
    for (uint32_t dtype = 1; dtype <= ALL_DTYPES; dtype++) {
        for (unsigned size = 0; size < ALL_SIZES; size++, n++) {
            size_t count = elements_of(all_types, size, (uint32_t)element_bytes(dtype));
            snprintf(names[n], sizeof names[n], "t%02u.%u", dtype, size);
            boxes[n] = made_vector((int64_t)count, memory ? memory + at : NULL);
            tensors[n] = made_tensor(names[n], dtype, PLACEMENT_REPLICATED, &boxes[n]);
            i64_at = dtype == CAIRN_I64 ? at : i64_at;
            i64_count = dtype == CAIRN_I64 ? count : i64_count;
            at = (at + count * element_bytes(dtype) + 15) / 16 * 16;
        }
    }
    boxes[n] = (struct registered_box){.contiguous = true, .data = memory ? memory + i64_at : NULL};
    tensors[n] = made_tensor("scalar", CAIRN_F64, PLACEMENT_REPLICATED, &boxes[n]);
    n++;
    boxes[n] = (struct registered_box){.box = {.ndim = 2, .length = {7, (int64_t)i64_count / 7}},
                                       .stride = {1, 7},
                                       .data = memory ? memory + i64_at : NULL};
    tensors[n] = made_tensor("transposed", CAIRN_I64, PLACEMENT_REPLICATED, &boxes[n]);
    n++;
    boxes[n] = made_vector((int64_t)i64_count, memory ? memory + i64_at : NULL);
    tensors[n] = made_tensor("alias", CAIRN_I64, PLACEMENT_REPLICATED, &boxes[n]);
    return at;
}

static int name_order(const void *a, const void *b)
{
    const struct registered_tensor *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static void register_all_types(struct all_types *all_types, struct world_rank *rank)
{
    static char names[ALL_TENSORS][24];
    static struct registered_tensor tensors[ALL_TENSORS];
    static struct registered_box boxes[ALL_TENSORS];
    uint32_t everybody[WORLD_RANKS_MAX] = {0, 1, 2, 3};
    free(rank->memory);
    rank->memory = calloc(1, all_types->bytes);
    rank->memory_bytes = all_types->bytes;
    (void)list_tensors(all_types, rank->memory, names, tensors, boxes);
    for (unsigned i = 0; i < ALL_TENSORS; i++) {
        tensors[i].group = everybody;
        tensors[i].group_count = all_types->world.world_size;
    }
    qsort(tensors, ALL_TENSORS, sizeof tensors[0], name_order);
    world_register(rank, (struct registered_list){.tensor_count = ALL_TENSORS, .tensors = tensors});
}

/* --- its bytes --------------------------------------------------------------------- */

/* Zeros, noise, small integers, floats near each other, NaNs with payloads and negative zeros. */
static void write_some(struct all_types *all_types, size_t at, size_t bytes)
{
    static const uint32_t specials[] = {0x7fc00001, 0xffa5a5a5, 0x80000000, 0x7f800000, 0x00000001};
    unsigned kind = (unsigned)(sim_random(all_types->world.sim) % 5);
    uint64_t random = sim_random(all_types->world.sim);
    for (size_t i = 0; i < bytes; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint8_t noise = (uint8_t)(random >> 40);
        uint32_t special = specials[(at + i) / 4 % 5];
        const uint8_t choice[5] = {0, noise, (uint8_t)((at + i) % 4 == 0 ? noise : 0),
                                   (uint8_t)((at + i) % 4 == 3 ? 0x3f : noise),
                                   (uint8_t)(special >> ((at + i) % 4 * 8))};
        all_types->state[at + i] = choice[kind];
    }
}

static void change_some(struct all_types *all_types)
{
    unsigned count = (unsigned)(sim_random(all_types->world.sim) % 6);
    for (unsigned i = 0; i < count; i++) {
        size_t at = sim_random(all_types->world.sim) % all_types->bytes;
        size_t most = all_types->bytes - at < all_types->bytes / 8 ? all_types->bytes - at
                                                                   : all_types->bytes / 8;
        write_some(all_types, at, sim_random(all_types->world.sim) % (most + 1));
    }
}

/* Bytes between tensors belong to nobody: they are zero in both. */
static void expect_equal(struct all_types *all_types, const struct world_rank *rank,
                         const uint8_t *state)
{
    static char names[ALL_TENSORS][24];
    static struct registered_tensor tensors[ALL_TENSORS];
    static struct registered_box boxes[ALL_TENSORS];
    (void)list_tensors(all_types, rank->memory, names, tensors, boxes);
    for (unsigned i = 0; i < ALL_TENSORS - 3; i++) {
        size_t bytes = (size_t)boxes[i].box.length[0] * element_bytes(tensors[i].dtype);
        size_t at = (size_t)(boxes[i].data - rank->memory);
        if (memcmp(rank->memory + at, state + at, bytes) != 0) {
            fail_msg("tensor %s differs", names[i]);
        }
    }
}

/* --- saves and restores ------------------------------------------------------------ */

static void all_types_ranks_start(struct all_types *all_types)
{
    world_ranks_start(&all_types->world);
    for (uint32_t i = 0; i < all_types->world.world_size; i++) {
        register_all_types(all_types, &all_types->world.ranks[i]);
    }
}

static void all_types_init(struct all_types *all_types, uint64_t seed,
                           const struct world_options *options)
{
    memset(all_types, 0, sizeof *all_types);
    static char names[ALL_TENSORS][24];
    static struct registered_tensor tensors[ALL_TENSORS];
    static struct registered_box boxes[ALL_TENSORS];
    world_init_with(&all_types->world, seed, 2, options);
    all_types->chunk_bytes = options->chunk_bytes;
    all_types->bytes = list_tensors(all_types, NULL, names, tensors, boxes);
    all_types->state = calloc(1, all_types->bytes);
    for (size_t at = 0; at < all_types->bytes; at += 5000) {
        write_some(all_types, at, all_types->bytes - at < 5000 ? all_types->bytes - at : 5000);
    }
    all_types_ranks_start(all_types);
}

static void all_types_fini(struct all_types *all_types)
{
    world_end(&all_types->world);
    for (unsigned i = 0; i < ALL_SAVES; i++) {
        free(all_types->saved[i]);
    }
    free(all_types->state);
}

static void restore(struct all_types *all_types, unsigned step)
{
    const struct selector selector = {.kind = SELECT_STEP, .id = {0, step}};
    for (uint32_t i = 0; i < all_types->world.world_size; i++) {
        memset(all_types->world.ranks[i].memory, 0x77, all_types->bytes);
        world_restore(&all_types->world.ranks[i], selector, 60000);
    }
    world_await_restores(&all_types->world, 120000);
    for (uint32_t i = 0; i < all_types->world.world_size; i++) {
        struct world_rank *rank = &all_types->world.ranks[i];
        if (rank->restore_status != 0) {
            fail_msg("step %u, rank %u: %s", step, i, rank->restore.diag.text);
        }
        assert_int_equal(rank->restore.id.step, step);
        expect_equal(all_types, rank, all_types->saved[step]);
    }
}

static unsigned newest_saved(const struct all_types *all_types, unsigned below)
{
    while (below > 0 && !all_types->saved[--below]) {
    }
    return below;
}

/* Something happens while the save is on its way; true where it may fail. */
static bool disturb(struct all_types *all_types, unsigned step)
{
    struct world *world = &all_types->world;
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

static void save(struct all_types *all_types, unsigned step)
{
    struct world *world = &all_types->world;
    for (uint32_t i = 0; i < world->world_size; i++) {
        memcpy(world->ranks[i].memory, all_types->state, all_types->bytes);
        world_save(&world->ranks[i], step, 60000);
    }
    bool may_fail = disturb(all_types, step);
    world_await_saves(world, 120000);
    int status = world->ranks[0].save_status;
    if ((status != 0) != (world->ranks[1].save_status != 0) || (status != 0 && !may_fail)) {
        fail_msg("step %u: %d, %d: %s", step, status, world->ranks[1].save_status,
                 world->ranks[status == 0].save.diag.text);
    }
    if (status == 0) {
        all_types->saved[step] = malloc(all_types->bytes);
        memcpy(all_types->saved[step], all_types->state, all_types->bytes);
    }
}

static void long_run(uint64_t seed, const struct world_options *options)
{
    struct all_types all_types;
    print_message("seed %llu\n", (unsigned long long)seed);
    all_types_init(&all_types, seed, options);
    for (unsigned step = 0; step < ALL_SAVES; step++) {
        uint64_t what = sim_random(all_types.world.sim) % 8;
        if (step > 0 && what == 0) { /* a new attempt goes on from the newest */
            unsigned from = newest_saved(&all_types, step);
            world_ranks_stop(&all_types.world);
            all_types_ranks_start(&all_types);
            restore(&all_types, from);
            memcpy(all_types.state, all_types.saved[from], all_types.bytes);
        } else if (step > 0 && what == 1) { /* the same one goes back */
            unsigned from = newest_saved(&all_types, step);
            restore(&all_types, from);
            memcpy(all_types.state, all_types.saved[from], all_types.bytes);
        }
        change_some(&all_types);
        save(&all_types, step);
    }
    world_ranks_stop(&all_types.world);
    all_types_ranks_start(&all_types);
    for (unsigned step = 0; step < ALL_SAVES; step++) {
        if (all_types.saved[step]) {
            restore(&all_types, step);
        }
    }
    all_types_fini(&all_types);
}

TEST(small_chunks)
{
    const enum encode_mode modes[] = {ENCODE_NEVER, ENCODE_DENSEST};
    for (uint64_t seed = 1; seed <= 4; seed++) {
        long_run(seed, &(struct world_options){.chunk_bytes = 4096,
                                               .encoding = modes[seed % 2],
                                               .full_every = seed > 2 ? 7 : 0,
                                               .object_bytes = seed > 2 ? 100000 : 0});
    }
}

/* Chunks that are sent one by one, encoded one by one, and refer to objects of several. */
TEST(large_chunks)
{
    const enum encode_mode modes[] = {ENCODE_DENSEST, ENCODE_NEVER};
    for (uint64_t seed = 11; seed <= 12; seed++) {
        long_run(seed, &(struct world_options){.chunk_bytes = 65536,
                                               .encoding = modes[seed % 2],
                                               .object_bytes = 400000});
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks may hold different lists of tensors: what only some hold is written by its holders, what is
 * lost fails the save by name and the next save agrees anew, and a rank with nothing new copies
 * without asking. Whatever was committed is restored bit for bit. Method: the engine against the
 * real server on the simulator.
 */
#include "engine_world.h"

#include <stdio.h>

#include "base/check.h"
#include "engine/operations.h"
#include "hash/hash.h"
#include "session/agree.h"
#include "support/made_set.h"
#include "support/unit_test.h"

enum { NAMES = 10, ELEMENTS_MAX = 6000, RANKS = 3 };

/* Elements of tensor i: from nothing over less than a cell to many cells. */
static const int64_t ELEMENTS[NAMES] = {5000, 3, 1024, 0, 6000, 1, 2500, 1025, 4096, 700};

enum { EVERY_TENSOR = (1 << NAMES) - 1 };
static const uint32_t ALL[WORLD_RANKS_MAX] = {EVERY_TENSOR, EVERY_TENSOR, EVERY_TENSOR};

struct bench {
    struct world world;
    uint8_t *memory[WORLD_RANKS_MAX]; /* of NAMES tensors */
};

static uint8_t *data_of(struct bench *bench, uint32_t rank, unsigned i)
{
    return bench->memory[rank] + (size_t)i * ELEMENTS_MAX * 4;
}

static uint8_t byte_of(unsigned i, size_t at, uint8_t salt)
{
    return (uint8_t)(at * 7 + at / 253 + i * 59 + salt * 83u);
}

static void fill(struct bench *bench, uint32_t rank, uint8_t salt)
{
    for (unsigned i = 0; i < NAMES; i++) {
        for (size_t at = 0; at < (size_t)ELEMENTS[i] * 4; at++) {
            data_of(bench, rank, i)[at] = byte_of(i, at, salt);
        }
    }
}

/* The rank registers the tensors of the mask, each replicated over all ranks of `group` (a mask of
 * ranks; it is among them or the tensor is skipped). */
static void set_names(struct bench *bench, uint32_t rank, uint32_t mask, uint32_t group)
{
    struct registered_tensor tensors[NAMES] = {0};
    struct registered_box boxes[NAMES] = {0};
    char names[NAMES][16];
    uint32_t ranks[WORLD_RANKS_MAX], rank_count = 0, count = 0;
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        if (group & (1u << r)) {
            ranks[rank_count++] = r;
        }
    }
    for (unsigned i = 0; i < NAMES; i++) {
        if (!(mask & (1u << i))) {
            continue;
        }
        snprintf(names[i], sizeof names[i], "layer.%u", i);
        boxes[count] = made_vector(ELEMENTS[i], data_of(bench, rank, i));
        tensors[count] = made_tensor(names[i], CAIRN_F32, PLACEMENT_REPLICATED, &boxes[count]);
        tensors[count].group = ranks;
        tensors[count].group_count = rank_count;
        count++;
    }
    world_register(&bench->world.ranks[rank],
                   (struct registered_list){.tensor_count = count, .tensors = tensors});
}

static void set_ranks(struct bench *bench, uint32_t ranks, const uint32_t *masks)
{
    for (uint32_t r = 0; r < ranks; r++) {
        set_names(bench, r, masks[r], (1u << ranks) - 1);
    }
}

static void set_all(struct bench *bench, const uint32_t *masks) { set_ranks(bench, RANKS, masks); }

static void bench_init_with(struct bench *bench, uint64_t seed, uint32_t ranks,
                            const struct world_options *options)
{
    memset(bench, 0, sizeof *bench);
    world_begin_with(&bench->world, seed, ranks, options);
    for (uint32_t r = 0; r < ranks; r++) {
        bench->memory[r] = calloc(NAMES, ELEMENTS_MAX * 4);
    }
}

static void bench_init(struct bench *bench, uint64_t seed, uint32_t ranks)
{
    bench_init_with(bench, seed, ranks, &(struct world_options){0});
}

/* RANKS ranks with these lists. */
static void bench_begin(struct bench *bench, uint64_t seed, const uint32_t *masks)
{
    bench_init(bench, seed, RANKS);
    set_all(bench, masks);
}

static void bench_fini(struct bench *bench)
{
    world_end(&bench->world);
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        free(bench->memory[r]);
    }
}

/* Three ranks with all tensors; a test that wants other lists sets them first. */
#define BENCH_TEST(name, seed)                                                                     \
    UNIT_TEST_BODY(name, struct bench *bench)                                                      \
    UNIT_TEST_ENDS(name, bench_begin(*state = unit_test_fixture(sizeof(struct bench)), seed, ALL), \
                   (bench_fini(*state), free(*state)))                                             \
    static void name(struct bench *bench)

static void start_all(struct bench *bench, uint64_t step, uint8_t salt)
{
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        fill(bench, r, salt);
        world_save(&bench->world.ranks[r], step, 60000);
    }
}

static void save_all(struct bench *bench, uint64_t step, uint8_t salt)
{
    start_all(bench, step, salt);
    world_await_saves(&bench->world, 70000);
}

/* Waits for saves that have begun, which must be committed. */
static void expect_committed(struct bench *bench)
{
    world_await_saves(&bench->world, 70000);
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        const struct world_rank *rank = &bench->world.ranks[r];
        if (rank->save_status != 0) {
            fail_msg("rank %u: %s", r, rank->save.diag.text);
        }
    }
}

static void save_well(struct bench *bench, uint64_t step, uint8_t salt)
{
    start_all(bench, step, salt);
    expect_committed(bench);
}

/* Every rank gets every tensor of `stored` back, whether it held it or not. */
static void check_restore(struct bench *bench, uint32_t stored, uint8_t salt)
{
    uint32_t masks[WORLD_RANKS_MAX] = {stored, stored, stored, stored};
    set_ranks(bench, bench->world.world_size, masks);
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        memset(bench->memory[r], 0x55, (size_t)NAMES * ELEMENTS_MAX * 4);
        world_restore(&bench->world.ranks[r], WORLD_LATEST, 30000);
    }
    world_await_restores(&bench->world, 40000);
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        if (bench->world.ranks[r].restore_status != 0) {
            fail_msg("rank %u: %s", r, bench->world.ranks[r].restore.diag.text);
        }
        for (unsigned i = 0; i < NAMES; i++) {
            for (size_t at = 0; at < (size_t)ELEMENTS[i] * 4 && stored & (1u << i); at++) {
                assert_int_equal(data_of(bench, r, i)[at], byte_of(i, at, salt));
            }
        }
    }
}

/* --- cases ----------------------------------------------------------------------- */

static bool rank_1_staged(void *user) { return ((struct bench *)user)->world.ranks[1].staged; }

/* The first save waits for the others' lists; later ones with the same list do not. */
BENCH_TEST(who_has_nothing_new_copies_at_once, 1)
{
    world_save(&bench->world.ranks[0], 10, 60000);
    world_save(&bench->world.ranks[1], 10, 60000);
    sim_run_for(bench->world.sim, 3000);
    assert_false(bench->world.ranks[1].staged); /* rank 2 has not said what it holds */
    world_save(&bench->world.ranks[2], 10, 60000);
    expect_committed(bench);
    world_save(&bench->world.ranks[1], 20, 60000);
    assert_true(sim_run_until(bench->world.sim, rank_1_staged, bench, 100));
    world_save(&bench->world.ranks[0], 20, 60000);
    world_save(&bench->world.ranks[2], 20, 60000);
    expect_committed(bench);
}

/* Lazily created optimizer state: rank 1 has none of the second layer, ever. */
BENCH_TEST(holders_write_what_only_they_hold, 2)
{
    static const uint32_t masks[] = {0x3ff, 0x0cf, 0x3ff};
    for (unsigned i = 1; i <= 3; i++) {
        set_all(bench, masks);
        save_well(bench, 10 * i, (uint8_t)i);
    }
    check_restore(bench, 0x3ff, 3);
}

/* What was agreed stays where it is; ranks 0 and 2 do not wait when rank 1's list grows. */
BENCH_TEST(additions_go_to_their_holders, 3)
{
    static const uint32_t before[] = {0x00f, 0x00f, 0x00f}, one[] = {0x00f, 0x0ff, 0x00f},
                          two[] = {0x10f, 0x1ff, 0x00f};
    set_all(bench, before);
    save_well(bench, 10, 1);
    set_all(bench, one);
    world_save(&bench->world.ranks[0], 20, 60000);
    world_save(&bench->world.ranks[1], 20, 60000);
    fill(bench, 0, 2), fill(bench, 1, 2), fill(bench, 2, 2);
    sim_run_for(bench->world.sim, 1000);
    assert_true(bench->world.ranks[0].staged);
    assert_false(bench->world.ranks[1].staged);
    world_save(&bench->world.ranks[2], 20, 60000);
    expect_committed(bench);
    set_all(bench, two);
    save_well(bench, 30, 3);
    set_all(bench, ALL);
    save_well(bench, 40, 4);
    save_well(bench, 50, 5);
    check_restore(bench, 0x3ff, 5);
}

/* Rank 1 was to write cells of layer.4, and no longer has it: others copied without asking. */
BENCH_TEST(a_loss_fails_the_save_by_name_and_the_next_agrees_anew, 4)
{
    static const uint32_t after[] = {0x3ff, 0x3ef, 0x3ff};
    save_well(bench, 10, 1);
    set_all(bench, after);
    save_all(bench, 20, 2);
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct world_rank *rank = &bench->world.ranks[r];
        assert_int_equal(rank->save_status, CAIRN_E_LIST_MISMATCH);
        assert_non_null(strstr(rank->save.diag.text, "layer.4"));
        assert_non_null(strstr(rank->save.diag.text, "rank 1"));
    }
    save_well(bench, 30, 3);
    check_restore(bench, 0x3ff, 3);
}

/* layer.1 is one small cell, which one rank writes: that another loses it harms nobody. */
BENCH_TEST(what_others_write_may_be_lost, 5)
{
    unsigned well = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        uint32_t after[] = {EVERY_TENSOR, EVERY_TENSOR, EVERY_TENSOR};
        set_all(bench, ALL);
        save_well(bench, 100 * r + 10, 1);
        after[r] &= ~2u;
        set_all(bench, after);
        save_all(bench, 100 * r + 20, 2);
        well += bench->world.ranks[0].save_status == 0;
        set_all(bench, ALL);
        save_well(bench, 100 * r + 30, 3); /* in either case this one ends well */
    }
    assert_int_equal(well, RANKS - 1);
}

static void restore_and_lose(uint64_t seed, bool is_saving)
{
    static const uint32_t after[] = {0x3ff, 0x3ef, 0x3ff};
    struct bench bench;
    bench_begin(&bench, seed, ALL);
    save_well(&bench, 10, 1);
    if (is_saving) {
        world_save(&bench.world.ranks[0], 20, 60000);
    }
    check_restore(&bench, 0x3ff, 1);
    if (is_saving) {
        assert_false(bench.world.ranks[0].save_done);
        engine_save_abort(&bench.world.ranks[0].save);
        world_await_saves(&bench.world, 70000);
    }
    set_all(&bench, after);
    save_well(&bench, 30, 2);
    check_restore(&bench, 0x3ff, 2);
    bench_fini(&bench);
}

/* A restore begins anew: what a rank no longer registers after it fails no save. */
TEST(a_restore_forgets_what_was_agreed) { restore_and_lose(14, false); }

/* The same while a save of rank 0 is still under way, to which no other rank comes. */
TEST(a_restore_beside_a_save_forgets_on_all_ranks) { restore_and_lose(19, true); }

/* Rank 0 saves a step again that was committed, while no server answers, with a list that has
 * grown. So it divides by itself, and hears then that the step is there. */
BENCH_TEST(a_step_that_was_saved_before_proves_no_division, 20)
{
    static const uint32_t masks[] = {0x0ff, 0x1ff, 0x0ff};
    set_all(bench, masks);
    save_well(bench, 10, 1);
    set_names(bench, 0, 0x1ff, 7);
    world_server_kill(&bench->world);
    world_save(&bench->world.ranks[0], 10, 60000);
    sim_run_for(bench->world.sim, 20000);
    assert_true(bench->world.ranks[0].staged);
    world_server_start(&bench->world);
    expect_committed(bench);
    save_well(bench, 20, 2);
    check_restore(bench, 0x1ff, 2);
}

BENCH_TEST(all_may_change_together, 6)
{
    static const uint32_t after[] = {0x125, 0x125, 0x125};
    save_well(bench, 10, 1);
    set_all(bench, after);
    save_well(bench, 20, 2);
    check_restore(bench, 0x125, 2);
}

/* A rank that has nothing of a group at all is no reason to wait in vain. */
BENCH_TEST(a_member_may_hold_nothing, 7)
{
    set_names(bench, 0, 0x3ff, 7);
    set_names(bench, 1, 0x3ff, 7);
    set_names(bench, 2, 0, 7);
    for (unsigned i = 1; i <= 2; i++) {
        start_all(bench, 10 * i, (uint8_t)i);
        sim_run_for(bench->world.sim, 2000);
        assert_true(bench->world.ranks[0].staged);
        expect_committed(bench);
    }
    check_restore(bench, 0x3ff, 2);
}

/* Two ranks are far ahead of the third: they stop waiting, and the save is well all the same. */
BENCH_TEST(the_wait_for_the_verdict_is_bounded, 8)
{
    fill(bench, 0, 1), fill(bench, 1, 1), fill(bench, 2, 1);
    world_save(&bench->world.ranks[0], 10, 60000);
    world_save(&bench->world.ranks[1], 10, 60000);
    sim_run_for(bench->world.sim, 4900);
    assert_false(bench->world.ranks[0].staged);
    sim_run_for(bench->world.sim, 1000);
    assert_true(bench->world.ranks[0].staged);
    assert_true(bench->world.ranks[1].staged);
    sim_run_for(bench->world.sim, 3000);
    world_save(&bench->world.ranks[2], 10, 60000);
    expect_committed(bench);
    check_restore(bench, 0x3ff, 1);
}

/* Far apart, and with different lists: without a verdict the coverage finds what nobody wrote, and
 * after that the ranks wait longer for each other. */
BENCH_TEST(ranks_far_apart_agree_in_the_end, 9)
{
    static const uint32_t masks[] = {0x3ff, 0x3ef, 0x3ff};
    unsigned tries = 0;
    do {
        set_all(bench, masks);
        fill(bench, 0, 1), fill(bench, 1, 1), fill(bench, 2, 1);
        tries++;
        world_save(&bench->world.ranks[0], 10 * tries, 60000);
        world_save(&bench->world.ranks[2], 10 * tries, 60000);
        sim_run_for(bench->world.sim, 8000);
        world_save(&bench->world.ranks[1], 10 * tries, 60000);
        world_await_saves(&bench->world, 70000);
        if (bench->world.ranks[0].save_status != 0) {
            assert_int_equal(bench->world.ranks[0].save_status, CAIRN_E_COVERAGE);
            assert_non_null(strstr(bench->world.ranks[0].save.diag.text, "tensor \"layer."));
            assert_non_null(strstr(bench->world.ranks[0].save.diag.text, "save again"));
        }
    } while (bench->world.ranks[0].save_status != 0 && tries < 5);
    expect_committed(bench);
    assert_int_equal(tries, 2);
    check_restore(bench, 0x3ff, 1);
}

/* The daemon dies while the ranks agree; the next one agrees anew. */
TEST(a_restarted_daemon_agrees_anew)
{
    static const uint32_t masks[] = {0x3ff, 0x3cf, 0x30f};
    for (uint64_t after_ms = 0; after_ms < 60; after_ms += 3) {
        struct bench bench;
        bench_begin(&bench, 100 + after_ms, masks);
        start_all(&bench, 10, 1);
        sim_run_for(bench.world.sim, after_ms);
        world_server_kill(&bench.world);
        world_server_start(&bench.world);
        expect_committed(&bench);
        check_restore(&bench, 0x3ff, 1);
        bench_fini(&bench);
    }
}

/* Lists that grow in every way commit at once; after any loss the save after the next one does. */
TEST(random_lists_are_saved_whole)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct bench bench;
        uint32_t masks[WORLD_RANKS_MAX] = {1, 1, 1, 1};
        uint32_t ranks = 2 + (uint32_t)(seed % 3);
        bench_init(&bench, seed, ranks);
        for (unsigned step = 1; step <= 8; step++) {
            bool loses = step == 5;
            uint32_t stored = 0;
            for (uint32_t r = 0; r < ranks; r++) {
                uint32_t draw = (uint32_t)sim_random(bench.world.sim);
                masks[r] = loses ? draw & 0x3ff : masks[r] | (draw & (draw >> 10) & 0x3ff);
                stored |= masks[r];
            }
            set_ranks(&bench, ranks, masks);
            save_all(&bench, step * 10, (uint8_t)step);
            if (loses && bench.world.ranks[0].save_status != 0) {
                assert_int_equal(bench.world.ranks[0].save_status, CAIRN_E_LIST_MISMATCH);
                save_all(&bench, step * 10 + 1, (uint8_t)step);
            }
            expect_committed(&bench);
            check_restore(&bench, stored, (uint8_t)step);
        }
        bench_fini(&bench);
    }
}

/* --- several servers ------------------------------------------------------------- */

enum { CALM_SAVES = 2 };
static const struct world_options TWO_SERVERS = {
    .url = "cairn://server:7421,server:7422/demo/run1", .twin = true, .spread_after = CALM_SAVES};

static size_t server_of(const struct bench *bench, uint32_t rank)
{
    return bench->world.ranks[rank].engine->link.server_idx % 2;
}

static void check_spread(struct bench *bench)
{
    sim_run_for(bench->world.sim, 1000);
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        assert_int_equal(server_of(bench, r), r % 2);
    }
}

/* The save that agrees, and as many as it takes until they go home. */
static void save_until_spread(struct bench *bench, const uint32_t *masks, uint64_t step)
{
    for (unsigned i = 0; i <= CALM_SAVES; i++) {
        set_all(bench, masks);
        save_well(bench, step + i, 1);
    }
    check_spread(bench);
}

/* Goal: what only some ranks have new is saved, by its holders, though the others copied without
 * asking and are at another server. Method: any one of the ranks, and any two of them, grow. */
TEST(additions_are_saved_where_ranks_are_spread)
{
    static const uint32_t before[] = {0x0ff, 0x0ff, 0x0ff};
    for (uint32_t who = 1; who < (1u << RANKS) - 1; who++) {
        struct bench bench;
        uint32_t after[RANKS];
        bench_init_with(&bench, 30 + who, RANKS, &TWO_SERVERS);
        save_until_spread(&bench, before, 10);
        for (uint32_t r = 0; r < RANKS; r++) {
            after[r] = before[r] | (who & (1u << r) ? 0x300 : 0);
        }
        set_all(&bench, after);
        save_well(&bench, 20, 2);
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_int_equal(server_of(&bench, r), 0); /* they stay until it is calm again */
        }
        save_until_spread(&bench, after, 30);
        check_restore(&bench, 0x3ff, 1);
        bench_fini(&bench);
    }
}

/* A rank that is only late is looked for at the first server, too, then all go home; and the next
 * time that somebody is late they are more patient. */
TEST(a_late_rank_costs_the_others_a_way)
{
    struct bench bench;
    bench_init_with(&bench, 40, RANKS, &TWO_SERVERS);
    save_until_spread(&bench, ALL, 10);
    for (unsigned i = 0; i < 2; i++) {
        world_save(&bench.world.ranks[0], 20 + i, 60000);
        world_save(&bench.world.ranks[1], 20 + i, 60000);
        sim_run_for(bench.world.sim, 8000);
        assert_int_equal(server_of(&bench, 1), i);
        world_save(&bench.world.ranks[2], 20 + i, 60000);
        expect_committed(&bench);
        check_spread(&bench);
    }
    bench_fini(&bench);
}

/* A rank that loses its connection while it waits for the verdict comes to the next server, where
 * no verdict is given. It goes back, and nobody waits for it until the deadline. */
TEST(a_rank_that_is_thrown_out_comes_back_to_the_meeting)
{
    struct bench bench;
    bench_init_with(&bench, 41, RANKS, &TWO_SERVERS);
    set_all(&bench, ALL);
    world_save(&bench.world.ranks[1], 10, 60000);
    sim_run_for(bench.world.sim, 1000);
    assert_int_equal(server_of(&bench, 1), 0);
    link_reset(&bench.world.ranks[1].engine->link, CAIRN_E_CONNECTION_LOST, "thrown out");
    assert_int_equal(server_of(&bench, 1), 1);
    sim_run_for(bench.world.sim, 1000);
    assert_int_equal(server_of(&bench, 1), 0);
    world_save(&bench.world.ranks[0], 10, 60000);
    world_save(&bench.world.ranks[2], 10, 60000);
    world_await_saves(&bench.world, 10000);
    expect_committed(&bench);
    bench_fini(&bench);
}

/* --- replicas -------------------------------------------------------------------- */

static void save_flipped(struct bench *bench, uint64_t step, uint32_t rank, unsigned tensor)
{
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        fill(bench, r, 1);
    }
    data_of(bench, rank, tensor)[17] ^= 0x40; /* one bit of one element */
    for (uint32_t r = 0; r < bench->world.world_size; r++) {
        world_save(&bench->world.ranks[r], step, 60000);
    }
    world_await_saves(&bench->world, 70000);
}

BENCH_TEST(one_flipped_bit_fails_the_save_by_tensor_and_rank, 21)
{
    bench->world.check_replicas = CHECK_FAIL;
    save_well(bench, 10, 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        char who[32];
        save_flipped(bench, 20 + r, r, 6);
        snprintf(who, sizeof who, "than rank %u", r);
        for (uint32_t i = 0; i < RANKS; i++) {
            const struct world_rank *rank = &bench->world.ranks[i];
            assert_int_equal(rank->save_status, CAIRN_E_REPLICAS_DIFFER);
            assert_non_null(strstr(rank->save.diag.text, "'layer.6'"));
            assert_non_null(strstr(rank->save.diag.text, who));
        }
    }
    save_well(bench, 30, 2);
    check_restore(bench, 0x3ff, 2);
}

BENCH_TEST(with_warn_the_save_is_committed_and_says_so, 22)
{
    bench->world.check_replicas = CHECK_WARN;
    save_well(bench, 10, 1);
    assert_int_equal(bench->world.ranks[0].save.warning.code, 0);
    save_flipped(bench, 20, 1, 0);
    expect_committed(bench);
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct diag *warning = &bench->world.ranks[r].save.warning;
        assert_int_equal(warning->code, CAIRN_E_REPLICAS_DIFFER);
        assert_non_null(strstr(warning->text, "'layer.0'"));
        assert_non_null(strstr(warning->text, "rank 0, 2 holds other bytes than rank 1"));
    }
}

BENCH_TEST(a_rank_that_does_not_check_is_named, 23)
{
    bench->world.check_replicas = CHECK_FAIL;
    world_save(&bench->world.ranks[0], 10, 60000);
    world_save(&bench->world.ranks[1], 10, 60000);
    bench->world.check_replicas = CHECK_NONE;
    world_save(&bench->world.ranks[2], 10, 60000);
    world_await_saves(&bench->world, 70000);
    assert_int_equal(bench->world.ranks[0].save_status, CAIRN_E_INVALID);
    assert_non_null(strstr(bench->world.ranks[0].save.diag.text, "rank 2 does not compare"));
}

/* The daemon dies while replicas are compared, at a moment when some ranks have their answer, or
 * have sealed, and others have not: the next one is told anew by all. */
TEST(comparing_survives_a_restart)
{
    for (uint64_t seed = 0; seed < 3; seed++) {
        for (uint64_t after_ms = 0; after_ms < 60; after_ms += 2) {
            struct bench bench;
            bench_begin(&bench, 300 + 100 * seed + after_ms, ALL);
            bench.world.check_replicas = CHECK_FAIL;
            start_all(&bench, 10, 1);
            sim_run_for(bench.world.sim, after_ms);
            world_server_kill(&bench.world);
            world_server_start(&bench.world);
            expect_committed(&bench);
            bench_fini(&bench);
        }
    }
}

/* Rank 2 says nothing for half of the save's time, as one at another server does: with FAIL the
 * save fails by name, with WARN it goes on and says so. */
TEST(a_comparison_that_cannot_come_is_bounded)
{
    for (uint32_t check = CHECK_WARN; check <= CHECK_FAIL; check++) {
        struct bench bench;
        bench_begin(&bench, 24, ALL);
        bench.world.check_replicas = check;
        for (uint32_t r = 0; r < RANKS; r++) {
            fill(&bench, r, 1);
        }
        world_save(&bench.world.ranks[0], 10, 60000);
        world_save(&bench.world.ranks[1], 10, 60000);
        sim_run_for(bench.world.sim, 25000);
        assert_false(bench.world.ranks[0].save_done);
        sim_run_for(bench.world.sim, 10000);
        world_save(&bench.world.ranks[2], 10, 60000);
        world_await_saves(&bench.world, 70000);
        const struct world_rank *rank = &bench.world.ranks[0];
        const struct diag *said = check == CHECK_WARN ? &rank->save.warning : &rank->save.diag;
        assert_int_equal(rank->save_status, check == CHECK_WARN ? 0 : CAIRN_E_TIMED_OUT);
        assert_int_equal(said->code, CAIRN_E_TIMED_OUT);
        assert_non_null(strstr(said->text, "replicas were not compared"));
        assert_non_null(strstr(said->text, "other ranks (1, 2)"));
        if (check == CHECK_WARN) {
            expect_committed(&bench);
        }
        bench_fini(&bench);
    }
}

/* No memory for the digest stream that is the last of these, and for the one before: a rank that
 * compares has two workers. */
static unsigned streams_left;
__typeof__(xxh3_stream_new) __real_xxh3_stream_new, __wrap_xxh3_stream_new;

struct xxh3_stream *__wrap_xxh3_stream_new(void)
{
    bool fails = streams_left == 1 || streams_left == 2;
    streams_left -= streams_left > 0;
    return fails ? NULL : __real_xxh3_stream_new();
}

/* A rank that has no memory for its digests says so, and sends none: equal replicas are never said
 * to differ. */
TEST(memory_that_is_short_is_no_difference)
{
    unsigned uncompared = 0;
    for (unsigned n = 1;; n++) {
        struct bench bench;
        bench_begin(&bench, 25, ALL);
        save_all(&bench, 10, 1);
        bench.world.check_replicas = CHECK_WARN;
        streams_left = n;
        start_all(&bench, 20, 2);
        sim_run_for(bench.world.sim, 5);
        (void)sim_cut(bench.world.sim, NULL,
                      NULL); /* what is known is told anew on the next connection */
        world_await_saves(&bench.world, 70000);
        bool is_done = streams_left > 0;
        streams_left = 0;
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct world_rank *rank = &bench.world.ranks[r];
            assert_int_not_equal(rank->save.warning.code, CAIRN_E_REPLICAS_DIFFER);
            uncompared += rank->save_status == 0 && rank->save.warning.code == CAIRN_E_NO_MEMORY;
        }
        bench_fini(&bench);
        if (is_done) {
            break;
        }
    }
    assert_true(uncompared > 0);
}

/* What the server answers in place of lists and of the comparison; 0 means what it has. */
static int holders_status, compared_status;

#define WRAP(NAME, STATUS)                                                                  \
    __typeof__(NAME) __real_##NAME, __wrap_##NAME;                                          \
    int __wrap_##NAME(const struct agree *agree, struct xxh128 group, uint32_t *io_at,      \
                      struct scratch *scratch, struct msg_sets *ret)                        \
    {                                                                                       \
        return (STATUS) != 0 ? (STATUS) : __real_##NAME(agree, group, io_at, scratch, ret); \
    }
WRAP(agree_holders, holders_status)
WRAP(agree_compared, compared_status)

static bool gives_verdicts = true;

__typeof__(agree_verdict) __real_agree_verdict, __wrap_agree_verdict;
enum msg_agree_verdict __wrap_agree_verdict(const struct agree *agree, struct xxh128 group)
{
    return gives_verdicts ? __real_agree_verdict(agree, group) : AGREE_UNKNOWN;
}

/* A loss where the server has no room to compare lists, and all have lost it by the next save. */
BENCH_TEST(a_loss_fails_one_save_only_also_without_verdicts, 21)
{
    static const uint32_t one[WORLD_RANKS_MAX] = {0x3ff, 0x3ef, 0x3ff},
                          all[WORLD_RANKS_MAX] = {0x3ef, 0x3ef, 0x3ef};
    gives_verdicts = false;
    save_well(bench, 10, 1);
    set_all(bench, one);
    save_all(bench, 20, 2);
    assert_int_equal(bench->world.ranks[0].save_status, CAIRN_E_LIST_MISMATCH);
    set_all(bench, all);
    save_well(bench, 30, 3);
    gives_verdicts = true;
    check_restore(bench, 0x3ef, 3);
}

/* Goal: a rank whose lists the server cannot give decides as if no verdict had come, and says so:
 * with verdicts but no lists it would leave out what it holds. The next save agrees. */
BENCH_TEST(lists_that_do_not_come_are_no_verdict, 26)
{
    static const uint32_t masks[] = {EVERY_TENSOR, EVERY_TENSOR & ~0x11u, EVERY_TENSOR};
    set_all(bench, masks);
    holders_status = CAIRN_E_NO_MEMORY;
    save_all(bench, 10, 1);
    holders_status = 0;
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct world_rank *rank = &bench->world.ranks[r];
        assert_int_equal(rank->save_status, CAIRN_E_COVERAGE);
        assert_non_null(strstr(rank->save.diag.text, "did not hear of the others'"));
    }
    save_well(bench, 20, 2);
}

/* Goal: replicas that the server did not compare, because the save is over for it, are not said to
 * be equal. */
TEST(an_ended_comparison_is_not_equality)
{
    for (uint32_t check = CHECK_WARN; check <= CHECK_FAIL; check++) {
        struct bench bench;
        bench_begin(&bench, 27, ALL);
        bench.world.check_replicas = check;
        compared_status = CAIRN_E_ABORTED;
        save_all(&bench, 10, 1);
        compared_status = 0;
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct world_rank *rank = &bench.world.ranks[r];
            assert_int_equal(rank->save_status, 0); /* the outcome decides */
            assert_int_equal(rank->save.warning.code, CAIRN_E_ABORTED);
            assert_non_null(strstr(rank->save.warning.text, "replicas were not compared"));
        }
        bench_fini(&bench);
    }
}

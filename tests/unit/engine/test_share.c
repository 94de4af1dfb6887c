/* SPDX-License-Identifier: Apache-2.0
 *
 * A group's bytes are divided evenly: every cell is written by exactly one member, and nobody
 * writes more than one cell, or 1 %, above or below the mean. Method: random meshes (data, tensor,
 * pipeline and expert parallel, HSDP's boxes that are sharded and replicated at once, rows in turn
 * as several boxes) and random lists, with many tiny tensors among large ones. Nothing is allocated
 * for the tensors: only their shapes are looked at.
 */
#include "share/agreement.h"

#include <stdio.h>

#include "support/made_set.h"
#include "support/unit_test.h"

enum { RANKS_MAX = 16, TENSORS_MAX = 40, BOXES_MAX = 4, WORLDS = 2500, CHUNK = 65536 };
enum kind { DATA, TENSOR, PIPELINE, EXPERT, HSDP, IN_TURN, KINDS };

static uint64_t state_of_draw = 7;

static uint64_t draw(uint64_t n)
{
    state_of_draw = state_of_draw * 6364136223846793005u + 1442695040888963407u;
    return (state_of_draw >> 33) % n;
}

struct mesh {
    uint32_t dp, tp, pp, ranks;
};

struct spec {
    char name[16];
    enum kind kind;
    uint32_t dtype, stage;
    int64_t rows, columns;
};

/* What a rank holds of a tensor: the ranks that hold the same, and its boxes; 0 boxes: nothing. */
struct holding {
    uint32_t group[RANKS_MAX], group_count, box_count;
    struct registered_box boxes[BOXES_MAX];
};

static void add_box(struct holding *ret, int64_t row, int64_t rows, int64_t columns)
{
    static uint8_t somewhere; /* never read */
    ret->boxes[ret->box_count++] =
        (struct registered_box){.box = {.ndim = 2, .offset = {row, 0}, .length = {rows, columns}},
                                .contiguous = true,
                                .data = &somewhere};
}

static void hold(const struct mesh *mesh, const struct spec *spec, uint32_t rank,
                 struct holding *ret)
{
    uint32_t tp = rank % mesh->tp, dp = rank / mesh->tp % mesh->dp, pp = rank / mesh->tp / mesh->dp;
    memset(ret, 0, sizeof *ret);
    for (uint32_t r = 0; r < mesh->ranks; r++) {
        uint32_t t = r % mesh->tp, d = r / mesh->tp % mesh->dp, p = r / mesh->tp / mesh->dp;
        bool same = spec->kind == DATA || (spec->kind == TENSOR && t == tp) ||
                    (spec->kind == PIPELINE && p == pp) || (spec->kind == EXPERT && d == dp) ||
                    ((spec->kind == HSDP || spec->kind == IN_TURN) && t == tp && p == pp);
        if (same) {
            ret->group[ret->group_count++] = r;
        }
    }
    uint32_t parts = spec->kind == TENSOR || spec->kind == IN_TURN ? mesh->tp
                     : spec->kind == EXPERT                        ? mesh->dp
                     : spec->kind == HSDP                          ? mesh->tp * mesh->pp
                                                                   : 1;
    uint32_t part = spec->kind == EXPERT ? dp : spec->kind == HSDP ? tp * mesh->pp + pp : tp;
    int64_t rows = spec->rows * parts; /* of the whole: each part has spec->rows */
    if (spec->kind == PIPELINE && spec->stage % mesh->pp != pp) {
        return; /* another stage's */
    }
    if (spec->kind == IN_TURN) {
        for (int64_t at = 0; at < BOXES_MAX && at * parts < rows; at++) {
            add_box(ret, (at * parts + part) % rows, 1, spec->columns);
        }
    } else {
        add_box(ret, parts == 1 ? 0 : spec->rows * part, spec->rows, spec->columns);
    }
}

static struct registered *register_rank(const struct mesh *mesh, const struct spec *specs,
                                        unsigned count, uint32_t rank)
{
    struct registered_tensor tensors[TENSORS_MAX];
    static struct holding held[TENSORS_MAX];
    unsigned n = 0;
    for (unsigned i = 0; i < count; i++) {
        hold(mesh, &specs[i], rank, &held[i]);
        if (held[i].box_count == 0) {
            continue;
        }
        tensors[n++] = (struct registered_tensor){
            .name = specs[i].name,
            .coordinate = "",
            .dtype = specs[i].dtype,
            .placement = PLACEMENT_SHARDED,
            .shape = {2, {specs[i].rows * RANKS_MAX * BOXES_MAX, specs[i].columns}},
            .box_count = held[i].box_count,
            .boxes = held[i].boxes,
            .group = held[i].group,
            .group_count = held[i].group_count};
    }
    return made_set(&(struct registered_list){
        .rank = rank, .world_size = mesh->ranks, .tensor_count = n, .tensors = tensors});
}

/* Of one group: the bytes that this rank writes, how many there are, and the largest cell. */
static void count_bytes(const struct registered *set, const struct held *held, uint32_t g,
                        const struct share *share, uint64_t ret[3])
{
    ret[0] = ret[1] = ret[2] = 0;
    for (uint32_t i = 0; i < held->groups[g].tensor_count; i++) {
        uint32_t t = held->groups[g].tensors[i];
        const struct registered_tensor *tensor = &set->tensors[t];
        uint64_t at = 0;
        for (size_t b = 0; b < tensor->box_count; b++) {
            struct grid grid;
            grid_init(&grid, &tensor->boxes[b].box, tensor->dtype, CHUNK);
            for (uint64_t c = 0; c < grid.cell_count; c++) {
                struct box cell;
                uint64_t offset, bytes;
                grid_cell(&grid, c, &cell, &offset, &bytes);
                ret[1] += bytes;
                ret[2] = bytes > ret[2] ? bytes : ret[2];
                ret[0] += share_is_mine(share, t, at + offset) ? bytes : 0;
            }
            at += box_bytes(&tensor->boxes[b].box, tensor->dtype);
        }
    }
}

static void draw_world(struct mesh *mesh, struct spec *specs, unsigned *ret_count)
{
    static const uint32_t dtypes[] = {CAIRN_F32, CAIRN_BF16, CAIRN_U8, CAIRN_F64};
    *mesh = (struct mesh){.dp = 1 + (uint32_t)draw(4), .tp = 1 + (uint32_t)draw(2)};
    mesh->pp = 1 + (uint32_t)draw(2);
    mesh->ranks = mesh->dp * mesh->tp * mesh->pp;
    *ret_count = 1 + (unsigned)draw(TENSORS_MAX);
    for (unsigned i = 0; i < *ret_count; i++) {
        bool tiny = draw(3) > 0;
        specs[i] = (struct spec){.kind = (enum kind)draw(KINDS),
                                 .dtype = dtypes[draw(4)],
                                 .stage = (uint32_t)draw(4),
                                 .rows = 1 + (int64_t)draw(tiny ? 3 : 200),
                                 .columns = (int64_t)draw(tiny ? 20 : 3000)};
        snprintf(specs[i].name, sizeof specs[i].name, "t%u", i);
    }
}

struct sums {
    struct xxh128 key;
    uint64_t total, mine_sum, least, most, cell;
    uint32_t members, came;
};

static void add_sum(struct sums *sums, unsigned *count, const struct held_group *group,
                    const uint64_t numbers[3])
{
    unsigned i = 0;
    while (i < *count && memcmp(&sums[i].key, &group->key, sizeof group->key) != 0) {
        i++;
    }
    if (i == *count) {
        sums[(*count)++] = (struct sums){.key = group->key,
                                         .total = numbers[1],
                                         .least = UINT64_MAX,
                                         .cell = numbers[2],
                                         .members = group->members};
    }
    assert_int_equal(sums[i].total, numbers[1]); /* equal lists */
    sums[i].mine_sum += numbers[0];
    sums[i].least = numbers[0] < sums[i].least ? numbers[0] : sums[i].least;
    sums[i].most = numbers[0] > sums[i].most ? numbers[0] : sums[i].most;
    sums[i].came++;
}

static void check_sums(const struct sums *sums, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const struct sums *of = &sums[i];
        uint64_t mean = of->total / of->members;
        uint64_t slack = of->cell > of->total / 100 ? of->cell : of->total / 100;
        assert_int_equal(of->came, of->members);
        assert_int_equal(of->mine_sum, of->total); /* with the cells' split: each exactly once */
        assert_true(of->most <= mean + slack + 1);
        assert_true(of->least + slack + 1 >= mean);
    }
}

TEST(groups_write_even_parts)
{
    for (unsigned w = 0; w < WORLDS; w++) {
        struct mesh mesh;
        struct spec specs[TENSORS_MAX];
        struct sums sums[KINDS * RANKS_MAX];
        unsigned count, sum_count = 0;
        draw_world(&mesh, specs, &count);
        for (uint32_t r = 0; r < mesh.ranks; r++) {
            struct registered *set = register_rank(&mesh, specs, count, r);
            struct agree_rule rules[KINDS * RANKS_MAX] = {{.anew = 1}};
            struct held held;
            struct share share, alike;
            struct agreement agreement;
            agreement_init(&agreement);
            assert_int_equal(held_init(&held, set, NULL), 0);
            struct agree_terms terms = {
                .set = set, .held = &held, .agreement = &agreement, .rules = rules};
            assert_int_equal(share_init_agreed(&share, &terms, NULL), 0);
            assert_int_equal(share_init_alike(&alike, set, NULL), 0);
            for (uint32_t g = 0; g < held.group_count; g++) {
                uint64_t numbers[3], again[3];
                count_bytes(set, &held, g, &share, numbers);
                count_bytes(set, &held, g, &alike, again);
                assert_int_equal(numbers[0], again[0]); /* both ways give the same */
                add_sum(sums, &sum_count, &held.groups[g], numbers);
            }
            share_fini(&share);
            share_fini(&alike);
            held_fini(&held);
            registered_unref(set);
        }
        check_sums(sums, sum_count);
    }
}

/* One group of one tensor, as rank 0 of two knows it. */
struct alone {
    struct registered *set;
    struct held held;
    struct agreement agreement;
};

static uint64_t agreed_division(const struct alone *a)
{
    const struct agreed_group *agreed = agreement_find(&a->agreement, &a->held.groups[0].key, 0);
    assert_non_null(agreed);
    return agreed_find(agreed, &a->held.keys[0])->division;
}

/* A save of the group is laid out: by what is proven, or anew by this open_id. */
static void lay_out(struct alone *a, uint64_t save, uint64_t anew)
{
    struct agree_rule rule = {.anew = anew};
    rule.keep = anew == 0 ? agreement_find(&a->agreement, &a->held.groups[0].key, 0) : NULL;
    struct agree_terms terms = {
        .set = a->set, .held = &a->held, .agreement = &a->agreement, .rules = &rule};
    const bool wrote[] = {true};
    struct share share;
    assert_int_equal(share_init_agreed(&share, &terms, NULL), 0);
    struct agree_news news = {
        .set = a->set, .held = &a->held, .share = &share, .wrote = wrote, .save = save};
    if (!rule.keep || agreement_may_change(&a->agreement, &a->held.groups[0].key)) {
        assert_int_equal(agreement_set(&a->agreement, 0, &news), 0);
    }
    share_fini(&share);
}

static void commit(struct alone *a, uint64_t save)
{
    struct agree_end end = {
        .save = save, .open_id = 100 + save, .held = &a->held, .is_known = true};
    agreement_learn(&a->agreement, &end);
}

static void alone_init(struct alone *a)
{
    struct mesh mesh = {.dp = 2, .tp = 1, .pp = 1, .ranks = 2};
    struct spec spec = {.name = "w", .kind = DATA, .dtype = CAIRN_F32, .rows = 8, .columns = 8};
    *a = (struct alone){.set = register_rank(&mesh, &spec, 1, 0)};
    agreement_init(&a->agreement);
    assert_int_equal(held_init(&a->held, a->set, NULL), 0);
}

static void alone_fini(struct alone *a)
{
    agreement_fini(&a->agreement);
    held_fini(&a->held);
    registered_unref(a->set);
}

/* Save 3 copies by what save 1 has proven, while save 2 is under way. A rank whose list was new in
 * save 3 knows its division from there, and by the newest save all ranks go on alike. */
TEST(what_the_newest_save_used_counts_whatever_is_proven_meanwhile)
{
    struct alone a;
    alone_init(&a);
    lay_out(&a, 1, 101);
    assert_true(agreement_may_change(&a.agreement, &a.held.groups[0].key));
    commit(&a, 1);
    assert_false(agreement_may_change(&a.agreement, &a.held.groups[0].key));
    lay_out(&a, 2, 102);
    lay_out(&a, 3, 0);
    commit(&a, 2);
    assert_int_equal(agreed_division(&a), 102);
    commit(&a, 3);
    assert_int_equal(agreed_division(&a), 101);
    alone_fini(&a);
}

/* The server may name the division of a save of which only the other ranks heard, also if this rank
 * had divided it before its opening had come. */
TEST(a_doubted_division_is_known_by_its_opening)
{
    struct alone a;
    struct share share;
    alone_init(&a);
    lay_out(&a, 1, 0);
    agreement_learn(
        &a.agreement,
        &(struct agree_end){.save = 1, .open_id = 101, .status = CAIRN_E_OUTCOME_UNKNOWN});
    struct agree_row row = {.key = a.held.keys[0], .division = 101};
    struct agree_rule rule = {.anew = 102, .row_count = 1, .rows = &row};
    struct agree_terms terms = {
        .set = a.set, .held = &a.held, .agreement = &a.agreement, .rules = &rule};
    assert_int_equal(share_init_agreed(&share, &terms, NULL), 0);
    assert_int_equal(share.tensors[0].split.members, 2);
    share_fini(&share);
    alone_fini(&a);
}

/* Whatever restore comes later, a save goes by the newest one before it. */
TEST(what_was_agreed_before_a_restore_is_for_the_saves_before_it)
{
    const struct xxh128 *group;
    struct alone a;
    alone_init(&a);
    group = &a.held.groups[0].key;
    lay_out(&a, 1, 101);
    commit(&a, 1);
    a.agreement.restored = 4;
    assert_non_null(agreement_find(&a.agreement, group, 0));
    assert_null(agreement_find(&a.agreement, group, 2));
    assert_false(agreement_covers(&a.agreement, &a.held.groups[0], 4));
    lay_out(&a, 5, 105);
    commit(&a, 5);
    assert_true(agreement_covers(&a.agreement, &a.held.groups[0], 4));
    alone_fini(&a);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What N ranks saved is what M ranks restore, bit for bit. Method: random tensors (dtype, shape),
 * saved by a world of 1 to 16 ranks in one layout each (replicated, rows, columns, a mesh of both,
 * HSDP, rows in turn, a flat ZeRO partition that cuts across rows), memory contiguous, padded or
 * transposed; restored by another world in other layouts. The engine and the server are the real
 * ones, on the simulator. The value of an element depends on its tensor and its global place only.
 * CAIRN_SEED=n replays one, CAIRN_SEEDS=n runs as many.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/check.h"
#include "base/log.h"
#include "engine_world.h"
#include "support/unit_test.h"

enum {
    SEED_COUNT = 400,
    TENSORS_MAX = 4,
    BOXES_MAX = 16,
    ELEMENTS_MAX = 6000,
    STEP = 7,
};

enum spread { REPLICATED, ROWS, COLUMNS, MESH, HSDP, IN_TURN, FLAT, LAYOUT_COUNT };
static const char *const layout_names[] = {"replicated", "rows",    "columns", "mesh",
                                           "hsdp",       "in turn", "flat"};

static uint64_t current_seed; /* for messages */

struct wanted { /* one tensor in one world */
    enum spread layout;
    uint32_t first; /* MESH, HSDP: ranks of the outer dimension of the mesh; divides the world */
};

struct job {
    struct sim *sim;
    size_t tensor_count;
    struct shape shapes[TENSORS_MAX];
    uint32_t dtypes[TENSORS_MAX];
    char names[TENSORS_MAX][32];
    struct wanted layouts[TENSORS_MAX];
};

static uint64_t shape_elements(const struct shape *shape)
{
    struct box whole = box_whole(shape);
    return box_elements(&whole);
}

static uint64_t draw(struct job *job, uint64_t below) { return sim_random(job->sim) % below; }

/* --- layouts: the boxes of one rank ------------------------------------------------ */

struct holding {
    size_t count;
    struct box boxes[BOXES_MAX];
    uint32_t group_count, group[WORLD_RANKS_MAX];
};

/* Part k of n of a length, as torch.chunk cuts: the last ones may be shorter, or empty. */
static void cut(int64_t length, uint32_t n, uint32_t k, int64_t *ret_offset, int64_t *ret_length)
{
    int64_t each = (length + n - 1) / n, offset = each * k < length ? each * k : length;
    *ret_offset = offset;
    *ret_length = each < length - offset ? each : length - offset;
}

/* Of what is left of the dimension: two cuts of one dimension nest. */
static void cut_dim(struct box *box, uint32_t dim, uint32_t n, uint32_t k)
{
    int64_t offset, length;
    cut(box->length[dim], n, k, &offset, &length);
    box->offset[dim] += offset;
    box->length[dim] = length;
}

/* Rows k, k + n, k + 2 n ...: each a box of its own, as long as there is room; then one block a
 * rank. */
static void hold_in_turn(const struct shape *shape, uint32_t n, uint32_t k, struct holding *ret)
{
    struct box whole = box_whole(shape);
    int64_t rows = shape->length[0], block = (rows + n * BOXES_MAX - 1) / (n * BOXES_MAX);
    for (int64_t at = block * k; at < rows; at += block * n) {
        struct box *box = &ret->boxes[ret->count++];
        *box = whole;
        box->offset[0] = at;
        box->length[0] = block < rows - at ? block : rows - at;
    }
}

/* All tensors end to end, cut into equal ranges of elements, as ZeRO cuts its flat buffer. */
static void hold_flat(const struct job *job, size_t t, uint32_t n, uint32_t k, struct holding *ret)
{
    int64_t total = 0, before = 0, from, length;
    uint64_t range[2], elements = shape_elements(&job->shapes[t]);
    for (size_t i = 0; i < job->tensor_count; i++) {
        before = i == t ? total : before;
        total += (int64_t)shape_elements(&job->shapes[i]);
    }
    cut(total, n, k, &from, &length);
    if (box_flat_part((uint64_t)before, elements, (uint64_t)from, (uint64_t)(from + length),
                      range)) {
        struct box boxes[BOX_FLAT_MAX];
        ret->count = box_flat(&job->shapes[t], range[0], range[1], boxes);
        assert_true(ret->count <= BOXES_MAX);
        memcpy(ret->boxes, boxes, ret->count * sizeof *boxes);
    }
}

static void hold(const struct job *job, size_t t, uint32_t n, uint32_t k, struct holding *ret)
{
    const struct wanted *layout = &job->layouts[t];
    const struct shape *shape = &job->shapes[t];
    uint32_t first = layout->first, second = n / first, last = shape->ndim - 1;
    assert_int_not_equal(second, 0);
    struct box box = box_whole(shape);
    *ret = (struct holding){.group_count = 1, .group = {k}};
    if (layout->layout == IN_TURN) {
        hold_in_turn(shape, n, k, ret);
        return;
    }
    if (layout->layout == FLAT) {
        hold_flat(job, t, n, k, ret);
        return;
    }
    if (layout->layout == ROWS) {
        cut_dim(&box, 0, n, k);
    } else if (layout->layout == COLUMNS) {
        cut_dim(&box, last, n, k);
    } else if (layout->layout == MESH) {
        cut_dim(&box, 0, first, k / second);
        cut_dim(&box, last, second, k % second);
    } else if (layout->layout == HSDP) { /* the outer dimension replicates, the inner one shards */
        cut_dim(&box, 0, second, k % second);
        ret->group_count = first;
        for (uint32_t i = 0; i < first; i++) {
            ret->group[i] = i * second + k % second;
        }
    } else {
        ret->group_count = n;
        for (uint32_t i = 0; i < n; i++) {
            ret->group[i] = i;
        }
    }
    ret->boxes[ret->count++] = box;
}

/* --- memory ------------------------------------------------------------------------ */

static uint8_t value_at(size_t tensor, uint64_t element, uint64_t byte)
{
    uint64_t z = (element * 8 + byte + 1) * UINT64_C(0x9e3779b97f4a7c15) + tensor;
    return (uint8_t)(z >> 56 ^ z >> 32);
}

/* Row-major, with a hole behind each row, or the last dimension slowest. How many elements it
 * spans. */
static uint64_t choose_strides(struct job *job, struct registered_box *box)
{
    const struct box *b = &box->box;
    uint64_t kind = draw(job, 3);
    int64_t stride = 1;
    box->contiguous = kind == 0;
    for (uint32_t i = 0; i < b->ndim; i++) {
        uint32_t dim = kind == 2 ? i : b->ndim - 1 - i;
        box->stride[dim] = stride;
        stride *= b->length[dim] + (kind == 1 && dim == b->ndim - 1 ? 3 : 0);
    }
    return kind == 0 ? box_elements(b) : (uint64_t)stride;
}

typedef void (*visit_fn)(uint8_t *at, size_t tensor, uint64_t element, uint32_t width);

static void each_element(const struct registered_box *box, const struct shape *shape, size_t tensor,
                         uint32_t width, visit_fn visit)
{
    uint64_t count = box_elements(&box->box);
    for (uint64_t i = 0; i < count; i++) {
        int64_t at[LIMIT_NDIM], memory = 0;
        uint64_t rest = i, element = 0;
        for (uint32_t d = box->box.ndim; d > 0; d--) {
            at[d - 1] = (int64_t)(rest % (uint64_t)box->box.length[d - 1]);
            rest /= (uint64_t)box->box.length[d - 1];
            memory += at[d - 1] * box->stride[d - 1];
        }
        for (uint32_t d = 0; d < box->box.ndim; d++) {
            element = element * (uint64_t)shape->length[d] + (uint64_t)(box->box.offset[d] + at[d]);
        }
        visit(box->data + (uint64_t)memory * width, tensor, element, width);
    }
}

static void visit_set(uint8_t *at, size_t tensor, uint64_t element, uint32_t width)
{
    for (uint32_t byte = 0; byte < width; byte++) {
        at[byte] = value_at(tensor, element, byte);
    }
}

static void visit_check(uint8_t *at, size_t tensor, uint64_t element, uint32_t width)
{
    for (uint32_t byte = 0; byte < width; byte++) {
        if (at[byte] != value_at(tensor, element, byte)) {
            fail_msg("seed %" PRIu64 ": tensor %zu, element %" PRIu64 ", byte %u", current_seed,
                     tensor, element, byte);
        }
    }
}

static void each_box(const struct job *job, const struct world *world, visit_fn visit)
{
    for (uint32_t r = 0; r < world->world_size; r++) {
        const struct registered *set = world->ranks[r].set;
        for (size_t i = 0; i < set->tensor_count; i++) {
            const struct registered_tensor *tensor = &set->tensors[i];
            size_t t = (size_t)(tensor->name[1] - '0');
            for (size_t b = 0; b < tensor->box_count; b++) {
                each_element(&tensor->boxes[b], &job->shapes[t], t, dtype_bits(tensor->dtype) / 8,
                             visit);
            }
        }
    }
}

/* --- worlds ------------------------------------------------------------------------ */

static size_t take_tensor(struct job *job, size_t t, const struct holding *held,
                          struct registered_box *boxes, size_t *io_bytes)
{
    size_t count = 0;
    bool keeps_empty = draw(job, 2) == 0;
    for (size_t b = 0; b < held->count; b++) {
        if (box_elements(&held->boxes[b]) == 0 && (!keeps_empty || held->group_count > 1)) {
            continue;
        }
        struct registered_box *box = &boxes[count++];
        *box = (struct registered_box){.box = held->boxes[b]};
        uint64_t bytes = choose_strides(job, box) * (dtype_bits(job->dtypes[t]) / 8);
        box->data = (uint8_t *)(uintptr_t)*io_bytes; /* as an offset, for now */
        *io_bytes = round_up_u64(*io_bytes + bytes, 16);
    }
    return count;
}

static void register_rank(struct world_rank *rank, uint32_t idx, void *user)
{
    struct job *job = user;
    uint32_t n = rank->world->world_size;
    struct holding held[TENSORS_MAX];
    struct registered_box boxes[TENSORS_MAX][BOXES_MAX];
    struct registered_tensor tensors[TENSORS_MAX];
    struct registered_list list = {.tensors = tensors};
    size_t bytes = 16;
    for (size_t t = 0; t < job->tensor_count; t++) {
        hold(job, t, n, idx, &held[t]);
        size_t count = take_tensor(job, t, &held[t], boxes[t], &bytes);
        if (count == 0) {
            continue; /* a rank that has nothing of it does not know it */
        }
        tensors[list.tensor_count++] = (struct registered_tensor){
            .name = job->names[t],
            .coordinate = "",
            .dtype = job->dtypes[t],
            .placement =
                job->layouts[t].layout == REPLICATED ? PLACEMENT_REPLICATED : PLACEMENT_SHARDED,
            .shape = job->shapes[t],
            .box_count = count,
            .boxes = boxes[t],
            .group_count = held[t].group_count,
            .group = held[t].group};
    }
    rank->memory_bytes = bytes;
    rank->memory = calloc(1, bytes);
    for (size_t i = 0; i < list.tensor_count; i++) {
        for (size_t b = 0; b < tensors[i].box_count; b++) {
            struct registered_box *box = &tensors[i].boxes[b];
            box->data = rank->memory + (uintptr_t)box->data;
        }
    }
    world_register(rank, list);
}

static void choose_layouts(struct job *job, uint32_t n)
{
    for (size_t t = 0; t < job->tensor_count; t++) {
        struct wanted *layout = &job->layouts[t];
        layout->layout = (enum spread)draw(job, LAYOUT_COUNT);
        layout->first = 1 + (uint32_t)draw(job, n);
        while (n % layout->first != 0) {
            layout->first--;
        }
        if (layout->layout == HSDP && layout->first == 1) {
            layout->layout = ROWS; /* nothing is replicated */
        }
    }
}

static void choose_tensors(struct job *job)
{
    static const uint32_t dtypes[] = {CAIRN_U8, CAIRN_BF16, CAIRN_F32, CAIRN_F64};
    job->tensor_count = 1 + (size_t)draw(job, TENSORS_MAX);
    for (size_t t = 0; t < job->tensor_count; t++) {
        struct shape *shape = &job->shapes[t];
        int64_t left = ELEMENTS_MAX;
        *shape = (struct shape){.ndim = 1 + (uint32_t)draw(job, 3)};
        for (uint32_t d = 0; d < shape->ndim; d++) {
            int64_t most = d + 1 < shape->ndim && left > 90 ? 90 : left;
            shape->length[d] = 1 + (int64_t)draw(job, (uint64_t)most);
            left /= shape->length[d];
            left = left > 0 ? left : 1;
        }
        job->dtypes[t] = dtypes[draw(job, ARRAY_LEN(dtypes))];
        snprintf(job->names[t], sizeof job->names[t], "t%zu", t);
    }
}

static void describe(const struct job *job, uint32_t n, size_t bytes, char *ret)
{
    size_t at = (size_t)snprintf(ret, bytes, "%u ranks:", n);
    for (size_t t = 0; t < job->tensor_count && at < bytes; t++) {
        char shape[80];
        shape_format(&job->shapes[t], sizeof shape, shape);
        at += (size_t)snprintf(ret + at, bytes - at, " %s%s %s", t > 0 ? ", " : "", shape,
                               layout_names[job->layouts[t].layout]);
    }
}

static void run_seed(uint64_t seed)
{
    struct world *world = malloc(sizeof *world);
    struct job job = {0};
    char saved[400], restored[400];
    world_init_with(world, seed, 1,
                    &(struct world_options){.register_rank = register_rank, .register_user = &job});
    job.sim = world->sim;
    choose_tensors(&job);
    world->world_size = 1 + (uint32_t)draw(&job, WORLD_RANKS_MAX);
    choose_layouts(&job, world->world_size);
    describe(&job, world->world_size, sizeof saved, saved);
    world_ranks_start(world);
    each_box(&job, world, visit_set);
    for (uint32_t i = 0; i < world->world_size; i++) {
        world_save(&world->ranks[i], STEP, 60000);
    }
    world_await_saves(world, 60000);
    for (uint32_t i = 0; i < world->world_size; i++) {
        if (world->ranks[i].save_status != 0) {
            fail_msg("seed %" PRIu64 ", %s: rank %u: %s", seed, saved, i,
                     world->ranks[i].save.diag.text);
        }
    }
    world_ranks_stop(world);
    world->world_size = 1 + (uint32_t)draw(&job, WORLD_RANKS_MAX);
    choose_layouts(&job, world->world_size);
    describe(&job, world->world_size, sizeof restored, restored);
    world_ranks_start(world);
    for (uint32_t i = 0; i < world->world_size; i++) {
        memset(world->ranks[i].memory, 0x77, world->ranks[i].memory_bytes);
        world_restore(&world->ranks[i], WORLD_LATEST, 60000);
    }
    world_await_restores(world, 60000);
    for (uint32_t i = 0; i < world->world_size; i++) {
        if (world->ranks[i].restore_status != 0) {
            fail_msg("seed %" PRIu64 ", saved by %s, restored by %s: rank %u: %s", seed, saved,
                     restored, i, world->ranks[i].restore.diag.text);
        }
    }
    each_box(&job, world, visit_check);
    world_end(world);
    free(world);
}

TEST(any_world_restores_what_any_world_saved)
{
    log_setup(LOG_ERROR, LOG_TEXT);
    const char *one = getenv("CAIRN_SEED"), *many = getenv("CAIRN_SEEDS");
    uint64_t first = one != NULL ? strtoull(one, NULL, 10) : 1;
    uint64_t count = one != NULL ? 1 : many != NULL ? strtoull(many, NULL, 10) : SEED_COUNT;
    for (uint64_t i = 0; i < count; i++) {
        current_seed = first + i;
        run_seed(current_seed);
    }
    print_message("seeds %" PRIu64 "..%" PRIu64 "\n", first, first + count - 1);
}

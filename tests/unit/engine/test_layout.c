/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts that all ranks would build cover every tensor exactly, their places in the arena do not
 * overlap, and what is copied is what is registered. Method: random tensors and worlds, checked by
 * the code that the server uses. The seed of a failing case is printed.
 */
#include "share/layout.h"

#include <stdio.h>

#include "base/check.h"
#include "snapshot/snapshot.h"
#include "support/made_set.h"
#include "support/unit_test.h"

enum { RANKS_MAX = 5, TENSORS_MAX = 8, CHUNK = 4096, PAYLOAD = 65536, OBJECT = 200000 };

static uint64_t draw_state;

static uint64_t draw(uint64_t n)
{
    draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
    return (draw_state >> 33) % n;
}

struct rank {
    struct registered *set;
    struct layout layout;
    uint8_t *extent;
};

/* A random tensor of the case: the same on all ranks but for its box. */
struct spec {
    char name[16];
    uint32_t dtype, placement, ndim;
    int64_t length[3];
    bool transposed;
};

static const uint32_t dtypes[] = {CAIRN_F32, CAIRN_BF16, CAIRN_U8, CAIRN_F64};

static void draw_spec(struct spec *spec, unsigned idx)
{
    snprintf(spec->name, sizeof spec->name, "t%u", idx);
    spec->dtype = dtypes[draw(4)];
    spec->placement = draw(3) == 0 ? PLACEMENT_SHARDED : PLACEMENT_REPLICATED;
    spec->ndim = (uint32_t)draw(4);
    if (spec->placement == PLACEMENT_SHARDED && spec->ndim == 0) {
        spec->ndim = 1;
    }
    for (uint32_t d = 0; d < spec->ndim; d++) {
        spec->length[d] = (int64_t)draw(d == 0 ? 40 : 90) + (draw(9) > 0);
    }
    spec->transposed = spec->ndim == 2 && draw(3) == 0;
}

static struct registered *register_rank(const struct spec *specs, unsigned count, uint32_t rank,
                                        uint32_t world)
{
    struct registered_tensor tensors[TENSORS_MAX] = {0};
    struct registered_box boxes[TENSORS_MAX] = {0};
    uint32_t all[RANKS_MAX] = {0, 1, 2, 3, 4};
    for (unsigned i = 0; i < count; i++) {
        const struct spec *spec = &specs[i];
        struct box *box = &boxes[i].box;
        bool sharded = spec->placement == PLACEMENT_SHARDED;
        *box = (struct box){.ndim = spec->ndim};
        memcpy(box->length, spec->length, sizeof spec->length);
        uint64_t bytes = box_bytes(box, spec->dtype);
        boxes[i].data = malloc(bytes + 1);
        for (uint64_t b = 0; b < bytes; b++) {
            boxes[i].data[b] = (uint8_t)draw(256);
        }
        boxes[i].contiguous = !spec->transposed;
        boxes[i].stride[0] = 1;
        boxes[i].stride[1] = spec->length[0];
        tensors[i] = made_tensor(spec->name, spec->dtype, spec->placement, &boxes[i]);
        tensors[i].group = sharded ? NULL : all;
        tensors[i].group_count = sharded ? 0 : world;
        if (sharded) {
            tensors[i].shape.length[0] *= world;
            box->offset[0] = rank * spec->length[0];
        }
    }
    return made_set(&(struct registered_list){
        .rank = rank, .world_size = world, .tensor_count = count, .tensors = tensors});
}

/* Offsets inside objects, lengths, alignment; no two pieces meet. */
static void check_places(const struct layout *layout)
{
    uint64_t at = 0, plain = 0;
    for (uint32_t o = 0; o < layout->object_count; o++) {
        const struct layout_object *object = &layout->objects[o];
        assert_int_equal(object->at, at);
        assert_int_equal(object->data_bytes % LIMIT_ALIGN_BYTES, 0);
        for (uint32_t p = 0; p < object->payload_count; p++) {
            const struct layout_payload *payload = &layout->payloads[object->payload_first + p];
            uint32_t inside = 0;
            assert_int_equal(payload->at, at);
            assert_int_equal(payload->object, o);
            assert_true(payload->bytes > 0 && payload->bytes <= PAYLOAD);
            for (uint32_t i = 0; i < payload->piece_count; i++) {
                const struct layout_piece *piece = &layout->pieces[payload->piece_first + i];
                assert_int_equal(piece->at, inside);
                inside += piece->bytes;
                plain += piece->bytes;
            }
            assert_int_equal(inside, payload->bytes);
            at = round_up_u64(payload->at + payload->bytes, LIMIT_ALIGN_BYTES);
        }
        assert_int_equal(object->data_bytes, at - object->at);
    }
    assert_int_equal(layout->extent_bytes, at);
    assert_int_equal(layout->plain_bytes, plain);
}

/* The part as save_part.c will build it, without digests. */
static void make_part(const struct rank *rank, uint32_t idx, uint32_t world,
                      struct scratch *scratch, struct part *part)
{
    const struct registered *set = rank->set;
    const struct layout *layout = &rank->layout;
    uint32_t chunk_at = 0;
    *part = (struct part){.id = {1, 1},
                          .rank = idx,
                          .world_size = world,
                          .writer = idx + 1,
                          .chunk_bytes = CHUNK,
                          .tensor_count = (uint32_t)set->tensor_count,
                          .box_count = (uint32_t)set->tensor_count,
                          .chunk_count = layout->piece_count,
                          .object_count = layout->object_count};
    part->tensors = scratch_array(scratch, part->tensor_count + 1, sizeof *part->tensors);
    part->boxes = scratch_array(scratch, part->box_count + 1, sizeof *part->boxes);
    part->chunks = scratch_array(scratch, part->chunk_count + 1, sizeof *part->chunks);
    part->objects = scratch_array(scratch, part->object_count + 1, sizeof *part->objects);
    for (uint32_t t = 0; t < set->tensor_count; t++) {
        const struct registered_tensor *tensor = &set->tensors[t];
        part->tensors[t] = (struct part_tensor){.name = tensor->name,
                                                .coordinate = "",
                                                .dtype = tensor->dtype,
                                                .placement = tensor->placement,
                                                .shape = tensor->shape,
                                                .box_first = t,
                                                .box_count = 1};
        part->boxes[t] =
            (struct part_box){.tensor = t, .box = tensor->boxes[0].box, .chunk_first = chunk_at};
        while (chunk_at < layout->piece_count &&
               layout->pieces[layout->by_part[chunk_at]].tensor == t) {
            const struct layout_piece *piece = &layout->pieces[layout->by_part[chunk_at]];
            part->chunks[chunk_at++] =
                (struct part_chunk){.object = layout->payloads[piece->payload].object,
                                    .cell = piece->cell,
                                    .stored_bytes = piece->bytes,
                                    .plain_bytes = piece->bytes};
        }
        part->boxes[t].chunk_count = chunk_at - part->boxes[t].chunk_first;
    }
    assert_int_equal(chunk_at, layout->piece_count);
}

static uint8_t box_byte(const struct registered_box *box, uint32_t element, uint64_t at)
{
    if (box->contiguous) {
        return box->data[at];
    }
    uint64_t index = at / element, columns = (uint64_t)box->box.length[1];
    uint64_t memory =
        (index / columns) * (uint64_t)box->stride[0] + (index % columns) * (uint64_t)box->stride[1];
    return box->data[memory * element + at % element];
}

static void check_copies(struct rank *rank)
{
    const struct layout *layout = &rank->layout;
    rank->extent = malloc(layout->extent_bytes + 1);
    memset(rank->extent, 0xaa, layout->extent_bytes);
    for (uint32_t i = 0; i < layout->payload_count; i++) {
        const struct snapshot_source source = {rank->set, layout, NULL};
        assert_int_equal(
            snapshot_copy_payload(&source, i, rank->extent + layout->payloads[i].at, NULL), 0);
    }
    for (uint32_t i = 0; i < layout->piece_count; i++) {
        const struct layout_piece *piece = &layout->pieces[i];
        const struct registered_tensor *tensor = &rank->set->tensors[piece->tensor];
        const uint8_t *copy = rank->extent + layout->payloads[piece->payload].at + piece->at;
        for (uint32_t b = 0; b < piece->bytes; b++) {
            assert_int_equal(copy[b], box_byte(&tensor->boxes[0], dtype_bits(tensor->dtype) / 8,
                                               piece->source + b));
        }
    }
    for (uint32_t i = 0; i < layout->payload_count; i++) {
        const struct layout_payload *payload = &layout->payloads[i];
        for (uint64_t at = payload->at + payload->bytes; at % LIMIT_ALIGN_BYTES != 0; at++) {
            assert_int_equal(rank->extent[at], 0);
        }
    }
}

static void run_case(uint64_t seed)
{
    struct spec specs[TENSORS_MAX];
    struct rank ranks[RANKS_MAX] = {0};
    struct part parts[RANKS_MAX];
    struct scratch scratch;
    struct diag diag = DIAG_INIT;
    draw_state = seed;
    unsigned count = (unsigned)draw(TENSORS_MAX) + 1;
    uint32_t world = (uint32_t)draw(RANKS_MAX) + 1;
    struct layout_options options = {
        .chunk_bytes = CHUNK, .payload_bytes = PAYLOAD, .object_bytes = OBJECT};
    scratch_init(&scratch, (size_t)64 << 20);
    for (unsigned i = 0; i < count; i++) {
        draw_spec(&specs[i], i);
    }
    for (uint32_t r = 0; r < world; r++) {
        ranks[r].set = register_rank(specs, count, r, world);
        assert_int_equal(layout_init(&ranks[r].layout, ranks[r].set, &options, &diag), 0);
        check_places(&ranks[r].layout);
        check_copies(&ranks[r]);
        make_part(&ranks[r], r, world, &scratch, &parts[r]);
        assert_memory_equal(&ranks[r].set->list_hash, &ranks[0].set->list_hash,
                            sizeof ranks[r].set->list_hash);
    }
    if (parts_check_coverage(world, parts, &scratch, &diag) != 0) {
        fail_msg("seed %llu: %s", (unsigned long long)seed, diag.text);
    }
    for (uint32_t r = 0; r < world; r++) {
        for (unsigned i = 0; i < count; i++) {
            free(ranks[r].set->tensors[i].boxes[0].data);
        }
        layout_fini(&ranks[r].layout);
        registered_unref(ranks[r].set);
        free(ranks[r].extent);
    }
    scratch_fini(&scratch);
}

TEST(parts_of_all_ranks_cover_everything_once)
{
    for (uint64_t seed = 1; seed <= 150; seed++) {
        run_case(seed);
    }
}

/* Goal: large chunks keep their own payload; objects are cut. Method: one tensor of many 128 KiB
 * chunks. */
TEST(large_chunks_are_not_packed)
{
    enum { BIG = 128 << 10, COUNT = 10 };
    uint8_t *data = malloc(BIG * COUNT);
    struct registered_box box = made_vector(BIG * COUNT, data);
    struct registered_tensor tensor = made_tensor("big", CAIRN_U8, PLACEMENT_SHARDED, &box);
    struct registered *set = made_set_of(&tensor);
    struct layout_options options = {
        .chunk_bytes = BIG, .payload_bytes = BIG, .object_bytes = 3 * BIG + 5};
    struct layout layout;
    assert_int_equal(layout_init(&layout, set, &options, NULL), 0);
    assert_int_equal(layout.payload_count, COUNT);
    assert_int_equal(layout.object_count, 4);
    assert_int_equal(layout.objects[0].data_bytes, 3 * BIG);
    layout_fini(&layout);
    registered_unref(set);
    free(data);
}

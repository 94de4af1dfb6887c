/* SPDX-License-Identifier: Apache-2.0
 *
 * A chunk of the base is found at its place and nowhere else: another name, coordinate, dtype, box,
 * cell or length finds nothing.
 */
#include "pack/base_part.h"

#include "support/unit_test.h"

static const struct ckpt_id id = {3, 40};
static struct part_object objects[] = {{.id = {3, 40, 77, 0, 1}}, {.id = {2, 20, 78, 0, 5}}};
static struct part_tensor tensors[] = {{.name = "a",
                                        .coordinate = "",
                                        .dtype = CAIRN_F32,
                                        .placement = PLACEMENT_SHARDED,
                                        .shape = {.ndim = 1, .length = {4096}},
                                        .box_first = 0,
                                        .box_count = 2},
                                       {.name = "b",
                                        .coordinate = "rank=0",
                                        .dtype = CAIRN_U8,
                                        .placement = PLACEMENT_LOCAL,
                                        .shape = {.ndim = 0},
                                        .box_first = 2,
                                        .box_count = 1}};
static struct part_box boxes[] = {
    {.tensor = 0, .box = {.ndim = 1, .offset = {0}, .length = {2048}}, .chunk_count = 2},
    {.tensor = 0,
     .box = {.ndim = 1, .offset = {2048}, .length = {1500}},
     .chunk_first = 2,
     .chunk_count = 1}, /* its second cell is another rank's */
    {.tensor = 1, .box = {.ndim = 0}, .chunk_first = 3, .chunk_count = 1}};
static struct part_blob blobs[] = {{.name = "config",
                                    .coordinate = "",
                                    .kind = BLOB_BYTES,
                                    .placement = PLACEMENT_REPLICATED,
                                    .plain_bytes = 6,
                                    .chunk_first = 4,
                                    .chunk_count = 1}};

#define CHUNK(object_, cell_, offset_, bytes_)                                               \
    {                                                                                        \
        .object = (object_), .cell = (cell_), .offset = (offset_), .stored_bytes = (bytes_), \
        .plain_bytes = (bytes_), .digest_alg = DIGEST_XXH3_128                               \
    }
static struct part_chunk chunks[] = {CHUNK(0, 0, 0, 4096), CHUNK(1, 1, 4096, 4096),
                                     CHUNK(0, 0, 4096, 4096), CHUNK(0, 0, 8192, 1),
                                     CHUNK(0, 0, 8193, 6)};

static struct base_part *make(void)
{
    struct part part = {.run_uuid = {{1}},
                        .id = id,
                        .world_size = 1,
                        .writer = 77,
                        .chunk_bytes = 4096,
                        .object_count = 2,
                        .tensor_count = 2,
                        .box_count = 3,
                        .blob_count = 1,
                        .chunk_count = 5,
                        .objects = objects,
                        .tensors = tensors,
                        .boxes = boxes,
                        .blobs = blobs,
                        .chunks = chunks};
    struct base_part *base;
    struct diag diag = DIAG_INIT;
    struct buf buf;
    buf_init(&buf, MIB(1));
    part_count_objects(&part);
    part_encode(&part, &buf);
    assert_int_equal(buf_status(&buf), 0);
    const struct ckpt_id other = {3, 41};
    assert_int_equal(base_part_new(other, buf.bytes, buf.data, &base, &diag), CAIRN_E_INVALID);
    if (base_part_new(id, buf.bytes, buf.data, &base, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
    buf.data[100] ^= 1;
    struct base_part *broken;
    assert_int_not_equal(base_part_new(id, buf.bytes, buf.data, &broken, &diag), 0);
    buf_fini(&buf);
    return base;
}

/* 1 + index of the chunk; 0: none. */
static uint32_t find(const struct base_part *base, const struct part_place *place, uint32_t cell,
                     uint32_t bytes)
{
    return part_find_cell(&base->part, part_find_run(&base->part, place), cell, bytes);
}

TEST(chunks_are_found_at_their_place)
{
    struct base_part *base = make();
    const struct part_place a0 = {"a", "", CAIRN_F32, &boxes[0].box};
    const struct part_place a1 = {"a", "", CAIRN_F32, &boxes[1].box};
    const struct part_place b = {"b", "rank=0", CAIRN_U8, &boxes[2].box};
    const struct part_place config = {.name = "config", .coordinate = ""};
    assert_int_equal(find(base, &a0, 0, 4096), 1);
    assert_int_equal(find(base, &a0, 1, 4096), 2);
    assert_int_equal(find(base, &a1, 0, 4096), 3);
    assert_int_equal(find(base, &b, 0, 1), 4);
    assert_int_equal(find(base, &config, 0, 6), 5);
    base_part_unref(base_part_ref(base));
    assert_int_equal(base->part.objects[1].id.step, 20);
    base_part_unref(base);
    base_part_unref(NULL);
}

TEST(other_places_find_nothing)
{
    struct base_part *base = make();
    const struct box longer = {.ndim = 1, .offset = {0}, .length = {2049}};
    const struct box moved = {.ndim = 1, .offset = {1}, .length = {2048}};
    const struct part_place places[] = {
        {"c", "", CAIRN_F32, &boxes[0].box}, {"a", "rank=0", CAIRN_F32, &boxes[0].box},
        {"a", "", CAIRN_I32, &boxes[0].box}, {"a", "", CAIRN_F32, &longer},
        {"a", "", CAIRN_F32, &moved},        {"b", "rank=1", CAIRN_U8, &boxes[2].box},
        {.name = "a", .coordinate = ""},     {"config", "", CAIRN_U8, &boxes[2].box},
        {.name = "", .coordinate = ""}};
    const struct part_place a0 = {"a", "", CAIRN_F32, &boxes[0].box};
    const struct part_place a1 = {"a", "", CAIRN_F32, &boxes[1].box};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        assert_int_equal(part_find_run(&base->part, &places[i]).count, 0);
    }
    assert_int_equal(find(base, &a0, 2, 4096), 0);
    assert_int_equal(find(base, &a0, 0, 4095), 0);
    assert_int_equal(find(base, &a1, 1, 1904), 0); /* another rank's cell */
    base_part_unref(base);
}

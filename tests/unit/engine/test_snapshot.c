/* SPDX-License-Identifier: Apache-2.0
 *
 * What snapshot_copied says is copied is copied, at every moment that the loop's thread looks;
 * places may come late and in lots; stopping ends it; eager tensors come first. Method: the copy on
 * real threads, worth running under TSan.
 */
#include "snapshot/snapshot.h"

#include "base/check.h"
#include "support/made_set.h"
#include "support/unit_test.h"

enum { CHUNK = 16 << 10, COUNT = 3000, STOP_AT = 1000, LOT_BYTES = 40 * CHUNK };

struct rig {
    struct loop *loop;
    struct work_pool *pool;
    struct registered *set;
    struct layout layout;
    struct snapshot snapshot;
    struct post go;
    uint8_t *source, *extent;
    uint8_t **places;
    uint32_t placed, looks;
    uint64_t told_bytes;
    bool in_lots, stops, over;
};

/* A few lots ahead of what was told, so that the copy cannot run away while this thread sleeps. */
static void place_more(struct rig *rig)
{
    const struct layout *layout = &rig->layout;
    uint32_t told = (uint32_t)(rig->told_bytes / LOT_BYTES);
    uint32_t end = rig->in_lots ? told + 3 : layout->object_count;
    for (; rig->placed < end && rig->placed < layout->object_count; rig->placed++) {
        rig->places[rig->placed] = rig->extent + layout->objects[rig->placed].at;
    }
}

/* Every payload before the mark has its last byte: it was not 0 in the source. */
static void look(struct rig *rig)
{
    uint32_t copied = snapshot_copied(&rig->snapshot);
    for (uint32_t i = 0; i < copied; i++) {
        const struct layout_payload *payload = &rig->layout.payloads[i];
        assert_int_not_equal(rig->extent[payload->at + payload->bytes - 1], 0);
    }
    rig->looks++;
}

static void on_progress(struct snapshot *snapshot, uint64_t bytes, bool done)
{
    struct rig *rig = container_of(snapshot, struct rig, snapshot);
    assert_false(rig->over);
    rig->told_bytes += bytes;
    look(rig);
    if (done) {
        rig->over = true;
        loop_uv_stop(rig->loop);
        return;
    }
    if (rig->stops && snapshot_copied(snapshot) >= STOP_AT && snapshot_stop(snapshot)) {
        rig->over = true; /* nothing ran: nobody tells */
        loop_uv_stop(rig->loop);
        return;
    }
    place_more(rig);
    snapshot_resume(snapshot);
}

static void on_go(struct post *post)
{
    struct rig *rig = container_of(post, struct rig, go);
    snapshot_start(&rig->snapshot);
}

static void begin(struct rig *rig, bool in_lots, bool stops)
{
    struct layout_options options = {
        .chunk_bytes = CHUNK, .payload_bytes = CHUNK, .object_bytes = LOT_BYTES};
    *rig = (struct rig){.in_lots = in_lots, .stops = stops};
    rig->source = malloc((size_t)COUNT * CHUNK);
    assert_non_null(rig->source);
    for (size_t i = 0; i < (size_t)COUNT * CHUNK; i++) {
        rig->source[i] = (uint8_t)(i % 251 + 1);
    }
    struct registered_box box = made_vector((int64_t)COUNT * CHUNK, rig->source);
    struct registered_tensor tensor = made_tensor("x", CAIRN_U8, PLACEMENT_SHARDED, &box);
    rig->set = made_set_of(&tensor);
    assert_int_equal(layout_init(&rig->layout, rig->set, &options, NULL), 0);
    assert_int_equal(rig->layout.payload_count, COUNT);
    rig->extent = calloc(1, rig->layout.extent_bytes);
    rig->places = calloc(rig->layout.object_count, sizeof *rig->places);
    assert_true(rig->extent && rig->places);
    assert_int_equal(loop_uv_new(&rig->loop, NULL), 0);
    assert_int_equal(work_threads_new(rig->loop, 4, "test", &rig->pool, NULL), 0);
    place_more(rig);
    rig->snapshot.set = rig->set;
    rig->snapshot.layout = &rig->layout;
    rig->snapshot.places = rig->places;
    rig->snapshot.loop = rig->loop;
    rig->snapshot.pool = rig->pool;
    rig->snapshot.tasks_max = SNAPSHOT_TASKS;
    rig->snapshot.on_progress = on_progress;
    rig->go.cb = on_go;
    loop_post(rig->loop, &rig->go);
    loop_uv_run(rig->loop);
    assert_true(rig->over);
}

static void end(struct rig *rig)
{
    work_threads_free(rig->pool);
    loop_uv_free(rig->loop);
    layout_fini(&rig->layout);
    registered_unref(rig->set);
    free(rig->places);
    free(rig->extent);
    free(rig->source);
}

TEST(all_is_copied_once)
{
    for (unsigned in_lots = 0; in_lots < 2; in_lots++) {
        struct rig rig;
        begin(&rig, in_lots, false);
        assert_int_equal(snapshot_copied(&rig.snapshot), COUNT);
        assert_int_equal(rig.told_bytes, (uint64_t)COUNT * CHUNK);
        assert_memory_equal(rig.extent, rig.source, (size_t)COUNT * CHUNK);
        assert_true(rig.looks > 1);
        end(&rig);
    }
}

TEST(a_stopped_copy_ends)
{
    struct rig rig;
    begin(&rig, true, true);
    assert_true(snapshot_copied(&rig.snapshot) >= STOP_AT);
    assert_true(snapshot_copied(&rig.snapshot) < COUNT);
    end(&rig);
}

/* Goal: what is eager comes first, whole and packed, whatever its name; the part's order stays. */
TEST(eager_tensors_come_first)
{
    static uint8_t bytes[4][128 << 10];
    static const int64_t lengths[4] = {128 << 10, 100, 128 << 10, 100};
    static const char *const names[4] = {"a", "b", "c", "d"};
    struct registered_tensor tensors[4];
    struct registered_box boxes[4];
    struct layout layout;
    struct layout_options options = {.chunk_bytes = 64 << 10, .payload_bytes = 64 << 10};
    for (unsigned i = 0; i < 4; i++) {
        boxes[i] = made_vector(lengths[i], bytes[i]);
        tensors[i] = made_tensor(names[i], CAIRN_U8, PLACEMENT_SHARDED, &boxes[i]);
        tensors[i].eager = i >= 2;
    }
    struct registered *set =
        made_set(&(struct registered_list){.world_size = 1, .tensor_count = 4, .tensors = tensors});
    assert_int_equal(layout_init(&layout, set, &options, NULL), 0);
    assert_int_equal(layout.eager_payload_count, 3); /* two chunks of c, and d */
    for (uint32_t p = 0; p < layout.payload_count; p++) {
        const struct layout_payload *payload = &layout.payloads[p];
        for (uint32_t i = 0; i < payload->piece_count; i++) {
            uint32_t tensor = layout.pieces[payload->piece_first + i].tensor;
            assert_true((tensor >= 2) == (p < layout.eager_payload_count));
        }
    }
    for (uint32_t i = 1; i < layout.piece_count; i++) {
        assert_true(layout.pieces[layout.by_part[i - 1]].tensor <=
                    layout.pieces[layout.by_part[i]].tensor);
    }
    layout_fini(&layout);
    registered_unref(set);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors in device memory are saved and restored through the driver alone. Method: the engine
 * against the real server on the simulator, over the stand-in driver, whose addresses cannot be
 * touched: any other way to them would end the test.
 */
#include "engine_world.h"
#include "gpu/gpu.h"
#include "standin_cuda.h"
#include "support/made_set.h"
#include "support/unit_test.h"

enum { ROWS = 60, COLUMNS = 50, LEFT = 20, BYTES = ROWS * COLUMNS * 4 };

struct rig {
    struct world world;
    struct gpu *gpu;
    float *whole; /* on device 1, what is saved */
};

static struct registered *make_set(struct gpu *gpu, unsigned box_count,
                                   struct registered_box *boxes)
{
    struct registered_tensor tensor = {.name = "on.device",
                                       .coordinate = "",
                                       .dtype = CAIRN_F32,
                                       .placement = PLACEMENT_SHARDED,
                                       .shape = {.ndim = 2, .length = {ROWS, COLUMNS}},
                                       .box_count = box_count,
                                       .boxes = boxes,
                                       .device = 2};
    return made_set(&(struct registered_list){
        .world_size = 1, .tensor_count = 1, .tensors = &tensor, .gpu = gpu});
}

static void use_set(struct rig *rig, struct registered *set)
{
    registered_unref(rig->world.ranks[0].set);
    rig->world.ranks[0].set = set;
}

static struct registered_box columns(int64_t from, int64_t count, void *data)
{
    return (struct registered_box){.box = {.ndim = 2, .offset = {0, from}, .length = {ROWS, count}},
                                   .contiguous = true,
                                   .data = data};
}

static void begin(struct rig *rig, uint64_t seed)
{
    setenv("CAIRN_LIBCUDA", STANDIN_CUDA, 1);
    standin_fail_at(-1);
    world_begin(&rig->world, seed, 1);
    assert_int_equal(gpu_open(&rig->gpu, NULL), 0);
    rig->whole = standin_alloc(1, BYTES);
    assert_int_equal(gpu_check(rig->gpu, 1, rig->whole, NULL), 0); /* as at registration */
    float *contents = (float *)(void *)standin_shadow(rig->whole);
    for (unsigned i = 0; i < ROWS * COLUMNS; i++) {
        contents[i] = (float)i;
    }
    struct registered_box box = columns(0, COLUMNS, rig->whole);
    use_set(rig, make_set(rig->gpu, 1, &box));
}

static void end(struct rig *rig)
{
    world_ranks_stop(&rig->world); /* frees the arena, which was page-locked */
    assert_int_equal(standin_registered(), 0);
    gpu_close(rig->gpu);
    world_fini(&rig->world);
}

static void on_staged(struct engine_save *save, int status)
{
    struct world_rank *rank = container_of(save, struct world_rank, save);
    rank->staged = true;
    rank->staged_status = status;
}

static int save(struct rig *rig, uint64_t step)
{
    struct world_rank *rank = &rig->world.ranks[0];
    world_save(rank, step, 60000);
    rank->save.on_staged = on_staged;
    world_await_saves(&rig->world, 60000);
    return rank->save_status;
}

static int restore(struct rig *rig)
{
    struct world_rank *rank = &rig->world.ranks[0];
    world_restore(rank, WORLD_LATEST, 60000);
    world_await_restores(&rig->world, 60000);
    return rank->restore_status;
}

/* Goal: bytes come back as they were, in one run and row by row; the arena is page-locked. Method:
 * a restore into the whole, then into two boxes of columns, each with memory of its own. */
TEST(device_tensors_come_back)
{
    struct rig rig;
    begin(&rig, 7);
    assert_int_equal(save(&rig, 1), 0);
    assert_int_equal(standin_registered(), 1);
    uint8_t kept[BYTES];
    memcpy(kept, standin_shadow(rig.whole), BYTES);
    memset(standin_shadow(rig.whole), 0xcc, BYTES);
    assert_int_equal(restore(&rig), 0);
    assert_memory_equal(standin_shadow(rig.whole), kept, BYTES);
    float *left = standin_alloc(1, ROWS * LEFT * 4);
    float *right = standin_alloc(1, ROWS * (COLUMNS - LEFT) * 4);
    struct registered_box boxes[2] = {columns(0, LEFT, left), columns(LEFT, COLUMNS - LEFT, right)};
    use_set(&rig, make_set(rig.gpu, 2, boxes));
    assert_int_equal(restore(&rig), 0);
    const float *l = (const float *)(void *)standin_shadow(left);
    const float *r = (const float *)(void *)standin_shadow(right);
    for (unsigned row = 0; row < ROWS; row++) {
        for (unsigned column = 0; column < COLUMNS; column++) {
            float is =
                column < LEFT ? l[row * LEFT + column] : r[row * (COLUMNS - LEFT) + column - LEFT];
            assert_true(is == (float)(row * COLUMNS + column));
        }
    }
    end(&rig);
}

/* Goal: what is saved is what the event's work has made. Method: a save with an event, a restore.
 */
TEST(a_save_waits_for_the_event)
{
    struct rig rig;
    begin(&rig, 11);
    struct world_rank *rank = &rig.world.ranks[0];
    uint8_t made[BYTES];
    memset(made, 0x5a, BYTES);
    world_save(rank, 1, 60000);
    rank->save.after = standin_event(rig.whole, BYTES, 0x5a); /* before the loop runs */
    world_await_saves(&rig.world, 60000);
    assert_int_equal(rank->save_status, 0);
    memset(standin_shadow(rig.whole), 0xcc, BYTES);
    assert_int_equal(restore(&rig), 0);
    assert_memory_equal(standin_shadow(rig.whole), made, BYTES);
    end(&rig);
}

/* Goal: a driver that fails ends the save, or the restore, by the names of tensor, device and
 * function; the next one is none the worse. Method: each of the first calls fails once. */
TEST(a_failing_driver_is_named)
{
    unsigned saves = 0, restores = 0;
    for (int call = 0; call < 12; call++) {
        struct rig rig;
        begin(&rig, 20 + (uint64_t)call);
        standin_fail_at(call);
        int status = save(&rig, 1);
        standin_fail_at(-1);
        if (status != 0) {
            const char *text = rig.world.ranks[0].save.diag.text;
            assert_int_equal(status, CAIRN_E_IO);
            assert_non_null(strstr(text, "illegal memory access"));
            assert_non_null(strstr(text, "'on.device' on CUDA device 1"));
            saves++;
        }
        assert_int_equal(save(&rig, 2), 0);
        standin_fail_at(call);
        status = restore(&rig);
        standin_fail_at(-1);
        restores += status != 0;
        assert_true(status == 0 || strstr(rig.world.ranks[0].restore.diag.text, "CUDA device 1"));
        assert_int_equal(restore(&rig), 0);
        end(&rig);
    }
    assert_true(saves >= 3);
    assert_true(restores >= 3);
}

TEST(strided_device_boxes_are_refused)
{
    struct registered_box box = columns(0, COLUMNS, (void *)(uintptr_t)0x1000);
    struct registered_tensor tensor = made_tensor("t", CAIRN_F32, PLACEMENT_SHARDED, &box);
    const struct registered_list list = {.world_size = 1, .tensor_count = 1, .tensors = &tensor};
    struct registered *set = NULL;
    struct diag diag = DIAG_INIT;
    tensor.device = 1;
    box.contiguous = false;
    box.stride[0] = 1;
    box.stride[1] = ROWS;
    assert_int_equal(registered_new(&list, &set, &diag), CAIRN_E_INVALID);
    assert_non_null(strstr(diag.text, "'t' is on a device"));
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What is damaged is replaced by a copy that proves itself, and keeps its name until the bytes that
 * replace it were read back; what has no good copy is left alone and named. Method: checkpoints are
 * made in the simulated world, on a memory store that fails on demand; the repair, which has a
 * thread of its own, runs on a real loop over the same medium.
 */
#include "repair/repair.h"

#include "run_rig.h"

#include "base/check.h"
#include "repair/salvage.h"
#include "support/unit_test.h"

#include <stdio.h>

struct bench {
    struct rig rig, mirror; /* mirror: the same, made the same way */
    struct ckpt_id ids[2];
    size_t id_count;
    bool with_mirror, loses_record, flag;
    struct store_fault_rule mirror_rule; /* its reads; count 0: none */
    struct loop *loop;
    struct work_pool *pool;
    struct store *store; /* the fault decorator */
    struct catalog *catalog;
    struct run *run;
    struct repair *repair;
    uint64_t waits, moved;
};

/* --- the two worlds --------------------------------------------------------------------------- */

static void on_real_flag(void *user)
{
    struct bench *bench = user;
    bench->flag = true;
    loop_uv_stop(bench->loop);
}

static void run_until_flag(struct bench *bench)
{
    while (!bench->flag) {
        loop_uv_run(bench->loop);
    }
    bench->flag = false;
}

static void make(struct bench *bench, struct rig *rig)
{
    bool closed = false;
    rig_init(rig);
    rig->with_objects = true;
    rig_start(rig);
    for (size_t i = 0; i < bench->id_count; i++) {
        bench->ids[i] = rig_save(rig, 10 + 10 * i, 2, bench->rig.lists);
    }
    rig_stop(rig);
    store_close(rig->store, sim_raise, &closed);
    rig_until(rig, &closed);
}

static void unmake(struct rig *rig)
{
    memory_medium_free(rig->medium);
    sim_free(rig->sim);
}

static void on_ready(void *user, int status, const struct diag *diag)
{
    assert_int_equal(status, 0);
    on_real_flag(user);
}

static struct store *open_medium(struct bench *bench, struct work_pool *pool, struct rig *rig)
{
    struct store *memory = NULL, *store = NULL;
    assert_int_equal(store_memory_new(bench->loop, pool, rig->medium, &memory, NULL), 0);
    assert_int_equal(store_fault_new(bench->loop, memory, &store), 0);
    return store;
}

static int open_mirror(void *user, struct loop *loop, struct work_pool *pool, struct store **ret,
                       struct diag *diag)
{
    struct bench *bench = user;
    *ret = open_medium(bench, pool, &bench->mirror);
    return bench->mirror_rule.count > 0 ? store_fault_add(*ret, &bench->mirror_rule) : 0;
}

static uint64_t wait_ms(void *user)
{
    struct bench *bench = user;
    return bench->waits++ % 2 == 0 ? 1 : 0; /* each has to wait once */
}

static void on_moved(void *user, uint64_t bytes) { ((struct bench *)user)->moved += bytes; }

static void on_ended(void *user, const struct repair_status *status) { on_real_flag(user); }

/* ckpts: how many, all of the same content. */
static void start(struct bench *bench, size_t ckpts, bool with_mirror)
{
    bench->id_count = ckpts;
    bench->with_mirror = with_mirror;
    make(bench, &bench->rig);
    if (with_mirror) {
        make(bench, &bench->mirror);
    }
    if (bench->loses_record) {
        memory_medium_set_record(bench->rig.medium, &bench->rig.name, NULL, 0);
    }
    assert_int_equal(loop_uv_new(&bench->loop, NULL), 0);
    assert_int_equal(work_threads_new(bench->loop, 2, "test-store", &bench->pool, NULL), 0);
    bench->store = open_medium(bench, bench->pool, &bench->rig);
    struct catalog_options catalog = {
        .chunk_bytes = RIG_CHUNK, .pool = bench->pool, .ready = on_ready, .user = bench};
    assert_int_equal(catalog_new(bench->loop, bench->store, &catalog, &bench->catalog), 0);
    run_until_flag(bench);
    bench->run = catalog_run(bench->catalog, &bench->rig.name);
    struct repair_options options = {.loop = bench->loop,
                                     .catalog = bench->catalog,
                                     .open_mirror = with_mirror ? open_mirror : NULL,
                                     .mirror_threads = 1,
                                     .mirror = "the mirror",
                                     .wait_ms = wait_ms,
                                     .moved = on_moved,
                                     .ended = on_ended,
                                     .user = bench};
    assert_int_equal(repair_new(&options, &bench->repair, NULL), 0);
}

static void setup(struct bench *bench) {} /* each test starts its own */

static void teardown(struct bench *bench)
{
    if (bench->repair) {
        repair_close(bench->repair, on_real_flag, bench);
        run_until_flag(bench);
    }
    catalog_release(bench->run);
    catalog_close(bench->catalog, on_real_flag, bench);
    run_until_flag(bench);
    store_close(bench->store, on_real_flag, bench);
    run_until_flag(bench);
    work_threads_free(bench->pool);
    loop_uv_free(bench->loop);
    unmake(&bench->rig);
    if (bench->with_mirror) {
        unmake(&bench->mirror);
    }
}

/* --- what is done and looked at --------------------------------------------------------------- */

struct asked {
    struct store_req req;
    struct bench *bench;
};

static void on_store(struct store_req *req)
{
    on_real_flag(container_of(req, struct asked, req)->bench);
}

static int ask(struct bench *bench, struct store_req *req)
{
    struct asked asked = {.req = *req, .bench = bench};
    asked.req.done = on_store;
    store_submit(bench->store, &asked.req);
    run_until_flag(bench);
    *req = asked.req;
    return req->status;
}

struct bytes {
    uint64_t count;
    uint8_t *data;
};

static struct bytes read_object(struct bench *bench, const struct object_id *id)
{
    struct store_req stat = {.op = STORE_STAT, .run = bench->rig.name, .object = *id};
    assert_int_equal(ask(bench, &stat), 0);
    struct bytes ret = {
        stat.ret_bytes,
        aligned_alloc(LIMIT_ALIGN_BYTES, round_up_u64(stat.ret_bytes, LIMIT_ALIGN_BYTES))};
    assert_non_null(ret.data);
    struct store_req read = {.op = STORE_READ,
                             .run = bench->rig.name,
                             .object = *id,
                             .bytes = ret.count,
                             .data = ret.data};
    assert_int_equal(ask(bench, &read), 0);
    return ret;
}

static bool is_equal(struct bytes a, struct bytes b)
{
    return a.count == b.count && memcmp(a.data, b.data, a.count) == 0;
}

/* But for the footer, in which the rig says another width of the data type than in the part. */
static bool is_same_data(struct bytes a, struct bytes b)
{
    return a.count == b.count && memcmp(a.data, b.data, a.count - LIMIT_ALIGN_BYTES) == 0;
}

static void flip(struct bench *bench, struct rig *rig, struct object_id id)
{
    assert_true(memory_medium_flip_object(rig->medium, &bench->rig.name, &id, 100));
}

static struct repair_status repair(struct bench *bench, struct ckpt_id id)
{
    struct repair_status status;
    assert_int_equal(repair_begin(bench->repair, &bench->rig.name, id, "test", NULL), 0);
    run_until_flag(bench);
    repair_status(bench->repair, &status);
    assert_false(status.running);
    return status;
}

struct health_req {
    struct run_snapshot_req req;
    struct bench *bench;
    struct ckpt_id id;
    enum health health;
    uint64_t repaired_seq;
};

static void on_state(struct run_snapshot_req *req)
{
    struct health_req *found = container_of(req, struct health_req, req);
    assert_int_equal(req->status, 0);
    const struct state_commit *commit = state_commit_find(req->state, found->id);
    assert_non_null(commit);
    found->health = commit->health;
    found->repaired_seq = commit->repaired_seq;
    on_real_flag(found->bench);
}

static struct health_req health_of(struct bench *bench, struct ckpt_id id)
{
    struct health_req found = {.req = {.done = on_state}, .bench = bench, .id = id};
    run_snapshot(bench->run, &found.req);
    run_until_flag(bench);
    return found;
}

/* The objects of rank 0 in a checkpoint that are not the one with that name. */
static size_t others(struct bench *bench, struct ckpt_id id, struct object_id *ret)
{
    struct object_id own = rig_object(id, 0);
    struct store_req list = {.op = STORE_LIST_OBJECTS, .run = bench->rig.name, .id = id};
    size_t count = 0;
    assert_int_equal(ask(bench, &list), 0);
    for (size_t i = 0; i < list.ret_count; i++) {
        if (list.ret_objects[i].rank == 0 && !object_id_equal(&list.ret_objects[i], &own)) {
            *ret = list.ret_objects[i];
            count++;
        }
    }
    free(list.ret_objects);
    return count;
}

/* --- the tests -------------------------------------------------------------------------------- */

#define BENCH_TEST(name) FIXTURE_TEST(name, setup, teardown, struct bench, bench)

/* Goal: from another object of the run, byte for byte; the damaged bytes have another name; every
 * byte that was moved waited for the pace. */
BENCH_TEST(test_a_copy_in_the_run)
{
    start(bench, 2, false);
    struct object_id object = rig_object(bench->ids[0], 0), aside;
    struct bytes good = read_object(bench, &object);
    flip(bench, &bench->rig, object);
    struct bytes damaged = read_object(bench, &object);
    struct repair_status status = repair(bench, bench->ids[0]);
    assert_int_equal(status.code, 0);
    assert_int_equal(status.mended, 1);
    assert_int_equal(status.left, 0);
    struct bytes now = read_object(bench, &object);
    assert_true(is_same_data(now, good));
    assert_int_equal(others(bench, bench->ids[0], &aside), 1);
    struct bytes kept = read_object(bench, &aside);
    assert_true(is_equal(kept, damaged));
    assert_int_equal(health_of(bench, bench->ids[0]).health, HEALTH_VERIFIED);
    assert_true(bench->moved >= status.bytes_read);
    assert_true(bench->waits >= 4);
    free(good.data);
    free(damaged.data);
    free(now.data);
    free(kept.data);
}

static void expect_left(struct bench *bench, const char *text)
{
    struct object_id object = rig_object(bench->ids[0], 0), aside;
    struct bytes damaged = read_object(bench, &object);
    struct repair_status status = repair(bench, bench->ids[0]);
    assert_int_equal(status.code, 0);
    assert_int_equal(status.mended, 0);
    assert_int_equal(status.left, 1);
    if (strstr(status.lines[0].text, text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", status.lines[0].text, text);
    }
    struct bytes now = read_object(bench, &object);
    assert_true(is_equal(now, damaged));
    assert_int_equal(others(bench, bench->ids[0], &aside), 0);
    assert_int_equal(health_of(bench, bench->ids[0]).health, HEALTH_DAMAGED);
    free(damaged.data);
    free(now.data);
}

/* Goal: what has no copy is named and left, bytes and name. */
BENCH_TEST(test_no_copy)
{
    start(bench, 1, false);
    flip(bench, &bench->rig, rig_object(bench->ids[0], 0));
    expect_left(bench, "there is no copy in another object of the run");
}

/* Goal: a copy that is damaged itself is none, in the run and in the mirror. */
BENCH_TEST(test_a_damaged_copy)
{
    start(bench, 2, true);
    for (size_t i = 0; i < 2; i++) {
        flip(bench, &bench->rig, rig_object(bench->ids[i], 0));
        flip(bench, &bench->mirror, rig_object(bench->ids[i], 0));
    }
    expect_left(bench, "or in the mirror");
}

static void repaired_by_the_mirror(struct bench *bench)
{
    struct object_id object = rig_object(bench->ids[0], 0);
    struct bytes good = read_object(bench, &object);
    flip(bench, &bench->rig, object);
    struct repair_status status = repair(bench, bench->ids[0]);
    assert_int_equal(status.code, 0);
    assert_int_equal(status.mended, 1);
    assert_int_equal(status.left, 0);
    assert_non_null(strstr(status.lines[0].text, "the mirror"));
    struct bytes now = read_object(bench, &object);
    assert_true(is_same_data(now, good));
    assert_int_equal(health_of(bench, bench->ids[0]).health, HEALTH_VERIFIED);
    free(good.data);
    free(now.data);
}

/* Goal: a mirror that answers late is waited for. */
BENCH_TEST(test_a_late_copy)
{
    bench->mirror_rule = (struct store_fault_rule){
        .kind = FAULT_DELAY, .op = STORE_READ, .count = 1000, .delay_ms = 50};
    start(bench, 1, true);
    repaired_by_the_mirror(bench);
}

/* Goal: a mirror that fails once is no end of the mirror: when the repair is asked for again, it
 * succeeds; and the failure is no damage of what is here. */
BENCH_TEST(test_a_mirror_that_fails)
{
    bench->mirror_rule = (struct store_fault_rule){
        .kind = FAULT_FAIL, .op = STORE_READ, .count = 1, .code = CAIRN_E_TIMED_OUT};
    start(bench, 1, true);
    flip(bench, &bench->rig, rig_object(bench->ids[0], 0));
    expect_left(bench, "the mirror");
    bench->mirror_rule.count = 0;
    flip(bench, &bench->rig, rig_object(bench->ids[0], 0)); /* as it was */
    repaired_by_the_mirror(bench);
}

/* The reads of a whole repair, one after the other: whichever fails, the name has the damaged
 * bytes, or good ones. The one that reads back what was written is among them. */
static void unreadable_at_each_read(struct bench *bench)
{
    struct object_id object = rig_object(bench->ids[0], 0), aside;
    struct bytes damaged = read_object(bench, &object);
    unsigned mended = 0, refused = 0;
    size_t left_aside = 0;
    for (unsigned skip = 0; skip < 60; skip++) {
        struct store_fault_rule rule = {.kind = FAULT_FAIL,
                                        .op = STORE_READ,
                                        .skip = skip,
                                        .count = 2, /* both looks */
                                        .code = CAIRN_E_IO};
        assert_int_equal(store_fault_add(bench->store, &rule), 0);
        struct repair_status status = repair(bench, bench->ids[0]);
        store_fault_clear(bench->store);
        refused += status.left > 0 && strstr(status.lines[0].text, "does not read back") != NULL;
        struct bytes now = read_object(bench, &object);
        bool is_mended = !is_same_data(now, damaged);
        left_aside += is_mended;
        mended += is_mended;
        assert_true(is_mended || is_equal(now, damaged));
        assert_true(status.mended >= is_mended); /* an object of rank 1 may seem broken, too */
        assert_int_equal(others(bench, bench->ids[0], &aside), left_aside);
        if (is_mended) {
            flip(bench, &bench->rig, object);
            struct bytes again = read_object(bench, &object);
            assert_true(is_same_data(again, damaged));
            free(damaged.data);
            damaged = again;
        }
        free(now.data);
    }
    assert_true(mended > 0);
    assert_true(refused > 0);
    free(damaged.data);
}

/* Goal: whatever of a repair fails, the name keeps the damaged bytes until the new ones were
 * written, read back and told in the chain; what was half built goes. */
BENCH_TEST(test_nothing_is_released_before_it_is_checked)
{
    static const struct {
        enum store_op op;
        bool told; /* the chain has it already */
    } steps[] = {
        {STORE_CREATE, false}, {STORE_WRITE, false}, {STORE_SEAL, false}, {STORE_EXCHANGE, true}};
    start(bench, 2, false);
    flip(bench, &bench->rig, rig_object(bench->ids[0], 0));
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct store_fault_rule rule = {
            .kind = FAULT_FAIL, .op = steps[i].op, .count = 1, .code = CAIRN_E_NO_SPACE};
        uint64_t seq = health_of(bench, bench->ids[0]).repaired_seq;
        assert_int_equal(store_fault_add(bench->store, &rule), 0);
        expect_left(bench, "there are copies, but it cannot be rebuilt");
        assert_int_equal(health_of(bench, bench->ids[0]).repaired_seq != seq, steps[i].told);
        store_fault_clear(bench->store);
    }
    unreadable_at_each_read(bench);
}

/* Goal: closing ends a repair that waits, and nothing is left of it. */
BENCH_TEST(test_closed_in_the_middle)
{
    struct object_id aside;
    start(bench, 2, false);
    flip(bench, &bench->rig, rig_object(bench->ids[0], 0));
    struct store_fault_rule rule = {
        .kind = FAULT_DELAY, .op = STORE_WRITE, .count = 1, .delay_ms = 200};
    assert_int_equal(store_fault_add(bench->store, &rule), 0);
    assert_int_equal(repair_begin(bench->repair, &bench->rig.name, bench->ids[0], "test", NULL), 0);
    assert_int_equal(repair_begin(bench->repair, &bench->rig.name, bench->ids[1], "test", NULL),
                     CAIRN_E_BUSY);
    repair_close(bench->repair, on_real_flag, bench);
    run_until_flag(bench);
    bench->repair = NULL;
    assert_int_equal(others(bench, bench->ids[0], &aside), 0);
}

/* Goal: a record that is whole needs nothing; a store without files of records says so. */
BENCH_TEST(test_a_whole_record)
{
    start(bench, 1, false);
    struct repair_status status = repair(bench, (struct ckpt_id){0, 0});
    assert_int_equal(status.code, 0);
    assert_int_equal(status.line_count, 0);
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_RECORD_GET, .count = 1, .code = CAIRN_E_DAMAGED};
    assert_int_equal(store_fault_add(bench->store, &rule), 0);
    status = repair(bench, (struct ckpt_id){0, 0});
    assert_int_equal(status.code, 0);
    assert_int_equal(status.left, 1);
    assert_non_null(strstr(status.lines[0].text, "the run's record"));
}

/* The manifest as it is stored; it must be there. */
static struct sha256 manifest_sum(struct bench *bench)
{
    struct store_req req = {
        .op = STORE_FETCH,
        .name = {.run = bench->rig.name, .id = bench->ids[0], .kind = STORE_MANIFEST, .tag = 7010}};
    assert_int_equal(ask(bench, &req), 0);
    struct sha256 sum = sha256(req.ret_bytes, req.ret_data);
    free(req.ret_data);
    return sum;
}

/* A salvage of a run without a record, in which `count` reads fail after `skip` have passed. */
static enum salvage_outcome salvage_under_errors(unsigned skip, unsigned count)
{
    struct bench *bench = unit_test_fixture(sizeof(*bench));
    struct salvage_options how = {.yes = true};
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_FETCH, .code = CAIRN_E_IO, .skip = skip, .count = count};
    struct salvage_item *items = NULL;
    size_t item_count = 0;
    enum salvage_outcome outcome = SALVAGE_LEFT;

    bench->loses_record = true;
    start(bench, 1, false);
    struct sha256 before = manifest_sum(bench);
    assert_int_equal(store_fault_add(bench->store, &rule), 0);
    assert_int_equal(salvage_begin(bench->repair, &bench->rig.name, &how, "test", NULL), 0);
    run_until_flag(bench);
    salvage_take(bench->repair, &items, &item_count);
    for (size_t i = 0; i < item_count; i++) {
        outcome = items[i].id.term != 0 ? items[i].outcome : outcome;
    }
    free(items);
    store_fault_clear(bench->store);
    struct sha256 after = manifest_sum(bench);
    assert_memory_equal(&before, &after, sizeof(before));
    teardown(bench);
    free(bench);
    return outcome;
}

/* Goal: a manifest that an error hides for a moment is never made again over the good one: it is
 * entered as it is, or left for another salvage. */
TEST(test_a_passing_error_replaces_no_manifest)
{
    unsigned whole = 0;
    for (unsigned skip = 0; skip < 12; skip++) {
        whole += salvage_under_errors(skip, 1) == SALVAGE_WHOLE;
        (void)salvage_under_errors(skip, 2);
    }
    assert_true(whole > 0);
}

/* The first item of a salvage that may not accept a loss, of a record that ends early. */
static struct salvage_item salvage_without_loss(bool is_unreadable)
{
    struct bench *bench = unit_test_fixture(sizeof(*bench));
    struct salvage_options how = {.yes = true};
    struct salvage_item *items = NULL;
    size_t item_count = 0;
    start(bench, 1, false);
    struct memory_medium *medium = bench->rig.medium;
    memory_medium_set_record(medium, &bench->rig.name,
                             memory_medium_copy_record(medium, &bench->rig.name), 2);
    if (is_unreadable) {
        memory_medium_set_unreadable(medium, &bench->rig.name);
    }
    assert_int_equal(salvage_begin(bench->repair, &bench->rig.name, &how, "test", NULL), 0);
    run_until_flag(bench);
    salvage_take(bench->repair, &items, &item_count);
    assert_true(item_count > 0);
    struct salvage_item first = items[0];
    free(items);
    teardown(bench);
    free(bench);
    return first;
}

/* Goal: to give up the end of a record is offered where that can be done, and not for a folder that
 * cannot be read. */
TEST(test_a_loss_is_offered_where_it_helps)
{
    struct salvage_item item = salvage_without_loss(false);
    assert_int_equal(item.outcome, SALVAGE_LEFT);
    assert_true(item.needs_accept_loss);
    assert_non_null(strstr(item.text, "--accept-loss"));
    item = salvage_without_loss(true);
    assert_int_equal(item.outcome, SALVAGE_LEFT);
    assert_false(item.needs_accept_loss);
    assert_null(strstr(item.text, "--accept-loss"));
}

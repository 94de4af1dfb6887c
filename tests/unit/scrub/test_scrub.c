/* SPDX-License-Identifier: Apache-2.0
 *
 * What is damaged is found and named, and lowers the health of every checkpoint that it touches and
 * of no other; a pass goes on where a stopped one was; what is whole again is good again; a store
 * that fails is not mistaken for a damaged one. Method: a memory store on the simulator.
 */
#include "scrub/scrub.h"

#include "run_rig.h"

#include "base/check.h"
#include "support/unit_test.h"

#include <stdio.h>

struct bench {
    struct rig rig; /* first: setup of the rig */
    struct scrub *scrub;
    struct scrub_finding found[128];
    size_t found_count;
    unsigned healed;
    bool closed, duty;
};

static void on_found(void *user, const struct scrub_finding *finding)
{
    struct bench *bench = user;
    assert_true(bench->found_count < ARRAY_LEN(bench->found));
    bench->found[bench->found_count++] = *finding;
}

static void on_healed(void *user, const struct run_name *run, struct ckpt_id id)
{
    ((struct bench *)user)->healed++;
}

static bool may_run(void *user) { return ((struct bench *)user)->duty; }

static void setup(struct bench *bench)
{
    rig_init(&bench->rig);
    bench->rig.with_objects = true;
    bench->duty = true;
    rig_start(&bench->rig);
}

static void teardown(struct bench *bench) { rig_fini(&bench->rig); }

static void start(struct bench *bench, uint64_t rate)
{
    struct scrub_options options = {.loop = sim_loop(bench->rig.host),
                                    .catalog = bench->rig.catalog,
                                    .thread = sim_waiting_pool(bench->rig.host),
                                    .every_ms = 3600 * 1000,
                                    .rate = rate,
                                    .save_ms = 1,
                                    .may_run = may_run,
                                    .found = on_found,
                                    .healed = on_healed,
                                    .user = bench};
    bench->closed = false;
    assert_int_equal(scrub_new(&options, &bench->scrub), 0);
}

static void stop(struct bench *bench)
{
    scrub_close(bench->scrub, sim_raise, &bench->closed);
    rig_until(&bench->rig, &bench->closed);
    bench->scrub = NULL;
}

static bool has_ended(void *user)
{
    struct scrub_status status;
    scrub_status(((struct bench *)user)->scrub, &status);
    return status.pass > 0 && !status.running && status.ended_wall_ns != 0;
}

static struct scrub_status pass(struct bench *bench)
{
    struct scrub_status status;
    start(bench, 0);
    scrub_now(bench->scrub);
    sim_run_for(bench->rig.sim, 50);
    assert_true(sim_run_until(bench->rig.sim, has_ended, bench, 600 * 1000));
    scrub_status(bench->scrub, &status);
    stop(bench);
    return status;
}

static struct rig_commit health_of(struct bench *bench, struct ckpt_id id)
{
    return rig_commit(&bench->rig, id);
}

static void flip_object(struct bench *bench, struct ckpt_id id, uint32_t rank, uint64_t at)
{
    struct object_id object = rig_object(id, rank);
    assert_true(memory_medium_flip_object(bench->rig.medium, &bench->rig.name, &object, at));
}

#define BENCH_TEST(name) FIXTURE_TEST(name, setup, teardown, struct bench, bench)

/* Goal: a store without damage has none, and all of its bytes were read. */
BENCH_TEST(test_good_stays_good)
{
    struct ckpt_id first = rig_save(&bench->rig, 10, 2, bench->rig.lists);
    struct ckpt_id second = rig_save(&bench->rig, 20, 2, bench->rig.lists);
    struct scrub_status status = pass(bench);
    assert_int_equal(bench->found_count, 0);
    assert_int_equal(status.ckpts, 2);
    assert_int_equal(status.findings, 0);
    assert_true(status.bytes > 2 * (64 * 96 * 4 + 5000 * 4 + 9000));
    assert_int_equal(status.errors_total, 0);
    assert_int_equal(health_of(bench, first).health, HEALTH_VERIFIED);
    assert_int_equal(health_of(bench, second).health, HEALTH_VERIFIED);
}

/* Goal: a changed byte of a chunk damages its checkpoint, named by tensor, rank and object, and no
 * other. */
BENCH_TEST(test_a_chunk_is_named)
{
    struct ckpt_id first = rig_save(&bench->rig, 10, 2, bench->rig.lists);
    struct ckpt_id second = rig_save(&bench->rig, 20, 2, bench->rig.lists);
    flip_object(bench, first, 1, 100);
    struct scrub_status status = pass(bench);
    assert_int_equal(bench->found_count, 1);
    assert_int_equal(status.findings, 1);
    assert_true(ckpt_id_equal(bench->found[0].id, first));
    assert_int_equal(bench->found[0].health, HEALTH_DAMAGED);
    assert_non_null(strstr(bench->found[0].text, "a.weight (rank 1, object 10@1/1-"));
    struct rig_commit asked = health_of(bench, first);
    assert_int_equal(asked.health, HEALTH_DAMAGED);
    assert_non_null(strstr(asked.reason, "a.weight (rank 1, object 10@1/1-"));
    assert_int_equal(health_of(bench, second).health, HEALTH_VERIFIED);
}

/* Goal: what no restore reads (padding, a footer) makes a checkpoint suspect, not damaged. */
BENCH_TEST(test_around_the_chunks)
{
    struct ckpt_id first = rig_save(&bench->rig, 10, 2, bench->rig.lists);
    struct ckpt_id second = rig_save(&bench->rig, 20, 2, bench->rig.lists);
    struct store_req stat = {
        .op = STORE_STAT, .run = bench->rig.name, .object = rig_object(second, 0)};
    rig_store(&bench->rig, &stat);
    /* The last chunk of rank 0's data is the 808 bytes at the end of the blob; the footer begins at
     * the next block. */
    flip_object(bench, first, 0, stat.ret_bytes - 4096 - 1);
    flip_object(bench, second, 0, stat.ret_bytes - 4096 + 50);
    pass(bench);
    assert_int_equal(health_of(bench, first).health, HEALTH_SUSPECT);
    assert_non_null(strstr(health_of(bench, first).reason, "padding after it is not zero"));
    assert_int_equal(health_of(bench, second).health, HEALTH_SUSPECT);
    assert_non_null(strstr(health_of(bench, second).reason, "footer"));
}

/* Goal: each kind of document is checked, past the cache. */
BENCH_TEST(test_documents)
{
    static const struct {
        enum store_kind kind;
        uint32_t number;
        const char *text;
    } things[] = {{STORE_MANIFEST, 0, "manifest"},
                  {STORE_PAGE, 0, "page 0"},
                  {STORE_PAGE, 1, "page 1"},
                  {STORE_PART, 0, "part 0"},
                  {STORE_PART, 1, "part 1"}};
    struct ckpt_id ids[ARRAY_LEN(things)];
    for (size_t i = 0; i < ARRAY_LEN(things); i++) {
        ids[i] = rig_save(&bench->rig, 10 + i, 2, bench->rig.lists);
    }
    pass(bench); /* fills the caches */
    for (size_t i = 0; i < ARRAY_LEN(things); i++) {
        struct store_name name = {.run = bench->rig.name,
                                  .id = ids[i],
                                  .kind = things[i].kind,
                                  .number = things[i].number,
                                  .tag = 7010 + i};
        rig_flip(&bench->rig, &name, 100);
    }
    pass(bench);
    for (size_t i = 0; i < ARRAY_LEN(things); i++) {
        struct rig_commit asked = health_of(bench, ids[i]);
        assert_int_equal(asked.health, HEALTH_DAMAGED);
        assert_non_null(strstr(asked.reason, things[i].text));
    }
}

/* Goal: an object that is gone is damage of its checkpoint and of those that refer to it. */
BENCH_TEST(test_references)
{
    struct ckpt_id base = rig_save(&bench->rig, 10, 2, bench->rig.lists);
    bench->rig.refer = base;
    struct ckpt_id built = rig_save(&bench->rig, 20, 2, bench->rig.lists);
    bench->rig.refer = (struct ckpt_id){0, 0};
    struct scrub_status status = pass(bench);
    assert_int_equal(bench->found_count, 0);
    uint64_t good_bytes = status.bytes;
    flip_object(bench, base, 0, 5);
    status = pass(bench);
    assert_int_equal(health_of(bench, base).health, HEALTH_DAMAGED);
    assert_int_equal(health_of(bench, built).health, HEALTH_DAMAGED);
    assert_non_null(strstr(health_of(bench, built).reason, "object 10@1"));
    assert_int_equal(bench->found_count, 2);
    assert_true(status.bytes > good_bytes); /* shared bytes are read twice only where it matters */
}

/* Goal: stopped anywhere, the next one goes on: every checkpoint is read once, and damage behind
 * the place is found. */
BENCH_TEST(test_it_goes_on)
{
    struct ckpt_id ids[6];
    uint64_t ckpts = 0, bytes = 0, whole;
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        ids[i] = rig_save(&bench->rig, 10 + i, 2, bench->rig.lists);
    }
    whole = pass(bench).bytes;
    flip_object(bench, ids[5], 1, 9);
    bool ended = false;
    start(bench, 100 << 10);
    scrub_now(bench->scrub);
    for (unsigned i = 0; i < 100 && !ended; i++) {
        struct scrub_status status;
        sim_run_for(bench->rig.sim, 700);
        scrub_status(bench->scrub, &status);
        ended = !status.running && status.pass == 2;
        ckpts += status.ckpts_total;
        bytes += status.bytes_total;
        stop(bench);
        if (!ended) {
            start(bench, 100 << 10);
        }
    }
    assert_true(ended);
    assert_int_equal(ckpts, ARRAY_LEN(ids));
    /* A stop costs the object at hand, and the documents above it. */
    assert_true(bytes >= whole);
    assert_true(bytes < whole * 3);
    assert_int_equal(health_of(bench, ids[5]).health, HEALTH_DAMAGED);
    assert_int_equal(health_of(bench, ids[4]).health, HEALTH_VERIFIED);
}

/* Goal: what is whole again is good again; what is not stays what it is. */
BENCH_TEST(test_healing)
{
    struct ckpt_id first = rig_save(&bench->rig, 10, 2, bench->rig.lists);
    struct ckpt_id second = rig_save(&bench->rig, 20, 2, bench->rig.lists);
    flip_object(bench, first, 1, 100);
    flip_object(bench, second, 1, 100);
    pass(bench);
    flip_object(bench, first, 1, 100); /* an operator's copy */
    pass(bench);
    assert_int_equal(bench->healed, 1);
    assert_int_equal(health_of(bench, first).health, HEALTH_VERIFIED);
    assert_int_equal(health_of(bench, second).health, HEALTH_DAMAGED);
}

/* Goal: a read that fails, or a transfer that is wrong once, blames nobody. */
BENCH_TEST(test_a_failing_store_is_no_damage)
{
    struct ckpt_id id = rig_save(&bench->rig, 10, 2, bench->rig.lists);
    static const enum store_op ops[] = {STORE_READ, STORE_FETCH, STORE_RECORD_UPDATE,
                                        STORE_RECORD_GET};
    for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
        struct store_fault_rule rule = {
            .kind = FAULT_FAIL, .op = ops[i], .code = CAIRN_E_TIMED_OUT, .count = 7};
        assert_int_equal(store_fault_add(bench->rig.store, &rule), 0);
        pass(bench);
        store_fault_clear(bench->rig.store);
        assert_int_equal(bench->found_count, 0);
        assert_int_equal(health_of(bench, id).health, HEALTH_VERIFIED);
    }
}

static struct scrub_status one_more(struct bench *bench)
{
    struct scrub_status status;
    scrub_now(bench->scrub);
    sim_run_for(bench->rig.sim, 50);
    assert_true(sim_run_until(bench->rig.sim, has_ended, bench, 600 * 1000));
    scrub_status(bench->scrub, &status);
    return status;
}

/* Goal: a record that was found damaged stays so until it is found whole, however much else is
 * found; of the rest the newest findings are kept. */
BENCH_TEST(test_a_record_stays_damaged)
{
    struct store_fault_rule rule = {.kind = FAULT_FAIL,
                                    .op = STORE_RECORD_GET,
                                    .skip = 1, /* the position of the pass */
                                    .count = 1,
                                    .code = CAIRN_E_DAMAGED};
    for (uint64_t i = 0; i < SCRUB_RECENT + 4; i++) {
        struct ckpt_id id = rig_save(&bench->rig, 10 + i, 2, bench->rig.lists);
        flip_object(bench, id, 1, 100);
    }
    start(bench, 0);
    assert_int_equal(store_fault_add(bench->rig.store, &rule), 0);
    struct scrub_status status = one_more(bench);
    assert_int_equal(status.findings, SCRUB_RECENT + 5);
    assert_int_equal(status.recent_count, SCRUB_RECENT);
    assert_int_equal(status.damaged_records, 1);
    assert_int_equal(status.recent[SCRUB_RECENT - 1]->id.term, 0);
    assert_int_equal(status.recent[0]->id.step, 10 + SCRUB_RECENT + 3);
    assert_int_equal(status.recent[1]->id.step, 10 + SCRUB_RECENT + 2);
    assert_int_equal(store_fault_add(bench->rig.store, &rule), 0);
    status = one_more(bench);
    assert_int_equal(status.damaged_records, 1); /* once */
    status = one_more(bench);
    assert_int_equal(status.damaged_records, 0);
    assert_int_equal(status.findings, SCRUB_RECENT + 4);
    stop(bench);
}

/* Goal: what each pass finds again is listed once, with the newest before it. */
BENCH_TEST(test_a_finding_is_listed_once)
{
    struct ckpt_id first = rig_save(&bench->rig, 10, 2, bench->rig.lists);
    flip_object(bench, first, 1, 100);
    start(bench, 0);
    struct scrub_status status = one_more(bench);
    assert_int_equal(status.recent_count, 1);
    struct ckpt_id second = rig_save(&bench->rig, 20, 2, bench->rig.lists);
    flip_object(bench, second, 1, 100);
    status = one_more(bench);
    status = one_more(bench);
    assert_int_equal(status.findings, 2);
    assert_int_equal(status.findings_total, 5);
    assert_int_equal(status.recent_count, 2);
    assert_int_equal(status.recent[0]->id.step, 20);
    assert_int_equal(status.recent[1]->id.step, 10);
    stop(bench);
}

/* Goal: without the duty nothing is read, and it begins with it. */
BENCH_TEST(test_duty)
{
    struct scrub_status status;
    rig_save(&bench->rig, 10, 2, bench->rig.lists);
    bench->duty = false;
    start(bench, 0);
    sim_run_for(bench->rig.sim, 60000);
    scrub_status(bench->scrub, &status);
    assert_true(status.waiting);
    assert_int_equal(status.bytes_total, 0);
    bench->duty = true;
    assert_true(sim_run_until(bench->rig.sim, has_ended, bench, 600 * 1000));
    stop(bench);
}

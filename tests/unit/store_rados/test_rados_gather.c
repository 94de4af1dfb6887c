/* SPDX-License-Identifier: Apache-2.0
 *
 * Small writes that follow each other share pieces while the cluster is busy, and hold what was
 * written; one that fails fails for all that it carries; an object may be dropped under those that
 * wait. Method: many writes at once on real threads, on a fake cluster whose pieces wait at a gate.
 */
#include "store/rados/store_rados.h"

#include <pthread.h>

#include "base/check.h"
#include "support/cluster_fake.h"
#include "support/unit_test.h"

#include <errno.h>

enum { WRITES = 64, WRITE_BYTES = 16384, THREADS = 80 };

struct gated {
    struct cluster base;
    struct cluster *inner;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    unsigned waiting, pieces;
};

struct bench {
    struct gated gate;
    struct fake_medium *medium;
    struct loop *loop;
    struct work_pool *pool;
    struct store *store;
    struct run_name run;
    struct object_id id;
    struct store_req writes[WRITES];
    struct work opener;
    uint8_t *memory;
    unsigned left;
};

static struct bench bench;

static bool is_piece(const struct cluster_call *call)
{
    return call->step_count == 2 && call->steps[1].kind == STEP_WRITE_FULL &&
           call->pool == CLUSTER_DATA;
}

static void gated_start(struct cluster *cluster, struct cluster_call *call)
{
    struct gated *gate = (struct gated *)cluster;
    if (is_piece(call)) {
        pthread_mutex_lock(&gate->lock);
        gate->waiting++;
        gate->pieces++;
        pthread_cond_broadcast(&gate->changed);
        while (!gate->open) {
            pthread_cond_wait(&gate->changed, &gate->lock);
        }
        pthread_mutex_unlock(&gate->lock);
    }
    cluster_start(gate->inner, call);
}

static int gated_wait(struct cluster *cluster, struct cluster_call *call)
{
    return cluster_wait(((struct gated *)cluster)->inner, call);
}

static int gated_usage(struct cluster *cluster, struct cluster_usage *ret)
{
    struct cluster *inner = ((struct gated *)cluster)->inner;
    return inner->ops->usage(inner, ret);
}

static void gated_close(struct cluster *cluster)
{
    struct cluster *inner = ((struct gated *)cluster)->inner;
    inner->ops->close(inner);
}

static const struct cluster_ops gated_ops = {
    .start = gated_start, .wait = gated_wait, .usage = gated_usage, .close = gated_close};

static void set_gate(bool open)
{
    pthread_mutex_lock(&bench.gate.lock);
    bench.gate.open = open;
    pthread_cond_broadcast(&bench.gate.changed);
    pthread_mutex_unlock(&bench.gate.lock);
}

/* Until so many pieces stand at the gate: all that may be under way. */
static void await_gate(unsigned count)
{
    pthread_mutex_lock(&bench.gate.lock);
    while (bench.gate.waiting < count) {
        pthread_cond_wait(&bench.gate.changed, &bench.gate.lock);
    }
    pthread_mutex_unlock(&bench.gate.lock);
}

static void on_done(struct store_req *req)
{
    if (--bench.left == 0) {
        loop_uv_stop(bench.loop);
    }
}

static void open_gate(struct work *work)
{
    (void)work;
    set_gate(true);
}

static void on_opened(struct work *work)
{
    (void)work;
    if (--bench.left == 0) {
        loop_uv_stop(bench.loop);
    }
}

/* Opens the gate when a thread has taken each write: the pool serves in order. Opened at once, it
 * would let writes pass alone that no thread has taken yet. */
static void open_gate_behind_the_writes(void)
{
    bench.opener = (struct work){.run = open_gate, .done = on_opened};
    bench.left++;
    work_submit(bench.pool, &bench.opener);
}

static int run(struct store_req *req)
{
    req->run = bench.run;
    req->object = bench.id;
    req->done = on_done;
    bench.left = 1;
    store_submit(bench.store, req);
    loop_uv_run(bench.loop);
    return req->status;
}

static void submit_writes(void)
{
    for (size_t i = 0; i < WRITES; i++) {
        bench.writes[i] = (struct store_req){.op = STORE_WRITE,
                                             .run = bench.run,
                                             .object = bench.id,
                                             .offset = i * WRITE_BYTES,
                                             .bytes = WRITE_BYTES,
                                             .data = bench.memory + i * WRITE_BYTES,
                                             .done = on_done};
        bench.left++;
        store_submit(bench.store, &bench.writes[i]);
    }
}

static void setup(void)
{
    bench = (struct bench){.gate = {.base.ops = &gated_ops},
                           .id = {.term = 1, .step = 1, .writer = 5, .rank = 0, .sequence = 1}};
    assert_int_equal(pthread_mutex_init(&bench.gate.lock, NULL), 0);
    assert_int_equal(pthread_cond_init(&bench.gate.changed, NULL), 0);
    assert_int_equal(run_name_set("demo", "run", &bench.run, NULL), 0);
    bench.medium = fake_medium_new();
    bench.gate.inner = fake_cluster_new(bench.medium);
    assert_int_equal(loop_uv_new(&bench.loop, NULL), 0);
    assert_int_equal(work_threads_new(bench.loop, THREADS, "t", &bench.pool, NULL), 0);
    struct store_rados_options options = {
        .loop = bench.loop, .pool = bench.pool, .cluster = &bench.gate.base, .create = true};
    assert_int_equal(store_rados_new(&options, &bench.store, NULL), 0);
    bench.memory = malloc((size_t)WRITES * WRITE_BYTES);
    assert_non_null(bench.memory);
    for (size_t i = 0; i < (size_t)WRITES * WRITE_BYTES; i++) {
        bench.memory[i] = (uint8_t)(i * 7 + i / 4096);
    }
    struct store_req create = {.op = STORE_CREATE, .bytes = MIB(4)};
    assert_int_equal(run(&create), 0);
}

static void on_closed(void *user) { loop_uv_stop(((struct bench *)user)->loop); }

static void teardown(void)
{
    store_close(bench.store, on_closed, &bench);
    loop_uv_run(bench.loop);
    work_threads_free(bench.pool);
    loop_uv_free(bench.loop);
    fake_medium_free(bench.medium);
    pthread_cond_destroy(&bench.gate.changed);
    pthread_mutex_destroy(&bench.gate.lock);
    free(bench.memory);
}

#define FIXED_TEST(name) SETUP_TEST(name, setup, teardown)

FIXED_TEST(test_small_writes_share_pieces)
{
    submit_writes();
    await_gate(8);
    open_gate_behind_the_writes();
    loop_uv_run(bench.loop);
    for (size_t i = 0; i < WRITES; i++) {
        assert_int_equal(bench.writes[i].status, 0);
    }
    assert_in_range(bench.gate.pieces, 8, WRITES - 1);
    struct store_req seal = {.op = STORE_SEAL};
    assert_int_equal(run(&seal), 0);
    uint8_t *back = malloc((size_t)WRITES * WRITE_BYTES);
    assert_non_null(back);
    struct store_req read = {
        .op = STORE_READ, .bytes = (uint64_t)WRITES * WRITE_BYTES, .data = back};
    assert_int_equal(run(&read), 0);
    assert_memory_equal(back, bench.memory, (size_t)WRITES * WRITE_BYTES);
    free(back);
}

FIXED_TEST(test_a_failure_is_everybodys)
{
    submit_writes();
    await_gate(8);
    const struct fake_plan refuse = {.seed = 1, .percent = {[FAKE_REFUSED] = 100}, .error = EDQUOT};
    fake_medium_plan(bench.medium, &refuse);
    set_gate(true);
    loop_uv_run(bench.loop);
    for (size_t i = 0; i < WRITES; i++) { /* IO: its object was void before it came */
        assert_true(bench.writes[i].status == CAIRN_E_QUOTA ||
                    bench.writes[i].status == CAIRN_E_IO);
        assert_true(bench.writes[i].diag.text[0] != 0);
    }
    fake_medium_plan(bench.medium, NULL);
    struct store_req seal = {.op = STORE_SEAL};
    assert_int_equal(run(&seal), CAIRN_E_IO);
}

FIXED_TEST(test_an_object_goes_under_its_writers)
{
    submit_writes();
    await_gate(8);
    struct store_req drop = {
        .op = STORE_ABORT, .run = bench.run, .object = bench.id, .done = on_done};
    bench.left++;
    store_submit(bench.store, &drop);
    set_gate(true);
    loop_uv_run(bench.loop);
    for (size_t i = 0; i < WRITES; i++) {
        assert_true(bench.writes[i].status == 0 || bench.writes[i].status == CAIRN_E_NOT_FOUND);
    }
    struct store_req seal = {.op = STORE_SEAL};
    assert_int_equal(run(&seal), CAIRN_E_NOT_FOUND);
}

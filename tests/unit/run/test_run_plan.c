/* SPDX-License-Identifier: Apache-2.0
 *
 * A plan reads each element that is wanted exactly once; an error names the tensor, and damage
 * names the file. Method: a naive model that marks elements one by one.
 */
#include "run_rig.h"

#include "base/check.h"
#include "support/unit_test.h"

static void setup(struct rig *rig)
{
    rig_init(rig);
    rig->options.page_bytes = 600; /* two or three tensors a page */
    rig_start(rig);
}

struct plan_call {
    struct plan_req req;
    bool done;
};

static void on_plan(struct plan_req *req) { container_of(req, struct plan_call, req)->done = true; }

/* reads are the caller's; NULL when status is not 0. */
static void plan(struct rig *rig, struct ckpt_id id, uint32_t count, const struct plan_want *wants,
                 struct plan_call *ret)
{
    *ret =
        (struct plan_call){.req = {.id = id, .want_count = count, .wants = wants, .done = on_plan}};
    run_plan(rig->run, &ret->req);
    assert_false(ret->done);
    rig_until(rig, &ret->done);
}

static struct plan_want want_box(const char *name, struct shape shape, struct box box)
{
    return (struct plan_want){
        .name = name, .coordinate = "", .dtype = CAIRN_F32, .shape = shape, .box = box};
}

/* Each element of the wanted box must lie in exactly one of the cells. Up to three dimensions. */
static void check_model(const struct plan_call *call, uint32_t want)
{
    const struct box *box = &call->req.wants[want].box;
    uint64_t total = box_elements(box);
    uint8_t *marks = calloc(total ? total : 1, 1);
    int64_t n[3] = {1, 1, 1}, at[3];

    for (uint32_t d = 0; d < box->ndim; d++) {
        n[d] = box->length[d];
    }
    for (size_t i = 0; i < call->req.read_count; i++) {
        const struct plan_read *read = &call->req.reads[i];
        uint64_t idx = 0;
        for (at[0] = 0; read->want == want && at[0] < n[0]; at[0]++) {
            for (at[1] = 0; at[1] < n[1]; at[1]++) {
                for (at[2] = 0; at[2] < n[2]; at[2]++, idx++) {
                    bool in = true;
                    for (uint32_t d = 0; d < box->ndim; d++) {
                        int64_t x = box->offset[d] + at[d];
                        in = in && x >= read->cell.offset[d] &&
                             x < read->cell.offset[d] + read->cell.length[d];
                    }
                    marks[idx] = (uint8_t)(marks[idx] + in);
                }
            }
        }
    }
    for (uint64_t i = 0; i < total; i++) {
        assert_int_equal(marks[i], 1);
    }
    free(marks);
}

static void check_sorted(const struct plan_call *call)
{
    for (size_t i = 1; i < call->req.read_count; i++) {
        const struct plan_read *a = &call->req.reads[i - 1], *b = &call->req.reads[i];
        int order = object_id_compare(&a->object, &b->object);
        assert_true(order < 0 || (order == 0 && a->offset <= b->offset));
    }
}

/* The plan must fail with this code, and with a text that says this. */
static void expect_refused(struct rig *rig, struct ckpt_id id, const struct plan_want *want,
                           int code, const char *said)
{
    struct plan_call call;
    plan(rig, id, 1, want, &call);
    assert_int_equal(call.req.status, code);
    assert_null(call.req.reads);
    if (!strstr(call.req.diag.text, said)) {
        fail_msg("'%s' is not in: %s", said, call.req.diag.text);
    }
}

#define PLAN_TEST(name) FIXTURE_TEST(name, setup, rig_fini, struct rig, rig)

/* The layout that was saved: every chunk once, and of the replicated tensor from both ranks. */
PLAN_TEST(test_same_layout)
{
    struct plan_call call;
    struct plan_want wants[3];

    struct ckpt_id id = rig_save(rig, 10, 2, rig->lists);
    const struct piece *a = &rig->lists[1].pieces[0], *b = &rig->lists[1].pieces[1];
    wants[0] = (struct plan_want){.is_blob = true, .name = "state", .coordinate = ""};
    wants[1] = want_box(b->name, b->shape, b->box);
    wants[2] = want_box(a->name, a->shape, a->box);
    plan(rig, id, 3, wants, &call);
    assert_int_equal(call.req.status, 0);
    check_model(&call, 1);
    check_model(&call, 2);
    check_sorted(&call);
    uint64_t blob_bytes = 0, ranks = 0;
    for (size_t i = 0; i < call.req.read_count; i++) {
        const struct plan_read *read = &call.req.reads[i];
        if (read->want == 0) {
            assert_int_equal(read->blob_offset, blob_bytes);
            blob_bytes += read->plain_bytes;
        }
        ranks |= read->want == 1 ? UINT64_C(1) << read->object.rank : 0;
    }
    assert_int_equal(blob_bytes, 9000);
    assert_int_equal(ranks, 3);
    free(call.req.reads);
}

/* Eight ranks saved tiles of several tensors; random boxes are wanted. */
PLAN_TEST(test_resharded_boxes_match_the_model)
{
    struct rank_list eight[8];
    struct shape flat = rig_shape(1, 30011, 0, 0), cube = rig_shape(3, 16, 24, 20),
                 wide = rig_shape(2, 6, 3000, 0);

    for (uint32_t rank = 0; rank < 8; rank++) {
        struct piece *p = eight[rank].pieces;
        int64_t x = rank % 2, y = rank / 2 % 2, z = rank / 4;
        eight[rank].count = 3;
        p[0] = rig_slab("cube", cube, 0, 16);
        p[0].box =
            rig_box(&cube, (const int64_t[]){x * 8, y * 12, z * 10}, (const int64_t[]){8, 12, 10});
        p[1] = rig_slab("flat", flat, rank * INT64_C(4000), rank == 7 ? 30011 - 28000 : 4000);
        p[2] = rig_whole("wide", CAIRN_F32, wide, 8, rank);
    }
    struct ckpt_id id = rig_save(rig, 10, 8, eight);
    struct shape shapes[3] = {cube, flat, wide};
    const char *names[3] = {"cube", "flat", "wide"};
    for (int round = 0; round < 60; round++) {
        struct plan_want wants[4];
        struct plan_call call;
        for (int i = 0; i < 4; i++) {
            const struct shape *shape = &shapes[sim_below(rig->sim, 3)];
            struct box box = {.ndim = shape->ndim};
            for (uint32_t d = 0; d < shape->ndim; d++) {
                box.offset[d] = (int64_t)sim_below(rig->sim, (uint64_t)shape->length[d]);
                box.length[d] =
                    (int64_t)sim_below(rig->sim, (uint64_t)(shape->length[d] - box.offset[d]) + 1);
            }
            wants[i] = want_box(names[shape - shapes], *shape, box);
        }
        plan(rig, id, 4, wants, &call);
        assert_int_equal(call.req.status, 0);
        for (uint32_t i = 0; i < 4; i++) {
            check_model(&call, i);
        }
        check_sorted(&call);
        free(call.req.reads);
    }
}

/* Wrong wants get errors that name the tensor, what is stored and what was wanted. */
PLAN_TEST(test_mismatches_are_named)
{
    struct ckpt_id id = rig_save(rig, 10, 2, rig->lists);
    struct shape weight = rig->lists[0].pieces[0].shape, other = rig_shape(2, 64, 97, 0);
    struct plan_want want = want_box("a.weight", weight, box_whole(&weight));

    want.name = "a.weights";
    expect_refused(rig, id, &want, CAIRN_E_MISSING_TENSOR, "'a.weights'");
    want.name = "a.weight";
    want.dtype = CAIRN_BF16;
    expect_refused(rig, id, &want, CAIRN_E_DTYPE_MISMATCH,
                   "float32, but was requested as bfloat16");
    want.dtype = CAIRN_F32;
    want.shape = other;
    expect_refused(rig, id, &want, CAIRN_E_SHAPE_MISMATCH,
                   "[64, 96], but was requested with [64, 97]");
    want.shape = weight;
    want.box.length[0] = 65;
    expect_refused(rig, id, &want, CAIRN_E_INVALID, "");
    want.is_blob = true;
    expect_refused(rig, id, &want, CAIRN_E_MISSING_TENSOR, "");
    expect_refused(rig, (struct ckpt_id){1, 11}, &want, CAIRN_E_NOT_FOUND, "");
}

/* A cancelled plan is silent at every moment of its way, and leaves nothing behind. */
PLAN_TEST(test_cancel_at_any_moment)
{
    struct plan_call call = {.done = false};

    struct ckpt_id id = rig_save(rig, 10, 2, rig->lists);
    for (unsigned steps = 0; !call.done; steps++) {
        struct plan_want want =
            want_box("b.bias", rig->lists[0].pieces[1].shape, rig->lists[0].pieces[1].box);
        call =
            (struct plan_call){.req = {.id = id, .want_count = 1, .wants = &want, .done = on_plan}};
        rig_stop(rig); /* with a cold cache the way is long */
        rig_start(rig);
        sim_run_for(rig->sim, 100);
        run_plan(rig->run, &call.req);
        for (unsigned i = 0; i < steps && !call.done; i++) {
            assert_true(sim_step(rig->sim));
        }
        run_plan_cancel(&call.req);
        bool done = call.done;
        sim_run_for(rig->sim, 1000);
        assert_int_equal(call.done, done);
        assert_true(steps < 500);
    }
    assert_int_equal(call.req.status, 0);
    free(call.req.reads);
}

static unsigned calloc_fails_in; /* 0: never; 1: the next one */
__typeof__(calloc) __real_calloc, __wrap_calloc;

void *__wrap_calloc(size_t count, size_t bytes)
{
    return calloc_fails_in > 0 && --calloc_fails_in == 0 ? NULL : __real_calloc(count, bytes);
}

/* Goal: whichever allocation of a plan fails, the plan fails with NO_MEMORY and the daemon lives:
 * the next plan, with the same cache, is whole. */
PLAN_TEST(test_short_of_memory_at_every_moment)
{
    unsigned failures = 0;
    bool is_over = false;

    struct ckpt_id id = rig_save(rig, 10, 2, rig->lists);
    struct plan_want want =
        want_box("b.bias", rig->lists[0].pieces[1].shape, rig->lists[0].pieces[1].box);
    for (unsigned at = 1; !is_over; at++) {
        struct plan_call call;
        rig_restart(rig);
        sim_run_for(rig->sim, 100);
        calloc_fails_in = at;
        plan(rig, id, 1, &want, &call);
        is_over = calloc_fails_in > 0;
        calloc_fails_in = 0;
        failures += call.req.status != 0;
        assert_true(call.req.status == 0 || (!is_over && call.req.status == CAIRN_E_NO_MEMORY));
        free(call.req.reads);
        plan(rig, id, 1, &want, &call);
        assert_int_equal(call.req.status, 0);
        check_model(&call, 0);
        free(call.req.reads);
    }
    assert_true(failures >= 4); /* the plan's, and those of what it reads */
}

struct fetch_call {
    struct fetch_req req;
    bool done;
};

static void on_fetch(struct fetch_req *req)
{
    container_of(req, struct fetch_call, req)->done = true;
}

static void fetch(struct rig *rig, const struct store_name *name, struct fetch_call *ret)
{
    *ret = (struct fetch_call){
        .req = {.id = name->id, .kind = name->kind, .number = name->number, .done = on_fetch}};
    run_fetch(rig->run, &ret->req);
    rig_until(rig, &ret->done);
}

/* Every byte of manifest, pages and parts, flipped one at a time: DAMAGED, with the file's name;
 * and the plan that needs it says the same. Whole, they are handed out. */
PLAN_TEST(test_any_flipped_byte_is_damage)
{
    static const struct {
        enum store_kind kind;
        uint32_t number;
        const char *text;
    } files[] = {{STORE_MANIFEST, 0, "the manifest of checkpoint 10@1 of lab/gpt"},
                 {STORE_PAGE, 0, "page 0 of checkpoint 10@1 of lab/gpt"},
                 {STORE_PAGE, 1, "page 1 of checkpoint 10@1 of lab/gpt"},
                 {STORE_PART, 1, "part 1 of checkpoint 10@1 of lab/gpt"}};

    struct ckpt_id id = rig_save(rig, 10, 2, rig->lists);
    struct piece *bias = &rig->lists[0].pieces[1];
    struct plan_want want =
        want_box("a.weight", rig->lists[1].pieces[0].shape, rig->lists[1].pieces[0].box);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct store_name name = {.run = rig->name,
                                  .id = id,
                                  .kind = files[i].kind,
                                  .number = files[i].number,
                                  .tag = 7010};
        struct fetch_call call;
        fetch(rig, &name, &call);
        assert_int_equal(call.req.status, 0);
        size_t bytes = call.req.bytes;
        run_fetch_release(&call.req);
        for (size_t at = 0; at < bytes; at += files[i].kind == STORE_PART ? 97 : 13) {
            rig_flip(rig, &name, at);
            rig_restart(rig);
            fetch(rig, &name, &call);
            assert_int_equal(call.req.status, CAIRN_E_DAMAGED);
            assert_non_null(strstr(call.req.diag.text, files[i].text));
            run_fetch_release(&call.req);
            expect_refused(rig, id, &want, CAIRN_E_DAMAGED, files[i].text);
            rig_flip(rig, &name, at);
        }
        fetch(rig, &name, &call); /* a failed one is not remembered */
        assert_int_equal(call.req.status, 0);
        run_fetch_release(&call.req);
    }
    want = want_box(bias->name, bias->shape, bias->box);
    struct plan_call call;
    plan(rig, id, 1, &want, &call);
    assert_int_equal(call.req.status, 0);
    free(call.req.reads);
}

/* A file that is gone is damage too; a number that never was is NOT_FOUND. */
PLAN_TEST(test_missing_files)
{
    struct fetch_call call;

    struct store_name name = {.run = rig->name,
                              .id = rig_save(rig, 10, 2, rig->lists),
                              .kind = STORE_PART,
                              .number = 2,
                              .tag = 7010};
    fetch(rig, &name, &call);
    assert_int_equal(call.req.status, CAIRN_E_NOT_FOUND);
    name.kind = STORE_PAGE;
    name.number = 99;
    fetch(rig, &name, &call);
    assert_int_equal(call.req.status, CAIRN_E_NOT_FOUND);
    name.kind = STORE_PART;
    name.number = 1;
    struct store_req req = {.op = STORE_DELETE_SMALL, .name = name};
    rig_store(rig, &req);
    assert_int_equal(req.status, 0);
    rig_restart(rig);
    fetch(rig, &name, &call);
    assert_int_equal(call.req.status, CAIRN_E_DAMAGED);
    assert_non_null(strstr(call.req.diag.text, "missing"));
}

/* Many readers of one file at the same time: the store is asked once; a tiny cache still serves. */
PLAN_TEST(test_one_read_serves_all)
{
    struct fetch_call calls[20];

    struct ckpt_id id = rig_save(rig, 10, 2, rig->lists);
    rig_stop(rig);
    rig->options.cache_bytes = 1;
    rig_start(rig);
    sim_run_for(rig->sim, 1000);
    uint64_t before = store_fault_seen(rig->store);
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        calls[i] = (struct fetch_call){
            .req = {.id = id, .kind = STORE_PART, .number = 1, .done = on_fetch}};
        run_fetch(rig->run, &calls[i].req);
    }
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        rig_until(rig, &calls[i].done);
        assert_int_equal(calls[i].req.status, 0);
        assert_non_null(calls[i].req.part);
    }
    assert_int_equal(store_fault_seen(rig->store) - before, 3); /* manifest, parts page, part */
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        run_fetch_release(&calls[i].req);
    }
}

/* Bytes of the documents that are read from the store. */
static uint64_t fetched_bytes;
static unsigned fetched_parts;
static const struct store_ops *real_ops;
static void (*fetch_done)(struct store_req *req);

static void on_counted(struct store_req *req)
{
    fetched_bytes += req->status == 0 ? req->ret_bytes : 0;
    fetched_parts += req->name.kind == STORE_PART;
    req->done = fetch_done;
    fetch_done(req);
}

static void count_submit(struct store *store, struct store_req *req)
{
    if (req->op == STORE_FETCH) { /* one at a time, as a plan does */
        fetch_done = req->done;
        req->done = on_counted;
    }
    real_ops->submit(store, req);
}

enum { WORLD = 64, TENSORS = 12 };

/* What rank `rank` of 64 holds of each tensor. */
static struct box box_of(int layout, const struct shape *shape, int64_t rank)
{
    struct box box = box_whole(shape);
    int64_t rows = shape->length[0], columns = shape->length[1];
    if (layout == 0 || layout == 2) { /* rows; HSDP: 4 groups of 16 */
        int64_t n = layout == 0 ? WORLD : 16, k = rank % n;
        box.offset[0] = rows / n * k;
        box.length[0] = rows / n;
    } else if (layout == 1) { /* columns, rounded up: the last ranks have none */
        int64_t each = (columns + WORLD - 1) / WORLD;
        box.offset[1] = each * rank < columns ? each * rank : columns;
        box.length[1] = each < columns - box.offset[1] ? each : columns - box.offset[1];
    } else { /* a mesh of 8 by 8 */
        box.offset[0] = rows / 8 * (rank / 8);
        box.length[0] = rows / 8;
        box.offset[1] = columns / 8 * (rank % 8);
        box.length[1] = columns / 8;
    }
    return box;
}

/* A rank of many reads the manifest, the index, and the parts that hold its own boxes: not the
 * metadata of the whole world. Method: 64 ranks, 12 tensors each in four layouts; the bytes that
 * the store gives for the plan of one rank, also of another world size, from a cold cache. */
PLAN_TEST(test_one_rank_reads_what_it_needs)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f",
                                               "g", "h", "i", "j", "k", "l"};
    struct rank_list *lists = calloc(WORLD, sizeof *lists);
    struct shape shape = rig_shape(2, 128, 72, 0);
    struct store_ops ops;
    for (int layout = 0; layout < 4; layout++) {
        for (uint32_t rank = 0; rank < WORLD; rank++) {
            lists[rank].count = 0;
            for (size_t t = 0; t < TENSORS; t++) {
                struct piece piece = rig_slab(names[t], shape, 0, 128);
                piece.box = box_of(layout, &shape, rank);
                piece.of = layout == 2 ? 4 : 1; /* a box has one cell here: one of four writes it */
                piece.member = layout == 2 ? (rank / 16 + (uint32_t)t) % 4 : 0;
                if (box_elements(&piece.box) > 0) {
                    lists[rank].pieces[lists[rank].count++] = piece;
                }
            }
        }
        struct ckpt_id id = rig_save(rig, 10 + (uint64_t)layout, WORLD, lists);
        for (uint32_t rank = 0; rank < WORLD; rank += 21) {
            struct plan_want wants[TENSORS];
            uint32_t count = 0;
            for (size_t t = 0; t < TENSORS; t++) {
                struct box box = box_of(layout, &shape, rank);
                if (rank == 42 && layout == 0) { /* half of what one of 32 ranks wants */
                    box.offset[0] -= box.length[0];
                    box.length[0] *= 2;
                }
                if (box_elements(&box) > 0) {
                    wants[count++] = want_box(names[t], shape, box);
                }
            }
            struct plan_call call;
            rig_restart(rig);
            sim_run_for(rig->sim, 1000);
            real_ops = rig->store->ops;
            ops = *real_ops;
            ops.submit = count_submit;
            rig->store->ops = &ops;
            fetched_bytes = fetched_parts = 0;
            plan(rig, id, count, wants, &call);
            rig->store->ops = real_ops;
            assert_int_equal(call.req.status, 0);
            for (uint32_t i = 0; i < count; i++) {
                check_model(&call, i);
            }
            free(call.req.reads);
            if (fetched_parts > 8 || fetched_bytes > 64 << 10) {
                fail_msg("layout %d, rank %u: %u parts, %llu bytes", layout, rank, fetched_parts,
                         (unsigned long long)fetched_bytes);
            }
        }
    }
    free(lists);
}

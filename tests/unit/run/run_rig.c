/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixture of the tests of server/run: see run_rig.h.
 */
#include "run_rig.h"

#include "base/check.h"
#include "pipeline/chunk.h"
#include "support/unit_test.h"

#include <stdio.h>

void rig_until(struct rig *rig, const bool *flag)
{
    assert_true(sim_await(rig->sim, flag, 3600 * 1000));
}

static void on_ready(void *user, int status, const struct diag *diag)
{
    struct rig *rig = user;

    rig->ready = true;
    rig->ready_status = status;
}

void rig_init(struct rig *rig)
{
    struct store *memory = NULL;

    uint64_t seed = rig->seed;

    memset(rig, 0, sizeof *rig);
    rig->seed = seed;
    rig->sim = sim_new(seed);
    rig->host = sim_host_new(rig->sim, "server", NULL);
    assert_int_equal(memory_medium_new(&rig->medium), 0);
    assert_int_equal(
        store_memory_new(sim_loop(rig->host), sim_pool(rig->host), rig->medium, &memory, NULL), 0);
    assert_int_equal(store_fault_new(sim_loop(rig->host), memory, &rig->store), 0);
    assert_int_equal(run_name_set("lab", "gpt", &rig->name, NULL), 0);
    memset(&rig->token, 0x5a, sizeof rig->token);
    rig->options = (struct catalog_options){.chunk_bytes = RIG_CHUNK,
                                            .restore_drain_ms = 10000,
                                            .deadline_ms_max = 600000,
                                            .pool = sim_pool(rig->host),
                                            .ready = on_ready,
                                            .user = rig};
    rig_two_ranks(rig->lists);
}

struct catalog *rig_catalog_new(struct rig *rig)
{
    struct catalog *catalog = NULL;

    rig->ready = false;
    assert_int_equal(catalog_new(sim_loop(rig->host), rig->store, &rig->options, &catalog), 0);
    rig_until(rig, &rig->ready);
    assert_int_equal(rig->ready_status, 0);
    return catalog;
}

void rig_catalog_close(struct rig *rig, struct catalog *catalog)
{
    bool closed = false;

    catalog_close(catalog, sim_raise, &closed);
    rig_until(rig, &closed);
}

void rig_start(struct rig *rig)
{
    rig->catalog = rig_catalog_new(rig);
    rig->run = catalog_run(rig->catalog, &rig->name);
}

void rig_stop(struct rig *rig)
{
    rig_catalog_close(rig, rig->catalog);
    rig->catalog = NULL;
    rig->run = NULL;
}

void rig_restart(struct rig *rig)
{
    rig_stop(rig);
    rig_start(rig);
}

void rig_fini(struct rig *rig)
{
    bool closed = false;

    if (rig->catalog) {
        rig_stop(rig);
    }
    store_close(rig->store, sim_raise, &closed);
    rig_until(rig, &closed);
    memory_medium_free(rig->medium);
    assert_int_equal(sim_open_works(rig->host), 0);
    sim_free(rig->sim);
}

void rig_setup(struct rig *rig)
{
    rig_init(rig);
    rig_start(rig);
}

/* --- waiting for one thing -------------------------------------------------------------------- */

struct store_call {
    struct store_req *req;
    bool done;
};

static void on_store(struct store_req *req) { ((struct store_call *)req->wrap)->done = true; }

void rig_store(struct rig *rig, struct store_req *req)
{
    struct store_call call = {.req = req};

    req->done = on_store;
    req->wrap = &call;
    store_submit(rig->store, req);
    rig_until(rig, &call.done);
}

static void on_call(struct run_req *req) { container_of(req, struct rig_call, req)->done = true; }

void rig_begin(struct run *run, const struct event *event, uint64_t wait_ms, struct rig_call *ret)
{
    *ret = (struct rig_call){.req = {.event = *event, .done = on_call, .wait_ms = wait_ms}};
    run_submit(run, &ret->req);
}

int rig_event(struct rig *rig, struct run *run, const struct event *event, struct verdict *ret)
{
    struct rig_call call;

    rig_begin(run, event, 5000, &call);
    assert_false(call.done);
    rig_until(rig, &call.done);
    if (ret) {
        *ret = call.req.verdict;
        ret->diag = call.req.diag;
    }
    return call.req.status;
}

/* --- saving ----------------------------------------------------------------------------------- */

struct event rig_open_event(struct rig *rig, uint64_t step, uint32_t world, uint64_t open_id)
{
    return (struct event){.kind = EVENT_OPEN,
                          .id = {0, step},
                          .u.open = {.from = {.token = rig->token, .world_size = world},
                                     .open_id = open_id,
                                     .entry = {.deadline_ms = 60000}}};
}

int rig_open(struct rig *rig, uint64_t step, uint32_t world, uint64_t open_id, struct ckpt_id *ret)
{
    struct event event = rig_open_event(rig, step, world, open_id);
    struct verdict verdict;
    int status = rig_event(rig, rig->run, &event, &verdict);

    *ret = verdict.id;
    return status;
}

struct part_maker {
    struct part part;
    struct part_object object;
    struct part_tensor tensors[RIG_PIECES_MAX];
    struct part_box boxes[RIG_PIECES_MAX];
    struct part_blob blobs[RIG_PIECES_MAX];
    struct part_chunk chunks[4096];
    uint64_t offset;
    uint8_t *data; /* of the object; NULL where contents do not matter */
    struct envelope envelopes[4096];
};

struct object_id rig_object(struct ckpt_id id, uint32_t rank)
{
    return (struct object_id){id.term, id.step, 1000 + rank, rank, 0};
}

enum { RIG_OBJECT_BYTES = 4 << 20 };

/* The same in every checkpoint, so that one may refer to another's. */
static void fill_chunk(struct part_maker *maker, struct part_chunk *chunk)
{
    struct envelope *envelope = &maker->envelopes[maker->part.chunk_count];
    uint8_t *at = maker->data + chunk->offset;

    CHECK(chunk->offset + chunk->stored_bytes < RIG_OBJECT_BYTES - 65536);
    for (uint32_t i = 0; i < chunk->stored_bytes; i++) {
        at[i] = (uint8_t)(i * 31 + maker->part.chunk_count * 7 + maker->part.rank + 1);
    }
    chunk_seal_raw(chunk->plain_bytes, at, 1, envelope);
    envelope->offset = chunk->offset;
    chunk->stored_crc = envelope->stored_crc;
    chunk->digest = envelope->digest;
}

static void write_object(struct rig *rig, struct part_maker *maker)
{
    struct object_footer footer = {.id = maker->object.id,
                                   .data_bytes = maker->offset,
                                   .envelope_count = maker->part.chunk_count,
                                   .envelopes = maker->envelopes};
    struct buf buf;
    buf_init(&buf, RIG_OBJECT_BYTES);
    object_footer_encode(&footer, &buf);
    assert_int_equal(buf_status(&buf), 0);
    memcpy(maker->data + maker->offset, buf.data, buf.bytes);
    uint64_t bytes = maker->offset + buf.bytes;
    struct store_req create = {
        .op = STORE_CREATE, .run = rig->name, .object = footer.id, .bytes = bytes};
    struct store_req write = {.op = STORE_WRITE,
                              .run = rig->name,
                              .object = footer.id,
                              .bytes = bytes,
                              .data = maker->data};
    struct store_req seal = {.op = STORE_SEAL, .run = rig->name, .object = footer.id};
    struct store_req *reqs[] = {&create, &write, &seal};
    buf_fini(&buf);
    for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
        rig_store(rig, reqs[i]);
        assert_int_equal(reqs[i]->status, 0);
    }
}

static void add_chunk(struct part_maker *maker, uint32_t cell, uint64_t bytes)
{
    struct part *part = &maker->part;
    struct part_chunk *chunk = &maker->chunks[part->chunk_count];

    CHECK(part->chunk_count < ARRAY_LEN(maker->chunks));
    *chunk = (struct part_chunk){.cell = cell,
                                 .offset = maker->offset,
                                 .stored_bytes = (uint32_t)bytes,
                                 .plain_bytes = (uint32_t)bytes,
                                 .stored_crc = part->chunk_count,
                                 .encoding = ENCODING_RAW,
                                 .digest_alg = DIGEST_XXH3_128};
    chunk->digest.bytes[0] = (uint8_t)part->chunk_count;
    if (maker->data) {
        fill_chunk(maker, chunk);
    }
    maker->offset += round_up_u64(bytes, LIMIT_ALIGN_BYTES);
    maker->object.bytes_used += bytes;
    part->object_count = 1;
    part->chunk_count++;
}

static void add_tensor(struct part_maker *maker, const struct piece *piece)
{
    struct part *part = &maker->part;
    struct part_tensor *last = part->tensor_count ? &maker->tensors[part->tensor_count - 1] : NULL;
    struct part_box *box = &maker->boxes[part->box_count];
    struct grid grid;

    if (!last || strcmp(last->name, piece->name) != 0 ||
        strcmp(last->coordinate, piece->coordinate) != 0) {
        last = &maker->tensors[part->tensor_count++];
        *last = (struct part_tensor){.name = piece->name,
                                     .coordinate = piece->coordinate,
                                     .dtype = piece->dtype,
                                     .placement = piece->placement,
                                     .shape = piece->shape,
                                     .box_first = part->box_count};
    }
    last->box_count++;
    *box = (struct part_box){
        .tensor = part->tensor_count - 1, .box = piece->box, .chunk_first = part->chunk_count};
    part->box_count++;
    grid_init(&grid, &piece->box, piece->dtype, RIG_CHUNK);
    for (uint64_t cell = 0; cell < grid.cell_count; cell++) {
        struct box unused;
        uint64_t offset, bytes;
        if (cell % piece->of == piece->member) {
            grid_cell(&grid, cell, &unused, &offset, &bytes);
            add_chunk(maker, (uint32_t)cell, bytes);
            box->chunk_count++;
        }
    }
}

static void add_blob(struct part_maker *maker, const struct piece *piece)
{
    struct part *part = &maker->part;
    struct part_blob *blob = &maker->blobs[part->blob_count++];

    *blob = (struct part_blob){.name = piece->name,
                               .coordinate = piece->coordinate,
                               .kind = BLOB_BYTES,
                               .placement = piece->placement,
                               .plain_bytes = piece->bytes,
                               .chunk_first = part->chunk_count};
    for (uint64_t at = 0; at < piece->bytes; at += RIG_CHUNK) {
        add_chunk(maker, blob->chunk_count, min_u64(RIG_CHUNK, piece->bytes - at));
        blob->chunk_count++;
    }
}

struct uuid_call {
    struct run_snapshot_req req;
    struct uuid uuid;
    bool done;
};

static void on_uuid(struct run_snapshot_req *req)
{
    struct uuid_call *call = container_of(req, struct uuid_call, req);

    call->done = true;
    if (req->status == 0) {
        call->uuid = req->state->info.run_uuid;
    }
}

/* The run's uuid, as ranks learn it when they join. */
static struct uuid run_uuid(struct rig *rig, struct run *run)
{
    struct uuid_call call;
    int left = 50;

    do {
        call = (struct uuid_call){.req = {.done = on_uuid}};
        run_snapshot(run, &call.req);
        rig_until(rig, &call.done);
    } while (call.req.status && --left > 0);
    assert_int_equal(call.req.status, 0);
    return call.uuid;
}

static void make_part(struct part_maker *maker, const struct rig_seal *seal,
                      const struct rank_list *list)
{
    struct part *part = &maker->part;
    uint64_t writer = 1000 + seal->rank;

    part->id = seal->id;
    part->rank = seal->rank;
    part->world_size = seal->world;
    part->writer = writer;
    part->chunk_bytes = RIG_CHUNK;
    part->objects = &maker->object;
    part->tensors = maker->tensors;
    part->boxes = maker->boxes;
    part->blobs = maker->blobs;
    part->chunks = maker->chunks;
    maker->object.id = rig_object(seal->id, seal->rank);
    for (size_t i = 0; i < list->count; i++) {
        if (list->pieces[i].is_blob) {
            add_blob(maker, &list->pieces[i]);
        } else {
            add_tensor(maker, &list->pieces[i]);
        }
    }
}

/* The encoded part in buf; its writer is returned. */
static uint64_t encode_part(struct rig *rig, struct run *run, const struct rig_seal *seal,
                            const struct rank_list *list, struct buf *buf)
{
    struct part_maker *maker = calloc(1, sizeof *maker);
    uint64_t writer;

    assert_non_null(maker);
    maker->part.run_uuid = run_uuid(rig, run);
    maker->data = rig->with_objects ? aligned_alloc(LIMIT_ALIGN_BYTES, RIG_OBJECT_BYTES) : NULL;
    if (maker->data) {
        memset(maker->data, 0, RIG_OBJECT_BYTES);
    }
    make_part(maker, seal, list);
    if (rig->refer.term != 0) {
        maker->object.id = rig_object(rig->refer, seal->rank);
    } else if (maker->data) {
        write_object(rig, maker);
    }
    writer = maker->part.writer;
    buf_init(buf, LIMIT_PART_BYTES);
    part_encode(&maker->part, buf);
    assert_int_equal(buf_status(buf), 0);
    free(maker->data);
    free(maker);
    return writer;
}

static bool is_transient(int status)
{
    return status && status != CAIRN_E_EXISTS && err_retry(status) != ERR_RETRY_NEVER &&
           status != CAIRN_E_ABORTED;
}

static int seal_part(struct rig *rig, struct run *run, const struct rig_seal *seal,
                     const struct rank_list *list, int tries)
{
    struct store_name name = {.run = rig->name,
                              .id = seal->id,
                              .kind = STORE_PART,
                              .number = seal->rank,
                              .tag = seal->open_id};
    struct event_seal one = {.rank = seal->rank};
    struct event event = {.kind = EVENT_SEAL,
                          .id = seal->id,
                          .u.seal = {.open_id = seal->open_id, .count = 1, .items = &one}};
    struct store_req req;
    struct buf buf;
    uint64_t writer = encode_part(rig, run, seal, list, &buf);
    int status, left = tries;

    do {
        req = (struct store_req){
            .op = STORE_PUBLISH, .name = name, .data = buf.data, .bytes = buf.bytes};
        rig_store(rig, &req);
    } while (is_transient(req.status) && --left > 0);
    assert_true(req.status == 0 || req.status == CAIRN_E_EXISTS);
    if (seal->rank % 2 == 0) { /* every second one is read back by the finish */
        run_cache_part(run, &name, buf.bytes, buf.data);
    }
    one.entry = (struct entry_seal){.open_id = seal->open_id,
                                    .writer = writer,
                                    .part_bytes = buf.bytes,
                                    .part_sha256 = sha256(buf.bytes, buf.data)};
    left = tries;
    do {
        status = rig_event(rig, run, &event, NULL);
    } while (is_transient(status) && --left > 0);
    buf_fini(&buf);
    return status;
}

int rig_seal(struct rig *rig, struct run *run, const struct rig_seal *seal,
             const struct rank_list *list)
{
    return seal_part(rig, run, seal, list, 1);
}

void rig_seal_both(struct rig *rig, struct ckpt_id id, uint64_t open_id,
                   const struct rank_list lists[2])
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct rig_seal seal = {id, open_id, rank, 2};
        assert_int_equal(rig_seal(rig, rig->run, &seal, &lists[rank]), 0);
    }
}

int rig_seal_retry(struct rig *rig, struct run *run, const struct rig_seal *seal,
                   const struct rank_list *list)
{
    return seal_part(rig, run, seal, list, 50);
}

static void on_outcome(struct run_watch *watch, enum save_state state, int code, const char *why,
                       uint64_t seq)
{
    struct rig_outcome *outcome = container_of(watch, struct rig_outcome, watch);

    assert_false(outcome->done);
    outcome->done = true;
    outcome->state = state;
    outcome->code = code;
    outcome->seq = seq;
    strncpy(outcome->why, why, sizeof outcome->why - 1);
}

void rig_watch(struct run *run, struct ckpt_id id, uint64_t open_id, struct rig_outcome *ret)
{
    *ret = (struct rig_outcome){.watch = {.id = id, .open_id = open_id, .done = on_outcome}};
    run_watch(run, &ret->watch);
}

struct rig_outcome rig_outcome(struct rig *rig, struct ckpt_id id, uint64_t open_id)
{
    struct rig_outcome outcome;

    rig_watch(rig->run, id, open_id, &outcome);
    rig_until(rig, &outcome.done);
    return outcome;
}

void rig_expect_aborted(struct rig *rig, struct ckpt_id id, uint64_t open_id, int code,
                        const char *words)
{
    struct rig_outcome outcome = rig_outcome(rig, id, open_id);
    assert_int_equal(outcome.state, SAVE_ABORTED);
    if (outcome.code != code || !strstr(outcome.why, words)) {
        fail_msg("%d, without '%s': %s", outcome.code, words, outcome.why);
    }
}

struct ckpt_id rig_save(struct rig *rig, uint64_t step, uint32_t world,
                        const struct rank_list *lists)
{
    struct ckpt_id id;
    uint64_t open_id = 7000 + step;
    struct rig_outcome outcome;

    assert_int_equal(rig_open(rig, step, world, open_id, &id), 0);
    for (uint32_t rank = 0; rank < world; rank++) {
        struct rig_seal seal = {id, open_id, rank, world};
        assert_int_equal(rig_seal(rig, rig->run, &seal, &lists[rank]), 0);
    }
    outcome = rig_outcome(rig, id, open_id);
    if (outcome.state != SAVE_COMMITTED) {
        print_error("%s\n", outcome.why);
    }
    assert_int_equal(outcome.state, SAVE_COMMITTED);
    return id;
}

struct state_call {
    struct run_snapshot_req req;
    void (*take)(void *user, const struct run_state *state);
    void *user;
    bool done;
};

static void on_state(struct run_snapshot_req *req)
{
    struct state_call *call = container_of(req, struct state_call, req);
    assert_int_equal(req->status, 0);
    call->take(call->user, req->state);
    call->done = true;
}

void rig_state(struct rig *rig, void (*take)(void *user, const struct run_state *state), void *user)
{
    struct state_call call = {.req = {.done = on_state}, .take = take, .user = user};
    run_snapshot(rig->run, &call.req);
    rig_until(rig, &call.done);
}

struct commit_question {
    struct ckpt_id id;
    struct rig_commit ret;
};

static void take_commit(void *user, const struct run_state *state)
{
    struct commit_question *question = user;
    const struct state_commit *commit = state_commit_find(state, question->id);
    assert_non_null(commit);
    question->ret = (struct rig_commit){.open_id = commit->entry.open_id,
                                        .manifest_bytes = commit->entry.manifest_bytes,
                                        .manifest_sha256 = commit->entry.manifest_sha256,
                                        .health = commit->health};
    snprintf(question->ret.reason, sizeof(question->ret.reason), "%s", commit->health_reason);
}

struct rig_commit rig_commit(struct rig *rig, struct ckpt_id id)
{
    struct commit_question question = {.id = id};
    rig_state(rig, take_commit, &question);
    return question.ret;
}

/* --- pieces ----------------------------------------------------------------------------------- */

struct shape rig_shape(uint32_t ndim, int64_t a, int64_t b, int64_t c)
{
    return (struct shape){.ndim = ndim, .length = {a, b, c}};
}

struct box rig_box(const struct shape *shape, const int64_t *offset, const int64_t *length)
{
    struct box box = {.ndim = shape->ndim};

    for (uint32_t i = 0; i < shape->ndim; i++) {
        box.offset[i] = offset[i];
        box.length[i] = length[i];
    }
    return box;
}

struct piece rig_whole(const char *name, uint32_t dtype, struct shape shape, uint32_t of,
                       uint32_t member)
{
    return (struct piece){.name = name,
                          .coordinate = "",
                          .dtype = dtype,
                          .placement = PLACEMENT_REPLICATED,
                          .of = of,
                          .member = member,
                          .shape = shape,
                          .box = box_whole(&shape)};
}

struct piece rig_slab(const char *name, struct shape shape, int64_t offset, int64_t length)
{
    struct piece piece = rig_whole(name, CAIRN_F32, shape, 1, 0);

    piece.placement = PLACEMENT_SHARDED;
    piece.box.offset[0] = offset;
    piece.box.length[0] = length;
    return piece;
}

struct piece rig_blob(const char *name, uint64_t bytes)
{
    return (struct piece){.name = name,
                          .coordinate = "",
                          .is_blob = true,
                          .placement = PLACEMENT_REPLICATED,
                          .bytes = bytes};
}

void rig_two_ranks(struct rank_list lists[2])
{
    struct shape weight = rig_shape(2, 64, 96, 0), bias = rig_shape(1, 5000, 0, 0);

    for (uint32_t rank = 0; rank < 2; rank++) {
        lists[rank] = (struct rank_list){.count = 2};
        lists[rank].pieces[0] = rig_slab("a.weight", weight, 32 * (int64_t)rank, 32);
        lists[rank].pieces[1] = rig_whole("b.bias", CAIRN_F32, bias, 2, rank);
    }
    lists[0].pieces[2] = rig_blob("state", 9000);
    lists[0].count = 3;
}

void rig_flip(struct rig *rig, const struct store_name *name, size_t at)
{
    struct store_req req = {.op = STORE_FETCH, .name = *name};
    uint8_t *data;
    uint64_t bytes;

    rig_store(rig, &req);
    assert_int_equal(req.status, 0);
    data = req.ret_data;
    bytes = req.ret_bytes;
    assert_true(at < bytes);
    data[at] ^= 1;
    req = (struct store_req){.op = STORE_DELETE_SMALL, .name = *name};
    rig_store(rig, &req);
    assert_int_equal(req.status, 0);
    req = (struct store_req){.op = STORE_PUBLISH, .name = *name, .data = data, .bytes = bytes};
    rig_store(rig, &req);
    assert_int_equal(req.status, 0);
    free(data);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a rank: a replicated matrix of three chunks, its shard of a second one, a local
 * vector (as an RNG is), and "meta": step and history, by which a restore knows itself; a
 * replicated and a local blob. Every byte of the others is drawn from a generator seeded by the
 * history. One thread.
 */
#include "sim_rank.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "sim_mutant.h"
#include "support/made_set.h"

enum {
    WEIGHT_ROWS = 40,
    WEIGHT_COLUMNS = 64,
    SHARD_ROWS = 17,
    SHARD_COLUMNS = 100,
    RNG_BYTES = 100,
    WEIGHT_AT = 0,
    WEIGHT_BYTES = WEIGHT_ROWS * WEIGHT_COLUMNS * 4,
    SHARD_AT = WEIGHT_AT + WEIGHT_BYTES,
    SHARD_BYTES = SHARD_ROWS * SHARD_COLUMNS * 4,
    RNG_AT = SHARD_AT + SHARD_BYTES,
    META_AT = RNG_AT + RNG_BYTES + 4,
    META_BYTES = 16,
    LATE_AT = META_AT + META_BYTES,
    LATE_BYTES = 9000, /* three cells */
    LATE_SAVES = 2,    /* of a job, without it on one of its ranks */
    LATER_SAVES = 6, /* the same of every second job on a cluster: its ranks have spread by then */
    MEMORY_BYTES = LATE_AT + LATE_BYTES,
    BLOB_BYTES_MAX = 5000,
    GRACE_MS = 12000, /* a save's: to find out what became of it */
    RESTORE_GRACE_MS = 2000,
};

/* --- contents --------------------------------------------------------------------- */

static void fill(uint64_t key, size_t bytes, uint8_t *ret)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t z = key + (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z ^= z >> 27;
        memcpy(ret + i, &z, bytes - i < 8 ? bytes - i : 8);
    }
}

/* A part of the weights never changes, a part changes now and then: saves share what is the same
 * with older ones. */
static void fill_weights(uint64_t history, uint8_t *ret)
{
    for (size_t at = 0; at < WEIGHT_BYTES; at += SCENE_CHUNK_BYTES) {
        uint64_t block = at / SCENE_CHUNK_BYTES, own = UINT64_C(0xf0f0) << 32 ^ block, mixed;
        size_t left = WEIGHT_BYTES - at;
        fill(history ^ block, sizeof mixed, (uint8_t *)&mixed);
        bool is_own = block % 3 == 0 || mixed % 2 == 0;
        fill(is_own ? own : history, left < SCENE_CHUNK_BYTES ? left : SCENE_CHUNK_BYTES, ret + at);
    }
}

static void fill_memory(uint32_t idx, uint64_t step, uint64_t history, uint8_t *ret)
{
    uint64_t meta[2] = {step, history};
    memset(ret, 0, MEMORY_BYTES);
    fill_weights(history, ret + WEIGHT_AT);
    fill(history ^ (UINT64_C(0x51ed) << 32) ^ idx, SHARD_BYTES, ret + SHARD_AT);
    fill(history ^ (UINT64_C(0xa11c) << 32) ^ idx, RNG_BYTES, ret + RNG_AT);
    memcpy(ret + META_AT, meta, META_BYTES);
    fill(history ^ (UINT64_C(0x1a7e) << 32), LATE_BYTES, ret + LATE_AT);
}

static size_t loader_bytes(uint32_t idx, uint64_t history)
{
    return (size_t)(history >> (8 * idx)) % BLOB_BYTES_MAX;
}

static struct registered *register_all(struct sim_rank *rank, uint64_t step, uint64_t history)
{
    static uint32_t everybody[SCENE_WORLD_SIZE] = {0, 1, 2};
    char coordinate[32], config[64];
    uint8_t loader[BLOB_BYTES_MAX];
    uint8_t *at = rank->memory;
    /* Made late on one rank of a job, as the state of an optimizer can be. */
    unsigned without = rank->scene->shared && rank->job % 2 == 1 ? LATER_SAVES : LATE_SAVES;
    bool has_late =
        step == 0 || rank->idx != rank->job % SCENE_WORLD_SIZE || rank->saves_begun > without;
    struct registered_box boxes[5] = {
        made_matrix(WEIGHT_ROWS, WEIGHT_COLUMNS, at + WEIGHT_AT),
        made_matrix(SHARD_ROWS, SHARD_COLUMNS, at + SHARD_AT), made_vector(RNG_BYTES, at + RNG_AT),
        made_vector(2, at + META_AT), made_vector(LATE_BYTES, at + LATE_AT)};
    boxes[1].box.offset[0] = (int64_t)rank->idx * SHARD_ROWS;
    snprintf(coordinate, sizeof coordinate, "rank=%u", rank->idx);
    snprintf(config, sizeof config, "step %" PRIu64 " of %016" PRIx64, step, history);
    fill(history ^ rank->idx, loader_bytes(rank->idx, history), loader);
    struct registered_tensor tensors[5] = {
        made_tensor("weight", CAIRN_F32, PLACEMENT_REPLICATED, &boxes[0]),
        made_tensor("moment", CAIRN_F32, PLACEMENT_SHARDED, &boxes[1]),
        made_tensor("rng", CAIRN_U8, PLACEMENT_LOCAL, &boxes[2]),
        made_tensor("meta", CAIRN_I64, PLACEMENT_REPLICATED, &boxes[3]),
        made_tensor("late", CAIRN_U8, PLACEMENT_REPLICATED, &boxes[4])};
    tensors[1].shape.length[0] = SHARD_ROWS * SCENE_WORLD_SIZE;
    tensors[2].coordinate = coordinate;
    tensors[0].group = tensors[3].group = tensors[4].group = everybody;
    tensors[0].group_count = tensors[3].group_count = SCENE_WORLD_SIZE;
    tensors[4].group_count = SCENE_WORLD_SIZE;
    const struct registered_blob blobs[] = {{.name = "config",
                                             .coordinate = "",
                                             .kind = BLOB_BYTES,
                                             .placement = PLACEMENT_REPLICATED,
                                             .bytes = strlen(config),
                                             .data = (const uint8_t *)config},
                                            {.name = "loader",
                                             .coordinate = coordinate,
                                             .kind = BLOB_BYTES,
                                             .placement = PLACEMENT_LOCAL,
                                             .bytes = loader_bytes(rank->idx, history),
                                             .data = loader}};
    struct registered *set;
    struct diag diag = DIAG_INIT;
    struct registered_list list = {.rank = rank->idx,
                                   .world_size = SCENE_WORLD_SIZE,
                                   .tensor_count = ARRAY_LEN(tensors) - (has_late ? 0 : 1),
                                   .blob_count = ARRAY_LEN(blobs),
                                   .tensors = tensors,
                                   .blobs = blobs};
    if (registered_new(&list, &set, &diag) != 0) {
        scene_fail(rank->scene, "registering: %s", diag.text);
    }
    return set;
}

static const struct restored_blob *find_blob(const struct sim_rank *rank, const char *name)
{
    for (size_t i = 0; i < rank->restore.blobs.count; i++) {
        if (strcmp(rank->restore.blobs.items[i].name, name) == 0) {
            return &rank->restore.blobs.items[i];
        }
    }
    return NULL;
}

static void check_blob(struct sim_rank *rank, const char *name, size_t bytes, const void *data)
{
    const struct restored_blob *blob = find_blob(rank, name);
    if (!blob || blob->bytes != bytes || (bytes > 0 && memcmp(blob->data, data, bytes) != 0)) {
        scene_fail(rank->scene,
                   "I4: job %u rank %u: blob %s of step %" PRIu64 " has %zu bytes, "
                   "%zu were saved, or others",
                   rank->job, rank->idx, name, rank->restore.id.step, blob ? blob->bytes : 0,
                   bytes);
    }
}

uint64_t rank_check_restored(struct sim_rank *rank)
{
    uint64_t meta[2];
    uint8_t expected[MEMORY_BYTES], loader[BLOB_BYTES_MAX];
    char config[64];
    memcpy(meta, rank->memory + META_AT, META_BYTES);
    uint64_t step = meta[0], history = meta[1];
    if (step != rank->restore.id.step) {
        scene_fail(rank->scene, "I4: rank %u restored step %" PRIu64 ", the bytes are of %" PRIu64,
                   rank->idx, rank->restore.id.step, step);
    }
    fill_memory(rank->idx, step, history, expected);
    memset(rank->memory + META_AT - 4, 0, 4); /* belongs to nobody */
    for (size_t i = 0; i < MEMORY_BYTES; i++) {
        if (rank->memory[i] != expected[i]) {
            scene_fail(rank->scene, "I4: job %u rank %u: byte %zu of step %" PRIu64 " is wrong",
                       rank->job, rank->idx, i, step);
        }
    }
    snprintf(config, sizeof config, "step %" PRIu64 " of %016" PRIx64, step, history);
    check_blob(rank, "config", strlen(config), config);
    fill(history ^ rank->idx, loader_bytes(rank->idx, history), loader);
    check_blob(rank, "loader", loader_bytes(rank->idx, history), loader);
    return history;
}

/* --- saves ------------------------------------------------------------------------ */

static void on_released(struct engine_save *save)
{
    struct sim_rank_save *slot = container_of(save, struct sim_rank_save, save);
    struct scene *scene = slot->rank->scene;
    if (slot->released || slot->staged) {
        scene_fail(scene, "a save was released %s", slot->staged ? "late" : "twice");
    }
    slot->released = true;
    if (!save->lazy && !mutant_is(scene->mutant, MUTANT_LATE_CHANGE)) {
        memset(slot->rank->memory, 0xee, MEMORY_BYTES); /* all is copied: the training goes on */
    }
}

static void on_staged(struct engine_save *save, int status)
{
    struct sim_rank_save *slot = container_of(save, struct sim_rank_save, save);
    struct scene *scene = slot->rank->scene;
    if (slot->staged) {
        scene_fail(scene, "a save was staged twice");
    }
    slot->staged = true;
    if (status == 0 && !mutant_is(scene->mutant, MUTANT_LATE_CHANGE)) {
        memset(slot->rank->memory, 0xee, MEMORY_BYTES); /* the snapshot must not see this */
    }
}

static void on_save_done(struct engine_save *save, int status)
{
    struct sim_rank_save *slot = container_of(save, struct sim_rank_save, save);
    struct sim_rank *rank = slot->rank;
    if (!slot->staged || slot->done) {
        scene_fail(rank->scene, "a save ended %s", slot->done ? "twice" : "before it was staged");
    }
    slot->done = true;
    slot->status = status;
    slot->used = false;
    registered_unref(slot->set);
    if (!sim_is_dead(rank->host)) { /* the dead hear nothing */
        struct oracle_answer answer = {rank->idx, status, save->id, save->diag.text};
        oracle_end(rank->scene, slot->what, &answer);
    }
}

bool rank_save(struct sim_rank *rank, struct oracle_save *what, uint64_t deadline_ms)
{
    for (size_t i = 0; i < RANK_SAVES_MAX; i++) {
        struct sim_rank_save *slot = &rank->saves[i];
        if (slot->used) {
            continue;
        }
        memset(slot, 0, sizeof *slot);
        fill_memory(rank->idx, what->step, what->history, rank->memory);
        slot->rank = rank;
        slot->what = what;
        slot->used = true;
        rank->saves_begun++;
        slot->set = register_all(rank, what->step, what->history);
        slot->end_ms = scene_now_ms(rank->scene) + deadline_ms + GRACE_MS;
        slot->save.step = what->step;
        slot->save.deadline_ms = deadline_ms;
        slot->save.set = slot->set;
        slot->save.lazy = sim_below(rank->scene->sim, 2) == 0;
        slot->save.watch = slot->save.lazy ? (enum watch_kind)sim_below(rank->scene->sim, 3) : 0;
        slot->save.on_released = on_released;
        slot->save.on_staged = on_staged;
        slot->save.on_done = on_save_done;
        engine_save_start(rank->engine, &slot->save);
        if (mutant_is(rank->scene->mutant, MUTANT_LATE_CHANGE)) {
            rank->memory[sim_below(rank->scene->sim, WEIGHT_BYTES)] ^= 1;
        }
        return true;
    }
    return false;
}

bool rank_is_staging(const struct sim_rank *rank)
{
    for (size_t i = 0; i < RANK_SAVES_MAX; i++) {
        if (rank->saves[i].used && !rank->saves[i].staged) {
            return true;
        }
    }
    return false;
}

unsigned rank_saves_running(const struct sim_rank *rank)
{
    unsigned count = 0;
    for (size_t i = 0; i < RANK_SAVES_MAX; i++) {
        count += rank->saves[i].used;
    }
    return count;
}

/* --- restores --------------------------------------------------------------------- */

static void on_restore_done(struct engine_restore *restore, int status)
{
    struct sim_rank *rank = container_of(restore, struct sim_rank, restore);
    if (rank->restored) {
        scene_fail(rank->scene, "a restore ended twice");
    }
    rank->restored = true;
    rank->restore_status = status;
    scene_tell(rank->scene, "job %u rank %u: restore of %" PRIu64 "@%" PRIu64 ": %s %s", rank->job,
               rank->idx, restore->id.step, restore->id.term, status ? err_name(status) : "done",
               status ? restore->diag.text : "");
}

void rank_restore(struct sim_rank *rank, struct selector selector, uint64_t deadline_ms)
{
    CHECK(!rank->restoring);
    memset(&rank->restore, 0, sizeof rank->restore);
    memset(rank->memory, 0xdd, MEMORY_BYTES);
    rank->restoring = true;
    rank->restored = false;
    rank->restore.selector = selector;
    rank->restore.allow_older = selector.kind == SELECT_LATEST;
    rank->restore.strict = true;
    rank->restore.deadline_ms = deadline_ms;
    rank->restore.set = rank->set;
    rank->restore.on_done = on_restore_done;
    rank->restore_end_ms = scene_now_ms(rank->scene) + deadline_ms + RESTORE_GRACE_MS;
    engine_restore_start(rank->engine, &rank->restore);
}

void rank_forget_restore(struct sim_rank *rank)
{
    if (rank->restoring) {
        CHECK(rank->restored);
        engine_restore_fini(&rank->restore);
        rank->restoring = false;
    }
}

void rank_check_deadlines(const struct sim_rank *rank)
{
    uint64_t now = scene_now_ms(rank->scene);
    if (sim_is_dead(rank->host)) {
        return;
    }
    for (size_t i = 0; i < RANK_SAVES_MAX; i++) {
        const struct sim_rank_save *slot = &rank->saves[i];
        if (slot->used && now > slot->end_ms) {
            scene_fail(rank->scene,
                       "I7: job %u rank %u: the save of step %" PRIu64
                       " hangs past its deadline of %" PRIu64 " ms",
                       rank->job, rank->idx, slot->what->step, slot->save.deadline_ms);
        }
    }
    if (rank->restoring && !rank->restored && now > rank->restore_end_ms) {
        scene_fail(rank->scene, "I7: job %u rank %u: the restore hangs past its deadline",
                   rank->job, rank->idx);
    }
}

/* --- life ------------------------------------------------------------------------- */

static void on_ready(void *user, int status, const struct diag *diag)
{
    struct sim_rank *rank = user;
    rank->ready = true;
    rank->ready_status = status;
    if (status != 0) {
        scene_tell(rank->scene, "job %u rank %u does not join: %s", rank->job, rank->idx,
                   diag->text);
    }
}

struct sim_rank *rank_new(struct scene *scene, unsigned job, uint32_t idx,
                          const struct token *token)
{
    struct sim_rank *rank = calloc(1, sizeof *rank);
    char name[32];
    struct diag diag = DIAG_INIT;
    CHECK(rank);
    rank->scene = scene;
    rank->idx = idx;
    rank->job = job;
    snprintf(name, sizeof name, "job%u-rank%u", job, idx);
    rank->host = scene_host(scene, name, NULL);
    rank->memory = calloc(1, MEMORY_BYTES);
    CHECK(rank->memory);
    rank->set = register_all(rank, 0, 0);
    struct engine_options options = {.loop = sim_loop(rank->host),
                                     .net = sim_net(rank->host),
                                     .pool = sim_pool(rank->host),
                                     .token = *token,
                                     .rank = idx,
                                     .world_size = SCENE_WORLD_SIZE,
                                     .writer = sim_random(scene->sim) | 1,
                                     .io_deadline_ms = 5000,
                                     .reconnect_ms_min = 20,
                                     .reconnect_ms_max = 1000,
                                     .encoding = sim_below(scene->sim, 3) == 0 ? ENCODE_DENSEST
                                                                               : ENCODE_NEVER,
                                     .spread_after = 3,
                                     .label = "sim"};
    /* A third of the ranks cannot hold what they save: it goes in waves. */
    uint64_t arena_bytes_max = sim_below(scene->sim, 3) == 0 ? KIB(10) : KIB(64);
    int status = arena_new(arena_bytes_max, &rank->arena, &diag);
    options.arena = rank->arena;
    /* The bug: it does not wait for what the server says of the lists. */
    options.agree_wait_ms = mutant_is(scene->mutant, MUTANT_NO_VERDICT) ? 1 : 0;
    if (status == 0) {
        status = scene_url(scene, "run", &options.url, &diag);
    }
    if (status == 0) {
        status = engine_new(&options, on_ready, rank, &rank->engine, &diag);
    }
    if (status != 0) {
        scene_fail(scene, "a rank does not start: %s", diag.text);
    }
    return rank;
}

void rank_close(struct sim_rank *rank)
{
    CHECK(!rank->closing);
    rank->closing = true;
    engine_close(rank->engine, sim_raise, &rank->closed);
}

bool rank_bury(struct sim_rank *rank)
{
    if (!rank->closed) {
        return false;
    }
    bool restore_open = rank->restoring && !rank->restored;
    if (rank_saves_running(rank) > 0 || restore_open || arena_used_bytes(rank->arena) != 0 ||
        rank->set->refs != 1) {
        scene_fail(rank->scene,
                   "I8: job %u rank %u closed with %u saves, %" PRIu64
                   " bytes of its arena and %u references",
                   rank->job, rank->idx, rank_saves_running(rank), arena_used_bytes(rank->arena),
                   rank->set->refs);
    }
    rank_forget_restore(rank);
    registered_unref(rank->set);
    arena_free(rank->arena);
    free(rank->memory);
    free(rank);
    return true;
}

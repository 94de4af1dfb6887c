/* SPDX-License-Identifier: Apache-2.0
 *
 * many_checkpoints STORE RUN N: gives the run RUN of STORE (a URL; it is made) N committed
 * checkpoints, one of an hour, by writing the run's record alone: what lists, retention and
 * start-up see of ten thousand saves, without saving them. Nothing of them can be restored.
 */
#include "env/work.h"
#include "format/entries.h"
#include "store/open/store_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE = 5000, CHANGES_MAX = PIECE + 8 };

struct maker {
    struct loop *loop;
    struct store *store;
    struct store_req req;
    bool done;
    struct entry_head head;
    size_t change_count;
    struct record_change changes[CHANGES_MAX];
    struct key_text keys[CHANGES_MAX];
    struct buf values[CHANGES_MAX];
};

static void on_done(struct store_req *req)
{
    struct maker *maker = container_of(req, struct maker, req);
    maker->done = true;
    loop_uv_stop(maker->loop);
}

static void on_closed(void *user)
{
    struct maker *maker = user;
    maker->done = true;
    loop_uv_stop(maker->loop);
}

static void wait_done(struct maker *maker)
{
    while (!maker->done) {
        loop_uv_run(maker->loop);
    }
    maker->done = false;
}

static struct buf *add(struct maker *maker, struct key_text key)
{
    struct buf *value = &maker->values[maker->change_count];
    maker->keys[maker->change_count++] = key;
    buf_init(value, KIB(4));
    return value;
}

static int flush(struct maker *maker, const struct run_name *run)
{
    entry_head_encode(&maker->head, add(maker, key_head()));
    for (size_t i = 0; i < maker->change_count; i++) {
        maker->changes[i] = (struct record_change){
            .key = maker->keys[i].at, .value = {maker->values[i].bytes, maker->values[i].data}};
    }
    struct record_update update = {.change_count = maker->change_count, .changes = maker->changes};
    maker->req = (struct store_req){.op = STORE_RECORD_UPDATE,
                                    .run = *run,
                                    .update = &update,
                                    .deadline_ms = 60000,
                                    .done = on_done};
    store_submit(maker->store, &maker->req);
    wait_done(maker);
    for (size_t i = 0; i < maker->change_count; i++) {
        buf_fini(&maker->values[i]);
    }
    maker->change_count = 0;
    return maker->req.status;
}

static void add_commit(struct maker *maker, uint64_t number, int64_t wall_ns)
{
    struct entry_chain entry = {.kind = CHAIN_COMMIT,
                                .seq = number,
                                .previous = maker->head.sha256,
                                .id = {1, number * 100},
                                .wall_ns = wall_ns,
                                .manifest_bytes = 4096,
                                .plain_bytes = UINT64_C(10) << 30,
                                .stored_bytes = UINT64_C(10) << 30,
                                .world_size = 8,
                                .open_id = number,
                                .base = {0, 0}};
    struct buf *value = add(maker, key_chain(number));
    if (number % 20 != 1) {
        entry.base = (struct ckpt_id){1, (number - 1) * 100};
    }
    entry_chain_encode(&entry, value);
    maker->head = (struct entry_head){.seq = number, .sha256 = sha256(value->bytes, value->data)};
}

static int fill(struct maker *maker, const struct run_name *run, uint64_t count)
{
    int64_t hour_ns = INT64_C(3600) * 1000000000;
    int64_t first_ns = (int64_t)time(NULL) * 1000000000 - (int64_t)count * hour_ns;
    struct entry_info info = {.chunk_bytes = LIMIT_CHUNK_BYTES, .created_wall_ns = first_ns};
    struct entry_term term = {.world_size = 8};
    entry_info_encode(&info, add(maker, key_info()));
    entry_term_encode(&term, add(maker, key_term(1)));
    int status = 0;
    for (uint64_t i = 1; status == 0 && i <= count; i++) {
        add_commit(maker, i, first_ns + (int64_t)i * hour_ns);
        if (maker->change_count >= PIECE || i == count) {
            status = flush(maker, run);
        }
    }
    return status;
}

int main(int argc, char **argv)
{
    struct maker *maker = calloc(1, sizeof(*maker));
    struct work_pool *pool = NULL;
    struct run_name run;
    struct diag diag = DIAG_INIT;
    if (argc != 4 || maker == NULL || run_name_parse(argv[2], &run, &diag) != 0) {
        fprintf(stderr, "usage: many_checkpoints STORE PROJECT/RUN N\n");
        free(maker);
        return 2;
    }
    int status = loop_uv_new(&maker->loop, &diag);
    if (status == 0) {
        status = work_threads_new(maker->loop, store_url_threads_min(argv[1]) + 1, "bench", &pool,
                                  &diag);
    }
    struct store_open_options options = {
        .loop = maker->loop, .pool = pool, .url = argv[1], .create = true, .force_fs = true};
    status = status != 0 ? status : store_open(&options, &maker->store, &diag);
    if (status == 0) {
        status = fill(maker, &run, strtoull(argv[3], NULL, 10));
        diag = maker->req.diag;
        store_close(maker->store, on_closed, maker);
        wait_done(maker);
    }
    if (status != 0) {
        fprintf(stderr, "many_checkpoints: %s\n", diag_text(&diag, status));
    }
    work_threads_free(pool);
    loop_uv_free(maker->loop);
    free(maker);
    return status != 0;
}

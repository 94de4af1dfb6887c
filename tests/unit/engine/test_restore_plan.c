/* SPDX-License-Identifier: Apache-2.0
 *
 * A restore reads the chunks that other ranks want as well before those that are this rank's alone,
 * both by their place, so that ranks at another world size ask for what they share at about the
 * same time and in the same order. What a manifest says of itself is checked before anything is
 * allocated for it.
 */
#include "base/check.h"
#include "engine/restore_private.h"
#include "hash/hash.h"
#include "support/made_set.h"
#include "support/unit_test.h"

/* Chunks too large to be read together with others. */
enum { CHUNK_ROWS = 64, CHUNKS = 8, COLUMNS = 512, ROWS = CHUNK_ROWS * CHUNKS };
enum { CHUNK_BYTES = CHUNK_ROWS * COLUMNS * 4 };
_Static_assert((uint64_t)CHUNK_BYTES >= (uint64_t)LIMIT_PACK_PIECE_BYTES,
               "each is a READ of its own");

struct bench {
    struct engine engine;
    struct restore restore;
    struct registered_tensor tensor;
    struct registered_box box;
    struct want want;
    uint8_t *memory;
};

/* A rank that wants the rows from first to end of a tensor that was saved in whole chunks, which
 * lie in the object from the last to the first. */
static void bench_init(struct bench *bench, int64_t first, int64_t end)
{
    struct restore *restore = &bench->restore;
    memset(bench, 0, sizeof *bench);
    bench->memory = calloc((size_t)(end - first), COLUMNS * 4);
    CHECK(bench->memory);
    bench->engine.link.welcome.payload_max = LIMIT_CHUNK_BYTES;
    bench->box = made_matrix(end - first, COLUMNS, bench->memory);
    bench->box.box.offset[0] = first;
    bench->tensor = made_tensor("weight", CAIRN_F32, PLACEMENT_REPLICATED, &bench->box);
    bench->tensor.shape.length[0] = ROWS;
    bench->want = (struct want){.tensor = &bench->tensor,
                                .box = &bench->box,
                                .bytes = (uint64_t)(end - first) * COLUMNS * 4};
    bench->want.planned_bytes = bench->want.bytes;
    restore->engine = &bench->engine;
    restore->wants = &bench->want;
    restore->want_count = 1;
    restore->records = calloc(CHUNKS, sizeof *restore->records);
    CHECK(restore->records);
    for (int64_t i = first / CHUNK_ROWS; i * CHUNK_ROWS < end; i++) {
        restore->records[restore->record_count++] =
            (struct plan_read){.object = {.term = 1, .step = 1, .writer = 7},
                               .offset = (uint64_t)(CHUNKS - 1 - i) * CHUNK_BYTES,
                               .stored_bytes = CHUNK_BYTES,
                               .plain_bytes = CHUNK_BYTES,
                               .encoding = ENCODING_RAW,
                               .cell = {2, {i * CHUNK_ROWS, 0}, {CHUNK_ROWS, COLUMNS}}};
    }
}

static void bench_fini(struct bench *bench)
{
    free(bench->restore.groups);
    free(bench->restore.records);
    free(bench->memory);
}

/* Which chunks are read, by their number in the tensor, in the order of the READs. */
static size_t plan(struct bench *bench, int64_t ret[CHUNKS])
{
    struct restore *restore = &bench->restore;
    struct diag diag = DIAG_INIT;
    if (restore_end_plan(restore, &diag) != 0) {
        fail_msg("%s", diag.text);
    }
    assert_int_equal(restore->group_count, restore->record_count);
    for (size_t i = 0; i < restore->group_count; i++) {
        const struct read_group *group = &restore->groups[i];
        const struct plan_read *read = &restore->records[group->first];
        assert_int_equal(group->count, 1);
        assert_int_equal(group->offset, read->offset);
        ret[i] = read->cell.offset[0] / CHUNK_ROWS;
    }
    return restore->group_count;
}

static void check_order(int64_t first, int64_t end, size_t count, const int64_t *expected)
{
    struct bench bench;
    int64_t order[CHUNKS];
    bench_init(&bench, first, end);
    assert_int_equal(plan(&bench, order), count);
    assert_memory_equal(order, expected, count * sizeof *order);
    bench_fini(&bench);
}

/* From 100 to 400: of chunks 1 and 6 others want the rest. */
TEST(chunks_that_others_want_come_first)
{
    static const int64_t expected[] = {6, 1, 5, 4, 3, 2};
    check_order(100, 400, ARRAY_LEN(expected), expected);
}

/* The neighbours ask for the chunk that they share as their first one. */
TEST(who_shares_a_chunk_asks_for_it_first)
{
    static const int64_t low[] = {3, 2, 1, 0}, high[] = {3, 7, 6, 5, 4};
    check_order(0, 200, ARRAY_LEN(low), low);
    check_order(200, ROWS, ARRAY_LEN(high), high);
}

TEST(whole_chunks_keep_the_order_of_their_places)
{
    static const int64_t expected[] = {7, 6, 5, 4, 3, 2, 1, 0};
    check_order(0, ROWS, ARRAY_LEN(expected), expected);
}

/* Goal: the number of names that a manifest says allocates nothing before its pages agree with it.
 * Method: a manifest, whole by its hashes, whose counts wrap around when they are added up, or are
 * one too many; a right one is taken. */
TEST(a_manifest_counts_what_its_pages_hold)
{
    static const struct {
        uint64_t tensors, blobs;
        int status;
    } cases[] = {{1, 1, 0},
                 {UINT64_MAX, 0, CAIRN_E_DAMAGED},
                 {UINT64_MAX, 3, CAIRN_E_DAMAGED},
                 {2, 1, CAIRN_E_DAMAGED}};
    struct page_ref pages[] = {
        {.kind = PAGE_PARTS, .entry_count = 1, .bytes = PAGE_HEADER_BYTES, .first_name = ""},
        {.kind = PAGE_INDEX, .entry_count = 2, .bytes = PAGE_HEADER_BYTES, .first_name = "a"}};
    struct manifest manifest = {.id = {1, 1},
                                .world_size = 1,
                                .chunk_bytes = LIMIT_CHUNK_BYTES,
                                .page_count = ARRAY_LEN(pages),
                                .pages = pages};
    assert_int_equal(run_name_set("lab", "run", &manifest.run, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct engine_restore user = {.id = {1, 1}};
        struct restore restore = {.user = &user};
        struct diag diag = DIAG_INIT;
        struct buf buf;
        manifest.tensor_count = cases[i].tensors;
        manifest.blob_count = cases[i].blobs;
        buf_init(&buf, LIMIT_MANIFEST_BYTES);
        manifest_encode(&manifest, &buf);
        assert_int_equal(buf_status(&buf), 0);
        scratch_init(&user.scratch, MIB(1));
        restore.call.payload = buf.data;
        restore.call.payload_bytes = buf.bytes;
        user.info.manifest_bytes = buf.bytes;
        user.info.manifest_sha256 = sha256(buf.bytes, buf.data);
        assert_int_equal(restore_take_manifest(&restore, &diag), cases[i].status);
        scratch_fini(&user.scratch);
        buf_fini(&buf);
    }
}

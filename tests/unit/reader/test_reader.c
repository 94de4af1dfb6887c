/* SPDX-License-Identifier: Apache-2.0
 *
 * Every byte of a checkpoint is read and checked, what is wrong is named, a transfer that is wrong
 * once is not, and an error of the store is never taken for damage. Each promise holds with one
 * read at a time and with several under way. Method: checkpoints on a memory store.
 */
#include "reader/reader.h"

#include "run_rig.h"

#include "base/check.h"
#include "format/part_layout.h"
#include "support/unit_test.h"

#include <stdio.h>

enum { TEXT_MAX = 400 };

struct bench {
    struct rig rig; /* first: setup of the rig */
    struct ckpt_id id;
    struct reader_source source;
    struct reader_visitor visitor;
    struct reader reader;
    struct scratch scratch;
    struct part parts[2];
    struct scan_piece *pieces;
    size_t count, next;
    unsigned under_way, most_under_way;
    unsigned wrong_reads; /* so many of the next transfers have a wrong byte */
    uint64_t bytes;
    size_t found, objects, chunks, lost, unread;
    char text[TEXT_MAX];
};

static int answer(struct bench *bench, struct store_req req, struct reader_bytes *ret,
                  struct diag *diag)
{
    rig_store(&bench->rig, &req);
    if (req.status != 0) {
        return diag_set(diag, req.status, "%s", req.diag.text);
    }
    if (bench->wrong_reads > 0) {
        bench->wrong_reads--;
        req.ret_data[0] ^= 1;
    }
    *ret = (struct reader_bytes){req.ret_data, req.ret_bytes};
    return 0;
}

static int fetch(struct reader_source *source, const struct doc_key *document,
                 struct reader_bytes *ret, struct diag *diag)
{
    struct store_req req = {.op = STORE_FETCH, .name = document->name, .from_medium = true};
    return answer(container_of(source, struct bench, source), req, ret, diag);
}

static int fetch_range(struct reader_source *source, const struct store_name *document,
                       const struct reader_span *span, struct reader_bytes *ret, struct diag *diag)
{
    struct store_req req = {
        .op = STORE_FETCH, .name = *document, .offset = span->offset, .bytes = span->bytes};
    return answer(container_of(source, struct bench, source), req, ret, diag);
}

static void begin(struct reader_source *source, const struct reader_range *range)
{
    struct bench *bench = container_of(source, struct bench, source);
    bench->under_way++;
    bench->most_under_way = (unsigned)max_u64(bench->most_under_way, bench->under_way);
}

static int read(struct reader_source *source, const struct reader_range *range, struct diag *diag)
{
    struct bench *bench = container_of(source, struct bench, source);
    struct store_req req = {.op = STORE_READ,
                            .run = bench->rig.name,
                            .object = *range->object,
                            .offset = range->from,
                            .bytes = range->bytes,
                            .data = range->memory,
                            .to_end = range->to_end};
    bench->under_way -= source->begin ? 1 : 0;
    rig_store(&bench->rig, &req);
    if (req.status != 0) {
        return diag_set(diag, req.status, "%s", req.diag.text);
    }
    if (bench->wrong_reads > 0) {
        bench->wrong_reads--;
        range->memory[0] ^= 1;
    }
    bench->bytes += range->bytes;
    return 0;
}

static void found(struct scan_sink *sink, const struct scan_piece *piece, enum scan_where where,
                  const char *why)
{
    struct bench *bench = container_of(sink, struct bench, visitor.sink);
    char place[240];
    scan_piece_text(piece, sizeof(place), place);
    if (bench->found++ == 0) {
        snprintf(bench->text, sizeof(bench->text), "%s: %.100s", place, why);
    }
}

static bool next(struct reader_visitor *visitor, struct reader_object *ret)
{
    struct bench *bench = container_of(visitor, struct bench, visitor);
    if (bench->next == bench->count) {
        return false;
    }
    const struct scan_piece *first = &bench->pieces[bench->next];
    size_t count = reader_object_pieces(bench->count - bench->next, first);
    *ret = (struct reader_object){first->id, count, first, false};
    bench->next += count;
    return true;
}

static int unread(struct reader_visitor *visitor, const struct object_scan *scan, int status,
                  const struct diag *why)
{
    struct bench *bench = container_of(visitor, struct bench, visitor);
    bench->unread++;
    return 0; /* the rest of the object is left */
}

static int done(struct reader_visitor *visitor, const struct object_scan *scan)
{
    struct bench *bench = container_of(visitor, struct bench, visitor);
    bench->objects++;
    bench->chunks += scan->chunks;
    return 0;
}

static int lost(struct reader_source *source, const struct doc_key *document, int status,
                struct reader_bytes *ret, struct diag *why)
{
    struct bench *bench = container_of(source, struct bench, source);
    bench->lost++;
    return status;
}

static void setup(struct bench *bench)
{
    rig_init(&bench->rig);
    bench->rig.with_objects = true;
    rig_start(&bench->rig);
    bench->id = rig_save(&bench->rig, 10, 2, bench->rig.lists);
    bench->source = (struct reader_source){
        .fetch = fetch, .fetch_range = fetch_range, .lost = lost, .read = read};
    bench->visitor = (struct reader_visitor){.next = next, .sink.found = found, .done = done};
}

static void teardown(struct bench *bench)
{
    assert_int_equal(bench->under_way, 0); /* each range that was begun was read */
    reader_source_fini(&bench->source);
    reader_fini(&bench->reader);
    scratch_fini(&bench->scratch);
    free(bench->pieces);
    rig_fini(&bench->rig);
}

static int open_ckpt(struct bench *bench, struct diag *diag)
{
    struct rig_commit commit = rig_commit(&bench->rig, bench->id);
    struct reader_root root = {bench->rig.name, bench->id, commit.open_id, commit.manifest_bytes,
                               commit.manifest_sha256};
    return reader_open(&bench->reader, &bench->source, &root, true, diag);
}

/* Opens the checkpoint and its parts, and takes all chunks of both. */
static void take_parts(struct bench *bench)
{
    size_t total = 0;
    assert_int_equal(open_ckpt(bench, NULL), 0);
    assert_int_equal(bench->reader.part_count, 2);
    scratch_init(&bench->scratch, READER_SCRATCH_MAX);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(reader_part(&bench->reader, i, &bench->scratch, &bench->parts[i], NULL),
                         0);
        total += bench->parts[i].chunk_count;
    }
    bench->pieces = calloc(total, sizeof(*bench->pieces));
    for (size_t i = 0; i < 2; i++) {
        scan_pieces_of(&bench->parts[i], bench->pieces + bench->count);
        bench->count += bench->parts[i].chunk_count;
    }
    scan_sort(bench->count, bench->pieces);
}

static int read_all(struct bench *bench, unsigned depth, struct diag *diag)
{
    bench->source.begin = depth > 1 ? begin : NULL;
    bench->source.depth = depth;
    bench->next = bench->found = bench->objects = bench->chunks = bench->unread = 0;
    bench->bytes = 0;
    bench->most_under_way = 0;
    return reader_objects(&bench->source, &bench->visitor, diag);
}

static const unsigned depths[] = {1, 2, 3, READER_DEPTH_MAX};

#define BENCH_TEST(name) FIXTURE_TEST(name, setup, teardown, struct bench, bench)

BENCH_TEST(test_a_good_checkpoint_is_read_whole)
{
    uint64_t stored = 0;
    take_parts(bench);
    assert_true(bench->reader.index_count > 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct store_req stat = {
            .op = STORE_STAT, .run = bench->rig.name, .object = rig_object(bench->id, rank)};
        rig_store(&bench->rig, &stat);
        stored += stat.ret_bytes;
    }
    for (size_t i = 0; i < ARRAY_LEN(depths); i++) {
        assert_int_equal(read_all(bench, depths[i], NULL), 0);
        assert_int_equal(bench->found, 0);
        assert_int_equal(bench->objects, 2);
        assert_int_equal(bench->chunks, bench->count);
        assert_int_equal(bench->bytes, stored); /* each byte once */
        assert_true(bench->most_under_way <= depths[i]);
        assert_true(depths[i] == 1 || bench->most_under_way > 1);
    }
}

/* Goal: pages that say otherwise than the parts are named, whatever they say. */
static void index_is_compared(struct bench *bench)
{
    take_parts(bench);
    struct reader *reader = &bench->reader;
    for (size_t number = 0; number < 2; number++) {
        assert_int_equal(reader_agrees(reader, number, &bench->parts[number], NULL), 0);
    }
    assert_int_equal(reader_agrees_all(reader, NULL), 0);
    static const char *const words[] = {"tensor a.weight has another type",
                                        "a.weight has another",
                                        "a.weight has another",
                                        "a.weight has another",
                                        "tensor a.weighs is not in the part of a rank",
                                        "a.weight has chunks of other ranks",
                                        "is missing from it",
                                        "part of rank 0",
                                        "tensor a.weight is in no part"};
    for (int change = 0; change < 9; change++) {
        struct index_entry was = reader->index[0], *entry = &reader->index[0];
        struct part_ref ref = reader->parts[0];
        size_t count = reader->index_count;
        uint32_t none[1] = {0};
        struct diag why = DIAG_INIT;
        assert_int_equal(was.kind, INDEX_TENSOR);
        entry->dtype += change == 0;
        entry->shape.length[0] += change == 1;
        entry->placement += change == 2;
        entry->plain_bytes += change == 3;
        entry->name = change == 4 ? "a.weighs" : was.name;
        entry->rank_count = change == 5 ? 0 : was.rank_count;
        entry->ranks = change == 5 ? none : was.ranks;
        reader->index_count -= change == 6;
        reader->parts[0].chunk_count += change == 7;
        memset(reader->held, change == 8 ? 0 : 1, count);
        int status = change == 8 ? reader_agrees_all(reader, &why) : 0;
        for (size_t number = 0; status == 0 && number < 2; number++) {
            status = reader_agrees(reader, number, &bench->parts[number], &why);
        }
        assert_int_equal(status, CAIRN_E_DAMAGED);
        assert_non_null(strstr(why.text, words[change]));
        reader->index[0] = was;
        reader->index_count = count;
        reader->parts[0] = ref;
    }
}

BENCH_TEST(test_an_index_that_does_not_agree_is_named) { index_is_compared(bench); }

/* Goal: an index that is kept in the form that needs little memory is compared as well. */
BENCH_TEST(test_a_short_index_is_compared)
{
    bench->source.short_index = true;
    index_is_compared(bench);
    const struct index_entry *first = &bench->reader.index[0];
    assert_int_equal(first->rank_count, 2); /* one run */
    assert_int_equal(first->ranks[0], 0);
    assert_int_equal(first->ranks[1], 2);
}

BENCH_TEST(test_a_wrong_byte_is_named)
{
    struct object_id object = rig_object(bench->id, 1);
    take_parts(bench);
    assert_true(memory_medium_flip_object(bench->rig.medium, &bench->rig.name, &object, 100));
    for (size_t i = 0; i < ARRAY_LEN(depths); i++) {
        assert_int_equal(read_all(bench, depths[i], NULL), 0);
        assert_int_equal(bench->found, 1);
        assert_non_null(strstr(bench->text, "a.weight (rank 1, object 10@1/1-"));
        assert_int_equal(bench->objects, 2);
    }
}

BENCH_TEST(test_a_transfer_that_is_wrong_once_is_no_damage)
{
    bench->wrong_reads = 1; /* of the manifest */
    take_parts(bench);
    assert_int_equal(bench->lost, 0);
    for (size_t i = 0; i < ARRAY_LEN(depths); i++) {
        bench->wrong_reads = 1;
        assert_int_equal(read_all(bench, depths[i], NULL), 0);
        assert_int_equal(bench->wrong_reads, 0);
        assert_int_equal(bench->found, 0);
        assert_int_equal(bench->chunks, bench->count);
    }
}

/* Goal: what the medium does not give is told chunk by chunk; what the store cannot say at present
 * ends the walk and blames nothing. */
BENCH_TEST(test_an_error_of_the_store_is_no_damage)
{
    static const int codes[] = {CAIRN_E_IO, CAIRN_E_NOT_FOUND, CAIRN_E_TIMED_OUT, CAIRN_E_DENIED};
    take_parts(bench);
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        for (size_t k = 0; k < ARRAY_LEN(depths); k++) {
            struct store_fault_rule rule = {
                .kind = FAULT_FAIL, .op = STORE_READ, .code = codes[i], .count = 1};
            assert_int_equal(store_fault_add(bench->rig.store, &rule), 0);
            int status = read_all(bench, depths[k], NULL);
            assert_int_equal(status, reader_is_damage(codes[i]) ? 0 : codes[i]);
            assert_int_equal(bench->found > 0, reader_is_damage(codes[i]));
            assert_int_equal(bench->objects, reader_is_damage(codes[i]) ? 2 : 0);
        }
    }
}

BENCH_TEST(test_the_rest_of_an_object_may_be_left)
{
    take_parts(bench);
    bench->visitor.unread = unread;
    for (size_t k = 0; k < ARRAY_LEN(depths); k++) {
        struct store_fault_rule rule = {
            .kind = FAULT_FAIL, .op = STORE_READ, .code = CAIRN_E_TIMED_OUT, .count = 1};
        assert_int_equal(store_fault_add(bench->rig.store, &rule), 0);
        assert_int_equal(read_all(bench, depths[k], NULL), 0);
        assert_int_equal(bench->unread, 1);
        assert_int_equal(bench->found, 0);
        assert_int_equal(bench->objects, 2);
        assert_true(bench->chunks < bench->count);
    }
}

BENCH_TEST(test_a_lost_page_says_nothing_about_the_others)
{
    struct diag diag = DIAG_INIT;
    struct store_name name = {.run = bench->rig.name,
                              .id = bench->id,
                              .kind = STORE_PAGE,
                              .number = 1, /* of the index */
                              .tag = 7010};
    rig_flip(&bench->rig, &name, 100);
    assert_int_equal(open_ckpt(bench, &diag), CAIRN_E_DAMAGED);
    assert_non_null(strstr(diag.text, "page 1 of checkpoint 10@1 of "));
    assert_int_equal(bench->lost, 1);
    assert_int_equal(bench->reader.part_count, 2);
    assert_int_equal(bench->reader.index_count, 0);
}

/* Goal: the objects of a part are read from a piece of it, and its checksums are believed. */
BENCH_TEST(test_an_object_table)
{
    struct reader_source *source = &bench->source;
    struct part_table table;
    struct object_id *ids = NULL;
    struct object_id object = rig_object(bench->id, 1);
    struct store_name part = {
        .run = bench->rig.name, .id = bench->id, .kind = STORE_PART, .number = 1, .tag = 7010};
    for (unsigned wrong = 0; wrong < 2; wrong++) {
        bench->wrong_reads = wrong; /* of the header; once is no damage */
        assert_int_equal(reader_table(source, &part, &table, &ids, NULL), 0);
        assert_int_equal(bench->wrong_reads, 0);
        assert_int_equal(table.rank, 1);
        assert_int_equal(table.object_count, 1);
        assert_int_equal(object_id_compare(ids, &object), 0);
        free(ids);
        ids = NULL;
    }
    rig_flip(&bench->rig, &part, PART_HEADER_BYTES); /* in the table */
    assert_int_equal(reader_table(source, &part, &table, &ids, NULL), CAIRN_E_DAMAGED);
    assert_null(ids);
    assert_int_equal(reader_table(source, &part, &table, NULL, NULL), 0); /* the header alone */
    struct store_fault_rule rule = {
        .kind = FAULT_FAIL, .op = STORE_FETCH, .skip = 1, .code = CAIRN_E_TIMED_OUT, .count = 1};
    assert_int_equal(store_fault_add(bench->rig.store, &rule), 0);
    assert_int_equal(reader_table(source, &part, &table, &ids, NULL), CAIRN_E_TIMED_OUT);
}

TEST(test_findings_have_names)
{
    assert_int_equal(reader_finding_of(0), READER_WHOLE);
    assert_int_equal(reader_finding_of(CAIRN_E_NOT_FOUND), READER_MISSING);
    assert_int_equal(reader_finding_of(CAIRN_E_DIGEST_MISMATCH), READER_DAMAGED);
    assert_int_equal(reader_finding_of(CAIRN_E_IO), READER_UNREADABLE);
    assert_int_equal(reader_finding_of(CAIRN_E_TIMED_OUT), READER_NOT_GIVEN);
    assert_int_equal(reader_finding_of(CAIRN_E_NO_MEMORY), READER_NOT_GIVEN);
    assert_false(reader_is_damage(0));
    assert_true(reader_is_damage(CAIRN_E_IO));
    assert_false(reader_is_damage(CAIRN_E_CANCELLED));
}

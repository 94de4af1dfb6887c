/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixed structs behind the golden files. Values are arbitrary but all different, so that two
 * fields that change places change the bytes. Never change a fixture: add one.
 */
#include "fixtures.h"
#include "tree_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

void codec_init(struct codec *codec)
{
    buf_init(&codec->buf, LIMIT_PART_BYTES);
    scratch_init(&codec->scratch, MIB(64));
}

void codec_fini(struct codec *codec)
{
    buf_fini(&codec->buf);
    scratch_fini(&codec->scratch);
}

struct token fixture_token(void)
{
    struct token token;
    for (size_t i = 0; i < sizeof token.bytes; i++) {
        token.bytes[i] = (uint8_t)(0xa0 + i);
    }
    return token;
}

struct uuid fixture_uuid(uint8_t first)
{
    struct uuid uuid;
    for (size_t i = 0; i < sizeof uuid.bytes; i++) {
        uuid.bytes[i] = (uint8_t)(first + i);
    }
    return uuid;
}

static struct digest digest_of(uint8_t first, uint8_t digest_alg)
{
    struct digest digest;
    memset(&digest, 0, sizeof digest);
    for (size_t i = 0; i < (digest_alg == DIGEST_SHA256 ? 32 : 16); i++) {
        digest.bytes[i] = (uint8_t)(first + i);
    }
    return digest;
}

static struct sha256 sha_of(uint8_t first)
{
    struct sha256 sha;
    for (size_t i = 0; i < sizeof sha.bytes; i++) {
        sha.bytes[i] = (uint8_t)(first + 3 * i);
    }
    return sha;
}

struct object_footer fixture_footer(void)
{
    static struct envelope envelopes[3];
    memset(envelopes, 0, sizeof envelopes);
    envelopes[0] = (struct envelope){.offset = 0,
                                     .stored_bytes = 65536,
                                     .plain_bytes = 65536,
                                     .stored_crc = 0x11223344,
                                     .encoding = ENCODING_RAW,
                                     .digest_alg = DIGEST_XXH3_128,
                                     .element_bytes = 4,
                                     .digest = digest_of(0x10, DIGEST_XXH3_128)};
    envelopes[1] = (struct envelope){.offset = 65536,
                                     .stored_bytes = 1000,
                                     .plain_bytes = 4096,
                                     .stored_crc = 0x55667788,
                                     .encoding = ENCODING_ZSTD,
                                     .digest_alg = DIGEST_SHA256,
                                     .element_bytes = 1,
                                     .digest = digest_of(0x20, DIGEST_SHA256)};
    envelopes[2] = (struct envelope){.offset = 66536,
                                     .stored_bytes = 77,
                                     .plain_bytes = 2048,
                                     .stored_crc = 0x99aabbcc,
                                     .encoding = ENCODING_PLANES_ZSTD,
                                     .digest_alg = DIGEST_XXH3_128,
                                     .element_bytes = 2,
                                     .digest = digest_of(0x30, DIGEST_XXH3_128)};
    return (struct object_footer){.id = {3, 500, UINT64_C(0x0123456789abcdef), 1, 9},
                                  .data_bytes = 69632,
                                  .envelope_count = 3,
                                  .envelopes = envelopes};
}

/* Chunks of the two parts: {object, cell, offset, stored, plain, crc, encoding, digest algorithm}.
 */
static struct part_chunk chunk(uint32_t object, uint32_t cell, uint64_t offset, uint32_t bytes)
{
    return (struct part_chunk){.object = object,
                               .cell = cell,
                               .offset = offset,
                               .stored_bytes = bytes,
                               .plain_bytes = bytes,
                               .stored_crc = 0xc0de0000 + (uint32_t)offset + cell,
                               .encoding = ENCODING_RAW,
                               .digest_alg = DIGEST_XXH3_128,
                               .digest = digest_of((uint8_t)(cell + offset / 64), DIGEST_XXH3_128)};
}

static struct part_box box1(uint32_t tensor, int64_t offset, int64_t length, uint32_t first,
                            uint32_t count)
{
    struct part_box box = {.tensor = tensor, .chunk_first = first, .chunk_count = count};
    box.box.ndim = 1;
    box.box.offset[0] = offset;
    box.box.length[0] = length;
    return box;
}

static struct part_tensor tensor1(const char *name, uint32_t dtype, int64_t length,
                                  uint32_t box_first)
{
    struct part_tensor tensor = {.name = name,
                                 .coordinate = "",
                                 .dtype = dtype,
                                 .placement = PLACEMENT_SHARDED,
                                 .box_first = box_first,
                                 .box_count = 1};
    tensor.shape.ndim = 1;
    tensor.shape.length[0] = length;
    return tensor;
}

/* Per rank: objects, tensors, boxes, blobs, chunks. */
static struct part_object part_objects[2][2];
static struct part_tensor part_tensors[2][4];
static struct part_box part_boxes[2][4];
static struct part_blob part_blobs[2][2];
static struct part_chunk part_chunks[2][6];
static struct part parts[2];

static void fill_tensors(uint32_t r)
{
    struct part_tensor *tensors = part_tensors[r];
    struct part_box *boxes = part_boxes[r];
    tensors[0] = tensor1("empty", CAIRN_F16, 0, 0);
    boxes[0] = box1(0, 0, 0, 0, 0);
    tensors[1] = tensor1("rng", CAIRN_U8, 5, 1);
    tensors[1].coordinate = r == 0 ? "dp=0" : "dp=1";
    tensors[1].placement = PLACEMENT_LOCAL;
    boxes[1] = box1(1, 0, 5, 0, 1);
    tensors[2] =
        tensor1("w.\xc3\xa9", CAIRN_F32, 3000, 2); /* 12000 bytes: cells of 1024, 1024, 952 */
    tensors[2].placement = PLACEMENT_REPLICATED;
    boxes[2] = box1(2, 0, 3000, 1, r == 0 ? 2 : 1);
    tensors[3] = tensor1("z", CAIRN_BF16, 100, 3);
    boxes[3] = r == 0 ? box1(3, 0, 64, 3, 1) : box1(3, 64, 36, 2, 1);
}

static uint32_t fill_chunks(uint32_t r)
{
    struct part_chunk *chunks = part_chunks[r];
    uint32_t n = 0;
    chunks[n++] = chunk(0, 0, 0, 5);
    if (r == 0) {
        chunks[n++] = chunk(0, 0, 4096, 4096);
        chunks[n++] = chunk(1, 1, 8192, 4096);
        chunks[n++] = chunk(0, 0, 8192, 128);
    } else {
        chunks[n++] = chunk(0, 2, 4096, 3808);
        chunks[n++] = chunk(1, 0, 0, 72);
    }
    part_blobs[r][0] =
        (struct part_blob){"extra", "", BLOB_BYTES, PLACEMENT_REPLICATED, 5000, n, r == 1 ? 2 : 0};
    if (r == 1) {
        chunks[n++] = chunk(0, 0, 12288, 4096);
        chunks[n++] = chunk(0, 1, 16384, 904);
    }
    part_blobs[r][1] =
        (struct part_blob){"state", r == 0 ? "dp=0" : "dp=1", BLOB_TREE, PLACEMENT_LOCAL, 33, n, 1};
    chunks[n++] = chunk(0, 0, 20480, 33);
    return n;
}

const struct part *fixture_part(uint32_t rank)
{
    for (uint32_t r = 0; r < 2; r++) {
        uint64_t writer = UINT64_C(0xfedcba9876543210) + r;
        part_objects[r][0] = (struct part_object){{7, 1200, writer, r, 1}, 0};
        part_objects[r][1] = (struct part_object){{6, 1100, writer + 16, r, 40}, 0};
        fill_tensors(r);
        parts[r] = (struct part){.run_uuid = fixture_uuid(0x40),
                                 .id = {7, 1200},
                                 .rank = r,
                                 .world_size = FIXTURE_WORLD,
                                 .writer = writer,
                                 .chunk_bytes = FIXTURE_CHUNK_BYTES,
                                 .object_count = 2,
                                 .tensor_count = 4,
                                 .box_count = 4,
                                 .blob_count = 2,
                                 .chunk_count = fill_chunks(r),
                                 .objects = part_objects[r],
                                 .tensors = part_tensors[r],
                                 .boxes = part_boxes[r],
                                 .blobs = part_blobs[r],
                                 .chunks = part_chunks[r]};
        part_count_objects(&parts[r]);
    }
    return &parts[rank];
}

struct page fixture_page_parts(void)
{
    static struct part_ref refs[2];
    refs[0] = (struct part_ref){0, 0xaaa1, 1234, sha_of(1), 777, 666, 4, 5};
    refs[1] = (struct part_ref){1, 0xaaa2, 2345, sha_of(2), 888, 555, 4, 6};
    return (struct page){.kind = PAGE_PARTS, .entry_count = 2, .parts = refs};
}

struct page fixture_page_index(void)
{
    static struct index_entry index[3];
    static uint32_t ranks[] = {0, 1, 2, 5, 6, 9};
    memset(index, 0, sizeof index);
    index[0] = (struct index_entry){.name = "a",
                                    .coordinate = "",
                                    .kind = INDEX_TENSOR,
                                    .placement = PLACEMENT_SHARDED,
                                    .dtype = CAIRN_BF16,
                                    .shape = {2, {4096, 512}},
                                    .plain_bytes = 4096 * 512 * 2,
                                    .rank_count = 6,
                                    .ranks = ranks};
    index[1] = (struct index_entry){.name = "a",
                                    .coordinate = "",
                                    .kind = INDEX_BLOB,
                                    .placement = PLACEMENT_REPLICATED,
                                    .blob_kind = BLOB_BYTES,
                                    .plain_bytes = 10,
                                    .rank_count = 1,
                                    .ranks = ranks};
    index[2] = (struct index_entry){.name = "b",
                                    .coordinate = "tp=1",
                                    .kind = INDEX_TENSOR,
                                    .placement = PLACEMENT_LOCAL,
                                    .dtype = CAIRN_I64,
                                    .shape = {0, {0}},
                                    .plain_bytes = 8,
                                    .rank_count = 1,
                                    .ranks = ranks + 3};
    return (struct page){.kind = PAGE_INDEX, .entry_count = 3, .index = index};
}

struct manifest fixture_manifest(void)
{
    static const char *tags[] = {"best", "n\xc3\xa4"
                                         "chtlich"};
    static struct metric metrics[] = {{"loss", 0.25}, {"lr", 3e-4}};
    static struct page_ref pages[2];
    struct manifest manifest;
    memset(&manifest, 0, sizeof manifest);
    pages[0] = (struct page_ref){PAGE_PARTS, 0, 2, 192, sha_of(5), ""};
    pages[1] = (struct page_ref){PAGE_INDEX, 0, 3, 250, sha_of(6), "a"};
    manifest.store_uuid = fixture_uuid(0x20);
    manifest.run_uuid = fixture_uuid(0x40);
    CHECK(run_name_set("nlp", "gpt-small.1", &manifest.run, NULL) == 0);
    manifest.id = (struct ckpt_id){7, 1200};
    manifest.parent = (struct ckpt_id){6, 1100};
    manifest.token = fixture_token();
    manifest.world_size = 2;
    manifest.chunk_bytes = FIXTURE_CHUNK_BYTES;
    manifest.created_wall_ns = INT64_C(1767225600123456789);
    manifest.tensor_count = 101;
    manifest.blob_count = 102;
    manifest.box_count = 103;
    manifest.chunk_count = 104;
    manifest.object_count = 105;
    manifest.plain_bytes = 106000;
    manifest.stored_bytes = 95000;
    manifest.metadata_bytes = 5;
    manifest.metadata = (const uint8_t *)"\x01\x00xyz";
    manifest.tag_count = 2;
    manifest.tags = tags;
    manifest.metric_count = 2;
    manifest.metrics = metrics;
    manifest.page_count = 2;
    manifest.pages = pages;
    return manifest;
}

static void encode_envelope(struct buf *buf)
{
    struct object_footer footer = fixture_footer();
    uint8_t bytes[ENVELOPE_BYTES];
    envelope_encode(&footer.envelopes[1], bytes);
    buf_put(buf, sizeof bytes, bytes);
}

static int recode_envelope(size_t bytes, const uint8_t *data, struct scratch *scratch,
                           struct buf *buf, struct diag *diag)
{
    struct envelope envelope;
    uint8_t again[ENVELOPE_BYTES];
    (void)scratch;
    if (bytes != ENVELOPE_BYTES) {
        return CAIRN_E_FORMAT; /* its length is part of the type */
    }
    int rc = envelope_decode(data, &envelope, diag);
    if (rc == 0) {
        envelope_encode(&envelope, again);
        buf_put(buf, sizeof again, again);
    }
    return rc;
}

static void encode_footer(struct buf *buf)
{
    struct object_footer footer = fixture_footer();
    object_footer_encode(&footer, buf);
}

static int recode_footer(size_t bytes, const uint8_t *data, struct scratch *scratch,
                         struct buf *buf, struct diag *diag)
{
    struct object_footer footer;
    uint64_t object_bytes = fixture_footer().data_bytes + object_footer_bytes(3);
    int rc = object_footer_decode(bytes, data, object_bytes, scratch, &footer, diag);
    if (rc == 0) {
        object_footer_encode(&footer, buf);
    }
    return rc;
}

static void encode_part_0(struct buf *buf) { part_encode(fixture_part(0), buf); }
static void encode_part_1(struct buf *buf) { part_encode(fixture_part(1), buf); }

static int recode_part(size_t bytes, const uint8_t *data, struct scratch *scratch, struct buf *buf,
                       struct diag *diag)
{
    struct part part;
    int rc = part_decode(bytes, data, scratch, &part, diag);
    if (rc == 0) {
        part_encode(&part, buf);
    }
    return rc;
}

static void encode_page_parts(struct buf *buf)
{
    struct page page = fixture_page_parts();
    page_encode(&page, buf);
}

static void encode_page_index(struct buf *buf)
{
    struct page page = fixture_page_index();
    page_encode(&page, buf);
}

static int recode_page(size_t bytes, const uint8_t *data, struct scratch *scratch, struct buf *buf,
                       struct diag *diag)
{
    struct page page;
    int rc = page_decode(bytes, data, scratch, &page, diag);
    if (rc == 0) {
        page_encode(&page, buf);
    }
    return rc;
}

static void encode_manifest(struct buf *buf)
{
    struct manifest manifest = fixture_manifest();
    manifest_encode(&manifest, buf);
}

static int recode_manifest(size_t bytes, const uint8_t *data, struct scratch *scratch,
                           struct buf *buf, struct diag *diag)
{
    struct manifest manifest;
    int rc = manifest_decode(bytes, data, scratch, &manifest, diag);
    if (rc == 0) {
        manifest_encode(&manifest, buf);
    }
    return rc;
}

static struct record_value text_value(const char *text)
{
    return (struct record_value){strlen(text), (const uint8_t *)text};
}

static struct record_update fixture_update(void)
{
    static struct record_change changes[3];
    changes[0] = (struct record_change){"term/0000000000000001", false, text_value("first")};
    changes[1] = (struct record_change){"open/0000000000000001/0000000000000002", true, {0, NULL}};
    changes[2] = (struct record_change){"head", false, {0, NULL}};
    return (struct record_update){.change_count = 3, .changes = changes};
}

static void encode_update(struct buf *buf)
{
    struct record_update update = fixture_update();
    struct sha256 previous = sha_of(9);
    record_update_encode(&update, 42, previous.bytes, buf);
}

static int recode_update(size_t bytes, const uint8_t *data, struct scratch *scratch,
                         struct buf *buf, struct diag *diag)
{
    struct record_update update;
    uint64_t version = 0;
    uint8_t previous[32];
    int rc = record_update_decode(bytes, data, scratch, &update, &version, previous, diag);
    if (rc == 0) {
        record_update_encode(&update, version, previous, buf);
    }
    return rc;
}

static void encode_snapshot(struct buf *buf)
{
    struct record *record = NULL;
    struct record_update update = fixture_update();
    struct sha256 last = sha_of(11);
    CHECK(record_new(&record) == 0);
    CHECK(record_apply(record, &update, NULL) == 0);
    record_set_version(record, 43);
    record_snapshot_encode(record, last.bytes, buf);
    record_free(record);
}

static int recode_snapshot(size_t bytes, const uint8_t *data, struct scratch *scratch,
                           struct buf *buf, struct diag *diag)
{
    struct record *record = NULL;
    uint8_t last[32];
    (void)scratch;
    int rc = record_snapshot_decode(bytes, data, &record, last, diag);
    if (rc == 0) {
        record_snapshot_encode(record, last, buf);
        record_free(record);
    }
    return rc;
}

static const struct entry_info info_entry = {
    {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}, 65536, 17};
static const struct entry_head head_entry = {18, {{19, 20}}};
static const struct entry_term term_entry = {{{21, 22}}, 23, 24, {25, 26}, 27};
static const struct entry_seal seal_entry = {28, 29, 30, {{31, 32}}};
static const struct entry_dead dead_entry = {33, CAIRN_E_MISSING_RANKS, "rank 3 never came"};
static const struct entry_health health_entry = {HEALTH_DAMAGED, "object 1 of rank 0"};
static const struct entry_restore restore_entry = {
    34, 1, 35, 36, RESTORE_FAILED, {37, 38}, {39, 40}, CAIRN_E_DAMAGED, "all are damaged", 0};
static const struct entry_restore leased_entry = {34,       1,        35, 36, RESTORE_RUNNING,
                                                  {37, 38}, {39, 40}, 0,  "", 71};
static const struct entry_gc gc_entry = {72, 73};
static const struct entry_report report_entry = {41, 0, ""};
static const struct entry_chain chain_entry = {.kind = CHAIN_COMMIT,
                                               .seq = 42,
                                               .previous = {{43, 44}},
                                               .id = {45, 46},
                                               .wall_ns = 47,
                                               .manifest_sha256 = {{48, 49}},
                                               .manifest_bytes = 50,
                                               .plain_bytes = 51,
                                               .stored_bytes = 52,
                                               .world_size = 53,
                                               .open_id = 54};
static const struct entry_chain based_entry = {.kind = CHAIN_COMMIT,
                                               .seq = 42,
                                               .previous = {{43, 44}},
                                               .id = {45, 46},
                                               .wall_ns = 47,
                                               .manifest_sha256 = {{48, 49}},
                                               .manifest_bytes = 50,
                                               .plain_bytes = 51,
                                               .stored_bytes = 52,
                                               .world_size = 53,
                                               .open_id = 54,
                                               .base = {45, 40}};
static const struct ckpt_id marked_ids[] = {{57, 58}, {57, 60}, {61, 1}};
static const struct entry_chain marked_entry = {.kind = CHAIN_FORGET,
                                                .seq = 55,
                                                .previous = {{56}},
                                                .id = {57, 58},
                                                .wall_ns = -59,
                                                .actor = "cron@node7",
                                                .reason = "keep-last 3",
                                                .cycle = 62,
                                                .id_count = 3,
                                                .ids = marked_ids};
static const struct entry_chain pinned_entry = {.kind = CHAIN_PIN,
                                                .seq = 63,
                                                .previous = {{64}},
                                                .id = {57, 58},
                                                .wall_ns = 65,
                                                .actor = "ada",
                                                .reason = "",
                                                .id_count = 1,
                                                .ids = marked_ids};
static const struct entry_chain repaired_entry = {.kind = CHAIN_REPAIR,
                                                  .seq = 66,
                                                  .previous = {{67}},
                                                  .id = {57, 58},
                                                  .wall_ns = 68,
                                                  .actor = "ada@login1",
                                                  .reason = "object 58@57/0-1-1: 1 chunks",
                                                  .id_count = 1,
                                                  .ids = marked_ids};
static const struct ckpt_id no_ids[] = {{0, 0}};
static const struct entry_chain removed_entry = {.kind = CHAIN_REMOVE,
                                                 .seq = 69,
                                                 .previous = {{70}},
                                                 .wall_ns = 71,
                                                 .actor = "ada@login1",
                                                 .reason = "a bad idea",
                                                 .cycle = 72,
                                                 .id_count = 1,
                                                 .ids = no_ids};
static const struct entry_chain forget_entry = {
    .kind = CHAIN_FORGET, .seq = 55, .previous = {{56}}, .id = {57, 58}, .wall_ns = -59};
static const char *open_tags[] = {"t1", "t2"};
static const char *open_names[] = {"loss"};
static double open_values[] = {-1.5};
static const char *note_tags[] = {"best", "keep"};
static struct metric note_metrics[] = {{"loss", 0.25}};
static const struct entry_note note_entry = {2, 70, 2, 1, note_tags, note_metrics};
static const struct entry_day day_entry = {71, 72, 73, 0, 0, 0};
static const struct entry_ended ended_entry = {81,       82,  83,     {84, 85},
                                               {86, 87}, -88, "disk", "ada@login1"};
static const struct entry_owner owner_entry = {91, "ada@login1"};
static const struct entry_use use_entry = {92, 93};
static const struct entry_left left_entry = {94};
static const struct entry_day day_times_entry = {71, 72, 73, 74, 75, 76};
static const struct entry_open open_entry = {
    60, 61, {62, 63}, 3, 2, 1, (const uint8_t *)"m\0d", open_tags, open_names, open_values};

/* An encoder of a fixture and its recoder; label: the golden file's, kind: the codec's. */
#define ENTRY_FIXTURE(label, kind)                                                              \
    static void encode_entry_##label(struct buf *buf)                                           \
    {                                                                                           \
        entry_##kind##_encode(&label##_entry, buf);                                             \
    }                                                                                           \
    static int recode_entry_##label(size_t bytes, const uint8_t *data, struct scratch *scratch, \
                                    struct buf *buf, struct diag *diag)                         \
    {                                                                                           \
        struct entry_##kind entry;                                                              \
        struct record_value value = {bytes, data};                                              \
        int rc = entry_##kind##_decode(value, scratch, &entry, diag);                           \
        if (rc == 0) {                                                                          \
            entry_##kind##_encode(&entry, buf);                                                 \
        }                                                                                       \
        return rc;                                                                              \
    }
ENTRY_FIXTURE(info, info)
ENTRY_FIXTURE(head, head)
ENTRY_FIXTURE(chain, chain)
ENTRY_FIXTURE(based, chain)
ENTRY_FIXTURE(forget, chain)
ENTRY_FIXTURE(marked, chain)
ENTRY_FIXTURE(pinned, chain)
ENTRY_FIXTURE(repaired, chain)
ENTRY_FIXTURE(removed, chain)
ENTRY_FIXTURE(leased, restore)
ENTRY_FIXTURE(gc, gc)
ENTRY_FIXTURE(term, term)
ENTRY_FIXTURE(open, open)
ENTRY_FIXTURE(seal, seal)
ENTRY_FIXTURE(dead, dead)
ENTRY_FIXTURE(health, health)
ENTRY_FIXTURE(restore, restore)
ENTRY_FIXTURE(report, report)
ENTRY_FIXTURE(note, note)
ENTRY_FIXTURE(day, day)
ENTRY_FIXTURE(ended, ended)
ENTRY_FIXTURE(owner, owner)
ENTRY_FIXTURE(left, left)
ENTRY_FIXTURE(use, use)
ENTRY_FIXTURE(day_times, day)

static void encode_tree(struct buf *buf)
{
    static const uint8_t big[] = {0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0};
    static const double complex_pi[2] = {3.5, -0.0};
    struct tree_builder builder;
    tree_begin(&builder, buf);
    tree_put(&builder, TREE_DICT, 10, 0, NULL);
    tree_put_str(&builder, "lr");
    tree_put_float(&builder, 0.1);
    tree_put_int(&builder, -7);
    tree_put(&builder, TREE_LIST, 4, 0, NULL);
    tree_put(&builder, TREE_NULL, 0, 0, NULL);
    tree_put(&builder, TREE_TRUE, 0, 0, NULL);
    tree_put(&builder, TREE_FALSE, 0, 0, NULL);
    tree_put(&builder, TREE_INT, 0, sizeof big, big);
    tree_put(&builder, TREE_TUPLE, 2, 0, NULL);
    tree_put_int(&builder, 300);
    tree_put_str(&builder, "k\xc3\xa9y");
    tree_put(&builder, TREE_COMPLEX, 0, sizeof complex_pi, complex_pi);
    tree_put_str(&builder, "milestones");
    tree_put(&builder, TREE_TAGGED, 1, 7, "Counter");
    tree_put(&builder, TREE_DICT, 2, 0, NULL);
    tree_put_int(&builder, 30);
    tree_put_int(&builder, 1);
    tree_put_str(&builder, "raw");
    tree_put(&builder, TREE_BYTES, 0, 4, "\x00\x01\xfe\xff");
    tree_end(&builder);
}

static int recode_tree(size_t bytes, const uint8_t *data, struct scratch *scratch, struct buf *buf,
                       struct diag *diag)
{
    struct tree_builder builder;
    struct tree_iter iter;
    struct tree_node node;
    (void)scratch;
    int rc = tree_check(bytes, data, diag);
    if (rc != 0) {
        return rc;
    }
    tree_begin(&builder, buf);
    tree_iter_init(&iter, bytes, data);
    while (tree_next(&iter, &node)) {
        tree_put(&builder, node.kind, node.child_count, node.bytes, node.data);
    }
    tree_end(&builder);
    return iter.status;
}

const struct fixture fixtures[] = {
    {"envelope", true, encode_envelope, recode_envelope},
    {"object_footer", true, encode_footer, recode_footer},
    {"part_0", true, encode_part_0, recode_part},
    {"part_1", true, encode_part_1, recode_part},
    {"page_parts", true, encode_page_parts, recode_page},
    {"page_index", true, encode_page_index, recode_page},
    {"manifest", true, encode_manifest, recode_manifest},
    {"record_update", true, encode_update, recode_update},
    {"record_snapshot", true, encode_snapshot, recode_snapshot},
    {"tree", true, encode_tree, recode_tree},
    {"entry_info", false, encode_entry_info, recode_entry_info},
    {"entry_head", false, encode_entry_head, recode_entry_head},
    {"entry_chain_commit", false, encode_entry_chain, recode_entry_chain},
    {"entry_chain_base", false, encode_entry_based, recode_entry_based},
    {"entry_chain_forget", false, encode_entry_forget, recode_entry_forget},
    {"entry_chain_marked", false, encode_entry_marked, recode_entry_marked},
    {"entry_chain_pin", false, encode_entry_pinned, recode_entry_pinned},
    {"entry_chain_repair", false, encode_entry_repaired, recode_entry_repaired},
    {"entry_chain_remove", false, encode_entry_removed, recode_entry_removed},
    {"entry_restore_leased", false, encode_entry_leased, recode_entry_leased},
    {"entry_gc", false, encode_entry_gc, recode_entry_gc},
    {"entry_term", false, encode_entry_term, recode_entry_term},
    {"entry_open", false, encode_entry_open, recode_entry_open},
    {"entry_seal", false, encode_entry_seal, recode_entry_seal},
    {"entry_dead", false, encode_entry_dead, recode_entry_dead},
    {"entry_health", false, encode_entry_health, recode_entry_health},
    {"entry_restore", false, encode_entry_restore, recode_entry_restore},
    {"entry_report", false, encode_entry_report, recode_entry_report},
    {"entry_note", false, encode_entry_note, recode_entry_note},
    {"entry_day", false, encode_entry_day, recode_entry_day},
    {"entry_owner", false, encode_entry_owner, recode_entry_owner},
    {"entry_use", false, encode_entry_use, recode_entry_use},
    {"entry_left", false, encode_entry_left, recode_entry_left},
    {"entry_ended", false, encode_entry_ended, recode_entry_ended},
    {"entry_day_times", false, encode_entry_day_times, recode_entry_day_times},
};
const size_t fixture_count = ARRAY_LEN(fixtures);

struct buf fixture_bytes(const struct fixture *fixture)
{
    struct buf buf;
    buf_init(&buf, MIB(8));
    fixture->encode(&buf);
    CHECK(buf_status(&buf) == 0);
    return buf;
}

uint64_t prng_next(struct prng *prng)
{
    prng->state ^= prng->state >> 12;
    prng->state ^= prng->state << 25;
    prng->state ^= prng->state >> 27;
    return prng->state * UINT64_C(2685821657736338717);
}

uint64_t prng_below(struct prng *prng, uint64_t bound) { return prng_next(prng) % bound; }

struct prng prng_init(const char *test, uint64_t fallback)
{
    const char *text = getenv("CAIRN_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : fallback;
    printf("%s: CAIRN_TEST_SEED=%llu\n", test, (unsigned long long)seed);
    return (struct prng){seed * 2 + 1};
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A part keeps every field; what breaks its order, ranges or grid is refused; a large part comes
 * back. Method: the fixture with one field spoiled at a time; a part of many pages.
 */
#include <stdio.h>

#include "base/check.h"
#include "fixtures.h"
#include "support/unit_test.h"

static int recode(const struct part *part, struct scratch *scratch, struct part *ret,
                  struct diag *diag)
{
    struct buf buf;
    buf_init(&buf, LIMIT_PART_BYTES);
    part_encode(part, &buf);
    assert_int_equal(buf_status(&buf), 0);
    int rc = part_decode(buf.bytes, buf.data, scratch, ret, diag);
    buf_fini(&buf);
    return rc;
}

static void assert_equal_parts(const struct part *a, const struct part *b)
{
    assert_memory_equal(&a->run_uuid, &b->run_uuid, sizeof a->run_uuid);
    assert_true(ckpt_id_equal(a->id, b->id));
    assert_true(a->rank == b->rank && a->world_size == b->world_size && a->writer == b->writer);
    assert_int_equal(a->chunk_bytes, b->chunk_bytes);
    assert_true(a->object_count == b->object_count && a->tensor_count == b->tensor_count &&
                a->box_count == b->box_count && a->blob_count == b->blob_count &&
                a->chunk_count == b->chunk_count);
    for (uint32_t i = 0; i < a->object_count; i++) {
        assert_true(object_id_equal(&a->objects[i].id, &b->objects[i].id));
        assert_int_equal(a->objects[i].bytes_used, b->objects[i].bytes_used);
    }
    for (uint32_t i = 0; i < a->tensor_count; i++) {
        const struct part_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        assert_string_equal(x->name, y->name);
        assert_string_equal(x->coordinate, y->coordinate);
        assert_true(x->dtype == y->dtype && x->placement == y->placement &&
                    shape_equal(&x->shape, &y->shape));
        assert_true(x->box_first == y->box_first && x->box_count == y->box_count);
    }
    for (uint32_t i = 0; i < a->box_count; i++) {
        const struct part_box *x = &a->boxes[i], *y = &b->boxes[i];
        assert_true(x->tensor == y->tensor && box_equal(&x->box, &y->box));
        assert_true(x->chunk_first == y->chunk_first && x->chunk_count == y->chunk_count);
    }
    for (uint32_t i = 0; i < a->blob_count; i++) {
        const struct part_blob *x = &a->blobs[i], *y = &b->blobs[i];
        assert_string_equal(x->name, y->name);
        assert_string_equal(x->coordinate, y->coordinate);
        assert_true(x->kind == y->kind && x->placement == y->placement &&
                    x->plain_bytes == y->plain_bytes);
        assert_true(x->chunk_first == y->chunk_first && x->chunk_count == y->chunk_count);
    }
    for (uint32_t i = 0; i < a->chunk_count; i++) {
        const struct part_chunk *x = &a->chunks[i], *y = &b->chunks[i];
        assert_true(x->object == y->object && x->cell == y->cell && x->offset == y->offset);
        assert_true(x->stored_bytes == y->stored_bytes && x->plain_bytes == y->plain_bytes &&
                    x->stored_crc == y->stored_crc && x->encoding == y->encoding &&
                    x->digest_alg == y->digest_alg);
        assert_memory_equal(&x->digest, &y->digest, sizeof x->digest);
    }
}

TEST(test_every_field_comes_back)
{
    for (uint32_t r = 0; r < FIXTURE_WORLD; r++) {
        struct scratch scratch;
        struct part again;
        scratch_init(&scratch, MIB(1));
        assert_int_equal(recode(fixture_part(r), &scratch, &again, NULL), 0);
        assert_equal_parts(fixture_part(r), &again);
        const struct part_tensor *found = part_find_tensor(&again, "w.\xc3\xa9", "");
        assert_ptr_equal(found, &again.tensors[2]);
        assert_null(part_find_tensor(&again, "w.\xc3\xa9", "dp=0"));
        assert_null(part_find_tensor(&again, "", ""));
        assert_ptr_equal(part_find_blob(&again, "extra", ""), &again.blobs[0]);
        assert_null(part_find_blob(&again, "zzz", ""));
        scratch_fini(&scratch);
    }
}

struct spoil {
    const char *what;
    int code;
    void (*spoil)(struct part *part);
};

static void spoil_rank(struct part *part) { part->rank = 2; }
static void spoil_term(struct part *part) { part->id.term = 0; }
static void spoil_chunk_bytes(struct part *part) { part->chunk_bytes = 4097; }
static void spoil_tensor_order(struct part *part) { part->tensors[3].name = "e"; }
static void spoil_tensor_twice(struct part *part) { part->tensors[3].name = part->tensors[2].name; }
static void spoil_tensor_name(struct part *part) { part->tensors[0].name = "e\xff"; }
static void spoil_placement(struct part *part) { part->tensors[0].placement = 4; }
static void spoil_coordinate(struct part *part) { part->tensors[1].coordinate = ""; }
static void spoil_no_local(struct part *part) { part->tensors[2].coordinate = "dp=1"; }
static void spoil_dtype(struct part *part) { part->tensors[0].dtype = 99; }
static void spoil_shape(struct part *part) { part->tensors[2].shape.length[0] = -1; }
static void spoil_box_range(struct part *part) { part->tensors[2].box_first = 1; }
static void spoil_box_count(struct part *part) { part->tensors[3].box_count = 2; }
static void spoil_box_tensor(struct part *part) { part->boxes[2].tensor = 1; }
static void spoil_box_outside(struct part *part) { part->boxes[3].box.offset[0] = 37; }
static void spoil_chunk_range(struct part *part) { part->boxes[2].chunk_first = 0; }
static void spoil_cell_order(struct part *part) { part->chunks[2].cell = 0; }
static void spoil_cell_outside(struct part *part) { part->chunks[2].cell = 3; }
static void spoil_plain(struct part *part)
{
    part->chunks[1].plain_bytes = part->chunks[1].stored_bytes = 4095;
}
static void spoil_raw(struct part *part) { part->chunks[1].stored_bytes = 100; }
static void spoil_object(struct part *part) { part->chunks[1].object = 2; }
static void spoil_object_end(struct part *part) { part->chunks[1].offset = LIMIT_OBJECT_BYTES; }
static void spoil_encoding(struct part *part) { part->chunks[1].encoding = 9; }
static void spoil_digest_alg(struct part *part) { part->chunks[1].digest_alg = 0; }
static void spoil_digest(struct part *part) { part->chunks[1].digest.bytes[20] = 1; }
static void spoil_used(struct part *part) { part->objects[0].bytes_used++; }
static void spoil_unused(struct part *part)
{
    part->objects[1].bytes_used = 0;
    part->objects[0].bytes_used += 4096;
    part->chunks[2].object = 0;
}
static void spoil_object_twice(struct part *part) { part->objects[1].id = part->objects[0].id; }
static void spoil_blob_kind(struct part *part) { part->blobs[0].kind = 3; }
static void spoil_blob_order(struct part *part) { part->blobs[0].name = "t"; }
static void spoil_blob_chunks(struct part *part) { part->blobs[1].plain_bytes = 34; }
static void spoil_blob_outside(struct part *part) { part->chunks[part->chunk_count - 1].cell = 1; }

TEST(test_what_is_broken_is_refused)
{
    static const struct spoil spoils[] = {
        {"rank", CAIRN_E_FORMAT, spoil_rank},
        {"term", CAIRN_E_FORMAT, spoil_term},
        {"chunk size", CAIRN_E_FORMAT, spoil_chunk_bytes},
        {"tensor order", CAIRN_E_FORMAT, spoil_tensor_order},
        {"tensor twice", CAIRN_E_FORMAT, spoil_tensor_twice},
        {"tensor name", CAIRN_E_FORMAT, spoil_tensor_name},
        {"placement", CAIRN_E_FORMAT, spoil_placement},
        {"coordinate", CAIRN_E_FORMAT, spoil_coordinate},
        {"coordinate of no local", CAIRN_E_FORMAT, spoil_no_local},
        {"dtype", CAIRN_E_UNSUPPORTED, spoil_dtype},
        {"shape", CAIRN_E_FORMAT, spoil_shape},
        {"box range", CAIRN_E_FORMAT, spoil_box_range},
        {"box count", CAIRN_E_FORMAT, spoil_box_count},
        {"box tensor", CAIRN_E_FORMAT, spoil_box_tensor},
        {"box outside", CAIRN_E_FORMAT, spoil_box_outside},
        {"chunk range", CAIRN_E_FORMAT, spoil_chunk_range},
        {"cell order", CAIRN_E_FORMAT, spoil_cell_order},
        {"cell outside", CAIRN_E_FORMAT, spoil_cell_outside},
        {"plain bytes", CAIRN_E_FORMAT, spoil_plain},
        {"raw", CAIRN_E_FORMAT, spoil_raw},
        {"object", CAIRN_E_FORMAT, spoil_object},
        {"object end", CAIRN_E_FORMAT, spoil_object_end},
        {"encoding", CAIRN_E_UNSUPPORTED, spoil_encoding},
        {"digest algorithm", CAIRN_E_UNSUPPORTED, spoil_digest_alg},
        {"digest", CAIRN_E_FORMAT, spoil_digest},
        {"bytes used", CAIRN_E_FORMAT, spoil_used},
        {"unused object", CAIRN_E_FORMAT, spoil_unused},
        {"object twice", CAIRN_E_FORMAT, spoil_object_twice},
        {"blob kind", CAIRN_E_UNSUPPORTED, spoil_blob_kind},
        {"blob order", CAIRN_E_FORMAT, spoil_blob_order},
        {"blob chunks", CAIRN_E_FORMAT, spoil_blob_chunks},
        {"blob outside", CAIRN_E_FORMAT, spoil_blob_outside}};
    for (size_t i = 0; i < ARRAY_LEN(spoils); i++) {
        struct scratch scratch;
        struct part part = *fixture_part(0), again;
        struct diag diag = DIAG_INIT;
        scratch_init(&scratch, MIB(1));
        spoils[i].spoil(&part);
        int rc = recode(&part, &scratch, &again, &diag);
        if (rc != spoils[i].code || diag.code != rc) {
            fail_msg("%s: %d, not %d (%s)", spoils[i].what, rc, spoils[i].code, diag.text);
        }
        scratch_fini(&scratch);
    }
}

TEST(test_little_memory_is_an_error)
{
    struct buf buf;
    struct part part;
    int rc = CAIRN_E_NO_MEMORY;
    buf_init(&buf, MIB(1));
    part_encode(fixture_part(1), &buf);
    for (size_t max = 0; rc != 0; max += 64) {
        struct scratch scratch;
        scratch_init(&scratch, max);
        rc = part_decode(buf.bytes, buf.data, &scratch, &part, NULL);
        assert_true(rc == 0 || rc == CAIRN_E_NO_MEMORY);
        scratch_fini(&scratch);
    }
    buf_fini(&buf);
}

/* A part of n tensors, a box with one cell each: more than one page of checksums. */
CODEC_TEST(test_a_large_part_comes_back_and_a_flip_in_any_page_is_found)
{
    enum { N = 5000 };
    static struct part_tensor tensors[N];
    static struct part_box boxes[N];
    static struct part_chunk chunks[N];
    static char names[N][16];
    struct part_object object = {.id = {1, 1, 1, 0, 1}};
    struct part part = *fixture_part(0), again;
    for (uint32_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%06u", i);
        tensors[i] =
            (struct part_tensor){names[i], "", CAIRN_F32, PLACEMENT_SHARDED, {1, {4}}, i, 1};
        boxes[i] = (struct part_box){i, {1, {0}, {4}}, i, 1};
        chunks[i] = (struct part_chunk){
            .offset = 16 * i, .stored_bytes = 16, .plain_bytes = 16, .digest_alg = DIGEST_XXH3_128};
    }
    part.objects = &object;
    part.tensors = tensors;
    part.boxes = boxes;
    part.chunks = chunks;
    part.object_count = 1;
    part.tensor_count = part.box_count = part.chunk_count = N;
    part.blob_count = 0;
    part_count_objects(&part);
    assert_int_equal(recode(&part, scratch, &again, NULL), 0);
    assert_equal_parts(&part, &again);
    part_encode(&part, buf);
    for (size_t at = 0; at < buf->bytes; at += 4099) {
        struct diag diag = DIAG_INIT;
        buf->data[at] ^= 0x10;
        int rc = part_decode(buf->bytes, buf->data, scratch, &again, &diag);
        assert_true(rc == CAIRN_E_DAMAGED || rc == CAIRN_E_FORMAT);
        buf->data[at] ^= 0x10;
    }
}

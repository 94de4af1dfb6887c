/* SPDX-License-Identifier: Apache-2.0
 *
 * Manifests, pages, footers and envelopes keep every field and their limits; the index of parts is
 * right. Method: fixtures decoded and compared field by field; one field spoiled at a time.
 */
#include <stdio.h>

#include "base/check.h"
#include "fixtures.h"
#include "support/alloc_fault.h"
#include "support/unit_test.h"

static int recode(const struct manifest *manifest, struct scratch *scratch, struct manifest *ret,
                  struct diag *diag)
{
    struct buf buf;
    buf_init(&buf, MIB(1));
    manifest_encode(manifest, &buf);
    int rc = buf_status(&buf);
    rc = rc != 0 ? rc : manifest_decode(buf.bytes, buf.data, scratch, ret, diag);
    buf_fini(&buf);
    return rc;
}

CODEC_TEST(test_every_field_of_a_manifest_comes_back)
{
    struct manifest a = fixture_manifest(), b;
    assert_int_equal(recode(&a, scratch, &b, NULL), 0);
    assert_memory_equal(&a.run, &b.run, sizeof a.run);
    assert_memory_equal(&a.store_uuid, &b.store_uuid, sizeof a.store_uuid);
    assert_memory_equal(&a.run_uuid, &b.run_uuid, sizeof a.run_uuid);
    assert_true(ckpt_id_equal(a.id, b.id) && ckpt_id_equal(a.parent, b.parent) &&
                token_equal(&a.token, &b.token));
    assert_true(a.world_size == b.world_size && a.chunk_bytes == b.chunk_bytes &&
                a.created_wall_ns == b.created_wall_ns);
    assert_true(a.tensor_count == b.tensor_count && a.blob_count == b.blob_count &&
                a.box_count == b.box_count && a.chunk_count == b.chunk_count &&
                a.object_count == b.object_count);
    assert_true(a.plain_bytes == b.plain_bytes && a.stored_bytes == b.stored_bytes);
    assert_int_equal(b.metadata_bytes, 5);
    assert_memory_equal(a.metadata, b.metadata, 5);
    assert_true(b.tag_count == 2 && b.metric_count == 2 && b.page_count == 2);
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(a.tags[i], b.tags[i]);
        assert_string_equal(a.metrics[i].name, b.metrics[i].name);
        assert_memory_equal(&a.metrics[i].value, &b.metrics[i].value, sizeof(double));
        assert_string_equal(a.pages[i].first_name, b.pages[i].first_name);
        assert_memory_equal(&a.pages[i].sha256, &b.pages[i].sha256, 32);
        assert_true(a.pages[i].kind == b.pages[i].kind && a.pages[i].bytes == b.pages[i].bytes &&
                    a.pages[i].entry_count == b.pages[i].entry_count);
    }
}

CODEC_TEST(test_limits_of_a_manifest)
{
    static uint8_t metadata[LIMIT_METADATA_BYTES + 1];
    static char name[LIMIT_NAME_BYTES + 1];
    static struct page_ref pages[80];
    struct manifest manifest = fixture_manifest(), again;
    manifest.metadata = metadata;
    manifest.metadata_bytes = LIMIT_METADATA_BYTES;
    assert_int_equal(recode(&manifest, scratch, &again, NULL), 0);
    manifest.metadata_bytes++;
    assert_int_equal(recode(&manifest, scratch, &again, NULL), CAIRN_E_TOO_LARGE);
    manifest.metadata_bytes = 0;
    memset(name, 'n', LIMIT_NAME_BYTES);
    for (size_t i = 0; i < ARRAY_LEN(pages); i++) {
        pages[i] = (struct page_ref){
            .kind = PAGE_INDEX, .entry_count = 1, .bytes = 100, .first_name = name};
    }
    manifest.pages = pages;
    manifest.page_count = 50;
    assert_int_equal(recode(&manifest, scratch, &again, NULL), 0);
    manifest.page_count = 80; /* above 64 KiB */
    assert_int_equal(recode(&manifest, scratch, &again, NULL), CAIRN_E_TOO_LARGE);
    manifest.page_count = 1;
    pages[0].level = 1;
    assert_int_equal(recode(&manifest, scratch, &again, NULL), CAIRN_E_UNSUPPORTED);
    pages[0].level = 0;
    pages[0].bytes = LIMIT_PAGE_BYTES + 1;
    assert_int_equal(recode(&manifest, scratch, &again, NULL), CAIRN_E_FORMAT);
}

CODEC_TEST(test_the_index_of_the_fixture_parts)
{
    static const struct {
        const char *name, *coordinate;
        enum index_kind kind;
        uint64_t bytes;
        uint32_t ranks, first;
    } want[] = {
        {"empty", "", INDEX_TENSOR, 0, 0, 0},          {"extra", "", INDEX_BLOB, 5000, 1, 1},
        {"rng", "dp=0", INDEX_TENSOR, 5, 1, 0},        {"rng", "dp=1", INDEX_TENSOR, 5, 1, 1},
        {"state", "dp=0", INDEX_BLOB, 33, 1, 0},       {"state", "dp=1", INDEX_BLOB, 33, 1, 1},
        {"w.\xc3\xa9", "", INDEX_TENSOR, 12000, 2, 0}, {"z", "", INDEX_TENSOR, 200, 2, 0}};
    struct part parts[2] = {*fixture_part(0), *fixture_part(1)};
    struct page page, again;
    assert_int_equal(index_build(2, parts, scratch, &page, NULL), 0);
    page_encode(&page, buf);
    assert_int_equal(page_fit(&page, 0), ARRAY_LEN(want));
    assert_int_equal(page_decode(buf->bytes, buf->data, scratch, &again, NULL), 0);
    assert_int_equal(again.entry_count, ARRAY_LEN(want));
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        const struct index_entry *entry = index_find(again.entry_count, again.index, want[i].name,
                                                     want[i].coordinate, want[i].kind);
        assert_ptr_equal(entry, &again.index[i]);
        assert_int_equal(entry->plain_bytes, want[i].bytes);
        assert_int_equal(entry->rank_count, want[i].ranks);
        assert_true(want[i].ranks == 0 || entry->ranks[0] == want[i].first);
    }
    assert_null(index_find(again.entry_count, again.index, "z", "", INDEX_BLOB));
}

TEST(test_a_large_index_is_cut_into_pages)
{
    enum { N = 60000 };
    static struct index_entry entries[N];
    static char names[N][100];
    static uint32_t rank = 0;
    struct page all = {.kind = PAGE_INDEX, .entry_count = N, .index = entries};
    uint32_t done = 0, pages = 0;
    for (uint32_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%090u", i);
        entries[i] = (struct index_entry){.name = names[i],
                                          .coordinate = "",
                                          .kind = INDEX_TENSOR,
                                          .placement = PLACEMENT_SHARDED,
                                          .dtype = CAIRN_U8,
                                          .shape = {1, {7}},
                                          .plain_bytes = 7,
                                          .rank_count = 1,
                                          .ranks = &rank};
    }
    while (done < N) {
        uint32_t fit = page_fit(&all, done);
        struct page one = {.kind = PAGE_INDEX, .entry_count = fit, .index = entries + done}, again;
        struct scratch scratch;
        struct buf buf;
        assert_true(fit > 0);
        scratch_init(&scratch, MIB(32));
        buf_init(&buf, LIMIT_PAGE_BYTES);
        page_encode(&one, &buf);
        assert_int_equal(buf_status(&buf), 0);
        assert_int_equal(page_decode(buf.bytes, buf.data, &scratch, &again, NULL), 0);
        assert_int_equal(again.entry_count, fit);
        assert_string_equal(again.index[fit - 1].name, names[done + fit - 1]);
        buf_fini(&buf);
        scratch_fini(&scratch);
        done += fit;
        pages++;
    }
    assert_true(pages == 3);
}

TEST(test_broken_index_entries_are_refused)
{
    for (unsigned i = 0; i < 9; i++) {
        struct page page = fixture_page_index(), again;
        struct scratch scratch;
        struct buf buf;
        uint32_t ranks[] = {3, 3};
        struct index_entry *first = &page.index[0], *last = &page.index[2];
        int want = CAIRN_E_FORMAT;
        switch (i) {
        case 0:
            last->name = "a";
            last->coordinate = "";
            last->placement = PLACEMENT_SHARDED;
            break;
        case 1:
            first->plain_bytes++;
            break;
        case 2:
            first->rank_count = 0;
            break;
        case 3:
            last->ranks = ranks;
            last->rank_count = 2;
            break;
        case 4:
            first->dtype = 99;
            want = CAIRN_E_UNSUPPORTED;
            break;
        case 5:
            first->kind = 7;
            want = CAIRN_E_UNSUPPORTED;
            break;
        case 6:
            last->coordinate = "";
            break;
        case 7:
            last->name = "\xff";
            break;
        case 8:
            ranks[0] = LIMIT_WORLD_SIZE;
            last->ranks = ranks;
            break;
        }
        scratch_init(&scratch, MIB(1));
        buf_init(&buf, MIB(1));
        page_encode(&page, &buf);
        int rc = page_decode(buf.bytes, buf.data, &scratch, &again, NULL);
        if (rc != want) {
            fail_msg("case %u: %d, not %d", i, rc, want);
        }
        buf_fini(&buf);
        scratch_fini(&scratch);
    }
}

CODEC_TEST(test_a_footer_comes_back)
{
    struct object_footer a = fixture_footer(), b;
    uint64_t offset = 0, bytes = 0;
    object_footer_encode(&a, buf);
    assert_int_equal(buf->bytes, object_footer_bytes(3));
    uint64_t object_bytes = a.data_bytes + buf->bytes;
    const uint8_t *trailer = buf->data + buf->bytes - OBJECT_TRAILER_BYTES;
    assert_int_equal(object_trailer_decode(trailer, object_bytes, &offset, &bytes, NULL), 0);
    assert_true(offset == a.data_bytes && bytes == buf->bytes);
    assert_int_equal(object_trailer_decode(trailer, object_bytes + 4096, &offset, &bytes, NULL),
                     CAIRN_E_DAMAGED);
    assert_int_equal(object_footer_decode(buf->bytes, buf->data, object_bytes, scratch, &b, NULL),
                     0);
    assert_true(object_id_equal(&a.id, &b.id) && a.data_bytes == b.data_bytes &&
                b.envelope_count == 3);
    assert_memory_equal(a.envelopes, b.envelopes, 3 * sizeof *a.envelopes);
    assert_int_equal(object_footer_bytes(41), 4096); /* 41 * 96 + 128 = 4064 */
    assert_int_equal(object_footer_bytes(42), 8192);
}

TEST(test_broken_footers_are_refused)
{
    for (unsigned i = 0; i < 6; i++) {
        struct object_footer footer = fixture_footer(), again;
        struct scratch scratch;
        struct buf buf;
        int want = CAIRN_E_FORMAT;
        switch (i) {
        case 0:
            footer.envelopes[1].offset = 65535;
            break; /* overlap */
        case 1:
            footer.envelopes[2].offset = 69632;
            break; /* outside */
        case 2:
            footer.envelopes[0].offset = 16;
            break; /* not aligned */
        case 3:
            footer.envelopes[0].stored_bytes = 0;
            break;
        case 4:
            footer.envelopes[0].key_id = 1;
            want = CAIRN_E_UNSUPPORTED;
            break;
        case 5:
            footer.envelopes[0].element_bytes = 3;
            break;
        }
        scratch_init(&scratch, MIB(1));
        buf_init(&buf, MIB(1));
        object_footer_encode(&footer, &buf);
        int rc = object_footer_decode(buf.bytes, buf.data, footer.data_bytes + buf.bytes, &scratch,
                                      &again, NULL);
        if (rc != want) {
            fail_msg("case %u: %d, not %d", i, rc, want);
        }
        buf_fini(&buf);
        scratch_fini(&scratch);
    }
}

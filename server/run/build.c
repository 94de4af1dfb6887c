/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages and manifest of a checkpoint. Invariant: the result is a function of the parts, of the
 * record's entries about the save, and of one wall time. So a second daemon, or the same one after
 * a crash, makes the same bytes and recognises what is already published. Pure; any thread.
 */
#include "build.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BUILD_SCRATCH_MAX = 1 << 30, PART_REF_BYTES = 128, INDEX_ENTRY_BYTES = 256 };

static int parts_check_identity(const struct build_input *input, struct diag *diag);
static int build_parts_pages(const struct build_input *input, struct build *build,
                             struct diag *diag);
static int build_index_pages(const struct build_input *input, struct build *build,
                             struct diag *diag);
static int count_objects(const struct build_input *input, struct build *build, struct diag *diag);

static int no_memory(struct diag *diag) { return diag_no_memory(diag, "building the manifest"); }

void build_fini(struct build *build)
{
    for (size_t i = 0; i < build->page_count; i++) {
        free(build->pages[i].data);
    }
    build->page_count = 0;
    buf_fini(&build->bytes);
    scratch_fini(&build->scratch);
}

/* Checks that the pages list each part, each tensor and each blob once. */
static void check_pages(const struct build_input *input, const struct build *build)
{
    const struct manifest *manifest = &build->manifest;
    uint64_t parts = 0, entries = 0;

    CHECK(build->page_count == manifest->page_count);
    for (uint32_t i = 0; i < manifest->page_count; i++) {
        const struct page_ref *ref = &manifest->pages[i];
        CHECK(ref->bytes == build->pages[i].bytes);
        parts += ref->kind == PAGE_PARTS ? ref->entry_count : 0;
        entries += ref->kind == PAGE_INDEX ? ref->entry_count : 0;
    }
    CHECK(parts == input->world_size);
    CHECK(entries == (uint64_t)manifest->tensor_count + manifest->blob_count);
}

int build_checkpoint(const struct build_input *input, struct build *ret, struct diag *diag)
{
    const struct entry_open *open = input->open;
    struct manifest *manifest = &ret->manifest;
    int status;

    CHECK(input->world_size > 0);
    CHECK(input->page_bytes > 0);
    CHECK(open != NULL);
    memset(ret, 0, sizeof *ret);
    scratch_init(&ret->scratch, BUILD_SCRATCH_MAX);
    buf_init(&ret->bytes, LIMIT_MANIFEST_BYTES);
    status = parts_check_identity(input, diag);
    if (status == 0) {
        status = parts_check_coverage(input->world_size, input->parts, &ret->scratch, diag);
    }
    if (status) {
        return status;
    }
    *manifest = (struct manifest){.store_uuid = input->store_uuid,
                                  .run_uuid = input->run_uuid,
                                  .run = input->run,
                                  .id = input->id,
                                  .parent = input->parent,
                                  .token = input->token,
                                  .world_size = input->world_size,
                                  .chunk_bytes = input->chunk_bytes,
                                  .metadata_bytes = open->metadata_bytes,
                                  .metadata = open->metadata,
                                  .tag_count = open->tag_count,
                                  .tags = open->tags,
                                  .metric_count = open->metric_count};
    manifest->metrics = scratch_array(&ret->scratch, open->metric_count ? open->metric_count : 1,
                                      sizeof(struct metric));
    if (!manifest->metrics) {
        return no_memory(diag);
    }
    for (uint32_t i = 0; i < open->metric_count; i++) {
        manifest->metrics[i] = (struct metric){open->metric_names[i], open->metric_values[i]};
    }
    status = count_objects(input, ret, diag);
    if (status == 0) {
        status = build_parts_pages(input, ret, diag);
    }
    if (status == 0) {
        status = build_index_pages(input, ret, diag);
    }
    if (status == 0) {
        check_pages(input, ret);
    }
    return status ? status : build_manifest_at(ret, input->created_wall_ns, diag);
}

int build_manifest_at(struct build *build, int64_t created_wall_ns, struct diag *diag)
{
    int status;

    build->manifest.created_wall_ns = created_wall_ns;
    buf_reset(&build->bytes);
    manifest_encode(&build->manifest, &build->bytes);
    status = buf_status(&build->bytes);
    if (status) {
        return diag_set(diag, status,
                        "the manifest does not fit into %d bytes (%u pages, %u bytes of metadata): "
                        "save less metadata",
                        LIMIT_MANIFEST_BYTES, build->manifest.page_count,
                        build->manifest.metadata_bytes);
    }
    CHECK(build->bytes.bytes > 0);
    CHECK(build->bytes.bytes <= LIMIT_MANIFEST_BYTES);
    return 0;
}

/* Returns an error if a part names another rank, another save or another world size than the seal
 * that points to it. */
static int parts_check_identity(const struct build_input *input, struct diag *diag)
{
    for (uint32_t rank = 0; rank < input->world_size; rank++) {
        const struct part *part = &input->parts[rank];

        if (part->rank != rank || part->world_size != input->world_size ||
            !ckpt_id_equal(part->id, input->id)) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the part that rank %u sealed belongs to rank %u of %u and to %s, "
                            "but the save is %s of %u ranks",
                            rank, part->rank, part->world_size, ckpt_id_text(part->id).at,
                            ckpt_id_text(input->id).at, input->world_size);
        }
        if (part->writer != input->seals[rank].writer) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the part of rank %u was made by writer %016" PRIx64
                            ", but sealed by writer %016" PRIx64,
                            rank, part->writer, input->seals[rank].writer);
        }
        if (part->chunk_bytes != input->chunk_bytes ||
            memcmp(&part->run_uuid, &input->run_uuid, sizeof part->run_uuid) != 0) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "the part of rank %u belongs to another run, or has chunks of %" PRIu64
                            " bytes instead of %" PRIu64,
                            rank, part->chunk_bytes, input->chunk_bytes);
        }
    }
    return 0;
}

/* --- pages ---------------------------------------------------------------------------------- */

/* Encodes a page and appends it to the manifest. The name is the page's first key, by which a
 * reader finds the page that it needs. */
static int page_add(struct build *build, const struct page *page, const char *first_name,
                    struct diag *diag)
{
    struct manifest *manifest = &build->manifest;
    struct build_page *built;
    struct page_ref *ref;
    struct buf buf;
    size_t cap = manifest->page_count;

    CHECK(page->entry_count > 0);
    CHECK(build->page_count == manifest->page_count);
    if ((cap & (cap + 1)) ==
        0) { /* 0, 1, 3, 7 and so on: doubles the room; old arrays stay in the scratch */
        size_t next = cap * 2 + 1;
        struct page_ref *refs = scratch_array(&build->scratch, next, sizeof *refs);
        struct build_page *pages = scratch_array(&build->scratch, next, sizeof *pages);
        if (!refs || !pages) {
            return no_memory(diag);
        }
        if (cap) {
            memcpy(refs, manifest->pages, cap * sizeof *refs);
            memcpy(pages, build->pages, cap * sizeof *pages);
        }
        manifest->pages = refs;
        build->pages = pages;
    }
    buf_init(&buf, LIMIT_PAGE_BYTES);
    page_encode(page, &buf);
    if (buf_status(&buf)) {
        int status = buf_status(&buf);
        buf_fini(&buf);
        return diag_set(diag, status, "a page of %u entries does not fit into %d bytes",
                        page->entry_count, LIMIT_PAGE_BYTES);
    }
    built = &build->pages[build->page_count];
    ref = &manifest->pages[manifest->page_count];
    built->data = buf_take(&buf, &built->bytes);
    CHECK(built->bytes > 0);
    *ref = (struct page_ref){.kind = page->kind,
                             .level = 0,
                             .entry_count = page->entry_count,
                             .bytes = built->bytes,
                             .sha256 = sha256(built->bytes, built->data),
                             .first_name = first_name};
    build->page_count++;
    manifest->page_count++;
    return 0;
}

/* Returns how the manifest describes the part of a rank: where it is, how it is verified and how
 * much it holds. */
static struct part_ref part_ref_of(const struct build_input *input, uint32_t rank)
{
    const struct part *part = &input->parts[rank];
    const struct entry_seal *seal = &input->seals[rank];
    struct part_ref ref = {.rank = rank,
                           .writer = seal->writer,
                           .bytes = seal->part_bytes,
                           .sha256 = seal->part_sha256,
                           .tensor_count = part->tensor_count,
                           .chunk_count = part->chunk_count};

    for (uint32_t i = 0; i < part->chunk_count; i++) {
        ref.plain_bytes += part->chunks[i].plain_bytes;
        CHECK(part->chunks[i].object < part->object_count); /* decoding has checked it */
        const struct object_id *object = &part->objects[part->chunks[i].object].id;
        if (object->term == input->id.term && object->step == input->id.step) {
            /* The other chunks belong to older saves. */
            ref.stored_bytes += part->chunks[i].stored_bytes;
        }
    }
    return ref;
}

/* Makes the pages that list the parts, as many parts to a page as its size allows. */
static int build_parts_pages(const struct build_input *input, struct build *build,
                             struct diag *diag)
{
    struct manifest *manifest = &build->manifest;
    uint32_t most = (uint32_t)max_u64(1, input->page_bytes / PART_REF_BYTES);
    struct part_ref *refs = scratch_array(&build->scratch, input->world_size, sizeof *refs);

    if (!refs) {
        return no_memory(diag);
    }
    for (uint32_t rank = 0; rank < input->world_size; rank++) {
        refs[rank] = part_ref_of(input, rank);
        manifest->box_count += input->parts[rank].box_count;
        manifest->chunk_count += input->parts[rank].chunk_count;
        manifest->plain_bytes += refs[rank].plain_bytes;
        manifest->stored_bytes += refs[rank].stored_bytes;
    }
    for (uint32_t first = 0; first < input->world_size; first += most) {
        struct page page = {.kind = PAGE_PARTS,
                            .entry_count = (uint32_t)min_u64(most, input->world_size - first),
                            .parts = refs + first};
        int status = page_add(build, &page, "", diag);
        if (status) {
            return status;
        }
    }
    return 0;
}

/* Counts the distinct objects of all parts. */
static int count_objects(const struct build_input *input, struct build *build, struct diag *diag)
{
    size_t total = 0, at = 0, distinct = 0;
    struct object_id *ids;

    for (uint32_t rank = 0; rank < input->world_size; rank++) {
        total += input->parts[rank].object_count;
    }
    ids = calloc(total ? total : 1, sizeof *ids);
    if (!ids) {
        return no_memory(diag);
    }
    for (uint32_t rank = 0; rank < input->world_size; rank++) {
        for (uint32_t i = 0; i < input->parts[rank].object_count; i++) {
            ids[at++] = input->parts[rank].objects[i].id;
        }
    }
    CHECK(at == total);
    qsort(ids, total, sizeof *ids, object_id_order);
    for (size_t i = 0; i < total; i++) {
        distinct += i == 0 || !object_id_equal(&ids[i], &ids[i - 1]);
    }
    free(ids);
    build->manifest.object_count = distinct;
    return 0;
}

/* --- the index ------------------------------------------------------------------------------ */

/* Returns how many entries from `first` on go into one page: about page_bytes, and never more than
 * fit. */
static uint32_t index_cut(const struct page *whole, uint32_t first, uint64_t page_bytes)
{
    uint32_t most = page_fit(whole, first), count = 0;
    uint64_t bytes = 0;

    while (first + count < whole->entry_count && count < most) {
        const struct index_entry *entry = &whole->index[first + count];
        bytes += INDEX_ENTRY_BYTES + strlen(entry->name) + strlen(entry->coordinate) +
                 4 * (uint64_t)entry->rank_count;
        if (count > 0 && bytes > page_bytes) {
            break;
        }
        count++;
    }
    CHECK(count <= most);
    return count;
}

/* Makes the index of all tensors and blobs, and cuts it into pages. */
static int build_index_pages(const struct build_input *input, struct build *build,
                             struct diag *diag)
{
    struct manifest *manifest = &build->manifest;
    struct page whole;
    int status = index_build(input->world_size, input->parts, &build->scratch, &whole, diag);

    for (uint32_t i = 0; status == 0 && i < whole.entry_count; i++) {
        bool is_tensor = whole.index[i].kind == INDEX_TENSOR;
        manifest->tensor_count += is_tensor;
        manifest->blob_count += !is_tensor;
    }
    for (uint32_t first = 0; status == 0 && first < whole.entry_count;) {
        struct page page = {.kind = PAGE_INDEX,
                            .entry_count = index_cut(&whole, first, input->page_bytes),
                            .index = whole.index + first};
        CHECK(page.entry_count > 0);
        status = page_add(build, &page, page.index[0].name, diag);
        first += page.entry_count;
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The root of a checkpoint as bytes: identity, counts, user metadata, and the hashes of its pages.
 * It has at most 64 KiB, so that listing reads one small file for each checkpoint. Pure; any
 * thread.
 */
#include "manifest.h"

#include <string.h>

#include "base/check.h"
#include "doc.h"
#include "rows_private.h"

enum { MANIFEST_HEADER_BYTES = 200 };

static const struct doc_kind manifest_kind = {DOC_MAGIC('C', 'R', 'N', 'M'), "manifest",
                                              MANIFEST_HEADER_BYTES, LIMIT_MANIFEST_BYTES, 0};

/* Writes the fixed fields and the two names. */
static void put_header(const struct manifest *manifest, struct buf *buf)
{
    size_t project = strlen(manifest->run.project), run = strlen(manifest->run.run);
    CHECK(project > 0 && project <= LIMIT_RUN_NAME_BYTES);
    CHECK(run > 0 && run <= LIMIT_RUN_NAME_BYTES);
    row_put_manifest(manifest, buf);
    buf_put_u8(buf, (uint8_t)project);
    buf_put_u8(buf, (uint8_t)run);
    buf_put_zero(buf, 6);
    buf_put(buf, project, manifest->run.project);
    buf_put(buf, run, manifest->run.run);
}

void manifest_encode(const struct manifest *manifest, struct buf *buf)
{
    if (manifest->metadata_bytes > LIMIT_METADATA_BYTES || manifest->tag_count > LIMIT_TAGS ||
        manifest->metric_count > LIMIT_METRICS) {
        buf->status = buf->status != 0 ? buf->status : CAIRN_E_TOO_LARGE;
        return;
    }
    size_t start = doc_begin(buf, &manifest_kind);
    put_header(manifest, buf);
    if (manifest->metadata_bytes > 0) {
        buf_put(buf, manifest->metadata_bytes, manifest->metadata);
    }
    for (uint32_t i = 0; i < manifest->tag_count; i++) {
        doc_put_text(buf, manifest->tags[i]);
    }
    for (uint32_t i = 0; i < manifest->metric_count; i++) {
        uint64_t bits = 0;
        memcpy(&bits, &manifest->metrics[i].value, sizeof bits);
        doc_put_text(buf, manifest->metrics[i].name);
        buf_put_u64(buf, bits);
    }
    for (uint32_t i = 0; i < manifest->page_count; i++) {
        const struct page_ref *page = &manifest->pages[i];
        row_put_page_ref(page, buf);
        doc_put_text(buf, page->first_name);
    }
    doc_end(buf, &manifest_kind, start);
}

/* Reads the fixed fields and the two names. Returns 0 or FORMAT; the caller fills the diag. */
static int take_header(struct cur *cur, struct manifest *ret)
{
    row_take_manifest(cur, ret);
    char project[256] = {0}, run[256] = {0};
    size_t project_bytes = cur_u8(cur), run_bytes = cur_u8(cur);
    cur_zeros(cur, 6);
    cur_copy(cur, project_bytes, project);
    cur_copy(cur, run_bytes, run);
    bool good = cur->status == 0 && ret->id.term > 0 && ret->world_size > 0 &&
                ret->world_size <= LIMIT_WORLD_SIZE && chunk_bytes_is_valid(ret->chunk_bytes) &&
                strlen(project) == project_bytes && strlen(run) == run_bytes &&
                ret->metadata_bytes <= LIMIT_METADATA_BYTES && ret->tag_count <= LIMIT_TAGS &&
                ret->metric_count <= LIMIT_METRICS &&
                ret->page_count <= LIMIT_MANIFEST_BYTES / MANIFEST_PAGE_REF_BYTES;
    return good && run_name_set(project, run, &ret->run, NULL) == 0 ? 0 : CAIRN_E_FORMAT;
}

/* Reads page reference idx, which must not sort before the one ahead of it. */
static int take_page_ref(struct cur *cur, struct scratch *scratch, uint32_t idx,
                         struct page_ref *page, struct diag *diag)
{
    int status = 0;
    row_take_page_ref(cur, page);
    page->first_name = doc_text(cur, LIMIT_NAME_BYTES, true, scratch, &status);
    if (status == CAIRN_E_NO_MEMORY) {
        return doc_no_memory("manifest", diag);
    }
    if (status == 0 && cur->status == 0 && page->level != 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the manifest has pages of level %u; this program reads level 0",
                        page->level);
    }
    bool index = page->kind == PAGE_INDEX;
    bool good = status == 0 && cur->status == 0 && (index || page->kind == PAGE_PARTS) &&
                index == (page->first_name[0] != '\0') && page->entry_count > 0 &&
                page->bytes >= PAGE_HEADER_BYTES && page->bytes <= LIMIT_PAGE_BYTES;
    if (good && idx > 0) {
        good = page[-1].kind < page->kind ||
               (page[-1].kind == page->kind &&
                (!index || strcmp(page[-1].first_name, page->first_name) <= 0));
    }
    return good ? 0
                : diag_set(diag, CAIRN_E_FORMAT, "the manifest's reference to page %u is broken",
                           idx);
}

/* Reads everything behind the header. */
static int take_lists(struct cur *cur, struct scratch *scratch, struct manifest *ret,
                      struct diag *diag)
{
    int status = 0;
    const uint8_t *metadata = cur_bytes(cur, ret->metadata_bytes);
    if (cur->status != 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the manifest ends in the middle of its metadata");
    }
    ret->metadata =
        ret->metadata_bytes == 0 ? NULL : scratch_copy(scratch, ret->metadata_bytes, metadata);
    ret->tags = scratch_array(scratch, ret->tag_count + 1u, sizeof *ret->tags);
    ret->metrics = scratch_array(scratch, ret->metric_count + 1u, sizeof *ret->metrics);
    ret->pages = scratch_array(scratch, ret->page_count + 1u, sizeof *ret->pages);
    if ((ret->metadata == NULL && ret->metadata_bytes > 0) || ret->tags == NULL ||
        ret->metrics == NULL || ret->pages == NULL) {
        return doc_no_memory("manifest", diag);
    }
    for (uint32_t i = 0; i < ret->tag_count && status == 0; i++) {
        ret->tags[i] = doc_text(cur, LABEL_BYTES_MAX, false, scratch, &status);
    }
    for (uint32_t i = 0; i < ret->metric_count && status == 0; i++) {
        ret->metrics[i].name = doc_text(cur, LABEL_BYTES_MAX, false, scratch, &status);
        uint64_t bits = cur_u64(cur);
        memcpy(&ret->metrics[i].value, &bits, sizeof bits);
    }
    if (status == CAIRN_E_NO_MEMORY) {
        return doc_no_memory("manifest", diag);
    }
    if (status != 0 || cur->status != 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the manifest's tags or metrics are broken");
    }
    for (uint32_t i = 0; i < ret->page_count; i++) {
        int rc = take_page_ref(cur, scratch, i, &ret->pages[i], diag);
        if (rc != 0) {
            return rc;
        }
    }
    return doc_finish(&manifest_kind, cur, diag);
}

int manifest_decode(size_t bytes, const uint8_t *data, struct scratch *scratch,
                    struct manifest *ret, struct diag *diag)
{
    struct manifest manifest;
    struct cur cur;
    memset(&manifest, 0, sizeof manifest);
    int rc = doc_open(&manifest_kind, bytes, data, &cur, diag);
    if (rc != 0) {
        return rc;
    }
    if (take_header(&cur, &manifest) != 0) {
        return diag_set(diag, CAIRN_E_FORMAT, "the manifest's header is broken");
    }
    rc = take_lists(&cur, scratch, &manifest, diag);
    if (rc == 0) {
        *ret = manifest;
    }
    return rc;
}

bool manifest_is_remade(const struct manifest *manifest)
{
    for (uint32_t i = 0; i < manifest->tag_count; i++) {
        if (strcmp(manifest->tags[i], MANIFEST_REMADE_TAG) == 0) {
            return true;
        }
    }
    return false;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What the checkpoint says it holds: its manifest and index pages. Each is compared with the
 * SHA-256 that the level above names before it is decoded, and the entries are kept sorted, so that
 * a name is found by bisection. Pure.
 */
#include "engine/restore_private.h"

#include "base/check.h"

#include <string.h>

/* Returns 0 if the payload of the last reply has the length and the SHA-256 that were committed, or
 * else DAMAGED. */
static int check_sha256(const struct restore *restore, uint64_t bytes, const struct sha256 *wanted,
                        const char *what, struct diag *diag)
{
    struct sha256 sha = sha256(restore->call.payload_bytes, restore->call.payload);
    if (restore->call.payload_bytes == bytes && memcmp(&sha, wanted, sizeof sha) == 0) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_DAMAGED,
                    "the %s of step %s is damaged: it has %zu bytes, and its SHA-256 is not "
                    "that of the %llu bytes that were committed",
                    what, ckpt_id_text(restore->user->id).at, restore->call.payload_bytes,
                    (unsigned long long)bytes);
}

/* Returns how many names the index pages of a manifest hold together. */
static uint64_t count_names(const struct manifest *manifest)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < manifest->page_count; i++) {
        count += manifest->pages[i].kind == PAGE_INDEX ? manifest->pages[i].entry_count : 0;
    }
    return count;
}

int restore_take_manifest(struct restore *restore, struct diag *diag)
{
    struct engine_restore *user = restore->user;
    int rc = check_sha256(restore, user->info.manifest_bytes, &user->info.manifest_sha256,
                          "manifest", diag);
    if (rc == 0) {
        rc = manifest_decode(restore->call.payload_bytes, restore->call.payload, &user->scratch,
                             &user->manifest, diag);
    }
    if (rc == 0 && !ckpt_id_equal(user->manifest.id, user->id)) {
        rc = diag_set(diag, CAIRN_E_DAMAGED, "the manifest belongs to step %s",
                      ckpt_id_text(user->manifest.id).at);
    }
    uint64_t count = rc == 0 ? count_names(&user->manifest) : 0, said = 0;
    if (rc == 0 && (!add_u64(user->manifest.tensor_count, user->manifest.blob_count, &said) ||
                    said != count)) {
        rc = diag_set(diag, CAIRN_E_DAMAGED,
                      "the manifest says %llu tensors and %llu blobs, its index pages %llu names",
                      (unsigned long long)user->manifest.tensor_count,
                      (unsigned long long)user->manifest.blob_count, (unsigned long long)count);
    }
    if (rc == 0) {
        restore->index = (struct index){.cap = (size_t)count};
        restore->index.entries =
            scratch_array(&user->scratch, (size_t)count + 1, sizeof *restore->index.entries);
        rc = restore->index.entries
                 ? 0
                 : diag_no_memory(diag, "an index of %llu names", (unsigned long long)count);
    }
    restore->page_at = 0;
    return rc;
}

int restore_take_page(struct restore *restore, struct diag *diag)
{
    CHECK(restore->page_at < restore->user->manifest.page_count);
    struct engine_restore *user = restore->user;
    const struct page_ref *ref = &user->manifest.pages[restore->page_at];
    struct page page;
    int rc = check_sha256(restore, ref->bytes, &ref->sha256, "index page", diag);
    if (rc == 0) {
        rc = page_decode(restore->call.payload_bytes, restore->call.payload, &user->scratch, &page,
                         diag);
    }
    if (rc != 0) {
        return rc;
    }
    if (page.kind != PAGE_INDEX || page.level != 0 ||
        restore->index.count + page.entry_count > restore->index.cap) {
        return diag_set(diag, page.level != 0 ? CAIRN_E_UNSUPPORTED : CAIRN_E_DAMAGED,
                        "index page %u has kind %u, level %u and %u entries, which is not what the "
                        "manifest says",
                        restore->page_at, page.kind, page.level, page.entry_count);
    }
    CHECK(page.entry_count <= restore->index.cap - restore->index.count);
    memcpy(restore->index.entries + restore->index.count, page.index,
           page.entry_count * sizeof *page.index);
    restore->index.count += page.entry_count;
    return 0;
}

const struct index_entry *restore_entry_of(const struct restore *restore,
                                           const struct registered_tensor *tensor)
{
    return index_find(restore->index.count, restore->index.entries, tensor->name,
                      tensor->coordinate, INDEX_TENSOR);
}

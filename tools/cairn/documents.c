/* SPDX-License-Identifier: Apache-2.0
 *
 * See documents.h.
 */
#include "documents.h"

#include <stdlib.h>
#include <string.h>

#define DOCUMENTS_SCRATCH_MAX ((size_t)8 << 30)

static const char *const kind_names[] = {"", "manifest", "part", "page"};
enum { KIND_MANIFEST = 1, KIND_PART = 2, KIND_PAGE = 3 };

struct wanted {
    uint32_t kind, number;
    const struct sha256 *sha256;
};

/* One document, checked; bytes in the scratch. */
static int fetch(struct cli *cli, struct documents *documents, struct wanted wanted,
                 struct record_value *ret, struct diag *diag)
{
    uint32_t kind = wanted.kind, number = wanted.number;
    struct source_request request = {
        .call.request = {.type = MSG_FETCH,
                         .u.fetch = {.id = documents->info.id, .kind = kind, .number = number}}};
    int status = source_call(cli->connection, &request, diag);
    char name[48];
    format_ckpt(documents->info.id, sizeof(name), name);
    if (status == 0) {
        struct sha256 actual = sha256(request.call.payload_bytes, request.call.payload);
        if (memcmp(&actual, wanted.sha256, sizeof(actual)) != 0) {
            status =
                diag_set(diag, CAIRN_E_DAMAGED, "%s %u of checkpoint %s does not match its hash",
                         kind_names[kind], number, name);
        }
    } else {
        diag_add(diag, "checkpoint %s", name);
    }
    if (status == 0) {
        uint8_t *data = scratch_alloc(&documents->scratch, request.call.payload_bytes + 1);
        if (data && request.call.payload_bytes > 0) {
            memcpy(data, request.call.payload, request.call.payload_bytes);
        }
        ret->data = data;
        ret->bytes = request.call.payload_bytes;
        status =
            data ? 0 : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a %s", kind_names[kind]);
    }
    free(request.call.payload);
    engine_call_fini(&request.call);
    return status;
}

static int add_page(struct documents *documents, const struct page *page, struct diag *diag)
{
    bool parts = page->kind == PAGE_PARTS;
    size_t size = parts ? sizeof(struct part_ref) : sizeof(struct index_entry);
    size_t old = parts ? documents->part_count : documents->index_count;
    void *before = parts ? (void *)documents->part_refs : (void *)documents->index;
    char *grown = scratch_array(&documents->scratch, old + page->entry_count + 1, size);
    if (!grown) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the index");
    }
    if (old > 0) {
        memcpy(grown, before, old * size);
    }
    memcpy(grown + old * size, parts ? (const void *)page->parts : (const void *)page->index,
           page->entry_count * size);
    if (parts) {
        documents->part_refs = (struct part_ref *)(void *)grown;
        documents->part_count += page->entry_count;
    } else {
        documents->index = (struct index_entry *)(void *)grown;
        documents->index_count += page->entry_count;
    }
    return 0;
}

static int load_pages(struct cli *cli, struct documents *documents, struct diag *diag)
{
    int status = 0;
    for (uint32_t i = 0; status == 0 && i < documents->manifest.page_count; i++) {
        struct record_value bytes;
        struct page page;
        struct wanted wanted = {KIND_PAGE, i, &documents->manifest.pages[i].sha256};
        status = fetch(cli, documents, wanted, &bytes, diag);
        if (status == 0) {
            status = page_decode(bytes.bytes, bytes.data, &documents->scratch, &page, diag);
        }
        if (status == 0) {
            status = add_page(documents, &page, diag);
        }
    }
    return status;
}

int documents_load(struct cli *cli, const struct ckpt_info *info, struct documents *ret,
                   struct diag *diag)
{
    struct record_value bytes;
    memset(ret, 0, sizeof(*ret));
    scratch_init(&ret->scratch, DOCUMENTS_SCRATCH_MAX);
    ret->info = *info;
    int status =
        fetch(cli, ret, (struct wanted){KIND_MANIFEST, 0, &info->manifest_sha256}, &bytes, diag);
    if (status == 0) {
        status = manifest_decode(bytes.bytes, bytes.data, &ret->scratch, &ret->manifest, diag);
    }
    if (status == 0 && !ckpt_id_equal(ret->manifest.id, info->id)) {
        status = diag_set(diag, CAIRN_E_DAMAGED, "the manifest is another checkpoint's");
    }
    return status == 0 ? load_pages(cli, ret, diag) : status;
}

int documents_parts(struct cli *cli, struct documents *documents, struct diag *diag)
{
    documents->parts =
        scratch_array(&documents->scratch, documents->part_count + 1, sizeof(*documents->parts));
    if (!documents->parts) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the parts");
    }
    int status = 0;
    for (size_t i = 0; status == 0 && i < documents->part_count; i++) {
        struct record_value bytes;
        const struct part_ref *ref = &documents->part_refs[i];
        struct wanted wanted = {KIND_PART, ref->rank, &ref->sha256};
        status = fetch(cli, documents, wanted, &bytes, diag);
        if (status == 0) {
            status = part_decode(bytes.bytes, bytes.data, &documents->scratch, &documents->parts[i],
                                 diag);
        }
    }
    return status;
}

void documents_fini(struct documents *documents) { scratch_fini(&documents->scratch); }

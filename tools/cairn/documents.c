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
    struct scratch *scratch; /* where its bytes go; NULL: the documents' */
};

/* One document, checked; its bytes are the scratch's. */
static int fetch(struct cli *cli, struct documents *documents, struct wanted wanted,
                 struct record_value *ret, struct diag *diag)
{
    struct scratch *scratch = wanted.scratch ? wanted.scratch : &documents->scratch;
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
    } else if (!names_ckpt(diag_text(diag, status), documents->info.id)) {
        diag_add(diag, "checkpoint %s", name);
    }
    if (status == 0) {
        uint8_t *data = scratch_alloc(scratch, request.call.payload_bytes + 1);
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
        struct wanted wanted = {KIND_PAGE, i, &documents->manifest.pages[i].sha256, NULL};
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
    int status = fetch(cli, ret, (struct wanted){KIND_MANIFEST, 0, &info->manifest_sha256, NULL},
                       &bytes, diag);
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
        struct wanted wanted = {KIND_PART, ref->rank, &ref->sha256, NULL};
        status = fetch(cli, documents, wanted, &bytes, diag);
        if (status == 0) {
            status = part_decode(bytes.bytes, bytes.data, &documents->scratch, &documents->parts[i],
                                 diag);
        }
    }
    return status;
}

/* --- shares ---------------------------------------------------------------------- */

struct shares {
    struct documents *documents;
    size_t count, cap;
    struct documents_share *items;
};

static struct documents_share *share_of(struct shares *shares, struct ckpt_id id)
{
    for (size_t i = 0; i < shares->count; i++) {
        if (ckpt_id_equal(shares->items[i].id, id)) {
            return &shares->items[i];
        }
    }
    if (shares->count == shares->cap) {
        size_t cap = 2 * shares->cap + 8;
        struct documents_share *grown =
            scratch_array(&shares->documents->scratch, cap, sizeof(*grown));
        if (!grown) {
            return NULL;
        }
        if (shares->count > 0) {
            memcpy(grown, shares->items, shares->count * sizeof(*grown));
        }
        shares->items = grown;
        shares->cap = cap;
    }
    shares->items[shares->count] = (struct documents_share){.id = id};
    return &shares->items[shares->count++];
}

static int add_part(struct cli *cli, struct shares *shares, const struct part_ref *ref,
                    struct scratch *scratch, struct diag *diag)
{
    struct record_value bytes;
    struct part part;
    int status = fetch(cli, shares->documents,
                       (struct wanted){KIND_PART, ref->rank, &ref->sha256, scratch}, &bytes, diag);
    if (status == 0) {
        status = part_decode(bytes.bytes, bytes.data, scratch, &part, diag);
    }
    for (uint32_t i = 0; status == 0 && i < part.object_count; i++) {
        const struct part_object *object = &part.objects[i];
        struct ckpt_id id = {.term = object->id.term, .step = object->id.step};
        bool own = ckpt_id_equal(id, shares->documents->info.id);
        struct documents_share *share = own ? NULL : share_of(shares, id);
        if (share) {
            share->stored_bytes += object->bytes_used;
        } else if (!own) {
            status = diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for what is shared");
        }
    }
    return status;
}

static int newer_first(const void *a, const void *b)
{
    const struct documents_share *first = a, *second = b;
    return -ckpt_id_compare(first->id, second->id);
}

int documents_shares(struct cli *cli, struct documents *documents, size_t *ret_count,
                     struct documents_share **ret, struct diag *diag)
{
    struct shares shares = {.documents = documents};
    int status = 0;
    for (size_t i = 0; status == 0 && i < documents->part_count; i++) {
        struct scratch scratch;
        scratch_init(&scratch, DOCUMENTS_SCRATCH_MAX);
        status = add_part(cli, &shares, &documents->part_refs[i], &scratch, diag);
        scratch_fini(&scratch);
    }
    if (status == 0) {
        if (shares.count > 0) {
            qsort(shares.items, shares.count, sizeof(*shares.items), newer_first);
        }
        *ret_count = shares.count;
        *ret = shares.items;
    }
    return status;
}

void documents_fini(struct documents *documents) { scratch_fini(&documents->scratch); }

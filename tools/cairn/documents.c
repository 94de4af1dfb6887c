/* SPDX-License-Identifier: Apache-2.0
 *
 * See documents.h.
 */
#include "documents.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* Fetches a document from the server, which checks it too. */
static int fetch(struct reader_source *source, const struct doc_key *document,
                 struct reader_bytes *ret, struct diag *diag)
{
    struct documents *documents = container_of(source, struct documents, source);
    struct source_request request = {
        .call.request = {.type = MSG_FETCH,
                         .u.fetch = {.id = document->name.id,
                                     .kind = document->name.kind,
                                     .number = document->name.number}}};
    int status = source_call(documents->cli->connection, &request, diag);
    if (status == 0) {
        *ret = (struct reader_bytes){request.call.payload, request.call.payload_bytes};
    } else if (!names_ckpt(diag_text(diag, status), document->name.id)) {
        diag_add(diag, "checkpoint %s", ckpt_id_text(document->name.id).at);
    }
    if (status != 0) {
        free(request.call.payload);
    }
    engine_call_fini(&request.call);
    return status;
}

int documents_load(struct cli *cli, const struct ckpt_info *info, struct documents *ret,
                   struct diag *diag)
{
    *ret = (struct documents){.cli = cli, .info = *info, .source.fetch = fetch};
    struct reader_root root = {
        .run = cli->run, .id = info->id, .manifest_sha256 = info->manifest_sha256};
    return reader_open(&ret->of, &ret->source, &root, true, diag);
}

int documents_parts(struct documents *documents, struct diag *diag)
{
    struct reader *of = &documents->of;
    CHECK(!documents->parts);
    documents->parts = scratch_array(&of->scratch, of->part_count + 1, sizeof(*documents->parts));
    if (!documents->parts) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the parts");
    }
    int status = 0;
    for (size_t i = 0; status == 0 && i < of->part_count; i++) {
        status = reader_part(of, i, &of->scratch, &documents->parts[i], diag);
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
            scratch_array(&shares->documents->of.scratch, cap, sizeof(*grown));
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

static int add_part(struct shares *shares, size_t number, struct scratch *scratch,
                    struct diag *diag)
{
    struct part part;
    int status = reader_part(&shares->documents->of, number, scratch, &part, diag);
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

int documents_shares(struct documents *documents, size_t *ret_count, struct documents_share **ret,
                     struct diag *diag)
{
    struct shares shares = {.documents = documents};
    int status = 0;
    for (size_t i = 0; status == 0 && i < documents->of.part_count; i++) {
        struct scratch scratch;
        scratch_init(&scratch, READER_SCRATCH_MAX);
        status = add_part(&shares, i, &scratch, diag);
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

void documents_fini(struct documents *documents) { reader_fini(&documents->of); }

/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds what is stored and not explained by the record: manifests, and the parts of openings
 * without a manifest. Invariant: nothing that the record knows as committed, open or aborted is
 * among them. On the repair's thread.
 */
#include "salvage_private.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the entry of the opening, from index `first` on, and makes it if it is new; the caller
 * has made room. */
static struct lost_manifest *find_opening(struct salvaging *s, size_t first, struct ckpt_id id,
                                          uint64_t open_id)
{
    for (size_t i = first; i < s->count; i++) {
        if (s->lost[i].open_id == open_id) {
            return &s->lost[i];
        }
    }
    s->lost[s->count] = (struct lost_manifest){.id = id, .open_id = open_id};
    return &s->lost[s->count++];
}

/* Adds the openings of which a checkpoint has a manifest or parts. */
static int add_manifests(struct salvaging *s, struct ckpt_id id, struct diag *diag)
{
    struct store_req req = {.op = STORE_LIST_SMALL, .run = s->repair->name, .id = id};
    int status = ask_store(&s->repair->ask, s->repair->store, &req, NULL);
    struct lost_manifest *grown =
        status == 0 ? realloc(s->lost, (s->count + req.ret_count + 1) * sizeof(*grown)) : NULL;
    if (grown) {
        s->lost = grown;
    }
    size_t first = s->count;
    for (size_t i = 0; grown && i < req.ret_count; i++) {
        const struct store_name *name = &req.ret_smalls[i];
        struct lost_manifest *lost = find_opening(s, first, id, name->tag);
        lost->has_manifest = lost->has_manifest || name->kind == STORE_MANIFEST;
        lost->part_count += name->kind == STORE_PART;
    }
    free(req.ret_smalls);
    return status != 0 ? repair_fail(diag, status, &req.diag)
           : grown     ? 0
                       : diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a list of manifests");
}

/* Reads the stored manifest and checks that it belongs to this store, to this run and to its
 * name. */
static int read_manifest(struct salvaging *s, struct lost_manifest *lost, struct diag *diag)
{
    struct repair *repair = s->repair;
    struct store_name name = {
        .run = repair->name, .id = lost->id, .kind = STORE_MANIFEST, .tag = lost->open_id};
    struct scratch scratch;
    struct record_value bytes = {0};
    struct manifest manifest;
    struct diag why = DIAG_INIT;
    scratch_init(&scratch, READER_SCRATCH_MAX);
    int status = repair_fetch(repair, &name, &scratch, &bytes, &why);
    if (status != CAIRN_E_NOT_FOUND && reader_is_damage(status)) {
        why = DIAG_INIT; /* an error that passes must not make a manifest count as lost */
        status = repair_fetch(repair, &name, &scratch, &bytes, &why);
    }
    if (status != 0 && !reader_is_damage(status)) {
        scratch_fini(&scratch);
        return repair_fail(diag, status, &why);
    }
    if (status == 0) {
        status = manifest_decode(bytes.bytes, bytes.data, &scratch, &manifest, &why);
    }
    if (status == 0 &&
        (!ckpt_id_equal(manifest.id, lost->id) || !run_name_equal(&manifest.run, &repair->name))) {
        status = diag_set(&why, CAIRN_E_CONFLICT, "it is of %s/%s, step %" PRIu64,
                          manifest.run.project, manifest.run.run, manifest.id.step);
    }
    lost->readable = status == 0;
    lost->has_manifest = status != CAIRN_E_NOT_FOUND; /* a listed name may have no manifest yet */
    /* A manifest of a later version is whole, and not ours to make again. */
    lost->foreign = status == CAIRN_E_CONFLICT || status == CAIRN_E_UNSUPPORTED;
    if (status == 0) {
        lost->token = manifest.token;
        lost->parent = manifest.parent;
        lost->sha256 = sha256(bytes.bytes, bytes.data);
        lost->bytes = bytes.bytes;
        lost->created_wall_ns = manifest.created_wall_ns;
    } else {
        snprintf(lost->why, sizeof(lost->why), "%.390s", diag_text(&why, status));
    }
    scratch_fini(&scratch);
    return status == CAIRN_E_NO_MEMORY ? diag_set(diag, status, "no memory for a manifest") : 0;
}

/* Orders by checkpoint, readable ones first, the later opening first: if any opening of a step was
 * acknowledged, it was the last one. */
static int compare_lost(const void *a, const void *b)
{
    const struct lost_manifest *left = a, *right = b;
    int order = ckpt_id_compare(left->id, right->id);
    if (order != 0) {
        return order;
    }
    if (left->readable != right->readable) {
        return left->readable ? -1 : 1;
    }
    return (right->created_wall_ns > left->created_wall_ns) -
           (right->created_wall_ns < left->created_wall_ns);
}

/* Asks whether the record already accounts for what was found of this opening. */
static int find_explained(struct salvaging *s, struct lost_manifest *lost, struct diag *diag)
{
    struct origin origin;
    int status = facts_origin(s->repair, lost->id, lost->open_id, &origin, diag);
    bool has_none = !lost->has_manifest && (origin.is_open || lost->part_count == 0);
    lost->explained = origin.is_explained || has_none;
    return status;
}

bool salvage_is_complete(const struct lost_manifest *lost)
{
    return lost->world_size != 0 && lost->world_size == lost->part_count && !lost->foreign;
}

/* Drops parts without a manifest that are not those of all ranks: each crash leaves such parts. */
static int drop_fragments(struct salvaging *s, struct diag *diag)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->count; i++) {
        struct lost_manifest *lost = &s->lost[i];
        struct remade remade = {.id = lost->id, .open_id = lost->open_id};
        int status = remake_world(s->repair, &remade, lost->readable ? 0 : lost->part_count, diag);
        if (status != 0) {
            return status;
        }
        lost->world_size = remade.world_size;
        if (lost->has_manifest || salvage_is_complete(lost)) {
            s->lost[kept++] = *lost;
        }
    }
    s->count = kept;
    return 0;
}

int salvage_find_lost(struct salvaging *s, struct diag *diag)
{
    struct store_req req = {.op = STORE_LIST_CKPTS, .run = s->repair->name};
    int status = ask_store(&s->repair->ask, s->repair->store, &req, diag);
    s->ckpts = req.ret_ckpts;
    s->ckpt_count = status == 0 ? req.ret_count : 0;
    for (size_t i = 0; status == 0 && i < s->ckpt_count; i++) {
        status = add_manifests(s, s->ckpts[i], diag);
    }
    for (size_t i = 0; status == 0 && i < s->count; i++) {
        status = find_explained(s, &s->lost[i], diag);
    }
    size_t kept = 0;
    for (size_t i = 0; status == 0 && i < s->count; i++) {
        if (!s->lost[i].explained) {
            s->lost[kept++] = s->lost[i];
        }
    }
    s->count = status == 0 ? kept : s->count;
    for (size_t i = 0; status == 0 && i < s->count; i++) {
        status = s->lost[i].has_manifest ? read_manifest(s, &s->lost[i], diag) : 0;
    }
    if (status == 0) {
        status = drop_fragments(s, diag);
    }
    if (status == 0 && s->count > 0) {
        qsort(s->lost, s->count, sizeof(*s->lost), compare_lost);
    }
    return status;
}

/* Takes the run's identity from the first readable part, or makes a new one. */
void salvage_find_info(struct salvaging *s, struct entry_info *ret)
{
    struct repair *repair = s->repair;
    bool found = false;
    for (size_t i = 0; !found && i < s->ckpt_count; i++) {
        struct store_req list = {.op = STORE_LIST_SMALL, .run = repair->name, .id = s->ckpts[i]};
        int status = ask_store(&repair->ask, repair->store, &list, NULL);
        for (size_t k = 0; status == 0 && !found && k < list.ret_count; k++) {
            struct scratch scratch;
            struct record_value bytes;
            struct part part;
            scratch_init(&scratch, READER_SCRATCH_MAX);
            found = list.ret_smalls[k].kind == STORE_PART &&
                    repair_fetch(repair, &list.ret_smalls[k], &scratch, &bytes, NULL) == 0 &&
                    part_decode(bytes.bytes, bytes.data, &scratch, &part, NULL) == 0;
            if (found) {
                *ret =
                    (struct entry_info){.run_uuid = part.run_uuid, .chunk_bytes = part.chunk_bytes};
            }
            scratch_fini(&scratch);
        }
        free(list.ret_smalls);
    }
    if (!found) {
        uint64_t random[2];
        repair_random(repair, &random[0]);
        repair_random(repair, &random[1]);
        *ret = (struct entry_info){.chunk_bytes = LIMIT_CHUNK_BYTES};
        memcpy(&ret->run_uuid, random, sizeof(ret->run_uuid));
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * remake: makes the manifest of a checkpoint that has lost it again, from the parts of all its
 * ranks, with the code that makes one at a commit. Invariant: all parts belong to one opening and
 * cover each other, so the new manifest names exactly the bytes that the ranks saved. What no part
 * holds (metadata, tags, metrics) is lost, and a tag says so. Until they are published the new
 * documents are in memory, and reading.c takes them from here, so that a checkpoint is verified
 * before anything is written. On the repair's thread.
 */
#include "repair_private.h"

#include "base/check.h"

#include <string.h>

static int no_memory(struct diag *diag)
{
    return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory to make a manifest again");
}

static struct store_name name_of(const struct repair *repair, const struct remade *remade,
                                 enum store_kind kind, uint32_t number)
{
    return (struct store_name){.run = repair->name,
                               .id = remade->id,
                               .kind = kind,
                               .number = number,
                               .tag = remade->open_id};
}

/* Returns document `at` of the new ones: the pages by number, then the manifest. */
static struct record_value value_of(const struct remade *remade, size_t at)
{
    const struct build *build = &remade->build;
    return at < build->page_count
               ? (struct record_value){build->pages[at].bytes, build->pages[at].data}
               : (struct record_value){build->bytes.bytes, build->bytes.data};
}

static bool is_same(const struct record_value *a, const struct record_value *b)
{
    return a->bytes == b->bytes && memcmp(a->data, b->data, b->bytes) == 0;
}

static struct store_name document(const struct repair *repair, const struct remade *remade,
                                  size_t at)
{
    bool is_page = at < remade->build.page_count;
    return name_of(repair, remade, is_page ? STORE_PAGE : STORE_MANIFEST,
                   is_page ? (uint32_t)at : 0);
}

/* --- the parts -------------------------------------------------------------------------------- */

/* A part as stored, and the seal that its rank made. */
struct read_part {
    struct part part;
    struct entry_seal seal;
};

/* Reads a part. Its bytes go into the scratch, and the part points to them. */
static int read_part(struct repair *repair, const struct store_name *name, struct scratch *scratch,
                     struct read_part *ret, struct diag *diag)
{
    struct record_value bytes;
    int status = repair_fetch(repair, name, scratch, &bytes, diag);
    if (status != 0) {
        return status;
    }
    status = part_decode(bytes.bytes, bytes.data, scratch, &ret->part, diag);
    ret->seal = (struct entry_seal){.open_id = name->tag,
                                    .writer = status == 0 ? ret->part.writer : 0,
                                    .part_bytes = bytes.bytes,
                                    .part_sha256 = sha256(bytes.bytes, bytes.data)};
    return status;
}

int remake_world(struct repair *repair, struct remade *io, uint32_t part_count, struct diag *diag)
{
    io->world_size = 0;
    for (uint32_t rank = 0; rank < part_count && io->world_size == 0; rank++) {
        struct store_name name = name_of(repair, io, STORE_PART, rank);
        struct scratch scratch;
        struct read_part found = {0};
        struct diag why = DIAG_INIT;
        scratch_init(&scratch, READER_SCRATCH_MAX);
        int status = read_part(repair, &name, &scratch, &found, &why);
        io->world_size = status == 0 ? found.part.world_size : 0;
        scratch_fini(&scratch);
        if (status != 0 && !reader_is_damage(status)) {
            return repair_fail(diag, status, &why);
        }
    }
    return 0;
}

/* Reads the parts of all ranks, with the seals that the ranks must have made of them. */
static int read_parts(struct repair *repair, struct remade *remade, struct diag *diag)
{
    struct scratch *scratch = &remade->scratch;
    uint32_t world_size = remade->world_size;
    remade->parts = scratch_array(scratch, world_size, sizeof(*remade->parts));
    remade->seals = scratch_array(scratch, world_size, sizeof(*remade->seals));
    int status = remade->parts && remade->seals ? 0 : no_memory(diag);
    for (uint32_t rank = 0; status == 0 && rank < world_size; rank++) {
        struct store_name name = name_of(repair, remade, STORE_PART, rank);
        struct read_part found = {0};
        struct diag why = DIAG_INIT;
        status = read_part(repair, &name, scratch, &found, &why);
        remade->parts[rank] = found.part;
        remade->seals[rank] = found.seal;
        if (status == CAIRN_E_NOT_FOUND) {
            status = diag_set(diag, status, "the part of rank %u is missing", rank);
        } else if (status != 0) {
            status = diag_set(diag, status, "the part of rank %u: %.150s", rank,
                              diag_text(&why, status));
        }
    }
    return status;
}

/* --- the documents ---------------------------------------------------------------------------- */

/* Compares the stored page of that number with the new one. A page that is whole and has other
 * bytes was made from other parts, so the present parts are not the ones that were committed:
 * DAMAGED. */
static int compare_page(struct repair *repair, struct remade *remade, size_t at, struct diag *diag)
{
    struct store_name name = document(repair, remade, at);
    struct record_value made = value_of(remade, at), stored;
    struct scratch scratch;
    struct page page;
    struct diag why = DIAG_INIT;
    scratch_init(&scratch, READER_SCRATCH_MAX);
    int status = repair_fetch(repair, &name, &scratch, &stored, &why);
    bool differs = status == 0 && !is_same(&stored, &made);
    if (differs && page_decode(stored.bytes, stored.data, &scratch, &page, NULL) == 0) {
        status = diag_set(diag, CAIRN_E_DAMAGED,
                          "its page %zu was made from other parts than those that are here", at);
    } else if (reader_is_damage(status)) {
        status = 0;
    } else if (status != 0) {
        status = repair_fail(diag, status, &why);
    }
    scratch_fini(&scratch);
    return status;
}

int remake_build(struct repair *repair, const struct origin *origin, struct remade *io,
                 struct diag *diag)
{
    static const char *tags[] = {MANIFEST_REMADE_TAG};
    scratch_init(&io->scratch, READER_SCRATCH_MAX);
    int status = read_parts(repair, io, diag);
    if (status != 0) {
        return status;
    }
    io->open = (struct entry_open){.open_id = io->open_id, .tag_count = 1, .tags = tags};
    struct build_input input = {.store_uuid = repair->store->caps.uuid,
                                .run_uuid = io->parts[0].run_uuid,
                                .run = repair->name,
                                .id = io->id,
                                .parent = origin->parent,
                                .token = origin->token,
                                .world_size = io->world_size,
                                .chunk_bytes = io->parts[0].chunk_bytes,
                                .page_bytes = BUILD_PAGE_BYTES,
                                .created_wall_ns = origin->wall_ns,
                                .open = &io->open,
                                .seals = io->seals,
                                .parts = io->parts};
    io->is_built = true;
    status = build_checkpoint(&input, &io->build, diag);
    for (size_t i = 0; status == 0 && i < io->build.page_count; i++) {
        status = compare_page(repair, io, i, diag);
    }
    return status;
}

void remake_fini(struct remade *remade)
{
    if (remade->is_built) {
        build_fini(&remade->build);
    }
    scratch_fini(&remade->scratch);
}

bool remake_find(const struct remade *remade, const struct store_name *name,
                 struct record_value *ret)
{
    size_t at = name->kind == STORE_PAGE ? name->number : remade->build.page_count;
    bool is_made = ckpt_id_equal(remade->id, name->id) && remade->open_id == name->tag &&
                   name->kind != STORE_PART && at <= remade->build.page_count;
    if (is_made) {
        *ret = value_of(remade, at);
    }
    return is_made;
}

/* --- onto the medium -------------------------------------------------------------------------- */

static int ask_name(struct repair *repair, enum store_op op, const struct store_name *name,
                    const struct record_value *value, struct diag *diag)
{
    struct store_req req = {.op = op, .name = *name};
    if (value) {
        req.bytes = value->bytes;
        req.data = (void *)(uintptr_t)value->data; /* PUBLISH only reads it */
    }
    return ask_store(&repair->ask, repair->store, &req, diag);
}

/* Replaces a damaged document under its own name. If a salvage is killed here, nothing is stored
 * under the name, or the new bytes. Under another name a whole manifest would be taken for that of
 * another opening. */
static int replace(struct repair *repair, const struct store_name *name,
                   const struct record_value *value, struct diag *diag)
{
    int status = ask_name(repair, STORE_DELETE_SMALL, name, NULL, diag);
    return status != 0 ? status : ask_name(repair, STORE_PUBLISH, name, value, diag);
}

/* Publishes one document, unless it is stored already. A damaged one is replaced. Returns CONFLICT
 * if a whole manifest is stored there: it was read in vain before, and holds what no part does.
 */
static int put_document(struct repair *repair, const struct remade *remade, size_t at,
                        struct diag *diag)
{
    struct store_name name = document(repair, remade, at);
    struct record_value value = value_of(remade, at), stored;
    struct scratch scratch;
    struct manifest manifest;
    struct diag why = DIAG_INIT;
    scratch_init(&scratch, READER_SCRATCH_MAX);
    int status = repair_fetch(repair, &name, &scratch, &stored, &why);
    bool same = status == 0 && is_same(&stored, &value);
    if (status == 0 && !same && name.kind == STORE_MANIFEST &&
        manifest_decode(stored.bytes, stored.data, &scratch, &manifest, NULL) == 0) {
        status = diag_set(diag, CAIRN_E_CONFLICT, "its manifest can be read now: salvage it again");
    } else if (status == CAIRN_E_NOT_FOUND) {
        status = ask_name(repair, STORE_PUBLISH, &name, &value, diag);
    } else if (reader_is_damage(status) || (status == 0 && !same)) {
        status = replace(repair, &name, &value, diag);
    } else if (status != 0) {
        status = repair_fail(diag, status, &why);
    }
    scratch_fini(&scratch);
    return status;
}

int remake_publish(struct repair *repair, const struct remade *remade, struct diag *diag)
{
    int status = 0;
    CHECK(remade->is_built);
    for (size_t i = 0; status == 0 && i <= remade->build.page_count; i++) {
        status = put_document(repair, remade, i, diag); /* the manifest comes last */
    }
    return status;
}

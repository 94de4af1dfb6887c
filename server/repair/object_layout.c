/* SPDX-License-Identifier: Apache-2.0
 *
 * object_layout: the pieces that an object must hold, from end to end. The parts of its own
 * checkpoint say so under a hash. If that checkpoint is gone, the object's footer says so; its crc
 * covers it, and every chunk in it still has to match its digest.
 */
#include "repair_private.h"

#include <stdlib.h>
#include <string.h>

int layout_copy(size_t count, const struct scan_piece *pieces, struct scratch *scratch,
                struct broken *ret)
{
    ret->id = *pieces[0].id;
    ret->count = count;
    ret->pieces = scratch_array(scratch, count, sizeof(*ret->pieces));
    ret->damage.bad = scratch_array(scratch, count, sizeof(*ret->damage.bad));
    ret->sources = scratch_array(scratch, count, sizeof(*ret->sources));
    if (!ret->pieces || !ret->damage.bad || !ret->sources) {
        return CAIRN_E_NO_MEMORY;
    }
    const char *before = NULL, *copy = NULL;
    for (size_t i = 0; i < count; i++) {
        ret->pieces[i] = pieces[i];
        ret->pieces[i].id = &ret->id;
        if (pieces[i].name != before) {
            before = pieces[i].name;
            copy = scratch_string(scratch, strlen(before), before);
        }
        if (!copy) {
            return CAIRN_E_NO_MEMORY;
        }
        ret->pieces[i].name = copy;
    }
    return 0;
}

/* --- from the part ---------------------------------------------------------------------------- */

/* Takes the pieces of one object from a part of its checkpoint. */
static int take_object(const struct part *part, const struct object_id *id, struct scratch *scratch,
                       struct broken *ret, struct diag *diag)
{
    struct scan_piece *pieces = reader_pieces(part);
    size_t first = 0;
    if (!pieces) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a part's chunks");
    }
    while (first < part->chunk_count && !object_id_equal(pieces[first].id, id)) {
        first++;
    }
    int status =
        first == part->chunk_count
            ? diag_set(diag, CAIRN_E_NOT_FOUND, "the checkpoint's part does not name the object")
            : layout_copy(reader_object_pieces(part->chunk_count - first, pieces + first),
                          pieces + first, scratch, ret);
    free(pieces);
    return status;
}

/* Finds the pieces of an object in its own checkpoint's part, which a hash proves. Returns
 * NOT_FOUND if that checkpoint is gone. */
static int from_part(struct repair *repair, const struct object_id *id, struct scratch *scratch,
                     struct broken *ret, struct diag *diag)
{
    struct reader reader;
    const struct commit_fact *fact = repair_fact(repair, (struct ckpt_id){id->term, id->step});
    if (!fact) {
        return diag_set(diag, CAIRN_E_NOT_FOUND, "its checkpoint is gone");
    }
    size_t at = 0;
    int status = reader_open(&reader, &repair->plain.store.reader, &fact->root, false, diag);
    while (status == 0 && at < reader.part_count && reader.parts[at].rank != id->rank) {
        at++;
    }
    if (status == 0 && at == reader.part_count) {
        status =
            diag_set(diag, CAIRN_E_NOT_FOUND, "its checkpoint has no part of rank %u", id->rank);
    }
    if (status == 0) {
        struct part part;
        status = reader_part(&reader, at, &reader.scratch, &part, diag);
        status = status != 0 ? status : take_object(&part, id, scratch, ret, diag);
    }
    reader_fini(&reader);
    return status;
}

/* --- from the footer -------------------------------------------------------------------------- */

struct span { /* a range of an object in a store */
    struct store *store;
    const struct object_id *id;
    uint64_t offset, bytes;
};

static int read_span(struct repair *repair, const struct span *span, uint8_t *ret,
                     struct diag *diag)
{
    struct store_req req = {.op = STORE_READ,
                            .run = repair->name,
                            .object = *span->id,
                            .offset = span->offset,
                            .bytes = span->bytes,
                            .data = ret};
    return ask_store(&repair->ask, span->store, &req, diag);
}

/* Finds the footer and sets its range in io. ret_bytes gets the size of the object. */
static int find_footer(struct repair *repair, struct span *io, uint64_t *ret_bytes,
                       struct diag *diag)
{
    uint8_t trailer[OBJECT_TRAILER_BYTES];
    struct store_req req = {.op = STORE_STAT, .run = repair->name, .object = *io->id};
    int status = ask_store(&repair->ask, io->store, &req, diag);
    if (status != 0) {
        return status;
    }
    if (req.ret_bytes < sizeof(trailer)) {
        return diag_set(diag, CAIRN_E_DAMAGED, "it is shorter than a footer");
    }
    *ret_bytes = req.ret_bytes;
    io->offset = req.ret_bytes - sizeof(trailer);
    io->bytes = sizeof(trailer);
    status = read_span(repair, io, trailer, diag);
    return status != 0
               ? status
               : object_trailer_decode(trailer, req.ret_bytes, &io->offset, &io->bytes, diag);
}

/* Reads the footer of the object that span->store and span->id name. */
static int read_footer(struct repair *repair, struct span *span, struct scratch *scratch,
                       struct object_footer *ret, struct diag *diag)
{
    uint64_t object_bytes = 0;
    int status = find_footer(repair, span, &object_bytes, diag);
    if (status != 0) {
        return status;
    }
    uint8_t *memory = scratch_alloc(scratch, span->bytes);
    if (!memory) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for a footer");
    }
    status = read_span(repair, span, memory, diag);
    if (status == 0) {
        status = object_footer_decode(span->bytes, memory, object_bytes, scratch, ret, diag);
    }
    if (status == 0 && (!object_id_equal(&ret->id, span->id) || ret->envelope_count == 0)) {
        status = diag_set(diag, CAIRN_E_DAMAGED, "its footer is another object's");
    }
    return status;
}

/* Finds the pieces of an object in its footer. The footer has a crc only, so the chunks' own
 * digests have to prove the rest. */
static int from_footer(struct repair *repair, struct store *store, const struct object_id *id,
                       struct scratch *scratch, struct broken *ret)
{
    struct object_footer footer;
    struct span span = {.store = store, .id = id};
    int status = read_footer(repair, &span, scratch, &footer, NULL);
    if (status != 0) {
        return status;
    }
    struct scan_piece *pieces = scratch_array(scratch, footer.envelope_count, sizeof(*pieces));
    if (!pieces) {
        return CAIRN_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < footer.envelope_count; i++) {
        pieces[i] = (struct scan_piece){
            .id = id, .name = "a chunk", .rank = id->rank, .envelope = footer.envelopes[i]};
    }
    return layout_copy(footer.envelope_count, pieces, scratch, ret);
}

int layout_of(struct repair *repair, const struct object_id *id, struct scratch *scratch,
              struct broken *ret, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int status = from_part(repair, id, scratch, ret, &why);
    if (status != 0 && reader_is_damage(status)) {
        status = from_footer(repair, repair->store, id, scratch, ret);
    }
    if (status != 0 && reader_is_damage(status) && mirror_open(repair, NULL) == 0) {
        int there = from_footer(repair, repair->mirror, id, scratch, ret);
        mirror_failed(repair, there, NULL);
        status = there == 0 || there == CAIRN_E_NO_MEMORY ? there : status;
    }
    return status == 0 ? 0
                       : diag_set(diag, status, "%.200s, and its footer cannot be read",
                                  diag_text(&why, status));
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Fills in the part that a client has handed over. The client's part names its chunks as they were
 * described: raw, without crc and digest, at the places that the client gave them. Here they become
 * the stored chunks, with their place, encoding, crc and digest, or references to the base's chunk
 * at the same place, or to a chunk that was durable before. Objects that no chunk refers to any
 * more leave the part.
 *
 * Invariant: what is filled in comes from envelopes that were made or verified here, or from the
 * base. Loop's thread.
 */
#include "ingest/ingest_private.h"

#include "base/check.h"
#include "pipeline/digest.h"
#include "pipeline/part_place.h"

#include <string.h>

struct filler {
    const struct writer *writer;
    struct part_fill *fill;
    /* Those of the part, then of the base, then other objects of this writer. */
    struct part_object *objects;
    uint32_t *places; /* by object: 1 + its index in the result; 0 if no chunk refers to it */
    /* By object of the base: 1 + its index in objects; 0 if not there yet. */
    uint32_t *base_objects;
    /* By the first entry of writer.recovered with some bytes: how many chunks have become one of
     * these entries. */
    uint32_t *uses;
    uint32_t object_count;
};

/* Returns the largest number of objects that the result can have. Other objects of this writer are
 * at most as many as there are chunks. */
static size_t objects_most(const struct part *part, const struct part *base)
{
    return (size_t)part->object_count + part->chunk_count + (base ? base->object_count : 0) + 1;
}

size_t part_fill_bytes(const struct writer *writer, const struct part *part,
                       const struct part *base)
{
    size_t each = sizeof(struct part_object) + 2 * sizeof(uint32_t);
    return objects_most(part, base) * each + writer->recovered_count * sizeof(uint32_t) + KIB(64);
}

static bool is_blank(const struct part_chunk *chunk)
{
    return chunk->stored_crc == 0 && is_all_zero(sizeof(chunk->digest.bytes), chunk->digest.bytes);
}

static const struct durable *durable_of(const struct writer *writer, const struct part *part,
                                        const struct part_chunk *chunk)
{
    const struct object_id *id = &part->objects[chunk->object].id;
    return is_blank(chunk) && writer_owns(writer, id) ? writer_find_durable(writer, id->sequence)
                                                      : NULL;
}

bool part_fill_needs_base(const struct writer *writer, const struct part *part)
{
    for (uint32_t i = 0; i < part->chunk_count; i++) {
        const struct durable *durable = durable_of(writer, part, &part->chunks[i]);
        const struct in_piece *piece =
            durable ? durable_piece(durable, part->chunks[i].offset) : NULL;
        if (piece && piece->where == WHERE_BASE) {
            return true;
        }
    }
    return false;
}

static void take_envelope(struct part_chunk *chunk, const struct envelope *envelope)
{
    chunk->offset = envelope->offset;
    chunk->stored_bytes = envelope->stored_bytes;
    chunk->stored_crc = envelope->stored_crc;
    chunk->encoding = envelope->encoding;
    chunk->digest_alg = envelope->digest_alg;
    chunk->digest = envelope->digest;
}

/* Returns the chunk of an earlier object that this chunk of the part becomes. Several chunks with
 * the same bytes become different ones as long as there are any, so that the part refers to
 * everything that those objects hold, as verify expects. */
static const struct recovered *choose_older(struct filler *filler, uint32_t first)
{
    const struct writer *writer = filler->writer;
    size_t at = (size_t)first + filler->uses[first];
    if (at + 1 < writer->recovered_count &&
        digest_equal(&writer->recovered[at + 1].digest, &writer->recovered[first].digest)) {
        filler->uses[first]++; /* all further chunks use the last one */
    }
    return &writer->recovered[at];
}

/* Turns a chunk into one that was durable before this daemon was restarted, under another sequence
 * of the same writer. */
static void take_older(struct filler *filler, struct part_chunk *chunk,
                       const struct in_piece *piece)
{
    const struct recovered *older = choose_older(filler, piece->older);
    const struct durable *durable = writer_find_durable(filler->writer, older->sequence);
    const struct envelope *envelope = durable ? durable_find(durable, older->offset) : NULL;
    if (!envelope) {
        return; /* the chunk stays blank, and the check of the part refuses it */
    }
    struct object_id id = filler->objects[chunk->object].id;
    id.sequence = older->sequence;
    uint32_t at = filler->object_count;
    while (at > 0 && !object_id_equal(&filler->objects[at - 1].id, &id)) {
        at--;
    }
    if (at == 0) {
        filler->objects[filler->object_count++] = (struct part_object){.id = id};
        at = filler->object_count;
    }
    chunk->object = at - 1;
    take_envelope(chunk, envelope);
}

/* Turns a chunk into the base's chunk at the same place. `found` is 1 + its index, or 0 if there is
 * none. */
static int take_base(struct filler *filler, struct part_chunk *chunk, const struct in_piece *piece,
                     uint32_t found, struct diag *diag)
{
    const struct part *base = filler->fill->base;
    const struct part_chunk *old = found > 0 ? &base->chunks[found - 1] : NULL;
    if (!old || old->digest_alg != DIGEST_XXH3_128 ||
        memcmp(&old->digest, &piece->digest, sizeof(old->digest)) != 0) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "rank %u described a chunk as unchanged since the base, but the base has "
                        "no such chunk there",
                        filler->writer->key.rank);
    }
    uint32_t cell = chunk->cell, *object = &filler->base_objects[old->object];
    if (*object == 0) {
        filler->objects[filler->object_count++] =
            (struct part_object){.id = base->objects[old->object].id};
        *object = filler->object_count;
    }
    uint32_t idx = *object - 1;
    *chunk = *old;
    chunk->object = idx;
    chunk->cell = cell;
    filler->fill->shared_bytes += chunk->plain_bytes;
    return 0;
}

/* Turns one described chunk into the stored one: in its own object, in the base, or in an older
 * object. */
static int fill_chunk(struct filler *filler, struct part_chunk *chunk, struct part_run base_run,
                      struct diag *diag)
{
    struct part_fill *fill = filler->fill;
    const struct durable *durable = durable_of(filler->writer, fill->part, chunk);
    const struct in_piece *piece = durable ? durable_piece(durable, chunk->offset) : NULL;
    const struct envelope *envelope = NULL;
    if (!durable) {
        return 0; /* the check of the part refuses a chunk that is not durable */
    }
    if (piece && piece->where == WHERE_BASE) {
        uint32_t found =
            fill->base ? part_find_cell(fill->base, base_run, chunk->cell, chunk->plain_bytes) : 0;
        return take_base(filler, chunk, piece, found, diag);
    }
    CHECK(!piece || piece->where != WHERE_OPEN); /* all of it was decided before it was durable */
    if (piece && piece->where == WHERE_OLDER) {
        take_older(filler, chunk, piece);
    } else if (piece && piece->envelope < durable->envelope_count) {
        envelope = &durable->envelopes[piece->envelope];
    } else if (!piece && !durable->pieces) { /* it lies where the client put it */
        envelope = durable_find(durable, chunk->offset);
    }
    if (envelope && envelope->plain_bytes == chunk->plain_bytes) {
        take_envelope(chunk, envelope);
    }
    fill->stored_bytes += chunk->stored_bytes;
    return 0;
}

/* Fills in the chunks of one box or blob. */
static int fill_run(struct filler *filler, const struct part_place *place, struct part_run run,
                    struct diag *diag)
{
    const struct part_fill *fill = filler->fill;
    struct part_run base_run = fill->base ? part_find_run(fill->base, place) : (struct part_run){0};
    int status = 0;
    for (uint32_t i = 0; i < run.count && status == 0; i++) {
        status = fill_chunk(filler, &fill->part->chunks[run.first + i], base_run, diag);
    }
    return status;
}

/* Fills in the chunks of all boxes and blobs of the part. */
static int fill_all(struct filler *filler, struct diag *diag)
{
    const struct part *part = filler->fill->part;
    int status = 0;
    for (uint32_t i = 0; i < part->box_count && status == 0; i++) {
        const struct part_box *box = &part->boxes[i];
        const struct part_tensor *tensor = &part->tensors[box->tensor];
        struct part_place place = {.name = tensor->name,
                                   .coordinate = tensor->coordinate,
                                   .dtype = tensor->dtype,
                                   .box = &box->box};
        status =
            fill_run(filler, &place, (struct part_run){box->chunk_first, box->chunk_count}, diag);
    }
    for (uint32_t i = 0; i < part->blob_count && status == 0; i++) {
        const struct part_blob *blob = &part->blobs[i];
        struct part_place place = {.name = blob->name, .coordinate = blob->coordinate};
        status =
            fill_run(filler, &place, (struct part_run){blob->chunk_first, blob->chunk_count}, diag);
    }
    return status;
}

/* Keeps the objects that a chunk refers to, in their order, and renumbers the chunks' objects. */
static void keep_used(struct filler *filler)
{
    struct part *part = filler->fill->part;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < part->chunk_count; i++) {
        filler->places[part->chunks[i].object] = 1;
    }
    for (uint32_t i = 0; i < filler->object_count; i++) {
        if (filler->places[i] != 0) {
            filler->objects[kept++] = filler->objects[i];
            filler->places[i] = kept;
        }
    }
    for (uint32_t i = 0; i < part->chunk_count; i++) {
        part->chunks[i].object = filler->places[part->chunks[i].object] - 1;
    }
    CHECK(kept <= filler->object_count);
    CHECK(kept > 0 || part->chunk_count == 0);
    part->objects = filler->objects;
    part->object_count = kept;
    part_count_objects(part);
}

int part_fill(const struct writer *writer, struct part_fill *fill, struct diag *diag)
{
    size_t most = objects_most(fill->part, fill->base);
    struct filler filler = {
        .writer = writer, .fill = fill, .object_count = fill->part->object_count};
    filler.objects = scratch_array(fill->scratch, most, sizeof(*filler.objects));
    filler.places = scratch_array(fill->scratch, most, sizeof(*filler.places));
    filler.base_objects = scratch_array(fill->scratch, most, sizeof(*filler.base_objects));
    filler.uses = scratch_array(fill->scratch, writer->recovered_count + 1, sizeof(*filler.uses));
    if (!filler.objects || !filler.places || !filler.base_objects || !filler.uses) {
        return diag_no_memory(diag, "the objects of a part");
    }
    memcpy(filler.objects, fill->part->objects, fill->part->object_count * sizeof(*filler.objects));
    memset(filler.places, 0, most * sizeof(*filler.places));
    memset(filler.base_objects, 0, most * sizeof(*filler.base_objects));
    memset(filler.uses, 0, (writer->recovered_count + 1) * sizeof(*filler.uses));
    int status = fill_all(&filler, diag);
    if (status == 0) {
        keep_used(&filler);
    }
    return status;
}

/* --- two parts ------------------------------------------------------------------------------ */

/* Returns true if both parts have the same tensors and boxes, with the same numbers of chunks. */
static bool tensors_are_alike(const struct part *a, const struct part *b)
{
    for (uint32_t i = 0; i < a->tensor_count; i++) {
        const struct part_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        if (part_name_compare(x->name, x->coordinate, y->name, y->coordinate) != 0 ||
            x->dtype != y->dtype || x->placement != y->placement || x->box_first != y->box_first ||
            x->box_count != y->box_count || x->shape.ndim != y->shape.ndim ||
            memcmp(x->shape.length, y->shape.length, x->shape.ndim * sizeof(x->shape.length[0])) !=
                0) {
            return false;
        }
    }
    for (uint32_t i = 0; i < a->box_count; i++) {
        const struct part_box *x = &a->boxes[i], *y = &b->boxes[i];
        if (x->tensor != y->tensor || box_compare(&x->box, &y->box) != 0 ||
            x->chunk_first != y->chunk_first || x->chunk_count != y->chunk_count) {
            return false;
        }
    }
    return true;
}

static bool blobs_are_alike(const struct part *a, const struct part *b)
{
    for (uint32_t i = 0; i < a->blob_count; i++) {
        const struct part_blob *x = &a->blobs[i], *y = &b->blobs[i];
        if (part_name_compare(x->name, x->coordinate, y->name, y->coordinate) != 0 ||
            x->kind != y->kind || x->placement != y->placement ||
            x->plain_bytes != y->plain_bytes || x->chunk_first != y->chunk_first ||
            x->chunk_count != y->chunk_count) {
            return false;
        }
    }
    return true;
}

bool part_is_alike(const struct part *a, const struct part *b)
{
    bool is_alike = ckpt_id_equal(a->id, b->id) && a->rank == b->rank &&
                    a->world_size == b->world_size && a->writer == b->writer &&
                    a->chunk_bytes == b->chunk_bytes && a->tensor_count == b->tensor_count &&
                    a->box_count == b->box_count && a->blob_count == b->blob_count &&
                    a->chunk_count == b->chunk_count;
    for (uint32_t i = 0; is_alike && i < a->chunk_count; i++) {
        const struct part_chunk *x = &a->chunks[i], *y = &b->chunks[i];
        is_alike = x->cell == y->cell && x->plain_bytes == y->plain_bytes &&
                   x->digest_alg == y->digest_alg &&
                   memcmp(&x->digest, &y->digest, sizeof(x->digest)) == 0;
    }
    return is_alike && tensors_are_alike(a, b) && blobs_are_alike(a, b);
}

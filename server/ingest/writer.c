/* SPDX-License-Identifier: Apache-2.0
 *
 * What a writer knows: its objects, which of them are durable and what is in them, and the check of
 * a part against these. A writer lives as long as somebody refers to it. One loop's thread.
 */
#include "ingest/ingest_private.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

void writer_ref(struct writer *writer)
{
    CHECK(writer->refs < UINT32_MAX);
    writer->refs++;
}

void writer_unref(struct writer *writer)
{
    CHECK(writer->refs > 0);
    if (--writer->refs > 0) {
        return;
    }
    struct ingest *ingest = writer->ingest;
    CHECK(writer->over);
    CHECK(!writer->hand);
    CHECK(!writer->asking);
    CHECK(list_is_empty(&writer->objects));
    CHECK(list_is_empty(&writer->haves));
    CHECK(list_is_empty(&writer->to_write));
    CHECK(list_is_empty(&writer->to_digest));
    CHECK(ingest->pending > 0);
    list_remove(&writer->link);
    for (size_t i = 0; i < writer->durable_count; i++) {
        free(writer->durables[i].envelopes);
        free(writer->durables[i].pieces);
    }
    free(writer->recovered);
    free(writer->durables);
    free(writer);
    ingest->pending--;
    if (ingest->pending == 0 && ingest->idle) {
        void (*idle)(void *) = ingest->idle;
        ingest->idle = NULL;
        idle(ingest->idle_user);
    }
}

struct in_object *writer_find_object(struct writer *writer, uint32_t sequence)
{
    list_each (node, &writer->objects) {
        struct in_object *object = list_item(node, struct in_object, link);
        if (object->id.sequence == sequence) {
            return object;
        }
    }
    return NULL;
}

int writer_check_id(const struct writer *writer, const struct object_id *id, struct diag *diag)
{
    if (id->term != writer->key.id.term || id->step != writer->key.id.step ||
        id->rank != writer->key.rank || id->writer != writer->key.writer) {
        return diag_set(
            diag, CAIRN_E_PROTOCOL,
            "an object of term %llu, step %llu, rank %u does not belong to this session",
            (unsigned long long)id->term, (unsigned long long)id->step, id->rank);
    }
    return 0;
}

bool writer_owns(const struct writer *writer, const struct object_id *id)
{
    struct diag ignored;
    return writer_check_id(writer, id, &ignored) == 0;
}

void writer_settled(struct writer *writer)
{
    if (writer->settled) {
        loop_post(writer->ingest->loop, writer->settled);
    }
}

/* --- what is durable ------------------------------------------------------------------------ */

/* Returns the place of the object in the sorted list, or the place where it belongs. */
static size_t durable_position(const struct writer *writer, uint32_t sequence)
{
    size_t low = 0, high = writer->durable_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (writer->durables[middle].sequence < sequence) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct durable *writer_find_durable(const struct writer *writer, uint32_t sequence)
{
    size_t at = durable_position(writer, sequence);
    return at < writer->durable_count && writer->durables[at].sequence == sequence
               ? &writer->durables[at]
               : NULL;
}

static int drop_durable(const struct durable *durable, int status)
{
    free(durable->envelopes);
    free(durable->pieces);
    return status;
}

int writer_add_durable(struct writer *writer, const struct durable *durable)
{
    uint32_t sequence = durable->sequence;
    size_t at = durable_position(writer, sequence);
    if (at < writer->durable_count && writer->durables[at].sequence == sequence) {
        struct durable known = writer->durables[at];
        bool says_more = durable->pieces && !known.pieces;
        writer->durables[at] = says_more ? *durable : known;
        return drop_durable(says_more ? &known : durable, 0);
    }
    struct durable *grown =
        array_room(writer->durables, writer->durable_count, &writer->durable_cap, sizeof(*grown));
    if (!grown) {
        return drop_durable(durable, CAIRN_E_NO_MEMORY);
    }
    writer->durables = grown;
    CHECK(at == 0 || writer->durables[at - 1].sequence < sequence);
    CHECK(at == writer->durable_count || sequence < writer->durables[at].sequence);
    memmove(&writer->durables[at + 1], &writer->durables[at],
            (writer->durable_count - at) * sizeof(struct durable));
    writer->durables[at] = *durable;
    for (uint32_t i = 0; i < durable->envelope_count; i++) {
        writer->durable_bytes += durable->envelopes[i].stored_bytes;
    }
    writer->durable_count++;
    if (sequence >= writer->next_sequence) {
        writer->next_sequence = sequence + 1;
    }
    return 0;
}

static int compare_offset(const void *offset, const void *envelope)
{
    return compare_u64(*(const uint64_t *)offset, ((const struct envelope *)envelope)->offset);
}

const struct envelope *durable_find(const struct durable *durable, uint64_t offset)
{
    return array_find(&offset, durable->envelopes, durable->envelope_count,
                      sizeof(*durable->envelopes), compare_offset);
}

const struct in_piece *durable_piece(const struct durable *durable, uint64_t at)
{
    return array_find(&at, durable->pieces, durable->piece_count, sizeof(*durable->pieces),
                      order_u64);
}

static bool chunk_matches(const struct part_chunk *chunk, const struct envelope *envelope)
{
    return envelope && envelope->stored_bytes == chunk->stored_bytes &&
           envelope->plain_bytes == chunk->plain_bytes &&
           envelope->stored_crc == chunk->stored_crc && envelope->encoding == chunk->encoding &&
           envelope->digest_alg == chunk->digest_alg &&
           memcmp(&envelope->digest, &chunk->digest, sizeof(chunk->digest)) == 0;
}

bool writer_has_refs(const struct writer *writer, const struct part *part)
{
    for (uint32_t i = 0; i < part->object_count; i++) {
        if (!writer_owns(writer, &part->objects[i].id)) {
            return true;
        }
    }
    return false;
}

/* Returns NULL if the part may refer to the chunk, or the reason why it may not. */
static const char *chunk_refused(const struct writer *writer, const struct part_refs *refs,
                                 const struct object_id *id, const struct part_chunk *chunk)
{
    if (!writer_owns(writer, id)) {
        return !refs ? "belongs to another save, although this save has no base"
               : part_refs_has(refs, id, chunk)
                   ? NULL
                   : "belongs to another save, and is not the same in the base";
    }
    const struct durable *durable = writer_find_durable(writer, id->sequence);
    if (!durable) {
        return "is not durable in the store";
    }
    return chunk_matches(chunk, durable_find(durable, chunk->offset))
               ? NULL
               : "holds another chunk at that place";
}

int writer_check_part(const struct writer *writer, const struct part *part,
                      const struct part_refs *refs, struct diag *diag)
{
    const struct writer_key *key = &writer->key;
    if (!ckpt_id_equal(part->id, key->id) || part->rank != key->rank ||
        part->writer != key->writer) {
        return diag_set(diag, CAIRN_E_INVALID,
                        "the part belongs to term %llu, step %llu, rank %u, which is not what this "
                        "session saves",
                        (unsigned long long)part->id.term, (unsigned long long)part->id.step,
                        part->rank);
    }
    for (uint32_t i = 0; i < part->chunk_count; i++) {
        const struct part_chunk *chunk = &part->chunks[i];
        const struct object_id *id = &part->objects[chunk->object].id;
        const char *why = chunk_refused(writer, refs, id, chunk);
        if (why) {
            return diag_set(diag, CAIRN_E_INVALID,
                            "rank %u: chunk %u refers to object %u of step %llu@%llu at %llu, "
                            "which %s",
                            key->rank, i, id->sequence, (unsigned long long)id->step,
                            (unsigned long long)id->term, (unsigned long long)chunk->offset, why);
        }
    }
    return 0;
}

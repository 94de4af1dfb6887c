/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranges end between chunks, so that each check has whole chunks. The zeros behind a chunk are read
 * with it, as far as the next chunk or the end of the block. object_scan.h has the rest.
 */
#include "pipeline/object_scan.h"

#include "base/check.h"
#include "base/scratch.h"
#include "pipeline/chunk.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- pieces ----------------------------------------------------------------------------------- */

struct chunk_run { /* of a box or a blob */
    const char *name;
    uint8_t element_bytes;
    uint32_t first, count;
};

/* Adds the chunks of a box or blob as pieces. Returns the place for the next one. */
static struct scan_piece *add_chunks(struct scan_piece *to, const struct part *part,
                                     const struct chunk_run *run)
{
    for (uint32_t i = run->first; i < run->first + run->count; i++) {
        const struct part_chunk *chunk = &part->chunks[i];
        *to++ = (struct scan_piece){.id = &part->objects[chunk->object].id,
                                    .name = run->name,
                                    .rank = part->rank,
                                    .envelope = {.offset = chunk->offset,
                                                 .stored_bytes = chunk->stored_bytes,
                                                 .plain_bytes = chunk->plain_bytes,
                                                 .stored_crc = chunk->stored_crc,
                                                 .encoding = chunk->encoding,
                                                 .digest_alg = chunk->digest_alg,
                                                 .element_bytes = run->element_bytes,
                                                 .digest = chunk->digest}};
    }
    return to;
}

void scan_pieces_of(const struct part *part, struct scan_piece *pieces)
{
    struct scan_piece *to = pieces;
    for (uint32_t i = 0; i < part->box_count; i++) {
        const struct part_box *box = &part->boxes[i];
        const struct part_tensor *tensor = &part->tensors[box->tensor];
        struct chunk_run run = {tensor->name, (uint8_t)(dtype_bits(tensor->dtype) / 8),
                                box->chunk_first, box->chunk_count};
        to = add_chunks(to, part, &run);
    }
    for (uint32_t i = 0; i < part->blob_count; i++) {
        const struct part_blob *blob = &part->blobs[i];
        struct chunk_run run = {blob->name, 1, blob->chunk_first, blob->chunk_count};
        to = add_chunks(to, part, &run);
    }
    CHECK(to == pieces + part->chunk_count);
}

static int compare_pieces(const void *a, const void *b)
{
    const struct scan_piece *x = a, *y = b;
    int order = object_id_compare(x->id, y->id);
    if (order != 0) {
        return order;
    }
    return x->envelope.offset < y->envelope.offset   ? -1
           : x->envelope.offset > y->envelope.offset ? 1
                                                     : 0;
}

void scan_sort(size_t count, struct scan_piece *pieces)
{
    if (count > 0) {
        qsort(pieces, count, sizeof(*pieces), compare_pieces);
    }
}

void scan_piece_text(const struct scan_piece *piece, size_t bytes, char *ret)
{
    const struct object_id *id = piece->id;
    snprintf(ret, bytes,
             "%.120s (rank %u, object %" PRIu64 "@%" PRIu64 "/%u-%016" PRIx64 "-%u at %" PRIu64 ")",
             piece->name, piece->rank, id->step, id->term, id->rank, id->writer, id->sequence,
             piece->envelope.offset);
}

/* --- one object ------------------------------------------------------------------------------- */

/* Counts the chunks of the object. Tied tensors may refer to one chunk twice, but the object has it
 * once. */
static uint32_t count_distinct(const struct object_scan *scan)
{
    uint32_t count = 0;
    for (size_t i = 0; i < scan->count; i++) {
        count += i == 0 || scan->pieces[i].envelope.offset != scan->pieces[i - 1].envelope.offset;
    }
    return count;
}

size_t object_scan_begin(struct object_scan *scan, size_t count, const struct scan_piece *pieces,
                         bool chunks_only)
{
    size_t end = 1;
    CHECK(count > 0);
    while (end < count && object_id_equal(pieces[end].id, pieces[0].id)) {
        end++;
    }
    const struct envelope *last = &pieces[end - 1].envelope;
    *scan = (struct object_scan){.pieces = pieces, .count = end, .chunks_only = chunks_only};
    scan->data_end = round_up_u64(last->offset + last->stored_bytes, LIMIT_ALIGN_BYTES);
    scan->footer_bytes = object_footer_bytes(count_distinct(scan));
    return end;
}

const struct scan_piece *object_scan_piece(const struct object_scan *scan)
{
    return &scan->pieces[scan->at < scan->count ? scan->at : scan->count - 1];
}

/* Chooses a range as long as a chunk may be, but never ends it inside a chunk. */
static void choose_chunks(struct object_scan *scan)
{
    const struct scan_piece *pieces = scan->pieces;
    if (scan->chunks_only) {
        /* The bytes before it belong to other checkpoints. */
        scan->from = pieces[scan->at].envelope.offset;
    }
    uint64_t end = scan->from;
    size_t next = scan->at;
    for (; next < scan->count; next++) {
        uint64_t ends = pieces[next].envelope.offset + pieces[next].envelope.stored_bytes;
        if (ends > scan->from + LIMIT_CHUNK_BYTES) {
            break;
        }
        end = max_u64(end, ends);
    }
    if (!scan->chunks_only) {
        uint64_t padded = next < scan->count ? pieces[next].envelope.offset
                                             : round_up_u64(end, LIMIT_ALIGN_BYTES);
        end = max_u64(min_u64(padded, scan->from + LIMIT_CHUNK_BYTES), end);
    }
    scan->bytes = end - scan->from;
}

bool object_scan_next(struct object_scan *scan, struct scan_sink *sink)
{
    scan->from += scan->chunks_only ? 0 : scan->bytes;
    if (scan->in_footer || (scan->chunks_only && scan->at == scan->count)) {
        return false;
    }
    if (scan->at == scan->count && scan->from == scan->data_end) {
        scan->in_footer = true;
        scan->bytes = scan->footer_bytes;
        return true;
    }
    choose_chunks(scan);
    if (scan->bytes == 0) {
        sink->found(sink, object_scan_piece(scan), SCAN_CHUNK,
                    "the object's layout is not possible");
        return false;
    }
    return true;
}

/* Checks the chunks in the range, and the zeros between them. */
static void check_chunks(struct object_scan *scan, const uint8_t *memory, struct scan_sink *sink)
{
    uint64_t at = 0;
    while (scan->at < scan->count) {
        const struct scan_piece *piece = &scan->pieces[scan->at];
        struct diag diag = DIAG_INIT;
        if (piece->envelope.offset >= scan->from + scan->bytes) {
            break;
        }
        uint64_t offset = piece->envelope.offset - scan->from;
        if (!scan->chunks_only && offset > at && !is_all_zero(offset - at, memory + at)) {
            sink->found(sink, piece, SCAN_AROUND, "the padding before it is not zero");
        }
        int status = chunk_verify(&piece->envelope, memory + offset, &diag);
        if (status != 0) {
            sink->found(sink, piece, SCAN_CHUNK, diag_text(&diag, status));
        }
        at = max_u64(at, offset + piece->envelope.stored_bytes);
        scan->chunks++;
        scan->at++;
    }
    if (!scan->chunks_only && !is_all_zero(scan->bytes - at, memory + at)) {
        sink->found(sink, &scan->pieces[scan->at > 0 ? scan->at - 1 : 0], SCAN_AROUND,
                    "the padding after it is not zero");
    }
}

void object_scan_unreadable(struct object_scan *scan, const char *why, struct scan_sink *sink)
{
    if (scan->in_footer) {
        sink->found(sink, &scan->pieces[0], SCAN_AROUND, why);
        return;
    }
    for (; scan->at < scan->count; scan->at++) {
        const struct scan_piece *piece = &scan->pieces[scan->at];
        if (piece->envelope.offset >= scan->from + scan->bytes) {
            break;
        }
        sink->found(sink, piece, SCAN_CHUNK, why);
    }
}

static bool envelope_is(const struct envelope *stored, const struct envelope *expected)
{
    return stored->offset == expected->offset && stored->stored_bytes == expected->stored_bytes &&
           stored->plain_bytes == expected->plain_bytes &&
           stored->stored_crc == expected->stored_crc && stored->encoding == expected->encoding &&
           stored->digest_alg == expected->digest_alg &&
           memcmp(&stored->digest, &expected->digest, sizeof(stored->digest)) == 0;
}

/* Compares the footer with what the parts say of the object. */
static void compare_footer(const struct object_scan *scan, const struct object_footer *footer,
                           struct scan_sink *sink)
{
    uint32_t number = 0;
    if (!object_id_equal(&footer->id, scan->pieces[0].id) ||
        footer->envelope_count != count_distinct(scan)) {
        sink->found(sink, &scan->pieces[0], SCAN_AROUND, "the footer belongs to another object");
        return;
    }
    for (size_t i = 0; i < scan->count; i++) {
        const struct scan_piece *piece = &scan->pieces[i];
        number += i > 0 && piece->envelope.offset != piece[-1].envelope.offset;
        if (!envelope_is(&footer->envelopes[number], &piece->envelope)) {
            sink->found(sink, piece, SCAN_AROUND, "the footer describes it differently");
        }
    }
}

/* Decodes the footer and compares it. */
static void check_footer(struct object_scan *scan, const uint8_t *memory, struct scan_sink *sink)
{
    struct object_footer footer;
    struct scratch scratch;
    struct diag diag = DIAG_INIT;
    scratch_init(&scratch, LIMIT_OBJECT_ENVELOPES * sizeof(struct envelope) + KIB(64));
    int status = object_footer_decode(
        scan->footer_bytes, memory, scan->data_end + scan->footer_bytes, &scratch, &footer, &diag);
    if (status != 0) {
        char text[DIAG_TEXT_MAX + 16];
        snprintf(text, sizeof(text), "its footer: %s", diag_text(&diag, status));
        sink->found(sink, &scan->pieces[0], SCAN_AROUND, text);
    } else {
        compare_footer(scan, &footer, sink);
    }
    scratch_fini(&scratch);
}

void object_scan_check(struct object_scan *scan, const uint8_t *memory, struct scan_sink *sink)
{
    if (scan->in_footer) {
        check_footer(scan, memory, sink);
    } else {
        check_chunks(scan, memory, sink);
    }
}

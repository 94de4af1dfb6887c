/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects are read one after the other in ranges of at most a chunk's limit; several objects are in
 * flight at once. What a range must hold is known from the parts: its chunks, with zeros around
 * them; behind the last one the footer. Of an older checkpoint's object that this one refers to
 * only the chunks are known, and only they are read: the rest is not this checkpoint's.
 */
#include "verify.h"

#include "base/buf.h"
#include "pipeline/chunk.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 8 };

struct piece { /* a chunk that the checkpoint refers to */
    const struct object_id *id;
    const char *name; /* of its tensor or blob */
    uint32_t rank;
    struct envelope envelope; /* offset in the object */
};

struct verifying;

struct reader { /* one object */
    struct verifying *verifying;
    struct engine_call call;
    bool busy;
    size_t first, count, at; /* pieces */
    uint64_t from;           /* read so far */
    uint32_t bytes;          /* of the range in flight */
    uint64_t data_end, footer_bytes;
    bool in_footer, older;
    uint8_t *memory;
};

struct verifying {
    struct cli *cli;
    const struct verify_options *options;
    struct verify_result *result;
    struct documents *documents;
    struct piece *pieces;
    size_t count, next;
    struct reader readers[DEPTH];
    unsigned busy;
    bool done;
    int status;
    struct diag diag;
    struct progress progress;
};

/* --- findings --- */

static void find(struct verify_result *result, const struct ckpt_info *info, const char *text)
{
    if (result->finding_count == result->finding_cap) {
        size_t cap = result->finding_cap == 0 ? 16 : result->finding_cap * 2;
        struct verify_finding *grown = realloc(result->findings, cap * sizeof(*grown));
        if (!grown) {
            return; /* counted by the last that fitted: damage is reported either way */
        }
        result->findings = grown;
        result->finding_cap = cap;
    }
    char id[48];
    format_ckpt(info->id, sizeof(id), id);
    snprintf(result->findings[result->finding_count++].text, sizeof(result->findings[0].text),
             "checkpoint %s: %s", id, text);
}

void verify_result_fini(struct verify_result *result)
{
    free(result->findings);
    result->findings = NULL;
}

static bool is_damage(int status)
{
    return status == CAIRN_E_DAMAGED || status == CAIRN_E_FORMAT ||
           status == CAIRN_E_DIGEST_MISMATCH || status == CAIRN_E_NOT_FOUND ||
           status == CAIRN_E_COVERAGE || status == CAIRN_E_UNSUPPORTED || status == CAIRN_E_IO;
}

static void find_in(struct reader *reader, const struct piece *piece, const char *why)
{
    char text[360];
    const struct object_id *id = piece->id;
    snprintf(text, sizeof(text), "%s (rank %u, object %llu@%llu/%u-%016llx-%u at %llu): %s",
             piece->name, piece->rank, (unsigned long long)id->step, (unsigned long long)id->term,
             id->rank, (unsigned long long)id->writer, id->sequence,
             (unsigned long long)piece->envelope.offset, why);
    find(reader->verifying->result, &reader->verifying->documents->info, text);
}

/* --- what there is to read
 * --------------------------------------------------------------------------------------------- */

static void add_chunks(struct verifying *verifying, const struct part *part, const char *name,
                       uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        const struct part_chunk *chunk = &part->chunks[i];
        verifying->pieces[verifying->count++] =
            (struct piece){.id = &part->objects[chunk->object].id,
                           .name = name,
                           .rank = part->rank,
                           .envelope = {.offset = chunk->offset,
                                        .stored_bytes = chunk->stored_bytes,
                                        .plain_bytes = chunk->plain_bytes,
                                        .stored_crc = chunk->stored_crc,
                                        .encoding = chunk->encoding,
                                        .digest_alg = chunk->digest_alg,
                                        .digest = chunk->digest}};
    }
}

static int compare_pieces(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    const uint64_t xs[] = {x->id->term,   x->id->step,     x->id->rank,
                           x->id->writer, x->id->sequence, x->envelope.offset};
    const uint64_t ys[] = {y->id->term,   y->id->step,     y->id->rank,
                           y->id->writer, y->id->sequence, y->envelope.offset};
    for (size_t i = 0; i < ARRAY_LEN(xs); i++) {
        if (xs[i] != ys[i]) {
            return xs[i] < ys[i] ? -1 : 1;
        }
    }
    return 0;
}

static int collect(struct verifying *verifying, struct diag *diag)
{
    const struct documents *documents = verifying->documents;
    size_t total = 0;
    for (size_t i = 0; i < documents->part_count; i++) {
        total += documents->parts[i].chunk_count;
    }
    verifying->pieces = calloc(total + 1, sizeof(*verifying->pieces));
    if (!verifying->pieces) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for %zu chunks", total);
    }
    for (size_t p = 0; p < documents->part_count; p++) {
        const struct part *part = &documents->parts[p];
        for (uint32_t i = 0; i < part->box_count; i++) {
            add_chunks(verifying, part, part->tensors[part->boxes[i].tensor].name,
                       part->boxes[i].chunk_first, part->boxes[i].chunk_count);
        }
        for (uint32_t i = 0; i < part->blob_count; i++) {
            add_chunks(verifying, part, part->blobs[i].name, part->blobs[i].chunk_first,
                       part->blobs[i].chunk_count);
        }
    }
    qsort(verifying->pieces, verifying->count, sizeof(*verifying->pieces), compare_pieces);
    return 0;
}

/* --- one object --- */

static void read_next(struct reader *reader);
static void start_objects(struct verifying *verifying);

/* The chunks that lie wholly in the range, and zeros between them. */
static void check_range(struct reader *reader)
{
    struct verifying *verifying = reader->verifying;
    uint64_t at = 0;
    while (reader->at < reader->count) {
        const struct piece *piece = &verifying->pieces[reader->first + reader->at];
        uint64_t offset = piece->envelope.offset - reader->from;
        struct diag diag = DIAG_INIT;
        if (piece->envelope.offset >= reader->from + reader->bytes) {
            break;
        }
        if (offset < at) {
            offset = at; /* two references to one chunk: checked twice is no harm, but gaps are not
                            negative */
        }
        if (!reader->older && !is_all_zero(offset - at, reader->memory + at)) {
            find_in(reader, piece, "padding in front of it is not zero");
        }
        offset = piece->envelope.offset - reader->from;
        if (chunk_verify(&piece->envelope, reader->memory + offset, &diag) != 0) {
            find_in(reader, piece, diag.text);
        }
        at = max_u64(at, offset + piece->envelope.stored_bytes);
        verifying->result->chunks++;
        reader->at++;
    }
    if (!reader->older && !is_all_zero(reader->bytes - at, reader->memory + at)) {
        find_in(reader, &verifying->pieces[reader->first + reader->at - 1],
                "padding behind it is not zero");
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

static void check_footer(struct reader *reader)
{
    struct verifying *verifying = reader->verifying;
    const struct piece *first = &verifying->pieces[reader->first];
    struct object_footer footer;
    struct scratch scratch;
    struct diag diag = DIAG_INIT;
    scratch_init(&scratch, LIMIT_OBJECT_ENVELOPES * sizeof(struct envelope) + KIB(64));
    int status =
        object_footer_decode(reader->footer_bytes, reader->memory,
                             reader->data_end + reader->footer_bytes, &scratch, &footer, &diag);
    if (status != 0) {
        find_in(reader, first, diag_text(&diag, status));
    } else if (!object_id_equal(&footer.id, first->id) || footer.envelope_count != reader->count) {
        find_in(reader, first, "the footer is another object's");
    } else {
        for (size_t i = 0; i < reader->count; i++) {
            const struct piece *piece = &verifying->pieces[reader->first + i];
            if (!envelope_is(&footer.envelopes[i], &piece->envelope)) {
                find_in(reader, piece, "the footer says otherwise");
            }
        }
    }
    scratch_fini(&scratch);
}

static void end_object(struct reader *reader)
{
    struct verifying *verifying = reader->verifying;
    free(reader->memory);
    reader->memory = NULL;
    reader->busy = false;
    verifying->busy--;
    verifying->result->objects++;
    start_objects(verifying);
}

static void on_read(struct engine_call *call, int status)
{
    struct reader *reader = container_of(call, struct reader, call);
    struct verifying *verifying = reader->verifying;
    const struct piece *piece =
        &verifying->pieces[reader->first + min_u64(reader->at, reader->count - 1)];
    struct diag diag = call->diag;
    engine_call_fini(call);
    if (status != 0 && !is_damage(status)) {
        verifying->status = verifying->status != 0 ? verifying->status
                                                   : diag_set(&verifying->diag, status, "%s",
                                                              diag_text(&diag, status));
        end_object(reader);
        return;
    }
    if (status != 0) {
        find_in(reader, piece, diag_text(&diag, status));
        end_object(reader);
        return;
    }
    verifying->result->bytes += reader->bytes;
    progress_set(&verifying->progress, verifying->progress.done + reader->bytes);
    if (reader->in_footer) {
        check_footer(reader);
        end_object(reader);
        return;
    }
    check_range(reader);
    reader->from += reader->bytes;
    if (reader->older && reader->at == reader->count) {
        end_object(reader);
        return;
    }
    read_next(reader);
}

/* As much as a frame takes, but never a part of a chunk; behind the last chunk its padding, then
 * the footer. */
static void choose_range(struct reader *reader)
{
    const struct piece *pieces = &reader->verifying->pieces[reader->first];
    if (reader->older) {
        reader->from = pieces[reader->at].envelope.offset; /* what is before it is another's */
    }
    uint64_t end = reader->from;
    reader->in_footer =
        !reader->older && reader->at == reader->count && reader->from == reader->data_end;
    if (reader->in_footer) {
        reader->bytes = (uint32_t)reader->footer_bytes;
        return;
    }
    size_t next = reader->at;
    for (; next < reader->count; next++) {
        uint64_t ends = pieces[next].envelope.offset + pieces[next].envelope.stored_bytes;
        if (ends > reader->from + LIMIT_CHUNK_BYTES) {
            break;
        }
        end = max_u64(end, ends);
    }
    if (reader->older) {
        reader->bytes = (uint32_t)(end - reader->from);
        return;
    }
    uint64_t padded =
        next < reader->count ? pieces[next].envelope.offset : round_up_u64(end, LIMIT_ALIGN_BYTES);
    padded = min_u64(padded, reader->from + LIMIT_CHUNK_BYTES);
    reader->bytes = (uint32_t)(max_u64(padded, end) - reader->from);
}

static void read_next(struct reader *reader)
{
    struct verifying *verifying = reader->verifying;
    const struct piece *first = &verifying->pieces[reader->first];
    choose_range(reader);
    if (reader->bytes == 0 || (reader->in_footer && reader->footer_bytes > LIMIT_CHUNK_BYTES)) {
        find_in(reader, first, "the object's layout cannot be");
        end_object(reader);
        return;
    }
    reader->call = (struct engine_call){
        .request = {.type = MSG_READ}, .payload = reader->memory, .payload_max = LIMIT_CHUNK_BYTES};
    reader->call.request.u.read =
        (struct msg_read){.object = *first->id, .offset = reader->from, .bytes = reader->bytes};
    reader->call.done = on_read;
    engine_call_start(source_engine(verifying->cli->connection), &reader->call);
}

/* --- all objects --- */

static bool in_subset(const struct verifying *verifying, size_t object_number)
{
    const struct verify_options *options = verifying->options;
    return options->subset_t == 0 || object_number % options->subset_t == options->subset_n - 1;
}

static bool start_object(struct verifying *verifying, struct reader *reader)
{
    size_t first = verifying->next, end = first + 1;
    const struct piece *pieces = verifying->pieces;
    while (end < verifying->count && object_id_equal(pieces[end].id, pieces[first].id)) {
        end++;
    }
    verifying->next = end;
    size_t number = (size_t)pieces[first].id->sequence + pieces[first].id->rank;
    if (!in_subset(verifying, number)) {
        return false;
    }
    const struct envelope *last = &pieces[end - 1].envelope;
    *reader =
        (struct reader){.verifying = verifying, .busy = true, .first = first, .count = end - first};
    const struct ckpt_id checkpoint = verifying->documents->info.id;
    reader->older =
        pieces[first].id->term != checkpoint.term || pieces[first].id->step != checkpoint.step;
    reader->data_end = round_up_u64(last->offset + last->stored_bytes, LIMIT_ALIGN_BYTES);
    reader->footer_bytes = object_footer_bytes((uint32_t)(end - first));
    reader->memory = aligned_alloc(LIMIT_ALIGN_BYTES, LIMIT_CHUNK_BYTES + LIMIT_ALIGN_BYTES);
    if (!reader->memory) {
        verifying->status =
            diag_set(&verifying->diag, CAIRN_E_NO_MEMORY, "no memory to read an object");
        return false;
    }
    verifying->busy++;
    read_next(reader);
    return true;
}

static void start_objects(struct verifying *verifying)
{
    for (size_t i = 0; i < DEPTH; i++) {
        while (!verifying->readers[i].busy && verifying->next < verifying->count &&
               verifying->status == 0) {
            if (start_object(verifying, &verifying->readers[i])) {
                break;
            }
        }
    }
    if (verifying->busy == 0) {
        verifying->done = true;
        source_wake(verifying->cli->connection);
    }
}

static int verify_data(struct verifying *verifying, struct diag *diag)
{
    int status = collect(verifying, diag);
    if (status == 0 && verifying->count > 0) {
        progress_start(&verifying->progress, verifying->cli, "verify",
                       verifying->documents->manifest.stored_bytes);
        start_objects(verifying);
        status = source_wait(verifying->cli->connection, &verifying->done, diag);
        progress_end(&verifying->progress);
    }
    if (status == 0 && verifying->status != 0) {
        status = diag_set(diag, verifying->status, "%s", verifying->diag.text);
    }
    return status;
}

int verify_checkpoint(struct cli *cli, const struct ckpt_info *info,
                      const struct verify_options *options, struct verify_result *io,
                      struct diag *diag)
{
    struct documents documents;
    struct diag why = DIAG_INIT;
    struct verifying verifying = {
        .cli = cli, .options = options, .result = io, .documents = &documents};
    int status = documents_load(cli, info, &documents, &why);
    if (status == 0) {
        status = documents_parts(cli, &documents, &why);
    }
    if (status == 0) {
        status =
            parts_check_coverage(documents.part_count, documents.parts, &documents.scratch, &why);
    }
    if (status != 0 && is_damage(status)) {
        find(io, info, diag_text(&why, status));
        status = 0;
    } else if (status != 0) {
        status = diag_set(diag, status, "%s", diag_text(&why, status));
    } else if (options->read_data) {
        status = verify_data(&verifying, diag);
    }
    if (status != CAIRN_E_CANCELLED) { /* an interrupt leaves reads in flight into this memory; the
                                          process ends */
        free(verifying.pieces);
        documents_fini(&documents);
    }
    return status;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects are read one after the other in ranges of at most a chunk's limit; several objects are in
 * flight at once. What a range must hold is known from the parts: its chunks, with zeros around
 * them; behind the last one the footer. Of an older checkpoint's object that this one refers to
 * only the chunks are known, and only they are read: the rest is not this checkpoint's.
 */
#include "verify.h"

#include "base/buf.h"
#include "pipeline/object_scan.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 8, UNREAD_MAX = 16 };

struct verifying;

struct reader { /* one object */
    struct verifying *verifying;
    struct engine_call call;
    bool busy;
    struct object_scan scan;
    struct scan_sink sink;
    uint64_t got; /* of the range */
    uint8_t *memory;
};

struct verifying {
    struct cli *cli;
    const struct verify_options *options;
    struct verify_result *result;
    struct documents *documents;
    struct scan_piece *pieces;
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
            result->untold++;
            return;
        }
        result->findings = grown;
        result->finding_cap = cap;
    }
    char id[48], whose[64] = "";
    format_ckpt(info->id, sizeof(id), id);
    if (!names_ckpt(text, info->id)) {
        snprintf(whose, sizeof(whose), "checkpoint %s: ", id);
    }
    snprintf(result->findings[result->finding_count++].text, sizeof(result->findings[0].text),
             "%s%s", whose, text);
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

static void find_in(struct scan_sink *sink, const struct scan_piece *piece, enum scan_where where,
                    const char *why)
{
    struct reader *reader = container_of(sink, struct reader, sink);
    char place[240], text[360];
    (void)where;
    scan_piece_text(piece, sizeof(place), place);
    snprintf(text, sizeof(text), "%s: %s", place, why);
    find(reader->verifying->result, &reader->verifying->documents->info, text);
}

/* --- what there is to read
 * --------------------------------------------------------------------------------------------- */

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
    for (size_t i = 0; i < documents->part_count; i++) {
        scan_pieces_of(&documents->parts[i], verifying->pieces + verifying->count);
        verifying->count += documents->parts[i].chunk_count;
    }
    scan_sort(verifying->count, verifying->pieces);
    return 0;
}

/* --- one object --- */

static void read_next(struct reader *reader);
static void read_more(struct reader *reader);
static void start_objects(struct verifying *verifying);

static void end_object(struct reader *reader)
{
    struct verifying *verifying = reader->verifying;
    free(reader->memory);
    reader->memory = NULL;
    reader->busy = false;
    verifying->busy--;
    verifying->result->objects++;
    verifying->result->chunks += reader->scan.chunks;
    start_objects(verifying);
}

static void on_read(struct engine_call *call, int status)
{
    struct reader *reader = container_of(call, struct reader, call);
    struct verifying *verifying = reader->verifying;
    struct diag diag = call->diag;
    uint64_t bytes = call->request.u.read.bytes;
    engine_call_fini(call);
    if (status == CAIRN_E_TIMED_OUT && verifying->result->unread < UNREAD_MAX) {
        /* The store is there, and this one cannot be had: the others may be. */
        verifying->result->unread++;
        diag_add(&diag, "not read");
        find_in(&reader->sink, object_scan_piece(&reader->scan), SCAN_CHUNK,
                diag_text(&diag, status));
        end_object(reader);
        return;
    }
    if (status != 0 && !is_damage(status)) {
        verifying->status = verifying->status != 0 ? verifying->status
                                                   : diag_set(&verifying->diag, status, "%s",
                                                              diag_text(&diag, status));
        end_object(reader);
        return;
    }
    if (status != 0) {
        find_in(&reader->sink, object_scan_piece(&reader->scan), SCAN_CHUNK,
                diag_text(&diag, status));
        end_object(reader);
        return;
    }
    reader->got += bytes;
    verifying->result->bytes += bytes;
    progress_set(&verifying->progress, verifying->progress.done + bytes);
    if (reader->got < reader->scan.bytes) {
        read_more(reader);
        return;
    }
    object_scan_check(&reader->scan, reader->memory, &reader->sink);
    read_next(reader);
}

/* A footer may be longer than a read. */
static void read_more(struct reader *reader)
{
    const struct object_scan *scan = &reader->scan;
    uint64_t bytes = min_u64(scan->bytes - reader->got, LIMIT_CHUNK_BYTES);
    reader->call = (struct engine_call){.request = {.type = MSG_READ},
                                        .payload = reader->memory + reader->got,
                                        .payload_max = LIMIT_CHUNK_BYTES};
    reader->call.request.u.read =
        (struct msg_read){.object = *scan->pieces[0].id,
                          .offset = scan->from + reader->got,
                          .bytes = (uint32_t)bytes,
                          .to_end = scan->in_footer && reader->got + bytes == scan->bytes};
    reader->call.done = on_read;
    engine_call_start(source_engine(reader->verifying->cli->connection), &reader->call);
}

static void read_next(struct reader *reader)
{
    if (!object_scan_next(&reader->scan, &reader->sink)) {
        end_object(reader);
        return;
    }
    reader->got = 0;
    read_more(reader);
}

/* --- all objects --- */

static bool in_subset(const struct verifying *verifying, size_t object_number)
{
    const struct verify_options *options = verifying->options;
    return options->subset_t == 0 || object_number % options->subset_t == options->subset_n - 1;
}

static bool start_object(struct verifying *verifying, struct reader *reader)
{
    const struct scan_piece *first = &verifying->pieces[verifying->next];
    const struct ckpt_id checkpoint = verifying->documents->info.id;
    bool older = first->id->term != checkpoint.term || first->id->step != checkpoint.step;
    *reader = (struct reader){.verifying = verifying, .sink.found = find_in};
    verifying->next +=
        object_scan_begin(&reader->scan, verifying->count - verifying->next, first, older);
    if (!in_subset(verifying, (size_t)first->id->sequence + first->id->rank)) {
        return false;
    }
    reader->memory = aligned_alloc(
        LIMIT_ALIGN_BYTES, max_u64(LIMIT_CHUNK_BYTES + LIMIT_ALIGN_BYTES,
                                   round_up_u64(reader->scan.footer_bytes, LIMIT_CHUNK_BYTES)));
    if (!reader->memory) {
        verifying->status =
            diag_set(&verifying->diag, CAIRN_E_NO_MEMORY, "no memory to read an object");
        return false;
    }
    reader->busy = true;
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
    if (status == 0 && io->untold > 0) {
        status = diag_set(diag, CAIRN_E_NO_MEMORY, "there is damage, and no memory to tell of it");
    }
    if (status != CAIRN_E_CANCELLED) { /* an interrupt leaves reads in flight into this memory; the
                                          process ends */
        free(verifying.pieces);
        documents_fini(&documents);
    }
    return status;
}

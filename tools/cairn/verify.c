/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader (server/reader) goes through documents and objects, with the engine's calls for its
 * source: several ranges are on their way at once, so that a server far away costs little. All
 * parts are in memory, because their coverage is checked, too. One thread.
 */
#include "verify.h"

#include "base/array.h"
#include "base/check.h"

#include <stdlib.h>

enum { UNREAD_MAX = 16 };

struct verifying;

struct read { /* a range on its way */
    struct verifying *verifying;
    struct engine_call call;
    struct reader_range range;
    uint64_t got;
    bool done;
    int status;
};

struct verifying {
    struct cli *cli;
    const struct verify_options *options;
    struct verify_result *result;
    struct documents *documents;
    struct reader_source source;
    struct reader_visitor visitor;
    struct scan_piece *pieces;
    size_t count, next;
    struct read reads[READER_DEPTH_MAX];
    struct progress progress;
};

/* --- findings --- */

static void find(struct verify_result *result, const struct ckpt_info *info, const char *text)
{
    struct verify_finding *grown =
        array_room(result->findings, result->finding_count, &result->finding_cap, sizeof(*grown));
    if (!grown) {
        result->untold++;
        return;
    }
    result->findings = grown;
    char whose[64] = "";
    if (!names_ckpt(text, info->id)) {
        snprintf(whose, sizeof(whose), "checkpoint %s: ", ckpt_id_text(info->id).at);
    }
    snprintf(result->findings[result->finding_count++].text, sizeof(result->findings[0].text),
             "%s%s", whose, text);
}

void verify_result_fini(struct verify_result *result)
{
    free(result->findings);
    result->findings = NULL;
}

/* To an operator a checkpoint is damaged, too, if its parts contradict each other, or if this
 * version cannot read it. */
static bool is_damage(int status)
{
    return reader_is_damage(status) || status == CAIRN_E_COVERAGE || status == CAIRN_E_UNSUPPORTED;
}

static void find_in(struct scan_sink *sink, const struct scan_piece *piece, enum scan_where where,
                    const char *why)
{
    struct verifying *verifying = container_of(sink, struct verifying, visitor.sink);
    char place[240], text[360];
    (void)where;
    scan_piece_text(piece, sizeof(place), place);
    snprintf(text, sizeof(text), "%s: %s", place, why);
    find(verifying->result, &verifying->documents->info, text);
}

/* Reports one finding for the first range of an object that cannot be read, because the rest would
 * fail in the same way.
 * The store may be there, and only this range cannot be had: then others may be. */
static int find_unread(struct reader_visitor *visitor, const struct object_scan *scan, int status,
                       const struct diag *why)
{
    struct verifying *verifying = container_of(visitor, struct verifying, visitor);
    struct diag diag = *why;
    bool is_late = status == CAIRN_E_TIMED_OUT && verifying->result->unread < UNREAD_MAX;
    if (!is_late && !is_damage(status)) {
        return status;
    }
    if (is_late) {
        verifying->result->unread++;
        diag_add(&diag, "not read");
    }
    find_in(&visitor->sink, object_scan_piece(scan), SCAN_CHUNK, diag_text(&diag, status));
    return 0;
}

/* --- reading --- */

static void read_more(struct read *read);

static void on_read(struct engine_call *call, int status)
{
    struct read *read = container_of(call, struct read, call);
    struct verifying *verifying = read->verifying;
    uint64_t bytes = call->request.u.read.bytes;
    engine_call_fini(call);
    read->status = status;
    if (status == 0) {
        read->got += bytes;
        verifying->result->bytes += bytes;
        progress_set(&verifying->progress, verifying->progress.done + bytes);
    }
    read->done = status != 0 || read->got == read->range.bytes;
    if (read->done) {
        source_wake(verifying->cli->connection);
    } else {
        read_more(read);
    }
}

/* A footer may be longer than a read. */
static void read_more(struct read *read)
{
    const struct reader_range *range = &read->range;
    uint64_t bytes = min_u64(range->bytes - read->got, LIMIT_CHUNK_BYTES);
    read->call = (struct engine_call){.request = {.type = MSG_READ},
                                      .payload = range->memory + read->got,
                                      .payload_max = LIMIT_CHUNK_BYTES};
    read->call.request.u.read =
        (struct msg_read){.object = *range->object,
                          .offset = range->from + read->got,
                          .bytes = (uint32_t)bytes,
                          .to_end = range->to_end && read->got + bytes == range->bytes};
    read->call.done = on_read;
    engine_call_start(source_engine(read->verifying->cli->connection), &read->call);
}

static void begin_read(struct reader_source *source, const struct reader_range *range)
{
    struct verifying *verifying = container_of(source, struct verifying, source);
    struct read *read = &verifying->reads[range->slot];
    *read = (struct read){.verifying = verifying, .range = *range};
    read_more(read);
}

static int end_read(struct reader_source *source, const struct reader_range *range,
                    struct diag *diag)
{
    struct verifying *verifying = container_of(source, struct verifying, source);
    struct read *read = &verifying->reads[range->slot];
    int status = source_await(verifying->cli->connection, &read->call, &read->done, diag);
    status = status != 0 ? status : read->status;
    return status == 0 ? 0 : diag_set(diag, status, "%s", diag_text(&read->call.diag, status));
}

/* --- all objects --- */

static int collect(struct verifying *verifying, struct diag *diag)
{
    const struct documents *documents = verifying->documents;
    size_t total = 0;
    for (size_t i = 0; i < documents->of.part_count; i++) {
        total += documents->parts[i].chunk_count;
    }
    verifying->pieces = calloc(total + 1, sizeof(*verifying->pieces));
    if (!verifying->pieces) {
        return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for %zu chunks", total);
    }
    for (size_t i = 0; i < documents->of.part_count; i++) {
        scan_pieces_of(&documents->parts[i], verifying->pieces + verifying->count);
        verifying->count += documents->parts[i].chunk_count;
    }
    scan_sort(verifying->count, verifying->pieces);
    return 0;
}

static bool in_subset(const struct verifying *verifying, const struct object_id *id)
{
    const struct verify_options *options = verifying->options;
    size_t number = (size_t)id->sequence + id->rank;
    return options->subset_t == 0 || number % options->subset_t == options->subset_n - 1;
}

static bool next_object(struct reader_visitor *visitor, struct reader_object *ret)
{
    struct verifying *verifying = container_of(visitor, struct verifying, visitor);
    const struct ckpt_id of = verifying->documents->info.id;
    while (verifying->next < verifying->count) {
        const struct scan_piece *first = &verifying->pieces[verifying->next];
        size_t count = reader_object_pieces(verifying->count - verifying->next, first);
        bool older = first->id->term != of.term || first->id->step != of.step;
        verifying->next += count;
        if (in_subset(verifying, first->id)) {
            *ret = (struct reader_object){first->id, count, first, older};
            return true;
        }
    }
    return false;
}

static int object_done(struct reader_visitor *visitor, const struct object_scan *scan)
{
    struct verifying *verifying = container_of(visitor, struct verifying, visitor);
    verifying->result->objects++;
    verifying->result->chunks += scan->chunks;
    return 0;
}

static int verify_data(struct verifying *verifying, struct diag *diag)
{
    int status = collect(verifying, diag);
    if (status != 0 || verifying->count == 0) {
        return status;
    }
    progress_start(&verifying->progress, verifying->cli, "verify",
                   verifying->documents->of.manifest.stored_bytes);
    status = reader_objects(&verifying->source, &verifying->visitor, diag);
    progress_end(&verifying->progress);
    return status;
}

/* Compares the index with all parts. */
static int check_index(struct documents *documents, struct diag *diag)
{
    struct reader *of = &documents->of;
    int status = 0;
    for (size_t i = 0; status == 0 && i < of->part_count; i++) {
        status = reader_agrees(of, i, &documents->parts[i], diag);
    }
    return status != 0 ? status : reader_agrees_all(of, diag);
}

int verify_checkpoint(struct cli *cli, const struct ckpt_info *info,
                      const struct verify_options *options, struct verify_result *io,
                      struct diag *diag)
{
    struct documents documents;
    struct diag why = DIAG_INIT;
    struct verifying verifying = {
        .cli = cli,
        .options = options,
        .result = io,
        .documents = &documents,
        .source = {.begin = begin_read, .read = end_read, .depth = READER_DEPTH_MAX},
        .visitor = {.next = next_object,
                    .sink.found = find_in,
                    .unread = find_unread,
                    .done = object_done}};
    int status = documents_load(cli, info, &documents, &why);
    if (status == 0) {
        status = documents_parts(&documents, &why);
    }
    if (status == 0) {
        status = check_index(&documents, &why);
    }
    if (status == 0) {
        status = parts_check_coverage(documents.of.part_count, documents.parts,
                                      &documents.of.scratch, &why);
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
    reader_source_fini(&verifying.source);
    free(verifying.pieces);
    documents_fini(&documents);
    return status;
}

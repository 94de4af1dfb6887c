/* SPDX-License-Identifier: Apache-2.0
 *
 * See writeout.h. The server plans (which chunks), in batches of tensors; here they are read,
 * opened and scattered.
 */
#include "writeout.h"

#include "pipeline/chunk.h"
#include "target.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 8, BATCH = 256 };

struct writing;

struct slot {
    struct writing *writing;
    struct engine_call call;
    struct plan_read read;
    bool busy;
    uint8_t *stored, *plain;
};

struct writing {
    struct cli *cli;
    struct sink *sinks; /* of this batch */
    size_t sink_count;
    const uint8_t *plan;
    size_t count, next;
    struct slot slots[DEPTH];
    unsigned busy;
    bool done;
    int status;
    struct diag diag;
    struct progress *progress;
};

/* --- from a cell to the file
 * ------------------------------------------------------------------------------------------- */

struct cell_walk { /* runs that are contiguous in the cell and in the sink */
    const struct box *cell, *to;
    struct box both;
    uint64_t element_bytes, run_bytes, runs;
    uint32_t outer; /* dimensions 0..outer-1 are walked */
};

static void walk_init(struct cell_walk *walk)
{
    walk->run_bytes = walk->element_bytes;
    walk->runs = 1;
    walk->outer = walk->both.ndim;
    while (walk->outer > 0) {
        uint32_t dim = walk->outer - 1;
        int64_t length = walk->both.length[dim];
        walk->run_bytes *= (uint64_t)length;
        walk->outer--;
        if (length != walk->to->length[dim] || length != walk->cell->length[dim]) {
            break;
        }
    }
    for (uint32_t i = 0; i < walk->outer; i++) {
        walk->runs *= (uint64_t)walk->both.length[i];
    }
}

/* Where the walk's run number `run` starts in the row-major bytes of `in`. */
static uint64_t run_offset(const struct cell_walk *walk, const struct box *in, uint64_t run)
{
    uint64_t index[LIMIT_NDIM] = {0}, offset = 0;
    for (uint32_t i = walk->outer; i > 0; i--) {
        index[i - 1] = run % (uint64_t)walk->both.length[i - 1];
        run /= (uint64_t)walk->both.length[i - 1];
    }
    for (uint32_t i = 0; i < in->ndim; i++) {
        offset = offset * (uint64_t)in->length[i] +
                 (uint64_t)(walk->both.offset[i] - in->offset[i]) + index[i];
    }
    return offset * walk->element_bytes;
}

static uint64_t sink_bytes(const struct sink *sink)
{
    return sink->box ? box_bytes(sink->box, sink->entry->dtype) : sink->entry->plain_bytes;
}

static int put(struct sink *sink, uint64_t offset, uint64_t bytes, const uint8_t *data,
               struct diag *diag)
{
    uint64_t end;
    if (!add_u64(offset, bytes, &end) || end > sink_bytes(sink)) {
        return diag_set(diag, CAIRN_E_DAMAGED, "%s: the server's plan points beyond its end",
                        sink->entry->name);
    }
    sink->written += bytes;
    if (sink->fd < 0) {
        memcpy(sink->memory + offset, data, bytes);
        return 0;
    }
    struct target_piece piece = {
        .name = sink->entry->name, .offset = sink->base + offset, .bytes = bytes, .data = data};
    return target_write(sink->fd, &piece, diag);
}

static int scatter(struct sink *sink, const struct plan_read *read, const uint8_t *plain,
                   struct diag *diag)
{
    const struct index_entry *entry = sink->entry;
    if (entry->kind == INDEX_BLOB) {
        return put(sink, read->blob_offset, read->plain_bytes, plain, diag);
    }
    struct box whole = box_whole(&entry->shape);
    struct cell_walk walk = {.cell = &read->cell,
                             .to = sink->box ? sink->box : &whole,
                             .element_bytes = dtype_bits(entry->dtype) / 8};
    int status = box_check(&read->cell, &entry->shape, diag);
    if (status == 0 && box_bytes(&read->cell, entry->dtype) != read->plain_bytes) {
        status =
            diag_set(diag, CAIRN_E_DAMAGED,
                     "%s: the server's plan has a chunk of another size than its box", entry->name);
    }
    if (status != 0 || !box_intersect(walk.cell, walk.to, &walk.both)) {
        return status;
    }
    walk_init(&walk);
    for (uint64_t run = 0; status == 0 && run < walk.runs; run++) {
        status = put(sink, run_offset(&walk, walk.to, run), walk.run_bytes,
                     plain + run_offset(&walk, walk.cell, run), diag);
    }
    return status;
}

/* --- reads --- */

static void start_reads(struct writing *writing);

static int take(struct slot *slot, struct diag *diag)
{
    struct writing *writing = slot->writing;
    const struct plan_read *read = &slot->read;
    struct sink *sink = &writing->sinks[read->want];
    struct envelope envelope = {.stored_bytes = read->stored_bytes,
                                .plain_bytes = read->plain_bytes,
                                .stored_crc = read->stored_crc,
                                .encoding = read->encoding,
                                .digest_alg = read->digest_alg,
                                .digest = read->digest};
    int status = chunk_open(&envelope, slot->stored, LIMIT_CHUNK_BYTES, slot->plain, diag);
    if (status != 0) {
        diag_add(diag, "%s", sink->entry->name);
        return status;
    }
    return scatter(sink, read, slot->plain, diag);
}

static void on_read(struct engine_call *call, int status)
{
    struct slot *slot = container_of(call, struct slot, call);
    struct writing *writing = slot->writing;
    struct diag diag = call->diag;
    engine_call_fini(call);
    if (status == 0 && writing->status == 0) {
        status = take(slot, &diag);
    }
    if (status != 0 && writing->status == 0) {
        writing->status = diag_set(&writing->diag, status, "%s", diag_text(&diag, status));
    }
    progress_set(writing->progress, writing->progress->done + slot->read.plain_bytes);
    slot->busy = false;
    writing->busy--;
    start_reads(writing);
}

static void start_read(struct writing *writing, struct slot *slot)
{
    int status = plan_read_decode(writing->plan + writing->next * PLAN_READ_BYTES, &slot->read,
                                  &writing->diag);
    writing->next++;
    if (status == 0 &&
        (slot->read.want >= writing->sink_count || slot->read.stored_bytes > LIMIT_CHUNK_BYTES)) {
        status = diag_set(&writing->diag, CAIRN_E_PROTOCOL,
                          "the server's plan points outside the memory for it");
    }
    if (status != 0) {
        writing->status = status;
        return;
    }
    slot->busy = true;
    writing->busy++;
    slot->call = (struct engine_call){.request = {.type = MSG_READ},
                                      .payload = slot->stored,
                                      .payload_max = LIMIT_CHUNK_BYTES,
                                      .done = on_read};
    slot->call.request.u.read = (struct msg_read){
        .object = slot->read.object, .offset = slot->read.offset, .bytes = slot->read.stored_bytes};
    engine_call_start(source_engine(writing->cli->connection), &slot->call);
}

static void start_reads(struct writing *writing)
{
    for (size_t i = 0; i < DEPTH; i++) {
        if (!writing->slots[i].busy && writing->next < writing->count && writing->status == 0) {
            start_read(writing, &writing->slots[i]);
        }
    }
    if (writing->busy == 0) {
        writing->done = true;
        source_wake(writing->cli->connection);
    }
}

static int start_slots(struct writing *writing, struct diag *diag)
{
    for (size_t i = 0; i < DEPTH; i++) {
        struct slot *slot = &writing->slots[i];
        slot->writing = writing;
        slot->stored = aligned_alloc(LIMIT_ALIGN_BYTES, LIMIT_CHUNK_BYTES);
        slot->plain = aligned_alloc(LIMIT_ALIGN_BYTES, LIMIT_CHUNK_BYTES);
        if (!slot->stored || !slot->plain) {
            return diag_no_memory(diag, "read buffers");
        }
    }
    return 0;
}

static void end_slots(struct writing *writing)
{
    for (size_t i = 0; i < DEPTH; i++) {
        free(writing->slots[i].stored);
        free(writing->slots[i].plain);
    }
}

/* --- batches --- */

static void fill_want(const struct sink *sink, struct plan_want *ret)
{
    const struct index_entry *entry = sink->entry;
    *ret = (struct plan_want){
        .is_blob = entry->kind == INDEX_BLOB, .name = entry->name, .coordinate = entry->coordinate};
    if (!ret->is_blob) {
        ret->dtype = entry->dtype;
        ret->shape = entry->shape;
        ret->box = sink->box ? *sink->box : box_whole(&entry->shape);
    }
}

/* Returns true if the server no longer has the checkpoint: it was reclaimed while it was read. Over
 * a bare store this is not noticed, because the record was read before. */
static bool is_reclaimed(struct writing *writing, struct ckpt_id id, struct diag *diag)
{
    struct source_request request = {
        .call.request = {.type = MSG_FETCH, .u.fetch = {.id = id, .kind = STORE_MANIFEST}}};
    struct diag why = DIAG_INIT;
    bool gone = source_call(writing->cli->connection, &request, &why) == CAIRN_E_NOT_FOUND;
    if (gone) {
        diag_set(diag, CAIRN_E_NOT_FOUND, "%s", diag_text(&why, CAIRN_E_NOT_FOUND));
    }
    free(request.call.payload);
    engine_call_fini(&request.call);
    return gone;
}

/* Returns the error that ended the reads. Objects that a listed checkpoint lacks, and bytes other
 * than those that were saved, are DAMAGED: NOT_FOUND means that there is no checkpoint, and a
 * script may then begin at step 0. */
static int reads_failed(struct writing *writing, struct ckpt_id id, struct diag *diag)
{
    int status = writing->status;
    enum reader_finding finding = reader_finding_of(status);
    if (finding != READER_MISSING && finding != READER_DAMAGED) {
        return diag_set(diag, status, "%s", diag_text(&writing->diag, status));
    }
    if (finding == READER_MISSING && is_reclaimed(writing, id, diag)) {
        return CAIRN_E_NOT_FOUND;
    }
    return diag_set(diag, CAIRN_E_DAMAGED, "%s; `cairn verify --repair` repairs what has a copy",
                    diag_text(&writing->diag, status));
}

static int write_batch(struct writing *writing, const struct ckpt_info *info, size_t count,
                       struct diag *diag)
{
    struct plan_want wants[BATCH];
    for (size_t i = 0; i < count; i++) {
        writing->sinks[i].written = 0;
        fill_want(&writing->sinks[i], &wants[i]);
    }
    struct source_request request = {
        .call.request = {
            .type = MSG_PLAN,
            .u.plan = {.id = info->id, .want_count = (uint32_t)count, .wants = wants}}};
    int status = source_call(writing->cli->connection, &request, diag);
    if (status == 0) {
        writing->plan = request.call.payload;
        writing->count = request.call.payload_bytes / PLAN_READ_BYTES;
        writing->next = 0;
        writing->done = false;
        start_reads(writing);
        status = source_wait(writing->cli->connection, &writing->done, diag);
    }
    if (status == 0 && writing->status != 0) {
        status = reads_failed(writing, info->id, diag);
    }
    /* Chunks are checked one by one; that none was left out of the plan is checked here. */
    for (size_t i = 0; status == 0 && i < count; i++) {
        const struct sink *sink = &writing->sinks[i];
        if (sink->written != sink_bytes(sink)) {
            status =
                diag_set(diag, CAIRN_E_DAMAGED,
                         "%s: the server's plan covers only %llu of %llu bytes; run `cairn verify` "
                         "on this checkpoint, and restore an older one",
                         sink->entry->name, (unsigned long long)sink->written,
                         (unsigned long long)sink_bytes(sink));
        }
    }
    free(request.call.payload);
    engine_call_fini(&request.call);
    return status;
}

int writeout(struct cli *cli, const struct ckpt_info *info, size_t count, struct sink *sinks,
             struct diag *diag)
{
    struct progress progress;
    struct writing *writing = calloc(1, sizeof(*writing));
    if (!writing) {
        return diag_no_memory(diag, "writing the files");
    }
    *writing = (struct writing){.cli = cli, .progress = &progress};
    progress_start(&progress, cli, "restore", info->plain_bytes);
    int status = start_slots(writing, diag);
    for (size_t at = 0; status == 0 && at < count; at += BATCH) {
        writing->sinks = sinks + at;
        writing->sink_count = min_u64(BATCH, count - at);
        status = write_batch(writing, info, writing->sink_count, diag);
    }
    progress_end(&progress);
    if (status != CAIRN_E_CANCELLED) { /* an interrupt leaves reads in flight into this memory; the
                                          process ends */
        end_slots(writing);
        free(writing);
    }
    return status;
}

/* Writes what stands in front of the tensors. *ret_bytes is the length. */
static int write_header(const struct documents *documents, const struct tensor_file *file,
                        uint64_t *ret_bytes, struct diag *diag)
{
    const struct manifest *manifest = &documents->of.manifest;
    struct ckpt_id_text id = ckpt_id_text(documents->info.id);
    struct safetensors layout = {.checkpoint = id.at,
                                 .metadata_bytes = manifest->metadata_bytes,
                                 .metadata = manifest->metadata,
                                 .count = file->count,
                                 .tensors = file->tensors};
    struct buf header;
    buf_init(&header, MIB(128));
    int status = safetensors_layout(&layout, &header, diag);
    if (status == 0) {
        struct target_piece piece = {
            .name = file->name, .bytes = header.bytes, .data = header.data};
        status = target_write(file->fd, &piece, diag);
    }
    *ret_bytes = header.bytes;
    buf_fini(&header);
    return status;
}

int writeout_tensors(struct cli *cli, const struct documents *documents,
                     const struct tensor_file *file, struct diag *diag)
{
    uint64_t header_bytes = 0;
    struct sink *sinks = calloc(file->count + 1, sizeof(*sinks));
    int status = sinks ? write_header(documents, file, &header_bytes, diag)
                       : diag_no_memory(diag, "a file of tensors");
    for (size_t i = 0; status == 0 && i < file->count; i++) {
        const struct safetensor *tensor = &file->tensors[i];
        sinks[i] = (struct sink){.entry = tensor->stored ? tensor->stored : tensor->entry,
                                 .box = tensor->box,
                                 .fd = file->fd,
                                 .base = header_bytes + tensor->offset};
    }
    if (status == 0 && file->count > 0) {
        status = writeout(cli, &documents->info, file->count, sinks, diag);
    }
    if (status != CAIRN_E_CANCELLED) { /* as above */
        free(sinks);
    }
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): after an interrupt reads still use them */
    return target_close(file->fd, file->name, status, diag);
}

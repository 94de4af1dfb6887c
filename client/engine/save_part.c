/* SPDX-License-Identifier: Apache-2.0
 *
 * The part: what this rank holds, with a reference for each chunk that is its to write: to an
 * object of this save, or to one of an older save where the base had the same chunk. Built, encoded
 * and hashed on a worker when every object is durable, so all references are final; sent in frames
 * on the stream of its SEAL.
 *
 * And its base: the server names it with OPENED. What it holds for this rank is known from our own
 * last save, or fetched after a restore or a restart. Digests wait for it, so that a chunk is
 * compared once. When it cannot be had the save sends everything: that is always right, and only
 * costs bytes.
 */
#include "engine/save_private.h"

#include "base/check.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

#define PART_SCRATCH_MAX ((size_t)4 << 30)

struct maker {
    const struct save *save;
    struct part part;
    struct scratch scratch;
    uint32_t chunk_at;
    uint32_t *old_objects; /* by object of the base: its index in the part; 0: not used so far */
};

static int no_memory(struct diag *diag)
{
    return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for this rank's part");
}

static bool allocate(struct maker *maker)
{
    const struct save *save = maker->save;
    const struct registered *set = save->set;
    struct part *part = &maker->part;
    struct scratch *scratch = &maker->scratch;
    uint32_t old_count = save->base ? save->base->part.object_count : 0;
    part->object_count = save->object_count; /* those of the base are added as they are used */
    part->chunk_count = save->layout.piece_count;
    part->tensor_count = (uint32_t)set->tensor_count;
    for (size_t i = 0; i < set->tensor_count; i++) {
        part->box_count += (uint32_t)set->tensors[i].box_count;
    }
    for (size_t i = 0; i < set->blob_count; i++) {
        part->blob_count += share_writes_blob(set, &set->blobs[i]) ? 1 : 0;
    }
    part->objects =
        scratch_array(scratch, (size_t)part->object_count + old_count + 1, sizeof *part->objects);
    maker->old_objects = scratch_array(scratch, old_count + 1, sizeof *maker->old_objects);
    part->tensors = scratch_array(scratch, part->tensor_count + 1, sizeof *part->tensors);
    part->boxes = scratch_array(scratch, part->box_count + 1, sizeof *part->boxes);
    part->blobs = scratch_array(scratch, part->blob_count + 1, sizeof *part->blobs);
    part->chunks = scratch_array(scratch, part->chunk_count + 1, sizeof *part->chunks);
    return part->objects && maker->old_objects && part->tensors && part->boxes && part->blobs &&
           part->chunks;
}

/* What the base has: the same reference again, to an object of an older save. */
static struct part_chunk old_chunk(struct maker *maker, uint32_t piece_idx)
{
    const struct save *save = maker->save;
    CHECK(save->base != NULL);
    CHECK(save->base_of[piece_idx] > 0);
    const struct part *base = &save->base->part;
    struct part_chunk chunk = base->chunks[save->base_of[piece_idx] - 1];
    uint32_t *object = &maker->old_objects[chunk.object];
    if (*object == 0) {
        *object = maker->part.object_count++;
        maker->part.objects[*object] = (struct part_object){.id = base->objects[chunk.object].id};
        *object += 1;
    }
    chunk.object = *object - 1;
    return chunk;
}

static struct part_chunk new_chunk(const struct save *save, const struct layout_piece *piece,
                                   const struct envelope *envelope)
{
    const struct save_payload *payload = &save->payloads[piece->payload];
    return (struct part_chunk){.object = payload->object,
                               .cell = piece->cell,
                               .offset = payload->at + envelope->offset,
                               .stored_bytes = envelope->stored_bytes,
                               .plain_bytes = envelope->plain_bytes,
                               .stored_crc = envelope->stored_crc,
                               .encoding = envelope->encoding,
                               .digest_alg = envelope->digest_alg,
                               .digest = envelope->digest};
}

/* The chunks that were cut from one box or blob: they follow each other in the part's order. */
static uint32_t add_chunks(struct maker *maker, uint32_t tensor, uint32_t box)
{
    const struct save *save = maker->save;
    const struct layout *layout = &save->layout;
    uint32_t first = maker->chunk_at;
    while (maker->chunk_at < layout->piece_count) {
        uint32_t piece_idx = layout->by_part[maker->chunk_at];
        const struct layout_piece *piece = &layout->pieces[piece_idx];
        if (piece->tensor != tensor || piece->box != box) {
            break;
        }
        uint32_t to = save->envelope_of[piece_idx];
        struct part_chunk chunk = to == SAVE_SHARED ? old_chunk(maker, piece_idx)
                                                    : new_chunk(save, piece, &save->envelopes[to]);
        maker->part.chunks[maker->chunk_at++] = chunk;
        maker->part.objects[chunk.object].bytes_used += chunk.stored_bytes;
    }
    return maker->chunk_at - first;
}

static void add_tensors(struct maker *maker)
{
    const struct registered *set = maker->save->set;
    uint32_t box_at = 0;
    for (uint32_t t = 0; t < set->tensor_count; t++) {
        const struct registered_tensor *tensor = &set->tensors[t];
        maker->part.tensors[t] = (struct part_tensor){.name = tensor->name,
                                                      .coordinate = tensor->coordinate,
                                                      .dtype = tensor->dtype,
                                                      .placement = tensor->placement,
                                                      .shape = tensor->shape,
                                                      .box_first = box_at,
                                                      .box_count = (uint32_t)tensor->box_count};
        for (uint32_t b = 0; b < tensor->box_count; b++) {
            struct part_box *box = &maker->part.boxes[box_at++];
            *box = (struct part_box){
                .tensor = t, .box = tensor->boxes[b].box, .chunk_first = maker->chunk_at};
            box->chunk_count = add_chunks(maker, t, b);
        }
    }
}

static void add_blobs(struct maker *maker)
{
    const struct registered *set = maker->save->set;
    uint32_t at = 0;
    for (uint32_t i = 0; i < set->blob_count; i++) {
        const struct registered_blob *blob = &set->blobs[i];
        if (!share_writes_blob(set, blob)) {
            continue;
        }
        struct part_blob *to = &maker->part.blobs[at++];
        *to = (struct part_blob){.name = blob->name,
                                 .coordinate = blob->coordinate,
                                 .kind = blob->kind,
                                 .placement = blob->placement,
                                 .plain_bytes = blob->bytes,
                                 .chunk_first = maker->chunk_at};
        to->chunk_count = add_chunks(maker, LAYOUT_BLOB | i, 0);
    }
    CHECK(maker->chunk_at == maker->part.chunk_count);
}

static uint64_t stored_bytes(const struct save *save)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < save->layout.payload_count; i++) {
        bytes += save->payloads[i].bytes;
    }
    return bytes;
}

static void on_make_run(struct work *work)
{
    struct save_part *made = container_of(work, struct save_part, work);
    const struct save *save = container_of(made, struct save, part);
    struct maker maker = {.save = save,
                          .part = {.run_uuid = save->run_uuid,
                                   .id = save->user->id,
                                   .rank = save->engine->options.rank,
                                   .world_size = save->engine->options.world_size,
                                   .writer = save->engine->options.writer,
                                   .chunk_bytes = save->chunk_bytes_seen}};
    scratch_init(&maker.scratch, PART_SCRATCH_MAX);
    if (!allocate(&maker)) {
        made->status = no_memory(&made->diag);
    } else {
        for (uint32_t i = 0; i < maker.part.object_count; i++) {
            maker.part.objects[i].id = save_object_id(save, i);
        }
        add_tensors(&maker);
        add_blobs(&maker);
        part_encode(&maker.part, &made->buf);
        made->status = buf_status(&made->buf);
        if (made->status == 0) {
            made->sha256 = sha256(made->buf.bytes, made->buf.data);
        } else {
            diag_set(&made->diag, made->status, "this rank's part of %u chunks",
                     maker.part.chunk_count);
        }
    }
    scratch_fini(&maker.scratch);
}

static void on_make_done(struct work *work)
{
    struct save_part *made = container_of(work, struct save_part, work);
    struct save *save = container_of(made, struct save, part);
    made->running = false;
    atomic_store(&save->user->stored_bytes, stored_bytes(save));
    made->made = made->status == 0 && !made->stale;
    save_wake(save);
}

void save_part_make(struct save *save)
{
    struct save_part *part = &save->part;
    CHECK(!part->running);
    CHECK(save->slots_busy == 0); /* nothing borrows the old bytes */
    buf_fini(&part->buf);
    buf_init(&part->buf, LIMIT_PART_BYTES);
    part->work = (struct work){.run = on_make_run, .done = on_make_done};
    part->status = 0;
    part->running = true;
    part->stale = false;
    diag_clear(&part->diag);
    work_submit(save->engine->options.pool, &part->work);
}

void save_part_void(struct save *save)
{
    save->part.made = false;
    save->part.stale = save->part.running;
}

bool save_part_send(struct save *save)
{
    struct save_part *part = &save->part;
    struct link *link = &save->engine->link;
    while (part->sent < part->buf.bytes) {
        struct save_slot *slot = save_slot_take(save);
        if (!slot) {
            return false;
        }
        uint64_t bytes = min_u64(part->buf.bytes - part->sent, link->welcome.payload_max);
        struct msg msg = {.type = MSG_PART,
                          .u.part = {.id = save->user->id,
                                     .open_id = save->open_id,
                                     .offset = part->sent,
                                     .total_bytes = part->buf.bytes}};
        slot->bytes = bytes;
        slot->out.iov_count = 1;
        slot->out.iov[0] =
            (struct iovec){.iov_base = part->buf.data + part->sent, .iov_len = bytes};
        part->sent += bytes;
        link_send_payload(link, &save->request, &msg, &slot->out);
    }
    return true;
}

/* --- the base ------------------------------------------------------------------ */

enum { FETCH_PART = 2 }; /* of the wire */

static struct base_part *find(struct engine *engine, struct ckpt_id id)
{
    for (unsigned i = 0; i < ENGINE_BASES; i++) {
        if (engine->bases[i] && ckpt_id_equal(engine->bases[i]->id, id)) {
            return engine->bases[i];
        }
    }
    return NULL;
}

/* The newest in front; takes the reference. */
static void keep(struct engine *engine, struct base_part *base)
{
    base_part_unref(engine->bases[ENGINE_BASES - 1]);
    memmove(&engine->bases[1], &engine->bases[0], sizeof engine->bases - sizeof engine->bases[0]);
    engine->bases[0] = base;
}

void engine_drop_bases(struct engine *engine)
{
    for (unsigned i = 0; i < ENGINE_BASES; i++) {
        base_part_unref(engine->bases[i]);
        engine->bases[i] = NULL;
    }
}

void save_base_keep(struct save *save)
{
    struct engine *engine = save->engine;
    struct base_part *base;
    struct diag diag = DIAG_INIT;
    if (save->base && save->layout.plain_bytes > 0) {
        engine->gain.known = true;
        engine->gain.percent = (uint32_t)(save->shared_bytes * 100 / save->layout.plain_bytes);
    }
    if (save->way == WAY_HAND || !save->part.made || !save->seal_sent ||
        find(engine, save->user->id)) {
        return; /* handed over, without digests; or committed by another connection's part */
    }
    int rc = base_part_new(save->user->id, save->part.buf.bytes, save->part.buf.data, &base, &diag);
    if (rc == 0) {
        keep(engine, base);
    } else {
        LOG(LOG_WARN, "save", "the next save sends everything", ls("err", diag_text(&diag, rc)));
    }
}

/* To a daemon of the same host the arena is handed over, which costs less than to look for what is
 * unchanged, but stores it again. So a save that looked decides for those behind it: while a good
 * part of the bytes was unchanged they go by the socket and refer to them; otherwise one in a while
 * looks again. */
static bool is_worth_looking(struct save *save)
{
    struct engine *engine = save->engine;
    bool may_hand = engine->link.hands_over && !engine->hand.refused &&
                    engine->kit.mode != ENCODE_DENSEST &&
                    engine->options.transport != TRANSPORT_SOCKET;
    if (!may_hand || engine->options.transport == TRANSPORT_MEMFD) {
        return !may_hand;
    }
    if (!engine->gain.known || engine->gain.percent > SAVE_GAIN_PERCENT_MIN) {
        return true;
    }
    engine->gain.skipped = (engine->gain.skipped + 1) % SAVE_LOOK_EVERY;
    return engine->gain.skipped == 0;
}

/* --- finding it -------------------------------------------------------------------- */

static int object_order(const void *a, const void *b) { return object_id_compare(a, b); }

static bool is_sparse(const struct save *save, const struct object_id *id)
{
    return save->sparse_count > 0 && bsearch(id, save->sparse, save->sparse_count,
                                             sizeof *save->sparse, object_order) != NULL;
}

static struct base_place place_of(const struct registered *set, const struct layout_piece *piece)
{
    if (piece->tensor & LAYOUT_BLOB) {
        const struct registered_blob *blob = &set->blobs[piece->tensor & ~LAYOUT_BLOB];
        return (struct base_place){.name = blob->name, .coordinate = blob->coordinate};
    }
    const struct registered_tensor *tensor = &set->tensors[piece->tensor];
    return (struct base_place){.name = tensor->name,
                               .coordinate = tensor->coordinate,
                               .dtype = tensor->dtype,
                               .box = &tensor->boxes[piece->box].box};
}

/* The base's chunk at each piece's place, where it has one that may be referred to. */
static void match(struct save *save)
{
    const struct layout *layout = &save->layout;
    const struct base_part *base = save->base;
    const struct layout_piece *last = NULL;
    struct base_run run = {0};
    for (uint32_t i = 0; i < layout->piece_count; i++) {
        uint32_t idx = layout->by_part[i];
        const struct layout_piece *piece = &layout->pieces[idx];
        if (!last || last->tensor != piece->tensor || last->box != piece->box) {
            struct base_place place = place_of(save->set, piece);
            run = base_part_run(base, &place);
        }
        last = piece;
        uint32_t found = base_part_cell(base, run, piece->cell, piece->bytes);
        if (found != 0) {
            uint32_t object = base->part.chunks[found - 1].object;
            found = is_sparse(save, &base->part.objects[object].id) ? 0 : found;
        }
        save->base_of[idx] = found;
    }
}

static void known(struct save *save, struct base_part *base)
{
    if (base && base->part.chunk_bytes == save->chunk_bytes_seen && !save_is_over(save)) {
        save->base = base_part_ref(base);
        match(save);
    }
    save->base_known = true;
}

static void on_fetched(struct engine_call *call, int status)
{
    struct save *save = container_of(call, struct save, fetch);
    struct base_part *base = NULL;
    struct diag diag = call->diag;
    save->fetching = false;
    if (status == 0) {
        status = base_part_new(call->request.u.fetch.id, call->payload_bytes, call->payload, &base,
                               &diag);
    }
    if (status == 0) {
        keep(save->engine, base);
    } else if (status != CAIRN_E_CANCELLED) {
        LOG(LOG_INFO, "save", "nothing to refer to, everything is sent",
            lu("step", save->user->step), ls("err", diag_text(&diag, status)));
    }
    free(call->payload);
    engine_call_fini(call);
    known(save, base);
    save_digest_start(save);
    engine_pump(save->engine);
    save_wake(save);
}

void save_base_begin(struct save *save, struct ckpt_id id)
{
    CHECK(!save->base_known);
    CHECK(!save->fetching);
    id = id.term != 0 && is_worth_looking(save) ? id : (struct ckpt_id){0};
    struct base_part *base = id.term != 0 ? find(save->engine, id) : NULL;
    if (id.term == 0 || base || save->layout.piece_count == 0) {
        known(save, base);
        return;
    }
    save->fetching = true;
    save->fetch = (struct engine_call){
        .request = {.type = MSG_FETCH,
                    .u.fetch = {.id = id,
                                .kind = FETCH_PART,
                                .number = save->engine->options.rank}},
        .deadline_ms = min_u64(save->engine->options.io_deadline_ms,
                               engine_ms_left(save->engine, save->end_ms) / 4 + 1),
        .done = on_fetched};
    engine_call_start(save->engine, &save->fetch);
}

/* The message's array is borrowed. */
void save_base_note_sparse(struct save *save, const struct msg_opened *opened)
{
    size_t bytes = opened->sparse_count * sizeof *save->sparse;
    if (save->opened || opened->sparse_count == 0) {
        return;
    }
    free(save->sparse);
    save->sparse = malloc(bytes);
    save->sparse_count = save->sparse ? opened->sparse_count : 0;
    if (save->sparse) { /* without memory they are referred to: that costs space, some day */
        memcpy(save->sparse, opened->sparse, bytes);
    }
}

void save_base_end(struct save *save)
{
    if (save->fetching) {
        engine_call_cancel(&save->fetch);
    }
}

void save_base_fini(struct save *save)
{
    CHECK(!save->fetching);
    base_part_unref(save->base);
    free(save->sparse);
}

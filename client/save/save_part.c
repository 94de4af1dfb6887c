/* SPDX-License-Identifier: Apache-2.0
 *
 * The part: what this rank holds, with a reference for each chunk that it writes, to an object of
 * this save or, if the base had the same chunk, to one of an older save. A worker builds, encodes
 * and hashes it when every object is durable or described, so that all references are final. It is
 * sent in frames on the stream of its SEAL.
 */
#include "save/save_part_private.h"

#include "base/check.h"

#define PART_SCRATCH_MAX ((size_t)4 << 30)

struct maker {
    const struct save_send *send;
    struct part part;
    struct scratch scratch;
    uint32_t chunk_at;
    /* By object of the base: 1 + its index in the part; 0 means not used so far. */
    uint32_t *old_objects;
};

static int no_memory(struct diag *diag)
{
    return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for this rank's part");
}

/* Counts the records of each section of the part, and allocates them. */
static bool allocate(struct maker *maker)
{
    const struct save_send *send = maker->send;
    const struct registered *set = send->common->set;
    struct part *part = &maker->part;
    struct scratch *scratch = &maker->scratch;
    uint32_t old_count = send->base->part ? send->base->part->part.object_count : 0;
    part->object_count = send->object_count; /* objects of the base are added as they are used */
    part->chunk_count = send->room->layout.piece_count;
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

/* Makes the base's reference again, to an object of an older save. */
static struct part_chunk old_chunk(struct maker *maker, uint32_t piece_idx)
{
    const struct save_send *send = maker->send;
    CHECK(send->base->part != NULL);
    CHECK(send->base->chunk_of[piece_idx] > 0);
    const struct part *base = &send->base->part->part;
    struct part_chunk chunk = base->chunks[send->base->chunk_of[piece_idx] - 1];
    uint32_t *object = &maker->old_objects[chunk.object];
    if (*object == 0) {
        *object = maker->part.object_count++;
        maker->part.objects[*object] = (struct part_object){.id = base->objects[chunk.object].id};
        *object += 1;
    }
    chunk.object = *object - 1;
    return chunk;
}

/* Makes the reference to a chunk of this save. After a hand-over its digest is blank, because the
 * daemon writes it. */
static struct part_chunk new_chunk(const struct save_send *send, const struct layout_piece *piece,
                                   const struct envelope *envelope)
{
    const struct save_payload *payload = &send->payloads[piece->payload];
    return (struct part_chunk){.object = payload->object,
                               .cell = piece->cell,
                               .offset = payload->at + envelope->offset,
                               .stored_bytes = envelope->stored_bytes,
                               .plain_bytes = envelope->plain_bytes,
                               .stored_crc = envelope->stored_crc,
                               .encoding = envelope->encoding,
                               .digest_alg = envelope->digest_alg,
                               .digest = send->way->digests_here ? envelope->digest
                                                                 : (struct digest){{0}}};
}

/* Adds the chunks of one box or blob, which follow each other in the part's order. Returns their
 * number. */
static uint32_t add_chunks(struct maker *maker, uint32_t tensor, uint32_t box)
{
    const struct save_send *send = maker->send;
    const struct layout *layout = &send->room->layout;
    uint32_t first = maker->chunk_at;
    while (maker->chunk_at < layout->piece_count) {
        uint32_t piece_idx = layout->by_part[maker->chunk_at];
        const struct layout_piece *piece = &layout->pieces[piece_idx];
        if (piece->tensor != tensor || piece->box != box) {
            break;
        }
        uint32_t to = send->envelope_of[piece_idx];
        struct part_chunk chunk = to == SAVE_SHARED ? old_chunk(maker, piece_idx)
                                                    : new_chunk(send, piece, &send->envelopes[to]);
        CHECK(chunk.object < maker->part.object_count);
        maker->part.chunks[maker->chunk_at++] = chunk;
        maker->part.objects[chunk.object].bytes_used += chunk.stored_bytes;
    }
    return maker->chunk_at - first;
}

/* Fills in the tensors of the set and their boxes, with those chunks of them that this rank
 * writes. */
static void add_tensors(struct maker *maker)
{
    const struct registered *set = maker->send->common->set;
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

/* Fills in the blobs that this rank writes. They come after the tensors, so that all chunks of the
 * part are used then. */
static void add_blobs(struct maker *maker)
{
    const struct registered *set = maker->send->common->set;
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

static uint64_t stored_bytes(const struct save_send *send)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < send->room->layout.payload_count; i++) {
        bytes += send->payloads[i].bytes;
    }
    return bytes;
}

/* Builds, encodes and hashes the part. Runs on a worker. */
static void on_make_run(struct work *work)
{
    struct save_part *made = container_of(work, struct save_part, work);
    const struct save_send *send = made->send;
    struct maker maker = {.send = send,
                          .part = {.run_uuid = send->common->run_uuid,
                                   .id = send->common->user->id,
                                   .rank = send->common->engine->options.rank,
                                   .world_size = send->common->engine->options.world_size,
                                   .writer = send->common->engine->options.writer,
                                   .chunk_bytes = send->common->chunk_bytes}};
    scratch_init(&maker.scratch, PART_SCRATCH_MAX);
    if (!allocate(&maker)) {
        made->status = no_memory(&made->diag);
    } else {
        for (uint32_t i = 0; i < maker.part.object_count; i++) {
            maker.part.objects[i].id = save_object_id(send, i);
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
    struct save_part *part = container_of(work, struct save_part, work);
    struct save_common *common = part->send->common;
    part->running = false;
    atomic_store(&common->user->stored_bytes, stored_bytes(part->send));
    save_wake(common);
}

void save_part_make(struct save_part *part)
{
    struct save_send *send = part->send;
    CHECK(!part->running);
    CHECK(send->slots_busy == 0);      /* nothing borrows the old bytes */
    CHECK(send->digests_running == 0); /* the envelopes are final */
    buf_fini(&part->buf);
    buf_init(&part->buf, LIMIT_PART_BYTES);
    part->work = (struct work){.run = on_make_run, .done = on_make_done};
    part->status = 0;
    part->running = true;
    part->doubtful = part->doubtful || send->common->reach >= REACH_SEALED;
    part->round = send->round;
    diag_clear(&part->diag);
    work_submit(send->common->engine->options.pool, &part->work);
}

bool save_part_is_made(const struct save_part *part)
{
    return !part->running && part->status == 0 && part->round == part->send->round;
}

bool save_part_send(struct save_part *part, struct request *request)
{
    struct link *link = &part->send->common->engine->link;
    CHECK(save_part_is_made(part));
    while (part->sent < part->buf.bytes) {
        struct save_slot *slot = save_slot_take(part->send);
        if (!slot) {
            return false;
        }
        uint64_t bytes = min_u64(part->buf.bytes - part->sent, link->welcome.payload_max);
        struct msg msg = {.type = MSG_PART,
                          .u.part = {.id = part->send->common->user->id,
                                     .open_id = part->send->common->open_id,
                                     .offset = part->sent,
                                     .total_bytes = part->buf.bytes}};
        slot->bytes = bytes;
        slot->out.iov_count = 1;
        slot->out.iov[0] =
            (struct iovec){.iov_base = part->buf.data + part->sent, .iov_len = bytes};
        part->sent += bytes;
        link_send_payload(link, request, &msg, &slot->out);
    }
    return true;
}

void save_part_keep(const struct save_part *part)
{
    const struct save_send *send = part->send;
    const struct save_common *common = send->common;
    uint64_t plain_bytes = send->room->layout.plain_bytes;
    if (send->base->part && plain_bytes > 0 && send->is_counted) {
        common->engine->gain.known = true;
        common->engine->gain.percent = (uint32_t)(send->shared_bytes * 100 / plain_bytes);
    }
    /* Otherwise its digests are not here, or another part of ours may be the committed one. */
    if (send->way && send->way->digests_here && save_part_is_made(part) && !part->doubtful &&
        common->reach == REACH_SEALED) {
        save_base_keep(common, &part->buf);
    }
}

void save_part_fini(struct save_part *part)
{
    CHECK(!part->running);
    buf_fini(&part->buf);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * READs, a bounded number at a time. Bytes arrive where they belong, or in the buffer of a slot; a
 * worker then checks crc and digest of every chunk and scatters the bytes. A mismatch may have
 * happened on the way, so the READ is repeated a few times before it counts as damage. Loop's
 * thread; on_slot_run on workers.
 */
#include "engine/restore_private.h"

#include "arena/strided.h"
#include "base/check.h"
#include "gpu/gpu.h"
#include "pipeline/chunk.h"

#include <stdlib.h>
#include <string.h>

static const struct request_ops slot_request_ops;

/* --- worker ---------------------------------------------------------------------- */

/* Copies one run, which is contiguous both in the chunk and in the box, into device memory. */
static int device_run(const struct read_slot *slot, const struct plan_read *read,
                      const struct box *run, const uint8_t *plain, struct diag *diag)
{
    const struct want *want = &slot->restore->wants[read->want];
    uint32_t element_bytes = dtype_bits(want->tensor->dtype) / 8;
    uint64_t to = 0, from = 0;
    bool is_run = strided_run(&want->box->box, run, element_bytes, &to) &&
                  strided_run(&read->cell, run, element_bytes, &from);
    CHECK(is_run);
    struct gpu_copy copy = {.ordinal = want->tensor->device - 1,
                            .bytes = box_bytes(run, want->tensor->dtype),
                            .host = (void *)(uintptr_t)(plain + from),
                            .device = (uintptr_t)want->box->data + to};
    int rc = gpu_copy_in(slot->restore->set->gpu, &copy, diag);
    if (rc != 0) {
        diag_add(diag, "tensor '%s' on CUDA device %u", want->tensor->name, copy.ordinal);
    }
    return rc;
}

/* Scatters the part into device memory, as one run if it is contiguous on both sides, else row by
 * row. */
static int scatter_device(const struct read_slot *slot, const struct plan_read *read,
                          const struct box *part, const uint8_t *plain, struct diag *diag)
{
    const struct want *want = &slot->restore->wants[read->want];
    uint32_t element_bytes = dtype_bits(want->tensor->dtype) / 8;
    uint64_t offset, rows = 1;
    if (strided_run(&want->box->box, part, element_bytes, &offset) &&
        strided_run(&read->cell, part, element_bytes, &offset)) {
        return device_run(slot, read, part, plain, diag);
    }
    for (uint32_t d = 0; d + 1 < part->ndim; d++) {
        rows *= (uint64_t)part->length[d];
    }
    int rc = 0;
    for (uint64_t row = 0; row < rows && rc == 0; row++) {
        struct box run = *part;
        uint64_t left = row;
        for (uint32_t d = part->ndim - 1; d-- > 0;) {
            run.offset[d] += (int64_t)(left % (uint64_t)part->length[d]);
            run.length[d] = 1;
            left /= (uint64_t)part->length[d];
        }
        rc = device_run(slot, read, &run, plain, diag);
    }
    return rc;
}

/* Copies the wanted part of a verified chunk to where it belongs. Runs on a worker. */
static int scatter(const struct read_slot *slot, const struct plan_read *read, const uint8_t *plain,
                   struct diag *diag)
{
    const struct want *want = &slot->restore->wants[read->want];
    struct box part;
    uint32_t element_bytes;
    if (!want->tensor) {
        memcpy(want->blob->data + read->blob_offset, plain, read->plain_bytes);
        return 0;
    }
    bool meets = restore_part_of(want, read, &part);
    CHECK(meets);
    if (want->tensor->device != 0) {
        return scatter_device(slot, read, &part, plain, diag);
    }
    element_bytes = dtype_bits(want->tensor->dtype) / 8;
    struct strided_copy copy = {
        .to_box = &want->box->box,
        .from_box = &read->cell,
        .part = &part,
        .to = registered_memory(want->box, element_bytes),
        .from = strided_packed((void *)(uintptr_t)plain, &read->cell, element_bytes),
        .element_bytes = element_bytes};
    strided_copy(&copy);
    return 0;
}

/* Verifies the chunk of one record, decodes it if needed, and scatters it. */
static int open_record(const struct read_slot *slot, const struct plan_read *read,
                       const uint8_t *stored, struct diag *diag)
{
    const struct want *want = &slot->restore->wants[read->want];
    struct envelope envelope = {.stored_bytes = read->stored_bytes,
                                .plain_bytes = read->plain_bytes,
                                .stored_crc = read->stored_crc,
                                .encoding = read->encoding,
                                .digest_alg = read->digest_alg,
                                .digest = read->digest};
    const uint8_t *plain = stored;
    int rc;
    uint8_t *place = slot->restore->groups[slot->group].place;
    if (read->encoding == ENCODING_RAW && slot->lands && place) {
        rc = chunk_open(&envelope, stored, read->plain_bytes, place, diag);
    } else if (read->encoding == ENCODING_RAW) {
        rc = chunk_verify(&envelope, stored, diag);
    } else {
        rc = chunk_open(&envelope, stored, LIMIT_CHUNK_BYTES, slot->plain, diag);
        plain = slot->plain;
    }
    if (rc != 0) {
        diag_add(diag, "'%s' in object %llu@%llu rank %u sequence %u at %llu",
                 want->tensor ? want->tensor->name : want->blob->name,
                 (unsigned long long)read->object.step, (unsigned long long)read->object.term,
                 read->object.rank, read->object.sequence, (unsigned long long)read->offset);
        return rc;
    }
    return place ? 0 : scatter(slot, read, plain, diag);
}

/* Verifies and scatters all records of a READ. Runs on a worker. */
static void on_slot_run(struct work *work)
{
    struct read_slot *slot = container_of(work, struct read_slot, work);
    const struct read_group *group = &slot->restore->groups[slot->group];
    const uint8_t *data = slot->lands    ? restore_land_place(slot->restore, slot) + slot->skip
                          : group->place ? group->place
                                         : slot->buffer;
    slot->status = 0;
    for (uint32_t i = 0; i < group->count && slot->status == 0; i++) {
        const struct plan_read *read = &slot->restore->records[group->first + i];
        slot->status = open_record(slot, read, data + (read->offset - group->offset), &slot->diag);
    }
}

/* --- buffers --------------------------------------------------------------------- */

/* Makes sure that taking `count` buffers later cannot fail. New buffers go below those that were in
 * use, so that they are taken last. */
static bool promise_buffers(struct restore *restore, struct read_slot *slot, unsigned count)
{
    while (restore->buffers_made < restore->buffers_promised + count) {
        uint8_t *buffer = malloc(LIMIT_CHUNK_BYTES);
        if (!buffer) {
            return false;
        }
        CHECK(restore->buffers_made < RESTORE_BUFFERS);
        memmove(&restore->buffers[1], &restore->buffers[0],
                restore->buffers_free * sizeof restore->buffers[0]);
        restore->buffers[0] = buffer;
        restore->buffers_free++;
        restore->buffers_made++;
    }
    restore->buffers_promised += count;
    slot->promised = count;
    return true;
}

static uint8_t *take_buffer(struct restore *restore)
{
    CHECK(restore->buffers_free > 0);
    return restore->buffers[--restore->buffers_free];
}

/* Takes the promised buffers when the reply comes, so that no memory is held while waiting. */
static void take_buffers(struct read_slot *slot)
{
    unsigned stored = slot->lands ? 0 : 1;
    if (slot->promised > 0 && stored > 0 && !slot->buffer) {
        slot->buffer = take_buffer(slot->restore);
    }
    if (slot->promised > stored && !slot->plain) {
        slot->plain = take_buffer(slot->restore);
    }
}

static void give_buffer(struct restore *restore, uint8_t **buffer)
{
    if (*buffer) {
        CHECK(restore->buffers_free < restore->buffers_made);
        restore->buffers[restore->buffers_free++] = *buffer;
        *buffer = NULL;
    }
}

static void give_buffers(struct read_slot *slot)
{
    give_buffer(slot->restore, &slot->plain);
    give_buffer(slot->restore, &slot->buffer);
    CHECK(slot->restore->buffers_promised >= slot->promised);
    slot->restore->buffers_promised -= slot->promised;
    slot->promised = 0;
}

/* --- results --------------------------------------------------------------------- */

static void free_slot(struct read_slot *slot)
{
    give_buffers(slot);
    CHECK(slot->busy);
    CHECK(!slot->working);
    CHECK(slot->restore->slots_busy > 0);
    slot->busy = false;
    slot->restore->slots_busy--;
}

/* Puts the group into the list of those that are read again. */
static void read_again(struct restore *restore, uint32_t group)
{
    CHECK(restore->redo_count < RESTORE_SLOTS);
    restore->redo[restore->redo_count++] = group;
}

/* Returns how many plain bytes the group brings to this rank. */
static uint64_t group_plain_bytes(const struct restore *restore, const struct read_group *group)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < group->count; i++) {
        const struct plan_read *read = &restore->records[group->first + i];
        const struct want *want = &restore->wants[read->want];
        struct box part;
        if (!want->tensor) {
            bytes += read->plain_bytes;
        } else if (restore_part_of(want, read, &part)) {
            bytes += box_bytes(&part, want->tensor->dtype);
        }
    }
    return bytes;
}

static bool is_mismatch(int status)
{
    return status == CAIRN_E_DIGEST_MISMATCH || status == CAIRN_E_FORMAT;
}

/* Called when a READ has ended, well or not. Counts its bytes, reads it again, or reports
 * damage. */
static void slot_ended(struct read_slot *slot)
{
    struct restore *restore = slot->restore;
    struct read_group *group = &restore->groups[slot->group];
    int status = slot->status;
    free_slot(slot);
    if (!restore_is_reading(restore)) {
        restore_wake(restore); /* the restore waits for its slots */
        return;
    }
    if (status == 0) {
        atomic_fetch_add(&restore->user->done_bytes, group_plain_bytes(restore, group));
    } else if (is_mismatch(status) && group->tries + 1 < RESTORE_TRIES) {
        group->tries++;
        read_again(restore, slot->group);
    } else {
        bool ours = is_mismatch(status) &&
                    group->tries < RESTORE_TRIES; /* it was read and found wrong each time */
        restore_cannot(restore, ours ? CAIRN_E_DAMAGED : status, &slot->diag);
        return;
    }
    restore_read_pump(restore);
    restore_wake(restore);
}

static void on_slot_done(struct work *work)
{
    struct read_slot *slot = container_of(work, struct read_slot, work);
    CHECK(slot->working);
    slot->working = false;
    slot_ended(slot);
}

/* --- replies --------------------------------------------------------------------- */

/* Takes an ERROR for a READ. If the server cannot serve now, the connection is given up and the
 * READ is asked again; any other error is reported. */
static void on_error(struct read_slot *slot, const struct msg_error *error)
{
    struct restore *restore = slot->restore;
    struct read_group *group = &restore->groups[slot->group];
    const struct plan_read *read = &restore->records[group->first];
    int code = error->code < 0 ? error->code : CAIRN_E_PROTOCOL;
    if (code == CAIRN_E_BUSY || code == CAIRN_E_SHUTTING_DOWN || code == CAIRN_E_AGAIN) {
        free_slot(slot);
        read_again(restore, slot->group);
        link_reset(&restore->engine->link, CAIRN_E_CONNECTION_LOST,
                   "the server cannot serve reads at the moment");
        return;
    }
    group->tries = RESTORE_TRIES; /* the server has read it again itself */
    slot->status = restore_damage_code(code);
    diag_clear(&slot->diag);
    diag_set(&slot->diag, slot->status, "object %llu@%llu rank %u sequence %u: %s",
             (unsigned long long)read->object.step, (unsigned long long)read->object.term,
             read->object.rank, read->object.sequence,
             error->text && error->text[0] ? error->text : err_text(code));
    slot_ended(slot);
}

/* Hands the received bytes to a worker. */
static void check_slot(struct read_slot *slot)
{
    link_forget(&slot->restore->engine->link, &slot->request);
    CHECK(slot->busy);
    CHECK(!slot->working);
    diag_clear(&slot->diag);
    slot->working = true;
    work_submit(slot->restore->engine->options.pool, &slot->work);
}

/* Takes the reply to a READ, and names the place for its bytes. */
static int on_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    struct read_slot *slot = container_of(request, struct read_slot, request);
    const struct read_group *group = &slot->restore->groups[slot->group];
    if (msg->type == MSG_ERROR) {
        on_error(slot, &msg->u.error);
        return 0;
    }
    if (slot->lands && msg->type == MSG_LANDED && msg->u.landed.bytes == slot->landing_bytes) {
        take_buffers(slot);
        check_slot(slot);
        return 0;
    }
    if (slot->lands || msg->type != MSG_READ_REPLY || frame->payload_bytes != group->bytes) {
        return diag_set(diag, CAIRN_E_PROTOCOL,
                        "the server sent %s with %u bytes for a READ of %u bytes",
                        msg_name(msg->type), frame->payload_bytes, group->bytes);
    }
    take_buffers(slot);
    CHECK(group->place != NULL || slot->buffer != NULL);
    *ret_payload = group->place ? group->place : slot->buffer;
    return 0;
}

static int on_payload(struct request *request, const struct frame *frame, const struct msg *msg,
                      void *payload, struct diag *diag)
{
    (void)frame;
    (void)msg;
    (void)payload;
    (void)diag;
    check_slot(container_of(request, struct read_slot, request));
    return 0;
}

/* Called when the connection is lost. The READ is asked again on the next one. */
static void on_lost(struct request *request)
{
    struct read_slot *slot = container_of(request, struct read_slot, request);
    struct restore *restore = slot->restore;
    if (slot->lands) {
        restore_land_stop(restore);
    }
    free_slot(slot);
    if (restore_is_reading(restore)) {
        read_again(restore, slot->group);
    } else {
        restore_wake(restore);
    }
}

static const struct request_ops slot_request_ops = {
    .on_reply = on_reply, .on_payload = on_payload, .on_lost = on_lost};

/* --- asking ---------------------------------------------------------------------- */

/* Finds the group to read next; those that must be read again come first. Returns false if there is
 * none. */
static bool next_group(struct restore *restore, uint32_t *ret)
{
    if (restore->redo_count > 0) {
        *ret = restore->redo[--restore->redo_count];
        return true;
    }
    if (restore->group_at < restore->group_count) {
        *ret = (uint32_t)restore->group_at++;
        return true;
    }
    return false;
}

/* Returns how many buffers the READ needs: one for stored bytes, unless they land or go straight
 * into place, and one for plain bytes if a chunk is encoded. */
static unsigned buffers_needed(const struct restore *restore, const struct read_slot *slot,
                               const struct read_group *group)
{
    bool encoded = false;
    for (uint32_t i = 0; i < group->count; i++) {
        encoded = encoded || restore->records[group->first + i].encoding != ENCODING_RAW;
    }
    unsigned stored = slot->lands || (group->place && !encoded) ? 0 : 1;
    return stored + (encoded ? 1 : 0);
}

/* Sends a READ for the group, to land in our memory if its range allows that. */
static bool ask(struct restore *restore, struct read_slot *slot, uint32_t group)
{
    const struct read_group *what = &restore->groups[group];
    struct diag diag = DIAG_INIT;
    struct msg read = {.type = MSG_READ,
                       .u.read = {.object = restore->records[what->first].object,
                                  .offset = what->offset,
                                  .bytes = what->bytes}};
    slot->lands = restore_land_range(restore, slot, what, &read.u.read);
    slot->skip = (uint32_t)(what->offset - read.u.read.offset);
    slot->landing_bytes = read.u.read.bytes;
    if (!promise_buffers(restore, slot, buffers_needed(restore, slot, what))) {
        diag_no_memory(&diag, "a read buffer");
        restore_cannot(restore, CAIRN_E_NO_MEMORY, &diag);
        return false;
    }
    CHECK(group < restore->group_count);
    CHECK(!slot->busy);
    CHECK(slot->request.stream == 0);
    slot->group = group;
    slot->busy = true;
    restore->slots_busy++;
    link_ask(&restore->engine->link, &slot->request, &read);
    return true;
}

void restore_read_pump(struct restore *restore)
{
    /* Places are used from the first on: no more of them is touched than is needed at once. */
    bool lands = restore->landing.state == LANDING_HELD;
    unsigned count = !restore_land_is_settled(restore) ? 0
                     : lands                           ? RESTORE_LANDING_SLOTS
                                                       : RESTORE_SLOTS;
    for (unsigned i = 0;
         i < count && restore_is_reading(restore) && link_is_up(&restore->engine->link); i++) {
        struct read_slot *slot = &restore->slots[i];
        uint32_t group;
        if (!slot->busy && (!next_group(restore, &group) || !ask(restore, slot, group))) {
            return;
        }
    }
}

void restore_read_start(struct restore *restore)
{
    for (unsigned i = 0; i < RESTORE_SLOTS; i++) {
        struct read_slot *slot = &restore->slots[i];
        CHECK(!slot->busy);
        slot->restore = restore;
        slot->request.ops = &slot_request_ops;
        slot->work = (struct work){.run = on_slot_run, .done = on_slot_done};
    }
    restore_read_pump(restore);
}

bool restore_read_is_done(const struct restore *restore)
{
    return restore->slots_busy == 0 && restore->redo_count == 0 &&
           restore->group_at == restore->group_count;
}

void restore_read_stop(struct restore *restore)
{
    restore->redo_count = 0;
    restore->group_at = restore->group_count;
    for (unsigned i = 0; i < RESTORE_SLOTS; i++) {
        struct read_slot *slot = &restore->slots[i];
        /* Forgetting one that is being received drops the connection, and with it (on_lost) the
         * others. */
        if (slot->busy && !slot->working) {
            if (slot->lands) {
                restore_land_stop(restore);
            }
            free_slot(slot);
            link_forget(&restore->engine->link, &slot->request);
        }
    }
}

void restore_read_fini(struct restore *restore)
{
    CHECK(restore->buffers_free == restore->buffers_made);
    CHECK(restore->buffers_promised == 0);
    CHECK(restore->slots_busy == 0);
    while (restore->buffers_free > 0) {
        free(restore->buffers[--restore->buffers_free]);
    }
    free(restore->groups);
    free(restore->records);
}

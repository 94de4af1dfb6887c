/* SPDX-License-Identifier: Apache-2.0
 *
 * The copy of a save. A task is a run of payloads that have their places; as one ends, the next
 * begins, so at most tasks_max are queued. The padding behind a payload is zeroed here, once: what
 * is stored is all determined. Loop's thread, copies on workers.
 */
#include "engine/snapshot.h"

#include "arena/streamed.h"
#include "arena/strided.h"
#include "base/check.h"

#include <string.h>

void snapshot_copy_piece(const struct registered *set, const struct layout_piece *piece,
                         uint8_t *to)
{
    const struct registered_tensor *tensor = &set->tensors[piece->tensor];
    const struct registered_box *box = &tensor->boxes[piece->box];
    if (box->contiguous) {
        streamed_copy(to, box->data + piece->source, piece->bytes);
        return;
    }
    uint32_t element_bytes = dtype_bits(tensor->dtype) / 8;
    uint64_t index = piece->source / element_bytes, left = piece->bytes / element_bytes;
    /* A cell is a run of the box's row-major order; as a rectangle it is found again from its first
     * element. */
    struct box cell = box->box;
    for (uint32_t d = cell.ndim; d-- > 0;) {
        uint64_t length = (uint64_t)box->box.length[d];
        uint64_t here = min_u64(left, length);
        cell.offset[d] += (int64_t)(index % length);
        cell.length[d] = (int64_t)here;
        index /= length;
        left /= here;
    }
    struct strided_copy copy = {.to_box = &cell,
                                .from_box = &box->box,
                                .part = &cell,
                                .to = strided_packed(to, &cell, element_bytes),
                                .from = registered_memory(box, element_bytes),
                                .element_bytes = element_bytes};
    strided_copy(&copy);
}

void snapshot_copy_payload(const struct registered *set, const struct layout *layout, uint32_t idx,
                           uint8_t *to)
{
    const struct layout_payload *payload = &layout->payloads[idx];
    for (uint32_t i = 0; i < payload->piece_count; i++) {
        const struct layout_piece *piece = &layout->pieces[payload->piece_first + i];
        if (piece->tensor & LAYOUT_BLOB) {
            const struct registered_blob *blob = &set->blobs[piece->tensor & ~LAYOUT_BLOB];
            memcpy(to + piece->at, blob->data + piece->source, piece->bytes);
        } else {
            snapshot_copy_piece(set, piece, to + piece->at);
        }
    }
    memset(to + payload->bytes, 0,
           round_up_u64(payload->bytes, LIMIT_ALIGN_BYTES) - payload->bytes);
}

static uint8_t *place_of(const struct snapshot *snapshot, uint32_t idx)
{
    const struct layout_payload *payload = &snapshot->layout->payloads[idx];
    uint8_t *place = snapshot->places[payload->object];
    return place ? place + (payload->at - snapshot->layout->objects[payload->object].at) : NULL;
}

static void on_task_run(struct work *work)
{
    const struct snapshot_task *task = container_of(work, struct snapshot_task, work);
    const struct snapshot *snapshot = task->snapshot;
    for (uint32_t i = task->payload_first; i < task->payload_first + task->payload_count; i++) {
        uint8_t *to = place_of(snapshot, i);
        CHECK(to != NULL);
        snapshot_copy_payload(snapshot->set, snapshot->layout, i, to);
        if (snapshot->watch) {
            watch_compare(snapshot->watch, i, to);
        }
    }
}

static bool start_task(struct snapshot *snapshot, struct snapshot_task *task)
{
    const struct layout *layout = snapshot->layout;
    if (snapshot->stopped || snapshot->running >= snapshot->tasks_max) {
        return false;
    }
    task->payload_first = snapshot->next_payload;
    task->payload_count = 0;
    task->bytes = 0;
    while (snapshot->next_payload < layout->payload_count && task->bytes < SNAPSHOT_TASK_BYTES &&
           place_of(snapshot, snapshot->next_payload)) {
        task->bytes += layout->payloads[snapshot->next_payload].bytes;
        snapshot->next_payload++;
        task->payload_count++;
    }
    if (task->payload_count == 0) {
        return false;
    }
    snapshot->running++;
    task->running = true;
    work_submit(snapshot->pool, &task->work);
    return true;
}

static void on_task_done(struct work *work)
{
    struct snapshot_task *task = container_of(work, struct snapshot_task, work);
    struct snapshot *snapshot = task->snapshot;
    uint64_t bytes = task->bytes;
    snapshot->running--;
    task->running = false;
    bool over = !start_task(snapshot, task) && snapshot->running == 0 &&
                (snapshot->stopped || snapshot->next_payload == snapshot->layout->payload_count);
    snapshot->on_progress(snapshot, bytes, over);
}

void snapshot_start(struct snapshot *snapshot)
{
    CHECK(snapshot->layout->payload_count > 0);
    CHECK(snapshot->tasks_max >= 1 && snapshot->tasks_max <= SNAPSHOT_TASKS);
    for (unsigned i = 0; i < SNAPSHOT_TASKS; i++) {
        snapshot->tasks[i] = (struct snapshot_task){
            .snapshot = snapshot, .work = {.run = on_task_run, .done = on_task_done}};
    }
    snapshot_resume(snapshot);
}

void snapshot_resume(struct snapshot *snapshot)
{
    for (unsigned i = 0; i < SNAPSHOT_TASKS; i++) {
        struct snapshot_task *task = &snapshot->tasks[i];
        if (!task->running && !start_task(snapshot, task)) {
            return;
        }
    }
}

uint32_t snapshot_copied(const struct snapshot *snapshot)
{
    uint32_t copied = snapshot->next_payload;
    for (unsigned i = 0; i < SNAPSHOT_TASKS; i++) {
        const struct snapshot_task *task = &snapshot->tasks[i];
        if (task->running && task->payload_first < copied) {
            copied = task->payload_first;
        }
    }
    return copied;
}

bool snapshot_stop(struct snapshot *snapshot)
{
    snapshot->stopped = true;
    return snapshot->running == 0;
}

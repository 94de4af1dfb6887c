/* SPDX-License-Identifier: Apache-2.0
 *
 * The copy of a save. Its tasks take payloads that have places from a common counter, without
 * asking the loop's thread. The padding behind a payload is zeroed here, once, so that every stored
 * byte is determined. Loop's thread; copies on workers.
 */
#include "snapshot/snapshot.h"

#include "arena/streamed.h"
#include "arena/strided.h"
#include "base/check.h"
#include "gpu/gpu.h"

#include <string.h>

/* Copies a piece of a tensor on a device, after the event if there is one. */
static int copy_device_piece(const struct registered *set, const struct layout_piece *piece,
                             void *after, uint8_t *to, struct diag *diag)
{
    const struct registered_tensor *tensor = &set->tensors[piece->tensor];
    struct gpu_copy copy = {.ordinal = tensor->device - 1,
                            .bytes = piece->bytes,
                            .host = to,
                            .after = after,
                            .device = (uintptr_t)tensor->boxes[piece->box].data + piece->source};
    int rc = gpu_copy_out(set->gpu, &copy, diag);
    if (rc != 0) {
        diag_add(diag, "tensor '%s' on CUDA device %u", tensor->name, copy.ordinal);
    }
    return rc;
}

int snapshot_copy_piece(const struct registered *set, const struct layout_piece *piece, void *after,
                        uint8_t *to, struct diag *diag)
{
    const struct registered_tensor *tensor = &set->tensors[piece->tensor];
    const struct registered_box *box = &tensor->boxes[piece->box];
    if (tensor->device != 0) {
        return copy_device_piece(set, piece, after, to, diag);
    }
    if (box->contiguous) {
        streamed_copy(to, box->data + piece->source, piece->bytes);
        return 0;
    }
    uint32_t element_bytes = dtype_bits(tensor->dtype) / 8;
    uint64_t index = piece->source / element_bytes, left = piece->bytes / element_bytes;
    /* A cell is a run of the box's row-major order; its rectangle is computed from its first
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
    return 0;
}

int snapshot_copy_payload(const struct snapshot_source *source, uint32_t idx, uint8_t *to,
                          struct diag *diag)
{
    const struct registered *set = source->set;
    const struct layout *layout = source->layout;
    int rc = 0;
    CHECK(idx < layout->payload_count);
    const struct layout_payload *payload = &layout->payloads[idx];
    for (uint32_t i = 0; i < payload->piece_count && rc == 0; i++) {
        const struct layout_piece *piece = &layout->pieces[payload->piece_first + i];
        if (piece->tensor & LAYOUT_BLOB) {
            const struct registered_blob *blob = &set->blobs[piece->tensor & ~LAYOUT_BLOB];
            memcpy(to + piece->at, blob->data + piece->source, piece->bytes);
        } else {
            rc = snapshot_copy_piece(set, piece, source->after, to + piece->at, diag);
        }
    }
    memset(to + payload->bytes, 0,
           round_up_u64(payload->bytes, LIMIT_ALIGN_BYTES) - payload->bytes);
    return rc;
}

static uint8_t *place_of(const struct snapshot *snapshot, uint32_t idx)
{
    CHECK(idx < snapshot->layout->payload_count);
    const struct layout_payload *payload = &snapshot->layout->payloads[idx];
    uint8_t *place = snapshot->places[payload->object];
    return place ? place + (payload->at - snapshot->layout->objects[payload->object].at) : NULL;
}

/* --- on workers -------------------------------------------------------------------- */

/* Claims the next payloads, some MiB of them. The task says where it may be before it claims, so
 * that snapshot_copied never counts payloads that are claimed and not copied. Returns false if
 * there are none now. */
static bool claim(struct snapshot *snapshot, struct snapshot_task *task, uint32_t *ret_first,
                  uint32_t *ret_end)
{
    const struct layout *layout = snapshot->layout;
    uint32_t first = atomic_load(&snapshot->next_payload);
    do {
        uint32_t ready = atomic_load(&snapshot->ready_payload), end = first;
        uint64_t bytes = 0;
        atomic_store(&task->at, first);
        while (end < ready && bytes < SNAPSHOT_CLAIM_BYTES) {
            bytes += layout->payloads[end++].bytes;
        }
        if (end <= first || atomic_load(&snapshot->stopped)) {
            return false;
        }
        *ret_first = first;
        *ret_end = end;
    } while (!atomic_compare_exchange_weak(&snapshot->next_payload, &first, *ret_end));
    return true;
}

/* Copies as long as there is something to copy. A worker that asked the loop's thread for each
 * piece of work would wait for a thread that the other copies keep from running. */
static void on_task_run(struct work *work)
{
    struct snapshot_task *task = container_of(work, struct snapshot_task, work);
    struct snapshot *snapshot = task->snapshot;
    uint32_t first, end;
    uint64_t untold = 0;
    while (claim(snapshot, task, &first, &end)) {
        for (uint32_t i = first; i < end; i++) {
            uint8_t *to = place_of(snapshot, i);
            CHECK(to != NULL);
            const struct snapshot_source source = {snapshot->set, snapshot->layout,
                                                   snapshot->after};
            if (snapshot_copy_payload(&source, i, to, &task->diag) != 0) {
                struct snapshot_task *none = NULL;
                (void)atomic_compare_exchange_strong(&snapshot->failed, &none, task);
                atomic_store(&snapshot->stopped, true);
                return; /* `at` stays, because what this task has claimed is not copied */
            }
            if (snapshot->watch) {
                watch_compare(snapshot->watch, i, to);
            }
            untold += snapshot->layout->payloads[i].bytes;
            atomic_fetch_add(&snapshot->copied_bytes, snapshot->layout->payloads[i].bytes);
        }
        if (untold >= SNAPSHOT_TELL_BYTES) {
            untold = 0;
            atomic_store(&task->at, end);
            loop_post(snapshot->loop, &snapshot->told);
        }
    }
    atomic_store(&task->at, UINT32_MAX);
}

/* --- on the loop's thread ---------------------------------------------------------- */

static bool is_over(const struct snapshot *snapshot)
{
    return snapshot->running == 0 &&
           (atomic_load(&snapshot->stopped) ||
            atomic_load(&snapshot->next_payload) == snapshot->layout->payload_count);
}

static void tell(struct snapshot *snapshot, bool over)
{
    uint64_t bytes = atomic_exchange(&snapshot->copied_bytes, 0);
    snapshot->on_progress(snapshot, bytes, over);
}

/* The end of the last task is posted behind this post, so the snapshot is alive here. */
static void on_told(struct post *post) { tell(container_of(post, struct snapshot, told), false); }

static void on_task_done(struct work *work)
{
    struct snapshot_task *task = container_of(work, struct snapshot_task, work);
    struct snapshot *snapshot = task->snapshot;
    CHECK(task->running);
    CHECK(snapshot->running > 0);
    snapshot->running--;
    task->running = false;
    snapshot_resume(snapshot); /* places may have come after it looked */
    tell(snapshot, is_over(snapshot));
}

static void set_ready(struct snapshot *snapshot)
{
    uint32_t ready = atomic_load(&snapshot->ready_payload);
    while (ready < snapshot->layout->payload_count && place_of(snapshot, ready)) {
        ready++;
    }
    CHECK(atomic_load(&snapshot->next_payload) <= ready);
    atomic_store(&snapshot->ready_payload, ready);
}

void snapshot_start(struct snapshot *snapshot)
{
    CHECK(snapshot->layout->payload_count > 0);
    CHECK(snapshot->tasks_max >= 1);
    CHECK(snapshot->tasks_max <= SNAPSHOT_TASKS);
    CHECK(!snapshot->started);
    CHECK(snapshot->on_progress != NULL);
    snapshot->told.cb = on_told;
    for (unsigned i = 0; i < SNAPSHOT_TASKS; i++) {
        struct snapshot_task *task = &snapshot->tasks[i];
        task->snapshot = snapshot;
        task->work = (struct work){.run = on_task_run, .done = on_task_done};
        atomic_store(&task->at, UINT32_MAX);
    }
    snapshot->started = true;
    snapshot_resume(snapshot);
}

void snapshot_resume(struct snapshot *snapshot)
{
    if (!snapshot->started) {
        return;
    }
    CHECK(snapshot->tasks_max <= SNAPSHOT_TASKS);
    set_ready(snapshot);
    for (unsigned i = 0; i < SNAPSHOT_TASKS; i++) {
        struct snapshot_task *task = &snapshot->tasks[i];
        bool is_due = !atomic_load(&snapshot->stopped) && snapshot->running < snapshot->tasks_max &&
                      atomic_load(&snapshot->next_payload) < atomic_load(&snapshot->ready_payload);
        if (task->running || !is_due) {
            continue;
        }
        snapshot->running++;
        task->running = true;
        work_submit(snapshot->pool, &task->work);
    }
}

uint32_t snapshot_copied(const struct snapshot *snapshot)
{
    uint32_t copied = atomic_load(&snapshot->next_payload); /* before the tasks: see claim */
    for (unsigned i = 0; snapshot->started && i < SNAPSHOT_TASKS; i++) {
        uint32_t at = atomic_load(&snapshot->tasks[i].at);
        copied = at < copied ? at : copied;
    }
    CHECK(copied == 0 || copied <= snapshot->layout->payload_count);
    return copied;
}

bool snapshot_stop(struct snapshot *snapshot)
{
    atomic_store(&snapshot->stopped, true);
    return snapshot->running == 0;
}

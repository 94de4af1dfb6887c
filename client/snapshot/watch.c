/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests of the sources before the copy and of the copies after it, by piece. Memory with strides
 * is gathered first, as the copy will gather it, so that both digests are of the same bytes. If a
 * digest cannot be taken for want of memory, the piece counts as changed: the save then fails
 * rather than pass unchecked.
 */
#include "snapshot/watch.h"

#include "base/check.h"
#include "snapshot/snapshot.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 64, SMALL_BYTES = 4 << 10, STRIDE_BYTES = 64 << 10, LINES_MIN = 8, LOT = 64 };
enum { TASK_BYTES = 32 << 20 };

static uint64_t fold(size_t bytes, const uint8_t *data)
{
    struct xxh128 digest = xxh3_128(bytes, data);
    uint64_t low;
    memcpy(&low, digest.bytes, sizeof low);
    return low;
}

/* Reads one line of each stride, and not always at the same offset in it. */
static uint64_t sample(size_t bytes, const uint8_t *data)
{
    uint8_t lines[LOT * LINE_BYTES];
    size_t stride = min_u64(STRIDE_BYTES, bytes / LINES_MIN), filled = 0;
    uint64_t digest = 0;
    CHECK(stride >= LINE_BYTES);
    for (size_t at = 0, i = 0; at + LINE_BYTES <= bytes; at += stride, i++) {
        size_t room = min_u64(stride, bytes - at) - LINE_BYTES;
        size_t shift = room > 0 ? (i * 40503u * LINE_BYTES) % (room + 1) : 0;
        memcpy(lines + filled, data + at + shift, LINE_BYTES);
        filled += LINE_BYTES;
        if (filled == sizeof lines) {
            digest = digest * 31 + fold(filled, lines);
            filled = 0;
        }
        if (bytes - at < stride + LINE_BYTES) {
            break;
        }
    }
    return digest * 31 + fold(filled, lines);
}

uint64_t watch_digest(enum watch_kind kind, size_t bytes, const uint8_t *data)
{
    CHECK(kind != WATCH_NONE);
    return kind == WATCH_FULL || bytes <= SMALL_BYTES ? fold(bytes, data) : sample(bytes, data);
}

/* Digests the source of one piece. Returns false if there is no memory to gather it. */
static bool digest_source(const struct watch *watch, const struct layout_piece *piece,
                          uint64_t *ret)
{
    if (piece->tensor & LAYOUT_BLOB) {
        *ret = 0; /* our own copy, which does not change */
        return true;
    }
    const struct registered_box *box = &watch->set->tensors[piece->tensor].boxes[piece->box];
    if (box->contiguous && watch->set->tensors[piece->tensor].device == 0) {
        *ret = watch_digest(watch->kind, piece->bytes, box->data + piece->source);
        return true;
    }
    uint8_t *gathered = malloc(piece->bytes);
    if (!gathered) {
        return false;
    }
    struct diag diag = DIAG_INIT;
    bool is_there = snapshot_copy_piece(watch->set, piece, watch->after, gathered, &diag) == 0;
    if (is_there) {
        *ret = watch_digest(watch->kind, piece->bytes, gathered);
    }
    free(gathered);
    return is_there; /* the copy meets the same failure, and names it */
}

static void note_changed(struct watch *watch, uint32_t piece)
{
    uint32_t none = 0;
    /* The first one counts. */
    (void)atomic_compare_exchange_strong(&watch->changed, &none, piece + 1);
}

/* Takes the digests of the sources of a task's payloads. Runs on a worker. */
static void on_run(struct work *work)
{
    const struct watch_task *task = container_of(work, struct watch_task, work);
    struct watch *watch = task->watch;
    for (uint32_t p = 0; p < task->payload_count; p++) {
        const struct layout_payload *payload = &watch->layout->payloads[task->payload_first + p];
        for (uint32_t i = 0; i < payload->piece_count; i++) {
            uint32_t idx = payload->piece_first + i;
            if (!digest_source(watch, &watch->layout->pieces[idx], &watch->digests[idx])) {
                note_changed(watch, idx);
            }
        }
    }
}

/* Hands the next payloads to a worker. Returns false if none is left. */
static bool start_task(struct watch *watch, struct watch_task *task)
{
    const struct layout *layout = watch->layout;
    uint64_t bytes = 0;
    task->payload_first = watch->next_payload;
    task->payload_count = 0;
    while (watch->next_payload < layout->payload_count && bytes < TASK_BYTES) {
        bytes += layout->payloads[watch->next_payload].bytes;
        watch->next_payload++;
        task->payload_count++;
    }
    if (task->payload_count == 0) {
        return false;
    }
    CHECK(watch->running < WATCH_TASKS);
    CHECK(watch->next_payload <= layout->payload_count);
    watch->running++;
    work_submit(watch->pool, &task->work);
    return true;
}

static void on_task_done(struct work *work)
{
    struct watch_task *task = container_of(work, struct watch_task, work);
    struct watch *watch = task->watch;
    CHECK(watch->running > 0);
    watch->running--;
    if (!start_task(watch, task) && watch->running == 0) {
        watch->on_done(watch);
    }
}

void watch_start(struct watch *watch)
{
    CHECK(watch->layout->eager_payload_count < watch->layout->payload_count);
    CHECK(watch->running == 0);
    CHECK(watch->on_done != NULL);
    watch->next_payload = watch->layout->eager_payload_count;
    for (unsigned i = 0; i < WATCH_TASKS; i++) {
        struct watch_task *task = &watch->tasks[i];
        *task = (struct watch_task){.watch = watch, .work = {.run = on_run, .done = on_task_done}};
        if (!start_task(watch, task)) {
            break;
        }
    }
}

void watch_stop(struct watch *watch) { watch->next_payload = watch->layout->payload_count; }

void watch_compare(struct watch *watch, uint32_t payload_idx, const uint8_t *copy)
{
    const struct layout_payload *payload = &watch->layout->payloads[payload_idx];
    if (payload_idx < watch->layout->eager_payload_count) {
        return;
    }
    for (uint32_t i = 0; i < payload->piece_count; i++) {
        uint32_t idx = payload->piece_first + i;
        const struct layout_piece *piece = &watch->layout->pieces[idx];
        if (!(piece->tensor & LAYOUT_BLOB) &&
            watch_digest(watch->kind, piece->bytes, copy + piece->at) != watch->digests[idx]) {
            note_changed(watch, idx);
        }
    }
}

const char *watch_changed(const struct watch *watch)
{
    uint32_t changed = atomic_load(&watch->changed);
    CHECK(changed == 0 || changed <= watch->layout->piece_count);
    return changed == 0 ? NULL
                        : watch->set->tensors[watch->layout->pieces[changed - 1].tensor].name;
}

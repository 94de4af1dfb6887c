/* SPDX-License-Identifier: Apache-2.0
 *
 * The first half of a save: wait for the turn and for room in the arena, lay out, copy. Saves stage
 * one after the other, so that the arena has one user while it grows. Loop's thread; reserving and
 * copying on workers.
 */
#include "engine/save_private.h"

#include "base/check.h"

void save_set_staged(struct save *save, int status)
{
    save->staged = true;
    save->staged_status = status;
    save->tell_staged = true;
    loop_post(save->engine->options.loop, &save->post);
    engine_wake_stagers(save->engine);
}

static int lay_out(struct save *save, struct diag *diag)
{
    struct layout_options options = engine_layout_options(save->engine);
    int rc = layout_init(&save->layout, save->set, &options, diag);
    rc = rc != 0 ? rc : save_stream_init(save, diag);
    if (rc == 0) {
        save->laid_out = true;
        save->chunk_bytes_seen = (uint32_t)options.chunk_bytes;
        atomic_store(&save->user->total_bytes, save->layout.plain_bytes);
    }
    return rc;
}

static void on_reserve_run(struct work *work)
{
    struct save *save = container_of(work, struct save, reserve);
    save->reserve_status =
        arena_reserve(save->engine->options.arena, save->layout.extent_bytes, &save->reserve_diag);
}

static void on_reserve_done(struct work *work)
{
    struct save *save = container_of(work, struct save, reserve);
    save->reserving = false;
    if (save->reserve_status != 0) {
        save_fail(save, save->reserve_status, &save->reserve_diag);
    }
    save_wake(save);
}

/* True when the extent is there. Nobody else uses the arena while it is being reserved: we are the
 * first in the queue, and it is done only when no extent is out. */
static bool take_extent(struct save *save)
{
    struct arena *arena = save->engine->options.arena;
    uint64_t bytes = save->layout.extent_bytes;
    if (save->engine->prepare.running) {
        return false; /* the worker has the arena */
    }
    if (bytes <= arena_bytes(arena)) {
        save->extent = arena_take(arena, bytes);
        return save->extent != NULL;
    }
    if (arena_used_bytes(arena) == 0 && !save->reserving) {
        save->reserving = true;
        save->reserve = (struct work){.run = on_reserve_run, .done = on_reserve_done};
        work_submit(save->engine->options.pool, &save->reserve);
    }
    return false;
}

static bool is_first_stager(const struct save *save)
{
    list_each (node, &save->engine->saves) {
        const struct save *other = save_of_link(node);
        if (other == save) {
            return true;
        }
        if (save_is_staging(other) || other->reserving) {
            return false;
        }
    }
    return true;
}

static void on_copied(struct snapshot *snapshot, uint64_t bytes, bool done)
{
    struct save *save = container_of(snapshot, struct save, snapshot);
    atomic_fetch_add(&save->user->staged_bytes, bytes);
    save->copying = !done; /* first: fewer digests run beside a copy than after it */
    save_digest_start(save);
    if (done) {
        if (save->status == 0) {
            save_set_staged(save, 0);
        }
        save_wake(save);
    }
}

static void start_copy(struct save *save)
{
    save->copying = true;
    save->snapshot.set = save->set;
    save->snapshot.layout = &save->layout;
    save->snapshot.extent = save->extent;
    save->snapshot.pool = save->engine->options.pool;
    save->snapshot.on_progress = on_copied;
    snapshot_start(&save->snapshot);
}

enum sm_result save_on_queue(struct sm *sm)
{
    struct save *save = container_of(sm, struct save, sm);
    struct diag diag = DIAG_INIT;
    if (save->status == 0 && !save->laid_out && is_first_stager(save) &&
        save->engine->link.joined_once) {
        int rc = lay_out(save, &diag);
        if (rc != 0) {
            save_fail(save, rc, &diag);
        }
    }
    if (save->status != 0) {
        if (save->reserving) {
            return SM_WAIT;
        }
        save_move(save, SV_DRAIN);
        return SM_AGAIN;
    }
    if (!save->laid_out || save->reserving || !is_first_stager(save)) {
        return SM_WAIT;
    }
    if (save->layout.payload_count == 0) {
        save_set_staged(save, 0);
        save_move(save, SV_LINK);
        return SM_AGAIN;
    }
    if (!take_extent(save)) {
        return SM_WAIT;
    }
    start_copy(save);
    save_move(save, SV_LINK);
    return SM_AGAIN;
}

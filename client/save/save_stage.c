/* SPDX-License-Identifier: Apache-2.0
 *
 * The first half of a save: it waits for its turn and for room in the arena, is laid out, and is
 * copied. Saves stage one after the other, so that only one uses the arena while it grows. A save
 * that finds no room waits, is skipped or fails, as its policy says. A rank that does not wait
 * tells the others by opening the step and aborting it with its reason, so that all ranks end
 * alike. Loop's thread; reserving, digests and copying on workers.
 */
#include "save/save_private.h"

#include <stdio.h>

void save_set_staged(struct save *save, int status)
{
    save->staged = true;
    save->staged_status = status;
    save->tell_staged = true;
    if (save->free_ms == 0) {
        save->free_ms = loop_now_ms(save->common.engine->options.loop);
    }
    loop_post(save->common.engine->options.loop, &save->post);
    engine_wake_stagers(save->common.engine);
}

void save_times_keep(struct save *save)
{
    uint64_t now_ms = loop_now_ms(save->common.engine->options.loop);
    if (save->free_ms != 0) { /* 0 means that it was committed before it was copied */
        save->common.engine->told.blocked_ms = save->free_ms - save->common.begun_ms;
        save->common.engine->told.persist_ms = max_u64(1, now_ms - save->common.begun_ms);
    }
}

void save_times_tell(struct save *save, struct msg_open *io)
{
    struct engine *engine = save->common.engine;
    if (engine->told.persist_ms != 0) { /* kept here for a second try of this OPEN */
        save->told_blocked_ms = engine->told.blocked_ms;
        save->told_persist_ms = engine->told.persist_ms;
        engine->told.persist_ms = 0;
    }
    io->blocked_ms = save->told_blocked_ms;
    io->persist_ms = save->told_persist_ms;
}

/* Returns whether no earlier save is still staging or enlarging the arena. */
static bool is_first_stager(const struct save *save)
{
    list_each (node, &save->common.engine->saves) {
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

void save_set_released(struct save *save)
{
    if (!save->released) {
        save->released = true;
        save->free_ms = loop_now_ms(save->common.engine->options.loop);
        save->tell_released = true;
        loop_post(save->common.engine->options.loop, &save->post);
    }
}

/* --- the lazy mode --------------------------------------------------------------- */

static bool has_eager(const struct registered *set)
{
    for (size_t i = 0; i < set->tensor_count; i++) {
        if (set->tensors[i].eager) {
            return true;
        }
    }
    return false;
}

/* Tells the caller of a lazy save that it may go on, once all is done that it must wait for. */
void save_check_released(struct save *save)
{
    const struct engine_save *user = save->common.user;
    if (!user->lazy || save->released || save->common.status != 0 || save->declined.code != 0 ||
        (user->when_full != WHEN_FULL_WAIT && !save->admitted)) {
        return;
    }
    bool must_wait = user->watch != WATCH_NONE || has_eager(save->common.set);
    if (must_wait && !(save->common.chunk_bytes != 0 && save->watched &&
                       snapshot_copied(&save->snapshot) >= save->room.layout.eager_payload_count)) {
        return;
    }
    save_set_released(save);
}

void engine_save_hurry(struct engine_save *user)
{
    struct save *save = user->impl;
    if (save) {
        save->hurry = true;
        save->snapshot.tasks_max = SNAPSHOT_TASKS;
        if (save->copying && save->watched) {
            snapshot_resume(&save->snapshot);
        }
    }
}

/* --- the copy -------------------------------------------------------------------- */

static void fail_changed(struct save *save, const char *tensor)
{
    struct diag diag = DIAG_INIT;
    diag_set(&diag, CAIRN_E_DIGEST_MISMATCH,
             "step %llu: tensor '%.200s' was changed between cairn_save and CAIRN_STAGED: wait for "
             "CAIRN_STAGED before the state changes, or save it in copy mode",
             (unsigned long long)save->common.user->step, tensor);
    save_fail(save, CAIRN_E_DIGEST_MISMATCH, &diag);
}

/* A process that was told "staged" may die without losing the save. For that, "staged" waits this
 * long, beyond the copy, for the daemon's word, and no longer. Training does not wait for it. */
enum { STAGE_LAG_MS = 500 };

static void on_stage_lag(struct timer *timer)
{
    save_stage_staged(container_of(timer, struct save, stage_lag));
}

static void hand_stage(struct save *save)
{
    if (!save_way_awaits_word(&save->send)) {
        save_set_staged(save, 0);
        return;
    }
    save_set_released(save);
    save->stage_waits = true;
    timer_start(&save->stage_lag, STAGE_LAG_MS);
    engine_wake_stagers(save->common.engine); /* the copy is over, so the next save may stage */
}

void save_stage_init(struct save *save)
{
    timer_init(&save->stage_lag, save->common.engine->options.loop, on_stage_lag);
}

void save_stage_staged(struct save *save)
{
    if (save->stage_waits) {
        save->stage_waits = false;
        timer_stop(&save->stage_lag);
        save_set_staged(save, save->common.status);
    }
}

void save_stage_base(struct save *save)
{
    if (save->common.reach >= REACH_OPENED && save->common.chunk_bytes != 0 &&
        save->base.state == BASE_UNKNOWN) {
        save_base_begin(&save->base, save->base.id.term != 0 && save_way_compares(&save->send));
    }
}

/* Waits for the copy and for the digests of check_replicas, because both read the caller's
 * memory. */
void save_check_copied(struct save *save)
{
    if (save->copied && !save_check_is_reading(&save->check)) {
        save->copied = false;
        if (save->common.status == 0) {
            hand_stage(save);
        }
    }
}

/* Called when the copy has made progress. Starts digests, and fails the save if a copy has failed
 * or a tensor has changed. */
static void on_copied(struct snapshot *snapshot, uint64_t bytes, bool done)
{
    struct save *save = container_of(snapshot, struct save, snapshot);
    atomic_fetch_add(&save->common.user->staged_bytes, bytes);
    save->copying = !done; /* set first, because fewer digests run beside a copy than after it */
    save_way_prepare(&save->send);
    save_check_released(save);
    struct snapshot_task *failed = atomic_load(&snapshot->failed);
    if (failed && save->common.status == 0) {
        save_fail(save, failed->diag.code, &failed->diag);
    }
    const char *changed = watch_changed(&save->watch);
    if (changed && save->common.status == 0) {
        fail_changed(save, changed);
    }
    if (done) {
        if (save->common.status == 0 && !snapshot->stopped) {
            save->copied = true;
            save_check_copied(save);
        }
        save_wake(&save->common);
    }
}

/* Called when the digests before the copy are made, so that the copy may begin. */
static void on_watched(struct watch *watch)
{
    struct save *save = container_of(watch, struct save, watch);
    save->watched = true;
    if (save->snapshot.stopped) {
        save->copying = false;
        save_wake(&save->common);
        return;
    }
    snapshot_start(&save->snapshot);
    save_check_released(save);
}

static bool must_watch(const struct save *save)
{
    return save->common.user->lazy && save->common.user->watch != WATCH_NONE &&
           save->room.layout.eager_payload_count < save->room.layout.payload_count;
}

/* Starts the copy, or first the digests that detect changes. */
static int start_copy(struct save *save, struct diag *diag)
{
    const struct engine_save *user = save->common.user;
    struct work_pool *pool = save->common.engine->options.pool;
    struct snapshot *snapshot = &save->snapshot;
    snapshot->set = save->common.set;
    snapshot->layout = &save->room.layout;
    snapshot->after = user->after;
    snapshot->places = save->room.places;
    snapshot->loop = save->common.engine->options.loop;
    snapshot->pool = pool;
    snapshot->tasks_max = user->lazy && !save->hurry ? 1 : SNAPSHOT_TASKS;
    snapshot->on_progress = on_copied;
    if (must_watch(save)) {
        struct watch *watch = &save->watch;
        watch->kind = user->watch;
        watch->set = save->common.set;
        watch->after = user->after;
        watch->layout = &save->room.layout;
        watch->pool = pool;
        watch->on_done = on_watched;
        watch->digests = scratch_array(&save->room.scratch, save->room.layout.piece_count,
                                       sizeof *watch->digests);
        if (!watch->digests) {
            return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the digests of verify_staged");
        }
        snapshot->watch = watch;
        save->copying = true;
        watch_start(watch);
        return 0;
    }
    save->copying = true;
    save->watched = true;
    snapshot_start(snapshot);
    save_check_released(save); /* for a set without eager tensors */
    return 0;
}

void save_stage_stop(struct save *save)
{
    bool is_idle = snapshot_stop(&save->snapshot);
    if (save->copying && !save->watched) {
        watch_stop(&save->watch); /* on_watched does the rest */
    } else if (is_idle) {
        save->copying = false; /* it was resting for want of room, so on_copied is not called */
    }
}

static void on_reserve_run(struct work *work)
{
    struct save *save = container_of(work, struct save, reserve);
    save->reserve_status = arena_reserve(save->common.engine->options.arena,
                                         save_room_wanted_bytes(&save->room), &save->reserve_diag);
    engine_pin_arena(save->common.engine->options.arena, save->common.set->gpu);
}

/* Called on the loop's thread when the arena has grown, or could not. */
static void on_reserve_done(struct work *work)
{
    struct save *save = container_of(work, struct save, reserve);
    save->reserving = false;
    if (save->reserve_status != 0) {
        save_fail(save, save->reserve_status, &save->reserve_diag);
    } else {
        engine_log_arena(save->common.engine);
    }
    save_wake(&save->common);
}

static bool room_take(struct save *save)
{
    struct arena *arena = save->common.engine->options.arena;
    if (save->common.engine->prepare.running) {
        return false; /* the worker has the arena */
    }
    if (save_room_wanted_bytes(&save->room) <= arena_bytes(arena)) {
        return save_room_take(&save->room);
    }
    if (arena_used_bytes(arena) == 0 && !save->reserving) {
        save->reserving = true;
        save->reserve = (struct work){.run = on_reserve_run, .done = on_reserve_done};
        work_submit(save->common.engine->options.pool, &save->reserve);
    }
    return false;
}

static bool room_is_free(struct save *save)
{
    const struct arena *arena = save->common.engine->options.arena;
    list_each (node, &save->common.engine->saves) {
        const struct save *other = save_of_link(node);
        if (other == save) {
            break;
        }
        if (other->reserving || save_is_queued(other)) {
            return false; /* the room that there is belongs to that save */
        }
    }
    if (arena_used_bytes(arena) == 0) {
        return true;
    }
    return !save->room.waves && save->room.layout.extent_bytes <= arena_bytes(arena) &&
           save_room_take(&save->room);
}

void save_stage_more(struct save *save)
{
    if (save->room.waves && save->copying && save->common.status == 0) {
        (void)save_room_take(&save->room);
        if (save->watched) {
            snapshot_resume(&save->snapshot);
        }
    }
}

/* --- no room --------------------------------------------------------------------- */

/* Writes which saves hold the arena, and what the user can do. */
static void describe_full(const struct save *save, struct diag *diag, int code)
{
    const struct engine *engine = save->common.engine;
    char steps[160] = "";
    size_t used = 0, count = 0;
    list_each (node, &engine->saves) {
        const struct save *other = save_of_link(node);
        if (other == save) {
            break;
        }
        count++;
        if (used + 24 < sizeof steps) {
            used +=
                (size_t)snprintf(steps + used, sizeof steps - used, "%s%llu", used > 0 ? ", " : "",
                                 (unsigned long long)other->common.user->step);
        }
    }
    diag_set(diag, code,
             "rank %u has no room for step %llu, %llu bytes: %zu in flight (step %s), which hold "
             "%llu of the arena's %llu bytes%s",
             engine->options.rank, (unsigned long long)save->common.user->step,
             (unsigned long long)save->room.layout.extent_bytes, count, steps,
             (unsigned long long)arena_used_bytes(engine->options.arena),
             (unsigned long long)arena_bytes(engine->options.arena),
             code == CAIRN_E_SKIPPED ? "; skipped, as when_full says"
                                     : "; raise arena_bytes, or let when_full wait");
}

/* Declines the save for want of room. The caller hears at once, the other ranks through the
 * opening. */
static void decline(struct save *save)
{
    int code = save->common.user->when_full == WHEN_FULL_SKIP ? CAIRN_E_SKIPPED : CAIRN_E_BUSY;
    struct diag diag = DIAG_INIT;
    describe_full(save, &diag, code);
    save->common.user->refused = true;
    if (save->common.engine->options.world_size == 1 || save->common.reach >= REACH_OPENED) {
        save_fail(save, code, &diag);
        return;
    }
    save->declined = diag;
    diag_set(&save->common.user->diag, code, "%s", diag.text);
    if (sm_is(&save->sm, SV_QUEUE)) {
        save_move(save, SV_LINK); /* moves first, before other code is woken */
    }
    save_set_staged(save, code);
}

/* --- the state ------------------------------------------------------------------- */

/* Takes the save as far as its admission: it agrees on who writes what when its turn has come, is
 * laid out, and is declined if it finds no room and its policy is not to wait. */
static void lay_out_and_admit(struct save *save)
{
    struct diag diag = DIAG_INIT;
    bool at_once = save->common.user->when_full != WHEN_FULL_WAIT;
    int rc = 0;
    if (sm_is(&save->agree.sm, AG_IDLE) && save->common.engine->link.joined_once &&
        (at_once || is_first_stager(save))) {
        rc = save_agree_begin(&save->agree, &diag);
    }
    if (rc == 0 && save_agree_is_decided(&save->agree) && save->common.chunk_bytes == 0 &&
        save->common.status == 0) {
        rc = save_room_lay_out(&save->room, &save->agree.share, &diag);
        rc = rc != 0 ? rc : save_objects_lay_out(&save->send, &diag);
        if (rc == 0) {
            save_digest_init(&save->send);
            save_agree_adopt(&save->agree, &save->room.layout);
            save_stage_base(save);
        }
    }
    if (rc != 0) {
        save_fail(save, rc, &diag);
        return;
    }
    /* Agreement may be reached at once, and then this was done already, inside save_agree_begin. */
    if (save->common.chunk_bytes != 0 && !save->admitted && save->declined.code == 0 &&
        save->common.status == 0) {
        save->admitted = !at_once || save->room.layout.payload_count == 0 || room_is_free(save);
        if (!save->admitted) {
            decline(save);
        }
    }
    save_check_released(save);
}

bool save_is_before_sending(const struct save *save)
{
    return sm_is(&save->sm, SV_QUEUE) || sm_is(&save->sm, SV_LINK) || sm_is(&save->sm, SV_OPEN) ||
           sm_is(&save->sm, SV_AGREE);
}

/* Returns whether a save that waited for the verdict, or for room, can go on staging in this
 * state. */
static bool may_stage(const struct save *save)
{
    return save->common.status == 0 && save->declined.code == 0 && !save->stage_begun &&
           save_is_before_sending(save);
}

void save_stage_go(struct save *save)
{
    struct diag diag = DIAG_INIT;
    if (!may_stage(save)) {
        return;
    }
    lay_out_and_admit(save);
    if (!may_stage(save) || save->common.chunk_bytes == 0 || save->reserving ||
        !is_first_stager(save)) {
        return;
    }
    if (save->room.layout.payload_count == 0) {
        save->watched = save->stage_begun = true;
        save_check_released(save);
        save_check_begin(&save->check);
        save->copied = true;
        save_check_copied(save);
        return;
    }
    if (!room_take(save)) {
        return;
    }
    save->stage_begun = true;
    save_check_begin(&save->check);
    int rc = start_copy(save, &diag);
    if (rc != 0) {
        save_fail(save, rc, &diag);
    }
}

/* The state QUEUE: waits for the turn, for the first JOIN and for room. */
enum sm_result save_on_queue(struct sm *sm)
{
    struct save *save = container_of(sm, struct save, sm);
    save_stage_go(save);
    if (save->common.status != 0) {
        if (save->reserving) {
            return SM_WAIT;
        }
        save_move(save, SV_DRAIN);
        return SM_AGAIN;
    }
    if (save->declined.code != 0) {
        return SM_AGAIN; /* moved */
    }
    /* A save that waits for the verdict goes on to ask for it, and keeps its turn. */
    bool asks = sm_is(&save->agree.sm, AG_WAIT) && is_first_stager(save);
    if (!save->stage_begun && !asks) {
        return SM_WAIT;
    }
    save_move(save, SV_LINK);
    return SM_AGAIN;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages a save: waits for its turn, for its division and for room in the arena, and copies the
 * state there. Saves stage one after the other, so that only one uses the arena while it grows. A
 * save that must not wait for room or for a server is declined; this rank then opens the step and
 * aborts it, so that all ranks end alike. If too many declined saves wait for a server, the oldest
 * ends, and save_untold.c tells the other ranks of its step later. save_stage_private.h draws the
 * states. Invariant: the caller's memory is not read in STAGED and later. Loop's thread; reserving,
 * digests and copying on workers.
 */
#include "save/save_stage_private.h"

#include "base/check.h"

#include <stdio.h>

enum {
    STAGE_POLL_MS = 250,    /* between two questions whether the server is away */
    STAGE_OTHERS_MS = 5000, /* how long a save in flight may wait for other ranks */
    STAGE_OUTAGE_MS = 1000, /* the same while saves are skipped: none is durable since */
    STAGE_DECLINED_MAX = 16 /* saves that the other ranks have not been told of */
};

static struct save_stage *stage_of(struct sm *sm)
{
    return container_of(sm, struct save_stage, sm);
}

/* Moves, and lets the new state run at once. */
static enum sm_result move(struct save_stage *stage, unsigned state)
{
    sm_move(&stage->sm, state);
    return SM_AGAIN;
}

/* --- whose turn it is -------------------------------------------------------------- */

bool save_stage_is_staging(const struct save_stage *stage)
{
    return stage->common->status == 0 && stage->sm.state <= ST_COPY;
}

bool save_stage_has_begun(const struct save_stage *stage)
{
    return stage->sm.state >= ST_WATCH && stage->sm.state <= ST_STAGED;
}

bool save_stage_is_at_rest(const struct save_stage *stage)
{
    return !sm_is(&stage->sm, ST_RESERVE) && !sm_is(&stage->sm, ST_WATCH) &&
           !sm_is(&stage->sm, ST_COPY);
}

static const struct save_stage *stage_of_node(const struct list *node)
{
    return list_item(node, struct save_common, op.link)->stage;
}

/* Returns whether no earlier save is still staging or enlarging the arena. */
static bool is_first_stager(const struct save_stage *stage)
{
    list_each (node, &stage->common->engine->saves) {
        const struct save_stage *other = stage_of_node(node);
        if (other == stage) {
            return true;
        }
        if (save_stage_is_staging(other) || sm_is(&other->sm, ST_RESERVE)) {
            return false;
        }
    }
    return true;
}

bool save_stage_may_open(const struct save_stage *stage)
{
    bool asks = sm_is(&stage->agree->sm, AG_WAIT) && is_first_stager(stage);
    return save_stage_has_begun(stage) || sm_is(&stage->sm, ST_DECLINED) || asks;
}

/* --- released ---------------------------------------------------------------------- */

static bool has_eager(const struct registered *set)
{
    for (size_t i = 0; i < set->tensor_count; i++) {
        if (set->tensors[i].eager) {
            return true;
        }
    }
    return false;
}

/* Returns whether everything is done that the caller of a lazy save must wait for: its eager
 * tensors are copied, and digests by which changes are noticed are made. */
static bool is_free(const struct save_stage *stage)
{
    const struct save_common *common = stage->common;
    if (common->user->watch == WATCH_NONE && !has_eager(common->set)) {
        return true;
    }
    return stage->sm.state >= ST_COPY &&
           snapshot_copied(&stage->snapshot) >= stage->room->layout.eager_payload_count;
}

void save_stage_check_released(struct save_stage *stage)
{
    const struct engine_save *user = stage->common->user;
    bool is_admitted = stage->sm.state >= ST_ROOM || user->when_full == WHEN_FULL_WAIT;
    bool may_be = user->lazy && stage->common->status == 0 && stage->sm.state <= ST_STAGED;
    if (may_be && is_admitted && stage->tell->released == NEWS_NONE && is_free(stage)) {
        save_tell_released(stage->tell);
    }
}

void save_stage_hurry(struct save_stage *stage)
{
    stage->snapshot.tasks_max = SNAPSHOT_TASKS;
    if (sm_is(&stage->sm, ST_COPY)) {
        snapshot_resume(&stage->snapshot);
    }
}

/* --- TURN, AGREE: the division and the layout --------------------------------------- */

/* Writes which saves hold the arena, and what the user can do. */
static void describe_full(const struct save_stage *stage, struct diag *diag, int code)
{
    const struct engine *engine = stage->common->engine;
    char steps[160] = "";
    size_t used = 0, count = 0;
    list_each (node, &engine->saves) {
        const struct save_common *other = list_item(node, struct save_common, op.link);
        if (other == stage->common) {
            break;
        }
        count++;
        if (used + 24 < sizeof steps) {
            used += (size_t)snprintf(steps + used, sizeof steps - used, "%s%llu",
                                     used > 0 ? ", " : "", (unsigned long long)other->user->step);
        }
    }
    diag_set(diag, code,
             "rank %u has no room for step %llu, %llu bytes: %zu in flight (step %s), which hold "
             "%llu of the arena's %llu bytes%s",
             engine->options.rank, (unsigned long long)stage->common->user->step,
             (unsigned long long)stage->room->layout.extent_bytes, count, steps,
             (unsigned long long)arena_used_bytes(engine->options.arena),
             (unsigned long long)arena_bytes(engine->options.arena),
             code == CAIRN_E_SKIPPED ? "; skipped, as when_full says"
                                     : "; raise arena_bytes, or let when_full wait");
}

/* Declines the save. The caller hears at once, the other ranks through the opening, if there are
 * any and the step is not open yet. */
static void decline(struct save_stage *stage, const struct diag *why)
{
    struct save_common *common = stage->common;
    struct engine_save *user = common->user;
    CHECK(why->code != 0);
    user->refused = true;
    if (common->engine->options.world_size == 1 || common->reach >= REACH_OPENED) {
        save_tell_staged(stage->tell, why->code); /* the end may wait for a server */
        save_fail(common, why->code, why);
        return;
    }
    stage->declined = *why;
    diag_set(&user->diag, why->code, "%s", why->text);
    sm_move(&stage->sm, ST_DECLINED);
}

static void decline_for_room(struct save_stage *stage)
{
    bool skips = stage->common->user->when_full == WHEN_FULL_SKIP;
    struct diag diag = DIAG_INIT;
    describe_full(stage, &diag, skips ? CAIRN_E_SKIPPED : CAIRN_E_BUSY);
    decline(stage, &diag);
}

/* Called on entering DECLINED: the saves behind have their turn. */
static void enter_declined(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    save_tell_staged(stage->tell, stage->declined.code);
    engine_wake_stagers(stage->common->engine);
}

/* Waits for the first JOIN, and for the turn. A save that does not wait for room finds out at once
 * whether there is any, and a refusal waits for nothing. */
static enum sm_result on_turn(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    const struct save_common *common = stage->common;
    struct diag diag = DIAG_INIT;
    if (save_is_over(common)) {
        return move(stage, ST_OVER);
    }
    if (common->user->refusal.code != 0) {
        decline(stage, &common->user->refusal);
        return SM_AGAIN;
    }
    bool at_once = common->user->when_full != WHEN_FULL_WAIT;
    if (!common->engine->link.joined_once || (!at_once && !is_first_stager(stage))) {
        return SM_WAIT;
    }
    sm_move(sm, ST_AGREE);
    int rc = save_agree_begin(stage->agree, &diag);
    if (rc != 0) {
        save_fail(stage->common, rc, &diag);
    }
    return SM_AGAIN;
}

/* Returns whether the save could begin now, and then takes its room where that can be taken
 * already. Room that an earlier save is waiting for belongs to that save. */
static bool is_room_free(struct save_stage *stage)
{
    const struct save_common *common = stage->common;
    const struct arena *arena = common->engine->options.arena;
    struct save_room *room = stage->room;
    list_each (node, &common->engine->saves) {
        const struct save_stage *other = stage_of_node(node);
        if (other == stage) {
            break;
        }
        bool is_queued = save_stage_is_staging(other) && !save_stage_has_begun(other);
        if (sm_is(&other->sm, ST_RESERVE) || (is_queued && !other->room->extent)) {
            return false;
        }
    }
    if (arena_used_bytes(arena) == 0) {
        return true;
    }
    return !room->waves && room->layout.extent_bytes <= arena_bytes(arena) && save_room_take(room);
}

/* Waits for the division. Then the save is laid out, and declined if it finds no room and its
 * policy is not to wait. */
static enum sm_result on_agree(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    struct save_common *common = stage->common;
    struct diag diag = DIAG_INIT;
    if (save_is_over(common)) {
        return move(stage, ST_OVER);
    }
    if (!save_agree_is_decided(stage->agree)) {
        return SM_WAIT;
    }
    int rc = save_room_lay_out(stage->room, &stage->agree->share, &diag);
    rc = rc != 0 ? rc : save_objects_lay_out(stage->send, &diag);
    if (rc != 0) {
        save_fail(common, rc, &diag);
        return SM_AGAIN;
    }
    save_digest_init(stage->send);
    save_agree_adopt(stage->agree, &stage->room->layout);
    bool at_once = common->user->when_full != WHEN_FULL_WAIT;
    if (at_once && stage->room->layout.payload_count > 0 && !is_room_free(stage)) {
        decline_for_room(stage);
    } else {
        sm_move(sm, ST_ROOM);
    }
    return SM_AGAIN;
}

/* --- WATCH, COPY -------------------------------------------------------------------- */

static void enter_watch(struct sm *sm) { watch_start(&stage_of(sm)->watch); }

/* Called when the digests before the copy are made, so that the copy may begin. */
static void on_watched(struct watch *watch)
{
    struct save_stage *stage = container_of(watch, struct save_stage, watch);
    CHECK(sm_is(&stage->sm, ST_WATCH));
    sm_move(&stage->sm, save_is_over(stage->common) ? ST_OVER : ST_COPY);
    save_wake(stage->common);
}

static enum sm_result on_watch(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    if (save_is_over(stage->common)) {
        watch_stop(&stage->watch); /* on_watched still comes */
    }
    return SM_WAIT;
}

static void enter_copy(struct sm *sm) { snapshot_start(&stage_of(sm)->snapshot); }

static void fail_changed(struct save_common *common, const char *tensor)
{
    struct diag diag = DIAG_INIT;
    diag_set(&diag, CAIRN_E_DIGEST_MISMATCH,
             "step %llu: tensor '%.200s' was changed between cairn_save and CAIRN_RELEASED: wait "
             "for CAIRN_RELEASED before the state changes, or save it in copy mode",
             (unsigned long long)common->user->step, tensor);
    save_fail(common, CAIRN_E_DIGEST_MISMATCH, &diag);
}

/* Called when the copy has made progress. Lets what is copied go, and fails the save if a copy has
 * failed or a tensor has changed. */
static void on_copied(struct snapshot *snapshot, uint64_t bytes, bool done)
{
    struct save_stage *stage = container_of(snapshot, struct save_stage, snapshot);
    struct save_common *common = stage->common;
    atomic_fetch_add(&common->user->staged_bytes, bytes);
    save_way_prepare(stage->send);
    save_stage_check_released(stage);
    struct snapshot_task *failed = atomic_load(&snapshot->failed);
    const char *changed = watch_changed(&stage->watch);
    if (failed) {
        save_fail(common, failed->diag.code, &failed->diag);
    } else if (changed) {
        fail_changed(common, changed);
    }
    if (done && sm_is(&stage->sm, ST_COPY) && !save_is_over(common)) {
        sm_move(&stage->sm, ST_COMPARE);
    }
    if (done) {
        save_wake(common);
    }
}

/* The copy may rest for want of room, and then on_copied does not come. */
static enum sm_result on_copy(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    if (save_is_over(stage->common) && snapshot_stop(&stage->snapshot)) {
        return move(stage, ST_OVER);
    }
    return SM_WAIT;
}

/* --- ROOM, RESERVE ------------------------------------------------------------------ */

static void on_reserve_run(struct work *work)
{
    struct save_stage *stage = container_of(work, struct save_stage, reserve);
    struct arena *arena = stage->common->engine->options.arena;
    stage->reserve_status =
        arena_reserve(arena, save_room_wanted_bytes(stage->room), &stage->reserve_diag);
    engine_pin_arena(arena, stage->common->set->gpu);
}

/* Called on the loop's thread when the arena has grown, or could not. */
static void on_reserve_done(struct work *work)
{
    struct save_stage *stage = container_of(work, struct save_stage, reserve);
    CHECK(sm_is(&stage->sm, ST_RESERVE));
    sm_move(&stage->sm, ST_ROOM);
    if (stage->reserve_status != 0) {
        save_fail(stage->common, stage->reserve_status, &stage->reserve_diag);
    } else {
        engine_log_arena(stage->common->engine);
    }
    save_wake(stage->common);
}

static void enter_reserve(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    stage->reserve = (struct work){.run = on_reserve_run, .done = on_reserve_done};
    work_submit(stage->common->engine->options.pool, &stage->reserve);
}

static bool must_watch(const struct save_stage *stage)
{
    const struct engine_save *user = stage->common->user;
    const struct layout *layout = &stage->room->layout;
    return user->lazy && user->watch != WATCH_NONE &&
           layout->eager_payload_count < layout->payload_count;
}

/* Prepares the copy and, for a save that detects changes, the digests before it. */
static int prepare_copy(struct save_stage *stage, struct diag *diag)
{
    const struct engine_save *user = stage->common->user;
    const struct engine_options *options = &stage->common->engine->options;
    struct layout *layout = &stage->room->layout;
    struct snapshot *snapshot = &stage->snapshot;
    snapshot->set = stage->common->set;
    snapshot->layout = layout;
    snapshot->after = user->after;
    snapshot->places = stage->room->places;
    snapshot->loop = options->loop;
    snapshot->pool = options->pool;
    snapshot->on_progress = on_copied;
    if (must_watch(stage)) {
        stage->watch = (struct watch){.kind = user->watch,
                                      .set = snapshot->set,
                                      .after = user->after,
                                      .layout = layout,
                                      .pool = options->pool,
                                      .on_done = on_watched};
        stage->watch.digests =
            scratch_array(&stage->room->scratch, layout->piece_count, sizeof *stage->watch.digests);
        if (!stage->watch.digests) {
            return diag_set(diag, CAIRN_E_NO_MEMORY, "no memory for the digests of verify_staged");
        }
        snapshot->watch = &stage->watch;
    }
    return 0;
}

/* Waits for the turn and for room, and lets the arena grow while nobody uses it. */
static enum sm_result on_room(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    const struct engine *engine = stage->common->engine;
    const struct arena *arena = engine->options.arena;
    struct diag diag = DIAG_INIT;
    if (save_is_over(stage->common)) {
        return move(stage, ST_OVER);
    }
    if (!is_first_stager(stage)) {
        return SM_WAIT;
    }
    if (stage->room->layout.payload_count == 0) {
        save_check_begin(stage->check);
        return move(stage, ST_COMPARE);
    }
    if (engine->prepare.running) {
        return SM_WAIT; /* the worker has the arena */
    }
    if (save_room_wanted_bytes(stage->room) > arena_bytes(arena)) {
        if (arena_used_bytes(arena) == 0) {
            sm_move(sm, ST_RESERVE);
        }
        return SM_WAIT;
    }
    if (!save_room_take(stage->room)) {
        return SM_WAIT;
    }
    int rc = prepare_copy(stage, &diag);
    if (rc != 0) {
        save_fail(stage->common, rc, &diag);
        return SM_AGAIN;
    }
    save_check_begin(stage->check);
    return move(stage, must_watch(stage) ? ST_WATCH : ST_COPY);
}

void save_stage_more(struct save_stage *stage)
{
    bool copies = sm_is(&stage->sm, ST_COPY);
    if (stage->room->waves && (copies || sm_is(&stage->sm, ST_WATCH)) &&
        stage->common->status == 0) {
        (void)save_room_take(stage->room);
        if (copies) {
            snapshot_resume(&stage->snapshot);
        }
    }
}

/* --- COMPARE, STAGED ---------------------------------------------------------------- */

/* Waits for the digests of check_replicas, because they read the caller's memory as well. */
static enum sm_result on_compare(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    if (save_is_over(stage->common)) {
        return move(stage, ST_OVER);
    }
    if (save_check_is_reading(stage->check)) {
        return SM_WAIT;
    }
    return move(stage, ST_STAGED);
}

static void enter_staged(struct sm *sm)
{
    struct save_stage *stage = stage_of(sm);
    save_tell_staged(stage->tell, stage->common->status);
    engine_wake_stagers(stage->common->engine);
}

/* --- no server ---------------------------------------------------------------------- */

/* Returns whether the caller waits for something that needs a server: for its turn, for the others'
 * lists, or for room that saves in flight hold. */
static bool is_waiting(const struct save_stage *stage)
{
    const struct snapshot *snapshot = &stage->snapshot;
    bool rests = stage->room->waves && snapshot->running == 0 &&
                 snapshot_copied(snapshot) < stage->room->layout.payload_count;
    return stage->sm.state <= ST_AGREE || (sm_is(&stage->sm, ST_ROOM) && !stage->room->extent) ||
           (sm_is(&stage->sm, ST_COPY) && rests && !save_check_is_reading(stage->check));
}

/* Returns whether the room that this save waits for is held by one that has long been waiting for
 * other ranks, which may have no way to a server. They get time to come back with the connection,
 * but only before the first save of an outage is skipped. */
static bool is_held_up(const struct save_stage *stage)
{
    const struct engine *engine = stage->common->engine;
    uint64_t now_ms = loop_now_ms(engine->options.loop);
    list_each (node, &engine->saves) {
        const struct save_common *other = list_item(node, struct save_common, op.link);
        if (other == stage->common) {
            break;
        }
        if (other->stage->room->extent) {
            bool waits = other->reach == REACH_NOTHING || other->reach == REACH_SEALED;
            uint64_t since_ms = other->reach == REACH_SEALED ? other->sealed_ms : other->begun_ms;
            return waits && (engine->outage ? now_ms - since_ms >= STAGE_OUTAGE_MS
                                            : now_ms - max_u64(since_ms, engine->link.turned_ms) >=
                                                  STAGE_OTHERS_MS);
        }
    }
    return false;
}

/* Ends the oldest declined save if too many wait to be told to the other ranks. Its step is noted,
 * because another rank may have kept its part and wait for this one. */
static void shorten_oldest(struct engine *engine)
{
    struct save_stage *oldest = NULL;
    uint32_t count = 0;
    list_each (node, &engine->saves) {
        struct save_stage *other = list_item(node, struct save_common, op.link)->stage;
        if (sm_is(&other->sm, ST_DECLINED) && !save_is_over(other->common) &&
            !save_untold_is_teller(other->common->user)) {
            oldest = oldest ? oldest : other;
            count++;
        }
    }
    if (count > STAGE_DECLINED_MAX && save_untold_add(oldest->common, &oldest->declined)) {
        save_fail(oldest->common, oldest->declined.code, &oldest->declined);
    }
}

static void decline_for_server(struct save_stage *stage, bool is_away)
{
    const struct link *link = &stage->common->engine->link;
    unsigned long long step = stage->common->user->step;
    struct diag diag = DIAG_INIT;
    char why[DIAG_TEXT_MAX] = "it does not answer";
    if (!is_away) {
        why[0] = '\0';
    } else if (!link_is_up(link)) {
        link_say_why(link, sizeof why, why);
    }
    diag_set(&diag, CAIRN_E_SKIPPED, "step %llu was skipped because %s (rank %u)%s%.250s", step,
             is_away ? "the server is away"
                     : "the save before it waits for other ranks, and a rank cannot reach the "
                       "server, or is late",
             stage->common->engine->options.rank, is_away ? ": " : "", why);
    stage->common->engine->outage = true;
    decline(stage, &diag);
    shorten_oldest(stage->common->engine);
}

/* Lets the caller go on if it waits and no server answers. A connection on which nothing comes is
 * looked at twice, because this process itself may have stood still. */
static void lose_patience(struct save_stage *stage, bool has_waited)
{
    const struct save_common *common = stage->common;
    struct link *link = &common->engine->link;
    if (stage->sm.running || common->engine->options.when_down == WHEN_DOWN_WAIT ||
        save_is_over(common) || stage->sm.state > ST_COPY) {
        return;
    }
    bool is_away = link_is_away(link) && (has_waited || !link_is_up(link));
    bool is_alone = common->engine->options.world_size == 1;
    if (is_waiting(stage) && (is_away || (!is_alone && is_held_up(stage)))) {
        decline_for_server(stage, is_away);
    } else if (!timer_is_active(&stage->patience)) {
        timer_start(&stage->patience, STAGE_POLL_MS);
    }
}

static void on_patience(struct timer *timer)
{
    struct save_stage *stage = container_of(timer, struct save_stage, patience);
    lose_patience(stage, true);
    save_wake(stage->common);
}

/* --- the machine -------------------------------------------------------------------- */

static const struct sm_state stage_table[] = {
    [ST_TURN] = {"turn", on_turn, SM_TO(ST_AGREE) | SM_TO(ST_DECLINED) | SM_TO(ST_OVER), 0},
    [ST_AGREE] = {"agree", on_agree, SM_TO(ST_ROOM) | SM_TO(ST_DECLINED) | SM_TO(ST_OVER), 0},
    [ST_ROOM] = {"room", on_room,
                 SM_TO(ST_RESERVE) | SM_TO(ST_WATCH) | SM_TO(ST_COPY) | SM_TO(ST_COMPARE) |
                     SM_TO(ST_DECLINED) | SM_TO(ST_OVER),
                 0},
    [ST_RESERVE] = {"reserve", NULL, SM_TO(ST_ROOM), 0, enter_reserve},
    [ST_WATCH] = {"watch", on_watch, SM_TO(ST_COPY) | SM_TO(ST_OVER), 0, enter_watch},
    [ST_COPY] = {"copy", on_copy, SM_TO(ST_COMPARE) | SM_TO(ST_DECLINED) | SM_TO(ST_OVER), 0,
                 enter_copy},
    [ST_COMPARE] = {"compare", on_compare, SM_TO(ST_STAGED) | SM_TO(ST_OVER), 0},
    [ST_STAGED] = {"staged", NULL, 0, SM_FINAL, enter_staged},
    [ST_DECLINED] = {"declined", NULL, 0, SM_FINAL, enter_declined},
    [ST_OVER] = {"over", NULL, 0, SM_FINAL},
};

/* CHECKs what is true of staging in the state that it has just moved to. */
static void check_stage(const struct sm *sm)
{
    const struct save_stage *stage = container_of(sm, struct save_stage, sm);
    bool has_layout = sm->state >= ST_ROOM && sm->state < ST_DECLINED;
    CHECK(!has_layout || stage->room->places != NULL);
    CHECK(!has_layout || stage->common->chunk_bytes != 0);
    CHECK((sm->state != ST_WATCH && sm->state != ST_COPY) || stage->room->placed > 0);
    CHECK((sm->state != ST_STAGED && sm->state != ST_DECLINED) ||
          !save_check_is_reading(stage->check));
    CHECK((sm->state == ST_DECLINED) == (stage->declined.code != 0));
    CHECK(sm->state != ST_OVER || save_is_over(stage->common));
}

void save_stage_init(struct save_stage *stage, struct save_check *check, struct save_send *send,
                     struct save_tell *tell)
{
    struct save_common *common = send->common;
    *stage = (struct save_stage){.common = common,
                                 .agree = check->agree,
                                 .check = check,
                                 .room = send->room,
                                 .send = send,
                                 .tell = tell};
    common->stage = stage;
    send->snapshot = &stage->snapshot;
    stage->snapshot.tasks_max = common->user->lazy ? 1 : SNAPSHOT_TASKS;
    timer_init(&stage->patience, common->engine->options.loop, on_patience);
    sm_init(&stage->sm, stage_table, ST_TURN, "staging", common->number);
    stage->sm.invariant = check_stage;
}

void save_stage_run(struct save_stage *stage)
{
    sm_run(&stage->sm);
    lose_patience(stage, false);
    save_stage_check_released(stage);
}

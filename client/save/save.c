/* SPDX-License-Identifier: Apache-2.0
 *
 * A save, from the call to the outcome: the machine at the root, which talks with the server. This
 * file has its table, its timers, and what the engine tells it; save_open.c, save_send.c and
 * save_end.c have its states. Staging (save_stage_private.h) runs beside it: payloads that are
 * copied are digested and sent meanwhile. Invariants: an object is sent under one sequence only
 * once; before SEAL was sent the save cannot be committed, and afterwards only the server (WAIT,
 * ABORT) says what became of it. Loop's thread.
 *
 *   QUEUE -> LINK -> OPEN -> AGREE -> SEND -> PART -> SEAL -> WAIT -> DRAIN -> END
 *
 *   OPEN -> SEND              the copy has begun already
 *   OPEN -> HAVE -> SEND      the same, and an earlier connection has opened the step
 *   OPEN -> WAIT              this rank has sealed before, or the opening was aborted
 *   OPEN -> DRAIN             the step was committed before
 *   HAVE, SEND -> WAIT        the opening was aborted meanwhile
 *   PART -> SEND              an object that was described has failed
 *   SEAL -> HAVE              the server lacks an object
 *   OPEN to WAIT -> LINK      the connection is lost, or the server refuses for the moment
 *   QUEUE to OPEN -> DRAIN    a failure before OPENED
 *   LINK to WAIT -> ABORT     a failure after OPENED; then DRAIN
 *
 * QUEUE waits until staging has a reason to open the step; LINK for the connection; OPEN, HAVE,
 * SEAL, WAIT and ABORT for replies; AGREE until the copy has begun; SEND until everything is
 * durable or described; PART for workers; DRAIN until no worker and no socket touches our memory.
 * The deadline ends all states but DRAIN; ABORT has a grace of its own.
 */
#include "save/save.h"

#include "base/check.h"
#include "save/save_private.h"

#include <stdlib.h>

static struct save *save_of_op(struct engine_op *op)
{
    return container_of(op, struct save, common.op);
}

/* The state QUEUE: waits until there is a reason to open the step. */
static enum sm_result on_queue(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save->common.status != 0) {
        return save_move(save, SV_DRAIN);
    }
    if (!save_stage_may_open(&save->stage)) {
        return SM_WAIT;
    }
    return save_move(save, SV_LINK);
}

/* Where a state after OPENED goes when the connection is lost, or the save fails. */
#define SV_STOP (SM_TO(SV_LINK) | SM_TO(SV_ABORT))
static const struct sm_state save_table[] = {
    [SV_QUEUE] = {"queue", on_queue, SM_TO(SV_LINK) | SM_TO(SV_DRAIN), 0},
    [SV_LINK] = {"link", save_on_link, SM_TO(SV_OPEN) | SM_TO(SV_ABORT) | SM_TO(SV_DRAIN), 0},
    [SV_OPEN] = {"open", save_on_open,
                 SM_TO(SV_AGREE) | SM_TO(SV_HAVE) | SM_TO(SV_SEND) | SM_TO(SV_WAIT) |
                     SM_TO(SV_DRAIN) | SV_STOP,
                 0, save_enter_open},
    [SV_AGREE] = {"agree", save_on_agree, SM_TO(SV_SEND) | SV_STOP, 0},
    [SV_HAVE] = {"have", save_on_have, SM_TO(SV_SEND) | SM_TO(SV_WAIT) | SV_STOP, 0,
                 save_enter_have},
    [SV_SEND] = {"send", save_on_send, SM_TO(SV_PART) | SM_TO(SV_WAIT) | SV_STOP, 0,
                 save_enter_send},
    [SV_PART] = {"part", save_on_part, SM_TO(SV_SEAL) | SM_TO(SV_SEND) | SV_STOP, 0},
    [SV_SEAL] = {"seal", save_on_seal, SM_TO(SV_WAIT) | SM_TO(SV_HAVE) | SV_STOP, 0,
                 save_enter_seal},
    [SV_WAIT] = {"wait", save_on_wait, SM_TO(SV_DRAIN) | SV_STOP, 0, save_enter_wait},
    [SV_ABORT] = {"abort", save_on_abort, SM_TO(SV_DRAIN), 0},
    [SV_DRAIN] = {"drain", save_on_drain, SM_TO(SV_END), 0, save_enter_drain},
    [SV_END] = {"end", NULL, 0, SM_FINAL, save_enter_end},
};

/* CHECKs the invariant of a save that has just moved to another state. */
static void check_save(const struct sm *sm)
{
    const struct save *save = container_of(sm, struct save, sm);
    unsigned state = sm->state;
    bool is_open = state >= SV_AGREE && state <= SV_ABORT;
    bool sends = state >= SV_SEND && state <= SV_SEAL;
    CHECK(!is_open || save->common.reach >= REACH_OPENED);
    CHECK(!is_open || save->common.reach != REACH_DECIDED);
    CHECK(!sends || save->common.status != 0 || save_stage_has_begun(&save->stage));
    CHECK(state != SV_PART || save->send.way != NULL);
    CHECK(state != SV_SEAL || (save_part_is_made(&save->part) && save->send.slots_busy == 0));
    CHECK(state != SV_DRAIN || save_is_over(&save->common));
    CHECK(state != SV_END || save_is_drained(save));
}

/* --- timers --------------------------------------------------------------- */

/* Called at the deadline, and fails the save with TIMED_OUT, or with SKIPPED if there is no server
 * and the caller does not wait for one; what may be committed is never called skipped. The same
 * timer then bounds the grace (ABORT) and the draining, where a socket that does not take our bytes
 * loses its connection. */
static void on_timer(struct timer *timer)
{
    struct save *save = container_of(timer, struct save, timer);
    const struct link *link = &save->common.engine->link;
    struct diag diag = DIAG_INIT;
    if (sm_is(&save->sm, SV_DRAIN)) {
        if (save->send.slots_busy > 0) {
            link_reset(&save->common.engine->link, CAIRN_E_CONNECTION_LOST,
                       "the server did not take what was sent to it");
        }
        return;
    }
    if (save->common.status != 0) {
        save_wake(&save->common);
        return;
    }
    bool is_up = link_is_up(link), told = save->why.code != 0;
    bool skips = !is_up && save->common.reach < REACH_SEALED &&
                 save->common.engine->options.when_down != WHEN_DOWN_WAIT;
    int code = skips ? CAIRN_E_SKIPPED : CAIRN_E_TIMED_OUT;
    char why[DIAG_TEXT_MAX];
    link_say_why(link, sizeof why, why);
    diag_set(&diag, code, "step %llu: not durable within %llu ms (in state %s)%s%s",
             (unsigned long long)save->common.user->step,
             (unsigned long long)save->common.user->deadline_ms, sm_state_name(&save->sm),
             skips    ? "; the server is away: "
             : !is_up ? "; no connection: "
             : told   ? "; the server said last: "
                      : "",
             !is_up ? why : save->why.text);
    save_fail(&save->common, code, &diag);
}

static void on_retry(struct timer *timer)
{
    save_wake(&container_of(timer, struct save, retry)->common);
}

/* --- what the engine tells --------------------------------------------------------- */

static void on_up(struct engine_op *op)
{
    struct save *save = save_of_op(op);
    save_untold_tell(save->common.engine, save->common.set, engine_save_start);
    if (sm_is(&save->sm, SV_LINK) || sm_is(&save->sm, SV_ABORT)) {
        save_wake(&save->common);
    }
}

/* Called when the connection is lost. The save goes back to LINK, and sends the objects again that
 * are not durable. */
static void on_down(struct engine_op *op)
{
    struct save *save = save_of_op(op);
    if (save->common.reach >= REACH_OPENED && save->common.chunk_bytes != 0) {
        save_objects_down(&save->send);
    }
    save_agree_down(&save->agree);
    save_check_down(&save->check);
    save->lost = true;
    save_wake(&save->common);
}

static void fail(struct engine_op *op, int status, const struct diag *diag)
{
    save_fail(&save_of_op(op)->common, status, diag);
}

static void pump(struct engine_op *op)
{
    struct save *save = save_of_op(op);
    bool sends = sm_is(&save->sm, SV_SEND);
    if (sends && !save_way_choose(&save->send)) {
        return;
    }
    save_way_prepare(&save->send);
    if (sends) {
        save_objects_pump(&save->send);
        if (save_way_has_ended(&save->send)) {
            save_wake(&save->common);
        }
    }
}

static uint64_t unsent(const struct engine_op *op)
{
    const struct save *save = container_of(op, struct save, common.op);
    bool takes_credit = sm_is(&save->sm, SV_SEND) && save->send.way && save->send.way->takes_credit;
    return takes_credit ? save_objects_unsent(&save->send) : 0;
}

/* Saves stage in the order of their start, so that small ones do not starve a large one in
 * front. */
static bool go_on(struct engine_op *op)
{
    struct save *save = save_of_op(op);
    if (!save_stage_is_staging(&save->stage)) {
        return false;
    }
    save_stage_more(&save->stage);
    save_wake(&save->common);
    return save_stage_is_staging(&save->stage);
}

/* A save loses little before it sends, and when all is sealed. */
static bool may_move(const struct engine_op *op)
{
    const struct save *save = container_of(op, struct save, common.op);
    return save->sm.state <= SV_AGREE || sm_is(&save->sm, SV_WAIT);
}

static const struct save_events save_events = {
    .wake = save_run, .fail = save_take_failure, .free = save_free};
static const struct engine_op_ops save_op_ops = {.may_move = may_move,
                                                 .on_up = on_up,
                                                 .on_down = on_down,
                                                 .fail = fail,
                                                 .pump = pump,
                                                 .unsent = unsent,
                                                 .go_on = go_on};

/* --- the beginning --------------------------------------------------------------- */

static void init(struct save *save)
{
    struct save_common *common = &save->common;
    struct loop *loop = common->engine->options.loop;
    common->op.ops = &save_op_ops;
    common->events = &save_events;
    common->number = ++common->engine->op_count;
    save->request.ops = &save_request_ops;
    save->room.common = common;
    save->base.common = common;
    save->base.room = &save->room;
    save->send.common = common;
    save->send.room = &save->room;
    save->send.base = &save->base;
    save->send.round = 1;
    save->part.send = &save->send;
    timer_init(&save->timer, loop, on_timer);
    timer_init(&save->retry, loop, on_retry);
    save_tell_init(&save->tell, common);
    save_agree_init(&save->agree, common);
    save_check_init(&save->check, &save->agree);
    save_stage_init(&save->stage, &save->check, &save->send, &save->tell);
    sm_init(&save->sm, save_table, SV_QUEUE, "save", common->number);
    save->sm.invariant = check_save;
}

/* Refuses a second save of a step in flight, because both could mix their contents in one
 * opening. */
static int refuse_same_step(const struct engine *engine, const struct save *save, struct diag *diag)
{
    uint64_t step = save->common.user->step;
    bool is_busy = save_untold_has(engine, step);
    list_each (node, &engine->saves) {
        const struct save *other = list_item(node, struct save, common.op.link);
        is_busy |= other != save && other->common.user->step == step && !sm_is(&other->sm, SV_END);
    }
    return is_busy ? diag_set(diag, CAIRN_E_BUSY,
                              "step %llu is being saved already: wait for that save, then try "
                              "again",
                              (unsigned long long)step)
                   : 0;
}

static void on_no_memory(struct post *post)
{
    struct engine_save *user = container_of(post, struct engine_save, no_memory);
    user->on_staged(user, CAIRN_E_NO_MEMORY);
    user->on_done(user, CAIRN_E_NO_MEMORY);
}

void engine_save_start(struct engine *engine, struct engine_save *user)
{
    struct diag diag = DIAG_INIT;
    CHECK(engine->magic == ENGINE_MAGIC);
    diag_clear(&user->diag);
    if (!save_untold_is_teller(user)) {
        save_untold_tell(engine, user->set, engine_save_start); /* of saves before it */
    }
    struct save *save = calloc(1, sizeof *save);
    if (!save) {
        diag_set(&user->diag, CAIRN_E_NO_MEMORY, "no memory for the save of step %llu",
                 (unsigned long long)user->step);
        user->no_memory.cb = on_no_memory;
        loop_post(engine->options.loop, &user->no_memory);
        return;
    }
    save->common.engine = engine;
    save->common.user = user;
    save->common.set = registered_ref(user->set);
    save->common.begun_ms = loop_now_ms(engine->options.loop);
    save->common.end_ms = save->common.begun_ms + engine_cut_deadline(user->deadline_ms);
    loop_random(engine->options.loop, sizeof save->opening, &save->opening);
    save->opening |= 1; /* 0 means none */
    save->first_sequence = save->common.engine->next_sequence;
    init(save);
    user->impl = save;
    list_add_tail(&engine->saves, &save->common.op.link);
    int refused = engine_refuses(engine, &diag);
    if (refused == 0 && (engine->options.viewer || !engine->options.arena)) {
        refused = diag_set(&diag, CAIRN_E_READ_ONLY, "a read-only handle cannot save");
    }
    refused = refused != 0 ? refused : refuse_same_step(engine, save, &diag);
    if (refused != 0) {
        save_fail(&save->common, refused, &diag);
        return;
    }
    link_hurry(&engine->link);
    timer_start(&save->timer, engine_cut_deadline(user->deadline_ms));
    save_stage_check_released(&save->stage);
    if (save->tell.released == NEWS_NONE) {
        save_wake(&save->common); /* otherwise it begins after its caller has gone on */
    }
}

void engine_save_abort(struct engine_save *user)
{
    struct diag diag = DIAG_INIT;
    if (user->impl) {
        diag_set(&diag, CAIRN_E_CANCELLED, "the save of step %llu was aborted by its caller",
                 (unsigned long long)user->step);
        save_fail(&user->impl->common, CAIRN_E_CANCELLED, &diag);
    }
}

void engine_save_hurry(struct engine_save *user)
{
    if (user->impl) {
        save_stage_hurry(&user->impl->stage);
    }
}

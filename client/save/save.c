/* SPDX-License-Identifier: Apache-2.0
 *
 * A save, from the queue for the arena to the outcome. This file has the table of its machine and
 * what all states share; save_stage.c, save_open.c, save_send.c and save_end.c have the states.
 * Invariants: the caller's memory is not read after STAGED; an object is sent under one sequence
 * only once; before SEAL was sent the save cannot be committed, and afterwards only the server
 * (WAIT, ABORT) says what became of it. Loop's thread.
 *
 *   QUEUE -> LINK -> OPEN -> AGREE -> SEND -> PART -> SEAL -> WAIT --\
 *       |      ^       |-> HAVE ^                             |
 *       |      +--- a lost connection, from OPEN to WAIT      +--> DRAIN -> END
 *       +----------- ABORT (a failure after OPENED) ----------/
 *
 * The copy runs beside LINK, OPEN and SEND: payloads that are copied are digested and sent
 * meanwhile.
 *
 * QUEUE waits for its turn, for the first JOIN and for room in the arena; LINK for the connection;
 * OPEN, HAVE, SEAL, WAIT and ABORT for replies; AGREE for the verdict on who writes what, and for
 * room; SEND for grants and OBJECT_DURABLE; PART for workers; DRAIN until no worker and no socket
 * touches our memory. The deadline ends all states but DRAIN; ABORT has a grace of its own.
 */
#include "save/save.h"

#include "base/check.h"
#include "save/save_private.h"

#include <stdlib.h>

enum { SAVE_GRACE_MS_MAX = 10000 };

#define SV_STOP (SM_TO(SV_LINK) | SM_TO(SV_ABORT) | SM_TO(SV_DRAIN))
static const struct sm_state save_table[] = {
    [SV_QUEUE] = {"queue", save_on_queue, SM_TO(SV_LINK) | SM_TO(SV_DRAIN), 0},
    [SV_LINK] = {"link", save_on_link, SM_TO(SV_OPEN) | SV_STOP, 0},
    [SV_OPEN] = {"open", save_on_open,
                 SM_TO(SV_AGREE) | SM_TO(SV_HAVE) | SM_TO(SV_SEND) | SM_TO(SV_WAIT) | SV_STOP, 0},
    [SV_AGREE] = {"agree", save_on_agree, SM_TO(SV_SEND) | SV_STOP, 0},
    [SV_HAVE] = {"have", save_on_have, SM_TO(SV_SEND) | SM_TO(SV_WAIT) | SV_STOP, 0},
    [SV_SEND] = {"send", save_on_send, SM_TO(SV_PART) | SM_TO(SV_WAIT) | SV_STOP, 0,
                 save_enter_send},
    [SV_PART] = {"part", save_on_part, SM_TO(SV_SEAL) | SM_TO(SV_SEND) | SV_STOP, 0},
    [SV_SEAL] = {"seal", save_on_seal, SM_TO(SV_WAIT) | SM_TO(SV_HAVE) | SV_STOP, 0},
    [SV_WAIT] = {"wait", save_on_wait, SV_STOP, 0},
    [SV_ABORT] = {"abort", save_on_abort, SM_TO(SV_DRAIN), 0},
    [SV_DRAIN] = {"drain", save_on_drain, SM_TO(SV_END), 0, save_enter_drain},
    [SV_END] = {"end", NULL, 0, SM_FINAL, save_enter_end},
};

struct save *save_of_link(struct list *node)
{
    return list_item(node, struct save, common.op.link);
}
struct save *save_of_sm(struct sm *sm) { return container_of(sm, struct save, sm); }
static struct save *save_of_op(struct engine_op *op)
{
    return container_of(op, struct save, common.op);
}

bool save_is_queued(const struct save *save)
{
    return save->common.status == 0 && save->declined.code == 0 && !save->stage_begun &&
           !save->room.extent && save_is_before_sending(save);
}
bool save_is_staging(const struct save *save)
{
    bool before = !save->stage_begun && save->declined.code == 0 && save_is_before_sending(save);
    return save->common.status == 0 && (sm_is(&save->sm, SV_QUEUE) || before || save->copying);
}

/* CHECKs the invariant of a save that has just moved to another state. */
static void check_save(const struct sm *sm)
{
    const struct save *save = container_of(sm, struct save, sm);
    unsigned state = sm->state;
    bool is_open = state >= SV_AGREE && state <= SV_ABORT;
    CHECK(!is_open || save->common.reach >= REACH_OPENED);
    CHECK(state < SV_SEND || state > SV_SEAL || save->stage_begun);
    CHECK(state != SV_PART || save->send.way != NULL);
    CHECK(state != SV_SEAL || (save_part_is_made(&save->part) && save->send.slots_busy == 0));
    CHECK(!save->staged || save->staged_status != 0 || save->stage_begun);
    CHECK(state != SV_END || save_is_drained(save));
}

/* --- moving ---------------------------------------------------------------------- */

void save_move(struct save *save, unsigned state)
{
    link_forget(&save->common.engine->link, &save->request);
    save->answer = (struct answer){0};
    sm_move(&save->sm, state);
}

static void wake(struct save_common *common)
{
    struct save *save = container_of(common, struct save, common);
    save_check_copied(save);
    if (!save->sm.running) {
        save_stage_go(save);
    }
    sm_run(&save->sm);
}

/* Fails the save; the comment in save_machine_private.h says what this means. */
void save_fail(struct save *save, int status, const struct diag *diag)
{
    CHECK(status != 0);
    if (save_is_over(&save->common)) {
        if (status == CAIRN_E_CLOSED && sm_is(&save->sm, SV_ABORT)) {
            save->grace = true; /* closing does not wait for the network */
            save_wake(&save->common);
        }
        return;
    }
    save->common.status = status;
    diag_set(&save->common.user->diag, status, "%s", diag_text(diag, status));
    save->grace = status == CAIRN_E_CLOSED || save->common.engine->link.status != 0;
    save_stage_stop(save);
    save_stage_staged(save);
    timer_stop(&save->retry);
    timer_start(&save->timer,
                min_u64(save->common.engine->options.io_deadline_ms, SAVE_GRACE_MS_MAX));
    save_wake(&save->common);
}

/* Every state between OPEN and WAIT calls this first. Returns true if it has moved the save. */
bool save_stops(struct save *save)
{
    if (save->common.status != 0) {
        save_move(save, save->common.reach >= REACH_OPENED ? SV_ABORT : SV_DRAIN);
        return true;
    }
    if (save->lost) {
        save_move(save, SV_LINK);
        return true;
    }
    return false;
}

/* --- timers --------------------------------------------------------------- */

/* Called at the deadline, and fails the save with TIMED_OUT. The same timer then bounds the grace
 * (ABORT) and the draining, where a socket that does not take our bytes loses its connection. */
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
        save->grace = true;
        save_wake(&save->common);
        return;
    }
    bool is_up = link_is_up(link), told = save->why.code != 0;
    char why[DIAG_TEXT_MAX];
    link_say_why(link, sizeof why, why);
    diag_set(&diag, CAIRN_E_TIMED_OUT, "step %llu: not durable within %llu ms (in state %s)%s%s",
             (unsigned long long)save->common.user->step,
             (unsigned long long)save->common.user->deadline_ms, sm_state_name(&save->sm),
             !is_up ? "; no connection: "
             : told ? "; the server said last: "
                    : "",
             !is_up ? why : save->why.text);
    save_fail(save, CAIRN_E_TIMED_OUT, &diag);
}

static void on_retry(struct timer *timer)
{
    save_wake(&container_of(timer, struct save, retry)->common);
}

/* --- what the engine tells --------------------------------------------------------- */

static void on_up(struct engine_op *op)
{
    struct save *save = save_of_op(op);
    if (sm_is(&save->sm, SV_LINK) || sm_is(&save->sm, SV_ABORT)) {
        save_wake(&save->common);
    }
}

/* Called when the connection is lost. What is not durable must be sent again, from LINK on. */
static void on_down(struct engine_op *op)
{
    struct save *save = save_of_op(op);
    if (save->common.reach >= REACH_OPENED && save->common.chunk_bytes != 0) {
        save_objects_down(&save->send);
    }
    save_agree_down(&save->agree);
    save_check_down(&save->check);
    save->lost = true;
    save_stage_staged(save); /* the connection may take long to come back */
    save_wake(&save->common);
}

static void fail(struct engine_op *op, int status, const struct diag *diag)
{
    save_fail(save_of_op(op), status, diag);
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
    if (!save_is_staging(save)) {
        return false;
    }
    save_stage_more(save);
    save_wake(&save->common);
    return save_is_staging(save);
}

/* A save loses little before it sends, and when all is sealed. */
static bool may_move(const struct engine_op *op)
{
    const struct save *save = container_of(op, struct save, common.op);
    return save_is_before_sending(save) || sm_is(&save->sm, SV_WAIT);
}

static void fail_from_below(struct save_common *common, int status, const struct diag *diag)
{
    save_fail(container_of(common, struct save, common), status, diag);
}

static const struct save_events save_events = {.wake = wake, .fail = fail_from_below};
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
    struct engine *engine = save->common.engine;
    save->common.events = &save_events;
    save->request.ops = &save_request_ops;
    save->common.op.ops = &save_op_ops;
    save->post.cb = save_on_deliver;
    timer_init(&save->timer, engine->options.loop, on_timer);
    timer_init(&save->retry, engine->options.loop, on_retry);
    save_stage_init(save);
    sm_init(&save->sm, save_table, SV_QUEUE, "save", ++engine->op_count);
    save->sm.invariant = check_save;
    save->common.number = engine->op_count;
    save->room.common = &save->common;
    save_base_init(&save->base, &save->common, &save->room);
    save_objects_init(&save->send, &save->common, &save->room, &save->base);
    save_part_init(&save->part, &save->send);
    save->send.snapshot = &save->snapshot;
    save_agree_init(&save->agree, &save->common);
    save_check_init(&save->check, &save->agree);
}

/* Refuses a second save of a step in flight, because both could mix their contents in one
 * opening. */
static int refuse_same_step(const struct engine *engine, const struct save *save, struct diag *diag)
{
    list_each (node, &engine->saves) {
        const struct save *other = save_of_link(node);
        if (other != save && other->common.user->step == save->common.user->step &&
            !sm_is(&other->sm, SV_END)) {
            return diag_set(diag, CAIRN_E_BUSY,
                            "step %llu is being saved already: wait for that save, then try again",
                            (unsigned long long)save->common.user->step);
        }
    }
    return 0;
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
        save_fail(save, refused, &diag);
        return;
    }
    link_hurry(&engine->link);
    timer_start(&save->timer, engine_cut_deadline(user->deadline_ms));
    save_check_released(save);
    if (!save->tell_released) {
        save_wake(&save->common); /* otherwise it begins after its caller has gone on */
    }
}

void engine_save_abort(struct engine_save *user)
{
    struct diag diag = DIAG_INIT;
    if (user->impl) {
        diag_set(&diag, CAIRN_E_CANCELLED, "the save of step %llu was aborted by its caller",
                 (unsigned long long)user->step);
        save_fail(user->impl, CAIRN_E_CANCELLED, &diag);
    }
}

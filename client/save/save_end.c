/* SPDX-License-Identifier: Apache-2.0
 *
 * What becomes of a save. After SEAL was sent only the server's word (WAIT, ABORT) tells. Then the
 * save waits until no worker and no socket touches its memory (DRAIN), and its callers are told.
 * Loop's thread.
 */
#include "save/save_private.h"

#include "base/check.h"

#include <stdlib.h>

enum { SAVE_DRAIN_MS = 1000 };

enum sm_result save_end_committed(struct save *save)
{
    save_tell_keep_times(&save->tell);
    /* The daemon may have finished it while we were not connected. */
    atomic_store(&save->common.user->durable_bytes, atomic_load(&save->common.user->total_bytes));
    save->common.status = 0;
    diag_clear(&save->common.user->diag);
    save_part_keep(&save->part);
    save->common.reach = REACH_DECIDED;
    save->common.engine->outage = false;
    save->room.lent = false;
    return save_move(save, SV_DRAIN);
}

/* --- the truth ------------------------------------------------------------------- */

/* Takes the server's OUTCOME: the save is committed, or here is the reason why not. */
static enum sm_result outcome(struct save *save)
{
    const struct answer *answer = &save->answer;
    if (answer->outcome_state == CKPT_COMMITTED || answer->outcome_state == CKPT_FORGOTTEN) {
        return save_end_committed(save);
    }
    int code = answer->outcome_code < 0 ? answer->outcome_code : CAIRN_E_ABORTED;
    save->common.reach = REACH_DECIDED;
    save->room.lent = false;
    save->common.engine->dead.step = save->common.user->step;
    save->common.engine->dead.open_id = save->common.open_id;
    /* Our own time-out says less than what the server found at its deadline. */
    bool ours_says_less = save->common.status == 0 ||
                          (save->common.status == CAIRN_E_TIMED_OUT && code != CAIRN_E_TIMED_OUT);
    if (ours_says_less) {
        save->common.status = code;
        diag_clear(&save->common.user->diag);
        diag_set(&save->common.user->diag, code, "%s", diag_text(&answer->diag, code));
        if (code == CAIRN_E_COVERAGE && save->agree.ground == GROUND_ALONE) {
            diag_add(&save->common.user->diag,
                     "the ranks' lists differ, and this rank did not hear of the "
                     "others' in time: save again, they wait longer for each "
                     "other and gather at one server");
        }
    }
    return save_move(save, SV_DRAIN);
}

/* Called on entering WAIT: asks for the outcome. */
void save_enter_wait(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    struct msg wait = {.type = MSG_WAIT,
                       .u.wait = {.id = save->common.user->id, .open_id = save->common.open_id}};
    save_ask(save, &wait);
    save_agree_await(&save->agree);
}

/* The state WAIT: waits until the server knows the outcome. */
enum sm_result save_on_wait(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (save->answer.state != ANSWER_COME) {
        return SM_WAIT;
    }
    if (save_tries_again(save)) {
        return SM_AGAIN;
    }
    if (save_is_stuck(save)) {
        save->answer.code = CAIRN_E_READ_ONLY; /* nothing will happen before an operator comes */
    }
    return save->answer.code != 0 ? save_fail_with_answer(save, "wait for the outcome")
                                  : outcome(save);
}

/* Called when the grace is over and the server has not answered. Only a save whose seal went out
 * can have been committed. */
static enum sm_result end_unknown(struct save *save)
{
    CHECK(save->common.status != 0);
    if (save->common.reach == REACH_SEALED) {
        struct diag before = save->common.user->diag;
        diag_clear(&save->common.user->diag);
        save->common.status = diag_set(
            &save->common.user->diag, CAIRN_E_OUTCOME_UNKNOWN,
            "step %llu may or may not be committed: ask for its status; before that: %.300s",
            (unsigned long long)save->common.user->step, before.text);
    }
    return save_move(save, SV_DRAIN);
}

/* The state ABORT: tells the server that this save has failed, and takes its word on what became of
 * the save. Asks again while the grace lasts. */
enum sm_result save_on_abort(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    bool stuck = save_is_stuck(save);
    bool has_come = save->answer.state == ANSWER_COME;
    if (has_come && save->answer.code == 0 && !stuck && !save_is_refused_for_now(save)) {
        return outcome(save);
    }
    bool again = !stuck &&
                 (save_is_refused_for_now(save) || err_retry(save->answer.code) != ERR_RETRY_NEVER);
    if (has_come && again) { /* the store fails: ask again while there is time */
        timer_start(&save->retry, SAVE_RETRY_MS);
        save->answer = (struct answer){0};
    } else if (save->lost) {
        save->answer = (struct answer){0};
    }
    save->lost = false;
    if (link_is_up(&save->common.engine->link) && save->answer.state == ANSWER_NONE &&
        !timer_is_active(&save->retry)) {
        struct msg abort = {.type = MSG_ABORT,
                            .u.abort = {.id = save->common.user->id,
                                        .open_id = save->common.open_id,
                                        .code = save->common.status,
                                        .reason = save->common.user->diag.text}};
        save_ask(save, &abort);
    }
    if (save->answer.state == ANSWER_COME || !timer_is_active(&save->timer)) {
        return end_unknown(save);
    }
    return SM_WAIT;
}

/* --- the end --------------------------------------------------------------------- */

/* Called on entering DRAIN: gives up all requests. */
void save_enter_drain(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    save_objects_forget(&save->send);
    save_agree_end(&save->agree);
    save_check_end(&save->check);
    save_base_end(&save->base);
    timer_stop(&save->retry);
    /* The socket still borrows the arena, and gets a moment to let go. */
    timer_start(&save->timer, SAVE_DRAIN_MS);
}

bool save_is_drained(const struct save *save)
{
    return save_stage_is_at_rest(&save->stage) && !save_check_is_reading(&save->check) &&
           save->base.state != BASE_FETCHING && save->send.digests_running == 0 &&
           !save->part.running && save->send.slots_busy == 0;
}

/* The state DRAIN: waits until no worker and no socket touches the save's memory. */
enum sm_result save_on_drain(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    save_stage_run(&save->stage); /* a save that was committed before need not be copied */
    if (!save_is_drained(save)) {
        return SM_WAIT;
    }
    timer_stop(&save->timer);
    save_digest_fini(&save->send);
    sm_move(&save->sm, SV_END);
    return SM_WAIT;
}

/* Called on entering END: gives the arena back, and tells the caller. */
void save_enter_end(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    save_room_give(&save->room);
    save_tell_done(&save->tell);
    engine_wake_stagers(save->common.engine);
}

void save_free(struct save_common *common)
{
    struct save *save = container_of(common, struct save, common);
    CHECK(sm_is(&save->sm, SV_END));
    list_remove(&common->op.link);
    timer_stop(&save->stage.patience);
    registered_unref(common->set);
    save_base_fini(&save->base);
    save_part_fini(&save->part);
    save_agree_fini(&save->agree);
    scratch_fini(&save->room.scratch);
    layout_fini(&save->room.layout);
    free(save);
}

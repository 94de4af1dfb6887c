/* SPDX-License-Identifier: Apache-2.0
 *
 * What all states of a save share: moving, failing, and the one request of a state with its reply.
 * A reply that the state does not wait for breaks the protocol. A refusal for the moment is asked
 * again until the deadline. Any other error ends the save. Loop's thread.
 */
#include "save/save_private.h"

#include "base/check.h"

enum { SAVE_GRACE_MS_MAX = 10000 };

/* --- moving ---------------------------------------------------------------------- */

struct save *save_of_sm(struct sm *sm) { return container_of(sm, struct save, sm); }

enum sm_result save_move(struct save *save, unsigned state)
{
    link_forget(&save->common.engine->link, &save->request);
    save->answer = (struct answer){0};
    sm_move(&save->sm, state);
    return SM_AGAIN;
}

void save_find_base(struct save *save)
{
    const struct save_common *common = &save->common;
    if (common->reach >= REACH_OPENED && common->chunk_bytes != 0 && !save_is_over(common) &&
        save->base.state == BASE_UNKNOWN) {
        save_base_begin(&save->base, save->base.id.term != 0 && save_way_compares(&save->send));
    }
}

void save_run(struct save_common *common)
{
    struct save *save = container_of(common, struct save, common);
    save_stage_run(&save->stage);
    if (!save->stage.sm.running) { /* otherwise the call that runs it comes to the rest as well */
        save_find_base(save);
        sm_run(&save->sm);
    }
}

void save_take_failure(struct save_common *common, int status, const struct diag *diag)
{
    struct save *save = container_of(common, struct save, common);
    CHECK(status != 0);
    if (save_is_over(common)) {
        if (status == CAIRN_E_CLOSED && sm_is(&save->sm, SV_ABORT)) {
            timer_stop(&save->timer); /* closing does not wait for the network */
            save_run(common);
        }
        return;
    }
    common->status = status;
    diag_set(&common->user->diag, status, "%s", diag_text(diag, status));
    timer_stop(&save->retry);
    timer_stop(&save->timer);
    if (status != CAIRN_E_CLOSED && common->engine->link.status == 0) {
        timer_start(&save->timer,
                    min_u64(common->engine->options.io_deadline_ms, SAVE_GRACE_MS_MAX));
    }
    save_run(common);
}

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

/* --- asking ---------------------------------------------------------------------- */

void save_ask(struct save *save, const struct msg *msg)
{
    CHECK(save->answer.state == ANSWER_NONE);
    save->answer.state = ANSWER_ASKED;
    link_ask(&save->common.engine->link, &save->request, msg);
}

/* Returns whether OUTCOME gave no outcome: the server cannot read the record now, or the record
 * takes no update. */
static bool is_undecided(const struct answer *answer)
{
    return answer->code == 0 && answer->outcome_state == CKPT_OPEN;
}

bool save_is_stuck(const struct save *save)
{
    const struct answer *answer = &save->answer;
    int code = is_undecided(answer) ? answer->outcome_code : answer->code;
    return answer->state == ANSWER_COME && code == CAIRN_E_READ_ONLY;
}

bool save_is_refused_for_now(const struct save *save)
{
    int code = save->answer.code;
    return code == CAIRN_E_BUSY || code == CAIRN_E_SHUTTING_DOWN || code == CAIRN_E_AGAIN ||
           (is_undecided(&save->answer) && !save_is_stuck(save));
}

/* Goes back to LINK for a refusal that may pass. Returns false if the answer is none. */
bool save_tries_again(struct save *save)
{
    if (!save_is_refused_for_now(save)) {
        return false;
    }
    bool stopping = save->answer.code == CAIRN_E_SHUTTING_DOWN; /* moving clears the answer */
    save->why = save->answer.diag;
    timer_start(&save->retry, SAVE_RETRY_MS);
    save_move(save, SV_LINK);
    struct engine *engine = save->common.engine;
    if (stopping && engine->options.url.server_count > 1 && engine_has_one_op(engine)) {
        link_reset(&engine->link, CAIRN_E_CONNECTION_LOST,
                   "the server is stopping: another one of the URL is tried");
    }
    return true;
}

enum sm_result save_fail_with_answer(struct save *save, const char *what)
{
    if (save->answer.code == CAIRN_E_ABORTED && save->common.reach >= REACH_OPENED &&
        !sm_is(&save->sm, SV_WAIT)) {
        /* OUTCOME has the reason, with the code of the rank that aborted it */
        return save_move(save, SV_WAIT);
    }
    diag_add(&save->answer.diag, "%s", what);
    struct diag diag = save->answer.diag;
    save_fail(&save->common, save->answer.code, &diag);
    (void)save_stops(save); /* moves, because the save has failed */
    return SM_AGAIN;
}

/* --- replies --------------------------------------------------------------------- */

/* Takes the reply to the request of the present state into `answer`, and wakes the save. */
static int on_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    struct save *save = container_of(request, struct save, request);
    struct answer *answer = &save->answer;
    (void)frame, (void)ret_payload, (void)diag;
    if (sm_is(&save->sm, SV_SEAL) && save->send.way->told) {
        save->send.way->told(&save->send, msg);
    }
    if (msg->type == MSG_HANDED) {
        save_tell_handed(&save->tell);
        save_wake(&save->common);
        return 0; /* SEALED follows */
    }
    diag_clear(&save->why);
    if (msg->type == MSG_ERROR) {
        answer->code = engine_read_error(&msg->u.error, &answer->diag);
    } else if (msg->type == MSG_OPENED) {
        answer->opened = msg->u.opened;
        save_base_note(&save->base, &answer->opened);
    } else if (msg->type == MSG_HELD) {
        int rc = save_objects_held(&save->send, &msg->u.held, diag);
        if (rc != 0) {
            return rc;
        }
    } else if (msg->type == MSG_OUTCOME) {
        const struct msg_outcome *outcome_msg = &msg->u.outcome;
        answer->outcome_state = outcome_msg->state;
        answer->outcome_code = outcome_msg->code;
        if (outcome_msg->text && outcome_msg->text[0] != '\0') {
            diag_set(&answer->diag, outcome_msg->code < 0 ? outcome_msg->code : CAIRN_E_ABORTED,
                     "%s", outcome_msg->text);
        }
    }
    link_forget(&save->common.engine->link, request);
    answer->state = ANSWER_COME;
    save_wake(&save->common);
    return 0;
}

static void on_lost(struct request *request)
{
    struct save *save = container_of(request, struct save, request);
    save->lost = true; /* the engine then calls on_down */
}

const struct request_ops save_request_ops = {.on_reply = on_reply, .on_lost = on_lost};

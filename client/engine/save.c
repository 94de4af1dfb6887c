/* SPDX-License-Identifier: Apache-2.0
 *
 * A save, from the queue for the arena to the outcome: this file decides, save_stream.c and
 * save_part.c do. Invariants: the caller's memory is not read after STAGED; an object is sent under
 * a sequence once; before SEAL was sent the save cannot commit, after it only the server's word
 * (WAIT, ABORT) says what became of it. Loop's thread.
 *
 *   QUEUE -> LINK -> OPEN -> AGREE -> SEND -> PART -> SEAL -> WAIT --\
 *       |      ^       |-> HAVE ^                             |
 *       |      +--- a lost connection, from OPEN to WAIT      +--> DRAIN -> END
 *       +----------- ABORT (a failure after OPENED) ----------/
 *
 * The copy runs beside LINK, OPEN and SEND: what is copied is digested and sent meanwhile.
 *
 * Waits: QUEUE for its turn, JOIN, arena; PART for workers; OPEN, HAVE, SEAL, WAIT, ABORT
 * for replies; LINK for the connection; AGREE for the verdict on who writes what, and for room;
 * SEND for grants and OBJECT_DURABLE; DRAIN until no worker and no socket touches our memory. The
 * deadline ends all but DRAIN; ABORT has a grace of its own.
 */
#include "engine/save_base.h"

#include "base/check.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAVE_RETRY_MS = 200,
    SAVE_GRACE_MS_MAX = 10000,
    SAVE_SLACK_MS_MAX = 500,
    SAVE_DRAIN_MS = 1000
};

static enum sm_result on_link(struct sm *sm);
static enum sm_result on_open(struct sm *sm);
static enum sm_result on_agree(struct sm *sm);
static enum sm_result on_have(struct sm *sm);
static enum sm_result on_send(struct sm *sm);
static enum sm_result on_part(struct sm *sm);
static enum sm_result on_seal(struct sm *sm);
static enum sm_result on_wait(struct sm *sm);
static enum sm_result on_abort(struct sm *sm);
static enum sm_result on_drain(struct sm *sm);
static enum sm_result on_end(struct sm *sm);

#define SV_STOP (SM_TO(SV_LINK) | SM_TO(SV_ABORT) | SM_TO(SV_DRAIN))
static const struct sm_state save_table[] = {
    [SV_QUEUE] = {"queue", save_on_queue, SM_TO(SV_LINK) | SM_TO(SV_DRAIN), 0},
    [SV_LINK] = {"link", on_link, SM_TO(SV_OPEN) | SV_STOP, 0},
    [SV_OPEN] = {"open", on_open,
                 SM_TO(SV_AGREE) | SM_TO(SV_HAVE) | SM_TO(SV_SEND) | SM_TO(SV_WAIT) | SV_STOP, 0},
    [SV_AGREE] = {"agree", on_agree, SM_TO(SV_SEND) | SV_STOP, 0},
    [SV_HAVE] = {"have", on_have, SM_TO(SV_SEND) | SM_TO(SV_WAIT) | SV_STOP, 0},
    [SV_SEND] = {"send", on_send, SM_TO(SV_PART) | SM_TO(SV_WAIT) | SV_STOP, 0},
    [SV_PART] = {"part", on_part, SM_TO(SV_SEAL) | SM_TO(SV_SEND) | SV_STOP, 0},
    [SV_SEAL] = {"seal", on_seal, SM_TO(SV_WAIT) | SM_TO(SV_HAVE) | SV_STOP, 0},
    [SV_WAIT] = {"wait", on_wait, SV_STOP, 0},
    [SV_ABORT] = {"abort", on_abort, SM_TO(SV_DRAIN), 0},
    [SV_DRAIN] = {"drain", on_drain, SM_TO(SV_END), 0},
    [SV_END] = {"end", on_end, 0, SM_FINAL},
};

static const struct request_ops save_request_ops;

struct save *save_of_link(struct list *node) { return list_item(node, struct save, link); }
static struct save *save_of_sm(struct sm *sm) { return container_of(sm, struct save, sm); }

bool save_is_sending(const struct save *save) { return sm_is(&save->sm, SV_SEND); }
bool save_is_over(const struct save *save)
{
    return save->status != 0 || sm_is(&save->sm, SV_DRAIN) || sm_is(&save->sm, SV_END);
}
bool save_is_queued(const struct save *save)
{
    return save->status == 0 && save->declined.code == 0 && !save->stage_begun && !save->extent &&
           save_is_before_sending(save);
}
bool save_is_staging(const struct save *save)
{
    bool before = !save->stage_begun && save->declined.code == 0 && save_is_before_sending(save);
    return save->status == 0 && (sm_is(&save->sm, SV_QUEUE) || before || save->copying);
}

struct object_id save_object_id(const struct save *save, uint32_t object)
{
    return (struct object_id){.term = save->user->id.term,
                              .step = save->user->id.step,
                              .writer = save->engine->options.writer,
                              .rank = save->engine->options.rank,
                              .sequence = save->objects[object].sequence};
}

/* --- moving ---------------------------------------------------------------------- */

void save_move(struct save *save, unsigned state)
{
    link_forget(&save->engine->link, &save->request);
    save->answer = (struct answer){0};
    sm_move(&save->sm, state);
}

void save_wake(struct save *save)
{
    if (!save->sm.running) {
        save_stage_go(save);
    }
    sm_run(&save->sm);
}

/* The first failure counts. What it means for the save as a whole depends on how far it came. */
void save_fail(struct save *save, int status, const struct diag *diag)
{
    CHECK(status != 0);
    if (save->status != 0 || sm_is(&save->sm, SV_DRAIN) || sm_is(&save->sm, SV_END)) {
        if (status == CAIRN_E_CLOSED && sm_is(&save->sm, SV_ABORT)) {
            save->grace = true; /* closing waits for no network */
            save_wake(save);
        }
        return;
    }
    save->status = status;
    diag_set(&save->user->diag, status, "%s", diag_text(diag, status));
    save->grace = status == CAIRN_E_CLOSED || save->engine->link.status != 0;
    save_stage_stop(save);
    save_hand_staged(save);
    timer_stop(&save->retry);
    timer_start(&save->timer, min_u64(save->engine->options.io_deadline_ms, SAVE_GRACE_MS_MAX));
    save_wake(save);
}

/* What every state between OPEN and WAIT looks at first. True: it was moved. */
static bool is_interrupted(struct save *save)
{
    if (save->status != 0) {
        save_move(save, save->opened ? SV_ABORT : SV_DRAIN);
        return true;
    }
    if (save->lost) {
        save_move(save, SV_LINK);
        return true;
    }
    return false;
}

void save_on_up(struct save *save)
{
    if (sm_is(&save->sm, SV_LINK) || sm_is(&save->sm, SV_ABORT)) {
        save_wake(save);
    }
}

void save_on_down(struct save *save)
{
    if (save->opened && save->laid_out) {
        save_stream_down(save);
    }
    save_agree_down(save);
    save_check_down(save);
    save->lost = true;
    save_hand_staged(save); /* it may take long to come back */
    save_wake(save);
}

/* --- opening --------------------------------------------------------------------- */

static enum sm_result on_link(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    save->lost = false;
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (!link_is_up(&save->engine->link) || timer_is_active(&save->retry)) {
        return SM_WAIT;
    }
    save_move(save, SV_OPEN);
    return SM_AGAIN;
}

/* Sends once a state; the reply comes to on_reply. */
static void ask(struct save *save, const struct msg *msg)
{
    save->answer.asked = true;
    link_ask(&save->engine->link, &save->request, msg);
}

/* The server's own deadline comes a little before ours: its answer names the ranks that are
 * missing. */
static uint64_t server_deadline_ms(const struct save *save)
{
    uint64_t left_ms = engine_ms_left(save->engine, save->end_ms);
    return max_u64(1, left_ms - min_u64(left_ms / 10, SAVE_SLACK_MS_MAX));
}

static void ask_open(struct save *save)
{
    struct engine *engine = save->engine;
    const struct engine_save *user = save->user;
    bool first = engine->options.rank == 0;
    /* Rank 0 opens; the others wait for an opening that is not the one they know to be dead. */
    uint64_t dead_id = engine->dead.step == user->step ? engine->dead.open_id : 0;
    struct msg open = {.type = MSG_OPEN,
                       .u.open = {.step = user->step,
                                  .ordinal = engine->restores_done,
                                  .parent = engine->parent,
                                  .newest_seen = engine->newest_seen,
                                  .open_id = first ? save->opening : dead_id,
                                  .deadline_ms = server_deadline_ms(save),
                                  .wait_ms = server_deadline_ms(save),
                                  .list_hash = save->set->list_hash}};
    if (first) {
        open.u.open.full = user->full;
        open.u.open.metadata_bytes = user->metadata_bytes;
        open.u.open.metadata = user->metadata;
        open.u.open.tag_count = user->tag_count;
        open.u.open.tags = user->tags;
        open.u.open.metric_count = user->metric_count;
        open.u.open.metrics = user->metrics;
    }
    ask(save, &open);
}

static bool is_refused_for_now(const struct save *save)
{
    int code = save->answer.code;
    return code == CAIRN_E_BUSY || code == CAIRN_E_SHUTTING_DOWN || code == CAIRN_E_AGAIN;
}

/* Nothing else goes on over this connection, which may still be good for it. */
static bool is_alone(const struct save *save)
{
    const struct engine *engine = save->engine;
    return engine->saves.next == &save->link && engine->saves.prev == &save->link &&
           list_is_empty(&engine->restores) && list_is_empty(&engine->calls);
}

/* ERROR for the moment: again a little later. True: that was it. */
static bool is_for_the_moment(struct save *save)
{
    if (!is_refused_for_now(save)) {
        return false;
    }
    timer_start(&save->retry, SAVE_RETRY_MS);
    save_move(save, SV_LINK);
    struct engine *engine = save->engine;
    if (save->answer.code == CAIRN_E_SHUTTING_DOWN && engine->options.url.server_count > 1 &&
        is_alone(save)) {
        link_reset(&engine->link, CAIRN_E_CONNECTION_LOST,
                   "the server is stopping: another one of the URL is tried");
    }
    return true;
}

static enum sm_result fail_with_answer(struct save *save, const char *what)
{
    if (save->answer.code == CAIRN_E_ABORTED && save->opened && !sm_is(&save->sm, SV_WAIT)) {
        save_move(save, SV_WAIT); /* why it was aborted, with the code of whoever did it */
        return SM_AGAIN;
    }
    diag_add(&save->answer.diag, "%s", what);
    struct diag diag = save->answer.diag;
    save_fail(save, save->answer.code, &diag);
    (void)is_interrupted(save); /* moves: the save has failed */
    return SM_AGAIN;
}

static void end_committed(struct save *save)
{
    save->decided = true;
    /* The daemon may have finished it while we were not connected. */
    atomic_store(&save->user->durable_bytes, atomic_load(&save->user->total_bytes));
    save->status = 0;
    diag_clear(&save->user->diag);
    save_base_keep(save);
    save_move(save, SV_DRAIN);
}

/* On another connection: is it still the opening that we knew? */
static enum sm_result opened_again(struct save *save, const struct msg_opened *opened)
{
    struct diag diag = DIAG_INIT;
    if (opened->open_id != save->open_id || !ckpt_id_equal(opened->id, save->user->id)) {
        diag_set(&diag, CAIRN_E_ABORTED,
                 "step %llu was aborted while the connection was lost, and opened anew",
                 (unsigned long long)save->user->step);
        save_fail(save, CAIRN_E_ABORTED, &diag);
        (void)is_interrupted(save); /* moves: the save has failed */
        return SM_AGAIN;
    }
    unsigned next = save->stage_begun ? SV_HAVE : SV_AGREE; /* nothing was sent before the copy */
    save_move(save, opened->sealed ? SV_WAIT : next);
    return SM_AGAIN;
}

static enum sm_result opened(struct save *save)
{
    const struct msg_opened opened = save->answer.opened;
    struct diag diag = DIAG_INIT;
    if (!save->laid_out) {
        save->engine->link.joined.chunk_bytes = opened.chunk_bytes; /* it will be, for that */
    } else if (opened.chunk_bytes != save->chunk_bytes_seen) {
        save->engine->link.joined.chunk_bytes =
            opened.chunk_bytes; /* the next save is laid out for it */
        diag_set(&diag, CAIRN_E_CONFLICT,
                 "the run was created with chunks of %llu bytes meanwhile: save again",
                 (unsigned long long)opened.chunk_bytes);
        save_fail(save, CAIRN_E_CONFLICT, &diag);
    }
    if (save->opened && opened.state == CKPT_OPEN && save->status == 0) {
        save_agree_opened(save);
        save_check_go(save);
        return opened_again(save, &opened);
    }
    if (!save->opened) {
        save->user->id = opened.id;
        save->user->new_lineage = opened.new_lineage;
        save->open_id = opened.open_id;
        save->run_uuid = opened.run_uuid;
        save->opened = true;
        save->base_id = opened.state == CKPT_OPEN ? opened.base : (struct ckpt_id){0};
        save_base_begin(save);
    }
    if (save->declined.code != 0 && save->status == 0) {
        save_fail(save, save->declined.code, &save->declined); /* now that there is what to abort */
    }
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (opened.state == CKPT_COMMITTED) {
        end_committed(save); /* the same attempt saved this step before: the same content (I3) */
        return SM_AGAIN;
    }
    if (opened.state != CKPT_OPEN || opened.sealed) {
        save_move(save, SV_WAIT);
        return SM_AGAIN;
    }
    save_agree_opened(save);
    save_check_go(save);
    save_move(save, save->stage_begun ? SV_SEND : SV_AGREE);
    return SM_AGAIN;
}

static enum sm_result on_open(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (!save->answer.asked) {
        ask_open(save);
        return SM_WAIT;
    }
    if (!save->answer.come) {
        return SM_WAIT;
    }
    if (save->answer.code != 0) {
        return is_for_the_moment(save) ? SM_AGAIN : fail_with_answer(save, "open");
    }
    return opened(save);
}

/* Nothing can be sent before it is known what, and where it lies. */
static enum sm_result on_agree(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (!save->stage_begun) {
        return SM_WAIT;
    }
    save_move(save, SV_SEND);
    return SM_AGAIN;
}

static enum sm_result on_have(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (!save->answer.asked) {
        struct msg have = {.type = MSG_HAVE,
                           .u.have = {.id = save->user->id,
                                      .rank = save->engine->options.rank,
                                      .writer = save->engine->options.writer}};
        ask(save, &have);
        return SM_WAIT;
    }
    if (!save->answer.come) {
        return SM_WAIT;
    }
    if (save->answer.code != 0) {
        return is_for_the_moment(save) ? SM_AGAIN : fail_with_answer(save, "resume");
    }
    if (save->part.running) {
        return SM_WAIT; /* it reads the sequences that sending again will change */
    }
    save_move(save, SV_SEND); /* on_reply has compared */
    return SM_AGAIN;
}

/* --- sending --------------------------------------------------------------------- */

/* What is described need not be durable: the daemon sees to it. What is durable may have been
 * described, and then its digests are still to be made for the part. */
bool save_is_sent(const struct save *save)
{
    if (save->way == WAY_HAND) {
        return save_hand_is_described(save);
    }
    return save->way == WAY_SOCKET && save_stream_is_durable(save) &&
           save->digest_next == save->layout.payload_count;
}

static enum sm_result on_send(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (save->ended) {
        save_move(save, SV_WAIT); /* what became of it, and why */
        return SM_AGAIN;
    }
    if (!save_is_sent(save) && !save->answer.asked) {
        save->answer.asked = true;
        engine_pump(save->engine);
    }
    if (save->status != 0) {
        return SM_AGAIN; /* there is no way to send it */
    }
    if (!save_is_sent(save)) {
        return SM_WAIT;
    }
    save_move(save, SV_PART);
    return SM_AGAIN;
}

static enum sm_result on_part(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (save->part.running || save->slots_busy > 0 || save->digests_running > 0 ||
        !save_check_is_over(save)) {
        return SM_WAIT; /* after a resume a digest may be made that is not needed any more */
    }
    if (!save_is_sent(save)) {
        save_move(save, SV_SEND); /* an object that was described has failed */
        return SM_AGAIN;
    }
    if (!save->part.made && save->part.status == 0) {
        save_part_make(save);
        return SM_WAIT;
    }
    if (save->part.status != 0) {
        save_fail(save, save->part.status, &save->part.diag);
        return SM_AGAIN;
    }
    save_move(save, SV_SEAL);
    return SM_AGAIN;
}

static void send_seal(struct save *save)
{
    struct msg seal = {.type = MSG_SEAL,
                       .u.seal = {.id = save->user->id,
                                  .open_id = save->open_id,
                                  .part_bytes = save->part.buf.bytes,
                                  .part_sha256 = save->part.sha256}};
    save->seal_sent = true;
    save->answer.asked = true;
    if (save->way == WAY_HAND) {
        save_hand_complete(save);
        return;
    }
    link_send(&save->engine->link, &save->request, &seal);
}

static enum sm_result on_seal(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (!save->answer.come) {
        if (save->request.stream == 0) {
            save->part.sent = 0;
            link_add(&save->engine->link, &save->request);
        }
        if (!save->answer.asked && save_part_send(save)) {
            send_seal(save);
        }
        return SM_WAIT;
    }
    int code = save->answer.code;
    if (code == 0) {
        save_move(save, SV_WAIT);
        return SM_AGAIN;
    }
    if (is_for_the_moment(save)) {
        return SM_AGAIN; /* others' parts fill the server's memory: again until the deadline */
    }
    bool again = code == CAIRN_E_DIGEST_MISMATCH || code == CAIRN_E_INVALID;
    if (again && save->seal_tries++ < SAVE_TRIES) {
        save_move(save, SV_HAVE); /* what the server lacks is sent again */
        return SM_AGAIN;
    }
    engine_drop_bases(save->engine); /* the next save fetches what the server has */
    return fail_with_answer(save, "seal");
}

/* --- the truth ------------------------------------------------------------------- */

static void note_dead(struct save *save)
{
    save->engine->dead.step = save->user->step;
    save->engine->dead.open_id = save->open_id;
}

/* The server has spoken: committed, or the reason why not. */
static enum sm_result outcome(struct save *save)
{
    const struct answer *answer = &save->answer;
    if (answer->outcome_state == CKPT_COMMITTED || answer->outcome_state == CKPT_FORGOTTEN) {
        end_committed(save);
        return SM_AGAIN;
    }
    int code = answer->outcome_code < 0 ? answer->outcome_code : CAIRN_E_ABORTED;
    save->decided = answer->outcome_state != CKPT_OPEN;
    note_dead(save);
    /* Our own time-out says less than what the server found at its deadline. */
    bool ours_says_less =
        save->status == 0 || (save->status == CAIRN_E_TIMED_OUT && code != CAIRN_E_TIMED_OUT);
    if (ours_says_less) {
        save->status = code;
        diag_clear(&save->user->diag);
        diag_set(&save->user->diag, code, "%s", diag_text(&answer->diag, code));
    }
    save_move(save, SV_DRAIN);
    return SM_AGAIN;
}

static enum sm_result on_wait(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (is_interrupted(save)) {
        return SM_AGAIN;
    }
    if (!save->answer.asked) {
        struct msg wait = {.type = MSG_WAIT,
                           .u.wait = {.id = save->user->id, .open_id = save->open_id}};
        ask(save, &wait);
        return SM_WAIT;
    }
    if (!save->answer.come) {
        return SM_WAIT;
    }
    if (save->answer.code != 0) {
        return is_for_the_moment(save) ? SM_AGAIN : fail_with_answer(save, "wait for the outcome");
    }
    return outcome(save);
}

/* The grace is over and nobody told: only a save whose seal went out can have been committed. */
static void end_unknown(struct save *save)
{
    if (save->seal_sent) {
        char text[DIAG_TEXT_MAX];
        snprintf(text, sizeof text, "%s", save->user->diag.text);
        diag_clear(&save->user->diag);
        save->status = diag_set(
            &save->user->diag, CAIRN_E_OUTCOME_UNKNOWN,
            "step %llu may or may not be committed: ask for its status; before that: %.300s",
            (unsigned long long)save->user->step, text);
    }
    save_move(save, SV_DRAIN);
}

static enum sm_result on_abort(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save->answer.come && save->answer.code == 0) {
        return outcome(save);
    }
    if (save->answer.come && is_refused_for_now(save)) {
        timer_start(&save->retry, SAVE_RETRY_MS);
        save->answer = (struct answer){0};
    } else if (save->lost) {
        save->answer = (struct answer){0};
    }
    save->lost = false;
    if (link_is_up(&save->engine->link) && !save->answer.asked && !timer_is_active(&save->retry)) {
        struct msg abort = {.type = MSG_ABORT,
                            .u.abort = {.id = save->user->id,
                                        .open_id = save->open_id,
                                        .code = save->status,
                                        .reason = save->user->diag.text}};
        ask(save, &abort);
    }
    if (save->answer.come || save->grace) {
        end_unknown(save);
        return SM_AGAIN;
    }
    return SM_WAIT;
}

/* --- replies --------------------------------------------------------------------- */

static int expect(const struct save *save, const struct msg *msg, struct diag *diag)
{
    static const enum msg_type wanted[] = {[SV_OPEN] = MSG_OPENED,
                                           [SV_HAVE] = MSG_HELD,
                                           [SV_SEAL] = MSG_SEALED,
                                           [SV_WAIT] = MSG_OUTCOME,
                                           [SV_ABORT] = MSG_OUTCOME};
    if (msg->type == MSG_ERROR ||
        (msg->type == MSG_HANDED && sm_is(&save->sm, SV_SEAL) && save->way == WAY_HAND) ||
        (save->sm.state < ARRAY_LEN(wanted) && wanted[save->sm.state] == msg->type)) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_PROTOCOL, "%s while the save is in state %s", msg_name(msg->type),
                    sm_state_name(&save->sm));
}

static int on_reply(struct request *request, const struct frame *frame, const struct msg *msg,
                    void **ret_payload, struct diag *diag)
{
    struct save *save = container_of(request, struct save, request);
    struct answer *answer = &save->answer;
    (void)frame;
    (void)ret_payload;
    int rc = expect(save, msg, diag);
    if (rc != 0) {
        return rc;
    }
    if (msg->type == MSG_HANDED) {
        save_hand_staged(save);
        return 0; /* SEALED follows */
    }
    answer->come = true;
    answer->type = msg->type;
    if (msg->type == MSG_ERROR) {
        answer->code = msg->u.error.code < 0 ? msg->u.error.code : CAIRN_E_PROTOCOL;
        diag_set(&answer->diag, answer->code, "%s",
                 msg->u.error.text && msg->u.error.text[0] ? msg->u.error.text
                                                           : err_text(answer->code));
    } else if (msg->type == MSG_OPENED) {
        answer->opened = msg->u.opened;
        save_base_note_sparse(save, &answer->opened);
    } else if (msg->type == MSG_HELD) {
        save_stream_held(save, &msg->u.held);
    } else if (msg->type == MSG_OUTCOME) {
        const struct msg_outcome *outcome_msg = &msg->u.outcome;
        answer->outcome_state = outcome_msg->state;
        answer->outcome_code = outcome_msg->code;
        if (outcome_msg->text && outcome_msg->text[0] != '\0') {
            diag_set(&answer->diag, outcome_msg->code < 0 ? outcome_msg->code : CAIRN_E_ABORTED,
                     "%s", outcome_msg->text);
        }
    }
    link_forget(&save->engine->link, request);
    save_wake(save);
    return 0;
}

static void on_lost(struct request *request)
{
    struct save *save = container_of(request, struct save, request);
    save->lost = true; /* save_on_down follows */
}

static const struct request_ops save_request_ops = {.on_reply = on_reply, .on_lost = on_lost};

/* --- timers --------------------------------------------------------------- */

static void on_timer(struct timer *timer)
{
    struct save *save = container_of(timer, struct save, timer);
    const struct link *link = &save->engine->link;
    struct diag diag = DIAG_INIT;
    if (sm_is(&save->sm, SV_DRAIN)) {
        if (save->slots_busy > 0) {
            link_reset(&save->engine->link, CAIRN_E_CONNECTION_LOST,
                       "the server did not take what was sent to it");
        }
        return;
    }
    if (save->status != 0) {
        save->grace = true;
        save_wake(save);
        return;
    }
    diag_set(&diag, CAIRN_E_TIMED_OUT, "step %llu: not durable within %llu ms (in state %s)%s%s",
             (unsigned long long)save->user->step, (unsigned long long)save->user->deadline_ms,
             sm_state_name(&save->sm), link_is_up(link) ? "" : "; no connection: ",
             link_is_up(link) ? "" : diag_text(&link->diag, link->diag.code));
    save_fail(save, CAIRN_E_TIMED_OUT, &diag);
}

static void on_retry(struct timer *timer) { save_wake(container_of(timer, struct save, retry)); }

/* --- the end --------------------------------------------------------------------- */

static enum sm_result on_drain(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (!save->answer.asked) {
        save->answer.asked = true;
        save_stream_forget(save);
        save_stage_stop(save); /* one that was committed before need not be copied */
        save_agree_end(save);
        save_base_end(save);
        timer_stop(&save->retry);
        /* The socket still borrows the arena: it is given a moment. */
        timer_start(&save->timer, SAVE_DRAIN_MS);
    }
    if (save->copying || save->check.running > 0 || save->reserving || save->fetching ||
        save->digests_running > 0 || save->part.running || save->slots_busy > 0) {
        return SM_WAIT;
    }
    timer_stop(&save->timer);
    save_digest_fini(save);
    sm_move(&save->sm, SV_END);
    return SM_AGAIN;
}

static enum sm_result on_end(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (!save->tell_done) {
        save->tell_done = true;
        save_room_give(save);
        save_hand_staged(save);
        if (!save->staged) {
            save_set_staged(save, save->status);
        }
        loop_post(save->engine->options.loop, &save->post);
        engine_wake_stagers(save->engine);
    }
    return SM_WAIT;
}

static void save_free(struct save *save)
{
    list_remove(&save->link);
    registered_unref(save->set);
    save_base_fini(save);
    buf_fini(&save->part.buf);
    save_agree_fini(save);
    scratch_fini(&save->scratch);
    layout_fini(&save->layout);
    free(save);
}

static void on_deliver(struct post *post)
{
    struct save *save = container_of(post, struct save, post);
    struct engine *engine = save->engine;
    struct engine_save *user = save->user;
    bool released = save->tell_released, staged = save->tell_staged, done = save->tell_done;
    int status = save->status, staged_status = save->staged_status;
    save->tell_staged = save->tell_released = false;
    if (status != 0 && !save->named) {
        save->named = true;
        engine_name_failure(engine, user->step, &user->diag);
    }
    if (done) {
        save_free(save);
        user->impl = NULL;
    }
    if (released) {
        user->on_released(user);
    }
    if (staged) {
        user->on_staged(user, staged_status);
    }
    if (done) {
        user->on_done(user, status);
        engine_op_gone(engine);
    }
}

void save_init(struct save *save)
{
    struct engine *engine = save->engine;
    save->request.ops = &save_request_ops;
    save->post.cb = on_deliver;
    timer_init(&save->timer, engine->options.loop, on_timer);
    timer_init(&save->retry, engine->options.loop, on_retry);
    save_hand_init(save);
    sm_init(&save->sm, save_table, SV_QUEUE, "save", ++engine->op_count);
    save->number = engine->op_count;
    save_agree_init(save);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A save comes to its opening: LINK, OPEN, AGREE, HAVE, on the first connection and on every later
 * one. Rank 0 opens and the other ranks wait for its opening. After a lost connection the server
 * must name the opening that was known before, or the save has been aborted. Loop's thread.
 */
#include "save/save_private.h"

enum { SAVE_SLACK_MS_MAX = 500 };

/* The state LINK: waits for the connection, and for the pause after a refusal. */
enum sm_result save_on_link(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    save->lost = false;
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (!link_is_up(&save->common.engine->link) || timer_is_active(&save->retry)) {
        return SM_WAIT;
    }
    save_move(save, SV_OPEN);
    return SM_AGAIN;
}

/* Returns the deadline for the server, a little before ours, so that its answer, which names the
 * ranks that are missing, comes in time. */
static uint64_t server_deadline_ms(const struct save *save)
{
    uint64_t left_ms = engine_ms_left(save->common.engine, save->common.end_ms);
    return max_u64(1, left_ms - min_u64(left_ms / 10, SAVE_SLACK_MS_MAX));
}

/* Asks for the opening of this step. Rank 0's request carries the metadata, tags and metrics. */
static void ask_open(struct save *save)
{
    struct engine *engine = save->common.engine;
    const struct engine_save *user = save->common.user;
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
                                  .list_hash = save->common.set->list_hash,
                                  .full = first && user->full}};
    if (first) {
        save_times_tell(save, &open.u.open);
        open.u.open.plain_bytes = registered_state_bytes(save->common.set);
        open.u.open.metadata_bytes = user->metadata_bytes;
        open.u.open.metadata = user->metadata;
        open.u.open.tag_count = user->tag_count;
        open.u.open.tags = user->tags;
        open.u.open.metric_count = user->metric_count;
        open.u.open.metrics = user->metrics;
    }
    save_ask(save, &open);
}

/* Called when OPENED came on a later connection. Fails if this is not the opening that was known
 * before. */
static enum sm_result opened_again(struct save *save, const struct msg_opened *opened)
{
    struct diag diag = DIAG_INIT;
    if (opened->open_id != save->common.open_id ||
        !ckpt_id_equal(opened->id, save->common.user->id)) {
        diag_set(&diag, CAIRN_E_ABORTED,
                 "step %llu was aborted while the connection was lost, and opened anew",
                 (unsigned long long)save->common.user->step);
        save_fail(save, CAIRN_E_ABORTED, &diag);
        (void)save_stops(save); /* moves, because the save has failed */
        return SM_AGAIN;
    }
    unsigned next = save->stage_begun ? SV_HAVE : SV_AGREE; /* nothing was sent before the copy */
    save_move(save, opened->sealed ? SV_WAIT : next);
    return SM_AGAIN;
}

/* Called when OPENED has come. Notes the opening, or compares it with the one that was known
 * before, and moves to the next state. */
static enum sm_result opened(struct save *save)
{
    const struct msg_opened opened = save->answer.opened;
    struct diag diag = DIAG_INIT;
    if (save->common.chunk_bytes == 0) {
        save->common.engine->link.joined.chunk_bytes =
            opened.chunk_bytes; /* it will be, for that */
    } else if (opened.chunk_bytes != save->common.chunk_bytes) {
        save->common.engine->link.joined.chunk_bytes =
            opened.chunk_bytes; /* the next save is laid out for it */
        diag_set(&diag, CAIRN_E_CONFLICT,
                 "the run was created with chunks of %llu bytes meanwhile: save again",
                 (unsigned long long)opened.chunk_bytes);
        save_fail(save, CAIRN_E_CONFLICT, &diag);
    }
    if (save->common.reach >= REACH_OPENED && opened.state == CKPT_OPEN &&
        save->common.status == 0) {
        save_agree_opened(&save->agree);
        save_check_go(&save->check);
        return opened_again(save, &opened);
    }
    if (save->common.reach == REACH_NOTHING) {
        save->common.user->id = opened.id;
        save->common.user->new_lineage = opened.new_lineage;
        save->common.open_id = opened.open_id;
        save->common.run_uuid = opened.run_uuid;
        save->common.reach = REACH_OPENED;
        save_stage_base(save);
    }
    if (save->declined.code != 0 && save->common.status == 0) {
        /* Now there is an opening to abort. */
        save_fail(save, save->declined.code, &save->declined);
    }
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (opened.state == CKPT_COMMITTED) {
        save_end_committed(
            save); /* the same attempt saved this step before: the same content (I3) */
        return SM_AGAIN;
    }
    if (opened.state != CKPT_OPEN || opened.sealed) {
        save_move(save, SV_WAIT);
        return SM_AGAIN;
    }
    save_agree_opened(&save->agree);
    save_check_go(&save->check);
    save_move(save, save->stage_begun ? SV_SEND : SV_AGREE);
    return SM_AGAIN;
}

/* The state OPEN: asks for the opening and waits for OPENED. */
enum sm_result save_on_open(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
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
        return save_tries_again(save) ? SM_AGAIN : save_fail_with_answer(save, "open");
    }
    return opened(save);
}

/* Waits, because nothing can be sent before the division is known and the pieces have their
 * places. */
enum sm_result save_on_agree(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (!save->stage_begun) {
        return SM_WAIT;
    }
    save_move(save, SV_SEND);
    return SM_AGAIN;
}

/* The state HAVE: asks which objects the server holds. The reply has been compared when this goes
 * on. */
enum sm_result save_on_have(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (!save->answer.asked) {
        struct msg have = {.type = MSG_HAVE,
                           .u.have = {.id = save->common.user->id,
                                      .rank = save->common.engine->options.rank,
                                      .writer = save->common.engine->options.writer,
                                      .placed = save->send.packed,
                                      .from = save->first_sequence + 1}};
        save_ask(save, &have);
        return SM_WAIT;
    }
    if (!save->answer.come) {
        return SM_WAIT;
    }
    if (save->answer.code != 0) {
        return save_tries_again(save) ? SM_AGAIN : save_fail_with_answer(save, "resume");
    }
    if (save->part.running) {
        return SM_WAIT; /* it reads the sequences that sending again will change */
    }
    save_move(save, SV_SEND); /* on_reply has compared */
    return SM_AGAIN;
}

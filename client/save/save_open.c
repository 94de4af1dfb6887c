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
    return save_move(save, SV_OPEN);
}

/* Returns the deadline for the server, a little before ours, so that its answer, which names the
 * ranks that are missing, comes in time. */
static uint64_t server_deadline_ms(const struct save *save)
{
    uint64_t left_ms = engine_ms_left(save->common.engine, save->common.end_ms);
    return max_u64(1, left_ms - min_u64(left_ms / 10, SAVE_SLACK_MS_MAX));
}

/* Asks for the opening of this step. Rank 0's request carries the metadata, tags and metrics. */
void save_enter_open(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
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
        save_tell_times(&save->tell, &open.u.open);
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

/* Notes the opening that the server names first. On a later connection it must name the same one,
 * or the save has been aborted. */
static void note_opening(struct save *save, const struct msg_opened *opened)
{
    struct save_common *common = &save->common;
    struct diag diag = DIAG_INIT;
    if (common->reach == REACH_NOTHING) {
        common->user->id = opened->id;
        common->user->new_lineage = opened->new_lineage;
        common->open_id = opened->open_id;
        common->run_uuid = opened->run_uuid;
        common->reach = REACH_OPENED;
        save_find_base(save);
    } else if (opened->state == CKPT_OPEN && (opened->open_id != common->open_id ||
                                              !ckpt_id_equal(opened->id, common->user->id))) {
        diag_set(&diag, CAIRN_E_ABORTED,
                 "step %llu was aborted while the connection was lost, and opened anew",
                 (unsigned long long)common->user->step);
        save_fail(common, CAIRN_E_ABORTED, &diag);
    }
}

/* Called when OPENED has come. Moves to the state that the opening and this save's own progress ask
 * for. */
static enum sm_result opened(struct save *save)
{
    const struct msg_opened opened = save->answer.opened;
    struct save_common *common = &save->common;
    struct diag diag = DIAG_INIT;
    bool again = common->reach >= REACH_OPENED;
    common->engine->link.joined.chunk_bytes = opened.chunk_bytes; /* for what is laid out later */
    if (common->chunk_bytes != 0 && opened.chunk_bytes != common->chunk_bytes) {
        diag_set(&diag, CAIRN_E_CONFLICT,
                 "another process created this run while the save was being prepared, with chunks "
                 "of %llu bytes, for which this save was not laid out; save the step again",
                 (unsigned long long)opened.chunk_bytes);
        save_fail(common, CAIRN_E_CONFLICT, &diag);
    }
    note_opening(save, &opened);
    if (save->stage.declined.code != 0) { /* now there is an opening to abort */
        save_fail(common, save->stage.declined.code, &save->stage.declined);
    }
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (opened.state == CKPT_COMMITTED) {
        /* The same attempt saved this step before: the same content (I3). */
        return save_end_committed(save);
    }
    if (opened.state == CKPT_OPEN) {
        save_agree_opened(&save->agree);
        save_check_go(&save->check);
    }
    if (opened.state == CKPT_OPEN && opened.sealed) {
        common->reach = REACH_SEALED; /* by an earlier try of this step: it can be committed */
        save_tell_handed(&save->tell);
    }
    if (opened.state != CKPT_OPEN || opened.sealed) {
        return save_move(save, SV_WAIT);
    }
    if (!save_stage_has_begun(&save->stage)) {
        return save_move(save, SV_AGREE); /* nothing was sent before the copy */
    }
    return save_move(save, again ? SV_HAVE : SV_SEND);
}

/* The state OPEN: waits for OPENED. */
enum sm_result save_on_open(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (save->answer.state != ANSWER_COME) {
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
    if (!save_stage_has_begun(&save->stage)) {
        return SM_WAIT;
    }
    return save_move(save, SV_SEND);
}

/* Called on entering HAVE: asks which objects the server holds. */
void save_enter_have(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    struct msg have = {.type = MSG_HAVE,
                       .u.have = {.id = save->common.user->id,
                                  .rank = save->common.engine->options.rank,
                                  .writer = save->common.engine->options.writer,
                                  .placed = save->send.packed,
                                  .from = save->first_sequence + 1}};
    save_ask(save, &have);
}

/* The state HAVE: waits for HELD, which has been compared when this goes on. */
enum sm_result save_on_have(struct sm *sm)
{
    struct save *save = save_of_sm(sm);
    if (save_stops(save)) {
        return SM_AGAIN;
    }
    if (save->answer.state != ANSWER_COME) {
        return SM_WAIT;
    }
    if (save->answer.code != 0) {
        return save_tries_again(save) ? SM_AGAIN : save_fail_with_answer(save, "resume");
    }
    if (save->part.running) {
        return SM_WAIT; /* it reads the sequences that sending again will change */
    }
    return save_move(save, SV_SEND);
}

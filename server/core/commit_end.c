/* SPDX-License-Identifier: Apache-2.0
 *
 * The two ends of an opening. Commit appends to the chain, and from then on the checkpoint is
 * listed, for good. Abort removes the open entry and leaves the reason. Both are guarded by the
 * open entry as it was read, so at most one of them wins for an opening, and only the winner
 * reports it. Pure.
 */
#include <stdio.h>

#include "core_private.h"

#include "base/check.h"

/* Writes the tags and metrics that the save was opened with as the first version of its note. */
static void put_first_note(struct step *step, const struct entry_open *open, uint64_t seq)
{
    struct note_change change = {.tag_count = open->tag_count,
                                 .tags = open->tags,
                                 .metric_count = open->metric_count,
                                 .of_save = true};
    struct metric *metrics =
        scratch_array(step->scratch, open->metric_count + 1u, sizeof(*metrics));
    if (metrics == NULL) {
        step_fail(step, CAIRN_E_NO_MEMORY, "there is not enough memory for the note of a commit");
        return;
    }
    for (uint32_t i = 0; i < open->metric_count; i++) {
        metrics[i] = (struct metric){open->metric_names[i], open->metric_values[i]};
    }
    change.metrics = metrics;
    step->ret->u.save.note_version = step_put_note(step, seq, NULL, &change);
}

void on_commit(struct step *step)
{
    const struct event_commit *commit = &step->event->u.commit;
    const struct state_open *open = state_open_find(step->state, step->event->id);
    if (open == NULL || open->entry.open_id != commit->open_id ||
        open->id.term != step->state->newest_term) {
        step_answer_not_open(step, commit->open_id);
        return;
    }
    step_answer_open(step, open);
    if (!step->ret->u.save.all_sealed) {
        char missing[160] = "";
        state_missing_ranks(step->state, open->id, sizeof(missing), missing);
        step_fail(step, CAIRN_E_MISSING_RANKS,
                  "step %" PRIu64 " cannot be committed, because no part came from %s",
                  open->id.step, missing);
        return;
    }
    if (commit->entry.manifest_bytes == 0 || commit->entry.manifest_bytes > LIMIT_MANIFEST_BYTES) {
        step_fail(step, CAIRN_E_INVALID,
                  "a commit needs a manifest of 1 to %zu bytes, and this one has %" PRIu64,
                  (size_t)LIMIT_MANIFEST_BYTES, commit->entry.manifest_bytes);
        return;
    }
    struct entry_chain entry = commit->entry;
    entry.kind = CHAIN_COMMIT;
    entry.id = open->id;
    entry.wall_ns = step->event->wall_ns;
    entry.world_size = open->world_size;
    entry.open_id = open->entry.open_id;
    entry.base = open->entry.base;
    step_guard_newest(step);
    uint64_t seq = step_append(step, &entry);
    CHECK(seq > step->state->head.seq);
    CHECK(commit_any(step->state, entry.id) == NULL); /* I3: loading has refused such a record */
    put_first_note(step, &open->entry, seq);
    step_end_open(step, open, 0, "");
    step->ret->u.save.state = SAVE_COMMITTED;
    step->ret->u.save.seq = seq;
}

/* Checks that the caller may end the opening: only its own attempt may. The server's own reasons (a
 * deadline, a quota, garbage collection) come without a token. */
static bool may_abort(struct step *step, const struct state_open *open)
{
    static const struct token nobody;
    const struct token *asks = &step->event->u.abort.token;
    const struct state_term *term = term_of(step->state, open->id.term);
    if (token_equal(asks, &nobody) || (term != NULL && token_equal(asks, &term->entry.token))) {
        return true;
    }
    step_fail(
        step, CAIRN_E_TOKEN_MISMATCH,
        "the save of %s belongs to another attempt: only the attempt that opened it may abort it",
        ckpt_id_text(open->id).at);
    return false;
}

void on_abort(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event *event = step->event;
    const struct event_abort *abort = &event->u.abort;
    struct verdict *ret = step->ret;
    struct verdict_save *save = &ret->u.save;
    const struct state_commit *commit = commit_any(state, event->id);
    const struct state_open *open = state_open_find(state, event->id);
    const struct state_dead *dead = dead_find(state, event->id);
    if (commit != NULL) { /* too late to abort: the answer is the commit */
        step_answer_committed(step, commit);
        return;
    }
    save->open_id = abort->open_id;
    if (open == NULL || open->entry.open_id != abort->open_id) {
        bool known = open != NULL || dead != NULL ||
                     (event->id.term != 0 && event->id.term < state->newest_term);
        save->state = known ? SAVE_ABORTED : SAVE_NONE;
        ret->proven = event->id.term != 0 && event->id.term < state->newest_term;
        if (dead != NULL && dead->entry.open_id == abort->open_id) {
            ret->proven = true;
            save->dead_code = dead->entry.code;
            err_ignore(diag_set(&ret->diag, dead->entry.code, "%s",
                                dead->entry.reason)); /* the text of the answer */
        }
        return;
    }
    if (!may_abort(step, open)) {
        return;
    }
    const char *reason =
        abort->reason != NULL && abort->reason[0] != '\0' ? abort->reason : "aborted";
    char fenced[80];
    int code = abort->code != 0 ? abort->code : CAIRN_E_CANCELLED;
    if (open->id.term < state->newest_term) {
        snprintf(fenced, sizeof(fenced), "fenced: term %" PRIu64 " was granted",
                 state->newest_term);
        reason = fenced;
        code = CAIRN_E_FENCED;
    }
    step_end_open(step, open, code, reason);
    save->state = SAVE_ABORTED;
    err_ignore(diag_set(&ret->diag, code, "%s", reason)); /* the text of the answer */
}

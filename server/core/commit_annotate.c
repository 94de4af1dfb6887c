/* SPDX-License-Identifier: Apache-2.0
 *
 * Annotations: tags and metrics of a committed checkpoint. They are stored beside its manifest,
 * which never changes, under the sequence of its chain entry. Pure.
 */
#include "core_private.h"

uint64_t step_put_note(struct step *step, uint64_t seq, const struct state_commit *commit,
                       const struct note_change *change)
{
    const struct entry_note *before = commit != NULL ? commit->note : NULL;
    struct entry_note note;
    struct diag diag = DIAG_INIT;
    int status = note_apply(before, change, step->scratch, &note, &diag);
    if (status != 0) {
        step_fail(step, status, "%s", diag.text);
        return 0;
    }
    if (note.version == (before != NULL ? before->version : 0)) {
        return note.version;
    }
    note.wall_ns = step->event->wall_ns;
    entry_note_encode(&note, step_value(step));
    step_put_over(step, key_note(seq).at,
                  commit != NULL ? commit->note_raw : (struct record_value){0});
    return note.version;
}

/* Changes the note of a checkpoint. The guard on the head keeps the checkpoint committed and not
 * forgotten, and the meaning of a selector by step; `latest` depends on the health too, which is
 * guarded as well. */
void on_annotate(struct step *step)
{
    const struct event_annotate *annotate = &step->event->u.annotate;
    const struct state_commit *commit = NULL;
    struct diag diag = DIAG_INIT;
    int status = state_select(step->state, &annotate->selector, &commit, &diag);
    if (status != 0) {
        step_fail(step, status, "%s", diag.text);
        return;
    }
    step_answer_committed(step, commit);
    step->ret->proven = false; /* the commit is permanent, the annotation is not */
    step_guard_head(step);
    if (annotate->selector.kind == SELECT_LATEST) {
        step_guard_as_read(step, key_health(commit->entry.seq).at, commit->health_raw);
    }
    uint64_t version = step_put_note(step, commit->entry.seq, commit, &annotate->note);
    step->ret->u.save.note_version = version;
    if (version > (commit->note != NULL ? commit->note->version : 0)) { /* somebody uses the run */
        step_put_use(step, step->event->wall_ns, step->state->gc.cycle);
    }
}

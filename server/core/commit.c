/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry of the commit core: one event, one state, one verdict; and the two transitions that
 * need no file of their own. A verdict that refuses never carries an update. Pure.
 */
#include "core/commit.h"

#include "base/check.h"
#include "core_private.h"

static void (*const transitions[])(struct step *step) = {
#define EVENT(name, transition, answer) [EVENT_##name] = transition,
#include "core/events.def"
};

/* Checks what is true of every verdict: each update is guarded, and the parts of the answer agree.
 */
static void check_verdict(const struct step *step)
{
    const struct verdict *ret = step->ret;

    CHECK(ret->update.guard_count <= step->guard_cap);
    CHECK(ret->update.change_count <= step->change_cap);
    CHECK(step->removal_count <= ret->update.change_count);
    CHECK(ret->code <= 0);
    if (ret->code == 0 && ret->update.change_count > 0) {
        CHECK(ret->update.guard_count > 0); /* an update without a guard could undo another one */
        CHECK(step->head_change == 0 || step->head.seq > step->state->head.seq);
    }
    if (ret->answer == ANSWER_SAVE && ret->code == 0 && ret->u.save.state == SAVE_COMMITTED) {
        CHECK(ret->u.save.seq > 0);
    }
    if (ret->answer == ANSWER_MARKS && ret->u.marks.items != NULL) {
        CHECK(ret->u.marks.done_count <= ret->u.marks.count);
        CHECK(ret->u.marks.refused_count <= ret->u.marks.count - ret->u.marks.done_count);
    }
    if (ret->answer == ANSWER_RESTORE) {
        CHECK(!ret->u.restore.done || !ret->u.restore.failed);
    }
}

void commit_step(const struct run_state *state, const struct event *event, struct scratch *scratch,
                 struct verdict *ret)
{
    CHECK(scratch != NULL);
    CHECK(ret != NULL);
    struct step step = {.state = state, .event = event, .scratch = scratch, .ret = ret};
    *ret = verdict_of(event->kind);
    ret->id = event->id;
    ret->newest_term = state->newest_term;
    transitions[event->kind](&step);
    step_put_day(&step);
    check_verdict(&step);
    if (ret->code != 0) {
        ret->update = (struct record_update){0};
    }
}

void on_create(struct step *step) { step_create_run(step, &step->event->u.create); }

/* Sets the health that scrub, a reader or an operator reports. Only a report of VERIFIED raises it
 * again. */
void on_health(struct step *step)
{
    const struct event *event = step->event;
    /* A forgotten checkpoint may be undeleted, so its health counts as well. */
    const struct state_commit *commit = commit_any(step->state, event->id);
    if (commit == NULL) {
        step_fail(step, CAIRN_E_NOT_FOUND, "checkpoint %s is not in the run",
                  ckpt_id_text(event->id).at);
        return;
    }
    if (commit->reclaimed) { /* its objects may have been removed, so missing bytes are no damage */
        step_fail(step, CAIRN_E_NOT_FOUND, "checkpoint %s was reclaimed: nothing of it is left",
                  ckpt_id_text(event->id).at);
        return;
    }
    step_answer_committed(step, commit);
    step_guard_head(step);
    const struct event_health *found = &event->u.health;
    if (found->health != HEALTH_VERIFIED) {
        step_lower_health(step, commit, found->health, found->reason != NULL ? found->reason : "");
    } else if (commit->health_raw.data != NULL) {
        step_remove_as_read(step, key_health(commit->entry.seq).at, commit->health_raw);
    }
}

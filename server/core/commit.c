/* SPDX-License-Identifier: Apache-2.0
 *
 * The entry of the commit core: one event, one state, one verdict; and the two transitions that
 * need no file of their own. A verdict that refuses never carries an update. Pure.
 */
#include "core/commit.h"

#include "base/check.h"
#include "core_private.h"

static void (*const handlers[])(struct step *step) = {[EVENT_CREATE] = on_create,
                                                      [EVENT_OPEN] = on_open,
                                                      [EVENT_FIND_OPEN] = on_find_open,
                                                      [EVENT_SEAL] = on_seal,
                                                      [EVENT_COMMIT] = on_commit,
                                                      [EVENT_ABORT] = on_abort,
                                                      [EVENT_RESTORE_BEGIN] = on_restore_begin,
                                                      [EVENT_RESTORE_REPORT] = on_restore_report,
                                                      [EVENT_HEALTH] = on_health,
                                                      [EVENT_ANNOTATE] = on_annotate,
                                                      [EVENT_FORGET] = on_forget,
                                                      [EVENT_UNDELETE] = on_undelete,
                                                      [EVENT_PIN] = on_pin,
                                                      [EVENT_UNPIN] = on_pin,
                                                      [EVENT_REPAIR] = on_repair,
                                                      [EVENT_GC_CYCLE] = on_gc_cycle,
                                                      [EVENT_RECLAIM] = on_reclaim,
                                                      [EVENT_ADOPT] = on_adopt,
                                                      [EVENT_BURY] = on_bury};

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
    if (ret->code == 0 && ret->state == SAVE_COMMITTED) {
        CHECK(ret->seq > 0);
    }
    if (ret->marks != NULL) {
        CHECK(ret->done_count <= ret->mark_count);
        CHECK(ret->refused_count <= ret->mark_count - ret->done_count);
    }
    CHECK(!ret->restore_done || !ret->restore_failed);
}

void commit_step(const struct run_state *state, const struct event *event, struct scratch *scratch,
                 struct verdict *ret)
{
    CHECK(scratch != NULL);
    CHECK(ret != NULL);
    struct step step = {.state = state, .event = event, .scratch = scratch, .ret = ret};
    *ret = (struct verdict){.id = event->id, .newest_term = state->newest_term};
    CHECK((size_t)event->kind < ARRAY_LEN(handlers));
    CHECK(handlers[event->kind] != NULL);
    handlers[event->kind](&step);
    step_put_day(&step);
    check_verdict(&step);
    if (ret->code != 0) {
        ret->update = (struct record_update){0};
    }
}

void on_create(struct step *step) { step_create_run(step); }

/* Sets the health that scrub, a reader or an operator reports. Only a report of VERIFIED raises it
 * again. */
void on_health(struct step *step)
{
    const struct event *event = step->event;
    /* A forgotten checkpoint may be undeleted, so its health counts as well. */
    const struct state_commit *commit = commit_any(step->state, event->id);
    if (commit == NULL) {
        step_fail(step, CAIRN_E_NOT_FOUND, "checkpoint %" PRIu64 "@%" PRIu64 " is not in the run",
                  event->id.step, event->id.term);
        return;
    }
    if (commit->reclaimed) { /* its objects may have been removed, so missing bytes are no damage */
        step_fail(step, CAIRN_E_NOT_FOUND,
                  "checkpoint %" PRIu64 "@%" PRIu64 " was reclaimed: nothing of it is left",
                  event->id.step, event->id.term);
        return;
    }
    step_answer_committed(step, commit);
    step_guard_head(step);
    if (event->health != HEALTH_VERIFIED) {
        step_lower_health(step, commit, event->health, event->reason != NULL ? event->reason : "");
    } else if (commit->health_raw.data != NULL) {
        char key[ENTRY_KEY_MAX];
        key_health(commit->entry.seq, key);
        step_guard_as_read(step, key, commit->health_raw);
        step_remove(step, key);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The counts of a day. Events that leave no entry of their own (ended restores, aborted saves,
 * durations of saves) are added up in the update that ends them, so each is counted once, however
 * often the event runs. The wall time only selects the day that is shown; nothing is decided by it.
 * Pure.
 */
#include "core_private.h"

static const struct state_day *day_find(const struct run_state *state, uint64_t day)
{
    for (size_t i = state->day_count; i-- > 0;) { /* nearly always the last one */
        if (state->days[i].day == day) {
            return &state->days[i];
        }
    }
    return NULL;
}

void step_put_day(struct step *step)
{
    const struct entry_day *more = &step->day;
    if (step->ret->code != 0 || (more->restores == 0 && more->restores_failed == 0 &&
                                 more->saves_aborted == 0 && more->timed_saves == 0)) {
        return;
    }
    step->ret->counted = *more;
    uint64_t day = day_of(step->event->wall_ns);
    const struct state_day *before = day_find(step->state, day);
    struct entry_day entry = before != NULL ? before->entry : (struct entry_day){0};
    entry.restores += more->restores;
    entry.restores_failed += more->restores_failed;
    entry.saves_aborted += more->saves_aborted;
    entry.timed_saves += more->timed_saves;
    entry.blocked_ms += more->blocked_ms;
    entry.persist_ms += more->persist_ms;
    entry_day_encode(&entry, step_value(step));
    step_put_over(step, key_day(day).at, before != NULL ? before->raw : (struct record_value){0});
}

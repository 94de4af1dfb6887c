/* SPDX-License-Identifier: Apache-2.0
 *
 * The cycles of garbage collection. They count the time that something must wait before it is
 * removed: a forgotten checkpoint before it is reclaimed, a restore session before it is given up.
 * A daemon advances the cycle after an interval on its own monotonic clock; the record counts the
 * cycles, so no wall clock decides anything. Pure.
 */
#include <stdio.h>

#include "core_private.h"

/* Ends sessions that have been running for so many cycles that their job must be dead. The end is
 * an update of the record, so a rank that comes back after all is told, and never reads objects
 * that may be gone. */
static void end_sessions(struct step *step, uint64_t cycle)
{
    const struct run_state *state = step->state;
    uint64_t cycles = step->event->u.gc_cycle.lease_cycles;
    for (size_t i = 0; i < state->restore_count && cycles > 0; i++) {
        const struct state_restore *session = &state->restores[i];
        size_t report_count;
        (void)reports_of(state, session, &report_count);
        if (session->entry.state == RESTORE_RUNNING && session->entry.cycle < cycle &&
            cycle - session->entry.cycle > cycles && step_may_remove(step, report_count)) {
            char reason[160];
            snprintf(reason, sizeof(reason),
                     "the restore made no progress for %" PRIu64
                     " cycles of garbage collection and was given up; start it again",
                     cycle - session->entry.cycle);
            session_expire(step, session, reason);
            step->ret->u.gc_cycle.ended_count++;
        }
    }
}

void on_gc_cycle(struct step *step)
{
    const struct run_state *state = step->state;
    const uint64_t over = step->event->u.gc_cycle.cycle;
    step->ret->u.gc_cycle.cycle = state->gc.cycle;
    if (!state->exists) {
        step_fail(step, CAIRN_E_NOT_FOUND, "the run does not exist in this store");
        return;
    }
    if (over > state->gc.cycle) {
        step_fail(step, CAIRN_E_INVALID,
                  "cycle %" PRIu64
                  " of garbage collection has not begun: the store is in cycle %" PRIu64,
                  over, state->gc.cycle);
        return;
    }
    if (over < state->gc.cycle) {
        return; /* another daemon has begun the next one */
    }
    struct entry_gc entry = {.cycle = state->gc.cycle + 1, .wall_ns = step->event->wall_ns};
    char key[ENTRY_KEY_MAX];
    struct buf buf;
    key_gc(key);
    buf_init(&buf, LIMIT_RECORD_VALUE_BYTES);
    entry_gc_encode(&entry, &buf);
    step_guard_as_read(step, key, state->gc_raw);
    step_put(step, key, &buf);
    end_sessions(step, entry.cycle);
    step->ret->u.gc_cycle.cycle = entry.cycle;
}

/* Removes dead entries of steps of which nothing is stored any more. While something is stored, the
 * entry says that it is useless; afterwards nobody needs the entry. In the newest term the entry
 * stays, because it answers ranks that ask for the step. */
void on_bury(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_mark *bury = &step->event->u.mark;
    char key[ENTRY_KEY_MAX];
    for (size_t i = 0; i < bury->id_count && step_may_remove(step, 1); i++) {
        const struct state_dead *dead = dead_find(state, bury->ids[i]);
        if (dead != NULL && dead->id.term < state->newest_term) {
            key_dead(dead->id, key);
            step_guard_as_read(step, key, dead->raw);
            step_remove(step, key);
            step->ret->u.marks.done_count++;
        }
        if (bury->ids[i].term < state->newest_term) {
            step_remove_pasts(step, bury->ids[i]);
        }
    }
}

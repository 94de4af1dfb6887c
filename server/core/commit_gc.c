/* SPDX-License-Identifier: Apache-2.0
 *
 * The cycles of garbage collection. They count the time that something must wait before it is
 * removed: a forgotten checkpoint before it is reclaimed, a restore session before it is given up.
 * A daemon advances the cycle after an interval on its own monotonic clock; the record counts the
 * cycles, so no wall clock decides anything. They also prove how long a run has been idle. Pure.
 */
#include <stdarg.h>
#include <stdio.h>

#include "base/check.h"
#include "core_private.h"

enum { HOUR_S = 3600, DAY_S = 24 * HOUR_S };

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

/* --- when the run was used ------------------------------------------------------------------ */

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* Returns the time of the last thing that somebody did with the run: a commit, a restore, a grant,
 * a mark or a note of a person. What retention and garbage collection do is no use of it. */
static int64_t last_use_ns(struct step *step)
{
    const struct run_state *state = step->state;
    struct entry_ended ended = {.wall_ns = 0};
    struct entry_owner owner = {.wall_ns = 0};
    int64_t last = later(state->info.created_wall_ns, state->use.wall_ns);
    for (size_t i = 0; i < state->commit_count; i++) {
        last = later(last, state->commits[i].entry.wall_ns);
    }
    for (size_t i = 0; i < state->mark_count; i++) {
        const struct entry_chain *mark = &state->marks[i];
        bool is_use =
            mark->kind == CHAIN_UNDELETE || mark->kind == CHAIN_PIN || mark->kind == CHAIN_UNPIN;
        last = is_use ? later(last, mark->wall_ns) : last;
    }
    if (state->ended_count > 0 && entry_ended_decode(state->ended[state->ended_count - 1].raw,
                                                     step->scratch, &ended, NULL) == 0) {
        last = later(last, ended.wall_ns);
    }
    if (state->owner_count > 0 && entry_owner_decode(state->owners[state->owner_count - 1].raw,
                                                     step->scratch, &owner, NULL) == 0) {
        last = later(last, owner.wall_ns);
    }
    return last;
}

void step_put_use(struct step *step, int64_t wall_ns, uint64_t cycle)
{
    struct entry_use entry = {.wall_ns = later(wall_ns, step->state->use.wall_ns), .cycle = cycle};
    entry_use_encode(&entry, step_value(step));
    step_put_over(step, key_use().at, step->state->use_raw);
}

void step_say(struct step *step, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    CHECK(bytes >= 0 && (size_t)bytes < sizeof(text));
    step->ret->u.marks.why = scratch_string(step->scratch, (size_t)bytes, text);
    if (step->ret->u.marks.why == NULL) {
        step_fail(step, CAIRN_E_NO_MEMORY, "there is not enough memory for a reason");
    }
}

static void seconds_text(uint64_t seconds, size_t bytes, char *ret)
{
    bool days = seconds >= UINT64_C(2) * DAY_S, hours = seconds >= UINT64_C(2) * HOUR_S;
    snprintf(ret, bytes, "%" PRIu64 "%s",
             days    ? seconds / DAY_S
             : hours ? seconds / HOUR_S
                     : seconds,
             days    ? "d"
             : hours ? "h"
                     : "s");
}

bool idle_for(struct step *step, uint64_t seconds)
{
    const struct run_state *state = step->state;
    const struct event_forget *forget = &step->event->u.mark.forget;
    char idle[32], wanted[32];
    int64_t last = last_use_ns(step), idle_ns = step->event->wall_ns - last;
    if (idle_ns <= 0 || (uint64_t)idle_ns / UINT64_C(1000000000) < seconds) {
        return false;
    }
    seconds_text((uint64_t)idle_ns / UINT64_C(1000000000), sizeof(idle), idle);
    seconds_text(seconds, sizeof(wanted), wanted);
    if (forget->cycle_ms == 0) {
        step_say(step,
                 "not removed, though idle for %s (remove-idle %s): no garbage collection of a "
                 "daemon has counted that time",
                 idle, wanted);
        return false;
    }
    uint64_t ms = seconds < UINT64_MAX / 1000 ? seconds * 1000 : UINT64_MAX;
    uint64_t cycles = max_u64(ms / forget->cycle_ms, forget->keep_cycles);
    bool noted = state->use.wall_ns == last && state->gc.cycle >= state->use.cycle;
    uint64_t counted = noted ? state->gc.cycle - state->use.cycle : 0;
    if (counted >= cycles) {
        step_say(step, "idle for %s (remove-idle %s)", idle, wanted);
        return true;
    }
    step_say(step,
             "not removed, though idle for %s by the clock (remove-idle %s): %" PRIu64
             " of %" PRIu64 " cycles of garbage collection have been counted since",
             idle, wanted, counted, cycles);
    return false;
}

/* --- cycles ----------------------------------------------------------------------------------- */

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
    entry_gc_encode(&entry, step_value(step));
    step_put_over(step, key_gc().at, state->gc_raw);
    int64_t last = last_use_ns(step);
    if (state->use_raw.data == NULL || state->use.wall_ns != last) {
        step_put_use(step, last, entry.cycle);
    }
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
    for (size_t i = 0; i < bury->id_count && step_may_remove(step, 1); i++) {
        const struct state_dead *dead = dead_find(state, bury->ids[i]);
        if (dead != NULL && dead->id.term < state->newest_term) {
            step_remove_as_read(step, key_dead(dead->id).at, dead->raw);
            step->ret->u.marks.done_count++;
        }
        if (bury->ids[i].term < state->newest_term) {
            step_remove_pasts(step, bury->ids[i]);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * See usage.h.
 */
#include "core/usage.h"

#include "base/check.h"

static const double NS_PER_HOUR = 3600e9;

static bool is_within(int64_t wall_ns, struct usage_window window)
{
    return wall_ns >= window.since_ns && wall_ns <= window.until_ns;
}

/* Returns the hours of the window during which the bytes of a checkpoint were in the store. A clock
 * that was set back gives 0, never a negative number. */
static double hours_there(const struct state_commit *commit, struct usage_window window)
{
    CHECK(!commit->reclaimed || commit->reclaim_mark != NULL);
    int64_t from =
        commit->entry.wall_ns > window.since_ns ? commit->entry.wall_ns : window.since_ns;
    int64_t to = commit->reclaimed && commit->reclaim_mark->wall_ns < window.until_ns
                     ? commit->reclaim_mark->wall_ns
                     : window.until_ns;
    return to > from ? (double)(to - from) / NS_PER_HOUR : 0;
}

/* Adds what a checkpoint wrote and stored within the window. A reclaimed one no longer takes up
 * room. */
static void add_commit(const struct state_commit *commit, struct usage_window window,
                       struct usage *io)
{
    const struct entry_chain *entry = &commit->entry;
    if (is_within(entry->wall_ns, window)) {
        io->saves++;
        io->written_bytes += entry->stored_bytes;
    }
    io->byte_hours += (double)entry->stored_bytes * hours_there(commit, window);
    if (commit->reclaimed) {
        return;
    }
    io->stored_bytes += entry->stored_bytes;
    if (commit->forgotten) {
        io->forgotten++;
        io->reclaimable_bytes += entry->stored_bytes;
        return;
    }
    io->checkpoints++;
    io->plain_bytes += entry->plain_bytes;
    io->shared_bytes +=
        entry->plain_bytes > entry->stored_bytes ? entry->plain_bytes - entry->stored_bytes : 0;
}

void usage_of_run(const struct run_state *state, struct usage_window window, struct usage *ret)
{
    *ret = (struct usage){0};
    for (size_t i = 0; i < state->commit_count; i++) {
        add_commit(&state->commits[i], window, ret);
    }
    for (size_t i = 1; i < state->term_count; i++) {
        const struct state_term *term = &state->terms[i];
        ret->planned += term->entered && state_term_is_planned(state, term->term) &&
                        is_within(state->terms[i - 1].left_wall_ns, window);
    }
    for (size_t i = 0; i < state->day_count; i++) {
        const struct state_day *day = &state->days[i];
        if (day->day >= day_of(window.since_ns) && day->day <= day_of(window.until_ns)) {
            ret->restores += day->entry.restores;
            ret->restores_failed += day->entry.restores_failed;
            ret->saves_aborted += day->entry.saves_aborted;
            ret->timed_saves += day->entry.timed_saves;
            ret->blocked_ms += day->entry.blocked_ms;
            ret->persist_ms += day->entry.persist_ms;
        }
    }
}

void usage_add(struct usage *io, const struct usage *more)
{
#define ADD(figure) io->figure += more->figure;
    USAGE_FIGURES(ADD)
#undef ADD
}

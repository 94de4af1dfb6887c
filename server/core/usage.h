/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: what a run costs, from its record alone: how many bytes its checkpoints brought to the
 * store, how many are still there, for how long, and what was done with them. Pure; reads no object
 * and no clock. Wall times are those of the record, for people: nothing is decided by them.
 */
#ifndef CAIRN_CORE_USAGE_H
#define CAIRN_CORE_USAGE_H

#include "core/commit.h"

struct usage_window {
    int64_t since_ns, until_ns; /* wall times; `until` is now */
};

struct usage {
    /* Within the window. */
    uint64_t saves, saves_aborted, restores, restores_failed;
    uint64_t timed_saves, blocked_ms, persist_ms; /* saves that told how long they took, and sums */
    uint64_t written_bytes;                       /* stored by the commits of the window */
    double byte_hours; /* stored bytes times the hours in the window in which they were there */
    /* As it is now. */
    uint64_t checkpoints, forgotten; /* listed; forgotten, and not yet reclaimed */
    uint64_t plain_bytes;            /* of the state in the listed ones */
    /* Of listed and forgotten ones: what each brought itself. Bytes of a reclaimed checkpoint that
     * a later one refers to are in the store and not in here. */
    uint64_t stored_bytes;
    uint64_t shared_bytes; /* of listed ones: plain bytes that they did not store, because an older
                              checkpoint or a better encoding holds them */
    uint64_t reclaimable_bytes; /* of forgotten ones: at most so many come free */
};

void usage_of_run(const struct run_state *state, struct usage_window window, struct usage *ret);
void usage_add(struct usage *io, const struct usage *more);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: what a run costs, computed from its record alone: how many bytes its checkpoints brought
 * to the store, how many of them are still there, for how long, and what was done with the
 * checkpoints. Pure; reads no object and no clock. The wall times are those of the record and serve
 * people only: nothing is decided by them.
 */
#ifndef CAIRN_CORE_USAGE_H
#define CAIRN_CORE_USAGE_H

#include "core/commit.h"

struct usage_window {
    int64_t since_ns, until_ns; /* wall times; `until` is the present */
};

struct usage {
    /* Within the window: */
    uint64_t saves, saves_aborted, restores, restores_failed, planned;
    /* Saves that reported their durations, and the sums. */
    uint64_t timed_saves, blocked_ms, persist_ms;
    uint64_t written_bytes; /* stored by the commits of the window */
    /* Stored bytes times the hours of the window during which they were stored. */
    double byte_hours;
    /* At the present: */
    /* `forgotten` counts forgotten checkpoints that are not reclaimed. */
    uint64_t checkpoints, forgotten;
    uint64_t plain_bytes; /* size of the state in the checkpoints that are not forgotten */
    /* Bytes that the listed and the forgotten checkpoints added to the store. The bytes of a
     * reclaimed checkpoint that a later one refers to are still in the store, but are not counted
     * here. */
    uint64_t stored_bytes;
    /* Plain bytes that the listed checkpoints did not have to store, because an older checkpoint
     * holds them or the encoding is smaller. */
    uint64_t shared_bytes;
    uint64_t reclaimable_bytes; /* of forgotten checkpoints: an upper bound of what can be freed */
};

/* The figures of a run that are shown, in the order of `cairn stats --json`, and all of them. */
/* clang-format off */
#define USAGE_SHOWN(X) \
    X(saves) X(saves_aborted) X(restores) X(restores_failed) X(written_bytes) X(byte_hours) \
    X(checkpoints) X(forgotten) X(plain_bytes) X(stored_bytes) X(shared_bytes) X(reclaimable_bytes)
#define USAGE_FIGURES(X) USAGE_SHOWN(X) X(planned) X(timed_saves) X(blocked_ms) X(persist_ms)
/* clang-format on */

/* Computes the figures of one run: what happened within the window, and what is stored now. */
void usage_of_run(const struct run_state *state, struct usage_window window, struct usage *ret);
/* Adds the figures of another run. */
void usage_add(struct usage *io, const struct usage *more);

#endif

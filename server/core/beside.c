/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the stored checkpoints with the record: which manifests the record does not know, that a
 * run with such manifests is not empty, and which terms may have been granted. Because of these
 * answers, a record that is missing, cut or older than the store costs no checkpoint and grants no
 * term twice. Pure.
 */
#include "core/beside.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "core_private.h"

bool state_explains(const struct run_state *state, struct ckpt_id id, uint64_t open_id)
{
    const struct state_dead *dead = dead_find(state, id);
    const struct state_open *open = state_open_find(state, id);
    if (commit_any(state, id) != NULL) {
        return true;
    }
    /* The record has one opening of a step at a time, so another one was aborted. */
    if (open != NULL) {
        return open->entry.open_id != open_id || open->sealed_count == open->world_size;
    }
    if (dead != NULL && dead->entry.open_id == open_id) {
        return true;
    }
    size_t count;
    const struct state_past *pasts = pasts_of(state, id, &count);
    for (size_t i = 0; i < count; i++) {
        if (pasts[i].open_id == open_id) {
            return true;
        }
    }
    return false;
}

bool state_explains_all(const struct run_state *state, struct ckpt_id id)
{
    const struct state_open *open = state_open_find(state, id);
    return commit_any(state, id) != NULL ||
           (open != NULL && open->sealed_count == open->world_size);
}

/* Returns the index of the first unknown manifest with this id or a greater one. */
static size_t unknown_bound(const struct state_beside *beside, struct ckpt_id id)
{
    size_t low = 0, high = beside->unknown_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (ckpt_id_compare(beside->unknown[mid].id, id) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

const struct state_unknown *unknown_other(const struct run_state *state, struct ckpt_id id,
                                          uint64_t open_id)
{
    const struct state_beside *beside = &state->beside;
    for (size_t i = unknown_bound(beside, id);
         i < beside->unknown_count && ckpt_id_equal(beside->unknown[i].id, id); i++) {
        if (beside->unknown[i].open_id != open_id) {
            return &beside->unknown[i];
        }
    }
    return NULL;
}

bool unknown_has(const struct run_state *state, struct ckpt_id id, uint64_t open_id)
{
    const struct state_beside *beside = &state->beside;
    for (size_t i = unknown_bound(beside, id);
         i < beside->unknown_count && ckpt_id_equal(beside->unknown[i].id, id); i++) {
        if (beside->unknown[i].open_id == open_id) {
            return true;
        }
    }
    return false;
}

bool unknown_may_be(const struct run_state *state, const struct selector *selector)
{
    const struct state_beside *beside = &state->beside;
    for (size_t i = 0; i < beside->unknown_count; i++) {
        struct ckpt_id id = beside->unknown[i].id;
        if (id.step == selector->id.step &&
            (selector->kind == SELECT_STEP ||
             (selector->kind == SELECT_EXACT && id.term == selector->id.term))) {
            return true;
        }
    }
    return state->commit_count == 0 && (beside->code != 0 || state_is_marked(state));
}

uint64_t term_high_water(const struct run_state *state)
{
    return max_u64(state->newest_term, state->beside.highest.term);
}

static bool is_missing(const struct run_state *state)
{
    return !state->exists && state->beside.lost_from == 0 && state->beside.ckpt_count > 0;
}

bool state_is_marked(const struct run_state *state)
{
    return state->beside.unknown_count > 0 || state->beside.lost_from != 0 || is_missing(state);
}

bool state_may_lack_newer(const struct run_state *state, struct ckpt_id id)
{
    const struct state_beside *beside = &state->beside;
    size_t count = beside->unknown_count;
    return beside->lost_from != 0 ||
           (count > 0 && ckpt_id_compare(beside->unknown[count - 1].id, id) > 0);
}

/* Writes what is wrong with the run, without the remedy. */
static void say_mark(const struct run_state *state, size_t bytes, char *ret)
{
    const struct state_beside *beside = &state->beside;
    if (is_missing(state)) {
        snprintf(ret, bytes,
                 "the run's record is missing, but the store holds %zu checkpoint%s of the run",
                 beside->ckpt_count, beside->ckpt_count == 1 ? "" : "s");
    } else if (beside->lost_from != 0) {
        snprintf(ret, bytes,
                 "the end of the run's record is lost: update %" PRIu64
                 " and everything after it is missing",
                 beside->lost_from);
    } else if (beside->unknown_count > 0) {
        const struct state_unknown *newest = &beside->unknown[beside->unknown_count - 1];
        snprintf(ret, bytes,
                 "%zu stored checkpoint%s not in the run's record (newest: %" PRIu64 "@%" PRIu64
                 "), which is an older copy or has been damaged; nothing of the run is removed",
                 beside->unknown_count, beside->unknown_count == 1 ? " is" : "s are",
                 newest->id.step, newest->id.term);
    }
}

void state_mark_text(const struct run_state *state, size_t bytes, char *ret)
{
    const struct state_beside *beside = &state->beside;
    CHECK(bytes > 0);
    ret[0] = '\0';
    if (!is_missing(state) && beside->lost_from != 0 && beside->lost_text != NULL) {
        snprintf(ret, bytes, "the run's record: %s", beside->lost_text);
        return;
    }
    say_mark(state, bytes, ret);
    size_t length = strlen(ret);
    if (length > 0 && length < bytes) {
        snprintf(ret + length, bytes - length,
                 ": put the right record back, or run `cairn salvage %s --store %s`, which says "
                 "what can be entered again (with --yes, and the daemon stopped, it does so)",
                 beside->run != NULL ? beside->run : "RUN",
                 beside->store != NULL ? beside->store : "URL");
    }
}

int state_beside_check(const struct run_state *state, struct diag *diag)
{
    char text[DIAG_TEXT_MAX];
    if (state_is_marked(state)) {
        state_mark_text(state, sizeof(text), text);
        return diag_set(diag, CAIRN_E_DAMAGED, "%s", text);
    }
    if (state->beside.code != 0) {
        return diag_set(diag, state->beside.code,
                        "the server cannot tell whether the run is empty, because the stored "
                        "checkpoints cannot be listed: %s",
                        state->beside.code_text);
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the stored checkpoints with the record: which manifests the record does not know, that a
 * run with such manifests is not empty, and which terms may have been granted. Because of these
 * answers, a record that is missing, cut or older than the store costs no checkpoint and grants no
 * term twice. Pure.
 */
#include "core/unrecorded.h"

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
static size_t unknown_bound(const struct state_unrecorded *unrecorded, struct ckpt_id id)
{
    return ckpt_id_bound(unrecorded->unknown, unrecorded->unknown_count,
                         sizeof(*unrecorded->unknown), offsetof(struct state_unknown, id), id);
}

const struct state_unknown *unknown_other(const struct run_state *state, struct ckpt_id id,
                                          uint64_t open_id)
{
    const struct state_unrecorded *unrecorded = &state->unrecorded;
    for (size_t i = unknown_bound(unrecorded, id);
         i < unrecorded->unknown_count && ckpt_id_equal(unrecorded->unknown[i].id, id); i++) {
        if (unrecorded->unknown[i].open_id != open_id) {
            return &unrecorded->unknown[i];
        }
    }
    return NULL;
}

bool unknown_has(const struct run_state *state, struct ckpt_id id, uint64_t open_id)
{
    const struct state_unrecorded *unrecorded = &state->unrecorded;
    for (size_t i = unknown_bound(unrecorded, id);
         i < unrecorded->unknown_count && ckpt_id_equal(unrecorded->unknown[i].id, id); i++) {
        if (unrecorded->unknown[i].open_id == open_id) {
            return true;
        }
    }
    return false;
}

bool unknown_may_be(const struct run_state *state, const struct selector *selector)
{
    const struct state_unrecorded *unrecorded = &state->unrecorded;
    for (size_t i = 0; i < unrecorded->unknown_count; i++) {
        struct ckpt_id id = unrecorded->unknown[i].id;
        if (id.step == selector->id.step &&
            (selector->kind == SELECT_STEP ||
             (selector->kind == SELECT_EXACT && id.term == selector->id.term))) {
            return true;
        }
    }
    return state->commit_count == 0 && (unrecorded->code != 0 || state_is_marked(state));
}

uint64_t term_high_water(const struct run_state *state)
{
    return max_u64(state->newest_term, state->unrecorded.highest.term);
}

static bool is_missing(const struct run_state *state)
{
    return !state->exists && state->unrecorded.lost_from == 0 && state->unrecorded.ckpt_count > 0;
}

bool state_is_marked(const struct run_state *state)
{
    return state->unrecorded.unknown_count > 0 || state->unrecorded.lost_from != 0 ||
           is_missing(state);
}

bool state_may_lack_newer(const struct run_state *state, struct ckpt_id id)
{
    const struct state_unrecorded *unrecorded = &state->unrecorded;
    size_t count = unrecorded->unknown_count;
    return unrecorded->lost_from != 0 ||
           (count > 0 && ckpt_id_compare(unrecorded->unknown[count - 1].id, id) > 0);
}

/* Writes what is wrong with the run, without the remedy. */
static void say_mark(const struct run_state *state, size_t bytes, char *ret)
{
    const struct state_unrecorded *unrecorded = &state->unrecorded;
    if (is_missing(state)) {
        snprintf(ret, bytes,
                 "the run's record is missing, but the store holds %zu checkpoint%s of the run",
                 unrecorded->ckpt_count, unrecorded->ckpt_count == 1 ? "" : "s");
    } else if (unrecorded->lost_from != 0) {
        snprintf(ret, bytes,
                 "the end of the run's record is lost: update %" PRIu64
                 " and everything after it is missing",
                 unrecorded->lost_from);
    } else if (unrecorded->unknown_count > 0) {
        const struct state_unknown *newest = &unrecorded->unknown[unrecorded->unknown_count - 1];
        snprintf(ret, bytes,
                 "%zu stored checkpoint%s not in the run's record (newest: %s), which is an older "
                 "copy or has been damaged; nothing of the run is removed",
                 unrecorded->unknown_count, unrecorded->unknown_count == 1 ? " is" : "s are",
                 ckpt_id_text(newest->id).at);
    }
}

void state_mark_text(const struct run_state *state, size_t bytes, char *ret)
{
    const struct state_unrecorded *unrecorded = &state->unrecorded;
    CHECK(bytes > 0);
    ret[0] = '\0';
    if (!is_missing(state) && unrecorded->lost_from != 0 && unrecorded->lost_text != NULL) {
        snprintf(ret, bytes, "the run's record: %s", unrecorded->lost_text);
        return;
    }
    say_mark(state, bytes, ret);
    size_t length = strlen(ret);
    if (length > 0 && length < bytes) {
        snprintf(ret + length, bytes - length,
                 ": put the right record back, or run `cairn salvage %s --store %s`, which says "
                 "what can be entered again (with --yes, and the daemon stopped, it does so)",
                 unrecorded->run != NULL ? unrecorded->run : "RUN",
                 unrecorded->store != NULL ? unrecorded->store : "URL");
    }
}

int state_unrecorded_check(const struct run_state *state, struct diag *diag)
{
    char text[DIAG_TEXT_MAX];
    if (state_is_marked(state)) {
        state_mark_text(state, sizeof(text), text);
        return diag_set(diag, CAIRN_E_DAMAGED, "%s", text);
    }
    if (state->unrecorded.code != 0) {
        return diag_set(diag, state->unrecorded.code,
                        "the server cannot tell whether the run is empty, because the stored "
                        "checkpoints cannot be listed: %s",
                        state->unrecorded.code_text);
    }
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The base of an incremental save: which checkpoint's chunks it may refer to again. Full ones and
 * those that were built on them form sets that share no object with other sets; on a store without
 * redundancy the caller bounds their length, so that one damaged object costs one set. A set that
 * has a damaged or suspect member is built on no more, whichever member it is: they share objects.
 * References pin objects, never checkpoints, so a forgotten member does no harm. Pure.
 */
#include "core_private.h"

/* The newest that is not forgotten of what the save continues: by the order of commits in its own
 * term, then the parent and its ancestors. */
static const struct state_commit *continued(const struct run_state *state, uint64_t term,
                                            struct ckpt_id parent)
{
    for (size_t i = state->commit_count; i-- > 0;) {
        const struct state_commit *commit = &state->commits[i];
        if (commit->entry.id.term == term && !commit->forgotten) {
            return commit;
        }
    }
    return parent.term != 0 ? ancestor_kept(state, parent) : NULL;
}

struct ckpt_id step_choose_base(struct step *step, uint64_t term, struct ckpt_id parent)
{
    const struct run_state *state = step->state;
    const struct ckpt_id none = {0};
    if (step->event->full) {
        return none;
    }
    const struct state_commit *base = continued(state, term, parent);
    uint32_t count = 0; /* members of its set up to the base: checked when loaded to end */
    for (const struct state_commit *member = base; member != NULL; count++) {
        char key[ENTRY_KEY_MAX];
        if (member->health != HEALTH_VERIFIED ||
            (step->event->full_every > 0 && count + 1 >= step->event->full_every)) {
            return none;
        }
        key_health(member->entry.seq, key);
        step_guard_absent(step, key);
        struct ckpt_id below = member->entry.base;
        member = below.term != 0 ? commit_any(state, below) : NULL;
    }
    return base != NULL ? base->entry.id : none;
}

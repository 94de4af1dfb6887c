/* SPDX-License-Identifier: Apache-2.0
 *
 * The base of an incremental save: the checkpoint whose chunks the save may refer to. A full
 * checkpoint and those that were built on it form a set, which shares no object with other sets. On
 * a store without redundancy the caller bounds the length of a set, so that one damaged object
 * costs one set. If any member of a set is damaged or suspect, nothing more is built on the set,
 * because its members share objects. References protect objects, never checkpoints, so a forgotten
 * member does no harm. Pure.
 */
#include "core_private.h"

#include "base/check.h"

/* Returns the checkpoint that the save continues: the last commit of its own term that is not
 * forgotten, or else the newest such checkpoint among the parent and its ancestors. */
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

struct ckpt_id step_choose_base(struct step *step, const struct event_open *asked, uint64_t term,
                                struct ckpt_id parent)
{
    const struct run_state *state = step->state;
    const struct ckpt_id none = {0};
    if (asked->full) {
        return none;
    }
    const struct state_commit *base = continued(state, term, parent);
    /* Members of its set up to the base; loading has checked that the list ends. */
    uint32_t count = 0;
    for (const struct state_commit *member = base; member != NULL; count++) {
        if (member->health != HEALTH_VERIFIED ||
            (asked->full_every > 0 && count + 1 >= asked->full_every)) {
            return none;
        }
        step_guard_absent(step, key_health(member->entry.seq).at);
        CHECK(member->entry.seq <= base->entry.seq); /* a base is older than what was built on it */
        struct ckpt_id below = member->entry.base;
        member = below.term != 0 ? commit_any(state, below) : NULL;
    }
    return base != NULL ? base->entry.id : none;
}

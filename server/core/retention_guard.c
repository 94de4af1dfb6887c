/* SPDX-License-Identifier: Apache-2.0
 *
 * The checkpoints that are never forgotten, whoever asks: a pinned one; one that serves an open
 * save, a restore, or an attempt that has just restored it; the newest good one of the lineage; the
 * last good ones up to the least number, with the newest ones of other branches if the lineage has
 * too few; and the last one that shares no object with the others. A lineage without any good
 * checkpoint loses nothing at all: what is left of it, and superseded branches, may be all that
 * there is. Pure.
 */
#include "core/retention.h"

#include "base/check.h"

bool retention_is_good(const struct retention_item *item)
{
    return item->on_lineage && item->health == HEALTH_VERIFIED && !item->gone;
}

/* Finds the tips of superseded branches: a commit is no tip if another one follows it in its own
 * branch. */
static void find_tips(const struct run_state *state, struct retention_item *items, bool *followed)
{
    for (size_t i = 1; i < state->commit_count; i++) { /* sorted by (term, step) */
        const struct state_commit *commit = state->by_id[i - 1];
        if (state->by_id[i]->entry.id.term == commit->entry.id.term) {
            followed[commit - state->commits] = true;
        }
    }
    for (size_t i = 0; i < state->term_count; i++) {
        const struct state_term *term = &state->terms[i];
        const struct state_commit *parent = term->entered && term->entry.parent.term != 0
                                                ? commit_any(state, term->entry.parent)
                                                : NULL;
        if (parent != NULL) {
            followed[parent - state->commits] = true;
        }
    }
    for (size_t i = 0; i < state->commit_count; i++) {
        struct retention_item *item = &items[i];
        item->tip = !item->on_lineage && !followed[i];
        /* The next commit belongs to a later term that does not continue this one. */
        item->superseded_ns = item->wall_ns; /* not before its own commit, whatever a clock said */
        if (item->tip && i + 1 < state->commit_count && items[i + 1].wall_ns > item->wall_ns) {
            item->superseded_ns = items[i + 1].wall_ns;
        }
    }
}

int retention_items(const struct run_state *state, struct scratch *scratch,
                    struct retention_item **ret, struct diag *diag)
{
    size_t count = state->commit_count;
    struct retention_item *items = scratch_array(scratch, count + 1, sizeof(*items));
    bool *followed = scratch_array(scratch, count + 1, sizeof(*followed));
    struct state_use *uses = NULL;
    if (items == NULL || followed == NULL || state_uses(state, scratch, &uses) != 0) {
        return diag_no_memory(diag, "the retention of %zu checkpoints", count);
    }
    for (size_t i = 0; i < count; i++) {
        const struct state_commit *commit = &state->commits[i];
        const struct state_commit *base =
            commit->entry.base.term != 0 ? commit_any(state, commit->entry.base) : NULL;
        if (base != NULL) { /* committed earlier: loading has checked that */
            CHECK(base < commit);
        }
        items[i] = (struct retention_item){.id = commit->entry.id,
                                           .seq = commit->entry.seq,
                                           .wall_ns = commit->entry.wall_ns,
                                           .health = commit->health,
                                           .gone = commit->forgotten,
                                           .on_lineage = commit->on_lineage,
                                           .pinned = commit->pinned,
                                           .use = uses[i],
                                           .set = base != NULL ? items[base - state->commits].set
                                                               : commit->entry.seq,
                                           .note = commit->note};
    }
    find_tips(state, items, followed);
    *ret = items;
    return 0;
}

/* Returns the refusal that holds whatever else is forgotten, or MARK_DONE. */
static enum mark_outcome refused_by_itself(const struct retention_item *item)
{
    return item->gone          ? MARK_ALREADY
           : item->pinned      ? MARK_PINNED
           : item->use.claimed ? MARK_CLAIMED
           : item->use.leased  ? MARK_LEASED
           : item->use.parent  ? MARK_PARENT
                               : MARK_DONE;
}

/* Returns the index of the good item that `latest` means, the greatest by (term, step), or
 * count. */
static size_t newest_good(const struct retention_item *items, size_t count)
{
    size_t newest = count;
    for (size_t i = 0; i < count; i++) {
        if (retention_is_good(&items[i]) &&
            (newest == count || ckpt_id_compare(items[newest].id, items[i].id) < 0)) {
            newest = i;
        }
    }
    return newest;
}

/* Returns how many good items stay. *ret_apart says whether two of them share no object. */
static uint32_t count_good(const struct retention_item *items, size_t count,
                           const enum mark_outcome *outcomes, bool *ret_apart)
{
    uint32_t good = 0;
    uint64_t set = 0;
    *ret_apart = false;
    for (size_t i = 0; i < count; i++) {
        if (retention_is_good(&items[i]) && outcomes[i] != MARK_DONE) {
            *ret_apart = *ret_apart || (good > 0 && items[i].set != set);
            set = items[i].set;
            good++;
        }
    }
    return good;
}

/* Called if the lineage has too few good items, because it has lost them or has just begun: keeps
 * the newest verified ones of other branches in their place, only as many as are missing, because a
 * whole branch could fill the disk that the next save needs. Returns false if there are not so
 * many. */
static bool keep_of_branches(const struct retention_item *items, size_t count, uint32_t missing,
                             enum mark_outcome *outcomes)
{
    for (size_t i = 0; i < count; i++) { /* items that stay anyway count first */
        bool counts = !items[i].on_lineage && items[i].health == HEALTH_VERIFIED && !items[i].gone;
        missing -= counts && outcomes[i] != MARK_DONE && missing > 0;
    }
    for (size_t i = count; i-- > 0 && missing > 0;) {
        if (!items[i].on_lineage && items[i].health == HEALTH_VERIFIED &&
            outcomes[i] == MARK_DONE) {
            outcomes[i] = MARK_LEAST;
            missing--;
        }
    }
    return missing == 0;
}

/* Keeps a second set. If all items that stay may share objects, one damage could take them all, so
 * the newest item of a branch that shares none with the newest good one stays, too. */
static void keep_branch_apart(const struct retention_item *items, size_t count, uint64_t set,
                              enum mark_outcome *outcomes)
{
    size_t found = count;
    for (size_t i = 0; i < count; i++) {
        if (items[i].health != HEALTH_VERIFIED || items[i].gone || items[i].set == set) {
            continue;
        }
        if (outcomes[i] != MARK_DONE) {
            return;
        }
        found = i;
    }
    if (found < count) {
        outcomes[found] = MARK_APART;
    }
}

/* Takes good items back, newest first, until enough stay; the last of them may have to be of
 * another set. */
static void keep_enough(const struct retention_item *items, size_t count,
                        const struct retention_guards *guards, uint32_t least,
                        enum mark_outcome *outcomes)
{
    bool apart;
    uint32_t good = count_good(items, count, outcomes, &apart);
    size_t newest = newest_good(items, count);
    for (size_t i = count; i-- > 0 && good < least;) {
        if (retention_is_good(&items[i]) && outcomes[i] == MARK_DONE) {
            outcomes[i] = MARK_LEAST;
            good++;
        }
    }
    (void)count_good(items, count, outcomes, &apart);
    for (size_t i = count; i-- > 0 && guards->apart && least > 1 && !apart;) {
        if (retention_is_good(&items[i]) && outcomes[i] == MARK_DONE &&
            items[i].set != items[newest].set) {
            outcomes[i] = MARK_APART;
            apart = true;
        }
    }
    if (good >= least) {
        return;
    }
    bool enough = keep_of_branches(items, count, least - good, outcomes);
    if (guards->apart && least > 1 && newest < count) {
        keep_branch_apart(items, count, items[newest].set, outcomes);
    }
    /* Items that are not damaged may turn out to be good: here all of the lineage stay, and, if too
     * few verified ones are left, those of branches too. */
    for (size_t i = 0; i < count; i++) {
        if (outcomes[i] == MARK_DONE && items[i].health != HEALTH_DAMAGED &&
            (items[i].on_lineage || !enough)) {
            outcomes[i] = MARK_LEAST;
        }
    }
}

/* Checks that nothing is left to be forgotten that must stay, whoever asks. `newest` is the index
 * of the newest good item, or count. */
static void check_guarded(const struct retention_item *items, size_t count, size_t newest,
                          const enum mark_outcome *outcomes)
{
    for (size_t i = 0; i < count; i++) {
        if (outcomes[i] == MARK_DONE) {
            CHECK(newest < count);
            CHECK(i != newest);
            CHECK(!items[i].gone);
            CHECK(!items[i].pinned);
            CHECK(!items[i].use.claimed);
            CHECK(!items[i].use.leased);
            CHECK(!items[i].use.parent);
        }
    }
}

void retention_guard(const struct retention_item *items, size_t count,
                     const struct retention_guards *guards, enum mark_outcome *outcomes)
{
    uint32_t least = guards->least > 0 ? guards->least : RETENTION_LEAST;
    size_t newest = newest_good(items, count);
    for (size_t i = 0; i < count; i++) {
        if (outcomes[i] == MARK_DONE) {
            outcomes[i] = refused_by_itself(&items[i]);
        }
        if (outcomes[i] == MARK_DONE && newest == count) {
            outcomes[i] = MARK_NO_GOOD;
        }
        if (outcomes[i] == MARK_DONE && i == newest) {
            outcomes[i] = MARK_NEWEST;
        }
    }
    if (newest < count) {
        keep_enough(items, count, guards, least, outcomes);
    }
    check_guarded(items, count, newest, outcomes);
}

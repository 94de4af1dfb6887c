/* SPDX-License-Identifier: Apache-2.0
 *
 * Questions to a decoded record: which terms lead to the newest one that has a commit (the
 * lineage), what `latest` and the other selectors mean, which saves are open, which ranks are
 * missing, and what the state of a save is. A term enters the lineage at its first commit, so a
 * grant alone changes nothing. Pure.
 */
#include "core/commit.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/check.h"
#include "core_private.h"

/* Returns the index in by_id of the first commit at or above id. */
static size_t by_id_bound(const struct run_state *state, struct ckpt_id id)
{
    size_t low = 0, high = state->commit_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (ckpt_id_compare(state->by_id[mid]->entry.id, id) < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

const struct state_term *term_of(const struct run_state *state, uint64_t term)
{
    return term >= 1 && term <= state->term_count ? &state->terms[term - 1] : NULL;
}

bool state_term_is_planned(const struct run_state *state, uint64_t term)
{
    const struct state_term *now = term_of(state, term), *before = term_of(state, term - 1);
    return now != NULL && before != NULL && before->left &&
           !token_equal(&now->entry.token, &before->entry.token);
}

struct state_commit *commit_any(const struct run_state *state, struct ckpt_id id)
{
    size_t at = by_id_bound(state, id);
    return at < state->commit_count && ckpt_id_equal(state->by_id[at]->entry.id, id)
               ? state->by_id[at]
               : NULL;
}

const struct state_commit *state_commit_find(const struct run_state *state, struct ckpt_id id)
{
    const struct state_commit *commit = commit_any(state, id);
    return commit != NULL && !commit->forgotten ? commit : NULL;
}

const struct state_commit *state_commit_known(const struct run_state *state, struct ckpt_id id)
{
    const struct state_commit *commit = commit_any(state, id);
    return commit != NULL && !commit->reclaimed ? commit : NULL;
}

const struct state_open *state_open_find(const struct run_state *state, struct ckpt_id id)
{
    for (size_t i = 0; i < state->open_count; i++) { /* a handful are in flight at most */
        if (ckpt_id_equal(state->opens[i].id, id)) {
            return &state->opens[i];
        }
    }
    return NULL;
}

const struct state_dead *dead_find(const struct run_state *state, struct ckpt_id id)
{
    size_t low = ckpt_id_bound(state->deads, state->dead_count, sizeof(*state->deads),
                               offsetof(struct state_dead, id), id);
    return low < state->dead_count && ckpt_id_equal(state->deads[low].id, id) ? &state->deads[low]
                                                                              : NULL;
}

const struct state_past *pasts_of(const struct run_state *state, struct ckpt_id id,
                                  size_t *ret_count)
{
    size_t first = 0, end;
    while (first < state->past_count && ckpt_id_compare(state->pasts[first].id, id) < 0) {
        first++; /* there are hardly any */
    }
    for (end = first; end < state->past_count && ckpt_id_equal(state->pasts[end].id, id); end++) {
    }
    *ret_count = end - first;
    return &state->pasts[first];
}

const struct state_seal *seals_of(const struct run_state *state, struct ckpt_id id,
                                  size_t *ret_count)
{
    size_t low = ckpt_id_bound(state->seals, state->seal_count, sizeof(*state->seals),
                               offsetof(struct state_seal, id), id);
    size_t end = low;
    while (end < state->seal_count && ckpt_id_equal(state->seals[end].id, id)) {
        end++;
    }
    *ret_count = end - low;
    return &state->seals[low];
}

const struct state_term *state_term_find(const struct run_state *state, const struct token *token,
                                         uint32_t ordinal)
{
    for (size_t i = state->term_count; i-- > 0;) { /* almost always one of the newest */
        const struct state_term *term = &state->terms[i];
        if (term->entry.ordinal == ordinal && token_equal(&term->entry.token, token)) {
            return term;
        }
    }
    return NULL;
}

static int restore_compare(const struct token *a, uint32_t a_ordinal, const struct token *b,
                           uint32_t b_ordinal)
{
    int order = memcmp(a->bytes, b->bytes, sizeof(a->bytes));
    return order != 0 ? order : a_ordinal < b_ordinal ? -1 : a_ordinal > b_ordinal;
}

static int restore_order(const void *a, const void *b)
{
    const struct state_restore *x = a, *y = b;
    return restore_compare(&x->token, x->ordinal, &y->token, y->ordinal);
}

const struct state_restore *state_restore_find(const struct run_state *state,
                                               const struct token *token, uint32_t ordinal)
{
    struct state_restore key = {.token = *token, .ordinal = ordinal};
    return array_find(&key, state->restores, state->restore_count, sizeof(key), restore_order);
}

const struct state_report *reports_of(const struct run_state *state,
                                      const struct state_restore *session, size_t *ret_count)
{
    size_t low = 0, high = state->report_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct state_report *report = &state->reports[mid];
        if (restore_compare(&report->token, report->ordinal, &session->token, session->ordinal) <
            0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    size_t end = low;
    while (end < state->report_count &&
           restore_compare(&state->reports[end].token, state->reports[end].ordinal, &session->token,
                           session->ordinal) == 0) {
        end++;
    }
    *ret_count = end - low;
    return &state->reports[low];
}

/* Marks the lineage: the newest entered term as a whole, and of each term before it the commits up
 * to the parent of its successor. Loading has checked that parents are older terms, so the walk
 * ends. */
void lineage_mark(struct run_state *state)
{
    uint64_t term = state->newest_entered;
    uint64_t step_max = UINT64_MAX;
    while (term != 0) {
        CHECK(term <= state->term_count);
        struct state_term *on = &state->terms[term - 1];
        on->on_lineage = true;
        for (size_t i = by_id_bound(state, (struct ckpt_id){term, 0}); i < state->commit_count;
             i++) {
            struct ckpt_id id = state->by_id[i]->entry.id;
            if (id.term != term || id.step > step_max) {
                break;
            }
            state->by_id[i]->on_lineage = true;
        }
        CHECK(on->entry.parent.term < term);
        term = on->entry.parent.term;
        step_max = on->entry.parent.step;
    }
}

static bool is_good(const struct state_commit *commit)
{
    return !commit->forgotten && commit->health != HEALTH_DAMAGED;
}

const struct state_commit *state_latest(const struct run_state *state, struct ckpt_id below)
{
    for (size_t i = state->commit_count; i-- > 0;) {
        const struct state_commit *commit = state->by_id[i];
        bool in_bound = below.term == 0 || ckpt_id_compare(commit->entry.id, below) < 0;
        if (in_bound && commit->on_lineage && is_good(commit)) {
            return commit;
        }
    }
    return NULL;
}

const struct state_commit *lineage_newest(const struct run_state *state)
{
    for (size_t i = state->commit_count; i-- > 0;) {
        if (state->by_id[i]->on_lineage && !state->by_id[i]->forgotten) {
            return state->by_id[i];
        }
    }
    return NULL;
}

/* Returns the next older commit among the ancestors of `from`, good or not, or NULL at the root. */
static const struct state_commit *ancestor_next(const struct run_state *state, struct ckpt_id from)
{
    while (from.term != 0) {
        size_t at = by_id_bound(state, from);
        if (at > 0 && state->by_id[at - 1]->entry.id.term == from.term) {
            return state->by_id[at - 1];
        }
        CHECK(term_of(state, from.term) != NULL);
        from = term_of(state, from.term)->entry.parent;
        if (from.term != 0) { /* the parent itself is an ancestor, and is always in the chain */
            const struct state_commit *parent = commit_any(state, from);
            CHECK(parent != NULL);
            return parent;
        }
    }
    return NULL;
}

const struct state_commit *ancestor_kept(const struct run_state *state, struct ckpt_id from)
{
    const struct state_commit *commit = commit_any(state, from);
    while (commit != NULL && commit->forgotten) {
        commit = ancestor_next(state, commit->entry.id);
    }
    return commit;
}

const struct state_commit *ancestor_below(const struct run_state *state, struct ckpt_id from)
{
    const struct state_commit *commit = ancestor_next(state, from);
    while (commit != NULL && !is_good(commit)) {
        commit = ancestor_next(state, commit->entry.id);
    }
    return commit;
}

void ancestors_damaged(const struct run_state *state, struct ckpt_id from, size_t bytes, char *ret)
{
    CHECK(bytes > 0);
    size_t used = 0, count = 0;
    ret[0] = '\0';
    for (const struct state_commit *commit = commit_any(state, from); commit != NULL;
         commit = ancestor_next(state, commit->entry.id)) {
        if (commit->forgotten) {
            continue;
        }
        if (++count > 8 || used + 48 > bytes) {
            snprintf(ret + used, bytes - used, ", ...");
            return;
        }
        used += (size_t)snprintf(ret + used, bytes - used, "%s%s", count > 1 ? ", " : "",
                                 ckpt_id_text(commit->entry.id).at);
    }
}

void chain_by_whom(const struct entry_chain *entry, char ret[BY_WHOM_BYTES])
{
    char when[40];
    struct tm tm;
    time_t seconds = (time_t)(entry->wall_ns / INT64_C(1000000000));
    if (!gmtime_r(&seconds, &tm) || strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm) == 0) {
        snprintf(when, sizeof(when), "an unknown time");
    }
    snprintf(ret, BY_WHOM_BYTES, "%s at %s",
             entry->actor != NULL && entry->actor[0] != '\0' ? entry->actor : "somebody", when);
}

int state_removed_error(const struct run_state *state, struct diag *diag)
{
    char whom[BY_WHOM_BYTES];
    CHECK(state->removal != NULL);
    chain_by_whom(state->removal, whom);
    return diag_set(diag, CAIRN_E_NOT_FOUND,
                    "the run was removed by %s; until its space is reclaimed, `cairn undelete RUN "
                    "--all` brings it back",
                    whom);
}

/* Answers NOT_FOUND for a checkpoint that was committed, and is forgotten. */
static int forgotten_error(const struct run_state *state, const struct state_commit *commit,
                           struct diag *diag)
{
    char whom[BY_WHOM_BYTES];
    struct ckpt_id_text id = ckpt_id_text(commit->entry.id);
    if (state->removal != NULL && !commit->reclaimed) {
        return state_removed_error(state, diag);
    }
    CHECK(commit->mark != NULL);
    chain_by_whom(commit->mark, whom);
    if (commit->reclaimed) {
        return diag_set(diag, CAIRN_E_NOT_FOUND,
                        "checkpoint %s was forgotten by %s, and its space was reclaimed: nothing "
                        "brings it back",
                        id.at, whom);
    }
    return diag_set(diag, CAIRN_E_NOT_FOUND,
                    "checkpoint %s was forgotten by %s; until its space is reclaimed, `cairn "
                    "undelete RUN %s` brings it back",
                    id.at, whom, id.at);
}

/* Answers NOT_FOUND. The text says under which term a superseded checkpoint of the step can be had,
 * or which steps are next to it. */
static int step_not_found(const struct run_state *state, uint64_t step, struct diag *diag)
{
    const struct state_commit *below = NULL, *above = NULL, *superseded = NULL;
    const struct state_commit *forgotten = NULL;
    size_t superseded_count = 0;
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct state_commit *commit = state->by_id[i];
        uint64_t other = commit->entry.id.step;
        if (commit->forgotten) {
            forgotten = other == step ? commit : forgotten;
            continue;
        }
        if (!commit->on_lineage) {
            superseded_count += other == step;
            superseded = other == step ? commit : superseded;
        } else if (other < step && (below == NULL || other > below->entry.id.step)) {
            below = commit;
        } else if (other > step && (above == NULL || other < above->entry.id.step)) {
            above = commit;
        }
    }
    if (superseded_count > 0) {
        return diag_set(diag, CAIRN_E_NOT_FOUND,
                        "step %" PRIu64
                        " is not on the newest lineage, but a superseded branch%s; ask for %" PRIu64
                        "@%" PRIu64,
                        step,
                        superseded_count > 1 ? " has it (several have; the newest is named here)"
                                             : " has it",
                        step, superseded->entry.id.term);
    }
    if (forgotten != NULL) {
        return forgotten_error(state, forgotten, diag);
    }
    if (below == NULL && above == NULL) {
        return diag_set(diag, CAIRN_E_NOT_FOUND,
                        "step %" PRIu64 " was not saved: the run has no checkpoint", step);
    }
    char text[80];
    const struct state_commit *first = below != NULL ? below : above;
    int used = snprintf(text, sizeof(text), "%" PRIu64, first->entry.id.step);
    if (below != NULL && above != NULL) {
        snprintf(text + used, sizeof(text) - (size_t)used, " and %" PRIu64, above->entry.id.step);
    }
    return diag_set(diag, CAIRN_E_NOT_FOUND,
                    "step %" PRIu64 " was not saved; the nearest saved steps: %s", step, text);
}

/* Finds the checkpoint that the selector means among those that the state knows. */
static int select_known(const struct run_state *state, const struct selector *selector,
                        const struct state_commit **ret, struct diag *diag)
{
    const struct state_commit *found = NULL;
    struct ckpt_id id = selector->id;
    switch (selector->kind) {
    case SELECT_LATEST:
        found = state_latest(state, (struct ckpt_id){0, 0});
        if (found == NULL && state->removal != NULL) {
            return state_removed_error(state, diag);
        }
        if (found == NULL) {
            return diag_set(diag, CAIRN_E_NOT_FOUND, "the run has no checkpoint%s",
                            state->commit_count == 0 ? ""
                                                     : " that is neither damaged nor forgotten");
        }
        break;
    case SELECT_STEP:
        for (size_t i = state->commit_count; found == NULL && i-- > 0;) {
            const struct state_commit *commit = state->by_id[i];
            found = commit->entry.id.step == id.step && commit->on_lineage && !commit->forgotten
                        ? commit
                        : NULL;
        }
        if (found == NULL) {
            return step_not_found(state, id.step, diag);
        }
        break;
    case SELECT_EXACT:
        found = commit_any(state, id);
        if (found == NULL) {
            return diag_set(diag, CAIRN_E_NOT_FOUND, "checkpoint %s was never committed",
                            ckpt_id_text(id).at);
        }
        if (found->forgotten) {
            return forgotten_error(state, found, diag);
        }
        break;
    }
    CHECK(found != NULL);
    CHECK(!found->forgotten);
    *ret = found;
    return 0;
}

int state_select(const struct run_state *state, const struct selector *selector,
                 const struct state_commit **ret, struct diag *diag)
{
    struct diag why = DIAG_INIT;
    int status = select_known(state, selector, ret, &why);
    if (status != 0 && unknown_may_be(state, selector)) {
        return state_unrecorded_check(state, diag);
    }
    err_ignore(diag_copy(diag, &why)); /* the status carries the result */
    return status;
}

/* A text such as "ranks 1, 3 and 5 of 8", made from a map of the ranks that are there. */
enum { RANKS_NAMED_MAX = 16 };

struct rank_list {
    size_t bytes, used;
    char *text;
    uint32_t missing, last;
};

static void rank_list_text(struct rank_list *list, const char *text)
{
    CHECK(list->used < list->bytes);
    while (*text != '\0' && list->used + 1 < list->bytes) {
        list->text[list->used++] = *text++;
    }
    list->text[list->used] = '\0';
}

static void rank_list_number(struct rank_list *list, const char *before, uint32_t number)
{
    char text[16];
    snprintf(text, sizeof(text), "%" PRIu32, number);
    rank_list_text(list, before);
    rank_list_text(list, text);
}

/* Adds a missing rank. A rank is written when the next one is known, so that the last one gets its
 * "and". */
static void rank_list_add(struct rank_list *list, uint32_t rank)
{
    list->missing++;
    if (list->missing > 1 && list->missing <= RANKS_NAMED_MAX) {
        rank_list_number(list, list->missing == 2 ? "" : ", ", list->last);
    }
    if (list->missing <= RANKS_NAMED_MAX) {
        list->last = rank;
    }
}

/* Ends the list of missing ranks, or says how many more there are. */
static void rank_list_end(struct rank_list *list, uint32_t world_size)
{
    CHECK(list->missing <= world_size);
    if (list->missing == 0) {
        rank_list_text(list, "none");
    } else {
        bool cut = list->missing > RANKS_NAMED_MAX;
        rank_list_number(list, list->missing == 1 ? "" : cut ? ", " : " and ", list->last);
        if (cut) {
            rank_list_number(list, " and ", list->missing - RANKS_NAMED_MAX);
            rank_list_text(list, " others");
        }
    }
    rank_list_number(list, " of ", world_size);
}

static bool rank_list_init(struct rank_list *list, size_t bytes, char *ret)
{
    *list = (struct rank_list){.bytes = bytes, .used = strnlen(ret, bytes), .text = ret};
    return list->used + 1 < bytes;
}

void state_missing_ranks(const struct run_state *state, struct ckpt_id id, size_t bytes, char *ret)
{
    struct rank_list list;
    const struct state_open *open = state_open_find(state, id);
    if (open == NULL || !rank_list_init(&list, bytes, ret)) {
        return;
    }
    size_t count, at = 0;
    const struct state_seal *seals = seals_of(state, id, &count);
    rank_list_text(&list, open->world_size - open->sealed_count == 1 ? "rank " : "ranks ");
    for (uint32_t rank = 0; rank < open->world_size; rank++) {
        while (at < count && seals[at].rank < rank) {
            at++;
        }
        if (at >= count || seals[at].rank != rank || seals[at].orphan) {
            rank_list_add(&list, rank);
        }
    }
    rank_list_end(&list, open->world_size);
}

uint32_t state_report_count(const struct run_state *state, const struct state_restore *session)
{
    size_t count;
    const struct state_report *reports = reports_of(state, session, &count);
    uint32_t came = 0;
    for (size_t i = 0; i < count; i++) {
        came += reports[i].orphan ? 0 : 1;
    }
    CHECK(came <= session->entry.world_size);
    return came;
}

void state_missing_reports(const struct run_state *state, const struct state_restore *session,
                           size_t bytes, char *ret)
{
    struct rank_list list;
    if (!rank_list_init(&list, bytes, ret)) {
        return;
    }
    size_t count, at = 0;
    const struct state_report *reports = reports_of(state, session, &count);
    uint32_t came = state_report_count(state, session);
    rank_list_text(&list, came + 1 == session->entry.world_size ? "rank " : "ranks ");
    for (uint32_t rank = 0; rank < session->entry.world_size; rank++) {
        while (at < count && reports[at].rank < rank) {
            at++;
        }
        if (at >= count || reports[at].rank != rank || reports[at].orphan) {
            rank_list_add(&list, rank);
        }
    }
    rank_list_end(&list, session->entry.world_size);
}

enum save_state state_status(const struct run_state *state, struct ckpt_id id, struct diag *ret_why)
{
    const struct state_commit *commit = commit_any(state, id);
    if (commit != NULL) {
        return commit->forgotten ? SAVE_FORGOTTEN : SAVE_COMMITTED;
    }
    const struct state_open *open = state_open_find(state, id);
    if (open != NULL && id.term == state->newest_term) {
        return SAVE_OPEN;
    }
    const struct state_dead *dead = dead_find(state, id);
    if (dead != NULL) {
        err_ignore(diag_set(ret_why, dead->entry.code, "%s",
                            dead->entry.reason)); /* the reason is the answer */
        return SAVE_ABORTED;
    }
    if (open != NULL) { /* a race with a grant opened it: it can never commit */
        err_ignore(diag_set(ret_why, CAIRN_E_FENCED, "term %" PRIu64 " was granted since",
                            state->newest_term));
        return SAVE_ABORTED;
    }
    return SAVE_NONE;
}

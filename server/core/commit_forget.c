/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides forget, undelete, pin, unpin and reclaim for a batch of checkpoints, which one update
 * marks in the chain. Each checkpoint is decided by itself: the allowed changes are made, and the
 * others are named with their reason. The removal of a run is refused as a whole if anything of the
 * run is in use. Every update is guarded by the head, so after a commit, a pin or another forget in
 * between the core decides again. A forget also guards the health of the good checkpoints that it
 * leaves, so that none is forgotten because of one that has just turned out to be damaged. Pure.
 */
#include "core/commit_forget.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/utf8.h"
#include "core/retention.h"
#include "core_private.h"

static const char *const outcome_texts[] = {
    [MARK_DONE] = "is done",
    [MARK_ALREADY] = "is already so",
    [MARK_UNKNOWN] = "was never committed",
    [MARK_FORGOTTEN] = "was forgotten: bring it back with `cairn undelete` first",
    [MARK_RECLAIMED] = "was forgotten, and its space was reclaimed: it cannot be brought back",
    [MARK_EARLY] = "is not forgotten, or has not been forgotten for long enough",
    [MARK_PINNED] = "is pinned",
    [MARK_CLAIMED] = "is the base of a save that is open",
    [MARK_LEASED] = "is being restored",
    [MARK_PARENT] = "was restored by the newest attempt, which has not saved since then",
    [MARK_NEWEST] = "is the newest good checkpoint",
    [MARK_NO_GOOD] = "stays, because the run has no good checkpoint",
    [MARK_LEAST] = "stays, because too few good checkpoints would be left",
    [MARK_APART] = "stays, because all the other checkpoints that would be left share objects",
    [MARK_KEPT] = "is kept by the policy",
};

const char *mark_outcome_text(enum mark_outcome outcome)
{
    return (size_t)outcome < ARRAY_LEN(outcome_texts) ? outcome_texts[outcome] : "is unknown";
}

int state_uses(const struct run_state *state, struct scratch *scratch, struct state_use **ret)
{
    struct state_use *uses = scratch_array(scratch, state->commit_count + 1, sizeof(*uses));
    if (uses == NULL) {
        return CAIRN_E_NO_MEMORY;
    }
    for (size_t i = 0; i < state->open_count; i++) {
        const struct state_open *open = &state->opens[i];
        const struct state_commit *base =
            open->id.term == state->newest_term && open->entry.base.term != 0
                ? commit_any(state, open->entry.base)
                : NULL;
        if (base != NULL) {
            CHECK((size_t)(base - state->commits) < state->commit_count);
            uses[base - state->commits].claimed = true;
        }
    }
    for (size_t i = 0; i < state->restore_count; i++) {
        const struct entry_restore *entry = &state->restores[i].entry;
        const struct state_commit *commit =
            entry->state == RESTORE_RUNNING ? commit_any(state, entry->id) : NULL;
        if (commit != NULL) {
            uses[commit - state->commits].leased = true;
        }
    }
    const struct state_term *newest = term_of(state, state->newest_term);
    if (newest != NULL && !newest->entered && newest->entry.parent.term != 0) {
        CHECK(commit_any(state, newest->entry.parent) != NULL); /* loading has checked it */
        uses[commit_any(state, newest->entry.parent) - state->commits].parent = true;
    }
    *ret = uses;
    return 0;
}

/* --- a batch --- */

struct batch {
    struct mark *marks;
    struct ckpt_id *ids; /* of the checkpoints that are marked */
    size_t cap;          /* of both arrays */
};

/* Makes room for `count` outcomes. Returns false, with the step failed, if there is no memory. */
static bool batch_init(struct step *step, size_t count, struct batch *ret)
{
    struct batch batch = {.marks = scratch_array(step->scratch, count + 1, sizeof(*batch.marks)),
                          .ids = scratch_array(step->scratch, count + 1, sizeof(*batch.ids))};
    if (batch.marks == NULL || batch.ids == NULL) {
        step_fail(step, CAIRN_E_NO_MEMORY,
                  "there is not enough memory for a batch of %zu checkpoints", count);
        return false;
    }
    batch.cap = count;
    *ret = batch;
    return true;
}

/* Notes what becomes of a checkpoint, and counts it in the verdict. */
static void batch_add(struct step *step, struct batch *batch, struct ckpt_id id,
                      enum mark_outcome outcome)
{
    struct verdict_marks *ret = &step->ret->u.marks;
    const struct state_commit *commit = commit_any(step->state, id);
    CHECK(ret->count < batch->cap);
    CHECK(ret->done_count <= ret->count);
    batch->marks[ret->count++] = (struct mark){
        .id = id, .outcome = outcome, .wall_ns = commit != NULL ? commit->entry.wall_ns : 0};
    if (outcome == MARK_DONE) {
        batch->ids[ret->done_count++] = id;
        ret->done_bytes += commit != NULL ? commit->entry.stored_bytes : 0;
    } else if (outcome != MARK_ALREADY) {
        ret->refused_count++;
    }
}

/* Returns a copy of a text in the scratch, cut to `max` bytes. The text comes from outside, so one
 * that could not be decoded again is refused. */
static const char *text_of(struct step *step, const char *what, const char *text, size_t max)
{
    char cut[ENTRY_REASON_BYTES];
    size_t bytes = text != NULL ? strnlen(text, max + 1) : 0;
    if (bytes > max) {
        bytes = utf8_trim(max, text);
    }
    CHECK(bytes < sizeof(cut));
    memcpy(cut, text != NULL ? text : "", bytes);
    if (bytes > 0 && !text_is_valid(bytes, cut, max)) {
        step_fail(step, CAIRN_E_INVALID, "the %s is not plain UTF-8 text", what);
        return "";
    }
    const char *copy = scratch_string(step->scratch, bytes, cut);
    if (copy == NULL) {
        step_fail(step, CAIRN_E_NO_MEMORY, "there is not enough memory for the %s", what);
    }
    return copy;
}

/* Puts the actor and the reason into an entry. Without a reason it is the policy, or the removal.
 */
static void put_author(struct step *step, struct entry_chain *entry)
{
    const struct event_mark *asked = &step->event->u.mark;
    bool forgets = step->event->kind == EVENT_FORGET && asked->forget.policy != NULL;
    char policy[ENTRY_REASON_BYTES];
    const char *reason = asked->reason;
    if (reason == NULL || reason[0] == '\0') {
        reason = step->event->kind == EVENT_REMOVE ? "the run is removed" : "";
    }
    if (forgets && reason[0] == '\0') {
        retention_policy_text(asked->forget.policy, sizeof(policy), policy);
        reason = policy;
    }
    entry->actor = text_of(step, "actor", asked->actor, ENTRY_ACTOR_BYTES - 1);
    entry->reason = text_of(step, "reason", reason, ENTRY_REASON_BYTES - 1);
}

/* Appends the ids that are done, sorted, in as few chain entries as hold them. */
static void batch_append(struct step *step, struct batch *batch, enum chain_kind kind)
{
    struct verdict_marks *ret = &step->ret->u.marks;
    size_t count = ret->done_count;
    CHECK(ret->items == NULL); /* a step has one batch */
    CHECK(count <= batch->cap);
    ret->items = batch->marks;
    ret->head_seq = step->state->head.seq;
    struct entry_chain entry = {.kind = kind,
                                .wall_ns = step->event->wall_ns,
                                .cycle = kind == CHAIN_FORGET ? step->state->gc.cycle : 0};
    put_author(step, &entry);
    qsort(batch->ids, count, sizeof(*batch->ids), ckpt_id_order);
    for (size_t i = 1; i < count; i++) {
        if (ckpt_id_equal(batch->ids[i - 1], batch->ids[i])) {
            step_fail(step, CAIRN_E_INVALID, "checkpoint %s is named twice in the request",
                      ckpt_id_text(batch->ids[i]).at);
            return;
        }
    }
    for (size_t at = 0; at < count && step->ret->code == 0; at += entry.id_count) {
        size_t left = count - at;
        entry.ids = &batch->ids[at];
        entry.id = entry.ids[0];
        entry.id_count = (uint32_t)(left < CHAIN_IDS_MAX ? left : CHAIN_IDS_MAX);
        (void)step_append(step, &entry);
    }
}

/* --- forget --- */

static void guard_health(struct step *step, const struct state_commit *commit)
{
    step_guard_as_read(step, key_health(commit->entry.seq).at, commit->health_raw);
}

/* Guards the health that the decision relied on: that of the good checkpoints that stay (the
 * newest, as many as must stay, and one that shares no object with it; on branches if the lineage
 * has too few), and that of the checkpoints that are forgotten for not being good. */
static void guard_what_stays(struct step *step, const struct retention_item *items,
                             const enum mark_outcome *outcomes)
{
    const struct run_state *state = step->state;
    const struct event_forget *forget = &step->event->u.mark.forget;
    uint32_t asked = forget->policy != NULL ? forget->policy->least : forget->keep_least;
    uint32_t least = asked > 0 ? asked : RETENTION_LEAST;
    uint32_t found = 0;
    uint64_t set = 0;
    bool apart = !forget->apart;
    for (size_t i = state->commit_count; i-- > 0;) {
        if (outcomes[i] == MARK_DONE && items[i].health != HEALTH_VERIFIED) {
            guard_health(step, &state->commits[i]);
        }
        if (!retention_is_good(&items[i]) || outcomes[i] == MARK_DONE) {
            continue;
        }
        bool other = found > 0 && items[i].set != set;
        if (found < least || (other && !apart)) {
            guard_health(step, &state->commits[i]);
        }
        set = found == 0 ? items[i].set : set;
        apart = apart || other;
        found++;
    }
    /* Those of branches, which stand in for missing ones. */
    for (size_t i = 0; i < state->commit_count && found < least; i++) {
        bool counts = !items[i].on_lineage && items[i].health == HEALTH_VERIFIED && !items[i].gone;
        if (counts && outcomes[i] != MARK_DONE) {
            guard_health(step, &state->commits[i]);
        }
    }
    const struct state_commit *latest = state_latest(state, (struct ckpt_id){0, 0});
    if (latest != NULL) {
        guard_health(step, latest);
    }
}

/* Sets outcomes: one for each commit, MARK_DONE where the event asks for it, and the refusals of
 * the guards. An id that is not a commit becomes MARK_UNKNOWN in the batch. */
static void ask_by_name(struct step *step, const struct retention_item *items,
                        enum mark_outcome *outcomes)
{
    const struct run_state *state = step->state;
    const struct event_mark *asked = &step->event->u.mark;
    for (size_t i = 0; i < state->commit_count; i++) {
        outcomes[i] = MARK_ALREADY;
    }
    for (size_t i = 0; i < asked->id_count; i++) {
        const struct state_commit *commit = commit_any(state, asked->ids[i]);
        if (commit != NULL) {
            outcomes[commit - state->commits] = MARK_DONE;
        }
    }
    struct retention_guards guards = {.least = asked->forget.keep_least,
                                      .apart = asked->forget.apart};
    retention_guard(items, state->commit_count, &guards, outcomes);
}

/* Returns whether an earlier try of the event, whose outcome was unknown, has made this mark. */
static bool is_own_mark(const struct event *event, const struct entry_chain *mark,
                        enum chain_kind kind)
{
    const char *actor = event->u.mark.actor != NULL ? event->u.mark.actor : "";
    return mark != NULL && mark->kind == kind && mark->wall_ns == event->wall_ns &&
           strcmp(mark->actor, actor) == 0;
}

/* Adds the marks of a policy, newest first: one for each checkpoint that is not forgotten, or that
 * an earlier try of the event has forgotten, so that the operator hears of it. */
static void add_by_policy(struct step *step, struct batch *batch, const enum mark_outcome *outcomes,
                          const uint64_t *reasons)
{
    const struct run_state *state = step->state;
    for (size_t i = state->commit_count; i-- > 0;) {
        const struct state_commit *commit = &state->commits[i];
        bool is_own = commit->forgotten && is_own_mark(step->event, commit->mark, CHAIN_FORGET);
        if (is_own || !state->commits[i].forgotten) {
            CHECK(is_own == (outcomes[i] == MARK_ALREADY));
            batch_add(step, batch, state->commits[i].entry.id, outcomes[i]);
            batch->marks[step->ret->u.marks.count - 1].reasons = reasons[i];
        }
    }
    step->ret->u.marks.refused_count = 0; /* a kept checkpoint is no refusal: the policy wants it */
}

/* Adds guards on everything that the choice depends on, so that the update conflicts if any of it
 * has changed since the state was read. */
static void guard_forget(struct step *step, const struct retention_item *items,
                         const enum mark_outcome *outcomes)
{
    const struct run_state *state = step->state;
    const struct retention_policy *policy = step->event->u.mark.forget.policy;
    step_guard_as_read(step, key_gc().at, state->gc_raw);
    guard_what_stays(step, items, outcomes);
    bool notes = policy != NULL && (policy->best != 0 || policy->tag_list_count > 0);
    for (size_t i = 0; notes && i < state->commit_count; i++) {
        if (outcomes[i] == MARK_DONE) { /* guards that nobody has just made it the best one */
            step_guard_as_read(step, key_note(state->commits[i].entry.seq).at,
                               state->commits[i].note_raw);
        }
    }
}

/* --- remove a run --- */

/* Returns DENIED if a save of the newest term is open, or a restore is running. */
static int use_check(const struct run_state *state, struct diag *diag)
{
    for (size_t i = 0; i < state->open_count; i++) {
        const struct ckpt_id *id = &state->opens[i].id;
        if (id->term == state->newest_term) {
            return diag_set(diag, CAIRN_E_DENIED,
                            "step %" PRIu64 " of term %" PRIu64
                            " is being saved, so the run is not removed; stop the job, wait for "
                            "the save (`cairn flush RUN`), then try again. The save of a job that "
                            "has died is given up %" PRIu64 " s after it began",
                            id->step, id->term, state->opens[i].entry.deadline_ms / 1000);
        }
    }
    for (size_t i = 0; i < state->restore_count; i++) {
        if (state->restores[i].entry.state == RESTORE_RUNNING) {
            return diag_set(diag, CAIRN_E_DENIED,
                            "a job restores step %" PRIu64
                            " of the run, so the run is not removed; stop the job. The restore of "
                            "a job that has died is given up after [gc] lease-cycles",
                            state->restores[i].entry.id.step);
        }
    }
    return 0;
}

/* Returns 0 if nothing keeps the run from being removed. */
static int removal_check(const struct run_state *state, struct diag *diag)
{
    for (size_t i = 0; i < state->commit_count; i++) {
        if (state->commits[i].pinned) {
            return diag_set(
                diag, CAIRN_E_DENIED,
                "checkpoint %s is pinned, so the run is not removed; `cairn unpin` it first",
                ckpt_id_text(state->commits[i].entry.id).at);
        }
    }
    int status = use_check(state, diag);
    return status != 0 ? status : state_unrecorded_check(state, diag);
}

/* Grants a term to nobody, so that no attempt of the run goes on (I5). Returns the term, or 0 with
 * the step failed. */
static uint64_t grant_nobody(struct step *step)
{
    uint64_t term = term_high_water(step->state) + 1;
    if (term - step->state->newest_term > TERMS_FILL_MAX) {
        step_fail(step, CAIRN_E_DAMAGED,
                  "the store holds files of term %" PRIu64
                  ", but the newest term of the record is %" PRIu64
                  "; put the right record back before the run is removed",
                  term - 1, step->state->newest_term);
        return 0;
    }
    step_guard_newest(step);
    step_fill_terms(step, term + 1);
    return term;
}

/* Forgets all that is left of the run, fences every attempt, and says so in the chain: one update,
 * so after a crash the run is whole or removed. No good checkpoint has to stay. */
static void remove_run(struct step *step, struct batch *batch)
{
    const struct run_state *state = step->state;
    static const struct ckpt_id none;
    for (size_t i = state->commit_count; i-- > 0;) {
        if (!state->commits[i].forgotten) {
            batch_add(step, batch, state->commits[i].entry.id, MARK_DONE);
        }
    }
    uint64_t term = grant_nobody(step);
    if (term == 0) {
        return;
    }
    step_guard_as_read(step, key_gc().at, state->gc_raw);
    step_guard_head(step);
    batch_append(step, batch, CHAIN_FORGET);
    struct entry_chain entry = {.kind = CHAIN_REMOVE,
                                .wall_ns = step->event->wall_ns,
                                .cycle = term,
                                .id_count = 1,
                                .ids = &none};
    put_author(step, &entry);
    if (step->ret->code == 0) {
        (void)step_append(step, &entry);
        step_sweep(step);
        step->ret->u.marks.removed = true;
    }
}

void on_remove(struct step *step)
{
    const struct run_state *state = step->state;
    struct batch batch;
    if (!state->exists) {
        step_fail(step, CAIRN_E_NOT_FOUND, "the run does not exist in this store");
        return;
    }
    if (state->removed) {
        char whom[BY_WHOM_BYTES];
        chain_by_whom(state->removal, whom);
        step_say(step, "was removed already, by %s", whom);
        step->ret->u.marks.removed = true;
        return;
    }
    step->ret->code = removal_check(state, &step->ret->diag);
    if (step->ret->code == 0 && batch_init(step, state->commit_count, &batch)) {
        remove_run(step, &batch);
    }
}

/* Returns true if the policy removes the run, because nobody has used it for long enough. The wall
 * clock alone proves nothing: as much time has to have been counted in cycles. */
static bool is_expired(struct step *step)
{
    const struct event_forget *forget = &step->event->u.mark.forget;
    const uint64_t seconds = forget->policy != NULL ? forget->policy->remove_idle_seconds : 0;
    if (seconds == 0 || forget->living || forget->clock_jump_s != 0 || !step->state->exists ||
        step->state->removed || removal_check(step->state, NULL) != 0 || !idle_for(step, seconds)) {
        return false;
    }
    step_guard_as_read(step, key_use().at, step->state->use_raw);
    return true;
}

/* Decides a policy about the run as a whole. Returns true if nothing is left to be decided. */
static bool forget_as_a_whole(struct step *step)
{
    const struct event_forget *forget = &step->event->u.mark.forget;
    struct batch batch;
    if (is_expired(step)) {
        if (batch_init(step, step->state->commit_count, &batch)) {
            remove_run(step, &batch);
        }
        return true;
    }
    return forget->policy != NULL && retention_policy_check(forget->policy, NULL) == 0 &&
           !retention_policy_has_rule(forget->policy);
}

void on_forget(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_mark *asked = &step->event->u.mark;
    const struct event_forget *forget = &asked->forget;
    struct retention_item *items = NULL;
    struct batch batch;
    size_t count = state->commit_count;
    if (forget_as_a_whole(step)) {
        return;
    }
    enum mark_outcome *outcomes = scratch_array(step->scratch, count + 1, sizeof(*outcomes));
    uint64_t *reasons = scratch_array(step->scratch, count + 1, sizeof(*reasons));
    int status = retention_items(state, step->scratch, &items, &step->ret->diag);
    if (status == 0 && (outcomes == NULL || reasons == NULL)) {
        status = diag_no_memory(&step->ret->diag, "%zu checkpoints", count);
    }
    if (status == 0 && forget->policy != NULL) {
        struct retention_job job = {.policy = forget->policy,
                                    .now_ns = step->event->wall_ns,
                                    .clock_jump_s = forget->clock_jump_s,
                                    .apart = forget->apart,
                                    .count = count,
                                    .items = items,
                                    .outcomes = outcomes,
                                    .reasons = reasons};
        status = retention_decide(&job, step->scratch, &step->ret->diag);
    }
    step->ret->code = status;
    if (status != 0 ||
        !batch_init(step, forget->policy != NULL ? count : asked->id_count, &batch)) {
        return;
    }
    if (forget->policy != NULL) {
        add_by_policy(step, &batch, outcomes, reasons);
    } else {
        ask_by_name(step, items, outcomes);
    }
    for (size_t i = 0; forget->policy == NULL && i < asked->id_count; i++) {
        const struct state_commit *commit = commit_any(state, asked->ids[i]);
        batch_add(step, &batch, asked->ids[i],
                  commit != NULL ? outcomes[commit - state->commits] : MARK_UNKNOWN);
    }
    if (step->ret->u.marks.done_count > 0) {
        guard_forget(step, items, outcomes);
    }
    batch_append(step, &batch, CHAIN_FORGET);
}

/* --- undelete, pin, unpin --- */

/* Returns what the event would do to the checkpoint; `commit` is NULL if the record does not know
 * it. */
static enum mark_outcome outcome_of(const struct state_commit *commit, enum chain_kind kind)
{
    if (commit == NULL) {
        return MARK_UNKNOWN;
    }
    if (kind == CHAIN_UNDELETE) {
        return commit->reclaimed ? MARK_RECLAIMED : commit->forgotten ? MARK_DONE : MARK_ALREADY;
    }
    if (kind == CHAIN_REPAIR) { /* forgotten ones may be undeleted, so they may be repaired */
        return commit->reclaimed ? MARK_RECLAIMED : MARK_DONE;
    }
    if (kind == CHAIN_UNPIN) {
        return commit->pinned ? MARK_DONE : MARK_ALREADY;
    }
    return commit->reclaimed   ? MARK_RECLAIMED
           : commit->forgotten ? MARK_FORGOTTEN
           : commit->pinned    ? MARK_ALREADY
                               : MARK_DONE;
}

/* Adds a chain entry of the kind for each checkpoint that the event names. An undelete that names
 * none is for all that are forgotten and not yet reclaimed; those that an earlier try of it has
 * brought back are told as well. */
static void mark_each(struct step *step, enum chain_kind kind)
{
    const struct run_state *state = step->state;
    const struct event_mark *asked = &step->event->u.mark;
    bool all = asked->id_count == 0 && kind == CHAIN_UNDELETE;
    struct batch batch;
    if (!batch_init(step, all ? state->commit_count : asked->id_count, &batch)) {
        return;
    }
    for (size_t i = state->commit_count; all && i-- > 0;) {
        const struct state_commit *commit = &state->commits[i];
        bool is_own = !commit->forgotten && is_own_mark(step->event, commit->mark, kind);
        if (is_own || (commit->forgotten && !commit->reclaimed)) {
            batch_add(step, &batch, commit->entry.id, outcome_of(commit, kind));
        }
    }
    for (size_t i = 0; i < asked->id_count; i++) {
        const struct state_commit *commit = commit_any(state, asked->ids[i]);
        batch_add(step, &batch, asked->ids[i], outcome_of(commit, kind));
    }
    batch_append(step, &batch, kind);
}

void on_undelete(struct step *step) { mark_each(step, CHAIN_UNDELETE); }

void on_pin(struct step *step) { mark_each(step, CHAIN_PIN); }

void on_unpin(struct step *step) { mark_each(step, CHAIN_UNPIN); }

void on_repair(struct step *step) { mark_each(step, CHAIN_REPAIR); }

/* --- reclaim --- */

/* Decides one checkpoint of a reclaim. No open save and no session can get hold of a checkpoint
 * after it was forgotten, because both are guarded by the head. So a copy of the record that has
 * the forget has all claims on it, and a claim that this copy does not show does not exist. */
static enum mark_outcome reclaim_outcome(const struct step *step, const struct state_commit *commit,
                                         const struct state_use *use)
{
    CHECK(!commit->reclaimed || commit->forgotten);
    uint64_t cycle = step->state->gc.cycle, wanted = step->event->u.mark.cycles;
    bool waits = commit->forgotten_cycle > cycle || cycle - commit->forgotten_cycle < wanted;
    bool early = !commit->forgotten || (wanted > 0 && waits);
    return commit->reclaimed ? MARK_ALREADY
           : early           ? MARK_EARLY
           : use->claimed    ? MARK_CLAIMED
           : use->leased     ? MARK_LEASED
                             : MARK_DONE;
}

void on_reclaim(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_mark *asked = &step->event->u.mark;
    bool all = asked->id_count == 0;
    struct state_use *uses = NULL;
    struct batch batch;
    if (state_uses(state, step->scratch, &uses) != 0) {
        step_fail(step, CAIRN_E_NO_MEMORY, "there is not enough memory for %zu checkpoints",
                  state->commit_count);
        return;
    }
    if (!batch_init(step, all ? state->commit_count : asked->id_count, &batch)) {
        return;
    }
    for (size_t i = 0; !all && i < asked->id_count; i++) {
        const struct state_commit *commit = commit_any(state, asked->ids[i]);
        batch_add(step, &batch, asked->ids[i],
                  commit == NULL ? MARK_UNKNOWN
                                 : reclaim_outcome(step, commit, &uses[commit - state->commits]));
    }
    for (size_t i = 0; all && i < state->commit_count; i++) {
        const struct state_commit *commit = &state->commits[i];
        enum mark_outcome outcome = reclaim_outcome(step, commit, &uses[i]);
        if (outcome != MARK_ALREADY && outcome != MARK_EARLY) {
            batch_add(step, &batch, commit->entry.id, outcome);
        }
    }
    batch_append(step, &batch, CHAIN_RECLAIM);
}

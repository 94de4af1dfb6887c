/* SPDX-License-Identifier: Apache-2.0
 *
 * Open: rank 0 begins a save, and first takes a term if its attempt has none since its last
 * restore; the other ranks find that opening. A grant fences every older term in the same update
 * (I5): their openings are removed, and the reason is left behind. An opening is guarded by the
 * head too, so that a step which another driver has just committed is not opened a second time
 * (I3). Pure.
 */
#include <stdio.h>

#include "core_private.h"

#include "base/check.h"

/* Returns false, with the step failed, if the opening itself is invalid. The state does not matter
 * here. */
static bool open_is_valid(struct step *step)
{
    const struct event_open *asked = &step->event->u.open;
    uint32_t world_size = asked->from.world_size;
    if (asked->from.rank != 0) {
        step_fail(step, CAIRN_E_INVALID,
                  "rank %" PRIu32 " cannot open a save: only rank 0 opens saves", asked->from.rank);
    } else if (world_size == 0 || world_size > LIMIT_WORLD_SIZE) {
        step_fail(step, CAIRN_E_INVALID, "the world size is %" PRIu32 "; it must be 1 to %d",
                  world_size, (int)LIMIT_WORLD_SIZE);
    } else if (asked->open_id == 0) {
        step_fail(step, CAIRN_E_INVALID,
                  "the request to open a save has the id 0; the client must draw a random one");
    } else if (asked->entry.metadata_bytes > LIMIT_METADATA_BYTES) {
        step_fail(step, CAIRN_E_TOO_LARGE,
                  "the save's metadata has %" PRIu32 " bytes; at most %d are stored",
                  asked->entry.metadata_bytes, (int)LIMIT_METADATA_BYTES);
    } else if (asked->entry.tag_count > LIMIT_TAGS || asked->entry.metric_count > LIMIT_METRICS) {
        step_fail(
            step, CAIRN_E_TOO_LARGE,
            "the save has %" PRIu32 " tags and %" PRIu32 " metrics; at most %d and %d are stored",
            asked->entry.tag_count, asked->entry.metric_count, (int)LIMIT_TAGS, (int)LIMIT_METRICS);
    }
    return step->ret->code == 0;
}

/* Fails the step because a newer term exists. The verdict is final if the state proves it: a later
 * copy of the record can only have more terms. */
static void fail_fenced(struct step *step, const struct state_term *mine)
{
    uint64_t newest = step->state->newest_term, seen = step->event->u.open.newest_seen;
    const struct entry_chain *removal = step->state->removal;
    step->ret->proven = mine != NULL || newest > seen;
    if (removal != NULL && removal->cycle == newest) {
        step_fail(step, CAIRN_E_FENCED,
                  "the run was removed by %s; stop this job. Start it again to save under this "
                  "name from the beginning, or bring the checkpoints back with `cairn undelete RUN "
                  "--all` before",
                  removal->actor[0] != '\0' ? removal->actor : "somebody");
    } else if (mine != NULL) {
        step_fail(step, CAIRN_E_FENCED,
                  "term %" PRIu64 " of this attempt is fenced, because term %" PRIu64
                  " was granted since; stop this job, or restore before the next save",
                  mine->term, newest);
    } else {
        step_fail(
            step, CAIRN_E_FENCED,
            "term %" PRIu64 " was granted since this attempt joined (it saw term %" PRIu64
            "): another attempt saves to this run; stop this job, or restore before the next save",
            newest, seen);
    }
}

static bool world_agrees(struct step *step, const struct state_term *term)
{
    const struct attempt_rank *from = &step->event->u.open.from;
    if (term->entry.world_size != from->world_size) {
        step_fail(step, CAIRN_E_WORLD_MISMATCH,
                  "rank %" PRIu32 " gives the world size %" PRIu32 ", but term %" PRIu64
                  " was granted for %" PRIu32
                  " ranks; a start with another world size needs a new attempt token",
                  from->rank, from->world_size, term->term, term->entry.world_size);
        return false;
    }
    return true;
}

/* Checks that the terms up to the highest one in the store can be filled. Terms are dense in the
 * record. A term that only the store shows was granted by a record that has been damaged or
 * replaced since. It is not granted again, so the terms up to it are filled. */
static bool high_water_is_sane(struct step *step)
{
    const struct run_state *state = step->state;
    const struct state_unrecorded *unrecorded = &state->unrecorded;
    if (unrecorded->code != 0) {
        step_fail(step, unrecorded->code,
                  "the server cannot tell which terms were granted, because the stored checkpoints "
                  "cannot be listed: %s",
                  unrecorded->code_text);
    } else if (term_high_water(state) - state->newest_term > TERMS_FILL_MAX) {
        step_fail(step, CAIRN_E_DAMAGED,
                  "the store holds step %" PRIu64 " of term %" PRIu64
                  ", but the newest term of the record is %" PRIu64
                  ": no term is granted across such a gap; put the right record back, or remove "
                  "the files that do not belong to this run",
                  unrecorded->highest.step, unrecorded->highest.term, state->newest_term);
    }
    return step->ret->code == 0;
}

/* Returns true if this attempt may take a term now; answers FENCED or another error if not. */
static bool grant_is_allowed(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_open *asked = &step->event->u.open;
    struct ckpt_id parent = asked->parent;
    if (asked->newest_seen != state->newest_term) {
        fail_fenced(step, NULL);
        return false;
    }
    for (size_t i = 0; i < state->term_count; i++) {
        const struct state_term *term = &state->terms[i];
        if (term->entry.ordinal > asked->from.ordinal &&
            token_equal(&term->entry.token, &asked->from.token)) {
            fail_fenced(step, term); /* a late message from before a restore of this attempt */
            return false;
        }
    }
    if (!high_water_is_sane(step)) {
        return false;
    }
    /* A parent that was forgotten after it was restored will do: its contents are in the job's
     * memory. */
    if (parent.term == 0 || commit_any(state, parent) != NULL) {
        return true;
    }
    step_fail(
        step, CAIRN_E_NOT_FOUND,
        "the parent checkpoint %s was never committed; restore a checkpoint of this run, then "
        "save again",
        ckpt_id_text(parent).at);
    return false;
}

/* Bounds the number of dead entries by removing the oldest ones. They mark stored things as
 * useless, so they normally stay until nothing is stored (BURY), but a store without garbage
 * collection never buries them. */
static void limit_deads(struct step *step)
{
    const struct run_state *state = step->state;
    for (size_t i = 0; i + DEADS_MAX < state->dead_count && step_may_remove(step, 1); i++) {
        const struct state_dead *dead = &state->deads[i];
        if (dead->id.term < state->newest_term && state_open_find(state, dead->id) == NULL) {
            step_remove_as_read(step, key_dead(dead->id).at, dead->raw);
        }
    }
}

/* Notes for `cairn log` who was granted the term. */
static void put_owner(struct step *step, uint64_t term)
{
    const char *actor = step->event->u.open.actor;
    struct entry_owner entry = {.wall_ns = step->event->wall_ns};
    if (actor == NULL || actor[0] == '\0') {
        return;
    }
    reason_set(entry.actor, actor);
    entry_owner_encode(&entry, step_value(step));
    /* Guarded with the term, whose key is of this update, too. */
    step_put(step, key_owner(term).at);
}

void on_leave(struct step *step)
{
    const struct run_state *state = step->state;
    const struct state_term *term = term_of(state, state->newest_term);
    if (term == NULL || state->removed || term->left ||
        !token_equal(&term->entry.token, &step->event->u.leave)) {
        return;
    }
    CHECK(term->term == state->newest_term);
    struct entry_left entry = {.wall_ns = step->event->wall_ns};
    step_guard_newest(step);
    entry_left_encode(&entry, step_value(step));
    step_put_over(step, key_left(term->term).at, (struct record_value){0});
}

/* Grants a term: adds the missing terms up to the high-water mark and the new one, and ends
 * everything that is open in older terms. Returns the new term. */
static uint64_t grant(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_open *asked = &step->event->u.open;
    uint64_t newest = term_high_water(state) + 1;
    char reason[120];
    struct entry_term entry = {.token = asked->from.token,
                               .ordinal = asked->from.ordinal,
                               .world_size = asked->from.world_size,
                               .parent = asked->parent,
                               .newest_seen = newest - 1};
    CHECK(newest > state->newest_term);
    CHECK(asked->parent.term < newest); /* so that every walk over parents ends */
    step_fill_terms(step, newest);
    /* The first added term is guarded by step_guard_newest(). */
    step_put_term(step, newest, &entry);
    put_owner(step, newest);
    snprintf(reason, sizeof(reason), "fenced: term %" PRIu64 " was granted", newest);
    for (size_t i = 0; i < state->open_count && step_may_remove(step, 1); i++) {
        step_end_open(step, &state->opens[i], CAIRN_E_FENCED, reason);
    }
    limit_deads(step);
    step->ret->u.save.new_term = true;
    step->ret->u.save.new_lineage = asked->parent.term == 0 && state->commit_count > 0;
    return newest;
}

/* Keeps the aborted opening in the record when the step is opened again: it may have got as far as
 * a manifest. */
static void put_past(struct step *step, const struct state_dead *dead)
{
    size_t count;
    (void)pasts_of(step->state, dead->id, &count);
    if (count < PASTS_MAX) {
        entry_past_encode(step_value(step));
        step_put(step, key_past(dead->id, dead->entry.open_id).at);
    }
}

/* Opens a save that nobody has opened yet. What is noted of an aborted save with the same id is
 * removed. */
static void open_new(struct step *step, struct ckpt_id id, struct ckpt_id parent)
{
    const struct event_open *asked = &step->event->u.open;
    const struct state_dead *dead = dead_find(step->state, id);
    struct entry_open open = asked->entry;
    open.open_id = asked->open_id;
    open.base = step_choose_base(step, asked, id.term, parent);
    CHECK(id.term > 0);
    CHECK(open.open_id != 0);
    CHECK(commit_any(step->state, id) == NULL); /* I3 */
    CHECK(state_open_find(step->state, id) == NULL);
    struct buf *value = step_value(step);
    entry_open_encode(&open, value);
    /* Tags and names come from outside: an entry that could not be decoded again must not get
     * in. */
    struct entry_open back;
    if (buf_status(value) == 0 &&
        entry_open_decode((struct record_value){value->bytes, value->data}, step->scratch, &back,
                          &step->ret->diag) != 0) {
        step->ret->code = CAIRN_E_INVALID;
        step->ret->diag.code = CAIRN_E_INVALID;
        diag_add(&step->ret->diag, "tags or metrics of step %" PRIu64, id.step);
    }
    step_put_over(step, key_open(id).at, (struct record_value){0});
    if (dead != NULL) {
        step_remove_as_read(step, key_dead(id).at, dead->raw);
        put_past(step, dead);
    } else {
        step_guard_absent(step, key_dead(id).at);
    }
    if (asked->persist_ms > 0) {
        step->day.timed_saves++;
        step->day.blocked_ms += asked->blocked_ms;
        step->day.persist_ms += asked->persist_ms;
    }
    struct verdict_save *save = &step->ret->u.save;
    step->ret->id = id;
    save->state = SAVE_OPEN;
    save->open_id = open.open_id;
    save->deadline_ms = open.deadline_ms;
    save->base = open.base;
}

/* Answers if this (term, step) is committed, open or dead already. Returns true if that was the
 * answer. */
static bool open_is_answered(struct step *step, struct ckpt_id id)
{
    const struct state_commit *commit = commit_any(step->state, id);
    const struct state_open *open = state_open_find(step->state, id);
    const struct state_dead *dead = dead_find(step->state, id);
    const struct event_open *asked = &step->event->u.open;
    bool known = dead != NULL && dead->entry.open_id == asked->open_id;
    step->ret->id = id;
    if (commit != NULL) {
        step_answer_committed(step, commit);
        if (commit->forgotten) {
            step_fail(step, CAIRN_E_EXISTS,
                      "step %" PRIu64 " of term %" PRIu64
                      " was saved and then forgotten, and its number is not used again; save "
                      "another step",
                      id.step, id.term);
        }
        return true;
    }
    if (open != NULL) {
        const struct state_seal *seal = seal_find(step->state, id, asked->from.rank);
        step_answer_open(step, open);
        step->ret->u.save.sealed = seal != NULL && !seal->orphan;
        return true;
    }
    /* Rank 0 has repeated the opening that died; any other rank has not heard of it yet. */
    if (dead != NULL && known == (step->event->kind == EVENT_OPEN)) {
        step_answer_dead(step, dead);
        step->ret->proven = known; /* a rank that finds it may have missed the next opening */
        return true;
    }
    return false;
}

/* Answers DAMAGED, and returns true, if a whole checkpoint of this step is stored that the record
 * has lost: a second one would be another content under the same name (I3). The same opening that
 * made it may go on and will find it. */
static bool is_stored_already(struct step *step, struct ckpt_id id)
{
    if (unknown_other(step->state, id, step->event->u.open.open_id) == NULL) {
        return false;
    }
    char mark[DIAG_TEXT_MAX];
    state_mark_text(step->state, sizeof(mark), mark);
    step_fail(step, CAIRN_E_DAMAGED,
              "step %" PRIu64 " of term %" PRIu64
              " is stored already, although the record does not list it; save another step, and "
              "repair the record: %s",
              id.step, id.term, mark);
    return true;
}

void on_open(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_open *asked = &step->event->u.open;
    const uint64_t number = step->event->id.step;
    if (!open_is_valid(step)) {
        return;
    }
    const struct state_term *term = state_term_find(state, &asked->from.token, asked->from.ordinal);
    if (term != NULL && term->term != state->newest_term) {
        fail_fenced(step, term);
        return;
    }
    if (term != NULL && !world_agrees(step, term)) {
        return;
    }
    if (term != NULL && open_is_answered(step, (struct ckpt_id){term->term, number})) {
        return;
    }
    if (term != NULL && is_stored_already(step, (struct ckpt_id){term->term, number})) {
        return;
    }
    if (term == NULL && !grant_is_allowed(step)) {
        return;
    }
    step_create_run(step, &asked->info);
    step_guard_head(step);
    step_guard_newest(step);
    struct ckpt_id id = {term != NULL ? term->term : grant(step), number};
    open_new(step, id, term != NULL ? term->entry.parent : asked->parent);
    step_sweep(step);
    step->ret->newest_term = id.term;
}

/* Answers a rank for whose (token, ordinal) there is no term: it waits for rank 0, or is told that
 * it would wait in vain. */
static void find_without_term(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_open *asked = &step->event->u.open;
    const struct attempt_rank *from = &asked->from;
    const struct state_term *last = NULL; /* the newest term of this token */
    for (size_t i = 0; i < state->term_count; i++) {
        if (token_equal(&state->terms[i].entry.token, &from->token)) {
            last = &state->terms[i];
        }
    }
    if (last != NULL && (last->term != state->newest_term || last->entry.ordinal > from->ordinal) &&
        state->newest_term > asked->newest_seen) {
        fail_fenced(step, last);
        return;
    }
    bool removed = state->removal != NULL && state->removal->cycle == state->newest_term;
    if (last == NULL && removed && state->newest_term > asked->newest_seen) {
        fail_fenced(step, NULL);
        return;
    }
    if (last == NULL && state->newest_term > asked->newest_seen) {
        step_fail(step, CAIRN_E_TOKEN_MISMATCH,
                  "term %" PRIu64
                  " belongs to an attempt with another token than that of rank %" PRIu32
                  ": check that all ranks have the same CAIRN_ATTEMPT, and that no second job "
                  "saves to this run",
                  state->newest_term, from->rank);
        return;
    }
    step_fail(step, CAIRN_E_AGAIN, "rank 0 has not opened step %" PRIu64 " yet",
              step->event->id.step);
}

void on_find_open(struct step *step)
{
    const struct run_state *state = step->state;
    const struct attempt_rank *from = &step->event->u.open.from;
    const uint64_t number = step->event->id.step;
    if (from->rank >= from->world_size) {
        step_fail(step, CAIRN_E_INVALID,
                  "the rank is %" PRIu32 "; with a world size of %" PRIu32 " it must be lower",
                  from->rank, from->world_size);
        return;
    }
    const struct state_term *term = state_term_find(state, &from->token, from->ordinal);
    if (term == NULL) {
        find_without_term(step);
        return;
    }
    if (term->term != state->newest_term) {
        fail_fenced(step, term);
        return;
    }
    if (!world_agrees(step, term)) {
        return;
    }
    if (!open_is_answered(step, (struct ckpt_id){term->term, number})) {
        step_fail(step, CAIRN_E_AGAIN, "rank 0 has not opened step %" PRIu64 " yet", number);
    }
}

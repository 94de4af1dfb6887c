/* SPDX-License-Identifier: Apache-2.0
 *
 * Adopt: a checkpoint that is whole in the store, and that the record does not know because the
 * record was lost, cut or replaced by an older one, enters the chain again. Terms are dense, and a
 * term's parent and a commit's base have to be in the chain. So what is missing of these enters in
 * the same update: terms without a holder, and checkpoints of which only the name is known, as
 * reclaimed ones. Nothing that the record has is changed (I3). The caller has verified the manifest
 * and everything below it. An id without a term adopts the run's info alone. A code gives up a
 * checkpoint that cannot be made whole, like an aborted opening. EXISTS and CONFLICT mean that the
 * record has something else in its place. Pure.
 */
#include <string.h>

#include "core_private.h"

#include "base/check.h"

/* Returns true if the term was granted to nobody. Such a term fills a hole, and adopting one of its
 * checkpoints gives it its holder back. */
static bool is_of_nobody(const struct entry_term *entry)
{
    static const struct token zero;
    return token_equal(&entry->token, &zero) && entry->ordinal == UINT32_MAX;
}

/* Adds a guard: the term must still be as it was read. */
static void guard_term(struct step *step, const struct state_term *term)
{
    CHECK(term->term <= step->state->newest_term);
    struct buf buf;
    buf_init(&buf, LIMIT_RECORD_VALUE_BYTES);
    entry_term_encode(&term->entry, &buf);
    uint8_t *copy = buf_status(&buf) == 0 ? scratch_copy(step->scratch, buf.bytes, buf.data) : NULL;
    if (copy == NULL) {
        step_fail(step, CAIRN_E_NO_MEMORY,
                  "there is not enough memory for entering a checkpoint again");
    } else {
        step_guard_as_read(step, key_term(term->term).at,
                           (struct record_value){.bytes = buf.bytes, .data = copy});
    }
    buf_fini(&buf);
}

/* Returns an ordinal for the adopted term that its attempt does not use yet: the manifest does not
 * say which of its restores the term came after, and (token, ordinal) must name one term only. */
static uint32_t next_ordinal(const struct step *step)
{
    const struct run_state *state = step->state;
    uint32_t ordinal = step->event->u.adopt.parent.term != 0 ? 1 : 0;
    for (size_t i = 0; i < state->term_count; i++) {
        const struct entry_term *entry = &state->terms[i].entry;
        if (token_equal(&entry->token, &step->event->u.adopt.token) && entry->ordinal >= ordinal) {
            ordinal = entry->ordinal + 1;
        }
    }
    return ordinal;
}

/* Adds the term of the checkpoint, and all missing terms below it. */
static void adopt_term(struct step *step)
{
    const struct run_state *state = step->state;
    const struct event_adopt *adopt = &step->event->u.adopt;
    const uint64_t term = step->event->id.term;
    const struct state_term *known = term_of(state, term);
    struct entry_term entry = {.token = adopt->token,
                               .ordinal = next_ordinal(step),
                               .world_size = adopt->world_size,
                               .parent = adopt->parent,
                               .newest_seen = term - 1};
    step_guard_newest(step);
    if (known != NULL && !is_of_nobody(&known->entry)) {
        if (!token_equal(&known->entry.token, &adopt->token) ||
            known->entry.world_size != adopt->world_size ||
            !ckpt_id_equal(known->entry.parent, adopt->parent)) {
            step_fail(step, CAIRN_E_CONFLICT,
                      "the record has term %" PRIu64
                      " with another attempt: the term was granted twice",
                      term);
        }
        return;
    }
    if (known != NULL) {
        if (known->entered) {
            step_fail(
                step, CAIRN_E_CONFLICT,
                "the record has term %" PRIu64
                " without its attempt, and a checkpoint of that term has been entered already",
                term);
            return;
        }
        guard_term(step, known);
    } else if (term - state->newest_term > TERMS_FILL_MAX) {
        step_fail(step, CAIRN_E_DAMAGED,
                  "its term %" PRIu64 " is too far above the record's newest, %" PRIu64, term,
                  state->newest_term);
        return;
    }
    step_fill_terms(step, known != NULL ? 0 : term);
    step_put_term(step, term, &entry);
}

static uint32_t world_of(const struct step *step, uint64_t term)
{
    const struct state_term *known = term_of(step->state, term);
    bool is_own = term == step->event->id.term;
    return is_own ? step->event->u.adopt.world_size : known != NULL ? known->entry.world_size : 1;
}

/* Adds a checkpoint that the adopted one continues or was built on, and that nobody can make again.
 * It enters by its name alone, as reclaimed, so that lineage and garbage collection can go on past
 * it. */
static void adopt_gone(struct step *step, struct ckpt_id id)
{
    const struct event_adopt *adopt = &step->event->u.adopt;
    struct entry_chain commit = {.kind = CHAIN_COMMIT,
                                 .id = id,
                                 .wall_ns = step->event->wall_ns,
                                 .manifest_bytes = 1,
                                 .world_size = world_of(step, id.term)};
    struct entry_chain mark = {
        .wall_ns = step->event->wall_ns,
        .id = id,
        .actor = adopt->actor != NULL ? adopt->actor : "",
        .reason = "nothing of the checkpoint was left when the record was made again",
        .cycle = step->state->gc.cycle,
        .id_count = 1,
        .ids = &id};
    if (id.term == 0 || commit_any(step->state, id) != NULL) {
        return;
    }
    if (state_open_find(step->state, id) != NULL || ckpt_id_compare(id, step->event->id) >= 0) {
        step_fail(step, CAIRN_E_CONFLICT,
                  "it names checkpoint %s as its parent, but that checkpoint is not older",
                  ckpt_id_text(id).at);
        return;
    }
    CHECK(commit.world_size > 0);
    (void)step_append(step, &commit);
    mark.kind = CHAIN_FORGET;
    (void)step_append(step, &mark);
    mark.kind = CHAIN_RECLAIM;
    mark.cycle = 0;
    (void)step_append(step, &mark);
}

/* Adds the run's first entry to the update. The step fails if the record is of another run that had
 * the same name. */
static void put_info(struct step *step)
{
    const struct run_state *state = step->state;
    const struct entry_info *info = &step->event->u.adopt.info;
    if (state->exists) {
        if (memcmp(&state->info.run_uuid, &info->run_uuid, sizeof(info->run_uuid)) != 0) {
            step_fail(step, CAIRN_E_CONFLICT, "it belongs to another run that had this name");
        }
        return;
    }
    if (!chunk_bytes_is_valid(info->chunk_bytes)) {
        step_fail(step, CAIRN_E_INVALID,
                  "its chunk size of %" PRIu64 " bytes is not one that Cairn writes",
                  info->chunk_bytes);
        return;
    }
    step_put_info(step, info);
}

/* Answers if this checkpoint, or another one of its name, is known. Returns true if that was the
 * answer. */
static bool adopt_is_answered(struct step *step)
{
    const struct event *event = step->event;
    const uint64_t open_id = event->u.adopt.open_id;
    const struct state_commit *commit = commit_any(step->state, event->id);
    const struct state_open *open = state_open_find(step->state, event->id);
    if (commit != NULL) {
        step_answer_committed(step, commit);
        if (commit->entry.open_id != open_id) {
            step_fail(step, CAIRN_E_EXISTS, "the record has another checkpoint %s",
                      ckpt_id_text(event->id).at);
        }
        return true;
    }
    if (open != NULL && open->entry.open_id != open_id) {
        step_fail(step, CAIRN_E_CONFLICT,
                  "step %" PRIu64 " of term %" PRIu64 " is being saved again", event->id.step,
                  event->id.term);
        return true;
    }
    return false;
}

/* Returns false, with the step failed, if the manifest to adopt contradicts itself. */
static bool adopt_is_valid(struct step *step)
{
    const struct event_adopt *adopt = &step->event->u.adopt;
    const uint64_t term = step->event->id.term;
    bool good = term != 0 && adopt->open_id != 0 && adopt->world_size != 0 &&
                adopt->world_size <= LIMIT_WORLD_SIZE && adopt->entry.manifest_bytes != 0 &&
                adopt->entry.manifest_bytes <= LIMIT_MANIFEST_BYTES &&
                (adopt->parent.term == 0 || adopt->parent.term < term);
    if (!good) {
        step_fail(step, CAIRN_E_INVALID, "its manifest contradicts itself");
    }
    return good;
}

/* Notes in the record that a checkpoint is not verified. A verified one needs no entry. */
static void put_health(struct step *step, uint64_t seq)
{
    const struct event_adopt *adopt = &step->event->u.adopt;
    struct entry_health entry = {.health = adopt->health};
    if (adopt->health == HEALTH_VERIFIED) {
        return;
    }
    CHECK(adopt->health <= HEALTH_DAMAGED);
    reason_set(entry.reason, adopt->reason != NULL ? adopt->reason : "");
    entry_health_encode(&entry, step_value(step));
    step_put_over(step, key_health(seq).at, (struct record_value){0});
}

/* Removes the entries of this step from the record: its opening, which ends well, and the dead
 * entry of an older opening. */
static void end_opening(struct step *step)
{
    const struct ckpt_id id = step->event->id;
    const struct state_open *open = state_open_find(step->state, id);
    const struct state_dead *dead = dead_find(step->state, id);
    if (open != NULL) {
        step_end_open(step, open, 0, "");
    } else {
        step_guard_absent(step, key_open(id).at);
    }
    if (dead != NULL) {
        step_remove_as_read(step, key_dead(id).at, dead->raw);
    } else {
        step_guard_absent(step, key_dead(id).at);
    }
}

/* Makes the opening of the checkpoint an aborted one, because the operator gives up what cannot be
 * made whole. */
static void give_up(struct step *step)
{
    const struct event *event = step->event;
    const struct event_adopt *adopt = &event->u.adopt;
    const struct state_open *open = state_open_find(step->state, event->id);
    const struct state_dead *dead = dead_find(step->state, event->id);
    struct entry_dead entry = {.open_id = adopt->open_id, .code = adopt->code};
    CHECK(adopt->code != 0);
    put_info(step);
    if (open != NULL) {
        step_end_open(step, open, adopt->code, adopt->reason);
        return;
    }
    step_guard_absent(step, key_open(event->id).at);
    step_guard_head(step); /* guards that it is not committed */
    reason_set(entry.reason, adopt->reason != NULL ? adopt->reason : "");
    entry_dead_encode(&entry, step_value(step));
    step_put_over(step, key_dead(event->id).at,
                  dead != NULL ? dead->raw : (struct record_value){0});
    step->ret->id = event->id;
    step->ret->u.save.state = SAVE_ABORTED;
}

void on_adopt(struct step *step)
{
    const struct event *event = step->event;
    const struct event_adopt *adopt = &event->u.adopt;
    if (event->id.term == 0) { /* only the run's info */
        put_info(step);
        return;
    }
    if (adopt->code != 0) {
        if (!adopt_is_answered(step)) {
            give_up(step);
        }
        return;
    }
    if (!adopt_is_valid(step) || adopt_is_answered(step)) {
        return;
    }
    put_info(step);
    if (step->ret->code == 0) {
        adopt_term(step);
    }
    if (step->ret->code != 0) {
        return;
    }
    struct entry_chain entry = adopt->entry;
    entry.kind = CHAIN_COMMIT;
    entry.id = event->id;
    entry.wall_ns = event->wall_ns;
    entry.world_size = adopt->world_size;
    entry.open_id = adopt->open_id;
    adopt_gone(step, adopt->parent);
    if (!ckpt_id_equal(entry.base, adopt->parent)) {
        adopt_gone(step, entry.base);
    }
    end_opening(step);
    uint64_t seq = step_append(step, &entry);
    CHECK(seq > step->state->head.seq);
    struct verdict_save *save = &step->ret->u.save;
    save->note_version = step_put_note(step, seq, NULL, &adopt->note);
    put_health(step, seq);
    step->ret->id = event->id;
    save->open_id = adopt->open_id;
    save->state = SAVE_COMMITTED;
    save->seq = seq;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The update of one step under construction: guards and changes in the scratch, and the parts that
 * several transitions share. Every removal that no other guard covers is guarded by the value that
 * was read, so a stale copy of the record never removes what it has not seen. Pure.
 */
#include <string.h>

#include "base/check.h"
#include "base/utf8.h"
#include "core_private.h"
#include "format/box.h"

static void step_no_memory(struct step *step)
{
    step_fail(step, CAIRN_E_NO_MEMORY,
              "there is not enough memory for an update of the run's record");
}

/* Returns a grown copy of an array in the scratch, or NULL if the scratch is exhausted. */
static void *step_grow(struct step *step, size_t count, size_t *cap, size_t size, const void *old)
{
    CHECK(count == *cap);
    size_t grown = *cap == 0 ? STEP_GUARDS_MIN : *cap * 2;
    void *array = scratch_array(step->scratch, grown, size);
    if (array == NULL) {
        step_no_memory(step);
        return NULL;
    }
    if (count > 0) {
        memcpy(array, old, count * size);
    }
    *cap = grown;
    return array;
}

/* Returns a new guard of the update, with a copy of the key; NULL if there is no memory, with the
 * step failed. */
static struct record_guard *step_guard(struct step *step, const char *key)
{
    CHECK(strlen(key) < ENTRY_KEY_MAX);
    struct record_update *update = &step->ret->update;
    if (update->guard_count == step->guard_cap) {
        void *array = step_grow(step, update->guard_count, &step->guard_cap,
                                sizeof(*update->guards), update->guards);
        if (array == NULL) {
            return NULL;
        }
        update->guards = array;
    }
    char *copy = scratch_string(step->scratch, strlen(key), key);
    if (copy == NULL) {
        step_no_memory(step);
        return NULL;
    }
    struct record_guard *guard = &update->guards[update->guard_count++];
    *guard = (struct record_guard){.key = copy};
    return guard;
}

/* Returns a new change of the update, with a copy of the key; NULL if there is no memory, with the
 * step failed. */
static struct record_change *step_change(struct step *step, const char *key)
{
    CHECK(strlen(key) < ENTRY_KEY_MAX);
    struct record_update *update = &step->ret->update;
    if (update->change_count == step->change_cap) {
        void *array = step_grow(step, update->change_count, &step->change_cap,
                                sizeof(*update->changes), update->changes);
        if (array == NULL) {
            return NULL;
        }
        update->changes = array;
    }
    char *copy = scratch_string(step->scratch, strlen(key), key);
    if (copy == NULL) {
        step_no_memory(step);
        return NULL;
    }
    struct record_change *change = &update->changes[update->change_count++];
    *change = (struct record_change){.key = copy};
    return change;
}

void step_guard_absent(struct step *step, const char *key)
{
    struct record_guard *guard = step_guard(step, key);
    if (guard != NULL) {
        guard->absent = true;
    }
}

void step_guard_as_read(struct step *step, const char *key, struct record_value raw)
{
    struct record_guard *guard = step_guard(step, key);
    if (guard != NULL) {
        guard->absent = raw.data == NULL;
        guard->value = raw;
    }
}

struct buf *step_value(struct step *step)
{
    buf_init(&step->value, LIMIT_RECORD_VALUE_BYTES);
    return &step->value;
}

void step_put(struct step *step, const char *key)
{
    struct buf *buf = &step->value;
    int status = buf_status(buf);
    uint8_t *copy = status == 0 ? scratch_copy(step->scratch, buf->bytes, buf->data) : NULL;
    size_t bytes = buf->bytes;
    buf_fini(buf);
    if (status != 0) {
        step_fail(step, status, "the record's entry %s is larger than %zu bytes", key,
                  (size_t)LIMIT_RECORD_VALUE_BYTES);
        return;
    }
    if (copy == NULL) {
        step_no_memory(step);
        return;
    }
    CHECK(bytes > 0); /* restores in memory take an empty value for a removed key */
    struct record_change *change = step_change(step, key);
    if (change != NULL) {
        change->value = (struct record_value){.bytes = bytes, .data = copy};
    }
}

void step_remove(struct step *step, const char *key)
{
    struct record_change *change = step_change(step, key);
    if (change != NULL) {
        change->remove = true;
        step->removal_count++;
    }
}

void step_put_over(struct step *step, const char *key, struct record_value raw)
{
    step_guard_as_read(step, key, raw);
    step_put(step, key);
}

void step_remove_as_read(struct step *step, const char *key, struct record_value raw)
{
    step_guard_as_read(step, key, raw);
    step_remove(step, key);
}

bool step_may_remove(const struct step *step, size_t count)
{
    return count <= STEP_REMOVALS_MAX && step->removal_count <= STEP_REMOVALS_MAX - count;
}

void step_guard_head(struct step *step)
{
    step_guard_as_read(step, key_head().at, step->state->head_raw);
}

void step_guard_newest(struct step *step)
{
    step_guard_absent(step, key_term(step->state->newest_term + 1).at);
}

void step_create_run(struct step *step, const struct entry_info *info)
{
    const struct state_unrecorded *unrecorded = &step->state->unrecorded;
    if (step->state->exists) {
        return;
    }
    /* A new record has another uuid than the stored checkpoints, so nobody could put the two
     * together again. */
    if (state_is_marked(step->state) || unrecorded->code != 0) {
        step->ret->code = state_unrecorded_check(step->state, &step->ret->diag);
        return;
    }
    if (!chunk_bytes_is_valid(info->chunk_bytes)) {
        step_fail(step, CAIRN_E_INVALID,
                  "the run's chunk size is %" PRIu64
                  " bytes; it must be a multiple of %d, up to %d",
                  info->chunk_bytes, (int)LIMIT_CHUNK_BYTES_MIN, (int)LIMIT_CHUNK_BYTES);
        return;
    }
    step_put_info(step, info);
}

void step_put_info(struct step *step, const struct entry_info *info)
{
    entry_info_encode(info, step_value(step));
    step_put_over(step, key_info().at, (struct record_value){0});
}

void step_put_term(struct step *step, uint64_t term, const struct entry_term *entry)
{
    entry_term_encode(entry, step_value(step));
    step_put(step, key_term(term).at);
}

void step_fill_terms(struct step *step, uint64_t term)
{
    struct entry_term nobody = {.ordinal = UINT32_MAX, .world_size = 1};
    CHECK(term <= step->state->newest_term + TERMS_FILL_MAX + 1);
    for (uint64_t fill = step->state->newest_term + 1; fill < term; fill++) {
        nobody.newest_seen = fill - 1;
        CHECK(term_of(step->state, fill) == NULL);
        step_put_term(step, fill, &nobody);
    }
}

void reason_set(char ret[ENTRY_REASON_BYTES], const char *text)
{
    size_t bytes = strnlen(text, ENTRY_REASON_BYTES);
    if (bytes == ENTRY_REASON_BYTES) {
        bytes = utf8_trim(ENTRY_REASON_BYTES - 1, text);
    }
    memset(ret, 0, ENTRY_REASON_BYTES);
    memcpy(ret, text, bytes);
}

/* Removes the seals of an open entry that is guarded as read. They need no guard of their own:
 * while the opening exists, only its own seals are written there. A seal that comes in between is
 * left without an opening of its id, and is an orphan. */
static void step_remove_seals(struct step *step, const struct state_open *open)
{
    size_t count;
    const struct state_seal *seals = seals_of(step->state, open->id, &count);
    for (size_t i = 0; i < count && step_may_remove(step, 1); i++) {
        CHECK(ckpt_id_equal(seals[i].id, open->id));
        step_remove(step, key_seal(seals[i].id, seals[i].rank).at);
    }
}

void step_remove_pasts(struct step *step, struct ckpt_id id)
{
    size_t count;
    const struct state_past *pasts = pasts_of(step->state, id, &count);
    for (size_t i = 0; i < count && step_may_remove(step, 1); i++) {
        step_remove(step, key_past(id, pasts[i].open_id).at);
    }
}

void step_end_open(struct step *step, const struct state_open *open, int code, const char *reason)
{
    step_remove_as_read(step, key_open(open->id).at, open->raw);
    step_remove_seals(step, open);
    if (code == 0) {
        step_remove_pasts(step, open->id); /* the commit accounts for what is stored beside it */
        return;
    }
    step->day.saves_aborted++;
    if (step->event->kind != EVENT_ADOPT &&
        unknown_has(step->state, open->id, open->entry.open_id)) {
        return; /* it may have been committed once: only an operator may declare it dead */
    }
    struct entry_dead dead = {.open_id = open->entry.open_id, .code = code};
    reason_set(dead.reason, reason);
    entry_dead_encode(&dead, step_value(step));
    step_put(step, key_dead(open->id).at);
}

void step_sweep(struct step *step)
{
    const struct run_state *state = step->state;
    for (size_t i = 0; i < state->seal_count && step_may_remove(step, 1); i++) {
        const struct state_seal *seal = &state->seals[i];
        /* An orphan whose id is open is overwritten by that rank's seal, or removed with the
         * opening. */
        if (seal->orphan && state_open_find(state, seal->id) == NULL) {
            step_remove_as_read(step, key_seal(seal->id, seal->rank).at, seal->raw);
        }
    }
    for (size_t i = 0; i < state->report_count && step_may_remove(step, 1); i++) {
        const struct state_report *report = &state->reports[i];
        if (report->orphan) {
            struct key_text key = key_report(&report->token, report->ordinal, report->rank);
            step_remove_as_read(step, key.at, report->raw);
        }
    }
}

/* Writes the head as it will be after the appended entries: one change, however many were
 * appended. */
static void step_put_head(struct step *step)
{
    struct record_update *update = &step->ret->update;
    entry_head_encode(&step->head, step_value(step));
    step_put(step, key_head().at);
    if (step->ret->code != 0) {
        return;
    }
    if (step->head_change == 0) {
        step->head_change = update->change_count;
    } else {
        CHECK(step->head_change < update->change_count);
        CHECK(strcmp(update->changes[step->head_change - 1].key, key_head().at) == 0);
        update->changes[step->head_change - 1].value =
            update->changes[--update->change_count].value;
    }
}

uint64_t step_append(struct step *step, struct entry_chain *entry)
{
    if (step->head_change == 0) {
        step->head = step->state->head;
        step_guard_head(step);
    }
    CHECK(step->head.seq >= step->state->head.seq);
    entry->seq = step->head.seq + 1;
    entry->previous = step->head.sha256; /* all zero while the chain is empty */
    entry_chain_encode(entry, step_value(step));
    step->head.seq = entry->seq;
    if (buf_status(&step->value) == 0) {
        step->head.sha256 = sha256(step->value.bytes, step->value.data);
    }
    step_put_over(step, key_chain(entry->seq).at, (struct record_value){0});
    step_put_head(step);
    return entry->seq;
}

void step_lower_health(struct step *step, const struct state_commit *commit, enum health health,
                       const char *reason)
{
    CHECK(health <= HEALTH_DAMAGED);
    struct entry_health entry = {.health = health};
    struct key_text key = key_health(commit->entry.seq);
    reason_set(entry.reason, reason);
    /* Guarded even if the health is low enough already. */
    step_guard_as_read(step, key.at, commit->health_raw);
    if (health > commit->health) {
        entry_health_encode(&entry, step_value(step));
        step_put(step, key.at);
    }
}

void step_answer_committed(struct step *step, const struct state_commit *commit)
{
    struct verdict *ret = step->ret;
    struct verdict_save *save = &ret->u.save;
    ret->id = commit->entry.id;
    ret->proven = true;
    save->seq = commit->entry.seq;
    save->open_id = commit->entry.open_id;
    CHECK(save->seq > 0);
    save->state = commit->forgotten ? SAVE_FORGOTTEN : SAVE_COMMITTED;
}

void step_answer_open(struct step *step, const struct state_open *open)
{
    CHECK(open->sealed_count <= open->world_size);
    step->ret->id = open->id;
    step->ret->u.save = (struct verdict_save){.state = SAVE_OPEN,
                                              .open_id = open->entry.open_id,
                                              .deadline_ms = open->entry.deadline_ms,
                                              .base = open->entry.base,
                                              .all_sealed = open->sealed_count == open->world_size};
}

void step_answer_dead(struct step *step, const struct state_dead *dead)
{
    struct verdict_save *save = &step->ret->u.save;
    save->state = SAVE_ABORTED;
    save->open_id = dead->entry.open_id;
    save->dead_code = dead->entry.code;
    step->ret->proven = true;
    step_fail(step, CAIRN_E_ABORTED, "%s", dead->entry.reason);
}

void step_answer_not_open(struct step *step, uint64_t open_id)
{
    struct verdict_save *save = &step->ret->u.save;
    struct ckpt_id id = step->event->id;
    const struct state_commit *commit = commit_any(step->state, id);
    const struct state_dead *dead = dead_find(step->state, id);
    if (commit != NULL) {
        step_answer_committed(step, commit);
        if (commit->entry.open_id != open_id) {
            step_fail(step, CAIRN_E_EXISTS,
                      "step %" PRIu64 " of term %" PRIu64 " was saved by another opening", id.step,
                      id.term);
        }
        return;
    }
    save->state = SAVE_ABORTED;
    save->open_id = open_id;
    if (id.term < step->state->newest_term) {
        step->ret->proven = true;
        step_fail(step, CAIRN_E_FENCED,
                  "term %" PRIu64 " is fenced: term %" PRIu64 " was granted since", id.term,
                  step->state->newest_term);
    } else if (dead != NULL && dead->entry.open_id == open_id) {
        step_answer_dead(step, dead);
    } else if (term_of(step->state, id.term) == NULL) {
        save->state = SAVE_NONE;
        step_fail(step, CAIRN_E_NOT_FOUND, "term %" PRIu64 " was never granted", id.term);
    } else {
        step_fail(step, CAIRN_E_ABORTED,
                  "this save of step %" PRIu64 " of term %" PRIu64 " was aborted; save again",
                  id.step, id.term);
    }
}

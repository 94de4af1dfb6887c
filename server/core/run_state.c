/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes a run's record and checks that it is consistent: the chain of permanent entries by number
 * and hash up to the head, terms without a hole, and the term of every entry. A record that fails
 * here is damaged, and nothing in it is believed (I2, I4). What a race may leave behind (seals of
 * an opening that is gone, openings of a fenced term) is no damage; it is marked and has no effect.
 * Pure.
 */
#include "core/commit.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "core_private.h"

struct health_mark {
    uint64_t seq;
    struct entry_health entry;
    struct record_value raw;
};

struct note_mark {
    uint64_t seq;
    struct entry_note entry;
    struct record_value raw;
};

struct left_mark {
    uint64_t term;
    int64_t wall_ns; /* 0 if the entry cannot be read */
};

struct loader {
    struct scratch *scratch;
    struct diag *diag;
    struct run_state state;
    bool has_head;
    uint64_t chain_seq;
    struct sha256 chain_sha256; /* hash of the preceding chain entry */
    size_t mark_count, health_count, note_count, left_count;
    struct entry_chain *marks; /* the chain entries that are about commits */
    struct health_mark *healths;
    struct note_mark *notes;
    struct left_mark *lefts;
};

static int no_memory(struct loader *loader)
{
    return diag_no_memory(loader->diag, "decoding the run's record");
}

static int damaged(struct loader *loader, const char *what, uint64_t number)
{
    return diag_set(loader->diag, CAIRN_E_DAMAGED, "the run's record: %s (%" PRIu64 ")", what,
                    number);
}

/* Allocates room for all entries of each kind, and for one more, so that no array is NULL. */
static int load_count(struct loader *loader, const struct record *record)
{
    size_t counts[ENTRY_UNKNOWN + 1] = {0};
    size_t count = record_count(record);
    for (size_t i = 0; i < count; i++) {
        struct record_value value;
        struct entry_key key;
        const char *text = record_at(record, i, &value);
        int status = entry_key_parse(text, &key, loader->diag);
        if (status != 0) {
            return status;
        }
        counts[key.kind]++;
    }
    struct run_state *state = &loader->state;
    struct scratch *scratch = loader->scratch;
    state->terms = scratch_array(scratch, counts[ENTRY_TERM] + 1, sizeof(*state->terms));
    state->opens = scratch_array(scratch, counts[ENTRY_OPEN] + 1, sizeof(*state->opens));
    state->seals = scratch_array(scratch, counts[ENTRY_SEAL] + 1, sizeof(*state->seals));
    state->commits = scratch_array(scratch, counts[ENTRY_CHAIN] + 1, sizeof(*state->commits));
    state->by_id = scratch_array(scratch, counts[ENTRY_CHAIN] + 1, sizeof(*state->by_id));
    state->deads = scratch_array(scratch, counts[ENTRY_DEAD] + 1, sizeof(*state->deads));
    state->pasts = scratch_array(scratch, counts[ENTRY_PAST] + 1, sizeof(*state->pasts));
    state->restores = scratch_array(scratch, counts[ENTRY_RESTORE] + 1, sizeof(*state->restores));
    state->reports = scratch_array(scratch, counts[ENTRY_REPORT] + 1, sizeof(*state->reports));
    state->days = scratch_array(scratch, counts[ENTRY_DAY] + 1, sizeof(*state->days));
    state->ended = scratch_array(scratch, counts[ENTRY_ENDED] + 1, sizeof(*state->ended));
    state->owners = scratch_array(scratch, counts[ENTRY_OWNER] + 1, sizeof(*state->owners));
    loader->marks = scratch_array(scratch, counts[ENTRY_CHAIN] + 1, sizeof(*loader->marks));
    loader->healths = scratch_array(scratch, counts[ENTRY_HEALTH] + 1, sizeof(*loader->healths));
    loader->notes = scratch_array(scratch, counts[ENTRY_NOTE] + 1, sizeof(*loader->notes));
    loader->lefts = scratch_array(scratch, counts[ENTRY_LEFT] + 1, sizeof(*loader->lefts));
    bool whole = state->terms != NULL && state->opens != NULL && state->seals != NULL &&
                 state->commits != NULL && state->by_id != NULL && state->deads != NULL &&
                 state->pasts != NULL && state->restores != NULL && state->reports != NULL &&
                 state->days != NULL && state->ended != NULL && state->owners != NULL &&
                 loader->marks != NULL && loader->healths != NULL && loader->notes != NULL &&
                 loader->lefts != NULL;
    return whole ? 0 : no_memory(loader);
}

/* Copies a value into the scratch, because the state outlives the next update of the record. */
static int copy_raw(struct loader *loader, struct record_value value, struct record_value *ret)
{
    uint8_t *data = scratch_copy(loader->scratch, value.bytes, value.data);
    if (data == NULL) {
        return no_memory(loader);
    }
    *ret = (struct record_value){.bytes = value.bytes, .data = data};
    return 0;
}

/* Loads one chain entry and checks its number and hashes, so that an entry that was changed, lost,
 * added or moved is found. */
static int load_chain(struct loader *loader, const struct entry_key *key, struct record_value value)
{
    struct entry_chain entry;
    int status = entry_chain_decode(value, loader->scratch, &entry, loader->diag);
    if (status != 0) {
        return status;
    }
    if (entry.seq != key->seq || entry.seq != loader->chain_seq + 1) {
        return damaged(loader, "the chain of entries has a gap or a misplaced entry at number",
                       loader->chain_seq + 1);
    }
    if (memcmp(&entry.previous, &loader->chain_sha256, sizeof(entry.previous)) != 0) {
        return damaged(
            loader, "the chain is broken: the hash of the previous entry does not match at number",
            entry.seq);
    }
    loader->chain_seq = entry.seq;
    loader->chain_sha256 = sha256(value.bytes, value.data);
    struct run_state *state = &loader->state;
    if (entry.kind == CHAIN_COMMIT) {
        state->commits[state->commit_count++] =
            (struct state_commit){.entry = entry, .health_reason = ""};
    } else {
        loader->marks[loader->mark_count++] = entry;
    }
    return 0;
}

/* Loads an entry of which the record has at most one. */
static int load_single(struct loader *loader, enum entry_kind kind, struct record_value raw)
{
    struct run_state *state = &loader->state;
    struct scratch *scratch = loader->scratch;
    if (kind == ENTRY_INFO) {
        state->exists = true;
        state->info_raw = raw;
        return entry_info_decode(raw, scratch, &state->info, loader->diag);
    }
    if (kind == ENTRY_HEAD) {
        loader->has_head = true;
        state->head_raw = raw;
        return entry_head_decode(raw, scratch, &state->head, loader->diag);
    }
    if (kind == ENTRY_GC) {
        state->gc_raw = raw;
        return entry_gc_decode(raw, scratch, &state->gc, loader->diag);
    }
    CHECK(kind == ENTRY_USE);
    state->use_raw = raw;
    return entry_use_decode(raw, scratch, &state->use, loader->diag);
}

/* Loads an entry of a save that is not committed: its opening, a seal, or what is noted of an
 * aborted one. */
static int load_save_entry(struct loader *loader, const struct entry_key *key,
                           struct record_value raw)
{
    struct run_state *state = &loader->state;
    struct scratch *scratch = loader->scratch;
    struct diag *diag = loader->diag;
    if (key->kind == ENTRY_OPEN) {
        struct state_open *open = &state->opens[state->open_count++];
        *open = (struct state_open){.id = key->id, .raw = raw};
        return entry_open_decode(raw, scratch, &open->entry, diag);
    }
    if (key->kind == ENTRY_SEAL) {
        struct state_seal *seal = &state->seals[state->seal_count++];
        *seal = (struct state_seal){.id = key->id, .rank = key->rank, .orphan = true, .raw = raw};
        return entry_seal_decode(raw, scratch, &seal->entry, diag);
    }
    CHECK(key->kind == ENTRY_DEAD);
    struct state_dead *dead = &state->deads[state->dead_count++];
    *dead = (struct state_dead){.id = key->id, .raw = raw};
    return entry_dead_decode(raw, scratch, &dead->entry, diag);
}

/* Loads an entry that is neither of the chain nor of an open save: a term, a restore session and
 * others. */
static int load_other_entry(struct loader *loader, const struct entry_key *key,
                            struct record_value raw)
{
    struct run_state *state = &loader->state;
    struct scratch *scratch = loader->scratch;
    struct diag *diag = loader->diag;
    if (key->kind == ENTRY_TERM) {
        struct state_term *term = &state->terms[state->term_count++];
        *term = (struct state_term){.term = key->id.term};
        return entry_term_decode(raw, scratch, &term->entry, diag);
    }
    if (key->kind == ENTRY_HEALTH) {
        struct health_mark *health = &loader->healths[loader->health_count++];
        *health = (struct health_mark){.seq = key->seq, .raw = raw};
        return entry_health_decode(raw, scratch, &health->entry, diag);
    }
    if (key->kind == ENTRY_NOTE) {
        struct note_mark *note = &loader->notes[loader->note_count++];
        *note = (struct note_mark){.seq = key->seq, .raw = raw};
        return entry_note_decode(raw, scratch, &note->entry, diag);
    }
    if (key->kind == ENTRY_DAY) {
        struct state_day *day = &state->days[state->day_count++];
        *day = (struct state_day){.day = key->seq, .raw = raw};
        return entry_day_decode(raw, scratch, &day->entry, diag);
    }
    if (key->kind == ENTRY_ENDED) {
        state->ended[state->ended_count++] = (struct state_ended){.number = key->seq, .raw = raw};
        return 0;
    }
    if (key->kind == ENTRY_OWNER) {
        state->owners[state->owner_count++] =
            (struct state_owner){.term = key->id.term, .raw = raw};
        return 0;
    }
    if (key->kind == ENTRY_RESTORE) {
        struct state_restore *restore = &state->restores[state->restore_count++];
        *restore = (struct state_restore){.token = key->token, .ordinal = key->ordinal, .raw = raw};
        return entry_restore_decode(raw, scratch, &restore->entry, diag);
    }
    CHECK(key->kind == ENTRY_REPORT);
    struct state_report *report = &state->reports[state->report_count++];
    *report = (struct state_report){.token = key->token,
                                    .ordinal = key->ordinal,
                                    .rank = key->rank,
                                    .orphan = true,
                                    .raw = raw};
    return entry_report_decode(raw, scratch, &report->entry, diag);
}

/* Notes that the attempt of a term ended in order. This only says what the next start is called, so
 * an entry that cannot be read loses its time and nothing else. */
static void load_left(struct loader *loader, uint64_t term, struct record_value value)
{
    struct left_mark *left = &loader->lefts[loader->left_count++];
    struct entry_left entry;
    left->term = term;
    left->wall_ns =
        entry_left_decode(value, loader->scratch, &entry, NULL) == 0 ? entry.wall_ns : 0;
}

/* Loads one entry of the record by the kind of its key. */
static int load_entry(struct loader *loader, const char *key_text, struct record_value value)
{
    struct entry_key key;
    struct record_value raw = {0};
    int status = entry_key_parse(key_text, &key, loader->diag);
    if (status == 0 && key.kind != ENTRY_CHAIN && key.kind != ENTRY_LEFT &&
        key.kind != ENTRY_PAST && key.kind != ENTRY_UNKNOWN) {
        status = copy_raw(loader, value, &raw);
    }
    if (status != 0) {
        return status;
    }
    switch (key.kind) {
    case ENTRY_INFO:
    case ENTRY_HEAD:
    case ENTRY_GC:
    case ENTRY_USE:
        return load_single(loader, key.kind, raw);
    case ENTRY_CHAIN:
        return load_chain(loader, &key, value);
    case ENTRY_OPEN:
    case ENTRY_SEAL:
    case ENTRY_DEAD:
        return load_save_entry(loader, &key, raw);
    case ENTRY_TERM:
    case ENTRY_HEALTH:
    case ENTRY_RESTORE:
    case ENTRY_REPORT:
    case ENTRY_NOTE:
    case ENTRY_DAY:
    case ENTRY_ENDED:
    case ENTRY_OWNER:
        return load_other_entry(loader, &key, raw);
    case ENTRY_LEFT:
        load_left(loader, key.id.term, value);
        return 0;
    case ENTRY_PAST:
        loader->state.pasts[loader->state.past_count++] =
            (struct state_past){.id = key.id, .open_id = key.seq};
        return 0;
    case ENTRY_UNKNOWN:
        return 0; /* an entry of a newer version: kept and not touched */
    }
    UNREACHABLE();
}

/* Checks that the chain has no gap and ends where the head says. */
static int check_chain(struct loader *loader)
{
    struct run_state *state = &loader->state;
    if (!loader->has_head) {
        return loader->chain_seq == 0
                   ? 0
                   : damaged(loader, "the chain of entries has no head; number of entries",
                             loader->chain_seq);
    }
    if (state->head.seq != loader->chain_seq) {
        return damaged(
            loader,
            "the chain of entries is shorter or longer than its head says; the head's number is",
            state->head.seq);
    }
    if (memcmp(&state->head.sha256, &loader->chain_sha256, sizeof(struct sha256)) != 0) {
        return damaged(
            loader, "the newest entry of the chain does not match the hash in the head at number",
            state->head.seq);
    }
    return 0;
}

static int compare_by_id(const void *a, const void *b)
{
    const struct state_commit *const *left = a, *const *right = b;
    return ckpt_id_compare((*left)->entry.id, (*right)->entry.id);
}

/* Applies a chain entry to one of its commits. Returns false if the entry cannot follow the
 * commit's state. */
static bool mark_fits(struct state_commit *commit, const struct entry_chain *mark)
{
    bool fits = false;
    switch ((enum chain_kind)mark->kind) {
    case CHAIN_FORGET:
        fits = !commit->forgotten && !commit->pinned;
        commit->forgotten = true;
        commit->forgotten_cycle = mark->cycle;
        commit->mark = mark;
        break;
    case CHAIN_UNDELETE:
        fits = commit->forgotten && !commit->reclaimed;
        commit->forgotten = false;
        commit->mark = mark;
        break;
    case CHAIN_RECLAIM:
        fits = commit->forgotten && !commit->reclaimed;
        commit->reclaimed = true;
        commit->reclaim_mark = mark;
        break;
    case CHAIN_PIN:
        fits = !commit->forgotten && !commit->pinned;
        commit->pinned = true;
        commit->pin_mark = mark;
        break;
    case CHAIN_UNPIN:
        fits = commit->pinned;
        commit->pinned = false;
        commit->pin_mark = mark;
        break;
    case CHAIN_REPAIR:
        fits = !commit->reclaimed;
        commit->repaired_seq = mark->seq;
        break;
    case CHAIN_COMMIT:
    case CHAIN_REMOVE:
        break;
    }
    CHECK(!commit->reclaimed || commit->forgotten || !fits);
    return fits;
}

/* Applies a chain entry that forgets, undeletes, pins or reclaims checkpoints to the checkpoints it
 * names. */
static int apply_mark(struct loader *loader, const struct entry_chain *mark)
{
    const struct ckpt_id *ids = mark->id_count > 0 ? mark->ids : &mark->id;
    size_t count = mark->kind == CHAIN_REMOVE ? 0 : mark->id_count > 0 ? mark->id_count : 1;
    for (size_t i = 0; i < count; i++) {
        struct state_commit *commit = commit_any(&loader->state, ids[i]);
        if (commit == NULL || commit->entry.seq > mark->seq) {
            return damaged(loader,
                           "an entry names a checkpoint that was never committed, at number",
                           mark->seq);
        }
        if (!mark_fits(commit, mark)) {
            return damaged(loader,
                           "an entry forgets, brings back, reclaims or pins a checkpoint that is "
                           "already in that state, at number",
                           mark->seq);
        }
    }
    return 0;
}

static struct state_commit *commit_by_seq(struct run_state *state, uint64_t seq)
{
    size_t low = 0, high = state->commit_count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (state->commits[mid].entry.seq < seq) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < state->commit_count && state->commits[low].entry.seq == seq ? &state->commits[low]
                                                                             : NULL;
}

/* Gives each note to its checkpoint. */
static int check_notes(struct loader *loader)
{
    for (size_t i = 0; i < loader->note_count; i++) {
        const struct note_mark *note = &loader->notes[i];
        struct state_commit *commit = commit_by_seq(&loader->state, note->seq);
        if (commit == NULL) {
            return damaged(loader, "a note names a checkpoint that does not exist, number",
                           note->seq);
        }
        commit->note = &note->entry;
        commit->note_raw = note->raw;
    }
    return 0;
}

/* Sorts the checkpoints by id, checks them and their bases, and applies to them the chain's marks,
 * their health and their notes. */
static int check_commits(struct loader *loader)
{
    struct run_state *state = &loader->state;
    for (size_t i = 0; i < state->commit_count; i++) {
        state->by_id[i] = &state->commits[i];
    }
    qsort(state->by_id, state->commit_count, sizeof(struct state_commit *), compare_by_id);
    for (size_t i = 1; i < state->commit_count; i++) {
        if (ckpt_id_equal(state->by_id[i - 1]->entry.id, state->by_id[i]->entry.id)) {
            return damaged(loader, "a checkpoint is committed twice, at number",
                           state->by_id[i]->entry.seq);
        }
    }
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct entry_chain *entry = &state->commits[i].entry;
        const struct state_commit *base =
            entry->base.term != 0 ? commit_any(state, entry->base) : NULL;
        if (entry->base.term != 0 && (base == NULL || base->entry.seq >= entry->seq)) {
            return damaged(loader, "the base of a commit was not committed before it, at number",
                           entry->seq);
        }
    }
    for (size_t i = 0; i < loader->mark_count; i++) {
        int status = apply_mark(loader, &loader->marks[i]);
        if (status != 0) {
            return status;
        }
    }
    for (size_t i = 0; i < loader->health_count; i++) {
        const struct health_mark *health = &loader->healths[i];
        struct state_commit *commit = commit_by_seq(state, health->seq);
        if (commit == NULL || health->entry.health > HEALTH_DAMAGED) {
            return damaged(loader, "a health entry names a checkpoint that does not exist, number",
                           health->seq);
        }
        commit->health = (enum health)health->entry.health;
        commit->health_raw = health->raw;
        commit->health_reason = health->entry.reason;
    }
    return check_notes(loader);
}

/* Checks that the terms count up from 1, and that each entry and each commit fits its term. Notes
 * which terms have committed anything. */
static int check_terms(struct loader *loader)
{
    struct run_state *state = &loader->state;
    for (size_t i = 0; i < state->term_count; i++) {
        const struct state_term *term = &state->terms[i];
        const struct entry_term *entry = &term->entry;
        if (term->term != i + 1) {
            return damaged(loader, "a term is missing, number", i + 1);
        }
        if (entry->world_size == 0 || entry->world_size > LIMIT_WORLD_SIZE ||
            entry->newest_seen + 1 != term->term) {
            return damaged(loader, "a term's entry contradicts itself, number", term->term);
        }
        if (entry->parent.term != 0 &&
            (entry->parent.term >= term->term || commit_any(state, entry->parent) == NULL)) {
            return damaged(loader, "a term's parent was never committed; term", term->term);
        }
    }
    state->newest_term = state->term_count;
    for (size_t i = 0; i < loader->left_count; i++) {
        const struct left_mark *left = &loader->lefts[i];
        if (left->term >= 1 && left->term <= state->term_count) { /* others mean nothing */
            state->terms[left->term - 1].left = true;
            state->terms[left->term - 1].left_wall_ns = left->wall_ns;
        }
    }
    for (size_t i = 0; i < state->commit_count; i++) {
        const struct entry_chain *commit = &state->commits[i].entry;
        const struct state_term *term = term_of(state, commit->id.term);
        if (term == NULL || term->entry.world_size != commit->world_size) {
            return damaged(loader, "a commit does not fit its term, at number", commit->seq);
        }
        state->terms[commit->id.term - 1].entered = true;
        state->newest_entered = max_u64(state->newest_entered, commit->id.term);
    }
    if (!state->exists && (state->term_count > 0 || state->restore_count > 0)) {
        return damaged(loader, "the run's info entry is missing; number of terms",
                       state->term_count);
    }
    return 0;
}

/* Finds out whether the run is removed: see run_state. */
static int check_removal(struct loader *loader)
{
    struct run_state *state = &loader->state;
    const struct entry_chain *removal = NULL;
    for (size_t i = 0; i < loader->mark_count; i++) {
        const struct entry_chain *mark = &loader->marks[i];
        removal = mark->kind == CHAIN_REMOVE ? mark : mark->kind == CHAIN_UNDELETE ? NULL : removal;
    }
    if (removal != NULL && removal->cycle > state->newest_term) {
        return damaged(loader, "a removal names a term that was not granted, at number",
                       removal->seq);
    }
    size_t count = state->commit_count;
    bool stands =
        removal != NULL && (count == 0 || state->commits[count - 1].entry.seq < removal->seq);
    state->removal = stands ? removal : NULL;
    state->removed = stands && state->newest_term == removal->cycle;
    return 0;
}

/* Checks the open saves and counts their seals. A seal of an earlier opening of the same save stays
 * an orphan. */
static int check_saves(struct loader *loader)
{
    struct run_state *state = &loader->state;
    for (size_t i = 0; i < state->open_count; i++) {
        struct state_open *open = &state->opens[i];
        const struct state_term *term = term_of(state, open->id.term);
        if (term == NULL || commit_any(state, open->id) != NULL) {
            return damaged(loader, "an open save has an unknown term or a committed step, number",
                           open->id.step);
        }
        open->world_size = term->entry.world_size;
    }
    size_t at = 0;
    for (size_t i = 0; i < state->seal_count; i++) { /* seals and openings are both sorted by key */
        struct state_seal *seal = &state->seals[i];
        while (at < state->open_count && ckpt_id_compare(state->opens[at].id, seal->id) < 0) {
            at++;
        }
        struct state_open *open = at < state->open_count ? &state->opens[at] : NULL;
        if (open == NULL || !ckpt_id_equal(open->id, seal->id) ||
            open->entry.open_id != seal->entry.open_id) {
            continue;
        }
        if (seal->rank >= open->world_size) {
            return damaged(loader, "a seal belongs to a rank beyond the world size, rank",
                           seal->rank);
        }
        seal->orphan = false;
        open->sealed_count++;
    }
    return 0;
}

/* Checks that each restore session fits the terms and the checkpoints. */
static int check_restores(struct loader *loader)
{
    struct run_state *state = &loader->state;
    for (size_t i = 0; i < state->restore_count; i++) {
        const struct entry_restore *entry = &state->restores[i].entry;
        bool empty = entry->id.term == 0;
        if (entry->world_size == 0 || entry->world_size > LIMIT_WORLD_SIZE ||
            entry->state < RESTORE_RUNNING || entry->state > RESTORE_FAILED ||
            entry->newest_term > state->newest_term ||
            (empty ? entry->state != RESTORE_OK : commit_any(state, entry->id) == NULL)) {
            return damaged(loader, "a restore session contradicts itself; ordinal",
                           state->restores[i].ordinal);
        }
    }
    for (size_t i = 0; i < state->report_count; i++) {
        struct state_report *report = &state->reports[i];
        const struct state_restore *session =
            state_restore_find(state, &report->token, report->ordinal);
        report->orphan = session == NULL || session->entry.state != RESTORE_RUNNING ||
                         report->rank >= session->entry.world_size ||
                         report->entry.try_count != session->entry.try_count;
    }
    return 0;
}

/* Checks the order of what was decoded, which all look-ups rely on. The record is a map, whose keys
 * have digits of fixed width, so its entries come in this order whatever a file held. */
static void check_state(const struct run_state *state)
{
    CHECK(state->newest_term == state->term_count);
    CHECK(state->newest_entered <= state->newest_term);
    for (size_t i = 0; i < state->open_count; i++) {
        CHECK(state->opens[i].sealed_count <= state->opens[i].world_size);
        CHECK(i == 0 || ckpt_id_compare(state->opens[i - 1].id, state->opens[i].id) < 0);
    }
    for (size_t i = 1; i < state->seal_count; i++) {
        int order = ckpt_id_compare(state->seals[i - 1].id, state->seals[i].id);
        CHECK(order < 0 || (order == 0 && state->seals[i - 1].rank < state->seals[i].rank));
    }
    for (size_t i = 1; i < state->commit_count; i++) {
        CHECK(state->commits[i - 1].entry.seq < state->commits[i].entry.seq);
        CHECK(ckpt_id_compare(state->by_id[i - 1]->entry.id, state->by_id[i]->entry.id) < 0);
    }
    for (size_t i = 1; i < state->dead_count; i++) {
        CHECK(ckpt_id_compare(state->deads[i - 1].id, state->deads[i].id) < 0);
    }
    for (size_t i = 1; i < state->day_count; i++) {
        CHECK(state->days[i - 1].day < state->days[i].day);
    }
}

int run_state_load(const struct record *record, struct scratch *scratch, struct run_state *ret,
                   struct diag *diag)
{
    static int (*const checks[])(struct loader * loader) = {
        check_chain, check_commits, check_terms, check_removal, check_saves, check_restores};
    struct loader loader = {.scratch = scratch, .diag = diag};
    int status = load_count(&loader, record);
    size_t count = record_count(record);
    for (size_t i = 0; status == 0 && i < count; i++) {
        struct record_value value;
        const char *key = record_at(record, i, &value);
        status = load_entry(&loader, key, value);
        if (status != 0) {
            diag_add(diag, "the run's record, entry \"%s\"", key);
        }
    }
    for (size_t i = 0; status == 0 && i < ARRAY_LEN(checks); i++) {
        status = checks[i](&loader);
    }
    if (status != 0) {
        return status;
    }
    loader.state.marks = loader.marks;
    loader.state.mark_count = loader.mark_count;
    lineage_mark(&loader.state);
    check_state(&loader.state);
    *ret = loader.state;
    return 0;
}

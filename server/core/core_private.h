/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the core share: one step, that is one event being decided on one state, with
 * its update under construction; and look-ups that only transitions need. Pure.
 *
 * Rule of every transition: each key that the decision has read, and that somebody else could
 * change, stands among the guards. README.md has the table.
 */
#ifndef CAIRN_CORE_CORE_PRIVATE_H
#define CAIRN_CORE_CORE_PRIVATE_H

#include "core/commit.h"

#include <inttypes.h>

/* Removals of one update are bounded, so that it stays below LIMIT_RECORD_UPDATE_BYTES at any world
 * size. What is left behind is void by itself (see `orphan`) and goes with a later update. */
enum { STEP_REMOVALS_MAX = 32768, STEP_GUARDS_MIN = 16 };

enum {
    TERMS_FILL_MAX = 1024, /* terms of nobody that one event puts into the record */
    PASTS_MAX = 256,       /* aborted openings of one step that are known */
    DEADS_MAX = 4096,      /* dead entries of fenced terms that stay without garbage collection */
};

struct step {
    const struct run_state *state;
    const struct event *event;
    struct scratch *scratch;
    struct verdict *ret;
    size_t guard_cap, change_cap, removal_count;
    struct entry_day day;   /* what this step adds to its day's counts */
    size_t head_change;     /* index + 1 among the changes; 0: nothing was appended yet */
    struct entry_head head; /* behind what was appended */
};

/* --- the update; after a failure (out of scratch, too large) ret->code is set and the rest is
 * ignored --- */
void step_guard_absent(struct step *step, const char *key);
/* The key still has the value that the state was read from; absent where raw has no data. */
void step_guard_as_read(struct step *step, const char *key, struct record_value raw);
/* Takes what is in buf, and ends buf. */
void step_put(struct step *step, const char *key, struct buf *buf);
void step_remove(struct step *step, const char *key);
bool step_may_remove(const struct step *step, size_t count);

/* --- guards and changes that several transitions have in common --- */
void step_guard_head(struct step *step);
/* No term after the newest one that was read: what is decided for it is not for a fenced one. */
void step_guard_newest(struct step *step);
/* The run's info, where it does not exist yet. */
void step_create_run(struct step *step);
void step_put_term(struct step *step, uint64_t term, const struct entry_term *entry);
/* Terms of nobody between the newest one and `term`: terms are dense. */
void step_fill_terms(struct step *step, uint64_t term);
/* Removes an open entry (guarded as read) and its seals; writes the dead entry unless code is 0. */
void step_end_open(struct step *step, const struct state_open *open, int code, const char *reason);
/* Removes what is known of aborted openings of a step. */
void step_remove_pasts(struct step *step, struct ckpt_id id);
/* Removes what races left behind: opens of fenced terms, seals and reports of what is gone. */
void step_sweep(struct step *step);
/* Appends to the chain: fills seq and previous, raises the head. Returns the seq. May be repeated.
 */
uint64_t step_append(struct step *step, struct entry_chain *entry);
/* Lowers the health of a commit; a better one than it has is not taken. */
void step_lower_health(struct step *step, const struct state_commit *commit, enum health health,
                       const char *reason);

/* Writes the note of the chain entry `seq` with the change, guarded as read; nothing where it
 * changes nothing. The note's version afterwards. */
uint64_t step_put_note(struct step *step, uint64_t seq, const struct state_commit *commit,
                       const struct note_change *change);

/* commit_day.c: writes step->day into the day of the event's wall time, guarded as read. Last of
 * all, and nothing when there is nothing to count. */
void step_put_day(struct step *step);

/* As much of a text as an entry holds, cut between characters. */
void reason_set(char ret[ENTRY_REASON_BYTES], const char *text);

/* What a save of this term may refer through, its parent's checkpoint where the term has none of
 * its own yet; term 0: it must be full. Guards what the choice read. */
struct ckpt_id step_choose_base(struct step *step, uint64_t term, struct ckpt_id parent);

/* --- answers --- */
#define step_fail(step, ...) ((step)->ret->code = diag_set(&(step)->ret->diag, __VA_ARGS__))
/* (term, step) is in the chain: fills state, seq, open_id. */
void step_answer_committed(struct step *step, const struct state_commit *commit);
/* Why the opening event->open_id of event->id is not open: committed, ABORTED, FENCED. */
void step_answer_not_open(struct step *step);
/* ABORTED, with the reason that was left behind. */
void step_answer_dead(struct step *step, const struct state_dead *dead);
void step_answer_open(struct step *step, const struct state_open *open);

/* --- look-ups --- */
/* Forgotten ones too. */
struct state_commit *commit_any(const struct run_state *state, struct ckpt_id id);
/* First of the openings of the step that were aborted before its last, and how many. */
const struct state_past *pasts_of(const struct run_state *state, struct ckpt_id id,
                                  size_t *ret_count);
const struct state_dead *dead_find(const struct run_state *state, struct ckpt_id id);
/* First of the seals with this id (by rank, orphans among them), and how many. */
const struct state_seal *seals_of(const struct run_state *state, struct ckpt_id id,
                                  size_t *ret_count);
const struct state_report *reports_of(const struct run_state *state,
                                      const struct state_restore *session, size_t *ret_count);
const struct state_term *term_of(const struct run_state *state,
                                 uint64_t term); /* NULL: not granted */
/* The next older one that is not forgotten among its own ancestors, itself included; NULL: none. */
const struct state_commit *ancestor_kept(const struct run_state *state, struct ckpt_id from);
/* The next older good one than `from` among its own ancestors; NULL: none. */
const struct state_commit *ancestor_below(const struct run_state *state, struct ckpt_id from);
/* "12@3, 10@3" of the ancestors of `from` and itself that are not good. */
void ancestors_damaged(const struct run_state *state, struct ckpt_id from, size_t bytes, char *ret);
/* The newest that is not forgotten on the lineage, whatever its health. */
const struct state_commit *lineage_newest(const struct run_state *state);
void lineage_mark(struct run_state *state);

/* --- beside.c --- */
/* What is stored as `id` by another opening than open_id, of which the record does not tell. */
const struct state_unknown *unknown_other(const struct run_state *state, struct ckpt_id id,
                                          uint64_t open_id);
/* What is stored as `id`, by this very opening. */
bool unknown_has(const struct run_state *state, struct ckpt_id id, uint64_t open_id);
/* It may be what the selector means. */
bool unknown_may_be(const struct run_state *state, const struct selector *selector);
/* The newest term that was ever granted, as far as record and medium tell. */
uint64_t term_high_water(const struct run_state *state);

/* --- restore sessions, for garbage collection --- */

/* A session that nobody ends: over, so that it holds no checkpoint. */
void session_expire(struct step *step, const struct state_restore *session, const char *reason);

/* --- the transitions, one file each group --- */
void on_create(struct step *step);
void on_open(struct step *step);
void on_find_open(struct step *step);
void on_seal(struct step *step);
void on_commit(struct step *step);
void on_abort(struct step *step);
void on_restore_begin(struct step *step);
void on_restore_report(struct step *step);
void on_health(struct step *step);
void on_annotate(struct step *step);
void on_forget(struct step *step);
void on_undelete(struct step *step);
void on_repair(struct step *step);
void on_pin(struct step *step);
void on_gc_cycle(struct step *step);
void on_reclaim(struct step *step);
void on_adopt(struct step *step);
void on_bury(struct step *step);

#endif

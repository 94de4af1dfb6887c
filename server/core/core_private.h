/* SPDX-License-Identifier: Apache-2.0
 *
 * Types and helpers that the files of the core share. A step is one event that is being decided on
 * one state; it holds the update under construction. Below are also the look-ups that only
 * transitions need. Pure.
 *
 * Rule of every transition: each key that the decision has read, and that another driver could
 * change, is among the guards. README.md has the table.
 */
#ifndef CAIRN_CORE_CORE_PRIVATE_H
#define CAIRN_CORE_CORE_PRIVATE_H

#include "core/commit.h"

#include <inttypes.h>

/* The removals of one update are bounded, so that the update stays below LIMIT_RECORD_UPDATE_BYTES
 * at any world size. Entries that stay behind have no effect (see `orphan`) and are removed by a
 * later update. */
enum { STEP_REMOVALS_MAX = 32768, STEP_GUARDS_MIN = 16 };

enum {
    TERMS_FILL_MAX = 1024, /* terms without a holder that one event may put into the record */
    PASTS_MAX = 256,       /* aborted openings of one step that the record keeps */
    ENDED_MAX = 256,       /* ended restores that the record keeps for `cairn log` */
    DEADS_MAX = 4096, /* dead entries of fenced terms that stay if no garbage collection runs */
};

struct step {
    const struct run_state *state;
    const struct event *event;
    struct scratch *scratch;
    struct verdict *ret;
    size_t guard_cap, change_cap, removal_count;
    size_t ended_count;     /* restores that this step has ended */
    struct entry_day day;   /* what this step adds to the counts of its day */
    size_t head_change;     /* index of the head's change plus 1; 0 if nothing was appended yet */
    struct entry_head head; /* the head after the appended entries */
    struct buf value;       /* of the next step_put(), between step_value() and that call */
};

/* --- the update; if one of these calls fails (out of scratch, too large), ret->code is set and the
 * later calls have no effect --- */
void step_guard_absent(struct step *step, const char *key);
/* Adds a guard: the key still has the value that the state was read from, or is absent if raw has
 * no data. */
void step_guard_as_read(struct step *step, const char *key, struct record_value raw);
/* Returns an empty buffer, whose contents the next step_put() takes. */
struct buf *step_value(struct step *step);
/* Puts the contents of step_value() under the key. */
void step_put(struct step *step, const char *key);
void step_remove(struct step *step, const char *key);
/* The same, guarded as read. */
void step_put_over(struct step *step, const char *key, struct record_value raw);
void step_remove_as_read(struct step *step, const char *key, struct record_value raw);
bool step_may_remove(const struct step *step, size_t count);

/* --- guards and changes that several transitions have in common --- */
void step_guard_head(struct step *step);
/* Adds a guard that no term was granted after the newest one that was read, so that nothing is
 * decided for a term that has been fenced meanwhile. */
void step_guard_newest(struct step *step);
/* Adds the run's info entry if the run does not exist yet. */
void step_create_run(struct step *step, const struct entry_info *info);
/* Adds it without asking; the update fails if there is one. */
void step_put_info(struct step *step, const struct entry_info *info);
void step_put_term(struct step *step, uint64_t term, const struct entry_term *entry);
/* Adds terms without a holder between the newest term and `term`, because terms are dense. */
void step_fill_terms(struct step *step, uint64_t term);
/* Removes an open entry (guarded as read) and its seals. Writes the dead entry unless code is 0. */
void step_end_open(struct step *step, const struct state_open *open, int code, const char *reason);
/* Removes the entries about aborted openings of a step. */
void step_remove_pasts(struct step *step, struct ckpt_id id);
/* Removes the leftovers of races: openings of fenced terms, and seals and reports whose opening or
 * session is gone. */
void step_sweep(struct step *step);
/* Appends to the chain: fills in seq and previous and raises the head. Returns the seq. A step may
 * append several entries. */
uint64_t step_append(struct step *step, struct entry_chain *entry);
/* Lowers the health of a commit. A health that is better than the present one is ignored. */
void step_lower_health(struct step *step, const struct state_commit *commit, enum health health,
                       const char *reason);

/* Writes the note of the chain entry `seq` with the change applied, guarded as read; writes nothing
 * if the note stays the same. Returns the version of the note afterwards. */
uint64_t step_put_note(struct step *step, uint64_t seq, const struct state_commit *commit,
                       const struct note_change *change);

/* commit_day.c: writes step->day into the day of the event's wall time, guarded as read. Does
 * nothing if there is nothing to count. Has to be the last call of a step. */
void step_put_day(struct step *step);

/* Copies as much of a text as an entry holds, cut between characters. */
void reason_set(char ret[ENTRY_REASON_BYTES], const char *text);

/* Chooses the checkpoint that a save of this term may refer to; this is the parent's checkpoint if
 * the term has none of its own yet. Its term is 0 if the save must be full. Adds guards for the
 * keys that the choice read. */
struct ckpt_id step_choose_base(struct step *step, const struct event_open *asked, uint64_t term,
                                struct ckpt_id parent);

/* --- answers --- */
#define step_fail(step, ...) ((step)->ret->code = diag_set(&(step)->ret->diag, __VA_ARGS__))
/* Answers that (term, step) is in the chain: fills in state, seq and open_id. */
void step_answer_committed(struct step *step, const struct state_commit *commit);
/* Answers why the opening open_id of event->id is not open: it is committed, ABORTED or FENCED. */
void step_answer_not_open(struct step *step, uint64_t open_id);
/* Answers ABORTED, with the reason in the dead entry. */
void step_answer_dead(struct step *step, const struct state_dead *dead);
void step_answer_open(struct step *step, const struct state_open *open);

/* --- look-ups --- */

/* Returns the first of the aborted openings of a step, except the last one, and how many there are.
 */
const struct state_past *pasts_of(const struct run_state *state, struct ckpt_id id,
                                  size_t *ret_count);

/* Returns the first of the seals with this id, and how many there are. They are sorted by rank;
 * orphans are included. */
const struct state_seal *seals_of(const struct run_state *state, struct ckpt_id id,
                                  size_t *ret_count);
/* Returns the seal of a rank, which may be an orphan, or NULL. */
const struct state_seal *seal_find(const struct run_state *state, struct ckpt_id id, uint32_t rank);
const struct state_report *reports_of(const struct run_state *state,
                                      const struct state_restore *session, size_t *ret_count);
const struct state_term *term_of(const struct run_state *state,
                                 uint64_t term); /* NULL if not granted */
/* Returns the newest checkpoint that is not forgotten among `from` and its ancestors, or NULL. */
const struct state_commit *ancestor_kept(const struct run_state *state, struct ckpt_id from);
/* Returns the newest good checkpoint among the ancestors of `from`, without `from` itself, or NULL.
 */
const struct state_commit *ancestor_below(const struct run_state *state, struct ckpt_id from);
/* Writes `from` and those of its ancestors that are not good, in the form "12@3, 10@3". */
void ancestors_damaged(const struct run_state *state, struct ckpt_id from, size_t bytes, char *ret);
/* Returns the newest checkpoint on the lineage that is not forgotten, whatever its health. */
const struct state_commit *lineage_newest(const struct run_state *state);
void lineage_mark(struct run_state *state);

/* --- unrecorded.c --- */
/* Returns a stored manifest of `id` that the record does not know and that belongs to another
 * opening than open_id, or NULL. */
const struct state_unknown *unknown_other(const struct run_state *state, struct ckpt_id id,
                                          uint64_t open_id);
/* Returns true if a manifest of `id` of exactly this opening is stored and unknown to the record.
 */
bool unknown_has(const struct run_state *state, struct ckpt_id id, uint64_t open_id);
/* Returns true if an unknown stored checkpoint may be the one that the selector means. */
bool unknown_may_be(const struct run_state *state, const struct selector *selector);
/* Returns the newest term that was ever granted, as far as the record and the store show. */
uint64_t term_high_water(const struct run_state *state);

/* --- restore sessions, for garbage collection --- */

/* Ends a restore session that its client has abandoned, so that it holds no checkpoint any more. */
void session_expire(struct step *step, const struct state_restore *session, const char *reason);

/* --- when the run was used (commit_gc.c) --- */

/* Sets the verdict's `why`, which is about the run as a whole. */
__attribute__((format(printf, 2, 3))) void step_say(struct step *step, const char *format, ...);
/* Notes a use at wall_ns, in a cycle of garbage collection. */
void step_put_use(struct step *step, int64_t wall_ns, uint64_t cycle);
/* Returns true if nobody has used the run for `seconds`, by the wall clock and by the cycles that
 * garbage collection has counted since. Says in the verdict's `why` what it found. */
bool idle_for(struct step *step, uint64_t seconds);

/* --- the transitions, one file for each group --- */
#define EVENT(name, transition, answer) void transition(struct step *step);
#include "core/events.def"

#endif

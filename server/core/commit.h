/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit core: a pure function from (state of a run's record, event) to a guarded update of
 * that record and an answer. The core does no I/O, reads no clock, and keeps no state that the
 * record does not hold. The driver (server/run) applies the update; on CONFLICT it reads the record
 * again and runs the same event again. Any number of drivers may work on one record. The
 * guards of each transition are in README.md.
 */
#ifndef CAIRN_CORE_COMMIT_H
#define CAIRN_CORE_COMMIT_H

#include "core/event.h"
#include "core/unrecorded.h"
#include "format/entries.h"

/* The decoded record. All arrays and raw values come from the scratch of run_state_load and are
 * sorted by key; nothing points into the record. `raw` is the value as stored, which guards compare
 * with. */
struct state_term {
    uint64_t term;
    struct entry_term entry;
    bool entered; /* the term has a commit, forgotten or not */
    bool on_lineage;
    bool left; /* its attempt ended in order */
    int64_t left_wall_ns;
};
struct state_open { /* void if its term is not the newest: a grant came first */
    struct ckpt_id id;
    struct entry_open entry;
    uint32_t world_size; /* of the term of `id` */
    uint32_t sealed_count;
    struct record_value raw;
};
struct state_seal {
    struct ckpt_id id;
    uint32_t rank;
    bool orphan; /* its opening is gone: the seal has no effect and is removed later */
    struct entry_seal entry;
    struct record_value raw;
};
struct state_commit { /* one for each commit entry in the chain, including forgotten checkpoints */
    struct entry_chain entry;
    enum health health;
    bool on_lineage;
    bool forgotten; /* can be undeleted until it is reclaimed */
    bool reclaimed; /* for good: its objects may have been collected */
    bool pinned;
    uint64_t repaired_seq;          /* seq of the newest repair in the chain; 0 if it has none */
    uint64_t forgotten_cycle;       /* the gc cycle in which it was forgotten */
    const struct entry_chain *mark; /* the newest forget or undelete about it, or NULL */
    const struct entry_chain *pin_mark;     /* the newest pin or unpin about it, or NULL */
    const struct entry_chain *reclaim_mark; /* NULL until it is reclaimed */
    const char *health_reason;              /* "" while the checkpoint is verified */
    struct record_value health_raw;
    const struct entry_note *note; /* NULL if it has no note */
    struct record_value note_raw;
};
struct state_dead {
    struct ckpt_id id;
    struct entry_dead entry;
    struct record_value raw;
};
struct state_past { /* an opening that was aborted, followed by another opening of the same step */
    struct ckpt_id id;
    uint64_t open_id;
};
struct state_restore {
    struct token token;
    uint32_t ordinal;
    struct entry_restore entry;
    struct record_value raw;
};
struct state_report {
    struct token token;
    uint32_t ordinal, rank;
    bool orphan; /* its session is gone or has moved on to another try */
    struct entry_report entry;
    struct record_value raw;
};

struct state_day {
    uint64_t day; /* days since 1970-01-01 UTC */
    struct entry_day entry;
    struct record_value raw;
};

/* A restore that has ended, and who was granted a term. Only `cairn log` tells of them, so they are
 * decoded there. */
struct state_ended {
    uint64_t number;
    struct record_value raw;
};
struct state_owner {
    uint64_t term;
    struct record_value raw;
};

struct run_state {
    struct state_unrecorded unrecorded;
    bool exists; /* the run has an info entry */
    struct entry_info info;
    struct entry_head head;
    struct entry_gc gc;   /* its cycle is 0 if no cycle has begun */
    struct entry_use use; /* zero if none was noted */
    struct record_value head_raw, info_raw, gc_raw, use_raw;
    /* The run was removed, and nothing was committed or undeleted since: it counts as empty. NULL
     * otherwise. `removed`: no term was granted since, either, so that lists leave the run out. */
    const struct entry_chain *removal;
    bool removed;
    uint64_t newest_term;    /* 0 if no term was granted */
    uint64_t newest_entered; /* newest term with a commit; 0 if the run is empty */
    size_t term_count, open_count, seal_count, commit_count, dead_count, restore_count,
        report_count, day_count, past_count, ended_count, owner_count, mark_count;
    struct state_term *terms; /* terms[i].term == i + 1 */
    struct state_open *opens;
    struct state_seal *seals;
    struct state_commit *commits; /* sorted by seq */
    struct state_commit **by_id;  /* the same commits, sorted by (term, step) */
    struct state_dead *deads;
    struct state_past *pasts;
    struct state_restore *restores;
    struct state_report *reports;
    struct state_day *days;          /* sorted by day */
    struct state_ended *ended;       /* sorted by number */
    struct state_owner *owners;      /* sorted by term */
    const struct entry_chain *marks; /* the chain entries that are no commits, sorted by seq */
};

enum { BY_WHOM_BYTES = 120 };
/* Writes who made an entry of the chain, and when: "ada@login1 at 2026-11-23T16:58:57Z". */
void chain_by_whom(const struct entry_chain *entry, char ret[BY_WHOM_BYTES]);
/* Returns NOT_FOUND. The text says who removed the run and when, and what brings it back. */
int state_removed_error(const struct run_state *state, struct diag *diag);

/* Decodes the record into ret and checks the chain: sequence numbers, hashes and the head. Returns
 * DAMAGED or FORMAT if an entry or the chain is broken. */
int MUST_USE run_state_load(const struct record *record, struct scratch *scratch,
                            struct run_state *ret, struct diag *diag);

/* Returns the newest good checkpoint on the lineage ("latest") by (term, step), or NULL if there is
 * none. Forgotten and damaged checkpoints are skipped. A suspect one is not: a restore checks every
 * byte and falls back, whereas skipping it would lose training. Only checkpoints strictly below
 * `below` are considered, unless its term is 0. */
const struct state_commit *state_latest(const struct run_state *state, struct ckpt_id below);
/* Resolves a selector. Returns NOT_FOUND, with the nearest steps in diag, if nothing matches it.
 * SELECT_STEP finds the newest term on the lineage that has the step. If there is none, and exactly
 * one superseded term has it, the NOT_FOUND text names STEP@TERM. */
int MUST_USE state_select(const struct run_state *state, const struct selector *selector,
                          const struct state_commit **ret, struct diag *diag);
/* Finds forgotten checkpoints as well, also reclaimed ones. */
struct state_commit *commit_any(const struct run_state *state, struct ckpt_id id);
/* Returns the end of the last opening of a checkpoint; NULL if none has ended. */
const struct state_dead *dead_find(const struct run_state *state, struct ckpt_id id);
/* Returns NULL if the checkpoint was never committed or is forgotten. */
const struct state_commit *state_commit_find(const struct run_state *state, struct ckpt_id id);
/* Like state_commit_find(), but also finds a forgotten checkpoint until it is reclaimed: the claim
 * of an open save or the lease of a restore keeps it readable. */
const struct state_commit *state_commit_known(const struct run_state *state, struct ckpt_id id);
/* The uses that protect a checkpoint now: `claimed` if it is the base of an open save, `leased` if
 * a running restore session reads it, `parent` if the newest term continues it and has not saved
 * yet. */
struct state_use {
    bool claimed, leased, parent;
};
/* Gives one struct state_use for each of state->commits, in the same order. */
int MUST_USE state_uses(const struct run_state *state, struct scratch *scratch,
                        struct state_use **ret);
const struct state_open *state_open_find(const struct run_state *state, struct ckpt_id id);
/* Returns the term that was granted to (token, ordinal), or NULL. */
const struct state_term *state_term_find(const struct run_state *state, const struct token *token,
                                         uint32_t ordinal);
const struct state_restore *state_restore_find(const struct run_state *state,
                                               const struct token *token, uint32_t ordinal);
/* Returns whether the attempt that had the term before ended in order, so that this term followed a
 * planned restart and no failure. */
bool state_term_is_planned(const struct run_state *state, uint64_t term);
/* Appends the ranks that have not sealed, in the form "ranks 1, 3 and 5 of 8", to the string in
 * ret. Names at most 16 ranks. */
void state_missing_ranks(const struct run_state *state, struct ckpt_id id, size_t bytes, char *ret);
/* Appends, in the same form, the ranks that have not reported on the current try of a restore. */
void state_missing_reports(const struct run_state *state, const struct state_restore *session,
                           size_t bytes, char *ret);
/* Returns how many ranks have reported on the current try of a restore. */
uint32_t state_report_count(const struct run_state *state, const struct state_restore *session);

/* Decides one event on the state. The result, ret->code included, is in ret; texts and update come
 * from scratch or are borrowed from the state and the event. */
void commit_step(const struct run_state *state, const struct event *event, struct scratch *scratch,
                 struct verdict *ret);

/* Returns the present state of a save. Puts the reason into ret_why if it was aborted or is
 * unknown. */
enum save_state state_status(const struct run_state *state, struct ckpt_id id,
                             struct diag *ret_why);

#endif

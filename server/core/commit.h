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

#include "core/commit_forget.h"
#include "core/unrecorded.h"
#include "format/entries.h"
#include "format/note.h"

/* The decoded record. All arrays and raw values come from the scratch of run_state_load and are
 * sorted by key; nothing points into the record. `raw` is the value as stored, which guards compare
 * with. */
struct state_term {
    uint64_t term;
    struct entry_term entry;
    bool entered; /* the term has a commit, forgotten or not */
    bool on_lineage;
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

struct run_state {
    struct state_unrecorded unrecorded;
    bool exists; /* the run has an info entry */
    struct entry_info info;
    struct entry_head head;
    struct entry_gc gc; /* its cycle is 0 if no cycle has begun */
    struct record_value head_raw, info_raw, gc_raw;
    uint64_t newest_term;    /* 0 if no term was granted */
    uint64_t newest_entered; /* newest term with a commit; 0 if the run is empty */
    size_t term_count, open_count, seal_count, commit_count, dead_count, restore_count,
        report_count, day_count, past_count;
    struct state_term *terms; /* terms[i].term == i + 1 */
    struct state_open *opens;
    struct state_seal *seals;
    struct state_commit *commits; /* sorted by seq */
    struct state_commit **by_id;  /* the same commits, sorted by (term, step) */
    struct state_dead *deads;
    struct state_past *pasts;
    struct state_restore *restores;
    struct state_report *reports;
    struct state_day *days; /* sorted by day */
};

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
/* Appends the ranks that have not sealed, in the form "ranks 1, 3 and 5 of 8", to the string in
 * ret. Names at most 16 ranks. */
void state_missing_ranks(const struct run_state *state, struct ckpt_id id, size_t bytes, char *ret);
/* Appends, in the same form, the ranks that have not reported on the current try of a restore. */
void state_missing_reports(const struct run_state *state, const struct state_restore *session,
                           size_t bytes, char *ret);
/* Returns how many ranks have reported on the current try of a restore. */
uint32_t state_report_count(const struct run_state *state, const struct state_restore *session);

enum event_kind {
    EVENT_CREATE,    /* writes the run's info entry if there is none */
    EVENT_OPEN,      /* rank 0 opens a save; the same update grants a term if one is needed */
    EVENT_FIND_OPEN, /* another rank asks for the opening; no update; AGAIN before rank 0's OPEN */
    EVENT_SEAL,      /* a batch of parts has become durable */
    EVENT_COMMIT,    /* manifest is durable, all ranks sealed, the driver has checked coverage */
    EVENT_ABORT,     /* with code and reason: on request, at the deadline, on bad coverage */
    EVENT_RESTORE_BEGIN, /* a rank joins a restore session; the first one resolves the selector */
    /* A rank, or a batch of `ranks`, reports OK or DAMAGED on the try of `id`. Code 0 with an
     * update means that the report gets written. Without an update the answer is AGAIN while other
     * ranks have not reported (run the event again when the record has changed), restore_done,
     * restore_failed, or another id, which is the session's current try. */
    EVENT_RESTORE_REPORT,
    EVENT_HEALTH,   /* scrub or a reader found damage */
    EVENT_ANNOTATE, /* tags and metrics of a committed checkpoint */
    EVENT_FORGET,   /* a batch of ids, each decided by itself; see mark_outcome */
    EVENT_UNDELETE, /* a batch of ids; with no ids, all checkpoints that can be brought back */
    EVENT_PIN,      /* a batch of ids; a pinned checkpoint is never forgotten */
    EVENT_UNPIN,
    EVENT_REPAIR,   /* a batch of ids; notes in the chain what will be replaced, and by whom */
    EVENT_GC_CYCLE, /* begins the next gc cycle and ends abandoned restore sessions */
    EVENT_RECLAIM,  /* for good, forgotten ones that are old enough and unused: a batch or all */
    EVENT_ADOPT, /* enters a checkpoint that the record has lost, or gives it up; commit_adopt.c */
    EVENT_BURY,  /* a batch: removes dead entries of fenced terms of which nothing is stored */
};

struct retention_policy;

struct event_seal {
    uint32_t rank;
    struct entry_seal entry;
};

struct event {
    enum event_kind kind;
    struct token token;
    /* ordinal: restores that this attempt has finished so far. */
    uint32_t rank, world_size, ordinal;
    struct ckpt_id id;     /* OPEN, FIND_OPEN: only the step. RESTORE_REPORT: the try's id */
    struct ckpt_id parent; /* OPEN, ADOPT: the checkpoint that was restored; term 0 if none was */
    uint64_t newest_seen; /* OPEN, FIND_OPEN: the newest term when the attempt joined or restored */
    /* OPEN: a random number above 0, used if a new opening is made. FIND_OPEN: an opening of this
     * step that the rank knows to be dead, so that it waits for the next one, or 0; any other dead
     * opening is answered with ABORTED. Other events: the opening that is meant. */
    uint64_t open_id;
    int64_t wall_ns;
    struct entry_info info; /* CREATE, ADOPT; OPEN and RESTORE_BEGIN of a new run */
    struct entry_open open; /* OPEN: deadline, metadata and more; the core sets open_id and base */
    bool full;              /* OPEN: the client wants a save without a base */
    /* OPEN: of the rank's last committed save; 0 if not reported. */
    uint64_t blocked_ms, persist_ms;
    /* OPEN: each save of this number in a lineage is full; 0 means only the first. */
    uint32_t full_every;
    size_t seal_count;
    const struct event_seal *seals; /* SEAL */
    /* COMMIT: manifest hash and totals; the core fills in seq and previous. ADOPT: also the base.
     */
    struct entry_chain commit;
    int code;          /* ABORT, HEALTH, ADOPT: CAIRN_E_*. RESTORE_REPORT: the same, or 0 for OK */
    size_t rank_count; /* RESTORE_REPORT with code 0: size of `ranks`; 0 if only `rank` reports */
    const uint32_t *ranks;
    enum health health; /* HEALTH, ADOPT */
    const char *reason;
    struct selector selector; /* RESTORE_BEGIN, ANNOTATE */
    struct note_change note;  /* ANNOTATE, ADOPT */
    bool allow_older;         /* RESTORE_BEGIN */
    /* The ids of FORGET, UNDELETE, PIN, UNPIN, REPAIR, RECLAIM and BURY: in any order, none twice.
     */
    size_t id_count; /* RECLAIM: 0 means all checkpoints that are due */
    const struct ckpt_id *ids;
    const char *actor; /* who asked for it; "" or NULL if unknown. `reason` says why */
    /* FORGET: decides instead of ids; NULL if ids are given. */
    const struct retention_policy *policy;
    int64_t clock_jump_s; /* FORGET: as in retention_job; 0 if the clock can be trusted */
    uint32_t keep_least;  /* FORGET: good checkpoints that must stay; 0 means 2 */
    bool apart;           /* FORGET: if possible, two of those that stay must share no object */
    uint64_t cycle; /* GC_CYCLE: the cycle that is over, so that a repeated event starts no other */
    /* GC_CYCLE: ends sessions that began this many cycles ago; 0 ends none. RECLAIM: the cycles
     * that must have begun since the forget; 0 waits for none. */
    uint64_t cycles;
};

enum save_state {
    SAVE_NONE = 0,
    SAVE_OPEN = 1,
    SAVE_COMMITTED = 2,
    SAVE_ABORTED = 3,
    SAVE_FORGOTTEN = 4
};

struct verdict {
    /* 0 if the event may go on: the driver applies the update, if there is one, and the answer
     * below holds from then on. Otherwise the answer is this error: FENCED, WORLD_MISMATCH,
     * TOKEN_MISMATCH, EXISTS, ABORTED, AGAIN, NOT_FOUND, CONFLICT and others. */
    int code;
    struct diag diag;
    struct record_update
        update; /* from scratch, borrows from the state; nothing to write if change_count is 0 */
    /* True, for an answer without an update, if the answer rests on permanent facts: it holds
     * however the record has changed since it was read. With several daemons a driver's copy may be
     * old, so it reads the record again before it gives an answer that is neither written nor
     * proven. */
    bool proven;
    struct ckpt_id id; /* the (term, step) that the answer is about */
    /* OPEN, FIND_OPEN, SEAL, COMMIT, ABORT: the present state of that save. */
    enum save_state state;
    uint64_t open_id; /* of that opening; if SAVE_COMMITTED, of the committed opening */
    uint64_t deadline_ms;
    struct ckpt_id base; /* with SAVE_OPEN: what chunks may refer to; term 0 for a full save */
    /* With code ABORTED, or for an abort that comes second: the first abort's code. */
    int dead_code;
    uint32_t rank;              /* SEAL with CONFLICT or INVALID: the rank whose seal was refused */
    bool sealed;                /* OPEN, FIND_OPEN: this rank has already sealed */
    bool new_term, new_lineage; /* OPEN: to be logged; new_lineage is set if the run is not empty */
    bool all_sealed; /* OPEN, SEAL: every rank has sealed; the driver goes on to commit */
    uint64_t seq;    /* position in the chain, if SAVE_COMMITTED */
    /* FORGET, UNDELETE, PIN, UNPIN, RECLAIM: one mark for each id, in the order of ids. With a
     * policy: one for each checkpoint that is not forgotten yet, newest first. From scratch. */
    uint64_t mark_head_seq, done_bytes; /* of the chain at the decision; stored by done_count */
    size_t mark_count, done_count, refused_count;
    const struct mark *marks;
    uint64_t cycle;           /* GC_CYCLE: the cycle that runs now */
    size_t ended_count;       /* GC_CYCLE: number of restore sessions that it ended */
    struct entry_day counted; /* what the update adds to the counts of its day */
    /* ANNOTATE: version of the note after the change; 0 if there is no note. */
    uint64_t note_version;
    /* RESTORE_BEGIN and RESTORE_REPORT: */
    bool empty;     /* the run is proven empty: "no checkpoint" is the answer, with restore_done */
    bool fell_back; /* id is older than the checkpoint that was asked for */
    bool restore_done;   /* every rank reported OK on this try */
    bool restore_failed; /* code and text are in restore_code and diag */
    int restore_code;
    uint32_t try_count;
    uint64_t newest_term;
};

/* Decides one event on the state. The result, ret->code included, is in ret; texts and update come
 * from scratch or are borrowed from the state and the event. */
void commit_step(const struct run_state *state, const struct event *event, struct scratch *scratch,
                 struct verdict *ret);

/* Returns the present state of a save. Puts the reason into ret_why if it was aborted or is
 * unknown. */
enum save_state state_status(const struct run_state *state, struct ckpt_id id,
                             struct diag *ret_why);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit core: a pure function from (state of a run's record, event) to a guarded update of that record
 * and an answer. No I/O, no clock, no state that the record does not hold. The driver (server/run) applies the
 * update; on CONFLICT it reads the record again and runs the same event again. Safe for any number of
 * drivers on one record. DESIGN: ARCHITECTURE.md "Commit".
 */
#ifndef CAIRN_CORE_COMMIT_H
#define CAIRN_CORE_COMMIT_H

#include "format/entries.h"

/* The record, decoded. All arrays from scratch, sorted by key. */
struct state_term { uint64_t term; struct entry_term entry; bool entered; /* has a commit */ bool on_lineage; };
struct state_open { struct ckpt_id id; struct entry_open entry; uint32_t sealed_count; };
struct state_seal { struct ckpt_id id; uint32_t rank; struct entry_seal entry; };
struct state_commit { /* one a commit entry in the chain that is not forgotten */
    struct entry_chain entry;
    enum health health;
    bool on_lineage;
    bool forgotten;
};
struct state_dead { struct ckpt_id id; struct entry_dead entry; };
struct state_restore { struct token token; uint32_t ordinal; struct entry_restore entry; };
struct state_report { struct token token; uint32_t ordinal, rank; struct entry_report entry; };

struct run_state {
    bool exists;                 /* has an info entry */
    struct entry_info info;
    struct entry_head head;
    struct record_value head_raw, info_raw;
    uint64_t newest_term;        /* 0: none granted */
    size_t term_count, open_count, seal_count, commit_count, dead_count, restore_count, report_count;
    struct state_term *terms;
    struct state_open *opens;
    struct state_seal *seals;
    struct state_commit *commits; /* by seq */
    struct state_dead *deads;
    struct state_restore *restores;
    struct state_report *reports;
};

/* DAMAGED / FORMAT when an entry or the chain is broken (seq, hashes and head are checked). */
int MUST_USE run_state_load(const struct record *record, struct scratch *scratch, struct run_state *ret, struct diag *diag);

/* The newest good checkpoint on the lineage ("latest"), by (term, step); skips forgotten and damaged ones.
 * below: only those strictly below it (term 0: no bound). NULL when there is none. */
const struct state_commit *state_latest(const struct run_state *state, struct ckpt_id below);
/* What a selector means: 0, or NOT_FOUND with the nearest steps in diag. SELECT_STEP: newest term on the lineage
 * that has the step; only when none, and exactly one superseded one has it, NOT_FOUND names STEP@TERM. */
int MUST_USE state_select(const struct run_state *state, const struct selector *selector, const struct state_commit **ret, struct diag *diag);
const struct state_commit *state_commit_find(const struct run_state *state, struct ckpt_id id);
const struct state_open *state_open_find(const struct run_state *state, struct ckpt_id id);
/* Appends "rank 1, 3 and 5 of 8"-like text of the ranks without a seal; at most 16 named. */
void state_missing_ranks(const struct run_state *state, struct ckpt_id id, size_t bytes, char *ret);

enum event_kind {
    EVENT_CREATE,          /* the run's info entry, if absent */
    EVENT_OPEN,            /* rank 0 opens a save: grants a term first where needed, all in one update */
    EVENT_FIND_OPEN,       /* another rank asks for the opening of its step: never updates; AGAIN until rank 0 came */
    EVENT_SEAL,            /* parts are durable: a batch */
    EVENT_COMMIT,          /* manifest durable, all sealed, coverage checked by the driver */
    EVENT_ABORT,           /* explicit, deadline, coverage failure: with code and reason */
    EVENT_RESTORE_BEGIN,   /* a rank joins a restore session: the first resolves */
    EVENT_RESTORE_REPORT,  /* a rank reports OK or DAMAGED on its current try */
    EVENT_HEALTH,          /* scrub or a reader found damage */
};

struct event_seal { uint32_t rank; struct entry_seal entry; };

struct event {
    enum event_kind kind;
    struct token token;
    uint32_t rank, world_size, ordinal; /* ordinal: restores done by this attempt so far */
    struct ckpt_id id;                  /* OPEN, FIND_OPEN: only step is set; others: whole */
    struct ckpt_id parent;              /* OPEN: what the attempt restored; term 0: never restored */
    uint64_t newest_seen;               /* OPEN: the newest term when the attempt joined or restored */
    uint64_t open_id;                   /* OPEN: random, used when a new opening is made; others: the opening meant */
    int64_t wall_ns;
    struct entry_info info;             /* CREATE, and OPEN and RESTORE_BEGIN of a run that does not exist */
    struct entry_open open;             /* OPEN: deadline, metadata ... (open_id is set from above) */
    size_t seal_count;
    const struct event_seal *seals;     /* SEAL */
    struct entry_chain commit;          /* COMMIT: manifest hash and totals; seq and previous are filled by the core */
    int code;                           /* ABORT, HEALTH, RESTORE_REPORT: CAIRN_E_*; RESTORE_REPORT: 0 is OK */
    enum health health;                 /* HEALTH */
    const char *reason;
    struct selector selector;           /* RESTORE_BEGIN */
    bool allow_older;                   /* RESTORE_BEGIN */
};

enum save_state { SAVE_NONE = 0, SAVE_OPEN = 1, SAVE_COMMITTED = 2, SAVE_ABORTED = 3, SAVE_FORGOTTEN = 4 };

struct verdict {
    /* 0: go on (apply the update, if it has changes; the answer below holds once it is applied). Otherwise the
     * answer is this error: FENCED, WORLD_MISMATCH, TOKEN_MISMATCH, EXISTS, ABORTED, AGAIN, NOT_FOUND, CONFLICT ... */
    int code;
    struct diag diag;
    struct record_update update; /* from scratch; change_count 0: nothing to write */
    struct ckpt_id id;           /* (term, step) that the answer is about */
    enum save_state state;       /* OPEN, FIND_OPEN, SEAL, COMMIT, ABORT: where that save stands now */
    uint64_t open_id;
    uint64_t deadline_ms;
    bool sealed;                 /* OPEN, FIND_OPEN: this rank has sealed already */
    bool new_term, new_lineage;  /* OPEN: to be said loudly: new_lineage when the run is not empty */
    bool all_sealed;             /* OPEN, SEAL: every rank has: the driver goes on to commit */
    uint64_t seq;                /* COMMIT */
    /* RESTORE_*: */
    bool empty;                  /* proven empty run: "no checkpoint" is the answer */
    bool fell_back;
    bool restore_done;           /* every rank reported OK on this try */
    bool restore_failed;         /* with code and text in restore_code, diag */
    int restore_code;
    uint32_t try_count;
    uint64_t newest_term;
};

void commit_step(const struct run_state *state, const struct event *event, struct scratch *scratch, struct verdict *ret);

/* Truth about a save. */
enum save_state state_status(const struct run_state *state, struct ckpt_id id, struct diag *ret_why);

#endif

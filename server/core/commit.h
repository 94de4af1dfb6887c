/* SPDX-License-Identifier: Apache-2.0
 *
 * The commit core: a pure function from (state of a run's record, event) to a guarded update of
 * that record and an answer. No I/O, no clock, no state that the record does not hold. The driver
 * (server/run) applies the update; on CONFLICT it reads the record again and runs the same event
 * again. Safe for any number of drivers on one record. DESIGN: ARCHITECTURE.md "Commit".
 */
#ifndef CAIRN_CORE_COMMIT_H
#define CAIRN_CORE_COMMIT_H

#include "core/beside.h"
#include "core/commit_forget.h"
#include "format/entries.h"
#include "format/note.h"

/* The record, decoded. All arrays and raw values are from the scratch of run_state_load (nothing
 * points into the record), sorted by key. raw is the value as stored: guards compare with it. */
struct state_term {
    uint64_t term;
    struct entry_term entry;
    bool entered; /* has a commit, forgotten or not */
    bool on_lineage;
};
struct state_open { /* of a term below the newest one: left behind by a race with a grant; void,
                       swept later */
    struct ckpt_id id;
    struct entry_open entry;
    uint32_t world_size; /* of its term */
    uint32_t sealed_count;
    struct record_value raw;
};
struct state_seal {
    struct ckpt_id id;
    uint32_t rank;
    bool orphan; /* of an opening that is gone: counts for nothing, swept later */
    struct entry_seal entry;
    struct record_value raw;
};
struct state_commit { /* one for each commit entry in the chain, forgotten ones too */
    struct entry_chain entry;
    enum health health;
    bool on_lineage;
    bool forgotten; /* undelete brings it back, until it is reclaimed */
    bool reclaimed; /* for good: its objects may be gone */
    bool pinned;
    uint64_t repaired_seq;                  /* of the newest repair in the chain; 0: none */
    uint64_t forgotten_cycle;               /* garbage collection's, when it was forgotten */
    const struct entry_chain *mark;         /* the newest forget or undelete about it; NULL: none */
    const struct entry_chain *pin_mark;     /* the same of pin and unpin */
    const struct entry_chain *reclaim_mark; /* NULL until it is reclaimed */
    const char *health_reason;              /* "" while verified */
    struct record_value health_raw;
    const struct entry_note *note; /* NULL: none */
    struct record_value note_raw;
};
struct state_dead {
    struct ckpt_id id;
    struct entry_dead entry;
    struct record_value raw;
};
struct state_past { /* an opening of the step that was aborted before its last one */
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
    bool orphan; /* of a session that is gone or has moved to another try */
    struct entry_report entry;
    struct record_value raw;
};

struct state_day {
    uint64_t day; /* since 1970, UTC */
    struct entry_day entry;
    struct record_value raw;
};

struct run_state {
    struct state_beside beside;
    bool exists; /* has an info entry */
    struct entry_info info;
    struct entry_head head;
    struct entry_gc gc; /* cycle 0: none has begun */
    struct record_value head_raw, info_raw, gc_raw;
    uint64_t newest_term;    /* 0: none granted */
    uint64_t newest_entered; /* newest term with a commit; 0: the run is empty */
    size_t term_count, open_count, seal_count, commit_count, dead_count, restore_count,
        report_count, day_count, past_count;
    struct state_term *terms; /* terms[i].term == i + 1 */
    struct state_open *opens;
    struct state_seal *seals;
    struct state_commit *commits; /* by seq */
    struct state_commit **by_id;  /* the same, by (term, step) */
    struct state_dead *deads;
    struct state_past *pasts;
    struct state_restore *restores;
    struct state_report *reports;
    struct state_day *days; /* ascending */
};

/* DAMAGED / FORMAT when an entry or the chain is broken (seq, hashes and head are checked). */
int MUST_USE run_state_load(const struct record *record, struct scratch *scratch,
                            struct run_state *ret, struct diag *diag);

/* The newest good checkpoint on the lineage ("latest"), by (term, step); skips forgotten and
 * damaged ones. Suspect ones are taken in their turn: a restore checks every byte and falls back, a
 * skipped one is lost training. below: only those strictly below it (term 0: no bound). NULL when
 * there is none. */
const struct state_commit *state_latest(const struct run_state *state, struct ckpt_id below);
/* What a selector means: 0, or NOT_FOUND with the nearest steps in diag. SELECT_STEP: newest term
 * on the lineage that has the step; only when none, and exactly one superseded one has it,
 * NOT_FOUND names STEP@TERM. */
int MUST_USE state_select(const struct run_state *state, const struct selector *selector,
                          const struct state_commit **ret, struct diag *diag);
/* NULL when it was never committed, or is forgotten. */
const struct state_commit *state_commit_find(const struct run_state *state, struct ckpt_id id);
/* The same, forgotten ones too, as long as they are not reclaimed: what an open save has a claim on
 * or a restore a lease stays readable. */
const struct state_commit *state_commit_known(const struct run_state *state, struct ckpt_id id);
/* Whom a checkpoint serves right now. claimed: the base of an open save. leased: the checkpoint of
 * a restore session that runs. parent: what the newest term continues, which has not saved yet. */
struct state_use {
    bool claimed, leased, parent;
};
/* One for each of state->commits, in the same order. */
int MUST_USE state_uses(const struct run_state *state, struct scratch *scratch,
                        struct state_use **ret);
const struct state_open *state_open_find(const struct run_state *state, struct ckpt_id id);
/* The term that (token, ordinal) was granted; NULL when none was. */
const struct state_term *state_term_find(const struct run_state *state, const struct token *token,
                                         uint32_t ordinal);
const struct state_restore *state_restore_find(const struct run_state *state,
                                               const struct token *token, uint32_t ordinal);
/* Appends "ranks 1, 3 and 5 of 8"-like text of the ranks without a seal to the string in ret; at
 * most 16 named. */
void state_missing_ranks(const struct run_state *state, struct ckpt_id id, size_t bytes, char *ret);
/* The same of the ranks that have not reported on a restore's current try; and how many have. */
void state_missing_reports(const struct run_state *state, const struct state_restore *session,
                           size_t bytes, char *ret);
uint32_t state_report_count(const struct run_state *state, const struct state_restore *session);

enum event_kind {
    EVENT_CREATE,    /* the run's info entry, if absent */
    EVENT_OPEN,      /* rank 0 opens a save: grants a term first where needed, all in one update */
    EVENT_FIND_OPEN, /* another rank asks for the opening: no update; AGAIN until rank 0 came */
    EVENT_SEAL,      /* parts are durable: a batch */
    EVENT_COMMIT,    /* manifest durable, all sealed, coverage checked by the driver */
    EVENT_ABORT,     /* explicit, deadline, coverage failure: with code and reason */
    EVENT_RESTORE_BEGIN,  /* a rank joins a restore session: the first resolves */
    EVENT_RESTORE_REPORT, /* a rank reports OK or DAMAGED on the try of `id`. Code 0 and an update:
                           * written. Without an update: AGAIN while others are awaited (run it
                           * again when the record has changed); restore_done; restore_failed; or
                           * another id: the session's current try. OK may be a batch: see ranks */
    EVENT_HEALTH,         /* scrub or a reader found damage */
    EVENT_ANNOTATE,       /* tags and metrics of a committed checkpoint */
    EVENT_FORGET,         /* a batch of ids: each one for itself, see mark_outcome */
    EVENT_UNDELETE,       /* the same; until reclaimed; of none: all that can be brought back */
    EVENT_PIN,            /* the same: never forgotten while pinned */
    EVENT_UNPIN,
    EVENT_REPAIR,   /* the same: what is about to be replaced, and by whom, for the chain */
    EVENT_GC_CYCLE, /* the next cycle of garbage collection; ends sessions that nobody ends */
    EVENT_RECLAIM,  /* forgotten for long enough and of use to nobody, for good: a batch, or all */
    EVENT_ADOPT,    /* what the record has lost enters it again, or is given up: commit_adopt.c */
    EVENT_BURY,     /* of dead entries of fenced terms nothing is stored any more: a batch */
};

struct retention_policy;

struct event_seal {
    uint32_t rank;
    struct entry_seal entry;
};

struct event {
    enum event_kind kind;
    struct token token;
    uint32_t rank, world_size, ordinal; /* ordinal: restores done by this attempt so far */
    struct ckpt_id id; /* OPEN, FIND_OPEN: only step; others: whole; RESTORE_REPORT: the try's */
    struct ckpt_id parent; /* OPEN, ADOPT: what the attempt restored; term 0: never restored */
    uint64_t newest_seen; /* OPEN, FIND_OPEN: the newest term when the attempt joined or restored */
    /* OPEN: random, not 0, used when a new opening is made. FIND_OPEN: an opening of this step that
     * the rank knows to be dead, so that it waits for the next one; any other dead one is answered
     * ABORTED; 0: none. Others: the opening meant. */
    uint64_t open_id;
    int64_t wall_ns;
    struct entry_info info; /* CREATE, ADOPT, and OPEN and RESTORE_BEGIN of a new run */
    struct entry_open open; /* OPEN: deadline, metadata ... (open_id and base are the core's) */
    bool full;              /* OPEN: without a base, because the client wants it so */
    uint64_t blocked_ms, persist_ms; /* OPEN: of the rank's last committed save; 0: not told */
    uint32_t full_every; /* OPEN: every so many saves of a lineage are full; 0: only the first */
    size_t seal_count;
    const struct event_seal *seals; /* SEAL */
    struct entry_chain commit; /* COMMIT: manifest hash and totals; seq and previous are filled by
                                * the core. ADOPT: also the base */
    int code; /* ABORT, HEALTH, ADOPT, RESTORE_REPORT: CAIRN_E_*; RESTORE_REPORT: 0 is OK */
    size_t rank_count; /* RESTORE_REPORT, code 0: all of `ranks` report it; 0: `rank` does */
    const uint32_t *ranks;
    enum health health; /* HEALTH, ADOPT */
    const char *reason;
    struct selector selector; /* RESTORE_BEGIN, ANNOTATE */
    struct note_change note;  /* ANNOTATE, ADOPT */
    bool allow_older;         /* RESTORE_BEGIN */
    /* FORGET, UNDELETE, PIN, UNPIN, REPAIR, RECLAIM, BURY: any order, none twice; who and why. */
    size_t id_count; /* RECLAIM: 0 for all that are due */
    const struct ckpt_id *ids;
    const char *actor;                     /* "" or NULL: unknown; the reason is `reason` */
    const struct retention_policy *policy; /* FORGET: instead of ids; NULL: none */
    int64_t clock_jump_s;                  /* FORGET: retention_job's; 0: the clock is believed */
    uint32_t keep_least;                   /* FORGET: good ones that must stay; 0: 2 */
    bool apart;      /* FORGET: two that stay share no object, where there are such */
    uint64_t cycle;  /* GC_CYCLE: the cycle that is over: the same event again begins no other */
    uint64_t cycles; /* GC_CYCLE: sessions end that began so many cycles before; 0: none.
                        RECLAIM: forgotten for so many; 0: now, however short the wait was */
};

enum save_state {
    SAVE_NONE = 0,
    SAVE_OPEN = 1,
    SAVE_COMMITTED = 2,
    SAVE_ABORTED = 3,
    SAVE_FORGOTTEN = 4
};

struct verdict {
    /* 0: go on (apply the update, if it has changes; the answer below holds once it is applied).
     * Otherwise the answer is this error: FENCED, WORLD_MISMATCH, TOKEN_MISMATCH, EXISTS, ABORTED,
     * AGAIN, NOT_FOUND, CONFLICT ... */
    int code;
    struct diag diag;
    struct record_update
        update; /* from scratch, and borrowed from the state; change_count 0: nothing to write */
    /* Without an update: the answer rests on what is permanent, and holds whatever the record has
     * become since it was read. A driver whose copy may be behind (more than one daemon) gives no
     * answer that is neither written nor proven before it has read the record again. */
    bool proven;
    struct ckpt_id id;     /* (term, step) that the answer is about */
    enum save_state state; /* OPEN, FIND_OPEN, SEAL, COMMIT, ABORT: where that save stands now */
    uint64_t open_id;      /* of that opening; of the committed one where state is SAVE_COMMITTED */
    uint64_t deadline_ms;
    struct ckpt_id base; /* OPEN, FIND_OPEN, where state is SAVE_OPEN: what chunks may refer
                            through; term 0: the save must be full */
    int dead_code;       /* code ABORTED, or an abort behind another: why, as that gave it */
    uint32_t rank; /* SEAL: the rank whose seal was refused, when code is CONFLICT or INVALID */
    bool sealed;   /* OPEN, FIND_OPEN: this rank has sealed already */
    bool new_term, new_lineage; /* OPEN: to be said loudly: new_lineage when the run is not empty */
    bool all_sealed;            /* OPEN, SEAL: every rank has: the driver goes on to commit */
    uint64_t seq;               /* in the chain, where state is SAVE_COMMITTED */
    /* FORGET, UNDELETE, PIN, UNPIN, RECLAIM: one for each id, in the order of ids; of a policy one
     * for each checkpoint that is not forgotten yet, newest first. From scratch. */
    uint64_t mark_head_seq, done_bytes; /* of the chain, when it was decided; stored by the done */
    size_t mark_count, done_count, refused_count;
    const struct mark *marks;
    uint64_t cycle;           /* GC_CYCLE: the one that runs now */
    size_t ended_count;       /* GC_CYCLE: restore sessions that it ended */
    struct entry_day counted; /* what the update adds to the counts of its day */
    uint64_t note_version;    /* ANNOTATE: of the note after it; 0: it has none */
    /* RESTORE_*: */
    bool empty;     /* proven empty run: "no checkpoint" is the answer (restore_done is set too) */
    bool fell_back; /* id is older than what was asked for */
    bool restore_done;   /* every rank reported OK on this try */
    bool restore_failed; /* with code and text in restore_code, diag */
    int restore_code;
    uint32_t try_count;
    uint64_t newest_term;
};

void commit_step(const struct run_state *state, const struct event *event, struct scratch *scratch,
                 struct verdict *ret);

/* Truth about a save. */
enum save_state state_status(const struct run_state *state, struct ckpt_id id,
                             struct diag *ret_why);

#endif

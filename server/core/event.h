/* SPDX-License-Identifier: Apache-2.0
 *
 * Events and verdicts of the commit core: what it is asked, and what it answers. Both are tagged
 * unions. The fields that all kinds have stand in the struct itself; the others in the member of
 * the kind. A new kind is a row of events.def and, if it has fields of its own, a member here.
 */
#ifndef CAIRN_CORE_EVENT_H
#define CAIRN_CORE_EVENT_H

#include "core/commit_forget.h"
#include "format/entries.h"
#include "format/note.h"

enum event_kind {
#define EVENT(name, transition, answer) EVENT_##name,
#include "core/events.def"
};

struct retention_policy;

/* A rank of an attempt. */
struct attempt_rank {
    struct token token;
    uint32_t rank, world_size;
    uint32_t ordinal; /* restores that this attempt has finished so far */
};

/* OPEN and FIND_OPEN. */
struct event_open {
    struct attempt_rank from;
    /* OPEN: a random number above 0, used if a new opening is made. FIND_OPEN: an opening of this
     * step that the rank knows to be dead, so that it waits for the next one, or 0; any other dead
     * opening is answered with ABORTED. */
    uint64_t open_id;
    uint64_t newest_seen; /* the newest term when the attempt joined or restored */
    /* The fields below are OPEN's. */
    struct entry_info info;  /* for a run that does not exist yet */
    struct ckpt_id parent;   /* the checkpoint that was restored; term 0 if none was */
    struct entry_open entry; /* deadline, metadata and more; the core sets open_id and base */
    bool full;               /* the client wants a save without a base */
    uint32_t full_every; /* each save of this number in a lineage is full; 0 means only the first */
    const char *actor;   /* who opens, for the term that is granted; may be NULL */
    /* Of the rank's last committed save; 0 if not reported. */
    uint64_t blocked_ms, staged_ms, persist_ms;
};

struct event_seal {
    uint32_t rank;
    struct entry_seal entry;
};
struct event_seals {
    uint64_t open_id;
    size_t count;
    const struct event_seal *items;
};

struct event_commit {
    uint64_t open_id;
    struct entry_chain entry; /* manifest hash and totals; the core fills in the other fields */
};

struct event_abort {
    struct token token; /* of the attempt that asks for it; zero if the server does */
    uint64_t open_id;
    int code; /* CAIRN_E_* */
    const char *reason;
};

struct event_begin {
    struct attempt_rank from;
    struct selector selector;
    bool allow_older;
    struct entry_info info; /* for a run that does not exist yet */
};

struct event_report {
    struct attempt_rank from;
    int code; /* CAIRN_E_*, or 0 for OK */
    const char *reason;
    const char *actor; /* who reports; "" or NULL if unknown */
    /* With code 0, the ranks that report. Only from.rank does if rank_count is 0. */
    size_t rank_count;
    const uint32_t *ranks;
};

struct event_health {
    enum health health;
    const char *reason;
};

struct event_annotate {
    struct selector selector;
    struct note_change note;
};

struct event_forget {
    const struct retention_policy *policy; /* decides instead of ids; NULL if ids are given */
    int64_t clock_jump_s;                  /* as in retention_job; 0 if the clock can be trusted */
    bool living; /* somebody is connected to the run, so it is not idle (`remove-idle`) */
    /* The schedule of garbage collection, whose cycles prove how long a run is idle. 0 means that
     * there is none, so that nothing is idle. */
    uint64_t cycle_ms, keep_cycles;
    uint32_t keep_least; /* good checkpoints that must stay; 0 means 2 */
    bool apart;          /* if possible, two of those that stay must share no object */
};

/* FORGET, UNDELETE, PIN, UNPIN, REMOVE, REPAIR, RECLAIM and BURY. */
struct event_mark {
    size_t id_count;
    const struct ckpt_id *ids; /* in any order, none twice */
    const char *actor;         /* who asked for it; "" or NULL if unknown */
    const char *reason;        /* why */
    union {
        struct event_forget forget;
        uint64_t cycles; /* RECLAIM: that must have begun since the forget; 0 waits for none */
    };
};

struct event_gc_cycle {
    uint64_t cycle;        /* the cycle that is over, so that a repeated event starts no other */
    uint64_t lease_cycles; /* ends sessions that began this many cycles ago; 0 ends none */
};

struct event_adopt {
    uint64_t open_id;
    struct token token;
    uint32_t world_size;
    struct ckpt_id parent;
    struct entry_info info;
    struct entry_chain entry; /* manifest hash, totals and base */
    struct note_change note;
    enum health health;
    int code; /* CAIRN_E_*, if the checkpoint is given up; 0 otherwise */
    const char *reason;
    const char *actor;
};

struct event {
    enum event_kind kind;
    int64_t wall_ns;
    /* The checkpoint that the event is about. OPEN and FIND_OPEN: only the step. RESTORE_REPORT:
     * the id of the try. Zero for events without one, or with a selector or a batch of ids. */
    struct ckpt_id id;
    union {                       /* `kind` says which member is used */
        struct event_adopt adopt; /* the largest member is the first one: {0} sets all of it */
        struct entry_info create;
        struct event_open open;
        struct token leave;
        struct event_seals seal;
        struct event_commit commit;
        struct event_abort abort;
        struct event_begin begin;
        struct event_report report;
        struct event_health health;
        struct event_annotate annotate;
        struct event_mark mark;
        struct event_gc_cycle gc_cycle;
    } u;
};

enum save_state {
    SAVE_NONE = 0,
    SAVE_OPEN = 1,
    SAVE_COMMITTED = 2,
    SAVE_ABORTED = 3,
    SAVE_FORGOTTEN = 4
};

/* Which member of a verdict's union an event fills in. events.def has it for each event. */
enum verdict_answer { ANSWER_NONE, ANSWER_SAVE, ANSWER_MARKS, ANSWER_RESTORE, ANSWER_GC_CYCLE };

/* The present state of a save. HEALTH and ANNOTATE tell of the commit that they are about. */
struct verdict_save {
    enum save_state state;
    uint64_t open_id; /* of that opening; if SAVE_COMMITTED, of the committed opening */
    uint64_t seq;     /* position in the chain, if SAVE_COMMITTED */
    uint64_t deadline_ms;
    struct ckpt_id base; /* with SAVE_OPEN: what chunks may refer to; term 0 for a full save */
    /* With code ABORTED, or for an abort that comes second: the first abort's code. */
    int dead_code;
    uint32_t rank;              /* SEAL with CONFLICT or INVALID: the rank whose seal was refused */
    bool sealed;                /* OPEN, FIND_OPEN: this rank has already sealed */
    bool new_term, new_lineage; /* OPEN: to be logged; new_lineage is set if the run is not empty */
    bool all_sealed; /* OPEN, SEAL: every rank has sealed; the driver goes on to commit */
    /* ANNOTATE: version of the note after the change; 0 if there is no note. */
    uint64_t note_version;
};

/* One mark for each id, in the order of ids. With a policy: one for each checkpoint that is not
 * forgotten yet, or that an earlier try of the event has forgotten, newest first. From scratch.
 * BURY only has done_count. */
struct verdict_marks {
    size_t count, done_count, refused_count;
    const struct mark *items;
    uint64_t head_seq, done_bytes; /* of the chain at the decision; stored by done_count */
    bool removed;                  /* the run is removed: by this event, or it was before */
    const char *why; /* of the run as a whole: how idle it is, or who removed it before; or NULL */
};

struct verdict_restore {
    bool empty;     /* the run is proven empty: "no checkpoint" is the answer, with `done` */
    bool fell_back; /* id is older than the checkpoint that was asked for */
    bool done;      /* every rank reported OK on this try */
    bool failed;    /* code and text are in `code` and the verdict's diag */
    int code;
    uint32_t try_count;
};

struct verdict_gc_cycle {
    uint64_t cycle;     /* the cycle that runs now */
    size_t ended_count; /* number of restore sessions that it ended */
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
    uint64_t newest_term;
    struct entry_day counted; /* what the update adds to the counts of its day */
    enum verdict_answer answer;
    union { /* read with verdict_save() and the others below */
        struct verdict_save save;
        struct verdict_marks marks;
        struct verdict_restore restore;
        struct verdict_gc_cycle gc_cycle;
    } u;
};

/* Returns a verdict without anything but the kind of its answer, as an event has it before it is
 * decided. */
struct verdict verdict_of(enum event_kind kind);
/* The part of the answer that an event of this kind gets. The caller must ask for the right one. */
const struct verdict_save *verdict_save(const struct verdict *verdict);
const struct verdict_marks *verdict_marks(const struct verdict *verdict);
const struct verdict_restore *verdict_restore(const struct verdict *verdict);
const struct verdict_gc_cycle *verdict_gc_cycle(const struct verdict *verdict);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Retention: which checkpoints of a run may go. Pure. Two halves: the guards, which hold for
 * everything that is forgotten, asked for by name or by a policy; and the policy engine
 * (retention_decide), which says what a policy would forget and why each one stays or goes.
 */
#ifndef CAIRN_CORE_RETENTION_H
#define CAIRN_CORE_RETENTION_H

#include "core/commit.h"

enum { RETENTION_LEAST = 2 }; /* good checkpoints that stay unless told otherwise */

/* A committed checkpoint as retention sees it. */
struct retention_item {
    struct ckpt_id id;
    uint64_t seq;
    int64_t wall_ns; /* of its commit, as some clock said it */
    enum health health;
    bool gone; /* forgotten: counts for nothing */
    bool on_lineage;
    bool tip;              /* of a superseded branch */
    int64_t superseded_ns; /* tip: wall time of the commit that left it behind */
    bool pinned;
    struct state_use use;
    uint64_t set;                  /* the same number: may share objects */
    const struct entry_note *note; /* NULL: none */
};

/* One for each of state->commits, in the same order, that is of the chain. NO_MEMORY. */
int MUST_USE retention_items(const struct run_state *state, struct scratch *scratch,
                             struct retention_item **ret, struct diag *diag);

struct retention_guards {
    uint32_t least; /* good ones of the lineage that stay; 0: RETENTION_LEAST */
    bool apart;     /* and among them two of different sets, where there are */
};

/* Good: on the lineage, verified, there. */
bool retention_is_good(const struct retention_item *item);

/* outcomes[i] in: MARK_DONE to forget item i, anything else to keep it. Out: MARK_DONE where it may
 * go, and why not where it was wanted and may not. */
void retention_guard(const struct retention_item *items, size_t count,
                     const struct retention_guards *guards, enum mark_outcome *outcomes);

/* --- policies --- */

enum retention_unit { UNIT_HOUR, UNIT_DAY, UNIT_WEEK, UNIT_MONTH, UNIT_YEAR, UNIT_COUNT };

/* A calendar distance: "2y5m7d3h", and "30min", "90s". All zero: none. */
struct retention_span {
    uint32_t years, months, days;
    uint64_t seconds;
};

enum retention_mode { MODE_UNSET, MODE_MIN, MODE_MAX };

enum { RETENTION_TAG_LISTS_MAX = 32 };

struct retention_tags { /* all of them; count 0: checkpoints without any tag */
    uint32_t count;
    const char **tags;
};

/* Rules are OR-ed; each counts for itself. Counts: 0 off, -1 all. */
struct retention_policy {
    int64_t last, per[UNIT_COUNT];
    struct retention_span within, within_per[UNIT_COUNT];
    uint64_t every_steps, every_seconds;
    int64_t best;
    const char *metric; /* NULL: none */
    enum retention_mode mode;
    uint32_t tag_list_count;
    struct retention_tags tag_lists[RETENTION_TAG_LISTS_MAX];
    bool has_superseded; /* else 7 days */
    uint64_t superseded_seconds;
    uint32_t least; /* "keep-least"; 0: RETENTION_LEAST */
};

/* One option: "keep-last" with "3", "keep-tag" with "a,b" (may be repeated), "metric", "mode" ... ;
 * "unlimited" is -1. Of two the last one holds; who takes them from people refuses two that differ.
 * Texts are from scratch. INVALID, by the option's name. */
int MUST_USE retention_policy_set(struct retention_policy *policy, const char *name,
                                  const char *value, struct scratch *scratch, struct diag *diag);
/* Is it a policy, and free of contradictions? INVALID: empty, a metric without keep-best ... */
int MUST_USE retention_policy_check(const struct retention_policy *policy, struct diag *diag);
/* "keep-last 3, keep-daily 7": for the chain's reason and for people. */
void retention_policy_text(const struct retention_policy *policy, size_t bytes, char *ret);

/* Why a policy keeps one: bits. For each unit five in a row. */
enum retention_reason {
    REASON_LAST = 0,
    REASON_PER = 1,                          /* + unit */
    REASON_OLDEST = REASON_PER + UNIT_COUNT, /* + unit: the oldest of all, with counts left */
    REASON_WITHIN = REASON_OLDEST + UNIT_COUNT,
    REASON_WITHIN_PER,                                     /* + unit */
    REASON_WITHIN_OLDEST = REASON_WITHIN_PER + UNIT_COUNT, /* + unit */
    REASON_STEPS = REASON_WITHIN_OLDEST + UNIT_COUNT,
    REASON_EVERY,
    REASON_BEST,
    REASON_TAG,
    REASON_TIP,        /* of a branch that was superseded a short time ago */
    REASON_UNREPLACED, /* not good, and fewer than two good ones behind it are kept */
    REASON_COUNT
};

struct retention_job {
    const struct retention_policy *policy;
    int64_t now_ns;       /* wall time */
    int64_t clock_jump_s; /* not 0: it jumped by so much, and is not believed: rules of time are
                           * refused, and no branch is old enough to go */
    bool apart;           /* as in the guards; their least number is the policy's */
    size_t count;
    const struct retention_item *items;
    /* Results: MARK_DONE (forget), MARK_KEPT, a guard's refusal, or MARK_ALREADY for what is gone;
     * and the bits why it is kept. */
    enum mark_outcome *outcomes;
    uint64_t *reasons;
};

/* What a policy says, and after it the guards. NO_MEMORY; INVALID: the policy, or no rule keeps
 * anything of the lineage; NOT_FOUND: none has the metric of keep-best; DAMAGED: there are
 * checkpoints and none is good; CONFLICT: a rule asks for time, and by the newest one's time this
 * clock or the one that it was committed by is wrong, or this clock has jumped. Then nothing is to
 * be forgotten. */
int MUST_USE retention_decide(const struct retention_job *job, struct scratch *scratch,
                              struct diag *diag);
/* "daily, best by loss, is pinned": why it stays or goes. */
void retention_reasons_text(enum mark_outcome outcome, uint64_t reasons, size_t bytes, char *ret);

#endif

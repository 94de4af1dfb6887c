/* SPDX-License-Identifier: Apache-2.0
 *
 * Retention decides which checkpoints of a run may be forgotten. Pure. It has two halves: the
 * guards, which hold for every forgetting, whether it is asked for by name or by a policy; and the
 * policy engine (retention_decide), which says what a policy would forget, and why each checkpoint
 * stays or goes.
 */
#ifndef CAIRN_CORE_RETENTION_H
#define CAIRN_CORE_RETENTION_H

#include "base/zone.h"
#include "core/commit.h"

enum { RETENTION_LEAST = 2 }; /* good checkpoints that stay unless configured otherwise */

/* A committed checkpoint as retention sees it. */
struct retention_item {
    struct ckpt_id id;
    uint64_t seq;
    int64_t wall_ns; /* time of its commit, by the clock of the daemon that committed it */
    enum health health;
    bool gone; /* it is forgotten and no rule counts it */
    bool on_lineage;
    bool tip;              /* it is the newest checkpoint of a superseded branch */
    int64_t superseded_ns; /* tip: wall time of the commit that superseded the branch */
    bool pinned;
    struct state_use use;
    uint64_t set;                  /* two items with the same number may share objects */
    const struct entry_note *note; /* NULL if it has no note */
};

/* Gives one item for each of state->commits that is in the chain, in the same order. Returns
 * NO_MEMORY if there is no memory. */
int MUST_USE retention_items(const struct run_state *state, struct scratch *scratch,
                             struct retention_item **ret, struct diag *diag);

struct retention_guards {
    uint32_t least; /* good checkpoints of the lineage that stay; 0 means RETENTION_LEAST */
    bool apart;     /* if possible, two of these must belong to different sets */
};

/* Returns true if the checkpoint is on the lineage, verified and not forgotten. */
bool retention_is_good(const struct retention_item *item);

/* Applies the guards. On entry outcomes[i] is MARK_DONE if item i shall be forgotten, and anything
 * else if it stays. On return MARK_DONE is left where the item may be forgotten; where it may not,
 * the outcome says why. */
void retention_guard(const struct retention_item *items, size_t count,
                     const struct retention_guards *guards, enum mark_outcome *outcomes);

/* --- policies --- */

enum retention_unit { UNIT_HOUR, UNIT_DAY, UNIT_WEEK, UNIT_MONTH, UNIT_YEAR, UNIT_COUNT };

/* A distance in the calendar, such as "2y5m7d3h", "30min" or "90s". All fields are 0 if it is not
 * set. */
struct retention_span {
    uint32_t years, months, days;
    uint64_t seconds;
};

enum retention_mode { MODE_UNSET, MODE_MIN, MODE_MAX };

enum { RETENTION_TAG_LISTS_MAX = 32 };

struct retention_tags { /* all of these tags; count 0 means checkpoints without any tag */
    uint32_t count;
    const char **tags;
};

/* Rules are OR-ed, and each rule counts for itself. A count of 0 means off, and -1 means all. */
struct retention_policy {
    int64_t last, per[UNIT_COUNT];
    struct retention_span within, within_per[UNIT_COUNT];
    uint64_t every_steps, every_seconds;
    int64_t best;
    const char *metric; /* NULL if not set */
    enum retention_mode mode;
    uint32_t tag_list_count;
    struct retention_tags tag_lists[RETENTION_TAG_LISTS_MAX];
    bool has_superseded; /* if not set, a superseded branch stays for 7 days */
    uint64_t superseded_seconds;
    const char *zone_name;   /* whose days, weeks, months and years count; NULL means UTC */
    const struct zone *zone; /* NULL exactly if zone_name is */
    uint32_t least;          /* "keep-least"; 0 means RETENTION_LEAST */
    /* "remove-idle": a run that nobody has used for so long is removed as a whole; 0 means never.
     * It is no rule: with nothing else, a run that is used keeps everything. */
    uint64_t remove_idle_seconds;
};

/* Sets one option, such as "keep-last" with "3", "keep-tag" with "a,b" (which may be repeated, and
 * in which "\," is a comma of a tag and "\\" a backslash), "time-zone", "metric" or "mode"; the
 * value "unlimited" means -1. An option that is set twice has its last value, so a caller that
 * takes options from people has to refuse contradictions. Texts are from scratch. Returns INVALID,
 * naming the option, for a bad value. */
int MUST_USE retention_policy_set(struct retention_policy *policy, const char *name,
                                  const char *value, struct scratch *scratch, struct diag *diag);
/* Checks that the policy has a rule and contradicts itself nowhere. Returns INVALID otherwise, for
 * example for a metric without keep-best. */
int MUST_USE retention_policy_check(const struct retention_policy *policy, struct diag *diag);
/* Returns true if the policy has a rule about checkpoints, and not only about the run as a whole.
 */
bool retention_policy_has_rule(const struct retention_policy *policy);
/* Writes the policy as text, such as "keep-last 3, keep-daily 7", for the chain's reason and for
 * people. */
void retention_policy_text(const struct retention_policy *policy, size_t bytes, char *ret);

/* The reasons why a policy keeps a checkpoint, as bit numbers. Rules with units have one bit for
 * each unit, five in a row. */
enum retention_reason {
    REASON_LAST = 0,
    REASON_PER = 1, /* + unit */
    /* + unit: it is the oldest of all, and the count is not used up. */
    REASON_OLDEST = REASON_PER + UNIT_COUNT,
    REASON_WITHIN = REASON_OLDEST + UNIT_COUNT,
    REASON_WITHIN_PER,                                     /* + unit */
    REASON_WITHIN_OLDEST = REASON_WITHIN_PER + UNIT_COUNT, /* + unit */
    REASON_STEPS = REASON_WITHIN_OLDEST + UNIT_COUNT,
    REASON_EVERY,
    REASON_BEST,
    REASON_TAG,
    REASON_TIP,        /* it is the tip of a branch that was superseded recently */
    REASON_UNREPLACED, /* it is not good, and fewer than two good older ones are kept */
    REASON_COUNT
};

struct retention_job {
    const struct retention_policy *policy;
    int64_t now_ns; /* wall time in ns since 1970 */
    /* Seconds by which the wall clock has jumped; 0 if it can be trusted. After a jump, rules about
     * time are refused, and no superseded branch counts as old enough to be forgotten. */
    int64_t clock_jump_s;
    bool apart; /* as in the guards, whose least number comes from the policy */
    size_t count;
    const struct retention_item *items;
    /* Results for each item. The outcome is MARK_DONE (forget it), MARK_KEPT, the refusal of a
     * guard, or MARK_ALREADY if it is gone; reasons holds the bits that say why the policy keeps
     * it. */
    enum mark_outcome *outcomes;
    uint64_t *reasons;
};

/* Applies the policy, and the guards after it. On an error nothing may be forgotten. Returns
 * NO_MEMORY. Returns INVALID if the policy is invalid or no rule keeps anything of the lineage.
 * Returns NOT_FOUND if no checkpoint has the metric of keep-best. Returns DAMAGED if there are
 * checkpoints and none is good. Returns CONFLICT if a rule needs the time and the time is in doubt:
 * the clock has jumped, or the newest checkpoint's time shows that this clock or the committing one
 * is wrong. */
int MUST_USE retention_decide(const struct retention_job *job, struct scratch *scratch,
                              struct diag *diag);
/* Writes why a checkpoint stays or goes, such as "daily, best by loss, is pinned". */
void retention_reasons_text(enum mark_outcome outcome, uint64_t reasons, size_t bytes, char *ret);

#endif

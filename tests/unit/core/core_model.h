/* SPDX-License-Identifier: Apache-2.0
 *
 * The naive model of test_commit_random: what must hold, said a second time and as simply as
 * possible, with arrays searched from end to end. It is told what was applied and what was
 * answered, and fails the test.
 */
#ifndef CAIRN_TESTS_CORE_MODEL_H
#define CAIRN_TESTS_CORE_MODEL_H

#include "core/commit.h"

enum {
    MODEL_WORLD_MAX = 3,
    MODEL_ATTEMPTS_MAX = 6,
    MODEL_OPENINGS_MAX = 256,
    MODEL_TERMS_MAX = 128,
    MODEL_SESSIONS_MAX = 256,
};

enum model_end { MODEL_OPEN, MODEL_COMMITTED, MODEL_ABORTED, MODEL_FENCED };

struct model_opening {
    struct ckpt_id id;
    uint64_t open_id;
    enum model_end end;
    bool told_dead; /* somebody was told that it will never be committed */
    struct ckpt_id base;
    uint32_t world_size;
    bool sealed[MODEL_WORLD_MAX + 1];
    uint8_t content[MODEL_WORLD_MAX + 1];
};

struct model_term {
    uint64_t token;
    uint32_t ordinal, world_size;
    struct ckpt_id parent;
};

struct model_commit {
    struct ckpt_id id;
    uint64_t open_id;
    enum health health;
    uint64_t note_version; /* the note: one tag, one metric */
    bool tagged;
    double score; /* 0: none */
    uint64_t seq; /* in the chain */
    struct ckpt_id base;
    bool forgotten, reclaimed, pinned;
    uint64_t forgotten_cycle;
};

/* A try of a restore session: who has said OK to which checkpoint. */
struct model_try {
    uint8_t token;
    uint32_t ordinal, try_count;
    struct ckpt_id id;
    bool ok[MODEL_WORLD_MAX + 1];
    bool done;
};

/* What the processes of an attempt know. */
struct model_attempt {
    uint64_t token;
    uint32_t world_size, ordinal;
    struct ckpt_id parent;
    uint64_t newest_seen;
    size_t opening_count, opening_first; /* first: of this ordinal */
    struct model_opening openings[MODEL_OPENINGS_MAX];
    bool restoring;
    struct ckpt_id at[MODEL_WORLD_MAX + 1];
};

struct model_totals {
    unsigned commits, aborts, fenced, restores_done, fell_back, restores_failed;
    unsigned forgotten, undeleted, pinned, reclaimed, refused, sessions_ended;
};

struct model {
    uint64_t next_open_id;
    uint64_t chain_seq, cycle;
    size_t attempt_count, opening_count, term_count, commit_count, try_count;
    struct model_attempt attempts[MODEL_ATTEMPTS_MAX];
    struct model_opening openings[MODEL_OPENINGS_MAX];
    struct model_term terms[MODEL_TERMS_MAX]; /* [0] is term 1 */
    struct model_commit commits[MODEL_OPENINGS_MAX];
    struct model_try tries[MODEL_SESSIONS_MAX];
    struct model_totals totals;
};

void model_init(struct model *model);
uint64_t model_new_open_id(struct model *model);
void model_learn_opening(struct model_attempt *attempt, struct ckpt_id id, uint64_t open_id);
/* Fails the test if the update, which the record has taken, was not allowed. */
void model_applied(struct model *model, const struct event *event, const struct verdict *verdict);
/* Fails the test if the answer must not be given. It may be from a stale copy, and without an
 * update. */
void model_answered(struct model *model, const struct event *event, const struct verdict *verdict);
/* Fails the test if the record says something else than the model. */
void model_compare(struct model *model, const struct run_state *state);
struct ckpt_id model_latest(const struct model *model); /* term 0: none */
void model_add_totals(const struct model *model, struct model_totals *totals);

#endif

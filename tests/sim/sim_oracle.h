/* SPDX-License-Identifier: Apache-2.0
 *
 * oracle: what the ranks were told, and what must therefore be true. It knows every save that was
 * tried (by step and history: the number that all contents are made of), who was told what about
 * it, and the one history that each checkpoint may have.
 */
#ifndef CAIRN_TEST_SIM_ORACLE_H
#define CAIRN_TEST_SIM_ORACLE_H

#include "wire/msg.h"

struct scene;

/* One try of a job to save a step. A step that is tried again has the same contents. */
struct oracle_save {
    unsigned job;
    uint64_t step, history;
    bool again;  /* not the first try of this job at this step */
    bool dead;   /* a rank was told that it is not committed */
    bool acked;  /* a rank was told that it is */
    bool wanted; /* begun when no fault was left: I7 */
};

/* A checkpoint that exists for certain, or was seen. */
struct oracle_fact {
    struct ckpt_id id;
    uint64_t history;
    bool acked;
};

struct oracle {
    struct oracle_save **saves;
    size_t save_count, save_cap;
    struct oracle_fact *facts;
    size_t fact_count, fact_cap;
    struct ckpt_id newest_acked;
    uint64_t acks, restores, failures; /* how lively the seed was */
};

void oracle_fini(struct oracle *oracle);
struct oracle_save *oracle_begin(struct scene *scene, unsigned job, uint64_t step,
                                 uint64_t history);
/* What a rank was told about its part of a save. */
struct oracle_answer {
    uint32_t rank;
    int status;
    struct ckpt_id id;
    const char *text; /* of the error */
};
void oracle_end(struct scene *scene, struct oracle_save *save, const struct oracle_answer *answer);
/* All bytes of a checkpoint were found to be of this history. */
void oracle_restored(struct scene *scene, struct ckpt_id id, uint64_t history);
/* `latest` was resolved to id; floor: the newest that had been acknowledged when it was asked. */
void oracle_latest(struct scene *scene, struct ckpt_id id, struct ckpt_id floor);
/* The complete list of the run, newest first. */
void oracle_listed(struct scene *scene, size_t count, const struct ckpt_info *entries);
/* A random acknowledged checkpoint; false when there is none. */
bool oracle_pick(struct scene *scene, struct ckpt_id *ret);

#endif

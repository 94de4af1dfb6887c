/* SPDX-License-Identifier: Apache-2.0
 *
 * sim_operator: forgets checkpoints by name and by policy, brings some back, pins and unpins, at
 * any daemon and at any moment, one request after another; and knows which of them may therefore be
 * gone, which must be, and which must not.
 */
#ifndef CAIRN_TEST_SIM_OPERATOR_H
#define CAIRN_TEST_SIM_OPERATOR_H

#include "sim_upkeep.h"

struct sim_operator;

struct sim_operator *operator_new(struct scene *scene);
void operator_free(struct sim_operator *op);
void operator_start(struct sim_operator *op); /* at random moments, until the end */
/* A checkpoint is there: now and then the one before it is forgotten at once, though saves that are
 * under way may refer to it. A NULL operator does nothing. */
void operator_on_commit(struct sim_operator *op);
/* The daemon ends: what was asked of it has an unknown outcome. A NULL operator does nothing. */
void operator_lose(struct sim_operator *op, const struct sim_upkeep *upkeep);
/* Has it ever been asked to forget this one, so that it may be missing? */
bool operator_may_miss(const struct sim_operator *op, struct ckpt_id id);
/* Or was it so for a while since then, and is brought back? */
bool operator_missed(const struct sim_operator *op, struct ckpt_id id, uint64_t since_ms);
/* It said that this one is forgotten, and nothing since could have changed that. */
bool operator_knows_gone(const struct sim_operator *op, struct ckpt_id id);
/* In a world at rest: one goes, comes back within its time, and is what it was. False: it stays,
 * for one of the reasons that there are. */
bool operator_try_undelete(struct scene *scene, struct ckpt_id id);

#endif

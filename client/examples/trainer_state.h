/* SPDX-License-Identifier: Apache-2.0
 *
 * What the example saves, and how it says so to Cairn: weights and the data RNG replicated, Adam's
 * moments sharded by rows, each rank's own RNG and loader local, the progress as a typed tree. One
 * thread.
 */
#ifndef CAIRN_EXAMPLES_TRAINER_STATE_H
#define CAIRN_EXAMPLES_TRAINER_STATE_H

#include "cairn.h"
#include "trainer_model.h"

struct state {
    struct model model;
    struct rng data_rng;  /* the same on all ranks: they compute the same steps */
    struct rng local_rng; /* this rank's own */
    uint64_t drawn;       /* numbers drawn from local_rng: what a data loader would keep */
    uint64_t step;        /* finished */
    double rate;          /* of the last step */
    int rank, world;
};

/* 0, or -1: out of memory. */
int state_init(struct state *state, int hidden, int rank, int world, uint64_t seed);
void state_fini(struct state *state);
/* Trains one step; returns the loss. */
double state_step(struct state *state, size_t text_bytes, const uint8_t *text);

/* For a save: of the moments only this rank's rows. For a restore: all of them, whatever the world
 * size was. */
enum state_use { STATE_SAVE, STATE_RESTORE };
int state_register(struct state *state, cairn_t *cairn, enum state_use use,
                   struct cairn_error *err);
/* Takes step, rate and loader out of a restore that is done; checks what was missing. */
int state_restored(struct state *state, cairn_op_t *op, struct cairn_error *err);

/* SHA-256 of everything above as 64 hex digits: two runs agree in every bit, or their digests
 * differ. */
void state_digest(const struct state *state, char ret[65]);

#endif

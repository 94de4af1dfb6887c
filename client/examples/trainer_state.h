/* SPDX-License-Identifier: Apache-2.0
 *
 * What the example saves, and how it tells Cairn: weights and the data RNG are replicated, Adam's
 * moments are sharded by rows, each rank's own RNG and loader are local, and the progress is a
 * typed tree. One thread.
 */
#ifndef CAIRN_EXAMPLES_TRAINER_STATE_H
#define CAIRN_EXAMPLES_TRAINER_STATE_H

#include "cairn.h"
#include "trainer_model.h"

struct state {
    struct model model;
    struct rng data_rng;  /* the same on all ranks, because all compute the same steps */
    struct rng local_rng; /* this rank's own */
    uint64_t drawn;       /* numbers drawn from local_rng, as a data loader would keep them */
    uint64_t step;        /* steps that are finished */
    double rate;          /* of the last step */
    int rank, world;
};

/* Makes a state. Returns 0, or -1 if memory is short. */
int state_init(struct state *state, int hidden, int rank, int world, uint64_t seed);
void state_fini(struct state *state);
/* Trains one step and returns the loss. */
double state_step(struct state *state, size_t text_bytes, const uint8_t *text);

/* A save registers only this rank's rows of the moments. A restore registers all rows, so that the
 * world size of the save does not matter. */
enum state_use { STATE_SAVE, STATE_RESTORE };
int state_register(struct state *state, cairn_t *cairn, enum state_use use,
                   struct cairn_error *err);
/* Takes step, rate and loader from a restore that is done, and checks what was missing. */
int state_restored(struct state *state, cairn_op_t *op, struct cairn_error *err);

/* Writes the SHA-256 of everything above as 64 hex digits. Two runs agree in every bit, or their
 * digests differ. Returns 0, or -1 if there is no memory. */
int state_digest(const struct state *state, char ret[65]);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The example's model: CONTEXT embedded characters predict the next one through one hidden layer;
 * Adam trains it. It is small and deterministic on purpose: one thread, a fixed order of sums, its
 * own random numbers.
 */
#ifndef CAIRN_EXAMPLES_TRAINER_MODEL_H
#define CAIRN_EXAMPLES_TRAINER_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum { MODEL_CONTEXT = 16, MODEL_VOCAB = 128, MODEL_EMBED = 64, MODEL_BATCH = 8 };
enum { PARAM_EMBED, PARAM_W1, PARAM_B1, PARAM_W2, PARAM_B2, PARAM_COUNT };

/* One parameter with its gradient and Adam's two moments, each [rows, columns], or [rows] if
 * columns is 1. */
struct param {
    const char *name;
    int64_t rows, columns;
    size_t count;
    float *value, *grad, *moment1, *moment2;
};

/* xoshiro256**, whose whole state is these 32 bytes. */
struct rng {
    uint64_t s[4];
};
void rng_seed(struct rng *rng, uint64_t seed);
uint64_t rng_next(struct rng *rng);

struct model {
    int hidden;
    struct param params[PARAM_COUNT];
    float *work; /* activations of one example */
};

/* Makes a model with weights from rng. Returns 0, or -1 if memory is short. */
int model_init(struct model *model, int hidden, struct rng *rng);
void model_fini(struct model *model);
/* Trains one step on MODEL_BATCH examples drawn from the text, and returns the mean loss. step
 * counts from 1, for Adam's bias. */
double model_step(struct model *model, size_t text_bytes, const uint8_t *text, struct rng *rng,
                  uint64_t step);
double model_rate(uint64_t step); /* the learning rate of a step: a warm-up, then constant */

#endif

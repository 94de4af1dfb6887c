/* SPDX-License-Identifier: Apache-2.0
 *
 * The example's model: from CONTEXT characters, embedded, through one hidden layer to the next one;
 * Adam. Small on purpose, and deterministic: one thread, a fixed order of sums, its own random
 * numbers. One thread.
 */
#ifndef CAIRN_EXAMPLES_TRAINER_MODEL_H
#define CAIRN_EXAMPLES_TRAINER_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum { MODEL_CONTEXT = 16, MODEL_VOCAB = 128, MODEL_EMBED = 64, MODEL_BATCH = 8 };
enum { PARAM_EMBED, PARAM_W1, PARAM_B1, PARAM_W2, PARAM_B2, PARAM_COUNT };

/* One parameter with its gradient and Adam's two moments; [rows, columns], or [rows] where columns
 * is 1. */
struct param {
    const char *name;
    int64_t rows, columns;
    size_t count;
    float *value, *grad, *moment1, *moment2;
};

/* xoshiro256**: the whole state is these 32 bytes. */
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

/* 0, or -1: out of memory. Weights come from rng. */
int model_init(struct model *model, int hidden, struct rng *rng);
void model_fini(struct model *model);
/* One step on MODEL_BATCH examples drawn from the text; returns the mean loss. step counts from 1
 * (Adam's bias). */
double model_step(struct model *model, size_t text_bytes, const uint8_t *text, struct rng *rng,
                  uint64_t step);
double model_rate(uint64_t step); /* the learning rate of a step: a warm-up, then constant */

#endif

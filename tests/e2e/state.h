/* SPDX-License-Identifier: Apache-2.0
 *
 * state: the tensors and blobs of e2e_rank, a toy trainer. What an element holds is a function of
 * (seed, tensor, index in the whole tensor), whichever rank holds it, so that any program can tell
 * what a checkpoint must contain. Single thread.
 */
#ifndef CAIRN_E2E_STATE_H
#define CAIRN_E2E_STATE_H

#include <cairn.h>
#include <stdint.h>

enum { STATE_NDIM = 4, STATE_TENSORS = 64, STATE_BLOBS = 16, STATE_SEEDS = 64 };

struct state_tensor {
    char name[128], coordinate[64];
    int dtype, placement;
    uint32_t ndim, element_bytes;
    int64_t shape[STATE_NDIM], offset[STATE_NDIM], length[STATE_NDIM];
    uint64_t elements; /* of the box that is held here */
    uint8_t *data;
};

struct state_blob {
    char name[128], coordinate[64];
    int kind, placement;
    uint8_t *data;
    size_t bytes;
};

struct state {
    size_t tensor_count, blob_count;
    struct state_tensor tensors[STATE_TENSORS];
    struct state_blob blobs[STATE_BLOBS];
};

/* Fills shape, offset and length from "2x3" and "0,0"; NULL box: the whole tensor. NULL: good,
 * otherwise what is wrong. */
const char *state_add_tensor(struct state *state, const struct state_tensor *wish,
                             const char *shape, const char *offset, const char *length);
const char *state_add_blob(struct state *state, const struct state_blob *wish, const char *hex);
void state_clear(struct state *state);
int state_register(struct state *state, cairn_t *cairn, struct cairn_error *err);

void state_fill(struct state *state, uint64_t seed);
/* The name of the first tensor that does not hold what state_fill(seed) writes; NULL if all do. */
const char *state_check(const struct state *state, uint64_t seed);
/* The same for one tensor and a list of seeds ("1,2,3"), one for each of equal parts of the whole
 * tensor. check: nothing is written. What is wrong, or NULL. */
const char *state_paint(struct state *state, const char *name, const char *coordinate,
                        const char *seeds, int check);
/* One step of training: every element's next value depends on its present one and on the step. */
void state_train(struct state *state, uint64_t step);
/* Of all bytes of all tensors, in order. */
uint64_t state_digest(const struct state *state);

#endif

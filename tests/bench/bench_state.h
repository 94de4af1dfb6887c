/* SPDX-License-Identifier: Apache-2.0
 *
 * The state that the benchmark saves: one rank's share of a transformer with Adam, in ordinary
 * memory. Weights are bf16, both moments f32, every tensor is cut along its first dimension, as
 * ZeRO does it. Owned by the benchmark's one thread.
 */
#ifndef CAIRN_BENCH_STATE_H
#define CAIRN_BENCH_STATE_H

#include <cairn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_state {
    struct cairn_tensor *tensors;
    struct bench_tensor *parts; /* what the tensors point to */
    size_t count, cap;
    uint64_t bytes; /* of this rank */
    int32_t rank, world_size;
    bool replicated; /* set before init: every rank holds everything, as under DDP */
};

/* bytes: of all ranks together, reached within one layer's size. False: out of memory. */
bool bench_state_init(struct bench_state *state, uint64_t bytes, int32_t rank, int32_t world_size);
void bench_state_fini(struct bench_state *state);
/* Overwrites everything with what follows from seed and the place in each tensor alone, not from
 * the rank. */
void bench_state_fill(struct bench_state *state, uint64_t seed);
/* The same for the same contents. */
uint64_t bench_state_sum(const struct bench_state *state);
void *bench_state_data(const struct bench_state *state, size_t idx, size_t *ret_bytes);

#endif

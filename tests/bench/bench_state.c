/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the tensors: an embedding and as many layers as the wanted bytes hold, each weight with
 * its two moments. Memory comes from malloc, as a framework's would: 4 KiB pages, nothing aligned
 * for our sake. The benchmark's one thread.
 */
#include "bench_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, BF16_BYTES = 2, F32_BYTES = 4, WEIGHT_BYTES = BF16_BYTES + 2 * F32_BYTES };

struct bench_tensor {
    char name[NAME_BYTES];
    int64_t shape[2], offset[2], length[2];
    struct cairn_box box;
    size_t bytes;
};

struct weight {
    const char *name;
    int64_t rows, columns; /* in units of the width; 0 columns: a vector of rows x width */
};

static const struct weight LAYER[] = {
    {"attn.qkv.weight", 3, 1}, {"attn.qkv.bias", 3, 0}, {"attn.out.weight", 1, 1},
    {"attn.out.bias", 1, 0},   {"ln_1.weight", 1, 0},   {"ln_1.bias", 1, 0},
    {"mlp.up.weight", 4, 1},   {"mlp.up.bias", 4, 0},   {"mlp.down.weight", 1, 4},
    {"mlp.down.bias", 1, 0},   {"ln_2.weight", 1, 0},   {"ln_2.bias", 1, 0},
};
enum { LAYER_WEIGHTS = sizeof LAYER / sizeof LAYER[0], KINDS = 3 };

static bool add(struct bench_state *state, const char *name, int dtype, const int64_t shape[2])
{
    struct bench_tensor *part = &state->parts[state->count];
    int64_t from = state->replicated ? 0 : shape[0] * state->rank / state->world_size;
    int64_t to = state->replicated ? shape[0] : shape[0] * (state->rank + 1) / state->world_size;
    uint32_t ndim = shape[1] > 0 ? 2 : 1;
    int64_t columns = shape[1] > 0 ? shape[1] : 1;
    *part = (struct bench_tensor){.shape = {shape[0], columns},
                                  .offset = {from, 0},
                                  .length = {to - from, columns},
                                  .bytes = (size_t)((to - from) * columns) *
                                           (dtype == CAIRN_BF16 ? BF16_BYTES : F32_BYTES)};
    int length = snprintf(part->name, sizeof part->name, "%s", name);
    part->box = (struct cairn_box){
        .offset = part->offset, .length = part->length, .data = malloc(part->bytes + 1)};
    struct cairn_tensor *tensor = &state->tensors[state->count++];
    *tensor = (struct cairn_tensor)CAIRN_TENSOR_INIT;
    tensor->name = part->name;
    tensor->dtype = dtype;
    tensor->ndim = ndim;
    tensor->shape = part->shape;
    tensor->boxes = &part->box;
    tensor->box_count = 1;
    tensor->placement = state->replicated ? CAIRN_REPLICATED : CAIRN_SHARDED;
    state->bytes += part->bytes;
    return part->box.data && length > 0 && (size_t)length < sizeof part->name;
}

/* The weight and its two moments. */
static bool add_weight(struct bench_state *state, const char *layer, const char *name,
                       const int64_t shape[2])
{
    static const struct {
        const char *prefix;
        int dtype;
    } kinds[KINDS] = {
        {"model.", CAIRN_BF16}, {"optim.exp_avg.", CAIRN_F32}, {"optim.exp_avg_sq.", CAIRN_F32}};
    for (size_t i = 0; i < KINDS; i++) {
        char full[NAME_BYTES];
        snprintf(full, sizeof full, "%s%s%s", kinds[i].prefix, layer, name);
        if (!add(state, full, kinds[i].dtype, shape)) {
            return false;
        }
    }
    return true;
}

bool bench_state_init(struct bench_state *state, uint64_t bytes, int32_t rank, int32_t world_size)
{
    /* A layer should be a small part of the whole, and its matrices large enough for full chunks.
     */
    int64_t width = bytes >= (UINT64_C(1) << 30) ? 1024 : 256;
    uint64_t layer_bytes = 12 * (uint64_t)(width * width) * WEIGHT_BYTES;
    uint64_t layers = bytes / layer_bytes;
    uint64_t rest = bytes - layers * layer_bytes;
    *state = (struct bench_state){
        .rank = rank, .world_size = world_size, .replicated = state->replicated};
    state->cap = (size_t)(layers * LAYER_WEIGHTS + 1) * KINDS;
    state->tensors = calloc(state->cap, sizeof *state->tensors);
    state->parts = calloc(state->cap, sizeof *state->parts);
    bool ok = state->tensors && state->parts;
    int64_t vocabulary = (int64_t)(rest / WEIGHT_BYTES) / width;
    const int64_t embedding[2] = {vocabulary > world_size ? vocabulary : world_size, width};
    ok = ok && add_weight(state, "", "embedding.weight", embedding);
    for (uint64_t i = 0; ok && i < layers; i++) {
        char layer[NAME_BYTES / 2];
        snprintf(layer, sizeof layer, "h.%u.", (unsigned)i);
        for (size_t w = 0; ok && w < LAYER_WEIGHTS; w++) {
            const int64_t shape[2] = {LAYER[w].rows * width, LAYER[w].columns * width};
            ok = add_weight(state, layer, LAYER[w].name, shape);
        }
    }
    return ok;
}

void bench_state_fini(struct bench_state *state)
{
    for (size_t i = 0; i < state->count; i++) {
        free(state->parts[i].box.data);
    }
    free(state->parts);
    free(state->tensors);
}

void *bench_state_data(const struct bench_state *state, size_t idx, size_t *ret_bytes)
{
    *ret_bytes = state->parts[idx].bytes;
    return state->parts[idx].box.data;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

/* Eight bytes of a tensor as its place there gives them: any cut into shards holds the same. */
static uint64_t word_at(uint64_t start, uint64_t idx)
{
    uint64_t value = (start + idx) * UINT64_C(0x9e3779b97f4a7c15);
    return value ^ value >> 29;
}

void bench_state_fill(struct bench_state *state, uint64_t seed)
{
    for (size_t i = 0; i < state->count; i++) {
        const struct bench_tensor *part = &state->parts[i];
        uint8_t *data = part->box.data;
        uint64_t start = mix(seed * 1000003 + i + 1), rows = (uint64_t)part->length[0];
        uint64_t from = rows > 0 ? (uint64_t)part->offset[0] * (part->bytes / rows) : 0;
        size_t skip = from % sizeof start, at = 0;
        while (at < part->bytes) {
            uint64_t value = word_at(start, (from + at) / sizeof value);
            size_t left = part->bytes - at;
            if (skip == 0 && left >= sizeof value) {
                memcpy(data + at, &value, sizeof value);
                at += sizeof value;
                continue;
            }
            size_t bytes = left < sizeof value - skip ? left : sizeof value - skip;
            memcpy(data + at, (const uint8_t *)&value + skip, bytes);
            at += bytes;
            skip = 0;
        }
    }
}

uint64_t bench_state_sum(const struct bench_state *state)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < state->count; i++) {
        const uint8_t *data = state->parts[i].box.data;
        for (size_t at = 0; at < state->parts[i].bytes; at += sizeof sum) {
            size_t left = state->parts[i].bytes - at;
            uint64_t value = 0;
            memcpy(&value, data + at, left < sizeof value ? left : sizeof value);
            sum = (sum + value) * UINT64_C(0x9e3779b97f4a7c15) + (sum >> 29);
        }
    }
    return sum;
}

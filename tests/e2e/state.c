/* SPDX-License-Identifier: Apache-2.0
 *
 * See state.h.
 */
#include "state.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static uint64_t fnv(uint64_t hash, size_t bytes, const void *data)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ at[i]) * 0x100000001b3;
    }
    return hash;
}

#define FNV_START 0xcbf29ce484222325u

/* "2x3" or "0,0" into numbers; how many, or 0 for what is no list. "-" is the empty list. */
static int parse_list(const char *text, int64_t ret[STATE_NDIM], uint32_t *ret_count)
{
    uint32_t count = 0;
    if (strcmp(text, "-") == 0) {
        *ret_count = 0;
        return 1;
    }
    for (const char *at = text;; at++) {
        char *end;
        if (count == STATE_NDIM) {
            return 0;
        }
        ret[count++] = strtoll(at, &end, 10);
        if (end == at || (*end != '\0' && *end != 'x' && *end != ',')) {
            return 0;
        }
        at = end;
        if (*end == '\0') {
            break;
        }
    }
    *ret_count = count;
    return 1;
}

const char *state_add_tensor(struct state *state, const struct state_tensor *wish,
                             const char *shape, const char *offset, const char *length)
{
    struct state_tensor *tensor = &state->tensors[state->tensor_count];
    uint32_t offsets = 0, lengths = 0;
    if (state->tensor_count == STATE_TENSORS) {
        return "too many tensors";
    }
    *tensor = *wish;
    if (!parse_list(shape, tensor->shape, &tensor->ndim)) {
        return "the shape is no list";
    }
    memcpy(tensor->length, tensor->shape, sizeof(tensor->length));
    if (offset && (!parse_list(offset, tensor->offset, &offsets) ||
                   !parse_list(length, tensor->length, &lengths) || offsets != tensor->ndim ||
                   lengths != tensor->ndim)) {
        return "the box does not go with the shape";
    }
    tensor->element_bytes = (uint32_t)cairn_dtype_bits(tensor->dtype) / 8;
    tensor->elements = 1;
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        tensor->elements *= (uint64_t)tensor->length[i];
    }
    tensor->data = calloc(tensor->elements + 1, tensor->element_bytes);
    if (!tensor->data || tensor->element_bytes == 0) {
        return "no memory, or a dtype without whole bytes";
    }
    state->tensor_count++;
    return NULL;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

const char *state_add_blob(struct state *state, const struct state_blob *wish, const char *hex)
{
    struct state_blob *blob = &state->blobs[state->blob_count];
    size_t bytes = strlen(hex) / 2;
    if (state->blob_count == STATE_BLOBS) {
        return "too many blobs";
    }
    *blob = *wish;
    blob->bytes = bytes;
    blob->data = malloc(bytes + 1);
    for (size_t i = 0; blob->data && i < bytes; i++) {
        int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
        if (high < 0 || low < 0) {
            free(blob->data);
            return "not in hex digits";
        }
        blob->data[i] = (uint8_t)(high * 16 + low);
    }
    if (!blob->data) {
        return "no memory";
    }
    state->blob_count++;
    return NULL;
}

void state_clear(struct state *state)
{
    for (size_t i = 0; i < state->tensor_count; i++) {
        free(state->tensors[i].data);
    }
    for (size_t i = 0; i < state->blob_count; i++) {
        free(state->blobs[i].data);
    }
    state->tensor_count = 0;
    state->blob_count = 0;
}

int state_register(struct state *state, cairn_t *cairn, struct cairn_error *err)
{
    struct cairn_tensor tensors[STATE_TENSORS + 1];
    struct cairn_blob blobs[STATE_BLOBS + 1];
    struct cairn_box boxes[STATE_TENSORS + 1];
    tensors[0].size = sizeof(tensors[0]);
    blobs[0].size = sizeof(blobs[0]);
    for (size_t i = 0; i < state->tensor_count; i++) {
        struct state_tensor *tensor = &state->tensors[i];
        boxes[i] = (struct cairn_box){
            .offset = tensor->offset, .length = tensor->length, .data = tensor->data};
        tensors[i] = (struct cairn_tensor){.size = sizeof(tensors[0]),
                                           .name = tensor->name,
                                           .dtype = tensor->dtype,
                                           .ndim = tensor->ndim,
                                           .shape = tensor->shape,
                                           .boxes = &boxes[i],
                                           .box_count = 1,
                                           .placement = tensor->placement};
        if (tensor->coordinate[0] != '\0') {
            tensors[i].coordinate = tensor->coordinate;
        }
    }
    for (size_t i = 0; i < state->blob_count; i++) {
        struct state_blob *blob = &state->blobs[i];
        blobs[i] = (struct cairn_blob){.size = sizeof(blobs[0]),
                                       .name = blob->name,
                                       .kind = blob->kind,
                                       .placement = blob->placement,
                                       .data = blob->data,
                                       .data_bytes = blob->bytes};
        if (blob->coordinate[0] != '\0') {
            blobs[i].coordinate = blob->coordinate;
        }
    }
    int status = cairn_set_tensors(cairn, tensors, state->tensor_count, err);
    return status != 0 ? status : cairn_set_blobs(cairn, blobs, state->blob_count, err);
}

/* The index in the whole tensor of the box's element `at`. */
static uint64_t global_index(const struct state_tensor *tensor, uint64_t at)
{
    uint64_t index = 0, scale = 1;
    for (uint32_t i = tensor->ndim; i-- > 0;) {
        uint64_t length = (uint64_t)tensor->length[i];
        index += (at % length + (uint64_t)tensor->offset[i]) * scale;
        scale *= (uint64_t)tensor->shape[i];
        at /= length;
    }
    return index;
}

static uint64_t key_of(const struct state_tensor *tensor)
{
    uint64_t key = fnv(FNV_START, strlen(tensor->name), tensor->name);
    return fnv(key, strlen(tensor->coordinate), tensor->coordinate);
}

static uint64_t value_of(const struct state_tensor *tensor, uint64_t key, uint64_t seed,
                         uint64_t at)
{
    uint64_t value = mix(key ^ mix(seed) ^ global_index(tensor, at));
    return tensor->dtype == CAIRN_BOOL ? value & 1 : value;
}

void state_fill(struct state *state, uint64_t seed)
{
    for (size_t i = 0; i < state->tensor_count; i++) {
        struct state_tensor *tensor = &state->tensors[i];
        uint64_t key = key_of(tensor);
        for (uint64_t at = 0; at < tensor->elements; at++) {
            uint64_t value = value_of(tensor, key, seed, at);
            memcpy(tensor->data + at * tensor->element_bytes, &value, tensor->element_bytes);
        }
    }
}

const char *state_check(const struct state *state, uint64_t seed)
{
    for (size_t i = 0; i < state->tensor_count; i++) {
        const struct state_tensor *tensor = &state->tensors[i];
        uint64_t key = key_of(tensor);
        for (uint64_t at = 0; at < tensor->elements; at++) {
            uint64_t value = value_of(tensor, key, seed, at);
            if (memcmp(tensor->data + at * tensor->element_bytes, &value, tensor->element_bytes)) {
                return tensor->name;
            }
        }
    }
    return NULL;
}

static const char *paint_tensor(struct state_tensor *tensor, const uint64_t *seeds, uint64_t count,
                                int check)
{
    uint64_t key = key_of(tensor), whole = 1;
    for (uint32_t i = 0; i < tensor->ndim; i++) {
        whole *= (uint64_t)tensor->shape[i];
    }
    for (uint64_t at = 0; at < tensor->elements; at++) {
        uint64_t value = value_of(tensor, key, seeds[global_index(tensor, at) * count / whole], at);
        uint8_t *place = tensor->data + at * tensor->element_bytes;
        if (!check) {
            memcpy(place, &value, tensor->element_bytes);
        } else if (memcmp(place, &value, tensor->element_bytes) != 0) {
            return tensor->name;
        }
    }
    return NULL;
}

const char *state_paint(struct state *state, const char *name, const char *coordinate,
                        const char *text, int check)
{
    uint64_t seeds[STATE_SEEDS] = {0}, count = 0;
    for (char *end; count < STATE_SEEDS; text = end + 1) {
        seeds[count++] = strtoull(text, &end, 10);
        if (*end != ',') {
            break;
        }
    }
    for (size_t i = 0; i < state->tensor_count; i++) {
        struct state_tensor *tensor = &state->tensors[i];
        if (strcmp(tensor->name, name) == 0 && strcmp(tensor->coordinate, coordinate) == 0) {
            return paint_tensor(tensor, seeds, count, check);
        }
    }
    return "no such tensor";
}

void state_train(struct state *state, uint64_t step)
{
    for (size_t i = 0; i < state->tensor_count; i++) {
        struct state_tensor *tensor = &state->tensors[i];
        uint64_t key = key_of(tensor) ^ mix(step);
        for (uint64_t at = 0; at < tensor->elements; at++) {
            uint64_t value = 0;
            uint8_t *place = tensor->data + at * tensor->element_bytes;
            memcpy(&value, place, tensor->element_bytes);
            value = mix(value ^ key) + global_index(tensor, at);
            memcpy(place, &value, tensor->element_bytes);
        }
    }
}

uint64_t state_digest(const struct state *state)
{
    uint64_t hash = FNV_START;
    for (size_t i = 0; i < state->tensor_count; i++) {
        const struct state_tensor *tensor = &state->tensors[i];
        hash = fnv(hash, tensor->elements * tensor->element_bytes, tensor->data);
    }
    return hash;
}

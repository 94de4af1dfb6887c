/* SPDX-License-Identifier: Apache-2.0
 *
 * The state as tensors and blobs of cairn.h. The typed tree is written byte by byte, as FORMAT.md
 * describes it, because this program uses only the header of libcairn. One thread.
 */
#include "trainer_state.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

enum { TENSORS = 3 * PARAM_COUNT + 2, TREE_BYTES_MAX = 256, TREE_HEADER = 20, TREE_NODE = 12 };
enum { NODE_INT = 3, NODE_FLOAT = 4, NODE_STR = 6, NODE_DICT = 10 };

int state_init(struct state *state, int hidden, int rank, int world, uint64_t seed)
{
    memset(state, 0, sizeof *state);
    state->rank = rank;
    state->world = world;
    rng_seed(&state->data_rng, seed);
    rng_seed(&state->local_rng, seed + 1000 + (uint64_t)rank);
    return model_init(&state->model, hidden, &state->data_rng);
}

void state_fini(struct state *state) { model_fini(&state->model); }

double state_step(struct state *state, size_t text_bytes, const uint8_t *text)
{
    state->step++;
    state->rate = model_rate(state->step);
    for (uint64_t n = rng_next(&state->local_rng) % 7; n > 0;
         n--) { /* an augmentation would use these */
        rng_next(&state->local_rng);
        state->drawn++;
    }
    return model_step(&state->model, text_bytes, text, &state->data_rng, state->step);
}

/* --- the typed tree {"step": int, "rate": float} ------------------------------------------ */

struct writer {
    size_t bytes;
    uint32_t nodes;
    uint8_t data[TREE_BYTES_MAX];
};

static void put_u32(uint8_t *to, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        to[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint32_t get_u32(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

static uint32_t crc32c(size_t bytes, const uint8_t *data)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) {
            crc = (crc >> 1) ^ (UINT32_C(0x82f63b78) & (0 - (crc & 1)));
        }
    }
    return ~crc;
}

static void put_node(struct writer *writer, uint8_t kind, uint32_t children, size_t bytes,
                     const void *payload)
{
    uint8_t *at = writer->data + writer->bytes;
    memset(at, 0, TREE_NODE);
    at[0] = kind;
    put_u32(at + 4, children);
    put_u32(at + 8, (uint32_t)bytes);
    if (bytes > 0) {
        memcpy(at + TREE_NODE, payload, bytes);
    }
    writer->bytes += TREE_NODE + bytes;
    writer->nodes++;
}

static void put_tree(struct writer *writer, const struct state *state)
{
    uint8_t number[9], rate[8];
    size_t length = 1;
    uint64_t bits;
    for (int i = 0; i < 9; i++) { /* two's complement, as short as it can be */
        number[i] = (uint8_t)(i < 8 ? state->step >> (8 * i) & 0xff : 0);
    }
    while (length < 9 && ((length < 8 && state->step >> (8 * length - 1) != 0) ||
                          (length == 8 && state->step >> 63 != 0))) {
        length++;
    }
    memcpy(&bits, &state->rate, sizeof bits);
    for (int i = 0; i < 8; i++) {
        rate[i] = (uint8_t)(bits >> (8 * i));
    }
    *writer = (struct writer){.bytes = TREE_HEADER};
    put_node(writer, NODE_DICT, 4, 0, NULL);
    put_node(writer, NODE_STR, 0, 4, "step");
    put_node(writer, NODE_INT, 0, length, number);
    put_node(writer, NODE_STR, 0, 4, "rate");
    put_node(writer, NODE_FLOAT, 0, sizeof rate, rate);
    size_t payload = writer->bytes - TREE_HEADER;
    memcpy(writer->data, "CRNT", 4);
    put_u32(writer->data + 4, 1);
    put_u32(writer->data + 8, writer->nodes);
    put_u32(writer->data + 12, (uint32_t)payload);
    put_u32(writer->data + 16, crc32c(payload, writer->data + TREE_HEADER));
}

static uint64_t get_number(size_t bytes, const uint8_t *from)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes && i < 8; i++) {
        value |= (uint64_t)from[i] << (8 * i);
    }
    return value;
}

/* Reads the tree. Cairn has checked it when it was registered, and its digest; here it is checked
 * that it is this program's tree. */
static int get_tree(struct state *state, size_t bytes, const uint8_t *data)
{
    const uint8_t *values[2] = {NULL, NULL};
    uint32_t lengths[2] = {0, 0};
    size_t at = TREE_HEADER;
    for (unsigned node = 0; node < 5; node++) {
        if (at + TREE_NODE > bytes || get_u32(data + at + 8) > bytes - at - TREE_NODE) {
            return -1;
        }
        if (node == 2 || node == 4) {
            values[node / 2 - 1] = data + at + TREE_NODE;
            lengths[node / 2 - 1] = get_u32(data + at + 8);
        }
        at += TREE_NODE + get_u32(data + at + 8);
    }
    if (lengths[0] < 1 || lengths[0] > 9 || lengths[1] != 8) {
        return -1;
    }
    uint64_t bits = get_number(8, values[1]);
    state->step = get_number(lengths[0], values[0]);
    memcpy(&state->rate, &bits, sizeof bits);
    return 0;
}

/* --- registering -------------------------------------------------------------------------- */

/* The arrays that the tensors point to until Cairn has copied them. */
struct listing {
    struct cairn_tensor tensors[TENSORS];
    struct cairn_box boxes[TENSORS];
    int64_t shapes[TENSORS][2], offsets[TENSORS][2], lengths[TENSORS][2];
    char names[TENSORS][32];
    size_t count;
};

static struct cairn_tensor *add(struct listing *list, const char *prefix, const char *name,
                                const int64_t shape[2])
{
    size_t i = list->count++;
    struct cairn_tensor *tensor = &list->tensors[i];
    snprintf(list->names[i], sizeof list->names[i], "%s%s", prefix, name);
    list->shapes[i][0] = shape[0];
    list->shapes[i][1] = shape[1];
    *tensor = (struct cairn_tensor)CAIRN_TENSOR_INIT;
    tensor->name = list->names[i];
    tensor->ndim = shape[1] == 1 ? 1 : 2;
    tensor->shape = list->shapes[i];
    return tensor;
}

/* Adds a tensor that is split by rows over the ranks in a save, and whole in a restore. */
static void add_moment(struct listing *list, const char *prefix, const struct param *param,
                       float *data, const struct state *state)
{
    size_t i = list->count;
    struct cairn_tensor *tensor =
        add(list, prefix, param->name, (int64_t[2]){param->rows, param->columns});
    int64_t from = param->rows * state->rank / state->world,
            to = param->rows * (state->rank + 1) / state->world;
    list->offsets[i][0] = from;
    list->lengths[i][0] = to - from;
    list->lengths[i][1] = param->columns;
    list->boxes[i] =
        (struct cairn_box){list->offsets[i], list->lengths[i], NULL, data + from * param->columns};
    tensor->dtype = CAIRN_F32;
    tensor->placement = CAIRN_SHARDED;
    tensor->data = data;
    tensor->boxes = &list->boxes[i];
}

int state_register(struct state *state, cairn_t *cairn, enum state_use use, struct cairn_error *err)
{
    struct listing list = {.count = 0};
    struct cairn_blob blobs[2] = {CAIRN_BLOB_INIT, CAIRN_BLOB_INIT};
    struct cairn_tensor *tensor;
    struct writer writer;
    for (int i = 0; i < PARAM_COUNT; i++) {
        struct param *param = &state->model.params[i];
        tensor = add(&list, "model.", param->name, (int64_t[2]){param->rows, param->columns});
        tensor->dtype = CAIRN_F32;
        tensor->data = param->value;
        add_moment(&list, "adam.m.", param, param->moment1, state);
        add_moment(&list, "adam.v.", param, param->moment2, state);
    }
    for (size_t i = 0; i < list.count; i++) {
        list.tensors[i].box_count = list.tensors[i].boxes != NULL && use == STATE_SAVE;
    }
    tensor = add(&list, "rng.", "data", (int64_t[2]){4, 1});
    tensor->dtype = CAIRN_U64;
    tensor->data = state->data_rng.s;
    tensor = add(&list, "rng.", "local", (int64_t[2]){4, 1});
    tensor->dtype = CAIRN_U64;
    tensor->data = state->local_rng.s;
    tensor->placement = CAIRN_LOCAL; /* at "rank=<rank>" */

    put_tree(&writer, state);
    blobs[0].name = "progress";
    blobs[0].kind = CAIRN_TREE;
    blobs[0].data = writer.data;
    blobs[0].data_bytes = writer.bytes;
    blobs[1].name = "loader";
    blobs[1].placement = CAIRN_LOCAL;
    blobs[1].data = &state->drawn;
    blobs[1].data_bytes = sizeof state->drawn;
    int rc = cairn_set_tensors(cairn, list.tensors, list.count, err);
    return rc != 0 ? rc : cairn_set_blobs(cairn, blobs, 2, err);
}

static int complain(struct cairn_error *err, const char *what, const char *name)
{
    err->code = CAIRN_E_MISSING_TENSOR;
    snprintf(err->text, sizeof err->text, "%s \"%s\"; check whether another program wrote this run",
             what, name);
    return err->code;
}

int state_restored(struct state *state, cairn_op_t *op, struct cairn_error *err)
{
    const void *data = NULL;
    size_t bytes = 0;
    for (size_t i = 0; cairn_op_missing(op, i) != NULL; i++) {
        /* A rank that the saved world did not have starts with fresh random numbers. Nothing else
         * may be missing. */
        if (strcmp(cairn_op_missing(op, i), "rng.local") != 0) {
            return complain(err, "the checkpoint lacks the tensor", cairn_op_missing(op, i));
        }
    }
    if (cairn_op_blob(op, "progress", NULL, &data, &bytes) != 0 ||
        get_tree(state, bytes, data) != 0) {
        return complain(err, "the checkpoint has no usable blob", "progress");
    }
    if (cairn_op_blob(op, "loader", NULL, &data, &bytes) == 0 && bytes == sizeof state->drawn) {
        memcpy(&state->drawn, data, sizeof state->drawn);
    }
    return 0;
}

static int update(EVP_MD_CTX *sha, const struct state *state)
{
    int ok = EVP_DigestInit_ex(sha, EVP_sha256(), NULL);
    for (int i = 0; i < PARAM_COUNT; i++) {
        const struct param *param = &state->model.params[i];
        ok &= EVP_DigestUpdate(sha, param->value, param->count * sizeof(float));
        ok &= EVP_DigestUpdate(sha, param->moment1, param->count * sizeof(float));
        ok &= EVP_DigestUpdate(sha, param->moment2, param->count * sizeof(float));
    }
    ok &= EVP_DigestUpdate(sha, &state->data_rng, sizeof state->data_rng);
    ok &= EVP_DigestUpdate(sha, &state->local_rng, sizeof state->local_rng);
    ok &= EVP_DigestUpdate(sha, &state->drawn, sizeof state->drawn);
    ok &= EVP_DigestUpdate(sha, &state->step, sizeof state->step);
    return ok & EVP_DigestUpdate(sha, &state->rate, sizeof state->rate);
}

int state_digest(const struct state *state, char ret[65])
{
    unsigned char digest[32];
    EVP_MD_CTX *sha = EVP_MD_CTX_new();
    int ok = sha != NULL && update(sha, state) == 1 && EVP_DigestFinal_ex(sha, digest, NULL) == 1;
    EVP_MD_CTX_free(sha);
    for (size_t i = 0; ok && i < sizeof digest; i++) {
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
    }
    return ok ? 0 : -1;
}

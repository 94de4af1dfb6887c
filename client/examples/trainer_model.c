/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward, backward and Adam of the example's model, in plain loops, each with one order of
 * operations. The same binary on the same machine therefore gives the same bits, which is what the
 * example shows. One thread.
 */
#include "trainer_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT = MODEL_CONTEXT * MODEL_EMBED };

void rng_seed(struct rng *rng, uint64_t seed)
{
    for (int i = 0; i < 4; i++) { /* splitmix64 */
        seed += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t z = seed;
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        rng->s[i] = z ^ (z >> 31);
    }
}

static uint64_t rotate(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

uint64_t rng_next(struct rng *rng)
{
    uint64_t *s = rng->s, result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

static float uniform(struct rng *rng, float scale)
{
    return ((float)(rng_next(rng) >> 40) / 8388608.0f - 1.0f) * scale;
}

/* --- memory ------------------------------------------------------------------------------- */

static int param_init(struct param *param, const char *name, int64_t rows, int64_t columns)
{
    param->name = name;
    param->rows = rows;
    param->columns = columns;
    param->count = (size_t)(rows * columns);
    param->value = calloc(param->count, sizeof(float));
    param->grad = calloc(param->count, sizeof(float));
    param->moment1 = calloc(param->count, sizeof(float));
    param->moment2 = calloc(param->count, sizeof(float));
    return param->value && param->grad && param->moment1 && param->moment2 ? 0 : -1;
}

static void fill(struct param *param, struct rng *rng, float scale)
{
    for (size_t i = 0; i < param->count; i++) {
        param->value[i] = uniform(rng, scale);
    }
}

int model_init(struct model *model, int hidden, struct rng *rng)
{
    struct param *p = model->params;
    memset(model, 0, sizeof *model);
    model->hidden = hidden;
    model->work =
        calloc((size_t)2 * INPUT + (size_t)2 * (size_t)hidden + MODEL_VOCAB, sizeof(float));
    if (model->work == NULL ||
        param_init(&p[PARAM_EMBED], "embed", MODEL_VOCAB, MODEL_EMBED) != 0 ||
        param_init(&p[PARAM_W1], "w1", INPUT, hidden) != 0 ||
        param_init(&p[PARAM_B1], "b1", hidden, 1) != 0 ||
        param_init(&p[PARAM_W2], "w2", hidden, MODEL_VOCAB) != 0 ||
        param_init(&p[PARAM_B2], "b2", MODEL_VOCAB, 1) != 0) {
        model_fini(model);
        return -1;
    }
    fill(&p[PARAM_EMBED], rng, 0.5f);
    fill(&p[PARAM_W1], rng, 1.0f / sqrtf((float)INPUT));
    fill(&p[PARAM_W2], rng, 1.0f / sqrtf((float)hidden));
    return 0;
}

void model_fini(struct model *model)
{
    for (int i = 0; i < PARAM_COUNT; i++) {
        free(model->params[i].value);
        free(model->params[i].grad);
        free(model->params[i].moment1);
        free(model->params[i].moment2);
    }
    free(model->work);
    memset(model, 0, sizeof *model);
}

/* --- arithmetic --------------------------------------------------------------------------- */

static void add_scaled(size_t count, float *restrict to, const float *restrict from, float scale)
{
    for (size_t i = 0; i < count; i++) {
        to[i] += from[i] * scale;
    }
}

/* Sums in eight parts, which is fast and still has one order. */
static float dot(size_t count, const float *a, const float *b)
{
    float sums[8] = {0};
    for (size_t i = 0; i + 8 <= count; i += 8) {
        for (size_t k = 0; k < 8; k++) {
            sums[k] += a[i + k] * b[i + k];
        }
    }
    for (size_t i = count / 8 * 8; i < count; i++) {
        sums[0] += a[i] * b[i];
    }
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* Turns logits into probabilities, in place. */
static void softmax(float *logits)
{
    float max = logits[0], sum = 0;
    for (int i = 1; i < MODEL_VOCAB; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    for (int i = 0; i < MODEL_VOCAB; i++) {
        logits[i] = expf(logits[i] - max);
        sum += logits[i];
    }
    for (int i = 0; i < MODEL_VOCAB; i++) {
        logits[i] /= sum;
    }
}

/* Learns from one example: adds to the gradients and returns the loss. at[0 .. CONTEXT - 1] predict
 * at[CONTEXT]. */
static double learn(struct model *model, const uint8_t *at)
{
    struct param *p = model->params;
    size_t hidden = (size_t)model->hidden;
    float *x = model->work, *dx = x + INPUT, *h = dx + INPUT, *dh = h + hidden, *out = dh + hidden;
    int target = at[MODEL_CONTEXT] & 127;

    for (size_t i = 0; i < MODEL_CONTEXT; i++) {
        memcpy(x + i * MODEL_EMBED, p[PARAM_EMBED].value + (size_t)(at[i] & 127) * MODEL_EMBED,
               MODEL_EMBED * sizeof(float));
    }
    memcpy(h, p[PARAM_B1].value, hidden * sizeof(float));
    for (size_t i = 0; i < INPUT; i++) {
        add_scaled(hidden, h, p[PARAM_W1].value + i * hidden, x[i]);
    }
    memcpy(out, p[PARAM_B2].value, MODEL_VOCAB * sizeof(float));
    for (size_t j = 0; j < hidden; j++) {
        h[j] = tanhf(h[j]);
        add_scaled(MODEL_VOCAB, out, p[PARAM_W2].value + j * MODEL_VOCAB, h[j]);
    }
    softmax(out);
    double loss = -log((double)out[target] + 1e-30);

    out[target] -= 1.0f; /* now the gradient of the logits */
    add_scaled(MODEL_VOCAB, p[PARAM_B2].grad, out, 1.0f);
    for (size_t j = 0; j < hidden; j++) {
        add_scaled(MODEL_VOCAB, p[PARAM_W2].grad + j * MODEL_VOCAB, out, h[j]);
        dh[j] = dot(MODEL_VOCAB, p[PARAM_W2].value + j * MODEL_VOCAB, out) * (1.0f - h[j] * h[j]);
    }
    add_scaled(hidden, p[PARAM_B1].grad, dh, 1.0f);
    for (size_t i = 0; i < INPUT; i++) {
        add_scaled(hidden, p[PARAM_W1].grad + i * hidden, dh, x[i]);
        dx[i] = dot(hidden, p[PARAM_W1].value + i * hidden, dh);
    }
    for (size_t i = 0; i < MODEL_CONTEXT; i++) {
        add_scaled(MODEL_EMBED, p[PARAM_EMBED].grad + (size_t)(at[i] & 127) * MODEL_EMBED,
                   dx + i * MODEL_EMBED, 1.0f);
    }
    return loss;
}

double model_rate(uint64_t step) { return 1e-3 * (step < 20 ? (double)step / 20 : 1.0); }

static void adam(struct param *param, uint64_t step)
{
    const float beta1 = 0.9f, beta2 = 0.999f;
    float scale = 1.0f / MODEL_BATCH;
    float fix1 = (float)(1.0 - pow(0.9, (double)step)),
          fix2 = (float)(1.0 - pow(0.999, (double)step));
    float rate = (float)model_rate(step);
    for (size_t i = 0; i < param->count; i++) {
        float g = param->grad[i] * scale;
        param->moment1[i] = beta1 * param->moment1[i] + (1 - beta1) * g;
        param->moment2[i] = beta2 * param->moment2[i] + (1 - beta2) * g * g;
        param->value[i] -=
            rate * (param->moment1[i] / fix1) / (sqrtf(param->moment2[i] / fix2) + 1e-8f);
        param->grad[i] = 0;
    }
}

double model_step(struct model *model, size_t text_bytes, const uint8_t *text, struct rng *rng,
                  uint64_t step)
{
    double loss = 0;
    for (int i = 0; i < MODEL_BATCH; i++) {
        loss += learn(model, text + rng_next(rng) % (text_bytes - MODEL_CONTEXT));
    }
    for (int i = 0; i < PARAM_COUNT; i++) {
        adam(&model->params[i], step);
    }
    return loss / MODEL_BATCH;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory for encoding is taken when the first payload needs it, so a run that stays raw uses none.
 * If it cannot be had, payloads stay raw.
 */
#include "pipeline/encode_pool.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

enum { ENCODE_POOL_SAMPLE_EVERY = 64 };

void encode_pool_init(struct encode_pool *pool, enum encode_mode mode)
{
    memset(pool, 0, sizeof *pool);
    pool->mode = mode;
    pool->encoders_max = ENCODE_POOL_ENCODERS;
    pool->buffers_max = ENCODE_POOL_BUFFERS;
}

uint64_t encode_pool_lane_bytes(void)
{
    return encoder_bytes() +
           (uint64_t)ENCODE_POOL_BUFFERS / ENCODE_POOL_ENCODERS * LIMIT_CHUNK_BYTES;
}

void encode_pool_limit(struct encode_pool *pool, unsigned lanes)
{
    pool->encoders_max = lanes < ENCODE_POOL_ENCODERS ? lanes : ENCODE_POOL_ENCODERS;
    pool->buffers_max = pool->encoders_max * (ENCODE_POOL_BUFFERS / ENCODE_POOL_ENCODERS);
}

void encode_pool_fini(struct encode_pool *pool)
{
    for (unsigned i = 0; i < ENCODE_POOL_BUFFERS; i++) {
        CHECK(!pool->buffers[i].busy);
        free(pool->buffers[i].memory);
    }
    for (unsigned i = 0; i < ENCODE_POOL_ENCODERS; i++) {
        CHECK(!pool->encoders[i].busy);
        encoder_free(pool->encoders[i].encoder);
    }
    free(pool->states);
    memset(pool, 0, sizeof *pool);
}

struct encode_buffer *encode_pool_take_buffer(struct encode_pool *pool)
{
    for (unsigned i = 0; i < pool->buffers_max; i++) {
        struct encode_buffer *buffer = &pool->buffers[i];
        if (buffer->busy) {
            continue;
        }
        buffer->memory =
            buffer->memory ? buffer->memory : aligned_alloc(LIMIT_ALIGN_BYTES, LIMIT_CHUNK_BYTES);
        buffer->busy = buffer->memory != NULL;
        return buffer->busy ? buffer : NULL;
    }
    return NULL;
}

void encode_pool_give_buffer(struct encode_buffer *buffer)
{
    if (buffer) {
        CHECK(buffer->busy);
        buffer->busy = false;
    }
}

struct pool_encoder *encode_pool_take_encoder(struct encode_pool *pool)
{
    for (unsigned i = 0; i < pool->encoders_max; i++) {
        if (!pool->encoders[i].busy) {
            pool->encoders[i].busy = true;
            return &pool->encoders[i];
        }
    }
    return NULL;
}

void encode_pool_give_encoder(struct pool_encoder *encoder)
{
    if (encoder) {
        CHECK(encoder->busy);
        encoder->busy = false;
    }
}

struct encoder *pool_encoder_get(struct pool_encoder *encoder, size_t chunk_bytes)
{
    if (!encoder->encoder || encoder->chunk_bytes < chunk_bytes) {
        encoder_free(encoder->encoder);
        encoder->encoder = encoder_new(chunk_bytes);
        encoder->chunk_bytes = chunk_bytes;
    }
    return encoder->encoder;
}

static bool knows(const struct encode_pool *pool, const struct xxh128 *list_hash, size_t count)
{
    return pool->states && pool->state_count == count &&
           memcmp(&pool->states_of, list_hash, sizeof pool->states_of) == 0;
}

void encode_pool_load(const struct encode_pool *pool, const struct xxh128 *list_hash, size_t count,
                      struct encode_state *ret)
{
    struct encode_policy policy = {.mode = pool->mode, .sample_every = ENCODE_POOL_SAMPLE_EVERY};
    bool known = knows(pool, list_hash, count);
    for (size_t i = 0; i < count; i++) {
        if (known) {
            ret[i] = pool->states[i];
        } else {
            encode_state_init(&ret[i], &policy);
        }
    }
}

void encode_pool_keep(struct encode_pool *pool, const struct xxh128 *list_hash, size_t count,
                      const struct encode_state *states)
{
    if (!knows(pool, list_hash, count)) {
        free(pool->states);
        pool->states = calloc(count, sizeof *pool->states);
        pool->state_count = count;
        pool->states_of = *list_hash;
    }
    if (pool->states) { /* without memory the next save learns anew */
        memcpy(pool->states, states, count * sizeof *pool->states);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * encode_pool: what the saves of an engine, or of a daemon, share for encoding: encoders and
 * buffers, both of a bounded number, and what was learnt of each tensor and of the sink. An encode
 * buffer holds a payload whose bytes are not the arena's, because they are encoded, or packed anew
 * without some pieces. Loop's thread; what was taken belongs to one worker at a time.
 */
#ifndef CAIRN_PIPELINE_ENCODE_POOL_H
#define CAIRN_PIPELINE_ENCODE_POOL_H

#include "hash/hash.h"
#include "pipeline/adapt.h"
#include "pipeline/encode.h"
#include "pipeline/sink_rate.h"

enum { ENCODE_POOL_BUFFERS = 8, ENCODE_POOL_ENCODERS = 4 };

/* It belongs to the worker or payload that has taken it until it is given back. */
struct encode_buffer {
    uint8_t *memory; /* LIMIT_CHUNK_BYTES, aligned as stores want it */
    bool busy;
};

/* An encoder of the pool, taken by one worker at a time. */
struct pool_encoder {
    /* Made by the worker that needs it first; NULL before that, or if memory is short. */
    struct encoder *encoder;
    size_t chunk_bytes;
    bool busy;
};

/* The pool. It owns the buffers, the encoders and the states of the last save. */
struct encode_pool {
    enum encode_mode mode;
    unsigned encoders_max, buffers_max;
    struct encode_buffer buffers[ENCODE_POOL_BUFFERS];
    struct pool_encoder encoders[ENCODE_POOL_ENCODERS];
    struct sink_rate rate;
    struct xxh128 states_of; /* hash of the list that `states` belongs to */
    size_t state_count;
    struct encode_state *states; /* one a tensor and one for blobs; NULL if there are none yet */
};

void encode_pool_init(struct encode_pool *pool, enum encode_mode mode);
void encode_pool_fini(struct encode_pool *pool);
/* Returns the bytes of one lane: an encoder with the encode buffers that go with it. */
uint64_t encode_pool_lane_bytes(void);
/* Limits the pool to so many lanes, before anything is taken. 0 means that nothing is encoded or
 * packed anew. */
void encode_pool_limit(struct encode_pool *pool, unsigned lanes);

/* Take an encode buffer or an encoder. Return NULL if all are taken or memory is short. */
struct encode_buffer *encode_pool_take_buffer(struct encode_pool *pool);
void encode_pool_give_buffer(struct encode_buffer *buffer); /* NULL is allowed */
struct pool_encoder *encode_pool_take_encoder(struct encode_pool *pool);
void encode_pool_give_encoder(struct pool_encoder *encoder); /* NULL is allowed */
/* Returns the encoder for chunks of so many bytes, on the worker that has taken it, or NULL if
 * memory is short. */
struct encoder *pool_encoder_get(struct pool_encoder *encoder, size_t chunk_bytes);

/* Fills a save's states, one for each tensor and the last for all blobs, with those of the last
 * save if that had as many and the same list of tensors. */
void encode_pool_load(const struct encode_pool *pool, const struct xxh128 *list_hash, size_t count,
                      struct encode_state *ret);
/* Keeps what a save has learnt for the next one. */
void encode_pool_keep(struct encode_pool *pool, const struct xxh128 *list_hash, size_t count,
                      const struct encode_state *states);

#endif

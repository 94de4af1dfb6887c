/* SPDX-License-Identifier: Apache-2.0
 *
 * encode_kit: what the saves of an engine, or of a daemon, share for encoding: encoders and side
 * buffers, both of a bounded number, and what was learnt of each tensor and of the sink. A side
 * buffer holds a payload whose bytes are not the arena's, because they are encoded, or packed anew
 * without some pieces. Loop's thread; what was taken belongs to one worker at a time.
 */
#ifndef CAIRN_PIPELINE_ENCODE_KIT_H
#define CAIRN_PIPELINE_ENCODE_KIT_H

#include "hash/hash.h"
#include "pipeline/adapt.h"
#include "pipeline/encode.h"
#include "pipeline/sink_rate.h"

enum { KIT_SIDES = 8, KIT_ENCODERS = 4 };

/* A side buffer. It belongs to the worker or payload that has taken it until it is given back. */
struct side {
    uint8_t *memory; /* LIMIT_CHUNK_BYTES, aligned as stores want it */
    bool busy;
};

/* An encoder of the kit, taken by one worker at a time. */
struct kit_encoder {
    /* Made by the worker that needs it first; NULL before that, or if memory is short. */
    struct encoder *encoder;
    size_t chunk_bytes;
    bool busy;
};

/* The kit. It owns the buffers, the encoders and the states of the last save. */
struct encode_kit {
    enum encode_mode mode;
    unsigned encoders_max, sides_max;
    struct side sides[KIT_SIDES];
    struct kit_encoder encoders[KIT_ENCODERS];
    struct sink_rate rate;
    struct xxh128 states_of; /* hash of the list that `states` belongs to */
    size_t state_count;
    struct encode_state *states; /* one a tensor and one for blobs; NULL if there are none yet */
};

void encode_kit_init(struct encode_kit *kit, enum encode_mode mode);
void encode_kit_fini(struct encode_kit *kit);
/* Returns the bytes of one lane: an encoder with the side buffers that go with it. */
uint64_t encode_kit_lane_bytes(void);
/* Limits the kit to so many lanes, before anything is taken. 0 means that nothing is encoded or
 * packed anew. */
void encode_kit_limit(struct encode_kit *kit, unsigned lanes);

/* Take a side buffer or an encoder. Return NULL if all are taken or memory is short. */
struct side *encode_kit_take_side(struct encode_kit *kit);
void encode_kit_give_side(struct side *side); /* NULL is allowed */
struct kit_encoder *encode_kit_take_encoder(struct encode_kit *kit);
void encode_kit_give_encoder(struct kit_encoder *encoder); /* NULL is allowed */
/* Returns the encoder for chunks of so many bytes, on the worker that has taken it, or NULL if
 * memory is short. */
struct encoder *kit_encoder_get(struct kit_encoder *encoder, size_t chunk_bytes);

/* Fills a save's states, one for each tensor and the last for all blobs, with those of the last
 * save if that had as many and the same list of tensors. */
void encode_kit_load(const struct encode_kit *kit, const struct xxh128 *list_hash, size_t count,
                     struct encode_state *ret);
/* Keeps what a save has learnt for the next one. */
void encode_kit_keep(struct encode_kit *kit, const struct xxh128 *list_hash, size_t count,
                     const struct encode_state *states);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * adapt: which encoding a tensor's chunks get. Fed with what was measured (bytes and ns), it keeps
 * to the densest encoding that saves 3 % and, with all workers, is no slower than the sink it
 * feeds: then a save with encoding cannot take longer than one without. Pure, no clock; one thread,
 * as a rule the loop that hands out chunks. The round:
 *
 *     if (encode_state_next(&state))            // on the loop, once a chunk
 *         for each of ENCODE_CANDIDATES         // on a worker: encoder_sample(), timed
 *             encode_state_sample(&state, encoding, &cost);
 *     encoding = encode_state_choose(&state, &sink);
 *     chunk_seal(encoder, encoding, ...);       // on a worker, timed
 *     encode_state_chunk(&state, encoding, &cost);
 *
 * Results may come late and out of order: choose answers from what has come, raw before any.
 */
#ifndef CAIRN_PIPELINE_ADAPT_H
#define CAIRN_PIPELINE_ADAPT_H

#include "format/envelope.h"

enum encode_mode {
    ENCODE_NEVER,    /* raw */
    ENCODE_ADAPTIVE, /* the densest that keeps up with the sink */
    ENCODE_DENSEST,  /* the densest, whatever it costs: where bytes cost more than time */
};

struct encode_policy {
    enum encode_mode mode;
    uint32_t sample_every; /* chunks from one sample to the next; 0: the first chunk only */
};

struct encode_cost {
    uint64_t plain_bytes, stored_bytes, ns; /* plain_bytes <= LIMIT_CHUNK_BYTES */
};

struct encode_sink {
    uint64_t bytes_per_s; /* what it takes; 0: not known yet, and then adaptive stays raw */
    uint32_t workers;     /* that encode at the same time, >= 1 */
};

enum { ENCODE_CANDIDATES = 2 };
extern const enum encoding encode_candidates[ENCODE_CANDIDATES];

struct encode_state {
    struct encode_policy policy;
    uint64_t chunk_count;
    struct {
        struct encode_cost sample; /* the last one; plain_bytes 0: none yet */
        struct encode_cost chunks; /* of whole chunks since, older ones fading */
    } candidates[ENCODE_CANDIDATES];
};

void encode_state_init(struct encode_state *state, const struct encode_policy *policy);
/* Counts one more chunk; whether that one is to be sampled. */
bool encode_state_next(struct encode_state *state);
/* What a sample cost. Forgets what whole chunks cost before, so that one slow moment does not
 * decide for ever. */
void encode_state_sample(struct encode_state *state, enum encoding encoding,
                         const struct encode_cost *cost);
/* What sealing a whole chunk with this encoding cost, digest included; stored_bytes == plain_bytes
 * where it came out raw. Nothing for ENCODING_RAW. */
void encode_state_chunk(struct encode_state *state, enum encoding encoding,
                        const struct encode_cost *cost);
enum encoding encode_state_choose(const struct encode_state *state, const struct encode_sink *sink);

#endif

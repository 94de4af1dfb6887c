/* SPDX-License-Identifier: Apache-2.0
 *
 * adapt: chooses the encoding of a tensor's chunks. From measured costs (bytes and ns) it takes the
 * densest encoding that saves 3 % and, with all workers, is no slower than the sink that it feeds,
 * so that a save with encoding takes no longer than one without. Pure, no clock; one thread, as a
 * rule the loop that hands out chunks. One round:
 *
 *     if (encode_state_next(&state))            // on the loop, once a chunk
 *         for each of ENCODE_CANDIDATES         // on a worker: encoder_sample(), timed
 *             encode_state_sample(&state, encoding, &cost);
 *     encoding = encode_state_choose(&state, &sink);
 *     chunk_seal(encoder, encoding, ...);       // on a worker, timed
 *     encode_state_chunk(&state, encoding, &cost);
 *
 * Results may come late and out of order. choose answers from the results that have come, and raw
 * before any.
 */
#ifndef CAIRN_PIPELINE_ADAPT_H
#define CAIRN_PIPELINE_ADAPT_H

#include "format/envelope.h"

enum encode_mode {
    ENCODE_NEVER,    /* raw */
    ENCODE_ADAPTIVE, /* the densest encoding that keeps up with the sink */
    ENCODE_DENSEST,  /* the densest, whatever it costs, for when bytes cost more than time */
};

struct encode_policy {
    enum encode_mode mode;
    uint32_t sample_every; /* chunks from one sample to the next; 0 means the first chunk only */
};

/* What encoding some bytes has cost. */
struct encode_cost {
    uint64_t plain_bytes, stored_bytes, ns; /* plain_bytes <= LIMIT_CHUNK_BYTES */
};

/* What takes the stored bytes, and how many encode for it. */
struct encode_sink {
    /* What the sink takes; 0 means not known yet, and then ADAPTIVE stays raw. */
    uint64_t bytes_per_s;
    uint32_t workers; /* how many encode at the same time, >= 1 */
};

enum { ENCODE_CANDIDATES = 2 };
extern const enum encoding encode_candidates[ENCODE_CANDIDATES];

/* What was learnt of one tensor. Initialize with encode_state_init(). */
struct encode_state {
    struct encode_policy policy;
    uint64_t chunk_count;
    struct {
        struct encode_cost sample; /* the last sample; plain_bytes 0 means none yet */
        struct encode_cost chunks; /* of whole chunks since then; older ones fade */
    } candidates[ENCODE_CANDIDATES];
};

void encode_state_init(struct encode_state *state, const struct encode_policy *policy);
/* Counts one more chunk, and returns whether it is to be sampled. */
bool encode_state_next(struct encode_state *state);
/* Takes the cost of a sample. Forgets the cost of whole chunks before it, so that one slow moment
 * does not decide for ever. */
void encode_state_sample(struct encode_state *state, enum encoding encoding,
                         const struct encode_cost *cost);
/* Takes the cost of sealing a whole chunk with this encoding, its digest included; stored_bytes ==
 * plain_bytes if it came out raw. Does nothing for ENCODING_RAW. */
void encode_state_chunk(struct encode_state *state, enum encoding encoding,
                        const struct encode_cost *cost);
/* Returns the encoding to try with the next chunk. */
enum encoding encode_state_choose(const struct encode_state *state, const struct encode_sink *sink);

#endif

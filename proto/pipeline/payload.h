/* SPDX-License-Identifier: Apache-2.0
 *
 * payload: from the plain pieces of a payload to what is stored of it: the digest of each, the
 * comparison with a chunk that is known to be durable, the encoding of what is new. The client runs
 * it on what it sends, the daemon on what a client of its host describes to it. Any thread; reads
 * the clock, to learn what encodings cost.
 */
#ifndef CAIRN_PIPELINE_PAYLOAD_H
#define CAIRN_PIPELINE_PAYLOAD_H

#include "pipeline/adapt.h"
#include "pipeline/encode.h"

struct payload_seal {
    /* set before */
    struct encoder *encoder; /* NULL: nothing is encoded */
    uint8_t *room; /* LIMIT_CHUNK_BYTES; NULL only where nothing is encoded, and no piece of several
                      is left out */
    uint32_t piece_count;      /* of the payload */
    bool sample;               /* look at the candidates first, where the piece is large */
    struct encode_state state; /* what is known of the tensor, and of the sink */
    struct encode_sink sink;
    /* results */
    uint32_t bytes, new_count; /* what is stored: bytes, chunks; none where all are known */
    uint32_t new_plain_bytes, shared_plain_bytes;
    bool is_moved; /* what is stored does not lie as the plain bytes do, but in the room */
    enum encoding tried;
    struct encode_cost samples[ENCODE_CANDIDATES], cost;
};

struct payload_piece {
    struct chunk_plain plain;
    const struct digest *known; /* of a durable chunk of the same length and algorithm that may be
                                   referred to; NULL: there is none */
    bool is_left_out;           /* known to be the same already */
    bool is_fixed;              /* encoded as `encoding` says */
    enum encoding encoding;
};

/* The pieces in order. True: it is stored, *ret is its envelope, with its offset in what is stored
 * of the payload (which is that of the plain bytes unless is_moved). False: it is left out. */
bool payload_seal_piece(struct payload_seal *seal, const struct payload_piece *piece,
                        struct envelope *ret);
/* Looks at the candidates, whatever becomes of the piece. */
void payload_seal_sample(struct payload_seal *seal, struct encoder *encoder,
                         const struct chunk_plain *plain);
/* What sealing cost, for the tensor's state. One piece of at least LIMIT_PACK_PIECE_BYTES tells
 * something, others nothing. */
void payload_seal_learn(const struct payload_seal *seal, struct encode_state *state);

#endif

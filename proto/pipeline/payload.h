/* SPDX-License-Identifier: Apache-2.0
 *
 * payload: from the plain pieces of a payload to what is stored of it: the digest of each piece,
 * the comparison with a chunk that is known to be durable, and the encoding of what is new. The
 * client runs it on what it sends, the daemon on what a client of its host describes to it. Any
 * thread; it reads the clock, to learn what encodings cost.
 */
#ifndef CAIRN_PIPELINE_PAYLOAD_H
#define CAIRN_PIPELINE_PAYLOAD_H

#include "pipeline/adapt.h"
#include "pipeline/encode.h"

/* One payload that is being sealed, piece by piece. */
struct payload_seal {
    /* Inputs. */
    struct encoder *encoder; /* NULL if nothing is encoded */
    /* LIMIT_CHUNK_BYTES of memory. NULL is allowed only if nothing is encoded, and no piece of
     * several is left out. */
    uint8_t *room;
    uint32_t piece_count; /* of the payload */
    bool sample;          /* tries the candidates first, if the piece is large */
    /* What is known of the tensor; with `sink` it decides the encoding. */
    struct encode_state state;
    struct encode_sink sink;
    /* Results. */
    uint32_t bytes, new_count; /* what is stored: bytes and chunks; 0 if all pieces are known */
    uint32_t new_plain_bytes, shared_plain_bytes;
    bool is_moved; /* the stored bytes do not lie as the plain bytes do, but in the room */
    enum encoding tried;
    struct encode_cost samples[ENCODE_CANDIDATES], cost;
};

/* One piece of the payload. */
struct payload_piece {
    struct chunk_plain plain;
    /* The digest of a durable chunk of the same length and algorithm that may be referred to, or
     * NULL. */
    const struct digest *known;
    bool is_left_out; /* already known to be the same */
    bool is_fixed;    /* encoded as `encoding` says, without a choice */
    enum encoding encoding;
};

/* Seals one piece; pieces must come in order. Returns true if it is stored: *ret is its envelope,
 * with the offset in what is stored of the payload (which equals the plain offset unless is_moved).
 * Returns false if it is left out. */
bool payload_seal_piece(struct payload_seal *seal, const struct payload_piece *piece,
                        struct envelope *ret);
/* Tries the candidates on the piece, whatever becomes of it. */
void payload_seal_sample(struct payload_seal *seal, struct encoder *encoder,
                         const struct chunk_plain *plain);
/* Adds what sampling and encoding cost to the tensor's state. Does nothing for a payload of several
 * pieces. The encoding of a piece smaller than LIMIT_PACK_PIECE_BYTES is not counted. */
void payload_seal_learn(const struct payload_seal *seal, struct encode_state *state);

#endif

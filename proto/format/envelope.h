/* SPDX-License-Identifier: Apache-2.0
 *
 * envelope: the header of a stored chunk. object footer: the headers of all chunks of an object,
 * behind the data, with crc and trailer. Bytes: FORMAT.md 3 and 4. Pure.
 */
#ifndef CAIRN_FORMAT_ENVELOPE_H
#define CAIRN_FORMAT_ENVELOPE_H

#include "base/buf.h"
#include "ids.h"

enum encoding { ENCODING_RAW = 0, ENCODING_ZSTD = 1, ENCODING_PLANES_ZSTD = 2 };
enum digest_alg { DIGEST_XXH3_128 = 1, DIGEST_SHA256 = 2 };

/* The digest of plain bytes; digest_alg of its envelope says by which algorithm. */
struct digest {
    uint8_t bytes[32]; /* XXH3-128 fills 16, and the rest is zero */
};

/* The header of a chunk. Invariant of a decoded one: its fields are in range, and a raw chunk has
 * stored_bytes == plain_bytes. */
struct envelope {
    /* Where the stored bytes are in their object, or in the payload of a frame (see msg.h). */
    uint64_t offset;
    uint32_t stored_bytes; /* > 0 */
    uint32_t plain_bytes;  /* > 0, <= LIMIT_CHUNK_BYTES */
    uint32_t stored_crc;   /* crc32c of the stored bytes */
    uint32_t key_id;       /* 0 means not encrypted */
    uint8_t encoding, digest_alg, element_bytes, reserved;
    struct digest digest; /* of the plain bytes */
    uint8_t nonce[12], tag[16];
};

enum { ENVELOPE_BYTES = 96, OBJECT_TRAILER_BYTES = 128 };

void envelope_encode(const struct envelope *envelope, uint8_t ret[ENVELOPE_BYTES]);
/* Decodes a header. FORMAT means a wrong magic or field, DAMAGED a wrong crc of the header,
 * UNSUPPORTED a version, encoding, digest algorithm or encryption that this version lacks. */
int MUST_USE envelope_decode(const uint8_t bytes[ENVELOPE_BYTES], struct envelope *ret,
                             struct diag *diag);

/* Check the rules that envelopes and the chunks of parts share. Return FORMAT or UNSUPPORTED. */
int MUST_USE encoding_check(uint8_t encoding, uint32_t stored_bytes, uint32_t plain_bytes,
                            struct diag *diag);
int MUST_USE digest_check(uint8_t digest_alg, const struct digest *digest, struct diag *diag);

/* What an object says about itself: its identity, and the headers of its chunks. */
struct object_footer {
    struct object_id id;
    uint64_t data_bytes; /* where the footer starts: a multiple of LIMIT_ALIGN_BYTES */
    uint32_t envelope_count;
    /* Sorted by offset. Chunks of LIMIT_PACK_PIECE_BYTES stored bytes or more are aligned. */
    struct envelope *envelopes;
};

/* Returns the bytes of the footer (records, padding, trailer): a multiple of LIMIT_ALIGN_BYTES. */
uint64_t object_footer_bytes(uint32_t envelope_count);
/* Appends exactly object_footer_bytes() to buf. */
void object_footer_encode(const struct object_footer *footer, struct buf *buf);
/* Gives where the footer starts and how long it is, from the last OBJECT_TRAILER_BYTES of an
 * object. DAMAGED or FORMAT. */
int MUST_USE object_trailer_decode(const uint8_t bytes[OBJECT_TRAILER_BYTES], uint64_t object_bytes,
                                   uint64_t *ret_footer_offset, uint64_t *ret_footer_bytes,
                                   struct diag *diag);
/* Decodes the whole footer; the envelopes are from scratch. Checks crc, order, bounds and
 * overlap. */
int MUST_USE object_footer_decode(size_t bytes, const uint8_t *data, uint64_t object_bytes,
                                  struct scratch *scratch, struct object_footer *ret,
                                  struct diag *diag);

#endif

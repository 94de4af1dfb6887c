/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a stored chunk: 96 fixed bytes with a crc of their own, so that a header found in a
 * frame, in a footer or by salvage can be believed alone. Pure; any thread.
 */
#include "envelope.h"

#include <string.h>

#include "base/buf.h"
#include "doc.h"
#include "hash/hash.h"

enum { ENVELOPE_VERSION = 1 };
#define ENVELOPE_MAGIC DOC_MAGIC('C', 'R', 'N', 'E')

/*  0 magic    4 version u8   5 encoding u8   6 digest_alg u8   7 element_bytes u8
 *  8 offset  16 stored_bytes  20 plain_bytes  24 stored_crc  28 key_id
 * 32 digest  64 nonce  76 tag  92 crc32c of bytes 0..91 */
_Static_assert(ENVELOPE_BYTES == 96, "the layout above");

void envelope_encode(const struct envelope *envelope, uint8_t ret[ENVELOPE_BYTES])
{
    store_u32(ret, ENVELOPE_MAGIC);
    ret[4] = ENVELOPE_VERSION;
    ret[5] = envelope->encoding;
    ret[6] = envelope->digest_alg;
    ret[7] = envelope->element_bytes;
    store_u64(ret + 8, envelope->offset);
    store_u32(ret + 16, envelope->stored_bytes);
    store_u32(ret + 20, envelope->plain_bytes);
    store_u32(ret + 24, envelope->stored_crc);
    store_u32(ret + 28, envelope->key_id);
    memcpy(ret + 32, envelope->digest.bytes, sizeof envelope->digest.bytes);
    memcpy(ret + 64, envelope->nonce, sizeof envelope->nonce);
    memcpy(ret + 76, envelope->tag, sizeof envelope->tag);
    store_u32(ret + 92, crc32c(0, 92, ret));
}

int digest_check(uint8_t digest_alg, const struct digest *digest, struct diag *diag)
{
    if (digest_alg != DIGEST_XXH3_128 && digest_alg != DIGEST_SHA256) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "digest algorithm %u needs a newer Cairn than this", digest_alg);
    }
    if (digest_alg == DIGEST_XXH3_128 && !is_all_zero(16, digest->bytes + 16)) {
        return diag_set(diag, CAIRN_E_FORMAT,
                        "a digest of 16 bytes is followed by bytes that are not zero");
    }
    return 0;
}

int encoding_check(uint8_t encoding, uint32_t stored_bytes, uint32_t plain_bytes, struct diag *diag)
{
    if (encoding > ENCODING_PLANES_ZSTD) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "encoding %u needs a newer Cairn than this",
                        encoding);
    }
    if (plain_bytes == 0 || plain_bytes > LIMIT_CHUNK_BYTES) {
        return diag_set(diag, CAIRN_E_FORMAT, "a chunk has %u plain bytes; 1 to %d are allowed",
                        plain_bytes, LIMIT_CHUNK_BYTES);
    }
    if (stored_bytes == 0 || stored_bytes > LIMIT_CHUNK_BYTES) {
        return diag_set(diag, CAIRN_E_FORMAT, "a chunk has %u stored bytes; 1 to %d are allowed",
                        stored_bytes, LIMIT_CHUNK_BYTES);
    }
    if (encoding == ENCODING_RAW && stored_bytes != plain_bytes) {
        return diag_set(diag, CAIRN_E_FORMAT, "a raw chunk has %u plain bytes, but %u stored bytes",
                        plain_bytes, stored_bytes);
    }
    return 0;
}

/* Checks the rules that fields must keep, whether they were read or are to be written. */
static int envelope_check(const struct envelope *envelope, struct diag *diag)
{
    int rc =
        encoding_check(envelope->encoding, envelope->stored_bytes, envelope->plain_bytes, diag);
    if (rc != 0) {
        return rc;
    }
    rc = digest_check(envelope->digest_alg, &envelope->digest, diag);
    if (rc != 0) {
        return rc;
    }
    if (envelope->key_id != 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "a chunk is encrypted (key %u) and needs a newer Cairn than this",
                        envelope->key_id);
    }
    if (!is_all_zero(sizeof envelope->nonce, envelope->nonce) ||
        !is_all_zero(sizeof envelope->tag, envelope->tag)) {
        return diag_set(diag, CAIRN_E_FORMAT, "a chunk that is not encrypted has a nonce or tag");
    }
    uint8_t width = envelope->element_bytes;
    if (width != 1 && width != 2 && width != 4 && width != 8 && width != 16) {
        return diag_set(diag, CAIRN_E_FORMAT, "elements have %u bytes; 1, 2, 4, 8, 16 are possible",
                        width);
    }
    return 0;
}

int envelope_decode(const uint8_t bytes[ENVELOPE_BYTES], struct envelope *ret, struct diag *diag)
{
    struct envelope envelope;
    if (load_u32(bytes) != ENVELOPE_MAGIC) {
        return diag_set(diag, CAIRN_E_FORMAT, "this is not a chunk header: it begins with %08x",
                        load_u32(bytes));
    }
    uint32_t crc = crc32c(0, 92, bytes);
    if (crc != load_u32(bytes + 92)) {
        return diag_set(diag, CAIRN_E_DAMAGED,
                        "a chunk header is damaged: its crc32c is %08x, but %08x is stored", crc,
                        load_u32(bytes + 92));
    }
    if (bytes[4] != ENVELOPE_VERSION) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "a chunk header has version %u; this program reads %d", bytes[4],
                        ENVELOPE_VERSION);
    }
    memset(&envelope, 0, sizeof envelope);
    envelope.encoding = bytes[5];
    envelope.digest_alg = bytes[6];
    envelope.element_bytes = bytes[7];
    envelope.offset = load_u64(bytes + 8);
    envelope.stored_bytes = load_u32(bytes + 16);
    envelope.plain_bytes = load_u32(bytes + 20);
    envelope.stored_crc = load_u32(bytes + 24);
    envelope.key_id = load_u32(bytes + 28);
    memcpy(envelope.digest.bytes, bytes + 32, sizeof envelope.digest.bytes);
    memcpy(envelope.nonce, bytes + 64, sizeof envelope.nonce);
    memcpy(envelope.tag, bytes + 76, sizeof envelope.tag);
    int rc = envelope_check(&envelope, diag);
    if (rc == 0) {
        *ret = envelope;
    }
    return rc;
}

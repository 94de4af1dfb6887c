/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealing and opening of chunks. Plain bytes are not believed before the digest agrees; the crc is
 * checked first, because it tells damage on the way from a wrong chunk. Pure; any thread.
 */
#include "chunk.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"
#include "hash/hash.h"
#include "planes.h"
#include "zstd_frame.h"

void chunk_seal_raw(size_t bytes, const void *plain, uint8_t element_bytes, struct envelope *ret)
{
    CHECK(bytes > 0);
    CHECK(bytes <= LIMIT_CHUNK_BYTES);
    struct envelope envelope = {
        .stored_bytes = (uint32_t)bytes,
        .plain_bytes = (uint32_t)bytes,
        .encoding = ENCODING_RAW,
        .digest_alg = DIGEST_XXH3_128,
        .element_bytes = element_bytes,
    };
    int rc = digest_make_with_crc(envelope.digest_alg, bytes, plain, &envelope.digest,
                                  &envelope.stored_crc);
    CHECK(rc == 0); /* the algorithm is always known here */
    *ret = envelope;
}

/* Checks lengths and encryption, before any byte is looked at. */
static int check_lengths(const struct envelope *envelope, struct diag *diag)
{
    if (envelope->stored_bytes == 0 || envelope->plain_bytes == 0 ||
        envelope->plain_bytes > LIMIT_CHUNK_BYTES || envelope->stored_bytes > LIMIT_CHUNK_BYTES) {
        return diag_set(diag, CAIRN_E_FORMAT, "a chunk cannot have %u stored and %u plain bytes",
                        envelope->stored_bytes, envelope->plain_bytes);
    }
    if (envelope->key_id != 0) {
        return diag_set(diag, CAIRN_E_UNSUPPORTED,
                        "the chunk is encrypted (key %u) and needs a newer Cairn than this",
                        envelope->key_id);
    }
    if (envelope->encoding == ENCODING_RAW && envelope->stored_bytes != envelope->plain_bytes) {
        return diag_set(diag, CAIRN_E_FORMAT, "a raw chunk has %u stored bytes, but %u plain bytes",
                        envelope->stored_bytes, envelope->plain_bytes);
    }
    return 0;
}

static int check_crc(const struct envelope *envelope, uint32_t crc, struct diag *diag)
{
    if (crc == envelope->stored_crc) {
        return 0;
    }
    return diag_set(diag, CAIRN_E_DIGEST_MISMATCH,
                    "the crc32c of %u stored bytes is %08x instead of %08x: they were changed "
                    "after the object was sealed",
                    envelope->stored_bytes, crc, envelope->stored_crc);
}

/* Returns 0 if the digest is that of the envelope, or else DIGEST_MISMATCH. */
static int check_digest(const struct envelope *envelope, const struct digest *digest,
                        struct diag *diag)
{
    char got[DIGEST_TEXT_MAX], wanted[DIGEST_TEXT_MAX];
    if (digest_equal(digest, &envelope->digest)) {
        return 0;
    }
    digest_format(envelope->digest_alg, digest, got);
    digest_format(envelope->digest_alg, &envelope->digest, wanted);
    return diag_set(
        diag, CAIRN_E_DIGEST_MISMATCH,
        "the digest of %u plain bytes is %s instead of %s: these are not the bytes that were saved",
        envelope->plain_bytes, got, wanted);
}

/* Verifies raw bytes. If `to` is not NULL they are copied there, and the copy is verified. */
static int verify_raw(const struct envelope *envelope, const void *stored, void *to,
                      struct diag *diag)
{
    uint8_t alg = envelope->digest_alg;
    struct digest_sums sums;
    int rc =
        to ? digest_copy_with_crc(alg, envelope->stored_bytes, stored, to, &sums)
           : digest_make_with_crc(alg, envelope->stored_bytes, stored, &sums.digest, &sums.crc);
    if (rc != 0) {
        return diag_set(diag, rc, "digest algorithm %u needs a newer Cairn than this", alg);
    }
    rc = check_crc(envelope, sums.crc, diag);
    return rc != 0 ? rc : check_digest(envelope, &sums.digest, diag);
}

static void *take_memory(const struct envelope *envelope, struct diag *diag)
{
    void *memory = malloc(envelope->plain_bytes);
    if (!memory) {
        (void)diag_no_memory(diag, "decoding a chunk of %u bytes", envelope->plain_bytes);
    }
    return memory;
}

/* Decodes byte planes, in memory that is taken for this one chunk. */
static int decode_planes(const struct envelope *envelope, const void *stored, void *plain,
                         struct diag *diag)
{
    const struct planes_stored planes = {
        .bytes = envelope->stored_bytes, .data = stored, .plain_bytes = envelope->plain_bytes};
    void *scratch = take_memory(envelope, diag);
    if (!scratch) {
        return CAIRN_E_NO_MEMORY;
    }
    int rc = planes_decode(&planes, scratch, plain, diag);
    free(scratch);
    return rc;
}

/* Decodes the stored bytes by their encoding. Returns UNSUPPORTED for an encoding that is not
 * known. */
static int decode(const struct envelope *envelope, const void *stored, void *plain,
                  struct diag *diag)
{
    switch (envelope->encoding) {
    case ENCODING_ZSTD:
        return zstd_decode(envelope->stored_bytes, stored, envelope->plain_bytes, plain, diag);
    case ENCODING_PLANES_ZSTD:
        return decode_planes(envelope, stored, plain, diag);
    default:
        return diag_set(diag, CAIRN_E_UNSUPPORTED, "encoding %u needs a newer Cairn than this",
                        envelope->encoding);
    }
}

static int verify_encoded(const struct envelope *envelope, const void *stored, void *plain,
                          struct diag *diag)
{
    struct digest digest;
    int rc = check_crc(envelope, crc32c(0, envelope->stored_bytes, stored), diag);
    if (rc == 0) {
        rc = decode(envelope, stored, plain, diag);
    }
    if (rc == 0) {
        rc = digest_make(envelope->digest_alg, envelope->plain_bytes, plain, &digest, diag);
    }
    return rc != 0 ? rc : check_digest(envelope, &digest, diag);
}

int chunk_verify(const struct envelope *envelope, const void *stored, struct diag *diag)
{
    int rc = check_lengths(envelope, diag);
    if (rc != 0) {
        return rc;
    }
    if (envelope->encoding == ENCODING_RAW) {
        return verify_raw(envelope, stored, NULL, diag);
    }
    void *plain = take_memory(envelope, diag);
    if (!plain) {
        return CAIRN_E_NO_MEMORY;
    }
    rc = verify_encoded(envelope, stored, plain, diag);
    free(plain);
    return rc;
}

int chunk_open(const struct envelope *envelope, const void *stored, size_t plain_cap, void *plain,
               struct diag *diag)
{
    int rc = check_lengths(envelope, diag);
    if (rc != 0) {
        return rc;
    }
    CHECK(plain_cap >= envelope->plain_bytes);
    if (envelope->encoding != ENCODING_RAW) {
        return verify_encoded(envelope, stored, plain, diag);
    }
    return verify_raw(envelope, stored, plain, diag);
}

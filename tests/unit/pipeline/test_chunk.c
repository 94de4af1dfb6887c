/* SPDX-License-Identifier: Apache-2.0
 *
 * A sealed chunk opens to the same bytes; any change of the stored bytes or of the envelope's
 * promises is found, and the text says whether crc or digest differed.
 */
#include "pipeline/chunk.h"

#include "chunk_fixtures.h"
#include "hash/hash.h"
#include "pipeline/zstd_frame.h"
#include "support/unit_test.h"

enum { BYTES = 4099 };

static void fill(uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        data[i] = (uint8_t)(i * 7 + i / 256);
    }
}

/* Goal: a round trip gives the plain bytes. Method: seal, open into other memory. */
TEST(sealed_bytes_open_to_the_same)
{
    uint8_t plain[BYTES], back[BYTES] = {0};
    struct envelope envelope;
    fill(plain, BYTES);
    chunk_seal_raw(BYTES, plain, 4, &envelope);
    assert_int_equal(envelope.stored_bytes, BYTES);
    assert_int_equal(envelope.element_bytes, 4);
    assert_int_equal(chunk_open(&envelope, plain, sizeof back, back, NULL), 0);
    assert_memory_equal(plain, back, BYTES);
}

/* Goal: every changed bit is a crc mismatch. Method: flip one bit of each byte. */
TEST(a_flipped_bit_is_a_crc_mismatch)
{
    uint8_t plain[BYTES];
    struct envelope envelope;
    fill(plain, BYTES);
    chunk_seal_raw(BYTES, plain, 1, &envelope);
    for (size_t i = 0; i < BYTES; i++) {
        struct diag diag = DIAG_INIT;
        plain[i] ^= (uint8_t)(1u << (i % 8));
        assert_int_equal(chunk_verify(&envelope, plain, &diag), CAIRN_E_DIGEST_MISMATCH);
        assert_non_null(strstr(diag.text, "crc32c"));
        plain[i] ^= (uint8_t)(1u << (i % 8));
    }
}

/* Goal: other bytes with a right crc do not pass. Method: give the envelope the crc of the changed
 * bytes. */
TEST(a_wrong_digest_is_told_from_a_wrong_crc)
{
    uint8_t plain[BYTES];
    struct envelope envelope;
    struct diag diag = DIAG_INIT;
    fill(plain, BYTES);
    chunk_seal_raw(BYTES, plain, 1, &envelope);
    plain[100] ^= 1;
    envelope.stored_crc = crc32c(0, BYTES, plain);
    assert_int_equal(chunk_verify(&envelope, plain, &diag), CAIRN_E_DIGEST_MISMATCH);
    assert_non_null(strstr(diag.text, "digest"));
}

TEST(sha256_digests_verify)
{
    uint8_t plain[BYTES];
    struct envelope envelope;
    fill(plain, BYTES);
    chunk_seal_raw(BYTES, plain, 1, &envelope);
    envelope.digest_alg = DIGEST_SHA256;
    assert_int_equal(chunk_verify(&envelope, plain, NULL), CAIRN_E_DIGEST_MISMATCH);
    assert_int_equal(digest_make(DIGEST_SHA256, BYTES, plain, &envelope.digest, NULL), 0);
    assert_int_equal(chunk_verify(&envelope, plain, NULL), 0);
    envelope.digest_alg = 9;
    assert_int_equal(chunk_verify(&envelope, plain, NULL), CAIRN_E_UNSUPPORTED);
}

/* Goal: an encoded chunk is decoded and then checked. Method: encode by hand, break digest and crc.
 */
TEST(encoded_chunks_are_checked_after_decoding)
{
    uint8_t plain[BYTES], stored[2 * BYTES], back[BYTES];
    struct zstd_room room = {.cap = sizeof stored, .data = stored};
    struct envelope envelope;
    fill(plain, BYTES);
    chunk_seal_raw(BYTES, plain, 1, &envelope);
    assert_int_equal(chunk_fixture_zstd(1, BYTES, plain, &room), 0);
    envelope.encoding = ENCODING_ZSTD;
    envelope.stored_bytes = (uint32_t)room.bytes;
    envelope.stored_crc = crc32c(0, room.bytes, stored);
    assert_int_equal(chunk_verify(&envelope, stored, NULL), 0);
    assert_int_equal(chunk_open(&envelope, stored, sizeof back, back, NULL), 0);
    assert_memory_equal(plain, back, BYTES);
    envelope.digest.bytes[3] ^= 1;
    assert_int_equal(chunk_verify(&envelope, stored, NULL), CAIRN_E_DIGEST_MISMATCH);
    envelope.digest.bytes[3] ^= 1;
    envelope.plain_bytes++;
    assert_int_equal(chunk_verify(&envelope, stored, NULL), CAIRN_E_FORMAT);
}

TEST(impossible_envelopes_are_refused)
{
    uint8_t plain[16] = {0};
    struct envelope good, bad;
    chunk_seal_raw(sizeof plain, plain, 1, &good);
    bad = good;
    bad.stored_bytes = 0;
    assert_int_equal(chunk_verify(&bad, plain, NULL), CAIRN_E_FORMAT);
    bad = good;
    bad.plain_bytes = 15;
    assert_int_equal(chunk_verify(&bad, plain, NULL), CAIRN_E_FORMAT);
    bad = good;
    bad.plain_bytes = LIMIT_CHUNK_BYTES + 1;
    assert_int_equal(chunk_verify(&bad, plain, NULL), CAIRN_E_FORMAT);
    bad = good;
    bad.key_id = 1;
    assert_int_equal(chunk_verify(&bad, plain, NULL), CAIRN_E_UNSUPPORTED);
    bad = good;
    bad.encoding = ENCODING_PLANES_ZSTD; /* right crc, but these are no planes */
    assert_int_equal(chunk_verify(&bad, plain, NULL), CAIRN_E_FORMAT);
    bad.encoding = ENCODING_PLANES_ZSTD + 1;
    assert_int_equal(chunk_verify(&bad, plain, NULL), CAIRN_E_UNSUPPORTED);
}

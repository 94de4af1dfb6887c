/* SPDX-License-Identifier: Apache-2.0
 *
 * The three checksums, each in a file of its own (crc32c.c with libisal, xxh3.c with libxxhash,
 * sha256.c with OpenSSL): crc32c for stored bytes and headers, XXH3-128 for plain bytes against
 * accidents, SHA-256 for the identity of parts, pages, manifests and chains. Pure; any thread.
 */
#ifndef CAIRN_HASH_HASH_H
#define CAIRN_HASH_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Continues a CRC-32C (Castagnoli, as in iSCSI) from crc: crc32c(0, 9, "123456789") == 0xe3069283.
 */
uint32_t crc32c(uint32_t crc, size_t bytes, const void *data);

/* An XXH3-128 with seed 0, in canonical (big-endian) bytes. */
struct xxh128 {
    uint8_t bytes[16];
};
struct xxh128 xxh3_128(size_t bytes, const void *data);

/* Computes XXH3-128 and crc32c of all bytes in one pass, slice by slice while they are in the
 * cache. */
void hash_both(size_t bytes, const void *data, struct xxh128 *ret_digest, uint32_t *ret_crc);
/* Copies the bytes as well; the hashes are those of the copy. */
void hash_both_copy(size_t bytes, const void *data, void *to, struct xxh128 *ret_digest,
                    uint32_t *ret_crc);

/* XXH3-128 of bytes that are not contiguous, added piece by piece. */
struct xxh3_stream;
struct xxh3_stream *xxh3_stream_new(void); /* NULL if memory is short */
void xxh3_stream_reset(struct xxh3_stream *stream);
void xxh3_stream_add(struct xxh3_stream *stream, size_t bytes, const void *data);
struct xxh128 xxh3_stream_digest(const struct xxh3_stream *stream);
void xxh3_stream_free(struct xxh3_stream *stream);

struct sha256 {
    uint8_t bytes[32];
};
struct sha256 sha256(size_t bytes, const void *data);

/* Convert to lower-case hex and back. The text has 2 * bytes digits and a NUL. hex_decode returns
 * false for anything other than exactly 2 * bytes lower-case digits, and then leaves ret as it
 * was. */
void hex_encode(size_t bytes, const void *data, char *ret);
int hex_decode(size_t bytes, const char *text, void *ret);

#endif

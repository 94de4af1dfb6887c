/* SPDX-License-Identifier: Apache-2.0
 *
 * The three checksums, one file each (crc32c.c libisal, xxh3.c libxxhash, sha256.c OpenSSL):
 * crc32c of stored bytes and headers, XXH3-128 of plain bytes (accidents), SHA-256 of parts, pages,
 * manifests and chains (identity). Pure; any thread.
 */
#ifndef CAIRN_HASH_HASH_H
#define CAIRN_HASH_HASH_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32C (Castagnoli), as in iSCSI: crc32c(0, 9, "123456789") == 0xe3069283. Continues from crc.
 */
uint32_t crc32c(uint32_t crc, size_t bytes, const void *data);

/* XXH3-128, seed 0, canonical (big-endian) 16 bytes. */
struct xxh128 {
    uint8_t bytes[16];
};
struct xxh128 xxh3_128(size_t bytes, const void *data);

/* XXH3-128 of the whole and crc32c of the whole in one pass, slice by slice while in cache. */
void hash_both(size_t bytes, const void *data, struct xxh128 *ret_digest, uint32_t *ret_crc);
/* Copies as well, and the hashes are of the copy. */
void hash_both_copy(size_t bytes, const void *data, void *to, struct xxh128 *ret_digest,
                    uint32_t *ret_crc);

/* Streaming XXH3-128 for bytes that are not contiguous. */
struct xxh3_stream;
struct xxh3_stream *xxh3_stream_new(void); /* NULL: out of memory */
void xxh3_stream_reset(struct xxh3_stream *stream);
void xxh3_stream_add(struct xxh3_stream *stream, size_t bytes, const void *data);
struct xxh128 xxh3_stream_digest(const struct xxh3_stream *stream);
void xxh3_stream_free(struct xxh3_stream *stream);

struct sha256 {
    uint8_t bytes[32];
};
struct sha256 sha256(size_t bytes, const void *data);

/* Lower-case hex with NUL; ret has 2 * bytes + 1. hex_decode: false unless exactly 2 * bytes hex
 * digits. */
void hex_encode(size_t bytes, const void *data, char *ret);
int hex_decode(size_t bytes, const char *text, void *ret);

#endif

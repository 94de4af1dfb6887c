/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests of plain bytes. The plain bytes of a raw chunk are the stored ones, so one pass makes
 * both the digest and the crc. Pure; any thread.
 */
#include "digest.h"

#include "hash/hash.h"

#include <string.h>

static struct digest digest_of_xxh(const struct xxh128 *hash)
{
    struct digest digest = {{0}};
    memcpy(digest.bytes, hash->bytes, sizeof hash->bytes);
    return digest;
}

static struct digest digest_of_sha(size_t bytes, const void *plain)
{
    struct digest digest;
    struct sha256 hash = sha256(bytes, plain);
    _Static_assert(sizeof hash.bytes == sizeof digest.bytes, "a SHA-256 fills a digest");
    memcpy(digest.bytes, hash.bytes, sizeof digest.bytes);
    return digest;
}

int digest_make(uint8_t alg, size_t bytes, const void *plain, struct digest *ret, struct diag *diag)
{
    if (alg == DIGEST_XXH3_128) {
        struct xxh128 hash = xxh3_128(bytes, plain);
        *ret = digest_of_xxh(&hash);
        return 0;
    }
    if (alg == DIGEST_SHA256) {
        *ret = digest_of_sha(bytes, plain);
        return 0;
    }
    return diag_set(diag, CAIRN_E_UNSUPPORTED, "digest algorithm %u needs a newer Cairn than this",
                    alg);
}

int digest_make_with_crc(uint8_t alg, size_t bytes, const void *plain, struct digest *ret,
                         uint32_t *ret_crc)
{
    if (alg == DIGEST_XXH3_128) {
        struct xxh128 hash;
        hash_both(bytes, plain, &hash, ret_crc);
        *ret = digest_of_xxh(&hash);
        return 0;
    }
    int rc = digest_make(alg, bytes, plain, ret, NULL);
    if (rc == 0) {
        *ret_crc = crc32c(0, bytes, plain);
    }
    return rc;
}

int digest_copy_with_crc(uint8_t alg, size_t bytes, const void *plain, void *to,
                         struct digest_sums *ret)
{
    if (alg == DIGEST_XXH3_128) {
        struct xxh128 hash;
        hash_both_copy(bytes, plain, to, &hash, &ret->crc);
        ret->digest = digest_of_xxh(&hash);
        return 0;
    }
    memcpy(to, plain, bytes);
    return digest_make_with_crc(alg, bytes, to, &ret->digest, &ret->crc);
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void digest_format(uint8_t alg, const struct digest *digest, char ret[DIGEST_TEXT_MAX])
{
    hex_encode(alg == DIGEST_SHA256 ? 32 : 16, digest->bytes, ret);
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * digest: the identity of plain bytes, and its comparison: XXH3-128 against accidents, SHA-256 if a
 * run asks for evidence of tampering. Pure; any thread.
 */
#ifndef CAIRN_PIPELINE_DIGEST_H
#define CAIRN_PIPELINE_DIGEST_H

#include "base/diag.h"
#include "format/envelope.h"

/* Makes the digest. UNSUPPORTED for an algorithm that this version lacks. */
int MUST_USE digest_make(uint8_t alg, size_t bytes, const void *plain, struct digest *ret,
                         struct diag *diag);
/* Makes the digest and the crc32c of the same bytes, in one pass while they are in the cache if the
 * algorithm allows that. */
int MUST_USE digest_make_with_crc(uint8_t alg, size_t bytes, const void *plain, struct digest *ret,
                                  uint32_t *ret_crc);
/* Does the same, and copies the bytes in that pass; the sums are those of the copy. */
struct digest_sums {
    struct digest digest;
    uint32_t crc;
};
int MUST_USE digest_copy_with_crc(uint8_t alg, size_t bytes, const void *plain, void *to,
                                  struct digest_sums *ret);
bool digest_equal(const struct digest *a, const struct digest *b);
/* Writes lower-case hex of the algorithm's bytes: at most 64 digits and a NUL. */
enum { DIGEST_TEXT_MAX = 65 };
void digest_format(uint8_t alg, const struct digest *digest, char ret[DIGEST_TEXT_MAX]);

#endif

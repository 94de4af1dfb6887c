/* SPDX-License-Identifier: Apache-2.0
 *
 * digest: the identity of plain bytes, and its comparison. XXH3-128 against accidents, SHA-256
 * where a run asks for tamper evidence. Pure; any thread.
 */
#ifndef CAIRN_PIPELINE_DIGEST_H
#define CAIRN_PIPELINE_DIGEST_H

#include "base/diag.h"
#include "format/envelope.h"

/* UNSUPPORTED for an algorithm that this version lacks. */
int MUST_USE digest_make(uint8_t alg, size_t bytes, const void *plain, struct digest *ret,
                         struct diag *diag);
/* Digest and crc32c of the same bytes, in one pass while they are in cache where the algorithm
 * allows. */
int MUST_USE digest_make_with_crc(uint8_t alg, size_t bytes, const void *plain, struct digest *ret,
                                  uint32_t *ret_crc);
/* The same of a copy that is made in that pass. */
struct digest_sums {
    struct digest digest;
    uint32_t crc;
};
int MUST_USE digest_copy_with_crc(uint8_t alg, size_t bytes, const void *plain, void *to,
                                  struct digest_sums *ret);
bool digest_equal(const struct digest *a, const struct digest *b);
/* Lower-case hex of the algorithm's bytes: at most 64 digits and NUL. */
enum { DIGEST_TEXT_MAX = 65 };
void digest_format(uint8_t alg, const struct digest *digest, char ret[DIGEST_TEXT_MAX]);

#endif

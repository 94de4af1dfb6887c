/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 (FIPS 180-4) for the example's digest of its own state, so that the example needs no
 * library except Cairn's. It is slow, and not for secrets. Pure.
 */
#ifndef CAIRN_EXAMPLES_TRAINER_SHA256_H
#define CAIRN_EXAMPLES_TRAINER_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct trainer_sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[64];
};

void trainer_sha256_init(struct trainer_sha256 *sha);
void trainer_sha256_add(struct trainer_sha256 *sha, size_t bytes, const void *data);
void trainer_sha256_end(struct trainer_sha256 *sha, char ret_hex[65]);

#endif

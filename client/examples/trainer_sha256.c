/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 as FIPS 180-4 defines it. The constants are computed for each digest as the standard
 * says: the first 32 bits of the fractional parts of square and cube roots of primes. Pure.
 */
#include "trainer_sha256.h"

#include <stdio.h>
#include <string.h>

/* Returns floor(frac(p^(1/root)) * 2^32), by bisection on integers: x = floor(p^(1/root) *
 * 2^32). */
static uint32_t fraction_of_root(uint32_t p, int root)
{
    __extension__ typedef unsigned __int128 wide;
    uint64_t low = 0, high = UINT64_C(1) << 37; /* the roots are below 32 */
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        /* mid^root <= p * 2^(32 root); the cube is compared as mid^2 <= p * 2^96 / mid */
        wide square = (wide)mid * mid;
        int below = root == 2 ? square <= (wide)p << 64 : square <= ((wide)p << 96) / mid;
        if (below) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return (uint32_t)low;
}

static uint32_t next_prime(uint32_t p)
{
    for (p++;; p++) {
        uint32_t d = 2;
        while (d * d <= p && p % d != 0) {
            d++;
        }
        if (d * d > p) {
            return p;
        }
    }
}

static uint32_t rotate(uint32_t x, int k) { return (x >> k) | (x << (32 - k)); }

static void take_block(struct trainer_sha256 *sha, const uint32_t *k, const uint8_t *block)
{
    uint32_t w[64], v[8];
    for (size_t i = 0; i < 16; i++) {
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, sha->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) {
        sha->h[i] += v[i];
    }
}

void trainer_sha256_init(struct trainer_sha256 *sha)
{
    uint32_t p = 1;
    memset(sha, 0, sizeof *sha);
    for (int i = 0; i < 8; i++) {
        p = next_prime(p);
        sha->h[i] = fraction_of_root(p, 2);
    }
}

void trainer_sha256_add(struct trainer_sha256 *sha, size_t bytes, const void *data)
{
    const uint8_t *at = data;
    uint32_t k[64], p = 1;
    for (int i = 0; i < 64; i++) {
        p = next_prime(p);
        k[i] = fraction_of_root(p, 3);
    }
    while (bytes > 0) {
        size_t used = (size_t)(sha->bytes % 64), part = 64 - used < bytes ? 64 - used : bytes;
        memcpy(sha->block + used, at, part);
        sha->bytes += part;
        at += part;
        bytes -= part;
        if (used + part == 64) {
            take_block(sha, k, sha->block);
        }
    }
}

void trainer_sha256_end(struct trainer_sha256 *sha, char ret_hex[65])
{
    uint8_t tail[72] = {0x80};
    uint64_t bits = sha->bytes * 8;
    size_t padding = 1 + (119 - (size_t)(sha->bytes % 64)) % 64;
    for (size_t i = 0; i < 8; i++) {
        tail[padding + i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    trainer_sha256_add(sha, padding + 8, tail);
    for (size_t i = 0; i < 8; i++) {
        snprintf(ret_hex + 8 * i, 9, "%08x", sha->h[i]);
    }
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements are built bit by bit: sign, exponent, mantissa. One thread.
 */
#include "plain_data.h"

#include <string.h>

uint64_t plain_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed * 0x2545f4914f6cdd1dull;
}

/* Zeros at the end of a random number: n with probability 2^-(n+1), 63 at most. */
static unsigned halvings(uint64_t *seed)
{
    return (unsigned)__builtin_ctzll(plain_random(seed) | 1ull << 63);
}

static unsigned exponent_bits(unsigned element_bytes)
{
    return element_bytes == 8 ? 11 : element_bytes == 1 ? 4 : 8;
}

static uint64_t float_of(unsigned element_bytes, uint64_t sign, uint64_t exponent,
                         uint64_t mantissa)
{
    unsigned bits = 8 * element_bytes, mantissa_bits = bits - 1 - exponent_bits(element_bytes);
    uint64_t max = (1ull << exponent_bits(element_bytes)) - 1;
    exponent = exponent > max ? max : exponent;
    return sign << (bits - 1) | exponent << mantissa_bits |
           (mantissa & ((1ull << mantissa_bits) - 1));
}

static uint64_t special(unsigned element_bytes, uint64_t *seed)
{
    uint64_t random = plain_random(seed), sign = random & 1;
    switch (random >> 1 & 7) {
    case 0:
        return float_of(element_bytes, 1, 0, 0);
    case 1:
        return float_of(element_bytes, 0, 0, 0);
    case 2:
        return float_of(element_bytes, sign, UINT64_MAX, 0);
    case 3:
        return float_of(element_bytes, sign, 0, random >> 8);
    default:
        return float_of(element_bytes, sign, UINT64_MAX, random >> 8);
    }
}

static uint64_t element(enum plain_kind kind, unsigned element_bytes, size_t idx, uint64_t *seed)
{
    uint64_t middle = (1ull << (exponent_bits(element_bytes) - 1)) - 1;
    unsigned down;
    switch (kind) {
    case PLAIN_RANDOM:
        return plain_random(seed);
    case PLAIN_WEIGHTS:
        down = halvings(seed) + 2;
        return float_of(element_bytes, plain_random(seed) >> 63, middle > down ? middle - down : 0,
                        plain_random(seed));
    case PLAIN_MOMENTS:
        down = 3 * halvings(seed) + halvings(seed) + 5;
        return float_of(element_bytes, 0, middle > down ? middle - down : 0, plain_random(seed));
    case PLAIN_INTS:
        return (plain_random(seed) >> 58) - 20;
    case PLAIN_SPECIAL:
        return special(element_bytes, seed);
    case PLAIN_RUNS:
        return idx / 700 * 0x9e3779b97f4a7c15ull;
    case PLAIN_ZEROS:
    case PLAIN_KINDS:
        break;
    }
    return 0;
}

void plain_fill(enum plain_kind kind, unsigned element_bytes, size_t bytes, uint8_t *ret)
{
    uint64_t seed = 0x9e3779b97f4a7c15ull ^ (uint64_t)kind << 8 ^ element_bytes;
    for (size_t at = 0; at < bytes; at += element_bytes) {
        uint64_t value = element(kind, element_bytes, at / element_bytes, &seed);
        size_t left = bytes - at;
        memcpy(ret + at, &value, left < element_bytes ? left : element_bytes);
    }
}

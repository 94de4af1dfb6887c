/* SPDX-License-Identifier: Apache-2.0
 *
 * Plain bytes for tests of the pipeline, from whole numbers only, so that they are the same on
 * every machine: golden files depend on them. Never change what a kind gives; add another.
 */
#ifndef CAIRN_TESTS_PLAIN_DATA_H
#define CAIRN_TESTS_PLAIN_DATA_H

#include <stddef.h>
#include <stdint.h>

enum plain_kind {
    PLAIN_ZEROS,
    PLAIN_RANDOM,
    PLAIN_WEIGHTS, /* floats of both signs, exponents as a trained layer has them */
    PLAIN_MOMENTS, /* positive floats over more exponents */
    PLAIN_INTS,    /* small, of both signs */
    PLAIN_SPECIAL, /* NaN with payloads, infinities, both zeros, subnormals */
    PLAIN_RUNS,    /* long repetitions */
    PLAIN_KINDS
};

uint64_t plain_random(uint64_t *seed); /* seed > 0 */
/* Fills with elements of so many bytes; floats of 2 bytes are bfloat16. Anything may be left over
 * behind the last element. */
void plain_fill(enum plain_kind kind, unsigned element_bytes, size_t bytes, uint8_t *ret);

#endif
